"""Update rules: how one parameter is updated, with hyperparameters of its own or of its optimizer.

A rule changes ``param.array`` in place and never replaces it: parameters and gradients may be views
of a buffer's vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.errors import refuse_class
from mnpar.holders import Piece
from mnpar.optimizers.hyperparameter import Hyperparameter
from mnpar.parameter import Parameter, structure
from mnpar.serializer import AbstractSerializer, Deserializer


class UpdateRule:
    """The way in which one parameter is updated; subclasses define ``update_core``.

    Args:
        parent_hyperparam: the optimizer's hyperparameters.

    Example:
        >>> import mnpar
        >>> class SignRule(mnpar.UpdateRule):
        ...     def update_core(self, param):
        ...         param.array -= 0.1 * param.xp.sign(param.grad)
        >>> SignRule().enabled
        True
    """

    states: tuple[str, ...] = ()  # arrays like the parameter, 0 at first
    scalars: tuple[str, ...] = ()  # states that are one number for the whole parameter
    # an element depends on its own gradient and state only: parameters can be updated as one vector
    elementwise = False

    def __init__(self, parent_hyperparam: Hyperparameter | None = None) -> None:
        self.hyperparam = Hyperparameter(parent_hyperparam)
        # of sharded: what the parameter is now
        self.piece: Piece | None = None
        # whether ``state`` is that of this rank's piece only (sharded states)
        self.in_pieces = False
        self.enabled = True
        self.t = 0
        self.state: dict[str, Array] = {}
        self._hooks: dict[str, tuple[str, Callable[..., None]]] = {}
        self.in_fp32 = False

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in _LASTING:
            structure.change()

    def use_fp32_update(self, flag: bool = True) -> None:
        """Update a float16 parameter by a float32 copy of it, so that small steps add up."""
        self.in_fp32 = flag
        if not flag:
            self.state.pop("fp32", None)

    def add_hook(
        self, hook: Callable[..., None], name: str | None = None, timing: str = "auto"
    ) -> None:
        """Call ``hook(rule, param)`` before (``'pre'``) or after (``'post'``) each update of this
        parameter.
        """
        add_hook(self._hooks, hook, name, timing)
        structure.change()

    def remove_hook(self, name: str) -> None:
        """Remove a hook; KeyError if there is none of this name."""
        del self._hooks[name]
        structure.change()

    @property
    def hooks(self) -> list[Callable[..., None]]:
        """The hooks, in the order in which they were added."""
        return [hook for _, hook in self._hooks.values()]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for what in ("states", "scalars"):
            if isinstance(names := getattr(cls, what), str):
                raise TypeError(
                    f"{cls.__name__}.{what} is a tuple of names, ({names!r},), not the string "
                    f"{names!r}"
                )

    def init_state(self, param: Parameter) -> None:
        """Make the arrays of ``self.state``; called before an update, or loading, that finds
        none.
        """
        for name in self.states:
            self.state[name] = zeros_like(param)

    def prepare(self, param: Parameter) -> None:
        """Make the arrays of the state that are missing, the float32 copy of a float16 parameter
        included.

        Raises:
            TypeError: the parameter is complex.
        """
        if not self.state:
            if param.dtype.kind == "c":
                raise TypeError(
                    f"an optimizer steps by real numbers, and {param.name or 'a parameter'} is "
                    f"{param.dtype}: make its real "
                    "and its imaginary part parameters, and compute with re + 1j * im"
                )
            self.init_state(param)
        if wants_float32(self, param) and "fp32" not in self.state:
            self.state["fp32"] = param.array.astype(np.float32)

    def update(self, param: Parameter) -> None:
        """Update the parameter, if it has a gradient and the rule is enabled."""
        if not self.enabled or param.grad is None:
            return
        if wants_float32(self, param):  # not the optimizer's step, which has widened it already
            with in_float32([param]):
                self._update(param)
        else:
            self._update(param)

    def _update(self, param: Parameter) -> None:
        self.t += 1
        self.prepare(param)
        unscale(param)
        call_hooks(self._hooks, "pre", self, param)
        self.update_core(param)
        if not self.in_pieces:
            call_hooks(self._hooks, "post", self, param)

    def call_post_hooks(self, param: Parameter) -> None:
        """Call the hooks after an update that was made in pieces, if there was one: the parameter
        is whole again.
        """
        if self._hooks and self.enabled and param.grad is not None:
            call_hooks(self._hooks, "post", self, param)

    def stands_with(self, other: UpdateRule) -> bool:
        """Return whether it has another rule's class and hyperparameters, and no hooks or settings
        of its own.
        """
        if (
            type(self) is not type(other)
            or not self.enabled
            or self._hooks
            or self.in_fp32
            or self.in_pieces
        ):
            return False
        own = self.hyperparam.__dict__
        return len(own) == 1 and own["parent"] is other.hyperparam.__dict__["parent"]

    def update_core(self, param: Parameter) -> None:
        """Apply the rule, in place on ``param.array``."""
        raise TypeError(f"{type(self).__name__} does not define update_core(self, param)")

    def norms(self, param: Parameter, *xs: Array) -> list[float]:
        """Return the L2 norms of arrays like the parameter, of all its parts together if ranks have
        parts of it.

        Raises:
            ValueError: the ranks that have the other parts are not known.
        """
        flat = [x.ravel() for x in xs]
        squares = np.array([float(x.dot(x)) for x in flat])
        total = param.sum_over_parts(squares, type(self).__name__)
        return [math.sqrt(square) for square in total]

    def serialize(self, serializer: Any) -> None:
        """Save or load the count of updates and the state; a file without a state leaves the state
        as it is.
        """
        self.t = int(serializer("t", self.t))
        state: dict[str, Any] = dict(self.state)
        # of a parameter without an array: the names of its state
        if not state and isinstance(serializer, Deserializer):
            self.prepare(Parameter(np.zeros(1, get_dtype())))
            state = dict.fromkeys(self.state)
            serializer = _optional(serializer)
        # Chainer writes no float32 copies either: they are made anew
        lenient = _optional(serializer)
        # of a link whose updates were disabled: Chainer makes its state at the first step
        new = self.t == 0
        found = {
            name: (lenient if new or name == "fp32" else serializer)(name, value)
            for name, value in state.items()
        }
        self.state = {name: value for name, value in found.items() if value is not None}


# attributes: no step changes them
_LASTING = frozenset(("enabled", "hyperparam", "in_fp32", "in_pieces"))


def _optional(serializer: AbstractSerializer) -> Callable[[str, Any], Any]:
    """Reads what is there: Chainer writes no state of a parameter that has no array."""

    def read(name: str, value: Any) -> Any:
        try:
            return serializer(name, value)
        except KeyError:
            return value

    return read


def add_hook(hooks: dict[str, Any], hook: Any, name: str | None, timing: str) -> None:
    """Put a hook under its name (given, its own, or its class's), to be called before (``'pre'``)
    or after (``'post'``).
    """
    refuse_class(hook, "a hook is an object")
    if not callable(hook):
        raise TypeError(f"a hook is called: {type(hook).__name__} cannot be")
    if timing == "auto":
        timing = getattr(hook, "timing", "pre")
    if timing not in ("pre", "post"):
        raise ValueError(f"a hook's timing is 'pre', 'post' or 'auto', not {timing!r}")
    name = str(
        name or getattr(hook, "name", None) or getattr(hook, "__name__", type(hook).__name__)
    )
    if name in hooks:
        raise KeyError(f"there is a hook named {name!r} already: give this one another name")
    hooks[name] = (timing, hook)


def call_hooks(hooks: dict[str, Any], timing: str, *args: Any) -> None:
    """Call those of one timing, in the order in which they were added."""
    for when, hook in hooks.values():
        if when == timing:
            hook(*args)


def unscale(param: Parameter) -> None:
    """Divide the loss scale out of the gradient, once."""
    scale = param.node.loss_scale
    if scale is not None and (g := param.grad) is not None:
        backend.get_array_module(g).divide(
            g, scale, out=g, dtype=np.promote_types(g.dtype, np.float32), casting="same_kind"
        )
        param.node.loss_scale = None


def zeros_like(param: Parameter) -> Array:
    """State of a rule: zeros beside the parameter, of at least 32 bits (squares of float16
    gradients vanish in float16).
    """
    xp = backend.get_array_module(param.array)
    return xp.zeros_like(param.array, dtype=np.promote_types(param.dtype, np.float32))


def in_float32(params: Iterable[Parameter]) -> AbstractContextManager[None]:
    """Widen the parameters that are about to be updated by a rule with ``use_fp32_update``; narrow
    them again at the end.
    """
    asked = [p for p in params if p.update_rule is not None and p.update_rule.in_fp32]
    wide = [
        p
        for p in asked
        if wants_float32(p.update_rule, p) and p.update_rule.enabled and p.grad is not None
    ]
    return _widened(wide) if wide else _NOTHING


_NOTHING = nullcontext()


@contextmanager
def _widened(wide: list[Parameter]) -> Iterator[None]:
    narrow = [(p, p.array, p.grad) for p in wide]
    for param in wide:
        _put(param, _copy(param.update_rule, param), param.grad.astype(np.float32))
    try:
        yield
    finally:
        for param, array, grad in narrow:
            array[...] = param.array
            if param.grad is None:  # a hook has cleared it
                grad = None
            else:
                grad[...] = param.grad
            _put(param, array, grad)


def wants_float32(rule: UpdateRule | None, param: Parameter) -> bool:
    """Return whether the parameter is of float16 now, and its rule updates it in float32."""
    return (
        rule is not None
        and rule.in_fp32
        and param.array is not None
        and param.array.dtype == np.float16
    )


def _copy(rule: UpdateRule, param: Parameter) -> Array:
    """Return the float32 values of the parameter: those that the rule keeps, unless somebody else
    has changed the parameter.
    """
    rule.prepare(param)
    copy: Array = rule.state["fp32"]
    if (copy.astype(np.float16) != param.array).any():
        copy[...] = param.array
    return copy


def _put(param: Parameter, array: Array, grad: Array | None) -> None:
    # the dtype first: it stays itself
    param.node.dtype, param.array, param.node.gradient = (
        array.dtype,
        array,
        grad,
    )
