"""Choosing the constants of tuning.py for this machine, by measurements of seconds.

For each constant there is some work whose time depends on it. Its values are measured in turn,
several times, and another than the present one is chosen only if it is faster by ``LEAST_GAIN``;
so noise chooses nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mnpar.kernels import attention, compiler, convolution, erf, logistic, softmax, tuning
from mnpar.kernels.activation import relu
from mnpar.kernels.channels_last import empty_images
from mnpar.kernels.windows import Windows
from mnpar.runtime.blas_threads import use_one

LEAST_GAIN = 0.03  # of the time
ROUNDS = 7
_SECONDS = 0.02  # that each measurement takes, at least


class Choice(NamedTuple):
    """The measurement of a constant.

    Args:
        name: of the constant.
        before, after: its values.
        gain: by how much less time the work takes, as a share.
    """

    name: str
    before: int
    after: int
    gain: float


def tune(rounds: int = ROUNDS) -> Iterator[Choice]:
    """Choose the constants one after the other, for this process.

    Raises:
        ImportError: numba, whose loops they belong to, is missing.
    """
    if not compiler.is_usable():
        raise ImportError("what is tuned are compiled loops: pip install 'mnpar[fast]'")
    if compiler.mode():
        raise ImportError(f"MNPAR_KERNELS={compiler.mode()} leaves nothing to choose: unset it")
    use_one()
    for name, values, make in _WORKS:
        work = make()
        before: int = getattr(tuning, name)
        candidates = sorted({before, *values})
        times: dict[int, list[float]] = {value: [] for value in candidates}
        try:
            _set(name, before)
            repeats = _repeats(work)
            for _ in range(rounds):
                for value in candidates:
                    _set(name, value)
                    times[value].append(_seconds(work, repeats))
            medians = {value: statistics.median(found) for value, found in times.items()}
            best = min(candidates, key=medians.__getitem__)
            gain = 1 - medians[best] / medians[before]
            after = best if gain >= LEAST_GAIN else before
        except BaseException:
            _set(name, before)
            raise
        _set(name, after)
        yield Choice(name, before, after, gain if after != before else 0.0)


def _set(name: str, value: int) -> None:
    setattr(tuning, name, value)
    compiler.least.cache_clear()


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """Seconds of processor time; of a process alone they are those of the clock."""
    begin = time.process_time()
    for _ in range(repeats):
        work()
    return time.process_time() - begin


def _repeats(work: Callable[[], object]) -> int:
    work()
    return max(1, int(_SECONDS / max(_seconds(work, 1), 1e-6)))


# ---- the work, of float32, one thread ----


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _images(*shape: int) -> Any:
    x = empty_images(shape, np.float32)
    x[...] = _numbers(*shape)
    return x


def _small_arrays() -> Callable[[], None]:
    arrays = [_numbers(2**k // 16, 16) for k in range(8, 16) for _ in range(2 ** (15 - k))]

    def work() -> None:
        for x in arrays:
            relu(x)
            softmax.softmax(x, -1)

    return work


def _convolutions(kernel: int, shapes: tuple[tuple[int, int, int, int], ...]) -> Any:
    """Convolutions and the gradients of their filters, of (N, C, K, side)."""
    works = []
    for N, C, K, side in shapes:
        pad = kernel // 2
        windows = Windows.over("tune", (side, side), kernel, 1, pad)
        x, y = [_images(N, n, side, side) for n in (C, K)]
        works.append((x, y, _numbers(K, C, kernel, kernel), windows))

    def work() -> None:
        for x, y, W, windows in works:
            convolution.convolve(x, W, None, windows, 1)
            convolution.gradient(x, y, windows, 1, np.empty_like(W))

    return work


def _transposed() -> Callable[[], None]:
    windows = Windows.over("tune", (64, 64), 2, 2, 0)
    y, W = _images(8, 32, 32, 32), _numbers(32, 12, 2, 2)

    def work() -> None:
        convolution.transpose(y, W, None, windows, 1)

    return work


def _costly_functions() -> Callable[[], None]:
    arrays = [_numbers(2**k) for k in range(1, 9) for _ in range(2 ** (8 - k))]

    def work() -> None:
        for x in arrays:
            erf.BlockedGelu(False).forward(x, False)
            logistic.log1p_exp(x)

    return work


def _attention() -> Callable[[], None]:
    arrays = [_numbers(n, 8, T, 32) for n, T in ((2, 16), (1, 32), (1, 64), (1, 128))]

    def work() -> None:
        for x in arrays:
            attention.BlockedAttention(0.2, False, None, (0, 1, 2, 3)).forward(x, x, x, False)

    return work


def _powers(first: int, end: int) -> list[int]:
    return [2**k for k in range(first, end)]


_WINOGRAD = ((16, 32, 32, 32), (16, 64, 64, 16), (32, 128, 128, 8))
_FEW_TILES = ((1, 16, 16, 8), (1, 32, 32, 14), (2, 64, 64, 8), (8, 32, 32, 8))
_DIRECT = ((16, 20, 48, 14),)
# constant, the values that are tried beside its present one, the work
_WORKS: list[tuple[str, list[int], Callable[[], Callable[[], None]]]] = [
    ("COMPILED_LEAST", _powers(6, 13), _small_arrays),
    ("WINOGRAD_LOOP_BYTES", _powers(18, 23), lambda: _convolutions(3, _WINOGRAD)),
    ("DIRECT_PIXELS", _powers(7, 12), lambda: _convolutions(5, _DIRECT)),
    ("COLUMN_LOOP_BYTES", _powers(17, 22), _transposed),
    ("COSTLY_LEAST", _powers(1, 9), _costly_functions),
    ("ATTENTION_LOOP_MOST", _powers(15, 24), _attention),
    ("WINOGRAD_LOOP_CALL", _powers(16, 25), lambda: _convolutions(3, _FEW_TILES)),
]
