"""The table of communications: what a rank calls, which arrays it has, for a shape and a root.

A row is carried out with the functions themselves and with their twins that are waited for later:
it asks ``f`` for them by name, ``f("bcast")`` is F.bcast or F.ibcast.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import mnpar.functions as F

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
