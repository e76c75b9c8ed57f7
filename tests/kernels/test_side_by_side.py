"""Parts of compiled loops on several threads."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.kernels import compiler, side_by_side, tuning, updates
from mnpar.kernels.compiler import Matrix, Vector, divided
from mnpar.kernels.side_by_side import run_loop, run_stages, threads_for
from mnpar.runtime import blas_threads

needs_loops = pytest.mark.skipif(not compiler.is_usable(), reason="numba is not installed")


@pytest.fixture
def use_threads(monkeypatch):
    """Lets loops have so many threads, however small they are."""
    monkeypatch.setattr(tuning, "LOOP_THREAD_LEAST", 1)
    return lambda n: monkeypatch.setattr(side_by_side, "threads_of_loops", lambda: n)


@divided
def _sort_out(x: Vector, y: Vector, stage: int, stop: int, thread: int, begin: int, end: int):
    if stage <= 0 < stop:
        for i in range(begin, end):
            x[i] *= 2.0
    if stage <= 1 < stop:
        for i in range(begin, end):
            y[i] = x[x.size - 1 - i]


@divided
def _count(x: Vector, room: Matrix, thread: int, begin: int, end: int):
    for i in range(begin, end):
        x[i] += 1.0
        room[thread, i] += 1.0


@needs_loops
@pytest.mark.parametrize("threads", [1, 3])
def test_a_stage_begins_when_the_one_before_has_ended(threads, use_threads):
    use_threads(threads)
    x, y = np.arange(7.0), np.zeros(7)
    run_stages(_sort_out, [(7, 100), (7, 100)], 100, x, y)
    assert y.tolist() == [12, 10, 8, 6, 4, 2, 0]


@needs_loops
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("N", [1, 2, 7, 1000])
@pytest.mark.parametrize("each", [1, 5])
def test_a_loop_computes_each_thing_once(N, threads, each):
    for _ in range(100):  # so that threads beside come in at any time
        x, room = np.zeros(N), np.zeros((threads, N))
        run_loop(_count, N, threads, x, room, each=each)
        assert (x == 1).all()
        assert (room.sum(0) == 1).all()


@needs_loops
def test_threads_of_a_pool_take_parts_of_a_loop():
    N = 2**20
    for _ in range(1000):
        x, room = np.zeros(N), np.zeros((2, N))
        run_loop(_count, N, 2, x, room)
        if room[1].any():
            return
    pytest.fail("the thread beside computed nothing")


@needs_loops
def test_a_divided_loop_says_which_arrays_it_takes():
    with pytest.raises(TypeError, match="_count takes contiguous arrays"):
        run_loop(_count, 4, 2, np.zeros(8)[::2], np.zeros((2, 4)))


@needs_loops
def test_ranks_that_are_threads_share_a_pool():
    found = []

    def rank():
        x, room = np.zeros(300), np.zeros((3, 300))
        for _ in range(500):
            run_loop(_count, 300, 3, x, room)
        found.append((x == 500).all() and (room.sum(0) == 500).all())

    ranks = [threading.Thread(target=rank) for _ in range(6)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert found == [True] * 6


@needs_loops
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_loops_of_a_forked_process_have_threads_of_its_own():
    x, room = np.zeros(300), np.zeros((3, 300))
    run_loop(_count, 300, 3, x, room)
    child = os.fork()
    if not child:
        try:
            for _ in range(100):
                run_loop(_count, 300, 3, x, room)
        finally:
            os._exit(int(x[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 101


@needs_loops
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
@pytest.mark.parametrize("rests", ["", "time.sleep(0.05)"], ids=["spins", "sleeps"])
def test_a_process_ends_whatever_its_threads_do(end, status, rests):
    program = f"""
