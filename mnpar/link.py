"""Link: parameters, and a function of them.

Parameters and children are listed in the order in which they were defined. The order is the same on
every rank (law 5), so the i-th parameters of all ranks belong together.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend, hints, lazy
from mnpar.backend import Array, ArrayModule
from mnpar.errors import listed, refuse_class
from mnpar.initializers import Constant
from mnpar.initializers.initializer import InitialValue
from mnpar.link_hook import LinkHook, hooked_forward, link_hooks
from mnpar.parameter import Parameter, structure
from mnpar.serializer import AbstractSerializer, Deserializer, persistent, placed
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

Self = TypeVar("Self", bound="Link")
R = TypeVar("R", covariant=True)
MODES = ("share", "copy", "init")


class Forward(Protocol[R]):
    """A link whose call returns what its forward does, as type checkers see it."""

    _local_hooks: Mapping[str, LinkHook]

    @property
    def forward(self) -> Callable[..., R]:
        """Compute the link's outputs."""


# what the ranks of a communicator hold of a link's parameters: the same; of each that has a box
# another part, or of experts and members some; or layers of their own, as the stages of a pipeline
Holding = Literal["copies", "parts", "stages"]


class GradientComms(NamedTuple):
    """The communicators over whose ranks the gradients of a link's parameters are sums, and what
    else the ranks hold.
    """

    # backward itself sums: each rank gets the gradient of all ranks' losses
    summed: tuple[Communicator, ...] = ()
    # each rank gets its part of the gradient, which an optimizer has to sum
    partial: tuple[Communicator, ...] = ()
    # backward averages the gradients of the link and of all links in it, as an optimizer would
    averaged: tuple[Communicator, ...] = ()
    # whether that has begun, as it does by the link's first forward
    averages: bool = True
    # ranks that hold other parts of the parameters, or other ones of them; those of one path (and
    # box) are copies on all ranks
    parts: tuple[Communicator, ...] = ()
    # ranks with links of their own, where one path may stand for several parameters
    stages: tuple[Communicator, ...] = ()
    # parameters that several stages have, each with the ranks that have it
    tied: tuple[tuple[Communicator, Parameter], ...] = ()

    def add(
        self, comm: Communicator | None, whole: bool = True, holds: Holding = "copies"
    ) -> GradientComms:
        """Return these and one more, whose ranks get whole gradients or else their parts of them;
        None adds nothing.
        """
        if comm is None:
            return self
        more = (
            self._replace(summed=(*self.summed, comm))
            if whole
            else self._replace(partial=(*self.partial, comm))
        )
        return more.hold(comm, holds)

    def hold(self, comm: Communicator, holds: Holding) -> GradientComms:
        """Return these with what the ranks of one more communicator hold, which is nothing to their
        gradients.
        """
        if holds == "parts":
            return self._replace(parts=(*self.parts, comm))
        if holds == "stages":
            return self._replace(stages=(*self.stages, comm))
        return self


