"""The settings of a rank: does it record functions for backward, does it train, in which dtype are
new parameters?

Each setting is a context variable behind an attribute. Ranks may be threads of one process
(``mnpar.run``), so nothing here is global: a new context starts from the defaults, and
``mnpar.run`` hands its caller's settings to its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Generic, ParamSpec, TextIO, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from mnpar import environment
from mnpar.errors import suggestion

T = TypeVar("T")
P = ParamSpec("P")


class Setting(Generic[T]):
    """A context variable that reads and writes like an attribute."""

    variable: ContextVar[T]

    def __init__(self, default: T) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.variable = ContextVar(f"mnpar.{name}", default=self.default)

    def __get__(self, instance: object, owner: type | None = None) -> T:
        return self.variable.get()

    def __set__(self, instance: object, value: T) -> None:
        self.check(value)
        self.variable.set(value)

    def __delete__(self, instance: object) -> None:
        self.variable.set(self.default)

    def check(self, value: T) -> None:
        """Raise TypeError if the setting cannot have this value."""


class DtypeSetting(Setting[DTypeLike]):
    """A floating-point dtype by any of its names, or ``mixed16``."""

    def check(self, value: DTypeLike | None) -> None:
        if value is None or as_dtype(value).kind in "OSUMmbiu":
            raise TypeError(f"config.dtype = {value!r} is no dtype of floating-point numbers")


class Mixed16:
    """Chainer's ``mixed16``: arrays of float16, and of float32 where sums need it (statistics of
    normalizations).
    """

    dtype = np.dtype(np.float16)  # so that numpy takes it for float16

    def __repr__(self) -> str:
        return "dtype('mixed16')"

    def __reduce__(self) -> str:
        return "mixed16"  # a copy is the same one


mixed16 = Mixed16()


def as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the numpy dtype of a name or type.

    Raises:
        TypeError: there is no such dtype.

    Example:
        >>> from mnpar.configuration import as_dtype
        >>> as_dtype("f4")
        dtype('float32')
    """
    try:
        return np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{dtype!r} is no dtype; 'float16', 'f4' and numpy.float64 are") from None


class Config:
    """The settings of the calling rank, Chainer's names.

    Example:
        >>> import mnpar
        >>> with mnpar.using_config("train", False):
        ...     mnpar.config.train
        False
        >>> mnpar.config.train
        True
    """

    __slots__ = ()

    train = Setting(True)  # dropout drops, batch normalization uses the statistics of the batch
    enable_backprop = Setting(True)  # functions record themselves for backward
    # the dtype of parameters and data sets made without a dtype argument
    dtype = DtypeSetting(np.dtype(np.float32))
    # check every output and gradient for NaN
    debug = Setting(environment.switch("MNPAR_DEBUG", False))
    # functions.forget runs a forward again: it must not update running statistics twice
    in_recomputing = Setting(False)
    keep_graph_on_report = Setting(False)  # reported Variables keep their graph
    # Chainer's programs set these; they have no effect in mnpar.
    type_check = Setting(True)
    autotune = Setting(False)
    cudnn_deterministic = Setting(False)
    cudnn_fast_batch_normalization = Setting(False)
    use_cudnn = Setting("auto")
    use_cudnn_tensor_core = Setting("auto")
    warn_nondeterministic = Setting(False)
    use_static_graph = Setting(True)
    schedule_func: Setting[Any] = Setting(None)
    compute_mode: Setting[Any] = Setting(None)
    use_ideep = Setting("never")
    lazy_grad_sum = Setting(False)

    def __setattr__(self, name: str, value: object) -> None:
        setting(name)  # an unknown one is told
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # only of what is not there
        raise _unknown(name)

    def show(self, file: TextIO | None = None) -> None:
        """Print all settings of this rank, to the standard output unless told."""
        names = sorted(settings())
        width = max(map(len, names))
        print(
            "".join(f"{name:{width}}  {getattr(self, name)!r}\n" for name in names),
            end="",
            file=file,
        )


def settings() -> dict[str, Setting[Any]]:
    """Return all settings by name, in the order of their definition."""
    return {name: entry for name, entry in vars(Config).items() if isinstance(entry, Setting)}


