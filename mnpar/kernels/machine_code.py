"""Machine code of loops: where it is kept, how it is loaded and called.

numba translates a loop once for a kind of processor (translation.py). A later start reads the code
from a file and hands it to LLVM, without importing numba, which takes longer than all the rest. The
code is a builtin function of Python; it gets numpy's arrays as the objects that they are, reads
their memory and shape itself, and returns another number than 0 if one of them is not as the loop
wants it.

A file holds a checksum and the object code.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import pkgutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from mnpar.kernels.translation import (
    AXES,
    CALLED,
    DATA,
    DTYPE,
    FLAGS,
    HEAD,
    KIND,
    ORDER,
    SHAPE,
    SIZE,
    STRIDES,
    SYMBOL,
)
from mnpar.runtime import system

T = TypeVar("T")
_CHECKSUM = hashlib.sha256().digest_size
_FASTCALL = 0x80  # METH_FASTCALL of Python's C API: arguments as an array, and how many


class _MethodDef(ctypes.Structure):
    """The definition of a builtin function, as Python reads it (PyMethodDef)."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def load(code: bytes) -> Callable[..., int]:
    """Return a function that runs object code and returns its status.

    Args:
        code: what :func:`translation.translate` returns.

    Raises:
        RuntimeError: the code needs a function that is not there.
    """
    method = _MethodDef(SYMBOL.encode(), load_address(code), _FASTCALL, None)
    # Python reads the definition whenever it looks at the function, even at its end, when it has
    # emptied the modules already
    made: Callable[..., int] = _new_builtin()(ctypes.byref(keep(method)), np.ndarray, None)
    return made


def load_address(code: bytes) -> int:
    """Return the address of the function in object code, which stays there.

    Raises:
        RuntimeError: the code needs a function that is not there.
    """
    from llvmlite.binding import JITLibraryBuilder

    builder = JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in CALLED:
        place = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        builder.import_symbol(name, place)
    _NUMBERS.append(len(_NUMBERS))
    library = builder.export_symbol(SYMBOL).link(_linker(), f"{SYMBOL} {len(_NUMBERS)}")
    keep(library)  # threads may run it until the process ends
    address: int = library[SYMBOL]
    return address


def keep(thing: T) -> T:
    """Let nobody free an object, not even Python at its end; return it."""
    ctypes.pythonapi["Py_IncRef"](ctypes.py_object(thing))
    return thing


@functools.cache
def _new_builtin() -> Any:
    """Python's own function (PyCFunction_NewEx) that makes a builtin one: of its definition, its
    ``self`` and its module.
    """
    function = ctypes.pythonapi["PyCFunction_NewEx"]  # for nobody else's prototype
    function.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    function.restype = ctypes.py_object
    return function


_NUMBERS: list[int] = []  # of the libraries that LLVM has loaded


@functools.cache
def _linker() -> Any:
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return keep(llvm.create_lljit_compiler(suppress_errors=True))


def reads_arrays() -> bool:
    """Return whether numpy's objects lie in memory here as translation.py says. Other versions of
    numpy and Python may change that: then no code is made or loaded.
    """
    x = np.empty((2, 3), np.float32)
    head, dtype = id(x) + HEAD, id(x.dtype) + HEAD

    def pointer(place: int) -> int | None:
        return ctypes.c_void_p.from_address(place).value

    def numbers(place: int | None) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * x.ndim).from_address(place or 0))

    def letter(place: int) -> str:
        return ctypes.c_char.from_address(place).value.decode("latin-1")

    return (
        ctypes.sizeof(ctypes.c_void_p) == 8
        and pointer(head - 8) == id(np.ndarray)
        and pointer(head + DATA) == x.__array_interface__["data"][0]
        and pointer(head + DTYPE) == id(x.dtype)
        and ctypes.c_int32.from_address(head + AXES).value == x.ndim
        and ctypes.c_int32.from_address(head + FLAGS).value == x.flags.num
        and numbers(pointer(head + SHAPE)) == x.shape
        and numbers(pointer(head + STRIDES)) == x.strides
        and letter(dtype + KIND) == x.dtype.kind
        and letter(dtype + ORDER) == x.dtype.byteorder
        and ctypes.c_int64.from_address(dtype + SIZE).value == x.dtype.itemsize
    )


