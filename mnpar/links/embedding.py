"""Embeddings: a table of vectors, whole on each rank or divided among ranks by its rows, the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mnpar import initializers
from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.functions import (
    embed_id,
    get_item,
    reduce_from,
    reduce_scatter,
)
from mnpar.functions.array.get_item import ScatterAdd
from mnpar.functions.communication.base import communication_hook
from mnpar.functions.divided.features import part_of
from mnpar.initializers import Normal
from mnpar.initializers.initializer import InitialValue
from mnpar.link import Link
from mnpar.links.divided import Divided, initialize_part
from mnpar.links.parallel import require_batch_axis
from mnpar.parameter import Parameter
from mnpar.plans import Box, block
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class EmbedID(Link):
    """A table of vectors, one for each integer (word): an embedding.

    Args:
        in_size: V, the number of rows: integers are 0 … V - 1.
        out_size: D.
        initialW: initializer of W (V, D); None is Normal(1).
        ignore_label: an integer for which the result is zeros.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.EmbedID(10, 3)(np.array([[1, 2]])).shape
        (1, 2, 3)
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        initialW: InitialValue = None,
        ignore_label: int | None = None,
    ) -> None:
        super().__init__()
        self.ignore_label = ignore_label
        self.W = Parameter(
            initializers._get_initializer(initialW, Normal(1.0)), (in_size, out_size)
        )

    def forward(self, x: Variable | Array) -> Variable:
        """Integers of any shape (…) → (…, D)."""
        return embed_id(x, self.W, self.ignore_label)


class VocabularyParallelEmbedID(Divided):
    """An EmbedID of which each rank has a block of the rows: each looks up its own, zeros for the
    others, and they are summed.

    For tied weights, use its W as the output layer of a language model, too:
    :func:`mnpar.functions.linear` gives each rank the scores of its words, for
    :func:`mnpar.functions.vocabulary_parallel_softmax_cross_entropy`. (Megatron-LM: Shoeybi et al.
    2019, arXiv 1909.08053, section 3.)

    Args:
        comm: its ranks share the table; all of them make it and call it.
        in_size: V, the number of rows; there may be fewer rows than ranks.
        out_size: D.
        initialW: initializer of the whole W (V, D); None is Normal(1). Initial weights are those of
            the whole table if all ranks' generators are in the same state
            (:func:`mnpar.random.seed`).
        ignore_label: an integer for which the result is zeros.
        sequence_axis: each rank gets its block of the results along this axis of x; None: every
            rank gets all of them.

    On each rank W is (block of V, D), by :func:`mnpar.plans.block`; in checkpoints it is whole, as
    EmbedID's.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     table = L.VocabularyParallelEmbedID(
        ...         comm, 3, 1, initialW=np.array([[1.0], [10.0], [100.0]])
        ...     )
        ...     y = table(np.array([2, 0, 2]))
        ...     F.sum(y).backward()
        ...     return y.array.ravel().tolist(), table.W.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [([100.0, 1.0, 100.0], [[1.0], [0.0]]), ([100.0, 1.0, 100.0], [[2.0]])]
    """

    def __init__(
        self,
        comm: Communicator,
        in_size: int,
        out_size: int,
        initialW: InitialValue = None,
        ignore_label: int | None = None,
        sequence_axis: int | None = None,
    ) -> None:
        require_communicator(comm, "VocabularyParallelEmbedID(comm, in_size, out_size)")
        super().__init__()
        if in_size < 1 or out_size < 1:
            raise ValueError(
                f"VocabularyParallelEmbedID({in_size}, {out_size}): sizes must be 1 or more"
            )
        self.comm = comm
        self.in_size = in_size
        self.out_size = out_size
        self.ignore_label = ignore_label
        self.sequence_axis = sequence_axis
        self.W = Parameter(initializers._get_initializer(initialW, Normal(1.0)))
        first, last = block(in_size, comm.size, comm.rank)
        initialize_part(self.W, (in_size, out_size), Box((first, 0), (last, out_size)))

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from (
            ("in_size", self.in_size),
            ("out_size", self.out_size),
            ("ranks", self.comm.size),
        )

    def forward(self, x: Variable | Array) -> Variable:
        """Integers of any shape (…), the same on each rank → (…, D), the same on each rank, or this
        rank's block of it.

        Raises:
            ValueError: an integer is not in 0 … V - 1, or x has another dtype.
        """
        hook = communication_hook()
        if hook is not None:
            hook.check_arguments(self.comm, "VocabularyParallelEmbedID", {"x": as_variable(x)})
        y = self._own(x)
        axis = require_batch_axis(self, self.sequence_axis, y.ndim - 1)
        if self.comm.size == 1:
            return y
        return (
            reduce_from(self.comm, y) if axis is None else reduce_scatter(self.comm, y, axis=axis)
        )

    def _own(self, x: Variable | Array) -> Variable:
        """Return the rows that this rank has, zeros for the others."""
        numbers = as_variable(x).array
        if numbers.dtype.kind not in "iu":
            raise ValueError(f"{self}: x names rows by integers, not by {numbers.dtype}")
        known = (numbers >= 0) & (numbers < self.in_size)
        if not (
            known if self.ignore_label is None else known | (numbers == self.ignore_label)
        ).all():
            raise ValueError(
                f"{self}: numbers from {numbers.min()} to {numbers.max()} do not all name a row"
            )
        if self.comm.size == 1:
            return embed_id(numbers, self.W, self.ignore_label)
        first, last = block(self.in_size, self.comm.size, self.comm.rank)
        here = (numbers >= first) & (numbers < last)
        if self.ignore_label is not None:
            here &= numbers != self.ignore_label
        rows = get_item(part_of(self.W), numbers[here].astype(np.int64) - first)
        return ScatterAdd(here, (*numbers.shape, self.out_size)).apply((rows,))[0]
