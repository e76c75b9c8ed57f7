"""Shifts of hyperparameters, triggers, iterators and splits of data in the words that Chainer and
mnpar share.
"""

import tempfile

import numpy as np

from tests.golden.recording import flatten, numbered

EXAMPLES, BATCH, UPDATES = 7, 3, 14

SHIFTS = {
    "ExponentialShift": lambda E: E.ExponentialShift("lr", 0.9),
    "ExponentialShift down to a target": lambda E: E.ExponentialShift("lr", 0.5, 2.0, 0.1),
    "ExponentialShift up to a target": lambda E: E.ExponentialShift("lr", 1.5, 2.0, 9.0),
    "InverseShift": lambda E: E.InverseShift("lr", 0.3, 0.7),
    "InverseShift down to a target": lambda E: E.InverseShift("lr", 0.3, 0.7, 3.0, 1.0),
    "InverseShift up to a target": lambda E: E.InverseShift("lr", 0.3, -0.7, 3.0, 5.0),
    "LinearShift": lambda E: E.LinearShift("lr", (2.0, 6.0), (2, 9)),
    "MultistepShift": lambda E: E.MultistepShift("lr", 0.5, [2, 4, 9], 3.0),
    "PolynomialShift": lambda E: E.PolynomialShift("lr", 0.9, 8),
    "PolynomialShift to a target": lambda E: E.PolynomialShift("lr", 2, 20, 2.0, 0.5),
    "StepShift": lambda E: E.StepShift("lr", 0.5, 3),
    "StepShift to a target": lambda E: E.StepShift("lr", 2, 3, 1.0, 5.0),
    "WarmupShift": lambda E: E.WarmupShift("lr", 0.1, 5, 1.0),
}

TRIGGERS = {
    "EarlyStoppingTrigger": lambda T: T.EarlyStoppingTrigger(
        (1, "iteration"), "value", 3, max_trigger=(UPDATES, "iteration")
    ),
    "EarlyStoppingTrigger of a value that shall grow": lambda T: T.EarlyStoppingTrigger(
        (2, "iteration"), "value", 1, "max", max_trigger=(11, "iteration")
    ),
    "IntervalTrigger of epochs": lambda T: T.IntervalTrigger(1, "epoch"),
    "IntervalTrigger of iterations": lambda T: T.IntervalTrigger(3, "iteration"),
    "IntervalTrigger of parts of an epoch": lambda T: T.IntervalTrigger(0.7, "epoch"),
    "ManualScheduleTrigger of epochs": lambda T: T.ManualScheduleTrigger([0.5, 1.3, 4], "epoch"),
    "ManualScheduleTrigger of iterations": lambda T: T.ManualScheduleTrigger([2, 5], "iteration"),
    "MaxValueTrigger": lambda T: T.MaxValueTrigger("value", (1, "iteration")),
    "MaxValueTrigger of means of epochs": lambda T: T.MaxValueTrigger("value", (1, "epoch")),
    "MinValueTrigger of means": lambda T: T.MinValueTrigger("value", (2, "iteration")),
    "OnceTrigger": lambda T: T.OnceTrigger(),
}
VALUES = [0.5, 0.7, 0.6, 0.2, 0.4, 0.9, 0.1, 0.3, 0.8, 1.0, 0.9, 0.0, 0.6, 1.2]  # of each update


def trainer_of(lib, out):
    """A trainer that reports ``VALUES``."""
    link = lib.Link()
    with link.init_scope():
        link.w = lib.Parameter(np.zeros(2, "f4"))
    optimizer = lib.optimizers.SGD(1.0).setup(link)
    values = iter(VALUES)

    def loss(x):
        lib.report({"value": next(values)})
        return lib.functions.sum(link.w * lib.functions.sum(x))

    iterator = lib.iterators.SerialIterator(np.ones(EXAMPLES, "f4"), BATCH, shuffle=False)
    updater = lib.training.updaters.StandardUpdater(iterator, optimizer, loss_func=loss)
    return lib.training.Trainer(updater, (UPDATES, "iteration"), out=out)


def evaluate_shift(lib, make):
    """Return the learning rate in each update."""
    rates = []
    with tempfile.TemporaryDirectory() as out:
        trainer = trainer_of(lib, out)
        optimizer = trainer.updater.get_optimizer("main")
        trainer.extend(make(lib.training.extensions))
        update = trainer.updater.update
        trainer.updater.update = lambda: (rates.append(optimizer.lr), update())
        trainer.run()
    return {"y0": np.array(rates)}


def evaluate_trigger(lib, make):
    """Return after which updates the trigger fires, a stopping one for the first time."""
    fired = []
    with tempfile.TemporaryDirectory() as out:
        trainer = trainer_of(lib, out)
        trainer.extend(
            lambda trainer: fired.append(trainer.updater.iteration),
            name="fired",
            trigger=make(lib.training.triggers),
        )
        trainer.run()
    return {"y0": np.array(fired)}


ITERATORS = {
    "SerialIterator": lambda it: it.SerialIterator(list(range(EXAMPLES)), BATCH, shuffle=False),
    "SerialIterator that ends": lambda it: it.SerialIterator(
        list(range(EXAMPLES)), BATCH, False, False
    ),
    "SerialIterator of large batches": lambda it: it.SerialIterator(
        list(range(EXAMPLES)), 10, shuffle=False
    ),
    "SerialIterator in a given order": lambda it: it.SerialIterator(
        list(range(EXAMPLES)), BATCH, order_sampler=reverse
    ),
    "MultithreadIterator": lambda it: it.MultithreadIterator(
        list(range(EXAMPLES)), BATCH, shuffle=False, n_threads=2
    ),
}


def reverse(order, position):
    """An order of examples that is no chance: turned round at each epoch."""
    return np.arange(EXAMPLES) if order is None else order[::-1]


def evaluate_iterator(lib, make):
    """Return the batches, and what the iterator says of epochs after each."""
    iterator = make(lib.iterators)
    batches, epochs = [], []
    for _ in range(2 * EXAMPLES):
        try:
            batch = next(iterator)
        except StopIteration:
            break
        batches.append(np.array(batch))
        epochs.append((iterator.epoch, iterator.is_new_epoch, iterator.epoch_detail))
        epochs[-1] += (iterator.previous_epoch_detail,)
    iterator.finalize()
    return numbered("y", [np.array(epochs, float), *batches])


SPLITS = {
    "get_cross_validation_datasets": lambda data: data.get_cross_validation_datasets(range(7), 3),
    "get_cross_validation_datasets_random": lambda data: data.get_cross_validation_datasets_random(
        range(7), 3, seed=5
    ),
    "split_dataset_n": lambda data: data.split_dataset_n(range(7), 3),
    "split_dataset_n_random": lambda data: data.split_dataset_n_random(range(7), 2, seed=1),
    "split_dataset_random": lambda data: data.split_dataset_random(range(11), 4, seed=3),
}


def evaluate_split(lib, make):
    """Return the examples of each part."""
    return numbered("y", [np.array(list(part)) for part in flatten(make(lib.datasets))])