@hints.with_hints(hints.LINK)
class Link(hints.KeywordHints):
    """Parameters and a ``forward`` that uses them; an attribute that is a Parameter registers
    itself.

    Args:
        params: names and shapes of parameters to make at once; a pair ``(shape, dtype)`` gives a
            dtype other than float32.

    Example:
        >>> import numpy as np, mnpar
        >>> class Scale(mnpar.Link):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.s = mnpar.Parameter(2.0, (1,))
        ...
        ...     def forward(self, x):
        ...         return x * self.s
        >>> Scale()(np.ones(3, "f4")).array
        array([2., 2., 2.], dtype=float32)
    """

    # replaced, never changed: a copy of a link may share it
    _local_hooks: Mapping[str, LinkHook] = MappingProxyType({})

    def __init__(self, **params: Any) -> None:
        self._params: dict[str, None] = {}
        self._persistent: dict[str, None] = {}
        self._in_scope = False
        self.name: str | None = None
        for name, form in params.items():
            paired = (
                isinstance(form, tuple)
                and len(form) == 2
                and not isinstance(form[1], int | np.integer)
            )
            self.add_param(name, *(form if paired else (form,)))

    def __call__(self: Forward[R], *args: Any, **kwargs: Any) -> R:
        if link_hooks() or self._local_hooks:
            out: R = hooked_forward(self, {**link_hooks(), **self._local_hooks}, args, kwargs)
            return out
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the link's outputs; each kind of link defines it, as this method or as
        ``__call__``.
        """
        raise TypeError(f"{type(self).__name__} defines neither forward nor __call__")

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Parameter):
            check_name(self, name)
            self._registry("_params")[name] = None  # a name that is there keeps its place
            self._persistent.pop(name, None)
            if value.name is None:
                value.name = name
            structure.change()
        elif name in self.__dict__.get("_params", ()):
            if value is not None:
                _check_substitute(self, name, value)
            del self._params[name]
            structure.change()
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        structure.change()
        self._params.pop(name, None)
        self._persistent.pop(name, None)

    def _registry(self, which: str) -> dict[str, None]:
        registry: dict[str, None] | None = self.__dict__.get(which)
        if registry is None:
            raise AttributeError(
                f"call super().__init__() first, before {type(self).__name__} gets parameters "
                "or links"
            )
        return registry

    @contextmanager
    def init_scope(self) -> Iterator[None]:
        """Chainer's scope for defining parameters; accepted, though they register themselves
        anywhere.
        """
        self._in_scope, before = True, self._in_scope
        try:
            yield
        finally:
            self._in_scope = before

    @property
    def within_init_scope(self) -> bool:
        """True inside a ``with link.init_scope()``."""
        return self._in_scope

    # ---- parameters, persistent values and links in it ----

    def add_param(
        self,
        name: str,
        shape: int | Sequence[int] | None = None,
        dtype: DTypeLike = np.float32,
        initializer: InitialValue = None,
    ) -> None:
        """Make a parameter; without a shape, one that is initialized later.

        Args:
            name: of the attribute.
            shape: of the array; None: not known yet.
            dtype: of the parameter if ``initializer`` is a number or None; arrays and functions
                have their own.
            initializer: as :class:`mnpar.Parameter` takes it.

        Raises:
            AttributeError: the link has such an attribute already.
        """
        if name in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__} has an attribute {name!r} already: choose another name"
            )
        if initializer is None or np.isscalar(initializer):
            initializer = Constant(np.nan if initializer is None else initializer, dtype)
        setattr(self, name, Parameter(initializer, shape))

    def add_persistent(self, name: str, value: Any) -> None:
        """Set an attribute that is saved and broadcast with the parameters, but not updated by
        optimizers (say, a mean).
        """
        setattr(self, name, value)
        self._persistent[name] = None

    def register_persistent(self, name: str) -> None:
        """Make an existing attribute persistent.

        Raises:
            AttributeError: there is none of this name, or it is a parameter, which is saved anyway.
        """
        if not hasattr(self, name) or name in self._params:
            form = "a parameter" if name in self._params else "no attribute"
            raise AttributeError(
                f"{type(self).__name__} has {form} {name!r}: it cannot be made persistent"
            )
        self._persistent[name] = None

    def _named_own(self) -> Iterator[tuple[str, Parameter]]:
        for name in self._params:
            yield "/" + name, self.__dict__[name]

    def _named_children(self) -> Iterator[tuple[str, Link]]:
        return iter(())

    def _filed(self, serializer: AbstractSerializer) -> Iterator[tuple[str, Link]]:
        """Return the children under the names that they have in a serializer's files."""
        return self._named_children()

    def filed_params(self, serializer: AbstractSerializer) -> Iterator[tuple[Parameter, Any]]:
        """Return all parameters, each with the part of a serializer that belongs to it.

        A shared one comes once, under its first path, except when Chainer's files are written: they
        have it under each.
        """
        seen: set[int] = set()
        each = getattr(serializer, "of_chainer", False) and not isinstance(serializer, Deserializer)
        for param, part in self._every_part(serializer):
            if each or id(param) not in seen:
                seen.add(id(param))
                yield param, part

    def _every_part(self, serializer: AbstractSerializer) -> Iterator[tuple[Parameter, Any]]:
        for name in self._params:
            yield self.__dict__[name], serializer[name]
        for name, child in self._filed(serializer):
            yield from child._every_part(serializer[name])

    def namedlinks(self, skipself: bool = False) -> Iterator[tuple[str, Link]]:
        """Return all links with their paths, itself as ``'/'``, then each child with its own."""
        if not skipself:
            yield "/", self
        for name, child in self._named_children():
            for path, link in child.namedlinks():
                yield f"/{name}{path.rstrip('/')}", link

    def links(self, skipself: bool = False) -> Iterator[Link]:
        """Return all links, itself first."""
        found: list[Link] = []
        self._collect_links(found)
        return iter(found[1:] if skipself else found)

    def _collect_links(self, found: list[Link]) -> None:
        found.append(self)
        for child in self._child_links():
            child._collect_links(found)

    def _child_links(self) -> list[Link]:
        return []

    def children(self) -> Iterator[Link]:
        """Return the links directly in it."""
        return iter(self._child_links())

    def namedparams(self, include_uninit: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Return all parameters with their paths (``'/l1/W'``), in the order of definition; a
        shared one once, by its first path.
        """
        seen: set[int] = set()
        for path, param in self._every_path():
            if id(param) not in seen and (include_uninit or param.is_initialized):
                seen.add(id(param))
                yield path, param

    def _every_path(self) -> Iterator[tuple[str, Parameter]]:
        """Return all paths that lead to a parameter: a shared one has several."""
        for path, link in self.namedlinks():
            for name, param in link._named_own():
                yield path.rstrip("/") + name, param

    def params(self, include_uninit: bool = True) -> Iterator[Parameter]:
        """Return all parameters, in the order of definition, a shared one once."""
        found: dict[int, Parameter] = {}
        # not by namedparams: each update asks several times, and needs no paths
        for link in self.links():
            for name in link._params:
                param = link.__dict__[name]
                if include_uninit or param.array is not None:
                    found[id(param)] = param
        return iter(found.values())

    def namedpersistents(self) -> Iterator[tuple[str, Any]]:
        """Return all persistent values with their paths."""
        for path, link in self.namedlinks():
            for name in link._persistent:
                yield f"{path.rstrip('/')}/{name}", getattr(link, name)

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        return iter(())

    @property
    def xp(self) -> ArrayModule:
        """numpy or cupy, by the first parameter that has an array."""
        return backend.get_array_module(*[p.array for p in self.params(include_uninit=False)][:1])

    @property
    def device(self) -> backend.Device:
        """The device of the first parameter that has an array."""
        return backend.get_device_from_array(
            *[p.array for p in self.params(include_uninit=False)][:1]
        )

    def count_params(self) -> int:
        """Return the number of elements of all parameters."""
        return sum(param.size for param in self.params(include_uninit=False))

    # ---- hooks ----

    @property
    def local_link_hooks(self) -> Mapping[str, LinkHook]:
        """The hooks of this link alone, by name."""
        return self._local_hooks

    def add_hook(self: Self, hook: LinkHook, name: str | None = None) -> Self:
        """Let a hook watch this link; returns the link.

        Args:
            hook: what to do before and after ``forward``.
            name: to delete the hook by; None: ``hook.name``.

        Raises:
            TypeError: ``hook`` is no LinkHook; KeyError: this link has a hook of that name.

        Example:
            >>> import numpy as np, mnpar, mnpar.links as L
            >>> timer = mnpar.link_hooks.TimerHook()
            >>> layer = L.Linear(2, 3).add_hook(timer)
            >>> y = layer(np.ones((1, 2), "f4"))
            >>> [name for name, seconds in timer.call_history]
            ['Linear']
        """
        if not isinstance(hook, LinkHook):
            refuse_class(hook, "a hook is an object")
            raise TypeError(f"a link hook is a mnpar.LinkHook, not {type(hook).__name__}")
        name = hook.name if name is None else name
        if name in self._local_hooks:
            raise KeyError(
                f"{type(self).__name__} has a hook {name!r} already: delete it, or give this "
                "one another name"
            )
        self._local_hooks = {**self._local_hooks, name: hook}
        hook.added(self)
        return self

    def delete_hook(self, name: str) -> None:
        """Remove a hook of this link.

        Raises:
            KeyError: the link has no hook of that name.
        """
        if name not in self._local_hooks:
            raise KeyError(
                f"{type(self).__name__} has no hook {name!r}; it has {listed(self._local_hooks)}"
            )
        hook = self._local_hooks[name]
        self._local_hooks = {key: other for key, other in self._local_hooks.items() if key != name}
        hook.deleted(self)

    @property
    def batch_comms(self) -> tuple[Communicator, ...]:
        """The communicators over whose batches ``forward`` computes something, a mean for example:
        all of their ranks call it, even without examples.
        """
        return ()

    def gradient_comms(self) -> GradientComms:
        """Return over which ranks this link's gradients are sums, and what these ranks hold of its
        parameters, not counting the links in it.

        Links that communicate define it; optimizers and meshes ask, so that nothing is summed or
        counted twice or never.
        """
        comms = GradientComms()
        for hook in self._local_hooks.values():
            comms = comms.add(hook.gradient_comm)
        return comms

    # ---- gradients, copies and devices ----

    def cleargrads(self) -> None:
        """Set all gradients to None."""
        for param in self.params():
            param.cleargrad()

    def zerograds(self) -> None:
        """Set all gradients to zeros."""
        for param in self.params(include_uninit=False):
            param.zerograd()

    def addgrads(self, link: Link) -> None:
        """Add the gradients of another link of the same structure.

        Raises:
            KeyError: the other link lacks a parameter that this one has.
        """
        for mine, other in self._pairs(link):
            mine.addgrad(other)

    def copyparams(self, link: Link, copy_persistent: bool = True) -> None:
        """Copy the values of another link of the same structure, persistent ones too.

        A parameter without an array takes the other's shape; one that is uninitialized in the other
        link is left as it is.

        Args:
            link: to copy from; it may have more parameters than this one.
            copy_persistent: copy persistent values (running statistics), too.

        Raises:
            KeyError: the other link lacks a parameter or persistent value that this one has;
                ValueError: shapes differ.
        """
        for mine, other in self._pairs(link):
            mine.copydata(other)
        if copy_persistent:
            self._copy_persistents(dict(link.namedpersistents()))

    def _copy_persistents(self, others: dict[str, Any]) -> None:
        for path, owner in self.namedlinks():
            for name in owner._persistent:
                mine = getattr(owner, name)
                other = _of_path(others, f"{path.rstrip('/')}/{name}", "persistent value")
                if backend.is_array(mine) and backend.is_array(other) and mine.shape == other.shape:
                    mine[...] = backend.to_device_of(other, mine)
                else:
                    setattr(owner, name, copy.deepcopy(other))

    def _pairs(self, link: Link) -> list[tuple[Parameter, Parameter]]:
        others = dict(link._every_path())
        return [(param, _of_path(others, path, "parameter")) for path, param in self.namedparams()]

    def enable_update(self) -> None:
        """Let optimizers change the parameters again."""
        self._set_update(True)

    def disable_update(self) -> None:
        """Keep optimizers from changing the parameters."""
        self._set_update(False)

    def _set_update(self, enabled: bool) -> None:
        for param in self.params():
            if param.update_rule is not None:
                param.update_rule.enabled = enabled

    @property
    def update_enabled(self) -> bool:
        """True if optimizers change any of the parameters."""
        return any(
            param.update_rule is not None and param.update_rule.enabled for param in self.params()
        )

    def copy(self: Self, mode: str = "share") -> Self:
        """Return a link of the same structure, with Parameters of its own; what is shared inside it
        is shared inside the copy.

        Args:
            mode: ``'share'`` the arrays (not the gradients: each copy has its own), ``'copy'``
                arrays and gradients, or ``'init'``: new arrays with new initial values.

        Raises:
            ValueError: there is no such mode.

        Example:
            >>> import mnpar.links as L
            >>> layer = L.Linear(3, 2)
            >>> shared, drawn = layer.copy(), layer.copy("init")
            >>> (
            ...     shared.W is layer.W,
            ...     shared.W.array is layer.W.array,
            ...     bool((drawn.W.array == layer.W.array).all()),
            ... )
            (False, True, False)
        """
        if mode not in MODES:
            raise ValueError(f"a link is copied by {', '.join(MODES)}, not {mode!r}")
        other = self._shared({}) if mode == "share" else copy.deepcopy(self)
        other.name = None  # it is nobody's child yet
        if mode == "init":
            for param in other.params(include_uninit=False):
                param.initialize(param.shape)
        return other

    def repeat(self, n_repeat: int, mode: str = "init") -> Any:
        """Return a :class:`mnpar.Sequential` of ``n_repeat`` copies, made by :meth:`copy`.

        Args:
            n_repeat: how many copies; the link itself is not among them.
            mode: as in :meth:`copy`.

        Raises:
            ValueError: a negative number, or no such mode.

        Example:
            >>> import mnpar.links as L
            >>> len(L.Linear(3, 3).repeat(4))
            4
        """
        if n_repeat < 0:
            raise ValueError(f"a link cannot be repeated {n_repeat} times: 0 or more")
        # a Sequential is made of links, so its module is above this one
        sequential = importlib.import_module("mnpar.sequential")
        return sequential.Sequential(*[self.copy(mode) for _ in range(n_repeat)])

    def _shared(self: Self, memo: dict[int, Any]) -> Self:
        """Return a copy of the structure around the same arrays; ``memo`` holds the copies by the
        ids of what they were made from.
        """
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        other = memo[id(self)] = copy.copy(self)
        other.__dict__.update(_params=dict(self._params), _persistent=dict(self._persistent))
        for name in self._params:
            param = self.__dict__[name]
            if id(param) not in memo:
                memo[id(param)] = copy.copy(param)
                memo[id(param)].cleargrad()
            other.__dict__[name] = memo[id(param)]
        return other

    def to_device(self: Self, device: int | str | None) -> Self:
        """Move parameters and persistent arrays: ``-1`` or ``'@numpy'`` the host, ``0`` or
        ``'@cupy:0'`` the first GPU.
        """
        for param in self.params():
            param.to_device(device)
        for link in self.links():
            for name in link._persistent:
                value = getattr(link, name)
                if backend.is_array(value):
                    setattr(link, name, backend.to_device(device, value))
        return self

    def to_cpu(self: Self) -> Self:
        """Move to the host."""
        return self.to_device(-1)

    def to_gpu(self: Self, device: int | None = None) -> Self:
        """Move to a GPU; by default to the current one."""
        return self.to_device(backend.get_device("@cupy" if device is None else device))

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load its parameters and persistent values, and its children, each under its
        name.
        """
        sized = False
        for name in list(self._params):
            sized |= self._serialize_param(serializer, name)
        if sized:
            known = list(self._params)
            for hook in self._local_hooks.values():
                hook.sized(self)
            for name in list(self._params)[len(known) :]:
                self._serialize_param(serializer, name)
        for name in self._persistent:
            setattr(self, name, persistent(serializer)(name, getattr(self, name)))
        for name, child in self._filed(serializer):
            child.serialize(serializer[name])

    def _serialize_param(self, serializer: AbstractSerializer, name: str) -> bool:
        """Save or load a parameter; True if loading has initialized it."""
        param = self.__dict__[name]
        # a part of an array that a link of other ranks has too (functions/divided/features.py)
        whole = getattr(param, "serialize_whole", None)
        if whole is not None and param.box is not None:
            whole(serializer, name)
            return False
        value = placed(serializer, param)(name, param.array)
        if param.array is not None or value is None:
            return False
        param.copydata(Variable(value))
        return True

    def __repr__(self) -> str:
        specs = ", ".join([f"{name}={value}" for name, value in self.printable_specs])
        return f"{type(self).__name__}({specs})"

    def __str__(self) -> str:
        # the table of a model that parallelize has divided
        plan = vars(self).get("_plan")
        return repr(self) if plan is None else str(plan.table(self))


def check_name(link: Link, name: str) -> None:
    """Raise AttributeError if a parameter or child of a link has the name of a link's method, which
    it would hide.
    """
    if name in _RESERVED:
        raise AttributeError(
            f"{type(link).__name__} cannot have a parameter or link called {name!r}, the name of "
            f"what every link has: choose another name, {name}_ for example"
        )


def _check_substitute(link: Link, name: str, value: object) -> None:
    """Raise TypeError if a value takes the place of a parameter, which would not be trained any
    more. A Variable that functions have computed may stand for it.
    """
    if isinstance(value, Variable):
        if value.creator is not None or not value.requires_grad:
            return
        given: Array | complex = value.array
    elif backend.is_array(value) or isinstance(value, int | float | complex):
        given = value
    else:
        return
    which = f"{link.name or type(link).__name__}.{name}"
    raise TypeError(
        f"{name} of {type(link).__name__} is a Parameter, and would not be trained with a "
        f"{type(value).__name__} {np.shape(given)} in its place: {which}.array[...] = values "
        f"changes its values, {which} = mnpar.Parameter(values) replaces it; "
        f"del {which} removes it"
    )


def _of_path(others: dict[str, Any], path: str, what: str) -> Any:
    if path not in others:
        raise KeyError(
            f"the other link has no {what} {path}; it has {listed(others)}: both must be made alike"
        )
    return others[path]


# what every link has (a child of that name would hide it), and what a Chain has
_RESERVED = frozenset(dir(Link)).difference(hints.LINK).union(("name", "add_link"))


if not TYPE_CHECKING:
    __getattr__ = lazy.names_above(
        __name__, Chain="mnpar.chain", ChainList="mnpar.chain", Sequential="mnpar.sequential"
    )
