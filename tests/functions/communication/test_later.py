"""Collectives that are waited for later: in any order, or never, with the values and gradients of
their blocking twins.
"""

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.errors import MismatchError
from mnpar.testing import check_adjoint

EVERY = pytest.mark.ranks(1, 2, 3, 4)
# in the opening, by messages, larger than what is gathered to be summed
SHAPES = [
    (),
    (0,),
    (2, 3),
    (40, 5),
    (4200,),
]


def values(comm, shape, seed=0):
    return np.random.default_rng([seed, comm.rank]).uniform(0.5, 1.5, shape)


def one(c, s, root):
    return [values(c, s)]


def uneven(c, s, root):
    return [values(c, (c.rank, *s))]


def parts(c, s, root):
    return [values(c, (r, *s)) for r in range(c.size)]


# name: how it is called (by the blocking or the other function), and which arrays a rank has
TWINS = {
    "allreduce": (lambda f, c, root, x: f(c, x), one),
    "allreduce, mean": (lambda f, c, root, x: f(c, x, "mean"), one),
    "allreduce, prod": (lambda f, c, root, x: f(c, x, "prod"), one),
    "allgather": (lambda f, c, root, x: f(c, x), uneven),
    "allgather, axis": (lambda f, c, root, x: f(c, x, 0), uneven),
    "bcast": (
        lambda f, c, root, *x: f(c, *x, root=root),
        lambda c, s, root: one(c, s, root) * (c.rank == root),
    ),
    "reduce": (lambda f, c, root, x: f(c, x, root), one),
    "reduce, mean": (lambda f, c, root, x: f(c, x, root, "mean"), one),
    "reduce, max": (lambda f, c, root, x: f(c, x, root, "max"), one),
    "gather": (lambda f, c, root, x: f(c, x, root), uneven),
    "scatter": (
        lambda f, c, root, *x: f(c, x, root),
        lambda c, s, root: parts(c, s, root) * (c.rank == root),
    ),
    "reduce_scatter": (lambda f, c, root, *x: f(c, x), parts),
    "reduce_scatter, axis": (
        lambda f, c, root, x: f(c, x, axis=-1),
        lambda c, s, root: one(c, (3, *s), root),
    ),
    "reduce_scatter, min": (lambda f, c, root, *x: f(c, x, "min"), parts),
    "reduce_scatter, mean": (lambda f, c, root, *x: f(c, x, "mean"), parts),
    "alltoall": (
        lambda f, c, root, *x: f(c, x),
        lambda c, s, root: [values(c, (r, c.rank, *s)) for r in range(c.size)],
    ),
    "scan": (lambda f, c, root, x: f(c, x), one),
    "scan, prod": (lambda f, c, root, x: f(c, x, "prod"), one),
    "exscan": (lambda f, c, root, x: f(c, x), one),
    "exscan, prod": (lambda f, c, root, x: f(c, x, "prod"), one),
}
LINEAR = [name for name in TWINS if not name.endswith(("prod", "max", "min"))]


def twins(name):
    """The blocking function and the other one, called alike."""
    functions = [getattr(F, prefix + name.split(",")[0]) for prefix in ("", "i")]
    return [functools.partial(TWINS[name][0], f) for f in functions]


def tupled(ys):
    return ys if isinstance(ys, tuple) else (ys,)


def assert_same(found, truth):
    """Of lists of arrays; None is no gradient, or one of zeros."""
    for a, b in zip(found, truth, strict=True):
        if a is None or b is None:
            assert all(g is None or not g.any() for g in (a, b))
        else:
            np.testing.assert_allclose(a, b, rtol=1e-11)


def derived(function, comm, arrays, root):
    """Values, gradients, and gradients of those."""
    xs = [mnpar.Variable(a) for a in arrays]
    ys = tupled(function(comm, root, *[x * x for x in xs]))
    gs = mnpar.grad([F.sum(y * y * y) for y in ys], xs, enable_double_backprop=True)
    mnpar.backward([F.sum(g * g) for g in gs if g is not None])
    return [y.array for y in ys], [None if g is None else g.array for g in gs], [x.grad for x in xs]


