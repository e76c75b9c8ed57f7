"""Worker processes of scripts: data sets that the script defines, under MPI, and how the processes
end with it.
"""

import os
import select
import signal
import subprocess
import sys

import pytest

from mnpar.runtime.mpiexec import clean_environment, mpiexec_command
from tests.harness.scripts import client_for

SCRIPT = """
import os, sys
import mnpar
from mnpar.iterators import MultiprocessIterator

class Squares:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i == 3 and "fail" in sys.argv:
            raise OwnError("nine")
        return i * i, os.getpid()

class OwnError(Exception):
    pass

def batches():
    return MultiprocessIterator(Squares(), 4, shuffle=False, n_processes=2)
"""


def start(tmp_path, main, *arguments, ranks=0, top=""):
    script = tmp_path / "script.py"
    script.write_text(top + SCRIPT + main)
    command, environment = mpiexec_command(ranks) if ranks else ([], clean_environment(os.environ))
    return subprocess.Popen(
        [*command, *client_for(script, *arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*args, **kwargs):
    """What a script prints, and its errors."""
    process = start(*args, **kwargs)
    try:
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    return out, err, process.returncode


def ended(pids):
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(20_000), f"process {pid} goes on"
        os.close(fd)
    return True


def test_the_script_may_define_the_data_set_and_its_errors(tmp_path):
    main = """
if __name__ == "__main__":
    iterator = batches()
    try:
        print([x for x, _ in iterator.next()])
    except OwnError as error:
        print(type(error).__name__, error)
"""
    assert run(tmp_path, main) == ("[0, 1, 4, 9]\n", "", 0)
    assert run(tmp_path, main, "fail") == ("OwnError nine\n", "", 0)


def test_a_script_that_does_its_work_when_imported_is_told_the_guard(tmp_path):
    out, err, code = run(tmp_path, "print([x for x, _ in batches().next()])")
    assert code == 1
    assert out == ""
    assert 'belongs under `if __name__ == "__main__":`' in err


@pytest.mark.parametrize("ranks", [0, 2])
def test_workers_start_no_mpi_though_the_script_does(tmp_path, ranks):
    top = """
from mpi4py import MPI
import mnpar.launch
mnpar.runtime.mpiexec.relaunch(1)
"""
    main = """
class Started:
    def __len__(self):
        return 2
    def __getitem__(self, i):
        marks = sorted(name for name in os.environ if name.startswith(("PMI", "OMPI_", "PMIX")))
        return MPI.Is_initialized(), marks

if __name__ == "__main__":
    comm = mnpar.create_communicator("mpi")
    with MultiprocessIterator(Started(), 2, n_processes=2) as iterator:
        found = comm.allgather_obj(iterator.next())
    master = mnpar.iterators.create_multi_node_iterator(batches() if comm.rank == 0 else None, comm)
    squares = comm.allgather_obj([x for x, _ in master.next()])
    if comm.rank == 0:
        print(found == [[(False, [])] * 2] * comm.size, squares == [[0, 1, 4, 9]] * comm.size)
    master.finalize()
"""
    out, err, code = run(tmp_path, main, ranks=ranks, top=top)
    assert (out, code) == ("True True\n", 0), err


ENDS = {
    "kill": (signal.SIGKILL, "input()", -signal.SIGKILL),
    "terminate": (signal.SIGTERM, "input()", -signal.SIGTERM),
    "interrupt": (signal.SIGINT, "input()", -signal.SIGINT),
    "interrupted while it waits": (
        signal.SIGINT,
        "iterator = slow(); iterator.next()",
        -signal.SIGINT,
    ),
    "kill while it waits": (signal.SIGKILL, "iterator = slow(); iterator.next()", -signal.SIGKILL),
    "end": (None, "pass", 0),
    "os._exit": (None, "os._exit(0)", 0),
}


@pytest.mark.parametrize(("number", "last", "code"), ENDS.values(), ids=ENDS)
def test_no_worker_and_no_shared_memory_outlives_the_script(tmp_path, number, last, code):
    main = f"""
import threading

class Slow(Squares):
    def __getitem__(self, i):
        print(os.getpid(), "reads", flush=True)
        threading.Event().wait()  # for ever

def slow():
    return MultiprocessIterator(Slow(), 1, shuffle=False, n_processes=1)

if __name__ == "__main__":
    iterator = batches()
    print(*sorted({{pid for _, pid in iterator.next()}}), flush=True)
    {last}
"""
    shared = set(os.listdir("/dev/shm"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + main)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        if "slow" in last:
            pids.append(int(process.stdout.readline().split()[0]))
        if number is not None:
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert len(pids) >= 2
    assert process.returncode == code, err
    assert ended(pids)
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    assert err.count("Traceback") == (number == signal.SIGINT)  # none of the workers'
    assert not [name for name in set(os.listdir("/dev/shm")) - shared if "mnpar" in name]
