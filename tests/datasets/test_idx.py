"""IDX files, whole and damaged: each damage is named with file, offset, what was expected and what
is there.
"""

import gzip
import re
import struct
import tracemalloc

import numpy as np
import pytest

from mnpar.datasets import read_idx
from mnpar.errors import DatasetError


def idx(array, code=0x08):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


IMAGES = np.arange(5 * 3 * 4, dtype=np.uint8).reshape(5, 3, 4)
GOOD = idx(IMAGES)  # 16 bytes of header, 60 of numbers


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])
@pytest.mark.parametrize("name", ["images-idx3-ubyte", "images-idx3-ubyte.gz"])
def test_a_file_is_read_whatever_its_name_says_about_gzip(tmp_path, pack, name):
    (tmp_path / name).write_bytes(pack(GOOD))
    np.testing.assert_array_equal(
        read_idx(tmp_path / name, dtype=np.uint8, shape=(None, 3, 4)), IMAGES, strict=True
    )


TYPES = {
    0x08: np.uint8,
    0x09: np.int8,
    0x0B: np.int16,
    0x0C: np.int32,
    0x0D: np.float32,
    0x0E: np.float64,
}


@pytest.mark.parametrize(
    ("code", "dtype"),
    TYPES.items(),
    ids=lambda x: getattr(x, "__name__", hex(x) if isinstance(x, int) else x),
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_every_type_and_shape_is_read_in_the_machines_byte_order(tmp_path, code, dtype, shape):
    x = (
        (np.arange(np.prod(shape, dtype=int)) - 1).astype(dtype).reshape(shape)
        if shape
        else np.array(3, dtype)
    )
    (tmp_path / "x").write_bytes(idx(x, code))
    y = read_idx(tmp_path / "x")
    np.testing.assert_array_equal(y, x, strict=True)
    assert y.dtype.isnative


def sizes(*numbers):
    return b"\0\0\x08" + bytes([len(numbers)]) + struct.pack(f">{len(numbers)}I", *numbers)


CORRUPT = bytearray(gzip.compress(GOOD))
CORRUPT[25] ^= 0xFF
WRONG_SUM = bytearray(gzip.compress(GOOD))
WRONG_SUM[-8] ^= 0xFF

DAMAGED = {
    "empty": (b"", "at byte 0: expected an IDX file, found an empty file"),
    "shorter than a magic number": (
        b"\0\0",
        "at byte 2: expected 4 bytes of magic number from byte 0 on, found the end of the file",
    ),
    "truncated header": (
        GOOD[:9],
        "at byte 9: expected 12 bytes of sizes from byte 4 on, found the end of the file after 5",
    ),
    "truncated": (
        GOOD[:-3],
        "at byte 16: expected 60 bytes of numbers, for the sizes (5, 3, 4) of its header, "
        "found a file of 73",
    ),
    "one byte too long": (
        GOOD + b"\0",
        "at byte 76: expected the end of the file, found 1 more bytes",
    ),
    "wrong magic": (
        b"PK" + GOOD[2:],
        "at byte 0: expected the magic number 0x00000803 (uint8, 3 axes), found 0x504b0803",
    ),
    "unknown type": (
        b"\0\0\x0a\x03" + GOOD[4:],
        "expected the magic number 0x00000803 (uint8, 3 axes), found 0x00000a03",
    ),
    "labels for images": (
        idx(np.arange(5, dtype=np.uint8)),
        "at byte 0: expected the magic number 0x00000803 (uint8, 3 axes), found 0x00000801",
    ),
    "another type": (idx(IMAGES.astype(np.int16), 0x0B), "found 0x00000b03 (int16, 3 axes)"),
    "another size": (
        idx(np.zeros((5, 3, 3), np.uint8)),
        "at byte 12: expected size 4 on axis 2, found 3",
    ),
    "sizes beyond the file": (
        sizes(2**32 - 1, 3, 4) + b"x",
        "at byte 16: expected 51539607540 bytes of numbers",
    ),
    "gzip, truncated": (gzip.compress(GOOD)[:-20], "expected"),
    "gzip, no checksum": (
        gzip.compress(GOOD)[:-8],
        "at byte 76: expected the checksum of the gzip data, found damaged or missing",
    ),
    "gzip, wrong checksum": (
        bytes(WRONG_SUM),
        "at byte 76: expected the checksum of the gzip data, found damaged or missing (CRC",
    ),
    "gzip, damaged": (bytes(CORRUPT), "damaged"),
    "gzip, numbers missing": (
        gzip.compress(GOOD[:-3]),
        "at byte 73: expected 60 bytes of numbers from byte 16 on, found the end of the file "
        "after 57",
    ),
    "gzip, too long": (
        gzip.compress(GOOD + b"\0" * 10**6),
        "at byte 76: expected the end of the file, found more bytes",
    ),
    "gzip, garbage behind": (
        gzip.compress(GOOD) + b"garbage",
        "at byte 76: expected the checksum of the gzip data, found damaged",
    ),
    "gzip bomb by its header": (gzip.compress(sizes(10**9, 3, 4)), "which cannot hold them"),
}


@pytest.mark.parametrize(("data", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_with_file_offset_expected_and_found(tmp_path, data, message):
    path = tmp_path / "some-images"
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=re.escape(message)) as caught:
        read_idx(path, dtype=np.uint8, shape=(None, 3, 4))
    assert str(caught.value).startswith(f"{path}: at byte ")


def test_a_gzip_file_cut_anywhere_is_a_dataset_error(tmp_path):
    path = tmp_path / "x"
    whole = gzip.compress(GOOD)
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(DatasetError):
            read_idx(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])
def test_no_flipped_byte_escapes_as_another_error(tmp_path, pack):
    path = tmp_path / "x"
    whole = pack(GOOD)
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 0x55
        path.write_bytes(data)
        try:
            found = read_idx(path, dtype=np.uint8, shape=(None, 3, 4))
        except DatasetError:
            continue
        # the pixels of a raw file have no checksum, nor has gzip's header
        assert found.shape == IMAGES.shape


def test_a_bomb_costs_an_error_and_no_memory(tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(sizes(10, 3, 4) + bytes(50_000_000)))
    liar = tmp_path / "liar"
    liar.write_bytes(sizes(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(100))
    tracemalloc.start()
    for file in (path, liar):
        with pytest.raises(DatasetError):
            read_idx(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_more_than_max_bytes_is_refused_before_it_is_allocated(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(GOOD)
    with pytest.raises(
        DatasetError, match=r"at most 59 bytes \(max_bytes\), found sizes \(5, 3, 4\), 60 bytes"
    ):
        read_idx(path, max_bytes=59)


def test_a_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "nothing")
