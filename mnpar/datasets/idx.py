"""IDX files, the format of MNIST: a magic number, the sizes, the numbers.

Bytes 0 and 1 are zero, byte 2 is the type, byte 3 the number of axes; then one big-endian 32-bit
size per axis; then the numbers, big-endian, the last axis running fastest (described at
http://yann.lecun.com/exdb/mnist). Data files come from elsewhere, so nothing that a header says is
believed before it is compared with the size of the file: a damaged file costs an error message, not
memory. Nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.errors import DatasetError

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# times smaller is the best that deflate can do (https://zlib.net/zlib_tech.html)
MOST_DEFLATE = 1032
CHUNK = 1 << 20


def read_idx(
    path: str | Path,
    *,
    dtype: DTypeLike | None = None,
    shape: tuple[int | None, ...] | None = None,
    max_bytes: int = 1 << 30,
) -> Array:
    """Read an IDX file, gzipped or not (its first bytes tell, not its name), and check every byte
    of its form.

    Args:
        path: the file.
        dtype: what its numbers must be; None takes any.
        shape: what its sizes must be; a None in it takes any size. None takes any shape.
        max_bytes: how much memory the numbers may take.

    Returns:
        The array, in the machine's byte order. Local: the rank reads on its own.

    Raises:
        DatasetError: the file is empty, truncated, too long, no IDX file, or holds another type or
            shape; the message gives file, offset (in the unpacked data), what was expected and what
            is there.
        OSError: the file cannot be read.

    Example:
        >>> import tempfile, pathlib
        >>> from mnpar.datasets import read_idx
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "labels-idx1-ubyte")
        ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 1, 4]))
        ...     read_idx(path)
        array([7, 1, 4], dtype=uint8)
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            return _read(_Source(path, raw, size, size), dtype, shape, max_bytes)
        with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
            return _read(
                _Source(path, unpacked, size * MOST_DEFLATE, size), dtype, shape, max_bytes
            )


class _Source:
    """The bytes of a file, unpacked, and where in them we are."""

    def __init__(self, path: Path, file: Any, most: int, size: int) -> None:
        self.path = path
        self.file = file
        self.most = most  # bytes that it can hold at all
        self.size = size  # on the disk
        self.offset = 0

    def error(self, offset: int, expected: str, found: str) -> DatasetError:
        return DatasetError(f"{self.path}: at byte {offset}: expected {expected}, found {found}")

    def fill(self, memory: memoryview, what: str) -> None:
        """Read exactly ``len(memory)`` bytes."""
        begin = self.offset
        try:
            while self.offset - begin < len(memory):
                step = memory[self.offset - begin :][:CHUNK]
                got = self.file.readinto(step)
                if not got:
                    raise EOFError
                self.offset += got
        except EOFError:
            end = f"the end of the file after {self.offset - begin} of them"
            raise self.error(
                self.offset, f"{len(memory)} bytes of {what} from byte {begin} on", end
            ) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise self.error(
                self.offset, f"{what}, gzipped", f"damaged gzip data ({error})"
            ) from None

    def finish(self) -> None:
        """Check that nothing follows (for gzip: and that the checksum is right)."""
        try:
            rest = self.file.read(1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(
                self.offset, "the checksum of the gzip data", f"damaged or missing ({error})"
            ) from None
        if rest:
            more = (
                f"{self.size - self.offset} more bytes" if self.most == self.size else "more bytes"
            )
            raise self.error(self.offset, "the end of the file", more)


def _read(
    source: _Source, dtype: DTypeLike | None, shape: tuple[int | None, ...] | None, max_bytes: int
) -> Array:
    found, sizes = _read_header(source, dtype, shape)
    nbytes = found.itemsize * prod(sizes)
    if nbytes > source.most - source.offset:
        held = f"a file of {source.size} bytes on the disk, which cannot hold them"
        raise source.error(
            source.offset, f"{nbytes} bytes of numbers, for the sizes {sizes} of its header", held
        )
    if nbytes > max_bytes:
        raise source.error(
            4, f"sizes of at most {max_bytes} bytes (max_bytes)", f"sizes {sizes}, {nbytes} bytes"
        )
    numbers = np.empty(sizes, found)
    if nbytes:
        source.fill(numbers.reshape(-1).view(np.uint8).data, "numbers")
    source.finish()
    return numbers.astype(found.newbyteorder("="), copy=False)


def _read_header(
    source: _Source, dtype: DTypeLike | None, shape: tuple[int | None, ...] | None
) -> tuple[Any, tuple[int, ...]]:
    if source.size == 0:
        raise source.error(0, "an IDX file", "an empty file")
    magic = bytearray(4)
    source.fill(memoryview(magic), "magic number")
    wanted = _magic(dtype, shape)
    if magic[:2] != b"\0\0" or magic[2] not in TYPES:
        raise source.error(
            0, wanted or "the magic number of an IDX file, 0x0000 and a type", f"0x{magic.hex()}"
        )
    found = np.dtype(TYPES[magic[2]])
    if (dtype is not None and found.newbyteorder("=") != dtype) or (
        shape is not None and magic[3] != len(shape)
    ):
        raise source.error(
            0, wanted, f"0x{magic.hex()} ({found.newbyteorder('=')}, {magic[3]} axes)"
        )
    sizes = np.empty(magic[3], ">u4")
    if magic[3]:
        source.fill(sizes.view(np.uint8).data, "sizes")
    for axis, (size, want) in enumerate(zip(sizes.tolist(), shape or (), strict=False)):
        if want not in (None, size):
            raise source.error(4 + 4 * axis, f"size {want} on axis {axis}", str(size))
    return found, tuple(sizes.tolist())


def _magic(dtype: DTypeLike | None, shape: tuple[int | None, ...] | None) -> str:
    """Return the expected first four bytes, in words."""
    if dtype is None or shape is None:
        return (
            ""
            if dtype is None and shape is None
            else f"an IDX file of {dtype or 'any type'}, shape {shape or 'any'}"
        )
    code = next(code for code, name in TYPES.items() if np.dtype(name).newbyteorder("=") == dtype)
    return (
        f"the magic number 0x0000{code:02x}{len(shape):02x} ({np.dtype(dtype)}, {len(shape)} axes)"
    )
