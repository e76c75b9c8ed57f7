"""Ranks that are started one by one meet by a file, and are an MPI job like any other; or are told
why not.
"""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mnpar
from mnpar.errors import LauncherError
from mnpar.runtime import process_manager, rendezvous
from mnpar.runtime.mpiexec import clean_environment
from tests.harness.mpi import needs_mpich

MPICH = "MPICH Version: 5.0.2"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    yield
    assert not list(tmp_path.glob("meet*"))


# ---- meeting, without MPI ----


def meet(path, *ranks, timeout=20.0):
    """What becomes of these (rank, size, library): connections, or errors."""

    def one(told):
        try:
            return rendezvous.meet(str(path), *told[:2], timeout, *(told[2:] or [MPICH]))
        except LauncherError as error:
            return str(error)

    with ThreadPoolExecutor(len(ranks)) as threads:
        results = list(threads.map(one, ranks))
    for result in results:
        for line in result if isinstance(result, tuple) else ():
            line.close()
    return results


def test_all_have_a_line_in_whatever_order_they_come_and_the_file_is_gone(tmp_path):
    for order in (range(4), range(3, -1, -1)):
        assert all(
            isinstance(one, tuple)
            for one in meet(tmp_path / "meet", *[(rank, 4) for rank in order])
        )


STALE = {"token": "1" * 32, "hosts": ["localhost"], "port": 9, "node": "another"}


@pytest.mark.parametrize("text", ["", json.dumps(STALE)], ids=["empty", "of an earlier job"])
def test_a_file_at_which_nobody_answers_is_replaced(tmp_path, text):
    (tmp_path / "meet").write_text(text)
    assert all(isinstance(one, tuple) for one in meet(tmp_path / "meet", (1, 2), (0, 2)))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            [(0, 3), (1, 3), (1, 3)],
            r"rank 1 \(process \d+ on .*\) and rank 1 \(.*\) have the same rank.*from 0 to 2",
        ),
        ([(0, 3), (1, 2)], r"rank 1 \(.*\) was told of 2 ranks, and rank 0 of 3"),
        (
            [(0, 2), (1, 2, "MPICH Version: 4.3.0")],
            r"rank . \(.*\) has MPICH.*rank . \(.*\) has MPICH .*the same MPI library",
        ),
    ],
    ids=["one rank twice", "sizes", "libraries"],
)
def test_ranks_that_do_not_belong_together_are_told_all_alike(tmp_path, ranks, message):
    first, *others = meet(tmp_path / "meet", *ranks)
    assert others == [first] * len(others)
    assert re.search(message, first)


def test_a_rank_that_never_comes_is_named(tmp_path):
    told = meet(tmp_path / "meet", (0, 4), (2, 4), timeout=1.5)
    assert told[0] == told[1]
    assert "in 1.5 s ranks 1, 3 of 4 did not come to" in told[0]
    [alone] = meet(tmp_path / "meet", (1, 4), timeout=0.2)
    assert "for rank 0, which publishes it: start all ranks" in alone


def published(path):
    """What the file says, once it is there."""
    while not path.exists():
        time.sleep(0.01)
    return json.loads(path.read_text())


def test_a_rank_that_leaves_may_come_again(tmp_path):
    with ThreadPoolExecutor() as threads:
        first = threads.submit(meet, tmp_path / "meet", (0, 3))
        told = published(tmp_path / "meet")
        rendezvous._Meeting(str(tmp_path / "meet"), 1, 3, 20.0, MPICH)._connect(told).close()
        assert all(
            isinstance(one, tuple)
            for one in [*meet(tmp_path / "meet", (1, 3), (2, 3)), *first.result()]
        )


def test_who_does_not_know_the_file_is_sent_away(tmp_path):
    with ThreadPoolExecutor() as threads:
        first = threads.submit(meet, tmp_path / "meet", (0, 2))
        told = published(tmp_path / "meet")
        assert (tmp_path / "meet").stat().st_mode & 0o777 == 0o600
        with socket.create_connection(("localhost", told["port"])) as stranger:
            stranger.sendall(b"1234\n")
            assert told["token"] not in stranger.recv(1000).decode()
            stranger.sendall(
                b'wrong {"rank": 1, "size": 2, "pid": 1, "host": "x", "node": "x", "library": '
                b'"x"}\n'
            )
            assert stranger.recv(1) == b""
        with socket.create_connection(("localhost", told["port"])) as stranger:
            assert not rendezvous._greet(stranger, "wrong", "{}")
        meet(tmp_path / "meet", (1, 2))
        assert isinstance(first.result()[0], tuple)


def test_who_cannot_prove_to_know_the_file_is_told_nothing_by_ranks(tmp_path):
    heard = []

    def impostor(listener):
        connection = listener.accept()[0]
        listener.close()
        with connection:
            heard.append(connection.recv(1000))
            connection.sendall(heard[0].strip() + b" " + heard[0])  # what it was asked
            heard.append(connection.recv(1000))

    with socket.create_server(("localhost", 0)) as listener, ThreadPoolExecutor() as threads:
        threads.submit(impostor, listener)
        there = {
            "hosts": ["localhost"],
            "port": listener.getsockname()[1],
            "node": rendezvous.node(),
        }
        (tmp_path / "notes").write_text(json.dumps(STALE | there))
        [told] = meet(tmp_path / "notes", (1, 2), timeout=0.2)
        assert "rank 1 of 2 has waited" in told
    assert len(heard[0]) == 33
    assert heard[1] == b""


