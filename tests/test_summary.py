"""Running statistics of what is reported: weighted, by name, over ranks, and after saving and
loading.
"""

import math

import ml_dtypes
import numpy as np
import pytest

import mnpar
from tests.harness.trainers import load, saved

VALUES = [1.0, 4.0, 2.5]


@pytest.mark.parametrize("kind", [float, np.float32, np.array, lambda x: np.array(x, "f")])
def test_statistics_are_mean_and_deviation(kind):
    summary = mnpar.Summary()
    for x in VALUES:
        summary.add(kind(x))
    np.testing.assert_allclose(summary.compute_mean(), np.mean(VALUES))
    np.testing.assert_allclose(summary.make_statistics(), [np.mean(VALUES), np.std(VALUES)])


def test_weights_count_a_value_several_times():
    summary = mnpar.Summary()
    summary.add(1.0, weight=3)
    summary.add(5.0)
    np.testing.assert_allclose(
        summary.make_statistics(), [np.mean([1, 1, 1, 5]), np.std([1, 1, 1, 5])]
    )


def test_sums_of_float16_do_not_lose_values():
    summary = mnpar.Summary()
    for _ in range(5000):
        summary.add(np.array(1.5, "e"))
    assert summary.make_statistics() == (1.5, 0.0)


def test_the_deviation_of_equal_values_is_not_the_root_of_a_rounding_error():
    summary = mnpar.Summary()
    for _ in range(10):
        summary.add(0.1)
    assert summary.make_statistics()[1] < 1e-8


def test_nothing_has_no_mean():
    assert all(math.isnan(x) for x in mnpar.Summary().make_statistics())


def test_dicts_are_summarized_by_name_and_only_scalars():
    summary = mnpar.DictSummary()
    summary.add(
        {
            "a": 1.0,
            "b": mnpar.Variable(np.array(2.0)),
            "text": "x",
            "vector": np.ones(2),
            "none": None,
        }
    )
    summary.add(
        {"a": (4.0, 2), "b": (np.float32(5.0), mnpar.Variable(np.array(1))), "c": np.array(7)}
    )
    assert summary.compute_mean() == {"a": 3.0, "b": 3.5, "c": 7.0}
    statistics = summary.make_statistics()
    assert list(statistics) == ["a", "a.std", "b", "b.std", "c", "c.std"]
    np.testing.assert_allclose(statistics["a.std"], np.std([1, 4, 4]))


def test_a_weight_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="the weight of a is not a number"):
        mnpar.DictSummary().add({"a": (1.0, np.ones(2))})


@pytest.mark.parametrize("names", [["a", "b/c"], []], ids=["two", "none"])
def test_summaries_go_on_after_saving_and_loading(names):
    first = mnpar.DictSummary()
    second = mnpar.DictSummary()
    first.add(dict.fromkeys(names, 1.0))
    load(saved(first), second)
    second.add(dict.fromkeys(names, 4.0))
    assert second.compute_mean() == dict.fromkeys(names, 2.5)


@pytest.mark.ranks(1, 2, 3, on="threads")
def test_the_sums_of_ranks_give_the_statistics_of_all(comm):
    values = [[1.0, 2.0], [], [7.0]][: comm.size]
    mine = mnpar.DictSummary()
    total = mnpar.DictSummary()
    for x in values[comm.rank]:
        mine.add({"x": x, f"only {comm.rank}": x}, weight=3)
    total.merge(comm.allgather_obj(mine.sums()))
    everything = [x for each in values for x in each]
    np.testing.assert_allclose(total.make_statistics()["x"], np.mean(everything))
    np.testing.assert_allclose(total.make_statistics()["x.std"], np.std(everything))
    assert list(total.compute_mean()) == ["x", "only 0", *(["only 2"] if comm.size == 3 else [])]


def test_nan_and_infinity_show():
    for x in (math.nan, math.inf):
        summary = mnpar.Summary()
        summary.add(x)
        summary.add(1.0)
        assert not math.isfinite(summary.compute_mean())
        assert math.isnan(summary.make_statistics()[1])


def test_bfloat16_is_a_number():
    one = ml_dtypes.bfloat16(1.5)
    summary = mnpar.DictSummary()
    summary.add(
        {
            "array": np.array(one),
            "scalar": one,
            "void": np.zeros((), "V2"),
            "structure": np.zeros((), [("a", "f4")]),
        }
    )
    assert summary.compute_mean() == {"array": 1.5, "scalar": 1.5}
