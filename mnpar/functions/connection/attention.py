"""Scaled dot-product attention, as a function of queries, keys and values."""

from __future__ import annotations

import math

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.activation.softmax import Softmax
from mnpar.functions.array.broadcast import broadcast_to
from mnpar.functions.array.get_item import Where
from mnpar.functions.array.shape import cast
from mnpar.functions.node import GenericFunction, array_of, own_array, show_shapes
from mnpar.kernels.attention import BlockedAttention
from mnpar.kernels.blas import matrix_transpose
from mnpar.variable import Variable, as_variable


class Attention(GenericFunction):
    """softmax(s q kᵀ) v, on arrays by :class:`BlockedAttention`, whose arguments it takes."""

    joint_vjp = True

    def __init__(
        self, scale: float, causal: bool, shown: Array | None, order: tuple[int, ...]
    ) -> None:
        self.blocks = BlockedAttention(scale, causal, shown, order)

    def forward(self, q: Array, k: Array, v: Array) -> Array:
        self.retain_inputs((0, 1, 2))
        self.retain_outputs((0,))
        return self.blocks.forward(q, k, v, self.differentiable)

    def backward(self, go: Variable | Array) -> InputGradients:
        q, k, v = self.get_retained_inputs()
        found: list[Variable | Array] = []

        def of(i: int) -> Variable | Array:
            if not found:
                if isinstance(go, Variable):
                    found.extend(self._recorded(q, k, v, go))
                else:
                    (o,) = self.get_retained_outputs()
                    found.extend(self.blocks.gradients(q, k, v, o, go))
            return found[i]

        return lambda: of(0), lambda: of(1), lambda: of(2)

    def _recorded(self, q: Variable, k: Variable, v: Variable, go: Variable) -> list[Variable]:
        """The gradients in functions of Variables, differentiable any number of times."""
        blocks, xp, T, S = self.blocks, q.xp, q.shape[-2], k.shape[-2]
        shown = blocks.shown
        if blocks.causal:
            shown = xp.tri(T, S, S - T, dtype=bool)
        scores = (q * blocks.scale) @ matrix_transpose(k)
        if shown is not None:
            shown = xp.broadcast_to(shown, scores.shape)
            scores = Where(shown)(scores, xp.asarray(np.finfo(scores.dtype).min / 2, scores.dtype))
        p = Softmax(-1)(scores)
        gp = go @ matrix_transpose(v)
        gs = p * (gp - (gp * p).sum(axis=-1, keepdims=True))
        if shown is not None and not blocks.sees_some:
            gs = Where(shown)(gs, xp.zeros((), gs.dtype))
        gs = gs * blocks.scale
        return [gs @ k, matrix_transpose(gs) @ q, matrix_transpose(p) @ go]


class Dense(GenericFunction):
    """The same numbers without gaps in memory; ``gx = gy``."""

    def forward(self, x: Array) -> Array:
        y = backend.empty_aligned(x.shape, x.dtype)
        y[...] = x
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return gy


def scaled_dot_product_attention(
    q: Variable | Array,
    k: Variable | Array,
    v: Variable | Array,
    mask: Variable | Array | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Variable:
    """Return softmax(s q kᵀ) v: for each query a weighted mean of values (Vaswani et al. 2017,
    arXiv 1706.03762).

    Args:
        q: queries ``(…, T, D)``.
        k: keys ``(…, S, D)``.
        v: values ``(…, S, E)``.
        mask: boolean, broadcast to ``(…, T, S)``: True where a query attends to a key.
        causal: a query attends only to keys up to its own position; the last query is at the
            position of the last key.
        scale: s; None is 1 / √D.

    Returns:
        ``(…, T, E)``. A query whose keys are all masked gets the mean of all values. No array of
        all scores is made: they are computed in blocks that stay in the cache, and again in
        backward.

    Raises:
        ValueError: the shapes do not fit together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> q, v = np.zeros((3, 2)), np.array([[0.0], [2.0], [4.0]])
        >>> F.scaled_dot_product_attention(q, q, v, causal=True).array.ravel()
        array([0., 1., 2.])
    """
    q, k, v, shown, s = prepare_arguments(q, k, v, mask, scale)
    if not k.shape[-2] and q.size:
        raise ValueError(f"attention: there are no keys to look at, k has shape {k.shape}")
    if shown is not None or q.shape[:-2] != k.shape[:-2]:
        lead = np.broadcast_shapes(
            q.shape[:-2], k.shape[:-2], () if shown is None else shown.shape[:-2]
        )
        q, k, v = [broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v)]
    return attend(q, k, v, s, causal, shown)


def attend(
    q: Variable, k: Variable, v: Variable, scale: float, causal: bool, shown: Array | None
) -> Variable:
    """The function, with the one mask that stands for both where queries may see nothing of what
    comes before them.
    """
    T = q.shape[-2]
    S = k.shape[-2]
    xp = q.xp
    if causal and (shown is not None or T > S):
        seen = xp.tri(T, S, S - T, dtype=bool)
        shown, causal = seen if shown is None else shown & seen, False
    if shown is not None:
        shown = xp.broadcast_to(shown, (*q.shape[:-1], S))
    return Attention(scale, causal, shown, backend.memory_order(own_array(q))).apply(
        tuple(map(_dense, (q, k, v)))
    )[0]


def _dense(x: Variable) -> Variable:
    """A Variable without gaps in memory: rows far apart, as those of heads are, are read several
    times as slowly.
    """
    if x.layout is not None:  # the rule comes here again, with parts
        return x
    gaps = (
        type(x.array) is np.ndarray and not x.array.flags.c_contiguous and 0 not in x.array.strides
    )
    return Dense().apply((x,))[0] if gaps else x


def require_boolean(mask: Variable | Array, xp: ArrayModule) -> Array:
    """A mask as booleans; TypeError if it is of fractions, as one that is added to scores."""
    shown = xp.asarray(array_of(mask))
    if shown.dtype.kind not in "biu":
        raise TypeError(
            f"attention: a mask says by booleans where a query may look, not by {shown.dtype}"
        )
    return shown.astype(bool, copy=False)


def prepare_arguments(
    q: Variable | Array,
    k: Variable | Array,
    v: Variable | Array,
    mask: Variable | Array | None,
    scale: float | None,
) -> tuple[Variable, Variable, Variable, Array | None, float]:
    """The arguments of an attention: k and v with the same dtype and leading axes, the mask an
    array of two axes at least.

    Raises:
        ValueError: the shapes do not belong together.
    """
    q = as_variable(q)
    k = as_variable(k)
    v = as_variable(v)
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "attention: q (…, T, D), k (…, S, D), v (…, S, E), not "
            f"{show_shapes((q.shape, k.shape, v.shape))}"
        )
    if k.dtype != v.dtype:
        k, v = [cast(x, np.result_type(k.dtype, v.dtype)) for x in (k, v)]
    if k.shape[:-2] != v.shape[:-2]:
        lead = np.broadcast_shapes(k.shape[:-2], v.shape[:-2])
        k, v = [broadcast_to(x, (*lead, *x.shape[-2:])) for x in (k, v)]
    shown = None if mask is None else q.xp.atleast_2d(require_boolean(mask, q.xp))
    return q, k, v, shown, 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
