"""A full disk: every file that mnpar writes is named, with what was written and what is free."""

import os

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint, serializers
from mnpar.datasets import open_pickle_dataset_writer
from mnpar.serializers.atomic import replacing_path
from mnpar.training import extensions


def full(*_):
    raise OSError(28, "No space left on device")


def model():
    return L.Linear(300, 300)


def write(path):
    with serializers.replacing(path) as file:
        file.write(b"x" * 5)


def write_path(path):
    with replacing_path(path) as temporary, open(temporary, "w") as file:
        file.write("xxxxx")


def write_examples(path):
    with open_pickle_dataset_writer(path) as writer:
        writer.write(np.ones(10_000))


SAVED = {
    "npz": lambda path: serializers.save_npz(path, model()),
    "safetensors": lambda path: serializers.save_safetensors(path, model()),
    "replacing": write,
    "replacing_path": write_path,
}


@pytest.mark.parametrize("save", SAVED.values(), ids=SAVED)
def test_a_file_that_cannot_be_synced_is_named_and_leaves_no_trace(save, tmp_path, monkeypatch):
    path = str(tmp_path / "file.npz")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*, after [\d,]+ bytes .* left\)") as caught:
        save(path)
    assert caught.value.filename == path
    assert caught.value.errno == 28
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "save",
    [
        lambda path: serializers.save_npz(path, model()),
        lambda path: serializers.save_safetensors(path, model()),
        write_examples,
    ],
    ids=["npz", "safetensors", "pickles"],
)
def test_a_device_that_is_full_is_named(save):
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        save("/dev/full")


@pytest.mark.parametrize("name", ["shard-00000-of-00001", "manifest"])
def test_a_file_of_a_checkpoint_is_named(name, tmp_path, monkeypatch):
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: full() if name in os.readlink(f"/proc/self/fd/{fd}") else sync(fd)
    )
    with pytest.raises(OSError, match=rf"No space left on device, after .*{name}"):
        mnpar.run(lambda comm: checkpoint.save(tmp_path, model(), comm, 1), ranks=1)


def test_a_log_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    batches = mnpar.iterators.SerialIterator(np.ones((2, 300), "f"), 2)
    net = model()
    optimizer = mnpar.optimizers.SGD().setup(net)
    updater = mnpar.training.StandardUpdater(
        batches, optimizer, loss_func=lambda x: mnpar.functions.mean(net(x))
    )
    trainer = mnpar.training.Trainer(updater, (1, "iteration"), out=tmp_path)
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    with pytest.raises(OSError, match=rf"No space left .*: '{tmp_path}/log'"):
        trainer.run()
