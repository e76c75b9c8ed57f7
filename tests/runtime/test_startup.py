"""Ranks that wait for MPI to start are not ended where all is well. (Jobs in which a rank is lost:
tests/faults/test_faults.py.)

A rank here is a child of a script of the launcher's name, which says what launchers do. MPI itself
does not start.
"""

import _ctypes
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

import mnpar
from mnpar.runtime import exit, launcher, pmix, startup
from mnpar.runtime.mpiexec import clean_environment

WAITS = """
import os, signal, subprocess, sys, time
from mnpar.runtime import startup
startup._STARTING = -1e9  # the launcher starts no more
parent = os.getppid()
with startup.watched("a library", None):
    os.write(1, b"waits\\n")
    time.sleep(1)
print(*sys.argv[1:], os.getppid() == parent)
"""
FOR_ALL = """
import os, sys, time
from types import SimpleNamespace
from mnpar.runtime import startup
parent, until = os.getppid(), time.monotonic() + 1
os.write(1, b"waits\\n")
world = SimpleNamespace(Abort=os._exit)
request = SimpleNamespace(Test=lambda: time.monotonic() > until)
startup.wait_for_all(SimpleNamespace(COMM_WORLD=world), request)
print(*sys.argv[1:], os.getppid() == parent)
"""
HIDDEN = WAITS.replace("parent =", "startup.processes.children = lambda launcher: {}\nparent =")
LEFT = WAITS.replace(
    "    time.sleep(1)",
    """    open(f"{sys.argv[0]}.begun", "w").close()
    while os.getppid() == parent:
        time.sleep(0.01)
    time.sleep(1)""",
)
LEFT += "open(f'{sys.argv[0]}.done', 'w').close()"
HELPER = """
import subprocess, sys
import mnpar
code = "import mnpar, threading\\n" + sys.argv[1]
done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
print(done.returncode, done.stderr.splitlines()[0])
"""


