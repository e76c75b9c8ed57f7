"""The communicator's contract (mnpar/communicators/communicator.py), line by line and operation by
operation.

Every test runs on thread ranks and on processes; what each rank should get is computed by numpy
from the ranks' numbers.
"""

import contextlib
import itertools
import re
import types
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.communicators.mpi import transport
from mnpar.errors import DeadlockError, MismatchError, MnparError
from tests.harness.tables import together

LOCAL = pytest.mark.ranks(1, 3, on="threads")  # what is decided before anything is sent
EVERY = pytest.mark.ranks(1, 2, 3, 4)
SEVERAL = pytest.mark.ranks(2, 3, 4)

DTYPES = [
    "?",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "M8[s]",
    "m8[ms]",
    ">f4",
    ">i8",
    ">c16",
]
# values of up to 320 bytes travel inside the match of a collective, larger ones after it
SHAPES = [(), (0,), (1,), (3, 2), (2, 0, 3), (41,), (17, 5)]
MEMORY = {
    "contiguous": lambda x: x,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x,
    "reversed": lambda x: x[::-1] if x.ndim else x,
    "Fortran": np.asfortranarray,
    "transposed": lambda x: x.T,
    "broadcast": lambda x: np.broadcast_to(x, (2, *x.shape)),
    "read-only": lambda x: np.broadcast_to(x, x.shape),
    "bytes": lambda x: np.frombuffer(np.ascontiguousarray(x).tobytes(), x.dtype) if x.size else x,
}


def array(rank, shape=(3,), dtype="f8"):
    """What this rank has: small whole numbers, different on each rank."""
    count = np.arange(rank + 1, rank + 1 + np.prod(shape, dtype=int))
    return (count % 7).astype("i8").astype(dtype).reshape(shape)


def same(found, expected):
    """The very same dtype, shape and values."""
    assert type(found) is np.ndarray
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if not (found == expected).all():
        # takes long, says where, and that NaNs are the same
        np.testing.assert_array_equal(found, expected)


