"""Measures of predictions: accuracy, precision, recall, F-score, R². No gradient flows through
them.

They are over this rank's samples. A mean over ranks whose batches differ in size is to be weighted
by these sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.node import check_option, check_shapes, show_shapes
from mnpar.kernels.dtypes import floating_dtype
from mnpar.variable import Variable, as_variable


def accuracy(y: Variable | Array, t: Variable | Array, ignore_label: int | None = None) -> Variable:
    """The fraction of samples whose largest score is that of the right class.

    Args:
        y: ``(N, C, …)``, scores.
        t: ``(N, …)``, integers, the right classes.
        ignore_label: samples with this label are left out.

    Returns:
        0-d, of ``y``'s dtype; 0 where nothing is left to count.

    Raises:
        ValueError: the shapes do not belong together, or the labels are no integers.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> y = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
        >>> float(F.accuracy(y, np.array([0, 1, 1])).array.round(3))
        0.667
    """
    y = as_variable(y)
    t = as_variable(t)
    if t.dtype.kind not in "iu":
        raise ValueError(
            f"accuracy: the labels have dtype {t.dtype}; they are integers: "
            "t.astype(numpy.int32) makes them so"
        )
    places = y.shape[:1] + y.shape[2:]
    if y.ndim < 2 or t.shape != places[: t.ndim] or math.prod(places[t.ndim :]) != 1:
        raise ValueError(
            f"accuracy: shapes {show_shapes([y.shape, t.shape])} are not (N, C, …) and (N, …)"
        )
    scores, labels, total = _own("accuracy", y, t, 1)
    right = scores.argmax(axis=1).reshape(labels.shape) == labels
    if ignore_label is None:
        return _share(total(right.sum()), t.size, scores)
    counted = labels != ignore_label
    return _share(total((right & counted).sum()), total(counted.sum()), scores)


def _own(
    who: str, y: Variable, t: Variable, axis: int | None
) -> tuple[Array, Array, Callable[[Any], Any]]:
    """Return scores and labels, of divided arrays this rank's, and a function that sums a count
    over the ranks.
    """
    if y.layout is None:
        return y.array, t.array, lambda n: n
    return (y.part.array, *y.layout.labels(who, t, axis))  # type: ignore[attr-defined]


def binary_accuracy(y: Variable | Array, t: Variable | Array) -> Variable:
    """The fraction of scores with the right sign: not negative for 1, negative for 0; where ``t``
    is -1 nothing is counted.

    Args:
        y: scores, of any shape.
        t: integers of the same shape.

    Returns:
        0-d, of ``y``'s dtype; 0 where nothing is left to count.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.binary_accuracy(np.array([-1.0, 2.0]), np.array([0, 0])).array)
        0.5
    """
    y = as_variable(y)
    t = as_variable(t)
    check_shapes("binary_accuracy", y, t)
    scores, labels, total = _own("binary_accuracy", y, t, None)
    counted = labels != -1
    return _share(total((((scores >= 0) == labels) & counted).sum()), total(counted.sum()), scores)


def classification_summary(
    y: Variable | Array,
    t: Variable | Array,
    label_num: int | None = None,
    beta: float = 1.0,
    ignore_label: int = -1,
) -> tuple[Variable, Variable, Variable, Variable]:
    """Precision, recall, F-beta score and support (how many samples there are) of each class.

    A class of which there are none, or of which none was found, counts 0 where Chainer's has a
    division by zero.

    Args:
        y: ``(N, C, …)``, scores; the largest one is what is found.
        t: ``(N, …)``, integers, the right classes.
        label_num: the number of classes L; None: the largest label that counts and one.
        beta: how many times recall weighs more than precision in the third.
        ignore_label: samples with this label are left out.

    Returns:
        Precision, recall, F-beta and support, each ``(L,)``: three of float64, the last of
        integers.

    Raises:
        ValueError: the shapes do not belong together, or a label is not below ``label_num``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> y = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
        >>> [score.array.tolist() for score in F.classification_summary(y, np.array([0, 1, 1]))[:2]]
        [[0.5, 1.0], [1.0, 0.5]]
    """
    y = as_variable(y).array
    t = as_variable(t).array
    if t.dtype.kind not in "iu" or y.ndim < 2 or t.shape != y.shape[:1] + y.shape[2:]:
        raise ValueError(
            f"classification_summary: shapes {show_shapes([y.shape, t.shape])} are not (N, C, …) "
            "and integers (N, …)"
        )
    xp = backend.get_array_module(y)
    counted = (t != ignore_label).ravel()
    true = t.ravel()[counted]
    found = y.argmax(axis=1).ravel()[counted]
    largest = int(true.max()) if true.size else -1
    L = largest + 1 if label_num is None else label_num
    if largest >= L or (true.size and int(true.min()) < 0):
        raise ValueError(
            f"classification_summary: labels {int(true.min())} … {largest} are not 0 … {L - 1}"
        )
    support, relevant, right = [
        xp.bincount(labels, minlength=L)[:L].astype("i8")
        for labels in (true, found, true[true == found])
    ]
    precision = right / xp.maximum(relevant, 1)
    recall = right / xp.maximum(support, 1)
    weight = beta * beta
    both = (
        (1 + weight)
        * precision
        * recall
        / xp.maximum(weight * precision + recall, np.finfo("d").tiny)
    )
    scores = [Variable(score, requires_grad=False) for score in (precision, recall, both)]
    return scores[0], scores[1], scores[2], Variable(support, requires_grad=False)


def precision(
    y: Variable | Array, t: Variable | Array, label_num: int | None = None, ignore_label: int = -1
) -> tuple[Variable, Variable]:
    """Precision (the share of those found that are right) and support of each class: see
    :func:`classification_summary`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> score, support = F.precision(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]))
        >>> score.array, support.array
        (array([0.5, 0. ]), array([1, 1]))
    """
    score, _, _, support = classification_summary(y, t, label_num, 1.0, ignore_label)
    return score, support


def recall(
    y: Variable | Array, t: Variable | Array, label_num: int | None = None, ignore_label: int = -1
) -> tuple[Variable, Variable]:
    """Recall (the share of the right ones that are found) and support of each class: see
    :func:`classification_summary`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> score, support = F.recall(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]))
        >>> score.array, support.array
        (array([1., 0.]), array([1, 1]))
    """
    _, score, _, support = classification_summary(y, t, label_num, 1.0, ignore_label)
    return score, support


def f1_score(
    y: Variable | Array, t: Variable | Array, label_num: int | None = None, ignore_label: int = -1
) -> tuple[Variable, Variable]:
    """F1 score (the harmonic mean of precision and recall) and support of each class: see
    :func:`classification_summary`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> score, support = F.f1_score(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]))
        >>> score.array.round(4), support.array
        (array([0.6667, 0.    ]), array([1, 1]))
    """
    _, _, score, support = classification_summary(y, t, label_num, 1.0, ignore_label)
    return score, support


def r2_score(
    pred: Variable | Array,
    true: Variable | Array,
    sample_weight: Variable | Array | None = None,
    multioutput: str = "uniform_average",
) -> Variable:
    """The share of the variance that predictions explain: 1 - Σ (p - t)² / Σ (t - t̄)², 0 where
    ``true`` is constant.

    Args:
        pred, true: ``(N, …)``, of one shape.
        sample_weight: None; nothing else is there, as in Chainer.
        multioutput: ``'uniform_average'``, the mean over all axes but the first, or
            ``'raw_values'``.

    Returns:
        0-d, or the shape without the first axis.

    Raises:
        ValueError: the shapes differ, or ``multioutput`` is neither; NotImplementedError: there are
            weights.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.r2_score(np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0])).item()
        0.5
    """
    pred = as_variable(pred).array
    true = as_variable(true).array
    if sample_weight is not None:
        raise NotImplementedError("r2_score: sample_weight is None, all samples count alike")
    check_option("r2_score", "multioutput", multioutput, "uniform_average", "raw_values")
    if pred.shape != true.shape or pred.ndim < 1:
        raise ValueError(
            f"r2_score: shapes {show_shapes([pred.shape, true.shape])} must be the same (N, …)"
        )
    xp = backend.get_array_module(pred)
    p = pred.astype("d")
    t = true.astype("d")
    error = ((p - t) ** 2).sum(axis=0)
    total = ((t - t.sum(axis=0) / max(len(t), 1)) ** 2).sum(axis=0)
    score = xp.where(total != 0, 1 - error / xp.where(total != 0, total, 1), 0.0)
    if multioutput == "uniform_average":
        score = score.sum() / max(score.size, 1)
    return Variable(xp.asarray(score, floating_dtype(pred.dtype)), requires_grad=False)


def _share(right: Any, count: Any, y: Variable | Array) -> Variable:
    xp = backend.get_array_module(y)
    return Variable(
        xp.asarray(right / xp.maximum(xp.asarray(count), 1), floating_dtype(y.dtype)),
        requires_grad=False,
    )
