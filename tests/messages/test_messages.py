"""Each message names the cause, the ranks, the line and the remedy, in 25 lines at most."""

import os
import re
import subprocess
import sys
import traceback

import pytest

import mnpar
from mnpar.communicators.mpi import library
from mnpar.errors import LauncherError
from mnpar.runtime.mpiexec import clean_environment, mpiexec_command
from tests.harness.scripts import client_for
from tests.messages import alone, together
from tests.messages.message import pattern, require_readable

MESSAGES = alone.MESSAGES | together.MESSAGES
THREADS = {name: one for name, one in MESSAGES.items() if one.on in ("threads", "both")}
PROCESSES = {name: one for name, one in MESSAGES.items() if one.on != "threads"}


def require_said(message, text, extra=""):
    """Fail unless a text has the cause and the remedy, and names a rank and a line.

    Args:
        extra: what is shown beside the text, such as a traceback.
    """
    require_readable(text)
    assert re.search(pattern(message.cause), text), text
    assert re.search(pattern(message.remedy), text), text
    assert "rank" in text + extra or not message.ranks, text
    assert re.search(r"(alone|together)\.py(:|\", line )\d+", text + extra), text + extra


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("name", THREADS)
def test_a_mistake_is_told_with_cause_ranks_line_and_remedy(name):
    message = THREADS[name]
    make = (
        (lambda: mnpar.run(message.program, ranks=message.ranks))
        if message.ranks
        else (message.program)
    )
    if issubclass(message.kind, Warning):
        with pytest.warns(message.kind) as told:
            make()
        said = [one for one in told if re.search(pattern(message.cause), str(one.message))]
        assert said, [str(one.message) for one in told]
        require_said(message, str(said[0].message), f"{said[0].filename}:{said[0].lineno}")
    else:
        with pytest.raises(message.kind) as caught:
            make()
        shown = "".join(traceback.format_exception(caught.value))
        require_said(message, str(caught.value), shown)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_job_of_mpiexec_shows_the_same(name):
    message = PROCESSES[name]
    if message.on == "run":
        command = [sys.executable, "-m", "mnpar", "run", "-n", str(message.ranks), "-m"]
        command, environment = [*command, together.__name__], clean_environment(os.environ)
    else:
        command, environment = mpiexec_command(message.ranks)
        command = [*command, *client_for("-m", together.__name__)]
    done = subprocess.run(
        [*command, name],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert re.search(pattern(message.cause), done.stderr), done.stderr
    assert re.search(pattern(message.remedy), done.stderr), done.stderr
    assert done.returncode or issubclass(message.kind, Warning)


# ---- what only a machine that lacks something shows ----


@pytest.mark.ranks(2, on="mpi")
def test_memory_that_a_machine_has_not_is_refused_on_all_ranks(comm, monkeypatch):
    left = 2**20 if comm.rank == 1 else 2**30
    monkeypatch.setattr("mnpar.communicators.mpi.transport.free_memory", lambda: left)
    here = r"messages/test_messages.py:\d+"
    with pytest.raises(MemoryError, match=rf"{here}: 2.0 MiB .* /dev/shm has 1.0 left on .*rank 1"):
        comm.share(2**21)
    memory = comm.share(2**10)
    assert memory.array.size >= 2**10
    comm.barrier()
    memory.free()


def test_mpi_is_not_started_where_it_would_end_by_a_bus_error(monkeypatch):
    monkeypatch.setattr(library, "launched_ranks_here", lambda: 4)
    monkeypatch.setattr(library, "free_memory", lambda: 2**20)
    match = r"/dev/shm has 1.00 MiB left, and MPICH 5 needs some 5.00 for 4 ranks .*--shm-size"
    with pytest.raises(LauncherError, match=match):
        library._check_memory("MPICH 5")
    library._check_memory("Open MPI 5")
    monkeypatch.setattr(library, "free_memory", lambda: 2**30)
    library._check_memory("MPICH 5")