@contextlib.contextmanager
def case(*what):
    """Loops over cases inside a test name the one that failed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"case {what}")
        raise


def right(comm):
    return (comm.rank + 1) % comm.size


def left(comm):
    return (comm.rank - 1) % comm.size


def raises_everywhere(comm, culprits, own, match, call):
    """``call()`` raises ``own`` on the culprits and MismatchError on all others; then the
    communicator still works.
    """
    with pytest.raises(own if comm.rank in culprits else MismatchError, match=match):
        call()
    same(comm.allgather(array(comm.rank))[-1], array(comm.size - 1))


# ---- 1. send returns at once and owns its copy ----


@EVERY
@together(size=[1, 1000, 200_000])
def test_the_sender_may_change_its_array_after_send(comm, size):
    x = np.full(size, float(comm.rank))
    comm.send(x, right(comm))
    x[:] = -1
    same(comm.recv(left(comm)), np.full(size, float(left(comm))))


@EVERY
def test_large_messages_head_on_do_not_wait_for_each_other(comm):
    """5 MB each way round the ring: every rank sends before any receives."""
    x = np.full(655_360, float(comm.rank))
    comm.send(x, right(comm))
    comm.send(x, left(comm), tag=1)
    same(comm.recv(left(comm)), np.full(655_360, float(left(comm))))
    same(comm.recv(right(comm), tag=1), np.full(655_360, float(right(comm))))


@EVERY
def test_what_was_received_belongs_to_the_receiver(comm):
    x = np.zeros(3)
    comm.send(x, comm.rank)
    y = comm.recv(comm.rank)
    assert y.flags.writeable
    y += 1
    same(x, np.zeros(3))


@pytest.mark.grid
@EVERY
@pytest.mark.parametrize("shape", [(3,), (100,)], ids=["small", "large"])
@pytest.mark.parametrize(
    "collective",
    [
        lambda comm, x: comm.allreduce(x),
        lambda comm, x: comm.allreduce(x, "max"),
        lambda comm, x: comm.allgather(x)[comm.rank],
        lambda comm, x: comm.alltoall([x] * comm.size)[comm.rank],
        lambda comm, x: comm.reduce_scatter([x] * comm.size),
        lambda comm, x: comm.scatter([x] * comm.size, root=0),
        lambda comm, x: (comm.gather(x) or [np.zeros(1)])[0],
        lambda comm, x: np.zeros(1) if (y := comm.reduce(x)) is None else y,
    ],
    ids=["sum", "max", "allgather", "alltoall", "reduce_scatter", "scatter", "gather", "reduce"],
)
def test_results_of_collectives_share_no_memory_with_their_inputs(comm, shape, collective):
    x = np.ones(shape)
    y = collective(comm, x)
    assert y.flags.writeable
    y[...] = -5.0
    same(x, np.ones(shape))


# ---- 2. the order of messages ----


@EVERY
def test_messages_of_one_source_and_tag_keep_their_order(comm):
    for i in range(20):
        # large and small ones overtake each other in MPI
        comm.send(np.full(1 + 50_000 * (i % 3 == 0), i), right(comm))
    assert [comm.recv(left(comm))[0] for _ in range(20)] == list(range(20))


@EVERY
def test_messages_are_matched_by_tag_whatever_their_order(comm):
    for tag in range(5):
        comm.send(np.array([tag]), right(comm), tag)
    assert [comm.recv(left(comm), tag)[0] for tag in (3, 0, 4, 2, 1)] == [3, 0, 4, 2, 1]


@EVERY
def test_each_tag_has_an_order_of_its_own(comm):
    for i in range(6):
        comm.send(np.array([i]), right(comm), tag=i % 2)
    assert [comm.recv(left(comm), tag)[0] for tag in (1, 1, 0, 1, 0, 0)] == [1, 3, 0, 5, 2, 4]


@SEVERAL
def test_any_source_takes_each_message_once_and_keeps_the_order_of_each_source(comm):
    if comm.rank:
        for i in range(3):
            comm.send(np.array([comm.rank, i]), 0)
    else:
        found = [comm.recv(mnpar.ANY_SOURCE).tolist() for _ in range(3 * (comm.size - 1))]
        assert sorted(found) == [[rank, i] for rank in range(1, comm.size) for i in range(3)]
        for rank in range(1, comm.size):
            assert [i for r, i in found if r == rank] == [0, 1, 2]


@EVERY
def test_any_tag_takes_the_messages_of_a_source_in_order(comm):
    for tag in (7, 0, 3):
        comm.send(np.array([tag]), right(comm), tag)
    assert [comm.recv(left(comm), mnpar.ANY_TAG)[0] for _ in range(3)] == [7, 0, 3]


@EVERY
def test_any_source_and_any_tag_together(comm):
    comm.send(np.array([comm.rank]), right(comm), tag=comm.rank)
    assert comm.recv(mnpar.ANY_SOURCE, mnpar.ANY_TAG)[0] == left(comm)


@EVERY
def test_the_largest_tag_works(comm):
    tag = comm.transport.tag_limit
    comm.send(np.array([1.0]), right(comm), tag)
    same(comm.recv(left(comm), tag), np.array([1.0]))


# ---- 3. shape, dtype and structure arrive as they left ----


@EVERY
def test_every_dtype_and_shape_arrives(comm):
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        with case(dtype, shape):
            comm.send(array(comm.rank, shape, dtype), right(comm))
            same(comm.recv(left(comm)), array(left(comm), shape, dtype))


@EVERY
def test_every_layout_in_memory_arrives(comm):
    for (name, layout), shape in itertools.product(MEMORY.items(), SHAPES):
        with case(name, shape):
            comm.send(layout(array(comm.rank, shape)), right(comm))
            same(comm.recv(left(comm)), layout(array(left(comm), shape)))


@EVERY
def test_nan_payloads_signed_zeros_and_infinities_arrive_bit_by_bit(comm):
    x = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 5e-324])
    x[:2].view("u8")[0] |= 12345
    comm.send(x, right(comm))
    assert comm.recv(left(comm)).tobytes() == x.tobytes()


@EVERY
@pytest.mark.ranks(2, 3)
def test_allgather_takes_a_small_part_beside_large_ones_again_and_again(comm):
    mine = np.full(400 * comm.rank + 1, comm.rank)
    for _ in range(3):  # from the same line: headers are remembered
        for rank, part in enumerate(comm.allgather(mine)):
            same(part, np.full(400 * rank + 1, rank))


@together(ndim=[5, 12])
def test_many_axes_arrive(comm, ndim):
    x = array(comm.rank, (2,) * ndim)
    comm.send(x, right(comm))
    same(comm.recv(left(comm)), array(left(comm), (2,) * ndim))
    same(comm.allgather(x)[left(comm)], array(left(comm), (2,) * ndim))


@EVERY
def test_tuples_lists_and_dicts_of_arrays_arrive_nested(comm):
    def thing(rank):
        return {
            "a": array(rank, (2, 3)),
            "b": (array(rank, (rank,)), {"é": array(rank, (), "i4")}, ()),
            "": array(rank, (99,), "f2"),
        }

    comm.send(thing(comm.rank), right(comm))
    found = comm.recv(left(comm))
    expected = thing(left(comm))
    assert list(found) == ["a", "b", ""]
    assert type(found["b"]) is tuple
    assert len(found["b"]) == 3
    assert found["b"][2] == ()
    same(found["a"], expected["a"])
    same(found["b"][0], expected["b"][0])
    same(found["b"][1]["é"], expected["b"][1]["é"])
    same(found[""], expected[""])


@EVERY
def test_a_list_arrives_as_a_tuple(comm):
    comm.send([array(comm.rank), array(comm.rank, (0,))], right(comm))
    found = comm.recv(left(comm))
    assert type(found) is tuple
    same(found[0], array(left(comm)))
    same(found[1], array(left(comm), (0,)))


@EVERY
def test_every_dtype_and_shape_goes_through_the_collectives_that_move(comm):
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        x = array(comm.rank, shape, dtype)
        everyones = [array(rank, shape, dtype) for rank in range(comm.size)]
        root = comm.size - 1
        with case(dtype, shape):
            for found, expected in zip(comm.allgather(x), everyones, strict=True):
                same(found, expected)
            same(comm.bcast(x, root), everyones[root])
            same(comm.scatter(everyones if comm.rank == root else None, root), x)
            for found, expected in zip(comm.alltoall(everyones), [x] * comm.size, strict=True):
                same(found, expected)
            gathered = comm.gather(x, root)
            for found, expected in zip(
                gathered or (), everyones if comm.rank == root else (), strict=True
            ):
                same(found, expected)


@EVERY
def test_every_layout_goes_through_the_collectives(comm):
    for (name, layout), shape in itertools.product(MEMORY.items(), ((3, 2), (17, 5))):
        x = layout(array(comm.rank, shape))
        everyones = [layout(array(rank, shape)) for rank in range(comm.size)]
        with case(name, shape):
            same(comm.allgather(x)[left(comm)], everyones[left(comm)])
            same(comm.bcast(x), everyones[0])
            same(comm.allreduce(x), np.sum(everyones, axis=0))
            same(comm.alltoall([x] * comm.size)[right(comm)], everyones[right(comm)])


# ---- 4. shapes may differ where parts are not added up ----


def uneven(rank, other=0):
    """Nothing from rank 0, a little from rank 1, more than 320 bytes from rank 2, another dtype
    from rank 3.
    """
    return array(
        rank + other,
        [(0,), (2, 1 + other), (50 + other, 2), (1,)][rank],
        ["f8", "f4", "f8", "i2"][rank],
    )


@EVERY
def test_gather_and_allgather_take_uneven_and_empty_arrays(comm):
    everyones = [uneven(rank) for rank in range(comm.size)]
    for found, expected in zip(comm.allgather(uneven(comm.rank)), everyones, strict=True):
        same(found, expected)
    for root in range(comm.size):
        gathered = comm.gather(uneven(comm.rank), root)
        if comm.rank != root:
            assert gathered is None
        else:
            assert type(gathered) is tuple
            for found, expected in zip(gathered, everyones, strict=True):
                same(found, expected)


@EVERY
def test_scatter_gives_uneven_and_empty_parts_from_every_root(comm):
    for root in range(comm.size):
        parts = [uneven(rank, root) for rank in range(comm.size)]
        same(comm.scatter(parts if comm.rank == root else None, root), uneven(comm.rank, root))


@EVERY
def test_alltoall_gives_every_pair_of_ranks_a_shape_of_its_own(comm):
    found = comm.alltoall([uneven(comm.rank, to) for to in range(comm.size)])
    assert type(found) is tuple
    for source, part in enumerate(found):
        same(part, uneven(source, comm.rank))


@EVERY
def test_reduce_scatter_takes_parts_of_different_shapes(comm):
    for op, ufunc in (("sum", np.add), ("max", np.maximum)):
        found = comm.reduce_scatter([array(comm.rank, (30 * to, 2)) for to in range(comm.size)], op)
        same(found, ufunc.reduce([array(rank, (30 * comm.rank, 2)) for rank in range(comm.size)]))


@EVERY
@together(columns=[1, 50])
def test_an_array_is_scattered_along_its_first_axis(comm, columns):
    table = np.arange(comm.size * columns).reshape(comm.size, columns)
    same(comm.scatter(table if comm.rank == 0 else None), table[comm.rank])


@EVERY
def test_a_vector_is_scattered_and_traded_element_by_element(comm):
    same(comm.scatter(np.arange(comm.size) * 10.0), np.array(comm.rank * 10.0))
    found = comm.alltoall(np.arange(comm.size) + 10 * comm.rank)
    assert [int(x) for x in found] == [comm.rank + 10 * rank for rank in range(comm.size)]
    same(comm.reduce_scatter(np.arange(comm.size)), np.array(comm.rank * comm.size))


@EVERY
def test_parts_may_come_from_a_generator(comm):
    same(comm.scatter(array(rank) for rank in range(comm.size)), array(comm.rank))
    same(comm.alltoall(array(comm.rank + to) for to in range(comm.size))[0], array(comm.rank))


@EVERY
def test_bcast_gives_every_roots_array_and_does_not_look_at_the_others(comm):
    for root in range(comm.size):
        for shape in SHAPES:
            x = array(root, shape) if comm.rank == root else ["whatever", None][comm.rank % 2]
            same(comm.bcast(x, root), array(root, shape))


# ---- reductions ----

REDUCTIONS = {
    "sum": lambda xs: np.add.reduce(xs, dtype=xs.dtype.newbyteorder("=")),
    "prod": lambda xs: np.multiply.reduce(xs, dtype=xs.dtype.newbyteorder("=")),
    "max": lambda xs: np.maximum.reduce(xs),
    "min": lambda xs: np.minimum.reduce(xs),
    "mean": lambda xs: np.mean(xs, axis=0),
}


@EVERY
@together(op=REDUCTIONS)
def test_reductions_of_numbers_are_numpys(comm, op):
    dtypes = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">f4", ">i2")
    for dtype, shape in itertools.product(dtypes, [(), (0,), (3, 2), (17, 5), (600,)]):
        x = array(comm.rank, shape, dtype)
        everyones = np.array([array(rank, shape, dtype) for rank in range(comm.size)])
        expected = np.asarray(REDUCTIONS[op](everyones))
        with case(dtype, shape):
            found = comm.allreduce(x, op)
            assert found.dtype.newbyteorder("=") == (
                expected if op == "mean" else x
            ).dtype.newbyteorder("=")
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-3 if dtype == "f2" else 1e-6)


@EVERY
@together(dtype=["c8", "c16"])
def test_complex_numbers_have_a_sum_a_product_and_a_mean(comm, dtype):
    for shape in ((2,), (100,)):
        xs = [array(rank, shape, dtype) + dtype.startswith("c") * 1j for rank in range(comm.size)]
        xs = [x.astype(dtype) for x in xs]
        for op, expected in (
            ("sum", np.sum(xs, 0)),
            ("prod", np.prod(xs, 0)),
            ("mean", np.mean(xs, 0)),
        ):
            found = comm.allreduce(xs[comm.rank], op)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@EVERY
@together(dtype=["?", "M8[s]", "m8[ms]"], op=["max", "min"])
def test_truths_and_times_have_a_maximum_and_a_minimum(comm, dtype, op):
    for shape in SHAPES:
        xs = np.array([array(rank, shape, dtype) for rank in range(comm.size)])
        same(comm.allreduce(xs[comm.rank, ...], op), np.asarray(REDUCTIONS[op](xs)))


@EVERY
@together(op=["max", "min"])
def test_a_value_that_is_none_on_one_rank_shows_in_the_extremum(comm, op):
    """NaN and NaT, whoever has it: as in numpy, and not as MPI happens to compare."""
    for dtype, size, culprit in itertools.product(
        ["f2", "f4", "f8", "M8[s]", "m8[ms]"], [4, 400], range(comm.size)
    ):
        xs = np.array([array(rank, (size,), dtype) for rank in range(comm.size)])
        xs[culprit, 1] = np.nan if dtype[0] == "f" else "NaT"
        with case(dtype, size, culprit):
            same(comm.allreduce(xs[comm.rank], op), REDUCTIONS[op](xs))


@EVERY
@together(op=REDUCTIONS)
def test_reduce_gives_the_result_to_every_root_and_nothing_to_the_others(comm, op):
    for root in range(comm.size):
        for shape in SHAPES:
            found = comm.reduce(array(comm.rank, shape), root, op)
            if comm.rank == root:
                expected = REDUCTIONS[op](
                    np.array([array(rank, shape) for rank in range(comm.size)])
                )
                np.testing.assert_allclose(found, expected, rtol=1e-15)
                assert found.shape == shape
            else:
                assert found is None


@EVERY
@together(op=REDUCTIONS)
def test_reduce_scatter_reduces_each_part(comm, op):
    found = comm.reduce_scatter([array(comm.rank + to, (60,)) for to in range(comm.size)], op)
    expected = REDUCTIONS[op](
        np.array([array(rank + comm.rank, (60,)) for rank in range(comm.size)])
    )
    np.testing.assert_allclose(found, expected, rtol=1e-15)


@EVERY
@together(size=[4, 400])
def test_halves_are_summed_in_more_than_their_own_precision(comm, size):
    """1024 + 0.5 + 0.5 + 0.5: each half alone is lost beside 1024."""
    values = [1024.0, 0.5, 0.5, 0.5][: comm.size]
    found = comm.allreduce(np.full(size, values[comm.rank], np.float16))
    same(found, np.full(size, sum(values), np.float16))


@EVERY
@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [(60000.0, "f2", "f2"), (200, "u1", "f8"), (2**62, "i8", "f8")],
    ids=["f2", "u1", "i8"],
)
def test_a_mean_does_not_overflow_where_the_sum_would(comm, value, dtype, expected):
    for size in (4, 400):
        same(
            comm.allreduce(np.full(size, value, dtype), "mean"),
            np.full(size, value, dtype).astype(expected),
        )
        same(
            comm.reduce_scatter([np.full(size, value, dtype)] * comm.size, "mean"),
            np.full(size, value, dtype).astype(expected),
        )


@EVERY
def test_a_sum_is_the_same_number_on_every_rank(comm):
    x = np.random.default_rng(comm.rank).standard_normal(500)
    for size in (5, 500):
        everyones = comm.allgather(comm.allreduce(x[:size]))
        assert all(np.array_equal(y, everyones[0]) for y in everyones)


@EVERY
@together(op=["sum", "prod", "mean"], size=[3, 300])
def test_a_rank_with_nothing_to_give_changes_no_sum(comm, op, size):
    """A gradient that does not exist (None); at least one rank has one."""
    x = array(comm.rank, (size,)) if comm.rank == comm.size - 1 else None
    found = comm.allreduce(x, op)
    same(found, array(comm.size - 1, (size,)) / (comm.size if op == "mean" else 1))


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("dtype", ["i4", "f2"])
@SEVERAL
def test_a_mean_is_of_one_dtype_though_wider_numbers_travel(comm, dtype):
    """And who has nothing to give cannot say of which."""
    x = array(0, (3,), dtype) if comm.rank == 0 else None
    np.testing.assert_allclose(
        comm.allreduce(x, "mean"), array(0, (3,), dtype) / comm.size, rtol=1e-3
    )
    wide = {"i4": "f8", "f2": "f4"}[dtype]
    mine = array(comm.rank, (3,), wide if comm.rank == 1 else dtype)
    for mean in (
        lambda: comm.allreduce(mine, "mean"),
        lambda: comm.reduce(mine, 0, "mean"),
        lambda: comm.reduce_scatter([mine] * comm.size, "mean"),
        lambda: F.allreduce(comm, mine, "mean"),
        lambda: F.reduce(comm, mine, 0, "mean"),
        lambda: F.reduce_scatter(comm, [mine] * comm.size, "mean"),
        lambda: F.scan(comm, mine, "mean"),
    ):
        with pytest.raises(MismatchError, match=rf"mean of {np.dtype(dtype).name}.*\n.*\(mean\)"):
            mean()


@EVERY
def test_nothing_from_all_ranks_is_nothing(comm):
    assert comm.allreduce(None) is None
    assert comm.allgather(None) == (None,) * comm.size
    assert comm.bcast(None) is None


# ---- objects ----


def thing(rank):
    return {"rank": rank, "nested": [(1, "é"), None, {rank}], "long": "x" * 500 * (rank % 2)}


@EVERY
def test_objects_are_sent_and_received_with_their_status(comm):
    comm.send_obj(thing(comm.rank), right(comm), tag=5)
    status = types.SimpleNamespace()
    assert comm.recv_obj(left(comm), status) == thing(left(comm))
    assert (status.source, status.tag) == (left(comm), 5)
    comm.send_obj(None, right(comm))
    assert comm.recv_obj(mnpar.ANY_SOURCE, tag=0) is None


@EVERY
def test_collectives_of_objects(comm):
    everyones = [thing(rank) for rank in range(comm.size)]
    assert comm.allgather_obj(thing(comm.rank)) == everyones
    assert comm.alltoall_obj([(comm.rank, thing(to)) for to in range(comm.size)]) == [
        (r, thing(comm.rank)) for r in range(comm.size)
    ]
    for root in range(comm.size):
        assert comm.bcast_obj(
            thing(root) if comm.rank == root else "not looked at", root=root
        ) == thing(root)
        assert comm.gather_obj(thing(comm.rank), root) == (everyones if comm.rank == root else None)
        assert comm.scatter_obj(everyones if comm.rank == root else None, root) == thing(comm.rank)


@EVERY
def test_none_is_an_object_like_any_other(comm):
    assert comm.bcast_obj(None) is None
    assert comm.allgather_obj(None) == [None] * comm.size
    assert comm.gather_obj(None) == ([None] * comm.size if comm.rank == 0 else None)
    assert comm.scatter_obj([None] * comm.size) is None
    assert comm.alltoall_obj([None] * comm.size) == [None] * comm.size


@EVERY
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", lambda n: n * (n + 1) // 2),
        ("prod", lambda n: int(np.prod(range(1, n + 1)))),
        ("max", lambda n: n),
        ("min", lambda n: 1),
        ("mean", lambda n: (n + 1) / 2),
    ],
    ids=["sum", "prod", "max", "min", "mean"],
)
def test_reductions_of_objects(comm, op, expected):
    assert comm.allreduce_obj(comm.rank + 1, op) == expected(comm.size)


@EVERY
def test_the_sum_of_objects_goes_in_rank_order(comm):
    assert comm.allreduce_obj([comm.rank]) == list(range(comm.size))
    assert comm.allreduce_obj(str(comm.rank)) == "0123"[: comm.size]


# ---- barrier and what a communicator says of itself ----


@EVERY
def test_nobody_leaves_a_barrier_before_all_have_come(comm):
    """Each rank sends before the barrier, so after it every message can be taken from any source in
    any order.
    """
    for _ in range(3):
        comm.send(array(comm.rank), right(comm))
        comm.barrier()
        same(comm.recv(left(comm)), array(left(comm)))


@EVERY
def test_a_communicator_knows_its_place(comm):
    assert 0 <= comm.rank < comm.size
    assert comm.is_root is (comm.rank == 0)
    assert comm.name in ("threads", "mpi")
    assert repr(comm) == f"<mnpar communicator {comm.name}, rank {comm.rank} of {comm.size}>"
    assert comm.allgather_obj(comm.rank) == list(range(comm.size))
    assert (comm.intra_rank, comm.intra_size, comm.inter_rank, comm.inter_size) == (
        comm.rank,
        comm.size,
        0,
        1,
    )


@EVERY
def test_create_communicator_inside_makes_one_with_messages_of_its_own(comm):
    """Line 5: a private duplicate. A message on one is not seen on the other."""
    other = comm.split(0, comm.rank) if comm.name == "mpi" else mnpar.create_communicator()
    assert (other.rank, other.size) == (comm.rank, comm.size)
    comm.send(np.array([1.0]), right(comm))
    other.send(np.array([2.0]), right(comm))
    same(other.recv(left(comm)), np.array([2.0]))
    same(comm.recv(left(comm)), np.array([1.0]))


# ---- errors of one rank's own: raised there before anything is sent ----


@LOCAL
@together(peer=[-2, 99, 1.5, "0", None])
def test_a_rank_that_does_not_exist_is_refused(comm, peer):
    x = array(comm.rank)
    calls = [
        lambda: comm.send(x, peer),
        lambda: comm.recv(peer),
        lambda: comm.send_obj(x, peer),
        lambda: comm.recv_obj(peer),
        lambda: comm.bcast(x, peer),
        lambda: comm.reduce(x, peer),
        lambda: comm.gather(x, peer),
        lambda: comm.scatter([x] * comm.size, peer),
        lambda: comm.bcast_obj(x, root=peer),
        lambda: comm.gather_obj(x, peer),
        lambda: comm.scatter_obj([x] * comm.size, peer),
    ]
    for call in calls:
        with pytest.raises(
            ValueError,
            match=f"rank {comm.rank}: there is no rank {peer!r} in a communicator of {comm.size}",
        ):
            call()


@LOCAL
def test_any_source_is_no_destination_and_no_root(comm):
    with pytest.raises(ValueError, match="there is no rank -1"):
        comm.send(array(0), mnpar.ANY_SOURCE)
    with pytest.raises(ValueError, match="there is no rank -1"):
        comm.bcast(array(0), mnpar.ANY_SOURCE)


@LOCAL
@together(tag=[-1, -2, 2**40, 0.5, "a", None])
def test_a_bad_tag_is_refused(comm, tag):
    with pytest.raises(ValueError, match=f"rank {comm.rank}: a tag is a number from 0 to"):
        comm.send(array(0), comm.rank, tag)
    if tag != mnpar.ANY_TAG:
        with pytest.raises(ValueError, match="a tag is a number"):
            comm.recv(comm.rank, tag)


@LOCAL
def test_an_unknown_reduction_is_refused(comm):
    for call in (comm.allreduce, comm.reduce, comm.reduce_scatter, comm.allreduce_obj):
        with pytest.raises(ValueError, match=r"knows sum, .*prod, mean, not 'median'"):
            call([array(0)] * comm.size if call == comm.reduce_scatter else array(0), op="median")


@LOCAL
@pytest.mark.parametrize(
    "x",
    [
        3.0,
        np.float64(3),
        "text",
        object(),
        np.array([None]),
        np.array(["text"]),
        np.zeros(2, "i4,f4"),
        np.zeros((1,) * 13),
        {1: np.ones(1)},
    ],
    ids=[
        "float",
        "numpy scalar",
        "text",
        "object",
        "object array",
        "text array",
        "records",
        "13 axes",
        "number as key",
    ],
)
def test_what_is_no_array_of_numbers_is_not_sent(comm, x):
    with pytest.raises(TypeError, match=r"_obj methods|reshape it first|text as its keys"):
        comm.send(x, comm.rank)
    comm.send(array(1), comm.rank)
    same(comm.recv(comm.rank), array(1))


@LOCAL
def test_an_object_that_cannot_be_pickled_is_not_sent(comm):
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        comm.send_obj(lambda: 1, comm.rank)


# ---- errors of one rank that others wait for: raised on all ----

BAD_ARRAYS = {
    "number": (
        3.0,
        TypeError,
        "array is sent here, not float: use the _obj methods for objects, numpy.asarray",
    ),
    "list": ([1.0], TypeError, "not list"),
    "object array": (np.array([None]), TypeError, "arrays of dtype object cannot be sent"),
    "a mask": (
        np.ma.masked_array([1.0], mask=[True]),
        TypeError,
        "the mask of a masked array would be lost",
    ),
    "records": (np.zeros(2, "i4,f4"), TypeError, "cannot be sent"),
    "13 axes": (np.zeros((1,) * 13), TypeError, "at most 12 axes"),
}


@SEVERAL
@pytest.mark.parametrize(("x", "error", "match"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_a_bad_array_on_some_ranks_raises_on_all(comm, x, error, match):
    for culprits in ((0,), (1,), (0, 1)):
        mine = x if comm.rank in culprits else array(comm.rank)
        parts = [array(0)] * (comm.size - 1) + [mine]
        for call in (
            lambda mine=mine: comm.allgather(mine),
            lambda mine=mine: comm.gather(mine),
            lambda mine=mine: comm.allreduce(mine),
            lambda parts=parts: comm.alltoall(parts),
            lambda parts=parts: comm.reduce_scatter(parts),
        ):
            raises_everywhere(comm, culprits, error, match, call)
    raises_everywhere(comm, (1,), error, match, lambda: comm.bcast(x, 1))
    raises_everywhere(comm, (1,), error, match, lambda: comm.scatter([x] * comm.size, 1))


@EVERY
@pytest.mark.parametrize(
    ("x", "op", "match"),
    [
        (np.ones(2, bool), "sum", "cannot sum bool: convert it to integers first"),
        (np.ones(400, bool), "sum", "cannot sum bool"),
        (np.ones(2, bool), "mean", "cannot average bool"),
        (np.ones(2, bool), "prod", "cannot multiply bool"),
        (np.ones(2, "M8[s]"), "sum", "cannot sum datetime64"),
        (np.ones(2, "c8"), "max", "complex numbers have no max"),
        (np.ones(400, "c16"), "min", "complex numbers have no min"),
    ],
    ids=[
        "bool sum",
        "large bool sum",
        "bool mean",
        "bool prod",
        "time sum",
        "complex max",
        "large complex min",
    ],
)
def test_a_reduction_without_a_meaning_is_refused_on_all_ranks(comm, x, op, match):
    for call in (comm.allreduce, comm.reduce):
        raises_everywhere(
            comm, range(comm.size), TypeError, match, lambda call=call: call(x, op=op)
        )
    raises_everywhere(
        comm, range(comm.size), TypeError, match, lambda: comm.reduce_scatter([x] * comm.size, op)
    )


@pytest.mark.usefixtures("both_matches")
@SEVERAL
def test_a_rank_with_nothing_to_give_to_a_maximum_is_named_on_all(comm):
    for size in (3, 300):
        for op in ("max", "min"):
            x = None if comm.rank == 1 else array(comm.rank, (size,))
            raises_everywhere(
                comm,
                (),
                MismatchError,
                r"nothing to give(.|\n)*rank 1: .* of nothing",
                lambda x=x, op=op: comm.allreduce(x, op),
            )


@SEVERAL
@together(length=[0, 1, 5])
def test_a_list_of_the_wrong_length_raises_on_all(comm, length):
    match = f"one array for each of the {comm.size} ranks, not {length}"
    for root in (0, comm.size - 1):
        parts = [array(0)] * length if comm.rank == root else None
        raises_everywhere(
            comm,
            (root,),
            ValueError,
            match,
            lambda parts=parts, root=root: comm.scatter(parts, root),
        )
        raises_everywhere(
            comm,
            (root,),
            ValueError,
            match.replace("array", "object"),
            lambda parts=parts, root=root: comm.scatter_obj(parts, root),
        )
    for call in (comm.alltoall, comm.reduce_scatter):
        mine = [array(0)] * (length if comm.rank == 1 else comm.size)
        raises_everywhere(comm, (1,), ValueError, match, lambda call=call, mine=mine: call(mine))


@SEVERAL
@together(parts=[None, 5, np.array(1.0)])
def test_what_is_no_list_of_parts_raises_on_all(comm, parts):
    match = f"one array for each of the {comm.size} ranks, not {type(parts).__name__}"
    raises_everywhere(comm, (0,), ValueError, match, lambda: comm.scatter(parts))
    raises_everywhere(comm, range(comm.size), ValueError, match, lambda: comm.alltoall(parts))
    raises_everywhere(comm, range(comm.size), ValueError, match, lambda: comm.reduce_scatter(parts))


@SEVERAL
def test_an_object_that_cannot_be_pickled_raises_on_all(comm):
    obj = (lambda: 1) if comm.rank == 1 else 1
    for call in (comm.allgather_obj, comm.gather_obj, comm.allreduce_obj):
        raises_everywhere(comm, (1,), Exception, "pickle", lambda call=call: call(obj))
    raises_everywhere(comm, (1,), Exception, "pickle", lambda: comm.bcast_obj(obj, root=1))


# ---- ranks that do not mean the same thing: MismatchError on all, with both source lines ----

MISMATCHES = {
    "operation": (
        lambda c: c.allreduce(np.ones(2)),
        lambda c: c.allgather(np.ones(2)),
        r"allreduce \(sum\)",
        "allgather",
    ),
    "objects for arrays": (
        lambda c: c.bcast(np.ones(2)),
        lambda c: c.bcast_obj(1),
        "bcast",
        "bcast_obj",
    ),
    "barrier": (lambda c: c.barrier(), lambda c: c.allreduce(np.ones(2)), "barrier", "allreduce"),
    "root": (
        lambda c: c.bcast(np.ones(2), 0),
        lambda c: c.bcast(np.ones(2), 1),
        "root 0",
        "root 1",
    ),
    "reduction": (
        lambda c: c.allreduce(np.ones(2)),
        lambda c: c.allreduce(np.ones(2), "max"),
        r"\(sum\)",
        r"\(max\)",
    ),
    "sum and mean": (
        lambda c: c.reduce(np.ones(2)),
        lambda c: c.reduce(np.ones(2), op="mean"),
        r"\(sum\)",
        r"\(mean\)",
    ),
    "mean of a function": (
        lambda c: F.reduce_scatter(c, [np.ones(2)] * c.size),
        lambda c: F.reduce_scatter(c, [np.ones(2)] * c.size, op="mean"),
        r"\(sum\)",
        r"\(mean\)",
    ),
    "dtype": (
        lambda c: c.allreduce(np.ones(2)),
        lambda c: c.allreduce(np.ones(2, "f4")),
        r"float64 \(2,\)",
        r"float32 \(2,\)",
    ),
    "byte order": (
        lambda c: c.allreduce(np.ones(2)),
        lambda c: c.allreduce(np.ones(2, ">f8")),
        "float64",
        "float64",
    ),
    "shape": (
        lambda c: c.allreduce(np.ones(2)),
        lambda c: c.allreduce(np.ones(3)),
        r"\(2,\)",
        r"\(3,\)",
    ),
    "axes": (
        lambda c: c.allreduce(np.ones(4)),
        lambda c: c.allreduce(np.ones((2, 2))),
        r"\(4,\)",
        r"\(2, 2\)",
    ),
    "large shapes": (
        lambda c: c.reduce(np.ones(400)),
        lambda c: c.reduce(np.ones(500)),
        r"\(400,\)",
        r"\(500,\)",
    ),
    "small beside large": (
        lambda c: c.allreduce(np.ones(2)),
        lambda c: c.allreduce(np.ones(500)),
        r"\(2,\)",
        r"\(500,\)",
    ),
    "shapes of parts": (
        lambda c: c.reduce_scatter([np.ones(2)] * c.size),
        lambda c: c.reduce_scatter([np.ones(3)] * c.size),
        "reduce_scatter",
        "reduce_scatter",
    ),
    "mean and dtype": (
        lambda c: c.allreduce(np.ones(2), "mean"),
        lambda c: c.allreduce(np.ones(2, "f4"), "mean"),
        "float64",
        "float32",
    ),
    "split": (lambda c: c.split(0, 0), lambda c: c.barrier(), "split", "barrier"),
}
HERE = rf"{Path(__file__).parent.name}/{Path(__file__).name}:\d+"


@pytest.mark.usefixtures("both_matches")
@SEVERAL
@pytest.mark.parametrize(
    ("one", "other", "says_one", "says_other"), MISMATCHES.values(), ids=MISMATCHES
)
def test_a_mismatch_raises_on_all_ranks_with_both_source_lines(
    comm, one, other, says_one, says_other
):
    for culprit in (0, comm.size - 1):
        with pytest.raises(MismatchError) as caught:
            (other if comm.rank == culprit else one)(comm)
        rows = [row for row in str(caught.value).splitlines() if row.startswith("  rank ")]
        assert len(rows) == comm.size
        for rank, row in enumerate(rows):
            assert row.startswith(f"  rank {rank}: collective ")
            assert re.search(says_other if rank == culprit else says_one, row)
            assert re.search(rf"at {HERE}$", row)
        same(comm.allgather(array(comm.rank))[-1], array(comm.size - 1))


@pytest.mark.usefixtures("both_matches")
@SEVERAL
def test_the_two_lines_of_a_mismatch_are_the_two_calls(comm):
    calls = [
        lambda: comm.barrier(),
        lambda: comm.allreduce(np.ones(1)),
    ]
    with pytest.raises(MismatchError) as caught:
        calls[comm.rank != 0]()
    lines = {
        row.rsplit(":", 1)[1] for row in str(caught.value).splitlines() if row.startswith("  rank ")
    }
    assert len(lines) == 2


@pytest.mark.usefixtures("both_matches")
@SEVERAL
def test_ranks_in_another_order_of_the_same_collectives_are_told_so(comm):
    """The same two calls, exchanged on rank 0: the first already differs."""
    calls = [lambda: comm.allreduce(np.ones(2), "max"), lambda: comm.allreduce(np.ones(2), "min")]
    for call in calls[:: -1 if comm.rank == 0 else 1]:
        with pytest.raises(MismatchError, match=r"\(max\)(.|\n)*\(min\)|\(min\)(.|\n)*\(max\)"):
            call()


@pytest.mark.usefixtures("both_matches")
@SEVERAL
def test_an_object_for_a_receiver_of_arrays_raises_on_both_sides(comm):
    if comm.rank == 0:
        comm.send_obj("text", 1)
        with pytest.raises(
            MismatchError, match=rf"recv at {HERE} .*send_obj at {HERE} sent an object"
        ):
            comm.recv(1)
    elif comm.rank == 1:
        with pytest.raises(
            MismatchError,
            match=rf"rank 1 waits in recv at {HERE} .*send_obj at {HERE} sent an object",
        ):
            comm.recv(0)


@pytest.mark.usefixtures("both_matches")
@SEVERAL
def test_an_array_for_a_receiver_of_objects_raises_on_both_sides(comm):
    if comm.rank == 0:
        comm.send(np.ones((2, 3)), 1)
        with pytest.raises(MismatchError, match=r"send at .* sent float64 \(2, 3\)"):
            comm.recv_obj(1)
    elif comm.rank == 1:
        with pytest.raises(
            MismatchError,
            match=r"for an object from rank 0, tag 0, but send at .* sent float64 \(2, 3\)",
        ):
            comm.recv_obj(0)


@pytest.mark.usefixtures("both_matches")
def test_errors_between_ranks_have_one_base():
    assert issubclass(MismatchError, MnparError)


# ---- split ----


@EVERY
@pytest.mark.parametrize(
    "color",
    [
        lambda r: 0,
        lambda r: r,
        lambda r: r % 2,
        lambda r: r // 2,
        lambda r: int(r == 0),
        lambda r: (r + 1) % 2,
        lambda r: 7 * (r == 2),
    ],
    ids=["all", "each", "odd and even", "halves", "first", "even and odd", "one apart"],
)
def test_split_makes_groups_of_any_shape_that_work_at_the_same_time(comm, color):
    group = comm.split(color(comm.rank), comm.rank)
    members = [rank for rank in range(comm.size) if color(rank) == color(comm.rank)]
    assert (group.rank, group.size) == (members.index(comm.rank), len(members))
    assert group.allgather_obj(comm.rank) == members
    same(group.allreduce(np.full(300, comm.rank)), np.full(300, sum(members)))
    group.send(np.array([comm.rank]), right(group))
    assert group.recv(left(group))[0] == members[left(group)]
    comm.barrier()
    group.barrier()


@EVERY
def test_ranks_of_no_group_get_none(comm):
    group = comm.split(None if comm.rank == comm.size - 1 else 3, 0)
    if comm.rank == comm.size - 1:
        assert group is None
    else:
        assert group.size == comm.size - 1
        assert group.allgather_obj(comm.rank) == list(range(comm.size - 1))
    assert comm.split(None, 0) is None


@EVERY
@pytest.mark.parametrize(
    ("key", "order"),
    [
        (lambda r: -r, [3, 2, 1, 0]),
        (lambda r: 0, [0, 1, 2, 3]),
        (lambda r: -(r % 2), [1, 3, 0, 2]),
        (lambda r: (r - 2) ** 2, [2, 1, 3, 0]),
    ],
    ids=["reversed", "ties", "odd first", "distance"],
)
def test_the_key_orders_the_ranks_of_a_group(comm, key, order):
    group = comm.split(0, key(comm.rank))
    order = [rank for rank in order if rank < comm.size]
    assert group.rank == order.index(comm.rank)
    assert group.allgather_obj(comm.rank) == order
    assert group.bcast_obj(comm.rank) == order[0]


@EVERY
def test_splits_of_splits(comm):
    half = comm.split(comm.rank % 2, -comm.rank)
    one = half.split(half.rank % 2, half.rank)
    order = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2][::-1]
    assert one.allgather_obj(comm.rank) == order[half.rank % 2 :: 2]
    alone = one.split(one.rank, 0)
    assert alone.size == 1
    same(alone.allreduce(array(comm.rank)), array(comm.rank))


@EVERY
def test_numpy_numbers_are_colors_and_keys(comm):
    assert comm.split(np.int64(1), np.int32(-comm.rank)).rank == comm.size - 1 - comm.rank


@LOCAL
@together(color=[-1, 0.5, "a", 2**31])
def test_a_bad_color_is_refused(comm, color):
    with pytest.raises(
        ValueError,
        match=f"rank {comm.rank}: the color of a split is a number from 0 on, or None, not",
    ):
        comm.split(color, 0)


@LOCAL
@together(key=[None, 0.5, "a", 2**31])
def test_a_bad_key_is_refused(comm, key):
    with pytest.raises(ValueError, match=f"rank {comm.rank}: the key of a split is a number, not"):
        comm.split(0, key)


@EVERY
def test_messages_of_groups_do_not_meet(comm):
    """The same tag between the same two ranks on three communicators."""
    comms = [comm, comm.split(0, comm.rank), comm.split(0, comm.rank)]
    for i, c in enumerate(comms):
        c.send(np.array([i]), right(comm))
    for i, c in reversed(list(enumerate(comms))):
        assert c.recv(left(comm))[0] == i


@pytest.mark.ranks(2, on="mpi")
def test_a_split_for_which_mpi_has_no_communicator_left_says_how_groups_are_given_back(
    comm, monkeypatch
):
    class Full:
        def Split(self, color, key):
            raise comm.transport.MPI.Exception(comm.transport.MPI.ERR_OTHER)

    with monkeypatch.context() as patch:
        patch.setattr(type(comm.transport), "_group", Full())
        with pytest.raises(comm.transport.MPI.Exception) as caught:
            comm.split(0, comm.rank)
    assert "group.finalize()" in caught.value.__notes__[0]


# ---- the end of a communicator ----


@EVERY
def test_a_finalized_communicator_refuses_to_work(comm):
    group = comm.split(0, comm.rank)
    group.finalize()
    group.finalize()  # twice is once
    for call in (
        group.barrier,
        lambda: group.send(array(0), 0),
        lambda: group.recv(0),
        lambda: group.split(0, 0),
    ):
        with pytest.raises(ValueError, match="this communicator is finalized"):
            call()
    comm.barrier()


@EVERY
def test_with_finalizes_at_the_end(comm):
    with comm.split(0, comm.rank) as group:
        assert group.allreduce_obj(1) == comm.size
    with pytest.raises(ValueError, match="finalized"):
        group.barrier()


@EVERY
def test_with_leaves_the_error_alone(comm):
    group = comm.split(0, comm.rank)
    with pytest.raises(KeyError), group:
        raise KeyError
    group.barrier()  # not finalized: the others may not have come to it


@EVERY
def test_the_last_of_many_communicators_made_and_given_back_works_like_the_first(comm):
    totals = []
    for i in range(15):
        with comm.split(0, comm.rank) as group:
            totals.append(group.allreduce_obj(i))
    assert totals == [i * comm.size for i in range(15)]


# ---- create_communicator ----


def test_alone_there_is_one_rank():
    for name in (
        "self",
        "auto",
        "naive",
        "flat",
        "hierarchical",
        "two_dimensional",
        "single_node",
        "non_cuda_aware",
        "pure_nccl",
        "dummy",
    ):
        comm = mnpar.create_communicator(name)
        assert (comm.rank, comm.size) == (0, 1)
        same(comm.allreduce(array(0)), array(0))
    assert (
        mnpar.create_communicator(
            "self", patience=1, allreduce_grad_dtype="float16", batched_copy=True
        ).size
        == 1
    )


def test_two_communicators_of_one_rank_do_not_share_messages():
    a = mnpar.create_communicator("self")
    b = mnpar.create_communicator("self")
    a.send(np.array([1.0]), 0)
    b.send(np.array([2.0]), 0)
    same(b.recv(0), np.array([2.0]))
    same(a.recv(0), np.array([1.0]))


@pytest.mark.ranks(3, on="mpi")
def test_a_communicator_on_one_of_mpi4pys_beside_which_raw_calls_go_on(comm):
    world = comm.mpi_comm
    half = world.Split(0 if comm.rank < 2 else comm.transport.MPI.UNDEFINED, -comm.rank)
    if comm.rank == 2:
        with pytest.raises(TypeError, match="of which this rank is a member, not COMM_NULL"):
            mnpar.create_communicator(mpi_comm=half)
        return
    ours = mnpar.create_communicator(mpi_comm=half)
    assert (ours.rank, ours.size) == (1 - comm.rank, 2)
    # to itself, under way meanwhile
    request = half.Isend(np.array([float(comm.rank)]), ours.rank, tag=0)
    assert ours.allreduce(np.array([comm.rank]))[0] == 1
    ours.send(np.array([7.0]), 1 - ours.rank)
    taken = np.empty(1)
    half.Recv(taken, ours.rank, tag=0)
    request.Wait()
    assert (taken[0], ours.recv(1 - ours.rank)[0]) == (comm.rank, 7.0)
    ours.finalize()
    half.Free()


@pytest.mark.ranks(2, on="mpi")
def test_a_communicator_does_not_need_the_one_that_it_was_made_from(comm):
    given = comm.mpi_comm.Dup()
    ours = mnpar.create_communicator(mpi_comm=given)
    given.Free()
    with ours.split(0, -ours.rank) as turned:
        assert (turned.rank, turned.allreduce(np.array(turned.size))) == (1 - comm.rank, 4)
    memory = ours.share(8)
    memory.array[ours.rank] = 1 + ours.rank
    ours.barrier()
    assert memory.array[:2].tolist() == [1, 2]
    memory.free()
    ours.finalize()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        (("nccl9",), {}, ValueError, "unknown communicator 'nccl9': auto, mpi, threads, self"),
        (
            (object(),),
            {},
            TypeError,
            "first argument is a name, such as 'auto', not object: .* as mpi_comm=…",
        ),
        (("threads",), {}, ValueError, r"thread ranks are made by mnpar.run\(program, ranks=4\)"),
        (("self",), {"patient": 3}, TypeError, "batched_copy, not patient"),
        (("self",), {"patience": 0}, ValueError, "a number of seconds above 0, not 0"),
        (("self",), {"patience": float("nan")}, ValueError, "a number of seconds above 0, not nan"),
    ],
    ids=[
        "name",
        "no name",
        "threads outside",
        "option",
        "no patience",
        "patience that is no number",
    ],
)
def test_bad_arguments_of_create_communicator(arguments, options, error, match):
    with pytest.raises(error, match=match):
        mnpar.create_communicator(*arguments, **options)


@pytest.mark.grid
@EVERY
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("size", [0, 3, 100, 10_001])
def test_allreduce_writes_into_the_array_it_is_given(comm, size, op, later):
    x = np.random.default_rng(comm.rank).standard_normal(size)
    expected = comm.allreduce(x, op)
    for out in (np.empty_like(x), np.empty((size, 2))[:, 0], x):
        given = x if out is x else x.copy()
        total = (
            comm.iallreduce(given, op, out=out).wait()
            if later
            else comm.allreduce(given, op, out=out)
        )
        assert total is out
        np.testing.assert_array_equal(out, expected)


@pytest.mark.ranks(2, on="mpi")
def test_after_a_collective_that_was_given_up_the_next_one_says_so(comm, monkeypatch):
    def gives_up(transport, pending):
        raise DeadlockError("waits for ever")

    ours = comm.split(0, comm.rank)
    if comm.rank == 0:
        with monkeypatch.context() as patch:
            patch.setattr(transport, "wait", gives_up)
            with pytest.raises(DeadlockError, match="waits for ever"):
                ours.barrier()
        with pytest.raises(
            DeadlockError,
            match=r"rank 0: barrier at .* ended in an error.*create another communicator",
        ):
            ours.allreduce(np.ones(2))
        comm.send(np.ones(1), 1)
    else:
        comm.recv(0)
        ours.barrier()  # it takes place yet
    with comm.split(0, comm.rank) as another:
        assert another.allreduce(np.array(1)) == 2


@pytest.mark.usefixtures("both_matches")
@EVERY
@together(name=["\udce9tude", *["x" * n + 25 * "é" for n in (0, 1)], 20 * "訓練"])
def test_source_files_have_names_in_any_script_or_none(comm, name):
    """Also of bytes that are no letters at all; a source line travels in a few bytes, cut between
    letters.
    """
    code = "comm.send(x, 0)\ny = comm.recv(0) if comm.rank == 0 else x\ncomm.allreduce(x, op)"
    x = np.ones(3)
    places = {"comm": comm, "x": np.ones(3), "op": "sum"}
    for places["op"] in ("sum", "max" if comm.rank == 0 else "min"):
        error = pytest.raises(MismatchError, match=rf"rank 0: .* at .*{name[2:][-9:]}\.py:3\n")
        with contextlib.nullcontext() if places["op"] == "sum" or comm.size == 1 else error:
            exec(compile(code, f"/{name}.py", "exec"), places)
        for rank in range(1, comm.size if comm.rank == 0 else 1):
            np.testing.assert_array_equal(comm.recv(rank), x)


def test_a_group_that_is_finalized_too_early_says_that_backward_needs_it():
    def program(comm):
        with comm.split(0, comm.rank) as group:
            y = F.allreduce(group, mnpar.Variable(np.ones(1)))
        with pytest.raises(ValueError, match="let it live until backward"):
            y.backward()

    mnpar.run(program, ranks=1)