# ---- files ----


def read(folder: Path, name: str) -> bytes | None:
    """Return the code of a loop; None where it is not kept, damaged, or another user's."""
    try:
        with (folder / f"{name}.code").open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            kept = file.read()
    except OSError:
        return None
    if owner and owner != os.geteuid():  # neither root's nor this user's
        _warn_once(f"the files in {folder} are another user's ({owner}) and are not loaded")
        return None
    code = kept[_CHECKSUM:]
    return code if hashlib.sha256(code).digest() == kept[:_CHECKSUM] else None


def write(folder: Path, name: str, code: bytes) -> None:
    """Keep the code of a loop; where that is not possible, warn."""
    part = folder / f".{name}-{system.machine()}-{os.getpid()}"
    try:
        part.write_bytes(hashlib.sha256(code).digest() + code)
        part.replace(folder / f"{name}.code")
    except OSError as error:
        _warn_once(f"{_NOT_KEPT} {error.strerror} ({folder})")
        with contextlib.suppress(OSError):
            part.unlink()


@functools.cache
def can_keep(folder: Path) -> bool:
    """Return whether code can be kept in a folder, which is made; warn if not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (probe := folder / f".{system.machine()}-{os.getpid()}-{threading.get_ident()}").touch()
        probe.unlink()
    except OSError as error:
        _warn_once(f"{_NOT_KEPT} {error.strerror} ({folder})")
        return False
    return True


_NOT_KEPT = "compiled kernels are not kept, each start compiles them anew:"


@functools.cache
def _warn_once(what: str) -> None:
    warnings.warn(f"mnpar: {what}", stacklevel=4)


def folder_of_all() -> Path:
    """Return where the code for all processors and versions is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mnpar", "kernels")


@functools.cache
def folder_here() -> Path:
    """Return where code that was compiled here is kept, whether or not the folder is there: one for
    each kind of processor, each version of Python, numpy and numba, and each of the files here that
    make the code. Names in it tell versions of loops apart.
    """
    from llvmlite import binding as llvm

    name = llvm.get_host_cpu_name()
    parts = [
        *(name, llvm.get_host_cpu_features().flatten()),
        *(os.environ.get(f"NUMBA_CPU_{what}", "") for what in ("NAME", "FEATURES")),
        *(_numba_version(), np.__version__, sys.version),
        *(repr(pkgutil.get_data(__package__, file)) for file in _MAKERS),
    ]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return folder_of_all() / f"{name}-{key}"


_MAKERS = ("atomics.py", "compiler.py", "lanes.py", "products.py", "translation.py")


def is_proven(folder: Path) -> bool:
    """Return whether the versions of the folder have compiled code, so that they work together."""
    return next(folder.glob("*.code"), None) is not None


def _numba_version() -> str:
    """Return what numba says of its version, in the file that it has for that: importing it takes
    0.5 s, asking for its metadata 0.1 s.
    """
    found = importlib.util.find_spec("numba")
    if found is None or found.origin is None:
        return ""
    return Path(found.origin).with_name("_version.py").read_text()


@functools.cache
def tell(folder: Path) -> None:
    """Say once that loops are compiled, which takes a while."""
    sys.stderr.write(f"mnpar: compiles kernels for this processor, once; kept in {folder}\n")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process compiles; where files cannot be locked, do not wait."""
    fcntl = system.fcntl
    try:
        if fcntl is None:
            raise OSError
        file = (folder / ".lock").open("w")
    except OSError:
        yield
        return
    with file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks it
