"""The same batch on all ranks: one rank draws it and broadcasts it, whatever it is made of.

A batch travels as one small message and its arrays. The message is the state of the master's
iterator in exact 64-bit words (:data:`STATE`) and, only if it is not what it was for the last
batch, the pickled structure of the batch (:mod:`mnpar.dataset.packing`). The end of the data and
errors are such messages too, so all ranks stop together.
"""

from __future__ import annotations

import math
import pickle
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import check_root, dump_error, raise_error
from mnpar.dataset import DatasetMixin, Iterator
from mnpar.dataset.packing import Folded, Spec, fold
from mnpar.datasets.repeats import repeated_rows, scattered_span
from mnpar.errors import MismatchError
from mnpar.iterators.serial_iterator import SerialIterator
from mnpar.serializer import AbstractSerializer, optional_part

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

BEGIN, BATCH, STOP, RESET, SERIALIZE = range(5)  # what all ranks are doing
CALLS = ("create_multi_node_iterator()", "next()", "next()", "reset()", "serialize()")
_KINDS = (tuple, dict, list, int, float, complex, np.generic)  # of examples, beside arrays
STATE = np.dtype(
    [
        ("act", "<i8"),
        ("failed", "<i8"),
        ("epoch", "<i8"),
        ("is_new_epoch", "<i8"),
        ("current_position", "<i8"),
        ("epoch_detail", "<f8"),
        ("previous_epoch_detail", "<f8"),  # NaN: None
        ("dataset_length", "<i8"),  # -1: unknown
        ("batch_size", "<i8"),  # -1: unknown
        ("repeat", "<i8"),
        ("n_arrays", "<i8"),
        ("n_examples", "<i8"),  # of a batch that is a list; -1: it is something else
    ]
)


def create_multi_node_iterator(
    actual_iterator: Any, communicator: Communicator, rank_master: int = 0
) -> MultiNodeIterator:
    """Give every rank the batches of the master's iterator. Collective, like ``next``, ``reset``
    and ``serialize`` of it.

    An example is an array, a number, or a tuple, dict or list, which may nest these and anything
    else that can be pickled; a batch is a list of examples, or has the form of one. All come out as
    they went in, every dtype kept. Arrays and numbers travel as arrays.

    Args:
        actual_iterator: the master's iterator; the other ranks pass None, or an iterator that is
            not looked at.
        communicator: the ranks that get the same batches; all call this.
        rank_master: the rank that draws.

    Returns:
        On every rank an iterator whose ``epoch``, ``is_new_epoch``, ``epoch_detail``,
        ``previous_epoch_detail``, ``current_position``, ``batch_size``, ``repeat`` and
        ``len(dataset)`` are the master's.

    Raises:
        ValueError: there is no rank ``rank_master``, or (on every rank) the master has no iterator,
            or (on this one) this rank has another part of scattered data, which nobody would read.
        TypeError: ``next`` raises it on every rank if an example is a string or another object
            that has no array and no number in it.
        Exception: what the master's iterator raises, ``next`` raises on every rank.

    Example:
        >>> import mnpar
        >>> from mnpar.iterators import SerialIterator, create_multi_node_iterator
        >>> def program(comm):
        ...     mine = (
        ...         SerialIterator([("a", 1), ("b", 2)], 2, shuffle=False)
        ...         if comm.rank == 0
        ...         else None
        ...     )
        ...     iterator = create_multi_node_iterator(mine, comm)
        ...     return iterator.next(), iterator.epoch
        >>> mnpar.run(program, ranks=2)
        [([('a', 1), ('b', 2)], 1), ([('a', 1), ('b', 2)], 1)]
    """
    require_communicator(communicator, "create_multi_node_iterator(actual_iterator, communicator)")
    return MultiNodeIterator(actual_iterator, communicator, rank_master)


