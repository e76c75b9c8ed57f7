"""When triggers fire: over a whole run, called at some iterations only, and after a resumption at
any moment.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from mnpar import training
from mnpar.training import triggers
from tests.harness.trainers import Counting, counting, load, saved

LENGTH = 4  # iterations of an epoch
SCHEDULES = {
    "each iteration": (
        lambda: triggers.IntervalTrigger(1, "iteration"),
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    ),
    "each third": (lambda: triggers.IntervalTrigger(3, "iteration"), [3, 6, 9, 12]),
    "each epoch": (lambda: triggers.IntervalTrigger(1, "epoch"), [4, 8, 12]),
    "each half epoch": (lambda: triggers.IntervalTrigger(0.5, "epoch"), [2, 4, 6, 8, 10, 12]),
    "each two epochs": (lambda: triggers.IntervalTrigger(2, "epoch"), [8]),
    "some iterations": (
        lambda: triggers.ManualScheduleTrigger([2, 5, 11], "iteration"),
        [2, 5, 11],
    ),
    "one iteration": (lambda: triggers.ManualScheduleTrigger(7, "iteration"), [7]),
    "some epochs": (lambda: triggers.ManualScheduleTrigger([0.5, 1.3, 2], "epoch"), [2, 6, 8]),
    "once": (triggers.OnceTrigger, [1]),
    "never": (lambda: training.get_trigger(None), []),
    "a pair": (lambda: training.get_trigger((6, "iteration")), [6, 12]),
}
schedules = pytest.mark.parametrize(("make", "expected"), SCHEDULES.values(), ids=SCHEDULES)


def fired(trigger, updater, until=12, at=None, after=0):
    """The iterations at which it fires, called at those that ``at`` holds."""
    found, trainer = [], SimpleNamespace(updater=updater)
    while updater.iteration < until:
        updater.update()
        if (at is None or updater.iteration in at) and trigger(trainer):
            found.append(updater.iteration)
    return found


@schedules
def test_a_trigger_fires_at_its_iterations(make, expected):
    assert fired(make(), Counting(LENGTH)) == expected


@pytest.mark.parametrize("moment", range(1, 12))
@schedules
def test_a_trigger_that_was_saved_and_loaded_goes_on(make, expected, moment):
    first = make()
    updater = Counting(LENGTH)
    before = fired(first, updater, until=moment)
    second = make()
    if hasattr(first, "serialize"):
        load(saved(first), second)
    assert before + fired(second, updater) == expected


@schedules
def test_extensions_may_have_one_trigger_in_common(make, expected, tmp_path):
    """The second one never came: it was asked right after the first."""
    trigger = make()
    seen = [[], []]
    trainer = counting(tmp_path, (12, "iteration"), LENGTH)
    for found in seen:
        trainer.extend(
            lambda trainer, found=found: found.append(trainer.updater.iteration),
            name="see",
            trigger=trigger,
        )
    trainer.run()
    assert seen == [expected, expected]


@pytest.mark.parametrize("kind", [triggers.IntervalTrigger, triggers.ManualScheduleTrigger])
def test_who_asks_a_trigger_again_gets_the_same_answer(kind):
    trigger = kind(2, "iteration")
    updater = Counting(LENGTH)
    answers = []
    for _ in range(3):
        updater.update()
        answers.append([trigger(SimpleNamespace(updater=updater)) for _ in range(2)])
        saved(trigger)
    assert answers == [[False] * 2, [True] * 2, [False] * 2]


@pytest.mark.parametrize(
    "points", [np.array([2, 5]), range(2, 6, 3), np.float64(5)], ids=["array", "range", "number"]
)
def test_points_may_be_any_numbers(points):
    assert (
        fired(triggers.ManualScheduleTrigger(points, "iteration"), Counting(LENGTH))
        == np.atleast_1d(points).tolist()
    )


@pytest.mark.parametrize("points", [[], None, "ab", [[1]]], ids=str)
def test_what_are_no_points_is_told(points):
    with pytest.raises(ValueError, match="numbers of iterations, not"):
        triggers.ManualScheduleTrigger(points, "iteration")


def test_no_time_runs_backwards():
    with pytest.raises(ValueError, match="a number of seconds, not -1"):
        triggers.TimeTrigger(-1)


@pytest.mark.parametrize(
    ("kind", "values"), [(triggers.MinValueTrigger, [3, 2]), (triggers.MaxValueTrigger, [2, 3])]
)
def test_nan_is_never_the_best_value(kind, values, tmp_path):
    """After it nothing was better."""
    seen, nan = [], float("nan")
    trainer = counting(tmp_path, (4, "iteration"), x=[nan, values[0], nan, values[1]])
    trainer.extend(
        lambda trainer: seen.append(trainer.updater.iteration),
        name="see",
        trigger=kind("x", (1, "iteration")),
    )
    trainer.run()
    assert seen == [2, 4]


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_trigger_that_is_called_seldom_misses_nothing(every):
    at = range(0, 13, every)
    for make, expected in (SCHEDULES["each third"], SCHEDULES["some epochs"]):
        late = {next((t for t in at if t >= e), None) for e in expected}
        assert set(fired(make(), Counting(LENGTH), at=at)) == late - {None}


def test_tenths_of_an_epoch_are_counted_right():
    assert len(fired(triggers.IntervalTrigger(0.1, "epoch"), Counting(10), until=100)) == 100


@pytest.mark.parametrize("kind", [triggers.IntervalTrigger, triggers.ManualScheduleTrigger])
def test_a_file_without_the_last_call_is_made_up_for(kind):
    class Empty(training.Updater):
        def serialize(self, serializer):
            pass

    trigger = kind(4, "iteration")
    load(saved(Empty()), trigger)
    updater = Counting(LENGTH)
    assert fired(trigger, updater) == ([4, 8, 12] if kind is triggers.IntervalTrigger else [4])


@pytest.mark.parametrize("again", [False, True])
def test_a_once_trigger_fires_after_a_resumption_if_it_is_asked_to(again):
    first = triggers.OnceTrigger(again)
    second = triggers.OnceTrigger(again)
    assert fired(first, Counting(), until=3) == [1]
    assert first.finished
    load(saved(first), second)
    assert second.finished is not again
    assert len(fired(second, Counting(), until=3)) == again


def test_a_schedule_that_is_over_is_finished():
    trigger = triggers.ManualScheduleTrigger([2, 5], "iteration")
    updater = Counting()
    fired(trigger, updater, until=4)
    assert not trigger.finished
    fired(trigger, updater, until=5)
    assert trigger.finished


def test_a_time_trigger_counts_the_seconds_of_training():
    trigger = triggers.TimeTrigger(10)
    at = [trigger(SimpleNamespace(elapsed_time=t)) for t in (5, 11, 12, 19, 21, 45, 46, 47)]
    assert at == [False, True, False, False, True, True, True, False]
    other = triggers.TimeTrigger(10)
    load(saved(trigger), other)
    assert [other(SimpleNamespace(elapsed_time=t)) for t in (49, 51)] == [False, True]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    {
        "unit": (
            lambda: triggers.IntervalTrigger(1, "second"),
            ValueError,
            "'epoch' or 'iteration', not 'second'",
        ),
        "period": (
            lambda: triggers.IntervalTrigger(0, "epoch"),
            ValueError,
            "a positive number, not 0",
        ),
        "manual": (lambda: triggers.ManualScheduleTrigger(1, "day"), ValueError, "not 'day'"),
        "no trigger": (
            lambda: training.get_trigger(3),
            TypeError,
            r"a pair like \(1, 'epoch'\) or None, not 3",
        ),
        "patience": (
            lambda: triggers.EarlyStoppingTrigger(patience=1, patients=2),
            TypeError,
            "are one argument",
        ),
        "mode": (lambda: triggers.EarlyStoppingTrigger(mode="best"), ValueError, "not 'best'"),
    }.values(),
)
def test_what_is_no_trigger_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


# Best values: (trigger, value at each iteration, iterations at which it fires).
BEST = {
    "max": (
        lambda: triggers.MaxValueTrigger("x", (1, "iteration")),
        [1, 3, 2, 3, 4, -1],
        [1, 2, 5],
    ),
    "min": (
        lambda: triggers.MinValueTrigger("x", (1, "iteration")),
        [1, 3, 2, 1, 0.5, -1],
        [1, 5, 6],
    ),
    "max of means": (
        lambda: triggers.MaxValueTrigger("x", (2, "iteration")),
        [1, 3, 9, -6, 2, 3],
        [2, 6],
    ),
    "own": (
        lambda: triggers.BestValueTrigger(
            "x", lambda best, new: abs(new) < abs(best), (1, "iteration")
        ),
        [5, -4, 4.5, 1, -1],
        [1, 2, 4],
    ),
    "not always observed": (
        lambda: triggers.MaxValueTrigger("x", (2, "iteration")),
        [None, 1, 2, None, None, 0],
        [2, 4],
    ),
}
best = pytest.mark.parametrize(("make", "values", "expected"), BEST.values(), ids=BEST)


def run_with(trigger, values, tmp_path, resume_at=None):
    """The iterations at which an extension with this trigger is called."""
    called = []
    trainer = counting(tmp_path, (len(values), "iteration"), x=values)
    trainer.extend(
        lambda trainer: called.append(trainer.updater.iteration), name="called", trigger=trigger
    )
    if resume_at is not None:
        trainer.stop_trigger = training.get_trigger((resume_at, "iteration"))
        trainer.run()
        data = saved(trainer)
        trainer = counting(tmp_path, (len(values), "iteration"), x=values)
        return called, data, trainer
    trainer.run()
    return called


@best
def test_a_best_value_fires(make, values, expected, tmp_path):
    assert run_with(make(), values, tmp_path) == expected


@pytest.mark.parametrize("moment", [1, 2, 3, 4])
@best
def test_a_best_value_is_remembered(make, values, expected, moment, tmp_path):
    called, data, trainer = run_with(make(), values, tmp_path, moment)
    trainer.extend(
        lambda trainer: called.append(trainer.updater.iteration), name="called", trigger=make()
    )
    load(data, trainer)
    trainer.run()
    assert called == expected


def test_a_key_that_is_never_observed_is_named_once(tmp_path):
    with pytest.warns(
        UserWarning,
        match=r"y was not observed before IntervalTrigger\(1, 'iteration'\); observed was x",
    ) as told:
        assert run_with(triggers.MaxValueTrigger("y", (1, "iteration")), [1, 2, 3], tmp_path) == []
    assert len(told) == 1


# Early stopping: (arguments, values, iterations until it stops).
STOPS = {
    "patience 3": ({}, [3, 2, 2, 2.5, 2, 1], 5),
    "patience 1": ({"patience": 1}, [3, 2, 2, 2.5], 3),
    "patients": ({"patients": 2}, [3, 2, 2, 2.5], 4),
    "max by name": ({"monitor": "accuracy", "patience": 2}, [1, 2, 2, 1, 0], 4),
    "max": ({"mode": "max", "patience": 2}, [1, 2, 3, 2, 1, 0], 5),
    "min": ({"monitor": "accuracy", "mode": "min", "patience": 2}, [1, 2, 3, 2], 3),
    "means": ({"check_trigger": (2, "iteration"), "patience": 1}, [3, 1, 2, 1, 9, -5, 4, 0], 6),
    "the end": ({"max_trigger": (4, "iteration")}, [5, 4, 3, 2, 1], 4),
    "NaN": ({"patience": 2}, [3, float("nan"), float("nan"), 1], 3),
}
stops = pytest.mark.parametrize(("arguments", "values", "expected"), STOPS.values(), ids=STOPS)


def stopping(tmp_path, arguments, values):
    monitor = arguments.get("monitor", "main/loss")
    arguments = {
        "check_trigger": (1, "iteration"),
        "max_trigger": (100, "iteration"),
        "monitor": monitor,
        **arguments,
    }
    return counting(tmp_path, triggers.EarlyStoppingTrigger(**arguments), **{monitor: values})


@stops
def test_early_stopping_stops(arguments, values, expected, tmp_path):
    trainer = stopping(tmp_path, arguments, values)
    trainer.run()
    assert trainer.updater.iteration == expected


@pytest.mark.parametrize("moment", [1, 2])
@stops
def test_early_stopping_is_resumed(arguments, values, expected, moment, tmp_path):
    data = []
    first = stopping(tmp_path, arguments, values)
    first.extend(
        lambda trainer: (
            data.append(saved(trainer)) if trainer.updater.iteration == moment else None
        ),
        name="save",
        priority=-100,
    )
    first.run()
    second = stopping(tmp_path, arguments, values)
    second.extend(lambda trainer: None, name="save", priority=-100)
    load(data[0], second)
    second.run()
    assert second.updater.iteration == expected


def test_early_stopping_says_so_if_asked(tmp_path, capsys):
    stopping(tmp_path, {"verbose": True, "patience": 1}, [1, 2]).run()
    assert capsys.readouterr().out == "Epoch 0: early stopping, main/loss was 1 at its best\n"


def test_early_stopping_knows_how_long_it_may_take():
    assert triggers.EarlyStoppingTrigger(max_trigger=(7, "epoch")).get_training_length() == (
        7,
        "epoch",
    )


# Over ranks.


def each_rank(comm, tmp_path, trigger, values):
    called = []
    trainer = counting(tmp_path, (len(values), "iteration"), x=values)

    def together(trainer):
        comm.barrier()
        called.append(trainer.updater.iteration)

    trainer.extend(together, name="called", trigger=trigger)
    trainer.run()
    return called


@pytest.mark.ranks(1, 2, 3, on="threads")
def test_ranks_agree_on_a_best_value(comm, tmp_path):
    # their means: 2, -1, 3, 4.5, 4, .5
    ones = [1, 5, 2, 9, 0, 1]
    others = [3, -7, 4, 0, 8, 0]
    values = ones if comm.rank == 0 else others
    own = [1, 2, 4] if comm.size == 1 else None
    called = each_rank(
        comm, tmp_path, triggers.MaxValueTrigger("x", (1, "iteration"), comm=comm), values
    )
    assert comm.allgather_obj(called) == [called] * comm.size
    assert called == (own or ([1, 3, 4] if comm.size == 2 else [1, 3, 5]))


@pytest.mark.ranks(2, on="threads")
def test_ranks_agree_where_one_has_no_values(comm, tmp_path):
    values = [1, 3, 2, 4] if comm.rank == 1 else [None] * 4
    assert each_rank(
        comm, tmp_path, triggers.MaxValueTrigger("x", (1, "iteration"), comm=comm), values
    ) == [1, 2, 4]


@pytest.mark.ranks(2, on="threads")
def test_one_clock_decides(comm):
    trigger = triggers.TimeTrigger(10, comm=comm)
    seconds = [9, 11, 12, 30] if comm.rank == 0 else [0, 0, 100, 200]
    assert [trigger(SimpleNamespace(elapsed_time=t)) for t in seconds] == [False, True, False, True]


@pytest.mark.ranks(2, 3, on="threads")
@pytest.mark.parametrize("given", ["to the trigger", "to the trainer"])
def test_ranks_stop_together(comm, tmp_path, given):
    values = [[5, 1, 1, 1, 1, 1, 1, 1], [5, 5, 4, 3, 3, 3, 3, 3], [1, 1, 1, 1, 1, 1, 1, 1]][
        comm.rank
    ]
    stop = triggers.EarlyStoppingTrigger(
        (1, "iteration"),
        "x",
        patience=2,
        max_trigger=(8, "iteration"),
        comm=comm if given == "to the trigger" else None,
    )
    trainer = counting(tmp_path, stop, comm=comm if given == "to the trainer" else None, x=values)
    trainer.extend(lambda trainer: comm.barrier(), name="together")
    trainer.run()
    assert trainer.updater.iteration == 6
