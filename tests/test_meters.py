"""flashlight's numbers (F7), and the value of meters on ranks as that of one meter on
everything.
"""

import numpy as np
import pytest

from mnpar import meters
from mnpar.errors import MismatchError

RANKS = pytest.mark.ranks(1, 2, 3, on="threads")


def test_the_average_of_weighted_values():
    meter = meters.AverageValueMeter()
    meter.add(1, 0)
    for x in (2, 3, 4):
        meter.add(x)
    assert meter.value() == (3, 1, 3)
    meter.add(np.array([2, 3, 4]))
    np.testing.assert_allclose(meter.value(), (3, 0.8, 6))
    meter.reset()
    assert meter.value().weight == 0
    assert np.isnan(meter.value().mean)


def test_large_offsets_do_not_spoil_the_variance():
    meter = meters.AverageValueMeter()
    for x in (1e9 + 1, 1e9 + 2, 1e9 + 3):
        meter.add(x)
    assert meter.value().variance == 1


def test_frame_errors():
    meter = meters.FrameErrorMeter()
    right = meters.FrameErrorMeter(accuracy=True)
    for each in (meter, right):
        each.add([1, 2, 3, 4, 5], [1, 1, 3, 3, 5])
    assert (meter.value(), right.value()) == (40, 60)
    meter.add([4, 5, 6, 7], [1, 5, 2, 3])
    assert round(meter.value(), 2) == 55.56


@pytest.mark.parametrize(
    ("output", "target", "edits"),
    [
        ((1, 2, 3, 4, 5), (1, 1, 3, 3, 5, 6), (50, 6, 0, 1, 2)),
        ("kitten", "sitting", (300 / 7, 7, 0, 1, 2)),
        ("", "ab", (100, 2, 0, 2, 0)),
        (np.array([1, 2, 3]), np.array([1]), (200, 1, 2, 0, 0)),
    ],
    ids=["flashlight's", "kitten", "empty", "arrays"],
)
def test_edit_distances(output, target, edits):
    meter = meters.EditDistanceMeter()
    meter.add(output, target)
    np.testing.assert_allclose(meter.value(), edits)


def test_squared_errors_and_counts():
    mse = meters.MSEMeter()
    count = meters.CountMeter(3)
    mse.add([1, 2, 3, 4, 5], [4, 5, 6, 7, 8])
    for index, n in ((0, 10), (1, 11), (0, 12)):
        count.add(index, n)
    assert mse.value() == 45
    assert count.value() == [22, 11, 0]
    with pytest.raises(IndexError, match="no number 3"):
        count.add(3)


def test_a_stop_watch_adds_up_what_it_ran():
    seconds = iter([0.0, 2.0, 5.0, 6.0, 9.0])
    meter = meters.TimeMeter(clock=lambda: next(seconds))
    meter.resume()
    meter.resume()
    meter.stop()
    meter.stop()
    assert meter.value() == 2
    meter.resume()
    assert meter.value() == 3
    meter.stop()
    assert meter.value() == 6
    meter.reset()
    assert meter.value() == 0


# ---- over ranks ----

RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((30, 5))
CLASSES = RNG.integers(0, 5, 30)
STREAMS = {
    "average": (meters.AverageValueMeter, [(float(x), float(w)) for x, w in RNG.random((20, 2))]),
    "count": (
        lambda: meters.CountMeter(4),
        [(int(i), int(n)) for i, n in RNG.integers(0, 4, (20, 2))],
    ),
    "edits": (
        meters.EditDistanceMeter,
        [(RNG.integers(0, 3, 6), RNG.integers(0, 3, 4 + i % 3)) for i in range(9)],
    ),
    "frames": (
        meters.FrameErrorMeter,
        [(RNG.integers(0, 2, n), RNG.integers(0, 2, n)) for n in range(1, 9)],
    ),
    "squares": (meters.MSEMeter, [(RNG.random(n), RNG.random(n), n) for n in range(1, 9)]),
    "top 3": (
        lambda: meters.TopKMeter(3),
        [(SCORES[i : i + 5], CLASSES[i : i + 5]) for i in range(0, 30, 5)],
    ),
}


