"""Loops in plain Python, compiled by numba at their first call: which arrays they take, and how a
loop is told from others.

A loop is compiled for float32 and for float64, each at its first use; its literals and the
constants that it reads take that dtype, so that ``0.5 * x`` stays in float32. Only lanes.py,
atomics.py, products.py and translation.py know numba, too. ``kernels/__init__.py`` has the whole
picture.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pkgutil
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Annotated, Any, TypeAlias, get_type_hints

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import machine_code, translation, tuning

# Annotations of a loop's arguments: contiguous arrays of the loop's dtype by their number of axes,
# a number of that dtype; and vectors of float64 and of int64, whatever that dtype is. A vector may
# be given as an array of any number of axes. ``float`` is float64, ``int`` int64; Reals are as many
# numbers of the loop's dtype as a loop says.
Vector: TypeAlias = Annotated[Array, "Vector"]
Matrix: TypeAlias = Annotated[Array, "Matrix"]
Cube: TypeAlias = Annotated[Array, "Cube"]
Array4: TypeAlias = Annotated[Array, "Array4"]
Array5: TypeAlias = Annotated[Array, "Array5"]
Array6: TypeAlias = Annotated[Array, "Array6"]
Real: TypeAlias = Annotated[float, "Real"]
Doubles: TypeAlias = Annotated[Array, "Doubles"]
Integers: TypeAlias = Annotated[Array, "Integers"]
Reals: TypeAlias = Annotated[tuple[float, ...], "Reals"]

_AXES = {"Vector": 1, "Matrix": 2, "Cube": 3, "Array4": 4, "Array5": 5, "Array6": 6}
_DTYPES = {"f": "float32", "d": "float64"}
_REALS: dict[str, Callable[[float], Any]] = {"f": np.float32, "d": np.float64}
# a product and a sum are rounded once; sums may be reordered, into as many as are added at a time.
# Nothing is assumed about NaN and ∞.
_FASTMATH = {"contract", "reassoc", "nsz"}


@functools.cache
def mode() -> str:
    """Return what ``MNPAR_KERNELS`` says: ``''``, ``'numpy'`` or ``'numba'``.

    Raises:
        ValueError: it says something else.
    """
    named = os.environ.get("MNPAR_KERNELS", "")
    if named not in _LEAST:
        raise ValueError(f"MNPAR_KERNELS is numpy or numba, not {named!r}")
    return named


_NATIVE = (np.dtype(np.float32), np.dtype(np.float64))  # of native byte order
_LEAST = {"": None, "numpy": sys.maxsize, "numba": 0}


@functools.cache
def least(constant: str = "COMPILED_LEAST") -> int:
    """Return how many elements an array has at least for which a loop is compiled, by the name of
    the constant of tuning.py that says so.
    """
    always = _LEAST[mode()]
    found: int = getattr(tuning, constant) if always is None else always
    return found


def numba() -> Any:
    """Return numba, which is imported at the first call."""
    import numba

    return numba


def is_installed() -> bool:
    """Return whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


@functools.cache
def is_usable() -> bool:
    """Return whether loops can be compiled here, or have been: numba is imported, and tried with
    the smallest loop, only where no loop is kept. A warning says why they cannot be compiled.

    Raises:
        ImportError: they cannot, but ``MNPAR_KERNELS=numba`` wants it.
    """
    if not is_installed():
        if mode() == "numba":
            raise ImportError("MNPAR_KERNELS=numba needs numba: pip install 'mnpar[fast]'")
        return False
    try:
        if not machine_code.reads_arrays():
            raise ImportError("numpy's arrays lie in memory in another way")
        if not machine_code.is_proven(machine_code.folder_here()):
            _TRIAL.at("d")
    except Exception as error:  # compilers raise errors of all kinds
        what = f"numpy {np.__version__}, Python {sys.version.split()[0]}: {error!r}"
        if mode() == "numba":
            raise ImportError(f"MNPAR_KERNELS=numba: loops cannot be compiled; {what}") from error
        warnings.warn(f"mnpar: kernels are numpy's, numba is left alone; {what}", stacklevel=2)
        return False
    return True


