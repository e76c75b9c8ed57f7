"""Compiled loops against their twins in numpy: values, accuracy, ∞ and NaN, shapes that loops do
not take; and where and when they are compiled.
"""

import gc
import os
import re
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import mnpar.functions as F
from mnpar.kernels import (
    activation,
    arithmetic,
    compiler,
    erf,
    exponential,
    logistic,
    machine_code,
    rows,
    softmax,
    tuning,
)
from mnpar.kernels.compiler import Doubles, Integers, Matrix, Real, Vector, compiled
from mnpar.variable import Variable, grad
from tests.functions.cases import CASES

needs_numba = pytest.mark.skipif(
    not compiler.is_installed(), reason="numba is not installed: a second run in .ci/run has it"
)
SPOKEN = np.array([[1, 1, 3, 4, 5], [0, 1, 3, 6, 6], [0, 1, 3, 0, 1], [4, 4, 4, 4, 4]])
LABELS = np.random.default_rng(3).integers(0, 7, 2000)


def gelu(by_tanh):
    return lambda x: erf.BlockedGelu(by_tanh).forward(x, False)


def gelu_gradient(by_tanh):
    def compute(g, x):
        block = erf.BlockedGelu(by_tanh)
        block.forward(x, True)
        return block.gradient(x, g)

    return compute


def cross_entropy_gradient(x, g):
    labels = LABELS[: len(x)] % x.shape[1]
    return softmax.cross_entropy_gradient(*softmax.exponentials(x, labels), labels, g[:, 0].copy())


def added_rows(x, y):
    y = y.copy()
    rows.add_rows(y, LABELS[: len(x)] % len(y), x)
    return y


def over_lengths(x):
    found = rows.divide_by_lengths(x, 1e-5, x.ndim - 1)
    return x / (rows.sum_products(x, x, -1) ** 0.5 + 1e-5) if found is None else found


def loss(x):
    _, total, score = softmax.exponentials(x, LABELS[: len(x)] % x.shape[1])
    return np.log(total) if score is None else np.log(total) - score


# name: the function, and how many arrays of one shape it takes
KERNELS = {
    "relu": (activation.relu, 1),
    "relu's gradient": (activation.relu_gradient, 2),
    "sigmoid": (logistic.logistic, 1),
    "sigmoid's gradient": (activation.sigmoid_gradient, 2),
    "tanh's gradient": (activation.tanh_gradient, 2),
    "softplus": (logistic.log1p_exp, 1),
    "leaky_relu": (lambda x: activation.leaky_relu(x, 0.2), 1),
    "leaky_relu's gradient": (lambda g, x: activation.leaky_relu_gradient(g, x, 0.2), 2),
    "exp": (lambda x: exponential.exp(np, x), 1),
    "log": (lambda x: exponential.log(np, abs(x)), 1),
    "log of all signs": (lambda x: exponential.log(np, np.where(x > -50, abs(x), x)), 1),
    "log1p": (lambda x: exponential.log1p(np, abs(x)), 1),
    "log1p below 0": (lambda x: exponential.log1p(np, np.where(x > -50, -abs(x) / 50, x)), 1),
    "elu": (lambda x: activation.elu(x, 1.5, 0.7), 1),
    "elu's gradient": (lambda g, x: activation.elu_gradient(g, x, 1.5, 0.7), 2),
    "erf": (erf.erf, 1),
    "gelu": (gelu(False), 1),
    "gelu's gradient": (gelu_gradient(False), 2),
    "gelu by tanh": (gelu(True), 1),
    "gelu by tanh's gradient": (gelu_gradient(True), 2),
    "cube": (arithmetic.cube, 1),
    "absolute differences": (lambda x, y: arithmetic.absolute_differences(x, y)[0], 2),
    "huber": (lambda x, y: arithmetic.huber(x, y, 1.5), 2),
    "huber's gradient": (lambda g, x: arithmetic.huber_gradient(g, x, x * 0, 1.5), 2),
    "maximum of rows": (lambda x: rows.reduce_rows("max", x, -1), 1),
    "minimum of rows": (lambda x: rows.reduce_rows("min", x, -1), 1),
    "product of rows": (lambda x: rows.reduce_rows("prod", x[:, :20] / 3, -1), 1),
    "product of rows, its gradient": (
        lambda x, g: rows.product_gradient(x[:, :20] / 3, (1,), g[:, :1]),
        2,
    ),
    "sums of products of rows": (lambda x, y: rows.sum_products(x, y, x.ndim - 1), 2),
    "rows that are added": (added_rows, 2),
    "lengths of rows": (over_lengths, 1),
    "running sums": (lambda x: rows.running_sums(x, x.ndim - 1, False), 1),
    "running sums to the end": (lambda x: rows.running_sums(x, x.ndim - 1, True), 1),
    "softmax": (lambda x: softmax.softmax(x, -1), 1),
    "softmax's gradient": (lambda y, g: softmax.softmax_gradient(y, g, -1), 2),
    "log_softmax": (lambda x: softmax.log_softmax(x, -1), 1),
    "log_softmax's gradient": (lambda y, g: softmax.log_softmax_gradient(y, g, -1), 2),
    "cross entropy": (loss, 1),
    "cross entropy's gradient": (cross_entropy_gradient, 2),
}


