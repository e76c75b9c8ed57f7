"""Which ranks write a snapshot for which, and that training goes on from it, on another number of
ranks too.
"""

import numpy as np
import pytest

import mnpar
from mnpar.extensions import multi_node_snapshot
from mnpar.extensions.multi_node_snapshots import _parse_replica_sets
from mnpar.training import extensions
from tests.harness.trainers import learning, weights

SETS = {
    "rank 0 apart": ([0], 4, [[0], [1, 2, 3]]),
    "two apart": ([0, 1], 4, [[0], [1], [2, 3]]),
    "pairs": ([[0, 1], [2, 3]], 4, [[0, 1], [2, 3]]),
    "all alike": ([], 4, [[0, 1, 2, 3]]),
    "even and odd": ([range(0, 8, 2)], 8, [[0, 2, 4, 6], [1, 3, 5, 7]]),
    "any order": ([[3, 1], np.int64(2)], 4, [[1, 3], [2], [0]]),
    "a generator": ([iter([2, 0])], 3, [[0, 2], [1]]),
}


@pytest.mark.parametrize(("sets", "size", "expected"), SETS.values(), ids=SETS)
def test_sets_are_completed(sets, size, expected):
    assert _parse_replica_sets(sets, size) == expected


@pytest.mark.parametrize(
    "sets", [[4], [-1], [[0, 1], [1, 2]], [0, 0]], ids=["too large", "negative", "overlap", "twice"]
)
def test_sets_that_cannot_be_are_refused(sets):
    with pytest.raises(ValueError, match="each of the ranks 0 … 3 once at most"):
        _parse_replica_sets(sets, 4)


def train(comm, folder, stop, sets=(0,), trigger=(3, "iteration"), **kwargs):
    trainer = learning(folder, stop)
    if comm.rank == 0:
        trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    trainer.extend(
        multi_node_snapshot(comm, extensions.snapshot(autoload=True, **kwargs), sets),
        trigger=trigger,
    )
    trainer.run()
    return trainer


FILES = {
    "rank 0 apart": ([0], ["3.0", "3.1"]),
    "all alike": ([], ["3.0"]),
    "the last apart": ([[2]], ["3.0", "3.2"]),
}


@pytest.mark.parametrize("function", [False, True], ids=["text", "function"])
@pytest.mark.parametrize(("sets", "files"), FILES.values(), ids=FILES)
def test_the_lowest_rank_of_each_set_writes(sets, files, function, tmp_path):
    def program(comm):
        filename = (
            (lambda trainer: f"at_{trainer.updater.iteration}")
            if function
            else "at_{.updater.iteration}"
        )
        trainer = learning(tmp_path, (4, "iteration"))
        one = multi_node_snapshot(comm, extensions.snapshot(filename=filename), sets)
        trainer.extend(one, trigger=(3, "iteration"))
        trainer.run()
        return one.is_master

    masters = mnpar.run(program, ranks=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"at_{name}" for name in files]
    assert sum(masters) == len(files)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_training_goes_on_on_any_number_of_ranks(size, tmp_path):
    reference = learning(tmp_path / "whole", (11, "iteration"))
    reference.run()
    whole = weights(reference)

    def program(comm, stop):
        called = []
        trainer = learning(tmp_path, (stop, "iteration"))
        if comm.rank == 0:
            trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
        trainer.extend(
            multi_node_snapshot(comm, extensions.snapshot(autoload=True), [0]),
            trigger=(3, "iteration"),
        )
        trainer.extend(lambda trainer: called.append(trainer.updater.iteration), name="see")
        trainer.run()
        return called, weights(trainer)

    mnpar.run(program, ranks=3, args=(7,))
    for called, found in mnpar.run(program, ranks=size, args=(11,)):
        assert called == [7, 8, 9, 10, 11]
        for path, value in whole.items():
            np.testing.assert_array_equal(found[path], value)


@pytest.mark.ranks(2, on="mpi")
def test_training_goes_on_over_mpi(comm, tmp_path_factory):
    folder = comm.bcast_obj(tmp_path_factory.mktemp("out") if comm.rank == 0 else None)
    train(comm, folder, (4, "iteration"))
    comm.barrier()
    trainer = train(comm, folder, (6, "iteration"))
    assert trainer.updater.iteration == 6
    comm.barrier()
    assert sorted(path.name for path in folder.iterdir() if path.name != "log") == [
        "snapshot_iter_3.0",
        "snapshot_iter_3.1",
        "snapshot_iter_6.0",
        "snapshot_iter_6.1",
    ]


def test_an_error_leaves_a_snapshot_of_the_master_if_wanted(tmp_path):
    def program(comm):
        trainer = learning(tmp_path, (9, "iteration"))
        one = multi_node_snapshot(comm, extensions.snapshot(snapshot_on_error=True), [])
        trainer.extend(one, trigger=(100, "iteration"))
        trainer.extend(lambda trainer: 1 / 0, name="fail", trigger=(2, "iteration"))
        with pytest.raises(ZeroDivisionError):
            trainer.run()

    mnpar.run(program, ranks=2)
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot_iter_2.0"]


def begun_at(tmp_path, stop, ranks=3, **kwargs):
    """The iterations at which the ranks, each with a set of its own, begin."""

    def program(comm):
        called = []
        trainer = learning(tmp_path, (stop, "iteration"))
        one = multi_node_snapshot(
            comm, extensions.snapshot(autoload=True, **kwargs), range(comm.size)
        )
        trainer.extend(one, trigger=(2, "iteration"))
        trainer.extend(lambda trainer: called.append(trainer.updater.iteration), name="see")
        trainer.run()
        return called[0] - 1

    return mnpar.run(program, ranks=ranks)


def test_all_ranks_begin_where_the_last_to_write_had_been(tmp_path):
    """Training was ended when two of three had written."""
    begun_at(tmp_path, 7)
    (tmp_path / "snapshot_iter_6.1").unlink()
    assert begun_at(tmp_path, 8) == [4, 4, 4]


def test_all_ranks_begin_where_no_file_is_damaged(tmp_path):
    begun_at(tmp_path, 7)
    (tmp_path / "snapshot_iter_6.2").write_bytes(b"PK")
    with pytest.warns(UserWarning, match=r"snapshot_iter_6\.2 is damaged"):
        assert begun_at(tmp_path, 8) == [4, 4, 4]


def test_without_a_common_snapshot_all_ranks_begin_at_the_beginning(tmp_path):
    begun_at(tmp_path, 3)
    (tmp_path / "snapshot_iter_2.0").unlink()
    assert begun_at(tmp_path, 1) == [0, 0, 0]


def test_of_two_kept_snapshots_one_is_common(tmp_path):
    begun_at(tmp_path, 9, n_retains=1)
    assert sorted(path.name for path in tmp_path.glob("*.0")) == [
        "snapshot_iter_6.0",
        "snapshot_iter_8.0",
    ]
