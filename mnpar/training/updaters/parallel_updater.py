"""One process, several devices: copies of a model on each, whose gradients are added up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from mnpar.configuration import force_backprop_mode
from mnpar.dataset import concat_examples
from mnpar.dataset.convert import converted
from mnpar.dataset.iterator import Iterator
from mnpar.link import Link
from mnpar.optimizers.optimizer import Optimizer
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.training.trainer import Trainer
from mnpar.training.updaters.standard_updater import Converter, StandardUpdater, call


class ParallelUpdater(StandardUpdater):
    """Cuts each batch for the copies of a model on several devices of this process, and steps by
    the sum of their gradients.

    The sum, not the mean: of N losses that are means over an N-th of the batch, it is N times that
    of the whole batch. One rank for each device, with ``create_multi_node_optimizer``, is faster,
    and takes the mean.

    Args:
        iterator, optimizer, converter, loss_func, loss_scale, auto_new_epoch: as of
            :class:`StandardUpdater`.
        models: the copies by name; ``'main'`` is the optimizer's model. None: they are made, one
            for each device.
        devices: by the same names.

    Raises:
        ValueError: neither models nor devices were given; KeyError: there is none named ``'main'``.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> from mnpar import training
        >>> data = [(np.ones(3, "f4"), i % 2) for i in range(10)]
        >>> optimizer = mnpar.optimizers.SGD().setup(L.Classifier(L.Linear(3, 2)))
        >>> batches = mnpar.iterators.SerialIterator(data, 5)
        >>> updater = training.ParallelUpdater(
        ...     batches, optimizer, devices={"main": -1, "second": -1}
        ... )
        >>> updater.update()
        >>> updater.iteration
        1
    """

    def __init__(
        self,
        iterator: Iterator | dict[str, Iterator],
        optimizer: Optimizer | dict[str, Optimizer],
        converter: Converter = concat_examples,
        models: dict[str, Link] | None = None,
        devices: dict[str, int | str] | None = None,
        loss_func: Callable[..., Any] | None = None,
        loss_scale: float | None = None,
        auto_new_epoch: bool = True,
    ) -> None:
        super().__init__(
            iterator, optimizer, converter, None, loss_func, loss_scale, auto_new_epoch
        )
        main = self.get_optimizer("main").target
        if models is None:
            if devices is None:
                raise ValueError(
                    "ParallelUpdater is given models, or devices to put copies of the model on"
                )
            models = {name: main if name == "main" else copy.deepcopy(main) for name in devices}
            for name, model in models.items():
                model.to_device(devices[name])
        if "main" not in models:
            raise KeyError(
                "one of the models is named 'main': the optimizer's; given were "
                f"{', '.join(models)}"
            )
        self._models, self._devices = models, devices or {}

    def connect_trainer(self, trainer: Trainer) -> None:
        """Let the copies report under their names."""
        for name, model in self._others().items():
            trainer.reporter.add_observer(name, model)
            trainer.reporter.add_observers(name, model.namedlinks(skipself=True))

    def _others(self) -> dict[str, Link]:
        main = self.get_optimizer("main").target
        return {name: model for name, model in self._models.items() if model is not main}

    def update_core(self) -> None:
        """Forward on all copies, backward on all, the sum of gradients, a step, and the new weights
        to all.
        """
        optimizer = self.get_optimizer("main")
        batch = self.get_iterator("main").next()
        n = len(self._models)
        losses = []
        for i, (name, model) in enumerate(self._models.items()):
            model.cleargrads()
            if part := batch[i::n]:
                arrays = converted(self.converter, part, self._devices.get(name))
                with force_backprop_mode():
                    losses.append(call(self.loss_func or model, arrays))
        for loss in losses:
            loss.backward(loss_scale=self.loss_scale)
        for model in self._others().values():
            optimizer.target.addgrads(model)
        optimizer.update()
        for model in self._others().values():
            model.copyparams(optimizer.target)
        self._count_epoch(optimizer)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load as :class:`StandardUpdater`; what was loaded goes to all copies."""
        super().serialize(serializer)
        if isinstance(serializer, Deserializer):
            for model in self._others().values():
                model.copyparams(self.get_optimizer("main").target)


class MultiprocessParallelUpdater(StandardUpdater):
    """Chainer's updater with a process for each GPU, which mnpar has not: ranks are processes
    already.

    Start one rank for each device and give the optimizer to
    :func:`mnpar.create_multi_node_optimizer`; programs that ask ``available()`` first do something
    else.

    Raises:
        RuntimeError: always.

    Example:
        >>> from mnpar import training
        >>> training.updaters.MultiprocessParallelUpdater.available()
        False
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            "MultiprocessParallelUpdater starts processes, and mnpar's are started by mpiexec: "
            "run a StandardUpdater under "
            "mpiexec -n (number of devices), with create_multi_node_optimizer and scatter_dataset"
        )

    @staticmethod
    def available() -> bool:
        """Return whether it can be made: no."""
        return False