def is_rowwise(name):
    return any(word in name for word in ("softmax", "entropy", "of rows", "rows that", "running"))


SHAPES = [(3, 7), (1, 1), (33, 129), (2, 1000), (530, 3)]


@pytest.fixture
def by_loops(monkeypatch):
    """Computes by compiled loops, whatever the size; ``by_twin`` by numpy."""
    return lambda function, *xs: _computed(monkeypatch, 0, function, *xs)


@pytest.fixture
def by_twin(monkeypatch):
    return lambda function, *xs: _computed(monkeypatch, sys.maxsize, function, *xs)


def _computed(monkeypatch, least, function, *xs):
    with monkeypatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(compiler, "least", lambda *_: least)
        return function(*xs)


def arrays(count, shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [(3 * rng.standard_normal(shape)).astype(dtype) for _ in range(count)]


@needs_numba
@pytest.mark.parametrize("name", KERNELS)
def test_a_loop_errs_no_more_than_four_times_as_much_as_its_twin(name, by_loops, by_twin):
    function, count = KERNELS[name]
    for shape in SHAPES:
        xs = arrays(count, shape, "f4")
        if not is_rowwise(name) and shape[0] == 33:
            xs = [x.T for x in xs]  # whose first axis comes last in memory
        truth = by_twin(function, *[x.astype("f8") for x in xs])
        ulp = np.finfo("f4").eps * np.abs(truth).max()
        allowed = 4 * max(np.abs(by_twin(function, *xs) - truth).max(), ulp / 2)
        found = by_loops(function, *xs)
        assert found.dtype == np.float32
        assert found.shape == truth.shape
        assert np.abs(found - truth).max() <= allowed
        # in float64 the twin is the nearest to the truth that there is
        exact = by_loops(function, *[x.astype("f8") for x in xs])
        assert exact.dtype == np.float64
        np.testing.assert_allclose(exact, truth, rtol=1e-13, atol=1e-14 * np.abs(truth).max())


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", KERNELS)
def test_infinite_numbers_and_nan_are_where_the_twin_has_them(name, dtype, by_loops, by_twin):
    function, count = KERNELS[name]
    special = [np.inf, -np.inf, np.nan, 1e30, -1e30, 100.0, -100.0, 0.0, -0.0]
    for k in range(count):
        xs = arrays(count, (len(special), 70), dtype)
        xs[k][:, 3] = special  # in a row, as softmax meets them, and by itself
        xs[k][:, 66] = special[::-1]
        found = by_loops(function, *xs)
        twin = by_twin(function, *xs)
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(found), test(twin))


@needs_numba
@pytest.mark.parametrize("name", KERNELS)
def test_what_loops_do_not_take_is_left_to_the_twin(name, by_loops, by_twin):
    function, count = KERNELS[name]
    xs = arrays(count, (6, 10), "f8")
    others = {
        "not contiguous": [x[::2, ::2] for x in xs],
        "halves": [x.astype("f2") for x in xs],
        "other byte order": [x.astype(x.dtype.newbyteorder()) for x in xs],
    }
    if is_rowwise(name):
        others["columns"] = [x.T for x in xs]
    else:
        others["no elements"] = [x[:0] for x in xs]
        others["no axes"] = [np.array(1.5) for x in xs]
    for what, given in others.items():
        twin = by_twin(function, *given)
        found = by_loops(function, *given)
        assert found.dtype.type is twin.dtype.type, what
        np.testing.assert_allclose(found.astype("f8"), twin.astype("f8"), rtol=1e-13, err_msg=what)


