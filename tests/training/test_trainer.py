"""The loop: what is called when and in which order, what becomes of errors, and that a resumed run
is the same run.
"""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import training
from mnpar.iterators import SerialIterator
from mnpar.training import extensions
from tests.harness.trainers import Counting, counting, learning, load, saved, weights


class Recording(training.Extension):
    """Notes what is done to it."""

    def __init__(self, notes, name="recording", fails=()):
        self.notes, self.name, self.fails = notes, name, fails

    def note(self, what):
        self.notes.append((self.name, what))
        if what in self.fails:
            raise ZeroDivisionError(f"{what} of {self.name}")

    def initialize(self, trainer):
        self.note("initialize")

    def __call__(self, trainer):
        self.note(trainer.updater.iteration)

    def on_error(self, trainer, exc, tb):
        self.note("on_error")

    def finalize(self):
        self.note("finalize")


def test_training_ends_when_the_stop_trigger_fires(tmp_path):
    trainer = counting(tmp_path, (3, "epoch"), length=4)
    trainer.run()
    assert trainer.updater.iteration == 12
    assert trainer.updater.finalized == 1


def test_a_trainer_runs_once(tmp_path):
    trainer = counting(tmp_path, (1, "iteration"))
    trainer.run()
    with pytest.raises(RuntimeError, match="a trainer runs once"):
        trainer.run()


def test_the_folder_is_made(tmp_path):
    counting(tmp_path / "a" / "b", (1, "iteration")).run()
    assert (tmp_path / "a" / "b").is_dir()


def test_extensions_come_by_priority_and_then_in_the_order_in_which_they_were_given(tmp_path):
    notes, trainer = [], counting(tmp_path, (1, "iteration"))
    for name, priority in [
        ("reader", 100),
        ("late reader", 100),
        ("writer", 300),
        ("editor", 200),
        ("last", -1),
    ]:
        trainer.extend(lambda trainer, name=name: notes.append(name), name=name, priority=priority)
    trainer.extend(lambda trainer: notes.append("reader by default"), name="d")
    trainer.run()
    assert notes == ["writer", "editor", "reader", "late reader", "reader by default", "last"]
    assert training.PRIORITY_WRITER > training.PRIORITY_EDITOR > training.PRIORITY_READER


def test_an_extension_is_initialized_called_and_finalized(tmp_path):
    notes, trainer = [], counting(tmp_path, (4, "iteration"))
    trainer.extend(Recording(notes), trigger=(2, "iteration"))
    trainer.run()
    assert [what for _, what in notes] == ["initialize", 2, 4, "finalize"]


def test_an_extension_can_be_called_before_training_but_not_after_a_resumption(tmp_path):
    notes, trainer = [], counting(tmp_path, (2, "iteration"))
    trainer.extend(Recording(notes), call_before_training=True)
    assert trainer.is_before_training
    trainer.run()
    assert not trainer.is_before_training
    assert [what for _, what in notes] == ["initialize", 0, 1, 2, "finalize"]
    again = counting(tmp_path, (3, "iteration"))
    again.extend(Recording(notes), call_before_training=True)
    load(saved(trainer), again)
    notes.clear()
    again.run()
    assert [what for _, what in notes] == ["initialize", 3, "finalize"]


def test_an_extension_whose_trigger_is_over_is_not_initialized(tmp_path):
    def make(stop):
        trainer = counting(tmp_path, (stop, "iteration"))
        trainer.extend(
            Recording(notes), trigger=training.triggers.ManualScheduleTrigger(2, "iteration")
        )
        return trainer

    notes = []
    first = make(3)
    second = make(5)
    first.run()
    load(saved(first), second)
    notes.clear()
    second.run()
    assert [what for _, what in notes] == ["finalize"]


# Names.


@training.make_extension(trigger=(2, "iteration"), default_name="decorated", priority=7)
def decorated(trainer):
    pass


class Bound:
    def method(self, trainer):
        self.called = True


