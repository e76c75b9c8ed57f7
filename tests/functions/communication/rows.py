"""The tables of communications: a new one has a row in each of the three.

``ROWS``: what a rank calls, and which arrays it has, for a shape and a root. ``PLANS``: what ranks
have and want, for boxes of cells. ``WHOLE``: what each rank gets, as one process computes it.

Rows of the first two are carried out with the functions themselves and with their twins that are
waited for later: they ask ``f`` for them by name, ``f("bcast")`` is F.bcast or F.ibcast.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

import mnpar.functions as F
from mnpar.plans import Box, Plan, blocks, everywhere
from tests.random_programs.programs import fold

OPS = ("sum", "mean", "max", "min", "prod")
SHAPES = [(), (0,), (2, 0, 3), (40, 5)]  # the last travels outside the opening of a collective
SHAPES += [
    tuple(map(int, np.random.default_rng(seed).integers(1, 6, axes)))
    for seed, axes in enumerate((1, 3))
]
TWINS = {"now": lambda name: getattr(F, name), "later": lambda name: getattr(F, "i" + name)}


class Row(NamedTuple):
    call: Callable  # of f, a communicator, a root and this rank's Variables
    inputs: Callable  # of a communicator, a shape and a root
    linear: bool = True
    rooted: bool = False
    uneven: bool = False  # each rank's arrays are of another shape
    twin: bool = True

    def cases(self, comm, shape, when="now"):
        """(function of this rank's Variables, its arrays) for every root."""
        f = TWINS[when if self.twin else "now"]
        for root in range(comm.size if self.rooted else 1):
            yield (
                (lambda *xs, root=root: self.call(f, comm, root, *xs)),
                self.inputs(comm, shape, root),
            )


def values(comm, shape, seed=0):
    return np.random.default_rng([seed, comm.rank]).standard_normal(shape)


def one(c, s, root):
    return [values(c, s)]


def uneven(c, s, root):
    return [values(c, (c.rank, *s))]


def uneven_for_all(c, s, root):
    return [values(c, (r, *s), r) for r in range(c.size)]


def ring(f, c, x):
    up = (c.rank + 1) % c.size
    down = (c.rank - 1) % c.size
    if f is TWINS["now"]:
        F.send(x, c, up)
        return F.recv(c, down)
    y = F.irecv(c, down)
    F.isend(x, c, up)
    return y


def reductions(name):
    """The rows of a reduction, one for each op that it knows."""
    rooted = name == "reduce"
    several = name == "reduce_scatter"
    for op in ("sum", "prod") if name == "exscan" else OPS:

        def call(f, c, root, *xs, op=op):
            return f(name)(c, *((xs,) if several else xs), *([root] if rooted else []), op)

        inputs = uneven_for_all if several else one
        yield f"{name}, {op}", Row(call, inputs, op in ("sum", "mean"), rooted, several)


ROWS = {
    "send and recv": Row(lambda f, c, root, *x: ring(f, c, *x), one),
    "send and recv of a tuple": Row(
        lambda f, c, root, *x: ring(f, c, x),
        lambda c, s, root: [values(c, s), values(c, (c.rank, 2), 1)],
        uneven=True,
        twin=False,
    ),
    "sendrecv": Row(
        lambda f, c, root, x: f("sendrecv")(x, c, c.size - 1 - c.rank, c.size - 1 - c.rank), one
    ),
    "shift": Row(lambda f, c, root, x: f("shift")(c, x, 2), uneven, uneven=True),
    "bcast": Row(
        lambda f, c, root, *x: f("bcast")(c, *x, root=root),
        lambda c, s, root: one(c, s, root) * (c.rank == root),
        rooted=True,
    ),
    "gather": Row(lambda f, c, root, x: f("gather")(c, x, root), uneven, rooted=True, uneven=True),
    "scatter": Row(
        lambda f, c, root, *x: f("scatter")(c, x, root),
        lambda c, s, root: uneven_for_all(c, s, root) * (c.rank == root),
        rooted=True,
        uneven=True,
    ),
    "allgather": Row(lambda f, c, root, x: f("allgather")(c, x), uneven, uneven=True),
    "allgather along an axis": Row(
        lambda f, c, root, x: f("allgather")(c, x, axis=0), uneven, uneven=True
    ),
    "alltoall": Row(
        lambda f, c, root, *x: f("alltoall")(c, x),
        lambda c, s, root: [values(c, (r, c.rank, *s), r) for r in range(c.size)],
        uneven=True,
    ),
    "reduce_scatter along an axis": Row(
        lambda f, c, root, x: f("reduce_scatter")(c, x, axis=0),
        lambda c, s, root: [values(c, (c.size + 1, *s))],
        uneven=True,
    ),
}
for _name in ("allreduce", "reduce", "reduce_scatter", "scan", "exscan"):
    ROWS |= dict(reductions(_name))


# ---- what one process computes ----

# What rank r gets, in one process: of all ranks' values, their lists of parts, and the reduction.
WHOLE = {
    "send": lambda r, values, lists, reduced: values[r - 1],
    "recv": lambda r, values, lists, reduced: values[r - 1],
    "sendrecv": lambda r, values, lists, reduced: values[r - 1],
    "shift": lambda r, values, lists, reduced: values[r - 1],
    "bcast": lambda r, values, lists, reduced: values[0],
    "reduce": lambda r, values, lists, reduced: reduced(values) if r == 0 else None,
    "gather": lambda r, values, lists, reduced: list(values) if r == 0 else None,
    "scatter": lambda r, values, lists, reduced: lists[0][r],
    "allgather": lambda r, values, lists, reduced: list(values),
    "reduce_scatter": lambda r, values, lists, reduced: reduced([parts[r] for parts in lists]),
    "allreduce": lambda r, values, lists, reduced: reduced(values),
    "alltoall": lambda r, values, lists, reduced: [parts[r] for parts in lists],
    "scan": lambda r, values, lists, reduced: reduced(values[: r + 1]),
    "exscan": lambda r, values, lists, reduced: reduced(values[:r]) if r else None,
}
OPERATIONS = (*WHOLE, "barrier")
REDUCING = ("reduce", "allreduce", "reduce_scatter", "scan", "exscan")  # by each of OPS
FROM_LISTS = ("scatter", "reduce_scatter", "alltoall")  # who gives has a part for each rank


# ---- what ranks have and want ----


def stretches(lengths):
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
    boxes = stretches([(q + 2 * r) % 4 for q in range(ranks) for r in range(ranks)])
    return [boxes[q * ranks : (q + 1) * ranks] for q in range(ranks)]


def transposed(boxes):
    return [list(column) for column in zip(*boxes, strict=True)]


class Planned(NamedTuple):
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
    return stretches([5] * p)


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
        f"allreduce, {op}": Planned(
            lambda f, c, root, x: f("allreduce")(c, x, op),
            lambda p, root: Plan(all_of(p), [all_of(p)] * p),
            after=folded,
        ),
        f"reduce, {op}": Planned(
            lambda f, c, root, x: f("reduce")(c, x, root, op),
            lambda p, root: Plan(all_of(p), only(root, p, all_of(p))),
            rooted=True,
            after=folded,
        ),
        f"reduce_scatter, {op}": Planned(
            lambda f, c, root, *x: f("reduce_scatter")(c, x, op),
            lambda p, root: Plan(*alike(p)),
            after=folded,
        ),
        f"scan, {op}": Planned(
            lambda f, c, root, x: f("scan")(c, x, op),
            lambda p, root: Plan(all_of(p), [all_of(p)[: r + 1] for r in range(p)]),
            after=folded,
        ),
    }


