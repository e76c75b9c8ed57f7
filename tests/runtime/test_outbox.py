"""The outbox sends messages while the rank computes, and is used by its own thread meanwhile."""

import time
from pathlib import Path

import numpy as np
import pytest

from mnpar.runtime.outbox import Outbox


class Request:
    """A message that MPI has not taken yet."""

    def Test(self):
        return False


class MPI:
    """A library that allows one thread alone: the outbox starts none."""

    THREAD_MULTIPLE = 3
    Exception = RuntimeError

    @staticmethod
    def Query_thread():
        return 0


def test_the_queues_are_looked_through_while_the_other_thread_cannot_remove_one():
    outbox = Outbox(MPI)
    looks = []

    class Queues(dict):
        def __iter__(self):
            looks.append(outbox._lock.locked())
            return super().__iter__()

        def items(self):
            looks.append(outbox._lock.locked())
            return super().items()

    outbox._queues = Queues()
    outbox.keep("group", 1, Request(), None)
    assert not outbox.is_empty("group")
    assert outbox.is_empty("another group")
    assert looks
    assert all(looks)


@pytest.mark.ranks(2, on="mpi")
@pytest.mark.parametrize("size", [4, 65536])
def test_messages_arrive_while_their_sender_computes(comm, size, tmp_path):
    """The sender computes until all have arrived, without a call of MPI: 200 are more than MPI
    takes at once.
    """
    arrived = Path(comm.bcast_obj(str(tmp_path)), "arrived")
    if comm.rank == 1:
        found = [comm.recv(0)[0] for _ in range(200)]
        arrived.touch()
        assert found == list(range(200))
        return
    for number in range(200):
        comm.send(np.full(size // 4, number, "f4"), 1)
    deadline = time.monotonic() + 15
    while not arrived.exists() and time.monotonic() < deadline:
        pass
    assert arrived.exists()
