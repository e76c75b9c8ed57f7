"""ChainerMN's checkpointer, used as its programs use it: with something like a Trainer, and
without.
"""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint
from mnpar.checkpoint import store
from mnpar.errors import CheckpointError


class Updater:
    iteration = 0


class Trainer:
    """What the checkpointer needs of a Trainer."""

    def __init__(self, out, model):
        self.out = out
        self.model = model
        self.updater = Updater()

    def serialize(self, serializer):
        self.model.serialize(serializer["updater"]["model:main"])
        self.updater.iteration = serializer("iteration", self.updater.iteration)


def train(comm, out, until, **settings):
    """The iteration it began at, and the weight it ended with."""
    trainer = Trainer(out, L.Linear(1, 1, initialW=0))
    checkpointer = mnpar.create_multi_node_checkpointer("run", comm, **settings)
    start = checkpointer.maybe_load(trainer)
    while trainer.updater.iteration < until:
        trainer.updater.iteration += 1
        trainer.model.W.array += 1
        checkpointer(trainer)
    checkpointer.flush()
    checkpointer.finalize()
    return start, trainer.model.W.array.item(), checkpointer


@pytest.mark.ranks(1, 2)
def test_training_goes_on_where_it_was(comm, tmp_path):
    out = comm.bcast_obj(str(tmp_path))
    assert train(comm, out, 3)[:2] == (None, 3)
    assert train(comm, out, 5)[:2] == (3, 5)
    comm.barrier()


def test_old_checkpoints_are_removed_at_intervals(tmp_path):
    mnpar.run(lambda comm: train(comm, tmp_path, 11, cp_interval=2, gc_interval=4), ranks=2)
    assert checkpoint.steps(tmp_path / "run") == [7, 8, 9, 10, 11]


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    mnpar.run(lambda comm: train(comm, tmp_path, 3), ranks=1)
    os.truncate(tmp_path / "run" / "step-00000003" / store.MANIFEST, 10)
    with pytest.warns(UserWarning, match="step-00000003"):
        assert mnpar.run(lambda comm: train(comm, tmp_path, 5), ranks=1)[0][:2] == (2, 5)
    assert checkpoint.steps(tmp_path / "run") == [1, 2, 3, 4, 5]
    assert (tmp_path / "run" / "step-00000003.2").is_dir()


def test_without_a_trainer_it_takes_a_path_and_any_object(tmp_path):
    def program(comm):
        model = L.Linear(1, 1, initialW=comm.rank)
        checkpointer = mnpar.create_multi_node_checkpointer("mine", comm, path=tmp_path)
        checkpointer.save({"model": model}, 4)
        model.W.array[...] = 7
        fresh = mnpar.create_multi_node_checkpointer("mine", comm)
        return (
            fresh.maybe_load({"model": model}, optimizer=None, path=tmp_path),
            model.W.array.item(),
            fresh.steps(),
        )

    assert mnpar.run(program, ranks=2) == [(4, 0, [4]), (4, 1, [4])]


def test_without_trainer_and_path_it_says_what_it_needs():
    with pytest.raises(ValueError, match="needs a path"):
        mnpar.run(
            lambda comm: mnpar.create_multi_node_checkpointer("x", comm).save(L.Linear(1, 1), 0),
            ranks=1,
        )


HOLD = """
import sys, mnpar
comm = mnpar.create_communicator()
checkpointer = mnpar.create_multi_node_checkpointer("run", comm, path=sys.argv[1])
checkpointer.save(mnpar.links.Linear(1, 1), 1)
print("saved", flush=True)
sys.stdin.read()
"""


def test_a_second_job_in_one_folder_is_refused_and_hears_of_the_first(tmp_path):
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert first.stdout.readline() == "saved\n"
    with pytest.raises(CheckpointError, match=f"is in use by process {first.pid} on "):
        mnpar.run(lambda comm: train(comm, tmp_path, 3), ranks=2)
    first.kill()
    first.communicate()
    mnpar.run(
        lambda comm: mnpar.create_multi_node_checkpointer("run", comm, path=tmp_path).save(
            L.Linear(1, 1), 2
        ),
        ranks=2,
    )
    assert checkpoint.steps(tmp_path / "run") == [1, 2]


