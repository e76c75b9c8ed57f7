"""Initializers: what they fill arrays with, in which dtype, from which generator."""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import initializers as init

SHAPE = (30, 20, 5)  # fan_in 100, fan_out 150
DEVIATIONS = {
    "Normal": (lambda **k: init.Normal(0.3, **k), 0.3),
    "LeCunNormal": (lambda **k: init.LeCunNormal(2, **k), 2 * np.sqrt(1 / 100)),
    "GlorotNormal": (lambda **k: init.GlorotNormal(2, **k), 2 * np.sqrt(2 / 250)),
    "HeNormal": (lambda **k: init.HeNormal(2, **k), 2 * np.sqrt(2 / 100)),
    "HeNormal, fan_out": (
        lambda **k: init.HeNormal(2, fan_option="fan_out", **k),
        2 * np.sqrt(2 / 150),
    ),
}
BOUNDS = {
    "Uniform": (lambda **k: init.Uniform(0.3, **k), 0.3),
    "LeCunUniform": (lambda **k: init.LeCunUniform(2, **k), 2 * np.sqrt(3 / 100)),
    "GlorotUniform": (lambda **k: init.GlorotUniform(2, **k), 2 * np.sqrt(6 / 250)),
    "HeUniform": (lambda **k: init.HeUniform(2, **k), 2 * np.sqrt(6 / 100)),
    "HeUniform, fan_out": (
        lambda **k: init.HeUniform(2, fan_option="fan_out", **k),
        2 * np.sqrt(6 / 150),
    ),
}
RANDOM = {name: make for name, (make, _) in {**DEVIATIONS, **BOUNDS}.items()} | {
    "Orthogonal": lambda **k: init.Orthogonal(**k)
}


def filled(initializer, shape=SHAPE, dtype="f8"):
    array = np.full(shape, np.nan, dtype)
    assert initializer(array) is None
    return array


@pytest.mark.parametrize(("make", "sigma"), DEVIATIONS.values(), ids=DEVIATIONS)
def test_normal_numbers_have_the_deviation_of_the_formula(make, sigma):
    array = filled(make(rng=np.random.default_rng(0)))
    np.testing.assert_array_equal(array, np.random.default_rng(0).normal(0.0, sigma, SHAPE))
    assert abs(array.std() / sigma - 1) < 0.05


@pytest.mark.parametrize(("make", "bound"), BOUNDS.values(), ids=BOUNDS)
def test_uniform_numbers_fill_the_interval_of_the_formula(make, bound):
    array = filled(make(rng=np.random.default_rng(0)))
    assert 0.99 * bound < array.max() <= bound
    assert -bound <= array.min() < -0.99 * bound
    assert abs(array.mean()) < 0.05 * bound


DEFAULTS = {"Normal": 0.05, "Uniform": 0.05, "Orthogonal": 1.1} | {
    f"{who}{kind}": 1.0 for who in ("LeCun", "Glorot", "He") for kind in ("Normal", "Uniform")
}


@pytest.mark.parametrize(("name", "scale"), DEFAULTS.items(), ids=DEFAULTS)
def test_the_default_scales_are_chainers(name, scale):
    assert getattr(init, name)().scale == scale


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_numbers_come_from_the_ranks_generator(make):
    mnpar.random.seed(3)
    first = filled(make())
    second = filled(make())
    mnpar.random.seed(3)
    np.testing.assert_array_equal(filled(make()), first)
    assert (second != first).any()


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_a_generator_of_ones_own_leaves_the_ranks_alone(make):
    mnpar.random.seed(3)
    expected = mnpar.random.generator().random()
    mnpar.random.seed(3)
    filled(make(rng=np.random.default_rng(0)))
    assert mnpar.random.generator().random() == expected


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_a_seed_gives_the_same_numbers_in_every_dtype(make):
    double = filled(make(rng=np.random.default_rng(0)))
    single = filled(make(rng=np.random.default_rng(0)), dtype="f4")
    np.testing.assert_array_equal(single, double.astype("f4"))


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_numpys_older_generators_are_taken_too(make):
    np.testing.assert_array_equal(
        filled(make(rng=np.random.RandomState(0))), filled(make(rng=np.random.RandomState(0)))
    )


SHAPES = {
    "wide": ((3, 5), "rows"),
    "tall": ((5, 3), "columns"),
    "square": ((4, 4), "both"),
    "kernel": ((3, 2, 2, 2), "rows"),
    "vector": ((3,), "columns"),
}


