"""The family of communications is whole: each operation as array and object, blocking and not, as
method and as function.

A table says what each does in terms of all ranks' values, numpy does the same in one process; names
are made from the operations, so one that is missing fails.
"""

import functools
import inspect
import operator
import re

import ml_dtypes  # noqa: F401 (numpy knows bfloat16 then)
import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from tests.functions.communication import rows
from tests.functions.communication.rows import FROM_LISTS, OPERATIONS, REDUCING, WHOLE
from tests.random_programs import programs

REDUCE = {
    "sum": lambda parts: functools.reduce(operator.add, parts),
    "mean": lambda parts: functools.reduce(operator.add, parts) / len(parts),
    "max": lambda parts: functools.reduce(np.maximum, parts),
    "min": lambda parts: functools.reduce(np.minimum, parts),
    "prod": lambda parts: functools.reduce(operator.mul, parts),
}
# of arrays, by methods
WITHOUT = {
    ("scan", "mean"),
    ("exscan", "mean"),
    ("exscan", "max"),
    ("exscan", "min"),
}


@pytest.mark.parametrize("form", ["", "i"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_there_as_a_method_and_as_a_function(operation, form):
    names = (
        [form + operation]
        if operation == "barrier"
        else [form + operation, f"{form}{operation}_obj"]
    )
    for name in names:
        assert callable(getattr(mnpar.Communicator, name, None)), f"a communicator has no {name}"
    if form + operation != "ibarrier":  # there is nothing to wait for later
        assert callable(getattr(F, form + operation, None)), (
            f"mnpar.functions has no {form + operation}"
        )


def collectives():
    """Every function of collective.py, without the non-blocking ones and the barrier."""
    names = [
        name
        for name in F.__all__
        if inspect.unwrap(getattr(F, name)).__module__ == "mnpar.functions.communication.collective"
    ]
    return [name for name in names if f"i{name}" in names]


def first_words(table):
    return {re.split("[, ]", name)[0] for name in table}


@pytest.mark.parametrize("name", collectives())
def test_every_collective_is_in_all_tables_of_tests(name):
    tables = {
        "ROWS in tests/functions/communication/rows.py": rows.ROWS,
        "PLANS in tests/functions/communication/rows.py": rows.PLANS,
        "WHOLE in tests/functions/communication/rows.py": rows.WHOLE,
        "COLLECTIVES in tests/random_programs/programs.py": programs.COLLECTIVES,
    }
    missing = [where for where, table in tables.items() if name not in first_words(table)]
    assert not missing, f"add {name!r} to {'; to '.join(missing)} (see CONTRIBUTING.md)"


def method(comm, name, x, xs, later, obj, **op):
    """Call it in one of its four forms."""
    call = getattr(comm, "i" * later + name + "_obj" * obj)
    if name == "recv":
        (comm.send_obj if obj else comm.send)(x, (comm.rank + 1) % comm.size)
        return call((comm.rank - 1) % comm.size)
    if name == "send":
        call(x, (comm.rank + 1) % comm.size)
        return (
            (comm.irecv_obj if obj else comm.irecv)((comm.rank - 1) % comm.size)
            if later
            else ((comm.recv_obj if obj else comm.recv)((comm.rank - 1) % comm.size))
        )
    if name == "sendrecv":
        return call(x, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
    return call(xs if name in FROM_LISTS else x, **op)


def same(found, expected):
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif expected is not None:
        np.testing.assert_allclose(np.asarray(found, "c16"), np.asarray(expected, "c16"), rtol=1e-2)
        assert np.shape(found) == np.shape(expected)


DTYPES = ["?", "i1", "u4", "i8", "f2", "bfloat16", "f4", "f8", "c8", "c16"]
SHAPES = [(), (0,), (3,), (60, 10)]
MOVING = [name for name in WHOLE if name not in REDUCING]


def draw(comm, shape, dtype):
    """All ranks' values and lists of parts, the same on all."""
    rng = np.random.default_rng(0)

    def one():
        return np.asarray(
            rng.integers(0, 2, shape) if dtype == "?" else rng.integers(1, 3, shape)
        ).astype(dtype)

    return [one() for _ in range(comm.size)], [
        [one() for _ in range(comm.size)] for _ in range(comm.size)
    ]


def waited(x, later):
    return x.wait() if later and x is not None else x


@pytest.mark.grid
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@pytest.mark.parametrize("name", MOVING)
@pytest.mark.ranks(1, 3)
def test_methods_move_every_dtype_and_shape(comm, name, later):
    for dtype in DTYPES:
        for shape in SHAPES:
            values, lists = draw(comm, shape, dtype)
            found = waited(
                method(comm, name, values[comm.rank], lists[comm.rank], later, obj=False), later
            )
            same(found, WHOLE[name](comm.rank, values, lists, None))
            first = found[0] if isinstance(found, list | tuple) else found
            assert first is None or first.dtype == values[0].dtype


@pytest.mark.grid
@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.ranks(1, 3)
def test_methods_reduce_by_every_operation(comm, name, later, op):
    if (name, op) in WITHOUT:
        with pytest.raises(ValueError, match=f"there is no {name} by {op!r}"):
            method(comm, name, np.ones(1), None, later, False, op=op)
        return
    for dtype in DTYPES:
        bad = (dtype == "?" and op in ("sum", "prod", "mean")) or (
            dtype[0] == "c" and op in ("max", "min")
        )
        for shape in SHAPES if not bad else ():
            values, lists = draw(comm, shape, dtype)
            found = waited(
                method(comm, name, values[comm.rank], lists[comm.rank], later, False, op=op), later
            )
            same(found, WHOLE[name](comm.rank, values, lists, REDUCE[op]))


@pytest.mark.grid
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@pytest.mark.parametrize("name", [*MOVING, *REDUCING])
@pytest.mark.ranks(1, 3)
def test_methods_for_objects_do_the_same(comm, name, later):
    values = [10.0 + r for r in range(comm.size)]
    lists = [[2.0 * q + r for r in range(comm.size)] for q in range(comm.size)]
    for op in REDUCE if name in REDUCING else (None,):
        kinds = {} if op is None else {"op": op}
        found = waited(
            method(comm, name, values[comm.rank], lists[comm.rank], later, True, **kinds), later
        )
        same(found, WHOLE[name](comm.rank, values, lists, REDUCE.get(op)))
        if comm.rank == 0 and name == "exscan":
            assert found is None


def objects_that_are(thing, comm, later):
    """What comes of them by each operation, called from one line."""
    for name in ("bcast", "gather", "allgather", "scatter", "alltoall", "shift"):
        parts = [thing] * comm.size
        found = waited(method(comm, name, thing, parts, later, obj=True), later)
        several = name in ("allgather", "alltoall") or (name == "gather" and comm.rank == 0)
        yield from found if several else () if name == "gather" else [found]


@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@pytest.mark.ranks(1, 3)
def test_objects_that_are_nothing_or_arrays_go_again_and_again(comm, later):
    for i in range(3):
        for thing in (None, np.full(3, i), np.full(500, i), (np.full(2, i),) * comm.size):
            for found in objects_that_are(thing, comm, later):
                assert type(found) is type(thing)
                same(() if found is None else found, () if thing is None else thing)


CONTAINERS = {
    "a tuple": lambda r: (np.arange(r), np.array(r + 0.5)),
    "a list": lambda r: [np.ones((2, r)), np.zeros(0, "f4")],
    "a dict": lambda r: {"a": np.arange(r), "b": np.array(1j * r)},
    "a tuple in a dict": lambda r: {"a": (np.arange(r), np.array(r)), "b": np.ones(3, "?")},
}


def flat(x):
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else None
    return [x] if parts is None else [leaf for part in parts for leaf in flat(part)]


@pytest.mark.grid
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@pytest.mark.parametrize("name", ["send", "recv", "sendrecv", "shift"])
@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.ranks(2, 3)
def test_containers_of_arrays_are_one_message(comm, name, later, container):
    found = waited(method(comm, name, container(comm.rank), None, later, obj=False), later)
    expected = container((comm.rank - 1) % comm.size)
    assert list(found) == list(expected) if isinstance(expected, dict) else isinstance(found, tuple)
    for one, other in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


# ---- functions: values and gradients against one process ----


@pytest.mark.parametrize("name", ["send", "recv", "sendrecv", "shift"])
@pytest.mark.ranks(1, 2, 3)
def test_functions_give_dicts_in_one_message_with_their_gradients(comm, name):
    x = {
        key: mnpar.Variable(np.full(comm.rank + 1, comm.rank + 2.0))
        for key in ("used", "unused", "twice")
    }
    (y,) = function(comm, name, x, None, later=False)
    left = (comm.rank - 1) % comm.size
    assert {key: one.array.tolist() for key, one in y.items()} == dict.fromkeys(
        x, [left + 2.0] * (left + 1)
    )
    F.sum(y["used"] ** 2 + y["twice"] ** 3).backward(enable_double_backprop=True)
    np.testing.assert_allclose(x["used"].grad, 2 * x["used"].array)
    np.testing.assert_allclose(x["twice"].grad, 3 * x["twice"].array ** 2)
    assert x["unused"].grad is None
    first = x["twice"].grad_var
    x["twice"].cleargrad()
    F.sum(first).backward()
    np.testing.assert_allclose(x["twice"].grad, 6 * x["twice"].array)


@pytest.mark.ranks(1, 2)
def test_functions_take_a_dict_of_nothing_and_refuse_what_is_nested(comm):
    assert F.shift(comm, {}) == {}
    for nested in ({"a": (np.ones(1),)}, [{"a": np.ones(1)}], ((np.ones(1),), np.ones(1))):
        for call in (lambda x: F.shift(comm, x), lambda x: F.send(x, comm, 0)):
            with pytest.raises(
                TypeError, match="take one tuple, list or dict of arrays, but none inside another"
            ):
                call(nested)
    with pytest.raises(TypeError, match="text as its keys, not 1"):
        F.send({1: np.ones(1)}, comm, 0)
    with pytest.raises(
        TypeError,
        match=r"allgather at .* takes arrays and Variables, and its input 0 of 1 is a list",
    ):
        F.allgather(comm, [np.ones(1)])


WEIGHTS = np.random.default_rng(1).standard_normal((4, 4, 600))


def function(comm, name, x, xs, later, **op):
    """Call a function of mnpar.functions in one of its two forms; its outputs."""
    call = getattr(F, "i" * later + name)
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    if name == "send":
        call(x, comm, right)
        ys = F.recv(comm, left)
    elif name == "recv":
        F.send(x, comm, right)
        ys = call(comm, left)
    elif name == "sendrecv":
        ys = call(x, comm, right, left)
    elif name == "scatter":
        ys = call(comm, xs if comm.rank == 0 else None)
    elif name == "bcast":
        ys = call(comm, x if comm.rank == 0 else None)
    else:
        ys = call(comm, xs if name in FROM_LISTS else x, **op)
    here = comm.rank == 0 or name not in ("gather", "reduce")
    return (ys if isinstance(ys, tuple) else (ys,)) if here else ()


def loss(ys, rank, shape):
    size = int(np.prod(shape))
    terms = [F.sum(y * WEIGHTS[rank, i, :size].reshape(shape)) for i, y in enumerate(ys)]
    return functools.reduce(operator.add, terms) if terms else None


@pytest.mark.grid
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@pytest.mark.parametrize(
    ("name", "op"),
    [(name, None) for name in MOVING] + [(name, op) for name in REDUCING for op in REDUCE],
    ids=str,
)
@pytest.mark.ranks(1, 3)
def test_functions_and_their_gradients_are_those_of_one_process(comm, name, op, later):
    if name == "exscan" and op in ("mean", "max", "min"):
        with pytest.raises(ValueError, match=r"exscan knows the reductions sum and prod"):
            function(comm, name, np.ones(1), None, later, op=op)
        return
    for shape in SHAPES:
        rng = np.random.default_rng(0)
        values = [rng.standard_normal(shape) for _ in range(comm.size)]
        lists = [[rng.standard_normal(shape) for _ in range(comm.size)] for _ in range(comm.size)]
        x = mnpar.Variable(np.asarray(values[comm.rank]))
        xs = [mnpar.Variable(np.asarray(v)) for v in lists[comm.rank]]
        here = loss(
            function(comm, name, x, xs, later, **({} if op is None else {"op": op})),
            comm.rank,
            shape,
        )
        mnpar.backward([] if here is None else [here])
        grads = [None if v.grad is None else v.grad for v in (x, *xs)]
        x_grads, lists_grads = one_process(comm.size, name, op, shape, values, lists)
        expected = [x_grads[comm.rank], *lists_grads[comm.rank]]
        for got, wanted in zip(grads, expected, strict=True):
            np.testing.assert_allclose(
                0 if got is None else got, 0 if wanted is None else wanted, atol=1e-12
            )


def one_process(P, name, op, shape, values, lists):
    """The gradients of the sum of all ranks' losses, without any communication."""
    fold = {"sum": None, "max": F.maximum, "min": F.minimum}
    xs = [mnpar.Variable(np.asarray(v)) for v in values]
    parts = [[mnpar.Variable(np.asarray(v)) for v in row] for row in lists]

    def reduced(some):
        how = fold.get("sum" if op == "mean" else op, operator.mul) or operator.add
        y = functools.reduce(how, some)
        return y / len(some) if op == "mean" else y

    losses = []
    for r in range(P):
        ys = WHOLE[name](r, xs, parts, reduced)
        ys = () if ys is None else tuple(ys) if isinstance(ys, list) else (ys,)
        losses.append(loss(ys, r, shape))
    mnpar.backward([each for each in losses if each is not None])
    return [x.grad for x in xs], [[part.grad for part in row] for row in parts]


@pytest.mark.ranks(2, 3)
def test_a_barrier_waits_and_passes_nothing_on(comm):
    assert F.barrier(comm) is None
    assert comm.barrier() is None
    assert comm.ibarrier().wait() is None
