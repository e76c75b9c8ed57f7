"""Training over ranks with a trainer: the same weights and the same log as one process, resumed or
not.
"""

import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.errors import MismatchError
from mnpar.iterators import SerialIterator, ShuffleOrderSampler
from mnpar.training import extensions
from tests.harness.trainers import weights

ITERATIONS, BATCH = 6, 6


def layer(n_in, n_out, seed):
    weights = np.random.default_rng(seed).standard_normal((n_out, n_in)) / 3
    with mnpar.using_config("dtype", np.dtype("f8")):
        return L.Linear(n_in, n_out, initialW=weights)


class Net(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.l1 = layer(4, 5, 1)
        self.l2 = layer(5, 3, 2)

    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))


def examples(n, seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(4), int(rng.integers(3))) for _ in range(n)]


TRAIN = examples(ITERATIONS * BATCH)
TEST = examples(11, 4)


def run(
    out,
    model,
    train,
    test,
    batch,
    comm=None,
    evaluation=3,
    stop=2 * ITERATIONS,
    extend=lambda trainer: None,
):
    """Two epochs; the trainer, and its log without times."""
    optimizer = mnpar.optimizers.MomentumSGD(lr=0.1)
    if comm is not None:
        mnpar.create_multi_node_optimizer(optimizer, comm)
    iterator = SerialIterator(train, batch, shuffle=False)
    trainer = training.Trainer(
        training.StandardUpdater(iterator, optimizer.setup(model)), (stop, "iteration"), str(out)
    )
    evaluator = extensions.Evaluator(
        SerialIterator(test, evaluation, repeat=False, shuffle=False), model
    )
    trainer.extend(
        evaluator if comm is None else mnpar.create_multi_node_evaluator(evaluator, comm)
    )
    trainer.extend(extensions.LogReport(["validation/main/loss", "validation/main/accuracy"]))
    extend(trainer)
    trainer.run()
    log = trainer.get_extension("LogReport").log
    return trainer, [
        {name: value for name, value in entry.items() if name != "elapsed_time"} for entry in log
    ]


def alone(tmp_path):
    return run(tmp_path, L.Classifier(Net()), TRAIN, TEST, BATCH)


def same(log, expected):
    assert [list(entry) for entry in log] == [list(entry) for entry in expected]
    np.testing.assert_allclose(
        [list(e.values()) for e in log], [list(e.values()) for e in expected], rtol=1e-10
    )


SHARES = {"one": [6], "even": [3, 3], "uneven": [5, 1], "three": [1, 2, 3]}


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
def test_copies_learn_what_one_process_learns(share, tmp_path):
    """A rank has so many of each batch; the shards of the test set are uneven, and may be empty."""
    trainer, expected = alone(tmp_path / "alone")
    ends = np.cumsum([0, *share])

    def program(comm):
        mine = [
            e
            for i in range(ITERATIONS)
            for e in TRAIN[i * BATCH : i * BATCH + BATCH][ends[comm.rank] : ends[comm.rank + 1]]
        ]
        test = [TEST[:9], TEST[9:], []][comm.rank] if comm.size > 1 else TEST
        one, log = run(tmp_path, L.Classifier(Net()), mine, test, share[comm.rank], comm)
        return weights(one), log

    for found, log in mnpar.run(program, ranks=len(share)):
        same(log, expected)
        for path, value in weights(trainer).items():
            np.testing.assert_allclose(found[path], value, rtol=1e-10, atol=1e-14)


def parts(comm):
    """The network on two ranks."""
    model = mnpar.MultiNodeChainList(comm)
    if comm.rank == 0:
        model.add_link(mnpar.Sequential(layer(4, 5, 1), F.relu), rank_out=1)
        model.add_link(mnpar.Sequential(lambda y: y), rank_in=1)
        return L.Classifier(model)
    model.add_link(layer(5, 3, 2), rank_in=0, rank_out=0)
    return model


def parallel(tmp_path, comm, model_comm, data_comm):
    """A rank's trainer of a network over model_comm, copies of which are on data_comm."""
    n = BATCH // (1 if data_comm is None else data_comm.size)
    first = 0 if data_comm is None else data_comm.rank * n
    train = [
        e
        for i in range(ITERATIONS)
        for e in TRAIN[i * BATCH : i * BATCH + BATCH][first : first + n]
    ]
    test = TEST if data_comm is None else TEST[data_comm.rank :: data_comm.size]
    if model_comm.rank == 1:
        train = mnpar.create_empty_dataset(train)
        test = mnpar.create_empty_dataset(test)
    return run(tmp_path, parts(model_comm), train, test, n, data_comm)


def check_parts(found, log, rank, trainer, expected):
    whole = list(weights(trainer).values())[:4]  # W1, b1, W2, b2
    mine = list(found.values())
    for value, reference in zip(mine, whole[:2] if rank == 0 else whole[2:], strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-10, atol=1e-14)
    if rank == 0:
        same(log, expected)


