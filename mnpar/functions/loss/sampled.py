"""Losses over large vocabularies that compare the right word with a few sampled ones: negative
sampling and BlackOut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.activation.softmax import log_softmax
from mnpar.functions.activation.softplus import softplus
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.joining import concat
from mnpar.functions.array.shape import reshape
from mnpar.functions.math.average import mean as mean_of
from mnpar.functions.math.exponential import exp, log
from mnpar.functions.math.matmul import matmul
from mnpar.functions.math.reduction import sum as sum_of
from mnpar.functions.node import check_labels, check_option, show_shapes
from mnpar.random import generator
from mnpar.variable import Variable, as_variable


class WalkerAlias:
    """Draws numbers with given probabilities, each in the same time: an even choice of a cell, then
    one of its two numbers.

    Args:
        probs: what each number's probability is proportional to.

    Raises:
        ValueError: no numbers, or a negative one.

    Example:
        >>> from mnpar.functions.loss.sampled import WalkerAlias
        >>> WalkerAlias([0.0, 1.0]).sample((2, 2))
        array([[1, 1],
               [1, 1]], dtype=int32)

    Source:
        Walker (1977), in the form of Vose, "A linear algorithm for generating random numbers with a
        given distribution" (1991).
    """

    def __init__(self, probs: Sequence[float] | Array) -> None:
        share = np.asarray(probs, "d")
        if share.ndim != 1 or not share.size or share.min() < 0 or not share.sum() > 0:
            raise ValueError(
                f"WalkerAlias: probabilities are some numbers that are not negative, not {probs!r}"
            )
        share = share * (share.size / share.sum())  # 1 fills a cell
        self.threshold = np.ones(share.size)
        self.other = np.arange(share.size)
        small = list(np.flatnonzero(share < 1))
        large = list(np.flatnonzero(share >= 1))
        while small and large:
            i = small.pop()
            j = large[-1]
            self.threshold[i], self.other[i] = share[i], j
            share[j] -= 1 - share[i]
            if share[j] < 1:
                small.append(large.pop())

    def sample(self, shape: int | tuple[int, ...], rng: np.random.Generator | None = None) -> Array:
        """Numbers of this shape, int32, on the host; ``rng``: where chance comes from, mnpar's own
        generator if not given.
        """
        rng = rng or generator()
        cells = rng.integers(0, len(self.threshold), shape)
        y: Array = np.where(rng.random(shape) < self.threshold[cells], cells, self.other[cells])
        return y.astype("i4")


def _products(x: Variable, W: Variable, samples: Array) -> Variable:
    """x_n · W[samples_ns], (N, S)."""
    y = matmul(get_item(W, samples), reshape(x, (*x.shape, 1)))
    return reshape(y, samples.shape)


def _checked(
    who: str, x: Variable | Array, t: Variable | Array, W: Variable | Array, lowest: int
) -> tuple[Variable, Array, Variable]:
    x = as_variable(x)
    labels = as_variable(t).array
    W = as_variable(W)
    if (
        x.ndim != 2
        or W.ndim != 2
        or W.shape[1] != x.shape[1]
        or labels.shape != x.shape[:1]
        or labels.dtype.kind not in "iu"
    ):
        found = show_shapes((x.shape, labels.shape, W.shape))
        raise ValueError(
            f"{who}: x (N, D), integers t (N,) and W (V, D), not {found} with {labels.dtype}"
        )
    check_labels(who, labels, len(W), lowest)
    return x, labels, W


def negative_sampling(
    x: Variable | Array,
    t: Variable | Array,
    W: Variable | Array,
    sampler: Callable[[tuple[int, int]], Array],
    sample_size: int,
    reduce: str = "sum",
    *,
    return_samples: bool = False,
) -> Any:
    """-log σ(x · w_t) - Σ log σ(-x · w_s) over ``sample_size`` drawn words s: word2vec's loss.

    Args:
        x: ``(N, D)``.
        t: the right words ``(N,)``; -1 is ignored.
        W: a row for each word, ``(V, D)``.
        sampler: given a shape, integers that name words:
            ``mnpar.utils.WalkerAlias(counts**0.75).sample``. It is asked for ``(N, sample_size +
            1)``.
        sample_size: how many words are drawn for each of N.
        reduce: ``'sum'``, or ``'no'``.
        return_samples: return the words too, ``(N, 1 + sample_size)``, the right ones first.

    Returns:
        0-d, or ``(N,)``; or a pair with the samples.

    Raises:
        ValueError: shapes do not belong together, a label is no row of W, or ``reduce`` is
            something else.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> draw = lambda shape: np.zeros(shape, "i4")
        >>> F.negative_sampling(
        ...     np.zeros((1, 2)), np.array([1]), np.ones((3, 2)), draw, 1
        ... ).item().__round__(4)
        1.3863

    Source:
        Mikolov et al., "Distributed representations of words and phrases and their
        compositionality", NIPS 2013.
    """
    check_option("negative_sampling", "reduce", reduce, "sum", "no")
    x, labels, W = _checked("negative_sampling", x, t, W, -1)
    xp = x.xp
    samples = backend.to_device_of(sampler((len(x), sample_size + 1)), x.array).copy()
    samples[:, 0] = labels
    sign = xp.ones(sample_size + 1, x.dtype)
    sign[0] = -1
    counted = (labels != -1).astype(x.dtype)
    loss = (
        sum_of(softplus(_products(x, W, xp.where(samples < 0, 0, samples)) * sign), axis=1)
        * counted
    )
    loss = sum_of(loss) if reduce == "sum" else loss
    return (loss, samples) if return_samples else loss


def black_out(
    x: Variable | Array,
    t: Variable | Array,
    W: Variable | Array,
    samples: Variable | Array,
    reduce: str = "mean",
) -> Variable:
    """-log p_t - Σ log(1 - p_s), where p is the softmax over the right word and the drawn ones s
    alone.

    Args:
        x: ``(N, D)``.
        t: the right words ``(N,)``.
        W: a row for each word, ``(V, D)``.
        samples: drawn words ``(N, S)``.
        reduce: ``'mean'``, or ``'no'``.

    Returns:
        0-d, or ``(N,)``.

    Raises:
        ValueError: shapes do not belong together, a label is no row of W, or ``reduce`` is
            something else.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.black_out(
        ...     np.zeros((1, 2)), np.array([1]), np.ones((3, 2)), np.array([[0]])
        ... ).item().__round__(4)
        1.3863

    Source:
        Ji et al., "BlackOut: Speeding up recurrent neural network language models with very large
        vocabularies", arXiv 1511.06909.
    """
    check_option("black_out", "reduce", reduce, "mean", "no")
    x, labels, W = _checked("black_out", x, t, W, 0)
    drawn = as_variable(samples).array
    if drawn.ndim != 2 or len(drawn) != len(x):
        raise ValueError(f"black_out: samples (N, S) for x {x.shape}, not {drawn.shape}")
    right = _products(x, W, labels[:, None])
    others = _products(x, W, drawn)
    logp = log_softmax(concat((right, others)))
    loss = -(logp[:, 0] + sum_of(log(1 - exp(logp[:, 1:])), axis=1))
    return loss if reduce == "no" else mean_of(loss)
