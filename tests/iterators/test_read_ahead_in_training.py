"""Iterators that read ahead in a Trainer on several ranks: cut off and resumed, it goes on bit for
bit.
"""

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import training
from mnpar.iterators import MultiprocessIterator, MultithreadIterator
from mnpar.training import extensions
from tests.iterators.sent import Noisy

KINDS = {
    "threads": lambda *args, **kwargs: MultithreadIterator(*args, **kwargs, n_threads=2),
    "processes": lambda *args, **kwargs: MultiprocessIterator(
        *args, **kwargs, n_processes=1, n_prefetch=2
    ),
}


def train(comm, make, out, iterations, name):
    """The weights and losses of a training that loads the checkpoints of that name, if there are
    any.
    """
    mnpar.random.seed([3, comm.rank])
    model = L.Classifier(L.Linear(4, 2, initialW=0.5))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(lr=0.1), comm).setup(model)
    batches = make(Noisy(7 + comm.rank), 3)  # uneven
    trainer = training.Trainer(
        training.StandardUpdater(batches, optimizer), (iterations, "iteration"), str(out)
    )
    test = MultithreadIterator(Noisy(5), 2, repeat=False, shuffle=False)
    trainer.extend(extensions.Evaluator(test, model), trigger=(2, "iteration"))
    checkpointer = mnpar.create_multi_node_checkpointer(name, comm, cp_interval=9, path=str(out))
    trainer.extend(checkpointer, trigger=(3, "iteration"))
    checkpointer.maybe_load(trainer, optimizer)
    begin = trainer.updater.iteration
    trainer.run()
    batches.finalize()
    test.finalize()
    return begin, model.predictor.W.array, float(trainer.observation["validation/main/loss"])


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_training_that_was_cut_off_goes_on_as_if_it_had_not_been(make, tmp_path):
    whole = mnpar.run(lambda comm: train(comm, make, tmp_path / "whole", 8, "whole"), ranks=2)
    mnpar.run(lambda comm: train(comm, make, tmp_path / "cut", 4, "cut"), ranks=2)
    resumed = mnpar.run(lambda comm: train(comm, make, tmp_path / "cut", 8, "cut"), ranks=2)
    for (begin, w, loss), (_, expected_w, expected_loss) in zip(resumed, whole, strict=True):
        assert begin == 3
        assert np.array_equal(w, expected_w)
        assert loss == expected_loss
