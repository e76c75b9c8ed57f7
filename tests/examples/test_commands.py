"""All commands of a newcomer's first hour: each example alone, on threads, under mpiexec with 2, 3
and 4 ranks, and as its docstring says. A command ends well, or with one line that names a command
that does.

``pytest --sweep tests/examples/test_commands.py --processes 1 --durations 0`` runs all of them as a
user does, in some twenty minutes on two cores, and tells how long each takes.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mnpar.runtime.mpiexec import clean_environment
from tests.examples.running import EXAMPLES, SCRIPTS

STARTS = [
    "python {}",
    "python {} --threads",
    "python {} --threads 3",
    *[f"mpiexec -n {ranks} python {{}}" for ranks in (2, 3, 4)],
]
# what needs a folder of photographs, takes minutes, or ends the job on purpose
LEFT_OUT = ("--images DIR", "--scaling", "--kill")


def commands_of(path):
    """The commands of an example: how every one is started, and those of its docstring."""
    name = f"examples/{path.relative_to(EXAMPLES)}"
    text = ast.get_docstring(ast.parse(path.read_text()))
    own = re.findall(
        rf"^ *((?:mpiexec -n \d+ )?python {name}(?: -\S+(?: [^\s-]\S*)?)*)", text, re.M
    )
    starts = [start.format(name) for start in STARTS if path.name != "ring.py" or "--" not in start]
    return [
        one for one in dict.fromkeys([*starts, *own]) if not any(word in one for word in LEFT_OUT)
    ]


COMMANDS = [one for path in SCRIPTS for one in commands_of(path)]


def run(command, folder):
    """Run a command line as a user does who has activated the environment."""
    environment = clean_environment(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(EXAMPLES.parent),
    }
    environment.pop("MNPAR_RELAUNCHED", None)
    return subprocess.run(
        shlex.split(command),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_well_or_names_one_that_does(command, tmp_path, request):
    if not request.config.getoption("--sweep"):
        pytest.skip("pytest --sweep runs every example in all ways")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    done = run(command, tmp_path)
    if done.returncode:
        *_, last = done.stderr.splitlines()
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        named = re.search(r": ((?:mpiexec -n \d+ )?python \S+\.py.*)$", last)
        assert named, last
        done = run(named[1], tmp_path)
    assert done.returncode == 0, done.stderr
    # the first program that needs a compiled loop says so
    notes = [line for line in done.stderr.splitlines() if "compiles kernels" not in line]
    assert not notes, done.stderr
