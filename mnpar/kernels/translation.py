"""From a loop in Python to machine code, by numba.

The function that is kept is called by Python itself, as its builtin functions are: a call takes a
tenth of what ctypes takes. It checks that each array is one, of the dtype and the number of axes
that the loop wants, contiguous, aligned and writable, and passes the loop what it reads there (a
vector of an array of any number of axes),
without Python's lock. So it needs nothing from numba when it runs, and a few functions from Python
(``CALLED``); loops and formulas allocate no memory and raise no errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, Literal, TypeAlias

SYMBOL = "loop"
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""numba's options for all loops and formulas: numbers as numpy computes them, no memory, and no
functions that Python could call.
"""

# Places in numpy's objects, in bytes behind what all objects of Python begin with (numpy's C API,
# PyArrayObject_fields and PyArray_Descr of numpy 2).
DATA, AXES, SHAPE, STRIDES, DTYPE, FLAGS = 0, 8, 16, 24, 40, 48
KIND, ORDER, SIZE = 8, 10, 24
HEAD = object.__basicsize__
_CARRAY = 0x501  # contiguous, aligned, writable
CALLED = (
    "PyErr_Occurred",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyFloat_AsDouble",
    "PyLong_AsLongLong",
    "PyLong_FromLong",
)
"""What the function calls, of Python's stable interface."""
_KINDS = {"float32": "f", "float64": "f", "int64": "i"}


Entry: TypeAlias = Literal["whole", "parts", "address"]


def translate(
    numba: Any, loop: FunctionType, kinds: Sequence[Any], fastmath: Any, entry: Entry = "whole"
) -> bytes:
    """Return object code with the function ``SYMBOL``, which Python calls with the loop's arguments
    (``METH_FASTCALL``; its ``self`` is the class ``ndarray``). It returns a status, which is not 0
    if an argument is not what the loop takes.

    Args:
        numba: the module.
        loop: what is compiled; its formulas are numba's functions already.
        kinds: numba's types of its arguments; a tuple's numbers are arguments of their own.
        fastmath: what numba may do to sums and products.
        entry: ``"parts"``: the loop's last arguments, a thread, a first thing and an end, are given
            by a pool (pool.py), and Python gives in their place how many things there are, of
            parts and of threads, and the address of a pool, which is not looked at if there is one
            thread;
            ``"address"``: compiled code calls ``SYMBOL`` with the loop's arguments, integers all.

    Raises:
        TypeError: the loop allocates memory or calls Python.
    """
    core = numba.core
    target = core.registry.cpu_target
    flags = core.compiler.Flags()
    options = {**OPTIONS, "nopython": True, "fastmath": fastmath}
    core.cpu.CPUTargetOptions.parse_as_flags(flags, options)
    flags.no_compile = True
    with core.compiler_lock.global_compiler_lock:
        compiled = core.compiler.compile_extra(
            target.typing_context,
            target.target_context,
            loop,
            tuple(kinds),
            numba.types.none,
            flags,
            {},
        )
        library = compiled.library
        module = library.create_ir_module(SYMBOL)
        (_write_plain_entry if entry == "address" else _write_entry)(
            numba, module, compiled, kinds, *([entry == "parts"] if entry != "address" else [])
        )
        library.add_ir_module(module)
        library.finalize()
        needed = [f.name for f in library._final_module.functions if f.is_declaration]
        code: bytes = compiled.target_context.codegen()._tm.emit_object(library._final_module)
    needed = [name for name in needed if name not in CALLED]
    if any([name.startswith(("numba_", "NRT_", "Py", "_Py")) for name in needed]):
        raise TypeError(f"{loop.__name__} allocates memory or calls Python: {needed}")
    return code


def _write_plain_entry(numba: Any, module: Any, compiled: Any, kinds: Sequence[Any]) -> None:
    """Write a function of integers that calls the loop."""
    from llvmlite import ir

    number = ir.IntType(64)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [number] * len(kinds)), SYMBOL)
    builder = ir.IRBuilder(entry.append_basic_block())
    _call_loop(numba, builder, compiled, kinds, entry.args)
    builder.ret_void()


