"""A checkpoint of P ranks, read by Q: every tensor whole, wherever its pieces lay and lie."""

import contextlib
import itertools
import json
import os

import ml_dtypes
import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint, serializers
from mnpar.checkpoint import store
from mnpar.errors import CheckpointError
from mnpar.plans import Box, blocks
from mnpar.serializer import Serializer
from tests.harness.serialized import Bag

SIZES = (1, 2, 3, 4, 6)
GRIDS = {1: (1, 1), 2: (1, 2), 3: (3, 1), 4: (2, 2), 6: (3, 2)}
LOCAL = (2, 5, 4, 3, 2, 2)  # untied weights: outputs, H, W, inputs, kernel


def numbers(shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


def slices(box):
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))


def cut(whole, box):
    """A parameter that has a box of a whole array."""
    parameter = mnpar.Parameter(whole[slices(box)].copy())
    parameter.whole, parameter.box = whole.shape, box
    return parameter


class Sharded(mnpar.optimizers.MomentumSGD().create_update_rule().__class__):
    """A rule that keeps the momenta of its rank's rows only, of a parameter that every rank has."""

    def __init__(self, comm, rows):
        super().__init__()
        self.comm, self.rows = comm, rows

    def init_state(self, param):
        self.box = blocks((self.rows,), (self.comm.size,))[self.comm.rank]
        self.state["v"] = np.zeros(self.box.shape)

    def serialize(self, serializer):
        super().serialize(
            serializer.place((self.rows,), self.box) if hasattr(serializer, "place") else serializer
        )


