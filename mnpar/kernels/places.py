"""The places in memory of windows and of their cells, in an image whose channels come last.

A convolution is a sum over cells of a window: cell j of window p lies at ``windows[p] + cells[j]``
in the padded image. These two tables are all that loops need to know of kernel, stride, padding and
dilation. Its transpose is a sum over windows instead: pixels that as many windows see in the same
way (at stride s, every s-th one along an axis) are again windows over y, each way a table.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import tuning
from mnpar.kernels.windows import Numbers, Windows


@dataclass(frozen=True)
class Places:
    """The places of windows over an image with C channels.

    Args:
        pad: before the image, along each axis.
        shape: of the padded image, (height, width, C).
        windows: of each window, in elements.
        cells: of what lies together in a window, from where that is.
        run: how many numbers lie together.
        outputs: which pixel of the output each window is.
        kernel: which rows and columns of the kernel the cells are.
    """

    pad: Numbers
    shape: Numbers
    windows: Array
    cells: Array
    run: int
    outputs: Array
    kernel: tuple[slice, slice]

    def padded(self, dtype: Any, threads: int) -> Array:
        """Return zeros (threads, height, width, C), with room for what is read behind the last cell
        of each.
        """
        H, W, C = self.shape
        return np.zeros((threads, H + -(-_BEHIND // (W * C)), W, C), dtype)


_BEHIND = 16  # numbers


def _table(rows: Array, columns: Array) -> Array:
    return np.add.outer(rows, columns).reshape(-1)


def of_windows(windows: Windows, C: int, by_cell: bool = False) -> Places:
    """Return the places of windows; their rows lie together, or with ``by_cell`` nothing does.
    Tables of few windows are kept for the next call, which they take as long as.
    """
    few = math.prod(windows.out) <= tuning.PLACES_KEPT
    return (_of_windows if few else _of_windows.__wrapped__)(windows, C, by_cell)


@functools.lru_cache(maxsize=64)
def _of_windows(windows: Windows, C: int, by_cell: bool) -> Places:
    (kh, kw), (OH, OW) = windows.K, windows.out
    (sh, sw), (dh, dw) = windows.stride, windows.dilate
    line = windows.padded[1] * C
    rows = np.arange(kh) * (dh * line)
    together = dw == 1 and not by_cell
    return Places(
        windows.pad,
        (*windows.padded, C),
        _table(np.arange(OH) * (sh * line), np.arange(OW) * (sw * C)),
        rows if together else _table(rows, np.arange(kw) * (dw * C)),
        kw * C if together else C,
        np.arange(OH * OW),
        (slice(0, kh), slice(0, kw)),
    )


def of_image(windows: Windows, K: int) -> list[Places]:
    """Return the places, in y with K channels, of the windows that pixels of the image are seen by,
    for all pixels: one for each way in which they are seen. Pixels that no window sees are left
    out.
    """
    few = math.prod(windows.size) <= tuning.PLACES_KEPT
    return (_of_image if few else _of_image.__wrapped__)(windows, K)


@functools.lru_cache(maxsize=64)
def _of_image(windows: Windows, K: int) -> list[Places]:
    axes = [_seen(windows, axis) for axis in range(2)]
    if not all([any([seen for _, _, seen in ways]) for ways in axes]):  # but zeros around it
        return []
    pad, size = [], []
    for axis, ways in enumerate(axes):
        shifts = [shift for _, _, seen in ways for _, shift in seen]
        ends = [count + shift for _, count, seen in ways for _, shift in seen]
        pad.append(max(0, -min(shifts)))
        size.append(pad[-1] + max(windows.out[axis], *ends))
    line = size[1] * K
    (sh, sw), width = windows.stride, windows.size[1]
    found = []
    for first, height, up in axes[0]:
        for start, count, along in axes[1]:
            if up and along:
                rows = np.array([shift + pad[0] for _, shift in up]) * line
                columns = np.array([shift + pad[1] for _, shift in along]) * K
                outputs = (first + sh * np.arange(height)) * width, start + sw * np.arange(count)
                found.append(
                    Places(
                        (pad[0], pad[1]),
                        (size[0], size[1], K),
                        _table(np.arange(height) * line, np.arange(count) * K),
                        _table(rows, columns),
                        K,
                        _table(*outputs),
                        (_as_slice([i for i, _ in up]), _as_slice([j for j, _ in along])),
                    )
                )
    return found


def _as_slice(offsets: list[int]) -> slice:
    """Offsets in the kernel, which are equally far apart: s divides a place p - i d for every
    s / gcd(s, d)-th i.
    """
    return slice(offsets[0], offsets[-1] + 1, offsets[1] - offsets[0] if offsets[1:] else 1)


def _seen(windows: Windows, axis: int) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """The ways in which pixels along an axis are seen: the first pixel, how many there are, and
    (offset in the kernel, first window) of those that see it.
    """
    s, p, d = windows.stride[axis], windows.pad[axis], windows.dilate[axis]
    ways = []
    for first in range(min(s, windows.size[axis])):
        places = [(i, first + p - i * d) for i in range(windows.K[axis])]
        seen = [(i, place // s) for i, place in places if place % s == 0]
        ways.append((first, -(-(windows.size[axis] - first) // s), seen))
    return ways


@functools.lru_cache(maxsize=256)
def sees_all(windows: Windows) -> bool:
    """Return whether each pixel of the image has a place: along no axis are there gaps."""
    return all([seen for axis in range(2) for _, _, seen in _seen(windows, axis)])
