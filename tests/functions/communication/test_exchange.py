"""Exchanges, against one process that holds the whole array: values, gradients, gradients of
gradients, messages.
"""

import contextlib

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.errors import MismatchError
from mnpar.plans import Box, Plan, blocks, everywhere, output_shape, padded, reads
from mnpar.plans.layout import MODES
from mnpar.testing import check_adjoint
from tests.harness.parts import cut


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """What nobody writes is not 0 by chance."""
    empty = np.empty

    def nan(shape, dtype=float, *args, **kwargs):
        array = empty(shape, dtype, *args, **kwargs)
        if array.dtype.kind in "fc":
            array.fill(np.nan)
        elif array.dtype == np.uint8:  # the room of backend.empty_aligned: 255s are a NaN
            array.fill(255)
        return array

    monkeypatch.setattr(np, "empty", nan)


def loss_of(y, w):
    """Something of which all derivatives differ from place to place."""
    return F.sum(F.sin(y) * y * w)


def derivatives(xs, losses, weights):
    """First and second gradients of a sum of losses, of this rank or of one process."""
    gs = mnpar.grad(losses(), xs, enable_double_backprop=True)
    mnpar.backward([F.sum(F.sin(g) * w) for g, w in zip(gs, weights, strict=True) if g is not None])
    return [None if g is None else g.array for g in gs], [x.grad for x in xs]


def serial(whole, shown, ws, vs, have):
    """In one process: rank r sees ``whole.reshape(lead, cells)[..., shown[r]]``; its parts of first
    and second gradients.
    """
    x = mnpar.Variable(whole)
    lead = whole.shape[: whole.ndim - have[0].ndim]
    shape = whole.shape[whole.ndim - have[0].ndim :]

    def losses():
        flat = x.reshape((*lead, int(np.prod(shape))))
        # the last is the padding
        filled = F.concat([flat, np.full((*flat.shape[:-1], 1), 0.5)], axis=flat.ndim - 1)
        return [
            loss_of(F.get_item(filled, (..., index)), w) for index, w in zip(shown, ws, strict=True)
        ]

    (g,), (gg,) = derivatives([x], losses, [vs])
    return [cut(g, box) for box in have], [cut(gg, box) for box in have]


def spread_indexes(shape, boxes, mode):
    """For each box the flat indexes of the cells that it shows; the padding is one beyond the
    last.
    """
    n = int(np.prod(shape))
    numbers, margin = np.arange(n).reshape(shape), 30
    kwargs = {"constant_values": n} if mode == "constant" else {}
    around = np.pad(numbers, margin, mode, **kwargs) if n else np.full([2 * margin] * len(shape), n)
    return [cut(around, box.shift((margin,) * len(shape))) for box in boxes]


