"""Convolutions, poolings and normalizations of images whose channels come last in memory: compiled
loops against numpy's way, which is their twin, and against float64.
"""

import sys

import numpy as np
import pytest

import mnpar.functions as F
from mnpar.functions.connection.convolution import Convolution, Deconvolution, WeightGradient
from mnpar.kernels import channels_last, compiler, depthwise, direct, places, tuning, winograd_loops
from mnpar.kernels.windows import Windows
from mnpar.variable import Variable, grad

needs_numba = pytest.mark.skipif(
    not compiler.is_installed(), reason="numba is not installed: a second run in .ci/run has it"
)

# N, C, K, size, kernel, stride, pad, dilate, groups
CONVOLUTIONS = {
    "one channel": (2, 1, 20, (12, 12), (5, 5), 1, 0, 1, 1),
    "few channels, few filters": (2, 3, 5, (9, 7), (3, 3), 1, 1, 1, 1),
    "many channels": (2, 20, 17, (12, 13), (3, 3), 1, 0, 1, 1),
    "tiles of Winograd's method that end with the image": (2, 16, 32, (8, 8), (3, 3), 1, 1, 1, 1),
    "more padding than kernel": (1, 33, 50, (4, 4), (3, 3), 1, 4, 1, 1),
    "an image as small as the kernel": (3, 16, 16, (3, 3), (3, 3), 1, 0, 1, 1),
    "a stride": (2, 18, 33, (11, 12), (3, 3), 2, 1, 1, 1),
    "a stride larger than the kernel": (2, 18, 33, (11, 12), (2, 1), (3, 2), 0, 1, 1),
    "a kernel and stride that differ along the axes": (
        2,
        33,
        20,
        (11, 12),
        (5, 3),
        (1, 3),
        2,
        1,
        1,
    ),
    "dilated": (2, 3, 17, (11, 13), (3, 3), 2, 2, 2, 1),
    "1 x 1": (2, 18, 19, (5, 6), (1, 1), 1, 0, 1, 1),
    "1 x 1 with a stride": (2, 18, 19, (5, 6), (1, 1), 2, 0, 1, 1),
    "to few channels": (2, 17, 2, (9, 9), (3, 3), 1, 1, 1, 1),
    "more pixels than are added up in a register": (1, 4, 16, (40, 30), (3, 3), 1, 1, 1, 1),
    "nothing but padding": (2, 16, 16, (1, 1), (1, 1), 3, 1, 1, 1),
    "nothing but padding, depthwise": (2, 16, 16, (1, 1), (1, 1), 3, 1, 1, 16),
    "depthwise": (2, 20, 20, (9, 8), (3, 3), 1, 1, 1, 20),
    "depthwise with a stride": (2, 35, 35, (9, 8), (3, 5), 2, 1, 1, 35),
    "depthwise, dilated": (1, 16, 16, (9, 9), (3, 3), 3, 2, 2, 16),
    "groups": (3, 12, 12, (9, 8), (3, 3), 1, 1, 1, 3),
    "groups of one channel and of many filters": (2, 3, 51, (7, 6), (3, 3), 1, 0, 1, 3),
    "groups of many channels and of one filter": (2, 51, 3, (7, 6), (3, 3), 1, 1, 1, 3),
    "groups with a stride": (2, 40, 30, (11, 12), (3, 2), (2, 3), 1, 1, 10),
    "groups with a stride larger than the kernel": (2, 6, 10, (11, 12), (2, 1), (3, 2), 0, 1, 2),
    "groups, dilated": (2, 12, 20, (11, 13), (3, 3), 2, 2, 2, 4),
    "groups with more padding than kernel": (1, 6, 4, (4, 4), (3, 3), 1, 4, 1, 2),
    "groups, 1 x 1": (2, 15, 9, (5, 6), (1, 1), 1, 0, 1, 3),
    "groups whose windows leave out the end": (2, 6, 6, (8, 9), (2, 2), 5, 0, 1, 3),
    "nothing but padding, groups": (2, 4, 4, (1, 1), (1, 1), 3, 1, 1, 2),
    "large groups": (2, 36, 40, (7, 8), (3, 3), 1, 1, 1, 2),
    "large groups, 1 x 1": (2, 57, 54, (5, 6), (1, 1), 1, 0, 1, 3),
    "large groups with a stride": (2, 68, 36, (9, 8), (3, 2), 2, 1, 2, 2),
    "sequences in groups": (3, 6, 8, (20,), (3,), 2, 1, 1, 2),
    "sequences": (3, 7, 18, (20,), (3,), 1, 1, 1, 1),
    "sequences, dilated, with a stride": (3, 16, 9, (21,), (3,), 2, 4, 3, 1),
    "sequences, depthwise": (2, 18, 18, (20,), (5,), 1, 2, 1, 18),
    "filters that fill one register": (2, 5, 16, (9, 8), (3, 3), 1, 1, 1, 1),
    "filters that fill three registers": (1, 7, 48, (6, 8), (3, 2), 2, 1, 1, 1),
    "filters that fill three registers of float64": (2, 7, 24, (5, 5), (1, 5), 1, 0, 1, 1),
    "volumes": (2, 3, 17, (5, 6, 7), (3, 3, 3), 1, 1, 1, 1),
    "volumes of many channels": (1, 33, 17, (4, 4, 5), (2, 3, 3), 1, 1, 1, 1),
    "volumes with a stride": (2, 5, 8, (7, 6, 9), (3, 2, 3), (2, 1, 3), (1, 0, 1), 1, 1),
    "volumes, dilated, with much padding": (2, 4, 9, (3, 5, 5), (2, 2, 2), 1, 3, 2, 1),
    "four axes": (1, 2, 8, (3, 4, 3, 5), (2, 2, 2, 2), 1, 1, 1, 1),
}


