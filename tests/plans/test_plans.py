"""Plans, against brute force: every cell is written out as a number in small arrays of indexes."""

import itertools
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from mnpar.plans import (
    Box,
    Layout,
    Plan,
    Window,
    block,
    blocks,
    everywhere,
    halo_plan,
    output_shape,
    padded,
    reads,
    transposed_plan,
    transposed_shape,
)
from mnpar.plans.layout import MODES
from mnpar.plans.plan import several

SEEDS = range(40)


def cells(box):
    return set(itertools.product(*[range(a, b) for a, b in zip(box.start, box.stop, strict=True)]))


def random_box(rng, shape, margin=0):
    ends = [sorted(rng.integers(-margin, n + margin + 1, 2)) for n in shape]
    return Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))


def random_shape(rng, longest=6):
    return tuple(rng.integers(1, longest + 1, rng.integers(1, 4)))


# ---- boxes and blocks ----


@pytest.mark.parametrize("parts", range(1, 7))
def test_blocks_of_an_axis_follow_each_other_and_differ_by_one_at_most(parts):
    for n in range(12):
        ends = [block(n, parts, i) for i in range(parts)]
        assert [i for a, b in ends for i in range(a, b)] == list(range(n))
        lengths = [b - a for a, b in ends]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (4, 4), (1, 3), (3, 2), (5, 1)], ids=str)
@pytest.mark.parametrize("length", [28, 32, 27, 31, 7, 2])
def test_the_blocks_of_a_grid_have_every_cell_once(grid, length):
    boxes = blocks((length, length), grid, ranks=17)
    assert len(boxes) == 17
    counts = np.zeros((length, length), int)
    for box in boxes:
        counts[box.start[0] : box.stop[0], box.start[1] : box.stop[1]] += 1
    assert (counts == 1).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_boxes_are_sets_of_cells(seed):
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    a = random_box(rng, shape)
    b = random_box(rng, shape)
    assert cells(a & b) == cells(a) & cells(b)
    assert a.volume == len(cells(a))
    assert a.empty == (not cells(a))
    assert cells(a.shift(shape)) == {tuple(np.add(cell, shape)) for cell in cells(a)}
    rest = a.minus(b)
    assert set().union(*map(cells, rest)) == cells(a) - cells(b)
    assert sum(box.volume for box in rest) == len(cells(a) - cells(b))


def test_a_box_of_no_axes_has_one_cell():
    one = Box((), ())
    assert (one.volume, one.empty, (one & one).volume, one.minus(one)) == (1, False, 1, [])


def test_boxes_do_not_change():
    with pytest.raises(FrozenInstanceError):
        Box((0,), (1,)).start = (1,)


# ---- windows ----


@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_reads_from_its_first_to_its_last_cell(seed):
    rng = np.random.default_rng(seed)
    n, k, s, d, before, after = map(int, rng.integers((1, 1, 1, 1, 0, 0), (20, 8, 5, 4, 7, 7)))
    starts = [o * s - before for o in range(100) if o * s + (k - 1) * d < n + before + after]
    covering = [
        o * s - before
        for o in range(100)
        if o == 0 or (o - 1) * s + (k - 1) * d + 1 < n + before + after
    ]
    assert output_shape((n,), k, s, [(before, after)], d) == (len(starts),)
    if starts:
        assert output_shape((n,), k, s, [(before, after)], d, cover_all=True) == (len(covering),)
    for a, b in itertools.combinations(range(len(starts) + 1), 2):
        read = [start + j * d for start in starts[a:b] for j in range(k)]
        assert reads(Box((a,), (b,)), k, s, [(before, after)], d) == Box(
            (min(read),), (max(read) + 1,)
        )
    assert reads(Box((3,), (3,)), k, s, before, d).empty


@pytest.mark.parametrize("seed", SEEDS)
def test_which_outputs_read_only_some_cells_and_which_read_any_of_them(seed):
    rng = np.random.default_rng(seed)
    k, s, d, before = map(int, rng.integers((1, 1, 1, 0), (8, 5, 4, 7)))
    window = Window.of(1, k, s, before, d)
    outputs = range(-60, 60)
    spans = {o: set(range(o * s - before, o * s - before + (k - 1) * d + 1)) for o in outputs}
    for a, b in itertools.combinations(range(12), 2):
        some = set(range(a, b))
        assert [o for (o,) in sorted(cells(window.inside(Box((a,), (b,)))))] == [
            o for o in outputs if spans[o] <= some
        ]
        assert [o for (o,) in sorted(cells(window.readers(Box((a,), (b,)))))] == [
            o for o in outputs if spans[o] & some
        ]
    assert window.inside(Box((3,), (3,))).empty
    assert window.readers(Box((3,), (3,))).empty


