"""Every fast collective equals its plan: what ranks have and want, in one line, carried out by
``exchange`` (law 2).

Products, extrema and means are no sums: there the plan brings together what is then reduced as in
one process.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.plans.plan import several
from tests.functions.communication.rows import PLANS, TWINS


def by_plan(comm, plan, xs, row=None):
    ys = F.exchange(comm, xs if isinstance(plan.have[comm.rank], tuple) else xs[0], plan)
    return ys if row is None else row.after(comm, *(ys if isinstance(ys, tuple) else (ys,)))


def outputs(ys):
    """The results that say something: who is not the root gets an empty array from a collective,
    and none from a plan.
    """
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
    return (
        [y.array for y in ys],
        [zeros(g, x) for g, x in zip(gs, xs, strict=True)],
        [zeros(x.grad, x) for x in xs],
    )


def zeros(g, x):
    return np.zeros(x.shape) if g is None else getattr(g, "array", g)


def check(comm, row, lead, when):
    for root in range(comm.size if row.rooted else 1):
        plan = row.plan(comm.size, root)
        rng = np.random.default_rng([2, comm.rank])
        shapes = (
            [row.shape] if row.shape else [layout.shape for layout in several(plan.have[comm.rank])]
        )
        arrays = [rng.standard_normal((*lead, *shape)) for shape in shapes]
        plain = forward_and_backward(
            lambda xs, root=root: row.fast(TWINS[when], comm, root, *xs), comm, arrays
        )
        planned = forward_and_backward(
            lambda xs, plan=plan: by_plan(comm, plan, [row.before(comm, x) for x in xs], row),
            comm,
            arrays,
        )
        for one, other in zip(plain, planned, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


UNEVEN = (
    "send and recv",
    "gather",
    "scatter",
    "allgather",
    "allgather, joined",
    "reduce_scatter",
    "alltoall",
    "shift",
    "sendrecv",
)
# large: after the opening
leads = pytest.mark.parametrize("lead", [(), (40,), (0,)], ids=["small", "large", "empty"])


@pytest.mark.grid
@pytest.mark.parametrize("row", PLANS.values(), ids=PLANS)
@leads
@pytest.mark.parametrize("when", TWINS)
@pytest.mark.ranks(1, 2, 3, 4)
def test_a_collective_equals_its_plan_forward_and_backward(comm, row, lead, when):
    check(comm, row, lead, when)


@pytest.mark.grid
@pytest.mark.parametrize("name", UNEVEN)
@leads
@pytest.mark.parametrize("when", TWINS)
@pytest.mark.ranks(5, 6, 8, 9, on="threads")
def test_so_it_does_on_more_ranks_each_with_a_shape_of_its_own(comm, name, lead, when):
    check(comm, PLANS[name], lead, when)


@pytest.mark.parametrize("name", ["reduce", "reduce_scatter", "allreduce"])
@pytest.mark.ranks(3)
def test_sums_are_made_in_the_same_order(comm, name):
    """By rank: so collectives and plans agree to the last bit."""
    plan = PLANS[name].plan(comm.size, 1)
    rng = np.random.default_rng(comm.rank)
    arrays = [rng.standard_normal((30, *layout.shape)) for layout in several(plan.have[comm.rank])]
    fast_ones = outputs(PLANS[name].fast(TWINS["now"], comm, 1, *arrays))
    planned = outputs(by_plan(comm, plan, arrays))
    for y, z in zip(fast_ones, planned, strict=True):
        np.testing.assert_array_equal(y.array, z.array)