def example(name, dtype="d"):
    N, C, K, size, kernel, stride, pad, dilate, groups = CONVOLUTIONS[name]
    rng = np.random.default_rng(7)
    windows = Windows.over("test", size, kernel, stride, pad, dilate)
    shapes = (N, C, *size), (K, C // groups, *kernel), (N, K, *windows.out), (K,), (C,)
    return windows, groups, [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def results(windows, groups, x, W, y, b, c):
    """What the three functions make of arrays, and the two that have a bias without it."""
    convolution, transpose = Convolution(windows, groups), Deconvolution(windows, groups)
    return {
        "y": convolution.apply((x, W, b))[0].array,
        "y without b": convolution.apply((x, W))[0].array,
        "x": transpose.apply((y, W, c))[0].array,
        "x without b": transpose.apply((y, W))[0].array,
        "gW": WeightGradient(windows, groups, W.shape).apply((x, y))[0].array,
    }


@pytest.fixture(autouse=True)
def winograd_for_small_images_too(monkeypatch):
    monkeypatch.setattr(tuning, "WINOGRAD_LOOP_CALL", 0)


@pytest.fixture
def computed(monkeypatch):
    """Computes by compiled loops, whatever the size, or by the twin."""

    def compute(by_loops, function, *args):
        with monkeypatch.context() as patch, np.errstate(all="ignore"):
            patch.setattr(compiler, "least", lambda *_: 0 if by_loops else sys.maxsize)
            return function(*args)

    return compute


IMAGES = [name for name in CONVOLUTIONS if len(CONVOLUTIONS[name][3]) == 2]


def laid_out(x):
    """The same numbers with channels last in memory."""
    y = channels_last.empty_images(x.shape, x.dtype)
    y[...] = x
    return y


@needs_numba
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_what_the_twin_makes(name, computed):
    windows, groups, arrays = example(name)
    loops = computed(True, results, windows, groups, *arrays)
    twin = computed(False, results, windows, groups, *arrays)
    for what, found in loops.items():
        np.testing.assert_allclose(found, twin[what], rtol=1e-11, atol=1e-11, err_msg=what)


def images(windows, K, C):
    """The windows, samples, channels and filters of the convolutions of images that loops make."""
    if len(windows.size) == 1:
        return []
    N = 2
    while len(windows.size) > 2:
        N, C = N * windows.out[0], C * windows.K[0]
        windows = Windows(
            *[one[1:] for one in (windows.size, windows.K, windows.stride, windows.pad)],
            windows.dilate[1:],
            windows.out[1:],
        )
    turned = [(windows.reversed, N, K, C)] if windows.is_reversible else []
    return [(windows, N, C, K), *turned]


@needs_numba
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_in_float32_err_no_more_than_four_times_as_much_as_the_twin(name, computed):
    windows, groups, arrays = example(name, "f")
    truth = computed(False, results, windows, groups, *[x.astype("d") for x in arrays])
    loops = computed(True, results, windows, groups, *arrays)
    twin = computed(False, results, windows, groups, *arrays)
    # Winograd's method loses half a digit, and is taken for fewer channels than by the twin
    tiles = any([winograd_loops.is_faster(*one) for one in images(windows, *arrays[1].shape[:2])])
    for what, found in loops.items():
        assert found.dtype == np.float32
        ulp = np.finfo("f").eps * np.abs(truth[what]).max()
        allowed = 4 * max(np.abs(twin[what] - truth[what]).max(), ulp / 2, 4 * ulp * tiles)
        assert np.abs(found - truth[what]).max() <= allowed, what


@needs_numba
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_order_in_memory_changes_nothing_and_that_of_results_is_channels_last(name, computed):
    windows, groups, arrays = example(name)
    one = computed(True, results, windows, groups, *arrays)
    x, W, y, b, c = arrays
    other = computed(True, results, windows, groups, laid_out(x), W, laid_out(y), b, c)
    for what, found in other.items():
        np.testing.assert_array_equal(found, one[what])
        if what != "gW":
            assert np.moveaxis(found, 1, -1).flags.c_contiguous
            assert found.base is None  # so nobody copies it to own it
    sides = np.ascontiguousarray(x.swapaxes(-2, -1)).swapaxes(-2, -1)
    third = computed(True, results, windows, groups, sides, W, y, b, c)
    np.testing.assert_array_equal(third["y"], one["y"])


@needs_numba
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "name",
    [
        "one channel",
        "a stride",
        "1 x 1",
        "dilated",
        "depthwise",
        "groups",
        "groups with a stride",
        "large groups",
        "sequences, dilated, with a stride",
        "volumes with a stride",
    ],
)
def test_infinite_numbers_and_nan_are_where_the_twin_has_them(name, special, computed):
    windows, groups, (x, W, y, b, c) = example(name)
    x[(0, 0, *[1] * (x.ndim - 3), 2)] = special
    y[(-1, -1, *[0] * (y.ndim - 3), 1)] = special
    loops = computed(True, results, windows, groups, x, W, y, b, c)
    twin = computed(False, results, windows, groups, x, W, y, b, c)
    for what, found in loops.items():
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(found), test(twin[what]), err_msg=what)


