"""The pytest plugin costs other projects nothing: no option, and no import of mnpar or numpy, until
a test asks for ``comm``.
"""

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")

PLAIN = """
import sys

import pytest


@pytest.fixture
def communicator():
    return 3


def test_one(communicator):
    assert communicator == 3
    assert not {"mnpar", "numpy"} & sys.modules.keys()
"""
OWN = """
import sys

import pytest


@pytest.fixture
def comm():
    return "theirs"


def test_fixture(comm):
    assert comm == "theirs"


@pytest.mark.parametrize("comm", [1, 2])
def test_parameter(comm):
    assert comm in (1, 2)


def test_nothing_came():
    assert not {"mnpar", "numpy"} & sys.modules.keys()
"""
ASKING = """
import sys

import pytest

BEFORE = {"mnpar", "numpy"} & sys.modules.keys()


@pytest.mark.ranks(2, on="threads")
def test_sum(comm):
    assert not BEFORE
    assert comm.allreduce_obj(1) == 2
"""
ON_PROCESSES = """
import os

import numpy as np
import pytest

import mnpar.testing.forks

mnpar.testing.forks.possible = lambda: {forked}
COLLECTED_BY = os.getpid()


@pytest.mark.ranks(2, on="mpi")
def test_sum(comm):
    assert (os.getpid() != COLLECTED_BY) is {forked}
    assert comm.allreduce(np.array(comm.rank)) == 1


@pytest.mark.ranks(2, on="mpi")
def test_wrong(comm):
    assert comm.rank == 0
"""


@pytest.fixture
def foreign(tmp_path):
    """Runs pytest in a project that knows nothing of mnpar, with the plugin installed: an entry
    point, as the wheel has it.
    """
    info = tmp_path / "site" / "mnpar_plugin-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mnpar-plugin\nVersion: 1\n")
    points = SETUP["options.entry_points"]["pytest11"].strip()
    (info / "entry_points.txt").write_text(f"[pytest11]\n{points}\n")
    project = tmp_path / "project"
    project.mkdir()
    # this environment's own entry point may be an older one, and comes later
    paths = [str(tmp_path / "site"), str(ROOT)]

    def run(text, *options):
        (project / "test_it.py").write_text(text)
        (project / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
            cwd=project,
            env={
                **{name: one for name, one in os.environ.items() if not name.startswith("PYTEST_")},
                "PYTHONPATH": os.pathsep.join(paths),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr, done.returncode

    return run


def test_another_projects_tests_import_nothing_of_mnpar(foreign):
    said, code = foreign(PLAIN)
    assert code == 0, said


def test_another_projects_pytest_has_no_options_of_mnpar(foreign):
    said, code = foreign(PLAIN, "--help")
    assert code == 0
    assert "pytest_mnpar" not in said
    for option in ("--ranks-on", "--rank-timeout", "--processes", "--sweep"):
        assert option not in said
    said, code = foreign(PLAIN, "-p", "mnpar.testing.options", "--help")
    assert code == 0, said
    assert "--ranks-on" in said


def test_a_projects_own_comm_stays_its_own(foreign):
    said, code = foreign(OWN)
    assert code == 0, said


def test_a_test_that_asks_for_comm_gets_it_and_mnpar_comes_only_then(foreign):
    said, code = foreign(ASKING)
    assert code == 0, said


@pytest.mark.parametrize("forked", [True, False], ids=["forks", "sessions of their own"])
def test_ranks_on_processes_need_no_options(foreign, forked):
    said, code = foreign(ON_PROCESSES.format(forked=forked))
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "rank 1 of 2" in said
    assert "assert 1 == 0" in said
