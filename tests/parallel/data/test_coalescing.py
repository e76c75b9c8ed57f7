"""flashlight's ways to handle gradients, with its numbers and without its limits."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import (
    CoalescingReducer,
    InlineReducer,
    allreduce_gradients,
    allreduce_multiple,
    allreduce_parameters,
    distribute_module_grads,
)

RANKS = pytest.mark.ranks(1, 2, 3, on="threads")


@RANKS
def test_five_large_arrays_summed_and_scaled(comm):
    arrays = [np.full(2**20, comm.rank + 1, "f4") for _ in range(5)]
    allreduce_multiple(comm, arrays, scale=2)
    for array in arrays:
        np.testing.assert_array_equal(array, comm.size * (comm.size + 1))


@pytest.mark.ranks(2)
def test_more_than_a_bucket_holds_goes_in_several(comm):
    arrays = [np.full(2**20, comm.rank + 1, "f4") for _ in range(30)]  # 120 MiB in all
    allreduce_multiple(comm, arrays)
    assert all((array == 3).all() for array in arrays)


@RANKS
@pytest.mark.parametrize("bucket_bytes", [1, 100, 2**20])
def test_dtypes_shapes_and_layouts_may_be_mixed_whatever_the_bucket(comm, bucket_bytes):
    rng = np.random.default_rng(0)
    given = [
        (rng.standard_normal((comm.size, *shape)) * 9).astype(dtype)
        for shape in ((3, 4), (), (0, 2), (50,))
        for dtype in ("f2", "f4", "f8", "i4")
    ]
    mine = [x[comm.rank].copy(order="F") if x.ndim > 1 else np.array(x[comm.rank]) for x in given]
    mine.append(np.ones((4, 6))[:, ::2])
    allreduce_multiple(comm, mine, bucket_bytes=bucket_bytes)
    for x, total in zip(given, mine, strict=False):
        np.testing.assert_allclose(
            total,
            x.sum(axis=0, dtype=x.dtype),
            rtol=5e-3 if x.dtype == np.float16 else 1e-6,
            atol=1e-2,
        )
    np.testing.assert_array_equal(mine[-1], comm.size)


@RANKS
@pytest.mark.parametrize("bucket_bytes", [1, 3000, 2**20])
def test_coalesced_means_do_not_depend_on_the_bucket(comm, bucket_bytes):
    reducer = CoalescingReducer(comm, 1 / comm.size, bucket_bytes)
    inline = InlineReducer(comm, 1 / comm.size)
    for i in range(30):
        one, other = (np.random.default_rng((i, comm.rank)).standard_normal(100) for _ in range(2))
        reducer.add(one)
        inline.add(other)
        if i % 10 == 9:
            reducer.finalize()
            np.testing.assert_array_equal(one, other)
            drawn = [
                np.random.default_rng((i, rank)).standard_normal(100) for rank in range(comm.size)
            ]
            np.testing.assert_allclose(one, np.mean(drawn, axis=0), rtol=1e-12, atol=1e-15)


@RANKS
@pytest.mark.parametrize("reducer", [InlineReducer, CoalescingReducer])
def test_gradients_of_a_module_are_the_means_of_the_ranks(comm, reducer):
    model, twin = (L.Linear(3, 2, initialW=np.ones((2, 3))) for _ in range(2))
    xs = np.random.default_rng(0).standard_normal((comm.size, 4, 3))
    reducer = reducer(comm, 1 / comm.size)
    distribute_module_grads(model, reducer)
    for _ in range(2):
        model.cleargrads()
        F.sum(model(xs[comm.rank]) ** 2).backward()
        reducer.finalize()
    (F.sum(twin(xs.reshape(-1, 3)) ** 2) / comm.size).backward()
    np.testing.assert_allclose(model.W.grad, twin.W.grad)
    np.testing.assert_allclose(model.b.grad, twin.b.grad)


@RANKS
def test_gradients_that_some_ranks_lack_count_as_zeros_and_those_that_all_lack_stay_away(comm):
    model = mnpar.Chain(a=L.Linear(1, 1, nobias=True), b=L.Linear(1, 1, nobias=True))
    if comm.rank == comm.size - 1:
        F.sum(model.a.W * 4).backward()
    allreduce_gradients(model, comm, 0.5)
    np.testing.assert_array_equal(model.a.W.grad, 2)
    assert model.b.W.grad is None


@RANKS
def test_parameters_become_their_mean(comm):
    model = mnpar.Chain(
        a=L.Linear(2, 2, initialW=comm.rank),
        b=L.Linear(2, 1, initialW=10 * comm.rank),
        c=L.Linear(None, 1),
    )
    allreduce_parameters(model, comm)
    np.testing.assert_allclose(model.b.W.array, 10 * (comm.size - 1) / 2)
    np.testing.assert_allclose(model.a.W.array, (comm.size - 1) / 2)