def has_loops(x: Array, *others: Array) -> bool:
    """Return whether loops are compiled for arrays of this size and these dtypes, however they lie
    in memory.

    Example:
        >>> has_loops(np.zeros(10, np.float16))
        False
    """
    return x.size >= least() and has_dtype_of_loops(x, *others)


def has_dtype_of_loops(x: Array, *others: Array) -> bool:
    """Return whether loops are compiled for numpy arrays of these dtypes, whatever their sizes."""
    dtype = x.dtype
    if dtype not in _NATIVE or type(x) is not np.ndarray or not is_usable():
        return False
    # (written out, here and below: small arrays feel each call and each list)
    for array in others:  # noqa: SIM110
        if type(array) is not np.ndarray or array.dtype != dtype:
            return False
    return True


def suits(x: Array, *others: Array) -> bool:
    """Return whether compiled loops take these arrays.

    Example:
        >>> suits(np.zeros(10, np.float16)), suits(np.zeros((10, 10)).T)
        (False, False)
    """
    return x.size >= least() and suits_at_any_size(x, *others)


def suits_at_any_size(x: Array, *others: Array) -> bool:
    """Return whether compiled loops take these arrays, but for their sizes."""
    # (has_dtype_of_loops, written out here: a call takes as long as all questions of an array)
    dtype = x.dtype
    if dtype not in _NATIVE or type(x) is not np.ndarray or not is_usable():
        return False
    # carray: contiguous, aligned and writable
    if not x.flags.carray:
        return False
    for array in others:
        if type(array) is not np.ndarray or array.dtype != dtype or not array.flags.carray:
            return False
    return True


def contiguous(x: Array) -> Array:
    """Return the array, or a copy: contiguous, aligned and writable, as loops take it."""
    return x if x.flags.carray else np.require(x, None, ["C", "A", "W"])


class Formula:
    """A computation of single numbers, which loops call and the compiler copies into them.

    Args:
        function: plain Python; or one for each dtype, by its character.
        as_numpy: each operation is rounded by itself.
        reorders: sums may be reordered; by default they keep their order, on which formulas rely.
    """

    def __init__(
        self,
        function: FunctionType | dict[str, Formula],
        as_numpy: bool = False,
        reorders: bool = False,
    ) -> None:
        self.function = function
        self.fastmath = set() if as_numpy else _FASTMATH if reorders else {"contract"}
        self._ready: dict[str, Any] = {}

    def at(self, char: str) -> Any:
        """Return numba's function for a dtype."""
        if isinstance(self.function, dict):
            return self.function[char].at(char)
        if char not in self._ready:
            self._ready[char] = numba().njit(
                _typed(self.function, char),
                **translation.OPTIONS,
                fastmath=self.fastmath,
                forceinline=True,
            )
        return self._ready[char]

    def digest(self, char: str) -> bytes:
        """Return a fingerprint of the formula and of those that it calls."""
        if isinstance(self.function, dict):
            return self.function[char].digest(char)
        return _digest(self.function, char) + repr(sorted(self.fastmath)).encode()

    def __call__(self, *numbers: Any) -> Any:
        """Compute it in Python, for one number."""
        if isinstance(self.function, dict):
            char = "f" if isinstance(numbers[0], np.float32) else "d"
            return self.function[char](*numbers)
        return self.function(*numbers)


def reduction(function: Callable[..., Any]) -> Formula:
    """Mark a computation of single numbers and vectors that loops may call; its sums may be
    reordered.
    """
    return Formula(function, reorders=True)  # type: ignore[arg-type]


def formula(function: Callable[..., Any]) -> Formula:
    """Mark a computation of single numbers that loops may call."""
    return Formula(function)  # type: ignore[arg-type]