def test_statistics_are_chainers_words(tmp_path):
    checkpointer = mnpar.run(lambda comm: train(comm, tmp_path, 2), ranks=1)[0][2]
    assert checkpointer.get_stats().startswith("Snapshot duration stats (sec): avg=0.")
    fresh = mnpar.run(lambda comm: mnpar.create_multi_node_checkpointer("x", comm), ranks=1)[0]
    assert fresh.get_stats() == "No stats available"


BAD = {
    "no name": ({"name": ""}, "name of a folder, not ''"),
    "a path": ({"name": "a/b"}, "name of a folder, not 'a/b'"),
    "a hidden name": ({"name": ".x"}, "name of a folder"),
    "the folder above": ({"name": ".."}, "name of a folder"),
    "none kept": ({"name": "x", "cp_interval": 0}, "cp_interval = 0"),
    "no interval": ({"name": "x", "gc_interval": 0}, "gc_interval = 0"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mnpar.run(
            lambda comm: mnpar.create_multi_node_checkpointer(comm=comm, **arguments), ranks=1
        )


KINDS = {
    "multi-node optimizer": lambda model, comm: (
        model,
        mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm),
    ),
    "sharded": lambda model, comm: (
        model,
        mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm, sharded=True),
    ),
    "late gradients": lambda model, comm: (
        model,
        mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm, True),
    ),
    "distributed model": lambda model, comm: (
        mnpar.DistributedDataParallel(model, comm),
        mnpar.optimizers.Adam(),
    ),
}


def learn(comm, folder, kind, steps, start):
    """Steps ``start`` to ``steps``; after two there is a checkpoint in a folder of this start."""
    mnpar.random.seed([start, comm.rank])
    model, optimizer = kind(
        mnpar.Sequential(L.Linear(2, 3, initialW=start + 1), L.BatchNormalization(3)), comm
    )
    everything = {"model": model, "optimizer": optimizer.setup(model)}
    assert (checkpoint.load(folder, everything, comm) or 0) == start
    for step in range(start, steps):
        x = np.random.default_rng([step, comm.rank]).normal(size=(4, 2)).astype("f4")
        optimizer.update(lambda x: mnpar.functions.sum(model(x) ** 3), x)
        if step == 1:
            checkpoint.save(folder / f"{start}", everything, comm, 2)
    inner = getattr(model, "module", model)
    return inner[1].avg_mean.tolist(), inner[0].W.array.tolist()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_first_update_of_a_resumed_run_does_not_overwrite_what_ranks_have_loaded(
    kind, tmp_path
):
    """The running means of batch normalization differ between ranks, and go on to."""
    whole = mnpar.run(learn, ranks=2, args=(tmp_path, kind, 4, 0))
    assert whole[0][0] != whole[1][0]
    (tmp_path / "0" / "step-00000002").rename(tmp_path / "step-00000002")
    assert mnpar.run(learn, ranks=2, args=(tmp_path, kind, 4, 2)) == whole


@pytest.mark.parametrize("ranks", [1, 3])
def test_states_in_shards_are_whole_on_other_numbers_of_ranks(ranks, tmp_path):
    mnpar.run(learn, ranks=2, args=(tmp_path, KINDS["sharded"], 2, 0))

    def read(comm, kind):
        model, optimizer = kind(mnpar.Sequential(L.Linear(2, 3), L.BatchNormalization(3)), comm)
        checkpoint.load(tmp_path / "0", {"model": model, "optimizer": optimizer.setup(model)}, comm)
        return {path: param.update_rule.state["m"].tolist() for path, param in model.namedparams()}

    expected = mnpar.run(read, ranks=2, args=(KINDS["multi-node optimizer"],))[0]
    assert len(expected["/0/W"]) == 3
    with pytest.warns(UserWarning, match="avg_mean"):
        assert mnpar.run(read, ranks=ranks, args=(KINDS["sharded"],)) == [expected] * ranks


