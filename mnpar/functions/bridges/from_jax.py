"""from_jax: a function that JAX compiles and differentiates, as a differentiable function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.bridges.nesting import check_on_host, native
from mnpar.functions.node import GenericFunction
from mnpar.functions.util.no_messages import NoMessages
from mnpar.variable import Variable


def from_jax(function: Callable[..., Any]) -> Any:
    """Return a differentiable function of one that JAX compiles.

    JAX compiles its value, and its vector-Jacobian product, once for each combination of shapes and
    dtypes. The derivative's derivatives are JAX's, too: gradients have any order. The result is a
    function like any other: on each rank it computes with that rank's arrays.

    Args:
        function: of JAX's arrays and numbers, also in tuples, lists, dicts and other pytrees; it
            returns such. JAX traces it: what it does beside computing, it does once.

    Returns:
        A function of Variables, arrays and numbers, in pytrees such as a dict of Parameters, which
        returns Variables in the pytree that ``function`` returns.

    Raises:
        ImportError: JAX is missing. When it is called, TypeError: an array has 64 bits, and JAX,
            where ``jax_enable_x64`` is off, would cut it to 32, an array is not on the host, or a
            result is no array; RuntimeError: ``function`` communicates; and JAX's own errors.

    Example:
        >>> import jax, numpy as np, mnpar
        >>> import jax.numpy as jnp
        >>> import mnpar.functions as F
        >>> wave = F.from_jax(lambda x: {"sin": jnp.sin(x), "cos": jnp.cos(x)})
        >>> x = mnpar.Variable(np.zeros(2, "f4"))
        >>> y = wave(x)
        >>> F.sum(y["sin"] + y["cos"]).backward()
        >>> x.grad
        array([1., 1.], dtype=float32)
    """
    try:
        import jax  # noqa: F401 - only to say early that it is missing
    except ImportError as error:
        raise ImportError(f"from_jax needs JAX ({error}): pip install 'mnpar[jax]'") from None
    if not callable(function):
        raise TypeError(f"from_jax takes a function, not a {type(function).__name__}")
    programs = Programs(function, getattr(function, "__name__", "function"))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return programs.call(args, kwargs)

    return call


class Programs:
    """The programs that JAX has compiled of a function: its value, its derivative, and so on.

    Args:
        function: of pytrees.
        name: of the function, for errors.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function = function
        self.name = name
        self._forms: dict[Any, Program] = {}  # by the form of the arguments and what is wanted

    def call(self, args: Any, kwargs: Any) -> Any:
        """Return the function's result, with Variables in place of JAX's arrays."""
        import jax

        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        given = [isinstance(x, _ARRAYS) for x in leaves]
        others = [None if own else x for own, x in zip(given, leaves, strict=True)]
        arrays = [x for own, x in zip(given, leaves, strict=True) if own]
        wanted = tuple([isinstance(x, Variable) and x.requires_grad for x in arrays])
        key = (tree, tuple(given), wanted)
        program = self._forms.get(key)
        if program is None:
            program = self._forms[key] = Program(self, tree, given, wanted)
        node = JaxCall(program, others)
        ys = node.apply(tuple(arrays))
        return jax.tree_util.tree_unflatten(node.tree, ys)


class Program:
    """The program that is compiled for one form of the arguments.

    Args:
        programs: of the function.
        tree: the pytree of the arguments.
        given: which of its leaves are arrays; the others are numbers.
        wanted: which of the arrays may need gradients.
    """

    def __init__(
        self, programs: Programs, tree: Any, given: Sequence[bool], wanted: Sequence[bool]
    ) -> None:
        import jax

        self.name = programs.name
        self.wanted = wanted

        def leaves(arrays: Any, others: Any) -> Any:
            arrays = iter(arrays)
            merged = [next(arrays) if own else x for own, x in zip(given, others, strict=True)]
            args, kwargs = jax.tree_util.tree_unflatten(tree, merged)
            return programs.function(*args, **kwargs)

        def of_wanted(arrays: Any, others: Any) -> tuple[Any, Any]:
            """Return the function of what is wanted alone, and that."""
            fixed = [None if want else x for want, x in zip(wanted, arrays, strict=True)]

            def function(moving: Any) -> Any:
                moving = iter(moving)
                merged = [
                    next(moving) if want else x for want, x in zip(wanted, fixed, strict=True)
                ]
                return leaves(merged, others)

            return function, [x for want, x in zip(wanted, arrays, strict=True) if want]

        def linearized(arrays: Any, others: Any) -> Any:
            return jax.vjp(*of_wanted(arrays, others))

        def adjoint(arrays: Any, others: Any, gys: Any) -> Any:
            ys, pull = linearized(arrays, others)
            return pull(jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(ys), gys))[0]

        self.value = jax.jit(leaves)
        self.linearized = jax.jit(linearized)
        self.pull = jax.jit(lambda pull, gys: pull(gys)[0])
        self.adjoint = Programs(adjoint, f"gradient of {programs.name}")


