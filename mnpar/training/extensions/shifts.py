"""Schedules of hyperparameters: each shift defines the value after t calls, its base class sets it.

The value is set before training (if a snapshot was loaded, to the saved value) and at each call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mnpar.optimizers.optimizer import Optimizer
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.training.extension import Extension, keep
from mnpar.training.trainer import Trainer


class Shift(Extension):
    """The base: sets an attribute of an optimizer to ``value(t)`` at the t-th call.

    Args:
        attr: of the optimizer, ``'lr'`` or ``'alpha'``.
        init: the value at first; None: what the optimizer has.
        optimizer: whose; None: the updater's main one.

    Example:
        >>> from types import SimpleNamespace
        >>> import mnpar
        >>> from mnpar.training.extensions.shifts import Shift
        >>> class Halving(Shift):
        ...     def value(self, t):
        ...         return self._init / 2**t
        >>> optimizer = mnpar.optimizers.SGD(lr=1.0)
        >>> halving = Halving("lr", None, optimizer)
        >>> halving.initialize(None)
        >>> halving(None)
        >>> optimizer.lr
        0.5
    """

    restores = True  # a Trainer initializes it where its trigger has finished, too: the value stays

    def __init__(self, attr: str, init: float | None, optimizer: Optimizer | None) -> None:
        self._attr, self._init, self._optimizer = attr, init, optimizer
        self._given = init is not None
        self._t = 0
        self._last_value: float | None = None
        self._known: Optimizer | None = None  # the optimizer, once training has begun

    def value(self, t: int) -> float:
        """Return the value after ``t`` calls; to be defined by each kind."""
        raise NotImplementedError(f"{type(self).__name__} does not define value(self, t)")

    def _set(self, trainer: Trainer, value: float) -> None:
        setattr(self._whose(trainer), self._attr, value)
        self._last_value = value

    def _whose(self, trainer: Trainer) -> Optimizer:
        self._known = self._optimizer or trainer.updater.get_optimizer("main")
        return self._known

    def initialize(self, trainer: Trainer) -> None:
        """Set the first value, or the one that was loaded."""
        if self._init is None:
            self._init = getattr(self._whose(trainer), self._attr)
        self._set(trainer, self.value(self._t) if self._last_value is None else self._last_value)

    def __call__(self, trainer: Trainer) -> None:
        self._t += 1
        self._set(trainer, self.value(self._t))

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the count of calls and the present value of the attribute, which another
        shift may have set.

        Without ``init``, the initial value is saved, too: when training is resumed the attribute
        has another value.
        """
        if not self._given:
            self._init = keep(serializer, "_init", self._init, float)
        if self._known is not None and not isinstance(serializer, Deserializer):
            self._last_value = getattr(self._known, self._attr)
        self._t = int(serializer("_t", self._t))
        self._last_value = keep(serializer, "_last_value", self._last_value, float)


def _until(value: float, target: float | None, grows: bool) -> float:
    """Return the value, or ``target`` once its magnitude is past the target's: above it if the
    value grows, below if it shrinks.
    """
    if not target:
        return value
    ratio = value / target
    return target if (ratio > 1 if grows else ratio < 1) else value


class ExponentialShift(Shift):
    """Multiplies an attribute of the optimizer by ``rate`` at each call: init · rate^t.

    Args:
        attr: of the optimizer.
        rate: not negative.
        init: the value at first; None: what the optimizer has.
        target: where it stops.
        optimizer: whose; None: the updater's main one.

    Raises:
        ValueError: the rate is negative.

    Example:
        >>> from mnpar.training import extensions
        >>> halves = extensions.ExponentialShift(
        ...     "lr", 0.5
        ... )  # trainer.extend(halves, trigger=(25, "epoch"))
    """

    def __init__(
        self,
        attr: str,
        rate: float,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, optimizer)
        if rate < 0:
            raise ValueError(
                f"ExponentialShift multiplies by a rate that is not negative, not by {rate}"
            )
        self._rate, self._target = rate, target

    def value(self, t: int) -> float:
        """init · rate^t."""
        assert self._init is not None
        return _until(self._init * self._rate**t, self._target, self._rate > 1)


class StepShift(Shift):
    """Multiplies an attribute of the optimizer by ``gamma`` at every ``step``-th call: init ·
    gamma^⌊t / step⌋.

    Args:
        attr: of the optimizer.
        gamma: the factor.
        step: calls between two changes.
        init, target, optimizer: as of :class:`ExponentialShift`.

    Example:
        >>> from mnpar.training import extensions
        >>> extensions.StepShift("lr", 0.1, 30, init=1.0).value(60)
        0.010000000000000002
    """

    def __init__(
        self,
        attr: str,
        gamma: float,
        step: float,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, optimizer)
        self._gamma, self._step, self._target = gamma, step, target

    def value(self, t: int) -> float:
        """init · gamma^⌊t / step⌋."""
        assert self._init is not None
        return _until(
            self._init * self._gamma ** math.floor(t / self._step), self._target, self._gamma > 1
        )


