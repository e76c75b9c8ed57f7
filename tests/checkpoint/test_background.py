"""Checkpoints that are written while training goes on: the same files, whole or not there, and no
error is lost.
"""

import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint
from mnpar.checkpoint import background, done_markers, store
from mnpar.communicators.threads.transport import ThreadTransport
from mnpar.communicators.transport import Transport
from mnpar.errors import CheckpointError
from mnpar.runtime.mpiexec import mpiexec_command
from tests.checkpoint.test_protocol import STEPS
from tests.checkpoint.training import ITERATIONS, train, train_in_background
from tests.harness.scripts import client_for


def of_run(comm, folder, **settings):
    return mnpar.create_multi_node_checkpointer(
        "run", comm, path=folder, asynchronous=True, **settings
    )


def weights(comm, folder):
    model = L.Linear(3, 2)
    return checkpoint.load(folder / "run", model, comm), float(model.W.array[0, 0])


@pytest.fixture
def gate():
    """Threads stop at "shard begun" until it is opened."""
    opened = threading.Event()
    token = store.after_step.set(lambda step: opened.wait() if step == "shard begun" else None)
    yield opened
    opened.set()
    store.after_step.reset(token)


def test_training_goes_on_with_other_values_while_those_of_before_are_written(gate, tmp_path):
    comm = mnpar.create_communicator("self")
    model = L.Linear(3, 2, initialW=1)
    checkpointer = of_run(comm, tmp_path)
    assert checkpointer.save(model, 1) is None
    model.W.array[...] = 5
    assert checkpoint.steps(tmp_path / "run") == []
    gate.set()
    checkpointer.flush()
    assert weights(comm, tmp_path) == (1, 1.0)


@pytest.mark.ranks(1, 2, 3)
def test_it_is_the_checkpoint_that_save_writes(comm, tmp_path):
    folder = Path(comm.bcast_obj(str(tmp_path)))
    model = mnpar.ChainList(
        L.Linear(4, 3), L.Linear(4, 3, initialW=comm.rank), L.ColumnParallelLinear(comm, 4, 7)
    )
    path = checkpoint.save(folder / "at once", model, comm, 3)
    checkpointer = of_run(comm, folder)
    checkpointer.save(model, 3)
    checkpointer.flush()
    comm.barrier()
    files = [
        sorted((path.name, path.read_bytes()) for path in Path(where).iterdir())
        for where in (path, folder / "run/step-00000003")
    ]
    assert files[0] == files[1]
    comm.barrier()


def test_the_next_one_waits_so_that_one_is_under_way_at_most(tmp_path):
    most = []

    def count(step):
        most.append(sum(thread.name == "mnpar-checkpoint" for thread in threading.enumerate()))

    def program(comm):
        store.after_step.set(count)
        checkpointer = of_run(comm, tmp_path, cp_interval=9)
        for step in range(5):
            checkpointer.save(L.Linear(3, 2), step)
        checkpointer.flush()
        return checkpointer.steps()

    assert mnpar.run(program, ranks=2) == [[0, 1, 2, 3, 4]] * 2
    assert max(most) == 2  # one for each rank


def test_threads_send_and_receive_nothing(monkeypatch, tmp_path):
    seen = []
    calls = [name for name in vars(Transport) if not name.startswith("_")]
    for name in calls:
        real = getattr(ThreadTransport, name, None)
        if not callable(real):
            continue  # an attribute

        def noted(self, *args, real=real, **kwargs):
            seen.append(threading.current_thread().name)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(ThreadTransport, name, noted)

    def program(comm):
        checkpointer = of_run(comm, tmp_path)
        checkpointer.save(L.Linear(3, 2), 1)
        checkpointer.flush()

    mnpar.run(program, ranks=2)
    assert seen
    assert "mnpar-checkpoint" not in seen


@pytest.mark.parametrize(
    "ranks", [3, 4]
)  # of four, one does not come to write before rank 0 waits for it
def test_the_end_of_training_waits_for_what_is_written_and_needs_no_other_rank(
    ranks, gate, tmp_path
):
    def program(comm):
        checkpointer = of_run(comm, tmp_path)
        checkpointer.save(L.Linear(3, 2, initialW=2), 4)
        gate.set()
        if comm.rank == 0:
            checkpointer.finalize()
            return checkpoint.steps(tmp_path / "run")
        return None

    assert mnpar.run(program, ranks=ranks)[0] == [4]


def test_what_is_loaded_is_what_was_saved_last(tmp_path):
    def program(comm):
        model = L.Linear(3, 2, initialW=1)
        checkpointer = of_run(comm, tmp_path)
        checkpointer.save(model, 1)
        model.W.array[...] = 5
        return checkpointer.maybe_load(model), model.W.array[0, 0]

    assert mnpar.run(program, ranks=2) == [(1, 1)] * 2


# ---- errors ----


