"""CIFAR's binary files, synthetic ones: in folders and archives, and what is wrong with them;
Fashion-MNIST's places.
"""

import io
import tarfile

import numpy as np
import pytest
from test_mnist import files, raw_images, write

from mnpar.datasets import (
    cifar,
    get_cifar10,
    get_cifar100,
    get_fashion_mnist,
    get_fashion_mnist_labels,
    get_kuzushiji_mnist,
    get_kuzushiji_mnist_labels,
    mnist,
)
from mnpar.errors import DatasetError

GET = {"cifar-10-batches-bin": get_cifar10, "cifar-100-binary": get_cifar100}


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    monkeypatch.setattr(cifar, "MIRRORS", ())
    for name in ("FASHION_MNIST", "KUZUSHIJI_MNIST"):
        monkeypatch.setattr(mnist, name, getattr(mnist, name)._replace(mirrors=()))
    monkeypatch.delenv("MNPAR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def records(form, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(form.classes, size=(4, len(form.classes)))
    return np.concatenate([labels, rng.integers(256, size=(4, 3072))], axis=1).astype(np.uint8)


def contents(form):
    return {name: records(form, i).tobytes() for i, name in enumerate((*form.train, *form.test))}


def put_folder(folder, form, data):
    write(folder, data)


def put_inner_folder(folder, form, data):
    write(folder / form.folder, data)


def put_archive(folder, form, data):
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / form.archive.name, "w:gz") as tar:
        for name, content in data.items():
            info = tarfile.TarInfo(f"{form.folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("form", [cifar.CIFAR10, cifar.CIFAR100], ids=["10", "100"])
@pytest.mark.parametrize("put", [put_folder, put_inner_folder, put_archive])
@pytest.mark.parametrize("how", ["data", "variable"])
def test_the_records_are_found_and_read(tmp_path, monkeypatch, form, put, how):
    put(tmp_path / "d", form, contents(form))
    if how == "variable":
        monkeypatch.setenv("MNPAR_DATA", str(tmp_path / "d"))
    train, test = GET[form.folder](
        scale=255.0, dtype="f8", data=tmp_path / "d" if how == "data" else None
    )
    assert (len(train), len(test)) == (4 * len(form.train), 4)
    raw = np.concatenate([records(form, i) for i in range(len(form.train))])
    image, label = train[len(train) - 1]
    np.testing.assert_allclose(image, raw[-1, len(form.classes) :].reshape(3, 32, 32), rtol=1e-12)
    assert label == raw[-1, len(form.classes) - 1]  # the fine one
    assert label.dtype == np.int32


def test_coarse_labels_flat_images_and_images_alone(tmp_path):
    put_folder(tmp_path, cifar.CIFAR100, contents(cifar.CIFAR100))
    train, _ = get_cifar100(coarse=True, ndim=1, data=tmp_path)
    np.testing.assert_array_equal([label for _, label in train], records(cifar.CIFAR100, 0)[:, 0])
    images, _ = get_cifar100(withlabel=False, ndim=1, data=tmp_path)
    assert (images.shape, images.dtype) == ((4, 3072), np.float32)
    assert images.max() <= 1
    with pytest.raises(ValueError, match="ndim = 2"):
        get_cifar10(ndim=2, data=tmp_path)


WRONG = {
    "a record too short": (lambda d: d[:-1], r"found 12291 bytes: 3 records and 3072 bytes"),
    "nothing": (lambda d: b"", r"found 0 bytes"),
    "a label that is none": (
        lambda d: d[:3073] + b"\x0a" + d[3074:],
        r"at byte 3073: expected a label in 0 … 9, found 10 \(1 of 4",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("put", [put_folder, put_archive])
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, spoil, message, put):
    data = contents(cifar.CIFAR10)
    data["data_batch_3.bin"] = spoil(data["data_batch_3.bin"])
    put(tmp_path, cifar.CIFAR10, data)
    with pytest.raises(DatasetError, match=rf"data_batch_3\.bin: .*{message}"):
        get_cifar10(data=tmp_path)


def test_an_archive_that_is_none_or_lacks_a_file_is_named(tmp_path):
    (tmp_path / cifar.CIFAR10.archive.name).write_bytes(b"no archive")
    with pytest.raises(
        DatasetError, match=r"cifar-10-binary\.tar\.gz: expected a file .*data_batch_1\.bin in it"
    ):
        get_cifar10(data=tmp_path)
    put_archive(tmp_path, cifar.CIFAR10, {})
    with pytest.raises(DatasetError, match=r"expected a file .*data_batch_1\.bin in it"):
        get_cifar10(data=tmp_path)


def test_where_there_is_nothing_the_remedy_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=r"neither data_batch_1\.bin nor cifar-10-binary\.tar\.gz is in .* by data=",
    ):
        get_cifar10(data=tmp_path)
    with pytest.raises(ConnectionError, match="binary form"):
        get_cifar100()


OF_MNISTS_FORM = {"fashion-mnist": get_fashion_mnist, "kmnist": get_kuzushiji_mnist}
OWN = [("fashion-mnist", folder) for folder in ("fashion-mnist", "fashion", "FashionMNIST/raw")]


@pytest.mark.parametrize(
    ("name", "place"),
    [("fashion-mnist", ""), ("kmnist", ""), *OWN, ("kmnist", "kmnist"), ("kmnist", "KMNIST/raw")],
)
@pytest.mark.parametrize("how", ["data", "variable"])
def test_what_has_mnists_form_is_not_taken_for_mnist(tmp_path, monkeypatch, name, place, how):
    write(tmp_path / place, files())
    get = OF_MNISTS_FORM[name]
    if how == "variable":
        monkeypatch.setenv("MNPAR_DATA", str(tmp_path))
        if not place:  # MNIST's files lie there under the same names
            with pytest.raises(FileNotFoundError, match=name):
                get()
            return
    train, test = get(data=tmp_path if how == "data" else None)
    assert (len(train), len(test)) == (12, 5)
    np.testing.assert_allclose(train[3][0], raw_images()[3].ravel() / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "labels"),
    [("fashion-mnist", get_fashion_mnist_labels), ("kmnist", get_kuzushiji_mnist_labels)],
)
def test_they_have_ten_names_and_say_where_they_are_missed(name, labels):
    assert len(set(labels())) == 10
    with pytest.raises(ConnectionError, match=name):
        OF_MNISTS_FORM[name]()