def end_of(tmp_path, name, script, program, *arguments, **variables):
    """(exit code, stdout, stderr) of what a launcher of this name ends with."""
    (tmp_path / "rank.py").write_text(program)
    (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / name).chmod(0o755)
    environment = clean_environment(os.environ) | {
        "PYTHONPATH": str(Path(mnpar.__file__).parents[1]),
        **variables,
    }
    done = subprocess.run(
        [str(tmp_path / name), sys.executable, str(tmp_path / "rank.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


TOLD = {"PMI_SIZE": "2", "PMI_RANK": "0"}
FILE = 'for i in $(seq 200); do [ -e "$2.{}" ] && break; sleep 0.05; done'
LEAVES = f'sh -c \'"$@" & {FILE.format("begun")}\' sh "$@"; {FILE.format("done")}'


SPAWNS = (
    """sh -c 'printf "mnpar leaves" > /proc/$$/comm; sleep 2' & PMI_RANK=1 sleep 2 & "$@"; wait"""
)


@pytest.mark.parametrize(
    ("name", "script", "program", "variables", "parent"),
    [
        ("mpiexec", '"$@"; true', WAITS, {"MPI_LOCALNRANKS": "1"}, "True"),
        ("mpiexec", '"$@"; true', HIDDEN, {"MPI_LOCALNRANKS": "2"}, "True"),
        (
            "mpiexec",
            '"$@"; true',
            WAITS,
            {"MPI_LOCALNRANKS": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "True",
        ),
        ("mpiexec", LEAVES, LEFT, {"MPI_LOCALNRANKS": "1"}, "False"),
        (
            "mpirun",
            'PMI_RANK=1 sh -c \'PMI_RANK=0 "$@"; true\' sh "$@"; true',
            WAITS,
            {"MPI_LOCALNRANKS": "2"},
            "True",
        ),
        ("mpiexec", f"PMI_RANK=2 {SPAWNS}", FOR_ALL, {"MPI_LOCALNRANKS": "2"}, "True"),
        ("anything", '"$@"; true', WAITS, {"MPI_LOCALNRANKS": "2"}, "True"),
    ],
    ids=[
        "all there",
        "no list of children",
        "two launchers' numbers",
        "a wrapper that leaves",
        "another's child",
        "another job's rank leaves",
        "no launcher",
    ],
)
def test_who_waits_goes_on(tmp_path, name, script, program, variables, parent):
    assert end_of(tmp_path, name, script, program, "well", **TOLD, **variables) == (
        0,
        f"waits\nwell {parent}\n",
        "",
    )


def test_one_that_waits_for_a_lost_rank_ends(tmp_path):
    code, said, errors = end_of(tmp_path, "mpiexec", '"$@"', WAITS, **TOLD, MPI_LOCALNRANKS="2")
    assert (code, said) == (137, "waits\n")
    assert "mnpar: rank 0 of 2 waits for ever for the start of MPI at " in errors
    assert "\n  rank 1: has ended before it made a communicator\n" in errors


def test_one_that_waits_for_a_rank_that_has_left_another_machine_ends(tmp_path):
    program = WAITS.replace(
        "parent =", "startup._LOOK, startup.pmix.one_has_left = 0.1, lambda: 1\nparent ="
    )
    told = {
        f"OMPI_COMM_WORLD_{name}": number
        for name, number in (("SIZE", "2"), ("RANK", "0"), ("LOCAL_SIZE", "1"))
    }
    code, said, errors = end_of(tmp_path, "prted", '"$@"', program, **told)
    assert (code, said) == (137, "waits\n")
    assert "\n  rank 1: has ended before it made a communicator\n" in errors


@pytest.mark.parametrize("size", ["1", "2"])
def test_a_rank_without_a_communicator_ends_if_open_mpis_launcher_is_killed(tmp_path, size):
    told = {"OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_RANK": "0"}
    program = """
import sys, time
from mnpar.runtime import startup
open(f"{sys.argv[0]}.begun", "w").close()
time.sleep(20)
print("is an orphan")
"""
    session = f'export PMIX_SERVER_TMPDIR="{tmp_path}/ompi.$$"; mkdir "$PMIX_SERVER_TMPDIR"'
    script = f'{session}; "$@" & {FILE.format("begun")}; kill -9 $$'
    assert end_of(tmp_path, "prterun", script, program, **told) == (-9, "", "")
    assert not list(tmp_path.glob("ompi.*"))


@pytest.mark.parametrize("pid_is", ["ended", "running"])
@pytest.mark.parametrize("port_is", ["closed", "open"])
def test_a_launcher_is_gone_if_neither_its_process_is_there_nor_takes_anybody_its_connections(
    pid_is, port_is, monkeypatch
):
    ended = subprocess.Popen(["true"])
    ended.wait()
    pid = ended.pid if pid_is == "ended" else os.getpid()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PMIX_SERVER_TMPDIR", f"/tmp/ompi.{pid}")
        monkeypatch.setenv(
            "PMIX_SERVER_URI41", f"prterun-vm-1@0.0;tcp4://127.0.0.1:{server.getsockname()[1]}"
        )
        if port_is == "closed":
            server.close()
        assert pmix.killed_launcher() == (pid if (pid_is, port_is) == ("ended", "closed") else None)


def test_what_reaches_another_machine_is_no_rank(tmp_path):
    told = {
        f"OMPI_COMM_WORLD_{name}": number
        for name, number in (("SIZE", "2"), ("RANK", "0"), ("LOCAL_SIZE", "2"))
    }
    ssh = (
        'env -u OMPI_COMM_WORLD_RANK sleep 30 > /dev/null 2>&1 & "$@"; code=$?; kill $!; exit $code'
    )
    code, said, errors = end_of(tmp_path, "prterun", ssh, WAITS, **told)
    assert (code, said) == (137, "waits\n")
    assert "\n  rank 1: has ended before it made a communicator\n" in errors


def test_a_library_of_pmix_with_functions_of_other_names_is_not_called(tmp_path):
    shutil.copy(_ctypes.__file__, tmp_path / "libpmix.so.2")
    library = ctypes.CDLL(str(tmp_path / "libpmix.so.2"))
    assert pmix.one_has_left() is None
    _ctypes.dlclose(library._handle)


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("1 / 0", "1 Traceback (most recent call last):"),
        (
            "threading.Thread(target=lambda: 1 / 0, name='its own').start()",
            "0 Exception in thread its own:",
        ),
    ],
    ids=["main thread", "another thread"],
)
def test_an_error_of_a_process_that_a_rank_has_started_is_its_own(tmp_path, fails, says):
    code, said, errors = end_of(
        tmp_path, "mpiexec", '"$@"; true', HELPER, fails, **TOLD, MPI_LOCALNRANKS="1"
    )
    assert (code, said, errors) == (0, f"{says}\n", "")


def test_a_rank_whose_mpi_is_over_goes_on_after_the_error_of_a_thread(monkeypatch):
    is_over = chain([False], repeat(True))  # while the error is shown
    over = SimpleNamespace(Is_initialized=lambda: True, Is_finalized=lambda: next(is_over))
    ends = []
    for where, name, value in (
        (startup, "launched_ranks", lambda: 2),
        (exit, "kill", lambda *given: ends.append(given)),
        (startup, "ALIKE", 0),
        (startup, "speak", lambda _="": 0),
        (startup, "await_reader", lambda: 0),
        (startup.processes, "is_helper", lambda: False),
        (startup.atexit, "register", lambda *given: None),
        (sys, "excepthook", sys.excepthook),
        (threading, "excepthook", threading.excepthook),
    ):
        monkeypatch.setattr(where, name, value)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", over)
    startup.install()
    error = ValueError("of a thread")
    threading.excepthook(
        SimpleNamespace(exc_type=ValueError, exc_value=error, exc_traceback=None, thread=None)
    )
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()  # at once where it was cancelled, else after the last words
    assert not ends


def test_a_launcher_says_how_many_ranks_are_here(monkeypatch):
    monkeypatch.setattr(launcher.os, "environ", {"MPI_LOCALNRANKS": "3"})
    assert launcher.launched_ranks_here() == 3
    monkeypatch.setattr(launcher.os, "environ", {"MPI_LOCALNRANKS": "x"})
    assert launcher.launched_ranks_here() == 0