class MultiNodeIterator(Iterator):
    """The result of :func:`create_multi_node_iterator`, made of the same arguments: all ranks ask
    it for their batch together.
    """

    def __init__(
        self, actual_iterator: Any, communicator: Communicator, rank_master: int = 0
    ) -> None:
        self.communicator = communicator
        self.rank_master = check_root(communicator, rank_master, "rank_master")
        self.actual_iterator: Any = actual_iterator if communicator.rank == rank_master else None
        self._spec: Spec | None = None  # of the last batch
        self.in_order: bool
        self.repeated: list[int]  # the places of examples that another rank counts, if in order
        self.span: tuple[int, int, int] | None  # the scattered part that is read
        self.in_order, self.repeated, self.span = self._share(BEGIN, self._check)
        own = scattered_span(getattr(actual_iterator, "dataset", None))
        if own and self.span and own[2] == self.span[2] and own[:2] != self.span[:2]:
            begin, end, total = own
            raise ValueError(
                f"rank {communicator.rank}: nobody would read this rank's part of the data, "
                f"examples {begin} … {end - 1} of {total}: all ranks get the batches of rank "
                f"{rank_master}'s iterator. Give that one the whole data set, or scatter it over "
                "other ranks than those that share batches"
            )

    def _check(self) -> tuple[bool, list[int], tuple[int, int, int] | None]:
        if not hasattr(self.actual_iterator, "__next__"):
            given = (
                "None"
                if self.actual_iterator is None
                else f"a {type(self.actual_iterator).__name__}"
            )
            raise ValueError(f"the master of a multi-node iterator needs an iterator, not {given}")
        it = self.actual_iterator
        span = scattered_span(getattr(it, "dataset", None))
        if not isinstance(it, SerialIterator) or it.order_sampler is not None:
            return False, [], span
        try:
            return True, repeated_rows(it.dataset).tolist(), span
        except ValueError:  # for an evaluation to raise: training repeats them
            return False, [], span

    def __next__(self) -> Any:
        return self._share(BATCH, self._draw)

    def _draw(self) -> Any:
        batch = next(self.actual_iterator)
        _check_examples(batch if type(batch) is list else [batch])
        return batch

    def reset(self) -> None:
        """Go back to the beginning. Collective."""
        self._share(RESET, lambda: self.actual_iterator.reset())

    def finalize(self) -> None:
        """Finalize the master's iterator; no rank waits for another."""
        if hasattr(self.actual_iterator, "finalize"):
            self.actual_iterator.finalize()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Write or read the state of the master's iterator. Collective.

        Writing, every rank writes the master's state, so that a plain iterator can go on from any
        rank's file. Reading, the master's file counts.
        """
        recorder = _Recorder(serializer)
        entries = self._share(SERIALIZE, lambda: self._serialize_master(recorder))
        if self.actual_iterator is None:
            recorder.replay(entries)

    def _serialize_master(self, recorder: _Recorder) -> list[tuple[tuple[str, ...], Any]]:
        self.actual_iterator.serialize(recorder)
        return recorder.entries

    # ---- the exchange ----

    def _share(self, act: int, work: Callable[[], Any]) -> Any:
        """Return, on every rank, what ``work`` returns on the master; if it raises there, raise on
        every rank.
        """
        if self.communicator.rank == self.rank_master:
            return self._send(act, work)
        message = self.communicator.bcast(None, self.rank_master)
        state = message[: STATE.itemsize].view(STATE)[0]
        pickled = message[STATE.itemsize :].tobytes()
        if CALLS[state["act"]] != CALLS[act]:
            raise MismatchError(
                f"rank {self.communicator.rank} called {CALLS[act]} of a multi-node iterator, "
                "its master, rank "
                f"{self.rank_master}, called {CALLS[state['act']]}: all ranks make the same "
                "calls in the same order"
            )
        if state["failed"]:
            raise_error(pickled, self.rank_master)
        self._state = state
        if state["act"] == STOP:
            raise StopIteration
        return self._receive(state, pickled)

    def _send(self, act: int, work: Callable[[], Any]) -> Any:
        """Work, and tell the other ranks: the master's side."""
        result = None
        folded = Folded((), [], [], 0)
        pickled = b""
        error: Exception | None = None
        try:
            result = work()
            folded, pickled = self._pack(result)
        except StopIteration as raised:
            act, error = STOP, raised
        except Exception as raised:
            error = raised
            pickled = dump_error(raised)
        failed = error is not None and act != STOP
        state = self._describe(act, failed, folded)
        message = np.frombuffer(state.tobytes() + pickled, np.uint8)
        self.communicator.bcast(message, self.rank_master)
        if not failed:
            self._state = state[0]
        if error is not None:
            raise error
        for array in folded.arrays:
            self.communicator.bcast(array, self.rank_master)
        return result

    def _pack(self, result: Any) -> tuple[Folded, bytes]:
        """Return a batch taken apart, and the pickle of what the other ranks do not know yet."""
        folded = fold(result if type(result) is list else [result])
        length = folded.length if type(result) is list else -1
        folded = Folded(folded.spec, folded.arrays, folded.objects, length)
        if folded.spec == self._spec and not folded.objects:
            return folded, b""
        pickled = pickle.dumps((folded.spec, folded.objects))
        self._spec = folded.spec
        return folded, pickled

    def _receive(self, state: Any, pickled: bytes) -> Any:
        """Return the batch, put together on another rank."""
        objects: list[Any] = []
        if pickled:
            self._spec, objects = pickle.loads(pickled)
        assert self._spec is not None  # the first batch brings it
        arrays = [self.communicator.bcast(None, self.rank_master) for _ in range(state["n_arrays"])]
        length = int(state["n_examples"])
        examples = Folded(self._spec, arrays, objects, abs(length)).unfold()
        return examples if length >= 0 else examples[0]

    def _describe(self, act: int, failed: bool, folded: Folded) -> Array:
        it = self.actual_iterator
        dataset: Any = getattr(it, "dataset", None)
        previous = getattr(it, "previous_epoch_detail", None)
        row = (
            act,
            failed,
            getattr(it, "epoch", 0),
            getattr(it, "is_new_epoch", False),
            getattr(it, "current_position", 0),
            getattr(it, "epoch_detail", 0.0),
            math.nan if previous is None else previous,
            len(dataset) if hasattr(dataset, "__len__") else -1,
            getattr(it, "batch_size", -1),
            getattr(it, "repeat", True),
            len(folded.arrays),
            folded.length,
        )
        return np.array([row], STATE)

    # ---- the master's state ----

    @property
    def epoch(self) -> int:
        """Complete sweeps so far."""
        return int(self._state["epoch"])

    @property
    def is_new_epoch(self) -> bool:
        """Return whether the last batch completed a sweep."""
        return bool(self._state["is_new_epoch"])

    @property
    def current_position(self) -> int:
        """Examples read in this sweep."""
        return int(self._state["current_position"])

    @property
    def epoch_detail(self) -> float:
        """Sweeps so far, as a fraction."""
        return float(self._state["epoch_detail"])

    @property
    def previous_epoch_detail(self) -> float | None:
        """``epoch_detail`` one batch ago; None before the first batch."""
        previous = float(self._state["previous_epoch_detail"])
        return None if math.isnan(previous) else previous

    @property
    def batch_size(self) -> int | None:
        """The master's batch size; None if its iterator has none."""
        size = int(self._state["batch_size"])
        return None if size < 0 else size

    @property
    def repeat(self) -> bool:
        """Return whether the master's iterator goes on for ever."""
        return bool(self._state["repeat"])

    @property
    def dataset(self) -> Any:
        """The master's data set; on the other ranks one of the same length whose examples only the
        master can read.
        """
        if self.communicator.rank == self.rank_master:
            return self.actual_iterator.dataset
        length = int(self._state["dataset_length"])
        if length < 0:
            raise AttributeError("the master's iterator has no data set with a length")
        return RemoteDataset(length, self.rank_master)


