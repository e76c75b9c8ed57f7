"""Memory that processes share by a file without a name, so that nothing is left behind whoever
dies.

A batch is written as a head, pickled, and its arrays as bytes after it. The reader's arrays are its
own.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.dataset.packing import Folded, fold

MOST = 1 << 30  # bytes in one system call
SLOT = 1 << 36  # bytes between batches; what was never written takes no memory


def make() -> int:
    """Return a file descriptor."""
    if sys.platform == "linux":
        return os.memfd_create("mnpar")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write(fd: int, data: Any, offset: int) -> int:
    """Write bytes, or anything with a buffer; returns the offset after them."""
    view = memoryview(data).cast("B")
    while len(view):
        n = os.pwrite(fd, view[:MOST], offset)
        view = view[n:]
        offset = offset + n
    return offset


def read(fd: int, view: memoryview, offset: int) -> int:
    """Fill a buffer; returns the offset after what was read."""
    while len(view):
        n = os.preadv(fd, [view[:MOST]], offset)
        if n == 0:
            raise EOFError(f"shared memory ends at byte {offset}, {len(view)} more were expected")
        view = view[n:]
        offset = offset + n
    return offset


def read_bytes(fd: int, n: int, offset: int) -> bytearray:
    """Return the n bytes from an offset on."""
    data = bytearray(n)
    read(fd, memoryview(data), offset)
    return data


def write_examples(fd: int, examples: Sequence[Any], slot: int) -> int:
    """Put a list of examples into a slot; returns the size of its head."""
    folded = fold(examples)
    arrays = [np.asarray(backend.to_host(array), order="C") for array in folded.arrays]
    shapes = [(array.dtype, array.shape) for array in arrays]
    head = pickle.dumps((folded.spec, folded.objects, folded.length, shapes))
    offset = write(fd, head, slot * SLOT)
    for array in arrays:
        if array.size:
            offset = write(fd, array.view(np.uint8) if array.ndim else array.tobytes(), offset)
    return len(head)


def read_examples(fd: int, head: int, slot: int) -> list[Any]:
    """Return the list of examples in a slot, as it was; the arrays of a list are views of one."""
    offset = slot * SLOT
    spec, objects, length, shapes = pickle.loads(read_bytes(fd, head, offset))
    offset += head
    arrays: list[Array] = []
    for dtype, shape in shapes:
        array = np.empty(shape, dtype)
        if array.size:
            offset = read(fd, array.reshape(-1).view(np.uint8).data, offset)
        arrays.append(array)
    return Folded(spec, arrays, objects, length).unfold()


def write_object(fd: int, value: Any) -> tuple[bytes, list[tuple[int, int]]]:
    """Put the arrays of an object into shared memory; returns its pickle without them, and where
    each is.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    offset, places = 0, []
    for buffer in buffers:
        begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        offset = write(fd, buffer.raw(), begin)
        places.append((begin, offset - begin))
    return pickled, places


def read_object(fd: int, pickled: bytes, places: list[tuple[int, int]]) -> Any:
    """Return the object; its arrays lie in the shared memory, what is changed in them only this
    process sees.
    """
    size = max((begin + n for begin, n in places), default=0)
    if not size:
        return pickle.loads(pickled, buffers=[bytearray() for _ in places])
    whole = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY))
    return pickle.loads(pickled, buffers=[whole[begin : begin + n] for begin, n in places])
