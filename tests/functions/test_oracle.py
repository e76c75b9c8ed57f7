"""Every fast collective equals its plan: what ranks have and want, in one line, carried out by ``exchange`` (law 2)."""

from itertools import accumulate, pairwise

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.plans import Box, Plan, everywhere
from mnpar.plans.plan import several


def rows(lengths):
    """Boxes of some rows each, one after the other."""
    return [Box((a,), (b,)) for a, b in pairwise(accumulate(lengths, initial=0))]


def lengths(ranks):
    """Uneven, and one of them is nothing."""
    return [(3 * r + 2) % 5 for r in range(ranks)]


def only(rank, ranks, thing):
    """Something on one rank, nothing on the others."""
    return [thing if r == rank else [] for r in range(ranks)]


def squares(ranks):
    """boxes[q][r] is what rank q has for rank r, of q + 2·r mod 4 rows."""
    boxes = rows([(q + 2 * r) % 4 for q in range(ranks) for r in range(ranks)])
    return [boxes[q * ranks : (q + 1) * ranks] for q in range(ranks)]


def transposed(boxes):
    return [list(column) for column in zip(*boxes, strict=True)]


# name: (the fast function of a communicator, a root and this rank's arrays; its plan for a number of ranks and a root)
CASES = {
    "bcast": (
        lambda c, root, *x: F.bcast(c, *x, root=root),
        lambda p, root: Plan(only(root, p, [Box((0,), (5,))]), everywhere((5,), p)),
    ),
    "reduce": (
        lambda c, root, x: F.reduce(c, x, root),
        lambda p, root: Plan(everywhere((5,), p), only(root, p, [Box((0,), (5,))])),
    ),
    "gather": (
        lambda c, root, x: F.gather(c, x, root),
        lambda p, root: Plan(rows(lengths(p)), only(root, p, rows(lengths(p)))),
    ),
    "scatter": (
        lambda c, root, *x: F.scatter(c, x, root),
        lambda p, root: Plan(only(root, p, rows(lengths(p))), rows(lengths(p))),
    ),
    "allgather": (
        lambda c, root, x: F.allgather(c, x),
        lambda p, root: Plan(rows(lengths(p)), [rows(lengths(p))] * p),
    ),
    "allgather, joined": (
        lambda c, root, x: F.allgather(c, x, axis=x.ndim - 1),
        lambda p, root: Plan(rows(lengths(p)), everywhere((sum(lengths(p)),), p)),
    ),
    "reduce_scatter": (
        lambda c, root, *x: F.reduce_scatter(c, x),
        lambda p, root: Plan([rows(lengths(p))] * p, rows(lengths(p))),
    ),
    "allreduce": (
        lambda c, root, x: F.allreduce(c, x),
        lambda p, root: Plan(everywhere((5,), p), everywhere((5,), p)),
    ),
    "alltoall": (
        lambda c, root, *x: F.alltoall(c, x),
        lambda p, root: Plan(squares(p), transposed(squares(p))),
    ),
    "shift": (
        lambda c, root, x: F.shift(c, x, 1 + root),
        lambda p, root: Plan(rows(lengths(p)), np.roll(np.array(rows(lengths(p)), object), 1 + root).tolist()),
    ),
    "sendrecv": (
        lambda c, root, x: F.sendrecv(x, c, c.size - 1 - c.rank, c.size - 1 - c.rank),
        lambda p, root: Plan(rows(lengths(p)), rows(lengths(p))[::-1]),
    ),
}


def by_plan(comm, plan, xs):
    return F.exchange(comm, xs if isinstance(plan.have[comm.rank], tuple) else xs[0], plan)


def outputs(ys):
    """The results that say something: who is not the root gets an empty array from a collective, and none from a plan."""
    return [y for y in (ys if isinstance(ys, tuple) else (ys,)) if y.size]


def seeds(ys, comm):
    """The same random gradients for the same results."""
    rng = np.random.default_rng([1, comm.rank])
    return [mnpar.Variable(rng.standard_normal(y.shape)) for y in ys]


def forward_and_backward(function, comm, arrays):
    """Values, gradients, and the gradients of (a function of) the gradients."""
    xs = [mnpar.Variable(x.copy()) for x in arrays]
    ys = outputs(function([x * x for x in xs]))
    gs = mnpar.grad(ys, xs, seeds(ys, comm), enable_double_backprop=True)
    mnpar.backward([F.sum(g * g * g) for g in gs if g is not None])
    return [y.array for y in ys], [zeros(g, x) for g, x in zip(gs, xs, strict=True)], [zeros(x.grad, x) for x in xs]


def zeros(g, x):
    return np.zeros(x.shape) if g is None else getattr(g, "array", g)


@pytest.mark.grid
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("lead", [(), (40,)], ids=["small", "large"])  # inside the opening of a collective, and after it
@pytest.mark.ranks(1, 2, 3, 4)
def test_a_collective_equals_its_plan_forward_and_backward(comm, name, lead):
    fast, plan_of = CASES[name]
    for root in range(comm.size):
        plan = plan_of(comm.size, root)
        rng = np.random.default_rng([2, comm.rank])
        arrays = [rng.standard_normal((*lead, *layout.shape)) for layout in several(plan.have[comm.rank])]
        plain = forward_and_backward(lambda xs, root=root: fast(comm, root, *xs), comm, arrays)
        planned = forward_and_backward(lambda xs, plan=plan: by_plan(comm, plan, xs), comm, arrays)
        for one, other in zip(plain, planned, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["reduce", "reduce_scatter", "allreduce"])
@pytest.mark.ranks(3)
def test_sums_are_made_in_the_same_order(comm, name):
    """By rank: so collectives and plans agree to the last bit."""
    fast, plan_of = CASES[name]
    plan = plan_of(comm.size, 1)
    rng = np.random.default_rng(comm.rank)
    arrays = [rng.standard_normal((30, *layout.shape)) for layout in several(plan.have[comm.rank])]
    fast_ones, planned = outputs(fast(comm, 1, *arrays)), outputs(by_plan(comm, plan, arrays))
    for y, z in zip(fast_ones, planned, strict=True):
        np.testing.assert_array_equal(y.array, z.array)
