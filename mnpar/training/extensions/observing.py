"""Extensions that look at values, parameters and gradients, and report or complain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators import current_rank
from mnpar.configuration import config
from mnpar.link import Link
from mnpar.reporter import DictSummary, report
from mnpar.serializer import AbstractSerializer
from mnpar.training.extension import (
    PRIORITY_EDITOR,
    PRIORITY_WRITER,
    Extension,
    TriggerLike,
    keep,
    keep_part,
    make_extension,
)
from mnpar.training.trainer import Trainer
from mnpar.training.triggers.interval import get_trigger
from mnpar.variable import Variable


def observe_value(
    observation_key: str, target_func: Callable[[Trainer], Any]
) -> Callable[[Trainer], None]:
    """Return an extension that reports what a function of the trainer returns, at each epoch unless
    it is told otherwise.

    Args:
        observation_key: the name under which it is reported.
        target_func: called with the trainer.

    Example:
        >>> from mnpar.training import extensions
        >>> epochs = extensions.observe_value(
        ...     "epochs", lambda trainer: trainer.updater.epoch_detail
        ... )
    """

    @make_extension(trigger=(1, "epoch"), priority=PRIORITY_WRITER)
    def _observe_value(trainer: Trainer) -> None:
        trainer.observation[observation_key] = target_func(trainer)

    return _observe_value  # type: ignore[no-any-return]


def observe_lr(
    optimizer_name: str = "main", observation_key: str = "lr"
) -> Callable[[Trainer], None]:
    """Return an extension that reports the learning rate of an optimizer, at each epoch unless it
    is told otherwise.

    Args:
        optimizer_name: in the updater.
        observation_key: the name under which it is reported.

    Example:
        >>> from mnpar.training import extensions
        >>> rate = extensions.observe_lr()
    """
    return observe_value(
        observation_key, lambda trainer: trainer.updater.get_optimizer(optimizer_name).lr
    )


class FailOnNonNumber(Extension):
    """Ends training when a parameter of any optimizer has become infinite or NaN.

    Raises:
        RuntimeError: when it is called; it names rank and parameter.

    Example:
        >>> from mnpar.training import extensions
        >>> guard = extensions.FailOnNonNumber()  # trainer.extend(guard)
    """

    def __call__(self, trainer: Trainer) -> None:
        for name, optimizer in trainer.updater.get_all_optimizers().items():
            for path, param in optimizer.target.namedparams(include_uninit=False):
                xp = backend.get_array_module(param.array)
                if not xp.isfinite(param.array).all():
                    nans = int(xp.isnan(param.array).sum())
                    size = param.array.size
                    infinite = int(xp.isinf(param.array).sum())
                    raise RuntimeError(
                        f"rank {current_rank()}: parameter {path} of optimizer {name!r} has "
                        f"{nans} NaN and {infinite} infinite "
                        f"of {size} values after iteration {trainer.updater.iteration}: lower "
                        "the learning rate, clip the "
                        "gradients, or look for the operation with MNPAR_DEBUG=1"
                    )


class MicroAverage(Extension):
    """Reports Σ numerator / Σ denominator over an interval: an average in which large batches count
    more than small ones.

    Args:
        numerator_key: of the observation, a number of right answers, say.
        denominator_key: of the observation, the number of answers.
        result_key: the name under which it is reported.
        trigger: when an interval ends.

    Example:
        >>> from mnpar.training import extensions
        >>> average = extensions.MicroAverage("main/correct", "main/total", "main/accuracy")
    """

    priority = PRIORITY_EDITOR

    def __init__(
        self,
        numerator_key: str,
        denominator_key: str,
        result_key: str,
        trigger: TriggerLike = (1, "epoch"),
    ) -> None:
        self._keys, self._result_key = (numerator_key, denominator_key), result_key
        self._trigger = get_trigger(trigger)
        self._numerator: Any = 0.0
        self._denominator: Any = 0.0

    def __call__(self, trainer: Trainer) -> None:
        if all(key in trainer.observation for key in self._keys):
            numerator, denominator = (_scalar(trainer.observation[key]) for key in self._keys)
            self._numerator = self._numerator + numerator
            self._denominator = self._denominator + denominator
        if self._trigger(trainer) and self._denominator:
            report({self._result_key: float(self._numerator) / float(self._denominator)})
            self._numerator = self._denominator = 0.0

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the sums."""
        self._numerator = keep(serializer, "_numerator", float(self._numerator), float)
        self._denominator = keep(serializer, "_denominator", float(self._denominator), float)
        keep_part(serializer, "_trigger", self._trigger)


def _scalar(value: Any) -> Any:
    value = value.array if isinstance(value, Variable) else value
    return value.astype("d") if backend.is_array(value) else value


