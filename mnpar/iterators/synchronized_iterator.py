"""The same order on all ranks, agreed on once: every rank reads the same batches itself, and
nothing is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.communicators.communicator import require_communicator
from mnpar.iterators.order_samplers import ShuffleOrderSampler
from mnpar.random import spawn

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


def create_synchronized_iterator(actual_iterator: Any, communicator: Communicator) -> Any:
    """Let the iterators of all ranks shuffle alike, from the beginning. Collective; afterwards no
    rank waits for another.

    Model-parallel ranks that each have the data set (or, where a rank needs none, an empty one of
    the same length) so read the same examples at the same time.

    Args:
        actual_iterator: this rank's iterator, with an attribute ``order_sampler``; one that does
            not shuffle (its ``order_sampler`` is None) keeps its order.
        communicator: the ranks that read alike; all call this.

    Returns:
        ``actual_iterator``, reset; its order sampler draws from ``RandomState(seed)`` with a seed
        of a generator spawned from rank 0's (:func:`mnpar.random.spawn`).

    Raises:
        ValueError: on every rank, if an iterator has no ``order_sampler``, some shuffle or repeat
            and some do not, or data sets or batches are not equally long.

    Example:
        >>> import mnpar
        >>> from mnpar.iterators import SerialIterator, create_synchronized_iterator
        >>> def program(comm):
        ...     iterator = create_synchronized_iterator(SerialIterator(range(100), 4), comm)
        ...     return [iterator.next() for _ in range(50)]
        >>> first, second = mnpar.run(program, ranks=2)
        >>> first == second
        True
    """
    require_communicator(
        communicator, "create_synchronized_iterator(actual_iterator, communicator)"
    )
    seed = int(spawn(1)[0].integers(2**32))  # on all ranks, of which rank 0's counts
    described = communicator.allgather_obj((seed, _describe(actual_iterator)))
    ranks = [description for _, description in described]
    for rank, description in enumerate(ranks):
        if description is None:
            raise ValueError(
                f"rank {rank}: this iterator has no attribute order_sampler, so its order "
                "cannot be synchronized; "
                "create_multi_node_iterator works with any iterator"
            )
        if description != ranks[0]:
            raise ValueError(
                "iterators that are to read alike differ: (shuffles, examples, batch size, "
                f"repeats) is {ranks[0]} on rank 0 "
                f"and {description} on rank {rank}"
            )
    if actual_iterator.order_sampler is not None:
        actual_iterator.order_sampler = ShuffleOrderSampler(np.random.RandomState(described[0][0]))
    actual_iterator.reset()
    return actual_iterator


def _describe(iterator: Any) -> tuple[bool, int | None, int | None, bool | None] | None:
    """Return what must be equal on all ranks; None if the iterator cannot be synchronized."""
    if not hasattr(iterator, "order_sampler") or not hasattr(iterator, "reset"):
        return None
    dataset = getattr(iterator, "dataset", None)
    length = None if dataset is None else len(dataset)
    repeat = getattr(iterator, "repeat", None)
    return iterator.order_sampler is not None, length, getattr(iterator, "batch_size", None), repeat
