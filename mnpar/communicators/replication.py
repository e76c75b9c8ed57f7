"""Copies of one model on several ranks: few messages give them rank 0's parameters and persistent
values, or sum their gradients.

A communicator knows arrays and no models; the part of a model that it needs is a protocol here.
Values and gradients of two models of one form fit together, so the ranks also compare which model
each of them means (:class:`KnownModels`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary
from zlib import crc32

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import MismatchError, listed

BUCKET = 20 * 2**20  # bytes


class ReplicatingCommunicator(Protocol):
    """The calls of a communicator that are needed here."""

    rank: int
    size: int
    models: KnownModels

    def allgather(self, x: Array) -> tuple[Array, ...]:
        """Return the ranks' arrays."""

    def allgather_obj(self, obj: Any) -> list[Any]:
        """Return the ranks' objects."""

    def bcast_obj(self, obj: Any) -> Any:
        """Return rank 0's object."""

    def bcast(self, x: Array, root: int = 0) -> Array:
        """Return the root's array."""

    def allreduce(self, x: Array, op: str = "sum", out: Array | None = None) -> Array:
        """Return the reduction of the ranks' arrays."""


class Model(Protocol):
    """A link, or what has its methods. (Its parameters are ``mnpar.Parameter``.)"""

    def params(self, include_uninit: bool = True) -> Iterable[Any]:
        """Iterate over the parameters, in the order of their definition."""

    def namedparams(self, include_uninit: bool = True) -> Iterable[tuple[str, Any]]:
        """Iterate over (path, parameter)."""

    def namedlinks(self) -> Iterable[tuple[str, Any]]:
        """Iterate over (path, link)."""


class KnownModels:
    """The models of which the ranks of a communicator hold copies, numbered in the order in which
    the ranks first named them to each other.

    A rank describes a model by a few numbers. From those of all ranks, each of them knows whether
    all mean the same model. A new model is told from another new one by which of the known ones
    were made before it, and which after: ranks make their models in one order (law 5). A model that
    was unpickled is compared with such models alone: its original may be older than the message.
    Two models that are new at the same call cannot be told apart before the next one.
    """

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        # by number, the time at which a model was made, negative: it was unpickled; 0: nobody knows
        self._made: list[int] = []

    def describe(self, model: Model) -> list[int]:
        """Return the number of a model, -1 if it has none yet; 1 if it was made here, -1 if it was
        unpickled, and 0 if nobody knows; the bits of the known ones that were made before it, and
        after it, in the same way; and the bits of those that are still there.
        """
        made = _made(model)
        before = after = 0
        for n, other in enumerate(self._made[:_BITS]):
            if other * made > 0:
                if abs(other) < abs(made):
                    before |= 1 << n
                elif other != made:
                    after |= 1 << n
        living = sum([1 << n for n in self._numbers.values() if n < _BITS])
        return [self._numbers.get(model, -1), (made > 0) - (made < 0), before, after, living]

    def agree(
        self, comm: ReplicatingCommunicator, model: Model, rows: list[list[int]], forms: list[int]
    ) -> None:
        """Number a model that all ranks have described; all ranks call it.

        Args:
            comm: the ranks.
            model: this rank's.
            rows: what the ranks returned from :meth:`describe`, in rank order.
            forms: numbers that are equal for models of one form, in rank order.

        Raises:
            MismatchError: the ranks mean different models; on all ranks.
        """
        known = sorted({row[0] for row in rows if row[0] >= 0})
        # a rank may have made its copy anew, if the one of before is no longer there
        others = [row[-1] for row in rows if row[0] < 0 and known]
        if (
            len(set(forms)) > 1
            or len(known) > 1
            or (not known and _were_made_in_another_order(rows))
            or any([known[0] < _BITS and living >> known[0] & 1 for living in others])
        ):
            words = comm.allgather_obj(describe_model(model))
            lines = [
                f"  rank {rank}: {_ordinal(*row)}, {word}"
                for rank, (row, word) in enumerate(zip(rows, words, strict=True))
            ]
            raise MismatchError("\n".join([_DIFFERENT, *lines, _ORDER]))
        number = known[0] if known else len(self._made)
        self._made[number : number + 1] = [_made(model)]
        self._numbers[model] = number


