"""Sends a part of a data set from one rank to another: arrays as arrays, the rest as one small
pickle.

Data sets of mnpar are taken apart: of images in one array and labels in another, reordered, cut and
transformed, the receiver gets the rows of two arrays that it needs. Other data sets are read
example by example on the sender; one that would rather send file names than the files' contents
defines ``take_examples(indices)``, which returns a smaller data set.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.dataset.packing import MOST_AXES, Folded, Spec, fold
from mnpar.datasets.sub_dataset import SubDataset
from mnpar.datasets.transform_dataset import TransformDataset
from mnpar.datasets.tuple_dataset import TupleDataset

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

TAG = 29_961  # of these messages, unlikely to be used by a program


@dataclass(frozen=True)
class Parcel:
    """The chosen examples of a data set, taken apart.

    Example:
        >>> import numpy as np
        >>> from mnpar.datasets import TupleDataset
        >>> from mnpar.datasets.parcel import take
        >>> parcel = take(TupleDataset(np.arange(10) ** 2, list("abcdefghij")), np.array([3, 1]))
        >>> parcel.open()[:]
        [(np.int64(9), 'd'), (np.int64(1), 'b')]
    """

    spec: Spec
    arrays: list[Array]
    objects: list[Any]

    def open(self) -> Any:
        """The data set of the chosen examples."""
        return _build(self.spec, iter(self.arrays), iter(self.objects))

    def label(self) -> Array:
        """The pickle that is sent before the arrays: spec, number of arrays and objects, as a uint8
        array.

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


def take(dataset: Any, rows: Array) -> Parcel:
    """The examples ``rows`` (an array of indices) of a data set."""
    arrays: list[Array] = []
    objects: list[Any] = []
    return Parcel(_take(dataset, rows, arrays, objects), arrays, objects)


def _take(dataset: Any, rows: Array, arrays: list[Array], objects: list[Any]) -> Spec:
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
        return ("tuple", tuple(_take(inner, rows, arrays, objects) for inner in dataset.datasets))
    if isinstance(dataset, SubDataset) and kind.get_example is SubDataset.get_example:
        rows = rows + dataset.start
        rows = rows if dataset.order is None else np.asarray(dataset.order, np.intp)[rows]
        return _take(dataset.dataset, rows, arrays, objects)
    if kind is TransformDataset:
        objects.append(dataset.transform)
        return ("transform", _take(dataset.dataset, rows, arrays, objects))
    if hasattr(dataset, "take_examples"):
        objects.append(dataset.take_examples(rows))
        return ("object",)
    folded = fold([dataset[i] for i in rows.tolist()])
    arrays.extend(folded.arrays)
    objects.extend(folded.objects)
    return ("examples", folded.spec, len(folded.arrays), len(folded.objects), folded.length)


def _build(spec: Spec, arrays: Iterator[Array], objects: Iterator[Any]) -> Any:
    match spec:
        case ("array",):
            return next(arrays)
        case ("object",):
            return next(objects)
        case ("tuple", inners):
            return TupleDataset(*[_build(inner, arrays, objects) for inner in inners])
        case ("transform", inner):
            transform = next(objects)
            return TransformDataset(_build(inner, arrays, objects), transform)
        case ("examples", inner, n_arrays, n_objects, length):
            own = Folded(
                inner,
                [next(arrays) for _ in range(n_arrays)],
                [next(objects) for _ in range(n_objects)],
                length,
            )
            return own.unfold()
    raise ValueError(f"unknown parcel {spec!r}")


def hand_out(dataset: Any, parts: list[Array], comm: Communicator) -> tuple[Any, Exception | None]:
    """On the root: send rank r the examples ``parts[r]``, one rank after the other, so that one
    part at a time is in memory.

    Returns:
        The root's own part, and the first error, or None; ranks whose part was not sent get an
        empty message instead.
    """
    own, error = None, None
    for rank, rows in enumerate(parts):
        label, parcel = None, None
        if error is None:
            try:
                parcel = take(dataset, rows)
                label = None if rank == comm.rank else parcel.label()
            except Exception as raised:
                error = raised
        if rank == comm.rank:
            own = parcel
        elif error is not None or parcel is None:
            comm.send(np.empty(0, np.uint8), rank, TAG)
        else:
            _send(label, parcel.arrays, comm, rank)
    return None if own is None or error is not None else own.open(), error


def _send(label: Array | None, arrays: list[Array], comm: Communicator, rank: int) -> None:
    comm.send(label, rank, TAG)
    for array in arrays:
        comm.send(array, rank, TAG)
    comm.recv(rank, TAG)  # the part has arrived, and the copies made for sending are free again


def receive(comm: Communicator, root: int) -> Any:
    """On the other ranks: the part that the root hands out to this one; None if the root could
    not.
    """
    label = comm.recv(root, TAG)
    if label.size == 0:
        return None
    spec, n_arrays, objects = pickle.loads(label.tobytes())
    arrays = [comm.recv(root, TAG) for _ in range(n_arrays)]
    comm.send(np.empty(0, np.uint8), root, TAG)
    return Parcel(spec, arrays, objects).open()
