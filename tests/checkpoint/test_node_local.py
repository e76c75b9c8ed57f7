"""Checkpoints in folders of the ranks' own: training goes on from the newest step that all have."""

import os
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint
from mnpar.checkpoint import store
from mnpar.errors import CheckpointError
from tests.checkpoint import training

RANKS = pytest.mark.ranks(2, 3)


class Own:
    """What each rank has for itself, and may be of another shape on each."""

    def __init__(self, rank):
        self.rank = rank
        self.x = np.zeros(rank + 1)

    def serialize(self, serializer):
        serializer("x", self.x)


def checkpointer_of(comm, path, **settings):
    return mnpar.create_multi_node_checkpointer(
        "run", comm, cp_interval=3, gc_interval=1, path=str(path), **settings
    )


def save(comm, path, steps, **settings):
    checkpointer = checkpointer_of(comm, path, **settings)
    own = Own(comm.rank)
    for step in steps:
        own.x[...] = step + comm.rank
        checkpointer.save(own, step)
    checkpointer.flush()
    checkpointer.finalize()


def load(comm, path):
    """Return the step, and the value of this rank's."""
    own = Own(comm.rank)
    step = checkpointer_of(comm, path).maybe_load(own)
    assert (own.x == own.x[0]).all()
    return step, own.x[0]


@RANKS
@pytest.mark.parametrize("ahead", [False, True], ids=["at once", "in the background"])
def test_each_rank_saves_into_its_own_folder_and_goes_on(comm, tmp_path, ahead):
    path = comm.bcast_obj(str(tmp_path)) + f"/{comm.rank}"
    save(comm, path, [1, 2, 3, 4], asynchronous=ahead)
    assert checkpoint.steps(path + "/run") == [2, 3, 4]
    assert load(comm, path) == (4, 4 + comm.rank)
    comm.barrier()


@pytest.mark.ranks(3)
def test_ranks_of_a_node_share_a_folder(comm, tmp_path):
    path = comm.bcast_obj(str(tmp_path)) + f"/node{min(comm.rank, 1)}"
    save(comm, path, [1, 2])
    assert load(comm, path) == (2, 2 + comm.rank)
    shards = [name for name in os.listdir(path + "/run/step-00000002") if "shard" in name]
    assert len(shards) == (2 if comm.rank else 1)
    comm.barrier()


@pytest.mark.ranks(2, on="threads")
def test_a_training_goes_on_bit_for_bit(comm, tmp_path):
    path = tmp_path / str(comm.rank)

    def run(objects, iterations):
        for _ in range(iterations):
            training.advance(comm, objects)
        return objects["log"].rows

    whole = run(training.make(comm), 6)
    objects = training.make(comm)
    run(objects, 4)
    checkpointer_of(comm, path).save(objects, 4)
    other = training.make(comm)
    assert checkpointer_of(comm, path).maybe_load(other) == 4
    assert run(other, 2) == whole


def damage(path, step):
    (shard,) = [
        os.path.join(path, "run", f"step-{step:08d}", name)
        for name in os.listdir(os.path.join(path, "run", f"step-{step:08d}"))
        if "shard" in name
    ]
    with open(shard, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


HARM = {
    "a step is missing": lambda path: store.remove(path + "/run", "step-00000003"),
    "a step is damaged": lambda path: damage(path, 3),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
@pytest.mark.parametrize("whose", [0, 1])
def test_what_one_rank_lacks_none_loads(harm, whose, tmp_path):
    def program(comm):
        path = str(tmp_path / str(comm.rank))
        save(comm, path, [1, 2, 3])
        if comm.rank == whose:
            harm(path)
        tells = comm.rank == 0 and harm is HARM["a step is damaged"]
        with pytest.warns(UserWarning, match="is damaged") if tells else nullcontext():
            return load(comm, path)

    assert mnpar.run(program, ranks=2) == [(2, 2), (2, 3)]


def test_a_rank_whose_folder_is_lost_lets_all_begin_anew_and_is_told_of(tmp_path):
    def program(comm):
        path = str(tmp_path / str(comm.rank))
        save(comm, path, [1, 2])
        if comm.rank == 1:
            shutil.rmtree(path)
        with (
            pytest.warns(UserWarning, match=r"no step in common, .*: they have \[2\], \[\]")
            if comm.rank == 0
            else nullcontext()
        ):
            return load(comm, path)

    assert mnpar.run(program, ranks=2) == [(None, 0), (None, 0)]


def test_others_than_those_who_wrote_are_refused(tmp_path):
    def wrote(comm):
        save(comm, tmp_path / str(comm.rank), [1])

    mnpar.run(wrote, ranks=2)

    def exchanged(comm):
        with pytest.raises(CheckpointError, match=r"checkpoints of ranks \[[01]\] of 2"):
            load(comm, tmp_path / str(1 - comm.rank))

    mnpar.run(exchanged, ranks=2)

    def together(comm):
        with pytest.raises(CheckpointError, match="what 1 of the ranks of a job wrote"):
            load(comm, tmp_path / "0")

    mnpar.run(together, ranks=2)


def test_an_error_on_one_disk_ends_saving_on_all_ranks(tmp_path):
    (tmp_path / "1").write_text("a file")

    def program(comm):
        with pytest.raises(OSError, match=r"1"):
            save(comm, tmp_path / str(comm.rank), [1])
        return comm.rank

    assert mnpar.run(program, ranks=2) == [0, 1]


@pytest.mark.ranks(2, on="threads")
def test_parts_of_one_array_need_one_folder(comm, tmp_path):
    link = L.ColumnParallelLinear(comm, 2, 4)
    with pytest.raises(ValueError, match="its parts have"):
        checkpointer_of(comm, tmp_path / str(comm.rank)).save(link, 1)
