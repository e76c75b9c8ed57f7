"""The doctor says what works, alone and under mpiexec, and fails where training would."""

import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mnpar import doctor, environment
from mnpar.kernels import blas
from mnpar.runtime.mpiexec import clean_environment, mpiexec_command
from mnpar.runtime.system import usable_cores
from tests.harness.scripts import run_script


def examine(ranks, **more):
    command, environment = mpiexec_command(ranks) if ranks else ([], clean_environment(os.environ))
    return subprocess.run(
        [*command, sys.executable, "-m", "mnpar", "doctor"],
        capture_output=True,
        text=True,
        env={**environment, **more},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("ranks", [0, 2])
def test_it_reports_once_whatever_the_number_of_ranks(ranks):
    done = examine(ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in (
        "mnpar",
        "Python",
        "numpy",
        "cores",
        "shared memory",
        "mpiexec",
        "MPI",
        "ranks",
        "BLAS threads",
    ):
        assert done.stdout.count(f"  {word:14} ") >= 1
    assert done.stdout.count("  numpy ") == 1
    has_torch = importlib.util.find_spec("torch") is not None
    assert ("a GPU's tensors through the host's memory" in done.stdout) == has_torch
    assert ("allreduce" in done.stdout) == (ranks == 2)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels of another architecture")
def test_products_that_the_environment_makes_slow_are_told():
    """An image of a container may say for which processor OpenBLAS takes its kernels."""
    text = r"  BLAS +OpenBLAS \S+, kernels for"
    says = "as OPENBLAS_CORETYPE says; by itself it takes"
    done = examine(0, OPENBLAS_CORETYPE="Nehalem")
    remedy = "which may be faster: unset OPENBLAS_CORETYPE"
    told = (
        rf"note{text} Nehalem, as OPENBLAS_CORETYPE says; by itself it takes (\w+)'s here, {remedy}"
    )
    own = re.search(told, done.stdout)
    assert own, done.stdout
    done = examine(0, OPENBLAS_CORETYPE="")
    assert re.search(rf"ok  {text} {own[1]}$", done.stdout, re.MULTILINE), done.stdout
    done = examine(0, OPENBLAS_CORETYPE=own[1])
    assert re.search(rf"ok  {text} {own[1]}, {says}", done.stdout), done.stdout


@pytest.mark.skipif(len(usable_cores()) < 2, reason="a rank with two threads is slow on one core")
def test_threads_of_blas_that_keep_cores_busy_are_told(monkeypatch):
    remedy = "; with OPENBLAS_THREAD_TIMEOUT=16 before the command they leave the cores"
    threads = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    told = [examine(0, **threads, OPENBLAS_THREAD_TIMEOUT=ticks).stdout for ticks in ("", "16")]
    assert f"2 for each rank{remedy}" in told[0]
    assert "2 for each rank\n" in told[1]
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    assert mpiexec_command(1)[1]["OPENBLAS_THREAD_TIMEOUT"] == "16"
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    assert mpiexec_command(1)[1]["OPENBLAS_THREAD_TIMEOUT"] == "20"


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_launcher_of_several_ranks_that_is_another_mpis_is_a_failure(name):
    done = examine(0, **{name: "4"})
    assert done.returncode == 1
    assert "FAIL  MPI" in done.stdout
    assert re.search(
        "started 4 ranks, but (this one is alone|their MPI library is MPICH)", done.stdout
    )
    assert "Use the mpiexec beside this Python: " in done.stdout


@pytest.mark.parametrize(("launched", "kind"), [("1", "note"), ("2", "FAIL")])
def test_without_mpi4py_one_process_works_and_a_job_does_not(launched, kind, monkeypatch, capsys):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PMI_SIZE", launched)
    monkeypatch.setenv("PMI_RANK", "0")
    assert doctor.examine() == (kind == "FAIL")
    assert (
        f"{kind}  MPI            mpi4py is missing: pip install 'mnpar[mpi]'"
        in capsys.readouterr().out
    )


def test_of_the_ranks_of_another_mpis_launcher_the_first_speaks():
    done = examine(0, OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="2")
    assert (done.returncode, done.stdout) == (1, "")


def test_an_unknown_command_is_a_usage_error():
    done = run_script("-m", ["mnpar", "nurse"], os.environ, os.getcwd())
    assert done.returncode == 2
    assert "doctor" in done.stderr


def test_cores_are_counted_where_processes_cannot_be_bound_to_some(monkeypatch):
    assert len(usable_cores()) <= os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    assert len(usable_cores()) == os.cpu_count()


@pytest.mark.parametrize(
    ("free", "ranks", "kind"),
    [
        (2**16, 1, "FAIL"),
        (2**22, 1, "note"),
        (2**22, 4, "FAIL"),
        (2**24, 4, "note"),
        (2**30, 4, "ok"),
    ],
)
def test_too_little_shared_memory_is_told_before_mpi_begins(free, ranks, kind, monkeypatch, capsys):
    """MPI would end the process by a bus error, and nothing would be told at all."""
    monkeypatch.setenv("MPI_LOCALNRANKS", str(ranks))
    monkeypatch.setattr(doctor, "free_memory", lambda: free)
    begun = []
    monkeypatch.setattr(doctor, "_mpi", lambda report: begun.append(report))
    assert doctor.examine() == (kind == "FAIL")
    assert len(begun) == (kind != "FAIL")
    assert f"{kind:4}  shared memory  {free / 2**20:.0f} MiB free" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "MNPAR_STALL",
            "soon",
            "FAIL  setting        MNPAR_STALL is a number of seconds above 0, not 'soon'\n",
        ),
        (
            "MNPAR_STALL",
            "-1",
            "FAIL  setting        MNPAR_STALL is a number of seconds above 0, not '-1'\n",
        ),
        ("MNPAR_STALL", "2.5", "ok    setting        MNPAR_STALL=2.5\n"),
        ("MNPAR_KEEP_MEMORY", "no", "FAIL  setting        MNPAR_KEEP_MEMORY is 0 or 1, not 'no'\n"),
        (
            "MNPAR_DATA",
            "/dev/null",
            "FAIL  setting        MNPAR_DATA: [Errno 20] Not a directory: '/dev/null'\n",
        ),
        ("MNPAR_BLAS", "/dev/null", "FAIL  setting        MNPAR_BLAS=/dev/null cannot be loaded ("),
        (
            "MNPAR_BLAS",
            "libm.so.6",
            "FAIL  setting        MNPAR_BLAS=libm.so.6 has no cblas_sgemm and cblas_dgemm",
        ),
        ("MNPAR_STAL", "3", "note  setting        MNPAR_STAL=3 is not read: MNPAR_STALL is\n"),
        ("MNPAR_COLOUR", "red", "note  setting        MNPAR_COLOUR=red is not read\n"),
    ],
)
def test_a_setting_without_a_meaning_is_told(name, value, says, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(doctor, "_mpi", lambda report: None)
    blas.library.cache_clear()
    try:
        assert doctor.examine() == ("FAIL" in says)
    finally:
        blas.library.cache_clear()
    assert says in capsys.readouterr().out


def test_all_variables_that_are_read_are_known_and_those_for_users_documented():
    files = Path(doctor.__file__).parent.rglob("*.py")
    read = {name for path in files for name in re.findall("MNPAR_[A-Z_]+", path.read_text())}
    assert read == {*environment.VARIABLES, *environment.OWN}
    page = Path(__file__).parents[1].joinpath("docs/installation.md").read_text()
    assert set(re.findall(r"^\| `(MNPAR_[A-Z_]+)`", page, re.MULTILINE)) == {*environment.VARIABLES}


@pytest.mark.parametrize(
    ("mpiexecs", "library", "kind", "says"),
    [
        ("MPICH", "MPICH 5.0.2", "ok", "/beside/mpiexec (MPICH)"),
        ("MPICH", "Intel(R) MPI Library 2021.18", "ok", "/beside/mpiexec (MPICH)"),
        ("", "MPICH 5.0.2", "ok", "/beside/mpiexec"),
        (
            "Open MPI",
            "MPICH 5.0.2",
            "FAIL",
            "/beside/mpiexec is Open MPI's, but the MPI library is MPICH 5.0.2: each rank",
        ),
        (
            "MPICH",
            "Open MPI v5.0.11",
            "FAIL",
            "/beside/mpiexec is MPICH's, but the MPI library is Open MPI v5.0.11: each rank",
        ),
    ],
)
def test_an_mpiexec_of_another_mpi_is_told_before_a_job_is_started(
    mpiexecs, library, kind, says, monkeypatch, capsys
):
    monkeypatch.setattr(doctor, "kind_of", lambda mpiexec: mpiexecs)
    report = doctor.Report()
    doctor._launcher(report, "/beside/mpiexec", library)
    report.show()
    assert capsys.readouterr().out.startswith(f"{kind:4}  mpiexec        {says}")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("/other/mpiexec", "what a shell finds is /other/mpiexec, Open MPI's"),
        (None, "not on PATH"),
        ("/beside/mpiexec", ""),
    ],
)
def test_an_mpiexec_that_a_shell_does_not_find_is_told(typed, says, monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "kind_of", lambda mpiexec: "MPICH" if mpiexec == "/beside/mpiexec" else "Open MPI"
    )
    monkeypatch.setattr(doctor.shutil, "which", lambda name: typed)
    report = doctor.Report()
    doctor._launcher(report, "/beside/mpiexec", "MPICH 5.0.2")
    report.show()
    told = capsys.readouterr().out
    assert "ok    mpiexec        /beside/mpiexec (MPICH)\n" in told
    assert f"note  mpiexec        {says}" in told if says else "note" not in told


def test_folders_in_the_way_of_open_mpis_launcher_are_told(tmp_path, monkeypatch, capsys):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    for name in (
        f"ompi.{ended.pid}",
        f"ompi.{os.getpid()}",
        "ompi.machine.0",
        "ompi.machine.1000",
        "hydra_1",
    ):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for mpi in ("MPICH", "Open MPI"):
        monkeypatch.setattr(doctor, "kind_of", lambda mpiexec, mpi=mpi: mpi)
        report = doctor.Report()
        doctor._launcher(report, "/beside/mpiexec", f"{mpi} 5")
        report.show()
        told = capsys.readouterr().out
        assert ("listener thread failed to start" in told) == (mpi == "Open MPI")
    assert told.splitlines()[1].endswith(f"Remove what is left: rm -r {tmp_path}/ompi.{ended.pid}")


def test_processes_that_torchrun_has_started_are_a_failure():
    done = examine(0, RANK="0", WORLD_SIZE="2")
    assert done.returncode == 1
    assert (
        "FAIL  MPI            this is rank 0 of 2 by torchrun's RANK and WORLD_SIZE, but no "
        "MPI launcher started it" in done.stdout
    )