class Halo:
    """A random window on a random grid."""

    def __init__(self, seed, later=False):
        rng, self.later = np.random.default_rng(seed), later
        axes = int(rng.integers(1, 4))
        self.ranks = int(rng.integers(1, 9 if axes < 3 else 7))
        factors = [
            d
            for d in np.ndindex(*[self.ranks + 1] * axes)
            if 0 < np.prod(d) <= self.ranks and np.prod(d) > self.ranks / 2
        ]
        self.dims = factors[rng.integers(len(factors))]
        self.shape = tuple(int(n) for n in rng.integers(1, {1: 20, 2: 12, 3: 6}[axes], axes))
        self.kernel, self.stride, self.dilation = [
            tuple(map(int, rng.integers(1, top, axes))) for top in (8, 5, 4)
        ]
        self.pad = [tuple(map(int, pair)) for pair in rng.integers(0, 5, (axes, 2))]
        self.mode = ("constant", "constant", *MODES)[rng.integers(len(MODES) + 2)]
        self.cover_all = bool(rng.integers(2))
        self.lead = ((), (2,), (2, 3), (0,))[rng.integers(4) if axes < 3 else 0]
        self.args = (self.kernel, self.stride, self.pad, self.dilation)
        self.whole = rng.standard_normal((*self.lead, *self.shape))
        outputs = blocks(
            output_shape(self.shape, *self.args, self.cover_all), self.dims, self.ranks
        )
        self.reads = [reads(out, *self.args) for out in outputs]
        self.have = blocks(self.shape, self.dims, self.ranks)
        self.shown = spread_indexes(self.shape, self.reads, self.mode)
        self.ws = [rng.standard_normal((*self.lead, *box.shape)) for box in self.reads]
        self.vs = rng.standard_normal(self.whole.shape)

    def program(self, comm):
        grid = mnpar.SpatialGrid(comm, self.dims)
        x = mnpar.Variable(cut(self.whole, grid.block(self.shape)).copy())

        def chunk():
            return F.halo_exchange(
                x,
                grid,
                self.shape,
                *self.args,
                self.cover_all,
                self.mode,
                fill=0.5,
                later=self.later,
            )

        (g,), (gg,) = derivatives(
            [x],
            lambda: [loss_of(chunk(), self.ws[comm.rank])],
            [cut(self.vs, grid.block(self.shape))],
        )
        with mnpar.no_backprop_mode():
            return chunk().array, g, gg

    def check(self, results):
        flat = np.concatenate(
            [
                self.whole.reshape((*self.lead, int(np.prod(self.shape)))),
                np.full((*self.lead, 1), 0.5),
            ],
            axis=-1,
        )
        firsts, seconds = serial(self.whole, self.shown, self.ws, self.vs, self.have)
        for rank, (y, g, gg) in enumerate(results):
            np.testing.assert_array_equal(y, flat[..., self.shown[rank]])
            np.testing.assert_allclose(
                g if g is not None else 0 * firsts[rank], firsts[rank], rtol=1e-12, atol=1e-12
            )
            np.testing.assert_allclose(
                gg if gg is not None else 0 * seconds[rank], seconds[rank], rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize("seed", range(150))
def test_the_halo_of_any_window_has_values_and_both_gradients_of_one_process(seed):
    halo = Halo(seed, later=seed % 2 == 1)
    halo.check(mnpar.run(halo.program, ranks=halo.ranks))


@pytest.mark.ranks(1, 2, 3, 4)
def test_halos_over_several_ranks_at_once(comm):
    """A window of 7 with dilation 3 on blocks of two or three cells: cells come from ranks that are
    no neighbours.
    """
    whole = np.arange(10.0) ** 2
    grid = mnpar.SpatialGrid(comm, (comm.size,))
    x = mnpar.Variable(cut(whole, grid.block((10,))).copy())
    y = F.halo_exchange(x, grid, (10,), ksize=7, pad=9, dilate=3)
    box = reads(grid.block((10,)), 7, 1, 9, 3)
    np.testing.assert_array_equal(y.array, cut(np.pad(whole, 9), box.shift((9,))))
    F.sum(y * y).backward()
    counts = np.zeros(28)
    for out in grid.blocks((10,)):
        counts[out.start[0] : out.stop[0] + 18] += 1
    np.testing.assert_array_equal(x.grad, cut(2 * whole * counts[9:-9], grid.block((10,))))


# ---- random plans ----


def random_entries(rng, shape, ranks):
    def box():
        ends = [sorted(rng.integers(0, n + 1, 2)) for n in shape]
        return Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))

    def entry():
        kind = rng.integers(4)
        if kind == 0:
            return [box() for _ in range(rng.integers(0, 3))]
        return (
            padded(box().shift((-2,) * len(shape)), shape, MODES[rng.integers(len(MODES))])
            if kind == 1
            else box()
        )

    return [entry() for _ in range(ranks)]


def shapes_of(entry):
    return [layout.shape for layout in (entry if isinstance(entry, tuple) else (entry,))]


