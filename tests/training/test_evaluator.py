"""Means over examples, whatever the batches; in evaluation mode, without a graph, under the right
names.
"""

import numpy as np
import pytest

import mnpar
from mnpar.iterators import SerialIterator
from mnpar.training import extensions
from tests.harness.trainers import counting, load, saved

VALUES = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]


class Reporting(mnpar.Chain):
    """Reports the mean of a batch."""

    def __init__(self):
        super().__init__()
        self.inner = mnpar.Link()
        self.modes = []

    def forward(self, x):
        self.modes.append((mnpar.config.train, mnpar.config.enable_backprop))
        mnpar.report({"mean": mnpar.functions.average(x)}, self)
        mnpar.report({"max": x.max()}, self.inner)


def evaluator(batch=2, values=VALUES, **kwargs):
    model = Reporting()
    return extensions.Evaluator(
        SerialIterator(values, batch, repeat=False, shuffle=False), model, **kwargs
    ), model


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
def test_a_mean_is_one_over_examples(batch):
    one, _ = evaluator(batch)
    np.testing.assert_allclose(one()["main/mean"], np.mean(VALUES))


def test_it_can_be_called_again_and_by_hand():
    one, model = evaluator()
    assert one() == one()
    assert set(model.modes) == {(False, False)}
    assert (mnpar.config.train, mnpar.config.enable_backprop) == (True, True)


def test_names_have_the_evaluators_before_them_in_a_trainer(tmp_path):
    trainer = counting(tmp_path, (1, "epoch"), length=2)
    trainer.extend(evaluator()[0])
    trainer.extend(evaluator()[0], name="test")
    seen = []
    trainer.extend(
        lambda trainer: seen.append(list(trainer.observation)), name="see", trigger=(1, "epoch")
    )
    trainer.run()
    names = ["main/mean", "main/inner/max"]
    assert seen == [[f"{which}/{name}" for which in ("validation", "test") for name in names]]


def test_weights_that_come_with_values_count():
    def report(x):
        mnpar.report({"weighted": (x[0], 3 * len(x)), "vector": x})

    one, _ = evaluator(eval_func=report)
    first = np.array([3.0, 4.0, 5.0, 2.0])
    n = np.array([2, 2, 2, 1])
    assert list(one()) == ["weighted"]
    np.testing.assert_allclose(one()["weighted"], np.average(first, weights=n))


def test_hook_function_converter_and_device_are_used():
    calls = []
    one, _ = evaluator(
        3,
        eval_hook=lambda evaluator: calls.append(evaluator),
        eval_func=lambda **kwargs: calls.append(kwargs),
        converter=lambda batch, device: {"x": batch, "device": device},
        device=-1,
    )
    assert one() == {}
    assert calls == [one, *[{"x": VALUES[i : i + 3], "device": -1} for i in (0, 3, 6)]]


def test_no_examples_have_no_means():
    assert evaluator(values=[])[0]() == {}


def test_iterators_and_targets_have_names():
    iterators = {
        "main": SerialIterator([1], 1, repeat=False),
        "more": SerialIterator([1], 1, repeat=False),
    }
    targets = {"main": Reporting(), "more": Reporting()}
    one = extensions.Evaluator(iterators, targets)
    assert (one.get_all_iterators(), one.get_all_targets()) == (iterators, targets)
    assert (one.get_iterator("more"), one.get_target("more")) == (
        iterators["more"],
        targets["more"],
    )
    ended = []
    iterators["more"].finalize = lambda: ended.append(True)
    one.finalize()
    assert ended == [True]


def test_an_iterator_that_cannot_be_reset_is_copied():
    class Once:
        def __init__(self):
            self.left = [1.0, 2.0]

        def __iter__(self):
            return iter([self.left])

    one = extensions.Evaluator(Once(), Reporting())
    assert one()["main/mean"] == one()["main/mean"] == 1.5


def test_an_iterator_without_end_is_told():
    with pytest.warns(UserWarning, match="the iterator main goes on for ever"):
        endless = extensions.Evaluator(SerialIterator([1], 1), Reporting())
    with pytest.raises(ValueError, match="give it one with repeat=False"):
        endless()


def test_a_progress_bar_is_shown_if_wanted(capsys):
    evaluator(4, progress_bar=True)[0]()
    assert [line.split("  ")[:3] for line in capsys.readouterr().out.splitlines()] == [
        ["validation", "0.571429 / 1 epochs", "57.1%"],
        ["validation", "1 / 1 epochs", "100.0%"],
    ]


def test_the_order_of_an_iterator_that_shuffles_goes_on(tmp_path):
    def make(stop):
        seen = []
        model = lambda x: seen.append(x.tolist())
        trainer = counting(tmp_path, (stop, "iteration"))
        iterator = SerialIterator(VALUES, 2, repeat=False)
        trainer.extend(
            extensions.Evaluator(iterator, mnpar.Link(), eval_func=model), trigger=(1, "iteration")
        )
        return trainer, seen

    whole, expected = make(4)
    first, _ = make(2)
    second, found = make(4)
    load(saved(whole), first)  # the orders of the same generator
    whole.run()
    first.run()
    load(saved(first), second)
    second.run()
    assert found == expected[-len(found) :] != []
