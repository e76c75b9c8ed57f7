"""Sums in memory that the ranks of a machine have in common: the same bits as by messages, and the same errors."""

import numpy as np
import pytest

import mnpar
from mnpar.errors import MismatchError

PROCESSES = pytest.mark.ranks(2, 3, on="mpi")


def notes_agree(notes):
    return notes.count(notes[0]) == len(notes)


@PROCESSES
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "c16"])
def test_sums_are_those_of_messages(comm, dtype):
    mine = comm.split(0, comm.rank)
    rng = np.random.default_rng(comm.rank)
    assert mine.open_board()
    for step in range(7):  # more than there are slots
        x = (100 * rng.standard_normal(500)).astype(dtype)
        total = x.copy()
        assert mine.allreduce_noted(total, b"%d" % step, lambda notes: True, total)
        np.testing.assert_array_equal(total, comm.allreduce(x))
    mine.finalize()


@PROCESSES
def test_unusual_notes_leave_values_alone_and_the_next_sum_right(comm):
    comm.open_board()
    for unusual in (False, True, True, False, False):
        x = np.full(10, comm.rank + 1.0)
        summed = comm.allreduce_noted(x, b"x" if unusual and comm.rank else b"o", notes_agree, x)
        assert summed is not unusual
        np.testing.assert_array_equal(x, comm.rank + 1.0 if unusual else comm.size * (comm.size + 1) / 2)
    assert not comm.open_board(False)


@PROCESSES
def test_values_that_do_not_fit_go_by_messages(comm):
    comm.open_board()
    for n in (10, 11, 10):
        x = np.ones(n)
        assert comm.allreduce_noted(x, b"", lambda notes: True, x)
        np.testing.assert_array_equal(x, comm.size)
    comm.open_board(False)


@PROCESSES
def test_values_of_different_forms_are_told_on_all_ranks(comm):
    comm.open_board()
    x = np.ones(10 + comm.rank)
    with pytest.raises(MismatchError, match=r"different dtype or shape"):
        comm.allreduce_noted(x, b"", lambda notes: True, x)
    y = np.ones(3)
    assert comm.allreduce_noted(y, b"", lambda notes: True, y)  # all go on
    comm.open_board(False)


@PROCESSES
def test_a_rank_in_another_collective_is_told_on_all_ranks(comm):
    comm.open_board()
    for odd in range(comm.size):
        x = np.ones(3)
        with pytest.raises(MismatchError, match=r"allgather of float64 \(3,\), at .*test_board"):
            comm.allgather(x) if comm.rank == odd else comm.allreduce_noted(x, b"", lambda notes: True, x)
        z = np.ones(2)
        assert comm.allreduce_noted(z, b"", lambda notes: True, z)
        np.testing.assert_array_equal(z, comm.size)
    comm.open_board(False)


@PROCESSES
def test_ranks_that_are_ahead_do_not_disturb_those_that_still_add(comm):
    """Between sums come exchanges for which some ranks need not wait."""
    comm.open_board()
    for step in range(30):
        x = np.full(50_000 if step % 3 else 5, step + comm.rank + 0.0)
        assert comm.allreduce_noted(x, b"", lambda notes: True, x)
        assert (x == comm.size * step + comm.size * (comm.size - 1) / 2).all()
        comm.send(np.ones(1), (comm.rank + 1) % comm.size)
        if step % 2:
            comm.iallreduce(np.ones(1)).wait()
        comm.recv((comm.rank - 1) % comm.size)
    comm.open_board(False)


@pytest.mark.ranks(1, 2, on="threads")
def test_thread_ranks_have_none(comm):
    assert not comm.open_board()


@PROCESSES
def test_an_optimizer_sums_small_gradients_so(comm):
    import mnpar.functions as F
    import mnpar.links as L

    net = L.Linear(3, 2, initialW=1)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(net)
    twin = L.Linear(3, 2, initialW=1)
    other = mnpar.optimizers.SGD(0.1).setup(twin)
    for step in range(5):
        x = np.arange(6.0 * comm.size).reshape(-1, 3).astype("f4") % (5 + step)
        optimizer.update(lambda x: F.mean(net(x) ** 2), x[2 * comm.rank :][:2])
        other.update(lambda x: F.mean(twin(x) ** 2), x)
    assert comm.transport.board is not None
    np.testing.assert_allclose(net.W.array, twin.W.array, rtol=1e-5)
    comm.open_board(False)
