"""TensorBoard's event files: the scalars they hold, who writes them, what a resumption adds."""

import builtins
import struct
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog

import mnpar
import mnpar.links as L
from mnpar import training
from mnpar.training import extensions
from tests.harness.trainers import counting, load, saved

X = [float(i) ** 2 for i in range(20)]


def masked(data):
    """The checksum of a record."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events_of(path):
    """The events of a file: records of length, its checksum, bytes, their checksum."""
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + size]
        checksums = struct.unpack("<I", data[8:12]) + struct.unpack("<I", data[12 + size :][:4])
        assert checksums == (masked(data[:8]), masked(body))
        yield Event.FromString(body)
        data = data[16 + size :]


def files(folder):
    return sorted(
        Path(folder).glob("events.out.tfevents.*"), key=lambda path: path.stat().st_ctime_ns
    )


def shown(folder):
    """Return ``{tag: [(step, value), …]}`` as TensorBoard shows a folder: what a file says of its
    start makes later steps of earlier files obsolete.
    """
    scalars = {}
    for path in files(folder):
        for event in events_of(path):
            if event.session_log.status == SessionLog.START:
                scalars = {
                    tag: [point for point in points if point[0] < event.step]
                    for tag, points in scalars.items()
                }
            for value in event.summary.value:
                scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    return {tag: points for tag, points in scalars.items() if points}


def trainer_of(tmp_path, stop=12, *more, comm=None):
    trainer = counting(tmp_path, (stop, "iteration"), length=4, comm=comm, x=X, text=["word"] * 20)
    for one in more or (extensions.LogReport(), extensions.TensorBoardReport()):
        trainer.extend(one)
    return trainer


MEANS = [(4, 3.5), (8, 31.5), (12, 91.5)]


def test_events_are_the_numbers_of_each_entry_at_its_iteration(tmp_path):
    trainer_of(tmp_path).run()
    scalars = shown(tmp_path / "tensorboard")
    assert list(scalars) == ["x", "epoch", "elapsed_time"]
    assert scalars["x"] == MEANS
    assert scalars["epoch"] == [(4, 1), (8, 2), (12, 3)]


def test_a_report_may_have_an_interval_of_its_own(tmp_path):
    log = extensions.LogReport(trigger=(2, "iteration"), log_name=None)
    trainer_of(tmp_path, 4, extensions.TensorBoardReport(log)).run()
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
    assert shown(tmp_path / "tensorboard")["x"] == [(2, 0.5), (4, 6.5)]


def test_the_last_entry_is_written_when_the_log_comes_after_the_report(tmp_path):
    trainer_of(tmp_path, 12, extensions.TensorBoardReport(), extensions.LogReport()).run()
    assert shown(tmp_path / "tensorboard")["x"] == MEANS


def test_what_was_written_is_in_the_file_while_training_goes_on(tmp_path):
    found = []

    def look(trainer):
        found.append(shown(tmp_path / "tensorboard").get("x", []))

    trainer_of(tmp_path, 8, extensions.LogReport(), extensions.TensorBoardReport(), look).run()
    assert found[3] == MEANS[:1]
    assert found[7] == MEANS[:2]


@pytest.mark.parametrize("moment", [4, 5, 7])
def test_a_resumption_appends_and_replaces_what_came_after_its_snapshot(moment, tmp_path):
    first = trainer_of(tmp_path, moment)
    first.run()
    snapshot = saved(first)
    lost = trainer_of(tmp_path, 12)  # goes on, and is lost
    lost.updater.values["x"] = [-1.0] * 20
    load(snapshot, lost)
    lost.run()
    before = {path: path.read_bytes() for path in files(tmp_path / "tensorboard")}
    again = trainer_of(tmp_path, 12)
    load(snapshot, again)
    again.run()
    assert shown(tmp_path / "tensorboard")["x"] == MEANS
    after = files(tmp_path / "tensorboard")
    assert len(after) == len(before) + 1
    assert all(path.read_bytes() == data for path, data in before.items())


def test_training_from_the_start_replaces_what_an_earlier_one_left(tmp_path):
    trainer_of(tmp_path, 12).run()
    trainer_of(tmp_path, 8).run()
    assert shown(tmp_path / "tensorboard")["x"] == MEANS[:2]


@pytest.mark.ranks(1, 2, 3)
def test_rank_0_writes_the_means_of_all_ranks(comm, tmp_path):
    folder = comm.bcast_obj(str(tmp_path))
    mnpar.random.seed(0)
    model = L.Classifier(L.Linear(4, 3))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(model)
    rng = np.random.default_rng(5)
    data = [(x.astype("f4"), np.int32(x[0] > 0)) for x in rng.standard_normal((23, 4))]
    part = mnpar.scatter_dataset(data, comm)
    updater = training.StandardUpdater(mnpar.iterators.SerialIterator(part, 4), optimizer)
    trainer = training.Trainer(updater, (2, "epoch"), folder)
    evaluator = extensions.Evaluator(
        mnpar.iterators.SerialIterator(part, 4, repeat=False, shuffle=False), model
    )
    trainer.extend(mnpar.create_multi_node_evaluator(evaluator, comm))
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.TensorBoardReport())
    trainer.run()
    log = trainer.get_extension("LogReport").log
    means = comm.allgather_obj([entry["validation/main/loss"] for entry in log])
    assert means == [means[0]] * comm.size
    comm.barrier()
    assert len(files(f"{folder}/tensorboard")) == 1
    written = shown(f"{folder}/tensorboard")["validation/main/loss"]
    assert [value for _, value in written] == pytest.approx(means[0])


@pytest.mark.ranks(2)
def test_each_rank_writes_to_a_folder_of_its_own(comm, tmp_path):
    folder = comm.bcast_obj(str(tmp_path))
    report = extensions.TensorBoardReport(folder=f"rank{comm.rank}")
    trainer_of(folder, 4, extensions.LogReport(), report, comm=comm).run()
    assert shown(f"{folder}/rank{comm.rank}")["x"] == MEANS[:1]


def test_a_missing_package_is_told_with_the_extra_that_brings_it(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("tensorboardX"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'mnpar\[tensorboard\]'"):
        extensions.TensorBoardReport()


@pytest.mark.parametrize("make", [extensions.TensorBoardReport, extensions.PrintReport])
def test_a_log_report_is_one_or_its_name(make):
    arguments = () if make is extensions.TensorBoardReport else (["x"],)
    with pytest.raises(TypeError, match="log_report is a LogReport or the name of one, not a int"):
        make(*arguments, 3)
