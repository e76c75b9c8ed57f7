"""The graph as data: variables know the function that computed them, functions know the variables
that they read.

The graph holds no arrays of its own, so an array can be freed while the graph still has its node.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias
from weakref import ReferenceType

from mnpar.autograd.arraylike import ArrayLike
from mnpar.backend import Array

# an array; a Variable where the backward is recorded itself (double backprop)
Gradient: TypeAlias = Array | ArrayLike

# called with a variable and a gradient to add to the variable's others
AddGradient: TypeAlias = "Callable[[VariableNode, Any], None]"

# the clock of law 3: the numbers grow with time on every rank, be it a process or a thread
tick = itertools.count(1).__next__


class Function(Protocol):
    """The attributes of a :class:`mnpar.FunctionNode` that backward needs."""

    number: int
    communicates: bool
    silent_forward: bool
    silent_backward: bool
    on_tape: bool
    joint_vjp: bool
    opaque: bool
    summands: slice
    is_product: bool
    inputs: tuple[VariableNode, ...]
    extra_inputs: tuple[VariableNode, ...]
    outputs: tuple[ReferenceType[VariableNode], ...]

    @property
    def label(self) -> str: ...
    def join_key(self) -> Any: ...
    def join(
        self, others: Sequence[Any], gys: Sequence[Gradient | None]
    ) -> tuple[Function, list[Gradient | None]]: ...
    def vjp(
        self,
        gys: list[Gradient | None],
        wanted: list[bool],
        record: bool,
        add_gradient: AddGradient,
    ) -> None: ...


class VariableNode:
    """A variable's place in the graph, with its creator and its gradient, but without its array."""

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
        "parameter",  # of a Parameter's node alone: a weak reference to it
        "requires_grad",
        "shape",
    )

    WITHOUT_GRADIENT = frozenset("biuSUOmM")  # the kinds of dtypes that are not differentiable

    def __init__(
        self,
        array: Array | None,
        requires_grad: bool,
        creator: Function | None = None,
        index: int = 0,
    ) -> None:
        self.shape: tuple[int, ...]
        self.dtype: Any
        if array is None:
            self.shape, self.dtype = (), None
        else:
            self.shape = array.shape
            self.dtype = dtype = array.dtype
            if requires_grad and dtype.kind != "f":  # (nearly all are)
                requires_grad = dtype.kind not in self.WITHOUT_GRADIENT
        self.requires_grad = requires_grad
        self.creator = creator
        # which output of its creator it is; of a leaf, when it was made (0: nobody knows; negative:
        # the time at which it was unpickled)
        self.index = index
        self.gradient: Any = None  # None, a Gradient or a CopyOnRead
        self.name: str | None = None
        self.loss_scale: float | None = None
        self.grad_slot: GradSlot | None = None  # of a parameter in a flat buffer
        self.hooks: tuple[GradientHook, ...] = ()

    def __getstate__(self) -> Any:
        """Return the state for copy and pickle: a copy is a leaf without a slot and without hooks,
        even if a function computed the values.
        """
        left_out = ("__weakref__", "parameter")
        kept = {name: getattr(self, name) for name in self.__slots__ if name not in left_out}
        return None, {**kept, "creator": None, "index": 0, "grad_slot": None, "hooks": ()}

    def __setstate__(self, state: Any) -> None:
        """Restore what was unpickled."""
        for name, value in state[1].items():
            setattr(self, name, value)
        self.index = -tick()

    def __deepcopy__(self, memo: dict[int, Any]) -> VariableNode:
        """Return a copy, which is made now."""
        other = memo[id(self)] = object.__new__(type(self))
        other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        other.index = tick()
        return other

    def add_hook(self, hook: GradientHook) -> Callable[[], None]:
        """Add a hook; return a function that removes the hook."""
        self.hooks += (hook,)

        def remove() -> None:
            self.hooks = tuple([other for other in self.hooks if other is not hook])

        return remove

    @property
    def key(self) -> Any:
        """A key that all nodes of one variable share: retained outputs may get a second node."""
        return self if self.creator is None else (self.creator.number, self.index)


class GradientHook(NamedTuple):
    """A function to call with a gradient before a leaf stores it (the function may return another
    gradient), or with the node after that.
    """

    function: Callable[[Any], Any]
    after: bool = False


class GradSlot:
    """The place of a parameter's gradient in a flat buffer of gradients.

    Args:
        array: a view of the flat buffer.

    ``reserved`` is True while a function's backward computes a gradient directly into ``array``;
    nothing else may be written there then. ``synchronized`` says that ranks sum the gradients
    before an optimizer uses them.
    """

    __slots__ = ("array", "reserved", "synchronized")

    def __init__(self, array: Array, synchronized: bool = False) -> None:
        self.array = array
        self.reserved = False
        self.synchronized = synchronized

    def reserve(self, like: Gradient) -> Array | None:
        """Return the array, for one function to compute a gradient of ``like``'s type and dtype
        into; None if that cannot be.
        """
        if self.reserved or type(like) is not type(self.array) or like.dtype != self.array.dtype:
            return None
        self.reserved = True
        return self.array

    def holds(self, g: Gradient) -> bool:
        """Return whether a gradient is the array that was reserved, and can be added to in
        place.
        """
        return self.reserved and g is self.array

    def accumulate(self, node: VariableNode, g: Gradient) -> bool:
        """Make ``g`` the node's gradient in this slot, or add it to the one here; return False if
        the caller has to add them elsewhere.
        """
        here = self.array
        old = node.gradient
        # reserved, perhaps, by a backward around this one
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


def unchain(root: VariableNode) -> None:
    """Detach a variable, and all variables that it was computed from; leave what communications on
    a tape were computed from, as backward has still to visit them for other ranks' gradients.
    """
    stack = [root.creator]
    while stack:
        function = stack.pop()
        if function is None:
            continue
        if not function.on_tape:
            stack += [x.creator for x in (*function.inputs, *function.extra_inputs)]
        for output in filter(None, [reference() for reference in function.outputs]):
            output.creator = None