@pytest.mark.parametrize(("shape", "which"), SHAPES.values(), ids=SHAPES)
def test_rows_or_columns_are_orthogonal_and_of_the_length_of_the_scale(shape, which):
    matrix = filled(init.Orthogonal(2.0), shape).reshape(shape[0], -1)
    if which in ("rows", "both"):
        np.testing.assert_allclose(matrix @ matrix.T, 4 * np.eye(len(matrix)), atol=1e-12)
    if which in ("columns", "both"):
        np.testing.assert_allclose(matrix.T @ matrix, 4 * np.eye(matrix.shape[1]), atol=1e-12)


def test_an_orthogonal_scalar_is_a_sign():
    values = {float(filled(init.Orthogonal(2.0), ())) for _ in range(60)}
    assert values == {2.0, -2.0}


MODES = {
    "projection": ((5, 3), r"5 outputs of 3 inputs"),
    "embedding": ((3, 5), r"3 outputs of 5 inputs"),
    "basis": ((3, 5), r"cannot be an orthogonal basis"),
}


@pytest.mark.parametrize(
    ("mode", "shape", "message"), [(mode, *rest) for mode, rest in MODES.items()], ids=MODES
)
def test_an_orthogonal_mode_refuses_the_wrong_shape_and_takes_a_square(mode, shape, message):
    with pytest.raises(ValueError, match=message):
        filled(init.Orthogonal(mode=mode), shape)
    assert np.isfinite(filled(init.Orthogonal(mode=mode), (4, 4))).all()


def test_orthogonal_refuses_unknown_modes_and_empty_arrays():
    with pytest.raises(
        ValueError, match="knows the modes auto, projection, embedding, basis, not 'best'"
    ):
        init.Orthogonal(mode="best")
    with pytest.raises(ValueError, match=r"empty shape \(0, 3\)"):
        filled(init.Orthogonal(), (0, 3))


CONSTANTS = {
    "Zero": (init.Zero(), np.zeros((2, 3))),
    "One": (init.One(), np.ones((2, 3))),
    "NaN": (init.NaN(), np.full((2, 3), np.nan)),
    "Constant": (init.Constant(2.5), np.full((2, 3), 2.5)),
    "Constant of an array": (init.Constant(np.arange(3)), [[0, 1, 2]] * 2),
}


@pytest.mark.parametrize(("initializer", "expected"), CONSTANTS.values(), ids=CONSTANTS)
def test_constants_fill_with_their_value(initializer, expected):
    np.testing.assert_array_equal(filled(initializer, (2, 3)), expected)


def test_the_identity_has_its_scale_on_the_diagonal():
    np.testing.assert_array_equal(filled(init.Identity(2.0), (3, 3)), 2 * np.eye(3))
    for shape in ((2, 3), (3,), (3, 3, 3)):
        with pytest.raises(ValueError, match="square matrices"):
            filled(init.Identity(), shape)


@pytest.mark.parametrize("value", [[1.0], None, {}], ids=repr)
def test_a_constant_is_a_number_or_an_array(value):
    with pytest.raises(ValueError, match=f"not {type(value).__name__}"):
        init.Constant(value)


FANS = {(2, 3): (3, 2), (16, 3, 5, 5): (75, 400), (4, 2, 3): (6, 12)}


@pytest.mark.parametrize(("shape", "fans"), FANS.items(), ids=str)
def test_fans_count_connections(shape, fans):
    assert init.get_fans(shape) == fans


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize(
    "name",
    ["LeCunNormal", "GlorotNormal", "HeNormal", "LeCunUniform", "GlorotUniform", "HeUniform"],
)
def test_a_vector_has_no_fans(name, shape):
    with pytest.raises(ValueError, match="has no fans"):
        filled(getattr(init, name)(), shape)


@pytest.mark.parametrize("kind", [init.HeNormal, init.HeUniform])
def test_an_unknown_fan_is_refused(kind):
    with pytest.raises(ValueError, match="'fan_in' or 'fan_out', not 'fan'"):
        filled(kind(fan_option="fan"), (2, 3))


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [(None, None, "f4"), ("f2", None, "f2"), (None, "f8", "f8"), ("f8", "f8", "f8")],
)
def test_an_array_is_made_in_the_dtype_of_who_says_one(own, asked, expected):
    array = init.generate_array(init.One(own), (2,), dtype=asked)
    assert array.dtype == expected
    np.testing.assert_array_equal(array, [1, 1])


def test_the_config_says_the_dtype_if_nobody_else_does():
    with mnpar.using_config("dtype", np.dtype("f2")):
        assert init.generate_array(init.One(), (2,)).dtype == np.float16


def test_contradicting_dtypes_are_refused():
    with pytest.raises(ValueError, match="a float32 array was asked of One"):
        init.generate_array(init.One("f8"), (2,), dtype="f4")