def _were_made_in_another_order(rows: list[list[int]]) -> bool:
    """Return whether a known model was made before the new one on one rank, and after it on
    another.
    """
    for way in (1, -1):
        of_way = [row for row in rows if row[1] == way]
        for _, _, before, _, _ in of_way:
            if any([before & after for _, _, _, after, _ in of_way]):
                return True
    return False


def describe_model(model: Model) -> str:
    """Return a model's class and first parameters, for messages."""
    params = [
        f"{path} {'of no shape yet' if param.array is None else param.shape}"
        for path, param in model.namedparams()
    ]
    more = f" and {len(params) - 4} more" if len(params) > 4 else ""
    return f"a {type(model).__name__} with {', '.join(params[:4]) or 'no parameters'}{more}"


def _made(model: Model) -> int:
    """Return when the first parameter of a model was made; negative: unpickled; 0: nobody knows."""
    return next((int(param.node.index) for param in model.params()), 0)


def _ordinal(number: int, way: int, before: int, after: int, living: int) -> str:
    if number >= 0:
        return f"model {number + 1} of this communicator"
    verb = "made" if way > 0 else "unpickled"
    return "a new model" + f", {verb} after {before.bit_count()} of those named before" * bool(way)


def initialize_alike(comm: ReplicatingCommunicator, model: Model) -> None:
    """Initialize parameters that have no array yet on some ranks, with the values of the first rank
    where they have; what has none anywhere keeps none. All ranks call it.

    Args:
        comm: the ranks that hold copies.
        model: this rank's; parameters of which only some ranks have copies (``param.summed``) are
            left out.

    Raises:
        MismatchError: paths, shapes or dtypes differ, or the ranks mean different models.
    """
    params = list(model.namedparams())
    told = comm.allgather_obj(
        (
            comm.models.describe(model),
            [(path, None if p.array is None else (p.shape, p.dtype.str)) for path, p in params],
        )
    )
    forms = [form for _, form in told]
    check_paths([[path for path, _ in form] for form in forms], "parameters")
    comm.models.agree(comm, model, [row for row, _ in told], [])
    for i, (path, param) in enumerate(params):
        known = [(rank, form[i][1]) for rank, form in enumerate(forms) if form[i][1] is not None]
        if not known or param.summed is not None:
            continue
        for rank, form in known:
            if form != known[0][1]:
                raise MismatchError(
                    f"{path} is {known[0][1]} on rank {known[0][0]} and {form} on rank {rank}: "
                    "copies of one model have the same shapes and dtypes on all ranks"
                )
        if len(known) < comm.size:
            _broadcast_missing(comm, param, known[0][0], *known[0][1])


def _broadcast_missing(
    comm: ReplicatingCommunicator, param: Any, root: int, shape: tuple[int, ...], dtype: str
) -> None:
    """Broadcast a parameter to the ranks where it has no array yet."""
    missing = param.array is None
    value = comm.bcast(param.array, root=root)
    if missing:
        param.initialize(shape)
        if param.dtype.str != dtype:
            raise MismatchError(
                f"rank {comm.rank}: parameter {param.name} is initialized as {param.dtype}, "
                f"and on rank {root} as "
                f"{np.dtype(dtype)}: set mnpar.config.dtype alike on all ranks"
            )
        backend.copyto(param.array, value)


def broadcast_persistents(comm: ReplicatingCommunicator, model: Model) -> None:
    """Give all ranks rank 0's persistent values; all ranks call it."""
    owners = [
        (f"{path.rstrip('/')}/{name}", link, name)
        for path, link in model.namedlinks()
        for name in link._persistent
    ]
    check_paths(comm.allgather_obj([path for path, _, _ in owners]), "persistent values")
    values = [getattr(link, name) for _, link, name in owners]
    others = comm.bcast_obj([None if backend.is_array(value) else value for value in values])
    for (_, link, name), value, other in zip(owners, values, others, strict=True):
        if backend.is_array(value):
            backend.copyto(value, comm.bcast(value, root=0))
        else:
            setattr(link, name, other)


