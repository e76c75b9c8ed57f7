"""Parameter: a Variable that a Link learns; its shape may become known only when data arrive."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.autograd.accumulate import materialize
from mnpar.autograd.arraylike import ArrayLike
from mnpar.autograd.graph import VariableNode
from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.holders import WHOLE, Holders
from mnpar.initializers import _get_initializer, generate_array
from mnpar.initializers.initializer import InitialValue
from mnpar.plans import Box
from mnpar.variable import Variable


class Parameter(Variable):
    """A Variable that a Link learns; its shape may become known only when data arrive.

    Args:
        initializer: an array, a number, a function ``(array) -> None`` that fills one, or None
            (NaN, to be overwritten).
        shape: None leaves it uninitialized until :meth:`initialize` is called; an array without a
            shape is taken as it is, with its dtype, and belongs to the parameter from then on.
        name: its name in the link.

    All values but such an array get the dtype of the initializer (``initializer.dtype``) or else
    ``mnpar.config.dtype``.

    Attributes:
        whole, box: of a parameter that is divided among ranks, the shape of the whole array, and
            the :class:`mnpar.plans.Box` of it that this rank holds; None, None if it is not
            divided. The link that divides it sets both; a checkpoint reads them, so that ranks with
            other boxes can load it. Ranks with equal boxes have equal values; different boxes do
            not overlap, and together cover the whole. Optimizer states in the shape of the
            parameter are divided alike. A divided parameter has the same path on all ranks.
        summed: the mesh axes along which ranks hold copies of this rank's part, whose gradients an
            optimizer adds up; None: all axes along which it adds up the gradients of any parameter.
            The optimizer sets it (parallel/data/placement.py).

    Raises:
        TypeError: the initializer is neither an array nor a number, a function or None.

    Example:
        >>> import mnpar
        >>> W = mnpar.Parameter(0.5)
        >>> W.is_initialized
        False
        >>> W.initialize((2,))
        >>> W.array
        array([0.5, 0.5], dtype=float32)
    """

    __slots__ = ("__dict__",)

    # who has other parts of it; an optimizer says so (optimizers/model_holders.py)
    holders: Holders = WHOLE

    def __init__(
        self,
        initializer: InitialValue = None,
        shape: int | Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        array = initializer if shape is None and backend.is_array(initializer) else None
        super().__init__(array, name=name)
        self.initializer = _get_initializer(initializer, np.nan) if array is None else array
        self.update_rule: Any = None
        self.whole: tuple[int, ...] | None = None
        self.box: Box | None = None
        self.summed: tuple[str, ...] | None = None
        self._sharers: list[
            weakref.ref[Parameter]
        ] = []  # Parameters with the same array, itself included; empty: no others
        # the device of an array that is initialized later; None: the host
        self._device: int | str | None = None
        if shape is not None:
            self.initialize(tuple(shape) if np.iterable(shape) else (int(shape),))

    def _freeze(self, value: bool) -> None:
        raise AttributeError(
            "requires_grad is said when a Variable is made: link.disable_update() leaves "
            "parameters as they are"
        )

    requires_grad = property(
        Variable.requires_grad.fget, _freeze, doc=Variable.requires_grad.__doc__
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. An ``array`` of another shape or dtype starts it anew, as
        :meth:`initialize` does.
        """
        old = getattr(self, "array", None) if name == "array" and value is not None else None
        object.__setattr__(self, name, value)
        if name in _STRUCTURAL:
            structure.change()
            if name == "node":
                value.parameter = weakref.ref(self)
        if old is not None and (self.node.shape != value.shape or self.node.dtype != value.dtype):
            self._become(value, old)

    def __copy__(self) -> Parameter:
        """Another Parameter of the same array, gradient and update rule."""
        # resolves a LateCopy: both Parameters refer to one gradient from now on
        materialize(self.node)
        other = Parameter.__new__(type(self))
        other.node, other.array = copy.copy(self.node), self.array
        if not self._sharers:
            self._sharers.append(weakref.ref(self))
        self._sharers.append(weakref.ref(other))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> Any:
        """For deepcopy and pickle: such a copy shares its array with no other Parameter, and has no
        optimizer that knows its holders.
        """
        state: Any = object.__getstate__(self)
        own = {name: value for name, value in state[0].items() if name != "holders"}
        return {**own, "_sharers": []}, state[1]

    def move(self, array: Array) -> None:
        """Replace the array by another one with the same values, in this parameter and in those
        that share the array.
        """
        old, self.array = self.array, array
        for reference in self._sharers:
            other = reference()
            if other is not None and other.array is old:
                other.array = array

    shape = property(
        lambda self: (self._known() if self.array is None else self.array).shape,
        doc="The shape of the array; AttributeError while there is none.",
    )
    ndim = property(
        lambda self: self._known().ndim,
        doc="The number of axes; AttributeError while there is no array.",
    )
    size = property(
        lambda self: self._known().size,
        doc="The number of elements; AttributeError while there is no array.",
    )
    dtype = property(
        lambda self: self._known().dtype,
        doc="The dtype of the array; AttributeError while there is none.",
    )

    def _known(self) -> Array:
        if self.array is None:
            name = f"{self.name} " if self.name else ""
            raise AttributeError(
                f"parameter {name}has no array yet: call its initialize(shape) first, or make "
                "it with a shape"
            )
        return self.array

    def check_whole(self, who: str, remedy: str, but: int | None = None) -> None:
        """Raise unless this rank holds the whole parameter, as a computation needs it.

        Args:
            who: the name of the computation, for the message.
            remedy: the end of the message.
            but: an axis along which the parameter may be divided.

        Raises:
            ValueError: this rank holds a part of the parameter.
        """
        if self.box is None or self.whole is None:
            return
        if any(
            [
                n != m
                for i, (n, m) in enumerate(zip(self.box.shape, self.whole, strict=True))
                if i != but
            ]
        ):
            name = "" if self.name is None else f" {self.name}"
            raise ValueError(
                f"{who} needs the whole parameter{name} {self.whole}, of which this rank has "
                f"{self.box.shape}: {remedy}"
            )

    def check_parts_known(self, who: str) -> None:
        """Raise ValueError if the parameter is divided, and the ranks with its other parts are not
        known; ``who``: the name of what needs them.
        """
        if self.box is not None and not self.holders.parts:
            self.check_whole(who, _UNKNOWN_PARTS)

    def sum_over_parts(self, values: Array, who: str = "sum_over_parts") -> Array:
        """Return the sums of numbers over all parts of the parameter, whichever ranks have them.

        For hooks and update rules that need a number of the whole parameter, such as a norm. All
        ranks that have a part call it during an update, and get the same. A parameter that has no
        other parts returns the numbers as they are.

        Args:
            values: a number or an array of several, of this rank's part.
            who: the name of what needs the numbers, for errors.

        Raises:
            ValueError: the ranks that have the other parts are not known.

        Example:
            >>> import numpy as np, mnpar
            >>> import mnpar.functions as F, mnpar.links as L
            >>> def program(comm):
            ...     layer = L.RowParallelLinear(comm, 4, 1, initialW=np.array([[2.0, 4, 4, 8]]))
            ...     norms = []
            ...
            ...     def norm(rule, param):
            ...         norms.append(float(param.sum_over_parts((param.array**2).sum())) ** 0.5)
            ...
            ...     norm.call_for_each_param = True
            ...     optimizer = mnpar.optimizers.SGD().setup(layer)
            ...     optimizer.add_hook(norm)
            ...     optimizer.update(lambda: F.sum(layer(np.ones((1, 4), "f4"))))
            ...     return norms
            >>> mnpar.run(program, ranks=2)
            [[10.0, 0.0], [10.0, 0.0]]
        """
        self.check_parts_known(who)
        piece = None if self.update_rule is None else self.update_rule.piece
        return self.holders.total(np.asarray(values), piece)

    @property
    def is_initialized(self) -> bool:
        """True if the parameter has an array."""
        return self.array is not None

    def initialize(self, shape: tuple[int, ...]) -> None:
        """Make and fill a new array, on the device of the old one or of ``to_device``; the gradient
        becomes None.

        A parameter that was made from an array has no other initial values: it keeps its present
        ones.

        Args:
            shape: of the array.

        Raises:
            ValueError: the initializer cannot fill this shape.

        Example:
            >>> import mnpar
            >>> b = mnpar.Parameter(mnpar.initializers.One("d"))
            >>> b.initialize((2,))
            >>> b.array
            array([1., 1.])
        """
        if backend.is_array(self.initializer):
            if tuple(shape) != self.shape:
                raise ValueError(
                    f"a parameter made from an array of shape {self.shape} cannot be given "
                    f"shape {tuple(shape)}"
                )
            self.cleargrad()
        else:
            self._take(generate_array(self.initializer, tuple(shape)))

    def _take(self, array: Array) -> None:
        """Set the array to a copy, on the parameter's device, of an array on the host."""
        old = self.array
        self.array = (
            backend.to_device(self._device, array)
            if old is None
            else backend.to_device_of(array, old)
        )
        self._become(array, old)

    def _become(self, array: Array, old: Array | None) -> None:
        """Drop the gradient of the old array and, if that had another shape, the state of the
        update rule.
        """
        node, rule = self.node, self.update_rule
        if rule is not None and old is None:  # state that was loaded before there was an array
            rule.state = {
                name: backend.to_device_of(value, self.array) for name, value in rule.state.items()
            }
        elif rule is not None and old is not None and old.shape != array.shape:
            rule.state, rule.t, rule.in_pieces = {}, 0, False
        node.shape = array.shape
        node.dtype = array.dtype
        node.gradient = None
        node.grad_slot = None
        node.requires_grad = (
            node.requires_grad and array.dtype.kind not in VariableNode.WITHOUT_GRADIENT
        )

    def copydata(self, var: ArrayLike) -> None:
        """Copy the values of another parameter of the same shape, across devices too; makes the
        array if there is none yet.

        Args:
            var: a Variable or Parameter; an uninitialized one changes nothing.

        Raises:
            ValueError: the shapes differ.

        Example:
            >>> import numpy as np, mnpar
            >>> W = mnpar.Parameter()
            >>> W.copydata(mnpar.Parameter(np.ones(2)))
            >>> W.array
            array([1., 1.], dtype=float32)
        """
        if var.array is None:
            return
        if self.array is None:
            dtype = getattr(self.initializer, "dtype", None)
            self._take(np.empty(var.shape, get_dtype(dtype)))
        if self.shape != var.shape:
            raise ValueError(
                f"parameter {self.name}: values of shape {var.shape} cannot be copied into "
                f"shape {self.shape}"
            )
        super().copydata(var)

    def to_device(self, device: int | str | None) -> None:
        """Move array, gradient and the update rule's state to a device; an array that is
        initialized later is made there.
        """
        self._device = device
        if self.array is None:
            return
        self.node.grad_slot = None
        super().to_device(device)
        if self.update_rule is not None:
            state = self.update_rule.state
            state.update({name: backend.to_device(device, value) for name, value in state.items()})

    def update(self) -> None:
        """Apply the update rule that an optimizer has set; without one nothing happens."""
        if self.update_rule is not None:
            self.update_rule.update(self)


_UNKNOWN_PARTS = (
    "the ranks that have the other parts are not known: let the link that divides it say so in "
    'gradient_comms, by add(comm, holds="parts"), or give create_multi_node_optimizer a mesh'
)

# attributes whose change changes ``structure``
_STRUCTURAL = frozenset(("array", "node", "summed", "update_rule"))


class Structure:
    """A version stamp of all links and parameters of the process, their arrays and their update
    rules.

    ``now`` is replaced by a new object at every change of any of them: what was found by walking
    through a model is valid as long as ``now`` is the same object. ``tuned`` is replaced also when
    an optimizer's hyperparameter changes.
    """

    now = tuned = object()

    def change(self) -> None:
        """To be called after a link, a parameter's array or an update rule was added, replaced or
        removed.
        """
        self.now = self.tuned = object()

    def tune(self) -> None:
        """To be called after a hyperparameter that all rules of an optimizer share has changed."""
        self.tuned = object()


structure = Structure()