@pytest.mark.parametrize("device", [None, -1, "@numpy"])
def test_an_array_is_made_on_the_host_unless_told_otherwise(device):
    assert type(init.generate_array(init.One(), (2,), device=device)) is np.ndarray


GIVEN = {
    "None": (None, init.LeCunNormal),
    "number": (3, init.Constant),
    "array": (np.ones(2), init.Constant),
}


@pytest.mark.parametrize(("given", "kind"), GIVEN.values(), ids=GIVEN)
def test_what_a_link_is_given_means_an_initializer(given, kind):
    assert type(init._get_initializer(given)) is kind


def test_a_function_is_an_initializer_and_a_list_is_not():
    assert (
        init._get_initializer(test_constants_fill_with_their_value)
        is test_constants_fill_with_their_value
    )
    with pytest.raises(TypeError, match=r"not list: wrap lists in numpy.asarray"):
        init._get_initializer([1.0])


def test_a_name_is_no_initializer_and_an_array_of_another_shape_is_told_with_both():
    with pytest.raises(TypeError, match=r"like mnpar.initializers.HeNormal\(\), not str"):
        L.Linear(2, 2, initialW="he")
    with pytest.raises(
        ValueError, match=r"of shape \(3, 3\) does not become one of shape \(2, 2\)"
    ):
        L.Linear(2, 2, initialW=np.ones((3, 3)))


def test_an_initializer_that_does_nothing_says_what_it_lacks():
    with pytest.raises(
        NotImplementedError, match=r"Initializer does not define __call__\(self, array\)"
    ):
        mnpar.Initializer()(np.ones(1))


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_an_initializer_is_copied_with_its_generator(make, how):
    original = make(rng=np.random.default_rng(0))
    np.testing.assert_array_equal(filled(how(original)), filled(original))


def test_repr_shows_what_was_chosen():
    assert (
        repr(init.HeNormal(2.0, fan_option="fan_out"))
        == "HeNormal(scale=2.0, fan_option='fan_out')"
    )
    assert repr(init.One("f8")) == "One(dtype='f8', fill_value=1.0)"


# filters


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize(
    ("size", "tent"), [(1, [1]), (2, [0.5, 0.5]), (3, [0.5, 1, 0.5]), (4, [0.25, 0.75, 0.75, 0.25])]
)
def test_filters_are_products_of_tents_on_the_diagonal_of_the_channels(size, tent, dtype):
    tent = np.array(tent)
    array = filled(init.UpsamplingDeconvFilter(dtype=dtype), (3, 3, size, size), dtype)
    np.testing.assert_array_equal(array, np.eye(3)[:, :, None, None] * np.outer(tent, tent))
    array = filled(init.UpsamplingDeconvFilter(), (3, 1, size), dtype)
    np.testing.assert_array_equal(array, np.ones((3, 1, 1)) * tent)
    array = filled(init.DownsamplingConvFilter(), (3, 3, size, size, size), dtype)
    cube = tent[:, None, None] * tent[:, None] * tent / tent.sum() ** 3
    np.testing.assert_allclose(
        array, np.eye(3)[:, :, None, None, None] * cube, rtol=1e-3 if dtype == "f2" else 1e-6
    )


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_a_constant_image_stays_constant_when_it_is_scaled(size):
    stride = (size + 1) // 2
    x = np.full((1, 2, 9), 3.0)
    W = filled(init.UpsamplingDeconvFilter(), (2, 2, size))
    np.testing.assert_allclose(F.deconvolution_nd(x, W, stride=stride).array[:, :, size:-size], 3)
    W = filled(init.DownsamplingConvFilter(), (2, 2, size))
    np.testing.assert_allclose(F.convolution_nd(x, W, stride=stride).array, 3)


def test_a_line_is_interpolated_linearly():
    W = filled(init.UpsamplingDeconvFilter(), (1, 1, 4))
    y = F.deconvolution_nd(np.arange(8.0)[None, None], W, stride=2, pad=1).array[0, 0]
    np.testing.assert_allclose(y[1:-1], (np.arange(16) / 2 - 0.25)[1:-1])


@pytest.mark.parametrize("kind", [init.UpsamplingDeconvFilter, init.DownsamplingConvFilter])
def test_filters_refuse_what_they_cannot_fill(kind):
    with pytest.raises(ValueError, match="'linear', not by 'cubic'"):
        kind("cubic")
    for shape in ((3, 2, 4), (1, 3, 4), (3, 3), (3,), ()):
        with pytest.raises(ValueError, match="channel by channel, not of shape"):
            kind()(np.zeros(shape))