@needs_numba
@pytest.mark.parametrize("dtype", ["e", ">f4", "i4"])
def test_other_dtypes_and_dimensions_are_left_to_the_twin(dtype, computed):
    x = np.arange(2 * 3 * 6 * 6).reshape(2, 3, 6, 6).astype(dtype)
    W = np.ones((4, 3, 3, 3), dtype)
    found = computed(True, lambda: F.convolution_2d(x, W).array)
    twin = computed(False, lambda: F.convolution_2d(x, W).array)
    assert found.dtype == twin.dtype
    np.testing.assert_array_equal(found, twin)
    volumes, filters = np.ones((1, 2, 4, 4, 4)), np.ones((3, 2, 2, 2, 2))
    y = computed(True, lambda: F.convolution_3d(volumes, filters).array)
    np.testing.assert_array_equal(y, np.full((1, 3, 3, 3, 3), 16.0))


@needs_numba
def test_no_sample_and_no_channel_give_empty_and_zero_results(computed):
    for N, C in ((0, 3), (2, 0)):
        x, W = np.ones((N, C, 5, 5)), np.ones((4, C, 3, 3))
        y = computed(True, lambda x=x, W=W: F.convolution_2d(x, W).array)
        np.testing.assert_array_equal(y, np.zeros((N, 4, 3, 3)))


def test_pixels_have_each_a_place_in_one_way_only():
    for name in IMAGES:
        windows = example(name)[0]
        outputs = [some.outputs for some in places.of_image(windows, 2)]
        pixels = np.concatenate([np.zeros(0, int), *outputs]).tolist()
        assert len(set(pixels)) == len(pixels)
        if places.sees_all(windows):
            assert len(pixels) == windows.size[0] * windows.size[1], name


