"""The parts that functions are made of: the base of their nodes, :func:`elementwise`, and helpers
that read and check arguments.

mnpar's functions are *generic*: their backward is written once, in terms that arrays and Variables
share (operators, ``sum``, ``reshape``, ``transpose``, indexing, other generic functions), and runs
on plain arrays unless the backward is to be differentiated itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import numpy as np

from mnpar import backend
from mnpar.autograd.tape import Tape
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import FunctionNode, InputGradients
from mnpar.hints import MISSING, check_keywords, refuse_call
from mnpar.variable import Variable, as_variable, grad

P = ParamSpec("P")
Result = TypeVar("Result")
# for functions whose result is an array if they are given arrays, and a Variable if given Variables
Operand = TypeVar("Operand", Variable, Array, Variable | Array)


class GenericFunction(FunctionNode):
    """A FunctionNode whose ``backward`` uses only what arrays and Variables share.

    The backwards of other functions call a new node as a function: ``Sum(axis)(gy)``.
    """

    generic = True

    def __call__(self, *xs: Operand) -> Operand:
        """Compute the one output: an array, or a recorded Variable if one of the inputs is a
        Variable.
        """
        for x in xs:
            if isinstance(x, Variable):
                return self.apply(xs)[0]
        y: Operand = self.forward(*xs)
        return y


def composed_gradient(
    compute: Callable[[Variable], Variable], x: Variable, gy: Variable | Array
) -> Variable | None:
    """Return the gradient of x by differentiable functions that compute the same: slower than a
    function's own, but differentiable any number of times.

    Args:
        compute: y of x, of functions of mnpar.
        x: an input that backward got as a Variable.
        gy: the gradient of y.
    """
    with Tape():
        return grad([compute(x)], [x], [as_variable(gy)], enable_double_backprop=True)[0]


class Elementwise(Protocol):
    """The type of the functions that :func:`elementwise` returns."""

    node: type[GenericFunction]
    """The class that records the function in the graph."""

    def __call__(self, x: Variable | Array) -> Variable: ...

    @staticmethod
    def generic(x: Operand) -> Operand:
        """Compute an array of an array and a Variable of a Variable, as backwards need it."""


def elementwise(
    gradient: Callable[..., Variable | Array] | None, name: str | None = None
) -> Callable[[Callable[[ArrayModule, Array], Array]], Elementwise]:
    """Make a differentiable function of one array, and its FunctionNode, from a formula.

    The decorated function computes y from ``xp`` (numpy or CuPy) and x, and brings its name and
    docstring.

    Args:
        gradient: computes the gradient of x from ``gy``, the gradient of y, and from ``x``, ``y``
            or both, in this order: the arrays that its parameters name are kept for it. It must be
            generic. Variables are not compared, so a mask is ``array_of(y) > 0``, not ``y > 0``.
            None for a function whose derivative is 0: nothing flows back.
        name: of the node's class, which errors and graph pictures show; by default that of the
            function in capitalized words, ``LogNdtr`` for ``log_ndtr``.

    Example:
        >>> @elementwise(gradient=lambda gy, y: gy * y)
        ... def exp(xp, x):
        ...     return xp.exp(x)
        >>> x = Variable(np.array([0.0, 1.0]))
        >>> y = exp(x)
        >>> y.creator.label, y.array
        ('Exp', array([1.        , 2.71828183]))
    """

    def decorate(compute: Callable[[ArrayModule, Array], Array]) -> Elementwise:
        if gradient is None:
            constant: Elementwise = _public(_constant(compute), compute, _of_one)
            return constant
        node = _node(compute, gradient)
        node.__name__ = node.__qualname__ = name or compute.__name__.title().replace("_", "")
        node.__module__ = compute.__module__
        node.__doc__ = f"The node of :func:`{compute.__name__}`."
        function: Elementwise = _public(_recorded(compute, node), compute, _of_one)
        function.node = node
        function.generic = lambda x: node()(x)  # type: ignore[method-assign]
        return function

    return decorate


def _of_one(x: Variable | Array) -> Variable:
    """The arguments of an elementwise function: other words are only taken to be refused."""
    raise NotImplementedError


_OF_ONE = inspect.signature(_of_one)


def _node(
    compute: Callable[[ArrayModule, Array], Array], gradient: Callable[..., Variable | Array]
) -> type[GenericFunction]:
    kept = tuple(inspect.signature(gradient).parameters)[1:]
    if kept not in (("x",), ("y",), ("x", "y"), ()):
        raise TypeError(f"elementwise: a gradient takes gy, x and y, in this order, not {kept}")

    class Node(GenericFunction):
        elementwise = True
        _kept_input_indexes = (0,) if "x" in kept else ()
        _kept_output_indexes = (0,) if "y" in kept else ()

        def forward(self, x: Array) -> Array:
            return compute(backend.get_array_module(x), x)

        def backward(self, gy: Variable | Array) -> InputGradients:
            return gradient(gy, *self.get_retained_inputs(), *self.get_retained_outputs())

    return Node


def _recorded(
    compute: Callable[..., Array], node: type[GenericFunction]
) -> Callable[..., Variable]:
    refuse, missing = functools.partial(refuse_call, compute.__name__, _OF_ONE), MISSING

    def function(x: Any = MISSING, **words: Any) -> Variable:
        if words or x is missing:
            refuse(words)
        return node().apply((x,))[0]

    return function


def _constant(
    compute: Callable[[ArrayModule, Array], Array],
) -> Callable[..., Variable]:
    def on_its_module(array: Array) -> Array:
        return compute(backend.get_array_module(array), array)

    refuse, missing = functools.partial(refuse_call, compute.__name__, _OF_ONE), MISSING
    result = functools.partial(without_gradient, compute.__name__, on_its_module, elementwise=True)

    def function(x: Any = MISSING, **words: Any) -> Variable:
        if words or x is missing:
            refuse(words)
        return result(x)

    return function


def any_axes(
    compute: Callable[Concatenate[str, int | None, P], Result],
) -> Callable[P, Result]:
    """Make a public function of images with any number of spatial axes, ``convolution_nd``.

    The decorated function has two arguments before the public ones: the name to use in errors, and
    the number of spatial axes that x must have, or None. :func:`for_axes` gives it other values
    of both.
    """
    public: Callable[P, Result] = _with_axes(compute, compute.__name__, None, compute.__doc__)
    return public


def for_axes(general: Callable[P, Result], ndim: int, doc: str) -> Callable[P, Result]:
    """Make ``convolution_2d`` of ``convolution_nd``, with a docstring of its own.

    Example:
        >>> from mnpar.kernels.windows import check_spatial_axes
        >>> @any_axes
        ... def mean_nd(who, ndim, x):
        ...     check_spatial_axes(who, x.shape, ndim)
        ...     return x.mean(axis=tuple(range(2, x.ndim)))
        >>> mean_2d = for_axes(mean_nd, 2, "The means of images.")
        >>> mean_2d(np.ones((1, 2, 3, 3)))
        array([[1., 1.]])
        >>> mean_2d.__name__, mean_2d.__doc__
        ('mean_2d', 'The means of images.')
    """
    name = general.__name__.replace("_nd", f"_{ndim}d")
    public: Callable[P, Result] = _with_axes(inspect.unwrap(general), name, ndim, doc)
    return public


def _with_axes(compute: Callable[..., Any], name: str, ndim: int | None, doc: str | None) -> Any:
    refuse = check_keywords  # the function has the globals of another module

    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            return compute(name, ndim, *args, **kwargs)
        except TypeError:
            refuse(name, public.__signature__, kwargs)
            raise

    public = _public(function, compute, function)
    public.__name__ = public.__qualname__ = name
    public.__doc__ = doc
    signature = inspect.signature(compute)
    public.__signature__ = signature.replace(parameters=[*signature.parameters.values()][2:])
    return public


def _public(function: Any, formula: Callable[..., Any], like: Any) -> Any:
    """The function under the formula's name, in the formula's module, where doctest looks for
    it.
    """
    public = FunctionType(
        function.__code__,
        formula.__globals__,
        formula.__name__,
        function.__defaults__,
        function.__closure__,
    )
    functools.update_wrapper(public, formula)
    public.__dict__.update(__signature__=inspect.signature(like), tells_keywords=True)
    public.__annotations__ = like.__annotations__
    return public


@overload
def array_of(x: Variable | Array) -> Array: ...
@overload
def array_of(x: Variable | Array | Result) -> Array | Result: ...
def array_of(x: Variable | Array | Result) -> Array | Result:
    """The array of a Variable, or the array itself: for masks and labels, through which nothing is
    differentiated.
    """
    return x.array if isinstance(x, Variable) else x


def is_divided(x: Any) -> bool:
    """Return whether ``x`` is a divided Variable, of which each rank has a part."""
    return getattr(x, "layout", None) is not None


def own_array(x: Any) -> Array:
    """Return the array that this rank has of an array or Variable: of a divided one its part."""
    return array_of(x.part if is_divided(x) else x)


def without_gradient(
    name: str, compute: Callable[[Array], Array], x: Variable | Array, elementwise: bool = False
) -> Variable:
    """Return the result of a function without a derivative, or with the derivative 0.

    Args:
        name: of the function.
        compute: the result, from an array.
        x: the input.
        elementwise: each element of the result depends on the one at its place alone.
    """
    x = as_variable(x)
    if elementwise and x.layout is not None:
        part = without_gradient(name, compute, x.part)  # type: ignore[attr-defined]
        divided: Variable = x.layout.divided(part)
        return divided
    array = x.array
    try:
        return Variable(backend.wrap_scalar(compute(array)), requires_grad=False)
    except (TypeError, AttributeError, np.exceptions.AxisError) as error:
        backend.translate_error(name, error, [array])
        raise


def as_operand(x: Any, other: Any) -> Any:
    """A number beside an array takes the array's dtype (and device), as numpy's own rule for Python
    numbers has it: a fraction beside integers, or a complex number beside real ones, the dtype of
    its kind.
    """
    if isinstance(x, Variable) or (backend.is_array(x) and x.ndim):
        return x
    if not isinstance(x, (int, float, complex, np.generic)) and not backend.is_array(x):
        # which refuses them, with advice
        return backend.require_array(x) if isinstance(x, list | tuple) else NotImplemented
    like = own_array(other)
    if not backend.is_array(like):
        return np.asarray(x)
    dtype = like.dtype
    if dtype.kind in "biu":
        dtype = np.result_type(dtype, x.dtype if backend.is_array(x) else x)
    elif dtype.kind != "c" and not isinstance(x, (int, float)) and np.iscomplexobj(x):
        dtype = np.result_type(dtype, np.complex64)
    return backend.get_array_module(like).asarray(x, dtype)


def normalize_axis(name: str, x: Variable | Array, axis: int) -> int:
    """An axis of an array or Variable, counted from 0.

    Args:
        name: of the function that asks.

    Raises:
        ValueError: x has no such axis; TypeError: it is no integer.

    Example:
        >>> normalize_axis("flip", np.ones((2, 3)), -1)
        1
    """
    if not hasattr(axis, "__index__"):
        raise TypeError(f"{name}: an axis is an integer, not {axis!r}")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{name}: x of shape {x.shape} has no axis {axis}")
    return axis % x.ndim


def normalize_axes(name: str, x: Variable | Array, axes: int | Iterable[int]) -> list[int]:
    """Axes of an array or Variable, counted from 0.

    Args:
        name: of the function that asks.
        axes: one or several.

    Raises:
        ValueError: there is no such axis, or one is named twice.

    Example:
        >>> normalize_axes("sum", np.ones((2, 3)), (-1, 0))
        [1, 0]
    """
    found: list[int] = []
    for axis in axes if isinstance(axes, Iterable) else (axes,):
        place = normalize_axis(name, x, axis)
        if place in found:
            raise ValueError(f"{name}: axis {axis} of shape {x.shape} is named twice")
        found.append(place)
    return found


def check_labels(who: str, labels: Array, classes: int, lowest: int = 0) -> None:
    """Raises ValueError if an integer is not in lowest … classes - 1: as an index a negative one
    would count from the end.

    Example:
        >>> check_labels("hinge", np.array([0, 3]), 3)
        Traceback (most recent call last):
        ...
        ValueError: hinge: labels 0 … 3 are not all in 0 … 2
    """
    if labels.size and (labels.min() < lowest or labels.max() >= classes):
        raise ValueError(
            f"{who}: labels {labels.min()} … {labels.max()} are not all in {lowest} … {classes - 1}"
        )


def check_option(who: str, option: str, value: object, *known: object) -> None:
    """Raises ValueError if the value of an option is none of those that are known.

    Example:
        >>> check_option("hinge", "norm", "L3", "L1", "L2")
        Traceback (most recent call last):
        ...
        ValueError: hinge: norm is 'L1' or 'L2', not 'L3'
    """
    if value not in known:
        *others, last = map(repr, known)
        raise ValueError(f"{who}: {option} is {', '.join(others)} or {last}, not {value!r}")


def check_shapes(who: str, *xs: Variable | Array) -> None:
    """Raises ValueError if not all have one shape: where this is called, nothing is broadcast.

    Example:
        >>> check_shapes("squared_error", np.ones((2, 3)), np.ones(3))
        Traceback (most recent call last):
        ...
        ValueError: squared_error: shapes (2, 3) and (3,) must be the same
    """
    shapes = [x.shape for x in xs]
    if shapes.count(shapes[0]) != len(shapes):
        raise ValueError(f"{who}: shapes {show_shapes(shapes)} must be the same")


def show_shapes(shapes: Iterable[Iterable[int]]) -> str:
    """Shapes as an error shows them.

    Example:
        >>> show_shapes([(2, 3), (4,)])
        '(2, 3) and (4,)'
    """
    return " and ".join(str(tuple(shape)) for shape in shapes)