class Loop:
    """A loop over arrays, compiled when it is first called.

    Args:
        function: plain Python, whose annotations are the signature.
        name: of the compiled loop; by default the function's.
        constants: what replaces globals of the function.
        reals: how many numbers its argument of Reals has.
        as_numpy: each operation is rounded by itself, in the order written.
        entry: how it is called (translation.py): by Python; by Python for parts of many things,
            if its last arguments are those of :func:`divided`; or by its address.
    """

    def __init__(
        self,
        function: FunctionType,
        name: str = "",
        constants: dict[str, Any] | None = None,
        reals: int = 0,
        as_numpy: bool = False,
        entry: translation.Entry = "whole",
    ) -> None:
        self.reals = reals
        self.entry: translation.Entry = entry
        self.fastmath = set() if as_numpy else _FASTMATH
        self.name = name or f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self.function = FunctionType(
            function.__code__, {**function.__globals__, **(constants or {})}, function.__name__
        )
        self.declared = function
        self._load = machine_code.load_address if entry == "address" else machine_code.load
        self._ready: dict[str, Any] = {}
        LOOPS.append(self)

    @functools.cached_property
    def signature(self) -> list[str]:
        """The kinds of the arguments: ``Vector``, ``Real`` …"""
        hints = get_type_hints(self.declared, include_extras=True)
        hints.pop("return", None)
        return [_kind(name, hint) for name, hint in hints.items()]

    def __call__(self, *args: Any) -> None:
        """Run it; the first argument, an array, says the dtype, and Reals are the last ones.

        Raises:
            TypeError: an array is not what the loop's annotations say.
        """
        char = args[0].dtype.char
        run = self._ready.get(char) or (self.at(char) if char in _DTYPES else None)
        if run is None or run(*args):
            arrays = [f"{x.dtype} {x.shape}" for x in args if isinstance(x, np.ndarray)]
            raise TypeError(
                f"{self.name} takes contiguous arrays of one dtype as {self.signature}, "
                f"not {', '.join(arrays)}"
            )

    def at(self, char: str) -> Callable[..., int]:
        """Return the loop for a dtype, ``'f'`` or ``'d'``: compiled, or found where it is kept."""
        with _COMPILING:
            if char not in self._ready:
                self._ready[char] = self._find(char)
            found: Callable[..., int] = self._ready[char]
            return found

    def address(self) -> int:
        """Return the address of a loop that is called by it."""
        self.at("d")
        address: int = self._ready["d"]
        return address

    def _find(self, char: str) -> Any:
        """The loop from its file; or else compiled, by one process of those that want it."""
        for name, value in self.declared.__globals__.items():  # some are defined below the loop
            self.function.__globals__.setdefault(name, value)
        kept = f"{self.signature} {self.reals} {sorted(self.fastmath)} {self.entry}"
        digest = hashlib.sha256(_digest(self.function, char) + kept.encode()).hexdigest()
        name = f"{self.name}_{char}_{digest[:16]}"
        folder = machine_code.folder_here()
        code = machine_code.read(folder, name)
        if code is not None:
            try:
                return self._load(code)
            except RuntimeError:  # it calls what numba brings along
                numba()
                return self._load(code)
        keeps = machine_code.can_keep(folder)
        with machine_code.locked(folder):
            code = machine_code.read(folder, name)
            if code is None:
                if keeps:
                    machine_code.tell(folder)
                types = [_numba_type(kind, char, self.reals) for kind in self.signature]
                typed = _typed(self.function, char)
                options = self.fastmath or False, self.entry
                code = translation.translate(numba(), typed, types, *options)
                if keeps:
                    machine_code.write(folder, name, code)
        return self._load(code)


def describe() -> str:
    """Return a line about compiled loops on this machine, for the doctor; numba is not imported.

    Raises:
        ValueError: ``MNPAR_KERNELS`` has no meaning.
    """
    if mode() == "numpy":
        return "numpy's (MNPAR_KERNELS=numpy)"
    if not is_installed():
        return "numpy's; pip install 'mnpar[fast]' compiles them, for networks on processors"
    from importlib import metadata  # which takes long

    kept = machine_code.folder_of_all()
    ready = {path.name for path in kept.glob("*/*.code")}
    return (
        f"compiled by numba {metadata.version('numba')}; {len(ready)} are kept in {kept} "
        "(doctor --compile compiles all)"
    )


LOOPS: list[Loop] = []  # all that were defined, for those who compile beforehand
_COMPILING = threading.RLock()


