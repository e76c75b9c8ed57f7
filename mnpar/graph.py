"""The graph, as data: functions know the nodes they read, nodes know the function that made them, nobody knows an array."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeAlias
from weakref import ReferenceType

Gradient: TypeAlias = Any  # an array; a Variable where the backward is recorded itself (double backprop)

Deliver: TypeAlias = "Callable[[VariableNode, Gradient], None]"  # takes the gradient of a variable

tick = itertools.count(1).__next__  # the clock: numbers grow with time on every rank, be it a process or a thread


def paired(name: str, variables: Sequence[Any], gs: Sequence[Any] | None) -> Iterable[tuple[Any, Any]]:
    """Each variable with its gradient of the argument ``name``; with None where that is not given.

    Raises:
        ValueError: there are more or fewer gradients.
    """
    if gs is not None and len(gs) != len(variables):
        raise ValueError(f"{name} has {len(gs)} gradients (or Nones) for {len(variables)} Variables: one for each is needed")
    return zip(variables, [None] * len(variables) if gs is None else gs, strict=True)


class Structure:
    """Which links and parameters there are, which arrays they have, and by which rules they learn.

    ``now`` is another object after every change, anywhere: what was found by walking through a model holds as long as it is
    the same. ``tuned`` is another one also after every change of a hyperparameter.
    """

    now = tuned = object()

    def change(self) -> None:
        """Something has changed."""
        self.now = self.tuned = object()

    def tune(self) -> None:
        """A hyperparameter of all rules of an optimizer has."""
        self.tuned = object()


structure = Structure()


class Function(Protocol):
    """What the loop needs of a FunctionNode."""

    number: int
    communicates: bool
    local: bool
    awaited: bool
    at_once: bool
    inputs: tuple[VariableNode, ...]
    behind: tuple[VariableNode, ...]
    outputs: tuple[ReferenceType[VariableNode], ...]

    @property
    def label(self) -> str: ...
    def pull(self, gys: list[Gradient], wanted: list[bool], record: bool, deliver: Deliver) -> None: ...


class Home:
    """Where the gradient of a parameter lives: a view of an arena's vector; ``reserved``: a backward computes into it."""

    __slots__ = ("array", "reserved")

    def __init__(self, array: Any) -> None:
        self.array, self.reserved = array, False

    def reserve(self, like: Any) -> Any:
        """The array, to compute a gradient of the kind of ``like`` into, once; for a node that has no gradient yet."""
        if self.reserved or type(like) is not type(self.array) or like.dtype != self.array.dtype:
            return None
        self.reserved = True
        return self.array

    def computed(self, g: Gradient) -> bool:
        """Whether a gradient is the array that was reserved, and so nobody else's."""
        return self.reserved and g is self.array

    def take(self, node: VariableNode, g: Gradient) -> bool:
        """Add a gradient to what is here; False where it is not that simple."""
        here, old = self.array, node.gradient
        if not isinstance(g, type(here)) or (self.reserved and g is not here):  # perhaps by a backward around this one
            return False
        self.reserved = False
        if old is None:
            if g is not here:
                here[...] = g
            node.gradient = here
        elif old is here and g is not here:
            here += g
        else:
            return False
        return True


class Hook(NamedTuple):
    """Who hears of a gradient: before it is kept (and may return another), or after."""

    function: Callable[[Any], Any]
    after: bool = False


class VariableNode:
    """What the graph knows of a variable: who made it and its gradient, but not its array, which can so be freed early."""

    __slots__ = (
        "__weakref__", "creator", "dtype", "gradient", "home", "hooks", "index", "loss_scale", "name", "requires_grad", "shape",
    )  # fmt: skip

    WITHOUT_GRADIENT = frozenset("biuSUOmM")  # the kinds of dtypes that are not differentiable

    def __init__(self, array: Any, requires_grad: bool, creator: Function | None = None, index: int = 0) -> None:
        dtype: Any = None if array is None else array.dtype
        self.shape: tuple[int, ...] = () if array is None else array.shape
        self.dtype = dtype
        self.requires_grad = requires_grad and not (array is not None and dtype.kind in self.WITHOUT_GRADIENT)
        self.creator = creator
        self.index = index  # which output of its creator it is; of a leaf, when it was made (0: nobody knows)
        self.gradient: Gradient = None
        self.name: str | None = None
        self.loss_scale: float | None = None
        self.home: Home | None = None  # of a parameter in an arena
        self.hooks: tuple[Hook, ...] = ()

    def __getstate__(self) -> Any:
        """For copies: they are leaves, without home and hooks, whatever function the values came from."""
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "__weakref__"}
        return None, {**kept, "creator": None, "index": 0, "home": None, "hooks": ()}

    def listen(self, hook: Hook) -> Callable[[], None]:
        """Add a hook; what takes it off again."""
        self.hooks += (hook,)

        def remove() -> None:
            self.hooks = tuple([other for other in self.hooks if other is not hook])

        return remove

    @property
    def key(self) -> Any:
        """What is equal for all nodes that stand for the same variable."""
        return self if self.creator is None else (self.creator.number, self.index)


class Owed(NamedTuple):
    """Gradients of leaves (weights) that are still to be computed, by ``function.pull(gys, leaves, False, deliver)``."""

    function: Function
    gys: list[Gradient]
    leaves: list[bool]  # which of the inputs


_creator = attrgetter("creator")


def put_off(function: Function, gys: list[Gradient], wanted: list[bool], later: list[Owed]) -> list[bool]:
    """Note the leaves' gradients in ``later``; returns which are still wanted now.

    What communicates is not put off, nor what is found by the same work as the other gradients.
    """
    if function.communicates or function.at_once or None not in map(_creator, function.inputs):
        return wanted
    leaves = [want and x.creator is None for x, want in zip(function.inputs, wanted, strict=True)]
    if True not in leaves:
        return wanted
    later.append(Owed(function, gys, leaves))
    return [want and not leaf for want, leaf in zip(wanted, leaves, strict=True)]
