"""Losses with parameters: negative sampling and BlackOut with their word tables, CRF1d with its
transition scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.functions.array.rearranging import transpose_sequence
from mnpar.functions.loss.crf1d import argmax_crf1d, crf1d
from mnpar.functions.loss.sampled import WalkerAlias, black_out, negative_sampling
from mnpar.initializers import LeCunUniform
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable, as_variable


class NegativeSampling(Link):
    """:func:`mnpar.functions.negative_sampling` with a table of its own.

    Args:
        in_size: D.
        counts: how often each of the V words occurs; words are drawn with probabilities
            proportional to counts ** power.
        sample_size: how many words are drawn for each sample.
        power: see ``counts``.
        dtype: of the table; None: ``mnpar.configuration.dtype``.

    Attributes:
        W: ``(V, D)``, zeros at first.
        sampler: a :class:`mnpar.utils.WalkerAlias`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> loss = L.NegativeSampling(2, [3, 1, 2], 5)
        >>> loss(np.ones((4, 2), "f4"), np.array([0, 1, 2, 0], "i4")).shape
        ()
    """

    def __init__(
        self,
        in_size: int,
        counts: Sequence[int],
        sample_size: int,
        power: float = 0.75,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.sample_size = sample_size
        self.sampler = WalkerAlias(np.asarray(counts, "d") ** power)
        self.W = Parameter(np.zeros((len(counts), in_size), get_dtype(dtype)))

    def forward(self, x: Any, t: Any, reduce: str = "sum", *, return_samples: bool = False) -> Any:
        """(N, D), (N,) → 0-d, or (N,)."""
        return negative_sampling(
            x,
            t,
            self.W,
            self.sampler.sample,
            self.sample_size,
            reduce=reduce,
            return_samples=return_samples,
        )


class BlackOut(Link):
    """:func:`mnpar.functions.black_out` with a table of its own.

    Args:
        in_size: D.
        counts: how often each of the V words occurs; words are drawn with probabilities
            proportional to counts.
        sample_size: how many words are drawn for each sample.

    Attributes:
        W: ``(V, D)``.
        sampler: a :class:`mnpar.utils.WalkerAlias`.
        sample_data: if set, the drawn words ``(N, sample_size)``.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.BlackOut(2, [3, 1, 2], 5)(np.ones((4, 2), "f4"), np.array([0, 1, 2, 0], "i4")).shape
        ()
    """

    sample_data: Array | None = None

    def __init__(self, in_size: int, counts: Sequence[int], sample_size: int) -> None:
        super().__init__()
        self.sample_size = sample_size
        self.sampler = WalkerAlias(counts)
        self.W = Parameter(LeCunUniform(), (len(counts), in_size))

    def forward(self, x: Any, t: Any) -> Variable:
        """(N, D), (N,) → 0-d."""
        x = as_variable(x)
        samples = (
            self.sampler.sample((len(x), self.sample_size))
            if self.sample_data is None
            else self.sample_data
        )
        return black_out(x, t, self.W, x.xp.asarray(samples))


class CRF1d(Link):
    """A linear-chain conditional random field over L labels that learns the scores of transitions.

    Args:
        n_label: L.
        initial_cost: initializer of the scores; None: zeros.

    Attributes:
        cost: ``(L, L)``, the score of the transition from a label (row) to a label (column).

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> field = L.CRF1d(2)
        >>> xs, ys = (
        ...     [np.zeros((3, 2), "f4"), np.zeros((1, 2), "f4")],
        ...     [np.zeros(3, "i4"), np.zeros(1, "i4")],
        ... )
        >>> field(xs, ys, transpose=True).shape, field.argmax(xs, transpose=True)[1]
        ((), [array([0, 0, 0], dtype=int32), array([0], dtype=int32)])
    """

    def __init__(self, n_label: int, initial_cost: Any = None) -> None:
        super().__init__()
        self.cost = Parameter(0 if initial_cost is None else initial_cost, (n_label, n_label))

    def forward(
        self, xs: Sequence[Any], ys: Sequence[Any], reduce: str = "mean", transpose: bool = False
    ) -> Variable:
        """The loss: see :func:`mnpar.functions.crf1d`.

        Args:
            xs, ys: step by step, as the function wants them; with ``transpose`` by sequences,
                ``(T_n, L)`` and ``(T_n,)``, in any order. Losses (``reduce='no'``) come with the
                longest sequence first.
            reduce: ``'mean'`` or ``'no'``.
            transpose: see above.
        """
        if transpose:
            order = _longest_first(xs)
            xs, ys = [transpose_sequence([zs[i] for i in order]) for zs in (xs, ys)]
        return crf1d(self.cost, xs, ys, reduce)

    def argmax(self, xs: Sequence[Any], transpose: bool = False) -> tuple[Variable, list[Array]]:
        """The scores and labels of the likeliest sequences: see
        :func:`mnpar.functions.argmax_crf1d`.

        Args:
            xs: as in ``forward``; with ``transpose`` the labels are of each sequence, in the order
                of ``xs``, too; the scores come with the longest sequence first.
            transpose: see above.
        """
        if not transpose:
            return argmax_crf1d(self.cost, xs)
        order = _longest_first(xs)
        score, path = argmax_crf1d(self.cost, transpose_sequence([xs[i] for i in order]))
        labels = [z.array for z in transpose_sequence(path)]
        return score, [labels[order.index(i)] for i in range(len(order))]


def _longest_first(xs: Sequence[Any]) -> list[int]:
    return sorted(range(len(xs)), key=lambda i: -len(xs[i]))
