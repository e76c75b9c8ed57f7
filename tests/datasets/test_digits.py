"""The digits that scikit-learn carries."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import mnpar
from mnpar.datasets import digits, get_digits
from mnpar.errors import DatasetError


def test_they_are_scikit_learns():
    from sklearn.datasets import load_digits

    truth = load_digits()
    (train, train_labels), (test, test_labels) = (
        zip(*part[:], strict=True) for part in get_digits(scale=16, dtype=np.float64)
    )
    x = np.concatenate([train, test])
    t = np.concatenate([train_labels, test_labels])
    order = np.lexsort([*x.T, t])
    true_order = np.lexsort([*truth.data.T, truth.target])
    np.testing.assert_array_equal(x[order], truth.data[true_order])
    np.testing.assert_array_equal(t[order], truth.target[true_order])


def test_a_fifth_of_each_digit_is_held_out_and_no_image_is_on_both_sides():
    train, test = get_digits()
    assert (len(train), len(test)) == (1442, 355)
    for digit in range(10):
        held = sum(label == digit for _, label in test[:])
        whole = held + sum(label == digit for _, label in train[:])
        assert abs(held - whole / 5) < 1
    seen = {image.tobytes() for image, _ in train[:]}
    assert not any(image.tobytes() in seen for image, _ in test[:])


def test_the_split_is_the_same_every_time():
    for one, other in zip(get_digits(withlabel=False), get_digits(withlabel=False), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("ndim", "shape"), [(1, (64,)), (2, (8, 8)), (3, (1, 8, 8))])
def test_images_have_the_shape_that_was_asked_for(ndim, shape):
    for part in get_digits(withlabel=False, ndim=ndim):
        assert part.shape[1:] == shape


def test_pixels_are_scaled_and_dtypes_are_those_asked_for():
    image, label = get_digits()[0][0]
    assert image.dtype == np.float32
    assert label.dtype == np.int32
    images = get_digits(withlabel=False, scale=2.0, dtype=np.float64)[0]
    assert (images.dtype, images.min(), images.max()) == (np.float64, 0, 2)
    images = get_digits(withlabel=False, scale=16, dtype=np.uint8)[0]
    assert (images.dtype, images.max()) == (np.uint8, 16)
    assert get_digits(label_dtype=np.int64)[1][0][1].dtype == np.int64


def test_the_default_dtype_is_the_configurations():
    with mnpar.using_config("dtype", np.dtype(np.float64)):
        assert get_digits(withlabel=False)[0].dtype == np.float64


def test_an_impossible_ndim_is_refused():
    with pytest.raises(ValueError, match="ndim = 4"):
        get_digits(ndim=4)


def test_scikit_learn_is_not_imported():
    program = (
        "import sys; from mnpar.datasets import get_digits; get_digits(); print('sklearn' in "
        "sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_without_scikit_learn_the_error_has_the_remedy(monkeypatch):
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'mnpar\[examples\]'"):
        get_digits()


@pytest.mark.parametrize("change", ["moved", "changed"])
def test_a_file_that_moved_or_changed_is_asked_from_scikit_learn(monkeypatch, tmp_path, change):
    truth = get_digits(withlabel=False)
    assert importlib.util.find_spec("sklearn")
    if change == "changed":
        path = tmp_path / digits.FILE
        path.parent.mkdir(parents=True)
        path.write_bytes(b"not the digits")
    monkeypatch.setattr(
        digits,
        "find_spec",
        lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]),
    )
    for part, expected in zip(get_digits(withlabel=False), truth, strict=True):
        np.testing.assert_array_equal(part, expected)


def test_digits_that_are_not_the_known_ones_are_refused(monkeypatch, tmp_path):
    import sklearn.datasets

    monkeypatch.setattr(
        digits,
        "find_spec",
        lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]),
    )
    other = SimpleNamespace(data=np.zeros((10, 64)), target=np.zeros(10))
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: other)
    with pytest.raises(DatasetError, match=r"table of shape \(10, 65\).*1797 rows"):
        get_digits()