def test_the_known_files_have_a_digest_each():
    for file in (
        *mnist.FASHION_MNIST.files.values(),
        *mnist.KUZUSHIJI_MNIST.files.values(),
        cifar.CIFAR10.archive,
        cifar.CIFAR100.archive,
    ):
        assert len(bytes.fromhex(file.sha256)) == 32


EVIL = {
    "names that lead outside": lambda name: [(f"../{name}", None), (f"/tmp/{name}", None)],
    "a link to a file outside": lambda name: [(f"{cifar.CIFAR10.folder}/{name}", "/etc/hostname")],
    "a link to itself": lambda name: [
        (f"{cifar.CIFAR10.folder}/{name}", f"{cifar.CIFAR10.folder}/{name}")
    ],
}


@pytest.mark.parametrize("members", EVIL.values(), ids=EVIL)
def test_an_archive_is_never_unpacked_to_the_disk(tmp_path, members):
    folder = tmp_path / "inner" / "data"
    folder.mkdir(parents=True)
    with tarfile.open(folder / cifar.CIFAR10.archive.name, "w:gz") as tar:
        for name, link in [member for file in cifar.CIFAR10.train for member in members(file)]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, content = (
                (tarfile.REGTYPE, "", bytes(3073)) if link is None else (tarfile.SYMTYPE, link, b"")
            )
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(
        DatasetError, match=r"cifar-10-binary\.tar\.gz: expected a file .*data_batch_1\.bin in it"
    ):
        get_cifar10(data=folder)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [
        cifar.CIFAR10.archive.name
    ]
