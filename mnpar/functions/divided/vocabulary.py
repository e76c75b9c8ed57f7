"""Softmax cross entropy over classes that are divided among ranks: no rank ever has all scores of a
sample.

For scores x in blocks and the right class t, ``l = log Σ exp(x - m) - (xₜ - m)`` with any constant
m; the largest score keeps the exponentials small. So three numbers a sample travel: the largest
score (its derivative is 0, so it needs none), and then the sum and the right score together, in one
message. They are owned by the ranks together (law 1), and each rank turns their gradients into that
of its block without another message. (Megatron-LM: Shoeybi et al. 2019, arXiv 1909.08053, section
3.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.function_node import InputGradients
from mnpar.functions.communication.base import communication_hook
from mnpar.functions.communication.shared import reduce_from
from mnpar.functions.loss.softmax_cross_entropy import (
    label_weights,
    require_labels,
    softmax_cross_entropy,
    to_rows,
)
from mnpar.functions.math.exponential import exp, log
from mnpar.functions.node import GenericFunction, array_of, check_option
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


_NAME = "vocabulary_parallel_softmax_cross_entropy"


class ShiftedScores(GenericFunction):
    """For a block (M, C) of scores: Σ exp(x - top), and x - top at the label if that is in the
    block; (2, M).

    Args:
        top: (M,) what is subtracted, a constant, of the dtype in which is computed.
        labels: (M,) counted from the block's first class; those outside the block give 0.
        cache: keep the exponentials for backward.
    """

    def __init__(self, top: Array, labels: Array, cache: bool) -> None:
        self.top, self.labels, self.cache = top, labels, cache

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp = backend.get_array_module(x)
        (rows,) = xp.nonzero((self.labels >= 0) & (self.labels < x.shape[1]))
        self.places = rows, self.labels[rows]
        shifted = x - self.top[:, None]
        y = xp.zeros((2, len(x)), shifted.dtype)
        y[1, rows] = shifted[self.places]
        e = xp.exp(shifted, out=shifted)
        e.sum(axis=1, out=y[0])
        self.cached = e if self.cache else None
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        if isinstance(x, Variable):
            return lambda: self._recorded(x, gy)
        return lambda: self._at_once(x, array_of(gy))

    def _at_once(self, x: Array, gy: Array) -> Array:
        e = self.cached
        if e is None:
            e = x - self.top[:, None]
            backend.get_array_module(x).exp(e, out=e)
        gx: Array = e * gy[0][:, None]
        gx[self.places] += gy[1][self.places[0]]
        return gx

    def _recorded(self, x: Variable, gy: Variable | Array) -> Any:
        onehot = x.xp.zeros(x.shape, gy.dtype)
        onehot[self.places] = 1
        e = exp(x.astype(gy.dtype) - self.top[:, None])
        return (e * gy[0].reshape((-1, 1)) + onehot * gy[1].reshape((-1, 1))).astype(x.dtype)


def vocabulary_parallel_softmax_cross_entropy(
    comm: Communicator,
    x: Variable | Array,
    t: Variable | Array,
    normalize: bool = True,
    cache_score: bool = True,
    class_weight: Array | None = None,
    ignore_label: int | None = -1,
    reduce: str = "mean",
) -> Variable:
    """:func:`softmax_cross_entropy` of scores of which each rank has some of the classes; the
    scores are never gathered.

    Three numbers for each sample are reduced forward, in two messages; backward sends nothing.
    Gradients of gradients are one more message.

    Args:
        comm: all its ranks call this, and then do the same with the result.
        x: ``(N, block of C, …)`` scores: blocks of any sizes, also empty, in rank order, as a
            :class:`ColumnParallelLinear` that does not gather its output makes them.
        t: ``(N, …)`` labels of any integer dtype, 0 … C - 1, the same on each rank.
        normalize, cache_score, ignore_label, reduce: as :func:`softmax_cross_entropy` has them.
        class_weight: ``(C,)``, of all classes, the same on each rank.

    Returns:
        0-d or, with ``reduce='no'``, of ``t``'s shape; the same on each rank, which own it
        together: a loss counts once.

    Raises:
        ValueError: shapes that do not belong together, a label outside the classes, an unknown
            option, soft targets.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(
        ...         np.array([[0.0, 0.0]]) if comm.rank == 0 else np.array([[np.log(2.0)]])
        ...     )
        ...     loss = F.vocabulary_parallel_softmax_cross_entropy(comm, x, np.array([2]))
        ...     loss.backward()
        ...     return round(loss.item(), 3), x.grad.round(3).tolist()
        >>> mnpar.run(program, ranks=2)
        [(0.693, [[0.25, 0.25]]), (0.693, [[-0.5]])]
    """
    require_communicator(comm, "vocabulary_parallel_softmax_cross_entropy(comm, x, t)")
    check_option(_NAME, "reduce", reduce, "mean", "no")
    x = as_variable(x)
    t = as_variable(t)
    if t.dtype.kind not in "iu":
        raise ValueError(
            f"{_NAME}: the labels have dtype {t.dtype}; they are integers, soft targets are "
            "not divided"
        )
    if x.ndim < 2 or t.shape != x.shape[:1] + x.shape[2:]:
        raise ValueError(
            f"{_NAME}: scores {x.shape} and labels {t.shape} are not (N, C, …) and (N, …)"
        )
    if comm.size == 1:
        return softmax_cross_entropy(
            x, t, normalize, cache_score, class_weight, ignore_label, reduce
        )
    hook = communication_hook()
    if hook is not None:
        hook.check_arguments(comm, _NAME, {"t": t})
        hook.check_blocks(comm, _NAME, "scores", x)
    top, sizes = _largest(comm, to_rows(x.array))
    labels, valid = require_labels(_NAME, array_of(t), sum(sizes), ignore_label)
    weight = label_weights(_NAME, labels, valid, class_weight, sum(sizes), top.dtype)
    mean = None
    if reduce == "mean":
        count = t.shape[0] if not normalize else labels.size if valid is None else int(valid.sum())
        mean = 1 / max(count, 1)
    first = sum(sizes[: comm.rank])
    return cross_entropy_of_blocks(comm, x, labels, first, weight, mean, cache_score, top)


def cross_entropy_of_blocks(
    comm: Communicator,
    x: Variable,
    labels: Array,
    first: int,
    weight: Array | None,
    mean: float | None,
    cache_score: bool,
    top: Array | None = None,
) -> Variable:
    """Return the cross entropy of checked labels.

    Args:
        comm: all its ranks call this.
        x: ``(N, block of C, …)`` scores.
        labels: ``(M,)``, of all classes; M = N·….
        first: the first class of this rank's block.
        weight: ``(M,)``, what each sample's loss is multiplied by; None: 1.
        mean: what the sum is multiplied by; None: nothing is summed.
        cache_score: keep the exponentials for backward.
        top: ``(M,)``, the largest score of each sample, over all ranks; None: to be found.
    """
    rows: Variable = to_rows(x)
    if top is None:
        top, _ = _largest(comm, rows.array)
    sums = reduce_from(
        comm, ShiftedScores(top, labels.astype("i8") - first, cache_score).apply((rows,))[0]
    )
    loss = log(sums[0]) - sums[1]  # (M,)
    if weight is not None:
        loss = loss * weight
    loss = loss.reshape(x.shape[:1] + x.shape[2:]) if mean is None else loss.sum() * mean
    return loss.astype(x.dtype)


def _largest(comm: Communicator, rows: Array) -> tuple[Array, list[int]]:
    """The largest score of each sample (M,), over all ranks, and how many classes each rank has: in
    one message.

    At least 32 bits: halves can neither count classes nor sum exponentials.
    """
    xp, (M, C) = backend.get_array_module(rows), rows.shape
    known = xp.full(M + comm.size, -xp.inf, rows.dtype if rows.dtype.itemsize > 2 else "f4")
    known[M + comm.rank] = C
    if C:
        known[:M] = rows.max(axis=1)
    known = comm.allreduce(known, op="max")
    return known[:M], [int(size) for size in backend.to_host(known[M:])]