def alike(ranks):
    """What rank q has for rank r is of (3·r + 2) mod 5 rows, whoever q is; what each has, and
    wants.
    """
    boxes = stretches([n for _ in range(ranks) for n in lengths(ranks)])
    boxes = [boxes[q * ranks : (q + 1) * ranks] for q in range(ranks)]
    return boxes, transposed(boxes)


PLANS = {
    "send and recv": Planned(
        lambda f, c, root, x: ring(f, c, x),
        lambda p, root: Plan(
            stretches(lengths(p)), np.roll(np.array(stretches(lengths(p)), object), 1).tolist()
        ),
    ),
    "bcast": Planned(
        lambda f, c, root, *x: f("bcast")(c, *x, root=root),
        lambda p, root: Plan(only(root, p, [Box((0,), (5,))]), everywhere((5,), p)),
        rooted=True,
    ),
    "reduce": Planned(
        lambda f, c, root, x: f("reduce")(c, x, root),
        lambda p, root: Plan(everywhere((5,), p), only(root, p, [Box((0,), (5,))])),
        rooted=True,
    ),
    "gather": Planned(
        lambda f, c, root, x: f("gather")(c, x, root),
        lambda p, root: Plan(stretches(lengths(p)), only(root, p, stretches(lengths(p)))),
        rooted=True,
    ),
    "scatter": Planned(
        lambda f, c, root, *x: f("scatter")(c, x, root),
        lambda p, root: Plan(only(root, p, stretches(lengths(p))), stretches(lengths(p))),
        rooted=True,
    ),
    "allgather": Planned(
        lambda f, c, root, x: f("allgather")(c, x),
        lambda p, root: Plan(stretches(lengths(p)), [stretches(lengths(p))] * p),
    ),
    "allgather, joined": Planned(
        lambda f, c, root, x: f("allgather")(c, x, axis=x.ndim - 1),
        lambda p, root: Plan(stretches(lengths(p)), everywhere((sum(lengths(p)),), p)),
    ),
    "reduce_scatter": Planned(
        lambda f, c, root, *x: f("reduce_scatter")(c, x),
        lambda p, root: Plan([stretches(lengths(p))] * p, stretches(lengths(p))),
    ),
    "reduce_scatter, of one": Planned(
        lambda f, c, root, x: f("reduce_scatter")(c, x, axis=x.ndim - 1),
        lambda p, root: Plan(everywhere((5,), p), blocks((5,), (p,))),
    ),
    "allreduce": Planned(
        lambda f, c, root, x: f("allreduce")(c, x),
        lambda p, root: Plan(everywhere((5,), p), everywhere((5,), p)),
    ),
    "alltoall": Planned(
        lambda f, c, root, *x: f("alltoall")(c, x),
        lambda p, root: Plan(squares(p), transposed(squares(p))),
    ),
    "shift": Planned(
        lambda f, c, root, x: f("shift")(c, x, 1 + root),
        lambda p, root: Plan(
            stretches(lengths(p)),
            np.roll(np.array(stretches(lengths(p)), object), 1 + root).tolist(),
        ),
        rooted=True,
    ),
    "sendrecv": Planned(
        lambda f, c, root, x: f("sendrecv")(x, c, c.size - 1 - c.rank, c.size - 1 - c.rank),
        lambda p, root: Plan(stretches(lengths(p)), stretches(lengths(p))[::-1]),
    ),
    "exchange": Planned(
        lambda f, c, root, x: f("exchange")(
            c, x, Plan(blocks((7,), (c.size,)), everywhere((7,), c.size))
        ),
        lambda p, root: Plan(blocks((7,), (p,)), everywhere((7,), p)),
    ),
    "scan": Planned(
        lambda f, c, root, x: f("scan")(c, x), scanned(0)[0], False, (5,), *scanned(0)[1:]
    ),
    "exscan": Planned(
        lambda f, c, root, x: f("exscan")(c, x), scanned(1)[0], False, (5,), *scanned(1)[1:]
    ),
    "exscan, prod": Planned(
        lambda f, c, root, x: f("exscan")(c, x, "prod"),
        lambda p, root: Plan(all_of(p), [all_of(p)[: max(r, 1)] for r in range(p)]),
        after=lambda comm, *ys: (fold(ys, "prod") if comm.rank else 0 * ys[0] + 1,),
    ),
    **{name: row for op in ("mean", "max", "min", "prod") for name, row in reduced(op).items()},
}
