"""Links that are divided among ranks, trained on P ranks, go on on Q: with the losses of one
process.
"""

import itertools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import checkpoint

SIZES = (1, 2, 3, 4, 6)
GRIDS = {1: (1, 1), 2: (1, 2), 3: (3, 1), 4: (2, 2), 6: (3, 2)}
FIRST, LAST = 2, 4  # steps before and after the checkpoint


class Columns(mnpar.Chain):
    """A layer by columns of W, then one by rows."""

    def __init__(self, comm):
        super().__init__()
        self.columns = L.ColumnParallelLinear(comm, 5, 7, gather_output=False)
        self.rows = L.RowParallelLinear(comm, 7, 3, input_is_parallel=True)

    def loss(self, step):
        x = np.random.default_rng(step).normal(size=(4, 5))
        loss = F.sum(self.rows(F.tanh(self.columns(x))) ** 2)
        return loss, float(loss.array)


class Words(mnpar.Chain):
    """A table of words that also makes the scores."""

    def __init__(self, comm):
        super().__init__()
        self.comm, self.table = comm, L.VocabularyParallelEmbedID(comm, 5, 3)

    def loss(self, step):
        t = np.random.default_rng(step).integers(0, 5, (4, 3))
        scores = F.linear(
            F.copy_to(self.comm, F.tanh(self.table(t[:, :2]))), self.table.W, n_batch_axes=2
        )
        loss = F.vocabulary_parallel_softmax_cross_entropy(
            self.comm, scores.transpose(0, 2, 1), t[:, 1:]
        )
        return loss, float(loss.array)


class Channels(mnpar.Chain):
    """Convolutions by filters, by groups and by channels."""

    def __init__(self, comm):
        super().__init__()
        self.filters = L.FilterParallelConvolution2D(comm, 2, 5, 2, gather_output=False)
        self.each = L.FilterParallelConvolution2D(
            comm, 5, 5, 2, groups=5, gather_output=False, input_is_parallel=True
        )
        self.channels = L.ChannelParallelConvolution2D(comm, 5, 3, 1, input_is_parallel=True)

    def loss(self, step):
        x = np.random.default_rng(step).normal(size=(2, 2, 5, 5))
        loss = F.sum(self.channels(F.tanh(self.each(F.tanh(self.filters(x))))) ** 2)
        return loss, float(loss.array)


class Untied(mnpar.Chain):
    """Filters of which each place of the image has its own, of images in blocks."""

    def __init__(self, comm):
        super().__init__()
        self.grid = mnpar.SpatialGrid(comm, GRIDS[comm.size])
        self.local = L.SpatialLocalConvolution2D(self.grid, 2, 3, in_size=(7, 8), ksize=3)

    def loss(self, step):
        x = np.random.default_rng(step).normal(size=(2, 2, 7, 8))
        loss = F.sum(self.local(self.grid.cut(x)) ** 2)
        return loss, float(loss.array)


class Seam(mnpar.Chain):
    """From blocks to a matrix that is cut as they are; of 3 × 2 cells each of six ranks has one."""

    def __init__(self, comm):
        super().__init__()
        self.grid = mnpar.SpatialGrid(comm, GRIDS[comm.size])
        self.fc = L.SpatialLinear(self.grid, (2, 3, 2), 4)

    def loss(self, step):
        x = np.random.default_rng(step).normal(size=(3, 2, 3, 2))
        loss = F.sum(F.tanh(self.fc(self.grid.cut(x))) ** 2)
        return loss, float(loss.array)


class Whole(mnpar.Chain):
    """The same in one process, without blocks."""

    def __init__(self, comm):
        super().__init__()
        self.fc = L.Linear(12, 4)

    def loss(self, step):
        loss = F.sum(F.tanh(self.fc(np.random.default_rng(step).normal(size=(3, 2, 3, 2)))) ** 2)
        return loss, float(loss.array)


def train(comm, kind, folder, stop, save):
    mnpar.random.seed(1)
    with mnpar.using_config("dtype", np.dtype("f8")):
        model = kind(comm)
        everything = {
            "model": model,
            "optimizer": mnpar.optimizers.MomentumSGD(lr=0.02).setup(model),
        }
        losses = []
        for step in range(checkpoint.load(folder, everything, comm) or 0, stop):
            model.cleargrads()
            loss, value = model.loss(step)
            loss.backward()
            everything["optimizer"].update()
            losses.append(value)
        return losses, save and checkpoint.save(folder, everything, comm, stop)


