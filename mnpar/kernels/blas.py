"""Large products of matrices, and the error function, by Intel's MKL, where that is installed (the
extra ``mkl``).

On Intel's processors with AVX-512 the OpenBLAS in numpy's wheels takes 1.1 to 1.4 times as long as
MKL for the products of a linear layer, forward most of all; no other part of a training step takes
as long. Small products are left to numpy: a call costs 4 µs more here. On others' processors MKL
does not use registers of 512 bits, and takes twice as long as OpenBLAS, so all products are
numpy's there (measured on an AMD EPYC of 2024: 112 and 245 GFLOP/s). The error function, which
numpy does not have, takes a fifth of the time that it takes as numpy operations.

MKL is not used if a rank has several BLAS threads: the threads of two libraries would compete for
the cores, and a step would take five times as long.

``MNPAR_BLAS=numpy`` leaves MKL alone; a path names another library that has ``cblas_sgemm`` and
``cblas_dgemm``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels import tuning
from mnpar.kernels.processor import is_intel
from mnpar.runtime.blas_threads import large_products

_ROW_MAJOR, _AS_IT_IS, _TURNED = 101, 111, 112  # CBLAS's constants


_REPRODUCIBLE = 2  # MKL_CBWR_AUTO: the same product gives the same bits in each run on one machine


def product(a: Any, b: Any, out: Array | None = None) -> Any:
    """The matrix product of a (M, K) and b (K, N), into ``out`` (M, N) if it is given: contiguous,
    no view of a or b.

    Other shapes and dtypes, CuPy arrays and Variables are multiplied by ``@``.

    Example:
        >>> import numpy as np
        >>> from mnpar.kernels.blas import product
        >>> product(np.ones((2, 3)), np.ones((3, 2))).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    if type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == b.ndim == 2:
        size = a.size * b.shape[1]
        if size <= tuning.DOT_MOST and (
            out is None or (out.flags.c_contiguous and out.dtype is a.dtype)
        ):
            return a.dot(b, out)
        if takes_all_threads(size):
            return large_products.compute(np.matmul, a, b, out)
        if (
            size >= tuning.MKL_LEAST
            and (found := library()) is not None
            and (y := _by(found, a, b, out)) is not None
        ):
            return y
    return a @ b if out is None else backend.get_array_module(a).matmul(a, b, out=out)


def takes_all_threads(size: int) -> bool:
    """Return whether a product of ``size`` multiplications is divided among all cores."""
    return size >= tuning.THREADED_LEAST and large_products.threads > 1


def batched_matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """The products of stacks of matrices (…, M, K) and (…, K, N), into ``out`` if it is given.

    OpenBLAS multiplies matrices of up to a million multiplications without packing them first
    (unless only b is transposed); packing larger ones takes as long again if K is small. So the
    rows of a are multiplied in blocks.

    Example:
        >>> import numpy as np
        >>> from mnpar.kernels.blas import batched_matmul
        >>> batched_matmul(np.ones((5, 2, 3)), np.ones((5, 3, 4))).sum()
        np.float64(120.0)
    """
    xp = backend.get_array_module(a)
    M = a.shape[-2]
    some = tuning.UNPACKED // max(1, b.shape[-2] * b.shape[-1])
    if not tuning.UNPACKED_ROWS <= some < M or xp is not np or b.strides[-1] != b.itemsize:
        return a @ b if out is None else xp.matmul(a, b, out=out)
    some = 1 << some.bit_length() - 1
    whole = M - M % some
    if out is None:
        out = np.empty(
            (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), M, b.shape[-1]), np.result_type(a, b)
        )
    left, right = [
        x[..., :whole, :].reshape(*x.shape[:-2], -1, some, x.shape[-1]) for x in (a, out)
    ]
    np.matmul(left, b[..., None, :, :], out=right)
    if whole < M:
        np.matmul(a[..., whole:, :], b, out=out[..., whole:, :])
    return out


def matrix_transpose(x: Any) -> Any:
    """An array or Variable with its last two axes exchanged.

    Example:
        >>> matrix_transpose(np.ones((2, 3, 4))).shape
        (2, 4, 3)
    """
    n = x.ndim
    return x.transpose((*range(n - 2), n - 1, n - 2)) if n > 2 else x.transpose()


def uses_mkl(x: Array, size: int) -> bool:
    """Return whether a product of ``size`` multiplications with x is computed by MKL, whose speed
    does not depend on memory order.
    """
    return (
        size >= tuning.MKL_LEAST
        and type(x) is np.ndarray
        and (found := library()) is not None
        and _LETTERS.get(x.dtype) in found
    )


def compute_by_mkl(name: str, x: Array, y: Array) -> bool:
    """Compute y ← ``Erf``, ``CdfNorm`` (Φ, the normal distribution function) or ``Exp`` of x by
    MKL; False if it cannot.

    Both arrays are contiguous, of the same size. MKL has no functions for other dtypes than float32
    and float64.
    """
    function = _of(name, x)
    if function is None:
        return False
    function(x.size, x.ctypes.data, y.ctypes.data)
    return True


def can_compute_by_mkl(name: str, x: Array) -> bool:
    """Return whether :func:`compute_by_mkl` can compute this function of x."""
    return _of(name, x) is not None


