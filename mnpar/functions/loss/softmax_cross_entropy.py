"""Softmax cross entropy as one function: one exponential forward, and no array in backward but the
gradient.

For scores x (C classes) and the right class t, ``l = log Σⱼ exp xⱼ - xₜ`` and ``dl/dx = softmax(x)
- onehot(t)``. Samples are rows here: an x of shape (N, C, d₁, …) becomes (N·d₁·…, C).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.activation.softmax import Softmax, log_softmax
from mnpar.functions.math.average import mean as mean_of
from mnpar.functions.node import GenericFunction, Operand, array_of, check_option, show_shapes
from mnpar.kernels import softmax as kernel
from mnpar.kernels.dtypes import compute_dtype, upcast_halves
from mnpar.variable import Variable, as_variable

_NAME = "softmax_cross_entropy"


_CAST = "t.astype(numpy.int32) makes them so"


class SoftmaxCrossEntropy(GenericFunction):
    """Args as :func:`softmax_cross_entropy` has them; ``mean`` is the factor of the sum, None where
    nothing is reduced.
    """

    def __init__(
        self, labels: Array, weight: Array | None, mean: float | None, cache_score: bool
    ) -> None:
        self.labels = labels
        self.weight = weight
        self.mean = mean
        self.cache_score = cache_score

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp = backend.get_array_module(x)
        found = self._exponentials(x)
        _, total, score = found
        loss = xp.log(total)
        if score is not None:
            loss -= score
        if self.weight is not None:
            loss *= self.weight
        self.cached = found if self.cache_score else None
        if self.mean is None:
            return loss.reshape(x.shape[:1] + x.shape[2:]).astype(x.dtype, copy=False)
        return xp.asarray(loss.sum() * self.mean, x.dtype)

    def _exponentials(self, x: Array) -> tuple[Array, Array, Array | None]:
        return kernel.exponentials(upcast_halves(to_rows(x)), self.labels)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        g = gy.reshape((-1,)) if self.mean is None else gy * self.mean  # (M,) or a number
        if self.weight is not None:
            g = g * self.weight
        if isinstance(x, Variable):
            return lambda: self._recorded(x, g)
        return lambda: self._at_once(x, array_of(g))

    def _at_once(self, x: Array, g: Array) -> Array:
        e, total, score = self.cached or self._exponentials(x)
        gx = kernel.cross_entropy_gradient(e, total, score, self.labels, g)
        return from_rows(gx, x.shape)

    def _recorded(self, x: Variable, g: Variable | Array) -> Variable:
        rows = to_rows(x)
        onehot = x.xp.zeros(rows.shape, x.dtype)
        onehot[x.xp.arange(self.labels.size), self.labels] = 1
        gx: Variable = (Softmax(1)(rows) - onehot) * (g.reshape((-1, 1)) if g.ndim else g)
        return from_rows(gx.astype(x.dtype), x.shape)


def to_rows(x: Operand) -> Operand:
    """(N, C, d₁, …) → (N·d₁·…, C), of an array or a Variable."""
    if x.ndim == 2:
        return x
    return x.transpose((0, *range(2, x.ndim), 1)).reshape(
        (math.prod(x.shape[:1] + x.shape[2:]), x.shape[1])
    )


def from_rows(rows: Operand, shape: tuple[int, ...]) -> Operand:
    """(N·d₁·…, C) → (N, C, d₁, …): the inverse of :func:`to_rows`."""
    if len(shape) == 2:
        return rows
    by_place = rows.reshape((shape[0], *shape[2:], shape[1]))
    return by_place.transpose((0, len(shape) - 1, *range(1, len(shape) - 1)))


def softmax_cross_entropy(
    x: Variable | Array,
    t: Variable | Array,
    normalize: bool = True,
    cache_score: bool = True,
    class_weight: Array | None = None,
    ignore_label: int | None = -1,
    reduce: str = "mean",
    enable_double_backprop: bool = False,
    soft_target_loss: str = "cross-entropy",
) -> Variable:
    """The cross entropy of labels and ``softmax(x)``, ``-log softmax(x)[t]`` in nats; the mean over
    this rank's samples.

    The gradients of ranks whose batches differ in size are to be weighted by these sizes.

    Args:
        x: ``(N, C, …)`` scores before the softmax.
        t: ``(N, …)`` labels of any integer dtype, or probabilities of ``x``'s shape (soft targets).
        normalize: divide by the number of labels that are not ignored; False divides by N.
        cache_score: keep the exponentials for backward; False computes them again and saves their
            memory.
        class_weight: ``(C,)``, factors of the losses of each class (of soft targets); the divisor
            does not change.
        ignore_label: samples with this label do not count; None counts all.
        reduce: ``'mean'``, or ``'no'`` for the loss of each sample.
        enable_double_backprop: accepted for Chainer's programs; it can always be differentiated
            twice.
        soft_target_loss: for soft targets, ``'cross-entropy'`` or ``'kl-divergence'``.

    Returns:
        0-d (0 where no sample counts) or, with ``reduce='no'``, of ``t``'s shape; of ``x``'s dtype.

    Raises:
        ValueError: shapes that do not fit together, a label outside the classes, an unknown option.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.array([[0.0, 0.0], [0.0, 1000.0]])
        >>> F.softmax_cross_entropy(x, np.array([0, 1]), reduce="no").array
        array([0.69314718, 0.        ])
    """
    check_option(_NAME, "reduce", reduce, "mean", "no")
    x = as_variable(x)
    labels: Any = t if type(t) is np.ndarray else as_variable(t)
    layout = getattr(labels, "layout", None)
    if layout is None:
        labels = array_of(labels)
    shape = x.shape[:1] + x.shape[2:]
    total: Any = int  # of counts, over all ranks that have labels
    if x.ndim < 2:
        raise ValueError(f"softmax_cross_entropy: scores of shape {x.shape} are not (N, C, …)")
    if labels.dtype.kind == "f":
        return _soft(x, labels, normalize, class_weight, reduce, soft_target_loss)
    if labels.dtype.kind not in "iu":
        raise ValueError(
            f"softmax_cross_entropy: the labels have dtype {labels.dtype}; they are integers: "
            f"{_CAST}"
        )
    if labels.shape != shape:
        raise ValueError(
            f"softmax_cross_entropy: shapes {show_shapes([x.shape, labels.shape])} do not belong "
            "together: for scores (N, C, …) the "
            f"labels have shape (N, …), here {shape}{labels_hint(labels, x, shape)}"
        )
    if layout is not None and x.layout is None:
        layout.refuse(_NAME, "the scores are whole")
    if layout is not None:
        labels, total = x.layout.labels(_NAME, labels, 1)
    labels, valid = require_labels(_NAME, labels, x.shape[1], ignore_label)
    mean = None
    if reduce == "mean":
        count = labels.size if valid is None else int(valid.sum())
        mean = 1 / max(int(total(count)) if normalize else shape[0], 1)
    weight = label_weights(_NAME, labels, valid, class_weight, x.shape[1], compute_dtype(x))
    return SoftmaxCrossEntropy(labels, weight, mean, cache_score).apply((x,))[0]


def labels_hint(t: Array, x: Variable, shape: tuple[int, ...]) -> str:
    """Return what to do with labels that have another shape than ``shape``."""
    if t.shape == x.shape:
        return (
            ": t.argmax(axis=1) makes labels of one-hot vectors, and t.astype(x.dtype) soft targets"
        )
    return (
        f"; t.reshape({shape}) has it"
        if t.shape != shape and math.prod(t.shape) == math.prod(shape)
        else ""
    )


def require_labels(
    who: str, t: Array, classes: int, ignore_label: int | None
) -> tuple[Array, Array | None]:
    """The labels as a vector, 0 where they are ignored, and where they are not (None: nowhere)."""
    labels = t.ravel()
    ignores = ignore_label is not None and 0 <= ignore_label < classes
    if not labels.size:
        return labels, None
    # there negative ones are large
    if not ignores and t.dtype.isnative and labels.view(t.dtype.char.upper()).max() < classes:
        return labels, None
    xp = backend.get_array_module(t)
    valid = xp.ones(labels.shape, bool) if ignore_label is None else labels != ignore_label
    wrong = valid & ((labels < 0) | (labels >= classes))
    if wrong.any():
        place = int(wrong.argmax())
        where = [place]
        for n in reversed(t.shape[1:]):
            where[:1] = divmod(where[0], n)
        raise ValueError(
            f"{who}: label {labels[place]} at t[{', '.join(map(str, where))}] is outside the "
            f"{classes} classes "
            f"0 … {classes - 1} of x, and is not ignore_label = {ignore_label}"
        )
    return labels * valid, valid


def label_weights(
    who: str,
    labels: Array,
    valid: Array | None,
    class_weight: Array | None,
    classes: int,
    dtype: DTypeLike,
) -> Array | None:
    """Return what each sample's loss is multiplied by; None stands for 1."""
    _check_class_weight(who, class_weight, classes)
    if class_weight is None:
        return None if valid is None else valid.astype(dtype)
    weight = class_weight[labels].astype(dtype)
    return weight if valid is None else weight * valid


