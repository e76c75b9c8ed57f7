"""The checkpointer in a Trainer with everything in it: what was cut off goes on as if it had not
been.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import checkpoint, training
from mnpar.training import extensions


class Stop(Exception):  # noqa: N818
    """The end of a job, as an extension's error."""


def lecun(seed):
    return mnpar.initializers.LeCunNormal(rng=np.random.default_rng(seed))


def make(comm, out, stop=(3, "epoch"), **stepping):
    """A trainer with data of each rank's own, dropout, running means, a changing rate, evaluation
    and a log.
    """
    mnpar.random.seed([7, comm.rank])
    layers = (
        L.Linear(None, 6, initialW=lecun(1)),
        F.relu,
        F.dropout,
        L.BatchNormalization(6),
        L.Linear(6, 3, initialW=lecun(2)),
    )
    model = L.Classifier(mnpar.Sequential(*layers))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.Adam(alpha=0.01), comm, **stepping
    ).setup(model)
    x = np.random.default_rng(1).standard_normal((23, 4)).astype("f4")
    data = mnpar.scatter_dataset(
        [(row, np.int32(row[0] > 0)) for row in x], comm, shuffle=True, seed=0
    )
    updater = training.StandardUpdater(mnpar.iterators.SerialIterator(data, 3), optimizer)
    trainer = training.Trainer(updater, stop, str(out))
    evaluator = extensions.Evaluator(
        mnpar.iterators.SerialIterator(data, 4, repeat=False, shuffle=False), model
    )
    trainer.extend(mnpar.create_multi_node_evaluator(evaluator, comm))
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    trainer.extend(extensions.ExponentialShift("alpha", 0.9), trigger=(2, "iteration"))
    return trainer, optimizer


def train(comm, out, cut=None, stepping=()):
    """Where it began, and everything that it came to."""
    trainer, optimizer = make(comm, out, **dict(stepping))
    checkpointer = mnpar.create_multi_node_checkpointer("run", comm, cp_interval=2, gc_interval=1)
    trainer.extend(checkpointer, trigger=(2, "iteration"))
    begin = checkpointer.maybe_load(trainer, optimizer)

    def stop(trainer):
        if trainer.updater.iteration == cut:
            raise Stop

    trainer.extend(stop, name="stop", priority=-1000)
    trainer.run()
    log = [
        {key: value for key, value in row.items() if key != "elapsed_time"}
        for row in trainer.get_extension("LogReport").log
    ]
    target = {
        key: array.tolist() for key, array in mnpar.serializers.serialize(optimizer.target).items()
    }
    return begin, [
        target,
        log,
        optimizer.alpha,
        optimizer.t,
        mnpar.random.get_state(),
        trainer.updater.epoch_detail,
    ]


WAYS = {
    "1 rank": (1, ()),
    "2 ranks": (2, ()),
    "3 ranks": (3, ()),
    "late gradients": (2, (("double_buffering", True),)),
    "states in shards": (3, (("sharded", True),)),
}


@pytest.mark.parametrize(("ranks", "stepping"), WAYS.values(), ids=WAYS)
def test_a_trainer_that_was_cut_off_goes_on_bit_for_bit(ranks, stepping, tmp_path):
    whole = mnpar.run(train, ranks=ranks, args=(tmp_path / "whole", None, stepping))
    with pytest.raises(Stop):
        mnpar.run(train, ranks=ranks, args=(tmp_path / "cut", 5, stepping))
    assert checkpoint.steps(tmp_path / "cut" / "run") == [2, 4]
    resumed = mnpar.run(train, ranks=ranks, args=(tmp_path / "cut", None, stepping))
    assert [begin for begin, _ in resumed] == [4] * ranks
    assert [state for _, state in resumed] == [state for _, state in whole]


@pytest.mark.parametrize(("written", "read"), [(2, 1), (2, 3), (4, 1), (4, 3)])
def test_a_trainer_goes_on_on_other_numbers_of_ranks(written, read, tmp_path):
    with pytest.raises(Stop):
        mnpar.run(train, ranks=written, args=(tmp_path, 6))
    with pytest.warns(UserWarning, match="what belonged to single ranks"):
        ranks = mnpar.run(train, ranks=read, args=(tmp_path,))
    assert [begin for begin, _ in ranks] == [6] * read
    weights = [state[0]["predictor/0/W"] for _, state in ranks]
    assert weights == [weights[0]] * read
    assert [row["epoch"] for row in ranks[0][1][1]] == [1, 2, 3]


def test_finalize_after_an_error_leaves_the_checkpoints(tmp_path):
    with pytest.raises(Stop):
        mnpar.run(train, ranks=2, args=(tmp_path, 3))
    assert checkpoint.steps(tmp_path / "run") == [2]