POOLINGS = {  # ksize, stride, pad, cover_all
    "tiles": (2, 2, 0, True),
    "tiles that reach beyond": (3, 3, 0, True),
    "overlapping": (3, 2, 1, False),
    "at each pixel": (3, 1, 1, True),
    "with gaps": (2, 3, 0, False),
    "rows": ((1, 4), (2, 3), 0, True),
}


@needs_numba
@pytest.mark.parametrize("C", [5, 21])
@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("name", POOLINGS)
def test_max_pooling_and_its_gradient_are_exactly_the_twins(name, dtype, C, computed):
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 9, (2, C, 9, 10)).astype(dtype)  # there are equal ones
    x[0, 1, 2, 3] = np.nan
    x[1, 2, 3, 4] = -np.inf

    def both(x):
        x = Variable(x)
        y = F.max_pooling_2d(x, *POOLINGS[name])
        weights = np.arange(1.0, y.size + 1).reshape(y.shape).astype(dtype)
        return y.array, grad([y], [x], [Variable(weights)])[0].array

    for found, twin in zip(
        computed(True, both, laid_out(x)), computed(False, both, x), strict=True
    ):
        np.testing.assert_array_equal(found, twin)
        assert channels_last.is_channels_last(found)


SUMS = {
    "average_pooling_2d": lambda x, K, stride, pad, cover_all: F.average_pooling_2d(
        x, K, stride, pad
    ),
    "average_pooling_2d without padding": lambda x, K, stride, pad, cover_all: F.average_pooling_2d(
        x, K, stride, pad, pad_value=None
    ),
    "unpooling_2d": lambda x, *numbers: F.unpooling_2d(x, *numbers[:3], None, numbers[3]),
}


@needs_numba
@pytest.mark.parametrize("C", [5, 21])
@pytest.mark.parametrize("function", SUMS)
@pytest.mark.parametrize("name", POOLINGS)
def test_sum_poolings_and_their_gradients_err_no_more_than_four_times_as_much_as_the_twins(
    name, function, C, computed
):
    def both(x, order=np.array):
        x = Variable(x)
        y = SUMS[function](x, *POOLINGS[name])
        weights = np.random.default_rng(2).standard_normal(y.shape).astype(x.dtype)
        weights[0, 0, 0, 0] = np.inf
        return y.array, grad([y], [x], [Variable(order(weights))])[0].array

    x = np.random.default_rng(1).standard_normal((2, C, 9, 10))
    x[0, 1, 2, 3], x[1, 2, 3, 4] = np.nan, -np.inf
    truths = computed(False, both, x.astype("f").astype("d"))
    twins = computed(False, both, x.astype("f"))
    for order in (laid_out, np.array):
        loops = computed(True, both, order(x.astype("f")), order)
        doubles = computed(True, both, order(x.astype("f").astype("d")), order)
        for found, double, twin, truth in zip(loops, doubles, twins, truths, strict=True):
            assert found.dtype == np.float32
            assert channels_last.is_channels_last(found) or order is np.array
            np.testing.assert_allclose(double, truth, rtol=1e-13, atol=1e-13)
            finite = np.isfinite(truth)
            np.testing.assert_array_equal(found[~finite], twin[~finite])
            errors = [np.abs(z[finite] - truth[finite]).max() for z in (found, twin)]
            ulp = np.finfo("f").eps * np.abs(truth[finite]).max()
            assert errors[0] <= 4 * max(errors[1], ulp / 2)


@needs_numba
def test_the_gradient_of_means_of_whole_images_has_channels_last_as_they_have(computed):
    def gradient():
        x = Variable(laid_out(np.ones((2, 16, 3, 4), "f")))
        y = F.average_pooling_2d(x, (3, 4))
        return grad([y], [x], [Variable(np.ones(y.shape, "f"))])[0].array

    found = computed(True, gradient)
    assert channels_last.is_channels_last(found)
    np.testing.assert_allclose(found, np.full(found.shape, 1 / 12), rtol=1e-6)


