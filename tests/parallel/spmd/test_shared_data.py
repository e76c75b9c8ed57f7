"""One array for the ranks of a machine: its life, as Synkhronos documents it, and what it forgets
there.
"""

import numpy as np
import pytest

import mnpar
from mnpar.communicators.threads.transport import ThreadTransport
from mnpar.errors import MismatchError

BOTH = pytest.mark.ranks(2, 3)
THREADS = pytest.mark.ranks(1, 2, 3, on="threads")


def on_root(comm, value):
    return value if comm.rank == 0 else None


@BOTH
def test_all_ranks_see_one_array(comm):
    data = mnpar.SharedData(on_root(comm, np.arange(12.0).reshape(6, 2)), comm=comm)
    np.testing.assert_array_equal(data[:], np.arange(12.0).reshape(6, 2))
    data.sync()
    data[comm.rank] = -comm.rank
    data.sync()
    for rank in range(comm.size):
        np.testing.assert_array_equal(data[rank], -rank)
    np.testing.assert_array_equal(data[[5, 5, 4]], [[10, 11], [10, 11], [8, 9]])
    data.free()


@BOTH
def test_larger_and_smaller_values_and_room_that_stays(comm):
    data = mnpar.SharedData(on_root(comm, np.ones((100, 3), "f4")), comm=comm, oversize=1.1)
    assert (data.shape, data.dtype, data.alloc_size) == ((100, 3), np.float32, 330)
    data.set_value(on_root(comm, np.full((110, 3), 2, "f4")))  # fits
    assert (data.shape, data.alloc_size) == ((110, 3), 330)
    data.set_value(on_root(comm, np.full((10, 3), 3, "f4")))  # keeps its room
    assert (data.shape, data.alloc_size, data[:].sum()) == ((10, 3), 330, 90)
    data.set_value(on_root(comm, np.full((200, 3), 4, "f4")))  # moves
    assert (data.shape, data.alloc_size, data[:].sum()) == ((200, 3), 600, 2400)
    data.free()
    assert (len(data), data.alloc_size) == (0, 0)
    data.set_value(on_root(comm, np.ones((2, 2), "f4")))
    assert data[:].sum() == 4
    data.free()
    data.free()


@BOTH
def test_growing_keeps_the_rows_and_new_ones_are_zeros(comm):
    data = mnpar.SharedData(on_root(comm, np.arange(6).reshape(3, 2)), comm=comm)
    data.set_length(5, oversize=2)
    np.testing.assert_array_equal(data[:], [[0, 1], [2, 3], [4, 5], [0, 0], [0, 0]])
    assert data.alloc_size == 20
    data.set_length(1)
    data.set_length(3)
    np.testing.assert_array_equal(data[:], [[0, 1], [0, 0], [0, 0]])
    data.set_shape((2, 3))
    np.testing.assert_array_equal(data[:], np.zeros((2, 3)))
    data.free()


@THREADS
@pytest.mark.parametrize(
    ("given", "error"),
    [
        (np.ones((2, 2), "f8"), TypeError),
        (np.ones(3, "f4"), ValueError),
        (np.ones((2, 2), "i8"), TypeError),
    ],
    ids=["float64", "one axis", "int64"],
)
def test_what_does_not_fit_is_refused_on_all_ranks(comm, given, error):
    data = mnpar.SharedData(on_root(comm, np.zeros((4, 2), "f4")), comm=comm)
    with pytest.raises(error):
        data.set_value(on_root(comm, given))
    np.testing.assert_array_equal(data[:], 0)
    if given.ndim == 2:
        data.set_value(on_root(comm, given), force_cast=True)
        np.testing.assert_array_equal(data[:], 1)
    data.set_value(on_root(comm, np.ones((1, 2), "f2")))  # nothing is lost
    assert data.dtype == np.float32


@BOTH
def test_a_view_that_somebody_keeps_is_an_error_on_all_ranks_and_harms_nothing(comm):
    data = mnpar.SharedData(on_root(comm, np.arange(4.0)), comm=comm)
    kept = data[1:3] if comm.rank == 1 else None
    for change in (data.free, lambda: data.set_length(9)):
        with pytest.raises(BufferError, match=r"ranks \[1\] keep"):
            change()
    np.testing.assert_array_equal(data[:], np.arange(4.0))
    del kept
    data.set_length(5)
    data.free()
    with pytest.raises(ValueError, match="is freed"):
        data[0]


