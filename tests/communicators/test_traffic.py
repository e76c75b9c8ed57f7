"""What a communicator says that it has sent: of each collective, the bytes that its algorithm has to send."""

import numpy as np
import pytest

N = 120_000  # numbers, of 8 bytes: more than what travels in openings, and divisible by all numbers of ranks

COLLECTIVES = {  # bytes that all ranks together have to send, of P ranks with n bytes each
    "allreduce": (lambda comm, x: comm.allreduce(x), lambda P, n: 2 * (P - 1) * n),
    "allgather": (lambda comm, x: comm.allgather(x), lambda P, n: P * (P - 1) * n),
    "reduce_scatter": (lambda comm, x: comm.reduce_scatter(x.reshape(comm.size, -1)), lambda P, n: (P - 1) * n),
    "alltoall": (lambda comm, x: comm.alltoall(x.reshape(comm.size, -1)), lambda P, n: (P - 1) * n),
    "bcast": (lambda comm, x: comm.bcast(x), lambda P, n: (P - 1) * n),
    "reduce": (lambda comm, x: comm.reduce(x), lambda P, n: 2 * (P - 1) * n - (P - 1) * (n - n // P)),
    "gather": (lambda comm, x: comm.gather(x), lambda P, n: (P - 1) * n),
    "scatter": (lambda comm, x: comm.scatter(x.reshape(comm.size, -1)), lambda P, n: (P - 1) * n // P),
    "an allreduce of some": (lambda comm, x: comm.allreduce(x[:500]), lambda P, n: P * (P - 1) * 4000),
    "a small allreduce": (lambda comm, x: comm.allreduce(x[:5]), lambda P, n: P * (P - 1) * 40),
    "a small allgather": (lambda comm, x: comm.allgather(x[:5]), lambda P, n: P * (P - 1) * 40),
}


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_bytes_of_collectives(comm, name):
    collective, expected = COLLECTIVES[name]
    before = comm.traffic.collectives, comm.traffic.collective_bytes
    for _ in range(2):  # the second time the form is known
        collective(comm, np.ones(N))
    sent = comm.traffic.collective_bytes - before[1]
    assert comm.traffic.collectives - before[0] == 2
    assert comm.traffic.messages == comm.traffic.bytes == 0
    assert comm.allreduce(np.array(sent)) == 2 * expected(comm.size, 8 * N)


class Counting:
    """An MPI communicator, and the bytes of the messages that it was given to send."""

    def __init__(self, lane, sent):
        self.lane, self.sent = lane, sent

    def __getattr__(self, name):
        return getattr(self.lane, name)

    def Isend(self, message, *where):
        self.sent.append(message[1] if isinstance(message, tuple) else message.nbytes)
        return self.lane.Isend(message, *where)


@pytest.mark.ranks(2, 3, on="mpi")
@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "reduce"])
def test_as_many_bytes_are_given_to_mpi(comm, name, monkeypatch):
    collective, expected = COLLECTIVES[name]
    collective(comm, np.ones(N))  # from now on the form is known
    sent = []
    monkeypatch.setattr(comm.transport, "lanes", [Counting(lane, sent) for lane in comm.transport.lanes])
    collective(comm, np.ones(N))
    monkeypatch.undo()
    assert comm.allreduce(np.array(sum(sent))) == pytest.approx(expected(comm.size, 8 * N), rel=0.001)