def test_two_ranks_with_one_network_learn_what_one_process_learns(tmp_path):
    def program(comm):
        one, log = parallel(tmp_path, comm, comm, None)
        return weights(one), log

    reference = alone(tmp_path / "alone")
    for rank, (found, log) in enumerate(mnpar.run(program, ranks=2)):
        check_parts(found, log, rank, *reference)


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_copies_of_a_network_on_two_ranks_learn_what_one_process_learns(ranks, tmp_path):
    def program(comm):
        data_comm = comm.split(comm.rank % 2, comm.rank)
        model_comm = comm.split(comm.rank // 2, comm.rank)
        one, log = parallel(tmp_path, comm, model_comm, data_comm)
        return weights(one), log

    reference = alone(tmp_path / "alone")
    for rank, (found, log) in enumerate(mnpar.run(program, ranks=ranks)):
        check_parts(found, log, rank % 2, *reference)


@pytest.mark.ranks(2, on="mpi")
def test_mpi_ranks_learn_what_one_process_learns(comm, tmp_path):
    trainer, expected = alone(tmp_path / "alone")
    mine = [
        e for i in range(ITERATIONS) for e in TRAIN[i * BATCH : i * BATCH + BATCH][comm.rank :: 2]
    ]
    one, log = run(
        tmp_path,
        L.Classifier(Net()),
        mine,
        TEST[comm.rank * 9 : 9 + comm.rank * 2],
        BATCH // 2,
        comm,
    )
    same(log, expected)
    for path, value in weights(trainer).items():
        np.testing.assert_allclose(weights(one)[path], value, rtol=1e-10, atol=1e-14)


class Dropping(Net):
    """Statistics that differ between ranks, and random numbers."""

    def __init__(self):
        super().__init__()
        self.bn = L.BatchNormalization(4, dtype=np.float64)

    def forward(self, x):
        return self.l2(F.dropout(F.relu(self.l1(self.bn(x)))))


def by_snapshots(comm, trainer, moment):
    each = extensions.snapshot(autoload=True)
    trainer.extend(
        mnpar.extensions.multi_node_snapshot(comm, each, range(comm.size)),
        trigger=(moment, "iteration"),
    )


def by_checkpoints(comm, trainer, moment):
    one = mnpar.create_multi_node_checkpointer("run", comm)
    trainer.extend(one, trigger=(moment, "iteration"))
    one.maybe_load(trainer, path=trainer.out)


@pytest.mark.parametrize("moment", [2, 5, 9])
@pytest.mark.parametrize("kept", [by_snapshots, by_checkpoints])
def test_a_resumed_training_over_ranks_is_bit_for_bit_the_same(moment, kept, tmp_path):
    """Each rank with its own order, dropout, statistics and shard."""

    def program(comm, out, stop):
        mnpar.random.seed([8, comm.rank])
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm)
        model = L.Classifier(Dropping())
        sampler = ShuffleOrderSampler(np.random.RandomState(comm.rank))
        iterator = SerialIterator(TRAIN[comm.rank :: comm.size], 3, order_sampler=sampler)
        trainer = training.Trainer(
            training.StandardUpdater(iterator, optimizer.setup(model)),
            (stop, "iteration"),
            str(out),
        )
        trainer.extend(mnpar.extensions.AllreducePersistent(model, comm), trigger=(4, "iteration"))
        trainer.extend(extensions.LogReport(trigger=(3, "iteration")))
        trainer.extend(extensions.ExponentialShift("alpha", 0.9), trigger=(2, "iteration"))
        kept(comm, trainer, moment)
        trainer.run()
        log = [entry["main/loss"] for entry in trainer.get_extension("LogReport").log]
        return weights(trainer) | dict(model.namedpersistents()), log

    whole = mnpar.run(program, ranks=2, args=(tmp_path / "whole", 12))
    mnpar.run(program, ranks=2, args=(tmp_path / "parts", moment))
    resumed = mnpar.run(program, ranks=2, args=(tmp_path / "parts", 12))
    for one, other in zip(whole, resumed, strict=True):
        for path, value in one[0].items():
            np.testing.assert_array_equal(other[0][path], value, err_msg=path)
        assert one[1] == other[1]
        assert len(one[1]) == 4


def test_copies_learn_digits():
    train, test = mnpar.datasets.get_digits()

    def program(comm, out="unused"):
        mnpar.random.seed([1, comm.rank])
        model = L.Classifier(
            mnpar.Sequential(
                L.Linear(None, 100), F.relu, L.Linear(None, 100), F.relu, L.Linear(None, 10)
            )
        )
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm).setup(model)
        mine = mnpar.scatter_dataset(train if comm.rank == 0 else None, comm, shuffle=True, seed=1)
        updater = training.StandardUpdater(SerialIterator(mine, 25), optimizer)
        while updater.epoch < 10:
            updater.update()
        iterator = SerialIterator(test[comm.rank :: comm.size], 50, repeat=False, shuffle=False)
        return mnpar.create_multi_node_evaluator(extensions.Evaluator(iterator, model), comm)()[
            "main/accuracy"
        ]

    first, second = mnpar.run(program, ranks=2)
    assert first == second > 0.95


def test_epochs_of_different_lengths_are_told(tmp_path):
    def program(comm):
        run(tmp_path, L.Classifier(Net()), TRAIN[: 9 if comm.rank else 30], TEST, 6, comm)

    with pytest.raises(MismatchError) as caught:
        mnpar.run(program, ranks=2)
    assert re.search(
        r"rank \d has had [\d.]+ epochs: where data differ in length",
        "\n".join(caught.value.__notes__),
    )