@RANKS
@pytest.mark.parametrize(("kind", "stream"), STREAMS.values(), ids=STREAMS)
def test_meters_of_ranks_say_what_one_says_that_has_seen_everything(comm, kind, stream):
    mine = kind()
    whole = kind()
    cuts = [0, len(stream) - 1, len(stream), len(stream)]  # uneven, and one rank without any
    for item in stream[
        cuts[comm.rank] : cuts[comm.rank + 1] if comm.rank < comm.size - 1 else None
    ]:
        mine.add(*item)
    for item in stream:
        whole.add(*item)
    meters.sync([mine], comm)
    np.testing.assert_allclose(mine.value(), whole.value())


def test_the_best_k_are_those_with_the_highest_scores():
    meter = meters.TopKMeter(3)
    meter.add(SCORES, CLASSES)
    truth = [
        c in sorted(range(5), key=lambda k: -s[k])[:3] for s, c in zip(SCORES, CLASSES, strict=True)
    ]
    assert meter.value() == pytest.approx(100 * np.mean(truth))


@RANKS
def test_times_of_ranks_are_averaged(comm):
    meter = meters.TimeMeter(unit=True)
    meter.set(1.0 + comm.rank, 2)
    meter.sync(comm)
    assert meter.value() == (comm.size + 1) / 4


def test_shapes_that_differ_are_errors():
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        meters.MSEMeter().add([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"\(N, C\)"):
        meters.TopKMeter(1).add([1, 2], [1, 2])


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, on="threads")
@pytest.mark.parametrize(
    "mine",
    [
        lambda rank: [[meters.FrameErrorMeter, meters.MSEMeter][rank]()],
        lambda rank: [meters.CountMeter(2 + rank)],
        lambda rank: [meters.TimeMeter() for _ in range(1 + rank)],
    ],
    ids=["kinds", "sizes", "numbers"],
)
def test_other_meters_on_another_rank_are_told_on_all(comm, mine):
    with pytest.raises(MismatchError, match="rank 1"):
        meters.sync(mine(comm.rank), comm)


@pytest.mark.parametrize(
    "values",
    [[np.inf, 1], [1, np.inf, 2], [1, -np.inf], [np.inf, -np.inf], [1, np.nan, np.inf]],
    ids=str,
)
def test_the_mean_of_infinite_values_is_numpys(values):
    meter = meters.AverageValueMeter()
    joined = meters.AverageValueMeter()
    for x in values:
        meter.add(x)
    joined.add(np.array(values))
    with np.errstate(invalid="ignore"):
        truth = np.mean(values)
    np.testing.assert_array_equal([meter.value().mean, joined.value().mean], [truth, truth])


def test_squares_of_complex_distances_are_those_of_their_size():
    meter = meters.MSEMeter()
    meter.add(np.array([3j, 1]), np.array([4, 1j]), 2)
    assert meter.value() == pytest.approx((25 + 2) / 2)


@pytest.mark.parametrize(
    "add",
    [
        lambda: meters.AverageValueMeter().add(1, weight=-1),
        lambda: meters.AverageValueMeter().add(1, weight=np.nan),
        lambda: meters.AverageValueMeter().add(1j),
        lambda: meters.CountMeter(2).add(0, 2.5),
        lambda: meters.EditDistanceMeter().add(np.ones((2, 2)), np.ones((2, 2))),
        lambda: meters.MSEMeter().add([1], [1], samples=-1),
    ],
    ids=["weight", "NaN weight", "complex", "fraction", "axes", "samples"],
)
def test_what_no_meter_can_take_is_told(add):
    with pytest.raises(
        (ValueError, TypeError), match=r"weight|real numbers|integer|one axis|0 samples"
    ):
        add()
