"""Link hooks: user code that runs before and after links.

A hook is either one rank's, for all links called inside a ``with hook:`` block, or one link's
(``link.add_hook``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

Self = TypeVar("Self", bound="LinkHook")


@dataclass
class ForwardPreprocessCallbackArgs:
    """The argument of ``forward_preprocess``: a link's forward is about to be called."""

    link: Any
    forward_name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class ForwardPostprocessCallbackArgs(ForwardPreprocessCallbackArgs):
    """The argument of ``forward_postprocess``: a link's forward has returned ``out``."""

    out: Any


class LinkHook:
    """Base class of hooks, which act before and after links: define some of these methods.

    ``with hook:`` applies it to all links that the calling rank calls inside the block;
    ``link.add_hook(hook)`` to one.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> class Names(mnpar.LinkHook):
        ...     name = "Names"
        ...
        ...     def forward_postprocess(self, args):
        ...         print(args.link.name, args.out.shape)
        >>> model = mnpar.Chain(l1=L.Linear(2, 3))
        >>> with Names():
        ...     y = model.l1(np.ones((4, 2), "f4"))
        l1 (4, 3)
    """

    name = "LinkHook"

    def __enter__(self: Self) -> Self:
        hooks = link_hooks()
        if self.name in hooks:
            raise KeyError(
                f"a link hook {self.name!r} is in use already: give one of them another name"
            )
        _hooks.set({**hooks, self.name: self})
        self.added(None)
        return self

    def __exit__(self, *error: object) -> None:
        _hooks.set({name: hook for name, hook in link_hooks().items() if name != self.name})
        self.deleted(None)

    # the ranks over which the hook sums the gradients of its link
    gradient_comm: Communicator | None = None

    def added(self, link: Any) -> None:
        """Called when the hook is put to use: on a link, or (None) by ``with``."""

    def deleted(self, link: Any) -> None:
        """Called when the hook is no longer in use."""

    def sized(self, link: Any) -> None:
        """Called when loading has initialized a parameter of the hook's link: the hook may add
        parameters, loaded next.
        """

    def forward_preprocess(self, args: ForwardPreprocessCallbackArgs) -> None:
        """Before ``link.forward``: ``args`` has link, forward_name, args and kwargs."""

    def forward_postprocess(self, args: ForwardPostprocessCallbackArgs) -> None:
        """After it: ``args`` has ``out``, too. Not called if forward raised; see
        :meth:`forward_failed`.
        """

    def forward_failed(self, args: ForwardPreprocessCallbackArgs) -> None:
        """Called instead of :meth:`forward_postprocess` if forward raised: undo what
        ``forward_preprocess`` did.
        """


Hooks = Mapping[str, LinkHook]
_hooks: ContextVar[Hooks] = ContextVar("mnpar.link_hooks", default=MappingProxyType({}))
link_hooks = _hooks.get  # the calling rank's


def hooked_forward(
    link: Any, hooks: dict[str, LinkHook], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return a link's forward, with what hooks do before and after."""
    before = ForwardPreprocessCallbackArgs(link, "forward", args, kwargs)
    begun: list[LinkHook] = []
    try:
        for hook in hooks.values():
            hook.forward_preprocess(before)
            begun.append(hook)
        out = link.forward(*args, **kwargs)
    except BaseException:
        for hook in reversed(begun):
            hook.forward_failed(before)
        raise
    after = ForwardPostprocessCallbackArgs(link, "forward", args, kwargs, out)
    for hook in reversed(hooks.values()):  # the last that changed something puts it back first
        hook.forward_postprocess(after)
    return out