@THREADS
def test_shape_and_dtype_without_a_value(comm):
    data = mnpar.SharedData(shape=(0, 3), dtype="i4", comm=comm)
    assert (data.shape, data.dtype, len(data)) == ((0, 3), np.int32, 0)
    data.set_length(2)
    np.testing.assert_array_equal(np.asarray(data), np.zeros((2, 3)))


@THREADS
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"value": 3.0},
        {"shape": (2,)},
        {"shape": (), "dtype": "f4"},
        {"value": np.ones(2), "oversize": 3},
        {"value": np.array([None])},
    ],
    ids=str,
)
def test_bad_arguments_are_errors_on_all_ranks(comm, arguments):
    with pytest.raises((ValueError, TypeError)):
        mnpar.SharedData(comm=comm, **arguments)


@pytest.mark.ranks(4, on="threads")
def test_each_machine_gets_the_values_once(comm, monkeypatch):
    monkeypatch.setattr(
        ThreadTransport, "places", lambda self: (self.rank % 2, 2, self.rank // 2, 2)
    )
    monkeypatch.setattr(
        ThreadTransport,
        "share",
        lambda self, nbytes, share=ThreadTransport.share: share(self, nbytes),
    )
    data = mnpar.SharedData(on_root(comm, np.arange(5.0)), comm=comm)
    for root in (3, 2, 1):
        data.set_value(np.full(7, root) if comm.rank == root else None, root=root, force_cast=True)
        np.testing.assert_array_equal(data[:], np.full(7, root))
        comm.barrier()


OF_ANY_KIND = {
    "bfloat16": lambda: np.arange(5).astype(pytest.importorskip("ml_dtypes").bfloat16),
    "a structure": lambda: np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
    "strings": lambda: np.array([["abc", "de"]]),
    "dates": lambda: np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
    "big-endian, backwards": lambda: np.arange(6.0).astype(">f8").reshape(2, 3)[::-1],
}


@pytest.mark.ranks(2, on="threads")
@pytest.mark.parametrize("make", OF_ANY_KIND.values(), ids=OF_ANY_KIND)
def test_any_dtype_is_held_and_goes_to_all_machines(comm, monkeypatch, make):
    monkeypatch.setattr(ThreadTransport, "places", lambda self: (0, 1, self.rank, 2))
    value = make()
    data = mnpar.SharedData(on_root(comm, value), comm=comm)
    assert (data.dtype, data.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(data[:], value)
    data.set_length(len(value) + 1)
    np.testing.assert_array_equal(data[:-1], value)
    np.testing.assert_array_equal(data[-1:], np.zeros((1, *value.shape[1:]), value.dtype))


@THREADS
@pytest.mark.parametrize("shape", [(-1, 2), (2.5, 2), (None, 2), (3,), 3], ids=str)
def test_no_shape_is_told(comm, shape):
    data = mnpar.SharedData(shape=(2, 2), dtype="i4", comm=comm)
    with pytest.raises(ValueError, match="is no shape for it"):
        data.set_shape(shape)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(3, on="threads")
@pytest.mark.parametrize("lengths", [(2, 2, 1), (2, 9, 2)], ids=["in its room", "beyond it"])
def test_another_length_on_one_rank_is_told_on_all(comm, lengths):
    data = mnpar.SharedData(shape=(4, 2), dtype="i4", comm=comm)
    with pytest.raises(
        MismatchError, match=r"\(2, 2\) .* on rank 0, and \([19], 2\) .* on rank [12]"
    ):
        data.set_length(lengths[comm.rank])
    assert data.shape == (4, 2)


@THREADS
def test_nothing_freed_is_synchronized(comm):
    data = mnpar.SharedData(shape=(4,), dtype="i4", comm=comm)
    data.free()
    with pytest.raises(ValueError, match="is freed"):
        data.sync()
