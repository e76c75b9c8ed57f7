"""Trainers to test with: one that only counts, and one that trains something small."""

import io

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import serializers, training
from mnpar.iterators import SerialIterator, ShuffleOrderSampler


class FreeSGD(mnpar.optimizers.SGD):
    """SGD whose rate may be any number: the formulas of shifts know no range."""

    lr = mnpar.optimizers.hyper(default=1.0)


class Counting(training.Updater):
    """Counts iterations, an epoch every ``length``; reports one of ``values`` under each name at
    each.
    """

    def __init__(self, length=5, **values):
        self.iteration, self.length, self.values = 0, length, values
        self.finalized = 0
        self.model = mnpar.Link(w=(2,))
        self.optimizer = FreeSGD(lr=1.0).setup(self.model)

    epoch = property(lambda self: self.iteration // self.length)
    epoch_detail = property(lambda self: self.iteration / self.length)
    previous_epoch_detail = property(
        lambda self: (self.iteration - 1) / self.length if self.iteration else None
    )
    is_new_epoch = property(lambda self: self.iteration % self.length == 0)

    def get_optimizer(self, name):
        return {"main": self.optimizer}[name]

    def get_all_optimizers(self):
        return {"main": self.optimizer}

    def update(self):
        for name, values in self.values.items():
            value = values[self.iteration] if self.iteration < len(values) else None
            if value is not None:
                mnpar.report({name: value})
        self.iteration += 1

    def finalize(self):
        self.finalized += 1

    def serialize(self, serializer):
        self.iteration = int(serializer("iteration", self.iteration))


def counting(tmp_path, stop=(20, "iteration"), length=5, extensions=None, comm=None, **values):
    """A trainer that counts."""
    return training.Trainer(Counting(length, **values), stop, str(tmp_path), extensions, comm=comm)


class Net(mnpar.Chain):
    """Two layers with dropout, so that a resumed run needs the random state too."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(3)
        self.l1 = L.Linear(None, 6, initialW=mnpar.initializers.LeCunNormal(rng=rng))
        self.l2 = L.Linear(6, 3, initialW=mnpar.initializers.LeCunNormal(rng=rng))

    def forward(self, x):
        return self.l2(F.dropout(F.relu(self.l1(x)), 0.3))


def examples(n=23):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, 4)).astype("f")
    return [(row, np.int32(row[0] > 0)) for row in x]


def learning(out, stop=(6, "epoch"), batch=5, optimizer=None):
    """A trainer that learns; made twice, it does the same twice."""
    mnpar.random.seed(7)
    model = L.Classifier(Net())
    optimizer = (optimizer or mnpar.optimizers.Adam(alpha=0.01)).setup(model)
    sampler = ShuffleOrderSampler(np.random.RandomState(2))
    iterator = SerialIterator(examples(), batch, order_sampler=sampler)
    return training.Trainer(training.StandardUpdater(iterator, optimizer), stop, str(out))


def saved(thing):
    """The bytes of a file."""
    buffer = io.BytesIO()
    serializers.save_npz(buffer, thing)
    return buffer.getvalue()


def load(data, thing):
    serializers.load_npz(io.BytesIO(data), thing)


def weights(trainer):
    return {
        path: param.array.copy()
        for path, param in trainer.updater.get_optimizer("main").target.namedparams()
    }
