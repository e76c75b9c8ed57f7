"""The evaluation of a model on examples that it does not learn from."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mnpar.configuration import no_backprop_mode, using_config
from mnpar.dataset import concat_examples
from mnpar.dataset.convert import converted
from mnpar.dataset.iterator import Iterator
from mnpar.iterators.repeats import without_repeats
from mnpar.link import Link
from mnpar.reporter import DictSummary, Reporter, report, report_scope
from mnpar.serializer import AbstractSerializer
from mnpar.training.extension import PRIORITY_WRITER, Extension
from mnpar.training.extensions.progress_bar import Bar
from mnpar.training.trainer import Trainer
from mnpar.training.updaters.standard_updater import Converter, call


class Evaluator(Extension):
    """Goes through an iterator once and reports, under ``validation/``, the means of the values
    that the model reports.

    Means are over examples: each batch is weighted by its length, so that neither the batch size
    matters nor how examples are spread over ranks (:func:`mnpar.create_multi_node_evaluator`). A
    value that is reported as a pair ``(value, weight)`` has that weight instead.

    Args:
        iterator: one that ends (``repeat=False``); or a dict of iterators by name, with a
            ``'main'`` one. None, if ``evaluate`` is overridden and needs none.
        target: the model; or a dict of links by name, with a ``'main'`` one.
        converter: makes arrays of a batch, ``converter(batch, device)``; functions get the device's
            number (-1: the host).
        device: where batches go; None leaves them.
        eval_hook: called with this evaluator at the beginning of each evaluation.
        eval_func: called with the arrays of each batch; None: the model.
        progress_bar: show one.

    It can be called without a trainer, too, and returns the means by name. ``mnpar.config.train``
    is False meanwhile, and nothing is recorded.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> from mnpar.training import extensions
        >>> data = [(np.zeros(3, "f4"), i % 2) for i in range(10)]
        >>> model = L.Classifier(L.Linear(3, 2))
        >>> extensions.Evaluator(mnpar.iterators.SerialIterator(data, 4, repeat=False), model)()[
        ...     "main/accuracy"
        ... ]
        0.5
    """

    trigger = (1, "epoch")
    default_name = "validation"
    priority = PRIORITY_WRITER

    def __init__(
        self,
        iterator: Iterator | dict[str, Iterator],
        target: Link | dict[str, Link],
        converter: Converter = concat_examples,
        device: int | str | None = None,
        eval_hook: Callable[[Evaluator], None] | None = None,
        eval_func: Callable[..., Any] | None = None,
        *,
        progress_bar: bool = False,
    ) -> None:
        self._iterators = iterator if isinstance(iterator, dict) else {"main": iterator}
        self._targets = target if isinstance(target, dict) else {"main": target}
        self.converter = converter
        self.device = device
        self.eval_hook = eval_hook
        self.eval_func = eval_func
        self._progress_bar = progress_bar
        self._summary = DictSummary()  # of the last evaluation
        self._repeated: list[int] = []  # the places of examples that another rank counts
        for name, one in self._iterators.items():
            if getattr(one, "repeat", False):
                warnings.warn(
                    f"the iterator {name} goes on for ever, and so will the evaluation: "
                    "repeat=False",
                    stacklevel=2,
                )

    def get_iterator(self, name: str) -> Iterator:
        """Return the iterator of a name."""
        return self._iterators[name]

    def get_all_iterators(self) -> dict[str, Iterator]:
        """Return all iterators by name."""
        return dict(self._iterators)

    def get_target(self, name: str) -> Any:
        """Return the link of a name."""
        return self._targets[name]

    def get_all_targets(self) -> dict[str, Any]:
        """Return all links by name."""
        return dict(self._targets)

    def __call__(self, trainer: Trainer | None = None) -> dict[str, float]:
        """Evaluate, report and return the means."""
        prefix = "" if self.name is None else f"{self.name}/"
        reporter = Reporter()
        for name, target in self._targets.items():
            reporter.add_observer(prefix + name, target)
            reporter.add_observers(prefix + name, target.namedlinks(skipself=True))
        with reporter, using_config("train", False):
            result = self.evaluate()
        report(result)
        return result

    def evaluate(self) -> dict[str, float]:
        """Return the means by name; subclasses may override it."""
        iterator = self._iterators["main"]
        if iterator is None:
            raise TypeError(
                f"this {type(self).__name__} has no iterator to evaluate: give it one, or override "
                "evaluate"
            )
        if getattr(iterator, "repeat", False):
            raise ValueError(
                f"the iterator of this {type(self).__name__} goes on for ever, and so would the "
                "evaluation: give it one with repeat=False"
            )
        evaluate = self.eval_func or self._targets["main"]
        if self.eval_hook:
            self.eval_hook(self)
        if hasattr(iterator, "reset"):
            iterator.reset()
        else:
            iterator = copy.copy(iterator)
        summary = DictSummary()
        bar = Bar() if self._progress_bar else None
        for batch, counts in without_repeats(iterator, self._repeated):
            observation: dict[str, Any] = {}
            with report_scope(observation), no_backprop_mode():
                call(evaluate, converted(self.converter, batch, self.device))
            if counts:
                summary.add(observation, weight=len(batch))
            if bar:
                bar.show("validation", getattr(iterator, "epoch_detail", 0.0), 1, "epoch")
        if bar:
            bar.close()
        self._summary = summary
        return summary.compute_mean()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the order samplers of iterators that shuffle: a mean's last digits depend on
        the order of examples.
        """
        for name, iterator in self._iterators.items():
            sampler: Any = getattr(
                getattr(iterator, "actual_iterator", iterator), "order_sampler", None
            )
            if hasattr(sampler, "serialize"):
                with suppress(KeyError):  # Chainer does not save it
                    sampler.serialize(serializer[f"iterator:{name}"]["order_sampler"])

    def finalize(self) -> None:
        """Let the iterators give back their threads and files."""
        for iterator in self._iterators.values():
            if hasattr(iterator, "finalize"):
                iterator.finalize()
