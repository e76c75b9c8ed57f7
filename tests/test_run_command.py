"""``python -m mnpar run``: ranks of a script, by a command that is the same for every MPI."""

import contextlib
import importlib.metadata
import os
import re
import signal
import struct
import subprocess
import sys
import time

import pytest

import mnpar
from mnpar.__main__ import main
from mnpar.runtime import supervisor
from mnpar.runtime.mpiexec import _is_open_mpi, clean_environment, find_mpiexec, mpiexec_command
from tests.harness.scripts import run_script

SCRIPT = """
import sys, mnpar
mnpar.relaunch(5)
comm = mnpar.create_communicator()
sys.stdout.write(f"[{comm.rank} {comm.size} {sys.argv[1:]}]\\n")
sys.exit(7)
"""


def command(*arguments, cwd=None, **more):
    return subprocess.run(
        [sys.executable, "-m", "mnpar", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env=clean_environment(os.environ) | more,
    )


@pytest.fixture
def script(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    return tmp_path / "mine.py"


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_script_runs_on_as_many_ranks_with_its_own_flags_and_gives_its_exit_code(script, ranks):
    done = command("run", "-n", str(ranks), str(script), "-n", "9", "--help")
    assert done.returncode == 7, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank} {ranks} ['-n', '9', '--help']]" for rank in range(ranks)
    ]


def test_a_module_and_a_file_of_hosts(script, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n")
    done = command(
        "run",
        "--hosts",
        str(hosts),
        "-m",
        "mine",
        "a",
        cwd=tmp_path,
        PYTHONPATH=os.environ.get("PYTHONPATH", ""),
    )
    assert sorted(done.stdout.splitlines()) == ["[0 2 ['a']]", "[1 2 ['a']]"], done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "required: SCRIPT"),
        (["run", "/nonexistent.py"], "there is no script /nonexistent.py"),
        (["run", "-n", "0", "x.py"], "-n is at least 1, not 0"),
        (["run", "--hosts", "/nonexistent", __file__], "there is no file of hosts /nonexistent"),
        ([], "required: command"),
        (["doctr"], "there is no command doctr: did you mean doctor?"),
        (["zzz"], "invalid choice: 'zzz'"),
    ],
    ids=["no script", "no such script", "no ranks", "no hosts", "no command", "near", "far"],
)
def test_bad_command_lines_are_usage_errors(arguments, message):
    done = run_script("-m", ["mnpar", *arguments], clean_environment(os.environ), os.getcwd())
    assert done.returncode == 2
    assert message in done.stderr


def test_ranks_that_are_said_after_the_script_are_its_own_flags_and_that_is_told(script):
    done = command("run", str(script), "-n", "3")
    assert sorted(done.stdout.splitlines()) == [f"[{rank} 2 ['-n', '3']]" for rank in range(2)]
    told = [line for line in done.stderr.splitlines() if line.startswith("mnpar: starting")]
    assert told == [
        f"mnpar: starting 2 ranks: -n after {script} is a flag of that script; for other ranks "
        f"write python -m mnpar run -n N {script}"
    ]
    assert "mnpar: starting" not in command("run", "-n", "1", str(script), "-n", "3").stderr


def test_the_version_is_told_and_the_command_is_installed():
    assert command("--version").stdout == f"mnpar {mnpar.__version__}\n"
    [entry] = importlib.metadata.entry_points(group="console_scripts", name="mnpar")
    assert entry.load() is main


OPEN_MPI = _is_open_mpi(find_mpiexec())
ENDS = """
import ctypes, os, sys, time, mnpar
from mnpar.runtime.processes import begun
comm = mnpar.create_communicator()
print(f"[{os.getpid()}]", flush=True)
if "leave" in sys.argv and comm.rank == 1:
    ctypes.CDLL(None)._exit(0)
if "wait" in sys.argv:
    time.sleep(60)
if "finalize" in sys.argv:
    other = comm.bcast_obj(os.getpid(), root=1)
    comm.transport.process.MPI.Finalize()
    while comm.rank == 0 and begun(other):
        time.sleep(0.01)
    print("saved", flush=True)
    os._exit(0)
"""