class MultistepShift(Shift):
    """Multiplies an attribute of the optimizer by ``gamma`` at the given calls.

    Args:
        attr: of the optimizer.
        gamma: the factor.
        step_value: the calls, in ascending order.
        init: the value at first; None: what the optimizer has.
        optimizer: whose; None: the updater's main one.

    Example:
        >>> from mnpar.training import extensions
        >>> shift = extensions.MultistepShift("lr", 0.5, [2, 4], init=1.0)
        >>> [shift.value(t) for t in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(
        self,
        attr: str,
        gamma: float,
        step_value: Sequence[int],
        init: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, optimizer)
        self._gamma = gamma
        self._steps: list[int] = []  # when each is taken: one at a call
        for step in step_value:
            self._steps.append(max(step, self._steps[-1] + 1 if self._steps else 1))

    def value(self, t: int) -> float:
        """init · gamma^(steps until t)."""
        assert self._init is not None
        return float(self._init * self._gamma ** sum(step <= t for step in self._steps))


class InverseShift(Shift):
    """Lets an attribute of the optimizer fall as init · (1 + gamma t)^(-power), Caffe's ``inv``
    policy.

    Args:
        attr: of the optimizer.
        gamma: not negative.
        power: the larger, the faster.
        init, target, optimizer: as of :class:`ExponentialShift`.

    Raises:
        ValueError: gamma is negative.

    Example:
        >>> from mnpar.training import extensions
        >>> extensions.InverseShift("lr", 1.0, 1.0, init=1.0).value(3)
        0.25
    """

    def __init__(
        self,
        attr: str,
        gamma: float,
        power: float,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, optimizer)
        if gamma < 0:
            raise ValueError(f"InverseShift takes a gamma that is not negative, not {gamma}")
        self._gamma, self._power, self._target = gamma, power, target

    def value(self, t: int) -> float:
        """init · (1 + gamma t)^(-power)."""
        assert self._init is not None
        return _until(
            float(self._init * (1 + self._gamma * t) ** -self._power), self._target, self._power < 0
        )


class PolynomialShift(Shift):
    """Lets an attribute of the optimizer fall to 0 as init · (1 - t / max_count)^rate, Caffe's
    ``poly`` policy.

    Args:
        attr: of the optimizer.
        rate: the exponent.
        max_count: calls until 0.
        init, target, optimizer: as of :class:`ExponentialShift`.

    Example:
        >>> from mnpar.training import extensions
        >>> extensions.PolynomialShift("lr", 2, 10, init=1.0).value(5)
        0.25
    """

    def __init__(
        self,
        attr: str,
        rate: float,
        max_count: int,
        init: float | None = None,
        target: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, init, optimizer)
        self._rate, self._max_count, self._target = rate, max_count, target

    def value(self, t: int) -> float:
        """init · (1 - t / max_count)^rate."""
        assert self._init is not None
        left = max(1 - t / self._max_count, 0.0)
        power = left**self._rate if left or self._rate >= 0 else math.inf
        return _until(float(self._init * power), self._target, self._rate <= 0)


class LinearShift(Shift):
    """Moves an attribute of the optimizer from one value to another, in equal steps between two
    calls.

    Args:
        attr: of the optimizer.
        value_range: the values at first and at last.
        time_range: the calls at which it starts to change and is through.
        optimizer: whose; None: the updater's main one.

    Example:
        >>> from mnpar.training import extensions
        >>> shift = extensions.LinearShift("lr", (1.0, 0.0), (2, 4))
        >>> [shift.value(t) for t in range(6)]
        [1.0, 1.0, 1.0, 0.5, 0.0, 0.0]
    """

    def __init__(
        self,
        attr: str,
        value_range: tuple[float, float],
        time_range: tuple[int, int],
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, value_range[0], optimizer)
        self._values, self._times = value_range, time_range

    def value(self, t: int) -> float:
        """On the line between the two."""
        (v1, v2), (t1, t2) = self._values, self._times
        if t <= t1:
            return v1
        if t >= t2:
            return v2
        return v1 + (t - t1) / (t2 - t1) * (v2 - v1)


class WarmupShift(Shift):
    """Raises an attribute of the optimizer from ``warmup_start`` to ``init`` in the first calls,
    and then leaves it alone.

    Args:
        attr: of the optimizer.
        warmup_start: the value at first; None: what the optimizer has.
        warmup_iter: how many calls.
        init: the value after them.
        optimizer: whose; None: the updater's main one.

    Example:
        >>> from mnpar.training import extensions
        >>> shift = extensions.WarmupShift("lr", 0.0, 4, 1.0)
        >>> [shift.value(t) for t in range(6)]
        [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """

    def __init__(
        self,
        attr: str,
        warmup_start: float | None,
        warmup_iter: int,
        init: float,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(attr, warmup_start, optimizer)
        self._iterations, self._final = warmup_iter, init

    def value(self, t: int) -> float:
        """On the line between the two."""
        assert self._init is not None
        t = min(t, self._iterations)
        return (t * self._final + (self._iterations - t) * self._init) / self._iterations

    def __call__(self, trainer: Trainer) -> None:
        if self._t < self._iterations:
            super().__call__(trainer)
        else:
            self._t += 1
