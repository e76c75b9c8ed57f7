"""Round-robin partitions: which examples a rank has, in batches of a fixed size or of a memory
budget; without communication.

After flashlight's partitionByRoundRobin and dynamicPartitionByRoundRobin;
:func:`mnpar.scatter_index` cuts contiguous parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from mnpar.plans import block


def partition_by_round_robin(
    n: int, rank: int, size: int, batch_size: int = 1, allow_empty: bool = False
) -> list[int]:
    """Return a rank's part: ``batch_size`` examples of each ``size · batch_size`` in a row, and an
    even share of the rest.

    Args:
        n: how many examples there are.
        rank, size: whose part, of how many.
        batch_size: how many each takes at a time.
        allow_empty: share the rest even if it is not enough for every rank; else it is left out
            then, so that all ranks make the same number of steps.

    Returns:
        Indices, in rising order.

    Raises:
        ValueError: a negative number, no such rank.

    Example:
        >>> from mnpar.datasets import partition_by_round_robin
        >>> [partition_by_round_robin(11, rank, 2, 2) for rank in range(2)]
        [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10]]
    """
    _check(n, rank, size, batch_size)
    rounds, rest = divmod(n, size * batch_size)
    mine = [
        i * size * batch_size + rank * batch_size + j
        for i in range(rounds)
        for j in range(batch_size)
    ]
    if rest >= size or allow_empty:
        start, stop = block(rest, size, rank)
        mine += range(n - rest + start, n - rest + stop)
    return mine


def dynamic_partition_by_round_robin(
    lengths: Sequence[float], rank: int, size: int, budget: float, allow_empty: bool = False
) -> tuple[list[int], list[int]]:
    """Batches of examples in a row, each as large as a budget of (longest example) × (examples)
    allows, dealt out by turns.

    Args:
        lengths: of each example: frames, words. One that exceeds the budget is a batch of its own.
        rank, size: whose part, of how many.
        budget: what the memory holds of padded examples.
        allow_empty: deal out the last round even if not every rank gets a batch of it; else it is
            left out then.

    Returns:
        The rank's indices, in rising order, and the sizes of its batches: what
        ``BatchDataset(dataset, sizes)`` takes.

    Raises:
        ValueError: a budget that is not positive, a length below 0, no such rank.

    Example:
        >>> from mnpar.datasets import dynamic_partition_by_round_robin
        >>> dynamic_partition_by_round_robin([2, 4, 1, 2, 3, 7, 4, 3], 0, 2, budget=12)
        ([0, 1, 2, 5], [3, 1])
    """
    _check(len(lengths), rank, size, 1)
    if not budget > 0:
        raise ValueError(f"the budget of a batch must be positive, not {budget}")
    batches: list[list[int]] = []
    longest = 0.0
    for i, length in enumerate(lengths):
        if not length >= 0:
            raise ValueError(
                f"the length of an example must be 0 or more, that of example {i} is {length}"
            )
        longest = max(longest, length)
        if batches and (len(batches[-1]) + 1) * longest <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = length
    if not allow_empty:
        batches = batches[: len(batches) // size * size]
    mine = batches[rank::size]
    return [i for batch in mine for i in batch], [len(batch) for batch in mine]


def _check(n: int, rank: int, size: int, batch_size: int) -> None:
    if n < 0 or batch_size < 1 or not 0 <= rank < size:
        raise ValueError(
            f"rank {rank} of {size} cannot take {batch_size} at a time of {n} examples"
        )
