"""Scatter a data set: each rank receives its part, and only its part.

Names, arguments and the division are ChainerMN's, which broadcasts the whole data set, pickled, and
takes a view. Its default gives every rank the same number of examples, ceil(n / P), so that all
make the same number of steps; if P does not divide n, some examples are then on two ranks. A
:class:`ScatteredDataset` knows which, because an accuracy that counts them twice is wrong.

Arrays are sent as arrays, the rest as one small pickle (:class:`Parcel`). Data sets of mnpar are
taken apart: of images in one array and labels in another, reordered, cut and transformed, the
receiver gets the rows of two arrays that it needs. Other data sets are read example by example on
the sender; one that would rather send file names than the files' contents defines
``take_examples(indices)``, which returns a smaller data set.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import check_root, run_on_root
from mnpar.dataset.mixin import Dataset
from mnpar.dataset.packing import MOST_AXES, Folded, Spec, fold
from mnpar.datasets.combined import TupleDataset
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

    def __init__(self, part: Dataset, begin: int, end: int, total: int, n_duplicates: int) -> None:
        super().__init__(part, 0, end - begin)
        self.begin = begin
        self.end = end
        self.total = total
        self.n_duplicates = n_duplicates

    def without_duplicates(self) -> SubDataset:
        """Return the part without its duplicates: over all ranks, each example of the whole comes
        once. For evaluation.
        """
        return SubDataset(self, self.n_duplicates, len(self))


def scatter_dataset(
    dataset: Dataset,
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
        seed: of the reordering (Chainer's order for the same seed); None draws from a generator
            spawned from the root's (:func:`mnpar.random.spawn`), so that ranks whose generators are
            alike stay so.
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
        part, error = send_parts(dataset, [order[begin:end] for begin, end in cuts], comm)
    else:
        part = receive_part(comm, root)
    run_on_root(comm, root, lambda: _raise(error))
    begin, end = cuts[comm.rank]
    end_before = cuts[comm.rank - 1][1] if comm.rank else 0
    return ScatteredDataset(part, begin, end, n, max(0, end_before - begin))


def _length(dataset: Dataset, max_buf_len: int) -> int:
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


def create_empty_dataset(dataset: Dataset) -> list[tuple[()]]:
    """As many examples, with nothing in them: for a rank that takes part in training and needs no
    data.

    ``concat_examples`` makes ``()`` of such a batch, and the model is called with no arguments.

    Example:
        >>> from mnpar.datasets import create_empty_dataset
        >>> create_empty_dataset([5, 6, 7])
        [(), (), ()]
    """
    return [()] * len(dataset)


TAG = 29_961  # of these messages, unlikely to be used by a program


@dataclass(frozen=True)
class PackedExamples:
    """The chosen examples of a data set, taken apart.

    Example:
        >>> import numpy as np
        >>> from mnpar.datasets import TupleDataset
        >>> from mnpar.datasets.scatter import pick
        >>> parcel = pick(TupleDataset(np.arange(10) ** 2, list("abcdefghij")), np.array([3, 1]))
        >>> parcel.unpack()[:]
        [(np.int64(9), 'd'), (np.int64(1), 'b')]
    """

    spec: Spec
    arrays: list[Array]
    objects: list[Any]

    def unpack(self) -> Any:
        """Return the data set of the chosen examples."""
        return _rebuild(self.spec, iter(self.arrays), iter(self.objects))

    def header(self) -> Array:
        """Return the pickle that is sent before the arrays: spec, number of arrays and objects, as
        a uint8 array.

        Raises:
            TypeError: it cannot be pickled.
        """
        try:
            return np.frombuffer(
                pickle.dumps((self.spec, len(self.arrays), self.objects)), np.uint8
            )
        except Exception as error:
            raise TypeError(
                f"a data set holds what cannot be pickled, and so not be sent: {error}; "
                "transform by a function that a module "
                "defines (no lambda), or scatter the data set underneath, and transform it on "
                "each rank"
            ) from error


def pick(dataset: Dataset, rows: Array) -> PackedExamples:
    """Return the examples ``rows`` (an array of indices) of a data set."""
    arrays: list[Array] = []
    objects: list[Any] = []
    return PackedExamples(_pick(dataset, rows, arrays, objects), arrays, objects)


def _pick(dataset: Any, rows: Array, arrays: list[Array], objects: list[Any]) -> Spec:
    kind = type(dataset)
    if backend.is_array(dataset):
        part = dataset[backend.to_device_of(rows, dataset)]  # a copy, in the order of rows
        simple = dataset.dtype.kind in "biufc" and dataset.ndim <= MOST_AXES + 1
        simple = simple and kind is not np.matrix and not isinstance(dataset, np.ma.MaskedArray)
        (arrays if simple else objects).append(
            part.view(np.ndarray) if simple and isinstance(part, np.ndarray) else part
        )
        return ("array",) if simple else ("object",)
    if kind is TupleDataset:
        return ("tuple", tuple(_pick(inner, rows, arrays, objects) for inner in dataset.datasets))
    if isinstance(dataset, SubDataset) and kind.get_example is SubDataset.get_example:
        rows = rows + dataset.start
        rows = rows if dataset.order is None else np.asarray(dataset.order, np.intp)[rows]
        return _pick(dataset.dataset, rows, arrays, objects)
    if kind is TransformDataset:
        objects.append(dataset.transform)
        return ("transform", _pick(dataset.dataset, rows, arrays, objects))
    if hasattr(dataset, "take_examples"):
        objects.append(dataset.take_examples(rows))
        return ("object",)
    folded = fold([dataset[i] for i in rows.tolist()])
    arrays.extend(folded.arrays)
    objects.extend(folded.objects)
    return ("examples", folded.spec, len(folded.arrays), len(folded.objects), folded.length)


def _rebuild(spec: Spec, arrays: Iterator[Array], objects: Iterator[Any]) -> Any:
    match spec:
        case ("array",):
            return next(arrays)
        case ("object",):
            return next(objects)
        case ("tuple", inners):
            return TupleDataset(*[_rebuild(inner, arrays, objects) for inner in inners])
        case ("transform", inner):
            transform = next(objects)
            return TransformDataset(_rebuild(inner, arrays, objects), transform)
        case ("examples", inner, n_arrays, n_objects, length):
            own = Folded(
                inner,
                [next(arrays) for _ in range(n_arrays)],
                [next(objects) for _ in range(n_objects)],
                length,
            )
            return own.unfold()
    raise ValueError(f"unknown parcel {spec!r}")


def send_parts(
    dataset: Dataset, parts: list[Array], comm: Communicator
) -> tuple[Any, Exception | None]:
    """On the root: send rank r the examples ``parts[r]``, one rank after the other, so that one
    part at a time is in memory.

    Returns:
        The root's own part, and the first error, or None; ranks whose part was not sent get an
        empty message instead.
    """
    own, error = None, None
    for rank, rows in enumerate(parts):
        header, parcel = None, None
        if error is None:
            try:
                parcel = pick(dataset, rows)
                header = None if rank == comm.rank else parcel.header()
            except Exception as raised:
                error = raised
        if rank == comm.rank:
            own = parcel
        elif error is not None or parcel is None:
            comm.send(np.empty(0, np.uint8), rank, TAG)
        else:
            _send(header, parcel.arrays, comm, rank)
    return None if own is None or error is not None else own.unpack(), error


def _send(header: Array | None, arrays: list[Array], comm: Communicator, rank: int) -> None:
    comm.send(header, rank, TAG)
    for array in arrays:
        comm.send(array, rank, TAG)
    comm.recv(rank, TAG)  # the part has arrived, and the copies made for sending are free again


def receive_part(comm: Communicator, root: int) -> Any:
    """On the other ranks: the part that the root hands out to this one; None if the root could
    not.
    """
    header = comm.recv(root, TAG)
    if header.size == 0:
        return None
    spec, n_arrays, objects = pickle.loads(header.tobytes())
    arrays = [comm.recv(root, TAG) for _ in range(n_arrays)]
    comm.send(np.empty(0, np.uint8), root, TAG)
    return PackedExamples(spec, arrays, objects).unpack()