def check_paths(lists: list[list[str]], what: str) -> None:
    """Raise MismatchError if a rank's list of paths differs from rank 0's."""
    for rank, paths in enumerate(lists):
        if paths != lists[0]:
            known, own = set(lists[0]), set(paths)
            here = listed([p for p in paths if p not in known], none="nothing else")
            there = listed([p for p in lists[0] if p not in own], none="nothing else")
            difference = f"only rank {rank} has {here}, only rank 0 has {there}"
            if known == own:
                i = [a == b for a, b in zip(paths, lists[0], strict=True)].index(False)
                difference = f"number {i} is {paths[i]} on rank {rank}, {lists[0][i]} on rank 0"
            raise MismatchError(
                f"the {what} of ranks 0 and {rank} differ: {difference}. All ranks make the same "
                "model, whose attributes are defined in one order"
            )


def check_same_model(comm: ReplicatingCommunicator, model: Model) -> None:
    """Check that all ranks name the same model; all ranks call it.

    Raises:
        MismatchError: they do not; on all ranks.
    """
    _agree_on(comm, model, list(model.params(include_uninit=False)), [])


def _agree_on(
    comm: ReplicatingCommunicator, model: Model, params: list[Any], told: list[bool]
) -> list[Array]:
    """Check that all ranks name the same model, with these parameters; return what each tells with
    that.
    """
    form = crc32(repr([param.shape for param in params]).encode())
    rows = comm.allgather(np.array([form, *comm.models.describe(model), *told]))
    forms = [int(row[0]) for row in rows]
    comm.models.agree(comm, model, [row[1:6].tolist() for row in rows], forms)
    return [row[6:] for row in rows]


def allreduce_gradients(comm: ReplicatingCommunicator, model: Model, scale: float) -> None:
    """Sum each parameter's gradient over ranks and scale it; one that some ranks do not have counts
    as zeros there. All ranks call it.
    """
    params = [param for param in model.params(include_uninit=False) if param.requires_grad]
    here = [param.grad is not None for param in params]
    anywhere = np.any(_agree_on(comm, model, params, here), axis=0)
    used = [param for param, there in zip(params, anywhere, strict=True) if there]
    for param in used:
        if param.grad is None:
            param.zerograd()
    allreduce_many(comm, [param.grad for param in used], scale)


def allreduce_many(
    comm: ReplicatingCommunicator,
    arrays: Iterable[Array],
    scale: float = 1.0,
    bucket_bytes: int = BUCKET,
) -> None:
    """Sum each of several arrays over ranks and scale it, in place; arrays of one dtype travel
    together. All ranks call it with arrays of the same shapes and dtypes, in the same order.
    """
    groups: dict[str, list[Array]] = {}
    for array in arrays:
        groups.setdefault(array.dtype.str, []).append(array)
    for group in groups.values():
        for bucket in _buckets(group, bucket_bytes):
            _reduce_together(comm, bucket, scale)


def _buckets(arrays: Sequence[Array], room: int) -> Iterable[list[Array]]:
    bucket: list[Array] = []
    size = 0
    for array in arrays:
        if bucket and size + array.nbytes > room:
            yield bucket
            bucket, size = [], 0
        bucket.append(array)
        size += array.nbytes
    if bucket:
        yield bucket


def _reduce_together(comm: ReplicatingCommunicator, arrays: list[Array], scale: float) -> None:
    xp = backend.get_array_module(*arrays)
    alone = len(arrays) == 1 and arrays[0].flags.c_contiguous
    vector = arrays[0] if alone else xp.concatenate([array.ravel() for array in arrays])
    vector = comm.allreduce(vector, out=vector)
    if scale != 1:
        xp.multiply(
            vector,
            scale,
            out=vector,
            casting="unsafe" if vector.dtype.kind in "iu" else "same_kind",
        )
    start = 0
    for array in () if alone else arrays:
        array[...] = vector[start : start + array.size].reshape(array.shape)
        start += array.size


_BITS = 62  # bits of an integer that travels; models beyond them count as dropped

_DIFFERENT = "the ranks name different models in one call:"

_ORDER = (
    "Models of one form would get each other's values or gradients: make them, and name them in "
    "each call, in the same order on all ranks"
)
