"""Extensions that look at values, parameters and gradients."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.training import extensions
from tests.harness.trainers import counting, load, saved


def observed(tmp_path, *more, stop=4, **values):
    """The observation of each iteration."""
    seen, trainer = [], counting(tmp_path, (stop, "iteration"), length=2, **values)
    for one in more:
        trainer.extend(one)
    trainer.extend(lambda trainer: seen.append(dict(trainer.observation)), name="see")
    trainer.run()
    return seen


def test_a_value_is_observed_at_each_epoch(tmp_path):
    seen = observed(
        tmp_path,
        extensions.observe_value("i", lambda trainer: trainer.updater.iteration),
        extensions.observe_lr(),
    )
    assert seen == [{}, {"i": 2, "lr": 1.0}, {}, {"i": 4, "lr": 1.0}]


def test_the_rate_of_another_optimizer_may_have_another_name(tmp_path):
    trainer = counting(tmp_path, (2, "iteration"), length=2)
    trainer.updater.get_optimizer = {"second": mnpar.optimizers.MomentumSGD(lr=0.25)}.__getitem__
    trainer.extend(extensions.observe_lr("second", "rate"))
    trainer.run()
    assert trainer.observation == {"rate": 0.25}


# Non-numbers.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.ranks(2, on="threads")
def test_a_number_that_is_none_ends_training_and_is_named(comm, bad, tmp_path):
    trainer = counting(tmp_path)
    trainer.updater.model.w.array = np.array([bad if comm.rank == 1 else 0, 1.0], "f")
    trainer.extend(extensions.FailOnNonNumber())
    if comm.rank == 0:
        trainer.run()
        return
    what = "1 NaN and 0 infinite" if np.isnan(bad) else "0 NaN and 1 infinite"
    with pytest.raises(
        RuntimeError,
        match=rf"rank 1: parameter /w of optimizer 'main' has {what} of 2 values after iteration "
        r"1: lower the",
    ):
        trainer.run()


def test_a_parameter_without_an_array_is_a_number(tmp_path):
    trainer = counting(tmp_path, (1, "iteration"))
    trainer.updater.model.later = mnpar.Parameter()
    trainer.updater.model.w.array = np.zeros(2, "f")
    trainer.extend(extensions.FailOnNonNumber())
    trainer.run()
    assert trainer.updater.iteration == 1


# Averages.

RIGHT = [3, 1, 0, 5]
TOTAL = [4, 10, 2, 5]


def micro(stop=4, **more):
    return extensions.MicroAverage("right", "total", "accuracy", (2, "iteration"), **more)


def test_large_batches_count_more(tmp_path):
    seen = observed(tmp_path, micro(), right=RIGHT, total=TOTAL)
    assert [entry.get("accuracy") for entry in seen] == [None, 4 / 14, None, 5 / 7]


def test_variables_are_averaged_and_missing_values_left_out(tmp_path):
    right = [mnpar.Variable(np.array(3.0, "f")), None, np.array(0), np.float32(5)]
    seen = observed(tmp_path, micro(), right=right, total=TOTAL)
    assert [entry.get("accuracy") for entry in seen] == [None, 3 / 4, None, 5 / 7]


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_average_goes_on(moment, tmp_path):
    def make(stop):
        trainer = counting(tmp_path, (stop, "iteration"), right=RIGHT, total=TOTAL)
        trainer.extend(micro())
        trainer.extend(lambda trainer: seen.append(trainer.observation.get("accuracy")), name="see")
        return trainer

    seen = []
    first = make(moment)
    second = make(4)
    first.run()
    load(saved(first), second)
    second.run()
    assert seen == [None, 4 / 14, None, 5 / 7]


# Statistics.

W = np.array([1.0, 3.0, 0.0], "f")
G = np.array([2.0, 2.0, 5.0], "f")
PERCENTILES = (0.13, 2.28, 15.87, 50, 84.13, 97.72, 99.87)


def statistics(tmp_path, grad=True, **kwargs):
    """What is reported of one link at the end."""
    link = mnpar.Chain(inner=mnpar.Chain())
    link.inner.w = mnpar.Parameter(W.copy())
    link.inner.later = mnpar.Parameter()
    link.name = "net"
    if grad:
        link.inner.w.grad = G.copy()
    seen = observed(
        tmp_path, extensions.ParameterStatistics(link, trigger=(4, "iteration"), **kwargs)
    )
    assert seen[:3] == [{}] * 3
    return seen[3]


def test_statistics_of_values_and_gradients_have_names(tmp_path):
    found = statistics(tmp_path)
    expected = {}
    for which, x in (("data", W), ("grad", G)):
        one = {
            "mean": x.mean(),
            "std": x.std(),
            "min": x.min(),
            "max": x.max(),
            "zeros": (x == 0).sum(),
        }
        one.update({f"percentile/{i}": np.percentile(x, p) for i, p in enumerate(PERCENTILES)})
        expected.update({f"net/inner/w/{which}/{name}": value for name, value in one.items()})
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-6)


def test_statistics_may_be_chosen_and_have_a_prefix(tmp_path):
    found = statistics(tmp_path, statistics={"sum": np.sum}, report_grads=False, prefix="here")
    assert found == {"here/net/inner/w/data/sum": 4.0}
    assert statistics(tmp_path, statistics=None) == {}


def test_statistics_without_gradients_are_those_of_values(tmp_path):
    assert list(statistics(tmp_path, grad=False, statistics={"max": np.max})) == [
        "net/inner/w/data/max"
    ]


def test_a_statistic_can_be_added(tmp_path):
    link = mnpar.Link()
    link.w = mnpar.Parameter(W.copy())
    one = extensions.ParameterStatistics([link], {}, report_grads=False, trigger=(1, "iteration"))
    one.register_statistics("product", np.prod)
    assert observed(tmp_path, one, stop=1) == [{"None/w/data/product": 0.0}]


@pytest.mark.parametrize("skip", [True, False])
def test_nan_is_reported_without_a_computation_if_wanted(skip, tmp_path):
    link, calls = mnpar.Link(), []
    link.w = mnpar.Parameter(np.array([np.nan, 1]))
    function = {"max": lambda x: calls.append(x) or np.nanmax(x)}
    one = extensions.ParameterStatistics(
        link, function, report_grads=False, trigger=(1, "iteration"), skip_nan_params=skip
    )
    [found] = observed(tmp_path, one, stop=1)
    assert (len(calls), np.isnan(found["None/w/data/max"])) == ((0, True) if skip else (1, False))


# Graphs.


@pytest.mark.parametrize("kept", [True, False])
def test_graphs_that_were_kept_are_let_go(kept, tmp_path):
    x = mnpar.Variable(np.ones(3))
    ys = [F.sum(x * i) for i in range(3)]
    values = []
    trainer = counting(tmp_path, (2, "iteration"), y=ys)
    trainer.extend(lambda trainer: values.append(trainer.observation["y"]), name="see")
    trainer.extend(extensions.unchain_variables())
    with mnpar.using_config("keep_graph_on_report", kept):
        trainer.run()
    assert [y.creator for y in values] == [None, None]
    assert [y.creator is None for y in ys] == ([True, True, False] if kept else [False] * 3)
