"""Losses of metric learning (pairs, triplets, clusters), and losses that decorrelate features."""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.activation.relu import relu
from mnpar.functions.array.get_item import where
from mnpar.functions.array.shape import transpose
from mnpar.functions.math.arithmetic import absolute
from mnpar.functions.math.average import mean
from mnpar.functions.math.matmul import matmul
from mnpar.functions.math.reduction import sum
from mnpar.functions.math.sqrt import sqrt
from mnpar.functions.node import array_of, check_option, show_shapes
from mnpar.kernels.dtypes import upcast_halves
from mnpar.variable import Variable, as_variable


def _alike(name: str, *xs: Variable | Array) -> list[Variable]:
    variables = [as_variable(x) for x in xs]
    shapes = [x.shape for x in variables]
    if len(shapes[0]) != 2 or shapes.count(shapes[0]) != len(shapes):
        raise ValueError(f"{name}: shapes {show_shapes(shapes)} are not all the same (N, D)")
    return variables


def _reduced(name: str, loss: Variable, reduce: str) -> Variable:
    """The mean over the samples that this rank has, 0 for none; or each."""
    check_option(name, "reduce", reduce, "mean", "no")
    return loss if reduce == "no" else mean(loss)


def _root(squares: Variable) -> Variable:
    """√, through which nothing flows at 0."""
    apart = array_of(squares) > 0
    return where(apart, sqrt(where(apart, squares, 1)), 0)


def contrastive(
    x0: Variable | Array,
    x1: Variable | Array,
    y: Variable | Array,
    margin: float = 1,
    reduce: str = "mean",
) -> Variable:
    """The contrastive loss: pulls pairs of one class together, and pushes others until they are
    ``margin`` apart.

    The loss is (y d² + (1 - y) max(margin - d, 0)²) / 2. Where the two of a pair are equal, their
    distance d has no direction, and no gradient flows through it.

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
        Hadsell, Chopra and LeCun, "Dimensionality reduction by learning an invariant mapping", CVPR
        2006.
    """
    x0, x1 = _alike("contrastive", x0, x1)
    labels = as_variable(y).array
    if labels.shape != x0.shape[:1] or labels.dtype.kind not in "iub":
        raise ValueError(
            f"contrastive: y of shape {labels.shape} and dtype {labels.dtype} is not {len(x0)} "
            "integers"
        )
    if margin <= 0:
        raise ValueError(f"contrastive: margin = {margin} is not positive")
    d = x0 - x1
    squares = sum(d * d, axis=1)
    push = relu(margin - _root(squares))
    # not a sum of products with y and 1 - y: 0 · ∞ is NaN, and squares are soon too large for
    # float16
    return _reduced("contrastive", where(labels == 1, squares, push * push) * 0.5, reduce)


def triplet(
    anchor: Variable | Array,
    positive: Variable | Array,
    negative: Variable | Array,
    margin: float = 0.2,
    reduce: str = "mean",
) -> Variable:
    """The triplet loss, max(‖a - p‖² - ‖a - n‖² + margin, 0), of anchor a, positive p and negative
    n.

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
        Schroff, Kalenichenko and Philbin, "FaceNet: a unified embedding for face recognition and
        clustering", CVPR 2015.
    """
    anchor, positive, negative = _alike("triplet", anchor, positive, negative)
    if margin <= 0:
        raise ValueError(f"triplet: margin = {margin} is not positive")
    near = anchor - positive
    far = anchor - negative
    return _reduced("triplet", relu(sum(near * near - far * far, axis=1) + margin), reduce)


