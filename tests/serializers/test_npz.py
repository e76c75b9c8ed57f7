"""npz files: Chainer's own are read, ours are Chainer's; nothing in a file is ever executed or
believed about its size.
"""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import CheckpointError
from mnpar.serializers import DictionarySerializer, NpzDeserializer, NpzFile, load_npz, save_npz
from tests.harness.serialized import Bag, Net

# a Trainer of 3 iterations, written by Chainer 7.8.1
CHAINER = Path(__file__).parent / "chainer7.npz"


def written(compression=True, **values):
    file = io.BytesIO()
    save_npz(file, Bag(**values), compression)
    return file


def member(data, name="a.npy", **arguments):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **arguments) as archive:
        archive.writestr(name, data)
    return file


def npy(shape, dtype, body):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + body


# ---- Chainer's files ----


def test_a_model_and_its_optimizer_are_read_from_a_snapshot_of_chainer():
    model = Net()
    optimizer = mnpar.optimizers.Adam().setup(model)
    load_npz(CHAINER, optimizer, path="updater/optimizer:main/")
    load_npz(CHAINER, model, path="updater/model:main/")
    assert model.l1.W.array.tolist()[0] == [1.248083233833313, 0.2840627133846283]
    assert model.bn.avg_mean.tolist() == [
        1.2992198467254639,
        3.3977954387664795,
        -0.4832386374473572,
    ]
    assert not model.unused.W.is_initialized
    assert optimizer.t == 3
    assert model.bn.beta.update_rule.state["m"].tolist() == [
        1.6268689632415771,
        1.626887559890747,
        1.6267846822738647,
    ]


# The numbers that Chainer 7.8.1 gives to the links of a Sequential in its files, by the functions
# before the first link.
@pytest.mark.parametrize(
    ("functions", "numbers"),
    [(0, "0 4 3 2 1"), (1, "0 1 4 3 2"), (2, "0 1 2 4 3"), (5, "0 1 2 3 4")],
)
def test_the_links_of_a_sequential_have_chainers_numbers(functions, numbers):
    layers = [L.Linear(1, 1, initialW=10 + i, initial_bias=i) for i in range(5)]
    model = mnpar.Sequential(
        *[F.tanh] * functions, *[layer for one in layers for layer in (one, F.relu)]
    )
    optimizer = mnpar.optimizers.MomentumSGD().setup(model)
    for i, layer in enumerate(layers):
        layer.W.update_rule.prepare(layer.W)
        layer.W.update_rule.state["v"][...] = 20 + i
    files = [f"{name}/{key}" for name in numbers.split() for key in ("W", "b")]
    of_model = mnpar.serializers.serialize(model)
    of_optimizer = mnpar.serializers.serialize(optimizer)
    assert sorted(of_model) == sorted(files)
    for i, name in enumerate(numbers.split()):
        assert (of_model[f"{name}/W"], of_model[f"{name}/b"], of_optimizer[f"{name}/W/v"]) == (
            10 + i,
            i,
            20 + i,
        )
    other = model.copy("init")
    NpzDeserializer(of_model).load(other)
    assert [
        (one.W.array.item(), one.b.array.item()) for one in other if one not in (F.tanh, F.relu)
    ] == [(10 + i, i) for i in range(5)]
    # in programs as they stand
    assert [path for path, _ in model.namedparams()][::2] == [f"/{i}/W" for i in range(5)]


def test_other_formats_number_the_links_of_a_sequential_as_they_stand():
    model = mnpar.Sequential(*[L.Linear(1, 1, initialW=i) for i in range(4)])
    file = io.BytesIO()
    mnpar.serializers.save_safetensors(file, model)
    arrays = mnpar.serializers.read_safetensors(file)
    assert [arrays[f"{i}/W"].item() for i in range(4)] == [0, 1, 2, 3]
    other = model.copy("init")
    mnpar.serializers.load_safetensors(file, other)
    assert [layer.W.array.item() for layer in other] == [0, 1, 2, 3]


