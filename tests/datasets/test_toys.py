"""Images that are drawn: the same for a seed, in the range, learnable, and what cannot be drawn."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.datasets import get_synthetic_images, get_toy_images, get_toy_segmentation


@pytest.mark.parametrize("get", [get_toy_images, get_synthetic_images, get_toy_segmentation])
def test_a_seed_gives_the_same_images(get):
    (a, t), (b, _) = get(6, 2, seed=1)[0].datasets, get(6, 2, seed=1)[0].datasets
    np.testing.assert_array_equal(a, b)
    assert (a != get(6, 2, seed=2)[0].datasets[0]).any()
    assert a.dtype == np.float32
    assert t.dtype == np.int32


def test_pixels_of_figures_are_bright_and_labelled():
    images, labels = get_toy_segmentation(40, 0, size=32)[0].datasets
    assert images.shape == (40, 1, 32, 32)
    assert labels.shape == (40, 32, 32)
    assert sorted(set(labels.ravel().tolist())) == [0, 1, 2]
    bright = images[:, 0]
    assert abs(bright[labels == 0].mean()) < 0.02
    assert abs(bright[labels > 0].mean() - 1) < 0.02


def test_an_ellipse_is_longer_than_a_circle_of_the_same_area():
    images, labels = get_toy_images(200, 0, size=48, channels=1)[0].datasets
    assert images.min() >= 0
    assert images.max() <= 1
    inside = (
        images[:, 0] > 0.5 * (images.max((1, 2, 3)) + images.min((1, 2, 3)))[:, None, None]
    ).astype(float)
    area = inside.sum((1, 2))
    y, x = np.mgrid[:48, :48]
    middle = [(inside * c).sum((1, 2)) / area for c in (y, x)]
    dy = y - middle[0][:, None, None]
    dx = x - middle[1][:, None, None]
    moments = np.array(
        [[(inside * a * b).sum((1, 2)) / area for a in (dy, dx)] for b in (dy, dx)]
    ).transpose(2, 0, 1)
    low, high = np.linalg.eigvalsh(moments).T
    ratio = np.sqrt(high / low)
    assert ratio[labels == 0].max() < 1.3 < ratio[labels == 1].min()
    assert abs(area[labels == 0].mean() / area[labels == 1].mean() - 1) < 0.15


def test_a_linear_layer_learns_the_synthetic_classes():
    mnpar.random.seed(0)
    train, test = get_synthetic_images(300, 100, shape=(1, 12, 12), n_classes=4)
    model = L.Classifier(L.Linear(144, 4))
    optimizer = mnpar.optimizers.Adam(alpha=0.01).setup(model)
    for _ in range(60):
        optimizer.update(model, *train.datasets)
    assert F.accuracy(model.predictor(test.datasets[0]), test.datasets[1]).item() > 0.9


@pytest.mark.parametrize("shape", [(1, 5), (2, 4, 5, 3), (3, 8, 9)])
def test_synthetic_images_have_any_shape(shape):
    train, test = get_synthetic_images(3, 1, shape=shape, n_classes=2)
    assert [image.shape for image, _ in train] == [shape] * 3
    assert [int(label) for _, label in train] == [0, 1, 0]
    assert len(test) == 1


BAD = {
    "too small": (lambda: get_toy_images(size=7), "size is at least 8, not 7"),
    "a negative number": (lambda: get_toy_images(-1), "n_train is at least 0, not -1"),
    "no spatial axes": (lambda: get_synthetic_images(shape=(3,)), "one or more spatial axes"),
    "no classes": (lambda: get_synthetic_images(n_classes=0), "n_classes is at least 1, not 0"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_drawn_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
