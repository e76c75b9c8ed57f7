"""Synkhronos' documented sequences (S1 to S4), to the digit; and its means where its own are
wrong.
"""

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.errors import MismatchError
from mnpar.parallel import SharedVariable

RANKS = pytest.mark.ranks(1, 2, 3, 4, on="threads")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((1000, 10))
W = RNG.standard_normal((10, 5))
REDUCED = {"avg": np.mean, "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def on_root(comm, *arrays):
    return arrays if comm.rank == 0 else [None] * len(arrays)


def one(comm, f, *args, **kwds):
    return mnpar.parallel_function(f, *args, comm=comm, **kwds)


# ---- S1 ----


@pytest.mark.ranks(1, 2, 3)
def test_a_mean_of_a_scattered_and_a_broadcast_operand_is_the_serial_one(comm):
    x, y = on_root(comm, X[:100], W[:, 0])
    f = one(comm, lambda x, y: (x * y).mean(), ["x"], ["y"])
    np.testing.assert_allclose(f(x=x, y=y), (X[:100] * W[:, 0]).mean(), rtol=1e-12)


@RANKS
@pytest.mark.parametrize("num_slices", [1, 3, 4, 7])
@pytest.mark.parametrize("rows", [1000, 7, 1])
def test_every_mode_gives_what_one_process_gives(comm, num_slices, rows):
    x, w = on_root(comm, 1 + X[:rows] / 100, W)

    def f(x, w):
        y = 1 + x @ w / 100
        return [reduce(y, axis=0) for reduce in REDUCED.values()] + [y, np.array(len(y))]

    outputs = [*[(name, name) for name in REDUCED], ("y", "gather"), ("own", None)]
    *results, y, own = one(comm, f, ["x"], ["w"], outputs)(x=x, w=w, num_slices=num_slices)
    truth = 1 + (1 + X[:rows] / 100) @ W / 100
    np.testing.assert_allclose(y, truth, rtol=1e-12)
    for result, reduce in zip(results, REDUCED.values(), strict=True):
        np.testing.assert_allclose(result, reduce(truth, axis=0), rtol=1e-12)
    assert (own is None) == (comm.rank >= rows)


@RANKS
@pytest.mark.parametrize("dtype", ["f2", "f4", "i4"])
def test_means_keep_a_floating_dtype_and_make_float64_of_integers(comm, dtype):
    (x,) = on_root(comm, np.arange(10).astype(dtype))
    mean = one(comm, lambda x: np.asarray(x.mean(dtype="f8" if dtype == "i4" else dtype)), ["x"])(
        x=x, num_slices=2
    )
    assert (float(mean), mean.dtype) == (4.5, "f8" if dtype == "i4" else dtype)


@RANKS
def test_integer_sums_stay_integers(comm):
    (x,) = on_root(comm, np.arange(10))
    total = one(comm, lambda x: x.sum(), ["x"], outputs=[("total", "sum")])(x=x)
    assert (int(total), total.dtype.kind) == (45, "i")


@RANKS
def test_outputs_may_be_named_chosen_and_all_wanted_again(comm):
    (x,) = on_root(comm, np.arange(4.0))
    f = one(
        comm, lambda x: {"b": x.max(), "a": F.sum(x)}, ["x"], outputs=[("a", "sum"), ("b", "max")]
    )
    assert f(x=x) == (6, 3)
    assert f(x=x, output_subset=["b"]) == 3
    assert f(x=x, output_subset=None) == (6, 3)
    assert f(x=x, output_subset=[]) is None
    with pytest.raises(ValueError, match=r"no outputs \['c'\]"):
        f(x=x, output_subset=["c"])


# ---- S2 ----


@pytest.mark.ranks(2)
def test_the_documented_sequence_of_shared_variables(comm):
    (x,) = on_root(comm, np.array([[1.0, 1], [2, 2], [3, 3], [4, 4]]))
    s = SharedVariable(np.ones(2), comm)
    f = one(comm, lambda x: (x * s.array).sum(axis=0), ["x"], outputs=[], updates=[s])
    assert f(x=x) is None
    np.testing.assert_array_equal(s.array, [3, 3] if comm.rank == 0 else [7, 7])
    gathered = s.gather()
    assert (gathered is None) == (comm.rank == 1)
    if comm.rank == 0:
        np.testing.assert_array_equal(gathered, [[3, 3], [7, 7]])
    total = s.reduce("sum")
    if comm.rank == 0:
        np.testing.assert_array_equal(total, [10, 10])
        np.testing.assert_array_equal(s.gather(), [[10, 10], [7, 7]])
    else:
        s.gather()
    s.set_value(np.ones(2))
    f(x=x)
    s.all_reduce("sum")
    np.testing.assert_array_equal(s.all_gather(1), [[10, 10], [10, 10]])


def test_the_documented_sequence_on_one_rank():
    s = SharedVariable(np.ones(2))
    x = np.array([[1.0, 1], [2, 2], [3, 3], [4, 4]])
    mnpar.parallel_function(lambda x: (x * s.array).sum(axis=0), ["x"], outputs=[], updates=[s])(
        x=x
    )
    np.testing.assert_array_equal(s.array, [10, 10])


@pytest.mark.ranks(3, on="threads")
@pytest.mark.parametrize(
    ("op", "second"), [("avg", 2), ("sum", 6), ("prod", 6), ("min", 1), ("max", 3)]
)
def test_the_reductions_of_variables(comm, op, second):
    own = [2.0, comm.rank + 1.0]
    truth = [{"sum": 6, "prod": 8}.get(op, 2), second]
    s = SharedVariable(np.array(own), comm)
    result = s.reduce(op, in_place=False, root=1)
    assert (None if result is None else result.tolist()) == (truth if comm.rank == 1 else None)
    assert s.array.tolist() == own
    s.reduce(op, root=2)
    assert s.array.tolist() == (truth if comm.rank == 2 else own)
    s.set_value(np.array(own))
    assert s.all_reduce(op).tolist() == s.array.tolist() == truth


@RANKS
def test_what_shared_data_hold_is_broadcast_and_scattered(comm):
    """From Synkhronos' Data neither is possible."""
    data = mnpar.SharedData(on_root(comm, X)[0], comm=comm)
    s = SharedVariable(np.zeros(2), comm)
    s.broadcast(data)
    np.testing.assert_array_equal(s.array, X)
    s.scatter(data)
    whole = s.gather(0)
    np.testing.assert_array_equal(X if whole is None else whole, X)
    assert len(s.array) in (len(X) // comm.size, len(X) // comm.size + 1)


@RANKS
def test_the_collectives_on_variables(comm):
    """demo 3: scatter 8P × 4, gather equality, all_reduce avg, set rank 1 back, all_gather."""
    P = comm.size
    values = np.arange(32.0 * P).reshape(8 * P, 4)
    s = SharedVariable(np.zeros((1, 4)), comm)
    s.scatter(*on_root(comm, values))
    np.testing.assert_array_equal(s.array, values[8 * comm.rank : 8 * comm.rank + 8])
    assert s.get_lengths() == [8] * P
    gathered = s.gather(0)
    assert comm.rank or (gathered == values).all()
    s.all_reduce()
    mean = values.reshape(P, 8, 4).mean(axis=0)
    np.testing.assert_allclose(s.array, mean)
    s.set_value(np.full((8, 4), -1.0), rank=P - 1)
    np.testing.assert_allclose(s.get_value(P - 1), -1)
    np.testing.assert_allclose(s.all_gather()[: 8 * (P - 1)], np.tile(mean, (P - 1, 1)))
    assert s.array.shape == (8 * P, 4)
    s.broadcast(np.full(2, comm.rank), root=P - 1)
    np.testing.assert_array_equal(s.array, [P - 1] * 2)
    s.scatter(*on_root(comm, values), batch=[3] * (P + 1))
    assert s.get_shapes() == [(2, 4)] + [(1, 4)] * (P - 1)
    np.testing.assert_array_equal(s.array[-1], values[3])


@RANKS
@pytest.mark.parametrize("rows", [1000, 10, 1])
def test_variables_and_arguments_are_cut_in_one_way(comm, rows):
    (x,) = on_root(comm, X[:rows])
    s = SharedVariable(np.zeros((1, 10)), comm)
    s.scatter(x)
    seen = one(comm, lambda x: x, ["x"], outputs=[("x", None)])(x=x)
    np.testing.assert_array_equal(s.array, np.zeros((0, 10)) if seen is None else seen)


@RANKS
def test_unequal_lengths_are_gathered_whole(comm):
    s = SharedVariable(np.full((comm.rank, 2), comm.rank), comm)
    np.testing.assert_array_equal(
        s.all_gather()[:, 0], np.repeat(range(comm.size), range(comm.size))
    )


# ---- S3 ----

BATCHES = {
    "int": (100, slice(0, 100)),
    "slice": (slice(100, 200), slice(100, 200)),
    "open slice": (slice(900, None), slice(900, None)),
    "slice with a step": (slice(1, 1000, 7), slice(1, 1000, 7)),
    "indices": (RNG.integers(0, 1000, 100).tolist(), None),
    "no rows of most ranks": ([5], None),
}


@RANKS
@pytest.mark.parametrize("shared", [False, True], ids=["array", "SharedData"])
@pytest.mark.parametrize(("batch", "rows"), BATCHES.values(), ids=BATCHES)
def test_a_batch_is_chosen_before_the_rows_are_handed_out(comm, shared, batch, rows):
    truth = X[batch if rows is None else rows]
    x, y = on_root(comm, X, truth)
    y = mnpar.SharedData(y, comm=comm, minibatch=True)
    x = mnpar.SharedData(x, comm=comm) if shared else x
    f = one(
        comm,
        lambda x, y: (x, (x * y).sum(axis=1).mean()),
        ["x", "y"],
        outputs=[("x", "gather"), "mean"],
    )
    for num_slices in (1, 3):
        got, mean = f(x=x, y=y, batch=batch if comm.rank == 0 else None, num_slices=num_slices)
        np.testing.assert_array_equal(got, truth)
        np.testing.assert_allclose(mean, (truth**2).sum(axis=1).mean(), rtol=1e-12)


@RANKS
@pytest.mark.parametrize(
    "batch", [1001, [0, 1000], [-1], slice(990, 1001), slice(0, 9, -1)], ids=str
)
def test_a_batch_beyond_the_rows_is_an_error_on_all_ranks(comm, batch):
    (x,) = on_root(comm, X)
    with pytest.raises(IndexError):
        one(comm, lambda x: x.sum(), ["x"])(x=x, batch=batch)


# ---- S4 ----


@RANKS
@pytest.mark.parametrize("form", ["slice", "list", "slices", "lists"])
@pytest.mark.parametrize("num_slices", [1, 3])
def test_a_batch_of_resident_rows_is_chosen_on_each_rank(comm, form, num_slices):
    P, rng = comm.size, np.random.default_rng(1)
    parts = [rng.standard_normal((20 + r, 3)) for r in range(P)]
    batches = {
        "slice": slice(4, 15),
        "list": [3, 3, 19, 0],
        "slices": [slice(r, 10 + 2 * r) for r in range(P)],
        "lists": [rng.integers(0, 20, 3 + 2 * r).tolist() for r in range(P)],
    }[form]
    each = batches if form.endswith("s") else [batches] * P
    truth = np.concatenate([part[batch] for part, batch in zip(parts, each, strict=True)])
    s = SharedVariable(parts[comm.rank], comm)
    f = one(
        comm, lambda s: (s.mean(axis=0), s), outputs=["mean", ("rows", "gather")], resident=["s"]
    )
    mean, rows = f(s=s, batch_s=batches, num_slices=num_slices)
    np.testing.assert_array_equal(rows, truth)
    np.testing.assert_allclose(mean, truth.mean(axis=0), rtol=1e-12)


@RANKS
def test_resident_rows_beyond_a_ranks_own_are_an_error(comm):
    f = one(comm, lambda s: s.sum(), resident=["s"])
    with pytest.raises(IndexError, match="s has rows"):
        f(s=np.ones(4), batch_s=[0, 4])


@RANKS
def test_updates_of_pieces_are_computed_from_the_old_value_and_applied_once(comm):
    s = SharedVariable(np.array(1.0), comm)
    f = one(comm, lambda x: s.array + x.sum(), outputs=[], resident=["x"], updates=[(s, "sum")])
    f(x=np.ones(4), num_slices=2)
    assert s.array == 6  # (1 + 2) + (1 + 2)


# ---- bad arguments ----


@RANKS
@pytest.mark.parametrize(
    "call",
    [
        lambda one: one(lambda x: x, ["x"], ["x"]),
        lambda one: one(lambda x: x, ["x"], outputs=[("y", "median")]),
        lambda one: one(lambda x: x, ["x"], outputs=["y", "y"]),
        lambda one: one(lambda x: (x, x), ["x"])(x=np.ones(9)),
        lambda one: one(lambda x, y: x, ["x", "y"])(x=np.ones(3), y=np.ones(4)),
        lambda one: one(lambda x: x, ["x"])(x=np.ones(0)),
        lambda one: one(lambda x: x, ["x"])(x=np.ones(3), num_slices=0),
        lambda one: one(lambda x: x, ["x"])(x=np.ones(3), batch_s=[1]),
        lambda one: one(lambda x: x, ["x"])(),
        lambda one: one(lambda x: x, ["x"], outputs=[("y", "sum", 1)]),
        lambda one: one(lambda x: x, ["x"])(x=np.ones(3), num_slices=1.5),
    ],
    ids=[
        "twice",
        "mode",
        "names",
        "results",
        "lengths",
        "no rows",
        "no slices",
        "batch_s",
        "no argument",
        "three",
        "fraction",
    ],
)
def test_bad_arguments_are_errors_on_all_ranks(comm, call):
    with pytest.raises((ValueError, TypeError)):
        call(functools.partial(one, comm))


SAID = {
    "mode": lambda comm: one(
        comm, lambda x: x.sum(), ["x"], outputs=[("y", ["sum", "avg"][comm.rank])]
    )(x=X),
    "resident": lambda comm: one(
        comm, lambda x: x.sum(), outputs=[("y", ["sum", "avg"][comm.rank])], resident=["x"]
    )(x=X),
    "order": lambda comm: one(
        comm, lambda x, y: (x - y).sum(), [["x", "y"], ["y", "x"]][comm.rank]
    )(x=X, y=X),
    "subset": lambda comm: one(comm, lambda x: (x.sum(), x.max()), ["x"], outputs=["y", "z"])(
        x=X, output_subset="yz"[comm.rank]
    ),
    "SharedData": lambda comm: one(comm, lambda x: x.sum(), ["x"])(
        x=[mnpar.SharedData(X, comm=comm), X][comm.rank]
    ),
}


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("program", SAID.values(), ids=SAID)
def test_what_another_rank_says_otherwise_is_told(program):
    with pytest.raises(
        MismatchError,
        match=r"a parallel_function has (outputs|scatter|SharedData) .* on rank 0, and .* on "
        r"rank 1",
    ):
        mnpar.run(program, ranks=2)


@RANKS
@pytest.mark.parametrize("x", [3.0, (i for i in range(3))], ids=["a number", "a generator"])
def test_what_has_no_rows_is_told_by_name(comm, x):
    with pytest.raises(TypeError, match=r"x is .*, which has no rows"):
        one(comm, lambda x: x, ["x"])(x=x)


@RANKS
def test_a_shared_variable_is_no_argument_to_be_scattered_but_its_array_is(comm):
    shared = SharedVariable(X[:7], comm)
    with pytest.raises(
        TypeError, match=r"x is a SharedVariable, of which each rank has its own: give its \.array"
    ):
        one(comm, lambda x: x.sum(), ["x"], outputs=[("y", "sum")])(x=shared)
    result = one(comm, lambda x: x.sum(), ["x"], outputs=[("y", "sum")])(x=shared.array)
    assert result is None or np.allclose(result, X[:7].sum())


@RANKS
def test_a_resident_argument_or_result_that_is_missing_is_named(comm):
    with pytest.raises(TypeError, match=f"rank {comm.rank} gives no values for 'x'"):
        one(comm, lambda x: x, resident=["x"])()
    with pytest.raises(ValueError, match=r"\['value'\] are missing"):
        one(comm, lambda x: {"other": 1}, ["x"])(x=np.ones(4))


@RANKS
def test_means_of_bfloat16_are_bfloat16(comm):
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    mean = one(comm, lambda x: x.mean(axis=0), ["x"])(x=np.ones((4, 2), dtype), num_slices=2)
    assert (mean.dtype, mean.tolist()) == (dtype, [1, 1])


@RANKS
def test_what_was_gathered_is_not_the_argument(comm):
    x = np.ones(4)
    one(comm, lambda x: x, ["x"], outputs=[("y", "gather")])(x=x)[:] = 0
    assert x.sum() == 4


@pytest.mark.ranks(2, on="threads")
@pytest.mark.parametrize(
    ("values", "nd_up"),
    [
        ((np.ones(2), np.ones(3)), 1),
        ((np.ones((2, 2)), np.ones((2, 3))), 0),
        ((1.0, 2.0), 0),
        ((1.0, 2.0), 2),
    ],
    ids=["lengths", "columns", "numbers", "axes"],
)
def test_variables_that_cannot_be_joined_are_told_on_all_ranks(comm, values, nd_up):
    variable = SharedVariable(values[comm.rank], comm, "s")
    for gather in (variable.gather, variable.all_gather):
        with pytest.raises(ValueError, match=r"s has the shapes|s is a single number|0 or 1 axes"):
            gather(nd_up)


@RANKS
def test_a_variable_without_a_value_is_told(comm):
    with pytest.raises(
        TypeError, match=f"rank {comm.rank}: s holds an array or a number, not None"
    ):
        SharedVariable(None, comm, "s")