def test_chainer_writes_no_state_of_what_was_never_updated():
    model = mnpar.Chain(a=L.Linear(1, 1, nobias=True), b=L.Linear(1, 1, nobias=True))
    optimizer = mnpar.optimizers.MomentumSGD().setup(model)
    file = {"t": 3, "epoch": 0, "a/W/t": 0, "b/W/t": 3, "b/W/v": [[7.0]]}
    model.a.disable_update()
    NpzDeserializer({key: np.array(value) for key, value in file.items()}).load(optimizer)
    assert (
        model.a.W.update_rule.t,
        model.b.W.update_rule.t,
        model.b.W.update_rule.state["v"].item(),
    ) == (0, 3, 7)
    file["a/W/t"] = 1
    with pytest.raises(KeyError, match="a/W/v"):
        NpzDeserializer({key: np.array(value) for key, value in file.items()}).load(optimizer)


@pytest.mark.parametrize("kind", [mnpar.Chain, mnpar.ChainList, mnpar.Sequential])
def test_chainer_writes_the_state_of_a_shared_parameter_under_each_of_its_paths(kind):
    layer = L.Linear(1, 1, nobias=True)
    model = kind(a=layer, b=layer) if kind is mnpar.Chain else kind(layer, layer)
    optimizer = mnpar.optimizers.MomentumSGD().setup(model)
    layer.W.grad = np.ones((1, 1), "f4")
    optimizer.update()
    names = ("a", "b") if kind is mnpar.Chain else ("0", "1")
    file = mnpar.serializers.serialize(optimizer)
    assert {key for key in file if key.endswith("v")} == {f"{name}/W/v" for name in names}
    layer.W.update_rule.state["v"][...] = 0
    for key in [key for key in file if key.startswith(names[1])]:
        del file[key]  # the first is enough
    NpzDeserializer(file).load(optimizer)
    assert layer.W.update_rule.state["v"] == file[f"{names[0]}/W/v"] != 0


def test_an_iterator_is_read_from_a_snapshot_of_chainer():
    iterator = mnpar.iterators.SerialIterator(range(5), 2)
    load_npz(CHAINER, iterator, path="updater/iterator:main")
    assert (iterator.epoch, iterator.current_position, iterator.next()) == (1, 1, [1, 2])


def test_none_is_read_as_none_by_its_bytes():
    with NpzFile(CHAINER) as npz:
        assert npz["updater/model:main/unused/W"] is None


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
@pytest.mark.parametrize("protocol", range(6))
def test_none_is_read_from_any_protocol_of_any_numpy(protocol, module):
    data = pickle.dumps(np.asarray(None), protocol)
    if protocol < 4:
        data = data.replace(b"numpy._core.multiarray", module)
    assert NpzFile(member(npy((), "|O", data)))["a"] is None


def test_numpy_reads_our_none():
    file = written(W=None)
    file.seek(0)
    assert np.load(file, allow_pickle=True)["W"][()] is None
    assert NpzFile(file)["W"] is None


# ---- round trips ----

VALUES = {
    "float16": np.array([1.5, np.nan], "f2"),
    "float64, Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big-endian": np.arange(3, dtype=">i4"),
    "complex": np.array([1 + 2j]),
    "bool": np.array([True, False]),
    "text": np.array(["é", "abc"]),
    "empty": np.zeros((0, 3)),
    "0-d": np.array(2.5),
    "a view": np.arange(10)[::3],
    "int": 3,
    "large int": 2**62,
    "float": 0.1,
    "a bool": True,
    "str": '{"a": 1}',
    "empty str": "",
    "numpy scalar": np.float32(0.1),
    "None": None,
}


