"""The usual iteration: a batch, a loss, a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnpar.dataset import concat_examples
from mnpar.dataset.convert import converted
from mnpar.dataset.iterator import Iterator
from mnpar.optimizers.optimizer import Optimizer
from mnpar.serializer import AbstractSerializer
from mnpar.training.updaters.updater import Updater

Converter = Callable[..., Any]


def call(function: Callable[..., Any], arguments: Any, *first: Any) -> Any:
    """Call a function with a converter's result: a tuple is its arguments, a dict its keywords,
    others one argument.
    """
    if isinstance(arguments, tuple):
        return function(*first, *arguments)
    if isinstance(arguments, dict):
        return function(*first, **arguments)
    return function(*first, arguments)


class StandardUpdater(Updater):
    """Takes a batch from the main iterator and updates the main optimizer with its loss.

    To change what an iteration does, override ``update_core`` in a subclass.

    Args:
        iterator: of the training examples; or a dict of iterators by name, with a ``'main'`` one.
        optimizer: set up with a model; or a dict of optimizers by name, with a ``'main'`` one.
        converter: makes arrays of a batch, ``converter(batch, device)``; functions get the device's
            number (-1: the host).
        device: where models and batches go; None leaves them where they are.
        loss_func: called with the arrays, returns the loss; None: the main optimizer's model.
        loss_scale: see :meth:`mnpar.Optimizer.set_loss_scale`.
        auto_new_epoch: call ``optimizer.new_epoch`` at the end of each epoch.
        input_device: where batches go, if not to ``device``.

    Raises:
        TypeError: ``iterator`` has no ``next``, or ``optimizer`` no ``update``.

    A rank whose model returns no loss takes part in the backward of the others; one with an empty
    data set calls its model without arguments (:func:`mnpar.create_empty_dataset`).

    Attributes:
        iteration: how many were done.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> from mnpar import training
        >>> data = [(np.ones(3, "f4"), i % 2) for i in range(10)]
        >>> optimizer = mnpar.optimizers.SGD().setup(L.Classifier(L.Linear(3, 2)))
        >>> updater = training.StandardUpdater(mnpar.iterators.SerialIterator(data, 5), optimizer)
        >>> updater.update()
        >>> updater.iteration, updater.epoch_detail
        (1, 0.5)
    """

    def __init__(
        self,
        iterator: Iterator | dict[str, Iterator],
        optimizer: Optimizer | dict[str, Optimizer],
        converter: Converter = concat_examples,
        device: int | str | None = None,
        loss_func: Callable[..., Any] | None = None,
        loss_scale: float | None = None,
        auto_new_epoch: bool = True,
        *,
        input_device: int | str | None = None,
    ) -> None:
        for what, given, method in (
            ("iterator", iterator, "next"),
            ("optimizer", optimizer, "update"),
        ):
            if not (isinstance(given, dict) or hasattr(given, method)):
                kind = "None" if given is None else f"a {type(given).__name__}"
                raise TypeError(
                    f"an updater is given an iterator and an optimizer; as {what} it was given "
                    f"{kind}"
                )
        self._iterators = iterator if isinstance(iterator, dict) else {"main": iterator}
        self._optimizers = optimizer if isinstance(optimizer, dict) else {"main": optimizer}
        for one in self._optimizers.values():
            if device is not None:
                one.target.to_device(device)
            if loss_scale is not None:
                one.set_loss_scale(loss_scale)
        self.converter = converter
        self.loss_func = loss_func
        self.loss_scale = loss_scale
        self.auto_new_epoch = auto_new_epoch
        self.device = device
        self.input_device = device if input_device is None else input_device
        self.iteration = 0

    @property
    def epoch(self) -> int:
        """Complete sweeps of the main iterator."""
        return self._iterators["main"].epoch

    @property
    def epoch_detail(self) -> float:
        """Sweeps of the main iterator, with the fraction of the one under way."""
        return self._iterators["main"].epoch_detail

    @property
    def previous_epoch_detail(self) -> float | None:
        """``epoch_detail`` one iteration ago."""
        return self._iterators["main"].previous_epoch_detail

    @property
    def is_new_epoch(self) -> bool:
        """Return whether the last batch completed a sweep."""
        return self._iterators["main"].is_new_epoch

    def get_optimizer(self, name: str) -> Any:
        """Return the optimizer of a name."""
        return self._optimizers[name]

    def get_all_optimizers(self) -> dict[str, Any]:
        """Return all optimizers by name."""
        return dict(self._optimizers)

    def get_iterator(self, name: str) -> Iterator:
        """Return the iterator of a name."""
        return self._iterators[name]

    def finalize(self) -> None:
        """Let the iterators give back their threads and files."""
        for iterator in self._iterators.values():
            iterator.finalize()

    def update(self) -> None:
        """One iteration."""
        self.update_core()
        self.iteration += 1

    def update_core(self) -> None:
        """Convert a batch and update the optimizer; subclasses may override it."""
        optimizer = self._optimizers["main"]
        arrays = converted(self.converter, self._iterators["main"].next(), self.input_device)
        call(optimizer.update, arrays, self.loss_func or optimizer.target)
        self._count_epoch(optimizer)

    def _count_epoch(self, optimizer: Optimizer) -> None:
        if self.auto_new_epoch and self._iterators["main"].is_new_epoch:
            optimizer.new_epoch(auto=True)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load iterators, models, optimizers and the count of iterations."""
        for name, iterator in self._iterators.items():
            iterator.serialize(serializer[f"iterator:{name}"])
        for name, optimizer in self._optimizers.items():
            # first, so that all parameters have arrays
            optimizer.target.serialize(serializer[f"model:{name}"])
            optimizer.serialize(serializer[f"optimizer:{name}"])
        self.iteration = int(serializer("iteration", self.iteration))
