"""Communications as functions, whoever uses their results (that each is the exact adjoint:
test_derivatives.py).
"""

import contextlib
import tracemalloc

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.autograd.tape import current_tape
from mnpar.communicators import wire
from mnpar.errors import DeadlockError, MismatchError
from mnpar.plans import Box, Plan
from tests.functions.communication.rows import ROWS, TWINS, ring, values
from tests.random_programs.programs import fold

SUMS = {name: row for name, row in ROWS.items() if name.partition(", ")[2] in ("", "sum")}


@pytest.mark.grid
@pytest.mark.parametrize("row", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("when", TWINS)
@pytest.mark.ranks(2, 3, 4)
def test_a_result_that_nobody_uses_does_not_hang_its_peers(comm, row, when):
    function, xs = next(row.cases(comm, (2, 3), when))
    x = [mnpar.Variable(a) for a in xs]
    function(*x)
    own = mnpar.Variable(np.ones(2))
    if comm.rank == 0:
        F.sum(own * 3).backward()
        np.testing.assert_array_equal(own.grad, [3.0, 3.0])
    else:
        mnpar.backward()
    assert all(v.grad is None or not v.grad.any() for v in x)


@pytest.mark.ranks(2, 3, 4)
def test_a_rank_may_use_some_of_the_outputs_only(comm):
    """Rank r takes the part of rank r + 1 from an allgather: the gradient of rank r is what rank r
    - 1 made of it.
    """
    x = mnpar.Variable(np.full(3, comm.rank + 1.0))
    y = F.allgather(comm, x)[(comm.rank + 1) % comm.size]
    F.sum(y * y * (comm.rank + 1)).backward()
    left = (comm.rank - 1) % comm.size
    np.testing.assert_allclose(x.grad, np.full(3, 2 * (comm.rank + 1.0) * (left + 1)))


@pytest.mark.ranks(1, 2, 3, 4)
def test_a_chain_over_all_ranks_has_the_gradients_of_one_process(comm):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((5, 5)) for _ in range(comm.size)]
    x0 = rng.standard_normal((3, 5))
    W = mnpar.Variable(weights[comm.rank])
    x = mnpar.Variable(x0)
    h = x if comm.rank == 0 else F.recv(comm, comm.rank - 1)
    h = output = F.tanh(h @ W)
    if comm.rank < comm.size - 1:
        F.send(h, comm, comm.rank + 1)
        mnpar.backward()
    else:
        F.sum(h * h).backward()

    serial = [mnpar.Variable(w) for w in weights]
    one = mnpar.Variable(x0)
    h = one
    for V in serial:
        h = F.tanh(h @ V)
    F.sum(h * h).backward()
    np.testing.assert_allclose(W.grad, serial[comm.rank].grad, rtol=1e-12)
    if comm.rank == comm.size - 1:
        np.testing.assert_allclose(output.array, h.array, rtol=1e-12)
    if comm.rank == 0:
        np.testing.assert_allclose(x.grad, one.grad, rtol=1e-12)


@pytest.mark.ranks(2)
def test_two_sends_with_one_tag_and_any_use_of_the_received_give_each_its_own_gradient(comm):
    """ChainerMN's order by depth exchanges these gradients in silence."""
    if comm.rank == 0:
        a = mnpar.Variable(np.array([2.0]))
        b = mnpar.Variable(np.array([3.0]))
        F.send(a * a * a, comm, 1)  # the deeper one first
        F.send(b, comm, 1)
        mnpar.backward()
        np.testing.assert_allclose([a.grad, b.grad], [[3 * 4 * 3.0], [8.0]])
    else:
        a = F.recv(comm, 0)
        b = F.recv(comm, 0)
        F.sum(a * b).backward()


