"""Values of hyperparameters after each call, before training, and after a resumption at any
moment.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import mnpar
from mnpar.training import extensions as E
from mnpar.training.triggers import ManualScheduleTrigger
from tests.harness.trainers import counting, load, saved

T = np.arange(13)
SHIFTS = {
    "exponential": (lambda: E.ExponentialShift("lr", 0.9), 0.9**T),
    "exponential, down to a target": (
        lambda: E.ExponentialShift("lr", 0.5, 2.0, 0.1),
        np.maximum(2 * 0.5**T, 0.1),
    ),
    "exponential, up to a target": (
        lambda: E.ExponentialShift("lr", 1.5, 2.0, 9.0),
        np.minimum(2 * 1.5**T, 9),
    ),
    "exponential, negative": (
        lambda: E.ExponentialShift("lr", 0.5, -2.0, -0.1),
        np.minimum(-2 * 0.5**T, -0.1),
    ),
    "exponential, to zero": (lambda: E.ExponentialShift("lr", 0.5, target=0), 0.5**T),
    "step": (lambda: E.StepShift("lr", 0.5, 3), 0.5 ** (T // 3)),
    "step, to a target": (lambda: E.StepShift("lr", 2, 3, 1.0, 5), np.minimum(2.0 ** (T // 3), 5)),
    "multistep": (
        lambda: E.MultistepShift("lr", 0.5, [2, 4, 9], 3.0),
        3 * 0.5 ** np.searchsorted([2, 4, 9], T, "right"),
    ),
    "multistep, from what there is": (
        lambda: E.MultistepShift("lr", 0.5, (5,), None),
        0.5 ** (T >= 5),
    ),
    "inverse": (lambda: E.InverseShift("lr", 0.3, 0.7), (1 + 0.3 * T) ** -0.7),
    "inverse, to a target": (
        lambda: E.InverseShift("lr", 0.3, 0.7, 3.0, 1.0),
        np.maximum(3 * (1 + 0.3 * T) ** -0.7, 1),
    ),
    "inverse, up": (
        lambda: E.InverseShift("lr", 0.3, -0.7, 3.0, 5.0),
        np.minimum(3 * (1 + 0.3 * T) ** 0.7, 5),
    ),
    "polynomial": (lambda: E.PolynomialShift("lr", 0.9, 8), np.maximum(1 - T / 8, 0) ** 0.9),
    "polynomial, to target": (
        lambda: E.PolynomialShift("lr", 2, 8, 2.0, 0.5),
        2 * np.clip(1 - T / 8, 0.5, 1) ** 2,
    ),
    "linear": (lambda: E.LinearShift("lr", (2.0, 6.0), (2, 6)), np.clip(T, 2, 6).astype(float)),
    "warm-up": (lambda: E.WarmupShift("lr", 0.1, 5, 1.0), 0.1 + 0.9 * np.minimum(T / 5, 1)),
    "warm-up, from what there is": (
        lambda: E.WarmupShift("lr", None, 5, 2.0),
        1 + np.minimum(T / 5, 1),
    ),
}
shifts = pytest.mark.parametrize(("make", "expected"), SHIFTS.values(), ids=SHIFTS)


def values(tmp_path, make, stop, data=None):
    """What the optimizer has in each update, and the trainer."""
    trainer, found = counting(tmp_path, (stop, "iteration")), []
    update = trainer.updater.update
    trainer.updater.update = lambda: (found.append(trainer.updater.optimizer.lr), update())
    trainer.extend(make())
    if data is not None:
        load(data, trainer)
    trainer.run()
    return found, trainer


@shifts
def test_a_value_is_that_of_its_formula(make, expected, tmp_path):
    np.testing.assert_allclose(values(tmp_path, make, 13)[0], expected, rtol=1e-14)


@pytest.mark.parametrize("moment", [1, 3, 6, 9])
@shifts
def test_a_value_goes_on_where_it_was(make, expected, moment, tmp_path):
    before, trainer = values(tmp_path, make, moment)
    after, _ = values(tmp_path, make, 13, saved(trainer))
    np.testing.assert_allclose(before + after, expected, rtol=1e-14)


def test_a_shift_may_be_of_another_optimizer_and_attribute():
    adam = mnpar.optimizers.Adam(beta1=0.8)
    shift = E.ExponentialShift("beta1", 0.5, optimizer=adam)
    shift.initialize(SimpleNamespace())
    shift(SimpleNamespace())
    assert adam.beta1 == 0.4


@pytest.mark.parametrize(
    "make",
    [
        mnpar.optimizers.MomentumSGD,
        lambda lr: mnpar.optimizers.apply_momentum(mnpar.optimizers.SGD(lr)),
    ],
)
def test_neons_linear_monotone_momentum_is_a_linear_shift(make):
    """The first coefficient before its start, linear to the last one, then held: and steps are
    taken with it.
    """
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.zeros(1))
    optimizer = make(0.1).setup(link)
    p = 0.0
    v = 0.0
    shift = E.LinearShift("momentum", (0.5, 0.9), (2, 6), optimizer)
    shift.initialize(SimpleNamespace())
    for momentum in np.interp(range(9), (2, 6), (0.5, 0.9)):
        link.p.grad = np.ones(1)
        optimizer.update()
        v = momentum * v - 0.1
        p += v
        np.testing.assert_allclose(link.p.array, p, rtol=1e-14)
        shift(SimpleNamespace())


@pytest.mark.parametrize("order", [1, -1], ids=["warm-up first", "warm-up last"])
def test_a_warm_up_leaves_the_value_to_another_shift(order, tmp_path):
    def make(stop):
        trainer = counting(tmp_path, (stop, "iteration"))
        each = [
            (E.WarmupShift("lr", 0.0, 2, 1.0), (1, "iteration")),
            (E.ExponentialShift("lr", 0.5, 1.0), (3, "iteration")),
        ]
        for shift, trigger in each[::order]:
            trainer.extend(shift, trigger=trigger)
        return trainer

    first = make(7)
    second = make(8)
    first.run()
    load(saved(first), second)
    second.run()
    assert (first.updater.optimizer.lr, second.updater.optimizer.lr) == (0.25, 0.25)


@pytest.mark.parametrize("points", [[2], [2, 4]])
def test_a_value_stays_after_the_last_point_of_a_schedule(points, tmp_path):
    def make(stop):
        trainer = counting(tmp_path, (stop, "iteration"))
        trainer.extend(
            E.ExponentialShift("lr", 0.5), trigger=ManualScheduleTrigger(points, "iteration")
        )
        return trainer

    first = make(5)
    second = make(6)
    first.run()
    load(saved(first), second)
    second.run()
    assert second.updater.optimizer.lr == 0.5 ** len(points)


def test_a_shift_begins_with_what_another_one_had_set_before_the_run_was_resumed(tmp_path):
    def make(stop):
        trainer = counting(tmp_path, (stop, "iteration"))
        trainer.extend(E.ExponentialShift("lr", 0.5, 8.0), trigger=(2, "iteration"))
        trainer.extend(E.StepShift("lr", 0.5, 1), trigger=(3, "iteration"))  # from 8
        return trainer

    first = make(5)
    second = make(6)
    first.run()
    load(saved(first), second)
    second.run()
    assert second.updater.optimizer.lr == 8 * 0.5**2


@pytest.mark.parametrize(
    "make", [lambda: E.ExponentialShift("lr", -1), lambda: E.InverseShift("lr", -1, 1)]
)
def test_a_negative_rate_is_refused(make):
    with pytest.raises(ValueError, match=r"not negative, not (by )?-1"):
        make()