@pytest.mark.parametrize(
    ("limits", "says"),
    [("-n 50", "100 ranks need 232 open files there, and the system allows 50"), ("-Sn 50", "")],
)
def test_many_ranks_get_as_many_files_as_the_system_allows(tmp_path, limits, says):
    program = (
        "from mnpar.runtime import process_manager as m; m.make_room(100); "
        "print(m.resource.getrlimit(7)[0])"
    )
    command = ["sh", "-c", f'ulimit {limits}; exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(mnpar.__file__).parents[1]
    )
    assert says in done.stderr
    assert (done.returncode, done.stdout) == ((1, "") if says else (0, "232\n"))


def test_what_is_no_such_file_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    for told in meet(tmp_path / "notes", (0, 2), (1, 2)):
        assert "notes is not a file by which ranks meet: take a path where there is none" in told
    assert (tmp_path / "notes").read_text() == "mine"
    [told] = meet(tmp_path / "none" / "meet", (0, 2))
    assert "there is no folder" in told
    [told] = meet("/proc/meet", (0, 2))
    assert "rank 0 of 2 cannot write the shared file /proc/meet: No such file or directory" in told


def test_another_users_file_is_not_believed(tmp_path, monkeypatch):
    (tmp_path / "notes").write_text(json.dumps(STALE))
    monkeypatch.setattr(rendezvous.os, "geteuid", lambda: os.getuid() + 1)
    for told in meet(tmp_path / "notes", (0, 2), (1, 2), timeout=1.0):
        assert (
            f"notes is user {os.getuid()}'s, not {os.getuid() + 1}'s: take a path in a folder "
            "of your own" in told
        )
    assert json.loads((tmp_path / "notes").read_text()) == STALE


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    times = []

    def replaced(*arguments, **keywords):
        times.append(arguments)
        if len(times) in (1, 3):
            raise OSError(errno.ESTALE, "Stale file handle")  # of NFS
        return open(*arguments, **keywords)

    monkeypatch.setattr(rendezvous, "open", replaced, raising=False)
    assert all(isinstance(one, tuple) for one in meet(tmp_path / "meet", (1, 2), (0, 2)))


def test_the_end_of_a_job_is_obeyed_once_it_is_told_in_full():
    line, manager = socket.socketpair()
    mpis, other = socket.socketpair()
    other.close()
    session = rendezvous.Session(line, mpis, "path", 0, 2)
    codes = []
    text = "é" * 70_000
    told = process_manager.end_line(130, text)
    assert len(told) < process_manager._LONGEST
    with manager:
        for piece in (told[:20], told[20:]):
            session.obey(codes.append)
            manager.sendall(piece)
            assert not codes
        session.obey(codes.append)
    session.close()
    assert codes == [130]
    assert text.startswith(process_manager.end_of(told.decode())[1][:-5])


@pytest.mark.parametrize(
    ("nodes", "vector"),
    [("aaa", "(0,1,3)"), ("aab", "(0,1,2),(1,1,1)"), ("abab", "(0,1,1),(1,1,1),(0,1,1),(1,1,1)")],
)
def test_the_machines_of_all_ranks_in_the_words_of_pmi(nodes, vector):
    assert process_manager.mapping(list(nodes)) == f"(vector,{vector})"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, TypeError, "path is that of a file, not None"),
        ({"path": "x"}, TypeError, "each process says its rank and how many there are"),
        (
            {"path": "x", "rank": 2, "size": 2},
            ValueError,
            "rank 2 of 2: ranks count from 0 to size - 1",
        ),
        ({"path": "x", "rank": 0, "size": 2, "timeout": 0}, ValueError, "above 0, not 0"),
        ({"path": "x", "mpi_comm": object()}, ValueError, "this one has mpi_comm"),
    ],
    ids=["no path", "no rank", "no such rank", "no time", "ranks already"],
)
def test_what_is_missing_is_named(monkeypatch, given, error, message):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(error, match=message):
        mnpar.create_communicator("file", **given)


def test_one_rank_needs_nobody_and_other_communicators_no_file(tmp_path):
    assert mnpar.create_communicator("file", path=tmp_path / "meet", rank=0, size=1).size == 1
    with pytest.raises(
        TypeError, match=r"path: only create_communicator\('file', path=…\) takes these, not 'mpi'"
    ):
        mnpar.create_communicator("mpi", path="x")


# ---- jobs ----

HEAD = """
import ctypes, os, signal, sys, time
import numpy as np
import mnpar
rank, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
comm = mnpar.create_communicator("file", path=path, rank=rank, size=size)
"""


