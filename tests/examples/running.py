"""Examples, run as a user runs them."""

import subprocess
import sys
from pathlib import Path

from mnpar.runtime.mpiexec import mpiexec_command
from tests.harness.scripts import load_script, run_script

EXAMPLES = Path(__file__).parents[2] / "examples"
# the programs; models/ has models alone
SCRIPTS = [path for path in sorted(EXAMPLES.rglob("*.py")) if path.parent.name != "models"]
NOWHERE = f"{__file__}/nowhere"  # nobody can make a folder in a file
PNG = b"\x89PNG\r\n"


def run(ranks, example, flags=(), bare_mpiexec=False, fresh=False, compared=False, timeout=120):
    """Run ``mpiexec -n ranks python examples/example.py flags``; plain python for 0 ranks.

    Args:
        bare_mpiexec: leave ``-n`` out.
        fresh: really start Python, where a fork does otherwise.
        compared: train in one process too, and print the difference (one_process.py).
    """
    command, environment = mpiexec_command(ranks or 1)
    if bare_mpiexec:
        command = command[:1]
    elif not ranks:
        command = []
    # thread ranks take turns, and small products on all cores wait for each other
    if "--threads" in flags:
        environment["OMP_NUM_THREADS"] = "1"
    path = EXAMPLES / f"{example}.py"
    if compared:
        environment["EXAMPLE"] = example
        environment["PYTHONPATH"] = str(EXAMPLES.parent)
        path = Path(__file__).with_name("one_process.py")
    if not fresh:
        return run_script(path, flags, environment, EXAMPLES.parent, command, timeout)
    return subprocess.run(
        [*command, sys.executable, str(path), *flags],
        capture_output=True,
        text=True,
        env=environment,
        timeout=timeout,
        check=False,
        cwd=EXAMPLES.parent,
    )


def output(*arguments, **more):
    """Return what an example prints that must not fail."""
    done = run(*arguments, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(example):
    """Return an example as a module."""
    return load_script(EXAMPLES / f"{example}.py")
