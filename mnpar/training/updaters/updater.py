"""The interface between a trainer and its updater."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnpar.hints import KeywordHints
from mnpar.serializer import AbstractSerializer


class Updater(KeywordHints):
    """The base of updaters: one ``update()`` is one iteration of training.

    Beside these methods an updater has ``iteration``, ``epoch``, ``epoch_detail``,
    ``previous_epoch_detail`` and ``is_new_epoch``, which triggers and reports read.

    Example:
        >>> from mnpar import training
        >>> class Nothing(training.Updater):
        ...     iteration = epoch = 0
        ...
        ...     def get_all_optimizers(self):
        ...         return {}
        ...
        ...     def update(self):
        ...         self.iteration += 1
        >>> trainer = training.Trainer(Nothing(), (3, "iteration"))
        >>> trainer.run()
        >>> trainer.updater.iteration
        3
    """

    iteration: int

    if TYPE_CHECKING:

        @property
        def epoch(self) -> int: ...
        @property
        def epoch_detail(self) -> float: ...
        @property
        def previous_epoch_detail(self) -> float | None: ...
        @property
        def is_new_epoch(self) -> bool: ...

    def connect_trainer(self, trainer: Any) -> None:
        """Called by the constructor of the trainer that gets this updater."""

    def finalize(self) -> None:
        """Release threads and files; called after training."""

    def get_optimizer(self, name: str) -> Any:
        """Return the optimizer of a name; ``'main'`` is the usual one."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define get_optimizer(self, name)"
        )

    def get_all_optimizers(self) -> dict[str, Any]:
        """Return all optimizers by name."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_all_optimizers(self)")

    def update(self) -> None:
        """One iteration."""
        raise NotImplementedError(f"{type(self).__name__} does not define update(self)")

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the state of training: models, optimizers, iterators, and the count of
        iterations.
        """