def start(tmp_path, program, size, order=None, before=""):
    """A process for each rank, in this order."""
    (tmp_path / "program.py").write_text(HEAD.replace("comm =", f"{before}comm =") + program)
    environment = clean_environment(os.environ) | {
        "PYTHONPATH": str(Path(mnpar.__file__).parents[1])
    }
    command = [sys.executable, str(tmp_path / "program.py")]
    processes = {
        rank: subprocess.Popen(
            [*command, str(rank), str(size), str(tmp_path / "meet")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in order or range(size)
    }
    return [processes[rank] for rank in range(size)]


def ends(processes):
    """(exit code, stdout, stderr) of each rank."""
    outputs = [process.communicate(timeout=60) for process in processes]
    return [
        (process.returncode, *output) for process, output in zip(processes, outputs, strict=True)
    ]


def reading(name):
    """The text of a file of a process, which may be gone."""
    try:
        return name.read_text()
    except OSError:
        return ""


GOOD = """
assert (comm.rank, comm.size, comm.intra_rank, comm.intra_size) == (rank, size, rank, size)
assert not os.path.exists(path)
assert comm.allgather_obj(os.getpid())[rank] == os.getpid()
assert comm.allreduce(np.full(100_000, rank + 1.0))[0] == 6
with comm.split(rank % 2, -rank) as half:
    assert half.allgather_obj(rank) == ([2, 0] if rank % 2 == 0 else [1])
x = mnpar.SharedData(np.arange(6.0) if rank == 0 else None, comm=comm)  # a window
model = mnpar.links.Linear(3, 1)
optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(model)
optimizer.update(lambda: mnpar.functions.sum(model(np.full((1, 3), rank, "f"))))
total = float(model.W.array.sum())
assert comm.allreduce_obj(total, "max") == comm.allreduce_obj(total, "min")
os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}  # as torchrun does
again = mnpar.create_communicator("file", path=path)
assert again.rank == rank and mnpar.create_communicator().size == size
child = os.fork()
if child == 0:
    try:
        os.fstat(int(os.environ["PMI_FD"]))
    except OSError:
        os._exit(0)
    os._exit(1)  # it holds the line, which would not end with the rank
assert os.waitpid(child, 0)[1] == 0
time.sleep(0.5)  # longer than between two looks at the line, and at who started this
print("well")
"""


@needs_mpich
def test_processes_become_ranks_in_the_order_that_they_were_told(tmp_path):
    for code, said, errors in ends(start(tmp_path, GOOD, 3, order=[2, 0, 1])):
        assert (code, said, errors) == (0, "well\n", "")
    deadline = time.monotonic() + 10
    while managers := [
        name
        for name in Path("/proc").glob("[0-9]*/cmdline")
        if str(tmp_path / "meet") in reading(name)
    ]:
        assert time.monotonic() < deadline, managers
        time.sleep(0.01)


@needs_mpich
@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        (
            "1 / 0 if rank else comm.recv(1, 5)",
            1,
            "mnpar: rank 1 of 2 failed, the job ends\nTraceback",
        ),
        (
            "if rank: raise KeyboardInterrupt\ntime.sleep(60)",
            130,
            "mnpar: interrupted (rank 1 of 2)\n",
        ),
    ],
    ids=["error", "Ctrl-C"],
)
def test_an_error_on_one_rank_ends_all_of_them_who_say_why(tmp_path, program, code, says):
    for ended, _, errors in ends(start(tmp_path, program, 2)):
        assert ended == code
        assert errors.count(says) == errors.count("mnpar: ") == 1, errors


KILLED = """
print(flush=True)
while rank == 0:
    ctypes.PyDLL(None).usleep(10_000_000)  # hears nothing, and lets no thread of Python run
comm.recv(1, 5)
"""


@needs_mpich
def test_ranks_end_when_one_is_killed_even_if_they_hear_nothing(tmp_path):
    processes = start(tmp_path, KILLED, 3)
    for process in processes:
        process.stdout.readline()
    os.kill(processes[1].pid, signal.SIGKILL)
    (deaf, *_), (killed, *_), (last, _, errors) = ends(processes)
    assert (deaf, killed, last) == (-signal.SIGKILL, -signal.SIGKILL, 1)
    assert "rank 1" in errors


KILLED_IN_INIT = """if rank == 1:
    from mnpar.communicators.mpi import library
    library._initialize = lambda MPI: os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_mpich
def test_ranks_say_who_is_missing_if_one_is_killed_while_mpi_starts(tmp_path):
    (first, _, said), (killed, _, _), (last, _, errors) = ends(
        start(tmp_path, "", 3, before=KILLED_IN_INIT)
    )
    assert (first, killed, last) == (1, -signal.SIGKILL, 1)
    for text in (said, errors):
        assert re.fullmatch(
            r"mnpar: rank 1 \(process \d+ on .*\) of 3 has ended without a word, the job ends\n",
            text,
        ), text


def test_who_has_started_mpi_already_is_told(tmp_path):
    (tmp_path / "early.py").write_text("import mpi4py.MPI\n" + HEAD)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "early.py"), "0", "2", str(tmp_path / "meet")],
        env=clean_environment(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert (
        "this process has started MPI before it met the others: make the communicator first"
        in done.stderr
    )
