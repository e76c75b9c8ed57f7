"""A table of words whose rows are divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import initializers
from mnpar.communicators.communicator import needed
from mnpar.functions import embed_id, get_item, reduce_from, reduce_scatter
from mnpar.functions.indexing import ScatterAdd
from mnpar.initializers import Normal
from mnpar.links.parallel_linear import checked_axis
from mnpar.links.parts import Divided, initialize_part
from mnpar.parameter import Parameter
from mnpar.plans import Box, block
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class VocabularyParallelEmbedID(Divided):
    """An EmbedID of which each rank has a block of the rows: it gives those, and zeros for others, and they are summed.

    With :func:`mnpar.functions.linear` of its W, whose scores stay divided, and
    :func:`mnpar.functions.vocabulary_parallel_softmax_cross_entropy`, the same table serves at a language model's other end.
    (Megatron-LM: Shoeybi et al. 2019, arXiv 1909.08053, section 3.)

    Args:
        comm: its ranks share the table; all of them make it and call it.
        in_size: V, how many numbers there are; there may be fewer than ranks.
        out_size: D.
        initialW: initializer of the whole W (V, D); None is Normal(1). It begins as the whole table does where all ranks'
            generators are in the same state (:func:`mnpar.random.seed`).
        ignore_label: a number that stands for zeros.
        sequence_axis: each rank gets its block of what comes out along this axis of the numbers; None: it gets all.

    On each rank W is (block of V, D), by :func:`mnpar.plans.block`; in checkpoints it is whole, as EmbedID's.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     table = L.VocabularyParallelEmbedID(comm, 3, 1, initialW=np.array([[1.0], [10.0], [100.0]]))
        ...     y = table(np.array([2, 0, 2]))
        ...     F.sum(y).backward()
        ...     return y.array.ravel().tolist(), table.W.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [([100.0, 1.0, 100.0], [[1.0], [0.0]]), ([100.0, 1.0, 100.0], [[2.0]])]
    """

    def __init__(
        self, comm: Communicator, in_size: int, out_size: int, initialW: Any = None, ignore_label: int | None = None,
        sequence_axis: int | None = None,
    ) -> None:  # fmt: skip
        needed(comm, "VocabularyParallelEmbedID(comm, in_size, out_size)")
        super().__init__()
        if in_size < 1 or out_size < 1:
            raise ValueError(f"VocabularyParallelEmbedID({in_size}, {out_size}): sizes are 1 or more")
        self.comm, self.in_size, self.out_size, self.ignore_label = comm, in_size, out_size, ignore_label
        self.sequence_axis = sequence_axis
        self.W = Parameter(Normal(1.0) if initialW is None else initializers._get_initializer(initialW))
        first, last = block(in_size, comm.size, comm.rank)
        initialize_part(self.W, (in_size, out_size), Box((first, 0), (last, out_size)))

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        """Names and values to show in ``repr``."""
        yield from (("in_size", self.in_size), ("out_size", self.out_size), ("ranks", self.comm.size))

    def forward(self, x: Any) -> Variable:
        """Numbers of any shape, the same on each rank → that shape and D, the same on each rank, or this rank's block of it.

        Raises:
            ValueError: a number names no row.
        """
        y = self._own(x)
        axis = None if self.sequence_axis is None else checked_axis(self, self.sequence_axis, y.ndim - 1)
        if self.comm.size == 1:
            return y
        return reduce_from(self.comm, y) if axis is None else reduce_scatter(self.comm, y, axis=axis)

    def _own(self, x: Any) -> Variable:
        """The rows that this rank has, zeros for the others."""
        numbers = as_variable(x).array
        if numbers.dtype.kind not in "iu":
            raise ValueError(f"{self}: x names rows by integers, not by {numbers.dtype}")
        known = (numbers >= 0) & (numbers < self.in_size)
        if not (known if self.ignore_label is None else known | (numbers == self.ignore_label)).all():
            raise ValueError(f"{self}: numbers from {numbers.min()} to {numbers.max()} do not all name a row")
        if self.comm.size == 1:
            return embed_id(numbers, self.W, self.ignore_label)
        first, last = block(self.in_size, self.comm.size, self.comm.rank)
        here = (numbers >= first) & (numbers < last)
        if self.ignore_label is not None:
            here &= numbers != self.ignore_label
        rows = get_item(self.W, numbers[here].astype(np.int64) - first)
        return ScatterAdd(here, (*numbers.shape, self.out_size)).apply((rows,))[0]
