"""Copies of one model on several ranks, as a communicator sees them: parameters and persistent
values from rank 0, and sums of gradients, by few messages.

A communicator knows arrays and no models, so what it needs of one is a protocol here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import MismatchError, listed

BUCKET = 20 * 2**20  # bytes


class ReplicatingCommunicator(Protocol):
    """The calls of a communicator that are needed here."""

    rank: int
    size: int

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


def initialize_alike(comm: ReplicatingCommunicator, params: Sequence[tuple[str, Any]]) -> None:
    """Initialize parameters that have no array yet on some ranks, with the values of the first rank
    where they have; what has none anywhere keeps none. All ranks call it.

    Args:
        comm: the ranks that hold copies.
        params: (path, parameter) of all; parameters of which only some ranks have copies
            (``param.summed``) are left out.

    Raises:
        MismatchError: paths, shapes or dtypes differ.
    """
    forms = comm.allgather_obj(
        [(path, None if p.array is None else (p.shape, p.dtype.str)) for path, p in params]
    )
    check_paths([[path for path, _ in form] for form in forms], "parameters")
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


def allreduce_gradients(comm: ReplicatingCommunicator, model: Model, scale: float) -> None:
    """Sum each parameter's gradient over ranks and scale it; one that some ranks do not have counts
    as zeros there. All ranks call it.
    """
    params = [param for param in model.params(include_uninit=False) if param.requires_grad]
    here = np.array([param.grad is not None for param in params], np.uint8)
    anywhere = comm.allreduce(here, "max") if params else here
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
