"""The doctor says what works, alone and under mpiexec, and fails where training would."""

import os
import subprocess
import sys

import pytest

from mnpar.launch import clean_environment, mpiexec_command


def examine(ranks, **more):
    command, environment = mpiexec_command(ranks) if ranks else ([], clean_environment(os.environ))
    return subprocess.run(
        [*command, sys.executable, "-m", "mnpar", "doctor"],
        capture_output=True, text=True, env={**environment, **more}, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [0, 2])
def test_it_reports_once_whatever_the_number_of_ranks(ranks):
    done = examine(ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("Python", "numpy", "cores", "shared memory", "mpiexec", "MPI", "ranks"):
        assert done.stdout.count(f"  {word:14} ") >= 1
    assert done.stdout.count("numpy") == 1
    assert ("allreduce" in done.stdout) == (ranks == 2)


def test_a_rank_that_is_alone_under_a_launcher_of_several_is_a_failure():
    done = examine(0, PMI_SIZE="4", OMPI_COMM_WORLD_SIZE="4")
    assert done.returncode == 1
    assert "FAIL  MPI" in done.stdout
    assert "the launcher started 4 ranks, but this one is alone" in done.stdout


def test_an_unknown_command_is_a_usage_error():
    done = subprocess.run([sys.executable, "-m", "mnpar", "nurse"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "doctor" in done.stderr
