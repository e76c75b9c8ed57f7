"""An iteration: which batch reaches which function, in which form, and what is counted."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.iterators import SerialIterator
from tests.harness.trainers import examples, load, saved


class Seeing(mnpar.Chain):
    """Keeps what it is called with."""

    def __init__(self):
        super().__init__()
        self.w = mnpar.Parameter(np.zeros(()))
        self.seen = []

    def forward(self, *args, **kwargs):
        self.seen.append((args, kwargs))
        return self.w * 2.0


def updater(data, batch=2, **kwargs):
    model = Seeing()
    iterator = SerialIterator(data, batch, shuffle=False)
    return training.StandardUpdater(
        iterator, mnpar.optimizers.SGD(lr=1.0).setup(model), **kwargs
    ), model


FORMS = {
    "arrays": ([np.full(2, 1.0), np.full(2, 2.0)], 1, ()),
    "pairs": ([(np.ones(2), 3), (np.zeros(2), 4)], 2, ()),
    "dicts": ([{"x": np.ones(2), "t": 1}, {"x": np.ones(2), "t": 2}], 0, ("x", "t")),
    "nothing": ([(), ()], 0, ()),
}


@pytest.mark.parametrize(("data", "positional", "keywords"), FORMS.values(), ids=FORMS)
def test_the_model_gets_the_batch_in_its_form(data, positional, keywords):
    one, model = updater(data)
    one.update()
    [(args, kwargs)] = model.seen
    assert (len(args), tuple(kwargs)) == (positional, keywords)
    assert model.w.array == -2.0
    assert one.iteration == 1


def test_converter_loss_function_and_device_are_used():
    given = []

    def convert(batch, device):
        given.append((batch, device))
        return np.array(batch, float)

    one, model = updater(
        [1, 2], converter=convert, loss_func=lambda x: F.sum(x * model.w), device=-1
    )
    one.update()
    assert given == [([1, 2], -1)]
    assert model.w.array == -3.0
    assert (one.device, one.input_device) == (-1, -1)
    assert updater([1], input_device="@numpy")[0].input_device == "@numpy"


def test_epochs_are_those_of_the_iterator_and_told_to_the_optimizer():
    one, _ = updater([1.0, 2.0, 3.0])
    found = []
    for _ in range(3):
        one.update()
        found.append(
            (
                one.epoch,
                one.is_new_epoch,
                round(one.epoch_detail, 3),
                one.get_optimizer("main").epoch,
            )
        )
    assert found == [(0, False, 0.667, 0), (1, True, 1.333, 1), (2, True, 2.0, 2)]
    assert round(one.previous_epoch_detail, 3) == 1.333


def test_epochs_are_not_told_if_not_wanted():
    one, _ = updater([1.0, 2.0], auto_new_epoch=False)
    one.update()
    assert (one.epoch, one.get_optimizer("main").epoch) == (1, 0)


def test_a_loss_scale_reaches_the_optimizers_and_changes_nothing():
    one, model = updater([1.0], loss_scale=8.0)
    one.update()
    assert model.w.array == -2.0


def test_several_iterators_and_optimizers_have_names():
    optimizers = {name: mnpar.optimizers.SGD().setup(L.Linear(1, 1)) for name in ("main", "other")}
    iterators = {name: SerialIterator([1], 1) for name in ("main", "other")}
    one = training.StandardUpdater(iterators, optimizers)
    assert one.get_all_optimizers() == optimizers
    assert one.get_optimizer("other") is optimizers["other"]
    assert one.get_iterator("other") is iterators["other"]
    again = training.StandardUpdater(
        {name: SerialIterator([1], 1) for name in iterators},
        {name: mnpar.optimizers.SGD().setup(L.Linear(1, 1)) for name in optimizers},
    )
    load(saved(one), again)
    for name in optimizers:
        np.testing.assert_array_equal(
            again.get_optimizer(name).target.W.array, optimizers[name].target.W.array
        )


def test_finalize_finalizes_the_iterators():
    one, _ = updater([1.0])
    ended = []
    one.get_iterator("main").finalize = lambda: ended.append(True)
    one.finalize()
    assert ended == [True]


@pytest.mark.parametrize(
    "call",
    [lambda u: u.update(), lambda u: u.get_optimizer("main"), lambda u: u.get_all_optimizers()],
    ids=["update", "one", "all"],
)
def test_the_base_says_what_is_missing(call):
    with pytest.raises(NotImplementedError, match="Updater does not define"):
        call(training.Updater())


# Several devices of one process.


def trained(make):
    model = L.Classifier(L.Linear(4, 2, initialW=np.arange(8.0, dtype="f").reshape(2, 4) / 9))
    one = make(
        SerialIterator(examples(12), 6, shuffle=False),
        mnpar.optimizers.MomentumSGD(lr=0.1).setup(model),
    )
    for _ in range(4):
        one.update()
    return one, model


def test_copies_of_a_model_step_by_the_sum_of_their_gradients():
    def doubled(x, t):
        return 2 * model(x, t)

    one, model = trained(
        lambda *args: training.ParallelUpdater(*args, devices={"main": -1, "second": -1})
    )
    copies = dict(one._models)
    assert copies["main"] is model is not copies["second"]
    expected = model
    model = L.Classifier(L.Linear(4, 2, initialW=np.arange(8.0, dtype="f").reshape(2, 4) / 9))
    alone = training.StandardUpdater(
        SerialIterator(examples(12), 6, shuffle=False),
        mnpar.optimizers.MomentumSGD(lr=0.1).setup(model),
        loss_func=doubled,
    )
    for _ in range(4):
        alone.update()
    np.testing.assert_allclose(expected.predictor.W.array, model.predictor.W.array, rtol=1e-5)
    np.testing.assert_array_equal(copies["second"].predictor.W.array, expected.predictor.W.array)


def test_more_copies_than_examples_do():
    devices = {"main": -1, **{f"copy{i}": -1 for i in range(8)}}
    one, _ = trained(lambda *args: training.ParallelUpdater(*args, devices=devices))
    assert (one.iteration, one.epoch) == (4, 2)


def test_copies_report_under_their_names(tmp_path):
    one, _ = trained(
        lambda *args: training.ParallelUpdater(*args, devices={"main": -1, "second": -1})
    )
    trainer = training.Trainer(one, (5, "iteration"), str(tmp_path))
    trainer.run()
    assert list(trainer.observation) == [
        "main/loss",
        "main/accuracy",
        "second/loss",
        "second/accuracy",
    ]


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [({}, ValueError, "models, or devices"), ({"devices": {"a": -1}}, KeyError, "named 'main'")],
    ids=["neither", "no main"],
)
def test_copies_need_devices_with_a_main_one(kwargs, error, message):
    with pytest.raises(error, match=message):
        trained(lambda *args: training.ParallelUpdater(*args, **kwargs))


def test_processes_are_started_by_mpiexec():
    assert not training.updaters.MultiprocessParallelUpdater.available()
    with pytest.raises(RuntimeError, match="under mpiexec -n"):
        training.updaters.MultiprocessParallelUpdater([], None)


def test_copies_get_what_was_loaded():
    def made(*args):
        return training.ParallelUpdater(*args, devices={"main": -1, "second": -1})

    one, model = trained(made)
    again, other = trained(made)
    for copy in (other, again._models["second"]):
        copy.predictor.W.array[...] = 7
    load(saved(one), again)
    np.testing.assert_array_equal(
        again._models["second"].predictor.W.array, model.predictor.W.array
    )