def tuple_of(ys):
    return ys if isinstance(ys, tuple) else (ys,)


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("replicated", [False, True], ids=["sums", "copies"])
@pytest.mark.parametrize("exchange", [F.exchange, F.iexchange])
def test_backward_of_any_plan_is_the_exact_adjoint(seed, replicated, exchange):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 6, rng.integers(0, 4)))
    ranks = int(rng.integers(1, 6))
    plan = Plan(random_entries(rng, shape, ranks), random_entries(rng, shape, ranks), replicated)

    def program(comm):
        values = np.random.default_rng([seed, comm.rank])
        have = plan.have[comm.rank]
        xs = [values.standard_normal((2, *s)) for s in shapes_of(have)]

        def function(*xs):
            return tuple_of(exchange(comm, xs if isinstance(have, tuple) else xs[0], plan))

        check_adjoint(function, comm, xs)
        first = [mnpar.Variable(x) for x in xs]
        gs = mnpar.grad(
            [F.sum(y * y * y) for y in function(*first)], first, enable_double_backprop=True
        )
        check = [F.sum(g * g) for g in gs if g is not None]
        mnpar.backward(check)  # of higher order: it ends, on every rank
        return [x.grad is None or np.isfinite(x.grad).all() for x in first]

    assert all([all(ok) for ok in mnpar.run(program, ranks=ranks)])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_cells_of_several_ranks_are_added_and_their_gradients_are_too(ranks):
    """Every rank has all, every rank wants all: an allreduce; the second derivative of Σ_r Σ (Σ_q
    x_q)³ is 6·P·Σx·Σv.
    """
    plan = Plan(everywhere((4,), ranks), everywhere((4,), ranks))

    def program(comm):
        x = mnpar.Variable(np.arange(4.0) + comm.rank)
        y = F.exchange(comm, x, plan)
        (g,) = mnpar.grad([F.sum(y * y * y)], [x], enable_double_backprop=True)
        F.sum(g * (comm.rank + 1)).backward()
        return y.array, g.array, x.grad

    total = sum([np.arange(4.0) + rank for rank in range(ranks)])
    for y, g, gg in mnpar.run(program, ranks=ranks):
        np.testing.assert_array_equal(y, total)
        np.testing.assert_allclose(g, 3 * ranks * total**2)
        np.testing.assert_allclose(gg, 6 * ranks * total * sum(range(1, ranks + 1)))


# ---- repartition ----

