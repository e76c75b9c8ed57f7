"""What a communicator says that it has sent: of each collective, the bytes that its algorithm has
to send. How many messages a send is, that no array is pickled, and that what is received is written
once, to the memory where the program finds it.
"""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.communicators import wire

# numbers, of 8 bytes: more than what travels in matches, and divisible by all numbers of ranks
N = 120_000

COLLECTIVES = {  # bytes that all ranks together have to send, of P ranks with n bytes each
    "allreduce": (lambda comm, x: comm.allreduce(x), lambda P, n: 2 * (P - 1) * n),
    "allgather": (lambda comm, x: comm.allgather(x), lambda P, n: P * (P - 1) * n),
    "reduce_scatter": (
        lambda comm, x: comm.reduce_scatter(x.reshape(comm.size, -1)),
        lambda P, n: (P - 1) * n,
    ),
    "alltoall": (lambda comm, x: comm.alltoall(x.reshape(comm.size, -1)), lambda P, n: (P - 1) * n),
    "bcast": (lambda comm, x: comm.bcast(x), lambda P, n: (P - 1) * n),
    "reduce": (
        lambda comm, x: comm.reduce(x),
        lambda P, n: 2 * (P - 1) * n - (P - 1) * (n - n // P),
    ),
    "gather": (lambda comm, x: comm.gather(x), lambda P, n: (P - 1) * n),
    "scatter": (
        lambda comm, x: comm.scatter(x.reshape(comm.size, -1)),
        lambda P, n: (P - 1) * n // P,
    ),
    "an allreduce of some": (
        lambda comm, x: comm.allreduce(x[:500]),
        lambda P, n: P * (P - 1) * 4000,
    ),
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


class Watched:
    """An MPI communicator or message, and the memory that it was given to receive into."""

    def __init__(self, one, memory):
        self.one, self.memory = one, memory

    def __getattr__(self, name):
        return getattr(self.one, name)

    def Improbe(self, *where):
        found = self.one.Improbe(*where)
        return None if found is None else Watched(found, self.memory)

    def Irecv(self, message, *where):
        self.memory.append(message[0])
        return self.one.Irecv(message, *where)


@pytest.mark.ranks(2, 3, on="mpi")
@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "reduce"])
def test_as_many_bytes_are_given_to_mpi(comm, name, monkeypatch):
    collective, expected = COLLECTIVES[name]
    collective(comm, np.ones(N))  # from now on the form is known
    sent = []
    monkeypatch.setattr(
        comm.transport, "lanes", [Counting(lane, sent) for lane in comm.transport.lanes]
    )
    collective(comm, np.ones(N))
    monkeypatch.undo()
    assert comm.allreduce(np.array(sum(sent))) == pytest.approx(
        expected(comm.size, 8 * N), rel=0.001
    )


def pass_on(send):
    """A program in which each rank sends to the next one, and receives from the one before."""

    def program(comm, x):
        send(comm, x, (comm.rank + 1) % comm.size)
        comm.recv((comm.rank - 1) % comm.size)

    return program


def with_gradients(comm, x, used=True, recorded=True):
    F.send(mnpar.Variable(x), comm, (comm.rank + 1) % comm.size)
    with mnpar.using_config("enable_backprop", recorded):
        y = F.recv(comm, (comm.rank - 1) % comm.size)
    if used:
        y.grad = y.array
    mnpar.backward([y] if used else [])


def round_the_ring(function):
    def program(comm, x):
        y = function(comm, mnpar.Variable(x))
        y.grad = y.array
        y.backward()

    return program


def send_object(comm, x):
    comm.send_obj([x.size], (comm.rank + 1) % comm.size)
    comm.recv_obj((comm.rank - 1) % comm.size)