@pytest.mark.parametrize("keep", ["psi", "phi2", "nothing"])
@pytest.mark.ranks(2)
def test_pseudo_connect_and_delegates_are_accepted_and_not_needed(comm, keep):
    if comm.rank == 0:
        z1 = mnpar.Variable(np.array([2.0]))
        z2 = mnpar.Variable(np.array([3.0]))
        phi1 = F.send(z1 * z1, comm, 1)
        phi2 = F.send(z2, comm, 1)
        psi = F.pseudo_connect(phi1, phi2)
        {"psi": psi.backward, "phi2": phi2.backward, "nothing": mnpar.backward}[keep]()
        np.testing.assert_allclose([z1.grad, z2.grad], [[4 * 3.0], [4.0]])
    else:
        z1 = F.recv(comm, 0)
        z2 = F.recv(comm, 0, delegate_variable=z1)
        F.sum(z1 * z2).backward()


@pytest.mark.ranks(2)
def test_integers_travel_and_need_no_gradient(comm):
    if comm.rank == 0:
        x = mnpar.Variable(np.array([1.0, 2.0]))
        F.send((np.array([1, 0]), x), comm, 1)
        mnpar.backward()
        np.testing.assert_array_equal(x.grad, [0.0, 1.0])
    else:
        index, x = F.recv(comm, 0)
        assert index.dtype == np.int64
        assert not index.requires_grad
        x[index.array[0]].backward()


@pytest.mark.ranks(2)
def test_what_needs_no_gradient_is_recorded_on_neither_side(comm):

    if comm.rank == 0:
        F.send(np.ones(2), comm, 1)
    else:
        assert not F.recv(comm, 0).requires_grad
    F.allreduce(comm, np.ones(2))
    assert not current_tape().records


@pytest.mark.ranks(2)
def test_a_receiver_that_does_not_record_tells_the_sender_that_there_is_no_gradient(comm):
    x = mnpar.Variable(np.ones(2))
    if comm.rank == 0:
        F.send(x, comm, 1)
        F.sum(x * 3).backward()
        np.testing.assert_array_equal(x.grad, [3.0, 3.0])
    else:
        with mnpar.no_backprop_mode():
            F.recv(comm, 0)
        mnpar.backward()


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, 3)
def test_ranks_that_disagree_on_recording_are_told_so(comm):
    x = mnpar.Variable(np.ones(2))
    with (
        pytest.raises(MismatchError, match="not recording"),
        mnpar.using_config("enable_backprop", comm.rank == 0),
    ):
        F.allreduce(comm, x)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2)
def test_a_derivative_of_one_ranks_own_without_a_tape_of_its_own_says_so(comm):
    y = F.copy_to(comm, mnpar.Variable(np.ones(1)))
    with pytest.raises(MismatchError, match=r"record this backward.*\n(.*\n)+.*with mnpar.Tape"):
        mnpar.grad([F.sum(y * y)], [y], enable_double_backprop=comm.rank == 0)


