"""Half precision: losses that are scaled, steps that are left out, parameters that are updated in 32 bits."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
import mnpar.optimizers as opt
from mnpar.optimizer_hooks import GradientClipping, GradientLARS


def model_of(dtype="f4", n=3):
    model = mnpar.Link()
    model.p = mnpar.Parameter(np.ones(n, dtype))
    return model


def test_a_scaled_loss_gives_the_same_step():
    plain, scaled = model_of(), model_of()
    for model, scale in ((plain, None), (scaled, 128.0)):
        optimizer = opt.SGD(0.5).setup(model)
        if scale:
            optimizer.loss_scaling(scale=scale)
        optimizer.update(lambda model=model: F.sum(model.p * 3))
    np.testing.assert_array_equal(plain.p.array, scaled.p.array)


def test_a_step_that_overflows_is_left_out_and_the_scale_is_halved_until_it_fits():
    model = model_of("e")
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.loss_scaling(interval=2)
    scales = []
    for gradient in (np.inf, np.nan, 1.0, 1.0, 1.0):
        model.p.grad = np.full(3, gradient, "e")
        optimizer.update()
        scales.append(optimizer._loss_scale)
    assert scales == [2.0**15, 2.0**14, 2.0**14, 2.0**15, 2.0**15]
    assert optimizer.t == 3
    np.testing.assert_array_equal(model.p.array, 1 - 3)


@pytest.mark.ranks(2, 3)
def test_ranks_that_step_together_leave_a_step_out_together(comm):
    model = model_of()
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.loss_scaling(interval=5, comm=comm)
    model.p.grad = np.full(3, np.inf if comm.rank == 1 else 1.0, "f4")
    assert optimizer.is_safe_to_update() is (comm.rank != 1)
    optimizer.update()
    np.testing.assert_array_equal(model.p.array, 1)
    assert optimizer._loss_scale == 2.0**15


def test_small_steps_add_up_in_32_bits():
    results = {}
    for wide in (False, True):
        model = model_of("e")
        optimizer = opt.SGD(1e-4).setup(model)
        optimizer.use_fp32_update(wide)
        for _ in range(100):
            model.p.grad = np.ones(3, "e")
            optimizer.update()
        results[wide] = model.p.array
    np.testing.assert_array_equal(results[False], 1)  # each step is lost
    np.testing.assert_allclose(results[True], 0.99, rtol=1e-3)
    assert results[True].dtype == np.float16


def test_a_parameter_that_somebody_changed_is_taken_as_it_is():
    model = model_of("e")
    optimizer = opt.SGD(0.5).setup(model)
    optimizer.use_fp32_update()
    for start in (1, 7):
        model.p.array[...] = start
        model.p.grad = np.ones(3, "e")
        optimizer.update()
        np.testing.assert_array_equal(model.p.array, start - 0.5)


@pytest.mark.parametrize(("interval", "scale"), [(-1, 1.0), (1, 0.0)])
def test_impossible_scales_are_refused(interval, scale):
    with pytest.raises(ValueError, match="loss scaling"):
        opt.LossScaling(interval, scale)


def test_mixed16_makes_halves_but_for_statistics():
    with mnpar.using_config("dtype", mnpar.mixed16):
        assert L.Linear(2, 3).W.dtype == np.float16
        assert L.BatchNormalization(3).gamma.dtype == np.float32
        assert repr(mnpar.config.dtype) == "dtype('mixed16')"
    assert mnpar.get_dtype("d") == np.float64


@pytest.mark.ranks(1, 2, 3)
def test_parts_of_a_model_on_several_ranks_are_clipped_by_their_common_norm(comm):
    gs = [np.arange(r + 1, r + 4, dtype="f4") for r in range(comm.size)]
    model = model_of()
    model.p.grad = gs[comm.rank].copy()
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.add_hook(GradientClipping(2.0, comm))
    optimizer.update()
    whole = np.concatenate(gs)
    np.testing.assert_allclose(model.p.array, 1 - gs[comm.rank] * 2 / np.linalg.norm(whole), rtol=1e-6)


@pytest.mark.parametrize("p", [1.0, 1e-3])
def test_lars_takes_steps_in_proportion_to_the_parameter(p):
    model = model_of("d")
    model.p.array[...], model.p.grad = p, np.array([1.0, 2.0, 2.0])
    GradientLARS(0.01, weight_decay=0.1)(None, model.p)
    norm = p * np.sqrt(3)
    rate = 0.01 * norm / (1e-9 + 3 + 0.1 * norm) if norm > 0.01 else 1
    np.testing.assert_allclose(model.p.grad, rate * (np.array([1.0, 2.0, 2.0]) + 0.1 * p))