@needs_numba
@pytest.mark.parametrize(
    "case", [case for case in CASES if len(case.shapes) > 1], ids=lambda case: case.id
)
def test_inputs_of_two_dtypes_give_what_the_twin_gives(case, by_loops, by_twin):
    def compute(*xs):
        variables = [Variable(x) for x in xs]
        ys = case.call(*variables)
        ys = ys if isinstance(ys, tuple) else (ys,)
        ones = [Variable(np.ones(y.shape, y.dtype)) for y in ys]
        return [*ys, *(grad(ys, variables, ones) if case.differentiable else ())]

    for first, others in ("f4", "f8"), ("f8", "f4"), ("f2", "f4"), ("f4", "f2"):
        x, *rest = case.arrays(3)
        xs = [x.astype(first), *[z.astype(others) for z in rest]]
        try:
            twins = by_twin(compute, *xs)
        except ValueError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                by_loops(compute, *xs)
            continue
        for found, twin in zip(by_loops(compute, *xs), twins, strict=True):
            assert (found is None) == (twin is None)
            if twin is not None:
                assert found.dtype == twin.dtype
                tolerance = 10 * np.finfo(min(first, others)).eps if twin.dtype.kind == "f" else 0
                largest = abs(twin.array).max(initial=0)
                np.testing.assert_allclose(
                    found.array, twin.array, rtol=tolerance, atol=tolerance * largest
                )


def with_gradients(function):
    """Of arrays: what a function makes of them, and the gradients of a weighted sum of it."""

    def compute(*xs):
        variables = [Variable(x) for x in xs]
        y = function(*variables)
        weights = np.random.default_rng(9).standard_normal(y.shape).astype(y.dtype)
        return y.array, *[g.array for g in grad([y], variables, [Variable(weights)])]

    return compute


def over_steps(function, gates, n_states=1, both=False, **options):
    """A recurrent network of one layer, of steps in which fewer and fewer sequences run; its
    weights and biases are joined.
    """

    def compute(x, states, W, U, b):
        H = U.shape[1]
        steps = [F.get_item(x, (t, slice(0, max(1, 3 - t)))) for t in range(len(x))]
        directions = 2 if both else 1
        ws = [[w[k * H : k * H + H] for w in (W, U) for k in range(gates)]] * directions
        bs = [[b[k * H : k * H + H] for _ in range(2) for k in range(gates)]] * directions
        first = [states[j * directions : (j + 1) * directions] for j in range(n_states)]
        *finals, ys = function(1, 0.0, *first, ws, bs, steps, **options)
        return F.concat([y.reshape(-1) for y in (*finals, *ys)], axis=0)

    shapes = (4, 3, 5), (n_states * (2 if both else 1), 4, 7), (gates * 7, 5), (gates * 7, 7)
    return compute, *shapes, (gates * 7,)


