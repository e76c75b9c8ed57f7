"""Convolutional layers: their parameters, their sizes, and what they compute with them."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import gradient_check
from mnpar.initializers import Normal

RNG = np.random.default_rng(0)
W = Normal(1.0, "d")
B = Normal(1.0, "d")

# the layer; the shape of x; the shapes of W and b; the function that it is
LAYERS = {
    "1D": (
        lambda c: L.Convolution1D(c, 4, 3, 2, 1, initialW=W, initial_bias=B),
        (2, 3, 7),
        (4, 3, 3),
        (4,),
        lambda x, W, b: F.convolution_1d(x, W, b, 2, 1),
    ),
    "2D": (
        lambda c: L.Convolution2D(c, 4, (3, 2), initialW=W, initial_bias=B, dilate=2, groups=2),
        (2, 2, 6, 5),
        (4, 1, 3, 2),
        (4,),
        lambda x, W, b: F.convolution_2d(x, W, b, dilate=2, groups=2),
    ),
    "3D": (
        lambda c: L.Convolution3D(c, 2, 2, initialW=W, initial_bias=B, cover_all=True, stride=2),
        (1, 2, 3, 3, 3),
        (2, 2, 2, 2, 2),
        (2,),
        lambda x, W, b: F.convolution_3d(x, W, b, 2, cover_all=True),
    ),
    "ND": (
        lambda c: L.ConvolutionND(1, c, 2, 2, initialW=W, initial_bias=B),
        (1, 2, 3),
        (2, 2, 2),
        (2,),
        F.convolution_nd,
    ),
    "dilated": (
        lambda c: L.DilatedConvolution2D(c, 2, 2, 1, 1, 2, initialW=W, initial_bias=B),
        (1, 2, 4, 4),
        (2, 2, 2, 2),
        (2,),
        lambda x, W, b: F.dilated_convolution_2d(x, W, b, 1, 1, 2),
    ),
    "transposed 1D": (
        lambda c: L.Deconvolution1D(c, 4, 3, 2, initialW=W, initial_bias=B),
        (2, 3, 5),
        (3, 4, 3),
        (4,),
        lambda x, W, b: F.deconvolution_1d(x, W, b, 2),
    ),
    "transposed 2D": (
        lambda c: L.Deconvolution2D(
            c, 4, 3, 2, 1, outsize=(8, 7), initialW=W, initial_bias=B, groups=2
        ),
        (2, 2, 4, 4),
        (2, 2, 3, 3),
        (4,),
        lambda x, W, b: F.deconvolution_2d(x, W, b, 2, 1, (8, 7), groups=2),
    ),
    "transposed 3D": (
        lambda c: L.Deconvolution3D(c, 1, 2, initialW=W, initial_bias=B),
        (1, 2, 2, 1, 2),
        (2, 1, 2, 2, 2),
        (1,),
        F.deconvolution_3d,
    ),
    "transposed ND": (
        lambda c: L.DeconvolutionND(1, c, 1, 2, initialW=W, initial_bias=B),
        (1, 2, 2),
        (2, 1, 2),
        (1,),
        F.deconvolution_nd,
    ),
    "depthwise": (
        lambda c: L.DepthwiseConvolution2D(c, 3, 2, 2, 1, initialW=W, initial_bias=B),
        (2, 2, 4, 3),
        (3, 2, 2, 2),
        (6,),
        lambda x, W, b: F.depthwise_convolution_2d(x, W, b, 2, 1),
    ),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


@every_layer
@pytest.mark.parametrize("lazy", [False, True], ids=["with channels", "without"])
def test_it_is_the_function_of_its_parameters(name, lazy):
    make, shape, w, b, function = LAYERS[name]
    layer = make(None if lazy else shape[1])
    x = RNG.standard_normal(shape)
    assert layer.W.is_initialized is not lazy
    y = layer(x)
    assert (layer.W.shape, layer.b.shape) == (w, b)
    np.testing.assert_array_equal(y.array, function(x, layer.W.array, layer.b.array).array)
    assert [path for path, _ in layer.namedparams()] == ["/W", "/b"]


@every_layer
def test_its_gradients_are_those_of_the_differences(name):
    make, shape, *_ = LAYERS[name]
    layer = make(shape[1])
    x = RNG.standard_normal(shape)
    gradient_check.check_backward(layer, x, RNG.standard_normal(layer(x).shape), [layer.W, layer.b])


@pytest.mark.parametrize(
    "link",
    [
        L.Convolution1D,
        L.Convolution2D,
        L.Convolution3D,
        L.Deconvolution1D,
        L.Deconvolution2D,
        L.Deconvolution3D,
    ],
)
def test_channels_may_be_left_out(link):
    layer = link(4, 3, nobias=True)
    assert (layer.out_channels, layer.ksize, layer.in_channels, layer.b) == (
        4,
        (3,) * layer.ndim,
        None,
        None,
    )
    layer(np.ones((1, 2, *[5] * layer.ndim), "f4"))
    assert layer.in_channels == 2
    assert layer.W.dtype == np.float32


def test_small_networks_and_branches_are_made_of_convolutions():
    mlp = L.MLPConvolution2D(2, (4, 3), 3, activation=F.sigmoid, conv_init=W)
    x = RNG.standard_normal((2, 2, 5, 4))
    first, last = mlp
    np.testing.assert_array_equal(mlp(x).array, last(F.sigmoid(first(x))).array)
    inception = L.Inception(None, 1, 2, 3, 2, 1, 2, conv_init=W)
    y = inception(x).array
    np.testing.assert_array_equal(y[:, :1], np.maximum(inception.conv1(x).array, 0))
    np.testing.assert_array_equal(
        y[:, 1:4], F.relu(inception.conv3(F.relu(inception.proj3(x)))).array
    )
    np.testing.assert_array_equal(
        y[:, 5:], F.relu(inception.projp(F.max_pooling_2d(x, 3, 1, 1))).array
    )


BAD = {
    "no filters": (lambda: L.Convolution2D(3, 0, 3), "channels and ksize must be 1 or more"),
    "no ksize": (lambda: L.Convolution2D(3, None), "channels and ksize must be 1 or more"),
    "groups": (
        lambda: L.Convolution2D(3, 4, 3, groups=2),
        "3 and 4 channels cannot be divided into 2 groups",
    ),
    "groups of what comes": (
        lambda: L.Convolution2D(None, 4, 3, groups=2)(np.ones((1, 3, 4, 4))),
        "3 channels cannot be",
    ),
    "three sizes": (lambda: L.Convolution2D(3, 4, (1, 2, 3)), "2 numbers from 1 on"),
    "axes": (
        lambda: L.Convolution2D(None, 4, 3)(np.ones((1, 3, 4))),
        r"x of shape \(1, 3, 4\) must have 4 axes.*x\[:, None\]",
    ),
    "no channels": (
        lambda: L.Convolution2D(1, 4, 3)(np.ones((5, 4, 4), "f4")),
        r"x\[:, None\] adds the axis of one channel",
    ),
    "flat images": (
        lambda: L.Convolution2D(1, 4, 3)(np.ones((5, 784), "f4")),
        r"x\.reshape\(\(N, C, …\)\) takes rows apart",
    ),
    "channels last": (
        lambda: L.Convolution2D(3, 4, 3)(np.ones((5, 4, 4, 3), "f4")),
        r"F\.moveaxis\(x, -1, 1\)",
    ),
    "pooled": (
        lambda: F.max_pooling_2d(np.ones((5, 4, 4)), 2),
        r"x\[:, None\] adds the axis of one channel",
    ),
    "other channels": (
        lambda: L.Convolution2D(2, 4, 3)(np.ones((1, 3, 4, 4), "f4")),
        "has 3 channels, but W",
    ),
    "too large": (
        lambda: L.Convolution2D(3, 4, 5)(np.ones((1, 3, 4, 4), "f4")),
        "do not fit in an image of",
    ),
    "outsize": (
        lambda: L.Deconvolution1D(1, 1, 3, outsize=9)(np.ones((1, 1, 2), "f4")),
        "has .* windows, not x's",
    ),
    "padding only": (
        lambda: F.max_pooling_2d(np.ones((1, 1, 3, 3)), 2, pad=2),
        "sees padding only",
    ),
    "pad_value": (
        lambda: F.average_pooling_nd(np.ones((1, 1, 3)), 2, pad_value=1),
        "pad_value is 0, or None",
    ),
    "no image": (lambda: F.resize_images(np.ones((1, 1, 0, 3)), (2, 2)), "none of them 0"),
    "mode": (
        lambda: F.resize_images(np.ones((1, 1, 2, 3)), (2, 2), "cubic"),
        "bilinear and nearest",
    ),
    "indexes": (
        lambda: F.upsampling_2d(np.ones((1, 1, 2, 2)), np.zeros((1, 1, 1, 1), "i4"), 2),
        "must have the shape of x",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_belong_together_is_told(name):
    call, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        call()


# name: a function of images (n, 2, 8, 7) and a kernel, which poolings leave alone, and the shape of
# the kernel
BY_SAMPLES = {
    "convolution": (F.convolution_2d, (3, 2, 3, 3)),
    "convolution in strides": (
        lambda x, W: F.convolution_2d(
            x, W, stride=(2, 1), pad=(0, 2), cover_all=True, dilate=(1, 2)
        ),
        (3, 2, 3, 2),
    ),
    "convolution in groups": (
        lambda x, W: F.convolution_2d(x, W, stride=2, pad=1, groups=2),
        (4, 1, 2, 3),
    ),
    "depthwise convolution": (
        lambda x, W: F.depthwise_convolution_2d(x, W, stride=(1, 2), pad=1),
        (3, 2, 3, 2),
    ),
    "deconvolution": (lambda x, W: F.deconvolution_2d(x, W, stride=(2, 1), pad=1), (2, 3, 3, 2)),
    "deconvolution in groups": (
        lambda x, W: F.deconvolution_2d(x, W, dilate=2, groups=2),
        (2, 2, 2, 3),
    ),
    "maxima": (lambda x, W: F.max_pooling_2d(x, 3, 2, 1), ()),
    "maxima of (3, 2)": (lambda x, W: F.max_pooling_2d(x, (3, 2), (1, 2), cover_all=False), ()),
    "means": (lambda x, W: F.average_pooling_2d(x, (2, 3), 2, 1), ()),
    "spread": (lambda x, W: F.unpooling_2d(x, (3, 2), (2, 1), 1), ()),
}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 33])
@pytest.mark.parametrize(("f", "kernel"), BY_SAMPLES.values(), ids=BY_SAMPLES)
def test_samples_do_not_see_each_other_however_they_are_blocked(f, kernel, n, monkeypatch):
    monkeypatch.setattr("mnpar.backend.block_bytes", lambda x: 4 * 2 * 9 * 25 * 8)  # four samples
    rng = np.random.default_rng(n)
    x = mnpar.Variable(rng.standard_normal((n, 2, 8, 7)))
    W = mnpar.Variable(rng.standard_normal(kernel))
    y = f(x, W)
    y.grad = rng.standard_normal(y.shape)
    y.backward()
    total = 0
    for i in range(n):
        one = mnpar.Variable(x.array[i : i + 1])
        alone = mnpar.Variable(W.array)
        part = f(one, alone)
        part.grad = y.grad[i : i + 1]
        part.backward()
        np.testing.assert_allclose(y.array[i], part.array[0], rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(x.grad[i], one.grad[0], rtol=1e-13, atol=1e-13)
        if kernel:
            total = total + alone.grad
    if kernel:
        np.testing.assert_allclose(W.grad, total, rtol=1e-12, atol=1e-12)


def test_equal_maxima_give_their_gradient_to_the_first_and_the_places_are_told():
    x = mnpar.Variable(np.zeros((1, 1, 4, 4)))
    y, places = F.max_pooling_2d(x, 2, return_indices=True)
    F.sum(y).backward()
    assert x.grad[0, 0].tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    assert places.dtype == np.int32
    assert not places.any()