@pytest.mark.parametrize("seed", SEEDS)
def test_a_transposed_window_is_brought_the_values_that_reach_a_block(seed):
    rng = np.random.default_rng(seed)
    k, s, d, ranks = map(int, rng.integers(1, (8, 5, 4, 6)))
    window = Window.of(1, k, s, int(rng.integers(0, 3)), d, bool(rng.integers(2)))
    values = (int(rng.integers(1, 9)),)
    if window.image(values)[0] < 1 or window.outputs(window.image(values)) != values:
        pytest.skip("no transposed window has such values")
    image = transposed_shape(values, k, s, window.pad, d, window.cover_all)
    assert window.outputs((image[0] - 1,)) != values
    plan = transposed_plan(blocks(values, (ranks,)), blocks(image, (ranks,)), values, window)
    spans = [window.reads(Box((o,), (o + 1,))) for o in range(values[0])]
    for box, want in zip(blocks(image, (ranks,)), plan.want, strict=True):
        assert want.shape == (len([span for span in spans if not (span & box).empty]),)


# widths (before, after) of each rank, from the published rules for MNIST and CIFAR networks
HALOS = {
    "conv5 on 28, 2 ranks": (28, 5, 1, 0, [(0, 2), (2, 0)]),
    "conv5 on 28, 4 ranks": (28, 5, 1, 0, [(0, 3), (1, 2), (2, 1), (3, 0)]),
    "pool2 on 24, 2 ranks": (24, 2, 2, 0, [(0, 0)] * 2),
    "pool2 on 24, 4 ranks": (24, 2, 2, 0, [(0, 0)] * 4),
    "conv5 on 12, 2 ranks": (12, 5, 1, 0, [(0, 2), (2, 0)]),
    "conv5 on 12, 4 ranks": (12, 5, 1, 0, [(0, 3), (1, 2), (2, 1), (3, 0)]),
    "pool2 on 8, 4 ranks": (8, 2, 2, 0, [(0, 0)] * 4),
    "local4 on 28, 2 ranks": (28, 4, 1, 0, [(0, 2), (1, 0)]),
    "local4 on 28, 4 ranks": (28, 4, 1, 0, [(0, 3), (0, 2), (1, 1), (2, 0)]),
    "pool3 on 25, 2 ranks": (25, 3, 1, 0, [(0, 1), (1, 0)]),
    "pool3 on 25, 4 ranks": (25, 3, 1, 0, [(0, 1), (1, 1), (1, 1), (1, 0)]),
    "local4 on 32, 2 ranks": (32, 4, 1, 0, [(0, 2), (1, 0)]),
    "local4 on 32, 4 ranks": (32, 4, 1, 0, [(0, 3), (0, 2), (1, 1), (2, 0)]),
    "pool3 on 29, 2 ranks": (29, 3, 1, 0, [(0, 1), (1, 0)]),
    "pool3 on 29, 4 ranks": (29, 3, 1, 0, [(0, 1), (1, 1), (1, 1), (1, 0)]),
    "lcn3 on 23, 2 ranks": (23, 3, 1, 1, [(0, 1), (1, 0)]),
    "lcn3 on 23, 4 ranks": (23, 3, 1, 1, [(0, 1), (1, 1), (1, 1), (1, 0)]),
    "lcn5 on 23, 2 ranks": (23, 5, 1, 2, [(0, 2), (2, 0)]),
    "lcn5 on 23, 4 ranks": (23, 5, 1, 2, [(0, 2), (2, 2), (2, 2), (2, 0)]),
}


@pytest.mark.parametrize(("n", "k", "stride", "pad", "expected"), HALOS.values(), ids=HALOS)
def test_halos_have_the_widths_of_the_table(n, k, stride, pad, expected):
    widths, grid = [], (len(expected),)
    for have, out in zip(
        blocks((n,), grid), blocks(output_shape((n,), k, stride, pad), grid), strict=True
    ):
        need = reads(out, k, stride, pad) & Box.whole((n,))
        widths.append((have.start[0] - need.start[0], need.stop[0] - have.stop[0]))
    assert widths == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(10))
def test_a_padded_layout_shows_what_numpy_pads(mode, seed):
    rng = np.random.default_rng(seed)
    shape, margin = random_shape(rng, 5), 8
    numbers = np.arange(1, np.prod(shape) + 1).reshape(shape)
    around = np.pad(numbers, margin, mode)  # 0 where nothing is shown
    box = random_box(rng, shape, margin)
    expected = around[
        tuple([slice(a + margin, b + margin) for a, b in zip(box.start, box.stop, strict=True)])
    ]
    np.testing.assert_array_equal(numbered(padded(box, shape, mode), numbers), expected)