# name: the function, the shapes of its arrays
FUNCTIONS = {
    "lstm": (lambda c, x: F.concat(F.lstm(c, x), axis=1), (5, 19), (5, 76)),
    "lstm of the memory": (lambda c, x: F.lstm(c, x)[0], (5, 19), (5, 76)),
    "lstm of the output": (lambda c, x: F.lstm(c, x)[1], (5, 19), (5, 76)),
    "n_step_lstm": over_steps(F.n_step_lstm, 4, 2),
    "n_step_bilstm": over_steps(F.n_step_bilstm, 4, 2, both=True),
    "n_step_gru": over_steps(F.n_step_gru, 3),
    "n_step_bigru": over_steps(F.n_step_bigru, 3, both=True),
    "n_step_rnn": over_steps(F.n_step_rnn, 1),
    "n_step_rnn of relu": over_steps(F.n_step_rnn, 1, activation="relu"),
    "Winograd": (lambda x, W: F.convolution_2d(x, W, pad=1), (3, 33, 16, 16), (40, 33, 3, 3)),
    "Winograd, tiles beyond": (
        lambda x, W: F.convolution_2d(x, W, pad=(0, 1)),
        (2, 40, 15, 9),
        (32, 40, 3, 3),
    ),
    "Winograd in groups": (
        lambda x, W: F.convolution_2d(x, W, pad=1, groups=2),
        (2, 64, 8, 12),
        (64, 32, 3, 3),
    ),
    "Winograd, transposed": (
        lambda x, W: F.deconvolution_2d(x, W, pad=1),
        (2, 40, 12, 12),
        (40, 32, 3, 3),
    ),
    "max pooling": (lambda x: F.max_pooling_2d(x, 2), (3, 4, 8, 40)),
    "max pooling, overlapping": (lambda x: F.max_pooling_2d(x, 3, 2, 1), (2, 3, 9, 35)),
    "max pooling at stride 1": (lambda x: F.max_pooling_2d(x, 2, 1), (2, 3, 5, 6)),
    "max pooling with gaps": (lambda x: F.max_pooling_2d(x, 2, 3), (2, 3, 10, 11)),
    "softmax of channels that come last": (
        lambda x: F.softmax(F.transpose(x, (0, 3, 1, 2))),
        (2, 5, 6, 7),
    ),
    "log_softmax of channels that come last": (
        lambda x: F.log_softmax(F.transpose(x, (0, 3, 1, 2))),
        (2, 5, 6, 7),
    ),
    "attention": (F.scaled_dot_product_attention, (2, 150, 8), (2, 300, 8), (2, 300, 5)),
    "attention, causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True),
        *[(3, 200, 8)] * 3,
    ),
    "attention of few": (
        F.scaled_dot_product_attention,
        (2, 3, 9, 8),
        (2, 3, 17, 8),
        (2, 3, 17, 5),
    ),
    "attention of few, causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True),
        (3, 9, 8),
        (3, 13, 8),
        (3, 13, 5),
    ),
    "attention of few keys": (
        lambda k, q, v: F.scaled_dot_product_attention(q, k, v, causal=True),
        *[(3, 12, 8)] * 3,
    ),
    "attention of few values": (
        lambda v, q, k: F.scaled_dot_product_attention(100 * q, k, v),
        *[(3, 12, 8)] * 3,
    ),
    "CTC": (
        lambda x: F.connectionist_temporal_classification(x, SPOKEN, 2, reduce="no"),
        (13, 4, 7),
    ),
    "CTC, of other lengths": (
        lambda x: F.connectionist_temporal_classification(
            x, SPOKEN, 2, np.array([13, 1, 6, 9]), np.array([5, 0, 1, 3]), "no"
        ),
        (13, 4, 7),
    ),
    "CTC, too few steps": (
        lambda x: F.minimum(
            F.connectionist_temporal_classification(x, SPOKEN, 2, reduce="no"),
            np.full(4, 100.0, x.dtype),
        ),
        (6, 4, 7),
    ),
    "CTC, no labels": (
        lambda x: F.connectionist_temporal_classification(x, SPOKEN[:, :0], 2, reduce="no"),
        (6, 4, 7),
    ),
    "maxout": (lambda x: F.maxout(x, 5), (20, 60)),
    "scale": (F.scale, (5, 6, 30), (6,)),
    "scale of rows": (lambda x, w: F.scale(x, w, axis=0), (50, 30), (50,)),
    "bias": (F.bias, (5, 6, 30), (6,)),
    "mean absolute error": (F.mean_absolute_error, (40, 30), (40, 30)),
    "huber loss": (lambda x, t: F.huber_loss(x, t, 0.7), (40, 30), (40, 30)),
    "leaky_relu": (F.leaky_relu, (40, 30)),
    "elu": (F.elu, (40, 30)),
    "selu": (F.selu, (40, 30)),
    "prelu, one slope": (F.prelu, (5, 6, 30), ()),
    "prelu, of channels": (F.prelu, (5, 6, 4, 9), (6,)),
    "prelu, of columns": (F.prelu, (70, 33), (33,)),
    "prelu, of images": (F.prelu, (5, 3, 30), (3, 30)),
    "prelu, of channels that come last in memory": (
        lambda x, w: F.prelu(F.transpose(x, (0, 3, 1, 2)), w),
        (3, 5, 7, 20),
        (20,),
    ),
    "swish, one beta": (F.swish, (5, 300), (1,)),
    "swish, of columns": (F.swish, (70, 33), (33,)),
    "swish, of channels": (F.swish, (5, 6, 40), (6,)),
    "batch normalization": (
        lambda x, g, b: F.batch_normalization(x + 3, g, b),
        (5, 6, 7, 9),
        (6,),
        (6,),
    ),
    "batch normalization far from 0": (
        lambda x, g, b: F.batch_normalization(x + 1e3, g, b),
        (9, 2, 300),
        (2,),
        (2,),
    ),
    "batch normalization of rows": (
        lambda x, g, b: F.batch_normalization(x + 3, g, b),
        (70, 33),
        (33,),
        (33,),
    ),
    "batch normalization by given statistics": (
        F.fixed_batch_normalization,
        (5, 6, 70),
        *[(6,)] * 4,
    ),
    "batch normalization of rows by given statistics": (
        F.fixed_batch_normalization,
        (40, 30),
        *[(30,)] * 4,
    ),
    "layer normalization": (F.layer_normalization, (9, 300), (300,), (300,)),
    "layer normalization far from 0": (
        lambda x, g, b: F.layer_normalization(x + 1e3, g, b),
        (9, 300),
        (300,),
        (300,),
    ),
    "layer normalization of two axes": (F.layer_normalization, (3, 5, 6), (5, 6), (5, 6)),
    "group normalization": (
        lambda x, g, b: F.group_normalization(x + 1, 3, g, b),
        (4, 6, 5, 7),
        (6,),
        (6,),
    ),
    "instance normalization": (
        lambda x, g, b: F.group_normalization(x, 6, g, b),
        (4, 6, 300),
        (6,),
        (6,),
    ),
    "batch normalization of constants": (
        lambda x, g, b: F.batch_normalization(x * 0 + 3, g, b),
        (2, 3, 16),
        (3,),
        (3,),
    ),
}


