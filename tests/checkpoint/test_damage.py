"""Damaged, swapped, missing and foreign files are refused by name and reason; disks that are full
or closed are errors.
"""

import copy
import json
import os
import shutil

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import checkpoint
from mnpar.checkpoint import store
from mnpar.errors import CheckpointError


def save(folder, step=1, ranks=2, value=1.0):
    def program(comm):
        model = mnpar.ChainList(
            L.Linear(4, 3, initialW=value), L.Linear(4, 3, initialW=value + comm.rank)
        )
        return checkpoint.save(folder, model, comm, step)

    return mnpar.run(program, ranks=ranks)[0]


def load(folder, step=None, ranks=2):
    def program(comm):
        model = mnpar.ChainList(L.Linear(4, 3), L.Linear(4, 3))
        return checkpoint.load(folder, model, comm, step), float(model[0].W.array[0, 0])

    return mnpar.run(program, ranks=ranks)


SHARD = "shard-00000-of-00002.safetensors"
OTHER = "shard-00001-of-00002.safetensors"


def flip(path, name=SHARD, at=-3):
    data = bytearray((path / name).read_bytes())
    data[at] ^= 4
    (path / name).write_bytes(data)


def cut_off(path):
    data = (path / SHARD).read_bytes()
    (path / SHARD).write_bytes(data[:-5])


def swap(path):
    (path / SHARD).rename(path / "x")
    (path / OTHER).rename(path / SHARD)
    (path / "x").rename(path / OTHER)


def link(path):
    (path / SHARD).rename(path.parent / "elsewhere")
    (path / SHARD).symlink_to(path.parent / "elsewhere")


def rewrite(path, change):
    """A manifest with other content, and the digest that belongs to it."""
    document = json.loads((path / store.MANIFEST).read_text())
    change(document)
    text = json.dumps(document["content"], separators=(",", ":"))
    document["sha256"] = store.hashlib.sha256(text.encode()).hexdigest()
    (path / store.MANIFEST).write_text(json.dumps(document, separators=(",", ":")))


def later(document):
    document["mnpar checkpoint"] = 2


def outside(document):
    files = document["content"]["files"]
    files["../../evil"] = files[SHARD]


def gap(document):
    records = document["content"]["records"]
    records[0][1] = [9, 9]


