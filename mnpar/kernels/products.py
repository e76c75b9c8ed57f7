"""Products of matrices inside compiled loops, by the BLAS library that numpy itself uses.

A loop that transforms numbers, multiplies them and transforms what comes out keeps all of it in its
core's cache, without Python between; and several threads can do so side by side.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

from mnpar.kernels.compiler import numba
from mnpar.kernels.instructions import Instruction

_ROW_MAJOR, _AS_IT_IS, _TURNED = 101, 111, 112  # CBLAS's constants
# as numpy's wheels, Linux distributions and macOS call it
_NAMES = (
    "scipy_cblas_{}gemm64_",
    "cblas_{}gemm64_",
    "cblas_{}gemm$NEWLAPACK$ILP64",
    "cblas_{}gemm$NEWLAPACK",
    "cblas_{}gemm",
)


@functools.cache
def gemm_of(char: str) -> int:
    """Return the address of the product of matrices of a dtype, ``'f'`` or ``'d'``; 0 where numpy
    has no BLAS library.
    """
    module = sys.modules.get("numpy._core._multiarray_umath")
    if module is None or module.__file__ is None:
        return 0
    try:
        library = ctypes.CDLL(module.__file__)  # loaded already, as what it needs is
    except OSError:
        return 0
    for name in _NAMES:
        found = getattr(library, name.format({"f": "s", "d": "d"}[char]), None)
        if found is not None:
            return ctypes.cast(found, ctypes.c_void_p).value or 0
    return 0


@functools.cache
def _instructions() -> dict[str, Any]:
    """numba's function."""
    from llvmlite import ir

    compiler = numba()
    types = compiler.types
    structure = compiler.core.cgutils.create_struct_proxy
    small, number = ir.IntType(32), ir.IntType(64)

    @compiler.extending.intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing: Any,
        gemm: Any,
        turned: Any,
        M: Any,
        N: Any,
        K: Any,
        a: Any,
        i: Any,
        b: Any,
        j: Any,
        more: Any,
        c: Any,
        k: Any,
    ) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            gemm, turned, M, N, K, a, i, b, j, more, c, k = args
            real = context.get_value_type(a_type.dtype)

            def place(kind: Any, array: Any, index: Any) -> Any:
                data = structure(kind)(context, builder, array).data
                return builder.ptrtoint(builder.gep(data, [index]), number)

            flag = builder.select(
                turned, ir.Constant(small, _TURNED), ir.Constant(small, _AS_IT_IS)
            )
            beta = builder.select(more, ir.Constant(real, 1.0), ir.Constant(real, 0.0))
            row, plain = ir.Constant(small, _ROW_MAJOR), ir.Constant(small, _AS_IT_IS)
            given = [row, flag, plain, M, N, K, ir.Constant(real, 1.0)]
            given += [place(a_type, a, i), builder.select(turned, M, K)]
            given += [place(signature.args[7], b, j), N, beta, place(signature.args[10], c, k), N]
            kind = ir.FunctionType(ir.VoidType(), [x.type for x in given])
            builder.call(builder.inttoptr(gemm, kind.as_pointer()), given)
            return context.get_dummy_value()

        a_type, whole, truth = a, types.int64, types.boolean
        sizes = (whole, truth, whole, whole, whole)
        return types.void(*sizes, a, whole, b, whole, truth, c, whole), emit

    return {"multiply": multiply}


multiply = Instruction("multiply", _instructions)
"""``multiply(gemm, turned, M, N, K, a, i, b, j, more, c, k)``: compute the product of a (M, K), or
(K, M) if it is to be ``turned``, and b (K, N), which begin at the places i and j of contiguous
arrays, into c from place k on; ``more`` adds it to what is there.
"""