def _call_loop(
    numba: Any, builder: Any, compiled: Any, kinds: Sequence[Any], values: Sequence[Any]
) -> Any:
    """Call the loop; return its status."""
    from llvmlite import ir

    context = compiled.target_context
    function = context.declare_function(builder.module, compiled.fndesc)
    status, _ = context.call_conv.call_function(builder, function, numba.types.none, kinds, values)
    return builder.sext(status.code, ir.IntType(64))


_JOB = 9  # numbers of a job (pool.py)


def _call_in_parts(
    numba: Any,
    builder: Any,
    compiled: Any,
    kinds: Sequence[Any],
    values: Sequence[Any],
    divides: Sequence[Any],
) -> Any:
    """Call the loop for all things at once, or let a pool call it for parts of them; return a
    status.
    """
    from llvmlite import ir

    module, number, cgutils = builder.module, ir.IntType(64), numba.core.cgutils
    given = ir.LiteralStructType([x.type for x in values])
    N, parts, threads, pool = divides

    part = ir.Function(module, ir.FunctionType(number, [number] * 4), "part")
    part.linkage = "internal"
    inner = ir.IRBuilder(part.append_basic_block())
    place, *which = part.args
    packed = inner.load(inner.inttoptr(place, given.as_pointer()))
    unpacked = [inner.extract_value(packed, k) for k in range(len(values))]
    inner.ret(_call_loop(numba, inner, compiled, kinds, [*unpacked, *which]))

    arguments = cgutils.alloca_once(builder, given)
    for k, value in enumerate(values):
        index = [ir.Constant(ir.IntType(32), i) for i in (0, k)]
        builder.store(value, builder.gep(arguments, index))
    job = cgutils.alloca_once(builder, ir.ArrayType(number, _JOB))
    status = cgutils.alloca_once(builder, number)
    zero = ir.Constant(number, 0)
    places = [builder.ptrtoint(x, number) for x in (part, arguments, job)]
    several = builder.icmp_signed(">", threads, ir.Constant(number, 1))
    with builder.if_else(several, likely=False) as (then, otherwise):
        with then:
            kind = ir.FunctionType(ir.VoidType(), [number] * 7)
            divide = builder.load(builder.inttoptr(pool, number.as_pointer()))
            function = builder.inttoptr(divide, kind.as_pointer())
            builder.call(function, [pool, *places[:2], N, parts, threads, places[2]])
            last = builder.gep(job, [ir.Constant(number, i) for i in (0, _JOB - 1)])
            builder.store(builder.load(last), status)
        with otherwise:
            builder.store(builder.call(part, [places[1], zero, zero, N]), status)
    return builder.load(status)


def _write_entry(
    numba: Any, module: Any, compiled: Any, kinds: Sequence[Any], in_parts: bool
) -> None:
    """Write the function that checks and reads the arguments and calls the loop."""
    from llvmlite import ir

    types, context = numba.types, compiled.target_context
    number, real = ir.IntType(64), ir.DoubleType()
    pointer = ir.IntType(8).as_pointer()
    entry = ir.Function(
        module, ir.FunctionType(pointer, [pointer, pointer.as_pointer(), number]), SYMBOL
    )
    builder = ir.IRBuilder(entry.append_basic_block())
    ndarray, given, count = entry.args

    def call(name: str, result: Any, *args: Any) -> Any:
        kind = ir.FunctionType(result, [x.type for x in args])
        return builder.call(numba.core.cgutils.get_or_insert_function(module, kind, name), args)

    def leave(status: Any) -> None:
        builder.ret(call("PyLong_FromLong", pointer, status))

    def require(test: Any) -> None:
        with builder.if_then(builder.not_(test), likely=False):
            leave(ir.Constant(number, 1))

    def converted(place: Any, kind: Any) -> Any:
        """The number in an object of Python; what is none makes the call raise its error."""
        integer = isinstance(kind, types.Integer)
        name, result = ("PyLong_AsLongLong", number) if integer else ("PyFloat_AsDouble", real)
        found = call(name, result, place)
        compare = builder.icmp_signed if integer else builder.fcmp_ordered
        with builder.if_then(compare("==", found, ir.Constant(result, -1)), likely=False):
            failed = builder.icmp_unsigned("!=", call("PyErr_Occurred", pointer), pointer(None))
            with builder.if_then(failed, likely=False):
                builder.ret(pointer(None))
        return found if kind != types.float32 else builder.fptrunc(found, ir.FloatType())

    # in place of a loop's last three, how many things there are, of parts, of threads, and a pool
    given_kinds = [*kinds, types.int64] if in_parts else kinds
    sizes = [kind.count if isinstance(kind, types.UniTuple) else 1 for kind in given_kinds]
    require(builder.icmp_signed("==", count, ir.Constant(number, sum(sizes))))
    places = iter(
        [builder.load(builder.gep(given, [ir.Constant(number, k)])) for k in range(sum(sizes))]
    )
    values = []
    for kind in given_kinds:
        if isinstance(kind, types.Array):
            array = next(places)
            # one after the other: what is no array has no fields to look at
            for test in _tests(builder, array, ndarray, kind):
                require(test)
            values.append(_read(numba, context, builder, array, kind))
        elif isinstance(kind, types.UniTuple):
            numbers = [converted(next(places), kind.dtype) for _ in range(kind.count)]
            values.append(context.make_tuple(builder, kind, numbers))
        else:
            values.append(converted(next(places), kind))
    state = call("PyEval_SaveThread", pointer)
    if in_parts:
        status = _call_in_parts(numba, builder, compiled, kinds, values[:-4], values[-4:])
    else:
        status = _call_loop(numba, builder, compiled, kinds, values)
    call("PyEval_RestoreThread", ir.VoidType(), state)
    leave(status)


