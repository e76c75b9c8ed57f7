"""Losses that bring together what belongs together: of pairs and of triplets; and those that keep features apart."""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.functions.activation import relu
from mnpar.functions.elementwise import sqrt
from mnpar.functions.generic import listed, plain
from mnpar.functions.indexing import where
from mnpar.functions.products import matmul
from mnpar.functions.reduction import mean, sum
from mnpar.functions.shape import transpose
from mnpar.variable import Variable, as_variable


def _alike(name: str, *xs: Any) -> list[Variable]:
    variables = [as_variable(x) for x in xs]
    shapes = [x.shape for x in variables]
    if len(shapes[0]) != 2 or shapes.count(shapes[0]) != len(shapes):
        raise ValueError(f"{name}: shapes {listed(shapes)} are not all the same (N, D)")
    return variables


def _reduced(name: str, loss: Variable, reduce: str) -> Variable:
    """The mean over the samples that this rank has, 0 for none; or each."""
    if reduce not in ("mean", "no"):
        raise ValueError(f"{name}: reduce is 'mean' or 'no', not {reduce!r}")
    y: Variable = loss if reduce == "no" else sum(loss) * (1 / max(len(loss), 1))
    return y


def contrastive(x0: Any, x1: Any, y: Any, margin: float = 1, reduce: str = "mean") -> Variable:
    """Pairs that belong together are pulled, others pushed until they are ``margin`` apart.

    The loss is (y d² + (1 - y) max(margin - d, 0)²) / 2. Where the two of a pair are equal, their distance d has no direction,
    and no gradient flows through it.

    Args:
        x0, x1: ``(N, D)``.
        y: ``(N,)``, integers: 1 for together, 0 for apart.
        margin: positive.
        reduce: ``'mean'`` over N, or ``'no'``.

    Returns:
        0-d (0 for no samples), or ``(N,)``.

    Raises:
        ValueError: shapes, ``margin`` or ``reduce`` are not as said.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> a, b = np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[3.0, 4.0], [0.3, 0.4]])
        >>> F.contrastive(a, b, np.array([1, 0]), reduce="no").array
        array([12.5  ,  0.125])

    Source:
        Hadsell, Chopra and LeCun, "Dimensionality reduction by learning an invariant mapping", CVPR 2006.
    """
    x0, x1 = _alike("contrastive", x0, x1)
    labels = plain(as_variable(y))
    if labels.shape != x0.shape[:1] or labels.dtype.kind not in "iub":
        raise ValueError(f"contrastive: y of shape {labels.shape} and dtype {labels.dtype} is not {len(x0)} integers")
    if margin <= 0:
        raise ValueError(f"contrastive: margin = {margin} is not positive")
    together = labels.astype(x0.dtype)
    d = x0 - x1
    squares = sum(d * d, axis=1)
    apart = plain(squares) > 0
    distance = where(apart, sqrt(where(apart, squares, 1)), 0)
    push = relu(margin - distance)
    return _reduced("contrastive", (squares * together + push * push * (1 - together)) * 0.5, reduce)


def triplet(anchor: Any, positive: Any, negative: Any, margin: float = 0.2, reduce: str = "mean") -> Variable:
    """Each anchor is to be nearer to its positive than to its negative, by a margin: max(‖a - p‖² - ‖a - n‖² + margin, 0).

    Args:
        anchor, positive, negative: ``(N, D)``.
        margin: positive.
        reduce: ``'mean'`` over N, or ``'no'``.

    Returns:
        0-d (0 for no samples), or ``(N,)``.

    Raises:
        ValueError: shapes, ``margin`` or ``reduce`` are not as said.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> a, p, n = np.array([[0.0]]), np.array([[1.0]]), np.array([[0.5]])
        >>> round(F.triplet(a, p, n).item(), 4)
        0.95

    Source:
        Schroff, Kalenichenko and Philbin, "FaceNet: a unified embedding for face recognition and clustering", CVPR 2015.
    """
    anchor, positive, negative = _alike("triplet", anchor, positive, negative)
    if margin <= 0:
        raise ValueError(f"triplet: margin = {margin} is not positive")
    near, far = anchor - positive, anchor - negative
    return _reduced("triplet", relu(sum(near * near - far * far, axis=1) + margin), reduce)


def _half_squares(name: str, loss: Variable, reduce: str) -> Variable:
    if reduce not in ("half_squared_sum", "no"):
        raise ValueError(f"{name}: reduce is 'half_squared_sum' or 'no', not {reduce!r}")
    y: Variable = loss if reduce == "no" else sum(loss * loss) * 0.5
    return y


def cross_covariance(y: Any, z: Any, reduce: str = "half_squared_sum") -> Variable:
    """How features of ``y`` vary with those of ``z``: C = (y - ȳ)ᵀ (z - z̄) / N, to be made small.

    Args:
        y, z: ``(N, D)`` and ``(N, E)``.
        reduce: ``'half_squared_sum'`` for ½ Σ C², or ``'no'`` for C.

    Returns:
        0-d, or ``(D, E)``.

    Raises:
        ValueError: shapes or ``reduce`` are not as said, or there are no samples.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.array([[1.0], [3.0]])
        >>> F.cross_covariance(x, -x, "no").array
        array([[-1.]])

    Source:
        Cheung et al., "Discovering hidden factors of variation in deep networks", arXiv 1412.6583.
    """
    y, z = as_variable(y), as_variable(z)
    if y.ndim != 2 or z.ndim != 2 or len(y) != len(z) or not len(y):
        raise ValueError(f"cross_covariance: shapes {listed((y.shape, z.shape))} are not (N, D) and (N, E) with N > 0")
    covariance = matmul(transpose(y - mean(y, axis=0)), z - mean(z, axis=0)) * (1 / len(y))
    return _half_squares("cross_covariance", covariance, reduce)


def decov(h: Any, reduce: str = "half_squared_sum") -> Variable:
    """How the features of ``h`` vary with each other: its covariance without the diagonal, to be made small.

    Args:
        h: ``(N, D)``.
        reduce: ``'half_squared_sum'``, or ``'no'`` for the matrix.

    Returns:
        0-d, or ``(D, D)``.

    Raises:
        ValueError: ``h`` or ``reduce`` is not as said, or there are no samples.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.decov(np.array([[1.0, -1.0], [3.0, -3.0]]), "no").array
        array([[ 0., -1.],
               [-1.,  0.]])

    Source:
        Cogswell et al., "Reducing overfitting in deep networks by decorrelating representations", ICLR 2016.
    """
    h = as_variable(h)
    if h.ndim != 2 or not len(h):
        raise ValueError(f"decov: h of shape {h.shape} is not (N, D) with N > 0")
    centred = h - mean(h, axis=0)
    covariance = matmul(transpose(centred), centred) * (1 / len(h))
    others = 1 - backend.get_array_module(h).eye(h.shape[1], dtype=h.dtype)
    return _half_squares("decov", where(others > 0, covariance, 0), reduce)
