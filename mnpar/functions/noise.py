"""Functions that draw random numbers: dropout and its relatives, the Gumbel softmax, randomized
slopes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.configuration import config
from mnpar.function_node import InputGradients
from mnpar.functions.activation.relu import leaky_relu
from mnpar.functions.activation.softmax import softmax
from mnpar.functions.array.broadcast import broadcast_to
from mnpar.functions.array.get_item import where
from mnpar.functions.array.shape import reshape
from mnpar.functions.connection.linear import linear
from mnpar.functions.math.matmul import matmul
from mnpar.functions.node import GenericFunction
from mnpar.random import generator
from mnpar.variable import Variable, as_variable


class Dropout(GenericFunction):
    """Multiplies by a mask that is no variable of the graph."""

    def __init__(self, mask: Array) -> None:
        self.mask = mask

    def forward(self, x: Array) -> Array:
        return x * self.mask

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy * self.mask


def dropout(
    x: Variable | Array,
    ratio: float = 0.5,
    *,
    mask: Array | None = None,
    return_mask: bool = False,
    rng: np.random.Generator | None = None,
    whole: tuple[int, ...] | None = None,
    part: Any = None,
) -> Any:
    """Set elements to 0 with probability ``ratio`` and divide the others by ``1 - ratio``, while
    ``config.train`` is on.

    Args:
        x: an array or Variable.
        ratio: the probability of 0, at least 0 and less than 1.
        mask: what to multiply with instead of a new mask: 0 or ``1 / (1 - ratio)`` for each
            element.
        return_mask: whether to return the mask too.
        rng: where the numbers are drawn from; None takes this rank's
            :func:`mnpar.random.generator`. They are drawn on the host, so that the same seed drops
            the same elements on every kind of device.
        whole, part: ``x`` is the part ``whole_array[part]`` of an array of this shape that is
            divided among ranks. The mask is that part of the whole array's, as in one process,
            where all ranks were seeded alike; each draws all its numbers.

    Returns:
        A Variable, ``x`` itself while ``config.train`` is off; with ``return_mask``, a pair with
        the mask (then None).

    Raises:
        ValueError: the ratio is outside [0, 1), or the mask, or that part, has another shape than
            ``x``.
        TypeError: ``x`` is of integers, and a mask is to be drawn.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F
        >>> F.dropout(np.ones(4), mask=np.array([2.0, 0.0, 0.0, 2.0])).array
        array([2., 0., 0., 2.])
        >>> def program(comm):  # three features on each rank
        ...     mine = np.s_[:, 3 * comm.rank : 3 * comm.rank + 3]
        ...     return F.dropout(
        ...         np.ones((1, 3)), whole=(1, 6), part=mine, rng=np.random.default_rng(0)
        ...     ).array
        >>> (
        ...     np.hstack(mnpar.run(program, ranks=2)),
        ...     F.dropout(np.ones((1, 6)), rng=np.random.default_rng(0)).array,
        ... )
        (array([[2., 2., 2., 0., 0., 0.]]), array([[2., 2., 2., 0., 0., 0.]]))

    Source:
        Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR
        15 (2014).
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"dropout: the ratio {ratio} is outside [0, 1)")
    x = as_variable(x)
    if not config.train:
        return (x, None) if return_mask else x
    if mask is None:
        own = x
        if x.layout is not None:
            own, whole, part = x.part, x.shape, x.box.index  # type: ignore[attr-defined]
        backend.require_float_dtype("dropout", own.array)
        mask = _draw(own.array, ratio, rng or generator(), whole, part)
    elif mask.shape != x.shape:
        raise ValueError(f"dropout: a mask of shape {mask.shape} does not fit x of shape {x.shape}")
    (y,) = Dropout(mask).apply((x,))
    return (y, mask) if return_mask else y