@pytest.mark.ranks(1, 2, 3, 4)
def test_copy_to_and_reduce_from_count_a_replicated_loss_once(comm):
    """A product cut by columns and rows over the ranks: the gradients are those of one process, on
    every rank.
    """
    rng = np.random.default_rng(0)
    x0 = rng.standard_normal((3, 4))
    A = rng.standard_normal((4, 12))
    B = rng.standard_normal((12, 2))
    mine = slice(comm.rank * 12 // comm.size, (comm.rank + 1) * 12 // comm.size)
    x = mnpar.Variable(x0)
    a = mnpar.Variable(A[:, mine].copy())
    b = mnpar.Variable(B[mine].copy())
    y = F.reduce_from(comm, F.tanh(F.copy_to(comm, x) @ a) @ b)
    F.sum(y * y).backward()

    one = [mnpar.Variable(v) for v in (x0, A, B)]
    y1 = F.tanh(one[0] @ one[1]) @ one[2]
    F.sum(y1 * y1).backward()
    np.testing.assert_allclose(y.array, y1.array, rtol=1e-12)
    np.testing.assert_allclose(x.grad, one[0].grad, rtol=1e-11)
    np.testing.assert_allclose(a.grad, one[1].grad[:, mine], rtol=1e-11)
    np.testing.assert_allclose(b.grad, one[2].grad[mine], rtol=1e-11)


@pytest.mark.parametrize("function", [F.copy_to, F.reduce_from])
@pytest.mark.ranks(1)
def test_what_one_rank_owns_with_nobody_goes_through_no_collective(comm, function):
    x = mnpar.Variable(np.array([2.0, 3.0]))
    before = comm.traffic.collectives
    y = function(comm, x)
    assert y is not x
    assert not current_tape().records
    (g,) = mnpar.grad([F.sum(y**3)], [x], enable_double_backprop=True)
    F.sum(g).backward()
    np.testing.assert_array_equal(x.grad, 6 * x.array)
    assert comm.traffic.collectives == before
    with pytest.raises(ValueError, match="has nothing to give"):
        function(comm, None)


@pytest.mark.ranks(1, 2, 4)
def test_the_gradient_is_that_of_the_sum_over_ranks(comm):
    x = mnpar.Variable(np.array([1.0]))
    F.sum(F.allreduce(comm, x)).backward()  # the same loss on each rank: it counts P times
    np.testing.assert_array_equal(x.grad, [float(comm.size)])


@pytest.mark.ranks(2, 4)
def test_forwards_on_tapes_of_their_own_can_be_reversed_in_any_order(comm):
    xs = [mnpar.Variable(np.array([float(i + 1)])) for i in range(3)]
    tapes, losses = [], []
    for x in xs:
        with mnpar.Tape() as tape:
            losses.append(F.sum(F.allreduce(comm, x * x)))
        tapes.append(tape)
    for i in (1, 0, 2):
        with tapes[i]:
            losses[i].backward()
    np.testing.assert_allclose(
        [x.grad[0] for x in xs], [2.0 * comm.size * (i + 1) for i in range(3)]
    )


@pytest.mark.ranks(2)
def test_several_losses_on_one_tape_start_together_or_are_refused(comm):
    x = mnpar.Variable(np.array([2.0]))
    a = F.sum(F.allreduce(comm, x))
    b = F.sum(F.allreduce(comm, x * x))
    a.backward()
    with pytest.raises(RuntimeError, match=r"mnpar.backward\(\[loss1, loss2\]\)"):
        b.backward()
    x.cleargrad()
    mnpar.backward([F.sum(F.allreduce(comm, x)), F.sum(F.allreduce(comm, x * x))])
    np.testing.assert_array_equal(x.grad, [2.0 + 8.0])


@pytest.mark.ranks(2, 3)
def test_mixed_dtypes_keep_theirs_both_ways(comm):
    for dtype in (np.float16, np.float32, np.float64, np.complex128):
        x = mnpar.Variable(np.ones((40, 5), dtype))
        y = F.allgather(comm, x, axis=0)
        y.grad = np.ones(y.shape, dtype)
        y.backward()
        assert y.dtype == dtype
        assert x.grad.dtype == dtype


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, on="threads")
def test_a_message_of_the_wrong_kind_is_an_error_for_its_sender_too(comm):
    if comm.rank == 0:
        comm.send_obj({}, 1)
    with pytest.raises(MismatchError, match=r"send_obj at .* sent an object"):
        comm.recv(1 - comm.rank)


NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


