"""Machine code of loops: where it is kept, how it is loaded and called.

numba translates a loop once for a kind of processor (translation.py). A later start reads the code
from a file and hands it to LLVM, without importing numba, which takes longer than all the rest. The
code gets numpy's arrays as the objects that they are; it reads their memory and shape itself, and
returns another number than 0 if one of them is not as the loop wants it.

A file holds a checksum and the object code.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnpar.kernels.translation import SYMBOL, VERSION
from mnpar.runtime import system

_CHECKSUM = hashlib.sha256().digest_size
# how ctypes passes what is not an array
_NUMBERS: dict[str, Any] = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int64": ctypes.c_int64,
}


def load(code: bytes, kinds: Sequence[str]) -> Callable[..., int]:
    """Return a function that runs object code and returns its status.

    Args:
        code: what :func:`translation.translate` returns.
        kinds: of each argument ``array`` or the dtype of a number.

    Raises:
        RuntimeError: the code needs a function that is not there.
    """
    from llvmlite.binding import JITLibraryBuilder

    builder = JITLibraryBuilder().add_object_img(code).add_current_process()
    library = builder.export_symbol(SYMBOL).link(_linker(), f"{SYMBOL} {len(_LOADED)}")
    _LOADED.append(library)
    types = [_NUMBERS.get(kind, ctypes.py_object) for kind in kinds]
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.py_object, *types)
    return functools.partial(prototype(library[SYMBOL]), np.ndarray)


_LOADED: list[Any] = []  # what LLVM would unload otherwise


@functools.cache
def _linker() -> Any:
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(suppress_errors=True)


# ---- files ----


def read(folder: Path | None, name: str) -> bytes | None:
    """Return the code of a loop; None where it is not kept, or damaged."""
    if folder is None:
        return None
    try:
        kept = (folder / f"{name}.code").read_bytes()
    except OSError:
        return None
    code = kept[_CHECKSUM:]
    return code if hashlib.sha256(code).digest() == kept[:_CHECKSUM] else None


def write(folder: Path | None, name: str, code: bytes) -> None:
    """Keep the code of a loop, if that is possible."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        part = folder / f".{name}-{os.getpid()}"
        part.write_bytes(hashlib.sha256(code).digest() + code)
        part.replace(folder / f"{name}.code")


def folder_of_all() -> Path:
    """Return where the code for all processors and versions is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mnpar", "kernels")


@functools.cache
def folder_here() -> Path | None:
    """Return where code that was compiled here is kept: a folder for each kind of processor and
    each version of numba; names in it tell versions of mnpar apart. None, and a warning, where it
    cannot be written.
    """
    from llvmlite import binding as llvm

    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    versions = f"{VERSION} {_numba_version()} {np.__version__} {sys.version}"
    key = hashlib.sha256(f"{processor} {versions}".encode()).hexdigest()[:12]
    folder = folder_of_all() / f"{llvm.get_host_cpu_name()}-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (probe := folder / f".{os.getpid()}-{threading.get_ident()}").touch()
        probe.unlink()
    except OSError as error:
        warnings.warn(
            f"mnpar: compiled kernels are not kept, each start compiles them anew: {error}",
            stacklevel=2,
        )
        return None
    return folder


def is_proven(folder: Path | None) -> bool:
    """Return whether the versions of the folder have compiled code, so that they work together."""
    return folder is not None and next(folder.glob("*.code"), None) is not None


def _numba_version() -> str:
    """What numba says of its version, in the file that it has for that: importing it takes 0.5 s,
    asking for its metadata 0.1 s.
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
def locked(folder: Path | None) -> Iterator[None]:
    """Wait until no other process compiles; where files cannot be locked, do not wait."""
    fcntl = system.fcntl
    try:
        if fcntl is None or folder is None:
            raise OSError
        file = (folder / ".lock").open("w")
    except OSError:
        yield
        return
    with file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks it