PERCENTILES = (0.13, 2.28, 15.87, 50, 84.13, 97.72, 99.87)  # of a normal distribution: -3σ … 3σ


def _by_xp(name: str, *args: Any) -> Callable[[Array], Any]:
    return lambda x: getattr(backend.get_array_module(x), name)(x, *args)


class ParameterStatistics(Extension):
    """Reports statistics of parameters and gradients, averaged over an interval, as
    ``prefix/link/param/data/mean``.

    Args:
        links: one or several, whose ``name`` stands in the report.
        statistics: functions of a flat array by name; one that returns an array reports ``…/0``,
            ``…/1``, …; ``'default'``: :attr:`default_statistics`.
        report_params: of the parameters, as ``data``.
        report_grads: of the gradients, as ``grad``, where there are any.
        prefix: in front of all names.
        trigger: when an interval ends.
        skip_nan_params: report NaN, without calling the functions, for arrays that hold one.

    Example:
        >>> import mnpar.links as L
        >>> from mnpar.training import extensions
        >>> statistics = extensions.ParameterStatistics(
        ...     L.Linear(3, 2), {"mean": lambda x: x.mean()}
        ... )
    """

    default_name = "parameter_statistics"
    priority = PRIORITY_WRITER
    report_key_template = "{prefix}{link_name}{param_name}/{attr_name}/{function_name}"
    default_statistics: Mapping[str, Callable[[Array], Any]] = {
        "mean": _by_xp("mean"),
        "std": _by_xp("std"),
        "min": _by_xp("min"),
        "max": _by_xp("max"),
        "zeros": lambda x: x.size - backend.get_array_module(x).count_nonzero(x),
        "percentile": _by_xp("percentile", PERCENTILES),
    }

    def __init__(
        self,
        links: Link | Sequence[Link],
        statistics: Any = "default",
        report_params: bool = True,
        report_grads: bool = True,
        prefix: str | None = None,
        trigger: TriggerLike = (1, "epoch"),
        skip_nan_params: bool = False,
    ) -> None:
        self._links = [links] if isinstance(links, Link) else list(links)
        self._statistics = dict(
            self.default_statistics if statistics == "default" else statistics or {}
        )
        self._attrs = ["data"] * report_params + ["grad"] * report_grads
        self._prefix = f"{prefix}/" if prefix else ""
        self._trigger, self._skip_nan_params = get_trigger(trigger), skip_nan_params
        self._summary = DictSummary()

    def register_statistics(self, name: str, function: Callable[[Array], Any]) -> None:
        """Add a statistic: a function of a flat array that returns a number or an array of
        numbers.
        """
        self._statistics[name] = function

    def __call__(self, trainer: Trainer) -> None:
        for link in self._links:
            for path, param in link.namedparams(include_uninit=False):
                for attr in self._attrs:
                    x = param.array if attr == "data" else param.grad
                    if x is not None:
                        self._summary.add(self._of(x.ravel(), link.name, path, attr))
        if self._trigger(trainer):
            report(self._summary.compute_mean())
            self._summary = DictSummary()

    def _of(self, x: Array, link: str | None, path: str, attr: str) -> dict[str, Any]:
        """Return the statistics of one array, by their whole names."""
        found: dict[str, Any] = {}
        broken = self._skip_nan_params and bool(backend.get_array_module(x).isnan(x).any())
        for name, function in self._statistics.items():
            key = self.report_key_template.format(
                prefix=self._prefix,
                link_name=link,
                param_name=path,
                attr_name=attr,
                function_name=name,
            )
            value: Any = np.nan if broken else function(x)
            if backend.is_array(value) and value.size > 1:
                found.update({f"{key}/{i}": each for i, each in enumerate(value.ravel())})
            else:
                found[key] = value.reshape(()) if backend.is_array(value) else value
        return found

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the sums of the current interval."""
        self._summary.serialize(serializer["_summary"])
        keep_part(serializer, "_trigger", self._trigger)


class unchain_variables(Extension):  # noqa: N801 (Chainer's name)
    """Unchains reported Variables at the end of each iteration if ``keep_graph_on_report`` is on,
    which frees their graphs.

    Example:
        >>> from mnpar.training import extensions
        >>> last = extensions.unchain_variables()  # trainer.extend(last)
    """

    priority = 0

    def __init__(self) -> None:
        self._kept = False

    def initialize(self, trainer: Trainer) -> None:
        """See whether graphs are kept."""
        self._kept = config.keep_graph_on_report

    def trigger(self, trainer: Trainer) -> bool:
        """Return whether graphs were kept in the last iteration."""
        kept, self._kept = self._kept, config.keep_graph_on_report
        return kept

    def __call__(self, trainer: Trainer) -> None:
        for value in trainer.observation.values():
            if isinstance(value, Variable):
                value.unchain_backward()