@pytest.mark.parametrize("op", NUMPY)
@pytest.mark.ranks(1, 2, 3, 4)
def test_every_reduction_has_the_value_and_the_derivatives_of_its_serial_twin(comm, op):
    # ties, zeros
    xs = [
        np.random.default_rng(rank).choice([-1.5, 0.0, 0.5, 2.0], size=(3, 4))
        for rank in range(comm.size)
    ]
    weight = np.random.default_rng(9).standard_normal((3, 4))
    x = mnpar.Variable(xs[comm.rank])
    root = comm.size - 1
    every = F.allreduce(comm, x, op)
    rooted = F.reduce(comm, x, root, op)
    parts = F.reduce_scatter(comm, [x * (r + 1) for r in range(comm.size)], op)
    np.testing.assert_allclose(every.array, NUMPY[op](xs, axis=0))
    np.testing.assert_allclose(parts.array, NUMPY[op]([v * (comm.rank + 1) for v in xs], axis=0))

    def loss(every, rooted, parts):
        return [
            F.sum(every * every * weight),
            F.sum(rooted * weight),
            F.sum(parts * parts * parts * weight),
        ]

    own = (
        loss(every, rooted, parts)
        if comm.rank == root
        else [loss(every, every, parts)[0], loss(every, every, parts)[2]]
    )
    (g,) = mnpar.grad(own, [x], enable_double_backprop=True)
    mnpar.backward([F.sum(g * g * weight)])

    ones = [mnpar.Variable(v) for v in xs]
    folded = fold(ones, op)
    losses = [F.sum(folded * weight)]
    for r in range(comm.size):
        part = fold([v * (r + 1) for v in ones], op)
        losses += [F.sum(folded * folded * weight), F.sum(part * part * part * weight)]
    gs = mnpar.grad(losses, ones, enable_double_backprop=True)
    np.testing.assert_allclose(g.array, gs[comm.rank].array, rtol=1e-12, atol=1e-12)
    mnpar.backward([F.sum(v * v * weight) for v in gs])
    np.testing.assert_allclose(x.grad, ones[comm.rank].grad, rtol=1e-12, atol=1e-12)


EXCHANGES = {
    "send and recv": lambda comm, x: (
        F.send(x, comm, 1 - comm.rank, tag=3),
        F.recv(comm, 1 - comm.rank, tag=3),
    )[1],
    "sendrecv": lambda comm, x: F.sendrecv(x, comm, 1 - comm.rank, 1 - comm.rank, tag=3),
    "isend and irecv": lambda comm, x: F.isendrecv(x, comm, 1 - comm.rank, 1 - comm.rank, tag=3),
}


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
@pytest.mark.ranks(2)
def test_the_headers_of_gradients_are_made_once_for_all_steps(comm, exchange):
    """They are kept by all but their number: kept with the tag of each, they were new in every
    step, and piled up.
    """

    def step():
        x = mnpar.Variable(np.ones(3))
        F.sum(x * exchange(comm, x)).backward()
        comm.barrier()
        return len(wire._PACKED), len(wire._READ)

    known = [step() for _ in range(5)]
    assert known[-1] == known[1]


MEANS = {
    "allreduce": lambda comm, x: F.allreduce(comm, x, "mean"),
    "reduce": lambda comm, x: F.reduce(comm, x, op="mean"),
    "reduce_scatter": lambda comm, x: F.reduce_scatter(comm, [x] * comm.size, "mean"),
    "scan": lambda comm, x: F.scan(comm, x, "mean"),
    "iallreduce": lambda comm, x: F.iallreduce(comm, x, "mean"),
    "ireduce": lambda comm, x: F.ireduce(comm, x, op="mean"),
    "ireduce_scatter": lambda comm, x: F.ireduce_scatter(comm, [x] * comm.size, "mean"),
    "iscan": lambda comm, x: F.iscan(comm, x, "mean"),
}


@pytest.mark.parametrize("value", [np.int8([100]), np.float16([40000])], ids=["int8", "float16"])
@pytest.mark.parametrize("mean", MEANS.values(), ids=MEANS)
@pytest.mark.ranks(3, on="threads")
def test_a_mean_does_not_overflow_on_the_way(comm, mean, value):
    x = mnpar.Variable(value)
    y = mean(comm, x)
    if y.size:  # the root
        np.testing.assert_array_equal(y.array, value.mean(axis=0, keepdims=True))
        assert y.dtype == np.mean(value).dtype
    if y.requires_grad:
        F.sum(y).backward()
        assert x.grad.dtype == x.dtype