def test_each_axis_may_be_padded_in_its_own_way():
    numbers = np.arange(6).reshape(2, 3)
    shown = numbered(padded(Box((-1, -1), (3, 4)), (2, 3), ("edge", "wrap")), numbers)
    np.testing.assert_array_equal(
        shown, np.pad(np.pad(numbers, ((1, 1), (0, 0)), "edge"), ((0, 0), (1, 1)), "wrap")
    )


def numbered(layout, numbers):
    """What a layout shows of an array, 0 where it shows nothing."""
    shown = np.zeros(layout.shape, int)
    for part in layout.parts:
        piece = numbers[
            tuple([slice(a, b) for a, b in zip(part.cells.start, part.cells.stop, strict=True)])
        ]
        piece = piece[tuple([slice(None, None, -1 if back else 1) for back in part.reverse])]
        shown[
            tuple([slice(a, b) for a, b in zip(part.place.start, part.place.stop, strict=True)])
        ] = piece
    return shown


# ---- plans ----


def random_plan(rng, replicated=False):
    """A plan of random boxes, some of them padded; some ranks have or want several arrays, or
    nothing.
    """
    shape = random_shape(rng)
    ranks = int(rng.integers(1, 6))

    def entry():
        if rng.random() < 0.3:
            return [random_box(rng, shape) for _ in range(rng.integers(0, 3))]
        if rng.random() < 0.3:
            return padded(random_box(rng, shape, 4), shape, MODES[rng.integers(len(MODES))])
        return random_box(rng, shape)

    return Plan([entry() for _ in range(ranks)], [entry() for _ in range(ranks)], replicated), shape


def arrays_for(rng, entries):
    return [[rng.integers(-9, 10, layout.shape) for layout in several(entry)] for entry in entries]


def carry_out(plan, arrays):
    """What a plan's routes say, in one process."""
    results = [[np.zeros(layout.shape, int) for layout in several(entry)] for entry in plan.want]
    for giver in range(plan.size):
        for parcel in (plan.route(giver).own, *plan.route(giver).sends):
            assert parcel.cells == sum(int(np.prod(move.shape)) for move in parcel.moves)
            for move in parcel.moves:
                piece = arrays[giver][move.source][move.give.slices].sum(
                    move.give.spread, keepdims=True
                )
                assert piece.shape == move.shape
                results[parcel.rank][move.dest][move.take.slices] += piece
    return results


def sums(plan, shape, arrays):
    """Law 2, cell by cell: each wanted cell is the sum of those who have it."""
    numbers = np.arange(1, np.prod(shape) + 1).reshape(shape)
    total = np.zeros(numbers.size + 1, int)
    for entry, mine in zip(plan.have, arrays, strict=True):
        for layout, x in zip(several(entry), mine, strict=True):
            np.add.at(total, numbered(layout, numbers), x)
    total[0] = 0  # what is shown nowhere
    return [[total[numbered(layout, numbers)] for layout in several(entry)] for entry in plan.want]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(x, y)