def _check_class_weight(who: str, class_weight: Array | None, classes: int) -> None:
    shape = getattr(class_weight, "shape", None)
    dtype = getattr(class_weight, "dtype", np.dtype("O"))
    if class_weight is not None and (
        isinstance(class_weight, Variable) or shape != (classes,) or dtype.kind != "f"
    ):
        raise ValueError(
            f"{who}: class_weight of shape {shape} and dtype {dtype} "
            f"({type(class_weight).__name__}) must be a floating array of shape {(classes,)}, "
            "one weight a class"
        )


def _soft(
    x: Variable, t: Array, normalize: bool, class_weight: Array | None, reduce: str, kind: str
) -> Variable:
    check_option(_NAME, "soft_target_loss", kind, "cross-entropy", "kl-divergence")
    if t.shape != x.shape:
        labels = x.shape[:1] + x.shape[2:]
        if math.prod(t.shape) == math.prod(labels):
            raise ValueError(
                f"softmax_cross_entropy: for scores {x.shape} the labels are integers of shape "
                f"{labels}, not {t.dtype} of "
                f"shape {t.shape}: {_CAST}{labels_hint(t, x, labels)}"
            )
        raise ValueError(
            f"softmax_cross_entropy: soft targets of shape {t.shape} must have x's shape "
            f"{x.shape}; labels are integers"
        )
    _check_class_weight(_NAME, class_weight, x.shape[1])
    p, weight = t, class_weight
    weighted = p if weight is None else p * weight.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 2))
    loss: Variable = -(log_softmax(x) * weighted).sum(axis=1)  # (N, …)
    if kind == "kl-divergence":
        xp = x.xp
        loss = loss + (weighted * xp.log(xp.where(p > 0, p, xp.ones((), p.dtype)))).sum(axis=1)
    if reduce == "mean":
        # the sum may be too large for float16
        loss = mean_of(loss) * (1 if normalize else loss.size / max(x.shape[0], 1))
    return loss
