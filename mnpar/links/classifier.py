"""A network together with its loss and its accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnpar.chain import Chain
from mnpar.functions import accuracy, softmax_cross_entropy
from mnpar.link import Link
from mnpar.reporter import report
from mnpar.variable import Variable


class Classifier(Chain):
    """Calls a predictor, compares its outputs with the labels, reports ``loss`` and ``accuracy``,
    and returns the loss.

    Args:
        predictor: a link, called with the inputs.
        lossfun: called with outputs (N, C) and labels (N,).
        accfun: called with the same; its result is reported as ``accuracy``.
        label_key: which argument of a call holds the labels: its position, or its keyword.

    Attributes:
        y, loss, accuracy: of the last batch; they are not copied and not saved, so that a model can
            be pickled at any time.
        compute_accuracy: whether to call ``accfun``.

    Raises:
        TypeError: ``label_key`` is neither an int nor a str.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> model(np.zeros((2, 4), "f4"), np.array([0, 1])).shape
        ()
    """

    def __init__(
        self,
        predictor: Link,
        lossfun: Callable[..., Variable] = softmax_cross_entropy,
        accfun: Callable[..., Variable] = accuracy,
        label_key: int | str = -1,
    ) -> None:
        if not isinstance(label_key, int | str):
            raise TypeError(
                f"label_key is the place or the keyword of the labels, not {label_key!r}"
            )
        super().__init__()
        self.lossfun, self.accfun, self.label_key = lossfun, accfun, label_key
        self.compute_accuracy = True
        self.y: Any = None
        self.loss: Any = None
        self.accuracy: Any = None
        self.predictor = predictor

    def __getstate__(self) -> dict[str, Any]:
        # their graph cannot leave the process
        return {
            **self.__dict__,
            "y": None,
            "loss": None,
            "accuracy": None,
        }

    def forward(self, *args: Any, **kwargs: Any) -> Variable:
        """Return the loss of a batch whose labels are the argument ``label_key``.

        Returns:
            What ``lossfun`` returns: a Variable of shape ().

        Raises:
            ValueError: no such argument was given.
        """
        self.y = self.loss = self.accuracy = None
        if isinstance(self.label_key, str):
            if self.label_key not in kwargs:
                raise ValueError(
                    f"the labels were to come as {self.label_key!r}; given were "
                    f"{', '.join(kwargs) or 'no keywords'}"
                )
            t = kwargs.pop(self.label_key)
        else:
            if not -len(args) <= self.label_key < len(args):
                raise ValueError(
                    f"the labels were to come as argument {self.label_key} of {len(args)}"
                )
            place = self.label_key % len(args)
            t = args[place]
            args = args[:place] + args[place + 1 :]
        self.y = self.predictor(*args, **kwargs)
        self.loss = self.lossfun(self.y, t)
        report({"loss": self.loss}, self)
        if self.compute_accuracy:
            self.accuracy = self.accfun(self.y, t)
            report({"accuracy": self.accuracy}, self)
        return self.loss  # type: ignore[no-any-return]
