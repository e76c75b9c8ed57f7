"""Make the sdist and the wheel, install each in an empty environment, and run programs there.

    python packaging/archives.py                 # needs build and setuptools>=77 (mnpar[dev])
    python packaging/archives.py --keep dist     # and put both archives into dist/

The sdist must have every file of the project but hidden ones, and the wheel, which is made from the
sdist, the package and its pytest plugin: else this says which files are missing or too many. The
wheel brings its requirements into an empty environment; the sdist is built and installed in another
one, and gets the same requirements. In each a program runs on thread ranks, ``python -m mnpar
doctor`` says what works, and pytest runs in a project that knows nothing of mnpar: no option of it,
and no import, until a test asks for ``comm``. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from matrix import ROOT, THREADS, pip, run

MADE = {"__pycache__", "_build", "build", "dist", "result"}  # folders that nobody writes by hand
FOREIGN = {  # a project with a test that does not know of mnpar, and then one that asks for it
    "test_plain.py": """
import sys
def test_plain(pytestconfig):
    assert not {"mnpar", "numpy"} & sys.modules.keys()
    assert not {"ranks_on", "rank_timeout", "processes", "sweep"} & vars(pytestconfig.option).keys()
""",
    "test_ranks.py": """
import sys
import pytest
assert not {"mnpar", "numpy"} & sys.modules.keys()
@pytest.mark.ranks(3, on="threads")
def test_ranks(comm):
    assert "mnpar" in sys.modules
    assert comm.allreduce_obj(comm.rank) == 3
""",
}


def sources() -> set[str]:
    """Return the names of all files that somebody wrote, from the root."""
    found: set[str] = set()
    for path in ROOT.iterdir():
        if path.name.startswith(".") or path.name in MADE or path.suffix == ".egg-info":
            continue
        for file in path.rglob("*") if path.is_dir() else (path,):
            name = file.relative_to(ROOT)
            hidden = any(part.startswith(".") for part in name.parts)
            if file.is_file() and not hidden and not MADE & set(name.parts):
                found.add(name.as_posix())
    return found


def is_as_wanted(what: str, found: set[str], wanted: set[str]) -> bool:
    """Return whether an archive has what it should have; print what it lacks or has besides."""
    for said, names in (("lacks", wanted - found), ("should not have", found - wanted)):
        if names:
            print(f"the {what} {said} {', '.join(sorted(names))}")
    return found == wanted


def has_all_files(sdist: Path, wheel: Path) -> bool:
    """Return whether both archives have the files of the project, and no others."""
    with tarfile.open(sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive if member.isfile()]
    made = {"PKG-INFO", *(name for name in names if name.startswith("mnpar.egg-info/"))}
    wanted = sources()
    good = is_as_wanted("sdist", set(names) - made - {"setup.cfg"}, wanted - {"setup.cfg"})
    installed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    package = {name for name in wanted if name.startswith("mnpar/")} | {"pytest_mnpar.py"}
    return is_as_wanted("wheel", installed, package) and good


def environment(folder: Path, archive: Path, *arguments: str) -> str:
    """Make an environment with an archive in it; return what pip said if it failed."""
    done = run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    if not done.returncode:
        # compiling Python's files would take longer than all programs together
        own = str(folder / "bin" / "python")
        done = pip(own, "install", "-q", "--no-compile", *arguments, str(archive))
    return done.stdout if done.returncode else ""


def link_requirements(source: Path, target: Path) -> None:
    """Put all packages of an environment but mnpar into another one, as links: the sdist requires
    the same as the wheel, and copies would take seconds.
    """
    (packages,) = source.glob("lib/python*/site-packages")
    (place,) = target.glob("lib/python*/site-packages")
    for path in packages.iterdir():
        if path.name.startswith(("mnpar", "pytest_mnpar", "__pycache__")):
            continue
        if path.is_dir():
            shutil.copytree(path, place / path.name, copy_function=os.link, dirs_exist_ok=True)
        else:
            os.link(path, place / path.name)


def failure(folder: Path) -> str:
    """Run programs in an environment; return what the first that failed printed."""
    project = folder / "project"
    project.mkdir()
    for name, text in FOREIGN.items():
        (project / name).write_text(text, encoding="utf-8")
    python = [str(folder / "bin" / "python"), "-W", "error"]
    session = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"]
    for program in (["-c", THREADS], ["-m", "mnpar", "doctor"], *([*session, n] for n in FOREIGN)):
        done = run([*python, *program], cwd=project, timeout=120)
        if done.returncode:
            return done.stdout
    return ""


def main() -> int:
    """Make both archives and check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", type=Path, help="folder into which good archives go")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory(prefix="mnpar-archives-") as place:
        made = run([sys.executable, "-m", "build", "--no-isolation", "-o", place, str(ROOT)])
        if made.returncode:
            print(made.stdout)
            return 1
        (sdist,) = Path(place).glob("*.tar.gz")
        (wheel,) = Path(place).glob("*.whl")
        good = has_all_files(sdist, wheel)
        archives = (wheel, sdist)
        folders = [Path(place, name) for name in ("from-wheel", "from-sdist")]
        with ThreadPoolExecutor() as pool:
            options = (("pytest",), ("--no-deps",))
            said = list(pool.map(environment, folders, archives, *zip(*options, strict=True)))
            if not any(said):
                link_requirements(*folders)
                said = list(pool.map(failure, folders))
        for archive, text in zip(archives, said, strict=True):
            print(f"{archive.name} {'FAILS' if text else 'installs and runs'}\n{text}", end="")
            good &= not text
        if good and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for archive in archives:
                shutil.copy(archive, keep)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