@pytest.mark.grid
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "step",
    [
        "folder made",
        "shard opened",
        "shard begun",
        "shard written",
        "note written",
        "folder on the disk",
    ],
)
@pytest.mark.parametrize("when", ["save", "flush"])
def test_a_full_disk_is_an_error_on_all_ranks_at_the_next_call_and_leaves_no_trace(
    step, ranks, when, tmp_path
):
    failing = ranks - 1 if "shard" in step or "note" in step else 0

    def program(comm):
        def full(reached):
            if reached == step and comm.rank == failing:
                raise OSError(28, "No space left on device", f"the disk of {step}")

        checkpointer = of_run(comm, tmp_path)
        checkpointer.save(L.Linear(3, 2, initialW=7), 1)
        checkpointer.flush()
        store.after_step.set(full)
        model = mnpar.ChainList(*[L.Linear(9, 9) for _ in range(6)])
        try:
            checkpointer.save(model, 2)
            checkpointer.flush() if when == "flush" else checkpointer.save(model, 3)
        except OSError as error:
            store.after_step.set(lambda reached: None)
            comm.barrier()
            return (
                str(error),
                error.__notes__,
                sorted(os.listdir(tmp_path / "run")),
                weights(comm, tmp_path),
            )
        return None

    stop = [f"(on rank {failing} of {ranks}; all ranks stop)"]
    expected = (
        f"[Errno 28] No space left on device: 'the disk of {step}'",
        stop,
        [".lock", "step-00000001"],
        (1, 7.0),
    )
    assert mnpar.run(program, ranks=ranks) == [expected] * ranks


def test_an_error_at_the_end_of_training_is_raised_where_it_was(tmp_path):
    def program(comm):
        def full(reached):
            if reached == "shard opened" and comm.rank == 1:
                raise OSError(28, "No space left on device")

        store.after_step.set(full)
        checkpointer = of_run(comm, tmp_path)
        checkpointer.save(mnpar.ChainList(L.Linear(9, 9), L.Linear(9, 9)), 2)
        try:
            checkpointer.finalize()
        except (OSError, CheckpointError) as error:
            return str(error)
        return None

    first, second = mnpar.run(program, ranks=2)
    assert "rank 1 could not write its shard: OSError: [Errno 28] No space left" in first
    assert second == "[Errno 28] No space left on device"
    assert sorted(os.listdir(tmp_path / "run")) in ([".lock"], [])


def test_a_rank_that_writes_nothing_is_named_after_a_while(monkeypatch, tmp_path):
    monkeypatch.setattr(background, "PATIENCE", 0.1)
    real = done_markers.has_marker
    monkeypatch.setattr(
        done_markers, "has_marker", lambda hidden, rank: rank != 1 and real(hidden, rank)
    )

    def program(comm):
        checkpointer = of_run(comm, tmp_path)
        checkpointer.save(L.Linear(3, 2), 2)
        checkpointer.flush()

    with pytest.raises(CheckpointError, match=r"ranks \[1\] have written nothing for 0.1 s"):
        mnpar.run(program, ranks=2)


# ---- the end of the job at any moment ----


def test_a_job_killed_at_any_step_goes_on_bit_for_bit(tmp_path):
    """One rank, whose thread alone touches the disk; the copies of the disk are what a kill would
    leave.
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
    (end,) = mnpar.run(train_in_background, ranks=1, args=(folder,))
    store.after_step.reset(token)
    assert {*steps} == {*STEPS, "note written", "note left"}
    for place in found.values():
        before = max(checkpoint.steps(place), default=0)
        assert mnpar.run(train_in_background, ranks=1, args=(place,)) == [(before, end[1])], place
        left = sorted(name for name in os.listdir(place) if name != ".lock")
        assert before == ITERATIONS or left == [
            str(store.Name(step, 1)) for step in checkpoint.steps(place)
        ], place


def test_processes_killed_by_the_system_go_on_bit_for_bit(tmp_path):
    command, environment = mpiexec_command(2)
    program = Path(__file__).parent / "training.py"
    for death, possible in (
        ((1, "shard begun", 2), [[2]]),
        ((0, "note left", 1), [[2]]),
        ((1, "note left", 2), [[2, 4], [2, 4, 6]]),
    ):
        job = [*command, *client_for(program, tmp_path / "killed", *death, "in background")]
        done = subprocess.run(
            job, capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        assert done.returncode, done.stderr
        assert checkpoint.steps(tmp_path / "killed") in possible, death
    ends = mnpar.run(train, ranks=2, args=(tmp_path / "whole",))
    resumed = mnpar.run(train_in_background, ranks=2, args=(tmp_path / "killed",))
    assert [result for _, result in resumed] == [result for _, result in ends]


def test_numbers_that_are_not_arrays_are_as_they_were(tmp_path):
    class Count:
        n, scalar = 3, np.float32(1.5)

        def serialize(self, serializer):
            self.n, self.scalar = serializer("n", self.n), serializer("scalar", self.scalar)

    comm = mnpar.create_communicator("self")
    count = Count()
    checkpointer = of_run(comm, tmp_path)
    checkpointer.save(count, 1)
    count.n, count.scalar = 9, np.float32(9)
    checkpointer.maybe_load(count)
    assert (count.n, count.scalar) == (3, 1.5)