@pytest.mark.parametrize("order", ["loops, channels last", "loops, channels first", "twin"])
@pytest.mark.parametrize(("ksize", "stride", "pad"), [(3, 2, 1), (2, 2, 1), (3, 3, 2)])
def test_a_padded_window_of_minus_infinity_gives_its_gradient_to_its_first_cell(
    order, ksize, stride, pad, computed
):
    if order != "twin" and not compiler.is_installed():
        pytest.skip("numba is not installed")
    x = np.full((1, 16, 4, 5), -np.inf, "f")
    given = laid_out(x) if order == "loops, channels last" else x

    def both(given):
        v = Variable(given)
        y, places = F.max_pooling_2d(v, ksize, stride, pad, False, return_indices=True)
        weights = np.arange(1.0, y.size + 1).reshape(y.shape).astype("f")
        return y, places, weights, grad([y], [v], [Variable(weights)])[0].array

    y, places, weights, found = computed(order != "twin", both, given)
    expected = np.zeros_like(x)
    for i, j in np.ndindex(y.shape[2:]):
        top, left = max(i * stride - pad, 0), max(j * stride - pad, 0)
        expected[:, :, top, left] += weights[:, :, i, j]
        first = (top - i * stride + pad) * ksize + left - j * stride + pad
        assert (places[:, :, i, j] == first).all()
    np.testing.assert_array_equal(found, expected)


def test_integers_of_the_lowest_value_are_found_beside_padding():
    x = np.full((1, 1, 2, 2), -128, "i1")
    y, places = F.max_pooling_2d(x, 2, 2, 1, return_indices=True)
    assert y.array.tolist() == [[[[-128, -128], [-128, -128]]]]
    assert places.tolist() == [[[[3, 2], [1, 0]]]]


@needs_numba
@pytest.mark.parametrize("mean", [0.0, 3.0, 1e5])
@pytest.mark.parametrize(
    ("C", "groups"),
    [(3, 0), (16, 0), (37, 0), (150, 0), (3, 1), (24, 3), (37, 1), (16, 16), (72, 2)],
)
def test_normalizations_err_no_more_than_four_times_as_much_as_the_twin(C, groups, mean, computed):
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((6, C, 9, 11)) + mean).astype("f")
    gamma, beta, weights = [
        rng.standard_normal(shape).astype("f") for shape in ((C,), (C,), x.shape)
    ]

    def all_of(x, gamma, beta, weights):
        xs = [Variable(z) for z in (x, gamma, beta)]
        y = F.group_normalization(xs[0], groups, *xs[1:]) if groups else F.batch_normalization(*xs)
        return [y.array, *[g.array for g in grad([y], xs, [Variable(weights)])]]

    truth = computed(False, all_of, *[z.astype("d") for z in (x, gamma, beta, weights)])
    twin = computed(False, all_of, x, gamma, beta, weights)
    loops = computed(True, all_of, laid_out(x), gamma, beta, weights)
    assert channels_last.is_channels_last(loops[0])
    assert channels_last.is_channels_last(loops[1])
    for found, other, right in zip(loops, twin, truth, strict=True):
        ulp = np.finfo("f").eps * np.abs(right).max()
        assert np.abs(found - right).max() <= 4 * max(np.abs(other - right).max(), 2 * ulp)


@needs_numba
@pytest.mark.parametrize("order", [laid_out, np.array])
@pytest.mark.parametrize("shape", [(13, 20), (4, 3), (9, 130), (1, 2)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "edges"])
def test_resizing_errs_no_more_than_four_times_as_much_as_the_twin(mode, shape, order, computed):
    rng = np.random.default_rng(4)
    options = (mode, True) if mode != "edges" else ("bilinear", False)
    x = rng.standard_normal((2, 20, 9, 7)).astype("f")
    weights = rng.standard_normal((2, 20, *shape)).astype("f")

    def both(x, weights):
        x = Variable(order(x))
        y = F.resize_images(x, shape, *options)
        return y.array, grad([y], [x], [Variable(order(weights))])[0].array

    truths = computed(False, both, x.astype("d"), weights.astype("d"))
    twins = computed(False, both, x, weights)
    loops = computed(True, both, x, weights)
    doubles = computed(True, both, x.astype("d"), weights.astype("d"))
    for found, double, twin, truth in zip(loops, doubles, twins, truths, strict=True):
        np.testing.assert_allclose(double, truth, rtol=1e-12, atol=1e-12)
        errors = [np.abs(z - truth).max() for z in (found, twin)]
        assert errors[0] <= 4 * max(errors[1], np.finfo("f").eps * np.abs(truth).max() / 2)
        assert channels_last.is_channels_last(found) == (order is laid_out)
    x[0, 1, 2, 3], x[1, 2, 3, 4], x[0, 3, 8, 6] = np.nan, -np.inf, np.inf
    weights[0, 0, 0, 0] = np.inf
    twins = computed(False, both, x, weights)
    for found, twin in zip(computed(True, both, x, weights), twins, strict=True):
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(found), test(twin))


