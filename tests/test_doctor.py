"""The doctor says what works, alone and under mpiexec, and fails where training would."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mnpar import doctor
from mnpar.communicators.create import own_cores
from mnpar.launch import clean_environment, mpiexec_command
from tests.scripts import run_script


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


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_launcher_of_several_ranks_that_is_another_mpis_is_a_failure(name):
    done = examine(0, **{name: "4"})
    assert done.returncode == 1
    assert "FAIL  MPI" in done.stdout
    assert re.search("started 4 ranks, but (this one is alone|their MPI library is MPICH)", done.stdout)
    assert "Use the mpiexec beside this Python: " in done.stdout


@pytest.mark.parametrize(("launched", "kind"), [("1", "note"), ("2", "FAIL")])
def test_without_mpi4py_one_process_works_and_a_job_does_not(launched, kind, monkeypatch, capsys):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PMI_SIZE", launched)
    monkeypatch.setenv("PMI_RANK", "0")
    assert doctor.examine() == (kind == "FAIL")
    assert f"{kind}  MPI            mpi4py is missing: pip install 'mnpar[mpi]'" in capsys.readouterr().out


def test_of_the_ranks_of_another_mpis_launcher_the_first_speaks():
    done = examine(0, OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="2")
    assert (done.returncode, done.stdout) == (1, "")


def test_an_unknown_command_is_a_usage_error():
    done = run_script("-m", ["mnpar", "nurse"], os.environ, os.getcwd())
    assert done.returncode == 2
    assert "doctor" in done.stderr


def test_cores_are_counted_where_processes_cannot_be_bound_to_some(monkeypatch):
    assert len(own_cores()) <= os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    assert len(own_cores()) == os.cpu_count()


@pytest.mark.parametrize(("free", "kind"), [(2**16, "FAIL"), (2**24, "note"), (2**30, "ok")])
def test_too_little_shared_memory_is_told_before_mpi_begins(free, kind, monkeypatch, capsys):
    """MPI would end the process by a bus error, and nothing would be told at all."""
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    begun = []
    monkeypatch.setattr(doctor, "_mpi", lambda report: begun.append(report))
    assert doctor.examine() == (kind == "FAIL")
    assert len(begun) == (kind != "FAIL")
    assert f"{kind:4}  shared memory  {free / 2**20:.0f} MiB free" in capsys.readouterr().out
