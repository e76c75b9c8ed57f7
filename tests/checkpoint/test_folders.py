"""Checkpoints of a name of one's own: what was there is replaced, at each moment a whole one can be
read, nothing else goes.
"""

import os
import shutil
import warnings

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint
from mnpar.checkpoint import retention, store
from mnpar.errors import CheckpointError

MANIFEST, SHARD = "manifest.json", "shard-00000-of-00001.safetensors"


def layer(value):
    return L.Linear(3, 2, initialW=value)


def save(path, value, step=0):
    return checkpoint.save_folder(path, layer(value), step=step)


def load(path):
    """The value, and the step."""
    other = layer(0)
    step = checkpoint.load_folder(path, other)
    return float(other.W.array[1, 2]), step


def test_what_is_not_in_it_keeps_its_value_unless_loading_is_strict(tmp_path):
    path = tmp_path / "model"
    old = layer(0)
    new = layer(5)
    checkpoint.save_folder(path, {"old": layer(7)})
    with pytest.raises(KeyError, match="other names than what is loaded has"):
        checkpoint.load_folder(path, {"old": old, "new": new})
    checkpoint.load_folder(path, {"old": old, "new": new}, strict=False)
    assert (old.W.array[0, 0], new.W.array[0, 0]) == (7, 5)


def test_a_process_alone_needs_no_communicator(tmp_path):
    path = save(tmp_path / "model", 7, step=12)
    assert path == str(tmp_path / "model")
    assert sorted(os.listdir(path)) == [MANIFEST, SHARD]
    assert load(path) == (7, 12)


def test_a_relative_path_is_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert save("model", 1) == str(tmp_path / "model")
    assert load("model") == (1, 0)


def test_what_was_there_is_replaced(tmp_path):
    for value in (1, 2, 3):
        save(tmp_path / "model", value, step=value)
        assert os.listdir(tmp_path) == ["model"]
        assert load(tmp_path / "model") == (value, value)


def test_an_empty_folder_is_replaced(tmp_path):
    (tmp_path / "model").mkdir()
    save(tmp_path / "model", 1)
    assert os.listdir(tmp_path) == ["model"]
    assert load(tmp_path / "model") == (1, 0)


def foreign_file(path):
    path.write_text("npz")


def foreign_folder(path):
    path.mkdir()
    (path / "thesis.tex").write_text("three years")


def checkpoint_and_more(path):
    save(path, 1)
    (path / "notes").write_text("")