# ---- on other numbers of ranks ----


def iterate(comm, batches, data=48, size=2):
    mnpar.random.seed([comm.size, comm.rank])
    iterator = mnpar.iterators.SerialIterator(range(data)[comm.rank :: comm.size], size)
    for _ in range(batches):
        iterator.next()
    return iterator


@pytest.mark.parametrize(("written", "read"), [(2, 3), (3, 2), (1, 4), (4, 1), (2, 6)])
def test_an_iterator_over_scattered_data_goes_on_at_the_same_share_of_the_epoch(
    written, read, tmp_path
):
    def write(comm):
        # one epoch and a half
        checkpoint.save(tmp_path, iterate(comm, 48 // written * 3 // 2 // 2), comm, 1)

    def program(comm):
        iterator = iterate(comm, 0)
        checkpoint.load(tmp_path, iterator, comm)
        place = iterator.epoch_detail
        seen = [example for _ in range(48 // read // 2 // 2) for example in iterator.next()]
        return place, len({*seen}), iterator.epoch_detail

    mnpar.run(write, ranks=written)
    with (
        pytest.warns(UserWarning, match="what belonged to single ranks")
        if written > 1
        else nullcontext()
    ):
        assert mnpar.run(program, ranks=read) == [(1.5, 24 // read, 2.0)] * read


def test_random_numbers_go_on_on_the_ranks_that_had_them(tmp_path):
    def write(comm):
        mnpar.random.seed([0, comm.rank])
        checkpoint.save(tmp_path, {}, comm, 1)
        return mnpar.random.generator().random()

    def read(comm):
        mnpar.random.seed([1, comm.rank])
        checkpoint.load(tmp_path, {}, comm)
        return mnpar.random.generator().random()

    for written in (1, 2):
        expected = mnpar.run(write, ranks=written)
        with pytest.warns(UserWarning, match="mnpar.random") if written > 1 else nullcontext():
            found = mnpar.run(read, ranks=4)
        assert found[:written] == expected
        assert found[written:] == [
            np.random.default_rng([1, rank]).random() for rank in range(written, 4)
        ]
        assert mnpar.run(read, ranks=written) == expected


def test_numbers_and_words_of_new_ranks_are_those_of_an_old_one(tmp_path):
    class Bag:
        def __init__(self, **values):
            self.values = values

        def serialize(self, serializer):
            self.values = {key: serializer(key, value) for key, value in self.values.items()}

    def write(comm):
        checkpoint.save(tmp_path, Bag(log=f"log {comm.rank}", order=np.array([comm.rank])), comm, 1)

    def read(comm):
        bag = Bag(log="", order=np.array([9]))
        checkpoint.load(tmp_path, bag, comm)
        return bag.values["log"], bag.values["order"].item()

    mnpar.run(write, ranks=2)
    with pytest.warns(UserWarning, match="log, order"):
        assert mnpar.run(read, ranks=3) == [("log 0", 0), ("log 1", 1), ("log 0", 9)]


def test_running_statistics_that_differ_become_their_mean(tmp_path):
    def write(comm):
        model = mnpar.Chain(bn=L.BatchNormalization(2))
        model.bn.avg_mean[...] = [comm.rank, 1]
        model.bn.N = comm.rank
        checkpoint.save(tmp_path, model, comm, 1)

    def read(comm):
        model = mnpar.Chain(bn=L.BatchNormalization(2))
        checkpoint.load(tmp_path, model, comm)
        return model.bn.avg_mean.tolist(), model.bn.N

    mnpar.run(write, ranks=3)
    assert mnpar.run(read, ranks=3) == [([rank, 1], rank) for rank in range(3)]
    with pytest.warns(UserWarning, match="bn/avg_mean"):
        assert mnpar.run(read, ranks=4) == [([1, 1], rank % 3) for rank in range(4)]
