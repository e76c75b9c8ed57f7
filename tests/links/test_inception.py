"""Inception blocks: their parts side by side, sized and lazy."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3))


def drawn(link):
    """The link with parameters of float64 that are all different."""
    for param in link.params():
        param.array = RNG.standard_normal(param.shape)
    return {name: param.array for name, param in link.namedparams()}


def sig(x):
    return 1 / (1 + np.exp(-x))


def test_inception_with_all_branches_is_its_parts_side_by_side():
    mnpar.random.seed(0)
    layer = L.InceptionBN(3, 2, 2, 3, 2, 4, "max", 5)
    x = RNG.standard_normal((2, 3, 5, 5)).astype("f4")
    y = layer(x)
    twin = layer.copy("copy")

    def unit(name, v):
        return F.relu(twin[f"{name}n"](twin[name](v)))

    parts = [
        unit("conv1", x),
        unit("conv3", unit("proj3", x)),
        unit("conv33b", unit("conv33a", unit("proj33", x))),
        unit("poolp", F.max_pooling_2d(x, 3, stride=1, pad=1, cover_all=False)),
    ]
    np.testing.assert_allclose(y.array, F.concat(parts, axis=1).array, rtol=1e-6)
    assert y.shape == (2, 14, 5, 5)
    assert layer.conv1.b is None
    F.sum(y * y).backward()
    assert all(p.grad is not None for p in layer.params())


@pytest.mark.parametrize("pooltype", ["max", "avg"])
def test_inception_that_shrinks_passes_the_pooled_image_on(pooltype):
    layer = L.InceptionBN(None, 0, 2, 3, 2, 4, pooltype, stride=2)
    x = RNG.standard_normal((2, 3, 6, 6)).astype("f4")
    y = layer(x)
    pool = (
        F.max_pooling_2d(x, 3, 2, 1, cover_all=False)
        if pooltype == "max"
        else F.average_pooling_2d(x, 3, 2, 1)
    )
    assert y.shape == (2, 10, 3, 3)
    np.testing.assert_allclose(y.array[:, 7:], pool.array)


WRONG = {
    "pooltype": (lambda: L.InceptionBN(3, 1, 2, 3, 2, 4, "min", 5), NotImplementedError, "'min'"),
    "stride": (lambda: L.InceptionBN(3, 1, 2, 3, 2, 4, "max", 5, 2), ValueError, "out1 = 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name):
    call, kind, match = WRONG[name]
    with pytest.raises(kind, match=match):
        call()