import os, signal, sys, time
import numpy as np
import mnpar.functions as F
from mnpar.kernels import tuning
tuning.LOOP_THREAD_LEAST = 1
for _ in range(20):
    F.relu(np.zeros(100_000, "f"))
{rests}
{end}
"""
    given = {**os.environ, "OMP_NUM_THREADS": "3", "MNPAR_KERNELS": "numba"}
    ended = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True)
    assert ended.returncode == status, ended.stderr.decode()


@pytest.mark.parametrize(("ranks", "spins"), [(1, True), (2, False)])
def test_threads_spin_only_where_all_ranks_have_cores_for_theirs(ranks, spins, monkeypatch):
    monkeypatch.setattr(blas_threads, "threads_of_loops", lambda: 2)
    monkeypatch.setattr(blas_threads, "_cores", lambda: 3)
    monkeypatch.setattr(blas_threads.shared_cores, "ranks", ranks)
    assert blas_threads.cores_are_free() == spins


@needs_loops
def test_threads_that_do_not_spin_compute_the_same(monkeypatch):
    monkeypatch.setattr(side_by_side, "cores_are_free", lambda: False)
    for _ in range(100):
        x, room = np.zeros(1000), np.zeros((3, 1000))
        run_loop(_count, 1000, 3, x, room)
        assert (x == 1).all()


@pytest.mark.parametrize(
    ("said", "threads"),
    [({}, 3), ({"OMP_NUM_THREADS": "2,4"}, 2), ({"MKL_NUM_THREADS": "5"}, 5)],
    ids=["nothing", "OpenMP's list", "MKL's"],
)
def test_loops_have_as_many_threads_as_the_environment_says_or_cores_of_the_rank(
    said, threads, monkeypatch
):
    for name in blas_threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(blas_threads.large_products, "share", 3)
    blas_threads._told.cache_clear()
    try:
        assert blas_threads.threads_of_loops() == threads
    finally:
        blas_threads._told.cache_clear()


def test_threads_that_multiply_have_one_thread_of_blas_each(monkeypatch):
    class Library:
        num_threads = 3

        def set_num_threads(self, threads):
            self.num_threads = threads

    library = Library()
    monkeypatch.setattr(blas_threads, "_openblas", lambda: [library])
    with blas_threads.one_thread_each:
        with pytest.raises(ZeroDivisionError), blas_threads.one_thread_each:
            raise ZeroDivisionError
        assert library.num_threads == 1
    assert library.num_threads == 3


def test_few_numbers_stay_on_one_thread(monkeypatch):
    monkeypatch.setattr(side_by_side, "threads_of_loops", lambda: 4)
    few = tuning.LOOP_THREAD_LEAST
    asked = [(10, 2 * few - 1), (10, 2 * few), (1, 9 * few), (3, 9 * few), (10, 9 * few)]
    assert [threads_for(*one) for one in asked] == [1, 2, 1, 3, 4]


def images(N, C, size):
    x = np.random.default_rng(0).standard_normal((N, size, size, C), np.float32)
    return mnpar.Variable(x.transpose(0, 3, 1, 2))


made = []  # parameters of the computation


def filters(*shape):
    made.append(mnpar.Variable(np.random.default_rng(1).standard_normal(shape, np.float32)))
    return made[-1]


def normalize(x, C):
    return F.batch_normalization(x, filters(C), filters(C))


def labels(*shape):
    return np.random.default_rng(2).integers(0, 18, shape).astype("i4")


def recurrent(function, x, gates):
    """Sequences of uneven lengths, 40 units."""
    rows = F.reshape(x, (-1, 18))
    ends = np.cumsum([9, 9, 9, 8, 8, 8, 7, 5, 5, 5, 5, 3, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1])
    xs = F.split_axis(rows[: ends[-1]], ends[:-1], 0)
    ws = [[filters(40, 18) for _ in range(gates)] + [filters(40, 40) for _ in range(gates)]]
    bs = [[filters(40) for _ in range(2 * gates)]]
    first = [filters(1, len(xs), 40) for _ in range(2 if gates == 4 else 1)]
    return F.concat(function(1, 0.0, *first, ws, bs, xs)[-1], axis=0)


COMPUTATIONS = {
    "convolution": lambda x: F.convolution_2d(x, filters(20, 18, 2, 2), None, 2),
    "convolution, padded": lambda x: F.convolution_2d(x, filters(20, 18, 3, 3), None, 2, 1),
    "convolution of few": lambda x: F.convolution_2d(x, filters(20, 5, 3, 3), None, 1, 1),
    "convolution with many filters": lambda x: F.convolution_2d(x, filters(70, 18, 3, 3), None, 2),
    "convolution by Winograd's method": lambda x: F.convolution_2d(
        x, filters(32, 18, 3, 3), None, 1, 1
    ),
    "convolution in groups": lambda x: F.convolution_2d(
        x, filters(36, 9, 3, 3), None, 1, 1, groups=2
    ),
    "depthwise": lambda x: F.depthwise_convolution_2d(x, filters(1, 18, 3, 3), None, 1, 1),
    "transposed": lambda x: F.deconvolution_2d(x, filters(18, 20, 2, 2), None, 2),
    "batch normalization": lambda x: normalize(x, 18),
    "group normalization": lambda x: F.group_normalization(x, 3, filters(18), filters(18)),
    "batch normalization of few": lambda x: normalize(x, 5),
    "maxima": lambda x: F.max_pooling_2d(x, 2),
    "maxima of windows that meet": lambda x: F.max_pooling_2d(x, 3, 2, 1),
    "maxima of few": lambda x: F.max_pooling_2d(x, 2),
    "maxima where channels come first": lambda x: F.max_pooling_2d(
        F.reshape(F.reshape(x, (-1,)), x.shape), 2
    ),
    "averages": lambda x: F.average_pooling_2d(x, 3, 2, 1),
    "averages of few": lambda x: F.average_pooling_2d(x, 2),
    "convolution in few groups": lambda x: F.convolution_2d(
        x, filters(10, 9, 3, 3), None, 1, 1, groups=2
    ),
    "joined channels": lambda x: F.relu(F.concat([F.relu(x), F.sigmoid(x), x[:, :3]], axis=1)),
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "softmax of rows": lambda x: F.softmax(F.reshape(x, (7, -1))),
    "cross entropy": lambda x: F.softmax_cross_entropy(x, labels(7, 12, 12), reduce="no"),
    "LSTM": lambda x: recurrent(F.n_step_lstm, x, 4),
    "GRU": lambda x: recurrent(F.n_step_gru, x, 3),
    "relu": F.relu,
    "sigmoid": F.sigmoid,
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_results_and_gradients_are_the_same_bits_whatever_the_number_of_threads(
    name, use_threads, monkeypatch
):
    pytest.importorskip("numba", reason="numba is not installed")
    monkeypatch.setattr(tuning, "WINOGRAD_LOOP_BYTES", 2**16)  # many parts
    found = []
    for threads in (1, 2, 3):
        use_threads(threads)
        x = images(7, 5 if name.endswith("few") else 18, 12)
        made.clear()
        y = COMPUTATIONS[name](x)
        F.sum(y * y).backward()
        found.append([y.array, x.grad, *[p.grad for p in made]])
    for arrays in found[1:]:
        for z, of_one in zip(arrays, found[0], strict=True):
            np.testing.assert_array_equal(z, of_one)


def test_updates_are_the_same_bits_whatever_the_number_of_threads(use_threads):
    pytest.importorskip("numba", reason="numba is not installed")
    found = []
    for threads in (1, 2, 3):
        use_threads(threads)
        rng = np.random.default_rng(0)
        p, g, m, v = [np.abs(rng.standard_normal(1001)).astype("f") for _ in range(4)]
        updates.sgd(p, g, 0.1)
        updates.momentum_sgd(p, g, m, 0.1, 0.9)
        found.append((p, g, m, v))
    for arrays in found[1:]:
        for z, of_one in zip(arrays, found[0], strict=True):
            np.testing.assert_array_equal(z, of_one)