@needs_numba
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_by_loops_errs_no_more_than_four_times_as_much_as_by_numpy(
    name, by_loops, by_twin, monkeypatch
):
    for pays in ("WINOGRAD_PAYS", "WINOGRAD_PAYS_GRADIENT"):  # of small images, too
        monkeypatch.setattr(tuning, pays, np.inf)
    monkeypatch.setattr(tuning, "WINOGRAD_LOOP_CALL", 0)
    function, *shapes = FUNCTIONS[name]
    compute = with_gradients(function)
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(shape) for shape in shapes]
    if "given" in name:
        xs[-1] = xs[-1] ** 2 + 0.1  # variances
    single = [x.astype("f4") for x in xs]
    truths = by_twin(compute, *[x.astype("f8") for x in single])
    found = by_loops(compute, *single)
    for y, twin, truth in zip(found, by_twin(compute, *single), truths, strict=True):
        ulp = np.finfo("f4").eps * np.abs(truth).max()
        assert y.dtype == np.float32
        assert np.abs(y - truth).max() <= 4 * max(np.abs(twin - truth).max(), ulp / 2)
    for y, twin in zip(by_loops(compute, *xs), by_twin(compute, *xs), strict=True):
        np.testing.assert_allclose(y, twin, rtol=1e-10, atol=1e-12 * np.abs(twin).max() + 1e-300)


@needs_numba
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "Winograd" not in n])
def test_a_function_has_infinite_numbers_and_nan_where_numpy_has_them(
    name, value, by_loops, by_twin
):
    function, *shapes = FUNCTIONS[name]
    compute = with_gradients(function)
    rng = np.random.default_rng(0)
    xs = [np.asarray(np.abs(rng.standard_normal(shape))) for shape in shapes]
    place = xs[0][1, 1] if "lstm" in name else xs[0][1]
    place.reshape(-1)[1::4] = value
    for y, twin in zip(by_loops(compute, *xs), by_twin(compute, *xs), strict=True):
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(y), test(twin))


def units_of_the_last_digit(y, truth):
    return np.max(np.abs((y - truth) / np.spacing(np.abs(truth.astype(y.dtype)))))