def _of(name: str, x: Array) -> Callable[..., None] | None:
    if (
        x.size < tuning.MKL_LEAST_NUMBERS
        or type(x) is not np.ndarray
        or (found := library()) is None
    ):
        return None
    return found.get(_LETTERS.get(x.dtype, "") + name)


def _by(found: dict[str, Any], a: Array, b: Array, out: Array | None) -> Array | None:
    """The product by MKL; None for shapes, dtypes and memory layouts that are left to numpy."""
    (M, K), N, dtype = a.shape, b.shape[1], a.dtype
    letter = _LETTERS.get(dtype)
    if (
        letter not in found
        or b.dtype != dtype
        or b.shape[0] != K
        or min(M, N, K) < tuning.MKL_NARROW
        or max(M, N, K) >= 2**31
    ):
        return None
    left = _order(a)
    right = _order(b)
    if left is None or right is None or (out is not None and not _fits(out, (M, N), dtype)):
        return None
    y = np.empty((M, N), dtype) if out is None else out
    forms = (_ROW_MAJOR, left[0], right[0], M, N, K)
    places = (a.ctypes.data, left[1], b.ctypes.data, right[1])
    found[letter](*forms, 1.0, *places, 0.0, y.ctypes.data, N)
    return y


def _order(x: Array) -> tuple[int, int] | None:
    """CBLAS's transposition flag and leading dimension of a matrix; None if neither rows nor
    columns are contiguous.
    """
    (rows, columns), (down, right), size = x.shape, x.strides, x.itemsize
    if right == size and down >= columns * size and down % size == 0:
        return _AS_IT_IS, down // size
    if down == size and right >= rows * size and right % size == 0:
        return _TURNED, right // size
    return None


def _fits(out: Array, shape: tuple[int, int], dtype: Any) -> bool:
    here = type(out) is np.ndarray and out.shape == shape and out.dtype == dtype
    return here and out.flags.c_contiguous and out.flags.writeable


_LETTERS = {np.dtype("f4"): "s", np.dtype("f8"): "d"}  # of this machine's byte order


@functools.cache
def library() -> dict[str, Callable[..., None]] | None:
    """MKL's functions by name, loaded at the first call; None: use numpy.

    ``'s'`` and ``'d'`` are the matrix products of float32 and float64, which are there if the
    library is named or the processor Intel's; ``'sErf'`` and the like are vector functions, in
    their default mode, the most accurate one.
    """
    named = os.environ.get("MNPAR_BLAS", "")
    if named == "numpy" or (not named and threads() > 1):
        return None
    for path in [Path(named)] if named else sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*")):
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            if named:
                raise OSError(
                    f"MNPAR_BLAS={named} cannot be loaded ({error}): it is the path of a "
                    "library, or numpy"
                ) from None
            continue
        if named and not all([hasattr(loaded, f"cblas_{letter}gemm") for letter in _REALS]):
            raise OSError(
                f"MNPAR_BLAS={named} has no cblas_sgemm and cblas_dgemm: it is the path of "
                "such a library, or numpy"
            )
        _settle(loaded)
        found = {
            letter: _typed(loaded[f"cblas_{letter}gemm"], real)
            for letter, real in _REALS.items()
            if named or is_intel()
        }
        names = [
            letter + name
            for letter in _REALS
            for name in _FUNCTIONS
            if hasattr(loaded, f"v{letter}{name}")
        ]
        return found | {name: _of_vectors(loaded[f"v{name}"]) for name in names}
    return None


_REALS = {"s": ctypes.c_float, "d": ctypes.c_double}


_FUNCTIONS = "Erf", "CdfNorm", "Exp"


def _typed(function: Any, real: Any) -> Any:
    """Set the argument types of ``cblas_?gemm``; 64-bit lengths suit 32-bit libraries, too, on
    little-endian machines.
    """
    length, place = ctypes.c_ssize_t, ctypes.c_void_p
    flag = ctypes.c_int
    function.argtypes = [
        flag,
        flag,
        flag,
        *[length] * 3,
        real,
        place,
        length,
        place,
        length,
        real,
        place,
        length,
    ]
    function.restype = None
    return function


def _of_vectors(function: Any) -> Any:
    function.argtypes = [ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = None
    return function


def threads() -> int:
    """Return how many threads numpy's BLAS uses; 1 if threadpoolctl is not installed."""
    try:
        import threadpoolctl
    except ImportError:
        return 1
    numbers = [
        pool["num_threads"]
        for pool in threadpoolctl.threadpool_info()
        if pool["internal_api"] == "openblas"
    ]
    return max(numbers, default=1)


def openblas() -> tuple[str, str] | None:
    """Return the version of numpy's OpenBLAS and the processor whose kernels it uses (``SkylakeX``,
    ``Haswell`` …); None if numpy has another library, or threadpoolctl is not installed.
    """
    try:
        import threadpoolctl
    except ImportError:
        return None
    for pool in threadpoolctl.threadpool_info():
        if pool["internal_api"] == "openblas":
            return pool["version"], pool["architecture"]
    return None


def _settle(loaded: Any) -> None:
    """Give MKL as many threads as numpy's BLAS, and reproducible results."""
    if hasattr(loaded, "MKL_CBWR_Set"):
        loaded.MKL_CBWR_Set(_REPRODUCIBLE)
    if hasattr(loaded, "MKL_Set_Num_Threads"):
        loaded.MKL_Set_Num_Threads(threads())