@pytest.mark.parametrize("compression", [True, False])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_come_back_as_they_were(value, compression):
    file = written(compression, v=value)
    fresh = Bag(
        v=np.zeros_like(value)
        if isinstance(value, np.ndarray)
        else None
        if value is None
        else type(value)()
    )
    load_npz(file, fresh)
    loaded = fresh.values["v"]
    assert type(loaded) is type(value)
    np.testing.assert_array_equal(loaded, value)


@pytest.mark.parametrize("names", [("W", "W.npy"), ("W.npy", "W")])
def test_names_may_end_as_files_do(names):
    file = io.BytesIO()
    saved = Bag(**dict(zip(names, (1, 2), strict=True)))
    save_npz(file, saved)
    loaded = Bag(**dict.fromkeys(names, 0))
    load_npz(file, loaded)
    assert loaded.values == saved.values


def test_an_uninitialized_parameter_takes_the_array_of_the_file():
    file = io.BytesIO()
    saved = mnpar.Chain(l=L.Linear(3, 2))
    loaded = mnpar.Chain(l=L.Linear(None, 2))
    save_npz(file, saved)
    load_npz(file, loaded)
    np.testing.assert_array_equal(loaded.l.W.array, saved.l.W.array)


def test_an_array_is_filled_in_place():
    w = np.zeros(2, "f4")
    bag = Bag(w=w)
    load_npz(written(w=np.array([1.0, 2.0])), bag)
    assert bag.values["w"] is w
    assert w.tolist() == [1, 2]


def test_what_is_serialized_for_later_does_not_change_with_the_object():
    layer = L.Linear(1, 1, initialW=1)
    arrays = mnpar.serializers.serialize(layer)
    layer.W.array[...] = 2
    file = io.BytesIO()
    save_npz(file, arrays)
    assert NpzFile(file)["W"] == 1


# ---- keys ----


def test_a_dictionary_serializer_joins_names_by_slashes():
    target = {}
    serializer = DictionarySerializer(target, "net/")
    serializer["/l1/"]["sub"]("/W", np.zeros(1))
    serializer("n", 3)
    assert list(target) == ["net/l1/sub/W", "net/n"]
    assert target["net/n"].shape == ()


def test_a_missing_key_is_an_error_that_says_what_there_is():
    with pytest.raises(KeyError, match=r"no 'b'; it has a"):
        load_npz(written(a=1), Bag(b=1))


def test_not_strict_keeps_what_is_missing():
    bag = Bag(a=0, b=5)
    load_npz(written(a=1), bag, strict=False)
    assert bag.values == {"a": 1, "b": 5}


IGNORED = {
    "a string": "b",
    "a function": lambda key: key.startswith("b"),
    "a list": ["x", "b"],
    "both": ["x", lambda key: key == "b"],
}


@pytest.mark.parametrize("names", IGNORED.values(), ids=IGNORED)
def test_ignored_names_are_not_read(names):
    bag = Bag(a=0, b=5)
    load_npz(written(a=1, b=2), bag, ignore_names=names)
    assert bag.values == {"a": 1, "b": 5}


def test_ignore_names_refuses_numbers():
    with pytest.raises(ValueError, match="strings and functions of a key, not 3"):
        load_npz(written(a=1), Bag(a=0), ignore_names=[3])


def test_a_deserializer_reads_a_plain_dict_too():
    bag = Bag(a=0, none=1)
    NpzDeserializer({"p/a": np.array(4), "p/none": np.asarray(None)}, "p/").load(bag)
    assert bag.values == {"a": 4, "none": None}


MISFITS = {
    "another shape": (
        np.zeros((1, 3)),
        np.zeros((2, 3)),
        ValueError,
        r"a: saved with shape \(1, 3\), but the object's is \(2, 3\)",
    ),
    "floats into integers": (
        np.zeros(2),
        np.zeros(2, int),
        TypeError,
        "a: saved as float64, it does not fit into int64",
    ),
    "a float into an int": (0.5, 1, TypeError, "a: saved as float64, it cannot become a int"),
    "many into one": (np.zeros(2), 1.0, ValueError, r"shape \(2,\), it cannot become a float"),
}


