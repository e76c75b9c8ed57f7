"""Numbers side by side in a register, for loops that say themselves what is computed at once.

Mostly the compiler sees which numbers of a loop it can compute at once. It does not where a loop
reads and writes many places, since these may overlap. There a loop loads ``LANES`` numbers,
computes with them as with one number (``+``, ``-``, ``*`` and products with a number), and stores
them.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from mnpar.kernels.compiler import numba
from mnpar.kernels.instructions import Instruction
from mnpar.kernels.processor import has_wide_registers

# float32 that a register holds. (Two registers make as many float64.)
LANES = 16 if has_wide_registers() else 8


def _instruction(name: str) -> Instruction:
    return Instruction(name, lambda: _instructions(), variant=LANES)


load = _instruction("load")
"""``load(x, i)``: the numbers of a contiguous array from its i-th on."""
store = _instruction("store")
"""``store(x, i, v)``: v in the places of a contiguous array from its i-th on."""
fill = _instruction("fill")
"""``fill(number)``: a number in all lanes."""
where_equal = _instruction("where_equal")
"""``where_equal(u, v, a, b)``: a in the lanes in which u and v are equal, b in the others."""
larger = _instruction("larger")
"""``larger(u, v)``: in each lane the larger number; NaN where one is NaN."""
repeat = _instruction("repeat")
"""``repeat(x, i)``: the i-th number of a contiguous array in all lanes."""


@functools.cache
def _instructions() -> dict[str, Any]:
    """numba's functions, and the arithmetic of registers, which numba learns here."""
    from llvmlite import ir

    compiler = numba()
    types = compiler.types
    structure = compiler.core.cgutils.create_struct_proxy
    extending = compiler.extending
    Type: Any = types.Type
    Model: Any = extending.models.PrimitiveModel

    class Lanes(Type):  # type: ignore[misc]
        """The type of a register."""

        def __init__(self, dtype: Any) -> None:
            self.dtype = dtype
            super().__init__(name=f"Lanes({dtype})")

    @extending.register_model(Lanes)
    class _Model(Model):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            number = ir.FloatType() if kind.dtype.bitwidth == 32 else ir.DoubleType()
            super().__init__(manager, kind, ir.VectorType(number, LANES))

    def place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
        data = structure(kind)(context, builder, array).data
        vector = context.get_value_type(Lanes(kind.dtype))
        return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())

    def in_all(builder: Any, vector: Any, number: Any) -> Any:
        index = ir.IntType(32)
        none = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(none, number, ir.Constant(index, 0))
        return builder.shuffle_vector(
            first, none, ir.Constant(ir.VectorType(index, LANES), [0] * LANES)
        )

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def load(typing: Any, x: Any, i: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = place(context, builder, signature.args[0], *args)
            return builder.load(at, align=signature.args[0].dtype.bitwidth // 8)

        return Lanes(x.dtype)(x, types.intp), emit

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def store(typing: Any, x: Any, i: Any, v: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = place(context, builder, signature.args[0], *args[:2])
            builder.store(args[2], at, align=signature.args[0].dtype.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(x, types.intp, v), emit

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def fill(typing: Any, number: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return in_all(builder, context.get_value_type(signature.return_type), args[0])

        return Lanes(number)(number), emit

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def repeat(typing: Any, x: Any, i: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = structure(signature.args[0])(context, builder, args[0]).data
            number = builder.load(builder.gep(data, [args[1]]))
            return in_all(builder, context.get_value_type(signature.return_type), number)

        return Lanes(x.dtype)(x, types.intp), emit

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def where_equal(typing: Any, u: Any, v: Any, a: Any, b: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.select(builder.fcmp_ordered("==", *args[:2]), *args[2:])

        return u(u, v, a, b), emit

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def larger(typing: Any, u: Any, v: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            u, v = args
            is_larger = builder.fcmp_ordered(">", v, u)
            takes = builder.or_(is_larger, builder.fcmp_unordered("uno", v, v))
            return builder.select(takes, v, u)

        return u(u, v), emit

    def arithmetic(sign: Any, instruction: str) -> None:
        @extending.intrinsic  # type: ignore[untyped-decorator]
        def compute(typing: Any, v: Any, w: Any) -> Any:
            def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return getattr(builder, instruction)(*args, flags=("contract", "nsz"))

            return v(v, w), emit

        @extending.overload(sign, strict=False)  # type: ignore[untyped-decorator]
        def of_registers(v: Any, w: Any) -> Any:
            if isinstance(v, Lanes) and isinstance(w, Lanes):
                return lambda v, w: compute(v, w)
            if isinstance(v, types.Float) and isinstance(w, Lanes):
                return lambda v, w: compute(fill(v), w)
            return None

    arithmetic(operator.add, "fadd")
    arithmetic(operator.sub, "fsub")
    arithmetic(operator.mul, "fmul")
    return {
        "load": load,
        "store": store,
        "fill": fill,
        "repeat": repeat,
        "where_equal": where_equal,
        "larger": larger,
    }
