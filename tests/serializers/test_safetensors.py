"""safetensors files, byte by byte as the format has them; what a file says about itself is checked
before it is believed.
"""

import io
import json

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar.errors import CheckpointError
from mnpar.serializers import (
    load_safetensors,
    read_safetensors,
    save_safetensors,
    write_safetensors,
)


def written(arrays, metadata=None):
    file = io.BytesIO()
    write_safetensors(file, arrays, metadata)
    return file


def built(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO((len(text) if length is None else length).to_bytes(8, "little") + text + body)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_a_file_has_a_length_a_list_and_the_bytes():
    data = written({"b": np.array([1, 2], "<i2"), "a": np.array([[0.5]])}, {"who": "me"}).getvalue()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header["__metadata__"].pop("mnpar checksums").count(" ") == 2
    assert header == {
        "__metadata__": {"who": "me"},
        "a": {"dtype": "F64", "shape": [1, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "I16", "shape": [2], "data_offsets": [8, 12]},
    }
    assert data[8 + length :] == np.array([0.5]).tobytes() + b"\1\0\2\0"


def test_a_file_of_another_library_is_read():
    file = built(
        {"x": entry("F32", (2,), (0, 8)), "n": entry("I64", (), (8, 16))},
        b"\0\0\x80?\0\0\0@" + b"\5" + bytes(7),
    )
    arrays = read_safetensors(file)
    assert arrays["x"].tolist() == [1, 2]
    assert arrays["n"] == 5


def test_bfloat16_is_read():
    array = read_safetensors(built({"x": entry("BF16", (2,), (0, 4))}, b"\x80\x3f\x20\xc0"))["x"]
    assert array.astype("f4").tolist() == [1.0, -2.5]


ARRAYS = {
    "0-d": np.array(3),
    "empty": np.zeros((0, 2), "f2"),
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "a view": np.arange(10)[::3],
    "big-endian": np.arange(3, dtype=">u4"),
    "bool": np.array([True, False]),
    "complex64": np.array([1 + 2j], "c8"),
    "nan": np.array([np.nan, np.inf], "f2"),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_come_back_as_they_were(array):
    found = read_safetensors(written({"x": array}))["x"]
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "array",
    [np.array(["a"]), np.array([1j]), np.array([None])],
    ids=["text", "complex128", "objects"],
)
def test_what_the_format_does_not_have_is_refused(array):
    with pytest.raises(TypeError, match="x: safetensors has no arrays of"):
        written({"x": array})


def test_a_model_goes_out_and_comes_in_under_other_names(tmp_path):
    model, other = (mnpar.Chain(l1=L.Linear(3, 2), bn=L.BatchNormalization(2)) for _ in range(2))
    model.bn.avg_mean[...] = 3
    save_safetensors(tmp_path / "model", model, rename=lambda key: key.replace("/", "."))
    load_safetensors(tmp_path / "model", other, rename=lambda key: key.replace("/", "."))
    for (path, mine), (_, its) in zip(model.namedparams(), other.namedparams(), strict=True):
        np.testing.assert_array_equal(mine.array, its.array, path)
    assert other.bn.avg_mean.tolist() == [3, 3]


def test_a_missing_tensor_is_an_error_unless_it_may_be():
    layer = L.Linear(1, 1, initialW=5)
    file = written({"b": np.ones(1, "f4")})
    with pytest.raises(KeyError, match="the file has no 'W'; it has b"):
        load_safetensors(file, layer)
    load_safetensors(file, layer, strict=False)
    assert (layer.W.array.item(), layer.b.array.item()) == (5, 1)


def test_two_keys_of_one_name_are_refused():
    with pytest.raises(ValueError, match="2 keys 1 names"):
        save_safetensors(io.BytesIO(), L.Linear(1, 1), rename=lambda key: "x")


HOSTILE = {
    "nothing": (io.BytesIO(b""), "is no safetensors file"),
    "a header of 10^18 bytes": (
        built({}, length=10**18),
        "cannot hold a header of 1000000000000000000",
    ),
    "no JSON": (built(b"hello"), "header is wrong"),
    "a deep header": (built(b"[" * 100_000), "header is wrong"),
    "a list": (built([1]), "header is wrong"),
    "one name twice": (built(b'{"a": 1, "a": 2}'), "a name comes twice"),
    "10^12 elements": (built({"x": entry(shape=(10**12,))}, bytes(4)), "does not take 4 bytes"),
    "10^12 elements and bytes": (
        built({"x": entry(shape=(10**12,), offsets=(0, 4 * 10**12))}, bytes(4)),
        "end at 40000000",
    ),
    "a negative shape": (built({"x": entry(shape=(-1, -1))}, bytes(4)), "header is wrong: shape"),
    "a shape that is a word": (
        built({"x": {"dtype": "F32", "shape": "ab", "data_offsets": [0, 4]}}, bytes(4)),
        "wrong",
    ),
    "an unknown dtype": (built({"x": entry("PICKLE")}, bytes(4)), "dtype PICKLE is not known"),
    "a hole": (built({"x": entry(offsets=(4, 8))}, bytes(8)), "x begins at byte"),
    "an overlap": (built({"x": entry(), "y": entry(offsets=(2, 6))}, bytes(6)), "y begins at byte"),
    "more bytes than arrays": (built({"x": entry()}, bytes(5)), "but its arrays end at"),
    "cut off": (built({"x": entry()}, bytes(3)), "but its arrays end at"),
}


@pytest.mark.parametrize(("file", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_or_damaged_file_is_refused(file, message):
    with pytest.raises(CheckpointError, match=message):
        read_safetensors(file)


def test_the_files_are_those_of_the_safetensors_package():
    theirs = pytest.importorskip("safetensors.numpy")
    metadata = {"who": "me"}
    found = theirs.load(written(ARRAYS, metadata).getvalue())
    assert sorted(found) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array, name)
    contiguous = {name: np.array(array, order="C") for name, array in ARRAYS.items()}
    for name, array in read_safetensors(io.BytesIO(theirs.save(contiguous, metadata))).items():
        np.testing.assert_array_equal(array, ARRAYS[name], name)