PARTITIONS = {
    "rows": lambda shape, p: blocks(shape, (p, 1)),
    "columns": lambda shape, p: blocks(shape, (1, p)),
    "blocks": lambda shape, p: blocks(shape, (p // 2, 2) if p > 1 else (1, 1), p),
    "everywhere": everywhere,
    "on the last rank": lambda shape, p: (*[Box(shape, shape)] * (p - 1), Box.whole(shape)),
}


@pytest.mark.grid
@pytest.mark.parametrize("want", PARTITIONS)
@pytest.mark.parametrize("have", PARTITIONS)
@pytest.mark.ranks(1, 2, 3, 4)
def test_an_array_goes_from_any_partition_to_any_other(comm, have, want):
    for shape in ((5, 3), (2, 7), (0, 4)):
        before, after = [PARTITIONS[name](shape, comm.size) for name in (have, want)]
        whole = np.random.default_rng(0).standard_normal((2, *shape))
        x = mnpar.Variable(cut(whole, before[comm.rank]).copy())
        y = F.repartition(comm, x, before, after)
        np.testing.assert_array_equal(y.array, cut(whole, after[comm.rank]))
        F.sum(y * y).backward()
        total = np.zeros_like(whole)
        for g in comm.allgather_obj((before[comm.rank], x.grad)):
            if g[1] is not None:
                cut(total, g[0])[...] += g[1]
        copies = comm.size if want == "everywhere" else 1
        np.testing.assert_allclose(total, 2 * whole * copies)


@pytest.mark.parametrize("ranks", [5, 6, 8])
def test_there_and_back_again_is_the_identity(ranks):
    shape = (7, 3)

    def program(comm):
        rows = blocks(shape, (ranks, 1))
        columns = blocks(shape, (1, ranks))
        whole = np.random.default_rng(0).standard_normal(shape)
        x = mnpar.Variable(cut(whole, rows[comm.rank]).copy())
        y = F.repartition(comm, F.repartition(comm, x, rows, columns) * 2, columns, rows)
        np.testing.assert_array_equal(y.array, 2 * x.array)
        F.sum(y * y).backward()
        np.testing.assert_allclose(x.grad, 8 * x.array)

    mnpar.run(program, ranks=ranks)


def test_whole_arrays_are_cut_without_a_message():
    def program(comm):
        F.repartition(comm, np.ones((4, 4)), everywhere((4, 4), 3), blocks((4, 4), (3, 1)))
        return comm.traffic.messages

    assert mnpar.run(program, ranks=3) == [0, 0, 0]


# ---- who wants a gradient ----


now_and_later = pytest.mark.parametrize("later", [False, True], ids=["now", "later"])


@now_and_later
@pytest.mark.ranks(2, 3, 4)
def test_a_rank_without_a_gradient_of_its_own_gives_the_others_theirs(comm, later):
    """Only rank 0 has Variables; all use the result, in any order of differentiation."""
    grid = mnpar.SpatialGrid(comm, (comm.size,))
    n = 3 * comm.size
    own = np.arange(3.0) + 3 * comm.rank
    x = mnpar.Variable(own, requires_grad=comm.rank == 0)
    y = F.halo_exchange(x, grid, (n,), 3, pad=1, later=later)
    (g,) = mnpar.grad([F.sum(y * y * y)], [x], enable_double_backprop=True)
    if comm.rank == 0:
        np.testing.assert_allclose(g.array, 3 * own**2 * [1, 1, 2])
        F.sum(g).backward()
        np.testing.assert_allclose(x.grad, 6 * own * [1, 1, 2])
    else:
        mnpar.backward()
        assert x.grad is None


@now_and_later
@pytest.mark.ranks(2, 3, 4)
def test_a_result_that_nobody_uses_keeps_nobody_waiting(comm, later):
    grid = mnpar.SpatialGrid(comm, (comm.size,))
    x = mnpar.Variable(np.ones(2))
    F.halo_exchange(x, grid, (2 * comm.size,), 3, pad=1, later=later)
    y = F.halo_exchange(x, grid, (2 * comm.size,), 3, pad=1, later=later)
    if comm.rank == 0:
        F.sum(y).backward()
        np.testing.assert_array_equal(x.grad, [1.0, 1.0])
    else:
        mnpar.backward()
        assert x.grad is None if comm.rank > 1 else x.grad.tolist() == [1.0, 0.0]


@now_and_later
@pytest.mark.ranks(2, 3, 4)
def test_where_a_part_of_the_result_has_no_gradient_it_is_zero(comm, later):
    shape = (4, 5)
    rows = blocks(shape, (comm.size, 1))
    columns = blocks(shape, (1, comm.size))
    x = mnpar.Variable(cut(np.ones(shape), rows[comm.rank]).copy())
    y = (F.iexchange if later else F.exchange)(comm, x, Plan(rows, columns))
    if comm.rank == 0:
        F.sum(y).backward()
    else:
        mnpar.backward()
    expected = np.zeros(shape)
    cut(expected, columns[0])[...] = 1
    np.testing.assert_array_equal(x.grad, cut(expected, rows[comm.rank]))


@now_and_later
@pytest.mark.ranks(2, 3)
def test_a_rank_that_does_not_record_says_so(comm, later):
    grid = mnpar.SpatialGrid(comm, (comm.size,))
    x = mnpar.Variable(np.ones(2))
    with mnpar.no_backprop_mode() if comm.rank == 1 else contextlib.nullcontext():
        y = F.halo_exchange(x, grid, (2 * comm.size,), 3, pad=1, later=later)
    if comm.rank == 1:
        mnpar.backward()
        assert y.creator is None
    else:
        F.sum(y).backward()
        np.testing.assert_array_equal(x.grad, [1.0, 1.0])


@now_and_later
@pytest.mark.ranks(3)
def test_a_rank_with_nothing_may_give_none(comm, later):
    nothing = Box((0,), (0,))
    plan = Plan([nothing, Box((0,), (4,)), []], [Box((1,), (3,)), nothing, [Box((0,), (1,))]])
    x = mnpar.Variable(np.arange(4.0)) if comm.rank == 1 else None
    y = (F.iexchange if later else F.exchange)(comm, x, plan)
    if comm.rank == 0:
        np.testing.assert_array_equal(y.array, [1.0, 2.0])
        F.sum(y).backward()
    elif comm.rank == 1:
        assert y.shape == (0,)
        mnpar.backward()
        np.testing.assert_array_equal(x.grad, [3.0, 1.0, 1.0, 0.0])
    else:
        F.sum(y[0] * 3).backward()


@pytest.mark.ranks(2, 3, 4)
def test_exchanges_may_be_waited_for_in_another_order_on_each_rank(comm):
    grid = mnpar.SpatialGrid(comm, (comm.size,))
    n = 2 * comm.size
    x = mnpar.Variable(np.arange(2.0) + 2 * comm.rank)
    one = F.halo_exchange(x, grid, (n,), 3, pad=1, later=True)
    other = F.halo_exchange(x * 2, grid, (n,), 3, pad=1, mode="wrap", later=True)
    F.halo_exchange(x, grid, (n,), 3, later=True)  # never used
    third = F.allreduce(comm, F.sum(x))
    ys = [F.sum(y * y) for y in ((one, other) if comm.rank % 2 else (other, one))]
    (g,) = mnpar.grad([ys[0] + ys[1] + third], [x], enable_double_backprop=True)
    F.sum(g).backward()
    whole = np.arange(float(n))
    me = slice(2 * comm.rank, 2 * comm.rank + 2)
    seen = np.full(n, 2.0)  # each cell by its owner and by one neighbour, but
    seen[[0, -1]] = 1
    count = 2 * seen + 2 * 4 * 2  # d²/dx² of x² seen so often, and of (2x)² seen twice
    np.testing.assert_allclose(g.array, (count * whole)[me] + comm.size)
    np.testing.assert_allclose(x.grad, count[me])


def test_while_messages_are_on_their_way_a_rank_can_work():
    """Rank 1 sends only after rank 0 has done something else: a rank that waited at once would
    never do it.
    """

    def program(comm):
        plan = Plan(blocks((2,), (2,)), everywhere((2,), 2))
        if comm.rank == 0:
            y = F.iexchange(comm, np.array([1.0]), plan)
            comm.send(np.array(0), 1)
            return y.array.tolist()
        comm.recv(0)
        return F.exchange(comm, np.array([2.0]), plan).array.tolist()  # the other end does not mind

    with mnpar.no_backprop_mode():
        assert mnpar.run(program, ranks=2) == [[1.0, 2.0], [1.0, 2.0]]


# ---- dtypes and fills ----


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16", "i4", "?"])
@pytest.mark.ranks(2)
def test_every_dtype_arrives_as_it_left(comm, dtype):
    grid = mnpar.SpatialGrid(comm, (2,))
    y = F.halo_exchange(np.array([comm.rank, 1]).astype(dtype), grid, (4,), 3, pad=1)
    assert y.dtype == dtype
    np.testing.assert_array_equal(
        y.array, np.array([[0, 0, 1, 1], [1, 1, 1, 0]][comm.rank]).astype(dtype)
    )


@pytest.mark.parametrize("exchange", [F.exchange, F.iexchange])
def test_halves_are_added_in_single_precision(exchange):
    """2048 + 1 + 1 is 2050: one by one, in half precision, it stays 2048."""
    plan = Plan(everywhere((1,), 3), everywhere((1,), 3))
    numbers = [2048, 1, 1]

    def program(comm):
        x = mnpar.Variable(np.array([numbers[comm.rank]], "f2"))
        y = exchange(comm, x, plan)
        (g,) = mnpar.grad([y], [x], [mnpar.Variable(x.array.copy())])
        return y.array, g.array

    for sums in mnpar.run(program, ranks=3):
        assert [(s.dtype, s.item()) for s in sums] == [(np.float16, 2050.0)] * 2


@pytest.mark.ranks(2, 3)
def test_nothing_unwritten_is_seen_when_every_output_is_checked(comm):
    rows = blocks((4, 5), (comm.size, 1))
    columns = blocks((4, 5), (1, comm.size))
    with mnpar.using_config("debug", True):
        x = mnpar.Variable(np.ones(rows[comm.rank].shape))
        for exchange in (F.exchange, F.iexchange):
            F.sum(exchange(comm, x, Plan(rows, columns))).backward()
    np.testing.assert_array_equal(x.grad, np.full(x.shape, 2.0))


@pytest.mark.ranks(1, 2, 3)
def test_the_cells_that_a_rank_gets_begin_at_a_cache_line(comm):
    shape = (7, 9)
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))
    x = np.ones((2, *grid.block(shape).shape), "f4")
    rows, columns = grid.blocks(shape), blocks(shape, (1, comm.size))
    wide = F.halo_exchange(x, grid, shape, ksize=3, pad=1, mode="wrap")
    for y in (wide, F.repartition(comm, x, rows, columns)):
        assert y.array.ctypes.data % 64 == 0  # JAX reads it without a copy


