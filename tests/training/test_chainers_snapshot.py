"""A training that Chainer 7.8.1 began goes on here: its snapshot is loaded, and the log is the one
that Chainer wrote.

chainer7_snapshot.npz was written by Chainer after 6 iterations of this program (with `import
chainer`), in the middle of an interval of the log.
"""

from pathlib import Path

import numpy as np

import mnpar as chainer
import mnpar.functions as F
import mnpar.links as L
from mnpar import datasets, iterators, optimizers, serializers, training
from mnpar.training import extensions, triggers

FILE = Path(__file__).with_name("chainer7_snapshot.npz")
KEYS = [
    "iteration",
    "epoch",
    "main/loss",
    "main/accuracy",
    "lr",
    "validation/main/loss",
    "validation/main/accuracy",
]
LOG = np.array(
    [
        [4, 0, 1.153978154, 0.428571437, 0.002297368, np.nan, np.nan],
        [8, 1, 1.044844791, 0.357142869, 0.001401342, 1.451163411, 0.100000001],
        [12, 2, 0.889474943, 0.500000011, 0.001147492, 1.214323938, 0.200000003],
        [16, 2, 0.970076784, 0.357142869, 0.000981269, np.nan, np.nan],
        [20, 3, 0.889187917, 0.428571448, 0.000885799, 1.044129342, 0.300000004],
    ]
)


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(4, 8, nobias=True)
            self.l2 = L.Linear(8, 2)
            self.bn = L.BatchNormalization(8)

    def forward(self, x):
        return self.l2(F.relu(self.bn(self.l1(x))))


def program(out):
    """The trainer of the program, word for word."""
    rng = np.random.RandomState(0)
    x = rng.randn(50, 4).astype("f")
    t = (x.sum(axis=1) > 0).astype("i")
    model = L.Classifier(Net())
    opt = optimizers.Adam(alpha=0.01)
    opt.setup(model)
    train = datasets.TupleDataset(x[:40], t[:40])
    test = datasets.TupleDataset(x[40:], t[40:])
    it = iterators.SerialIterator(train, 7, shuffle=False)
    te = iterators.SerialIterator(test, 5, repeat=False, shuffle=False)
    tr = training.Trainer(training.StandardUpdater(it, opt), (20, "iteration"), out=out)
    tr.extend(extensions.Evaluator(te, model))
    tr.extend(extensions.LogReport(trigger=(4, "iteration")))
    tr.extend(extensions.observe_lr(), trigger=(1, "iteration"))
    tr.extend(extensions.ExponentialShift("alpha", 0.9), trigger=(3, "iteration"))
    tr.extend(extensions.PlotReport("main/loss", trigger=(4, "iteration")))
    tr.extend(
        extensions.snapshot(filename="snap_{.updater.iteration}"),
        trigger=triggers.MinValueTrigger("main/loss", (2, "iteration")),
    )
    tr.extend(
        extensions.snapshot_object(model.predictor, "model_{.updater.epoch}"),
        trigger=triggers.ManualScheduleTrigger([1, 2], "epoch"),
    )
    return tr


def test_chainers_training_goes_on(tmp_path):
    trainer = program(str(tmp_path))
    serializers.load_npz(str(FILE), trainer)
    assert trainer.updater.iteration == 6
    trainer.run()
    log = trainer.get_extension("LogReport").log
    found = np.array([[entry.get(key, np.nan) for key in KEYS] for entry in log])
    np.testing.assert_allclose(found, LOG, rtol=2e-5)
    assert log[0]["elapsed_time"] < log[-1]["elapsed_time"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "log",
        "model_1",
        "model_2",
        "plot.png",
        "snap_12",
        "snap_18",
    ]
