"""Arrays on a GPU arrive on a GPU: shown by the stand-in for CuPy."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.kernels.sums import row_sums


@pytest.mark.parametrize("length", [3, 300], ids=["in the match", "after the match"])
def test_every_communication_gives_back_arrays_of_the_kind_it_was_given(device, length):
    def program(comm):
        x = device.asarray(np.arange(float(length)) + comm.rank)
        right = (comm.rank + 1) % comm.size
        left = (comm.rank - 1) % comm.size
        comm.send(x, right)
        y = comm.recv(left)
        np.testing.assert_array_equal(y.get(), np.arange(float(length)) + left)
        results = [
            y,
            comm.allreduce(x),
            comm.bcast(x),
            comm.scatter([x] * comm.size),
            comm.reduce_scatter([x] * comm.size),
        ]
        results += [*comm.allgather(x), *comm.alltoall([x] * comm.size), *(comm.gather(x) or ())]
        on_host = [comm.allreduce(np.ones(length)), *comm.allgather(np.ones(length))]
        return [type(r) for r in results], [type(r) for r in on_host]

    for results, on_host in mnpar.run(program, ranks=3):
        assert set(results) == {device.ndarray}
        assert set(on_host) == {np.ndarray}


def test_an_exchange_and_its_gradient_stay_on_the_device(device):
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (comm.size,))
        x = mnpar.Variable(device.asarray(np.arange(2.0) + 2 * comm.rank))
        y = F.halo_exchange(x, grid, (6,), 5, pad=2, mode="edge")
        (g,) = mnpar.grad([y], [x], [mnpar.Variable(y.array)])
        return [type(a) for a in (y.array, g.array)], y.array.tolist(), g.array.tolist()

    results = mnpar.run(program, ranks=3)
    assert [kinds for kinds, _, _ in results] == [[device.ndarray] * 2] * 3
    assert [y for _, y, _ in results] == [
        [0, 0, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5],
        [2, 3, 4, 5, 5, 5],
    ]
    assert [g for _, _, g in results] == [[0, 2], [6, 9], [8, 20]]


def test_what_a_matrix_is_multiplied_with_is_made_where_it_is(device, monkeypatch):
    made, ones = [], device.ones
    monkeypatch.setattr(device, "ones", lambda *args: made.append(ones(*args)) or made[-1])
    for _ in range(2):  # the second may be on another GPU, or on another stream
        assert row_sums(device.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() == [3, 7]
    assert len(made) == 2
