"""Every fast collective equals its plan: what ranks have and want, in one line, carried out by
``exchange`` (law 2).

Products, extrema and means are no sums: there the plan brings together what is then reduced as in
one process.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.plans import Box, Plan, blocks, everywhere
from mnpar.plans.plan import several
from tests.functions.communication.rows import TWINS, ring
from tests.random_programs.programs import fold


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


class Row(NamedTuple):
    """A fast function of ``f`` (which gives it by name, to be waited for now or later), a
    communicator, a root and arrays; and its plan for a number of ranks and a root.

    ``shape``, ``before``: where a rank has something else than what the plan says, and what is made
    of it. ``after``: what is made of what the plan brings.
    """

    fast: Callable
    plan: Callable
    rooted: bool = False
    shape: tuple | None = None
    before: Callable = lambda comm, x: x
    after: Callable = lambda comm, *ys: ys


def all_of(p):
    """Boxes of five cells, one for each rank."""
    return rows([5] * p)


def scanned(exclusive):
    """Rank r has five cells for each rank from r on (exclusive: after r), and wants its own."""

    def plan(p, root):
        return Plan(
            [Box((r + exclusive, 0), (p, 5)) for r in range(p)],
            [Box((r, 0), (r + 1, 5)) for r in range(p)],
        )

    def before(comm, x):  # (…, 5) -> (…, ranks, 5)
        return F.broadcast_to(
            x[..., None, :], (*x.shape[:-1], comm.size - comm.rank - exclusive, 5)
        )

    return plan, before, lambda comm, y: (y[..., 0, :],)


def reduced(op):
    """The rows of the reductions that are no sums: what the ranks have is brought together, then
    reduced as in one process.
    """

    def folded(comm, *ys):
        return (fold(ys, op),) if ys else ()

    return {
        f"allreduce, {op}": Row(
            lambda f, c, root, x: f("allreduce")(c, x, op),
            lambda p, root: Plan(all_of(p), [all_of(p)] * p),
            after=folded,
        ),
        f"reduce, {op}": Row(
            lambda f, c, root, x: f("reduce")(c, x, root, op),
            lambda p, root: Plan(all_of(p), only(root, p, all_of(p))),
            rooted=True,
            after=folded,
        ),
        f"reduce_scatter, {op}": Row(
            lambda f, c, root, *x: f("reduce_scatter")(c, x, op),
            lambda p, root: Plan(*alike(p)),
            after=folded,
        ),
        f"scan, {op}": Row(
            lambda f, c, root, x: f("scan")(c, x, op),
            lambda p, root: Plan(all_of(p), [all_of(p)[: r + 1] for r in range(p)]),
            after=folded,
        ),
    }


def alike(ranks):
    """What rank q has for rank r is of (3·r + 2) mod 5 rows, whoever q is; what each has, and
    wants.
    """
    boxes = rows([n for _ in range(ranks) for n in lengths(ranks)])
    boxes = [boxes[q * ranks : (q + 1) * ranks] for q in range(ranks)]
    return boxes, transposed(boxes)


ROWS = {
    "send and recv": Row(
        lambda f, c, root, x: ring(f, c, x),
        lambda p, root: Plan(
            rows(lengths(p)), np.roll(np.array(rows(lengths(p)), object), 1).tolist()
        ),
    ),
    "bcast": Row(
        lambda f, c, root, *x: f("bcast")(c, *x, root=root),
        lambda p, root: Plan(only(root, p, [Box((0,), (5,))]), everywhere((5,), p)),
        rooted=True,
    ),
    "reduce": Row(
        lambda f, c, root, x: f("reduce")(c, x, root),
        lambda p, root: Plan(everywhere((5,), p), only(root, p, [Box((0,), (5,))])),
        rooted=True,
    ),
    "gather": Row(
        lambda f, c, root, x: f("gather")(c, x, root),
        lambda p, root: Plan(rows(lengths(p)), only(root, p, rows(lengths(p)))),
        rooted=True,
    ),
    "scatter": Row(
        lambda f, c, root, *x: f("scatter")(c, x, root),
        lambda p, root: Plan(only(root, p, rows(lengths(p))), rows(lengths(p))),
        rooted=True,
    ),
    "allgather": Row(
        lambda f, c, root, x: f("allgather")(c, x),
        lambda p, root: Plan(rows(lengths(p)), [rows(lengths(p))] * p),
    ),
    "allgather, joined": Row(
        lambda f, c, root, x: f("allgather")(c, x, axis=x.ndim - 1),
        lambda p, root: Plan(rows(lengths(p)), everywhere((sum(lengths(p)),), p)),
    ),
    "reduce_scatter": Row(
        lambda f, c, root, *x: f("reduce_scatter")(c, x),
        lambda p, root: Plan([rows(lengths(p))] * p, rows(lengths(p))),
    ),
    "reduce_scatter, of one": Row(
        lambda f, c, root, x: f("reduce_scatter")(c, x, axis=x.ndim - 1),
        lambda p, root: Plan(everywhere((5,), p), blocks((5,), (p,))),
    ),
    "allreduce": Row(
        lambda f, c, root, x: f("allreduce")(c, x),
        lambda p, root: Plan(everywhere((5,), p), everywhere((5,), p)),
    ),
    "alltoall": Row(
        lambda f, c, root, *x: f("alltoall")(c, x),
        lambda p, root: Plan(squares(p), transposed(squares(p))),
    ),
    "shift": Row(
        lambda f, c, root, x: f("shift")(c, x, 1 + root),
        lambda p, root: Plan(
            rows(lengths(p)), np.roll(np.array(rows(lengths(p)), object), 1 + root).tolist()
        ),
        rooted=True,
    ),
    "sendrecv": Row(
        lambda f, c, root, x: f("sendrecv")(x, c, c.size - 1 - c.rank, c.size - 1 - c.rank),
        lambda p, root: Plan(rows(lengths(p)), rows(lengths(p))[::-1]),
    ),
    "exchange": Row(
        lambda f, c, root, x: f("exchange")(
            c, x, Plan(blocks((7,), (c.size,)), everywhere((7,), c.size))
        ),
        lambda p, root: Plan(blocks((7,), (p,)), everywhere((7,), p)),
    ),
    "scan": Row(lambda f, c, root, x: f("scan")(c, x), scanned(0)[0], False, (5,), *scanned(0)[1:]),
    "exscan": Row(
        lambda f, c, root, x: f("exscan")(c, x), scanned(1)[0], False, (5,), *scanned(1)[1:]
    ),
    "exscan, prod": Row(
        lambda f, c, root, x: f("exscan")(c, x, "prod"),
        lambda p, root: Plan(all_of(p), [all_of(p)[: max(r, 1)] for r in range(p)]),
        after=lambda comm, *ys: (fold(ys, "prod") if comm.rank else 0 * ys[0] + 1,),
    ),
    **{name: row for op in ("mean", "max", "min", "prod") for name, row in reduced(op).items()},
}


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
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@leads
@pytest.mark.parametrize("when", TWINS)
@pytest.mark.ranks(1, 2, 3, 4)
def test_a_collective_equals_its_plan_forward_and_backward(comm, row, lead, when):
    check(comm, row, lead, when)


@pytest.mark.grid
@pytest.mark.parametrize("name", UNEVEN)
@leads
@pytest.mark.parametrize("when", TWINS)
@pytest.mark.ranks(5, 6, 8, on="threads")
def test_so_it_does_on_more_ranks_each_with_a_shape_of_its_own(comm, name, lead, when):
    check(comm, ROWS[name], lead, when)


@pytest.mark.parametrize("name", ["reduce", "reduce_scatter", "allreduce"])
@pytest.mark.ranks(3)
def test_sums_are_made_in_the_same_order(comm, name):
    """By rank: so collectives and plans agree to the last bit."""
    plan = ROWS[name].plan(comm.size, 1)
    rng = np.random.default_rng(comm.rank)
    arrays = [rng.standard_normal((30, *layout.shape)) for layout in several(plan.have[comm.rank])]
    fast_ones = outputs(ROWS[name].fast(TWINS["now"], comm, 1, *arrays))
    planned = outputs(by_plan(comm, plan, arrays))
    for y, z in zip(fast_ones, planned, strict=True):
        np.testing.assert_array_equal(y.array, z.array)