def setting(name: str) -> Setting[Any]:
    """Return the setting of a name; AttributeError if there is none."""
    found = Config.__dict__.get(name)
    if not isinstance(found, Setting):
        raise _unknown(name)
    return found


def _unknown(name: str) -> AttributeError:
    return AttributeError(
        f"mnpar.config has no setting {name!r}{suggestion(name, settings())}", name=name, obj=config
    )


config = Config()


def get_dtype(
    dtype: DTypeLike | None = None, map_mixed16: DTypeLike | None = None
) -> np.dtype[Any]:
    """Return the dtype to use: ``dtype``, or ``config.dtype`` if it is None; ``mixed16`` becomes
    ``map_mixed16``, or else float16.

    Example:
        >>> import numpy as np, mnpar
        >>> with mnpar.using_config("dtype", mnpar.mixed16):
        ...     mnpar.get_dtype(), mnpar.get_dtype(map_mixed16=np.float32)
        (dtype('float16'), dtype('float32'))
    """
    dtype = config.dtype if dtype is None else dtype
    if isinstance(dtype, Mixed16):
        dtype = np.float16 if map_mixed16 is None else map_mixed16
    return as_dtype(dtype)


global_config = config

is_recording = Config.__dict__[
    "enable_backprop"
].variable.get  # for every function: four times as fast as the attribute

is_debugging = Config.__dict__["debug"].variable.get
is_recomputing = Config.__dict__["in_recomputing"].variable.get
_recording = Config.__dict__["enable_backprop"].variable


def set_debug(debug: bool) -> None:
    """Switch on or off the check of every output and gradient of this rank for NaN and infinity.

    Arrays that were changed in place, though backward needs their earlier values, are found too:
    ``x.array += 1`` between forward and backward. And ranks check that what they own together is
    alike (:func:`mnpar.functions.copy_to` and its like): switch it on all of them.

    Args:
        debug: whether to check.

    Example:
        >>> import mnpar
        >>> mnpar.set_debug(True)
        >>> mnpar.is_debug()
        True
        >>> mnpar.set_debug(False)
    """
    config.debug = debug


def is_debug() -> bool:
    """Return whether this rank checks outputs and gradients for NaN: ``mnpar.config.debug``.

    Example:
        >>> import mnpar
        >>> with mnpar.using_config("debug", True):
        ...     mnpar.is_debug()
        True
    """
    return config.debug


@contextmanager
def using_config(name: str, value: Any, config: Config = config) -> Iterator[None]:
    """Change one setting of this rank inside a ``with`` block.

    Args:
        name: a setting of :class:`Config`, ``'train'`` for example.
        value: what it is inside the block.
        config: for Chainer's signature: there is only one Config.

    Raises:
        AttributeError: there is no such setting; TypeError: it cannot have this value.

    Example:
        >>> import mnpar
        >>> with mnpar.using_config("enable_backprop", False):
        ...     mnpar.config.enable_backprop
        False
    """
    changed = setting(name)
    changed.check(value)
    token = changed.variable.set(value)
    try:
        yield
    finally:
        changed.variable.reset(token)


def no_backprop_mode() -> recording:
    """Record nothing inside a ``with`` block: evaluation needs no graph and no messages of
    gradients.

    Example:
        >>> import numpy as np, mnpar
        >>> x = mnpar.Variable(np.ones(2))
        >>> with mnpar.no_backprop_mode():
        ...     (x * 2).requires_grad
        False
    """
    return recording(False)


def force_backprop_mode() -> recording:
    """Record inside a ``with`` block even where an outer block switched it off.

    Example:
        >>> import numpy as np, mnpar
        >>> with mnpar.no_backprop_mode(), mnpar.force_backprop_mode():
        ...     (mnpar.Variable(np.ones(2)) * 2).requires_grad
        True
    """
    return recording(True)


class recording:  # noqa: N801 - it is used like the functions above
    """``using_config('enable_backprop', on)`` without the look-up and the generator: for a block,
    or around a function.
    """

    __slots__ = ("_on", "_token")

    def __init__(self, on: bool) -> None:
        self._on = on

    def __enter__(self) -> None:
        self._token = _recording.set(self._on)

    def __exit__(self, *error: object) -> None:
        _recording.reset(self._token)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def switched(*args: P.args, **kwargs: P.kwargs) -> T:
            with recording(self._on):
                return function(*args, **kwargs)

        return switched