def test_an_extension_has_the_name_that_it_is_given_or_its_own(tmp_path):
    trainer = counting(tmp_path, (1, "iteration"))

    def function(trainer):
        pass

    bound = Bound()
    for extension, name in [
        (function, None),
        (decorated, None),
        (bound.method, None),
        (Recording([], None), None),
        (function, "mine"),
    ]:
        trainer.extend(extension, name)
    assert trainer.get_extension("method") == bound.method
    assert trainer.get_extension("decorated") is decorated
    assert trainer.get_extension("Recording").name == "Recording"
    assert trainer.get_extension("mine") is trainer.get_extension("function") is function
    trainer.run()
    assert bound.called


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    trainer = counting(tmp_path)
    both = [extensions.LogReport(), extensions.LogReport(), extensions.LogReport()]
    for each in both:
        trainer.extend(each)
    assert [each.name for each in both] == ["LogReport", "LogReport_1", "LogReport_2"]


def test_extensions_may_come_with_the_trainer(tmp_path):
    assert counting(tmp_path, extensions=[decorated]).get_extension("decorated") is decorated


@pytest.mark.parametrize(
    ("extension", "name", "error", "message"),
    [
        (Bound(), None, TypeError, "a Bound has no name"),
        (decorated, "training", ValueError, "cannot be named 'training'"),
    ],
    ids=["none", "training"],
)
def test_a_name_that_cannot_be_is_refused(extension, name, error, message, tmp_path):
    with pytest.raises(error, match=message):
        counting(tmp_path).extend(extension, name)


def test_an_extension_that_is_not_there_is_named(tmp_path):
    trainer = counting(tmp_path, extensions=[decorated])
    with pytest.raises(ValueError, match="there is no extension 'log'; there are decorated"):
        trainer.get_extension("log")


def test_a_decorated_function_has_what_the_decorator_gives(tmp_path):
    notes = []

    @training.make_extension(
        initializer=lambda trainer: notes.append("start"),
        finalizer=lambda: notes.append("end"),
        on_error=lambda trainer, exc, tb: notes.append(str(exc)),
    )
    def plain(trainer):
        if trainer.updater.iteration == 2:
            raise ValueError("two")

    trainer = counting(tmp_path, extensions=[plain])
    assert (plain.trigger, plain.priority, plain.default_name) == (
        (1, "iteration"),
        training.PRIORITY_READER,
        "plain",
    )
    with pytest.raises(ValueError, match="two"):
        trainer.run()
    assert notes == ["start", "two", "end"]


# What is reported.