class Model(mnpar.Chain):
    """Every layout at once."""

    def __init__(self, comm, scale):
        super().__init__()
        rank, size = comm.rank, comm.size
        self.replicated = mnpar.Parameter(scale * numbers((3, 2), 0))
        self.rows = cut(scale * numbers((7, 3), 1), blocks((7, 3), (size, 1))[rank])
        # of 6 ranks one has nothing
        self.columns = cut(scale * numbers((3, 5), 2), blocks((3, 5), (1, size))[rank])
        box = blocks(LOCAL[1:3], GRIDS[size])[rank]
        start = (0, *box.start, 0, 0, 0)
        stop = (LOCAL[0], *box.stop, *LOCAL[3:])
        self.local = cut(scale * numbers(LOCAL, 3), Box(start, stop))
        groups = 2 if size % 2 == 0 else 1  # replicas of a divided parameter
        self.hybrid = cut(scale * numbers((9,), 4), blocks((9,), (size // groups,))[rank // groups])
        for number in range(5):  # one layer after another, on one rank or another
            if number % size == rank:
                self.add_link(f"stage{number}", mnpar.Link())
                self[f"stage{number}"].W = mnpar.Parameter(scale * numbers((2, 2), 10 + number))
        self.add_persistent("mean", scale * numbers((2,), 5))
        self.add_persistent("count", int(scale * 7))


def trained(comm, scale):
    """A model and an optimizer whose momenta are -lr * 2 * the weights."""
    model = Model(comm, scale)
    optimizer = mnpar.optimizers.MomentumSGD(lr=1.0).setup(model)
    model.replicated.update_rule = Sharded(comm, 3)
    model.replicated.update_rule.init_state(model.replicated)
    rows = model.replicated.update_rule.box
    model.replicated.update_rule.state["v"][...] = scale * numbers((3,), 6)[slices(rows)]
    for param in model.params():
        if param is not model.replicated:
            param.update_rule.prepare(param)
            param.update_rule.state["v"][...] = 2 * param.array
            param.update_rule.t = int(3 * scale)
    optimizer.t = int(5 * scale)
    return {"model": model, "optimizer": optimizer}


def flat(comm, objects):
    """Everything in the objects, as arrays by key."""
    serializer = mnpar.serializers.DictionarySerializer()
    for name, thing in objects.items():
        thing.serialize(serializer[name])
    return serializer.target


@pytest.mark.parametrize(("written", "read"), [*itertools.product(SIZES, SIZES)])
def test_each_tensor_is_whole_on_any_number_of_ranks(written, read, tmp_path):
    mnpar.run(lambda comm: checkpoint.save(tmp_path, trained(comm, 1), comm, 1), ranks=written)

    def program(comm):
        mine = trained(comm, 0)
        expected = flat(comm, trained(comm, 1))
        assert checkpoint.load(tmp_path, mine, comm) == 1
        found = flat(comm, mine)
        assert list(found) == list(expected)
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array, key)

    with (
        pytest.warns(UserWarning, match="mnpar.random/generator")
        if 1 != written != read
        else contextlib.nullcontext()
    ):
        mnpar.run(program, ranks=read)


def test_replicas_are_written_once_and_ranks_share_the_work(tmp_path):
    def program(comm):
        layers = mnpar.ChainList(*[L.Linear(50, 50) for _ in range(8)])
        for param in layers.params():
            param.array[...] = 1
        return checkpoint.save(tmp_path, layers, comm, 0)

    path = mnpar.run(program, ranks=4)[0]
    sizes = [size for size, _ in store.read_manifest(path)["files"].values()]
    assert len(sizes) == 4
    assert sum(sizes) < 8 * (50 * 50 + 50) * 4 * 1.1
    assert max(sizes) < 2 * min(sizes)


def test_ranks_that_differ_get_their_own_back(tmp_path):
    """Replicas that drifted, and other layers of one path: resuming on as many ranks is exact."""

    def program(comm):
        model = mnpar.ChainList(L.Linear(2 + comm.rank, 2, initialW=comm.rank))
        checkpoint.save(tmp_path, model, comm, 0)
        model[0].W.array[...] = 9
        checkpoint.load(tmp_path, model, comm)
        return model[0].W.array.tolist()

    assert mnpar.run(program, ranks=2) == [[[0, 0], [0, 0]], [[1, 1, 1], [1, 1, 1]]]


def test_ranks_that_differ_cannot_be_other_ranks(tmp_path):
    def write(comm):
        checkpoint.save(tmp_path, mnpar.ChainList(L.Linear(2, 2, initialW=comm.rank)), comm, 0)

    mnpar.run(write, ranks=2)
    with pytest.raises(
        CheckpointError, match=r"0/W differed between the 2 ranks .* param.whole and param.box"
    ):
        mnpar.run(
            lambda comm: checkpoint.load(tmp_path, mnpar.ChainList(L.Linear(2, 2)), comm), ranks=3
        )


def test_replicas_of_a_part_that_differ_cannot_be_other_ranks(tmp_path):
    def write(comm):
        link = mnpar.Link()
        link.W = cut(np.full(4, float(comm.rank)), blocks((4,), (2,))[comm.rank // 2])
        checkpoint.save(tmp_path, link, comm, 0)

    def read(comm):
        checkpoint.load(tmp_path, mnpar.Link(W=4), comm)

    mnpar.run(write, ranks=4)
    with pytest.raises(
        CheckpointError, match=r"W: ranks \[0, 1\] had different values of one part"
    ):
        mnpar.run(read, ranks=1)


def test_a_plain_parameter_becomes_a_divided_one_and_back(tmp_path):
    whole = numbers((5, 3), 0)

    def write(comm):
        link = mnpar.Link()
        link.W = mnpar.Parameter(whole.copy())
        checkpoint.save(tmp_path, link, comm, 0)

    def read(comm):
        link = mnpar.Link()
        link.W = cut(np.zeros((5, 3)), blocks((5, 3), (1, comm.size))[comm.rank])
        checkpoint.load(tmp_path, link, comm)
        np.testing.assert_array_equal(link.W.array, whole[slices(link.W.box)])

    mnpar.run(write, ranks=2)
    mnpar.run(read, ranks=2)


BAD_PARTS = {
    "a gap": ([Box((0,), (2,)), Box((3,), (5,))], "its parts have 4 of the 5 cells"),
    "an overlap": ([Box((0,), (3,)), Box((2,), (5,))], r"the parts \[0:3\] and \[2:5\] overlap"),
    "outside": (
        [Box((0,), (3,)), Box((3,), (6,))],
        r"the part \[3:6\] is not inside the whole \(5,\)",
    ),
}


@pytest.mark.parametrize(("boxes", "message"), BAD_PARTS.values(), ids=BAD_PARTS)
def test_parts_that_make_no_whole_are_refused_when_they_are_saved(boxes, message, tmp_path):
    def program(comm):
        link = mnpar.Link()
        link.W = mnpar.Parameter(np.zeros(boxes[comm.rank].shape))
        link.W.whole = (5,)
        link.W.box = boxes[comm.rank]
        checkpoint.save(tmp_path, link, comm, 0)

    with pytest.raises(ValueError, match=message):
        mnpar.run(program, ranks=2)
    assert not os.listdir(tmp_path)


def test_a_parameter_without_an_array_cannot_take_an_unknown_part(tmp_path):
    def write(comm):
        link = mnpar.Link()
        link.W = cut(np.zeros(4), blocks((4,), (2,))[comm.rank])
        checkpoint.save(tmp_path, link, comm, 0)

    def read(comm):
        link = mnpar.Link()
        link.W = mnpar.Parameter()
        checkpoint.load(tmp_path, link, comm)

    mnpar.run(write, ranks=2)
    with pytest.raises(CheckpointError, match="Call the link once before loading"):
        mnpar.run(read, ranks=2)


def test_an_uninitialized_replica_takes_the_whole_array(tmp_path):
    def program(comm):
        model = L.Linear(3, 2, initialW=2)
        checkpoint.save(tmp_path, model, comm, 0)
        lazy = L.Linear(None, 2)
        checkpoint.load(tmp_path, lazy, comm)
        return lazy.W.array.tolist()

    assert mnpar.run(program, ranks=2)[1] == [[2, 2, 2], [2, 2, 2]]


VALUES = {
    "an int": 2**70,
    "a float": 0.1,
    "infinity": float("inf"),
    "a bool": True,
    "None": None,
    "text": "é\x00\n",
    "a numpy number": np.float32(0.1),
    "float16": np.array([1.5, np.inf], "f2"),
    "complex128": np.array([1 + 2j, 3j]),
    "words": np.array(["a", "bcd"]),
    "big-endian": np.arange(3, dtype=">i4"),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "0-d": np.array(3),
    "empty": np.zeros((0, 2)),
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_come_back_as_they_were(value, tmp_path):
    def program(comm):
        checkpoint.save(tmp_path, Bag(v=value), comm, 0)
        fresh = (
            np.zeros_like(value)
            if isinstance(value, np.ndarray)
            else None
            if value is None
            else type(value)()
        )
        bag = Bag(v=fresh)
        checkpoint.load(tmp_path, bag, comm)
        assert type(bag.values["v"]) is type(value)
        np.testing.assert_array_equal(bag.values["v"], value)

    mnpar.run(program, ranks=2)


def test_nan_comes_back(tmp_path):
    def program(comm):
        checkpoint.save(tmp_path, Bag(v=float("nan")), comm, 0)
        bag = Bag(v=0.0)
        checkpoint.load(tmp_path, bag, comm)
        return bag.values["v"]

    assert np.isnan(mnpar.run(program, ranks=1)[0])


def test_an_object_is_refused_on_all_ranks(tmp_path):
    def program(comm):
        try:
            checkpoint.save(tmp_path, Bag(v=3 if comm.rank else {1}), comm, 0)
        except TypeError as error:
            return str(error)
        return None

    assert (
        mnpar.run(program, ranks=2)
        == ["v: a checkpoint has arrays, numbers, strings and None, not a set"] * 2
    )


def test_one_key_twice_is_refused(tmp_path):
    class Twice:
        def serialize(self, serializer):
            serializer("a", 1)
            serializer("a", 2)

    with pytest.raises(ValueError, match="a is saved twice"):
        mnpar.run(lambda comm: checkpoint.save(tmp_path, Twice(), comm, 0), ranks=1)


def test_a_serializer_of_ones_own_needs_no_place():
    class Keys:
        def __init__(self):
            self.keys = []

        def __getitem__(self, key):
            return self

        def __call__(self, key, value):
            self.keys.append(key)
            return value

    keys = Keys()
    L.Linear(2, 2).serialize(keys)
    assert keys.keys == ["W", "b"]
    assert Serializer().place(None, None) is not None


def test_the_manifest_is_json_that_others_can_read(tmp_path):
    path = mnpar.run(lambda comm: checkpoint.save(tmp_path, L.Linear(2, 2), comm, 7), ranks=1)[0]
    with open(os.path.join(path, "manifest.json")) as file:
        document = json.load(file)
    assert document["content"]["step"] == 7
    arrays = mnpar.serializers.read_safetensors(
        os.path.join(path, "shard-00000-of-00001.safetensors")
    )
    assert arrays["W"].shape == (2, 2)


def test_bfloat16_comes_back_in_every_kind_of_file(tmp_path):
    values = np.array([1.5, -2.0, 3e38], "f4").astype(ml_dtypes.bfloat16)

    def program(comm):
        link = mnpar.Link()
        again = mnpar.Link()
        link.add_persistent("x", values.copy())
        again.add_persistent("x", np.zeros_like(values))
        checkpoint.save(tmp_path, link, comm, 0)
        checkpoint.load(tmp_path, again, comm)
        return again.x

    for found in mnpar.run(program, ranks=2):
        np.testing.assert_array_equal(found, values)
    for kind in ("npz", "safetensors"):
        write = getattr(serializers, f"save_{kind}")
        read = getattr(serializers, f"load_{kind}")
        bag = Bag(x=np.zeros_like(values))
        write(tmp_path / "file", Bag(x=values))
        read(tmp_path / "file", bag)
        np.testing.assert_array_equal(bag.values["x"], values)


def test_the_step_may_be_one_of_numpys_numbers(tmp_path):
    comm = mnpar.create_communicator("self")
    link = L.Linear(1, 1)
    checkpoint.save(tmp_path, {"link": link}, comm, np.arange(5)[3])
    assert checkpoint.load(tmp_path, {"link": link}, comm) == 3