def zoneout(
    h: Variable | Array,
    x: Variable | Array,
    ratio: float = 0.5,
    *,
    rng: np.random.Generator | None = None,
) -> Variable:
    """The next state ``x``, in which elements keep their value in the last state ``h`` with
    probability ``ratio``.

    While ``config.train`` is off it is ``x`` itself.

    Args:
        h, x: the last and the next state, of one shape.
        ratio: the probability to keep, at least 0 and less than 1.
        rng: as in :func:`dropout`.

    Returns:
        A Variable of that shape.

    Raises:
        ValueError: the ratio is outside [0, 1), or the shapes differ.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F
        >>> F.zoneout(np.zeros(4), np.ones(4), 0.5, rng=np.random.default_rng(1)).array
        array([0., 1., 1., 1.])

    Source:
        Krueger et al., "Zoneout: regularizing RNNs by randomly preserving hidden activations",
        arXiv 1606.01305.
    """
    h = as_variable(h)
    x = as_variable(x)
    if not 0 <= ratio < 1:
        raise ValueError(f"zoneout: the ratio {ratio} is outside [0, 1)")
    if h.shape != x.shape:
        raise ValueError(f"zoneout: states of shapes {h.shape} and {x.shape} must have the same")
    if not config.train:
        return x
    keep = backend.to_device_of((rng or generator()).random(x.shape, np.float32) < ratio, x.array)
    return where(keep, h, x)


def gumbel_softmax(
    log_pi: Variable | Array,
    tau: float = 0.1,
    axis: int = 1,
    *,
    rng: np.random.Generator | None = None,
) -> Variable:
    """Draw nearly one-hot vectors from categorical distributions, differentiably in the
    probabilities.

    Args:
        log_pi: logarithms of probabilities (a constant may be added), ``(N, C, …)``.
        tau: the temperature, positive: the smaller, the nearer to one-hot.
        axis: that of the classes.
        rng: as in :func:`dropout`.

    Returns:
        ``log_pi``'s shape, softmax((log π + g) / τ) with g from the Gumbel distribution.

    Raises:
        ValueError: ``tau`` is not positive.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> round(F.gumbel_softmax(np.zeros((1, 3))).array.sum().item(), 6)
        1.0

    Source:
        Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax", arXiv 1611.01144.
    """
    log_pi = as_variable(log_pi)
    if not tau > 0:
        raise ValueError(f"gumbel_softmax: tau = {tau} is not positive")
    backend.require_float_dtype("gumbel_softmax", log_pi.array)
    g = backend.to_device_of(
        (rng or generator()).gumbel(size=log_pi.shape).astype(log_pi.dtype), log_pi.array
    )
    return softmax((log_pi + g) * (1 / tau), axis=axis)


def rrelu(
    x: Variable | Array,
    l: float = 1 / 8,  # noqa: E741 - Chainer's name
    u: float = 1 / 3,
    *,
    r: Array | None = None,
    return_r: bool = False,
    rng: np.random.Generator | None = None,
) -> Any:
    """Randomized leaky ReLU: x where positive, else r x with r drawn from [l, u], (l + u) / 2 while
    ``config.train`` is off.

    Args:
        x: an array or Variable.
        l, u: the slopes are between them.
        r: the slopes, if they are not to be drawn; of ``x``'s shape.
        return_r: return them too (None while testing).
        rng: as in :func:`dropout`.

    Returns:
        ``x``'s shape, or a pair with r.

    Raises:
        ValueError: r has another shape.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.rrelu(np.array([-1.0, 2.0]), r=np.array([0.25, 0.25])).array
        array([-0.25,  2.  ])

    Source:
        Xu et al., "Empirical evaluation of rectified activations in convolutional network", arXiv
        1505.00853.
    """
    x = as_variable(x)
    if not config.train:
        y = leaky_relu(x, (l + u) / 2)
        return (y, None) if return_r else y
    if r is None:
        backend.require_float_dtype("rrelu", x.array)
        r = backend.to_device_of(
            (rng or generator()).uniform(l, u, x.shape).astype(x.dtype), x.array
        )
    elif r.shape != x.shape:
        raise ValueError(f"rrelu: slopes of shape {r.shape} do not fit x of shape {x.shape}")
    y = x * x.xp.where(x.array >= 0, x.xp.ones((), x.dtype), r)
    return (y, r) if return_r else y


