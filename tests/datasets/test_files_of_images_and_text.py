"""Data sets that read files when an example is asked for, and text and photographs that are read at
once.
"""

import pickle
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mnpar
from mnpar.datasets import (
    ImageDataset,
    LabeledImageDataset,
    LabeledZippedImageDataset,
    MultiZippedImageDataset,
    TextDataset,
    ZippedImageDataset,
    get_photograph_patches,
    get_ptb_words,
    get_ptb_words_vocabulary,
    get_words,
    photographs,
)
from mnpar.errors import DatasetError

PIXELS = {
    "grey.png": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "rgb.png": np.arange(18, dtype=np.uint8).reshape(2, 3, 3),
    "rgba.png": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
}


@pytest.fixture
def folder(tmp_path):
    for name, pixels in PIXELS.items():
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "list").write_text("grey.png\n\n  rgb.png \n")
    (tmp_path / "pairs").write_text("grey.png 3\nrgb.png\t-1\n\n")
    (tmp_path / "broken.png").write_bytes((tmp_path / "rgb.png").read_bytes()[:45])
    (tmp_path / "text.png").write_text("no image")
    return tmp_path


@pytest.mark.parametrize("dtype", [None, np.uint8, np.float64])
def test_images_are_channels_height_width(folder, dtype):
    images = ImageDataset(list(PIXELS), root=folder, dtype=dtype)
    assert len(images) == 3
    for image, pixels in zip(images, PIXELS.values(), strict=True):
        assert np.array_equal(image, np.moveaxis(pixels.reshape(2, 3, -1), -1, 0))
        assert image.dtype == (dtype or np.float32)
        assert image.flags.writeable


def test_the_dtype_is_the_configurations_when_the_data_set_is_made(folder):
    with mnpar.using_config("dtype", np.dtype(np.float16)):
        images = ImageDataset(["grey.png"], str(folder))
    assert images[0].dtype == np.float16
    assert pickle.loads(pickle.dumps(images))[0].dtype == np.float16


def test_lists_of_images_and_labels_are_read_from_text_files(folder):
    assert [image.shape for image in ImageDataset(str(folder / "list"), folder)] == [
        (1, 2, 3),
        (3, 2, 3),
    ]
    pairs = LabeledImageDataset(folder / "pairs", folder)
    assert [(image.shape, int(label), label.dtype) for image, label in pairs] == [
        ((1, 2, 3), 3, np.int32),
        ((3, 2, 3), -1, np.int32),
    ]
    (_, label) = LabeledImageDataset([("grey.png", 2)], folder, label_dtype=np.int64)[0]
    assert (label.shape, label.dtype) == ((), np.int64)


def test_files_that_are_no_images_are_named(folder):
    images = ImageDataset(["broken.png", "text.png", "nothing.png"], folder)
    for i, name in enumerate(["broken.png", "text.png"]):
        with pytest.raises(DatasetError, match=name):
            images[i]
    with pytest.raises(FileNotFoundError, match=r"nothing\.png"):
        images[2]
    for text in ("a b 1", "a", "a one"):
        (folder / "pairs").write_text(f"\ngrey.png 1\n{text}\n")
        with pytest.raises(ValueError, match=f"pairs: line 3 .*found '{text}'"):
            LabeledImageDataset(folder / "pairs")


def test_without_pillow_a_data_set_of_images_says_what_to_install(monkeypatch):
    monkeypatch.setattr("mnpar.datasets.image_dataset.find_spec", lambda name: None)
    for make in (ImageDataset, LabeledImageDataset, ZippedImageDataset):
        with pytest.raises(ModuleNotFoundError, match="pip install pillow"):
            make([])
    with pytest.raises(ModuleNotFoundError, match="pip install pillow"):
        get_photograph_patches()


def test_images_are_read_from_archives(folder):
    for name, members in {
        "a.zip": ["grey.png", "rgb.png"],
        "b.zip": [],
        "c.zip": ["rgba.png", "broken.png"],
    }.items():
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.mkdir("folder") if name == "a.zip" else None
            for member in members:
                archive.write(folder / member, member)
    plain = ImageDataset(list(PIXELS), folder)
    whole = MultiZippedImageDataset([folder / name for name in ("a.zip", "b.zip", "c.zip")])
    assert len(whole) == 4
    for images in (whole, pickle.loads(pickle.dumps(whole))):
        for image, expected in zip(images[:3], plain, strict=True):
            assert np.array_equal(image, expected)
            assert image.dtype == np.float32
    with pytest.raises(DatasetError, match=r"c\.zip: broken\.png"):
        whole[3]
    pairs = LabeledZippedImageDataset(folder / "a.zip", folder / "pairs")
    assert [(image.shape, int(label)) for image, label in pairs] == [
        ((1, 2, 3), 3),
        ((3, 2, 3), -1),
    ]
    with pytest.raises(DatasetError, match=r"b\.zip: expected an image grey\.png"):
        LabeledZippedImageDataset(folder / "b.zip", folder / "pairs")[0]
    with pytest.raises(DatasetError, match=r"text\.png: expected a zip archive"):
        ZippedImageDataset(folder / "text.png")


# ---- lines ----


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "en").write_bytes(b"one\ntwo\r\n\nfour")
    (tmp_path / "de").write_bytes("eins\nzwei\nfünf\nvier\n".encode("latin-1"))
    (tmp_path / "short").write_text("1\n")
    (tmp_path / "empty").write_text("")
    return tmp_path