# what each rank sends: messages, and their bytes, of an array of n bytes
MESSAGES = {
    "send": (pass_on(lambda comm, x, to: comm.send(x, to)), lambda n: (1, n)),
    "isend": (pass_on(lambda comm, x, to: comm.isend(x, to).wait()), lambda n: (1, n)),
    "a tuple": (
        pass_on(lambda comm, x, to: comm.send((x, None, x[:1]), to)),
        lambda n: (1, n + min(n, 8)),
    ),
    "a dict": (pass_on(lambda comm, x, to: comm.send({"a": x}, to)), lambda n: (1, n)),
    "shift": (lambda comm, x: comm.shift(x), lambda n: (1, n)),
    "an object": (send_object, lambda n: (1, len(pickle.dumps([n // 8], -1)))),
    "with gradients": (with_gradients, lambda n: (2, 2 * n)),
    "with a gradient that is none": (
        lambda comm, x: with_gradients(comm, x, used=False),
        lambda n: (2, n),
    ),
    "with a gradient that is refused": (
        lambda comm, x: with_gradients(comm, x, used=False, recorded=False),
        lambda n: (2, n),
    ),
    "F.shift": (round_the_ring(F.shift), lambda n: (2, 2 * n)),
    "F.ishift": (round_the_ring(F.ishift), lambda n: (2, 2 * n)),
}


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("size", [0, 5, N])
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_and_their_bytes_are_counted(comm, name, size):
    program, expected = MESSAGES[name]
    before = copy.copy(comm.traffic)
    program(comm, np.ones(size))
    found = comm.traffic.messages - before.messages, comm.traffic.bytes - before.bytes
    assert found == expected(8 * size)
    assert comm.traffic.collectives == before.collectives


@pytest.mark.ranks(2, 3, on="mpi")
@pytest.mark.parametrize("size", [5, N])
@pytest.mark.parametrize("name", [name for name in MESSAGES if name not in ("a tuple", "a dict")])
def test_as_many_bytes_as_are_counted_are_given_to_mpi(comm, name, size, monkeypatch):
    before = copy.copy(comm.traffic)
    sent = []
    monkeypatch.setattr(
        comm.transport, "lanes", [Counting(lane, sent) for lane in comm.transport.lanes]
    )
    MESSAGES[name][0](comm, np.ones(size))
    monkeypatch.undo()
    messages = comm.traffic.messages - before.messages
    assert sum(sent) == comm.traffic.bytes - before.bytes + messages * wire.SIZE


FORMS = {
    "0-d": lambda: np.array(2.0),
    "empty": lambda: np.ones((3, 0)),
    "small": lambda: np.arange(5.0),
    "large": lambda: np.arange(1.0 * N),
    "strided": lambda: np.arange(2.0 * N)[::-2],
    "six axes": lambda: np.arange(64.0).reshape(2, 2, 2, 2, 2, 2),
    "a tuple": lambda: (np.ones(N), np.ones((2, 3)), None),
    "a dict": lambda: {"a": np.ones(3), "b": np.ones(N)},
}


@pytest.mark.ranks(2, on="mpi")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("send", ["send", "isend"])
def test_a_send_of_any_shape_is_two_messages_at_most(comm, form, send, monkeypatch):
    x = FORMS[form]()
    other = 1 - comm.rank
    sent = []
    monkeypatch.setattr(
        comm.transport, "lanes", [Counting(lane, sent) for lane in comm.transport.lanes]
    )
    pending = getattr(comm, send)(x, other)
    y = comm.recv(other)
    if send == "isend":
        pending.wait()
    monkeypatch.undo()
    assert len(sent) == 1 if "large" not in form else 1 <= len(sent) <= 2
    np.testing.assert_equal(y, x)


@pytest.mark.ranks(2, on="mpi")
@pytest.mark.parametrize("form", ["0-d", "small", "large", "strided", "six axes"])
def test_what_is_received_is_written_once(comm, form, monkeypatch):
    x = FORMS[form]()
    other = 1 - comm.rank
    memory = []
    monkeypatch.setattr(
        comm.transport, "lanes", [Watched(lane, memory) for lane in comm.transport.lanes]
    )
    F.send(mnpar.Variable(x), comm, rank=other)
    y = F.recv(comm, rank=other).array
    monkeypatch.undo()
    assert any([np.shares_memory(y, one) for one in memory if isinstance(one, np.ndarray)])
    np.testing.assert_equal(y, x)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("n", [5, 30_000])
def test_no_array_is_pickled(comm, n, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("an array was pickled")

    x = np.ones(n)
    xs = [np.ones(n)] * comm.size
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    for name in ("dumps", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    for name in ("allreduce", "allgather", "bcast", "reduce", "gather", "scan", "exscan", "shift"):
        getattr(comm, name)(x)
    for name in ("alltoall", "reduce_scatter", "scatter"):
        getattr(comm, name)(xs)
    comm.send((x, {"a": x}), right)
    received = comm.recv(left)
    comm.barrier()
    monkeypatch.undo()
    np.testing.assert_equal(received, (x, {"a": x}))
