"""Values of all ranks made one: observations, persistent arrays, and the time to stop."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar.extensions import (
    AllreducePersistent,
    MultiNodeEarlyStoppingTrigger,
    ObservationAggregator,
)
from mnpar.training import triggers
from tests.harness.trainers import counting, load, saved

ranks = pytest.mark.ranks(1, 2, 3, on="threads")
KINDS = {
    "numbers": float,
    "arrays": lambda x: np.array(x, "f"),
    "variables": lambda x: mnpar.Variable(np.array(x)),
}


def observed(comm, tmp_path, values, name="sum", stop=4, resume=None, **kwargs):
    """What the aggregator has put under the name, at each iteration."""
    seen = []

    def make(stop):
        trainer = counting(tmp_path, (stop, "iteration"), x=values)
        trainer.extend(ObservationAggregator(comm, "x", name, **kwargs))
        trainer.extend(
            lambda trainer: seen.append(trainer.observation.get(name or "x")), name="see"
        )
        return trainer

    trainer = make(stop if resume is None else resume)
    trainer.run()
    if resume is not None:
        again = make(stop)
        load(saved(trainer), again)
        again.run()
    return seen


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("interval", [1, 2])
@ranks
def test_a_value_is_the_mean_over_ranks_and_iterations(comm, interval, kind, tmp_path):
    values = [kind(10.0 * i + comm.rank) for i in range(4)]
    offset = (comm.size - 1) / 2
    found = observed(comm, tmp_path, values, comm_trigger=(interval, "iteration"))
    expected = (
        [10.0 * i + offset for i in range(4)]
        if interval == 1
        else [None, 5 + offset, None, 25 + offset]
    )
    if kind is KINDS["variables"]:  # so are their means, as in Chainer
        found = [None if mean is None else mean.data for mean in found]
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float))


@ranks
def test_an_aggregator_gets_variables_where_they_were_observed(comm, tmp_path):
    def largest(ranks):
        return max([value.data for values in ranks for value in values])

    values = [KINDS["variables"](10.0 * i + comm.rank) for i in range(4)]
    assert observed(comm, tmp_path, values, aggregator=largest) == [
        10.0 * i + comm.size - 1 for i in range(4)
    ]


@ranks
def test_early_stopping_monitors_variables(comm):
    stop = MultiNodeEarlyStoppingTrigger(comm, monitor="accuracy", patience=2)
    updater = mnpar.training.StandardUpdater(
        mnpar.iterators.SerialIterator([1], 1), mnpar.optimizers.SGD().setup(L.Linear(1, 1))
    )
    fired = []
    for value in [0.5, 0.6, 0.4, 0.3, 0.2]:
        updater.get_iterator("main").next()
        accuracy = mnpar.Variable(np.float32([value + comm.rank]).reshape(()))
        fired.append(stop(SimpleNamespace(updater=updater, observation={"accuracy": accuracy})))
    assert fired == [False, False, False, True, True]


@pytest.mark.parametrize("resume", [None, 3])
@ranks
def test_a_pair_counts_by_its_weight(comm, resume, tmp_path):
    values = [(10.0 * i + comm.rank, 1 + comm.rank + i) for i in range(4)]
    found = observed(comm, tmp_path, values, comm_trigger=(2, "iteration"), resume=resume)
    x, w = np.array(
        [
            [[(10.0 * i + r, 1 + r + i) for i in (j, j + 1)] for r in range(comm.size)]
            for j in (0, 2)
        ]
    ).T.swapaxes(1, 2)
    np.testing.assert_allclose(
        np.array(found[1::2], float), (x * w).sum(axis=(0, 1)) / w.sum(axis=(0, 1))
    )


@pytest.mark.ranks(2, on="mpi")
def test_a_value_is_the_mean_over_mpi_ranks(comm, tmp_path):
    assert observed(comm, tmp_path, [float(comm.rank)] * 4) == [0.5] * 4


@ranks
def test_a_result_may_take_the_place_of_the_value(comm, tmp_path):
    assert observed(comm, tmp_path, [float(comm.rank)] * 4, name=None) == [(comm.size - 1) / 2] * 4


@pytest.mark.ranks(3, on="threads")
def test_ranks_without_values_are_left_out(comm, tmp_path):
    values = [[1.0, None, None, 2.0], [None] * 4, [3.0, None, 5.0, None]][comm.rank]
    assert observed(comm, tmp_path, values) == [2.0, None, 5.0, 2.0]


@pytest.mark.ranks(2, on="threads")
def test_the_function_gets_the_values_of_each_rank(comm, tmp_path):
    found = observed(
        comm,
        tmp_path,
        [comm.rank, None, 5, 6],
        comm_trigger=(2, "iteration"),
        aggregator=lambda lists: str(lists),
    )
    assert found == [None, "[[0], [1]]", None, "[[5, 6], [5, 6]]"]


@pytest.mark.ranks(2, on="threads")
def test_an_error_of_the_function_is_one_of_all_ranks(comm, tmp_path):
    with pytest.raises(ZeroDivisionError):
        observed(comm, tmp_path, [1, 2, 3, 4], aggregator=lambda lists: 1 / 0)


@pytest.mark.parametrize("moment", [1, 2, 3])
@pytest.mark.ranks(2, on="threads")
def test_a_mean_goes_on(comm, moment, tmp_path):
    values = [10.0 * i + comm.rank for i in range(4)]
    assert observed(comm, tmp_path, values, comm_trigger=(2, "iteration"), resume=moment) == [
        None,
        5.5,
        None,
        25.5,
    ]


@pytest.mark.parametrize(("dtype", "moment"), [("f", 3), ("f", 5), (ml_dtypes.bfloat16, 3)])
@pytest.mark.ranks(2, on="threads")
def test_a_mean_of_short_floats_goes_on_to_the_last_digit(comm, dtype, moment, tmp_path):
    values = [np.array(1 / (i + 3 + comm.rank), dtype) for i in range(moment)]  # and none after it
    (*_, expected) = observed(comm, tmp_path, values, stop=9, comm_trigger=(9, "iteration"))
    assert (
        observed(comm, tmp_path, values, stop=9, comm_trigger=(9, "iteration"), resume=moment)[-1]
        == expected
    )


# Persistent arrays.


@ranks
def test_persistent_arrays_are_averaged(comm):
    model = mnpar.Chain(bn=L.BatchNormalization(3), half=L.BatchNormalization(2, dtype=np.float16))
    model.add_persistent("count", 7 + comm.rank)
    model.add_persistent("integers", np.array([comm.rank]))
    for k, bn in enumerate((model.bn, model.half)):
        bn.avg_mean[...], bn.avg_var[...] = comm.rank * (k + 1), comm.rank * 10
    arrays = [model.bn.avg_mean, model.half.avg_var]
    AllreducePersistent(model, comm)()
    mean = (comm.size - 1) / 2
    for k, bn in enumerate((model.bn, model.half)):
        np.testing.assert_array_equal(bn.avg_mean, np.full(3 - k, mean * (k + 1)))
        np.testing.assert_array_equal(bn.avg_var, np.full(3 - k, mean * 10))
    assert arrays[0] is model.bn.avg_mean  # in place
    assert (model.count, model.integers.tolist()) == (7 + comm.rank, [comm.rank])
    assert AllreducePersistent.priority > mnpar.training.PRIORITY_WRITER


# Early stopping.

ACCURACIES = [0.1, 0.2, 0.4, 0.5, 0.6, 0.6, 0.5, 0.7, 0.7, 0.8, 0.7, 0.5, 0.6, 0.8, 0.7, 0.9]


def stopped(comm, tmp_path, patience, noise, resume=None, **kwargs):
    """The iteration at which training ends; the ranks' values differ, their mean is the
    script's.
    """
    shift = noise * (comm.rank - (comm.size - 1) / 2)

    def make():
        trigger = MultiNodeEarlyStoppingTrigger(
            comm,
            check_trigger=(1, "iteration"),
            monitor="main/accuracy",
            patience=patience,
            max_trigger=(16, "iteration"),
            **kwargs,
        )
        trainer = counting(tmp_path, trigger, **{"main/accuracy": [a + shift for a in ACCURACIES]})
        trainer.extend(lambda trainer: comm.barrier(), name="together")
        return trainer

    trainer = make()
    if resume is not None:
        data = []
        trainer.extend(
            lambda t: data.append(saved(t)) if t.updater.iteration == resume else None,
            name="save",
            priority=-100,
        )
        trainer.run()
        trainer = make()
        trainer.extend(lambda trainer: None, name="save")
        load(data[0], trainer)
    trainer.run()
    return trainer.updater.iteration


@pytest.mark.parametrize(("patience", "expected"), [(2, 7), (3, 13), (4, 14), (9, 16)])
@pytest.mark.parametrize("noise", [0.0, 3.0])
@ranks
def test_ranks_stop_together(comm, patience, expected, noise, tmp_path):
    assert stopped(comm, tmp_path, patience, noise) == expected


@ranks
def test_a_check_may_be_a_trigger(comm, tmp_path):
    """It is asked by two, and told the second that nothing was due: training never stopped."""
    check = triggers.IntervalTrigger(1, "iteration")
    stop = MultiNodeEarlyStoppingTrigger(
        comm, check_trigger=check, monitor="x", patience=2, max_trigger=(16, "iteration")
    )
    trainer = counting(tmp_path, stop, x=[1.0] * 16)
    trainer.run()
    assert trainer.updater.iteration == 3


@pytest.mark.parametrize("moment", [1, 6, 12])
@pytest.mark.ranks(2, on="threads")
def test_ranks_stop_together_after_a_resumption(comm, moment, tmp_path):
    assert stopped(comm, tmp_path, 3, 1.0, moment) == 13


@pytest.mark.ranks(2, on="mpi")
def test_mpi_ranks_stop_together(comm, tmp_path):
    assert stopped(comm, tmp_path, None, 5.0) == 13


@pytest.mark.ranks(2, on="threads")
def test_rank_0_says_that_it_stops(comm):
    trigger = MultiNodeEarlyStoppingTrigger(comm, verbose=True)
    assert trigger.actual_trigger.verbose is (comm.rank == 0)


def test_it_knows_how_long_it_may_take():
    trigger = MultiNodeEarlyStoppingTrigger(
        mnpar.create_communicator("self"), max_trigger=(7, "epoch")
    )
    assert trigger.get_training_length() == (7, "epoch")
