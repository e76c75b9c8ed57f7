"""Losses with parameters: softmax over a binary tree of words, negative sampling and BlackOut with
their tables of words, and a conditional random field with its transition scores.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.functions.activation.softplus import softplus
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.rearranging import transpose_sequence
from mnpar.functions.loss.crf1d import argmax_crf1d, crf1d
from mnpar.functions.loss.sampled import WalkerAlias, black_out, negative_sampling
from mnpar.functions.math.reduction import sum as sum_of
from mnpar.functions.node import array_of
from mnpar.initializers import LeCunUniform, Uniform
from mnpar.initializers.initializer import InitialValue
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable, as_variable


class BinaryHierarchicalSoftmax(Link):
    """−log of the probability of words, each the product of σ(±wᵀx) over the inner nodes on its
    path: + left, − right.

    Args:
        in_size: D.
        tree: nested pairs with words, numbers from 0 on, at the leaves: ``((1, 2), 0)``.
        dtype: of the table; None: ``mnpar.config.dtype``.

    Attributes:
        W: ``(nodes, D)``, w of each inner node; they are numbered from the root on, the left part
            of a node before the right.

    Raises:
        ValueError: a node of the tree is not a pair.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> tree = L.BinaryHierarchicalSoftmax.create_huffman_tree({0: 8, 1: 5, 2: 6, 3: 4})
        >>> tree
        ((3, 1), (2, 0))
        >>> loss = L.BinaryHierarchicalSoftmax(2, tree)
        >>> loss(np.ones((3, 2), "f4"), np.array([0, 3, 1], "i4")).shape
        ()

    Source:
        Morin and Bengio, "Hierarchical probabilistic neural network language model", AISTATS 2005.
    """

    def __init__(self, in_size: int, tree: Any, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        paths, nodes = _paths(tree)
        lengths = [len(paths.get(word, ())) for word in range(max(paths) + 1)]
        self._begins = np.cumsum([0, *lengths])  # where each word's path starts among all
        steps = [step for word in sorted(paths) for step in paths[word]]
        self._nodes = np.array([n for n, _ in steps], "i8")
        self._signs = np.array([s for _, s in steps], "i1")
        self.W = Parameter(Uniform(1, get_dtype(dtype)), (nodes, in_size))

    @staticmethod
    def create_huffman_tree(word_counts: Mapping[int, float]) -> Any:
        """Return the tree in which the mean path is the shortest.

        Args:
            word_counts: how often each word was seen.

        Returns:
            Nested pairs: the rarer part is left.

        Raises:
            ValueError: there is no word.

        Example:
            >>> import mnpar.links as L
            >>> L.BinaryHierarchicalSoftmax.create_huffman_tree({0: 3, 1: 1, 2: 1})
            ((1, 2), 0)
        """
        if not word_counts:
            raise ValueError(
                "create_huffman_tree: word_counts is empty: a tree needs a word or more"
            )
        heap: list[Any] = [(count, i, word) for i, (word, count) in enumerate(word_counts.items())]
        heapq.heapify(heap)
        while len(heap) > 1:
            (a, i, left), (b, j, right) = heapq.heappop(heap), heapq.heappop(heap)
            heapq.heappush(heap, (a + b, min(i, j), (left, right)))
        return heap[0][2]

    def forward(self, x: Variable | Array, t: Variable | Array) -> Variable:
        """Return the sum of the losses of words t (N,), given x (N, D).

        Raises:
            ValueError: the tree has no such word, or shapes do not belong together.
        """
        x = as_variable(x)
        words = array_of(t)
        if x.ndim != 2 or words.shape != x.shape[:1] or words.dtype.kind not in "iu":
            raise ValueError(
                f"BinaryHierarchicalSoftmax: x (N, D) and integers t (N,), not {x.shape} and "
                f"{words.shape}"
            )
        begins, nodes, signs = [x.xp.asarray(a) for a in (self._begins, self._nodes, self._signs)]
        known = (words >= 0) & (words < len(begins) - 1)
        lengths = (begins[1:] - begins[:-1])[words * known] * known
        if words.size and lengths.min() == 0 < len(nodes):
            raise ValueError(
                f"BinaryHierarchicalSoftmax: the tree has no word {int(words[lengths == 0][0])}"
            )
        ends = x.xp.cumsum(lengths)
        total = int(lengths.sum())
        # of each step of all paths
        samples = x.xp.searchsorted(ends, x.xp.arange(total), side="right")
        steps = x.xp.arange(total) - (ends - lengths)[samples] + begins[words[samples]]
        scores = sum_of(get_item(self.W, nodes[steps]) * get_item(x, samples), axis=1)
        return sum_of(softplus(scores * -signs[steps].astype(x.dtype)))


def _paths(tree: Any) -> tuple[dict[int, list[tuple[int, int]]], int]:
    """Return the path to each word: inner nodes from the root on, with 1 where it turns left, −1
    where right; and how many nodes.
    """
    paths: dict[int, list[tuple[int, int]]] = {}
    left_to_do: list[tuple[Any, list[tuple[int, int]]]] = [(tree, [])]
    nodes = 0
    while left_to_do:  # no recursion: the tree of very uneven counts is deep
        node, path = left_to_do.pop()
        if not isinstance(node, tuple):
            paths[int(node)] = path
            continue
        if len(node) != 2:
            raise ValueError(
                f"BinaryHierarchicalSoftmax: a node of the tree is a word or a pair, not {node!r}"
            )
        left_to_do += [(node[1], [*path, (nodes, -1)]), (node[0], [*path, (nodes, 1)])]
        nodes += 1
    return paths, nodes


class NegativeSampling(Link):
    """:func:`mnpar.functions.negative_sampling` with a table of its own.

    Args:
        in_size: D.
        counts: how often each of the V words occurs; words are drawn with probabilities
            proportional to counts ** power.
        sample_size: how many words are drawn for each sample.
        power: see ``counts``.
        dtype: of the table; None: ``mnpar.config.dtype``.

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
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.sample_size = sample_size
        self.sampler = WalkerAlias(np.asarray(counts, "d") ** power)
        self.W = Parameter(np.zeros((len(counts), in_size), get_dtype(dtype)))

    def forward(
        self,
        x: Variable | Array,
        t: Variable | Array,
        reduce: str = "sum",
        *,
        return_samples: bool = False,
    ) -> Any:
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

    def forward(self, x: Variable | Array, t: Variable | Array) -> Variable:
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

    def __init__(self, n_label: int, initial_cost: InitialValue = None) -> None:
        super().__init__()
        self.cost = Parameter(0 if initial_cost is None else initial_cost, (n_label, n_label))

    def forward(
        self,
        xs: Sequence[Variable | Array],
        ys: Sequence[Variable | Array],
        reduce: str = "mean",
        transpose: bool = False,
    ) -> Variable:
        """Return the loss: see :func:`mnpar.functions.crf1d`.

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

    def argmax(
        self, xs: Sequence[Variable | Array], transpose: bool = False
    ) -> tuple[Variable, list[Array]]:
        """Return the scores and labels of the likeliest sequences: see
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


def _longest_first(xs: Sequence[Variable | Array]) -> list[int]:
    return sorted(range(len(xs)), key=lambda i: -len(xs[i]))
