"""FunctionNode: one step of a computation, on arrays forward and differentiable backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from weakref import ReferenceType, ref

import numpy as np

from mnpar import backend, hints, lazy
from mnpar.autograd.arraylike import as_array
from mnpar.autograd.graph import AddGradient, Gradient, VariableNode, tick
from mnpar.autograd.retained import Retained
from mnpar.autograd.tape import current_tape
from mnpar.backend import Array
from mnpar.configuration import is_debugging, is_recording
from mnpar.function_hook import Hookable, around_forward, function_hooks
from mnpar.runtime.callsite import call_site
from mnpar.variable import Variable, as_variable

# an input's gradient, None, or a function that computes the gradient when it is wanted
InputGradient: TypeAlias = Gradient | Callable[[], Gradient | None] | None
# what a backward returns: one for each input, or the only one
InputGradients: TypeAlias = InputGradient | tuple[InputGradient, ...]


_node_of = attrgetter("node")


def _arrays_of(variables: tuple[Variable, ...]) -> tuple[Array, ...]:
    return tuple([x.array for x in variables])


@hints.with_hints(hints.FUNCTION)
class FunctionNode(Hookable):
    """A differentiable function; to write your own, define ``forward`` and ``backward``.

    ``forward(self, *xs)`` takes arrays and returns an array or a tuple of them. It names the arrays
    that backward needs by :meth:`retain_inputs` and :meth:`retain_outputs`; all others can be
    freed. ``backward(self, *gys)`` takes the gradients of the outputs as Variables (None where an
    output has none) and returns, for each input, its gradient or None or, best, a function of no
    arguments that computes the gradient: it is called only if that gradient is wanted. Written with
    mnpar's functions, a backward is itself differentiable, any number of times. Later gradients may
    be added in place to its results.

    Example:
        >>> import numpy as np, mnpar
        >>> class Cube(mnpar.FunctionNode):
        ...     def forward(self, x):
        ...         self.retain_inputs((0,))
        ...         return x**3
        ...
        ...     def backward(self, gy):
        ...         (x,) = self.get_retained_inputs()
        ...         return lambda: 3 * x**2 * gy
        >>> x = mnpar.Variable(np.array(2.0))
        >>> (y,) = Cube().apply((x,))
        >>> (gx,) = mnpar.grad([y], [x], enable_double_backprop=True)
        >>> gx.backward()
        >>> float(gx.array), float(x.grad)
        (12.0, 12.0)
    """

    # ---- what kind of function it is: attributes of classes, mostly ----

    # backward uses only what arrays and Variables share (operators, sum, reshape …): a backward
    # that is not recorded runs it on plain arrays, without making Variables
    generic: ClassVar[bool] = False
    # it exchanges messages with other ranks: it is recorded on the tape, and every backward visits
    # it (law 4)
    communicates: bool = False
    # it communicates in backward only: its outputs depend on its own inputs alone
    silent_forward: bool = False
    # it communicates in forward only: each rank has its own gradient already
    silent_backward: bool = False
    # one computation gives all of its gradients: one alone takes as long as all
    joint_vjp: bool = False
    # the inputs that are added up in the output: all of a sum, the bias of a layer
    summands: slice = slice(0)
    # the output is a product of the inputs
    is_product: bool = False
    # linear in each input but the summands: an input's gradient does not depend on that input
    multilinear: ClassVar[bool] = False
    # this graph lacks a part of the history of its inputs
    opaque: bool = False
    # each element of the output depends on the elements of the inputs at its place alone
    elementwise: ClassVar[bool] = False
    # its outputs may be infinite on purpose (padding of a maximum): debug mode looks for NaN only
    infinite: bool = False

    # ---- its place in the graph, set when it is applied ----

    # of a divided input, while it is applied: that layout's rules say how it goes on
    layout: Any = None
    number: int = 0  # its place in time; 0 until it is recorded
    on_tape: bool = False  # a backward has still to visit it
    # of a communication: its communicator, its name and the source line that called it
    comm: Any = None
    op: str = ""
    site: str = ""
    inputs: tuple[VariableNode, ...] = ()
    # dependencies that get no gradients here (a delegate): only ``unchain`` follows them
    extra_inputs: tuple[VariableNode, ...] = ()
    outputs: tuple[ReferenceType[VariableNode], ...] = ()
    # while forward runs: does a gradient flow through? A communication agrees on it with its peers.
    differentiable: bool = False
    _kept_input_indexes: tuple[int, ...] = ()
    _kept_output_indexes: tuple[int, ...] = ()
    _kept_inputs: tuple[Array, ...] = ()
    _kept_outputs: tuple[Array, ...] = ()
    _on_arrays: bool = False  # its backward runs on plain arrays
    _retained: Retained | None = None  # what it keeps, as it was; in debug mode

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hints.refuse_chainers_backward(cls)

    @property
    def label(self) -> str:
        """The name that errors and graph pictures give this function."""
        return type(self).__name__

    # with **, type checkers let a subclass define these with any parameters of its own

    def forward(self, *xs: Any, **_: Any) -> Any:
        """Compute the outputs, arrays, from the inputs, arrays."""
        raise TypeError(f"{self.label} does not define forward(self, *xs)")

    def backward(self, *gys: Any, **_: Any) -> InputGradients:
        """Compute the inputs' gradients from the outputs'. A class that does not define it passes
        no gradients back.
        """
        return (None,) * len(self.inputs)

    def retain_inputs(self, indexes: tuple[int, ...]) -> None:
        """Keep these inputs for ``backward``; called in ``forward``."""
        self._kept_input_indexes = indexes

    def retain_outputs(self, indexes: tuple[int, ...]) -> None:
        """Keep these outputs for ``backward``; called in ``forward``."""
        self._kept_output_indexes = indexes

    def get_retained_inputs(self) -> tuple[Any, ...]:
        """Return the inputs that were kept, connected to the graph; called in ``backward``."""
        if self._on_arrays:
            return self._kept_inputs
        return tuple(
            Variable.of(x, self.inputs[i])
            for i, x in zip(self._kept_input_indexes, self._kept_inputs, strict=True)
        )

    def get_retained_outputs(self) -> tuple[Any, ...]:
        """Return the outputs that were kept, connected to the graph; called in ``backward``."""
        if self._on_arrays:
            return self._kept_outputs
        pairs = zip(self._kept_output_indexes, self._kept_outputs, strict=True)
        return tuple(
            Variable.of(y, self.outputs[i]() or VariableNode(y, True, self, i)) for i, y in pairs
        )

    def gradient_out(self, i: int, like: Gradient) -> Array | None:
        """Return the array of a flat buffer to compute the gradient of input i into, if there is
        one and it is like ``like``; called in ``backward``.
        """
        x = self.inputs[i]
        if x.grad_slot is None or x.gradient is not None or not self._on_arrays:
            return None
        return x.grad_slot.reserve(like)

    def apply(self, inputs: tuple[Array | Variable, ...]) -> tuple[Variable, ...]:
        """Run forward on Variables (or arrays), and record it if a gradient can flow; return the
        outputs, always a tuple.
        """
        (nodes, arrays), hooks = self.prepare(inputs), function_hooks()
        if not arrays and self.layout is not None:
            return self.layout.apply(self, inputs)  # type: ignore[no-any-return]
        forward = around_forward(self, self.forward, hooks) if hooks else self.forward
        try:
            ys = forward(*arrays)
        except (TypeError, AttributeError, np.exceptions.AxisError) as error:
            backend.translate_error(self.label, error, () if self.communicates else arrays)
            raise
        return self.connect(nodes, arrays, ys)

    def prepare(
        self, inputs: tuple[Array | Variable, ...]
    ) -> tuple[list[VariableNode], list[Array]]:
        """Do the first half of ``apply``: the inputs' nodes and arrays; sets ``differentiable``.
        If an input is divided, there are none, and ``layout`` is set.
        """
        # an array, whose rows are no inputs
        if self.number or (type(inputs) is not tuple and hasattr(inputs, "dtype")):
            raise hints.apply_error(self, inputs)
        nodes, arrays, wanted = [], [], False
        for x in inputs:
            if type(x) is not Variable:
                x = x if isinstance(x, Variable) else as_variable(x)
                if x.layout is not None:
                    self.layout = x.layout.check(self)
                    return [], []
            # a Future waits for its array here, so the function that completes it gets a smaller
            # number
            node = x.node
            nodes.append(node)
            arrays.append(x.array)
            wanted = wanted or node.requires_grad
        self.differentiable = wanted and is_recording()
        return nodes, arrays

    def connect(
        self, places: list[VariableNode], arrays: list[Array], ys: Any
    ) -> tuple[Variable, ...]:
        """Do the second half of ``apply``: the outputs as Variables, recorded if a gradient can
        flow.
        """
        # (no comprehensions here: their closures would slow down every function)
        outputs: tuple[Variable, ...]
        references: tuple[ReferenceType[VariableNode], ...]
        recorded = self if self.differentiable else None
        if type(ys) is np.ndarray:  # nearly always
            y = Variable.__new__(Variable)
            y.array = ys
            y.node = node = VariableNode(ys, self.differentiable, recorded)
            outputs, references = (y,), (ref(node),)
        else:
            outputs = self._several_outputs(ys, recorded)
            references = tuple(map(ref, map(_node_of, outputs)))
        debugging = is_debugging()
        if debugging:
            backend.check_finite(
                self.label,
                "output",
                _arrays_of(outputs),
                self.infinite,
                None if self.site else call_site,
            )
        if recorded is not None:
            self.number = self.number or tick()
            self.inputs = tuple(places)
            self.outputs = references
            if self._kept_input_indexes:
                kept = []
                for i in self._kept_input_indexes:
                    kept.append(arrays[i])
                self._kept_inputs = tuple(kept)
            if self._kept_output_indexes:
                computed = _arrays_of(outputs)
                self._kept_outputs = tuple(map(computed.__getitem__, self._kept_output_indexes))
            if debugging:
                self._retained = Retained.of(vars(self), arrays, _arrays_of(outputs))
            if self.communicates:
                current_tape().append(self)
        return outputs

    def _several_outputs(self, ys: Any, recorded: FunctionNode | None) -> tuple[Variable, ...]:
        """Return what forward returned, one array of any kind or a tuple of them, as Variables."""
        arrays = [
            y if type(y) is np.ndarray else backend.check_output(self.label, y)
            for y in (ys if isinstance(ys, tuple) else (ys,))
        ]
        return tuple(
            [
                Variable.of(y, VariableNode(y, self.differentiable, recorded, i))
                for i, y in enumerate(arrays)
            ]
        )

    def join_key(self) -> Any:
        """Return what functions that ran must have in common to be joined; None: this one cannot
        be.
        """
        return None

    def join(
        self, others: Sequence[Any], gys: Sequence[Gradient | None]
    ) -> tuple[FunctionNode, list[Gradient | None]]:
        """Return one function that stands for this one and others with an equal :meth:`join_key`,
        and the gradients of its outputs, so that one backward computes for all of them.

        Args:
            others: they ran, as this one did.
            gys: of each function, this one first, the gradient of its output.
        """
        raise TypeError(f"{self.label} cannot be joined with others")

    def vjp(
        self,
        gys: list[Gradient | None],
        wanted: list[bool],
        record: bool,
        add_gradient: AddGradient,
    ) -> None:
        """Call ``add_gradient`` with each wanted input and its gradient; compute no others."""
        debugging = is_debugging()
        if debugging and self._retained is not None:
            self._retained.check(self.label, self._needed_inputs(wanted))
        self._on_arrays = self.generic and not record
        if not (self._on_arrays or record):
            gys = [
                None if gy is None else Variable(as_array(gy), requires_grad=False) for gy in gys
            ]
        try:
            found, inputs = self.backward(*gys), self.inputs
            gxs = found if isinstance(found, tuple) else (found,)
            if len(gxs) != len(inputs):
                raise ValueError(f"it returned {len(gxs)} gradients for {len(inputs)} inputs")
            trusted = not (record or debugging)
            for x, want, gx in zip(inputs, wanted, gxs, strict=True):
                if not want:
                    continue
                gx = gx() if callable(gx) else gx
                if not (
                    trusted
                    and type(gx) is np.ndarray
                    and gx.dtype is x.dtype
                    and gx.shape == x.shape
                ):
                    gx = self._checked(x, gx, record)
                if gx is not None:
                    add_gradient(x, gx)
        except Exception as error:
            error.add_note(f"in the backward of {self.label}{hints.retain_hint(self, error)}")
            raise

    def _needed_inputs(self, wanted: list[bool]) -> set[int]:
        """Return which inputs' values the wanted gradients may depend on."""
        every = set(range(len(wanted)))
        if not self.multilinear:
            return every
        by_values = [i for i in every - set(range(len(wanted))[self.summands]) if wanted[i]]
        return {i for i in every if any([j != i for j in by_values])}

    def _checked(self, x: VariableNode, gx: Any, record: bool) -> Gradient | None:
        """Return the gradient as backward adds it up: an array (a Variable if recorded) of the
        input's shape and dtype.
        """
        array = gx.array if isinstance(gx, Variable) else gx
        if array is None:
            return None
        if not backend.is_array(array):
            # and no cast yet: to cast from complex numbers needs care
            array = gx = np.asarray(array)
        if array.shape != x.shape:
            i = self.inputs.index(x)
            raise ValueError(
                f"its gradient for input {i} has shape {array.shape}, but the input has shape "
                f"{x.shape}"
            )
        if is_debugging():
            backend.check_finite(self.label, "gradient", (array,))
        g: Gradient = as_variable(gx) if record else array
        if array.dtype != x.dtype:
            g = backend.cast_gradient(g, x.dtype)
        return g


if not TYPE_CHECKING:
    __getattr__ = lazy.names_above(__name__, grad="mnpar.variable")
