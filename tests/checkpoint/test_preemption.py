"""A job that is told to end saves once more, on all ranks at one iteration, and ends; it goes on as
if nothing had happened.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint
from mnpar.runtime.mpiexec import mpiexec_command
from tests.checkpoint.told import train
from tests.harness.mpi import TO_END
from tests.harness.scripts import client_for

PROGRAM = Path(__file__).parent / "told.py"


def start(folder, *more):
    command, environment = mpiexec_command(2)
    arguments = [*command, *client_for(PROGRAM, folder, *more)]
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def tell_the_job(job, pids):
    job.send_signal(TO_END)


def tell_one_rank(job, pids):
    os.kill(pids[1], signal.SIGUSR1)


def tell_all_often(job, pids):
    for _ in range(3):
        for pid in pids:
            os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("tell", [tell_the_job, tell_one_rank, tell_all_often])
def test_a_job_that_is_told_to_end_saves_and_goes_on_bit_for_bit(tell, tmp_path):
    with start(tmp_path / "told") as job:
        tell(job, [int(job.stdout.readline().split()[1]) for _ in range(2)])
        _, err = job.communicate(timeout=60)
    last = checkpoint.steps(tmp_path / "told" / "run")[-1]
    assert job.returncode == 143, err
    assert err.count("mnpar:") == 1, err
    assert f"mnpar: the job is to end: saved at iteration {last}" in err
    with start(tmp_path / "told", last + 3) as job:
        out, err = job.communicate(timeout=60)
    whole = mnpar.run(train, ranks=2, args=(tmp_path / "whole", last + 3))
    assert out.split() == [
        "ends",
        *[word for _, digest in whole for word in (str(last), digest)],
    ], err


@pytest.mark.ranks(1, 2, 3)
def test_all_ranks_hear_of_it_after_the_same_iteration(comm):
    heard = []
    for teller in range(comm.size):
        with checkpoint.Notice(comm) as notice:
            for iteration in range(1, 50):
                if iteration == 3 and comm.rank == teller:
                    notice.note()
                if notice():
                    heard.append(iteration)
                    break
    assert heard == [3 if comm.size == 1 else 4] * comm.size


def test_a_signal_only_makes_a_note_until_it_is_closed():
    before = signal.getsignal(signal.SIGTERM)
    comm = mnpar.create_communicator("self")
    with checkpoint.Notice(comm) as notice:
        assert not notice()
        os.kill(os.getpid(), signal.SIGTERM)
        assert notice()
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_another_has_set_meanwhile_is_left():
    comm = mnpar.create_communicator("self")
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with checkpoint.Notice(comm):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_cannot_be_caught_is_named():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="SIGKILL cannot be caught"):
        checkpoint.Notice(mnpar.create_communicator("self"), [signal.SIGTERM, signal.SIGKILL])
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_iteration_that_was_saved_is_not_saved_again(tmp_path):
    class Trainer:
        out = tmp_path
        updater = type("Updater", (), {"iteration": 7})

        def serialize(self, serializer):
            L.Linear(1, 1).serialize(serializer)

    checkpointer = mnpar.create_multi_node_checkpointer("run", mnpar.create_communicator("self"))
    last_call = checkpointer.at_notice()
    last_call.initialize(Trainer())
    checkpointer(Trainer())
    last_call(Trainer())
    last_call.notice.note()
    with pytest.raises(SystemExit) as caught:
        last_call(Trainer())
    last_call.finalize()
    assert caught.value.code == 143
    assert sorted(os.listdir(tmp_path / "run")) == [".lock", "step-00000007"]
