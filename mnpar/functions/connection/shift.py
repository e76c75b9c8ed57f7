"""Shift channels of images by different offsets, so that a 1 × 1 convolution afterwards combines
neighbouring cells.
"""

from __future__ import annotations

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction
from mnpar.variable import Variable, as_variable


class ShiftChannels(GenericFunction):
    """``moves``: for each group of channels its slice and how far it goes down and to the right; 0
    comes in from outside.
    """

    def __init__(self, moves: list[tuple[slice, int, int]]) -> None:
        self.moves = moves

    def forward(self, x: Array) -> Array:
        y = backend.get_array_module(x).zeros(x.shape, x.dtype)
        for channels, down, right in self.moves:
            (to_h, from_h), (to_w, from_w) = _overlap(down), _overlap(right)
            y[:, channels, to_h, to_w] = x[:, channels, from_h, from_w]
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: ShiftChannels(
            [(channels, -down, -right) for channels, down, right in self.moves]
        )(gy)


def _overlap(step: int) -> tuple[slice, slice]:
    """Return where, along an axis, what moves so far arrives, and from where it comes."""
    first = slice(abs(step), None)
    last = slice(None, -abs(step) or None)
    return (first, last) if step > 0 else (last, first)


def shift_channels(
    x: Variable | Array, ksize: int | tuple[int, int] = 3, dilate: int | tuple[int, int] = 1
) -> Variable:
    """Shift groups of channels, each by another offset within a window: Chainer's ``shift``.

    The channels are cut into kh · kw groups of C // (kh · kw), one for each place of a window; its
    middle, which does not move, comes last and has the rest. (:func:`shift` hands arrays to the
    next rank.)

    Args:
        x: an array or Variable (N, C, H, W).
        ksize: of the window, odd; one number for both axes, or two.
        dilate: how far apart its places are.

    Returns:
        (N, C, H, W), with 0 where a channel moved away from an edge.

    Raises:
        ValueError: x has not four axes, or fewer channels than the window has places; or the window
            is even.

    Source: Wu et al., Shift: A Zero FLOP, Zero Parameter Alternative to Spatial Convolutions, 2017.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.shift_channels(np.arange(1.0, 10.0).reshape(1, 3, 1, 3), (1, 3)).array
        array([[[[2., 3., 0.]],
        <BLANKLINE>
                [[0., 4., 5.]],
        <BLANKLINE>
                [[7., 8., 9.]]]])
    """
    x = as_variable(x)
    (kh, kw), (dy, dx) = (n if isinstance(n, (tuple, list)) else (n, n) for n in (ksize, dilate))
    if kh % 2 == 0 or kw % 2 == 0:
        raise ValueError(
            f"shift_channels: a window of {kh} × {kw} has no middle, both lengths must be odd"
        )
    if x.ndim != 4 or x.shape[1] < kh * kw:
        raise ValueError(
            f"shift_channels: x of shape {x.shape} is not (N, C, H, W) with C of {kh * kw} = "
            f"{kh} · {kw} or more"
        )
    places = [((i - kh // 2) * dy, (j - kw // 2) * dx) for i in range(kh) for j in range(kw)]
    middle = len(places) // 2
    places[middle], places[-1] = places[-1], places[middle]
    size = x.shape[1] // len(places)
    last = len(places) - 1
    moves = [
        (slice(i * size, None if i == last else (i + 1) * size), *place)
        for i, place in enumerate(places)
    ]
    return ShiftChannels(moves).apply((x,))[0]
