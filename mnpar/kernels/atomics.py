"""Instructions by which threads tell each other things, for compiled loops: numbers in memory
(eight bytes, by their addresses) that several threads read and write, and how a thread waits.

Whatever a thread has written before it puts or exchanges a number, others see who get the number.
"""

from __future__ import annotations

import functools
import platform
from typing import Any

from mnpar.kernels.compiler import numba
from mnpar.kernels.instructions import Instruction


def _instruction(name: str) -> Instruction:
    return Instruction(name, lambda: _instructions())


get = _instruction("get")
"""``get(place)``: the number there."""
put = _instruction("put")
"""``put(place, number)``: write it."""
add = _instruction("add")
"""``add(place, number)``: add it to the number there; what that was before."""
exchange_if = _instruction("exchange_if")
"""``exchange_if(place, old, new)``: write ``new`` if ``old`` is there; whether it was."""
call = _instruction("call")
"""``call(function, a, b, c, d)``: call a function by its address; the number that it returns."""
pause = _instruction("pause")
"""``pause()``: let a thread that looks at a number again and again use less of its core."""
give_way = _instruction("give_way")
"""``give_way()``: let another thread have this core, if one wants it (sched_yield)."""
nap = _instruction("nap")
"""``nap(n)``: sleep for n microseconds, or some more (usleep)."""
lock = _instruction("lock")
"""``lock(mutex)`` (pthread_mutex_lock)."""
unlock = _instruction("unlock")
"""``unlock(mutex)`` (pthread_mutex_unlock)."""
await_signal = _instruction("await_signal")
"""``await_signal(condition, mutex)``: sleep, the mutex unlocked, until a signal comes; or for no
reason (pthread_cond_wait).
"""
signal = _instruction("signal")
"""``signal(condition)``: wake who sleeps there (pthread_cond_signal)."""

# one that has none of these spins as fast as it can
_PAUSES = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (1,)),
    "arm64": ("llvm.aarch64.hint", (1,)),
}


@functools.cache
def _instructions() -> dict[str, Any]:
    """numba's functions."""
    from llvmlite import ir

    compiler = numba()
    types, intrinsic = compiler.types, compiler.extending.intrinsic
    declare = compiler.core.cgutils.get_or_insert_function
    small, number = ir.IntType(32), ir.IntType(64)

    def at(builder: Any, place: Any) -> Any:
        return builder.inttoptr(place, number.as_pointer())

    @intrinsic  # type: ignore[untyped-decorator]
    def get(typing: Any, place: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load_atomic(at(builder, args[0]), "seq_cst", 8)

        return types.int64(types.int64), emit

    @intrinsic  # type: ignore[untyped-decorator]
    def put(typing: Any, place: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store_atomic(args[1], at(builder, args[0]), "seq_cst", 8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), emit

    @intrinsic  # type: ignore[untyped-decorator]
    def add(typing: Any, place: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.atomic_rmw("add", at(builder, args[0]), args[1], "seq_cst")

        return types.int64(types.int64, types.int64), emit

    @intrinsic  # type: ignore[untyped-decorator]
    def exchange_if(typing: Any, place: Any, old: Any, new: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place, old, new = args
            found = builder.cmpxchg(at(builder, place), old, new, "seq_cst", "seq_cst")
            return builder.extract_value(found, 1)

        return types.boolean(types.int64, types.int64, types.int64), emit

    @intrinsic  # type: ignore[untyped-decorator]
    def call(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(number, [number] * 4)
            return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

        return types.int64(*[types.int64] * 5), emit

    @intrinsic  # type: ignore[untyped-decorator]
    def pause(typing: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if platform.machine() in _PAUSES:
                name, given = _PAUSES[platform.machine()]
                kind = ir.FunctionType(ir.VoidType(), [small] * len(given))
                function = declare(builder.module, kind, name)
                builder.call(function, [ir.Constant(small, n) for n in given])
            return context.get_dummy_value()

        return types.void(), emit

    def of_system(name: str, many: int) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # an address; or usleep's number, of 32 bits
            wide = name != "usleep"
            kind = ir.FunctionType(small, [number if wide else small] * many)
            given = args if wide else [builder.trunc(n, small) for n in args]
            builder.call(declare(builder.module, kind, name), given)
            return context.get_dummy_value()

        return types.void(*[types.int64] * many), emit

    @intrinsic  # type: ignore[untyped-decorator]
    def give_way(typing: Any) -> Any:
        return of_system("sched_yield", 0)

    @intrinsic  # type: ignore[untyped-decorator]
    def nap(typing: Any, n: Any) -> Any:
        return of_system("usleep", 1)

    @intrinsic  # type: ignore[untyped-decorator]
    def lock(typing: Any, mutex: Any) -> Any:
        return of_system("pthread_mutex_lock", 1)

    @intrinsic  # type: ignore[untyped-decorator]
    def unlock(typing: Any, mutex: Any) -> Any:
        return of_system("pthread_mutex_unlock", 1)

    @intrinsic  # type: ignore[untyped-decorator]
    def await_signal(typing: Any, condition: Any, mutex: Any) -> Any:
        return of_system("pthread_cond_wait", 2)

    @intrinsic  # type: ignore[untyped-decorator]
    def signal(typing: Any, condition: Any) -> Any:
        return of_system("pthread_cond_signal", 1)

    of_memory = [get, put, add, exchange_if, call, pause]
    of_threads = [give_way, nap, lock, unlock, await_signal, signal]
    return {one.__name__: one for one in of_memory + of_threads}