def _check_examples(examples: list[Any]) -> None:
    """Raise TypeError for an example that no model could be given."""
    kinds = dict.fromkeys(map(type, examples))
    for kind in kinds:
        if issubclass(kind, _KINDS):
            continue
        example = next(example for example in examples if type(example) is kind)
        if not backend.is_array(example):
            raise TypeError(
                "a multi-node iterator sends examples that are arrays, numbers, or tuples, dicts "
                f"and lists of these; this one is a {kind.__name__}, {reprlib.repr(example)}: "
                "transform the data set (TransformDataset), or put the example into a tuple"
            )


class RemoteDataset(DatasetMixin):
    """Stands for a data set on another rank: its length is known here."""

    def __init__(self, length: int, rank: int) -> None:
        self.length = length
        self.rank = rank

    def __len__(self) -> int:
        return self.length

    def get_example(self, i: int) -> Any:
        raise RuntimeError(
            f"example {i} is on rank {self.rank}: take batches from the multi-node iterator, "
            "on all ranks"
        )


class _Recorder:
    """A serializer that passes everything on, and keeps it for the other ranks."""

    def __init__(
        self,
        serializer: AbstractSerializer,
        path: tuple[str, ...] = (),
        entries: list[Any] | None = None,
    ) -> None:
        self.serializer = serializer
        self.path = path
        self.entries: list[tuple[tuple[str, ...], Any]] = [] if entries is None else entries

    def __getitem__(self, key: str) -> _Recorder:
        part = optional_part(self.serializer, key)
        if part is None:
            raise NotImplementedError(f"{type(self.serializer).__name__} has no part {key!r}")
        return _Recorder(part, (*self.path, key), self.entries)

    def __call__(self, key: str, value: Any) -> Any:
        result = self.serializer(key, value)
        self.entries.append(((*self.path, key), value if result is None else result))
        return result

    def replay(self, entries: list[tuple[tuple[str, ...], Any]]) -> None:
        """Write the same entries; where they are read, what this rank's file says does not
        matter.
        """
        for path, value in entries:
            serializer = self.serializer
            for key in path[:-1]:
                serializer = serializer[key]
            try:
                serializer(path[-1], value)
            except KeyError:  # reading, and only the master wrote
                continue