def link_to_one(path):
    save(path.parent / "elsewhere", 1)
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("make", [foreign_file, foreign_folder, checkpoint_and_more, link_to_one])
def test_what_is_no_checkpoint_stays_and_is_an_error_on_all_ranks(make, tmp_path):
    make(tmp_path / "model")
    before = sorted(tmp_path.rglob("*"))

    def program(comm):
        with pytest.raises(FileExistsError, match="is no checkpoint, and stays"):
            checkpoint.save_folder(tmp_path / "model", layer(2), comm)

    mnpar.run(program, ranks=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_names_that_only_begin_alike_stay(tmp_path):
    others = ["model.2", "model~", "model~x", "models", "model~2x"]
    for name in ("model", *others, "model"):
        save(tmp_path / name, 1)
    assert sorted(os.listdir(tmp_path)) == sorted(["model", *others])


@pytest.mark.parametrize(("writers", "readers"), [(1, 3), (3, 1), (2, 3), (3, 2), (2, 2)])
def test_any_number_of_ranks_reads_it(writers, readers, tmp_path):
    def write(comm):
        model = layer(5)
        return checkpoint.save_folder(tmp_path / "model", {"model": model}, comm, step=9)

    def read(comm):
        model = layer(comm.rank)
        return checkpoint.load_folder(
            tmp_path / "model", {"model": model}, comm
        ), model.W.array.tolist()

    mnpar.run(write, ranks=writers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the random numbers
        found = mnpar.run(read, ranks=readers)
    assert found == [(9, np.full((2, 3), 5.0).tolist())] * readers


def test_one_of_a_directory_of_steps_can_be_read(tmp_path):
    path = mnpar.run(lambda comm: checkpoint.save(tmp_path, layer(4), comm, 30), ranks=1)[0]
    assert load(path) == (4, 30)


# ---- damage ----


def flip(path):
    data = bytearray((path / SHARD).read_bytes())
    data[-2] ^= 1
    (path / SHARD).write_bytes(data)


def truncate(path):
    (path / SHARD).write_bytes((path / SHARD).read_bytes()[:-1])


def lose(path):
    (path / SHARD).unlink()


def lose_manifest(path):
    (path / MANIFEST).unlink()


def flip_manifest(path):
    data = (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_bytes(data.replace(b'"step":0', b'"step":1'))


def add_shard(path):
    shutil.copy(path / SHARD, path / "shard-00001-of-00002.safetensors")


def exchange(path):
    save(path.parent / "other", 2)
    shutil.copy(path.parent / "other" / SHARD, path / SHARD)


DAMAGES = {
    "a flipped bit": (flip, "0001.safetensors is damaged or another file: its SHA-256"),
    "cut off": (truncate, "0001.safetensors is damaged: it has .* bytes, not"),
    "a shard is missing": (lose, "0001.safetensors is missing"),
    "no manifest": (lose_manifest, "manifest.json: No such file"),
    "another manifest": (flip_manifest, "manifest.json is damaged: its SHA-256"),
    "one shard too many": (add_shard, "0002.safetensors does not belong to this"),
    "another's shard": (exchange, "0001.safetensors is damaged or another file"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_refused_by_file_and_reason_and_may_be_replaced(damage, reason, tmp_path):
    save(tmp_path / "model", 1)
    damage(tmp_path / "model")
    with pytest.raises(CheckpointError, match=reason):
        load(tmp_path / "model")
    save(tmp_path / "model", 3)
    assert load(tmp_path / "model") == (3, 0)


def test_one_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="nothing is not there"):
        load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="is not there"):
        load(tmp_path / "neither" / "nothing")


# ---- kills ----


def test_a_job_killed_at_any_step_of_replacing_leaves_a_whole_one(tmp_path):
    """Each state of the disk: the old value or the new one is read, and the next save leaves one
    folder.
    """
    place = tmp_path / "run"
    found = {}
    steps = []

    def copy(step):
        steps.append(step)
        state = tuple(sorted(str(path) for path in place.rglob("*")))
        if state not in found:
            found[state] = tmp_path / f"{len(found):03d}"
            shutil.copytree(place, found[state])

    save(place / "model", 1, step=1)
    token = store.after_step.set(copy)
    save(place / "model", 2, step=2)
    store.after_step.reset(token)
    assert steps[-6:] == [
        "renamed",
        "name on the disk",
        "old one hidden",
        "old one removed",
        "renamed",
        "name on the disk",
    ]
    values = [load(state / "model")[0] for state in found.values()]
    assert values == sorted(values)  # never the old one again
    assert {*values} == {1, 2}
    for state in found.values():
        save(state / "model", 3)
        assert os.listdir(state) == ["model"]
        assert load(state / "model") == (3, 0)


def test_of_two_that_a_kill_has_left_a_damaged_one_is_passed_over(tmp_path):
    save(tmp_path / "model", 1)
    save(tmp_path / "model~2", 2)
    assert load(tmp_path / "model") == (2, 0)
    flip(tmp_path / "model~2")
    with pytest.warns(UserWarning, match="an older checkpoint is tried, because .*SHA-256"):
        assert load(tmp_path / "model") == (1, 0)


def test_a_draft_of_another_name_that_this_process_is_filling_is_left_alone(tmp_path):
    drafts = []

    def other(step):
        if step == "shard begun" and not drafts:
            drafts.append(1)
            save(tmp_path / "second", 2)

    token = store.after_step.set(other)
    save(tmp_path / "first", 1)
    store.after_step.reset(token)
    assert (load(tmp_path / "first"), load(tmp_path / "second")) == ((1, 0), (2, 0))
    assert not store.UNDER_WAY


WAYS = {
    "save": lambda folder, comm: checkpoint.save(folder, layer(1), comm, 1),
    "load": lambda folder, comm: checkpoint.load(folder, layer(0), comm),
    "save_folder": lambda folder, comm: checkpoint.save_folder(folder, layer(1), comm),
    "load_folder": lambda folder, comm: checkpoint.load_folder(folder, layer(0), comm),
    "collect_garbage": lambda folder, comm: checkpoint.collect_garbage(folder, comm, 1),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ranks_that_name_different_folders_are_told_and_nothing_is_written(way, tmp_path):
    def program(comm):
        with pytest.raises(
            ValueError,
            match=r"different folders for one checkpoint, .*0\b.* on rank 0 and .*2\b.* on rank 2",
        ):
            way(tmp_path / ("0" if comm.rank < 2 else "2"), comm)

    mnpar.run(program, ranks=3)
    assert not [
        name for _, _, names in os.walk(tmp_path) for name in names if not name.startswith(".")
    ]


def test_a_second_job_that_collects_in_the_folder_is_told(tmp_path, monkeypatch):
    def program(comm):
        for step in range(3):
            checkpoint.save(tmp_path, L.Linear(1, 1), comm, step)
        with pytest.raises(
            CheckpointError,
            match=r"step-00000000 was there, and another job.* give this run another folder",
        ):
            checkpoint.collect_garbage(tmp_path, comm, 1)

    def removes(path, comm):
        shutil.rmtree(tmp_path / "step-00000000", ignore_errors=True)
        return True

    monkeypatch.setattr(retention, "_is_good", removes)
    mnpar.run(program, ranks=2)
