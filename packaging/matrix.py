"""Test mnpar's wheel with each Python and each numpy that this machine can have.

    python packaging/matrix.py                    # all Pythons that are found, all numpys
    python packaging/matrix.py --numpy 2.0 2.3    # these numpys only
    python packaging/matrix.py --python /opt/python3.14/bin/python3.14 --tests tests/functions

Makes the wheel once. For each pair an environment of its own gets it, numpy, scipy, MPI and pytest,
all from wheels, and runs a quick part of the tests (TESTS) and one example on threads and one under
mpiexec. Pythons are looked for on PATH and among pyenv's. A pair without a wheel of numpy is said
to have none. The exit code is 1 if any pair failed, or if a Python that setup.cfg names was not
found and ``--complete`` is given.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMPYS = ("2.0", "2.1", "2.2", "2.3", "2.4", "2.5")
# what depends on Python's or numpy's version: arrays and their types, random numbers, threads and
# context variables, source lines, files
TESTS = (
    "tests/test_variable.py",
    "tests/test_link.py",
    "tests/test_parameter.py",
    "tests/test_random.py",
    "tests/test_reporter.py",
    "tests/test_configuration.py",
    "tests/test_lazy.py",
    "tests/test_gradient_check.py",
    "tests/autograd/test_backward_order.py",
    "tests/communicators/test_threads.py",
    "tests/functions/test_edges.py",
    "tests/plans/test_ring.py",
    "tests/serializers/test_npz.py",
)
PACKAGES = ("mpi4py>=4.1,<5", "mpich", "threadpoolctl", "pytest>=8", "ml_dtypes")
LIMIT = 1200  # s for the tests of one pair


def supported() -> list[str]:
    """Return the versions of Python that setup.cfg names."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"])


def find_pythons(versions: list[str]) -> dict[str, str]:
    """Return a Python of each version: pyenv's, or the first on PATH."""
    found: dict[str, str] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in versions:
        own = sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
        python = str(own[-1]) if own else shutil.which(f"python{version}")
        if python is not None and run([python, "-c", "import ssl, ctypes"]).returncode == 0:
            found[version] = python
    return found


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command, and return what it printed, errors with the rest."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
        **options,
    )


def pip(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python's pip for another one, which needs none of its own."""
    return run([sys.executable, "-m", "pip", "--python", python, *arguments])


def install(python: str, numpy: str, wheel: Path, folder: Path) -> tuple[str, str]:
    """Make an environment; return its Python and an empty string, or why there is none."""
    made = run([python, "-m", "venv", "--without-pip", str(folder)])
    own = str(folder / "bin" / "python")
    if made.returncode:
        return own, f"no environment: {made.stdout.strip()[-200:]}"
    wheels = ("install", "-q", "--only-binary", ":all:")
    done = pip(own, *wheels, f"numpy=={numpy}.*")
    if done.returncode:
        none = "No matching distribution" in done.stdout
        return own, "no wheel of numpy" if none else f"pip failed: {done.stdout.strip()[-300:]}"
    done = pip(own, *wheels, f"numpy=={numpy}.*", *PACKAGES, str(wheel))
    return own, "" if done.returncode == 0 else f"pip failed: {done.stdout.strip()[-300:]}"


def check(own: str, folder: Path, tests: list[str]) -> tuple[bool, str]:
    """Run the tests and the examples in an environment; return whether all passed, and a line
    about them.
    """
    for name in ("tests", "examples", "setup.cfg"):  # and not mnpar: the wheel is tested
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    session = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--processes", "2", *tests]
    programs = [
        [own, *session],
        [own, "-c", THREADS],
        [str(Path(own).with_name("mpiexec")), "-n", "3", own, "examples/ring.py"],
    ]
    said = ""
    for program in programs:
        try:
            done = run(program, cwd=folder, env=environment, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return False, f"{program[1]} took more than {LIMIT} s"
        last = done.stdout.strip().splitlines()[-1:] or [""]
        said = said or last[0]
        if done.returncode:
            print(done.stdout, flush=True)
            return False, last[0]
    return True, said


THREADS = """
import numpy as np, mnpar
import mnpar.functions as F
def program(comm):
    x = mnpar.Variable(np.arange(3.0) + comm.rank)
    F.sum(F.allreduce(comm, x) ** 2).backward()
    return x.grad
assert all((grad == 2 * 3 * (np.arange(3.0) * 3 + 3)).all() for grad in mnpar.run(program, ranks=3))
"""


def main() -> int:
    """Test all pairs and print a table."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog=f"The tests: {' '.join(TESTS)}",
    )
    parser.add_argument("--python", nargs="*", help="interpreters in place of those found")
    parser.add_argument("--numpy", nargs="*", default=NUMPYS, help=f"versions ({' '.join(NUMPYS)})")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files of tests")
    parser.add_argument("--complete", action="store_true", help="fail if a Python is missing")
    arguments = parser.parse_args()
    versions = supported()
    pythons = find_pythons(versions) if arguments.python is None else {}
    for python in arguments.python or ():
        version = run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        pythons[version.stdout.strip()] = python
    missing = [version for version in versions if version not in pythons]
    rows, failed = [], bool(missing) and arguments.complete
    with tempfile.TemporaryDirectory(prefix="mnpar-matrix-") as place:
        made = run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, str(ROOT)]
        )
        wheels = list(Path(place).glob("mnpar-*.whl"))
        if made.returncode or len(wheels) != 1:
            print(made.stdout)
            return 1
        for version, python in pythons.items():
            for numpy in arguments.numpy:
                begun = time.monotonic()
                folder = Path(place, f"{version}-{numpy}")
                own, trouble = install(python, numpy, wheels[0], folder)
                good, said = (trouble == "no wheel of numpy", trouble)
                if not trouble:
                    good, said = check(own, folder, list(arguments.tests))
                shutil.rmtree(folder, ignore_errors=True)
                failed |= not good
                rows.append((version, numpy, "passes" if good else "FAILS", said))
                print(*rows[-1], f"{time.monotonic() - begun:.0f} s", sep="  ", flush=True)
    for version in missing:
        print(f"{version}  not found: --python names one")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
