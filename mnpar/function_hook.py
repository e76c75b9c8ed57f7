"""Function hooks: user code that runs before and after functions, forward and backward.

A hook is either one rank's, for all functions inside a ``with hook:`` block, or one node's
(``node.add_hook``). Functions without hooks are not slowed down: a rank's hooks are in a context
variable that each forward and each whole backward looks up once; a node's own hooks wrap
``forward`` and ``vjp`` as attributes of that node alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import ReferenceType, ref

from mnpar.backend import Array
from mnpar.errors import refuse_class

Self = TypeVar("Self", bound="FunctionHook")


class FunctionHook:
    """Base class of hooks, which act before and after functions: define some of these methods.

    ``with hook:`` applies it to the functions that run, forward and backward, on the calling rank
    inside the block; ``node.add_hook(hook)`` to one function. Its methods must not change their
    arguments. Ranks that are threads (``mnpar.run`` inside the block) share the hook.

    Example:
        >>> import numpy as np, mnpar
        >>> class Names(mnpar.FunctionHook):
        ...     name = "Names"
        ...
        ...     def forward_preprocess(self, function, in_data):
        ...         print("forward of", function.label)
        ...
        ...     def backward_postprocess(self, function, in_data, out_grad):
        ...         print("backward of", function.label)
        >>> x = mnpar.Variable(np.array(2.0))
        >>> with Names():
        ...     y = x * x
        ...     y.backward()
        forward of Mul
        backward of Mul
    """

    name = "FunctionHook"

    def __enter__(self: Self) -> Self:
        hooks = function_hooks()
        if self.name in hooks:
            raise KeyError(
                f"a function hook {self.name!r} is in use already: give one of them another name"
            )
        _hooks.set({**hooks, self.name: self})
        self.added(None)
        return self

    def __exit__(self, *error: object) -> None:
        _hooks.set({name: hook for name, hook in function_hooks().items() if name != self.name})
        self.deleted(None)

    def added(self, function: Any) -> None:
        """Called when the hook is put to use: on a node, or (None) by ``with``."""

    def deleted(self, function: Any) -> None:
        """Called when the hook is no longer in use."""

    def forward_preprocess(self, function: Any, in_data: tuple[Array | None, ...]) -> None:
        """Before ``function.forward``.

        Args:
            function: the FunctionNode.
            in_data: the arrays that go in.
        """

    def forward_postprocess(self, function: Any, in_data: tuple[Array | None, ...]) -> None:
        """After ``function.forward``; arguments as :meth:`forward_preprocess`. Not called if it
        raised.
        """

    def backward_preprocess(
        self, function: Any, in_data: tuple[Array | None, ...], out_grad: tuple[Array | None, ...]
    ) -> None:
        """Before the gradients of a function's inputs are computed.

        Args:
            function: the FunctionNode.
            in_data: its inputs: the arrays that it retained for backward, None for all others.
            out_grad: the gradients of its outputs, arrays, or None where there are none.
        """

    def backward_postprocess(
        self, function: Any, in_data: tuple[Array | None, ...], out_grad: tuple[Array | None, ...]
    ) -> None:
        """After the gradients were computed; arguments as :meth:`backward_preprocess`. Not called
        if backward raised.
        """


Hooks = Mapping[str, FunctionHook]


_hooks: ContextVar[Hooks] = ContextVar("mnpar.function_hooks", default=MappingProxyType({}))


function_hooks = _hooks.get  # the calling rank's


def get_function_hooks() -> dict[str, FunctionHook]:
    """Return the hooks, by name, inside whose ``with`` blocks the calling rank is.

    Example:
        >>> import mnpar
        >>> with mnpar.function_hooks.TimerHook():
        ...     list(mnpar.get_function_hooks())
        ['TimerHook']
    """
    return dict(function_hooks())


def around_forward(function: Any, forward: Callable[..., Any], hooks: Hooks) -> Callable[..., Any]:
    """Return a function's forward, with what hooks do before and after."""

    def hooked(*xs: Any) -> Any:
        for hook in hooks.values():
            hook.forward_preprocess(function, xs)
        ys = forward(*xs)
        for hook in hooks.values():
            hook.forward_postprocess(function, xs)
        return ys

    return hooked


def around_vjp(
    function: Any, hooks: Hooks, vjp: Callable[..., None] | None = None
) -> Callable[..., None]:
    """Return a function's ``vjp``, with what hooks do before and after it."""
    vjp = function.vjp if vjp is None else vjp

    def hooked(gys: list[Any], *args: Any) -> None:
        kept = dict(zip(function._kept_input_indexes, function._kept_inputs, strict=True))
        in_data = tuple([kept.get(i) for i in range(len(function.inputs))])
        out_grad = tuple([getattr(gy, "array", gy) for gy in gys])
        for hook in hooks.values():
            hook.backward_preprocess(function, in_data, out_grad)
        vjp(gys, *args)
        for hook in hooks.values():
            hook.backward_postprocess(function, in_data, out_grad)

    return hooked


class Hookable:
    """The part of a FunctionNode that takes hooks of its own."""

    @property
    def local_function_hooks(self) -> dict[str, FunctionHook]:
        """The hooks of this node alone, by name."""
        return self.__dict__.setdefault("_local_hooks", {})  # type: ignore[no-any-return]

    def add_hook(self, hook: FunctionHook, name: str | None = None) -> None:
        """Let a hook watch this node alone: its forward, if that is still to come, and its
        backward.

        Args:
            hook: one hook may watch several nodes.
            name: to delete the hook by; None: ``hook.name``.

        Raises:
            TypeError: ``hook`` is no FunctionHook; KeyError: this node has a hook of that name.

        Example:
            >>> import numpy as np, mnpar
            >>> timer = mnpar.function_hooks.TimerHook()
            >>> y = mnpar.Variable(np.array(2.0)) * 3
            >>> y.creator.add_hook(timer)
            >>> y.backward()
            >>> len(timer.call_history)
            1
        """
        if not isinstance(hook, FunctionHook):
            refuse_class(hook, "a hook is an object")
            raise TypeError(f"a function hook is a mnpar.FunctionHook, not {type(hook).__name__}")
        name = hook.name if name is None else name
        if name in self.local_function_hooks:
            raise KeyError(
                f"{type(self).__name__} has a hook {name!r} already: delete it, or give this "
                "one another name"
            )
        self.local_function_hooks[name] = hook
        me = ref(self)  # a strong reference would make a circle, which keeps arrays alive
        self.__dict__.update(forward=partial(_forward, me), vjp=partial(_vjp, me))
        hook.added(self)

    def delete_hook(self, name: str) -> None:
        """Remove a hook of this node.

        Raises:
            KeyError: the node has no hook of that name.
        """
        if name not in self.local_function_hooks:
            known = ", ".join(self.local_function_hooks) or "none"
            raise KeyError(f"{type(self).__name__} has no hook {name!r}; it has {known}")
        hook = self.local_function_hooks.pop(name)
        if not self.local_function_hooks:
            del self.__dict__["forward"], self.__dict__["vjp"]
        hook.deleted(self)


def _forward(me: ReferenceType[Any], *xs: Any) -> Any:
    function: Any = me()
    return around_forward(
        function, partial(type(function).forward, function), function.local_function_hooks
    )(*xs)


def _vjp(me: ReferenceType[Any], *args: Any) -> None:
    function: Any = me()
    around_vjp(function, function.local_function_hooks, partial(type(function).vjp, function))(
        *args
    )