@pytest.mark.parametrize(("saved", "own", "error", "message"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_refused_by_name(saved, own, error, message):
    with pytest.raises(error, match=message):
        load_npz(written(a=saved), Bag(a=own))


def test_an_object_is_not_written():
    with pytest.raises(
        TypeError, match="a: a file has arrays, numbers, strings and None, not a object"
    ):
        written(a=object())


# ---- writing is atomic ----


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "model.npz"
    save_npz(path, Bag(a=1))
    with pytest.raises(TypeError):
        save_npz(path, Bag(a=2, b=object()))
    assert os.listdir(tmp_path) == ["model.npz"]
    assert NpzFile(path)["a"] == 1


def test_a_full_disk_is_an_error_and_the_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "model.npz"
    save_npz(path, Bag(a=1))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_npz(path, Bag(a=2))
    assert os.listdir(tmp_path) == ["model.npz"]
    assert NpzFile(path)["a"] == 1


def test_a_link_is_followed_and_modes_follow_the_umask(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    save_npz(tmp_path / "link", Bag(a=1))
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_device_is_written_to_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with mnpar.serializers.replacing(tmp_path / "pipe") as file:
        file.write(b"abc")
    assert os.read(reader, 3) == b"abc"
    os.close(reader)


# ---- hostile files ----


class Evil:
    def __reduce__(self):
        return os.mkdir, ("EVIL",)


def bomb():
    """100 bytes that say they unpack to a terabyte."""
    file = member(npy((2**37,), "<f8", b""))
    data = bytearray(file.getvalue())
    central = data.index(b"PK\x01\x02")
    data[central + 24 : central + 28] = struct.pack("<I", 2**32 - 2)
    return io.BytesIO(data)


def corrupted():
    data = bytearray(written(False, a=np.zeros(100)).getvalue())
    data[400] ^= 1
    return io.BytesIO(data)


def twice():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", npy((1,), "<f8", bytes(8)))
        archive.writestr("a", npy((1,), "<f8", bytes(8)))
    return file


HOSTILE = {
    "a pickle that runs a program": (
        lambda: member(npy((), "|O", pickle.dumps(np.array(Evil(), object)))),
        "run any program",
    ),
    "a pickled list": (
        lambda: member(npy((), "|O", pickle.dumps(np.array([None], object)[0:0]))),
        "it could run any program",
    ),
    "objects inside records": (
        lambda: member(npy((1,), [("x", "|O")], b"\x80\x04N.")),
        "it could run any program",
    ),
    "a shape of 10^12": (
        lambda: member(npy((10**12,), "<f8", bytes(8))),
        "takes 8000000000000 bytes, but there are 8",
    ),
    "a negative shape": (lambda: member(npy((-1, -1), "<f8", bytes(8))), "takes 8 bytes|shape"),
    "more than its shape": (
        lambda: member(npy((1,), "<f8", bytes(16))),
        "takes 8 bytes, but there are 16",
    ),
    "a bomb": (bomb, "cannot unpack to"),
    "a flipped bit": (corrupted, "CRC"),
    "one name twice": (twice, "two entries 'a'"),
    "no npy": (lambda: member(b"hello"), "a: "),
    "no npz": (lambda: io.BytesIO(b"hello"), "is no npz file"),
    "cut off": (lambda: io.BytesIO(written(a=np.zeros(100)).getvalue()[:-30]), "is no npz file"),
}


@pytest.mark.parametrize(("make", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_or_damaged_file_is_refused(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=message), NpzFile(make()) as npz:
        npz["a"]
    assert not os.listdir(tmp_path)


def test_names_that_point_elsewhere_are_only_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with NpzFile(member(npy((), "<f8", bytes(8)), "../../x.npy")) as npz:
        assert npz["../../x"] == 0
    assert not os.listdir(tmp_path)