DAMAGE = {
    "a flipped bit": (flip, rf"{SHARD} is damaged or another file: its SHA-256"),
    "a flipped bit in the header": (
        lambda path: flip(path, at=12),
        rf"{SHARD} is damaged or another file: its SHA-256",
    ),
    "a cut": (cut_off, rf"{SHARD} is damaged: it has \d+ bytes, not \d+"),
    "an empty file": (lambda path: (path / SHARD).write_bytes(b""), "it has 0 bytes"),
    "a missing shard": (lambda path: (path / OTHER).unlink(), rf"{OTHER} is missing"),
    "swapped shards": (swap, rf"{SHARD} is damaged"),
    "a shard of another run": (
        lambda path: shutil.copy(
            save(path.parent.parent / "x", value=7.0) + "/" + SHARD, path / SHARD
        ),
        rf"{SHARD} is damaged or another file",
    ),
    "one shard more": (
        lambda path: shutil.copy(path / SHARD, path / "shard-00002-of-00003.safetensors"),
        "shard-00002-of-00003.safetensors does not belong to this checkpoint",
    ),
    "a link": (link, rf"{SHARD}: Too many levels of symbolic links"),
    "a folder in place of a shard": (
        lambda path: ((path / SHARD).unlink(), (path / SHARD).mkdir()),
        rf"{SHARD}: ",
    ),
    "no manifest": (lambda path: (path / store.MANIFEST).unlink(), r"manifest.json: No such file"),
    "a flipped bit in the manifest": (
        lambda path: flip(path, store.MANIFEST, 200),
        r"manifest.json .*",
    ),
    "half a manifest": (
        lambda path: os.truncate(path / store.MANIFEST, 100),
        "manifest.json is damaged, or no manifest",
    ),
    "another kind of file": (
        lambda path: (path / store.MANIFEST).write_text("[1, 2]"),
        "manifest.json is damaged, or no",
    ),
    "a deep manifest": (
        lambda path: (path / store.MANIFEST).write_text("[" * 100_000),
        "manifest.json is damaged",
    ),
    "a later version": (
        lambda path: rewrite(path, later),
        r"has version 2 of the format; this mnpar reads version 1",
    ),
    "a name that leads elsewhere": (
        lambda path: rewrite(path, outside),
        r"'../../evil' is no name of a shard",
    ),
    "parts that are no whole": (
        lambda path: rewrite(path, gap),
        "manifest.json has a wrong content",
    ),
    "no records": (
        lambda path: rewrite(path, lambda d: d["content"].pop("records")),
        "manifest.json has a wrong content",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_an_older_one_is_taken(damage, message, tmp_path):
    run = tmp_path / "run"
    save(run, 1)
    newest = run / os.path.basename(save(run, 2, value=2.0))
    assert load(run) == [(2, 2.0)] * 2
    damage(newest)
    with pytest.raises(CheckpointError, match=message):
        load(run, step=2)
    with pytest.warns(UserWarning, match=f"an older checkpoint is tried, because .*{message}"):
        assert load(run) == [(1, 1.0)] * 2


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / os.path.basename(save(tmp_path))
    rng = np.random.default_rng(0)
    for name in (SHARD, OTHER, store.MANIFEST):
        whole = (path / name).read_bytes()
        for _ in range(10):
            flip(path, name, int(rng.integers(len(whole))))
            with pytest.raises(CheckpointError, match="step-00000001"):
                load(tmp_path, 1, ranks=1)
            (path / name).write_bytes(whole)


def test_a_manifest_of_anything_with_the_right_digest_is_read_or_refused(tmp_path):
    """Somebody has edited it: nothing but what is wrong is said, on every rank."""
    path = tmp_path / os.path.basename(save(tmp_path))
    whole = json.loads((path / store.MANIFEST).read_text())
    rng = np.random.default_rng(1)
    others = [None, -1, 10**30, "x", [], {}, [1], 1.5, True, [[0], [5]], float("nan")]
    refused, misfits = 0, []
    for _ in range(150):
        document = copy.deepcopy(whole)
        spots = [*places(document["content"])]
        owner, key = spots[rng.integers(len(spots))]
        owner[key] = others[rng.integers(len(others))]
        rewrite(path, lambda d, document=document: d.update(document))
        try:
            load(tmp_path, 1, ranks=1)
        except CheckpointError:
            refused += 1
        except (KeyError, ValueError, TypeError) as error:
            misfits.append(str(error))
    assert refused > 100
    # another key, shape or dtype of a layer's
    assert all("0/" in text or "1/" in text for text in misfits), misfits


def places(content):
    """Everything in a JSON document that could be something else."""
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from places(content[key])


def test_where_all_are_damaged_each_is_named(tmp_path):
    for step in (1, 2):
        flip(tmp_path / os.path.basename(save(tmp_path, step)))
    message = r"no checkpoint that could be loaded: .*step-00000002.*; .*step-00000001"
    with pytest.warns(UserWarning, match="older"), pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_without_any_checkpoint_there_is_nothing_to_load(tmp_path):
    assert load(tmp_path / "none")[0][0] is None
    with pytest.raises(CheckpointError, match="no checkpoint of step 3; there are: none"):
        load(tmp_path, step=3)


def test_another_model_is_refused_by_name(tmp_path):
    save(tmp_path)
    with pytest.raises(KeyError, match="has no '2/W', but 0/W, "):
        mnpar.run(
            lambda comm: checkpoint.load(tmp_path, mnpar.ChainList(*[L.Linear(4, 3)] * 3), comm),
            ranks=2,
        )
    with pytest.raises(
        ValueError, match=r"0/W: saved with shape \(3, 4\), but the object's is \(3, 5\)"
    ):
        mnpar.run(
            lambda comm: checkpoint.load(tmp_path, mnpar.ChainList(L.Linear(5, 3)), comm), ranks=2
        )


def test_what_is_missing_is_kept_where_that_is_allowed(tmp_path):
    save(tmp_path)

    def program(comm):
        model = mnpar.ChainList(L.Linear(4, 3), L.Linear(4, 3), L.Linear(4, 3, initialW=5))
        checkpoint.load(tmp_path, model, comm, strict=False)
        return float(model[0].W.array[0, 0]), float(model[2].W.array[0, 0])

    assert mnpar.run(program, ranks=2) == [(1, 5), (1, 5)]


def test_garbage_collection_never_takes_the_last_good_one(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step)
    for step in (4, 5):
        flip(tmp_path / str(store.Name(step, 1)))
    mnpar.run(lambda comm: checkpoint.collect_garbage(tmp_path, comm, 1), ranks=2)
    assert checkpoint.steps(tmp_path) == [3, 4, 5]
    with pytest.warns(UserWarning, match="an older checkpoint is tried"):
        assert load(tmp_path)[0][0] == 3


# ---- disks ----


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "step",
    [
        "recorded",
        "folder made",
        "shard opened",
        "shard begun",
        "shard written",
        "folder on the disk",
    ],
)
def test_a_full_disk_is_an_error_on_all_ranks_and_leaves_no_trace(step, ranks, tmp_path):
    save(tmp_path, 1, ranks)

    def program(comm):
        def full(reached):
            if reached == step:
                raise OSError(28, "No space left on device", f"the disk of {step}")

        if comm.rank == (ranks - 1 if "shard" in step else 0):
            store.after_step.set(full)
        try:
            checkpoint.save(tmp_path, mnpar.ChainList(*[L.Linear(9, 9) for _ in range(6)]), comm, 2)
        except OSError as error:
            return str(error), error.__notes__
        return None

    failing_rank = ranks - 1 if "shard" in step else 0
    expected = f"[Errno 28] No space left on device: 'the disk of {step}'"
    notes = [f"(on rank {failing_rank} of {ranks}; all ranks stop)"]
    assert mnpar.run(program, ranks=ranks) == [(expected, notes)] * ranks
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert load(tmp_path, ranks=ranks)[0][0] == 1


@pytest.mark.parametrize("call", ["mkdir", "rename", "fsync", "open"])
def test_a_closed_disk_is_an_error_and_the_older_checkpoint_stays(call, tmp_path, monkeypatch):
    """As root, a folder's mode stops nobody: the system call itself refuses."""
    save(tmp_path, 1)
    with monkeypatch.context() as patch:

        def refuse(*arguments, **flags):
            if call == "open" and not str(arguments[0]).endswith(".safetensors"):
                return opened(*arguments, **flags)
            raise OSError(30, "Read-only file system", str(tmp_path))

        opened = os.open
        patch.setattr(store.os, call, refuse)
        with pytest.raises(OSError, match="Read-only file system"):
            save(tmp_path, 2)
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert load(tmp_path)[0][0] == 1


def test_a_rank_that_does_not_see_the_folder_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "begin", lambda folder, step: str(tmp_path / "on another machine"))
    with pytest.raises(FileNotFoundError, match="a file system that all ranks share"):
        save(tmp_path)


def test_the_cause_is_told_where_the_others_were_communicating(tmp_path):
    class Talks:
        def __init__(self, comm):
            self.comm = comm

        def serialize(self, serializer):
            if self.comm.rank == 1:
                raise RuntimeError("the cause")
            self.comm.allreduce(np.ones(1))

    with pytest.raises(RuntimeError, match="the cause"):
        mnpar.run(lambda comm: checkpoint.save(tmp_path, Talks(comm), comm, 1), ranks=2)


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        save(tmp_path / "file")