WITHOUT = {
    "send": lambda comm: F.send(None, comm, rank=1 - comm.rank),
    "allgather": lambda comm: F.allgather(comm, None),
    "iallgather": lambda comm: F.iallgather(comm, None),
    "allreduce": lambda comm: F.allreduce(comm, mnpar.Variable(None), "mean"),
    "alltoall": lambda comm: F.alltoall(comm, [None, None]),
    "copy_to": lambda comm: F.copy_to(comm, None),
    "shift": lambda comm: F.shift(comm, None),
}


@pytest.mark.parametrize("call", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.ranks(2, on="threads")
def test_who_gives_none_is_told_where(comm, call):
    with pytest.raises(
        ValueError,
        match=r"at .*test_communication.py.* \(rank \d\) has nothing to give: its input 0 of",
    ):
        call(comm)


@pytest.mark.parametrize("bcast", [F.bcast, F.ibcast])
@pytest.mark.ranks(1)
def test_a_root_without_an_array_is_told(comm, bcast):
    with pytest.raises(ValueError, match="nothing to give"):
        bcast(comm)


@pytest.mark.ranks(2)
def test_the_gradient_of_a_maximum_goes_to_the_lowest_rank_that_holds_it(comm):
    x = mnpar.Variable(np.array([1.0, 2.0 + comm.rank]))
    y = F.allreduce(comm, x, "max")
    F.sum(y).backward()
    np.testing.assert_array_equal(x.grad, [2.0 * (comm.rank == 0), 2.0 * (comm.rank == 1)])


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("op", ["max", "prod"])
@pytest.mark.parametrize("kind", ["allreduce", "reduce", "reduce_scatter"])
@pytest.mark.ranks(2, 3)
def test_ranks_that_reduce_otherwise_are_told_so_before_they_see_a_value(comm, kind, op):
    """The parts of a maximum or product are brought together first: that must not hide what would
    be refused of a sum.
    """

    def call(op, shape=(3,), dtype=np.float64):
        x = np.ones(shape, dtype)
        return {
            "allreduce": lambda: F.allreduce(comm, x, op),
            "reduce": lambda: F.reduce(comm, x, op=op),
            "reduce_scatter": lambda: F.reduce_scatter(comm, [x] * comm.size, op),
        }[kind]()

    odd = comm.rank == 1
    for wrong in (
        {"op": "min"},
        {"op": "sum"},
        {"op": op, "shape": (1,)},
        {"op": op, "dtype": np.float32},
    ):
        with pytest.raises(MismatchError, match=f"(?s)rank 0: .*{kind}.*rank 1: .*{kind}"):
            call(**(wrong if odd else {"op": op}))
    with pytest.raises(MismatchError, match=f"(?s)rank 0: .*{kind}.*rank 1: .*allgather"):
        F.allgather(comm, np.ones(3)) if odd else call(op)


@pytest.mark.ranks(2, 3)
def test_a_small_part_from_a_line_that_has_given_one_before_travels_beside_large_ones(comm):
    for n in (3, 3000, 3):
        for rank in range(comm.size):
            parts = F.allgather(comm, np.full(n if comm.rank == rank else 3, comm.rank))
            assert [len(part) for part in parts] == [
                n if r == rank else 3 for r in range(comm.size)
            ]
            assert [part.array.mean() for part in parts] == list(range(comm.size))


@pytest.mark.parametrize("n", [3, 20_000])
@pytest.mark.ranks(2, 3)
def test_the_other_end_of_a_sendrecv_may_be_a_send_and_a_recv(comm, n):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    every = [np.random.default_rng([0, r]).standard_normal(n) for r in range(comm.size)]
    x = mnpar.Variable(every[comm.rank])
    if comm.rank == 1:
        F.send(x, comm, right)
        y = F.recv(comm, left)
    else:
        y = F.sendrecv(x, comm, right, left)
    np.testing.assert_array_equal(y.array, every[left])
    (g,) = mnpar.grad([F.sum(y * y * y * x)], [x], enable_double_backprop=True)
    np.testing.assert_allclose(g.array, every[left] ** 3 + 3 * every[comm.rank] ** 2 * every[right])
    F.sum(g * g).backward()
    xl = every[left]
    xi = every[comm.rank]
    xr = every[right]
    xrr = every[(right + 1) % comm.size]
    xll = every[(left - 1) % comm.size]
    gl = xll**3 + 3 * xl**2 * xi
    gi = xl**3 + 3 * xi**2 * xr
    gr = xi**3 + 3 * xr**2 * xrr
    np.testing.assert_allclose(x.grad, 2 * (gi * 6 * xi * xr + gr * 3 * xi**2 + gl * 3 * xl**2))


@pytest.mark.parametrize("n", [3, 20_000])
@pytest.mark.ranks(1, 2, 3)
def test_a_shift_takes_views_and_tuples_and_leaves_them_as_they_are(comm, n):
    both = values(comm, (2, n))
    x = mnpar.Variable(both)
    y = mnpar.Variable(values(comm, n, 1))
    before = both.copy()
    flipped, other = F.shift(comm, (x[:, ::-1], y))
    left = [np.random.default_rng([seed, (comm.rank - 1) % comm.size]) for seed in (0, 1)]
    np.testing.assert_array_equal(flipped.array, left[0].standard_normal((2, n))[:, ::-1])
    np.testing.assert_array_equal(other.array, left[1].standard_normal(n))
    whole = F.shift(comm, x, -1)
    F.sum(flipped * 2).backward(retain_tape=True)
    np.testing.assert_array_equal(x.grad, np.full((2, n), 2.0))
    assert y.grad is None or not y.grad.any()
    F.sum(whole * 3 + F.shift(comm, whole)).backward()
    np.testing.assert_array_equal(x.grad, np.full((2, n), 6.0))
    np.testing.assert_array_equal(both, before)


@pytest.mark.parametrize("call", ["send", "sendrecv", "shift"])
@pytest.mark.ranks(2, 3)
def test_a_tuple_whose_receiver_records_nothing_gets_no_gradients(comm, call):
    x = mnpar.Variable(values(comm, 3))
    y = mnpar.Variable(values(comm, (2, 2)))
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    with mnpar.using_config("enable_backprop", comm.rank != 1):
        if call == "send":
            F.send((x, y), comm, right)
            F.recv(comm, left)
        else:
            F.shift(comm, (x, y)) if call == "shift" else F.sendrecv((x, y), comm, right, left)
    F.sum(x).backward()
    np.testing.assert_array_equal(x.grad, np.ones(3))


@pytest.mark.ranks(2, on="mpi")
def test_a_large_array_leaves_a_sendrecv_from_where_it_is(comm):
    """Gradients too, as the other end waits as well: nothing of its size is made but what is
    received.
    """
    n = 2**20
    x = mnpar.Variable(np.full(n, comm.rank + 1.0))
    other = 1 - comm.rank

    def step():
        y = F.sendrecv(x, comm, other, other)
        y.grad = y.array
        mnpar.backward([y])
        return y

    step()
    x.cleargrad()
    comm.barrier()
    tracemalloc.start()
    y = step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert y.array[0] == 2.0 - comm.rank
    assert x.grad[0] == comm.rank + 1
    # what is received, twice: x.grad is the second; 5 with copies of all
    assert peak < 2.5 * x.array.nbytes


@pytest.mark.ranks(2)
def test_backward_of_a_sendrecv_waits_for_nobody_who_did_not_wait(comm):
    """Rank 1 sends plainly, and takes the gradient of that as its last: were it waited for, each
    would wait for the other.
    """
    n, other = 20_000, 1 - comm.rank
    x = mnpar.Variable(np.ones(n))
    z = mnpar.Variable(np.ones(n))
    if comm.rank == 0:
        u = F.recv(comm, other, tag=2)
        y = F.sendrecv(x, comm, other, other)
        F.sum(y * 3 + u).backward()
        assert x.grad[0] == 5
    else:
        F.send(z, comm, other)
        F.send(x, comm, other, tag=2)
        F.sum(F.recv(comm, other) * 5).backward()
        assert (z.grad[0], x.grad[0]) == (3, 1)


def test_a_sendrecv_that_nobody_takes_says_to_whom():
    def program(comm):
        if comm.rank == 1:
            comm.send(np.ones(3), 0)
        else:
            F.sendrecv(np.ones(20_000), comm, 1, 1)

    with pytest.raises(
        DeadlockError,
        match=r"rank 0: waits in send of float64 \(20000,\) to rank 1, tag 0 at "
        r".*test_communication.py",
    ):
        mnpar.run(program, ranks=2)


@pytest.mark.parametrize("scatter", [F.scatter, F.iscatter])
def test_a_root_that_gives_nothing_to_scatter_is_told(scatter):
    with pytest.raises(
        ValueError,
        match=scatter.__name__ + r"\(comm, xs\): rank 0 is the root and gives 1 arrays, not None",
    ):
        scatter(mnpar.create_communicator("self"), None)


SENDS = {  # name: the ring's next rank gets x
    "send and recv": lambda comm, x: ring(TWINS["now"], comm, x),
    "isend and irecv": lambda comm, x: ring(TWINS["later"], comm, x),
    "shift": lambda comm, x: F.shift(comm, x),
    "exchange": lambda comm, x: F.exchange(comm, x, one_step(comm)),
    "iexchange": lambda comm, x: F.iexchange(comm, x, one_step(comm)),
}


def one_step(comm):
    cells = [Box((3 * r,), (3 * r + 3,)) for r in range(comm.size)]
    return Plan(cells, [cells[r - 1] for r in range(comm.size)])


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
@pytest.mark.parametrize("twice", [False, True], ids=["kept tape", "double backprop"])
@pytest.mark.ranks(3)
def test_who_does_not_record_says_so_to_every_backward(comm, send, twice):
    x = mnpar.Variable(np.arange(1.0, 4))
    with mnpar.no_backprop_mode() if comm.rank == 1 else contextlib.nullcontext():
        y = send(comm, x * x)
    loss = F.sum(y) + F.sum(x * x)
    if twice:
        (g,) = mnpar.grad([loss], [x], enable_double_backprop=True)
        loss = F.sum(g * g) / 2
    else:
        loss.backward(retain_tape=True)
        loss.backward(retain_tape=True)
    loss.backward()
    terms = 2 if comm.rank == 2 else 1  # rank 1 records neither what it takes nor what it gives
    np.testing.assert_allclose(x.grad, terms**2 * 4 * x.array if twice else 3 * terms * 2 * x.array)


@pytest.mark.parametrize(
    "name", ["allreduce", "iallreduce", "scan", "iscan", "allgather", "bcast", "exchange"]
)
@pytest.mark.ranks(2)
def test_arrays_in_the_other_byte_order_have_gradients_in_whatever_order(comm, name):
    swapped = np.dtype(float).newbyteorder()
    for size, native in ((3, 0), (9000, 1)):  # the second travels outside the opening
        x = mnpar.Variable(np.ones(size, swapped))
        y = (
            F.exchange(comm, x, Plan([Box((0,), (size,))] * 2, [Box((0,), (size,))] * 2))
            if name == "exchange"
            else (getattr(F, name)(comm, x))
        )
        y = y[0] if isinstance(y, tuple) else y
        assert y.dtype == swapped
        times = 1 + comm.rank  # two gradients are added up
        g = np.full(size, 1 / times, float if comm.rank == native else swapped)
        mnpar.backward([y] * times, [mnpar.Variable(g)] * times)
        assert x.grad is None or x.grad.dtype == swapped
        want = {
            "scan": 2 - comm.rank,
            "iscan": 2 - comm.rank,
            "allgather": 2 * (comm.rank == 0),
            "bcast": 2 * (comm.rank == 0),
        }
        np.testing.assert_array_equal(0 if x.grad is None else x.grad, want.get(name, 2))
