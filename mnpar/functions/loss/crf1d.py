"""Linear-chain conditional random fields: the probability of a sequence of labels, and the most
probable sequence.

A sequence of labels y scores Σ_t x_t[y_t] + Σ_t cost[y_t-1, y_t]. The sum over all sequences is
made step by step (the forward algorithm), in logarithms; the best one by the same recursion with
maxima (Viterbi). Sequences are given step by step, longer ones first, so that those that have ended
are the last rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnpar.backend import Array
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.joining import concat
from mnpar.functions.math.average import mean
from mnpar.functions.math.reduction import logsumexp, max as max_of
from mnpar.functions.node import array_of, check_option, show_shapes
from mnpar.variable import Variable, as_variable


def crf1d(
    cost: Variable | Array, xs: Sequence[Variable | Array], ys: Sequence[Any], reduce: str = "mean"
) -> Variable:
    """The negative logarithm of the probability of label sequences in a linear-chain conditional
    random field.

    Args:
        cost: what a transition scores, ``(L, L)``: from, to.
        xs: what each label scores at each step, a list of ``(n_t, L)``, where n_t sequences reach
            step t: they never grow.
        ys: the labels of each step, a list of ``(n_t,)`` integers.
        reduce: ``'mean'``, over sequences, or ``'no'``.

    Returns:
        0-d, or ``(n_0,)``.

    Raises:
        ValueError: shapes do not belong together, or ``reduce`` is something else.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> xs = [np.zeros((1, 2)), np.zeros((1, 2))]  # four sequences, equally likely
        >>> ys = [np.array([0], "i4"), np.array([1], "i4")]
        >>> F.crf1d(np.zeros((2, 2)), xs, ys).item().__round__(4)  # log 4
        1.3863

    Source:
        Lafferty, McCallum and Pereira, "Conditional random fields", ICML 2001.
    """
    check_option("crf1d", "reduce", reduce, "mean", "no")
    W = as_variable(cost)
    steps = [as_variable(x) for x in xs]
    labels = [array_of(y) for y in ys]
    _check("crf1d", W, steps)
    if [y.shape for y in labels] != [x.shape[:1] for x in steps]:
        raise ValueError(
            f"crf1d: labels {show_shapes([y.shape for y in labels])} for "
            f"{show_shapes([x.shape for x in steps])}"
        )
    alpha = steps[0]
    score = _at(steps[0], labels[0])
    ended: list[tuple[Variable, Variable]] = []
    for x, y, last in zip(steps[1:], labels[1:], labels[:-1], strict=True):
        n = len(x)
        if n < len(alpha):
            ended.append((alpha[n:], score[n:]))
            alpha = alpha[:n]
            score = score[:n]
        alpha = logsumexp(alpha[:, :, None] + W, axis=1) + x
        score = score + _at(x, y) + get_item(W, (last[:n], y))
    parts = [(alpha, score), *reversed(ended)]
    loss = logsumexp(concat([a for a, _ in parts], axis=0), axis=1) - concat(
        [s for _, s in parts], axis=0
    )
    return loss if reduce == "no" else mean(loss)


def argmax_crf1d(
    cost: Variable | Array, xs: Sequence[Variable | Array]
) -> tuple[Variable, list[Array]]:
    """The likeliest label sequences in a linear-chain conditional random field (Viterbi's
    algorithm).

    Args:
        cost, xs: as in :func:`crf1d`.

    Returns:
        The scores of the best sequences ``(n_0,)``, and their labels, step by step, a list of
        ``(n_t,)`` int32.

    Raises:
        ValueError: shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> score, path = F.argmax_crf1d(
        ...     np.eye(2), [np.array([[0.0, 2.0]]), np.array([[0.5, 0.0]])]
        ... )
        >>> score.array, path
        (array([3.]), [array([1], dtype=int32), array([1], dtype=int32)])
    """
    W = as_variable(cost)
    steps = [as_variable(x) for x in xs]
    _check("argmax_crf1d", W, steps)
    alphas, froms = [steps[0]], []
    for x in steps[1:]:
        ways = alphas[-1][: len(x), :, None] + W
        froms.append(ways.array.argmax(axis=1))
        alphas.append(max_of(ways, axis=1) + x)
    # those that end at a step
    ends = [alpha[n:] for alpha, n in zip(alphas, [*[len(x) for x in steps[1:]], 0], strict=True)]
    xp, place = W.xp, ends[-1].array.argmax(axis=1)
    path = [place]
    for chosen, end in zip(reversed(froms), reversed(ends[:-1]), strict=True):
        place = xp.concatenate([chosen[xp.arange(len(place)), place], end.array.argmax(axis=1)])
        path.append(place)
    score = concat([max_of(end, axis=1) for end in reversed(ends)], axis=0)
    return score, [place.astype("i4") for place in reversed(path)]


def _at(x: Variable, labels: Array) -> Variable:
    return get_item(x, (x.xp.arange(len(labels)), labels))


def _check(who: str, cost: Variable, xs: list[Variable]) -> None:
    L = cost.shape[0]
    lengths = [len(x) for x in xs]
    if (
        not xs
        or cost.shape != (L, L)
        or any(x.shape[1:] != (L,) for x in xs)
        or lengths != sorted(lengths, reverse=True)
    ):
        raise ValueError(
            f"{who}: cost (L, L) and steps (n_t, L), one or more, whose n_t never grow; not "
            f"{cost.shape} and "
            f"{show_shapes([x.shape for x in xs])}: sort the sequences, the longest first, and "
            "take F.transpose_sequence of them"
        )
