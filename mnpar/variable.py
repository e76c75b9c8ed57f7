"""Variable: an array and its place in the graph; backward and grad, the two ways to ask for
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend, hints, lazy
from mnpar.autograd.accumulate import (
    LeafAccumulator,
    buffer_ids,
    copy_shared,
    materialize,
    without_slots,
)
from mnpar.autograd.arraylike import ArrayLike
from mnpar.autograd.engine import run_backward
from mnpar.autograd.graph import Gradient, GradientHook, VariableNode, tick, unchain
from mnpar.autograd.observer import observer
from mnpar.backend import Array, Axis, AxisIndex, Index, Number

# Called after a backward that a program has started by itself, with each variable that it started
# from, if ranks sum the gradients that it gave.
of_synchronized: list[Callable[[VariableNode], None]] = []


class Variable(ArrayLike):
    """An array that remembers how it was computed.

    Args:
        data: a numpy or cupy array, or None.
        name: shown in graphs.
        grad: its gradient to start with, an array of the same shape and dtype.
        requires_grad: whether backward computes its gradient. Integers and booleans never have one.

    Example:
        >>> import numpy as np, mnpar
        >>> x = mnpar.Variable(np.array([1.0, 2.0]))
        >>> y = (x * x).sum()
        >>> y.backward()
        >>> x.grad
        array([2., 4.])
    """

    __slots__ = ("__weakref__", "node")

    # how it is cut over a grid of ranks, if it is (functions/divided/layout.py)
    layout: Any = None

    # what is computed is a function like any other: functions/operators.py puts them here
    if TYPE_CHECKING:

        def __add__(self, other: Variable | Array | Number) -> Variable: ...
        def __radd__(self, other: Variable | Array | Number) -> Variable: ...
        def __sub__(self, other: Variable | Array | Number) -> Variable: ...
        def __rsub__(self, other: Variable | Array | Number) -> Variable: ...
        def __mul__(self, other: Variable | Array | Number) -> Variable: ...
        def __rmul__(self, other: Variable | Array | Number) -> Variable: ...
        def __truediv__(self, other: Variable | Array | Number) -> Variable: ...
        def __rtruediv__(self, other: Variable | Array | Number) -> Variable: ...
        def __floordiv__(self, other: Variable | Array | Number) -> Variable: ...
        def __rfloordiv__(self, other: Variable | Array | Number) -> Variable: ...
        def __pow__(self, other: Variable | Array | Number) -> Variable: ...
        def __rpow__(self, other: Variable | Array | Number) -> Variable: ...
        def __matmul__(self, other: Variable | Array | Number) -> Variable: ...
        def __rmatmul__(self, other: Variable | Array | Number) -> Variable: ...
        def __pos__(self) -> Variable: ...
        def __neg__(self) -> Variable: ...
        def __abs__(self) -> Variable: ...
        def __getitem__(self, slices: AxisIndex | Index) -> Variable: ...
        def reshape(self, *shape: int | Sequence[int]) -> Variable: ...
        def transpose(self, *axes: int | Sequence[int]) -> Variable: ...
        def sum(self, axis: Axis = None, keepdims: bool = False) -> Variable: ...
        def mean(
            self, axis: Axis = None, weights: Variable | Array | None = None, keepdims: bool = False
        ) -> Variable: ...
        def max(self, axis: Axis = None, keepdims: bool = False) -> Variable: ...
        def min(self, axis: Axis = None, keepdims: bool = False) -> Variable: ...
        def astype(self, dtype: DTypeLike) -> Variable: ...
        def conj(self) -> Variable: ...

        @property
        def real(self) -> Variable: ...
        @property
        def imag(self) -> Variable: ...
        @property
        def T(self) -> Variable: ...

    def __init__(
        self,
        data: Array | None = None,
        *,
        name: str | None = None,
        grad: Array | None = None,
        requires_grad: bool = True,
    ) -> None:
        array: Any = None if data is None else backend.require_array(data)
        self.array = array
        self.node = VariableNode(data, requires_grad, None, tick())
        self.node.name = name
        if grad is not None:
            self.grad = grad

    @classmethod
    def of(cls, array: Any, node: VariableNode) -> Variable:
        """Return a Variable for an existing place in the graph (no checks: it is made for every
        output of every function).
        """
        variable = Variable.__new__(Variable)
        variable.array, variable.node = array, node
        return variable

    creator = property(
        attrgetter("node.creator"), doc="The FunctionNode that computed it; None for a leaf."
    )
    requires_grad = property(
        attrgetter("node.requires_grad"), doc="Whether backward computes its gradient."
    )
    name = property(
        lambda self: self.node.name,
        lambda self, name: setattr(self.node, "name", name),
        doc="Its name in graphs.",
    )

    @property
    def grad(self) -> Array:
        """The gradient of this Variable, an array of its shape and dtype; None before any backward
        has computed one.
        """
        g: Any = self.node.gradient
        if not (g is None or type(g) is np.ndarray):
            return materialize(self.node)
        return g  # type: ignore[return-value]  # None before a backward has computed one

    @grad.setter
    def grad(self, g: Array | None) -> None:
        if g is not None and (
            not backend.is_array(g) or g.shape != self.shape or g.dtype != self.dtype
        ):
            form = (
                f"{g.shape} {g.dtype} array"
                if backend.is_array(g)
                else f"{type(g).__name__}, which is no array"
            )
            raise ValueError(
                f"the gradient of a {self.shape} {self.dtype} Variable cannot be a {form}"
            )
        self.node.gradient = g

    @property
    def grad_var(self) -> Variable | None:
        """The gradient as a Variable: connected to the graph after a backward with
        ``enable_double_backprop``.
        """
        if self.node.gradient is not None and not isinstance(self.node.gradient, Variable):
            self.node.gradient = Variable(self.grad)
        return self.node.gradient

    @grad_var.setter
    def grad_var(self, g: Variable | None) -> None:
        self.grad = None if g is None else g.array
        self.node.gradient = g

    @hints.explain_keywords
    def backward(
        self,
        retain_grad: bool = False,
        enable_double_backprop: bool = False,
        loss_scale: float | None = None,
        *,
        retain_tape: bool = False,
    ) -> None:
        """Add to every leaf's ``grad`` the derivative of this Variable: :func:`mnpar.backward` of
        it alone.
        """
        _backward([self], None, enable_double_backprop, retain_grad, loss_scale, retain_tape)

    def cleargrad(self) -> None:
        """Set the gradient to None."""
        self.node.gradient = None

    def register_hook(self, hook: Callable[[Any], Any], after: bool = False) -> Callable[[], None]:
        """Call a function with this Variable's gradient, once in each backward that computes one.

        Args:
            hook: called with the complete gradient (an array; a Variable if the backward is
                recorded) while backward goes on, in an order that is the same on ranks with the
                same program. It may return another gradient of the same shape and dtype, but must
                not change this array: functions that backward has still to visit may share it.
            after: call the hook after a leaf's gradient was added to ``grad`` instead, with the
                leaf's :class:`VariableNode`.

        Returns:
            A function without arguments that removes the hook.

        Example:
            >>> import numpy as np, mnpar
            >>> x = mnpar.Variable(np.array(3.0))
            >>> off = x.register_hook(lambda g: 10 * g)
            >>> (x * x).backward()
            >>> float(x.grad)
            60.0
        """
        return self.node.add_hook(GradientHook(hook, after))

    def zerograd(self) -> None:
        """Set the gradient to an array of zeros."""
        self.grad = self.xp.zeros_like(self.array)

    def addgrad(self, var: Variable) -> None:
        """Add the gradient of another Variable to this one's."""
        if var.grad is not None:
            g = backend.to_device_of(var.grad, self.array)
            self.grad = g.copy() if self.grad is None else backend.add_gradients(self.grad, g)

    def unchain(self) -> None:
        """Detach this Variable from the function that computed it: backward stops here."""
        self.node.creator = None

    def unchain_backward(self) -> None:
        """Detach all that it was computed from, too (truncated backpropagation through time); on
        the calling rank only.
        """
        unchain(self.node)

    def to_device(self, device: int | str | None) -> None:
        """Move array and gradient to a device: ``-1`` or ``'@numpy'`` the host, ``0`` or
        ``'@cupy:0'`` the first GPU.
        """
        super().to_device(device)
        if self.grad is not None:
            self.node.gradient = backend.to_device(device, self.grad)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the array, for numpy.

        Raises:
            TypeError: this Variable needs a gradient, which numpy would cut off.
            LayoutError: it is divided.
        """
        if self.requires_grad and self.layout is None:
            return super().__array__(dtype, copy)
        return np.array(self.array, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Return a capsule of the array, for ``from_dlpack`` of other libraries.

        Raises:
            BufferError: this Variable needs a gradient, which the other library would cut off.
        """
        if self.requires_grad or self.layout is not None:
            raise BufferError(_NO_EXPORT)
        array: Any = self.array
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind and the number of the device, as DLPack counts them."""
        array: Any = self.array
        device: tuple[int, int] = array.__dlpack_device__()
        return device

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        values = "None" if self.array is None else repr(self.array)[6:-1]  # without array(…)
        return f"variable{name}({values})"


def as_variable(obj: Array | Variable, requires_grad: bool = False) -> Variable:
    """``obj`` itself if it is a Variable, else a Variable of the array ``obj``, by default one that
    needs no gradient.
    """
    if type(obj) is np.ndarray:
        return Variable.of(obj, VariableNode(obj, requires_grad))
    return (
        obj
        if isinstance(obj, Variable)
        else Variable(backend.require_array(obj), requires_grad=requires_grad)
    )


_NO_EXPORT = (
    "a Variable that needs a gradient, or is divided over ranks, is not handed to another library, "
    "which would cut its graph: give its .array, where no gradient is wanted, or call the other "
    "library's function by F.from_torch, F.from_jax or F.from_numba, through which gradients flow"
)


@hints.explain_keywords
def from_dlpack(x: Any, requires_grad: bool = False) -> Variable:
    """Return a Variable of an array of another library, with which it shares memory.

    Args:
        x: has ``__dlpack__`` and ``__dlpack_device__``: a tensor of PyTorch's or an array of JAX's,
            for example, on the processor or a GPU.
        requires_grad: whether backward computes the Variable's gradient.

    Raises:
        TypeError: x has no ``__dlpack__``, or is on a device of another kind. BufferError: its
            library does not hand it over (a tensor that requires a gradient), or numpy has no such
            dtype.

    Example:
        >>> import numpy as np, mnpar
        >>> x = np.zeros(2)  # or a tensor
        >>> y = mnpar.from_dlpack(x)
        >>> x[0] = 1
        >>> y.array
        array([1., 0.])
    """
    return Variable(backend.from_dlpack(x), requires_grad=requires_grad)


@hints.explain_keywords
def backward(
    outputs: Sequence[Variable] = (),
    grad_outputs: Sequence[Variable | None] | None = None,
    *,
    enable_double_backprop: bool = False,
    retain_grad: bool = False,
    loss_scale: float | None = None,
    retain_tape: bool = False,
) -> None:
    """Add to every leaf's ``grad`` the derivative of the sum of ``outputs`` (and, law 1, of all
    ranks' outputs).

    Every rank that took part in a communication must call it, those without a loss as
    ``mnpar.backward()``.

    Args:
        outputs, grad_outputs: where to start, and their gradients; where None, an output's ``grad``
            or, if its size is 1, 1.
        enable_double_backprop: make the gradients differentiable themselves; the tape is kept then.
        retain_grad, retain_tape: leave gradients on intermediate Variables too; keep the tape for
            another backward.
        loss_scale: multiplies the gradients that start from 1; optimizers divide the leaves'
            gradients by it.

    Raises:
        ValueError: an output that is not a scalar has no gradient; RuntimeError: an earlier
            backward has used up the tape; MismatchError: another rank, from which a gradient comes,
            runs :func:`mnpar.grad`, or a pass that is recorded or keeps the tape, and this rank
            does not.

    Example:
        >>> import numpy as np, mnpar
        >>> x = mnpar.Variable(np.array(3.0))
        >>> mnpar.backward([x * 2, x * x])
        >>> float(x.grad)
        8.0
    """
    _backward(outputs, grad_outputs, enable_double_backprop, retain_grad, loss_scale, retain_tape)


def _backward(
    outputs: Sequence[Variable],
    grad_outputs: Sequence[Variable | None] | None,
    record: bool,
    retain_grad: bool,
    loss_scale: float | None,
    retain_tape: bool,
) -> None:
    watching = observer()
    if watching is not None:
        watching.backward_begins()
    seeds = _seeds(outputs, grad_outputs, loss_scale, record)
    leaves = LeafAccumulator(seeds, loss_scale)
    found = run_backward(
        seeds,
        record=record,
        retain_grad=retain_grad,
        retain_tape=retain_tape,
        on_final=leaves.add,
        outputs=[y.array for y in outputs],
        loss_scale=loss_scale,
    )
    leaves.add_all(found)
    if leaves.synchronized and grad_outputs is None:  # by the program itself, not by update()
        for look in of_synchronized:
            for node, _ in seeds:
                look(node)
    if watching is not None:
        starts = {node.key: getattr(g, "array", g) for node, g in seeds}
        losses = [(y.array, starts[y.node.key]) for y in outputs if y.node.key in starts]
        watching.backward_ends(losses, loss_scale)


@hints.explain_keywords
def grad(
    outputs: Sequence[Variable],
    inputs: Sequence[Variable],
    grad_outputs: Sequence[Variable | None] | None = None,
    grad_inputs: Sequence[Variable | None] | None = None,
    set_grad: bool = False,
    retain_grad: bool = False,
    enable_double_backprop: bool = False,
    loss_scale: float | None = None,
    *,
    retain_tape: bool = False,
) -> list[Variable | None]:
    """Return the derivative of the sum of ``outputs`` with respect to each of ``inputs``; no leaf's
    ``grad`` changes.

    Every rank calls it, as :func:`mnpar.backward`; ranks without outputs and inputs call
    ``mnpar.grad([], [])``, with the same ``enable_double_backprop`` and ``retain_tape``.

    Args:
        outputs, retain_grad, enable_double_backprop, loss_scale, retain_tape: as in
            :func:`mnpar.backward`.
        inputs, grad_outputs: any Variables of the graph; the gradients of the outputs, arrays of
            ones where None.
        grad_inputs, set_grad: Variables to add to the results; also leave the results on the
            inputs' ``grad``.

    Returns:
        A Variable for each input, None where no output depends on it. Only ranks together know
        whether outputs depend on a divided Variable: its gradient is divided alike, with zeros
        where there is none. That of a divided parameter is this rank's part, an ordinary Variable.

    Example:
        >>> import numpy as np, mnpar
        >>> x = mnpar.Variable(np.array(3.0))
        >>> (g,) = mnpar.grad([x * x], [x])
        >>> float(g.array), x.grad
        (6.0, None)
    """
    _check_variables("inputs", inputs)
    pairs = paired("grad_inputs", inputs, grad_inputs or None)
    seeds = _seeds(outputs, grad_outputs, loss_scale, enable_double_backprop, ones=True)
    nodes = [x.node for x in inputs]
    with without_slots(nodes):
        found = run_backward(
            seeds,
            nodes,
            record=enable_double_backprop,
            retain_grad=retain_grad,
            retain_tape=retain_tape,
            loss_scale=loss_scale,
        )
    results: list[Variable | None] = []
    gs = copy_shared([found.get(node.key) for node in nodes], buffer_ids([g for _, g in seeds]))
    for (x, more), g in zip(pairs, gs, strict=True):
        g = more if g is None else g if more is None else backend.add_gradients(more, g)
        result = None if g is None else as_variable(g)
        results.append(result if x.layout is None else x.layout.gradient(x.part, result))
        if set_grad:
            x.grad_var = results[-1]
    return results


def _check_variables(what: str, xs: Sequence[object]) -> None:
    for i, x in enumerate(xs):
        if not isinstance(x, Variable):
            raise TypeError(
                f"the {what} are a list of Variables, but number {i} is a {type(x).__name__}"
            )


def _seeds(
    outputs: Sequence[Variable],
    gys: Sequence[Variable | Array | None] | None,
    loss_scale: float | None,
    record: bool,
    ones: bool = False,
) -> list[tuple[VariableNode, Gradient]]:
    """Return the variables that backward starts from, with their gradients."""
    if isinstance(outputs, Variable):
        raise TypeError(
            "the outputs are a list of Variables: write mnpar.backward([y]) or y.backward()"
        )
    seeds = []
    _check_variables("outputs", outputs)
    for y, g in paired("grad_outputs", outputs, gys):
        if gys is None and not ones:
            g = y.grad_var if record else y.node.gradient
        if (
            g is None
            and (array := y.array) is not None
            and (array.size == 1 or (ones and array.size))
        ):
            xp = backend.get_array_module(array)
            start = 1 if loss_scale is None else loss_scale
            # which is quicker
            g = (
                xp.full_like(array, start)
                if ones
                else xp.array(start, array.dtype, ndmin=array.ndim)
            )
        if g is not None:
            seeds.append((y.node, as_variable(g) if record else getattr(g, "array", g)))
        elif y.array is not None and y.size:  # a send's delegate is empty and starts from nothing
            raise ValueError(
                f"backward from an array of shape {y.shape} needs its gradient: set y.grad, or "
                "sum it to a scalar"
            )
    return seeds


def paired(
    name: str, variables: Sequence[Variable], gs: Sequence[Variable | Array | None] | None
) -> Iterable[tuple[Any, Any]]:
    """Return pairs of a variable and its gradient; None for all gradients if ``gs`` is None.

    Raises:
        ValueError: there are more or fewer gradients than variables; ``name`` is the argument to
            name in the message.
    """
    if gs is not None and len(gs) != len(variables):
        raise ValueError(
            f"{name} has {len(gs)} gradients (or Nones) for {len(variables)} Variables: one "
            "for each is needed"
        )
    return zip(variables, [None] * len(variables) if gs is None else gs, strict=True)


if not TYPE_CHECKING:
    __getattr__ = lazy.names_above(__name__, Parameter="mnpar.parameter")
