"""Plots of observed values and of statistics of variables over time, if matplotlib is installed.

Figures are made without pyplot: there is no window and no global state, so that any thread may
draw.
"""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.link import Link
from mnpar.reporter import DictSummary
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.serializers.atomic import replacing_path
from mnpar.training.extension import Extension, TriggerLike, keep, keep_part
from mnpar.training.extensions.reported_keys import ReportedKeys
from mnpar.training.trainer import Trainer
from mnpar.training.triggers.interval import get_trigger
from mnpar.variable import Variable


def available() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _warn_unless_available(what: str) -> None:
    if not available():
        warnings.warn(
            f"{what} draws nothing: matplotlib is missing (pip install matplotlib)", stacklevel=3
        )


def _save(figure: Any, path: str) -> None:
    with replacing_path(path) as temporary:
        figure.savefig(temporary, bbox_inches="tight")


class PlotReport(Extension):
    """Averages what is observed over an interval, and draws the averages of all intervals.

    Args:
        y_keys: one or several, each a curve.
        x_key: of the other axis: ``'iteration'``, ``'epoch'``, or one that is observed.
        trigger: when an interval ends; the extension itself is called at each iteration.
        postprocess: called with figure, axes and :class:`mnpar.DictSummary` before it is saved.
        filename: in the trainer's folder; its ending is the format. (``file_name`` is the same.)
            If ranks train together, the default ``'plot.png'`` is drawn by rank 0, any other by
            each rank that is given one.
        marker: matplotlib's, of each average; None: none.
        grid: draw one.

    Example:
        >>> from mnpar.training import extensions
        >>> losses = extensions.PlotReport(
        ...     ["main/loss", "validation/main/loss"], "epoch", filename="loss.png"
        ... )
    """

    def __init__(
        self,
        y_keys: str | Iterable[str],
        x_key: str = "iteration",
        trigger: TriggerLike = (1, "epoch"),
        postprocess: Callable[[Any, Any, Any], None] | None = None,
        filename: str | None = None,
        marker: str | None = "x",
        grid: bool = True,
        *,
        file_name: str = "plot.png",
    ) -> None:
        _warn_unless_available("PlotReport")
        self._y_keys = [y_keys] if isinstance(y_keys, str) else list(y_keys)
        self._x_key = x_key
        self._trigger = get_trigger(trigger)
        self._postprocess = postprocess
        self._file_name = file_name if filename is None else filename
        self._asked = self._file_name != "plot.png"
        self._marker, self._grid = marker, grid
        self._data: dict[str, list[Any]] = {key: [] for key in self._y_keys}
        self._keys = ReportedKeys(type(self).__name__, [*self._y_keys, x_key])
        self._keys.add(("epoch", "iteration"))
        self._summary = DictSummary()

    @staticmethod
    def available() -> bool:
        """Return whether matplotlib is installed."""
        return available()

    def __call__(self, trainer: Trainer) -> None:
        self._keys.add(trainer.observation)
        wanted = [*self._y_keys, self._x_key]
        self._summary.add(
            {key: trainer.observation[key] for key in wanted if key in trainer.observation}
        )
        if not (self._trigger(trainer) or trainer.is_before_training):
            return
        means = {
            **self._summary.compute_mean(),
            "epoch": trainer.updater.epoch,
            "iteration": trainer.updater.iteration,
        }
        for key in self._y_keys:
            if key in means and self._x_key in means:
                self._data[key].append((means[self._x_key], means[key]))
        summary, self._summary = self._summary, DictSummary()
        if not (self._asked or getattr(trainer, "speaks", True)):
            return
        self._keys.compare()
        if available() and any(self._data.values()):
            _save(self._draw(summary), os.path.join(trainer.out, self._file_name))

    def on_error(self, trainer: Trainer, exc: Exception, tb: TracebackType | None) -> None:
        """Tell nothing: what is missing might have come."""
        self._keys.forget()

    def finalize(self) -> None:
        """Tell which of its keys were never reported."""
        self._keys.end()

    def _draw(self, summary: DictSummary) -> Any:
        from matplotlib.figure import Figure

        figure = Figure()
        axes = figure.add_subplot()
        axes.set_xlabel(self._x_key)
        if self._grid:
            axes.grid()
        for key, points in self._data.items():
            if points:
                axes.plot(*np.array(points).T, marker=self._marker, label=key)
        if self._postprocess is not None:
            self._postprocess(figure, axes, summary)
        axes.legend(bbox_to_anchor=(1.05, 1), loc=2, borderaxespad=0.0)
        return figure

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the averages, and the sums of the current interval."""
        self._summary.serialize(serializer["_summary"])
        data = keep(serializer, f"_plot_{self._file_name}", json.dumps(self._data), str)
        if isinstance(serializer, Deserializer):
            self._data = {key: json.loads(data).get(key, []) for key in self._y_keys}
        keep_part(serializer, "_trigger", self._trigger)


class VariableStatisticsPlot(Extension):
    """Draws mean, deviation and percentiles of variables, or all parameters of links, and of their
    gradients, over time.

    A fixed number of iterations is drawn: a sample in which each has the same chance to be.

    Args:
        targets: Variables, Links, or lists of them: taken together.
        max_sample_size: how many iterations are kept.
        report_data: the values.
        report_grad: the gradients.
        plot_mean, plot_std: mean; standard deviation.
        percentile_sigmas: which percentiles, of 100; an empty tuple: none.
        trigger: when the picture is saved; the extension itself is called at each iteration.
        filename: in the trainer's folder. (``file_name`` is the same.)
        figsize: of the picture, in inches.
        marker: matplotlib's.
        grid: draw one.

    Raises:
        ValueError: there is no variable, or nothing to draw of it.

    Example:
        >>> import mnpar.links as L
        >>> from mnpar.training import extensions
        >>> statistics = extensions.VariableStatisticsPlot(L.Linear(3, 2))
    """

    def __init__(
        self,
        targets: Variable | Link | Sequence[Variable | Link],
        max_sample_size: int = 1000,
        report_data: bool = True,
        report_grad: bool = True,
        plot_mean: bool = True,
        plot_std: bool = True,
        percentile_sigmas: float | Sequence[float] = (
            0,
            0.13,
            2.28,
            15.87,
            50,
            84.13,
            97.72,
            99.87,
            100,
        ),
        trigger: TriggerLike = (1, "epoch"),
        filename: str | None = None,
        figsize: tuple[float, float] | None = None,
        marker: str | None = None,
        grid: bool = True,
        *,
        file_name: str = "statistics.png",
    ) -> None:
        _warn_unless_available("VariableStatisticsPlot")
        self._vars = list(_variables(targets))
        self._percentiles = np.atleast_1d(np.array(percentile_sigmas, float)).tolist()
        self._keys = ["data"] * report_data + ["grad"] * report_grad
        if not self._vars or not self._keys or not (plot_mean or plot_std or self._percentiles):
            raise ValueError(
                f"nothing to draw: {len(self._vars)} variables, {len(self._keys)} of values "
                "and gradients"
            )
        self._mean, self._std = plot_mean, plot_std
        self._trigger, self._size = get_trigger(trigger), max_sample_size
        self._filename = file_name if filename is None else filename
        self._asked = self._filename != "statistics.png"
        self._figsize, self._marker, self._grid = figsize, marker, grid
        self._samples: list[
            tuple[int, Any]
        ] = []  # (iteration, (keys, statistics)); of all with equal chances
        self._seen = 0
        # its own: the picture must not change what the model draws
        self._rng = np.random.default_rng(0)

    @staticmethod
    def available() -> bool:
        """Return whether matplotlib is installed."""
        return available()

    def __call__(self, trainer: Trainer) -> None:
        self._sample(trainer.updater.iteration)
        if (
            self._trigger(trainer)
            and available()
            and (self._asked or getattr(trainer, "speaks", True))
        ):
            _save(self._draw(), os.path.join(trainer.out, self._filename))

    def _sample(self, iteration: int) -> None:
        """Reservoir sampling: the n-th comes in with chance size / n, in the place of any."""
        self._seen += 1
        place = (
            len(self._samples) if self._seen <= self._size else int(self._rng.integers(self._seen))
        )
        if place < self._size:
            self._samples[place : place + 1] = [
                (iteration, [self._statistics(key) for key in self._keys])
            ]

    def _statistics(self, key: str) -> Any:
        """Mean, deviation and percentiles of all variables together; NaN where there is nothing."""
        arrays = [
            var.array if key == "data" else var.grad for var in self._vars if var.array is not None
        ]
        arrays = [array.ravel() for array in arrays if array is not None]
        if not arrays:
            return np.full(2 + len(self._percentiles), np.nan)
        xp = backend.get_array_module(*arrays)
        x = xp.concatenate(arrays)
        percentiles: Any = (
            backend.to_host(xp.percentile(x, self._percentiles)) if self._percentiles else []
        )
        return np.array([float(x.mean()), float(x.std()), *percentiles])

    def _draw(self) -> Any:
        from matplotlib.figure import Figure

        samples = sorted(self._samples, key=lambda sample: sample[0])
        # data: (T, keys, statistics)
        t, data = (
            np.array([i for i, _ in samples]),
            np.array([each for _, each in samples]),
        )
        rows = int(self._mean or self._std) + bool(self._percentiles)
        figure = Figure(figsize=self._figsize)
        axes = figure.subplots(rows, len(self._keys), sharex=True, squeeze=False)
        for column, key in enumerate(self._keys):
            axes[0, column].set_title(key)
            if self._mean or self._std:
                self._draw_moments(axes[0, column], t, data[:, column, 0], data[:, column, 1])
            if self._percentiles:
                self._draw_percentiles(axes[-1, column], t, data[:, column, 2:])
            axes[-1, column].set_xlabel("iteration")
        for one in axes.ravel():
            one.legend()
            if self._grid:
                one.grid()
                one.set_axisbelow(True)
        return figure

    def _draw_moments(self, axes: Any, t: Array, mean: Array, std: Array) -> None:
        if self._mean and self._std:
            axes.errorbar(
                t, mean, std, color="C0", ecolor=("C0", 0.2), label="mean, std", marker=self._marker
            )
        else:
            values, label = (mean, "mean") if self._mean else (std, "std")
            axes.plot(t, values, color="C0", label=label, marker=self._marker)

    def _draw_percentiles(self, axes: Any, t: Array, values: Array) -> None:
        """Bands between the outer ones, around the middle one."""
        count = values.shape[1]
        for i in range(count // 2):
            label = "percentile" if i == 0 and count % 2 == 0 else None
            axes.fill_between(
                t, values[:, i], values[:, -i - 1], color="C0", alpha=0.2, linewidth=0, label=label
            )
        if count % 2:
            axes.plot(t, values[:, count // 2], color="C0", label="percentile", marker=self._marker)


def _variables(targets: Variable | Link | Sequence[Variable | Link]) -> Iterable[Variable]:
    if isinstance(targets, Variable):
        yield targets
    elif isinstance(targets, Link):
        yield from targets.params()
    elif isinstance(targets, list | tuple):
        for target in targets:
            yield from _variables(target)
