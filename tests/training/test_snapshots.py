"""Files of a whole training: when, under which names, how many; written by whom; found again, and
damaged ones passed over.
"""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import mnpar.links as L
from mnpar import serializers
from mnpar.training import extensions
from mnpar.training.extensions import snapshot_writers
from mnpar.training.extensions.snapshots import snapshots
from tests.harness.parts import names
from tests.harness.trainers import counting, learning, weights


def taken(tmp_path, stop=(6, "iteration"), trigger=(2, "iteration"), **kwargs):
    trainer = counting(tmp_path, stop)
    trainer.extend(extensions.snapshot(**kwargs), trigger=trigger)
    trainer.run()
    return trainer


def test_a_snapshot_is_taken_of_each_epoch_by_default_and_comes_last(tmp_path):
    one = extensions.snapshot()
    assert (one.trigger, one.priority, one.filename) == (
        (1, "epoch"),
        -100,
        "snapshot_iter_{.updater.iteration}",
    )
    taken(tmp_path)
    assert names(tmp_path) == [f"snapshot_iter_{i}" for i in (2, 4, 6)]


@pytest.mark.parametrize(
    "filename",
    ["at_{.updater.iteration}.npz", lambda trainer: f"at_{trainer.updater.iteration}.npz"],
)
def test_a_snapshot_has_the_name_that_it_is_told(filename, tmp_path):
    taken(tmp_path, filename=filename)
    assert names(tmp_path) == ["at_2.npz", "at_4.npz", "at_6.npz"]


def test_a_snapshot_may_be_of_an_object(tmp_path):
    trainer = counting(tmp_path, (2, "iteration"))
    link = L.Linear(3, 2)
    trainer.extend(
        extensions.snapshot_object(link, "model_{.updater.iteration}"), trigger=(2, "iteration")
    )
    trainer.run()
    other = L.Linear(3, 2)
    serializers.load_npz(str(tmp_path / "model_2"), other)
    np.testing.assert_array_equal(other.W.array, link.W.array)


def test_a_condition_can_forbid_it(tmp_path):
    answers = [False, True, False]
    taken(tmp_path, condition=lambda: answers.pop(0))
    assert names(tmp_path) == ["snapshot_iter_4"]


def test_another_function_can_save(tmp_path):
    taken(tmp_path, savefun=lambda path, target: Path(path).write_text(" ".join(target)))
    assert "updater/iteration" in (tmp_path / "snapshot_iter_2").read_text().split()


def test_savefun_and_writer_exclude_each_other():
    with pytest.raises(TypeError, match="savefun and writer were given"):
        extensions.snapshot(savefun=serializers.save_npz, writer=snapshot_writers.SimpleWriter())


@pytest.mark.parametrize(
    ("retain", "left"),
    [(1, [12]), (2, [10, 12]), (100, [2, 4, 6, 8, 10, 12]), (-1, [2, 4, 6, 8, 10, 12])],
)
def test_old_ones_are_removed_if_wanted(retain, left, tmp_path):
    (tmp_path / "other").write_text("")
    taken(tmp_path, (12, "iteration"), n_retains=retain)
    assert names(tmp_path) == sorted(["other", *[f"snapshot_iter_{i}" for i in left]])


@pytest.mark.parametrize("wanted", [True, False])
def test_a_failed_training_leaves_one_if_wanted(wanted, tmp_path):
    trainer = counting(tmp_path)
    trainer.extend(extensions.snapshot(snapshot_on_error=wanted), trigger=(100, "iteration"))
    trainer.extend(lambda trainer: 1 / 0, name="fail", trigger=(3, "iteration"))
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert names(tmp_path) == ["snapshot_iter_3"] * wanted


def test_a_snapshot_of_the_trainer_comes_after_what_else_is_written(tmp_path):
    """So that a resumed training does not write it once more."""

    def make(stop):
        trainer = counting(tmp_path, (stop, "iteration"))
        link = L.Linear(1, 1)
        trainer.extend(extensions.snapshot(), trigger=(2, "iteration"))
        trainer.extend(
            extensions.snapshot_object(link, "model_{.updater.iteration}"), trigger=(2, "iteration")
        )
        return trainer

    make(2).run()
    trainer = make(3)
    serializers.load_npz(str(tmp_path / "snapshot_iter_2"), trainer)
    trainer.run()
    assert names(tmp_path) == ["model_2", "snapshot_iter_2"]


# Loading.


