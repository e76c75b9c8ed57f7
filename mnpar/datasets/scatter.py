"""Scatters a data set: each rank receives its part, and only its part.

Names, arguments and the division are ChainerMN's, which broadcasts the whole data set, pickled, and
takes a view. Its default gives every rank the same number of examples, ceil(n / P), so that all
make the same number of steps; if P does not divide n, some examples are then on two ranks. A
:class:`ScatteredDataset` knows which, because an accuracy that counts them twice is wrong.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import check_root, run_on_root
from mnpar.datasets.parcel import hand_out, receive
from mnpar.datasets.sub_dataset import SubDataset, permutation
from mnpar.datasets.transform_dataset import TransformDataset

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


class DataSizeError(RuntimeError):
    """ChainerMN's error for data sets too large to send; kept for programs that catch it: mnpar has
    no such limit.
    """


class ScatteredDataset(SubDataset):
    """The examples of one rank, and their place in the whole data set.

    Attributes:
        begin, end: the rank has the examples ``begin … end - 1`` of the whole (of its reordering,
            if it was shuffled).
        total: how many examples the whole has.
        n_duplicates: how many examples, the first ones of this part, are also the last ones of the
            rank before. Over all ranks, ``len(part) - part.n_duplicates`` adds up to ``total``.
    """

    def __init__(self, part: Any, begin: int, end: int, total: int, n_duplicates: int) -> None:
        super().__init__(part, 0, end - begin)
        self.begin = begin
        self.end = end
        self.total = total
        self.n_duplicates = n_duplicates

    def without_duplicates(self) -> SubDataset:
        """The part without its duplicates: over all ranks, each example of the whole comes once.
        For evaluation.
        """
        return SubDataset(self, self.n_duplicates, len(self))


def repeated_examples(dataset: Any) -> int:
    """How many examples, the first ones, the rank before has too: of a :class:`ScatteredDataset`,
    or of what transforms one.
    """
    while isinstance(dataset, TransformDataset):
        dataset = dataset.dataset
    return dataset.n_duplicates if isinstance(dataset, ScatteredDataset) else 0


def scatter_dataset(
    dataset: Any,
    comm: Communicator,
    root: int = 0,
    shuffle: bool = False,
    seed: int | None = None,
    max_buf_len: int = 256 * 1024 * 1024,
    *,
    force_equal_length: bool = True,
) -> ScatteredDataset:
    """Send each rank its part of the root's data set; arrays travel as arrays, nobody receives the
    whole. Collective.

    Args:
        dataset: on the root: an array, a TupleDataset of arrays, a list of examples, anything with
            ``len`` and ``[i]``. On the other ranks None. TupleDataset, SubDataset and
            TransformDataset are looked through; other classes are read example by example on the
            root, unless they define ``take_examples(indices)`` (a data set of those examples, which
            can be pickled). A tuple or list is a sequence of examples, as everywhere.
        comm: the ranks that share the data set; all call this.
        root: the rank whose arguments count.
        shuffle: whether the examples are reordered before they are cut.
        seed: of the reordering (Chainer's order for the same seed); None draws from the root's
            generator (:func:`mnpar.random.seed`).
        max_buf_len: ChainerMN's; must be positive, any size goes.
        force_equal_length: True, ChainerMN's default: every rank gets ceil(n / P) examples, some
            are on two ranks (``n_duplicates``, ``without_duplicates()``), which an evaluation over
            the ranks counts once (:func:`mnpar.create_multi_node_evaluator`). False: each example
            on one rank, the first n mod P ranks have one more, and with n < P some have none. See
            :func:`scatter_index` for the numbers.

    Returns:
        On rank r its part: a copy, in a :class:`ScatteredDataset`.

    Raises:
        TypeError: the root's data set is None or has no length.
        ValueError: ``root`` or ``max_buf_len`` is out of range.
        Exception: what reading an example raised. Whatever the root raises, every rank raises.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.datasets import scatter_dataset
        >>> def program(comm):
        ...     part = scatter_dataset(np.arange(10) if comm.rank == 0 else None, comm)
        ...     return [int(x) for x in part], part.n_duplicates
        >>> mnpar.run(program, ranks=3)
        [([0, 1, 2, 3], 0), ([3, 4, 5, 6], 1), ([6, 7, 8, 9], 1)]
    """
    require_communicator(comm, "scatter_dataset(dataset, comm)")
    check_root(comm, root)
    order: Any = None  # on the root

    def plan() -> tuple[int, bool]:
        nonlocal order
        n = _length(dataset, max_buf_len)
        order = permutation(n, seed) if shuffle else np.arange(n)
        return n, bool(force_equal_length)

    n, equal = run_on_root(comm, root, plan)
    cuts = spans(n, comm.size, equal)
    error: Exception | None = None
    if comm.rank == root:
        part, error = hand_out(dataset, [order[begin:end] for begin, end in cuts], comm)
    else:
        part = receive(comm, root)
    run_on_root(comm, root, lambda: _raise(error))
    begin, end = cuts[comm.rank]
    end_before = cuts[comm.rank - 1][1] if comm.rank else 0
    return ScatteredDataset(part, begin, end, n, max(0, end_before - begin))


def _length(dataset: Any, max_buf_len: int) -> int:
    if dataset is None:
        raise TypeError(
            "scatter_dataset got None as the data set of the root; the root passes it, the "
            "others pass None"
        )
    if max_buf_len <= 0:
        raise ValueError(f"max_buf_len = {max_buf_len}: it must be positive")
    try:
        return len(dataset)
    except TypeError:
        raise TypeError(
            "scatter_dataset needs to know how many examples there are, and a "
            f"{type(dataset).__name__} has no length: "
            "make a list of it"
        ) from None


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def spans(n: int, size: int, equal: bool) -> list[tuple[int, int]]:
    """(begin, end) of each rank, as :func:`scatter_index` gives them."""
    if equal:
        return [(n * rank // size, n * rank // size + -(-n // size)) for rank in range(size)]
    most, rest = divmod(n, size)
    begins = [rank * most + min(rank, rest) for rank in range(size + 1)]
    return list(pairwise(begins))


def scatter_index(
    n_total_samples: int, comm: Communicator, root: int = 0, *, force_equal_length: bool = True
) -> tuple[int, int]:
    """Cut 0 … n - 1 into parts: for data that every rank can read on its own. Collective.

    Args:
        n_total_samples: n; the root's counts.
        comm: the ranks that share; all call this.
        root: the rank whose arguments count.
        force_equal_length: True: every rank gets ceil(n / P), starting at floor(n · rank / P): 10
            over 3 ranks are (0, 4), (3, 7), (6, 10). False: each index on one rank: (0, 4), (4, 7),
            (7, 10).

    Returns:
        ``(begin, end)`` of this rank, end not counted.

    Raises:
        ValueError: n is negative (on every rank), or there is no such root.
        TypeError: n is no integer (on every rank).

    Example:
        >>> import mnpar
        >>> from mnpar.datasets import scatter_index
        >>> mnpar.run(lambda comm: scatter_index(10, comm, force_equal_length=False), ranks=3)
        [(0, 4), (4, 7), (7, 10)]
    """
    require_communicator(comm, "scatter_index(n_total_samples, comm)")
    check_root(comm, root)
    n, equal = run_on_root(comm, root, lambda: (_count(n_total_samples), bool(force_equal_length)))
    return spans(n, comm.size, equal)[comm.rank]


def _count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"scatter_index cuts a number of samples, not {n!r}")
    if n < 0:
        raise ValueError(f"scatter_index cannot cut {n} samples: 0 or more")
    return int(n)


def create_empty_dataset(dataset: Any) -> list[tuple[()]]:
    """As many examples, with nothing in them: for a rank that takes part in training and needs no
    data.

    ``concat_examples`` makes ``()`` of such a batch, and the model is called with no arguments.

    Example:
        >>> from mnpar.datasets import create_empty_dataset
        >>> create_empty_dataset([5, 6, 7])
        [(), (), ()]
    """
    return [()] * len(dataset)
