"""The one identity that proves a communication's gradient: ⟨Ax, y⟩ = ⟨x, Aᵀy⟩, summed over
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.communicator import Communicator, require_communicator
from mnpar.variable import Variable, backward


def check_adjoint(
    function: Callable[..., Any],
    comm: Communicator,
    xs: Sequence[Array] = (),
    rtol: float = 1e-12,
    seed: int = 0,
) -> None:
    """Check that backward of a linear function is its exact adjoint over all ranks; every rank
    calls it.

    Args:
        function: takes this rank's Variables, returns a Variable, a tuple of them, or None (nothing
            on this rank).
        comm: the ranks that take part.
        xs: this rank's inputs, float64 (or complex) arrays of any shapes; may be empty.
        rtol: of max(‖Ax‖‖y‖, ‖x‖‖Aᵀy‖).
        seed: of the random y.

    Raises:
        AssertionError: on all ranks, with both sums.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> from mnpar.testing import check_adjoint
        >>> def program(comm):
        ...     check_adjoint(lambda x: F.allreduce(comm, x), comm, [np.ones(3)])
        >>> mnpar.run(program, ranks=3)
        [None, None, None]
    """
    require_communicator(comm, "check_adjoint(function, comm)")
    rng = np.random.default_rng([seed, comm.rank])
    variables = [Variable(backend.get_array_module(x).array(x)) for x in xs]
    outputs = function(*variables)
    outputs = (
        [] if outputs is None else [outputs] if isinstance(outputs, Variable) else list(outputs)
    )
    weights = [
        backend.to_device_of(rng.standard_normal(y.shape).astype(y.dtype), y.array) for y in outputs
    ]
    backward(outputs, [Variable(w) for w in weights])
    gradients = [v.xp.zeros_like(v.array) if v.grad is None else v.grad for v in variables]
    ax = [y.array for y in outputs]
    mine = np.array(
        [
            _dot(ax, weights),
            _dot(xs, gradients),
            _dot(ax, ax),
            _dot(weights, weights),
            _dot(xs, xs),
            _dot(gradients, gradients),
        ]
    )
    forward, back, *squares = comm.allreduce(mine)
    bound = rtol * max(
        np.sqrt(squares[0] * squares[1]), np.sqrt(squares[2] * squares[3]), np.finfo(float).tiny
    )
    assert abs(forward - back) <= bound, (
        f"no adjoint: ⟨Ax, y⟩ = {forward!r}, but ⟨x, Aᵀy⟩ = {back!r} over {comm.size} ranks"
    )


def _dot(xs: Sequence[Array], ys: Sequence[Array]) -> float:
    return float(sum(np.sum(x * y).real for x, y in zip(xs, ys, strict=True)))