def test_the_padding_of_a_maximum_is_minus_infinity():
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2,))
        x = mnpar.Variable(np.array([-3.0, -2.0]) - comm.rank)
        with mnpar.using_config("debug", True):  # which looks for NaN there, and infinity elsewhere
            y = F.halo_exchange(x, grid, (4,), 3, pad=1, fill=-np.inf)
            F.max(y).backward()
        return y.array.tolist(), x.grad.tolist()

    inf = np.inf
    assert mnpar.run(program, ranks=2) == [
        ([-inf, -3, -2, -4], [0, 2]),
        ([-2, -4, -3, -inf], [0, 0]),
    ]


# ---- traffic ----


@pytest.mark.ranks(4)
def test_bytes_are_exactly_the_rectangles_and_backward_moves_as_many(comm, monkeypatch):
    """28 × 28 on 2 × 2 ranks, kernel 5, a batch of 100 in float32: 60 pixels for each rank, 24
    kB.
    """
    grid = mnpar.SpatialGrid(comm, (2, 2))
    x = mnpar.Variable(np.ones((100, 1, 14, 14), "f4"))
    monkeypatch.setattr(comm, "barrier", None)  # neon had seven of them
    y = F.halo_exchange(x, grid, (28, 28), 5)
    assert y.shape == (100, 1, 16, 16)
    sent = comm.traffic.bytes
    assert comm.traffic.messages == 3
    assert comm.allreduce(np.array(sent)) == 4 * 24_000
    before = comm.traffic.collectives
    F.sum(y).backward()
    assert comm.traffic.messages == 6
    monkeypatch.undo()
    assert comm.traffic.collectives == before
    assert comm.allreduce(np.array(comm.traffic.bytes)) == 2 * 4 * 24_000