def test_training_goes_on_from_the_last_one(tmp_path):
    def make(stop):
        trainer = learning(tmp_path, stop)
        trainer.extend(extensions.snapshot(autoload=True), trigger=(3, "iteration"))
        return trainer

    whole = learning(tmp_path / "whole", (15, "iteration"))
    whole.run()
    first = make((10, "iteration"))
    second = make((15, "iteration"))
    first.run()
    called = []
    second.extend(lambda trainer: called.append(trainer.updater.iteration), name="see")
    second.run()
    # from 9 on, by number: "10" and "9" as texts would mislead
    assert called == [
        10,
        11,
        12,
        13,
        14,
        15,
    ]
    for path, value in weights(whole).items():
        np.testing.assert_array_equal(value, weights(second)[path])


def test_without_one_training_begins_at_the_beginning(tmp_path):
    trainer = taken(tmp_path, autoload=True)
    assert trainer.updater.iteration == 6


DAMAGES = {
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "a flipped bit": lambda data: data[:200] + bytes([data[200] ^ 16]) + data[201:],
    "another file": lambda data: b"hello",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_passed_over_with_a_warning(damage, tmp_path):
    taken(tmp_path, writer=snapshot_writers.SimpleWriter(compression=False))
    last = tmp_path / "snapshot_iter_6"
    last.write_bytes(damage(last.read_bytes()))
    trainer = counting(tmp_path, (4, "iteration"))
    trainer.extend(extensions.snapshot(autoload=True), trigger=(2, "iteration"))
    with pytest.warns(UserWarning, match="snapshot_iter_6 is damaged, taking the one before it"):
        trainer.run()
    assert trainer.updater.iteration == 4


def test_a_snapshot_of_another_trainer_is_no_damage(tmp_path):
    taken(tmp_path)
    trainer = learning(tmp_path)
    trainer.extend(extensions.snapshot(autoload=True))
    with pytest.raises(KeyError):
        trainer.run()


def test_files_are_ordered_by_their_numbers_or_else_by_their_times(tmp_path):

    for name, time in [
        ("a_9", 3),
        ("a_10", 2),
        ("a_best_11", 9),
        ("b_z.npz", 5),
        ("b_y.npz", 7),
        ("c", 1),
    ]:
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time, time))

    def found(filename):
        return [os.path.basename(path) for _, path in snapshots(filename, str(tmp_path))]

    assert found("a_{.updater.iteration}") == ["a_9", "a_10"]
    assert found("b_{.x}.npz") == ["b_z.npz", "b_y.npz"]
    assert found("c") == ["c"]
    assert found("d_{.x}") == []


def test_autoload_needs_a_name_that_can_be_searched(tmp_path):
    with pytest.raises(TypeError, match="autoload needs a filename that is a text"):
        taken(tmp_path, filename=lambda trainer: "x", autoload=True)


# Writers.

WRITERS = {
    name: getattr(snapshot_writers, name)
    for name in (
        "SimpleWriter",
        "ThreadWriter",
        "ThreadQueueWriter",
        "ProcessWriter",
        "ProcessQueueWriter",
    )
}
writers = pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)


@writers
def test_a_writer_writes_what_there_was(writer, tmp_path):
    """Training goes on while a thread writes, and changes the weights in place."""
    go = threading.Event()
    begun = threading.active_count()
    if writer is snapshot_writers.SimpleWriter:
        go.set()

    def save(path, target):
        assert go.wait(20)
        serializers.save_npz(path, target)

    trainer = learning(tmp_path, (4, "iteration"))
    expected = {}
    trainer.extend(extensions.snapshot(writer=writer(savefun=save)), trigger=(3, "iteration"))
    trainer.extend(
        lambda trainer: expected.update(weights(trainer)), name="see", trigger=(3, "iteration")
    )
    trainer.extend(lambda trainer: go.set(), name="go", trigger=(4, "iteration"))
    trainer.run()
    assert names(tmp_path) == ["snapshot_iter_3"]
    content = np.load(tmp_path / "snapshot_iter_3")
    for path, value in expected.items():
        np.testing.assert_array_equal(content[f"updater/model:main{path}"], value)
    assert threading.active_count() == begun


@writers
def test_old_ones_are_removed_by_all_writers(writer, tmp_path):
    taken(tmp_path, (10, "iteration"), writer=writer(compression=False), n_retains=2)
    assert names(tmp_path) == ["snapshot_iter_10", "snapshot_iter_8"]


@writers
def test_an_error_of_a_writer_is_one_of_training(writer, tmp_path):
    def fail(path, target):
        Path(path).write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        taken(tmp_path, writer=writer(savefun=fail))
    assert names(tmp_path) == []


def test_the_base_of_writers_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="Writer does not define __call__"):
        snapshot_writers.Writer()("a", "b", {})