def test_links_report_under_their_optimizers_names_and_each_iteration_begins_empty(tmp_path):
    seen = []

    class Talking(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.inner = L.Linear(1, 1)

        def forward(self, x):
            if trainer.updater.iteration % 2:
                mnpar.report({"odd": 1.0}, self)
            mnpar.report({"always": 2.0}, self.inner)
            return mnpar.functions.sum(self.inner(x))

    optimizer = mnpar.optimizers.SGD().setup(Talking())
    iterator = SerialIterator([np.ones(1, "f")], 1)
    updater = training.StandardUpdater(
        {"main": iterator}, {"main": mnpar.optimizers.SGD().setup(L.Linear(1, 1)), "net": optimizer}
    )
    updater.update_core = lambda: optimizer.update(optimizer.target, np.ones((1, 1), "f"))
    trainer = training.Trainer(updater, (3, "iteration"), str(tmp_path))
    trainer.extend(lambda trainer: seen.append(dict(trainer.observation)), name="see")
    trainer.run()
    assert seen == [
        {"net/inner/always": 2.0},
        {"net/odd": 1.0, "net/inner/always": 2.0},
        {"net/inner/always": 2.0},
    ]
    assert mnpar.get_current_reporter() is None


# Time.


def test_the_time_of_training_grows_and_stays(tmp_path):
    trainer, times = counting(tmp_path, (3, "iteration")), []
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = trainer.elapsed_time
    trainer.extend(lambda trainer: times.append(trainer.elapsed_time), name="time")
    trainer.run()
    assert 0 <= times[0] <= times[1] <= times[2] <= trainer.elapsed_time == trainer.elapsed_time


def test_a_resumed_training_counts_the_time_before(tmp_path):
    first = counting(tmp_path, (1, "iteration"))
    second = counting(tmp_path, (2, "iteration"))
    first.run()
    first._final_elapsed_time = 1000.0
    load(saved(first), second)
    second.run()
    assert 1000 < second.elapsed_time < 1060


# Errors.


@pytest.mark.parametrize("where", ["update", "extension", "initialize", "trigger"])
def test_an_error_is_told_and_raised_again_after_all_was_finalized(where, tmp_path):
    notes, trainer = [], counting(tmp_path)
    trainer.extend(
        Recording(
            notes,
            "first",
            fails=[3] if where == "extension" else ["initialize"] * (where == "initialize"),
        )
    )
    trainer.extend(Recording(notes, "second"))
    if where == "update":
        trainer.updater.update = lambda: 1 / 0
    if where == "trigger":
        trainer.stop_trigger = lambda trainer: 1 / 0
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.run()
    assert notes[-4:] == [
        ("first", "on_error"),
        ("second", "on_error"),
        ("first", "finalize"),
        ("second", "finalize"),
    ]
    assert trainer.updater.finalized == 1
    names = [entry.name for entry in caught.traceback]
    assert names[-1] in ("note", "<lambda>")  # its own traceback
    assert "in the training loop, after" in caught.value.__notes__[0]


@pytest.mark.parametrize("given", [None, [1]], ids=["None", "a list"])
def test_what_is_no_updater_iterator_or_optimizer_is_told(given):
    optimizer = mnpar.optimizers.SGD().setup(L.Linear(1, 1))
    name = "(None|NoneType)" if given is None else "list"
    for make in (
        lambda: training.Trainer(given),
        lambda: training.StandardUpdater(given, optimizer),
        lambda: training.StandardUpdater(SerialIterator([1], 1), given),
    ):
        with pytest.raises(TypeError, match=f"{name}$"):
            make()


def test_an_extension_that_was_not_made_is_told(tmp_path):
    with pytest.raises(TypeError, match="LogReport is a class"):
        counting(tmp_path).extend(extensions.LogReport)


def test_an_iterator_that_ends_before_training_is_told(tmp_path):
    optimizer = mnpar.optimizers.SGD().setup(mnpar.links.Linear(1, 1))
    batches = mnpar.iterators.SerialIterator([np.ones(1, "f4")], 1, repeat=False)
    updater = training.StandardUpdater(
        batches, optimizer, loss_func=lambda x: mnpar.functions.sum(optimizer.target(x))
    )
    with pytest.raises(StopIteration) as caught:
        training.Trainer(updater, (2, "epoch"), str(tmp_path)).run()
    assert any(
        "came to its end before training: repeat=True" in note for note in caught.value.__notes__
    )


def test_errors_of_handlers_do_not_hide_the_first(tmp_path):
    notes, trainer = [], counting(tmp_path)
    for name in ("a", "b"):
        trainer.extend(Recording(notes, name, fails=[2, "on_error", "finalize"]))
    with pytest.raises(ZeroDivisionError, match="2 of a") as caught:
        trainer.run(show_loop_exception_msg=False)
    assert caught.value.__notes__ == [
        "(on_error of a raised ZeroDivisionError: on_error of a)",
        "(on_error of b raised ZeroDivisionError: on_error of b)",
        "(finalize of a raised ZeroDivisionError: finalize of a)",
        "(finalize of b raised ZeroDivisionError: finalize of b)",
    ]
    assert trainer.updater.finalized == 1


def test_an_error_at_the_end_is_raised_after_all_was_finalized(tmp_path):
    notes, trainer = [], counting(tmp_path, (1, "iteration"))
    trainer.extend(Recording(notes, "first", fails=["finalize"]))
    trainer.extend(Recording(notes, "second"))
    with pytest.raises(ZeroDivisionError, match="finalize of first"):
        trainer.run()
    assert notes[-1] == ("second", "finalize")
    assert trainer.updater.finalized == 1


def test_ctrl_c_finalizes_too_and_is_no_error(tmp_path):
    notes, trainer = [], counting(tmp_path)

    def interrupt(trainer):
        raise KeyboardInterrupt

    trainer.extend(Recording(notes))
    trainer.extend(interrupt, trigger=(3, "iteration"))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert [what for _, what in notes] == ["initialize", 1, 2, 3, "finalize"]
    assert trainer.updater.finalized == 1


def test_nothing_is_written_to_the_terminal(tmp_path, capfd):
    trainer = counting(tmp_path)
    trainer.updater.update = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert capfd.readouterr() == ("", "")  # whoever catches the error shows it, once


# Resuming.


def full(out, stop, optimizer=None):
    """A trainer with state everywhere."""
    trainer = learning(out, stop, optimizer=optimizer)
    model = trainer.updater.get_optimizer("main").target
    evaluation = SerialIterator(
        [(np.ones(4, "f"), 1), (np.zeros(4, "f"), 0)], 1, repeat=False, shuffle=False
    )
    trainer.extend(extensions.Evaluator(evaluation, model))
    trainer.extend(extensions.ExponentialShift("alpha", 0.9), trigger=(3, "iteration"))
    trainer.extend(extensions.observe_lr(), trigger=(2, "iteration"))
    trainer.extend(
        extensions.ParameterStatistics(
            model.predictor.l2, {"mean": np.mean}, trigger=(7, "iteration")
        )
    )
    trainer.extend(extensions.MicroAverage("main/loss", "main/accuracy", "ratio", (4, "iteration")))
    trainer.extend(extensions.LogReport(trigger=(4, "iteration")))
    trainer.extend(
        extensions.snapshot(filename="snapshot_{.updater.iteration}"), trigger=(1, "iteration")
    )
    return trainer


def timeless(log):
    return [
        {name: value for name, value in entry.items() if name != "elapsed_time"} for entry in log
    ]


@pytest.mark.parametrize("moment", [1, 4, 5, 9, 13])
def test_a_resumed_training_is_bit_for_bit_the_same(moment, tmp_path):
    whole = full(tmp_path / "whole", (15, "iteration"))
    whole.run()
    resumed = full(tmp_path / "resumed", (15, "iteration"))
    mnpar.random.seed(99)
    mnpar.serializers.load_npz(str(tmp_path / "whole" / f"snapshot_{moment}"), resumed)
    assert resumed.updater.iteration == moment
    resumed.run()
    for path, value in weights(whole).items():
        np.testing.assert_array_equal(value, weights(resumed)[path], err_msg=path)
    logs = [timeless(trainer.get_extension("LogReport").log) for trainer in (whole, resumed)]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 3
    ends = [dict(np.load(tmp_path / which / "snapshot_15")) for which in ("whole", "resumed")]
    assert list(ends[0]) == list(ends[1])
    for name, value in ends[0].items():
        if "elapsed" not in name and "_log" not in name:
            np.testing.assert_array_equal(value, ends[1][name], err_msg=name)


SCHEDULE = mnpar.training.triggers.ManualScheduleTrigger([3, 5], "iteration")


@pytest.mark.parametrize(
    ("saved", "length"),
    [(7, (5, "iteration")), (5, (5, "iteration")), (9, (1, "epoch")), (7, SCHEDULE)],
    ids=str,
)
def test_a_training_that_is_resumed_beyond_its_end_is_over(saved, length, tmp_path):
    full(tmp_path / "whole", (saved, "iteration")).run()
    resumed = full(tmp_path / "resumed", length)
    mnpar.serializers.load_npz(str(tmp_path / "whole" / f"snapshot_{saved}"), resumed)
    resumed.extend(
        lambda trainer: pytest.fail("it goes on"), name="never", trigger=(1, "iteration")
    )
    resumed.run()
    assert resumed.updater.iteration == saved


@pytest.mark.parametrize("trigger", [(1, "epoch"), (3, "iteration")], ids=str)
def test_a_trigger_of_an_extension_that_comes_after_loading_counts_from_there(trigger, tmp_path):
    def see(trainer):
        trainer.extend(
            lambda trainer: called.append(trainer.updater.iteration), name="see", trigger=trigger
        )

    called = []
    first = counting(tmp_path, (7, "iteration"))
    second = counting(tmp_path, (15, "iteration"))
    see(first)
    first.run()
    load(saved(first), second)
    see(second)
    second.run()
    assert called == {"epoch": [5, 10, 15], "iteration": [3, 6, 9, 12, 15]}[trigger[1]]


def test_a_log_that_comes_after_loading_is_told_to_begin_anew(tmp_path):
    trainer = counting(tmp_path, (7, "iteration"))
    load(saved(trainer), trainer)
    with pytest.warns(
        UserWarning, match="LogReport came to a trainer that was loaded before.*before loading"
    ) as told:
        trainer.extend(extensions.LogReport())
    trainer.extend(extensions.snapshot())  # which has no state
    assert [Path(one.filename) for one in told] == [Path(__file__)]


def test_autoload_restores_the_rate_before_the_first_step(tmp_path):
    whole = full(tmp_path / "whole", (8, "iteration"), mnpar.optimizers.Adam())
    whole.run()

    def rates(loaded):
        trainer = full(tmp_path / "whole", (9, "iteration"), mnpar.optimizers.Adam())
        found = []
        trainer.extend(
            lambda trainer: found.append(trainer.updater.get_optimizer("main").alpha),
            name="rate",
            priority=999,
        )
        trainer.get_extension("_Snapshot").autoload = loaded
        trainer.run()
        return found

    assert rates(True) == [0.001 * 0.9**2]


def test_a_longer_training_can_go_on_from_a_shorter_one(tmp_path):
    first = learning(tmp_path, (2, "epoch"))
    second = learning(tmp_path, (3, "epoch"))
    first.run()
    load(saved(first), second)
    second.run()
    assert (first.updater.epoch, second.updater.epoch) == (2, 3)


def test_the_random_state_belongs_to_its_rank(tmp_path):
    """A file that all ranks load must not make them draw the same numbers."""

    def program(comm):
        mnpar.random.seed([5, comm.rank])
        trainer = counting(tmp_path, (1, "iteration"), comm=comm)
        data = comm.bcast_obj(saved(trainer) if comm.rank == 0 else None)
        before = mnpar.random.generator().bit_generator.state
        mnpar.random.generator().random(comm.rank)
        moved = mnpar.random.generator().bit_generator.state
        load(data, trainer)
        return mnpar.random.generator().bit_generator.state == (before if comm.rank == 0 else moved)

    assert mnpar.run(program, ranks=3) == [True] * 3


# Ranks.


@pytest.mark.ranks(1, 3, on="threads")
def test_a_trainer_knows_the_ranks_of_its_optimizer(comm, tmp_path):
    stop = training.triggers.EarlyStoppingTrigger((1, "iteration"), "x", patience=1)
    updater = Counting(x=[3, 2 + comm.rank, 2 + comm.rank, 5])
    mnpar.create_multi_node_optimizer(updater.optimizer, comm)
    trainer = training.Trainer(updater, stop, str(tmp_path))
    assert trainer.comm is comm is stop.comm
    assert trainer.speaks is (comm.rank == 0)
    trainer.extend(lambda trainer: comm.barrier(), name="together")
    trainer.run()
    assert trainer.updater.iteration == (3 if comm.size == 1 else 2)


def test_no_temporary_file_stays(tmp_path):
    full(tmp_path, (3, "iteration")).run()
    assert sorted(os.listdir(tmp_path)) == ["snapshot_1", "snapshot_2", "snapshot_3"]


def test_iterations_are_counted_from_one_in_extensions(tmp_path):
    seen, trainer = [], counting(tmp_path, (4, "iteration"))
    trainer.extend(lambda trainer: seen.append(trainer.updater.iteration), name="see")
    trainer.run()
    assert seen == list(itertools.islice(itertools.count(1), 4))