@needs_numba
def test_a_network_has_the_gradients_that_the_twin_has(computed):
    rng = np.random.default_rng(3)
    arrays = [
        rng.standard_normal(shape)
        for shape in [(3, 3, 16, 16), (16, 3, 3, 3), (16,), (16,), (16, 16, 3, 3), (24, 16, 1, 1)]
    ]

    def gradients(*arrays):
        xs = [Variable(z) for z in arrays]
        x, W0, gamma, beta, W1, W2 = xs
        h = F.relu(F.batch_normalization(F.convolution_2d(x, W0, pad=1), gamma, beta))
        h = F.max_pooling_2d(h + F.convolution_2d(h, W1, pad=1), 2)
        h = F.average_pooling_2d(F.convolution_2d(h, W2, stride=2), 2)
        y = F.sum(F.sigmoid(F.deconvolution_2d(h, W2)) ** 2)
        first = grad([y], xs, enable_double_backprop=True)
        second = grad([F.sum(first[0] ** 2)], [x, W0, W1, W2])
        return [g.array for g in (*first, *second)]

    loops = computed(True, gradients, *arrays)
    twin = computed(False, gradients, *arrays)
    for found, other in zip(loops, twin, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-9, atol=1e-9 * np.abs(other).max())


def test_registers_hold_all_channels_and_no_others():
    for K in (16, 17, 31, 32, 50):
        assert set(direct.registers(K).reshape(-1).tolist()) == set(range(K))
    assert depthwise.registers is direct.registers


@needs_numba
@pytest.mark.parametrize("channels", [(3, 2), (16, 1, 20), (33,), (40, 17)], ids=str)
def test_images_are_joined_and_taken_apart_along_channels(channels, monkeypatch):
    monkeypatch.setattr(compiler, "least", lambda name="": 0)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 4, 5, C), np.float32).transpose(0, 3, 1, 2) for C in channels]
    xs = [Variable(x) for x in arrays]
    y = F.concat(xs, axis=1)
    np.testing.assert_array_equal(y.array, np.concatenate(arrays, axis=1))
    assert channels_last.is_channels_last(y.array)
    gy = rng.standard_normal((2, 4, 5, sum(channels)), np.float32).transpose(0, 3, 1, 2)
    kept = gy.copy()
    y.grad = gy
    y.backward()
    ends = np.cumsum(channels)[:-1]
    for x, piece in zip(xs, np.split(kept, ends, axis=1), strict=True):
        np.testing.assert_array_equal(x.grad, piece)
        assert channels_last.is_channels_last(x.grad) or x.shape[1] == 1


@needs_numba
def test_what_loops_do_not_join_along_channels_is_left_to_numpy(monkeypatch):
    monkeypatch.setattr(compiler, "least", lambda name="": 0)
    x = channels_last.empty_images((2, 3, 4, 5), "f")
    x[:] = 1
    for other in (x.astype("d"), np.ascontiguousarray(x), x[:, :0], x[:, :2]):
        y = F.concat([Variable(x), Variable(other)], axis=1).array
        np.testing.assert_array_equal(y, np.concatenate([x, other], axis=1))
    with pytest.raises((TypeError, ValueError)):
        F.concat([x, channels_last.empty_images((2, 3, 4, 6), "f")], axis=1)
    assert channels_last.take_channels(x, 2, 2) is None
    assert channels_last.take_channels(np.ascontiguousarray(x), 0, 2) is None
