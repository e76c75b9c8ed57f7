"""Convolution with fewer products gives what the sum gives, which is written out here."""

import itertools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar import backend
from mnpar.autograd.tape import current_tape
from mnpar.kernels import winograd
from mnpar.kernels.windows import Windows

ROWS = {  # N, C, K, size, pad, groups
    "tiles that end with the image": (2, 3, 5, (8, 12), 1, 1),
    "tiles that reach beyond it": (2, 4, 6, (9, 7), 1, 2),
    "no padding": (3, 2, 3, (7, 10), 0, 1),
    "more padding than kernel": (2, 2, 3, (3, 6), 3, 1),
    "many small images": (17, 4, 2, (9, 6), 1, 2),
    "as many as tiles hold": (9, 2, 3, (8, 8), 1, 1),
    "one sample": (1, 2, 2, (21, 17), 1, 1),
    "no sample": (0, 2, 3, (5, 6), 1, 1),
    "a sequence": (3, 2, 4, (11,), 1, 1),
    "a volume": (2, 2, 3, (5, 4, 7), 1, 1),
}


def summed(x, W, pad, groups):
    """The convolution as its definition has it: a sum over the offsets in the kernel."""
    n = W.ndim - 2
    K = W.shape[0]
    x = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * n])
    out = [size - 2 for size in x.shape[2:]]
    x = x.reshape(len(x), groups, W.shape[1], *x.shape[2:])
    W = W.reshape(groups, K // groups, *W.shape[1:])
    y = np.zeros((len(x), groups, K // groups, *out))
    for offset in itertools.product(range(3), repeat=n):
        seen = x[(..., *[slice(i, i + o) for i, o in zip(offset, out, strict=True)])]
        y += np.einsum("ngc...,gkc->ngk...", seen, W[(..., *offset)])
    return y.reshape(len(x), K, *out)


def example(N, C, K, size, pad, groups, dtype="d"):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, C, *size))
    W = rng.standard_normal((K, C // groups, *[3] * len(size)))
    windows = Windows.over("test", size, W.shape[2:], 1, pad)
    y = rng.standard_normal((N, K, *windows.out))
    return windows, x.astype(dtype), W.astype(dtype), y.astype(dtype)


def turned(W, groups):
    """The filters of the transpose."""
    parts = W.reshape(groups, len(W) // groups, *W.shape[1:]).swapaxes(1, 2)
    return np.flip(parts, tuple(range(3, parts.ndim))).reshape(-1, len(W) // groups, *W.shape[2:])


def gradient(x, y, pad, groups, shape):
    """Of each weight: the sum is linear in W, so it is what a unit weight gives, times y."""
    gW = np.zeros(shape)
    for place in np.ndindex(shape):
        unit = np.zeros(shape)
        unit[place] = 1
        gW[place] = (summed(x, unit, pad, groups) * y).sum()
    return gW


@pytest.fixture(params=[2**21, 2**11], ids=["whole", "in parts"])
def block(request, monkeypatch):
    monkeypatch.setattr(backend, "block_bytes", lambda x: request.param)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_convolution_is_the_sum(row, block):
    windows, x, W, _ = example(*row)
    y = winograd.convolve(x, W, windows, row[5], np.dtype("d"))
    np.testing.assert_allclose(y, summed(x, W, *row[4:]), atol=1e-11)


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS.values() if row[4] < 3],
    ids=[name for name in ROWS if "than" not in name],
)
def test_its_transpose_is_the_sum_with_turned_filters(row, block):
    windows, _, W, y = example(*row)
    x = winograd.convolve(y, W, windows.reversed, row[5], np.dtype("d"), turned=True)
    np.testing.assert_allclose(x, summed(y, turned(W, row[5]), 2 - row[4], row[5]), atol=1e-11)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_gradient_of_the_filters_is_that_of_the_sum(row, block):
    windows, x, W, y = example(*row)
    gW = np.full_like(W, np.nan)
    winograd.gradient(x, y, windows, row[5], gW, np.dtype("d"))
    np.testing.assert_allclose(gW, gradient(x, y, *row[4:], W.shape), atol=1e-10)


def test_float32_loses_half_a_digit():
    windows, x, W, _ = example(2, 64, 16, (16, 16), 1, 1, "f")
    truth = summed(x.astype("d"), W.astype("d"), 1, 1)
    error = winograd.convolve(x, W, windows, 1, np.dtype("f")) - truth
    assert np.sqrt((error**2).mean()) < 1.5e-6 * np.sqrt((truth**2).mean())


@pytest.mark.parametrize(
    ("pays", "N", "C", "K", "size", "options"),
    [
        (True, 32, 64, 64, 32, {}),
        (True, 1, 64, 64, 56, {}),
        (False, 32, 3, 64, 32, {}),  # few channels: the transforms cost more than they save
        (False, 1, 512, 512, 7, {}),  # few tiles: those of the filters do
        (False, 32, 64, 64, 32, {"stride": 2}),
        (False, 32, 64, 64, 32, {"dilate": 2}),
        (False, 32, 64, 64, 32, {"K": (5, 5)}),
        (False, 32, 64, 64, 32, {"K": (3, 1)}),
    ],
)
def test_it_is_used_where_it_pays(pays, N, C, K, size, options):
    kernel = options.get("K", (3, 3))
    windows = Windows.over(
        "test", (size, size), kernel, options.get("stride", 1), 1, options.get("dilate", 1)
    )
    assert winograd.is_faster(windows, N, (K, C, *kernel)) == pays


def test_integers_stay_exact():
    _, x, W, _ = example(8, 64, 64, (16, 16), 1, 1)
    x = (10 * x).astype(int)
    W = (10 * W).astype(int)
    np.testing.assert_array_equal(F.convolution_2d(x, W, pad=1).array, summed(x, W, 1, 1))


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_convolution_and_its_gradients_are_right_where_it_pays(dtype):
    windows, x, W, gy = example(8, 64, 64, (16, 16), 1, 1)
    assert winograd.is_faster(windows, 8, W.shape, gradient=True)
    b = np.linspace(-1, 1, 64)
    leaves = [mnpar.Variable(a.astype(dtype)) for a in (x, W / 16, b)]
    y = F.convolution_2d(*leaves, pad=1)
    y.grad = gy.astype(dtype)
    y.backward()
    tolerance = {"e": 2e-2, "f": 1e-4, "d": 1e-10}[dtype]
    x, W, b, gy = [a.astype("d") for a in (*[leaf.array for leaf in leaves], y.grad)]
    for found, truth in (
        (y.array, summed(x, W, 1, 1) + b[:, None, None]),
        (leaves[0].grad, summed(gy, turned(W, 1), 1, 1)),
        (leaves[1].grad[:2, :2], gradient(x[:, :2], gy[:, :2], 1, 1, (2, 2, 3, 3))),
        (leaves[2].grad, gy.sum((0, 2, 3))),
    ):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, truth, atol=tolerance * abs(truth).max())


@pytest.mark.parametrize("kernel", [3, 5], ids=["by tiles", "by columns"])
def test_what_travels_advances_between_the_pieces_of_a_backward(kernel, monkeypatch):
    x = mnpar.Variable(np.ones((6, 8, 64, 64), "f4"))
    W = mnpar.Variable(np.ones((8, 8, kernel, kernel), "f4"))
    loss, calls = F.sum(F.convolution_2d(x, W, pad=kernel // 2)), []
    monkeypatch.setattr(current_tape(), "transfers", [lambda: calls.append(None)])
    loss.backward()
    assert len(calls) > 2 + 2 * 2  # after the sum and the convolution, and in both of its gradients
