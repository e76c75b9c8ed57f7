"""Every communication with every reduction: the exact adjoint; first and second derivatives by
numbers.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.testing import check_adjoint
from tests.functions.communication.rows import ROWS, SHAPES, TWINS, values

EPS = 1e-5


def rows(where=lambda row: True):
    some = {name: row for name, row in ROWS.items() if where(row)}
    return pytest.mark.parametrize("row", some.values(), ids=some)


def shapes(some):
    return pytest.mark.parametrize("shape", some, ids=str)


twins = pytest.mark.parametrize("when", TWINS)


@pytest.mark.grid
@rows()
@shapes(SHAPES)
@twins
@pytest.mark.ranks(1, 2, 3, 4)
def test_backward_is_the_exact_adjoint_and_derivatives_are_difference_quotients(
    comm, row, shape, when
):
    """For every shape and root; the adjoint of those that are linear."""
    check(comm, row, shape, when)


@pytest.mark.grid
@rows(lambda row: row.uneven)
@shapes(SHAPES[:3])
@twins
@pytest.mark.ranks(5, 6, 8, 9, on="threads")
def test_so_they_are_on_more_ranks_each_with_a_shape_of_its_own(comm, row, shape, when):
    check(comm, row, shape, when)


def check(comm, row, shape, when):
    for function, xs in row.cases(comm, shape, when):
        check_derivatives(comm, function, xs)
        if row.linear:
            check_adjoint(function, comm, xs)


def check_derivatives(comm, function, xs):
    """In one random direction v: d/dε of the sum of all ranks' losses at x + ε v, and of g · w,
    where g is its gradient.
    """
    vs, ws = ([values(comm, x.shape, seed) for x in xs] for seed in (11, 12))

    def losses(variables):
        # near 1: the product of eight is no large number
        ys = function(*[F.sin(x) / 2 + 1 for x in variables])
        return [F.sum(F.sin(y) * y) for y in (ys if isinstance(ys, tuple) else (ys,))]

    def at(eps):
        """(loss, g · w) of this rank."""
        variables = [mnpar.Variable(np.asarray(x + eps * v)) for x, v in zip(xs, vs, strict=True)]
        ls = losses(variables)
        gs = zip(mnpar.grad(ls, variables), ws, strict=True)
        return np.array(
            [
                sum([y.item() for y in ls], 0.0),
                sum([(g.array * w).sum() for g, w in gs if g is not None], 0.0),
            ]
        )

    quotients = comm.allreduce((at(EPS) - at(-EPS)) / (2 * EPS))
    variables = [mnpar.Variable(x) for x in xs]
    gs = mnpar.grad(losses(variables), variables, enable_double_backprop=True)
    mnpar.backward([F.sum(g * w) for g, w in zip(gs, ws, strict=True) if g is not None])
    both = [
        (0 if g is None else g.array, 0 if x.grad is None else x.grad)
        for g, x in zip(gs, variables, strict=True)
    ]
    terms = [[g * v for g in pair] for pair, v in zip(both, vs, strict=True)]
    mine = (
        np.array([[t.sum() for t in pair] + [abs(t).sum() for t in pair] for pair in terms])
        .reshape(-1, 4)
        .sum(0)
    )
    first, second, *size = comm.allreduce(mine)
    np.testing.assert_allclose([first, second], quotients, rtol=0, atol=1e-6 * max(1e-6, *size))
