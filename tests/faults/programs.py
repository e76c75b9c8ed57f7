"""Programs that go wrong, one a function: ``mpiexec -n 3 python tests/faults/programs.py NAME`` (see tests/test_faults.py).

What a program raises says "boom": the tests look for it, for the name of the function and for the rank.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
import time

import numpy as np

import mnpar
import mnpar.functions as F


def error_while_others_receive(comm):
    if comm.rank == 1:
        raise ValueError("boom")
    comm.recv(1)


def error_while_others_reduce(comm):
    if comm.rank == 1:
        raise ValueError("boom")
    comm.allreduce(np.ones(1000))


def error_while_others_compute(comm):
    if comm.rank == 1:
        raise ValueError("boom")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass


def error_on_all(comm):
    raise ValueError("boom")


def error_in_backward(comm):
    class Bad(mnpar.FunctionNode):
        def forward(self, x):
            return x * 1.0

        def backward(self, gy):
            raise ValueError("boom")

    x = mnpar.Variable(np.ones(3))
    h = Bad().apply((x,))[0] if comm.rank == 1 else x
    F.sum(F.allreduce(comm, F.allreduce(comm, h))).backward()
    comm.barrier()


def error_in_a_group(comm):
    group = comm.split(comm.rank // 2, comm.rank)
    if comm.rank == 1:
        raise ValueError("boom")
    group.barrier()
    comm.barrier()


def error_in_a_thread(comm):
    if comm.rank == 1:
        threading.Thread(target=lambda: (_ for _ in ()).throw(ValueError("boom"))).start()
    comm.recv((comm.rank + 1) % comm.size)


def exit_3(comm):
    if comm.rank == 1:
        sys.exit(3)
    comm.recv(1)


def exit_3_on_all(comm):
    sys.exit(3)


def exit_0(comm):
    if comm.rank == 1:
        sys.exit(0)
    comm.allreduce(np.ones(3))


def early_end(comm):
    if comm.rank == 0:
        comm.recv(1, tag=7)


def one_barrier_too_many(comm):
    comm.barrier()
    if comm.rank == 0:
        comm.barrier()


def kill(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.recv(1)


def segmentation_fault(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    comm.allreduce(np.ones(3))


def os_exit_1(comm):
    if comm.rank == 1:
        os._exit(1)
    comm.recv(1)


def os_exit_0(comm):
    if comm.rank == 1:
        os._exit(0)
    comm.recv(1)


def silent_death(comm):
    """A library ends the process behind Python's back."""
    if comm.rank == 1:
        time.sleep(0.3)
        ctypes.CDLL(None)._exit(0)
    comm.recv(1)


def silent_death_when_all_is_done(comm):
    if comm.rank == 1:
        ctypes.CDLL(None)._exit(0)


def stopped(comm):
    if comm.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.allreduce(np.ones(3))


def ring_of_receives(comm):
    comm.recv((comm.rank + 1) % comm.size)


def other_tag(comm):
    if comm.rank == 0:
        comm.send(np.ones(2), 1, tag=5)
    if comm.rank == 1:
        comm.recv(0, tag=6)
    comm.barrier()


def no_backward_on_rank_1(comm):
    y = F.allreduce(comm, mnpar.Variable(np.ones(3)))
    if comm.rank != 1:
        F.sum(y).backward()
    comm.barrier()


def other_collectives(comm):
    if comm.rank == 1:
        comm.bcast(np.ones(3))
    else:
        comm.allreduce(np.ones(3))


def object_for_an_array(comm):
    if comm.rank == 0:
        comm.send_obj("text", 1)
    if comm.rank == 1:
        comm.recv(0)
    comm.barrier()


def slow_rank(comm):
    if comm.rank == 0:
        time.sleep(2)
    comm.barrier()
    print(f"rank {comm.rank} is done", flush=True)


def slow_ranks_in_turn(comm):
    """Longer than the patience in all, but always somebody works."""
    for turn in range(comm.size):
        if comm.rank == turn:
            time.sleep(0.7)
        comm.bcast(np.ones(2), turn)
    print(f"rank {comm.rank} is done", flush=True)


def slow_rank_after_an_uneven_split(comm):
    """Ranks that have made different communicators before still know that they meet in this one."""
    comm.split(None if comm.rank == 2 else 0, comm.rank)
    again = comm.split(0, comm.rank)
    if comm.rank == 0:
        time.sleep(2)
    again.barrier()
    print(f"rank {comm.rank} is done", flush=True)


def forgotten_communicator(comm):
    """What a communicator has sent stays in memory until it has arrived, even when nobody refers to it any more."""
    if comm.rank == 0:
        comm.split(0, 0).send(np.arange(500_000.0), 1)
        del comm
        gc.collect()
        for _ in range(20):
            np.full(500_000, -1.0)
    else:
        group = comm.split(0, 1)
        time.sleep(0.3)
        np.testing.assert_array_equal(group.recv(0), np.arange(500_000.0))
    print("done", flush=True)


def unreceived(comm):
    if comm.rank == 0:
        comm.send(np.ones((2, 3), np.float32), 1, tag=5)
    comm.barrier()


def waits(comm):
    """For Ctrl-C and SIGTERM: one rank receives, one computes, one sleeps."""
    comm.barrier()
    print("ready", flush=True)
    if comm.rank == 0:
        comm.recv(1)
    elif comm.rank == 1:
        while True:
            pass
    time.sleep(60)


def fine(comm):
    y = F.allreduce(comm, mnpar.Variable(np.ones(3)))
    F.sum(y).backward()
    print(f"rank {comm.rank} is done", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](mnpar.create_communicator())
