"""Whenever the job is killed, it goes on from a whole checkpoint, exactly as if nothing had
happened.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint
from mnpar.checkpoint import store
from mnpar.runtime.mpiexec import mpiexec_command
from tests.checkpoint.training import ITERATIONS, train
from tests.harness.scripts import client_for

STEPS = (
    "recorded",
    "folder made",
    "shard opened",
    "shard begun",
    "shard written",
    "shard on the disk",
    "folder on the disk",
    "renamed",
    "name on the disk",
    "old one hidden",
    "old one removed",
)


@pytest.fixture
def disks(tmp_path):
    """Run the training to its end: the disk as it was at each step of each rank, each state once;
    and the steps.
    """
    folder = tmp_path / "run"
    found = {}
    steps = []

    def copy(step):
        steps.append(step)
        state = tuple(
            (path, path.is_file() and path.read_bytes()) for path in sorted(folder.rglob("*"))
        )
        if state not in found:
            found[state] = tmp_path / f"{len(found):03d} {step}"
            shutil.copytree(folder, found[state]) if folder.exists() else found[state].mkdir()

    token = store.after_step.set(copy)
    end = mnpar.run(train, ranks=2, args=(folder,))
    store.after_step.reset(token)
    return end, list(found.values()), steps


def test_a_job_killed_at_any_step_goes_on_bit_for_bit(disks):
    end, found, steps = disks
    assert {*steps} == {*STEPS}
    for place in found:
        before = checkpoint.steps(place)
        resumed = mnpar.run(train, ranks=2, args=(place,))
        starts = {start for start, _ in resumed}
        assert starts == {max(before, default=0)}, place
        assert [result for _, result in resumed] == [result for _, result in end], place
        if max(before, default=0) < ITERATIONS:
            assert sorted(os.listdir(place)) == [
                str(store.Name(step, 1)) for step in checkpoint.steps(place)
            ], place


def test_no_step_leaves_fewer_good_checkpoints_than_are_kept(disks):
    _, found, _ = disks
    most = 0
    for place in found:
        steps = checkpoint.steps(place)
        most = max(most, len(steps))
        assert len(steps) >= min(most, 2), place


def run_job(folder, *death):
    command, environment = mpiexec_command(2)
    done = subprocess.run(
        [*command, *client_for(Path(__file__).parent / "training.py", folder, *death)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    return done.returncode, sorted(
        line for line in done.stdout.splitlines() if line.startswith("rank ")
    )


def test_processes_killed_by_the_system_go_on_bit_for_bit(tmp_path):
    ends = mnpar.run(train, ranks=2, args=(tmp_path / "whole",))
    for death, there in (((1, "shard begun", 2), [2]), ((0, "old one hidden", 1), [4, 6])):
        code, _ = run_job(tmp_path / "killed", *death)
        assert code != 0, death
        assert checkpoint.steps(tmp_path / "killed") == there
    code, lines = run_job(tmp_path / "killed")
    assert code == 0
    digests = [hashlib.sha256(result.encode()).hexdigest() for _, result in ends]
    assert lines == [f"rank {rank} began at 6: {digest}" for rank, digest in enumerate(digests)]


# ---- names ----


def save(folder, step=1, ranks=2, value=1):
    return mnpar.run(
        lambda comm: checkpoint.save(folder, L.Linear(2, 2, initialW=value), comm, step),
        ranks=ranks,
    )[0]


def test_a_step_that_is_saved_again_does_not_touch_the_first(tmp_path):
    first = save(tmp_path, 5, value=1)
    second = save(tmp_path, 5, value=2)
    assert (os.path.basename(first), os.path.basename(second)) == (
        "step-00000005",
        "step-00000005.2",
    )
    assert checkpoint.steps(tmp_path) == [5]

    def program(comm):
        layer = L.Linear(2, 2)
        checkpoint.load(tmp_path, layer, comm)
        return layer.W.array[0, 0]

    assert mnpar.run(program, ranks=2) == [2, 2]


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    others = [
        "notes",
        "step-1",
        "step-00000001.0",
        "step-00000001x",
        ".step-00000001.tmp",
        "step-00000002~",
    ]
    for name in others:
        (tmp_path / name).mkdir()
    for step in range(3, 6):
        save(tmp_path, step)
    assert checkpoint.steps(tmp_path) == [3, 4, 5]
    mnpar.run(lambda comm: checkpoint.collect_garbage(tmp_path, comm, 1), ranks=2)
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "step-00000005"])


def test_what_a_living_job_is_writing_is_left_alone(tmp_path):
    hidden = [
        f".step-00000001~{os.uname().nodename}~1~00aa.tmp",
        ".step-00000001~elsewhere~999999999~00aa.tmp",
    ]
    for name in hidden:
        (tmp_path / name).mkdir()
    (tmp_path / f".step-00000001~{os.uname().nodename}~999999999~00aa.tmp").mkdir()
    save(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == sorted([*hidden, "step-00000002"])


@pytest.mark.parametrize("way", [checkpoint.save, checkpoint.load], ids=["save", "load"])
def test_what_has_no_serialize_is_named_on_all_ranks(way, tmp_path):
    def program(comm):
        objects = {"model": L.Linear(1, 1)}
        checkpoint.save(tmp_path, objects, comm, 1)
        if comm.rank == 1:
            objects["u"] = np.ones(2)
        with pytest.raises(
            TypeError,
            match=r"u is of ndarray\. Arrays and numbers need a class, with self\.x = serializer",
        ):
            way(tmp_path, objects, comm, *[2] * (way is checkpoint.save))
        return sorted(os.listdir(tmp_path))

    assert mnpar.run(program, ranks=2) == [["step-00000001"]] * 2


@pytest.mark.parametrize("step", [-1, 1.5, True, None])
def test_a_step_is_a_number_from_zero_on(step, tmp_path):
    with pytest.raises(ValueError, match="0 or more"):
        save(tmp_path, step)


def test_keep_is_at_least_one(tmp_path):
    with pytest.raises(ValueError, match="keep = 0"):
        mnpar.run(lambda comm: checkpoint.collect_garbage(tmp_path, comm, 0), ranks=1)