def simplified_dropconnect(
    x: Variable | Array,
    W: Variable | Array,
    b: Variable | Array | None = None,
    ratio: float = 0.5,
    train: bool = True,
    mask: Array | None = None,
    use_batchwise_mask: bool = True,
    *,
    rng: np.random.Generator | None = None,
) -> Variable:
    """:func:`linear` with a share of the weights set to 0, the others enlarged so that the mean
    stays.

    Args:
        x: ``(N, …)`` with D features per sample.
        W: ``(O, D)``.
        b: ``(O,)``, or None.
        ratio: the probability of 0, at least 0 and less than 1.
        train: False computes with all weights; ``config.train`` plays no part here.
        mask: which weights stay, 0 or 1, ``(O, D)`` or ``(N, O, D)``, if it is not to be drawn.
        use_batchwise_mask: draw other weights for each sample.
        rng: as in :func:`dropout`.

    Returns:
        ``(N, O)``.

    Raises:
        ValueError: the ratio is outside [0, 1), or shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.simplified_dropconnect(
        ...     np.ones((1, 2)), np.ones((1, 2)), mask=np.array([[1.0, 0.0]])
        ... ).array
        array([[2.]])

    Source:
        Wan et al., "Regularization of neural networks using DropConnect", ICML 2013, without its
        sampling while testing.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"simplified_dropconnect: the ratio {ratio} is outside [0, 1)")
    x = as_variable(x)
    W = as_variable(W)
    if not train:
        return linear(x, W, b)
    backend.require_float_dtype("simplified_dropconnect, of W", W.array)
    x = reshape(x, (len(x), x.size // max(len(x), 1))) if x.ndim > 2 else x
    if mask is None:
        shape = (len(x), *W.shape) if use_batchwise_mask else W.shape
        mask = backend.to_device_of(
            (rng or generator()).random(shape, np.float32) >= ratio, x.array
        )
    if mask.shape not in (W.shape, (len(x), *W.shape)):
        raise ValueError(
            f"simplified_dropconnect: a mask of shape {mask.shape} is neither {W.shape} nor "
            f"{(len(x), *W.shape)}"
        )
    W = Dropout(mask.astype(W.dtype) * W.dtype.type(1 / (1 - ratio))).apply(
        (broadcast_to(W, mask.shape),)
    )[0]
    if mask.ndim == 2:
        return linear(x, W, b)
    # (N, O, D) · (N, D, 1)
    y: Variable = reshape(matmul(W, reshape(x, (*x.shape, 1))), (len(x), W.shape[1]))
    if b is not None and b.shape != W.shape[1:2]:
        raise ValueError(
            f"simplified_dropconnect: b of shape {b.shape} must have shape {W.shape[1:2]}"
        )
    return y if b is None else y + b


def _stays(
    whole: tuple[int, ...], part: Any, ratio: float, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Return which elements of a part of an array stay; None: of all of it."""
    if part is None:
        return rng.random(whole, np.float32) >= ratio
    boxes = isinstance(part, tuple) and len(part) == len(whole) > 1
    if not boxes or not all([isinstance(one, slice) and one.step in (None, 1) for one in part]):
        some: np.ndarray[Any, Any] = rng.random(whole, np.float32)[part] >= ratio
        return some
    rows = range(whole[0])[part[0]]
    kept = []
    for row in range(whole[0]):  # a sample at a time: no rank ever holds the whole
        numbers = rng.random(whole[1:], np.float32)
        if row in rows:
            kept.append(numbers[part[1:]] >= ratio)
    shape = [len(range(n)[one]) for n, one in zip(whole, part, strict=True)]
    return np.array(kept, bool).reshape(shape)


def _draw(
    x: Array, ratio: float, rng: np.random.Generator, whole: tuple[int, ...] | None, part: Any
) -> Array:
    if (whole is None) != (part is None):
        raise ValueError(
            "dropout: a part of an array is given by its shape and an index, whole=(N, D), "
            "part=np.s_[:, 2:5]"
        )
    stay = _stays(x.shape if whole is None else whole, part, ratio, rng)
    if stay.shape != x.shape:
        raise ValueError(
            f"dropout: part={part} of an array of shape {whole} has shape {stay.shape}, and x "
            f"has {x.shape}"
        )
    return backend.to_device_of(np.multiply(stay, 1 / (1 - ratio), dtype=x.dtype), x)