# name: the function, and what it is computed of, from numbers of -1 to 1
WIDE = {
    "exp, any": (np.exp, lambda u, most: most * u),
    "exp of small ones": (np.exp, lambda u, most: 1e-3 * u),
    "exp that is hardly a number": (np.exp, lambda u, most: -1.05 * most + u),
    "log of any": (np.log, lambda u, most: np.exp(0.97 * most * u)),
    "log around 1": (np.log, lambda u, most: 1 + u / 2),
    "log near 1": (np.log, lambda u, most: 1 + 1e-3 * u),
    "log of what is hardly a number": (np.log, lambda u, most: np.exp(-1.01 * most + u)),
    "log1p of any": (np.log1p, lambda u, most: np.exp(0.97 * most * u)),
    "log1p of small ones": (np.log1p, lambda u, most: 1e-4 * u),
    "log1p near -1": (np.log1p, lambda u, most: -1 + np.exp(7 * u - 7.5)),
}


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", WIDE)
def test_exponentials_and_logarithms_are_right_to_the_last_digits_everywhere(name, dtype, by_loops):
    function, numbers = WIDE[name]
    u = np.random.default_rng(0).uniform(-1, 1, 20_000)
    x = numbers(u, {"f4": 87.0, "f8": 708.0}[dtype]).astype(dtype)
    truth = function(x.astype(np.longdouble))
    numpys = units_of_the_last_digit(function(x), truth)
    found = by_loops(lambda x: getattr(exponential, function.__name__)(np, x), x)
    assert units_of_the_last_digit(found, truth) <= min(4 * numpys, max(1.5, numpys))


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("function", "value", "said"),
    [
        (F.exp, 1000.0, "overflow encountered in exp"),
        (F.log, 0.0, "divide by zero encountered in log"),
        (F.log, -1.0, "invalid value encountered in log"),
        (F.log1p, -1.0, "divide by zero encountered in log1p"),
        (F.log1p, -2.0, "invalid value encountered in log1p"),
    ],
)
def test_loops_warn_of_infinite_numbers_and_nan_as_numpy_does(
    function, value, said, dtype, monkeypatch
):
    monkeypatch.setattr(compiler, "least", lambda *_: 0)
    x = np.ones(300, dtype)
    function(x)  # in silence
    x[7] = value
    with pytest.warns(RuntimeWarning, match=said):
        function(x)


def test_small_arrays_are_left_to_numpy():
    assert not compiler.suits(np.zeros(100))


def run(code, tmp_path, **environment):
    """What a program prints, and what it says beside."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"XDG_CACHE_HOME": str(tmp_path), "PATH": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


RELU = """
import sys, numpy as np
import mnpar.functions as F
y = F.relu(np.linspace(-1, 1, 20001)).array
print(y.sum().round(3), 'numba' in sys.modules)
"""


@needs_numba
def test_loops_are_kept_where_the_user_keeps_such_things_and_found_again(tmp_path):
    first = run(RELU, tmp_path)
    assert first.stdout == "5000.5 True\n", first.stderr
    assert first.stderr.count("\n") == 1
    assert f"once; kept in {tmp_path}/mnpar/kernels/" in first.stderr
    again = run(RELU, tmp_path)
    assert again.stdout == "5000.5 False\n"  # without numba
    assert again.stderr == ""


@needs_numba
def test_a_damaged_file_is_compiled_anew(tmp_path):
    run(RELU, tmp_path)
    (file,) = tmp_path.glob("mnpar/kernels/*/*relu*.code")
    whole = file.read_bytes()
    for spoilt in (whole[:-1], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]):
        file.write_bytes(spoilt)
        found = run(RELU, tmp_path)
        assert found.stdout == "5000.5 True\n", found.stderr
    assert run(RELU, tmp_path).stdout == "5000.5 False\n"


@compiled
def mixed(x: Vector, y: Matrix, places: Integers, sums: Doubles, n: int) -> None:
    for i in range(n):
        y[i, 0] = x[places[i]]
        sums[i] = x[i]


@needs_numba
def test_what_python_reads_of_a_loop_at_its_end_is_never_freed(monkeypatch):
    loaded, keep = [], machine_code.keep
    monkeypatch.setattr(machine_code, "keep", lambda x: loaded.append(x) or keep(x))

    @compiled
    def double(x: Vector) -> None:
        for i in range(x.size):
            x[i] *= 2.0

    double(np.ones(3))
    read = [weakref.ref(thing) for thing in loaded]
    assert len(read) == 2  # the library and the definition
    loaded.clear()
    gc.collect()
    assert all([thing() is not None for thing in read])


@needs_numba
def test_an_array_that_a_loop_does_not_take_is_an_error():
    right = [np.arange(5.0), np.zeros((5, 2)), np.arange(5)[::-1].copy(), np.zeros(5)]
    mixed(*right, 5)
    np.testing.assert_array_equal(right[1][:, 0], [4, 3, 2, 1, 0])
    np.testing.assert_array_equal(right[3], right[0])
    wrong = [
        (0, np.arange(5)),
        (0, np.arange(10.0)[::2]),
        (1, np.zeros((5, 2), "f")),
        (1, np.zeros((2, 5)).T),
        (1, np.zeros(5)),
        (1, np.zeros((5, 2), ">f8")),
        (1, np.zeros((5, 2)).view(np.matrix)),
        (2, np.arange(5.0)),
        (2, np.arange(5, dtype="i4")),
        (2, np.arange(5, dtype="u8")),
        (3, np.zeros(5, "f")),
        (3, np.broadcast_to(np.zeros(1), 5)),
        (3, [0.0] * 5),
        (3, None),
    ]
    for k, array in wrong:
        with pytest.raises(TypeError, match=r"test_compiled\.mixed takes contiguous arrays"):
            mixed(*right[:k], array, *right[k + 1 :], 5)


@needs_numba
def test_what_is_no_number_is_an_error_and_too_few_arguments_are():
    arrays = [np.arange(5.0), np.zeros((5, 2)), np.arange(5), np.zeros(5)]
    for wrong in (1.5, "1", None, np.zeros(1)):
        with pytest.raises(TypeError):
            mixed(*arrays, wrong)
    with pytest.raises(TypeError):
        scaled(np.zeros(5), np.zeros(5), "1")
    with pytest.raises(OverflowError):
        mixed(*arrays, 2**63)
    for args in ((), (1, 2)):
        with pytest.raises(TypeError, match="takes contiguous arrays"):
            mixed(*arrays, *args)
    mixed(*arrays, -1)  # which is what Python's functions return with an error, too
    assert not arrays[3].any()
    mixed(*arrays, np.int64(3))
    np.testing.assert_array_equal(arrays[3], [0, 1, 2, 0, 0])


@needs_numba
def test_other_threads_run_beside_a_loop():
    ran, gate = [], threading.Event()
    other = threading.Thread(target=lambda: gate.wait() and ran.append(True))
    x = np.zeros(2**20)
    scaled(x, x, 1.0)
    interval = sys.getswitchinterval()
    other.start()
    sys.setswitchinterval(1000)  # nobody has to give Python's lock away
    try:
        gate.set()
        calls = 0
        while not ran and calls < 10_000:
            scaled(x, x, 1.0)
            calls += 1
        ran_beside = bool(ran)
    finally:
        sys.setswitchinterval(interval)
        other.join()
    assert ran_beside


@compiled
def hungry(x: Vector) -> None:
    x[0] = np.empty(x.size, x.dtype)[0]


@needs_numba
def test_a_loop_that_allocates_memory_is_an_error():
    with pytest.raises(Exception, match=r"empty"):
        hungry(np.zeros(5))


@needs_numba
def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path):
    (tmp_path / "mnpar").write_text("a file")
    found = run(RELU, tmp_path)
    assert found.stdout == "5000.5 True\n", found.stderr
    assert found.stderr.count("compiled kernels are not kept") == 1


FORBIDDEN = """
import pathlib
def touch(path, *args, **options):
    raise PermissionError(13, "Permission denied", str(path))