@pytest.mark.grid
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", TWINS)
@EVERY
def test_values_gradients_and_their_gradients_are_those_of_the_blocking_twin(comm, name, shape):
    root = comm.size - 1
    arrays = TWINS[name][1](comm, shape, root)
    blocking, later = [derived(function, comm, arrays, root) for function in twins(name)]
    for ours, theirs in zip(later, blocking, strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.ranks(2, 4, on="threads")
def test_backward_is_the_exact_adjoint_for_every_root(comm, name):
    for root in range(comm.size):
        check_adjoint(
            lambda *x, root=root: twins(name)[1](comm, root, *x),
            comm,
            TWINS[name][1](comm, (40, 5), root),
        )


def program(comm, prefix, n, seed):
    """Collectives one after the other, with blocking ones in between; their results used in an
    order of each rank's own.
    """
    f = {
        name: getattr(F, prefix + name)
        for name in ("allreduce", "allgather", "bcast", "scatter", "scan", "reduce_scatter")
    }
    x = mnpar.Variable(values(comm, n))
    y = mnpar.Variable(values(comm, n, 1))
    root = comm.size - 1
    found = [f["allreduce"](comm, x * y)]
    found += f["allgather"](comm, F.tanh(x[comm.rank :]))
    found.append(F.allreduce(comm, x))  # always at once
    found.append(f["bcast"](comm, y if comm.rank == root else None, root))
    found.append(
        f["scatter"](comm, [x[r:] for r in range(comm.size)] if comm.rank == root else None, root)
    )
    found.append(F.shift(comm, y))
    found.append(f["reduce_scatter"](comm, [x * (r + 1) for r in range(comm.size)]))
    found.append(f["scan"](comm, found[-2]))
    order, losses = np.random.default_rng([seed, comm.rank]).permutation(len(found)), []
    for i in order[: -1 - comm.rank]:  # some of them are not used at all
        losses.append(F.sum(F.sin(found[i]) * (i + 1)))
        losses.append(F.sum(x * 0.5) if i % 3 else F.sum(x * found[order[0]].array.sum()))
    return x, y, losses


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("n", [6, 300])
@EVERY
def test_results_may_be_used_in_another_order_on_every_rank(comm, n, seed):
    found = []
    for prefix in ("", "i"):
        x, y, losses = program(comm, prefix, n, seed)
        if comm.rank == 1:
            losses = []  # a rank without a loss
        gs = mnpar.grad(losses, [x, y], enable_double_backprop=True)
        mnpar.backward([F.sum(g * g * x) for g in gs if g is not None])
        found.append([x.grad, y.grad, *[None if g is None else g.array for g in gs]])
    assert_same(*found)


@pytest.mark.ranks(2, 3, 4)
def test_a_collective_may_be_waited_for_before_or_after_a_blocking_one(comm):
    """Backward then meets its adjoint before the blocking one's on some ranks, and after it on
    others.
    """
    x = mnpar.Variable(values(comm, 50))
    y = F.iallreduce(comm, x * x)
    if comm.rank % 2:
        y.wait()
    z = F.allreduce(comm, x)
    F.sum(y * z).backward()
    every = [np.random.default_rng([0, r]).uniform(0.5, 1.5, 50) for r in range(comm.size)]
    own = every[comm.rank]
    truth = comm.size * (2 * own * sum(every) + sum(v * v for v in every))
    np.testing.assert_allclose(x.grad, truth, rtol=1e-12)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.ranks(1, 2, 3)
def test_a_result_that_nobody_uses_is_still_visited_by_backward(comm, name):
    for shape in ((2, 3), (40, 5)):
        xs = [mnpar.Variable(a) for a in TWINS[name][1](comm, shape, 0)]
        twins(name)[1](comm, 0, *xs)
        own = mnpar.Variable(np.ones(2))
        if comm.rank == 0:
            F.sum(own * 3).backward()
            np.testing.assert_array_equal(own.grad, [3.0, 3.0])
        else:
            mnpar.backward()
        assert all(x.grad is None or not x.grad.any() for x in xs)


@pytest.mark.ranks(2, 3)
def test_the_tape_may_be_replayed(comm):
    x = mnpar.Variable(values(comm, 50))
    first = F.iallreduce(comm, x * x)
    second = F.iallgather(comm, x)
    loss = F.sum(first * first) + F.sum(second[0] * (comm.rank + 1))
    loss.backward(retain_tape=True)
    once = x.grad.copy()
    loss.backward()
    np.testing.assert_allclose(x.grad, 2 * once)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(
    2, 3, on="threads"
)  # between processes it is found when they have waited: tests/faults/test_faults.py
def test_a_collective_that_only_some_wait_for_later_is_refused(comm):
    with pytest.raises(MismatchError, match=r"(?s)rank 0: .*, iallreduce .*rank 1: .*, allreduce"):
        F.sum((F.allreduce if comm.rank == 1 else F.iallreduce)(comm, np.ones(3)))


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2)
def test_a_mismatch_is_told_where_the_result_is_used_and_names_the_line_where_it_was_started(comm):
    y = F.iallreduce(comm, np.ones(2 + comm.rank))
    with pytest.raises(
        MismatchError,
        match=r"different dtype or shape(?s:.*)rank 1: .* float64 \(3,\), at .*test_later.py:",
    ):
        F.sum(y)