@pytest.fixture
def ends(tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)
    return str(tmp_path / "ends.py")


@pytest.mark.parametrize("what", ["leave", "leave wait"])
def test_a_rank_that_leaves_without_a_word_makes_the_job_fail(ends, what):
    done = command("run", "-n", "3", ends, *what.split())
    assert done.returncode != 0
    assert OPEN_MPI or re.search(
        "^mnpar: of 3 ranks, .*1.* never came to an end: one of them left",
        done.stderr,
        re.MULTILINE,
    )


def test_a_rank_that_leaves_after_it_has_finalized_mpi_ends_no_other(ends):
    done = command("run", "-n", "2", ends, "finalize")
    assert (done.returncode, done.stderr, done.stdout.count("saved")) == (0, "", 2)


def notes(*pairs):
    """What ranks have noted: state and process id of each."""
    return b"".join([struct.pack("<ii", *pair) for pair in pairs])


def test_what_an_ended_rank_has_noted_is_judged_and_no_other():
    pids = [(supervisor.ENDED, 70), (0, 0), (supervisor.ENDED, 72)]
    assert supervisor.unended(notes(*pids), 9) == ""
    lost = notes(pids[0], (supervisor.BEGUN, 71), (supervisor.BEGUN, 72))
    text = "mnpar: of 3 ranks, 1, 2 never came to an end"
    assert supervisor.unended(lost, 0).startswith(text)
    assert supervisor.unended(lost, 0).endswith("lets them tell which it was\n")
    assert supervisor.unended(lost, 9).endswith("above (PID): rank 1 was 71, rank 2 was 72\n")


def test_a_rank_notes_its_end_in_the_waiters_file_and_in_no_other(monkeypatch, tmp_path):
    (tmp_path / "other").write_bytes(b"abc")
    monkeypatch.setenv(supervisor.FILE, f"{tmp_path / 'other'} mnpar-1")
    supervisor.note(1, supervisor.ENDED)
    assert (tmp_path / "other").read_bytes() == b"abc"
    file = os.memfd_create("mnpar-1")
    mine = notes((0, 0), (supervisor.ENDED, os.getpid()))
    for name, found in (("mnpar-2", b""), ("mnpar-1", mine)):
        monkeypatch.setenv(supervisor.FILE, f"/proc/self/fd/{file} {name}")
        supervisor.note(1, supervisor.ENDED)
        assert os.pread(file, 99, 0) == found
    os.close(file)


def processes(running):
    """Of the job's ranks, once all are there."""
    text = ""
    while len(found := re.findall(r"\[(\d+)\]", text)) < 2:  # a launcher may mix their lines
        more = os.read(running.stdout.fileno(), 1000).decode()
        assert more, f"the job ended early: {text}{running.stderr.read()}"
        text += more
    return [int(pid) for pid in found]


def alive(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name
)
def test_who_ends_the_command_ends_the_job(ends, number):
    with subprocess.Popen(
        [sys.executable, "-m", "mnpar", "run", ends, "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(os.environ),
    ) as running:
        pids = processes(running)
        running.send_signal(number)
        assert running.wait(timeout=20) != 0
        deadline = time.monotonic() + 10
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, pids))


@pytest.mark.parametrize(
    ("version", "flag"),
    [("HYDRA build details:", "-f"), ("mpiexec (Open MPI) 5.0.8", "--hostfile")],
)
def test_each_mpi_is_given_the_hosts_in_its_own_way(monkeypatch, tmp_path, version, flag):
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpiexec.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert mpiexec_command(3, hosts="machines")[0] == [
        str(mpiexec),
        flag,
        "machines",
        "-n",
        "3",
    ]