def test_lines_are_examples_with_their_ends(texts):
    lines = TextDataset(texts / "en")
    assert lines[:] == ["one\n", "two\n", "\n", "four"]
    assert lines[-1] == "four"
    assert TextDataset(str(texts / "en"), newline="")[1] == "two\r\n"
    assert len(TextDataset(texts / "empty")) == 0


def test_lines_of_several_files_are_tuples_and_may_be_filtered(texts):
    paths = [str(texts / "en"), str(texts / "de")]
    pairs = TextDataset(
        paths,
        encoding=["utf-8", "latin-1"],
        filter_func=lambda en, de: en.strip() and de != "zwei\n",
    )
    assert pairs[:] == [("one\n", "eins\n"), ("four", "vier\n")]
    again = pickle.loads(pickle.dumps(pairs))
    assert again[:] == pairs[:]


def test_a_text_that_is_closed_opens_its_files_anew(texts):
    lines = TextDataset(texts / "en")
    first, files = lines[0], lines._files
    lines.close()
    assert all(file.closed for file in files)
    assert lines[0] == first


def test_texts_that_do_not_fit_are_refused(texts):
    with pytest.raises(ValueError, match="at least one file"):
        TextDataset([])
    with pytest.raises(ValueError, match="en has more"):
        TextDataset([texts / "en", texts / "short"])
    with pytest.raises(ValueError, match=r"1 files; .* \[1, 1, 2\]"):
        TextDataset(texts / "en", newline=["", ""])
    with pytest.raises(FileNotFoundError):
        TextDataset(texts / "nothing")


# ---- words ----


def test_words_are_numbered_as_the_training_text_has_them(tmp_path, monkeypatch):
    for place in (tmp_path / "a", tmp_path / "b" / "ptb"):
        place.mkdir(parents=True)
        (place / "ptb.train.txt").write_text(" no it <unk> \n\n it was\n")
        (place / "ptb.valid.txt").write_text("was it\n")
        (place / "ptb.test.txt").write_text("it never was")
    monkeypatch.delenv("MNPAR_DATA", raising=False)
    expected = [[0, 1, 2, 3, 3, 1, 4, 3], [4, 1, 3], [1, 2, 4, 3]]
    found = get_ptb_words(data=tmp_path / "a")
    assert [part.tolist() for part in found] == expected
    assert {part.dtype for part in found} == {np.dtype(np.int32)}
    monkeypatch.setenv("MNPAR_DATA", str(tmp_path / "b"))
    assert [part.tolist() for part in get_ptb_words()] == expected
    assert get_ptb_words_vocabulary() == {"no": 0, "it": 1, "<unk>": 2, "<eos>": 3, "was": 4}


def test_texts_without_words_for_it_are_refused(tmp_path, monkeypatch):
    (tmp_path / "train").write_text("one two\n")
    (tmp_path / "test").write_text("two\none three\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    with pytest.raises(DatasetError, match=r"test: on line 2: .* no word 'three' \(1 of 5"):
        get_words(tmp_path / "train", tmp_path / "test")
    with pytest.raises(DatasetError, match="empty file"):
        get_words(tmp_path / "empty")
    with pytest.raises(DatasetError, match="at byte 2"):
        get_words(tmp_path / "bytes")
    monkeypatch.delenv("MNPAR_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="MNPAR_DATA"):
        get_ptb_words()


# ---- photographs ----


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A scikit-image with two photographs, of other sizes, whose pixels are all different."""
    (tmp_path / "data").mkdir()
    for name, shape in {"astronaut.png": (8, 10), "coffee.png": (5, 20)}.items():
        pixels = np.stack([*np.mgrid[: shape[0], : shape[1]], np.full(shape, shape[0])], -1).astype(
            np.uint8
        )
        Image.fromarray(pixels).save(tmp_path / "data" / name)
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(photographs, "find_spec", lambda name: spec)
    return tmp_path


def test_patches_are_where_they_should_be(library):
    train, test = get_photograph_patches(size=2, scale=255, dtype=np.float64, source="skimage")
    assert (len(train), len(test)) == (4 * 4 + 2 * 8, 4 * 1 + 2 * 2)
    patch, label = train[5]  # the second row's second
    assert label == 0
    assert np.allclose(patch, [[[2, 2], [3, 3]], [[2, 3], [2, 3]], [[8, 8], [8, 8]]])
    assert np.allclose(test[4][0][1], [[16, 17], [16, 17]])
    assert test[4][1] == 1


def test_no_pixel_is_in_both_sets_even_if_patches_overlap(library):
    train, test = get_photograph_patches(False, size=2, stride=1, scale=255, source="skimage")
    assert (len(train), len(test)) == (7 * 7 + 4 * 15, 7 * 1 + 4 * 3)

    def places(patches):
        return {
            tuple(pixel)
            for pixel in np.moveaxis(patches, 1, -1).reshape(-1, 3).round().astype(int).tolist()
        }

    assert not places(train) & places(test)
    assert len(places(train) | places(test)) == 8 * 10 + 5 * 20


def test_what_cannot_be_cut_is_refused(library, monkeypatch):
    for arguments in ({"size": 0}, {"stride": 0}, {"size": 9}, {"source": "web"}):
        with pytest.raises(ValueError, match=r"size|source"):
            get_photograph_patches(**{"source": "skimage"} | arguments)
    for path in Path(library, "data").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match="scikit-image has none"):
        get_photograph_patches(source="skimage")
    monkeypatch.setattr(photographs, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-image"):
        get_photograph_patches(source="skimage")
