"""A file in which one bit is flipped, anywhere, loads what was saved, or is refused: never other
weights.
"""

import json

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import serializers
from mnpar.errors import CheckpointError
from mnpar.serializers import (
    load_hdf5,
    load_npz,
    load_safetensors,
    read_safetensors,
    save_hdf5,
    save_npz,
    save_safetensors,
    write_safetensors,
)

FORMATS = {
    "safetensors": (save_safetensors, load_safetensors, 61),
    "npz": (lambda path, obj: save_npz(path, obj, False), load_npz, 127),
    "compressed npz": (save_npz, load_npz, 127),
    "HDF5": (lambda path, obj: save_hdf5(path, obj, None), load_hdf5, 509),
    "compressed HDF5": (save_hdf5, load_hdf5, 2039),
}
REFUSED = (CheckpointError, KeyError, OSError)  # a name that is damaged is one that is not there


def test_every_format_has_a_row():
    savers = {name for name in serializers.__all__ if name.startswith("save_")}
    missing = sorted(savers - {f"save_{name.split()[-1].lower()}" for name in FORMATS})
    assert not missing, f"add rows to FORMATS in this file, for {missing}"


class Steps(mnpar.Chain):
    """Arrays of some dtypes, numbers, text and None."""

    def __init__(self, fill, text):
        super().__init__()
        self.l = L.Linear(20, 15, initialW=fill, initial_bias=fill)
        self.bn = L.BatchNormalization(15)
        self.half = mnpar.Parameter(np.full(3, fill, "f2"))
        self.scalar = mnpar.Parameter(np.array(fill))
        self.n = int(fill)
        self.text = text
        self.lazy = L.Linear(None, 3)

    def serialize(self, serializer):
        super().serialize(serializer)
        self.n = serializer("n", self.n)
        if text := serializer("text", self.text):
            self.text = str(text)


def state(model):
    arrays = [param.array for param in model.params()] + [model.bn.avg_mean, model.bn.avg_var]
    return [None if array is None else array.tolist() for array in arrays], model.n, model.text


def numbers(model):
    """Without what safetensors does not have."""
    return mnpar.Chain(l=model.l, bn=model.bn)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_flipped_bit_never_loads_other_weights(kind, tmp_path):
    save, load, step = FORMATS[kind]
    part = numbers if kind == "safetensors" else lambda model: model
    saved = Steps(1.5, "abc")
    saved.l.W.array[...] = np.random.default_rng(0).standard_normal((15, 20))
    path = tmp_path / "file"
    save(path, part(saved))
    data = bytearray(path.read_bytes())
    refused = 0
    for bit in range(0, 8 * len(data), step):
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        data[bit // 8] ^= 1 << bit % 8
        loaded = Steps(7.0, "") if part is not numbers else Steps(1.5, "abc")
        loaded.l.W.array[...] = 7
        try:
            load(path, part(loaded))
        except REFUSED:
            refused += 1
        else:
            assert state(loaded) == state(saved), f"bit {bit % 8} of byte {bit // 8}"
    assert refused


@pytest.mark.parametrize("kind", ["safetensors", "npz", "HDF5"])
def test_the_error_names_the_file_and_the_parameter(kind, tmp_path):
    save, load, _ = FORMATS[kind]
    model = mnpar.Chain(l1=L.Linear(40, 30, initialW=1.5), l2=L.Linear(30, 5, initialW=2.5))
    path = tmp_path / "model"
    save(path, model)
    data = bytearray(path.read_bytes())
    data[data.index(np.full(100, 2.5, "f4").tobytes()) + 42] ^= 4
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"(?s)model.*l2/W"):
        load(path, model)


def test_a_changed_header_of_a_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "file"
    write_safetensors(path, {"a": np.zeros(2, "f4"), "b": np.ones(2, "f4")}, {"who": "me"})
    for old, new in ((b'"a"', b'"c"'), (b"F32", b"I32"), (b"[2]", b"[1]"), (b'"me"', b'"he"')):
        other = tmp_path / "other"
        other.write_bytes(path.read_bytes().replace(old, new, 1))
        with pytest.raises(CheckpointError, match=r"not as it was written|does not take"):
            read_safetensors(other)


def test_files_of_others_have_no_checksums_and_are_read(tmp_path):
    header = json.dumps({"W": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "file"
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.float32([[3]]).tobytes())
    layer = L.Linear(1, 1, nobias=True)
    load_safetensors(path, layer)
    assert layer.W.array == 3
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["W"] = np.array([[4.0]])
    load_hdf5(path, layer)
    assert layer.W.array == 4
    np.savez(tmp_path / "file.npz", W=np.array([[5.0]]))
    load_npz(tmp_path / "file.npz", layer)
    assert layer.W.array == 5


def test_an_hdf5_file_may_be_read_from_another_place_in_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "file", "w") as file:
        mnpar.serializers.HDF5Serializer(file.create_group("net")).save(L.Linear(2, 2, initialW=3))
    layer = L.Linear(2, 2)
    load_hdf5(tmp_path / "file", layer, path="net")
    assert (layer.W.array == 3).all()
