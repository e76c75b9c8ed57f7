"""What editors and type checkers see of an installed mnpar: the types of a user's program."""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = Path(__file__).with_name("user_program.py")

pytest.importorskip("mypy", reason="type checkers are installed with the extra dev")


def check(folder, *command):
    found = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert found.returncode == 0, found.stdout + found.stderr


def install(folder):
    """Install mnpar in an environment of its own, as a wheel is; returns its interpreter."""
    source = folder / "source"
    shutil.copytree(ROOT / "mnpar", source / "mnpar")
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    venv.create(folder / "venv", symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")}))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    check(folder, *pip, "--target", str(site), str(source))
    # numpy is found here; path files that lie there, such as an editable install's, are not read
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin" / "python"


@pytest.fixture(scope="module", params=["editable", "regular"])
def interpreter(request, tmp_path_factory):
    if request.param == "editable":
        return Path(sys.executable)
    return install(tmp_path_factory.mktemp("regular"))


@pytest.fixture
def folder(tmp_path):
    shutil.copy(PROGRAM, tmp_path / "program.py")
    return tmp_path


def test_the_program_runs(folder):
    check(folder, sys.executable, "program.py")


def test_mypy_finds_the_types(interpreter, folder):
    python = ["--python-executable", str(interpreter), "--cache-dir", str(folder / "cache")]
    check(folder, sys.executable, "-m", "mypy", "--strict", *python, "program.py")


def test_pyright_finds_the_types(interpreter, folder):
    pytest.importorskip("basedpyright")
    # the rules of pyright's own strict mode
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    python = ["--pythonpath", str(interpreter)]
    check(folder, sys.executable, "-m", "basedpyright", "--level", "error", *python, "program.py")