class JaxCall(GenericFunction):
    """A call of what JAX has compiled.

    Args:
        program: the value and the derivative.
        others: what is no array among the arguments' leaves, in their places.

    Attributes:
        tree: the pytree of the results.
    """

    joint_vjp = True
    tree: Any = None

    def __init__(self, program: Program, others: Sequence[Any]) -> None:
        self.program = program
        self.others = others

    @property
    def label(self) -> str:
        """The name of the function that JAX compiles."""
        return f"from_jax({self.program.name})"

    def forward(self, *xs: Array) -> tuple[Array, ...]:
        import jax

        check_on_host(self.label, xs)
        _check_bits(self.label, xs, self.others)
        self.retain_inputs(tuple(range(len(xs))))
        xs = tuple(map(native, xs))
        with NoMessages(_LOCAL.replace("{who}", self.label)):
            try:
                if self.differentiable:
                    results, self.pull = self.program.linearized(xs, self.others)
                else:
                    results = self.program.value(xs, self.others)
            except TypeError as error:
                if "Tracer" in str(error):  # was given to what needs numbers
                    error.add_note(_LOCAL.format(who=self.label, label="what needs arrays"))
                elif "as an abstract array" in str(error):
                    error.add_note(_NUMBERS.format(who=self.label))
                raise
        ys, self.tree = jax.tree_util.tree_flatten(results)
        self.like = [(y.shape, y.dtype) for y in ys]
        return tuple(map(np.asarray, ys))

    def backward(self, *gys: Variable | Array | None) -> InputGradients:
        import jax

        pairs = zip(gys, self.like, strict=True)
        cotangents = [_cotangent(gy, *like) for gy, like in pairs]
        if self._on_arrays:
            tree = jax.tree_util.tree_unflatten(self.tree, cotangents)
            found = [np.asarray(g) for g in self.program.pull(self.pull, tree)]
        else:
            xs = list(self.get_retained_inputs())
            found = self.program.adjoint.call((xs, self.others, cotangents), {})
        gradients = iter(found)
        return tuple([next(gradients) if want else None for want in self.program.wanted])


_ARRAYS = (Variable, np.ndarray)
_LONG = frozenset(map(np.dtype, (np.float64, np.int64, np.uint64, np.complex128)))


def _cotangent(gy: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the gradient of an output as JAX wants it: integers have one of no dtype."""
    import jax

    if not jax.numpy.issubdtype(dtype, np.inexact):
        return np.zeros(shape, jax.dtypes.float0)
    return np.zeros(shape, dtype) if gy is None else gy


def _check_bits(who: str, xs: Sequence[Array], others: Sequence[Any]) -> None:
    """Raise TypeError where JAX would cut numbers to 32 bits: arrays, and integers that do not fit.
    (It refuses integers of Python's itself.)
    """
    import jax

    if jax.config.jax_enable_x64:
        return
    for i, x in enumerate(xs):
        if x.dtype in _LONG:
            raise TypeError(
                f"{who}: array {i} of the arguments, {x.dtype} of shape {x.shape}, would be cut to "
                "32 bits by JAX: jax.config.update('jax_enable_x64', True) lets JAX compute with "
                f"64, x.astype('{x.dtype.kind}{x.dtype.itemsize // 2}') says that 32 are meant"
            )
    for n in others:
        if isinstance(n, np.integer) and n != n.astype(f"{n.dtype.kind}4"):
            raise TypeError(
                f"{who}: {n} would be cut to 32 bits by JAX: jax.config.update('jax_enable_x64', "
                "True) lets JAX compute with 64"
            )


_NUMBERS = (
    "{who}: arguments are arrays and numbers, also in tuples, lists, dicts and other pytrees; what "
    "is neither, such as the name of a mode, the function takes from outside"
)
_LOCAL = (
    "{who}: {label} cannot run inside, which JAX traces once, and runs compiled: communicate, and "
    "call mnpar's functions, before and after it"
)
