"""A model as a list of named layers, of which each stage of a pipeline makes its own, under the
names of the whole model.

So a parameter has one path wherever it is: checkpoints, initial weights by path, and checks over
ranks find it again on any number of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mnpar.chain import Chain
from mnpar.link import Link
from mnpar.plans import block

Makers = Mapping[str, Callable[[], Any]]  # functions that make the layers, by name


class Stage(Chain):
    """Some of a model's layers, one after the other; a layer that returns a tuple calls the next
    with several arguments.

    Args:
        layers: by name, made.
        first, last: whether they begin and end the model.
        inputs: how many of the arguments of a whole model are for its first layer; the others are
            for the last one.
    """

    def __init__(
        self, layers: Mapping[str, Any], first: bool = True, last: bool = True, inputs: int = 1
    ) -> None:
        super().__init__()
        self._first, self._last, self._inputs = first, last, inputs
        self._steps: list[Any] = []
        for name, layer in layers.items():
            if isinstance(layer, Link):
                if hasattr(type(self), name):
                    raise ValueError(
                        f"a layer cannot be called {name!r}, which is a name that links use"
                    )
                self.add_link(name, layer)
            self._steps.append(name if isinstance(layer, Link) else layer)

    def run_stage(
        self, received: Sequence[Any], own: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Call the layers with what the stage before sent and with the rank's own arguments.

        Args:
            received: what the stage before returned; () in the first stage.
            own, named: the arguments of this rank's micro-batch.

        Returns:
            What the last of the layers returns.
        """
        n = len(own) if not self._last else self._inputs if self._first else 0
        xs: Any = (*received, *own[:n])
        for i, step in enumerate(self._steps):
            ends = self._last and i + 1 == len(self._steps)
            layer = getattr(self, step) if isinstance(step, str) else step
            xs = layer(*xs, *own[n:], **named) if ends else layer(*xs)
            xs = xs if isinstance(xs, tuple) else (xs,)
        return xs if len(xs) != 1 else xs[0]

    def forward(self, *xs: Any, **named: Any) -> Any:
        """Call the layers with all arguments of the model."""
        return self.run_stage((), xs, named)


def make_stages(
    layers: Makers, stages: int, mine: Sequence[int], sizes: Sequence[int] | None, inputs: int
) -> list[Stage]:
    """Make the layers of a rank, and return its stages.

    Args:
        layers: what makes each layer, by name, in order.
        stages: how many there are in all.
        mine: the stages of this rank.
        sizes: how many layers each stage has; None: as equal as can be.
        inputs: as :class:`Stage` has it.

    Raises:
        ValueError: the sizes are not those of the stages, or there are fewer layers than stages.
    """
    names = list(layers)
    if sizes is None:
        sizes = [
            last - first for first, last in (block(len(names), stages, i) for i in range(stages))
        ]
    if len(sizes) != stages or sum(sizes) != len(names) or min(sizes) < 1:
        raise ValueError(
            f"{len(names)} layers cannot be cut into {stages} stages of {list(sizes)} layers: "
            "each stage has one or more, and "
            "each layer is in one"
        )
    made = []
    for i in mine:
        start = sum(sizes[:i])
        here = {name: layers[name]() for name in names[start : start + sizes[i]]}
        made.append(Stage(here, i == 0, i == stages - 1, inputs))
    return made
