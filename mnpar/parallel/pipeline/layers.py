"""A model as a list of named layers, of which each stage of a pipeline makes its own, under the
names of the whole model.

So parameters have one path wherever they are: checkpoints, initial weights by path, and checks over
ranks find them again on any number of stages. A weight that two layers share has the path of its
owner, also on a rank that has only the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mnpar.chain import Chain
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.plans import block

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


Makers = Mapping[str, Callable[[], Any]]


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
        """What the layers make of what the stage before has sent, and of the rank's own
        arguments.
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
        """The layers, called with all arguments of the model."""
        return self.run_stage((), xs, named)


def make_stages(
    layers: Makers, stages: int, mine: Sequence[int], sizes: Sequence[int] | None, inputs: int
) -> list[Stage]:
    """The stages of a rank, with its layers made.

    Args:
        layers: what makes each layer, by name, in order.
        stages: how many there are in all.
        mine: those that are here.
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


def check_tied(names: Sequence[str], tied: Mapping[str, str]) -> None:
    """Raise ValueError if an owner of a weight is not before the other layer, whose path would then
    be the weight's.
    """
    for pair in tied.items():
        later, sooner = (path.strip("/").split("/")[0] for path in pair)
        for name in (later, sooner):
            if name not in names:
                raise ValueError(
                    f"there is no layer {name!r} to share weights: the model has {', '.join(names)}"
                )
        if names.index(sooner) > names.index(later):
            raise ValueError(
                f"the layer {sooner!r} comes after {later!r}: a weight is shared under the "
                "path of the first layer"
            )


def tie(
    stages: list[Stage], tied: Mapping[str, str]
) -> tuple[Stage | None, dict[str, Parameter], dict[str, bool]]:
    """Let layers share weights.

    Args:
        stages: this rank's.
        tied: the path of each shared weight, with that of the weight itself, its owner's:
            ``{"/head/W": "/embed/W"}``.

    Returns:
        A link that has under the owner's path what this rank shares with a layer that it does not
        have (or None); all that this rank has of shared weights, by the owner's path; and whether
        it has the owner.
    """
    elsewhere = Stage({})
    shared: dict[str, Parameter] = {}
    owned: dict[str, bool] = {}
    for path, owner in tied.items():
        mine, theirs = [_find(stages, one) for one in (path, owner)]
        there = theirs or mine
        if there is None:
            continue
        # several layers here may have it
        weight = getattr(*there) if theirs or owner not in shared else shared[owner]
        if mine is not None:
            setattr(*mine, weight)
        if theirs is None and owner not in shared:
            _graft(elsewhere, owner, weight)
        shared[owner], owned[owner] = weight, theirs is not None
    return (elsewhere if [*elsewhere.children()] else None), shared, owned


def _find(stages: list[Stage], path: str) -> tuple[Link, str] | None:
    """The link that has a parameter of this path, and its name there; None if its layer is on
    another rank.
    """
    layer, *inside = path.strip("/").split("/")
    for stage in stages:
        if layer not in stage._children:
            continue
        link: Any = stage[layer]
        try:
            for name in inside[:-1]:
                link = link[int(name) if name.isdecimal() else name]
            found = getattr(link, inside[-1])
        except (AttributeError, LookupError, TypeError):
            found = None
        if not isinstance(found, Parameter):
            raise ValueError(f"there is no parameter {path!r} in layer {layer!r} to be shared")
        return link, inside[-1]
    return None


def _graft(root: Stage, path: str, param: Parameter) -> None:
    """Add a parameter to a link under this path, with the chains that lead to it."""
    link: Any = root
    *links, name = path.strip("/").split("/")
    for part in links:
        if part not in link._children:
            link.add_link(part, Chain())
        link = link[part]
    setattr(link, name, param)


def share(
    comm: Communicator, shared: Mapping[str, Parameter], owned: Mapping[str, bool]
) -> list[tuple[Communicator, Parameter]]:
    """For each name a communicator of those who have it, its owner first; all ranks call it."""
    names = sorted({name for some in comm.allgather_obj(sorted(shared)) for name in some})
    found = []
    for name in names:
        group = comm.split(
            0 if name in shared else None, comm.rank - comm.size * owned.get(name, False)
        )
        if group is None or group.size == 1:
            continue
        parameter = shared[name]
        if parameter.array is None:
            raise ValueError(
                f"the shared parameter {name!r} has no array yet: give its link the size of "
                "its inputs"
            )
        values = group.bcast(parameter.array)
        if values.shape != parameter.shape:
            raise ValueError(
                f"rank {comm.rank}: the shared parameter {name!r} has shape {parameter.shape} "
                f"here and {values.shape} where it "
                "comes from"
            )
        parameter.array[...] = values
        found.append((group, parameter))
    return found