def compiled(function: Callable[..., None]) -> Loop:
    """Mark loops over arrays, which are compiled when they are first called.

    Example:
        >>> @compiled
        ... def double(x: Vector, y: Vector) -> None:
        ...     for i in range(x.size):
        ...         y[i] = 2.0 * x[i]
        >>> double.name.rpartition(".")[2], double.signature
        ('double', ['Vector', 'Vector'])
    """
    return Loop(function)  # type: ignore[arg-type]


def divided(function: Callable[..., None]) -> Loop:
    """Mark loops over many things, which are compiled like :func:`compiled` ones; parts of them run
    on several threads (side_by_side.py). The last three arguments say which part: the number of the
    thread, for which there may be room of its own, and the first thing and the end. ``run_loop``
    there gives in their place how many things, parts and threads there are, and a pool's address.

    Example:
        >>> @divided
        ... def double(x: Vector, y: Vector, thread: int, begin: int, end: int) -> None:
        ...     for i in range(begin, end):
        ...         y[i] = 2.0 * x[i]
    """
    return Loop(function, entry="parts")  # type: ignore[arg-type]


def _set_zero(x: Vector) -> None:
    x[0] = 0.0


_TRIAL = Loop(_set_zero)  # type: ignore[arg-type]


def compile_all() -> tuple[int, float]:
    """Compile all loops of this package, for both dtypes; how many these are, and how many
    seconds it took.

    Raises:
        ImportError: numba is missing, or does not work.
    """
    if not is_usable():
        raise ImportError("kernels are compiled by numba: pip install 'mnpar[fast]'")
    begin = time.perf_counter()
    for module in pkgutil.iter_modules([os.path.dirname(__file__)]):
        importlib.import_module(f"{__package__}.{module.name}")
    loops = [loop for loop in LOOPS if loop.function.__module__.startswith("mnpar.")]
    for loop in loops:
        for char in _REALS:
            loop.at(char)
    return 2 * len(loops), time.perf_counter() - begin


def _typed(function: FunctionType, char: str) -> FunctionType:
    """The function with its constants in a dtype, and numba's functions in place of formulas."""

    def of(value: Any) -> Any:
        if isinstance(value, Formula):
            return value.at(char)
        if type(value) is float:
            return _REALS[char](value)
        return tuple(map(of, value)) if type(value) is tuple else value

    code = function.__code__
    known = function.__globals__
    return FunctionType(
        code.replace(co_consts=tuple(map(of, code.co_consts))),
        {**known, **{name: of(known[name]) for name in code.co_names if name in known}},
        function.__name__,
    )


def _digest(function: FunctionType, char: str) -> bytes:
    """A fingerprint of what a function computes in a dtype: its code, and what that reads."""
    code: CodeType = function.__code__
    parts = [char.encode(), code.co_code, repr(code.co_consts).encode()]
    for name in code.co_names:
        value = function.__globals__.get(name)
        parts.append(
            value.digest(char)
            if isinstance(value, Formula)
            else f"{name}={value!r}".encode()
            if isinstance(value, int | float | tuple | np.generic)
            else name.encode()
        )
    return hashlib.sha256(b"\0".join(parts)).digest()


def _kind(name: str, hint: Any) -> str:
    kind: str = hint.__name__ if hint in (int, float) else getattr(hint, "__metadata__", [""])[0]
    if not kind:
        raise TypeError(
            f"the argument {name} of a loop is a Vector, Matrix, Cube, Array4 to Array6, Doubles, "
            f"Integers, Real, Reals, float or int, not {hint}"
        )
    return kind


def _numba_type(kind: str, char: str, reals: int) -> Any:
    types = numba().types
    real = {"f": types.float32, "d": types.float64}[char]
    if kind in _AXES:
        return types.Array(real, _AXES[kind], "C")
    vectors = {"Doubles": types.float64, "Integers": types.int64}
    if kind in vectors:
        return types.Array(vectors[kind], 1, "C")
    if kind == "Reals":
        return types.UniTuple(real, reals)
    return {"int": types.int64, "float": types.float64, "Real": real}[kind]
