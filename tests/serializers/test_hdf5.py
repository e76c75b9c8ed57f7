"""HDF5 files: what is saved comes back, in Chainer's layout."""

import sys

import h5py
import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar.serializers import HDF5Deserializer, HDF5Serializer, load_hdf5, save_hdf5, serialize
from tests.harness.serialized import Bag, Net

VALUES = {
    "float16": np.array([1.5, np.nan], "f2"),
    "float64": np.arange(6.0).reshape(2, 3),
    "big-endian": np.arange(3, dtype=">i4"),
    "complex": np.array([1 + 2j]),
    "bool": np.array([True, False]),
    "text": np.array(["é", "abc"]),
    "empty": np.zeros((0, 3)),
    "0-d": np.array(2.5),
    "int": 3,
    "float": 0.1,
    "a bool": True,
    "str": '{"a": 1}',
    "None": None,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_come_back_as_they_were(value, tmp_path):
    save_hdf5(tmp_path / "f.h5", Bag(v=value))
    fresh = Bag(
        v=np.zeros_like(value)
        if isinstance(value, np.ndarray)
        else None
        if value is None
        else type(value)()
    )
    load_hdf5(tmp_path / "f.h5", fresh)
    assert type(fresh.values["v"]) is type(value)
    np.testing.assert_array_equal(fresh.values["v"], value)


def test_links_are_groups_arrays_are_datasets_and_none_is_empty(tmp_path):
    save_hdf5(tmp_path / "f.h5", Net())
    with h5py.File(tmp_path / "f.h5") as file:
        assert sorted(file) == ["bn", "l1", "unused"]
        assert sorted(file["bn"]) == ["N", "avg_mean", "avg_var", "beta", "gamma"]
        assert (file["l1/W"].shape, file["l1/W"].dtype, file["l1/W"].compression) == (
            (3, 2),
            np.float32,
            "gzip",
        )
        assert file["bn/N"].shape == ()
        assert file["unused/W"].shape is None


def test_a_model_and_its_optimizer_come_back(tmp_path):
    nets = [Net(), Net()]
    optimizers = [mnpar.optimizers.Adam(), mnpar.optimizers.Adam()]
    for net, optimizer in zip(nets, optimizers, strict=True):
        optimizer.setup(net)
    mnpar.functions.sum(nets[0].bn(nets[0].l1(np.eye(2, dtype="f4"))) ** 3).backward()
    optimizers[0].update()
    for name, objects in (("net", nets), ("optimizer", optimizers)):
        save_hdf5(tmp_path / name, objects[0])
        load_hdf5(tmp_path / name, objects[1])
        a = serialize(objects[0])
        b = serialize(objects[1])
        assert list(a) == list(b)
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
    assert optimizers[1].t == 1


def test_several_objects_share_a_file(tmp_path):
    a = L.Linear(2, 1)
    b = L.Linear(2, 1)
    c = L.Linear(2, 1)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        HDF5Serializer(file.create_group("a"), compression=None).save(a)
        HDF5Serializer(file)["b"].save(b)
    load_hdf5(tmp_path / "f.h5", c, path="b")
    assert c.W.array.tolist() == b.W.array.tolist()
    with h5py.File(tmp_path / "f.h5") as file:
        HDF5Deserializer(file["a"]).load(c)
    assert c.W.array.tolist() == a.W.array.tolist()


def test_what_is_missing_is_told_unless_it_may_be(tmp_path):
    save_hdf5(tmp_path / "f.h5", {"W": np.ones((1, 2), "f4")})
    layer = L.Linear(2, 1, initial_bias=5)
    with pytest.raises(KeyError, match="b"):
        load_hdf5(tmp_path / "f.h5", layer)
    load_hdf5(tmp_path / "f.h5", layer, strict=False)
    assert (layer.W.array.tolist(), layer.b.array.tolist()) == ([[1, 1]], [5])


def test_a_dtype_that_hdf5_does_not_have_leaves_no_file(tmp_path):
    with pytest.raises(TypeError, match=r"t: HDF5 has no datetime64\[D\]"):
        save_hdf5(tmp_path / "f.h5", {"t": np.array(["2020-01-01"], "M8[D]")})
    assert not list(tmp_path.iterdir())


def test_without_h5py_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"pip install 'mnpar\[hdf5\]'"):
        save_hdf5(tmp_path / "f.h5", Net())
