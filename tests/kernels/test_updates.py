"""Steps of optimizers by compiled loops against their twins in numpy: the same bits, ∞ and NaN,
and states that go from one to the other.
"""

import sys

import numpy as np
import pytest

import mnpar
import mnpar.optimizers as opt
from mnpar.kernels import compiler, updates

needs_numba = pytest.mark.skipif(
    not compiler.is_installed(), reason="numba is not installed: a second run in .ci/run has it"
)
OPTIMIZERS = {
    "SGD": lambda: opt.SGD(0.1),
    "MomentumSGD": lambda: opt.MomentumSGD(0.1),
    "CorrectedMomentumSGD": lambda: opt.CorrectedMomentumSGD(0.1),
    "NesterovAG": lambda: opt.NesterovAG(0.1),
    "AdaGrad": lambda: opt.AdaGrad(0.1),
    "AdaGrad, ε inside": lambda: opt.AdaGrad(0.1, 1e-2, eps_inside_sqrt=True),
    "AdaDelta": opt.AdaDelta,
    "RMSprop": opt.RMSprop,
    "RMSprop, ε inside": lambda: opt.RMSprop(eps=1e-2, eps_inside_sqrt=True),
    "RMSpropGraves": opt.RMSpropGraves,
    "SMORMS3": opt.SMORMS3,
    "Adam": opt.Adam,
    "AdamW": lambda: opt.AdamW(eta=0.5, weight_decay_rate=0.01),
    "AMSGrad": opt.AMSGrad,
    "AdaBound": opt.AdaBound,
    "AMSBound": opt.AMSBound,
    "MSVAG": lambda: opt.MSVAG(weight_decay_rate=0.01),
    "AdaMax": opt.AdaMax,
}
STEPS = 4


@pytest.fixture
def trained(monkeypatch):
    """The parameter and the states after some steps, by loops or by their twins."""

    def train(name, start, gradients, by_loops):
        return run(name, start, gradients, [by_loops] * len(gradients))

    def run(name, start, gradients, by_loops):
        link = mnpar.Link()
        link.p = mnpar.Parameter(start.copy())
        optimizer = OPTIMIZERS[name]().setup(link)
        for g, loops in zip(gradients, by_loops, strict=True):
            link.p.grad = g.copy()
            with monkeypatch.context() as patch, np.errstate(all="ignore"):
                least = 0 if loops else sys.maxsize
                patch.setattr(compiler, "least", lambda *_, least=least: least)
                optimizer.update()
        return {"p": link.p.array, **link.p.update_rule.state}

    train.run = run
    return train


def numbers(dtype, shape=(7, 19)):
    rng = np.random.default_rng(0)
    start = rng.standard_normal(shape).astype(dtype)
    # the second half is noisy, the first hardly
    noise = np.linspace(0.01, 2, shape[1])
    gradients = [(1 + noise * rng.standard_normal(shape)).astype(dtype) for _ in range(STEPS)]
    return start, gradients


def test_every_update_is_in_the_table():
    rules = {type(make().create_update_rule()).__name__ for make in OPTIMIZERS.values()}
    steps = [one for one in vars(updates).values() if isinstance(one, updates.Update)]
    assert len(rules) + 1 == len(steps)  # Adam's rule has two


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loop_computes_what_its_twin_computes_to_the_last_bit(name, dtype, trained):
    start, gradients = numbers(dtype)
    twin = trained(name, start, gradients, False)
    found = trained(name, start, gradients, True)
    assert list(found) == list(twin)
    for key, array in twin.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array, err_msg=key)


@needs_numba
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_infinite_numbers_and_nan_are_where_the_twin_has_them(name, trained):
    start, gradients = numbers("f4")
    special = [np.inf, -np.inf, np.nan, 1e30, -1e30, 0.0]
    for array in (start[0], gradients[0][1], gradients[2][2]):
        array[: len(special)] = special
        array[-len(special) :] = special
    for g in gradients:
        g[3] = 0
    found = trained(name, start, gradients, True)
    twin = trained(name, start, gradients, False)
    for key, array in twin.items():
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(found[key]), test(array), err_msg=key)


@needs_numba
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_numpy_goes_on_with_the_states_of_loops_and_loops_with_those_of_numpy(name, trained):
    start, gradients = numbers("f8")
    twin = trained(name, start, gradients, False)
    found = trained.run(name, start, gradients, [True, False, True, False])
    for key, array in twin.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-12, atol=1e-14, err_msg=key)


@needs_numba
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_what_loops_do_not_take_is_left_to_the_twin(dtype, trained):
    start, gradients = numbers(dtype)
    start, gradients = start.T, [g.T for g in gradients]
    found = trained("Adam", start, gradients, True)
    twin = trained("Adam", start, gradients, False)
    for key, array in twin.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_allclose(found[key], array, rtol=1e-6, err_msg=key)
