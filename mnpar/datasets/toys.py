"""Images that are drawn here, without files or a network: circles against ellipses, and noisy
patterns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.dataset.mixin import Dataset
from mnpar.datasets.combined import TupleDataset


def get_toy_images(
    n_train: int = 128,
    n_test: int = 128,
    size: int = 32,
    channels: int = 3,
    *,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    seed: int = 0,
) -> tuple[Dataset, Dataset]:
    """Circles (label 0) and ellipses (label 1) of random place, size and colour: can a network tell
    round from oblong?

    After neon's ToyImages, on which its distributed layers were checked.

    Args:
        n_train, n_test: how many images; every second one is an ellipse.
        size: height and width, 8 or more.
        channels: 1 or more, each with a brightness of its own.
        dtype: of the images, whose pixels lie in 0 … 1; None is ``mnpar.config.dtype``.
        label_dtype: of the labels.
        seed: the same seed gives the same images, on every rank.

    Returns:
        ``(train, test)`` of pairs (image (channels, size, size), label).

    Raises:
        ValueError: a number is too small.

    Example:
        >>> from mnpar.datasets import get_toy_images
        >>> train, test = get_toy_images(4, 2)
        >>> [int(label) for _, label in train], train[0][0].shape
        ([0, 1, 0, 1], (3, 32, 32))
    """
    _check(
        "get_toy_images",
        n_train=(n_train, 0),
        n_test=(n_test, 0),
        size=(size, 8),
        channels=(channels, 1),
    )
    rng = np.random.default_rng(seed)

    def draw(n: int) -> TupleDataset:
        labels = np.arange(n) % 2
        radius = rng.uniform(0.22, 0.36, n) * size
        ratio = np.where(labels == 1, rng.uniform(1.6, 2.2, n), 1.0)  # of the axes
        # so that areas do not tell
        long = radius * np.sqrt(ratio)
        short = radius / np.sqrt(ratio)
        middle = size / 2 - 0.5 + rng.uniform(-0.08, 0.08, (2, n)) * size
        y, x = [
            np.arange(size).reshape(shape) - m[:, None, None]
            for shape, m in zip([(size, 1), (1, size)], middle, strict=True)
        ]
        turn = rng.uniform(0, np.pi, n)[:, None, None]
        u = np.cos(turn) * x + np.sin(turn) * y
        v = np.cos(turn) * y - np.sin(turn) * x
        away = np.sqrt((u / long[:, None, None]) ** 2 + (v / short[:, None, None]) ** 2)
        # (n, 1, size, size), with a soft edge
        inside = np.clip((1 - away) * short[:, None, None] + 0.5, 0, 1)[:, None]
        bright = rng.uniform(0.55, 1, (n, channels, 1, 1))
        dark = rng.uniform(0, 0.35, (n, channels, 1, 1))
        images = dark + (bright - dark) * inside + rng.normal(0, 0.03, (n, channels, size, size))
        return TupleDataset(
            np.clip(images, 0, 1).astype(get_dtype(dtype)), labels.astype(label_dtype)
        )

    return draw(n_train), draw(n_test)


def get_toy_segmentation(
    n_train: int = 96,
    n_test: int = 24,
    size: int = 64,
    *,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    seed: int = 0,
) -> tuple[Dataset, Dataset]:
    """Return images with a few circles and ellipses of one brightness on noise, and what each pixel
    belongs to: nothing (0), a circle (1), an ellipse (2).

    Round and oblong cannot be told apart from a few pixels: a network has to see some distance.

    Args:
        n_train, n_test: how many images.
        size: height and width, 8 or more.
        dtype: of the images; None is ``mnpar.config.dtype``.
        label_dtype: of the labels.
        seed: the same seed gives the same images, on every rank.

    Returns:
        ``(train, test)`` of pairs (image (1, size, size), labels (size, size)).

    Raises:
        ValueError: a number is too small.

    Example:
        >>> from mnpar.datasets import get_toy_segmentation
        >>> train, test = get_toy_segmentation(4, 2)
        >>> image, labels = train[0]
        >>> image.shape, labels.shape, int(labels.max())
        ((1, 64, 64), (64, 64), 2)
    """
    _check("get_toy_segmentation", n_train=(n_train, 0), n_test=(n_test, 0), size=(size, 8))
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]

    def draw(n: int) -> TupleDataset:
        images = rng.normal(0, 0.15, (n, 1, size, size))
        labels = np.zeros((n, size, size), label_dtype)
        for image, label in zip(images[:, 0], labels, strict=True):
            for _ in range(3):
                kind = rng.integers(1, 3)
                radius = rng.uniform(0.09, 0.13) * size
                ratio = 1.0 if kind == 1 else rng.uniform(2.2, 2.8)  # of the axes
                middle_y, middle_x = rng.uniform(0.18 * size, 0.82 * size, 2)
                turn = rng.uniform(0, np.pi)
                u = np.cos(turn) * (x - middle_x) + np.sin(turn) * (y - middle_y)
                v = np.cos(turn) * (y - middle_y) - np.sin(turn) * (x - middle_x)
                away = u**2 / ratio + v**2 * ratio
                if (label[away < (1.5 * radius) ** 2] == 0).all():  # none lies on another
                    image[away < radius**2] += 1
                    label[away < radius**2] = kind
        return TupleDataset(images.astype(get_dtype(dtype)), labels)

    return draw(n_train), draw(n_test)


def get_synthetic_images(
    n_train: int = 1000,
    n_test: int = 200,
    shape: tuple[int, ...] = (1, 28, 28),
    n_classes: int = 10,
    noise: float = 0.3,
    *,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    seed: int = 0,
) -> tuple[Dataset, Dataset]:
    """Return a smooth random pattern for each class, shifted a little and covered with noise:
    learnable, of any shape.

    Args:
        n_train, n_test: how many images; the classes take turns.
        shape: of an image: channels, then one or more spatial axes.
        n_classes: 1 or more.
        noise: its standard deviation; the patterns' is 1.
        dtype: of the images; None is ``mnpar.config.dtype``.
        label_dtype: of the labels.
        seed: the same seed gives the same images, on every rank.

    Returns:
        ``(train, test)`` of pairs (image, label).

    Raises:
        ValueError: a number is too small, or the shape has no spatial axes.

    Example:
        >>> from mnpar.datasets import get_synthetic_images
        >>> train, test = get_synthetic_images(12, 4, shape=(3, 32, 32))
        >>> len(train), test[3][0].shape, int(test[3][1])
        (12, (3, 32, 32), 3)
    """
    _check(
        "get_synthetic_images", n_train=(n_train, 0), n_test=(n_test, 0), n_classes=(n_classes, 1)
    )
    if len(shape) < 2 or min(shape) < 1:
        raise ValueError(
            f"get_synthetic_images: shape {shape} must be channels and one or more spatial axes"
        )
    rng = np.random.default_rng(seed)
    patterns = _smooth(rng.standard_normal((n_classes, *shape)))

    def draw(n: int) -> TupleDataset:
        labels = np.arange(n) % n_classes
        images = noise * rng.standard_normal((n, *shape))
        axes = tuple(range(1, len(shape)))
        for image, label, shift in zip(
            images, labels, rng.integers(-2, 3, (n, len(axes))), strict=True
        ):
            image += np.roll(patterns[label], shift, axes)
        return TupleDataset(images.astype(get_dtype(dtype)), labels.astype(label_dtype))

    return draw(n_train), draw(n_test)


def _smooth(patterns: Array, width: float = 0.06) -> Array:
    """Noise without its high frequencies, with standard deviation 1."""
    axes = tuple(range(2, patterns.ndim))
    waves = np.fft.fftn(patterns, axes=axes)
    for axis in axes:
        n = patterns.shape[axis]
        low = np.exp(-0.5 * (np.fft.fftfreq(n) * n * 2 * np.pi * width) ** 2)
        waves = waves * low.reshape(-1, *[1] * (patterns.ndim - axis - 1))
    smooth = np.fft.ifftn(waves, axes=axes).real
    result: Array = smooth / np.maximum(smooth.std(axis=axes, keepdims=True), 1e-12)
    return result


def _check(who: str, **numbers: tuple[int, int]) -> None:
    for name, (value, least) in numbers.items():
        if value < least:
            raise ValueError(f"{who}: {name} is at least {least}, not {value}")