def discriminative_margin_based_clustering_loss(
    embeddings: Variable | Array,
    labels: Variable | Array,
    delta_v: float,
    delta_d: float,
    max_embedding_dim: int,
    norm: int = 1,
    alpha: float = 1.0,
    beta: float = 1.0,
    gamma: float = 0.001,
) -> tuple[Variable, Variable, Variable]:
    """Pixels of one instance are pulled to their mean, and the means of different instances pushed
    apart.

    With μ the mean of an instance in an image and [z] = max(z, 0), the three are: for each instance
    the mean over its pixels x of [‖x − μ‖ − delta_v]², averaged over instances; the mean over
    images and pairs of instances of [2 delta_d − ‖μ − μ'‖]²; and the mean of ‖μ‖ (of all images'
    means of an instance together).

    Args:
        embeddings: ``(N, D, H, W)``.
        labels: ``(N, H, W)``, integers: which instance each pixel belongs to, 1 … D; others are
            background. The mean of an instance that is not in an image is 0.
        delta_v, delta_d: how near is near enough, and half of how far is far enough.
        max_embedding_dim: D, which is how many instances there may be, too.
        norm: 1: ‖z‖ = Σ|z|, 2: √Σz².
        alpha, beta, gamma: factors of the three losses.

    Returns:
        Three 0-d Variables: of variance, of distance, of regularization. (Chainer's takes only
        batches of 1 or D images.)

    Raises:
        ValueError: shapes do not belong together, or ``norm`` is another; TypeError: labels are no
            integers.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.array([1.0, 3.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0]).reshape(1, 2, 1, 4)
        >>> losses = F.discriminative_margin_based_clustering_loss(
        ...     x, np.array([[[1, 1, 2, 2]]]), 0.5, 2.0, 2
        ... )
        >>> [loss.item() for loss in losses]
        [0.125, 1.0, 0.0015]

    Source:
        De Brabandere, Neven and Van Gool, "Semantic instance segmentation with a discriminative
        loss function" (2017), arXiv 1708.02551.
    """
    x = as_variable(embeddings)
    t = as_variable(labels).array
    D = max_embedding_dim
    name = "discriminative_margin_based_clustering_loss"
    if x.ndim != 4 or x.shape[1] != D or D < 1 or t.shape != (x.shape[0], *x.shape[2:]):
        raise ValueError(
            f"{name}: shapes {show_shapes((x.shape, t.shape))} are not (N, D, H, W) and (N, H, W), "
            f"D = {D}"
        )
    check_option(name, "norm", norm, 1, 2)
    if t.dtype.kind not in "iub":
        raise TypeError(f"{name}: labels are integers, not {t.dtype}")

    def length(z: Variable, axis: Any) -> Variable:
        return sum(absolute(z), axis=axis) if norm == 1 else _root(sum(z * z, axis=axis))

    xp = x.xp
    N = x.shape[0]
    size = x.shape[2] * x.shape[3]
    # (N, instance, H·W)
    of = (t.reshape(N, 1, size) == xp.arange(1, D + 1)[:, None]).astype(x.dtype)
    pixels = of.sum(axis=2, dtype=upcast_halves(of).dtype)  # (N, instance)
    x = x.reshape((N, D, size))
    # (N, D, instance)
    means = matmul(x, of, transb=True) / xp.maximum(pixels, 1).astype(x.dtype)[:, None]
    # (N, H·W)
    away = relu(length((matmul(means, of) - x) * of.sum(axis=1, keepdims=True), 1) - delta_v)
    # of a pixel in its instance
    shares = (of / xp.maximum(pixels.sum(axis=0), 1).astype(x.dtype)[:, None]).sum(axis=1)
    variance = sum(away * away * shares) * (1 / D)
    first, second = xp.triu_indices(D, 1)
    near = relu(2 * delta_d - length(means[:, :, first] - means[:, :, second], 1))
    distance = sum(near * near) * (1 / max(near.size, 1))
    regularization = sum(length(means, (0, 1))) * (1 / max(D * N, 1))
    return variance * alpha, distance * beta, regularization * gamma


def _half_squares(name: str, loss: Variable, reduce: str) -> Variable:
    check_option(name, "reduce", reduce, "half_squared_sum", "no")
    y: Variable = loss if reduce == "no" else sum(loss * loss) * 0.5
    return y


def cross_covariance(
    y: Variable | Array, z: Variable | Array, reduce: str = "half_squared_sum"
) -> Variable:
    """The cross-covariance penalty of the features of ``y`` and ``z``: C = (y - ȳ)ᵀ (z - z̄) / N.

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
    y = as_variable(y)
    z = as_variable(z)
    if y.ndim != 2 or z.ndim != 2 or len(y) != len(z) or not len(y):
        raise ValueError(
            f"cross_covariance: shapes {show_shapes((y.shape, z.shape))} are not (N, D) and (N, E) "
            "with N > 0"
        )
    covariance = matmul(transpose(y - mean(y, axis=0)), z - mean(z, axis=0)) * (1 / len(y))
    return _half_squares("cross_covariance", covariance, reduce)


def decov(h: Variable | Array, reduce: str = "half_squared_sum") -> Variable:
    """The DeCov penalty: the covariance of the features of ``h`` with each other, without the
    diagonal.

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
        Cogswell et al., "Reducing overfitting in deep networks by decorrelating representations",
        ICLR 2016.
    """
    h = as_variable(h)
    if h.ndim != 2 or not len(h):
        raise ValueError(f"decov: h of shape {h.shape} is not (N, D) with N > 0")
    centred = h - mean(h, axis=0)
    covariance = matmul(transpose(centred), centred) * (1 / len(h))
    others = 1 - backend.get_array_module(h).eye(h.shape[1], dtype=h.dtype)
    return _half_squares("decov", where(others > 0, covariance, 0), reduce)
