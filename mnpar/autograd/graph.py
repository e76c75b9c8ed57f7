"""The graph, as data: functions know the nodes they read, nodes know the function that made them,
nobody knows an array.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias
from weakref import ReferenceType

# an array; a Variable where the backward is recorded itself (double backprop)
Gradient: TypeAlias = Any


AddGradient: TypeAlias = (
    "Callable[[VariableNode, Gradient], None]"  # takes the gradient of a variable
)


tick = itertools.count(
    1
).__next__  # the clock: numbers grow with time on every rank, be it a process or a thread


class Function(Protocol):
    """What backward needs of a FunctionNode."""

    number: int
    communicates: bool
    silent_forward: bool
    opaque: bool
    on_tape: bool
    joint_vjp: bool
    inputs: tuple[VariableNode, ...]
    extra_inputs: tuple[VariableNode, ...]
    outputs: tuple[ReferenceType[VariableNode], ...]

    @property
    def label(self) -> str: ...
    def vjp(
        self, gys: list[Gradient], wanted: list[bool], record: bool, add_gradient: AddGradient
    ) -> None: ...


class GradSlot:
    """The place of a parameter's gradient in its arena: ``array``, a view of the arena's vector of
    gradients.

    ``reserved``: a function's backward is computing a gradient directly into ``array``, so nothing
    else may be written there.
    """

    __slots__ = ("array", "reserved")

    def __init__(self, array: Any) -> None:
        self.array, self.reserved = array, False

    def reserve(self, like: Any) -> Any:
        """The array, for one function to compute a gradient with ``like``'s type and dtype into;
        None if that cannot be.
        """
        if self.reserved or type(like) is not type(self.array) or like.dtype != self.array.dtype:
            return None
        self.reserved = True
        return self.array

    def holds(self, g: Gradient) -> bool:
        """Whether a gradient is the array that was reserved: it can be added to in place."""
        return self.reserved and g is self.array

    def accumulate(self, node: VariableNode, g: Gradient) -> bool:
        """Make ``g`` the node's gradient here, or add it to the one here; False if the caller has
        to add them elsewhere.
        """
        here, old = self.array, node.gradient
        # perhaps by a backward around this one
        if not isinstance(g, type(here)) or (self.reserved and g is not here):
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


class GradientHook(NamedTuple):
    """A function to call with a gradient before a leaf keeps it (it may return another one), or
    with the node after that.
    """

    function: Callable[[Any], Any]
    after: bool = False


class VariableNode:
    """A variable's place in the graph: its creator and its gradient, but not its array, which can
    therefore be freed early.
    """

    __slots__ = (
        "__weakref__",
        "creator",
        "dtype",
        "grad_slot",
        "gradient",
        "hooks",
        "index",
        "loss_scale",
        "name",
        "requires_grad",
        "shape",
    )

    WITHOUT_GRADIENT = frozenset("biuSUOmM")  # the kinds of dtypes that are not differentiable

    def __init__(
        self, array: Any, requires_grad: bool, creator: Function | None = None, index: int = 0
    ) -> None:
        dtype: Any = None if array is None else array.dtype
        self.shape: tuple[int, ...] = () if array is None else array.shape
        self.dtype = dtype
        self.requires_grad = requires_grad and not (
            array is not None and dtype.kind in self.WITHOUT_GRADIENT
        )
        self.creator = creator
        # which output of its creator it is; of a leaf, when it was made (0: nobody knows)
        self.index = index
        self.gradient: Gradient = None
        self.name: str | None = None
        self.loss_scale: float | None = None
        self.grad_slot: GradSlot | None = None  # of a parameter in an arena
        self.hooks: tuple[GradientHook, ...] = ()

    def __getstate__(self) -> Any:
        """For copy and pickle: a copy is a leaf without slot and hooks, even if a function computed
        the values.
        """
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "__weakref__"}
        return None, {**kept, "creator": None, "index": 0, "grad_slot": None, "hooks": ()}

    def add_hook(self, hook: GradientHook) -> Callable[[], None]:
        """Add a hook; returns a function that removes it."""
        self.hooks += (hook,)

        def remove() -> None:
            self.hooks = tuple([other for other in self.hooks if other is not hook])

        return remove

    @property
    def key(self) -> Any:
        """Equal for all nodes of one variable: retained outputs may get a second node."""
        return self if self.creator is None else (self.creator.number, self.index)
