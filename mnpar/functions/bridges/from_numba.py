"""from_numba: loops that numba compiles, forward and backward, as a differentiable function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.bridges.nesting import arrays_in, check_on_host, filled, native, separate
from mnpar.functions.node import GenericFunction
from mnpar.variable import Variable, as_variable


def from_numba(forward: Callable[..., Any], backward: Callable[..., Any] | None = None) -> Any:
    """Return a differentiable function of two that numba compiles: one computes the outputs, the
    other the gradients of the inputs.

    numba compiles each once for all arrays of the same dtypes and numbers of axes. They get arrays
    that are read-only, so that an attempt to write into one is an error of numba's. The result is
    a function like any other: on each rank it computes with that rank's arrays.

    Args:
        forward: ``forward(*args)`` returns an array, or a tuple of arrays. Arguments that are not
            arrays, numbers for example, are handed over as they are. A function of Python's, or
            one that ``numba.njit`` has compiled already.
        backward: ``backward(*args, *gys)``, with the gradient of each output (zeros where it has
            none), returns the gradient of each array among ``args``, one or a tuple; None for an
            array of integers. Without it, no gradient can be asked for. To be differentiated in
            its turn, it must be a result of ``from_numba`` itself.

    Returns:
        A function of Variables, arrays and other values, which returns a Variable or a tuple.

    Raises:
        ImportError: numba is missing. When it is called, TypeError: a result is no array, or an
            array is not on the host; ValueError: there are more or fewer gradients than arrays, or
            one has another shape than its array; RuntimeError: a gradient is asked for of a
            function without ``backward``; and numba's own errors.

    Example:
        >>> import numba, numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> @numba.njit
        ... def forward(x, factor):
        ...     y = np.empty_like(x)
        ...     for i in range(len(x)):
        ...         y[i] = factor * x[i] ** 3
        ...     return y
        >>> def backward(x, factor, gy):
        ...     return 3 * factor * x**2 * gy
        >>> cube = F.from_numba(forward, backward)
        >>> x = mnpar.Variable(np.array([1.0, 2.0]))
        >>> y = cube(x, 10.0)
        >>> F.sum(y).backward()
        >>> y.array, x.grad
        (array([10., 80.]), array([ 30., 120.]))
    """
    loops = _compiled(forward)
    back = None if backward is None else _compiled(backward)
    known: Any = getattr(backward, "of_variables", None)
    name = getattr(forward, "__name__", "function")

    @functools.wraps(forward)
    def call(*args: Any) -> Any:
        form, xs = arrays_in(args)
        node = NumbaCall(name, form, loops, back, known)
        ys = node.apply(tuple(xs))
        return ys[0] if node.single else ys

    call.loops = loops  # type: ignore[attr-defined]
    call.of_variables = call  # type: ignore[attr-defined]
    return call


def _compiled(function: Callable[..., Any]) -> Any:
    """Return what calls a function's compiled loops."""
    own = getattr(function, "loops", None)
    if own is not None:
        return own
    try:
        import numba
    except ImportError as error:
        raise ImportError(f"from_numba needs numba ({error}): pip install 'mnpar[fast]'") from None
    if isinstance(function, numba.core.dispatcher.Dispatcher):
        return function
    if not callable(function):
        raise TypeError(f"from_numba takes functions, not a {type(function).__name__}")
    return numba.njit(nogil=True)(function)


class NumbaCall(GenericFunction):
    """A call of compiled loops.

    Args:
        name: of the function.
        form: the arguments, with places for arrays.
        loops: compute the outputs.
        back: compute the gradients, or None.
        known: ``back`` as a function of Variables; None: its derivative is not known.

    Attributes:
        single: whether the result is one array, and no tuple.
    """

    joint_vjp = True
    single = True
    is_backward = False

    def __init__(self, name: str, form: Any, loops: Any, back: Any, known: Any) -> None:
        self.name = name
        self.form = form
        self.loops = loops
        self.back = back
        self.known = known

    @property
    def label(self) -> str:
        """The name of the function that numba compiles."""
        return f"from_numba({self.name})"

    def forward(self, *xs: Array) -> Array | tuple[Array, ...]:
        check_on_host(self.label, xs)
        self.retain_inputs(tuple(range(len(xs))))
        ys = _run(self.label, self.loops, filled(self.form, [_read_only(x) for x in xs]))
        self.single = not isinstance(ys, tuple)
        listed = [ys] if self.single else ys
        self.there = [i for i, y in enumerate(listed) if not (y is None and self.is_backward)]
        outputs = tuple([listed[i] for i in self.there])
        for y in outputs:
            if not isinstance(y, np.ndarray):
                raise TypeError(
                    f"{self.label}: forward returns an array or a tuple of arrays, not a "
                    f"{type(y).__name__}: np.asarray(number), in the loop, is an array"
                )
        self.like = [(y.shape, y.dtype) for y in outputs]
        return outputs

    def backward(self, *gys: Variable | Array | None) -> InputGradients:
        if self.back is None:
            raise RuntimeError(
                f"{self.label} has no backward: from_numba(forward, backward) gives it one; "
                "a backward that is to be differentiated is a result of from_numba, too"
            )
        xs = self.get_retained_inputs()
        pairs = zip(gys, self.like, strict=True)
        filled_gys = [np.zeros(*like) if gy is None else gy for gy, like in pairs]
        args = (*filled(self.form, xs), *filled_gys)
        if not self._on_arrays:
            if self.known is not None:
                found = self.known(*args)
            else:
                form, arrays = arrays_in(args)
                node = NumbaCall(f"backward of {self.name}", form, self.back, None, None)
                node.is_backward = True  # and so may return None
                ys = node.apply(tuple(map(as_variable, arrays)))
                present = dict(zip(node.there, ys, strict=True))
                found = tuple([present.get(i) for i in range(len(self.inputs))])
            return self._each(found)
        form, given = arrays_in(args)
        plain: list[Any] = given
        readable = filled(form, [_read_only(x) for x in plain])
        found = self._each(_run(f"backward of {self.label}", self.back, readable))
        return tuple(separate(found, plain))

    def _each(self, found: Any) -> tuple[Any, ...]:
        gxs = found if isinstance(found, tuple) else (found,)
        if len(gxs) != len(self.inputs):
            raise ValueError(
                f"{self.label}: backward returned {len(gxs)} gradients, one for each of "
                f"{len(self.inputs)} arrays is needed: None for one of integers"
            )
        for i, (gx, x) in enumerate(zip(gxs, self.inputs, strict=True)):
            if gx is not None and not hasattr(gx, "shape"):
                raise TypeError(
                    f"{self.label}: backward returned a {type(gx).__name__} as gradient {i}, "
                    f"for an array of shape {x.shape}: np.asarray(number), in the loop, is an array"
                )
        return gxs


def _read_only(x: Array) -> Array:
    view = native(x).view()
    view.flags.writeable = False
    return view


def _run(label: str, loops: Any, args: tuple[Any, ...]) -> Any:
    """Call compiled loops; errors of numba name the function."""
    try:
        return loops(*args)
    except Exception as error:
        error.add_note(
            f"in {label}, which gets read-only arrays: a signature, if any, says "
            "numba.types.Array(float64, 1, 'C', readonly=True); it computes locally, and ranks "
            "communicate before and after it"
        )
        raise
