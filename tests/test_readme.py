"""The README keeps its word: its programs are the ones that run, and the files it names are
there.
"""

import pydoc
import re
import subprocess
import sys
from pathlib import Path

import mnpar

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.S)


def test_the_readme_opens_with_the_ring():
    ring = (ROOT / "examples" / "ring.py").read_text()
    assert PROGRAMS[0] == ring[ring.index("import numpy") :]


def test_the_readmes_own_test_passes_on_thread_ranks_and_on_mpiexec_ranks(tmp_path):
    (program,) = [text for text in PROGRAMS if "pytest.mark.ranks" in text]
    (tmp_path / "test_mine.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_mine.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout  # 2 and 3 ranks, each as threads and as processes


def test_both_ways_to_start_are_one_line_and_the_second_is_what_ci_runs():
    first, second = re.findall(r"^    (python3 -m venv .*)$", README, re.M)
    assert first.endswith("python examples/ensemble_mnist.py")
    assert second in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_file_that_the_readme_names_is_there():
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    paths = {*links, *re.findall(r"\b(?:examples|docs|benchmarks|tests)/[\w/]+\.\w+", README)}
    assert {"examples/ring.py", "docs/backward_order.md"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_name_of_mnpar_that_the_readme_uses_is_there():
    names = re.findall(r"`(mnpar\.[\w.]+)", README)
    assert "mnpar.backward" in names
    assert [name for name in names if pydoc.locate(name) is None] == []


def test_the_version_is_the_same_everywhere():
    [cited] = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    [newest, *_] = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert cited == newest == mnpar.__version__
