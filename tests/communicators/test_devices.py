"""Arrays on a GPU arrive on a GPU. A stand-in for CuPy, arrays of a class of its own on the host, shows it without one."""

import sys
import types

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.functions.rows import row_sums


class DeviceArray(np.ndarray):
    """What the stand-in calls an array on a GPU."""


@pytest.fixture
def cupy(monkeypatch):
    stand_in = types.ModuleType("cupy")
    stand_in.ndarray = DeviceArray
    stand_in.asarray = lambda x, dtype=None: np.array(x, dtype).view(DeviceArray)
    stand_in.asnumpy = lambda x: np.array(x).view(np.ndarray)
    for make in ("empty", "full", "zeros"):
        setattr(stand_in, make, lambda *args, make=make: getattr(np, make)(*args).view(DeviceArray))
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    return stand_in


@pytest.mark.parametrize("length", [3, 300], ids=["in the opening", "after the opening"])
def test_every_communication_gives_back_arrays_of_the_kind_it_was_given(cupy, length):
    def program(comm):
        x = cupy.asarray(np.arange(float(length)) + comm.rank)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        comm.send(x, right)
        y = comm.recv(left)
        np.testing.assert_array_equal(np.asarray(y), np.arange(float(length)) + left)
        results = [y, comm.allreduce(x), comm.bcast(x), comm.scatter([x] * comm.size), comm.reduce_scatter([x] * comm.size)]
        results += [*comm.allgather(x), *comm.alltoall([x] * comm.size), *(comm.gather(x) or ())]
        on_host = [comm.allreduce(np.ones(length)), *comm.allgather(np.ones(length))]
        return [type(r) for r in results], [type(r) for r in on_host]

    for results, on_host in mnpar.run(program, ranks=3):
        assert set(results) == {DeviceArray}
        assert set(on_host) == {np.ndarray}


def test_an_exchange_and_its_gradient_stay_on_the_device(cupy):
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (comm.size,))
        x = mnpar.Variable(cupy.asarray(np.arange(2.0) + 2 * comm.rank))
        y = F.halo_exchange(x, grid, (6,), 5, pad=2, mode="edge")
        (g,) = mnpar.grad([y], [x], [mnpar.Variable(y.array)])
        return [type(a) for a in (y.array, g.array)], np.asarray(y.array).tolist(), np.asarray(g.array).tolist()

    results = mnpar.run(program, ranks=3)
    assert [kinds for kinds, _, _ in results] == [[DeviceArray, DeviceArray]] * 3
    assert [y for _, y, _ in results] == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 5, 5]]
    assert [g for _, _, g in results] == [[0, 2], [6, 9], [8, 20]]


def test_what_a_matrix_is_multiplied_with_is_made_where_it_is(cupy):
    made = []
    cupy.ones = lambda *args: made.append(np.ones(*args).view(DeviceArray)) or made[-1]
    for _ in range(2):  # the second may be on another GPU, or on another stream
        assert row_sums(cupy.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() == [3, 7]
    assert len(made) == 2