def dot(xs, ys):
    return sum(
        int((x * y).sum())
        for one, other in zip(xs, ys, strict=True)
        for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_carried_out_gives_the_sum_of_those_who_have_a_cell(seed):
    rng = np.random.default_rng(seed)
    plan, shape = random_plan(rng)
    arrays = arrays_for(rng, plan.have)
    same(carry_out(plan, arrays), sums(plan, shape, arrays))


@pytest.mark.parametrize("replicated", [False, True], ids=["sums", "copies"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_adjoint_plan_is_the_exact_adjoint(seed, replicated):
    rng = np.random.default_rng(seed)
    plan, _ = random_plan(rng, replicated)
    x = arrays_for(rng, plan.have)
    y = arrays_for(rng, plan.want)
    assert dot(carry_out(plan, x), y) == dot(x, carry_out(plan.adjoint, y))
    assert plan.adjoint.adjoint == plan


@pytest.mark.parametrize("seed", SEEDS)
def test_of_copies_each_wanted_cell_comes_once_and_from_the_rank_itself_if_it_can(seed):
    rng = np.random.default_rng(seed)
    plan, shape = random_plan(rng, replicated=True)
    values = rng.integers(1, 100, shape)  # the copies agree
    arrays = [[numbered(layout, values) for layout in several(entry)] for entry in plan.have]
    held = np.zeros(shape, bool)
    for layout in [layout for entry in plan.have for layout in several(entry)]:
        for part in layout.parts:
            held[
                tuple([slice(a, b) for a, b in zip(part.cells.start, part.cells.stop, strict=True)])
            ] = True
    expected = [
        [numbered(layout, values * held) for layout in several(entry)] for entry in plan.want
    ]
    same(carry_out(plan, arrays), expected)
    for rank, (have, want) in enumerate(zip(plan.have, plan.want, strict=True)):
        own = set().union(*[cells(part.cells) for layout in several(have) for part in layout.parts])
        missing = sum(
            len({c for c in cells(part.cells) if held[c]} - own)
            for layout in several(want)
            for part in layout.parts
        )
        assert plan.received(rank) == missing


@pytest.mark.parametrize("seed", SEEDS)
def test_both_ends_of_a_message_agree_on_it_and_there_is_one_for_a_pair(seed):
    plan, _ = random_plan(np.random.default_rng(seed), replicated=seed % 2 == 0)
    for giver, taker in itertools.permutations(range(plan.size), 2):
        sent = [parcel for parcel in plan.route(giver).sends if parcel.rank == taker]
        received = [parcel for parcel in plan.route(taker).receives if parcel.rank == giver]
        assert [p.moves for p in sent] == [p.moves for p in received]
        assert len(sent) <= 1


def test_a_halo_moves_exactly_the_rectangles_that_others_need():
    """Conv5 on 28 × 28 on 2 × 2 ranks: each corner rank gets 2·14 + 14·2 + 2·2 pixels, in three
    messages.
    """
    have = blocks((28, 28), (2, 2))
    out = blocks((24, 24), (2, 2))
    plan = halo_plan(have, out, (28, 28), Window.of(2, 5))
    assert [plan.received(rank) for rank in range(4)] == [60] * 4
    assert [len(plan.route(rank).receives) for rank in range(4)] == [3] * 4


def test_a_halo_in_the_plane_needs_eight_messages_at_most():
    plan = halo_plan(
        blocks((30, 30), (3, 3)), blocks((30, 30), (3, 3)), (30, 30), Window.of(2, 3, pad=1)
    )
    assert [len(plan.route(rank).receives) for rank in range(9)] == [3, 5, 3, 5, 8, 5, 3, 5, 3]


def test_cells_that_are_not_read_by_their_owner_still_go_to_others():
    """Stride 3, kernel 1: the halo of a rank can be negative, and the plan has ranks with nothing
    to compute.
    """
    have = blocks((7,), (4,))
    out = blocks(output_shape((7,), 1, 3), (4,))
    plan = halo_plan(have, out, (7,), Window.of(1, 1, 3))
    assert [layout.shape for layout in plan.want] == [(1,), (1,), (1,), (0,)]
    assert [plan.received(rank) for rank in range(4)] == [0, 0, 1, 0]
    assert [plan.sent(rank) for rank in range(4)] == [0, 0, 0, 1]


def test_no_two_moves_to_one_place_are_missed_and_no_gap():
    plan = Plan([Box((0,), (3,)), Box((2,), (5,))], [Box((0,), (5,)), Box((3,), (7,))])
    assert plan.route(0).apart == (False,)
    assert plan.route(1).apart == (True,)
    assert plan.route(1).full == (False,)
    assert Plan(everywhere((4,), 3), blocks((4,), (3,)), replicated=True).route(0).full == (True,)


def test_different_plans_have_different_fingerprints():
    shape = (5, 4)
    rows = blocks(shape, (2, 1))
    columns = blocks(shape, (1, 2))
    plans = [
        Plan(rows, columns),
        Plan(columns, rows),
        Plan(rows, columns, replicated=True),
        Plan(rows, rows),
    ]
    plans.append(plans[2].adjoint)
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert Plan(rows, columns).fingerprint == plans[0].fingerprint


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Box((0, 0), (1,)), "each axis"),
        (lambda: Box((3,), (2,)), "not before its start"),
        (lambda: block(5, 2, 2), "no part 2"),
        (lambda: blocks((5, 5), (2,)), "does not cut"),
        (lambda: blocks((5,), (3,), ranks=2), "for 2 ranks"),
        (lambda: reads(Box((0, 0), (1, 1)), (3, 3, 3)), "of 2 axes"),
        (lambda: reads(Box((0,), (1,)), 0), "from 1 on"),
        (lambda: padded(Box((0,), (1,)), (5,), "mirror"), "constant"),
        (lambda: Plan([Box((0,), (1,))], []), "one entry for each rank"),
        (lambda: Plan([Box((0,), (1,))], [Layout((1, 1), ())]), r"\[1, 2\] axes"),
    ],
)
def test_what_makes_no_sense_is_said(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_half_a_cell_of_padding_is_told():
    with pytest.raises(TypeError, match=r"of a window are whole numbers, not 1\.5"):
        reads(Box((0,), (4,)), 3, pad=3 / 2)
