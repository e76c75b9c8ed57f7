"""Snapshots that all ranks write together as a checkpoint: named, kept, found again as files are,
and verified.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint, serializers
from mnpar.checkpoint import store
from mnpar.errors import CheckpointError
from mnpar.extensions import multi_node_snapshot
from mnpar.training import extensions
from mnpar.training.extensions import snapshot_writers
from tests.harness.parts import names
from tests.harness.trainers import counting, learning, weights

SHARD = "shard-00000-of-00001.safetensors"


def alone():
    return mnpar.create_communicator("self")


def train(folder, stop, comm=None, every=2, **kwargs):
    """A trainer that has learned, and the iterations that it did."""
    trainer, called = learning(folder, (stop, "iteration")), []
    trainer.extend(lambda trainer: called.append(trainer.updater.iteration), name="see")
    trainer.extend(
        extensions.snapshot(comm=comm or alone(), autoload=True, **kwargs),
        trigger=(every, "iteration"),
    )
    trainer.run()
    return trainer, called


def assert_equal(one, other):
    assert list(one) == list(other)
    for path, value in one.items():
        np.testing.assert_array_equal(value, other[path])


def flip(path):
    data = bytearray((path / SHARD).read_bytes())
    data[-9] ^= 1
    (path / SHARD).write_bytes(data)


def test_a_snapshot_is_a_folder_of_shards_and_a_manifest(tmp_path):
    train(tmp_path, 4)
    assert names(tmp_path) == ["snapshot_iter_2", "snapshot_iter_4"]
    assert names(tmp_path / "snapshot_iter_2") == ["manifest.json", SHARD]


def test_training_goes_on_bit_for_bit_from_the_last_one(tmp_path):
    whole = learning(tmp_path / "whole", (13, "iteration"))
    whole.run()
    train(tmp_path, 11)
    trainer, called = train(tmp_path, 13)
    assert called == [11, 12, 13]  # from 10 on, by number
    assert_equal(weights(whole), weights(trainer))


def test_a_program_without_autoload_loads_it_itself(tmp_path):
    trained, _ = train(tmp_path, 4)
    trainer = learning(tmp_path, (4, "iteration"))
    assert checkpoint.load_folder(tmp_path / "snapshot_iter_4", trainer) == 4
    assert trainer.updater.iteration == 4
    assert_equal(weights(trained), weights(trainer))


@pytest.mark.parametrize(
    "filename", ["at_{.updater.iteration}", lambda trainer: f"at_{trainer.updater.iteration}"]
)
def test_a_snapshot_has_the_name_that_it_is_told(filename, tmp_path):
    trainer = counting(tmp_path, (4, "iteration"))
    trainer.extend(extensions.snapshot(filename=filename, comm=alone()), trigger=(2, "iteration"))
    trainer.run()
    assert names(tmp_path) == ["at_2", "at_4"]


def test_a_name_without_a_number_has_the_last_one(tmp_path):
    train(tmp_path, 6, filename="latest", n_retains=1)
    assert names(tmp_path) == ["latest"]
    assert train(tmp_path, 7, filename="latest")[1] == [7]


@pytest.mark.parametrize(
    ("retain", "left"), [(1, [8]), (2, [6, 8]), (100, [2, 4, 6, 8]), (-1, [2, 4, 6, 8])]
)
def test_old_ones_are_removed_if_wanted_and_nothing_else(retain, left, tmp_path):
    others = ["snapshot_iter_0", "snapshot_iter_1", "other"]
    (tmp_path / others[0]).write_text("a file")
    (tmp_path / others[1]).mkdir()
    (tmp_path / others[1] / "x").write_text("a folder")
    (tmp_path / others[2]).mkdir()
    trainer = counting(tmp_path, (8, "iteration"))
    trainer.extend(extensions.snapshot(comm=alone(), n_retains=retain), trigger=(2, "iteration"))
    trainer.run()
    assert names(tmp_path) == sorted([*others, *[f"snapshot_iter_{i}" for i in left]])


def test_a_damaged_one_does_not_count_as_kept(tmp_path):
    trainer = counting(tmp_path, (6, "iteration"))
    trainer.extend(extensions.snapshot(comm=alone(), n_retains=2), trigger=(2, "iteration"))
    trainer.extend(
        lambda trainer: flip_manifest(tmp_path / "snapshot_iter_4"), trigger=(5, "iteration")
    )
    trainer.run()
    assert names(tmp_path) == ["snapshot_iter_2", "snapshot_iter_4", "snapshot_iter_6"]


def flip_manifest(path):
    data = bytearray((path / "manifest.json").read_bytes())
    data[-9] ^= 1
    (path / "manifest.json").write_bytes(data)


def to_a_file(path):
    shutil.rmtree(path)
    path.write_text("PK")


DAMAGES = {
    "a flipped bit": (flip, "SHA-256 is not the manifest's"),
    "cut off": (lambda path: os.truncate(path / SHARD, 100), "it has 100 bytes, not"),
    "a shard is missing": (lambda path: (path / SHARD).unlink(), f"{SHARD} is missing"),
    "another's manifest": (flip_manifest, r"manifest\.json is damaged"),
    "a foreign file": (to_a_file, "Not a directory"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_passed_over_with_file_and_reason(damage, reason, tmp_path):
    train(tmp_path, 6)
    damage(tmp_path / "snapshot_iter_6")
    with pytest.warns(UserWarning, match=f"snapshot_iter_6.*{reason}"):
        assert train(tmp_path, 5)[1] == [5]


def test_a_damaged_one_is_replaced_when_training_comes_there_again(tmp_path):
    train(tmp_path, 6)
    flip(tmp_path / "snapshot_iter_6")
    with pytest.warns(UserWarning, match="snapshot_iter_6"):
        train(tmp_path, 7)
    assert names(tmp_path) == ["snapshot_iter_2", "snapshot_iter_4", "snapshot_iter_6"]
    assert train(tmp_path, 7)[1] == [7]


def test_if_all_are_damaged_training_does_not_begin_anew(tmp_path):
    train(tmp_path, 2)
    flip(tmp_path / "snapshot_iter_2")
    with pytest.raises(CheckpointError, match=r"snapshot_iter_2.*SHA-256"):
        train(tmp_path, 4)


def test_a_snapshot_of_an_object_is_one_of_a_link(tmp_path):
    trainer = counting(tmp_path, (2, "iteration"))
    link = L.Linear(3, 2)
    trainer.extend(
        extensions.snapshot_object(link, "model_{.updater.iteration}", comm=alone()),
        trigger=(2, "iteration"),
    )
    trainer.run()
    other = L.Linear(3, 2)
    assert checkpoint.load_folder(tmp_path / "model_2", other) == 2
    np.testing.assert_array_equal(other.W.array, link.W.array)


def test_without_a_communicator_it_is_chainers_file_as_ever(tmp_path):
    trainer = counting(tmp_path, (2, "iteration"))
    trainer.extend(extensions.snapshot(), trigger=(2, "iteration"))
    trainer.run()
    other = counting(tmp_path, (3, "iteration"))
    serializers.load_npz(tmp_path / "snapshot_iter_2", other)
    assert other.updater.iteration == 2


def test_a_failed_training_of_one_process_leaves_one_if_wanted(tmp_path):
    trainer = counting(tmp_path)
    trainer.extend(
        extensions.snapshot(snapshot_on_error=True, comm=alone()), trigger=(100, "iteration")
    )
    trainer.extend(lambda trainer: 1 / 0, name="fail", trigger=(3, "iteration"))
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert names(tmp_path) == ["snapshot_iter_3"]


def test_what_does_not_go_together_is_refused():
    for one in ({"savefun": serializers.save_npz}, {"writer": snapshot_writers.SimpleWriter()}):
        with pytest.raises(TypeError, match="comm and savefun or writer"):
            extensions.snapshot(comm=alone(), **one)

    def program(comm):
        with pytest.raises(ValueError, match="snapshot_on_error with 2 ranks"):
            extensions.snapshot(comm=comm, snapshot_on_error=True)
        with pytest.raises(TypeError, match="of all ranks already"):
            multi_node_snapshot(comm, extensions.snapshot(comm=comm), [])

    mnpar.run(program, ranks=2)


# ---- ranks ----


def train_on_ranks(folder, stop, ranks, **kwargs):
    def program(comm):
        trainer, called = train(folder, stop, comm, **kwargs)
        return called, weights(trainer)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what belonged to single ranks
        return mnpar.run(program, ranks=ranks)


@pytest.mark.parametrize(("writers", "readers"), [(1, 2), (2, 2), (2, 3), (3, 1), (4, 2)])
def test_training_goes_on_on_any_number_of_ranks(writers, readers, tmp_path):
    whole = learning(tmp_path / "whole", (6, "iteration"))
    whole.run()
    train_on_ranks(tmp_path, 5, writers, n_retains=1)
    content = json.loads((tmp_path / "snapshot_iter_4" / "manifest.json").read_text())["content"]
    assert content["ranks"] == writers
    for called, found in train_on_ranks(tmp_path, 6, readers, n_retains=1):
        assert called == [5, 6]
        assert_equal(weights(whole), found)
    assert names(tmp_path) == ["snapshot_iter_6", "whole"]


@pytest.mark.ranks(2, on="mpi")
def test_training_goes_on_over_mpi(comm, tmp_path_factory):
    folder = comm.bcast_obj(tmp_path_factory.mktemp("out") if comm.rank == 0 else None)
    assert train(folder, 5, comm, n_retains=1)[1] == [1, 2, 3, 4, 5]
    assert train(folder, 7, comm, n_retains=1)[1] == [5, 6, 7]
    comm.barrier()
    assert names(folder) == ["snapshot_iter_6"]


# ---- kills ----


@pytest.mark.parametrize("filename", ["snapshot_iter_{.updater.iteration}", "latest"])
def test_a_job_killed_at_any_step_goes_on_bit_for_bit(filename, tmp_path):
    run, found = tmp_path / "run", {}

    def copy(step):
        state = tuple(
            (path, path.is_file() and path.read_bytes()) for path in sorted(run.rglob("*"))
        )
        if state not in found:
            found[state] = tmp_path / f"{len(found):03d} {step}"
            shutil.copytree(run, found[state])

    token = store.after_step.set(copy)
    train_on_ranks(run, 4, 2, filename=filename, n_retains=1)
    store.after_step.reset(token)
    assert len(found) > 8
    begins = []
    for place in found.values():
        (called, end), _ = train_on_ranks(place, 6, 2, filename=filename, n_retains=1)
        begins.append(called[0] - 1)
        assert names(place) == [filename.replace("{.updater.iteration}", "6")]
        reference = learning(tmp_path / "whole", (6, "iteration"))
        reference.run()
        assert_equal(weights(reference), end)
    assert begins == sorted(begins)
    assert {*begins} == {0, 2, 4}


PROGRAM = """
import os, signal, sys
from mnpar.checkpoint import store
from tests.training.test_verified_snapshots import train
reached = []
def die(step):
    reached.append(step)
    # shard and manifest of the first, then the second's manifest
    if reached.count("shard begun") == 4:
        os.kill(os.getpid(), signal.SIGKILL)
store.after_step.set(die)
train(sys.argv[1], 6)
"""


def test_a_process_killed_while_it_writes_goes_on_from_the_one_before(tmp_path):
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    left = names(tmp_path)
    assert left[1:] == ["snapshot_iter_2"]
    assert left[0].startswith(".snapshot_iter_4~")
    assert train(tmp_path, 4)[1] == [3, 4]
    assert names(tmp_path) == ["snapshot_iter_2", "snapshot_iter_4"]