def test_a_plan_is_made_once_for_each_shape():
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 1))
        for n in (3, 5):
            F.halo_exchange(np.ones((n, 2, 3)), grid, (4, 3), (3, 1))
        from mnpar.plans import Window

        window = Window.of(2, 3)
        return grid.halo((9, 9), window) is mnpar.SpatialGrid(comm, (2, 1)).halo([9, 9], window)

    assert mnpar.run(program, ranks=2) == [True, True]


# ---- errors ----


def failing(program, ranks=2):
    with pytest.raises((ValueError, MismatchError)) as caught:
        mnpar.run(program, ranks=ranks)
    return str(caught.value)


def test_ranks_with_different_plans_are_told():
    def program(comm):
        n = 4 + comm.rank
        F.exchange(comm, np.ones(2), Plan([Box((0,), (2,)), Box((2,), (4,))], everywhere((n,), 2)))

    text = failing(program)
    assert "different plans" in text
    assert text.count("test_exchange.py:") == 2


def test_ranks_with_different_arrays_are_told():
    plan = Plan([Box((0,), (2,)), Box((2,), (4,))], everywhere((4,), 2))
    text = failing(lambda comm: F.exchange(comm, np.ones((comm.rank + 1, 2)), plan))
    assert "different arrays" in text
    assert "(1, 2)" in text
    assert "(2, 2)" in text
    assert "different arrays" in failing(
        lambda comm: F.exchange(comm, np.ones(2, ("f4", "f8")[comm.rank]), plan)
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda comm: F.exchange(comm, np.ones(3), Plan([Box((0,), (3,))], [Box((0,), (3,))])),
            "a plan of 1 ranks",
        ),
        (
            lambda comm: F.exchange(
                comm, np.ones(3), Plan(everywhere((2,), 2), everywhere((2,), 2))
            ),
            "(…, 2)",
        ),
        (
            lambda comm: F.exchange(comm, None, Plan(everywhere((2,), 2), everywhere((2,), 2))),
            "1 arrays ((2,))",
        ),
        (
            lambda comm: F.repartition(comm, np.ones(2), everywhere((2,), 2), everywhere((3,), 2)),
            "no rank has some",
        ),
        (lambda comm: mnpar.SpatialGrid(comm, (2, 2)), "its 4 parts: the communicator has 2"),
        (
            lambda comm: F.halo_exchange(
                np.ones(2), mnpar.SpatialGrid(comm, (2,)), (4,), 3, mode="mirror"
            ),
            "mirror",
        ),
        (
            lambda comm: F.halo_exchange(np.ones(3), mnpar.SpatialGrid(comm, (2,)), (4,), 3),
            "(…, 2)",
        ),
    ],
)
def test_what_does_not_fit_is_said(call, words):
    assert words in failing(call)