@pytest.mark.grid
@pytest.mark.parametrize(("written", "read"), [*itertools.product(SIZES, SIZES)])
@pytest.mark.parametrize(
    "kind",
    [Columns, Words, Channels, Untied, Seam],
    ids=["columns and rows", "words", "channels", "untied", "seam"],
)
def test_training_goes_on_with_the_losses_of_one_process(kind, written, read, tmp_path):
    ((expected, _),) = mnpar.run(train, ranks=1, args=(kind, tmp_path / "none", LAST, False))
    mnpar.run(train, ranks=written, args=(kind, tmp_path, FIRST, True))
    for losses, _ in mnpar.run(train, ranks=read, args=(kind, tmp_path, LAST, False)):
        np.testing.assert_allclose(losses, expected[FIRST:], rtol=1e-10)


@pytest.mark.parametrize(
    ("first", "written", "then", "read"),
    [(Seam, 4, Whole, 1), (Whole, 1, Seam, 6), (Seam, 3, Whole, 2)],
    ids=str,
)
def test_a_seam_and_a_plain_matrix_go_on_from_each_other(first, written, then, read, tmp_path):
    """Weights and momenta: in one they are (4, 2, 3, 2) and cut, in the other (4, 12)."""
    ((expected, _),) = mnpar.run(train, ranks=1, args=(Whole, tmp_path / "none", LAST, False))
    mnpar.run(train, ranks=written, args=(first, tmp_path, FIRST, True))
    for losses, _ in mnpar.run(train, ranks=read, args=(then, tmp_path, LAST, False)):
        np.testing.assert_allclose(losses, expected[FIRST:], rtol=1e-10)


def test_a_matrix_of_another_size_is_refused_though_it_has_as_many_numbers(tmp_path):
    mnpar.run(train, ranks=2, args=(Seam, tmp_path, FIRST, True))

    def other(comm):
        with mnpar.using_config("dtype", np.dtype("f8")):
            checkpoint.load(tmp_path, {"model": mnpar.Chain(fc=L.Linear(16, 3))}, comm)

    with pytest.raises(
        ValueError,
        match=r"model/fc/W: saved with shape \(4, 2, 3, 2\) in all, but the object's is \(3, 16\)",
    ):
        mnpar.run(other, ranks=1)


def test_parts_are_stored_as_parts_and_a_plain_link_reads_them(tmp_path):
    mnpar.run(train, ranks=3, args=(Columns, tmp_path, FIRST, True))
    shards = [
        mnpar.serializers.read_safetensors(file) for file in sorted(tmp_path.rglob("*.safetensors"))
    ]
    names = [name for shard in shards for name in shard if name.startswith("model/columns/W")]
    assert [shard[name].shape for shard, name in zip(shards, names, strict=True)] == [
        (3, 5),
        (2, 5),
        (2, 5),
    ]

    def plain(comm):
        with mnpar.using_config("dtype", np.dtype("f8")):
            model = mnpar.Chain(columns=L.Linear(None, 7), rows=L.Linear(7, 3))
            model.columns(np.ones((1, 5)))
            checkpoint.load(tmp_path, {"model": model}, comm)
        return model.columns.W.array

    np.testing.assert_array_equal(
        mnpar.run(plain, ranks=1)[0],
        np.concatenate([shard[name] for shard, name in zip(shards, names, strict=True)]),
    )


def test_a_divided_link_without_sizes_yet_takes_its_part_when_it_has_them(tmp_path):
    def program(comm):
        whole = L.ColumnParallelLinear(comm, 2, 3, initialW=np.arange(6.0).reshape(3, 2))
        checkpoint.save(tmp_path, whole, comm, 1)
        lazy = L.ColumnParallelLinear(comm, None, 3)
        checkpoint.load(tmp_path, lazy, comm)
        lazy(np.ones((1, 2), "f4"))
        return lazy.W.array.tolist()

    assert mnpar.run(program, ranks=2) == [[[0, 1], [2, 3]], [[4, 5]]]