@pytest.mark.ranks(2)
def test_whether_it_is_recorded_is_decided_where_it_is_started(comm):
    x = mnpar.Variable(values(comm, 2))
    with mnpar.no_backprop_mode():
        silent = F.iallreduce(comm, x, "mean")
    loud = F.iallreduce(comm, x, "mean")
    assert not silent.requires_grad
    with mnpar.no_backprop_mode():
        assert loud.requires_grad
    F.sum(loud).backward()
    np.testing.assert_array_equal(x.grad, np.ones(2))


@pytest.mark.ranks(2)
def test_it_belongs_to_the_tape_on_which_it_was_started(comm):
    x = mnpar.Variable(values(comm, 2))
    with mnpar.Tape() as tape:
        y = F.iallreduce(comm, x)
    y.wait()
    assert len(tape.records) == 2
    with tape:
        F.sum(y).backward()
    np.testing.assert_array_equal(x.grad, np.full(2, 2.0))


@pytest.mark.ranks(2, 3)
def test_a_rank_starts_the_adjoint_where_it_had_used_the_result_and_goes_on(comm):
    """Rank 0 uses its result last, so it comes first to the adjoint; it must not wait there for a
    rank that waits for it.
    """
    x = mnpar.Variable(values(comm, 50))
    y = F.iallreduce(comm, x)
    if comm.rank == 0:
        F.send(x * 2, comm, 1)
        z = F.recv(comm, 1)
        F.sum(y * z).backward()
    elif comm.rank == 1:
        y.wait()
        z = F.recv(comm, 0)
        F.send(z * y, comm, 0)
        mnpar.backward()
    else:
        F.sum(y).backward()
    total = sum(np.random.default_rng([0, r]).uniform(0.5, 1.5, 50) for r in range(comm.size))
    x0 = np.random.default_rng([0, 0]).uniform(0.5, 1.5, 50)
    truth = 4 * x0 * total + (comm.size - 2) + 2 * total**2 * (comm.rank == 0)
    np.testing.assert_allclose(x.grad, truth, rtol=1e-12)


@pytest.mark.parametrize("n", [5, 50, 5000])
@pytest.mark.ranks(2, 3, on="threads")  # and on processes: tests/faults/test_faults.py
def test_a_rank_that_ends_before_it_has_waited_keeps_nobody_waiting(comm, n):
    with mnpar.no_backprop_mode():
        y = F.iallreduce(comm, np.full(n, 2.0))
    if comm.rank == 1:
        np.testing.assert_array_equal(y.array, np.full(n, 2.0 * comm.size))


@pytest.mark.ranks(2, on="threads")
def test_hooks_hear_of_both_halves_forward_and_backward(comm):
    heard = []

    class Names(mnpar.FunctionHook):
        name = "Names"

        def forward_preprocess(self, function, in_data):
            heard.append(f"forward of {type(function).__name__}, {len(in_data)} in")

        def backward_postprocess(self, function, in_data, out_grad):
            heard.append(f"backward of {type(function).__name__}, {len(out_grad)} out")

    with Names():
        y = F.iallreduce(comm, mnpar.Variable(np.ones(50)))
        y.grad = np.ones(50)
        y.backward()
    assert heard == [
        "forward of Start, 1 in",
        "forward of Finish, 0 in",
        "backward of Finish, 1 out",
        "backward of Start, 0 out",
    ]