def _field(builder: Any, place: Any, offset: int, kind: Any) -> Any:
    from llvmlite import ir

    there = builder.gep(place, [ir.Constant(ir.IntType(64), offset)])
    return builder.load(builder.bitcast(there, kind.as_pointer()))


def _tests(builder: Any, array: Any, ndarray: Any, kind: Any) -> Iterator[Any]:
    """Yield what must be true of an array's object."""
    from llvmlite import ir

    letter, small, number = ir.IntType(8), ir.IntType(32), ir.IntType(64)

    def equals(found: Any, value: int) -> Any:
        return builder.icmp_unsigned("==", found, ir.Constant(found.type, value))

    of_array = _field(builder, array, HEAD - 8, letter.as_pointer())
    yield builder.icmp_unsigned("==", of_array, ndarray)
    if kind.ndim > 1:
        yield equals(_field(builder, array, HEAD + AXES, small), kind.ndim)
    flags = _field(builder, array, HEAD + FLAGS, small)
    yield equals(builder.and_(flags, ir.Constant(small, _CARRAY)), _CARRAY)
    dtype = _field(builder, array, HEAD + DTYPE, letter.as_pointer())
    yield equals(_field(builder, dtype, HEAD + KIND, letter), ord(_KINDS[str(kind.dtype)]))
    yield equals(_field(builder, dtype, HEAD + ORDER, letter), ord("="))
    size = kind.dtype.bitwidth // 8
    yield equals(_field(builder, dtype, HEAD + SIZE, number), size)


def _read(numba: Any, context: Any, builder: Any, array: Any, kind: Any) -> Any:
    """numba's array, of what an array's object says: as a vector, whatever its axes are, if that is
    what the loop takes.
    """
    from llvmlite import ir

    number, cgutils = ir.IntType(64), numba.core.cgutils

    def numbers(offset: int) -> Any:
        return _field(builder, array, HEAD + offset, number.as_pointer())

    def length(k: Any) -> Any:
        return builder.load(builder.gep(numbers(SHAPE), [k]))

    itemsize = ir.Constant(number, kind.dtype.bitwidth // 8)
    if kind.ndim == 1:
        axes = builder.sext(_field(builder, array, HEAD + AXES, ir.IntType(32)), number)
        size = cgutils.alloca_once_value(builder, ir.Constant(number, 1))
        with cgutils.for_range(builder, axes) as loop:
            builder.store(builder.mul(builder.load(size), length(loop.index)), size)
        shape, strides = [builder.load(size)], [itemsize]
    else:
        places = [ir.Constant(number, k) for k in range(kind.ndim)]
        shape = [length(k) for k in places]
        strides = [builder.load(builder.gep(numbers(STRIDES), [k])) for k in places]
    element = context.get_data_type(kind.dtype)
    made = context.make_array(kind)(context, builder)
    numba.np.arrayobj.populate_array(
        made,
        data=_field(builder, array, HEAD + DATA, element.as_pointer()),
        shape=shape,
        strides=strides,
        itemsize=itemsize,
        meminfo=None,
    )
    return made._getvalue()
