"""MNIST's four files, synthetic ones: where they are looked for, and what is wrong with them."""

import gzip
import hashlib
import os
import re
import struct

import numpy as np
import pytest

from mnpar.datasets import get_mnist, mnist
from mnpar.datasets.download import KnownFile, fetch
from mnpar.errors import DatasetError

N = {"train": 12, "t10k": 5}


def files(n=N):
    rng = np.random.RandomState(0)
    out = {}
    for part, count in n.items():
        images = rng.randint(0, 256, (count, 28, 28)).astype(np.uint8)
        images[:1, 0, :2] = 0, 255
        out[f"{part}-images-idx3-ubyte"] = (
            struct.pack(">4I", 0x803, count, 28, 28) + images.tobytes()
        )
        out[f"{part}-labels-idx1-ubyte"] = struct.pack(">2I", 0x801, count) + bytes(
            i % 10 for i in range(count)
        )
    return out


def write(folder, contents, name=str, pack=bytes):
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in contents.items():
        (folder / name(file)).write_bytes(pack(data))


def raw_images(part="train"):
    return np.frombuffer(files()[f"{part}-images-idx3-ubyte"], np.uint8)[16:].reshape(-1, 28, 28)


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    monkeypatch.setattr(mnist, "MNIST", mnist.MNIST._replace(mirrors=()))
    monkeypatch.delenv("MNPAR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


PLACES = {
    "raw": ("", str, bytes),
    "gzip": ("", "{}.gz".format, gzip.compress),
    "dots": ("", lambda name: name.replace("-idx", ".idx"), bytes),
    "in mnist": ("mnist", "{}.gz".format, gzip.compress),
    "in torchvision's folder": ("MNIST/raw", str, bytes),
}


@pytest.mark.parametrize(("place", "name", "pack"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("how", ["data", "variable"])
def test_the_files_are_found_and_read(tmp_path, monkeypatch, place, name, pack, how):
    write(tmp_path / "d" / place, files(), name, pack)
    if how == "variable":
        monkeypatch.setenv("MNPAR_DATA", str(tmp_path / "d"))
    train, test = get_mnist(data=str(tmp_path / "d") if how == "data" else None)
    assert (len(train), len(test)) == (12, 5)
    image, label = train[3]
    assert (image.shape, image.dtype, label, label.dtype) == ((784,), np.float32, 3, np.int32)
    np.testing.assert_allclose(image, raw_images()[3].ravel() / 255, rtol=1e-6)


SHAPES = {1: (784,), 2: (28, 28), 3: (1, 28, 28)}


@pytest.mark.parametrize(("ndim", "shape"), SHAPES.items())
def test_images_have_the_shape_and_scale_that_was_asked_for(tmp_path, ndim, shape):
    write(tmp_path, files())
    train, _ = get_mnist(withlabel=False, ndim=ndim, scale=255.0, dtype=np.float64, data=tmp_path)
    np.testing.assert_allclose(train, raw_images().reshape(12, *shape), rtol=1e-12)


def test_rgb_repeats_the_channel(tmp_path):
    write(tmp_path, files())
    _, test = get_mnist(withlabel=False, ndim=3, rgb_format=True, data=tmp_path)
    assert test.shape == (5, 3, 28, 28)
    np.testing.assert_array_equal(test[:, 0], test[:, 2])


def test_an_impossible_ndim_is_refused_before_anything_is_read():
    with pytest.raises(ValueError, match="ndim = 0"):
        get_mnist(ndim=0, data="/nowhere")


def broken(name, change):
    contents = files()
    contents[name] = change(contents[name])
    return contents


def set_byte(position, value):
    return lambda data: data[:position] + bytes([value]) + data[position + 1 :]


DAMAGED = {
    "label out of range": (
        broken("train-labels-idx1-ubyte", set_byte(8 + 4, 10)),
        "train-labels-idx1-ubyte: at byte 12: expected a label in 0 … 9, found 10 (1 of 12 "
        "labels are out of range)",
    ),
    "fewer labels than images": (
        {**files(), "t10k-labels-idx1-ubyte": struct.pack(">2I", 0x801, 4) + bytes(4)},
        "t10k-labels-idx1-ubyte: at byte 4: expected 5 labels, for the images of",
    ),
    "images for labels": (
        broken("train-labels-idx1-ubyte", lambda data: files()["train-images-idx3-ubyte"]),
        "train-labels-idx1-ubyte: at byte 0: expected the magic number 0x00000801 (uint8, 1 "
        "axes), found 0x00000803",
    ),
    "other images": (
        broken(
            "train-images-idx3-ubyte",
            lambda data: struct.pack(">4I", 0x803, 12, 8, 8) + bytes(12 * 64),
        ),
        "train-images-idx3-ubyte: at byte 8: expected size 28 on axis 1, found 8",
    ),
    "truncated": (
        broken("t10k-images-idx3-ubyte", lambda data: data[:-1]),
        "t10k-images-idx3-ubyte: at byte 16: expected 3920 bytes of numbers",
    ),
    "no images": (
        files({"train": 0, "t10k": 5}),
        "train-images-idx3-ubyte: at byte 4: expected at least one image, found 0",
    ),
    "empty": (
        broken("train-images-idx3-ubyte", lambda data: b""),
        "train-images-idx3-ubyte: at byte 0: expected an IDX file, found an empty file",
    ),
}


@pytest.mark.parametrize(("contents", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_or_mislabelled_file_is_named(tmp_path, contents, message):
    write(tmp_path, contents)
    with pytest.raises(DatasetError, match=re.escape(message)) as caught:
        get_mnist(data=tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_file_is_named_with_where_it_was_looked_for_and_the_remedy(tmp_path):
    contents = files()
    del contents["t10k-labels-idx1-ubyte"]
    write(tmp_path, contents)
    with pytest.raises(
        FileNotFoundError, match=re.escape("t10k-labels-idx1-ubyte.gz, t10k-labels.idx1-ubyte")
    ) as caught:
        get_mnist(data=tmp_path)
    assert str(tmp_path / "mnist") in str(caught.value)
    assert "MNPAR_DATA" in str(caught.value)


# ---- downloads: from file:// addresses, never from a network ----


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    folder = tmp_path / "mirror"
    write(folder, files(), "{}.gz".format, lambda data: gzip.compress(data, mtime=0))
    known = {
        path.name.removesuffix(".gz"): KnownFile(
            path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in folder.iterdir()
    }
    mirrors = ((tmp_path / "none").as_uri() + "/", folder.as_uri() + "/")
    monkeypatch.setattr(mnist, "MNIST", mnist.MNIST._replace(files=known, mirrors=mirrors))
    return folder


def test_files_are_downloaded_once_from_the_first_mirror_that_has_them(
    mirror, tmp_path, monkeypatch
):
    assert len(get_mnist()[0]) == 12
    # no temporary file is left
    assert sorted(os.listdir(tmp_path / "cache/mnpar/mnist")) == sorted(os.listdir(mirror))
    monkeypatch.setattr(mnist, "MNIST", mnist.MNIST._replace(mirrors=()))
    assert len(get_mnist()[1]) == 5


def test_a_damaged_download_in_the_cache_is_fetched_again(mirror, tmp_path):
    get_mnist()
    cached = tmp_path / "cache/mnpar/mnist/train-images-idx3-ubyte.gz"
    cached.write_bytes(cached.read_bytes()[:-1] + b"\0")
    assert len(get_mnist()[0]) == 12
    assert cached.read_bytes() == (mirror / cached.name).read_bytes()


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:-1] + b"\1"],
    ids=["short", "long", "other"],
)
def test_a_file_with_another_digest_is_refused_and_not_kept(mirror, tmp_path, change):
    path = mirror / "train-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(
        ConnectionError,
        match=r"train-images-idx3-ubyte.gz could not be downloaded: .*SHA-256 .*MNPAR_DATA",
    ):
        get_mnist()
    assert not (tmp_path / "cache/mnpar/mnist").exists()


def test_without_a_mirror_the_error_has_each_reason_and_the_remedy(tmp_path):
    with pytest.raises(ConnectionError, match=r"nowhere/: .*No such file"):
        fetch(KnownFile("x", 1, "0"), tmp_path, [(tmp_path / "nowhere").as_uri() + "/"])
    with pytest.raises(ConnectionError, match="give the folder with the four IDX files"):
        get_mnist()


def test_a_write_that_fails_leaves_nothing_behind(mirror, tmp_path, monkeypatch):
    def fails(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        get_mnist()
    assert os.listdir(tmp_path / "cache/mnpar/mnist") == []


def test_the_known_files_are_the_four_of_mnist():
    assert sorted(mnist.MNIST.files) == sorted(files())
    for file in mnist.MNIST.files.values():
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
