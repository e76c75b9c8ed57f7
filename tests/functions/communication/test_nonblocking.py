"""What is started now and waited for later: in any order, or never, with the same results and the
same gradients.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.communicators.mpi import transport
from mnpar.errors import MismatchError, UnreceivedWarning

EVERY = pytest.mark.ranks(1, 2, 3, 4)
# elements: in the opening, by messages, larger than what is gathered to be summed
SIZES = [
    1,
    40,
    5000,
    40_000,
]


def values(comm, n, seed=0):
    return np.random.default_rng([seed, comm.rank]).standard_normal(n)


def of_all(comm, n, seed=0):
    return [np.random.default_rng([seed, r]).standard_normal(n) for r in range(comm.size)]


# name: (the blocking method, the non-blocking one) on a communicator and an array
METHODS = {
    "send and recv": (lambda c, x: c.shift(x), lambda c, x: posted(c, x)),
    "bcast": (lambda c, x: c.bcast(x, c.size - 1), lambda c, x: c.ibcast(x, c.size - 1)),
    "reduce": (lambda c, x: c.reduce(x, c.size - 1), lambda c, x: c.ireduce(x, c.size - 1)),
    "reduce, max": (lambda c, x: c.reduce(x, 0, "max"), lambda c, x: c.ireduce(x, 0, "max")),
    "allreduce": (lambda c, x: c.allreduce(x), lambda c, x: c.iallreduce(x)),
    "allreduce, mean": (lambda c, x: c.allreduce(x, "mean"), lambda c, x: c.iallreduce(x, "mean")),
    "allreduce, prod": (lambda c, x: c.allreduce(x, "prod"), lambda c, x: c.iallreduce(x, "prod")),
    "gather": (lambda c, x: c.gather(x[c.rank :]), lambda c, x: c.igather(x[c.rank :])),
    "allgather": (lambda c, x: c.allgather(x[c.rank :]), lambda c, x: c.iallgather(x[c.rank :])),
    "scatter": (
        lambda c, x: c.scatter([x[r:] for r in range(c.size)]),
        lambda c, x: c.iscatter([x[r:] for r in range(c.size)]),
    ),
    "alltoall": (
        lambda c, x: c.alltoall([x[r:] for r in range(c.size)]),
        lambda c, x: c.ialltoall([x[r:] for r in range(c.size)]),
    ),
    "reduce_scatter": (
        lambda c, x: c.reduce_scatter([x[r:] for r in range(c.size)]),
        lambda c, x: c.ireduce_scatter([x[r:] for r in range(c.size)]),
    ),
    "scan": (lambda c, x: c.scan(x), lambda c, x: c.iscan(x)),
    "exscan, prod": (lambda c, x: c.exscan(x, "prod"), lambda c, x: c.iexscan(x, "prod")),
    "barrier": (lambda c, x: c.barrier(), lambda c, x: c.ibarrier()),
    "bcast_obj": (lambda c, x: c.bcast_obj(x.tolist()), lambda c, x: c.ibcast_obj(x.tolist())),
    "gather_obj": (lambda c, x: c.gather_obj(x.tolist()), lambda c, x: c.igather_obj(x.tolist())),
    "allgather_obj": (
        lambda c, x: c.allgather_obj(x.tolist()),
        lambda c, x: c.iallgather_obj(x.tolist()),
    ),
    "scatter_obj": (
        lambda c, x: c.scatter_obj([x.tolist()] * c.size),
        lambda c, x: c.iscatter_obj([x.tolist()] * c.size),
    ),
    "alltoall_obj": (
        lambda c, x: c.alltoall_obj([x.tolist()] * c.size),
        lambda c, x: c.ialltoall_obj([x.tolist()] * c.size),
    ),
    "allreduce_obj": (
        lambda c, x: c.allreduce_obj(float(x[0])),
        lambda c, x: c.iallreduce_obj(float(x[0])),
    ),
}


def posted(comm, x):
    operation = comm.irecv((comm.rank - 1) % comm.size)
    assert comm.isend(x, (comm.rank + 1) % comm.size).wait() is None
    return operation


def assert_same(a, b):
    if isinstance(a, tuple | list):
        assert type(a) is type(b)
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(a, b)


@pytest.mark.grid
@pytest.mark.parametrize("n", [8, 5000])
@pytest.mark.parametrize("name", METHODS)
@EVERY
def test_every_method_has_a_twin_that_gives_the_same_later(comm, name, n):
    blocking, later = METHODS[name]
    x = values(comm, n)
    assert_same(blocking(comm, x), later(comm, x).wait())


@pytest.mark.parametrize("n", SIZES)
@EVERY
def test_operations_are_waited_for_in_any_order(comm, n):
    operations = [comm.iallreduce(values(comm, n, seed)) for seed in range(4)]
    for seed in np.random.default_rng(comm.rank).permutation(4):  # another order on each rank
        np.testing.assert_allclose(
            operations[seed].wait(), sum(of_all(comm, n, seed)), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("n", SIZES)
@EVERY
def test_other_communications_may_come_in_between(comm, n):
    operation = comm.iallreduce(values(comm, n))
    there = comm.shift(values(comm, n, 1))
    total = comm.allreduce(values(comm, n, 2))
    parts = comm.allgather(values(comm, n, 3))
    np.testing.assert_array_equal(there, of_all(comm, n, 1)[comm.rank - 1])
    np.testing.assert_allclose(total, sum(of_all(comm, n, 2)), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(np.stack(parts), of_all(comm, n, 3))
    np.testing.assert_allclose(operation.wait(), sum(of_all(comm, n)), rtol=1e-12, atol=1e-12)


@pytest.mark.ranks(2, 3)
def test_a_rank_that_waits_for_something_else_keeps_no_operation_waiting(comm):
    operation = comm.iallreduce(values(comm, 5000))
    if comm.rank == 0:
        comm.recv(1)  # rank 1 sends it only when the sum, to which rank 0 adds, is there
    elif comm.rank == 1:
        operation.wait()
        comm.send(np.zeros(1), 0)
    np.testing.assert_allclose(operation.wait(), sum(of_all(comm, 5000)), rtol=1e-12)


@EVERY
def test_test_tells_whether_it_is_done(comm):
    operation = comm.iallreduce(values(comm, 5000))
    while not operation.test():
        pass
    assert operation.done
    np.testing.assert_allclose(operation.wait(), sum(of_all(comm, 5000)), rtol=1e-12)


@EVERY
def test_receives_take_messages_in_the_order_in_which_they_were_posted(comm):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    first = comm.irecv(left, tag=1)
    other = comm.irecv(left, tag=2)
    any_tag = comm.irecv(left, tag=mnpar.ANY_TAG)
    for tag, number in ((1, 10), (2, 20), (1, 30), (1, 40)):
        comm.send(np.array(number), right, tag)
    assert comm.recv(left, tag=1).item() == 40
    assert [operation.wait().item() for operation in (any_tag, other, first)] == [30, 20, 10]


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.irecv(c.size),
        lambda c: c.isend(np.ones(1), -1),
        lambda c: c.ibcast(None, c.size),
    ],
)
@pytest.mark.ranks(1, 2, on="threads")
def test_a_bad_argument_is_refused_at_once(comm, call):
    with pytest.raises(ValueError, match="there is no rank"):
        call(comm)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, 3)
def test_a_mismatch_is_told_where_the_operation_is_waited_for(comm):
    operation = comm.iallreduce(np.ones(2 + (comm.rank == 1)))
    with pytest.raises(MismatchError, match="different dtype or shape"):
        operation.wait()


@pytest.mark.parametrize("n", SIZES)
@EVERY
def test_gradients_are_those_of_recv(comm, n):
    results = []
    for shift in (
        F.shift,
        lambda c, x: (F.irecv(c, (c.rank - 1) % c.size), F.isend(x, c, (c.rank + 1) % c.size))[0],
    ):
        x = mnpar.Variable(values(comm, n))
        y = F.sum(shift(comm, x * x) * x)
        (g,) = mnpar.grad([y], [x], enable_double_backprop=True)
        F.sum(g * g).backward()
        results.append((y.array, g.array, x.grad))
    for blocking, later in zip(*results, strict=True):
        np.testing.assert_array_equal(blocking, later)


@EVERY
def test_a_receive_that_nobody_uses_is_still_visited_by_backward(comm):
    x = mnpar.Variable(values(comm, 3))
    F.irecv(comm, (comm.rank - 1) % comm.size)
    F.isend(x, comm, (comm.rank + 1) % comm.size)
    F.sum(x * 2).backward()
    np.testing.assert_array_equal(x.grad, np.full(3, 2.0))


@EVERY
def test_a_future_knows_its_shape_and_is_a_variable(comm):
    y = F.irecv(comm, (comm.rank - 1) % comm.size)
    F.isend(np.full((2, 3), comm.rank, "f4"), comm, (comm.rank + 1) % comm.size)
    assert isinstance(y, mnpar.Variable)
    assert isinstance(y, mnpar.Future)
    assert (y.shape, y.dtype, y.requires_grad) == ((2, 3), np.float32, False)
    assert (y + 1).array[0, 0] == (comm.rank - 1) % comm.size + 1
    y.array = np.zeros((2, 3))
    assert y.array.sum() == 0


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2)
def test_several_arrays_in_one_message_are_refused_by_irecv(comm):
    F.send((np.ones(1), np.ones(2)), comm, 1 - comm.rank)
    with pytest.raises(
        MismatchError, match=r"irecv at .* takes one array, but .* on rank . sent 2: use recv"
    ):
        F.irecv(comm, 1 - comm.rank).wait()


@pytest.mark.ranks(2)
def test_no_backprop_mode_where_it_was_started_is_what_counts(comm):
    x = mnpar.Variable(values(comm, 2))
    with mnpar.no_backprop_mode():
        silent = F.irecv(comm, 1 - comm.rank)
    loud = F.irecv(comm, 1 - comm.rank)
    for _ in range(2):
        F.isend(x, comm, 1 - comm.rank)
    assert not silent.requires_grad
    with mnpar.no_backprop_mode():
        assert loud.requires_grad
    F.sum(loud).backward()
    np.testing.assert_array_equal(x.grad, np.ones(2))


def test_a_result_that_is_asked_for_after_the_end_is_an_error_and_no_hang():
    with pytest.warns(
        UnreceivedWarning, match="started recv from rank ., tag 0 at .*, which could not end"
    ):
        y = mnpar.run(lambda comm: F.irecv(comm, 1 - comm.rank), ranks=2)[0]
    with pytest.raises(
        mnpar.errors.DeadlockError, match="rank 0 has ended its program: wait for recv from rank 1"
    ):
        y.wait()


@pytest.mark.parametrize(
    "start", [lambda c: c.iallreduce(np.ones(2)), lambda c: F.iallgather(c, np.ones(2))]
)
def test_an_operation_that_nobody_waits_for_and_others_never_come_to_is_told(start):
    def program(comm):
        start(comm)
        if comm.rank == 2:
            start(comm)

    with pytest.warns(
        UnreceivedWarning,
        match=r"rank 2 started iall.* of float64 \(2,\) at .*, which could not end",
    ) as told:
        mnpar.run(program, ranks=3)
    assert len(told) == 1


@pytest.mark.ranks(3, on="mpi")
def test_on_processes_it_is_told_at_the_end(comm, monkeypatch):
    monkeypatch.setattr(transport, "_UNFINISHED", 0.1)
    comm.iallreduce(np.ones(2))  # which all start, and nobody waits for
    last = comm.iallreduce(np.ones(2)) if comm.rank == 2 else None
    told = comm.transport.unreceived()
    comm.mpi_comm.Barrier()  # or a rank that looks late would take rank 2's messages of below
    assert [text.partition(" at ")[0] for text in told] == [
        "rank 2 started iallreduce (sum) of float64 (2,)"
    ] * (comm.rank == 2)
    if comm.rank == 2:
        comm.send(np.ones(1), 0)
        comm.send(np.ones(1), 1)
    else:
        comm.recv(2)
        last = comm.iallreduce(np.ones(2))
    last.wait()


@pytest.mark.ranks(2, 3)
def test_a_receive_of_any_tag_gets_the_oldest_message_though_a_later_receive_asks_for_another(comm):
    """It may come between the moments at which the two are looked for: so it did now and then on
    processes.
    """
    for _ in range(200):
        if comm.rank == 0:
            first = comm.irecv(1, tag=mnpar.ANY_TAG)
            from_anyone = comm.irecv(mnpar.ANY_SOURCE, tag=16)
            assert comm.recv(1, tag=17).item() == 3
            assert (first.wait().item(), from_anyone.wait().item()) == (1, 2)
        elif comm.rank == 1:
            for tag, number in ((4, 1), (16, 2), (17, 3)):
                comm.send(np.array(number), 0, tag)
        comm.barrier()
