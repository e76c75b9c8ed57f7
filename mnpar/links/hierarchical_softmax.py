"""Hierarchical softmax: words are the leaves of a binary tree, and a word's loss costs its path,
not the whole vocabulary.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np

from mnpar.configuration import get_dtype
from mnpar.functions.activation.sigmoid import softplus
from mnpar.functions.array.get_item import get_item
from mnpar.functions.math.reduction import sum as sum_of
from mnpar.functions.node import plain
from mnpar.initializers import Uniform
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable, as_variable


class BinaryHierarchicalSoftmax(Link):
    """−log of the probability of words, each the product of σ(±wᵀx) over the inner nodes on its
    path: + left, − right.

    Args:
        in_size: D.
        tree: nested pairs with words, numbers from 0 on, at the leaves: ``((1, 2), 0)``.
        dtype: of the table; None: ``mnpar.configuration.dtype``.

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

    def __init__(self, in_size: int, tree: Any, dtype: Any = None) -> None:
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
        """The tree in which the mean path is the shortest.

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

    def forward(self, x: Any, t: Any) -> Variable:
        """The sum of the losses of words t (N,), given x (N, D).

        Raises:
            ValueError: the tree has no such word, or shapes do not belong together.
        """
        x = as_variable(x)
        words = plain(t)
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
    """The path to each word: inner nodes from the root on, with 1 where it turns left, −1 where
    right; and how many nodes.
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