pathlib.Path.touch = touch
"""


@needs_numba
def test_what_is_kept_in_a_folder_that_cannot_be_written_is_loaded(tmp_path):
    run(RELU, tmp_path)
    again = run(FORBIDDEN + RELU, tmp_path)
    assert (again.stdout, again.stderr) == ("5000.5 False\n", "")
    other = run(FORBIDDEN + RELU.replace("relu", "gelu"), tmp_path)
    assert other.stdout.endswith(" True\n"), other.stderr
    assert other.stderr.count("compiled kernels are not kept") == 1


@needs_numba
def test_a_disk_that_is_full_costs_one_line(tmp_path):
    full = """
import pathlib
def write_bytes(path, data):
    path.touch()
    raise OSError(28, "No space left on device", str(path))
pathlib.Path.write_bytes = write_bytes
"""
    found = run(full + RELU, tmp_path)
    assert found.stdout == "5000.5 True\n", found.stderr
    assert found.stderr.count("compiled kernels are not kept") == 1
    assert {path.name for path in tmp_path.glob("mnpar/kernels/*/*")} == {".lock"}


@needs_numba
def test_files_of_another_user_are_not_loaded(tmp_path, monkeypatch):
    machine_code.write(tmp_path, "loop", b"code")
    assert machine_code.read(tmp_path, "loop") == b"code"
    owner = (tmp_path / "loop.code").stat().st_uid
    stat = os.stat_result((0o600, 0, 0, 0, owner + 1, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda file: stat)
    with pytest.warns(UserWarning, match=f"another user's .{owner + 1}. and are not loaded"):
        assert machine_code.read(tmp_path, "loop") is None


@needs_numba
def test_code_of_other_versions_and_processors_is_not_found(monkeypatch):
    from llvmlite import binding

    def folder():
        machine_code.folder_here.cache_clear()
        return machine_code.folder_here()

    folders = [folder()]
    with monkeypatch.context() as patch:
        for owner, name, value in (
            (np, "__version__", "2.99"),
            (sys, "version", "3.99"),
            (machine_code, "_numba_version", lambda: "0.99"),
            (binding, "get_host_cpu_name", lambda: "z80"),
            (machine_code.pkgutil, "get_data", lambda package, file: b"another source"),
        ):
            patch.setattr(owner, name, value)
            folders.append(folder())
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    folders.append(folder())
    monkeypatch.delenv("NUMBA_CPU_NAME")
    assert len({*folders}) == 7
    assert folder() == folders[0]


@needs_numba
@pytest.mark.parametrize("name", ["DATA", "AXES", "SHAPE", "STRIDES", "DTYPE", "FLAGS", "HEAD"])
def test_arrays_that_lie_otherwise_in_memory_are_noticed(name, monkeypatch):
    assert machine_code.reads_arrays()
    places = {"DATA": 8, "AXES": 12, "SHAPE": 24, "STRIDES": 16, "DTYPE": 32, "FLAGS": 52}
    monkeypatch.setattr(machine_code, name, places.get(name, machine_code.HEAD + 8))
    assert not machine_code.reads_arrays()


BROKEN = """
from mnpar.kernels import translation
def translate(*args):
    raise AttributeError("numba has no such thing any more")
translation.translate = translate
"""


@needs_numba
def test_a_numba_that_does_not_compile_costs_one_line(tmp_path):
    found = run(BROKEN + RELU, tmp_path)
    assert found.stdout == "5000.5 True\n", found.stderr
    assert found.stderr.count("kernels are numpy's, numba is left alone") == 1
    assert "no such thing any more" in found.stderr
    wanted = run(BROKEN + RELU, tmp_path, MNPAR_KERNELS="numba")
    assert "MNPAR_KERNELS=numba: loops cannot be compiled" in wanted.stderr


@needs_numba
def test_processes_that_start_together_compile_each_loop_once(tmp_path):
    begun = """
from mnpar.kernels import translation
translate = translation.translate
def told(numba, loop, *args):
    print("compiles", loop.__name__)
    return translate(numba, loop, *args)
translation.translate = told
"""
    command = [sys.executable, "-c", begun + RELU]
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": ""}
    jobs = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = [job.communicate()[0] for job in jobs]
    compiled_here = [
        line for text in printed for line in text.splitlines() if line.startswith("compiles")
    ]
    assert len(compiled_here) == len({*compiled_here}) == 2
    assert all("5000.5" in text for text in printed)


@pytest.mark.parametrize(
    ("code", "environment"),
    [
        (RELU, {"MNPAR_KERNELS": "numpy"}),
        (RELU.replace("20001", "2001"), {}),
        (RELU, {"PYTHONPATH": "{tmp_path}"}),
    ],
    ids=["switched off", "small arrays", "numba is missing"],
)
def test_numba_is_not_imported(code, environment, tmp_path):
    if "PYTHONPATH" in environment:
        code = "import sys; sys.modules['numba'] = None\n" + code.replace(
            "'numba' in sys.modules", "bool(sys.modules['numba'])"
        )
    found = run(code, tmp_path, **{k: v for k, v in environment.items() if k != "PYTHONPATH"})
    assert found.stdout.endswith(" False\n"), found.stderr


def test_a_missing_numba_that_is_asked_for_is_an_error(tmp_path):
    found = run("import sys; sys.modules['numba'] = None\n" + RELU, tmp_path, MNPAR_KERNELS="numba")
    assert "MNPAR_KERNELS=numba needs numba" in found.stderr
    assert "pip install 'mnpar[fast]'" in found.stderr


def test_another_value_of_the_variable_is_an_error(tmp_path):
    found = run(RELU, tmp_path, MNPAR_KERNELS="fast")
    assert "MNPAR_KERNELS is numpy or numba, not 'fast'" in found.stderr


@compiled
def scaled(x: Vector, y: Vector, a: Real) -> None:
    for i in range(x.size):
        y[i] = 0.1 * x[i] + a


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_literals_and_parameters_have_the_dtype_of_the_arrays(dtype):
    x = np.linspace(0, 1, 50).astype(dtype)
    scaled(x, y := np.empty_like(x), 0.3)
    np.testing.assert_allclose(y, x.dtype.type(0.1) * x + x.dtype.type(0.3), rtol=1e-6)
    assert (y == (x.dtype.type(0.1) * x + x.dtype.type(0.3))).mean() > 0.5
