"""Classifier: calls the predictor, compares with the labels, reports, returns the loss."""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

X = np.array([[3.0, 0.0], [0.0, 3.0]])
T = np.array([0, 0])
# −log softmax of the first of (3, 0) and of (0, 3)
LOSS = np.mean([np.log(1 + np.exp(-3)), np.log(1 + np.exp(3))])


def identity(**kwargs):
    return L.Classifier(L.Linear(2, 2, initialW=np.eye(2)), **kwargs)


def test_the_loss_and_the_accuracy_are_those_of_the_outputs():
    model = identity()
    loss = model(X, T)
    np.testing.assert_allclose(loss.array, LOSS)
    assert loss is model.loss
    np.testing.assert_array_equal(model.y.array, X)
    assert model.accuracy.item() == 0.5


class Double(mnpar.Chain):
    """x and a factor, by place or by keyword."""

    def forward(self, x, factor=1):
        return mnpar.as_variable(x) * factor


CALLS = {
    "last": (-1, (X, 2, T), {}),
    "first": (0, (T, X, 2), {}),
    "in the middle": (1, (X, T, 2), {}),
    "counted from the end": (-2, (X, T, 2), {}),
    "keyword": ("t", (X, 2), {"t": T}),
    "keywords only": ("t", (), {"x": X, "factor": 2, "t": T}),
    "place and keywords": (-1, (X, T), {"factor": 2}),
}


@pytest.mark.parametrize(("key", "args", "kwargs"), CALLS.values(), ids=CALLS)
def test_the_labels_are_the_argument_of_that_place_or_name(key, args, kwargs):
    model = L.Classifier(Double(), label_key=key)
    model(*args, **kwargs)
    np.testing.assert_array_equal(model.y.array, 2 * X)
    assert model.accuracy.item() == 0.5


@pytest.mark.parametrize(
    ("key", "args", "kwargs"),
    [(-1, (), {"t": T}), (2, (X, T), {}), (-3, (X, T), {}), ("t", (X, T), {})],
)
def test_labels_that_are_not_there_are_missed(key, args, kwargs):
    with pytest.raises(ValueError, match="the labels were to come as"):
        identity(label_key=key)(*args, **kwargs)


@pytest.mark.parametrize("key", [1.0, None, ("t",)], ids=repr)
def test_a_key_is_a_place_or_a_name(key):
    with pytest.raises(TypeError, match="the place or the keyword of the labels"):
        identity(label_key=key)


def test_other_losses_and_accuracies_can_be_given():
    model = identity(lossfun=lambda y, t: F.sum(y), accfun=lambda y, t: F.sum(y) * 2)
    assert model(X, T).item() == 6
    assert model.accuracy.item() == 12


def test_the_accuracy_can_be_left_out_and_none_is_kept_from_before():
    model = identity()
    model(X, T)
    model.compute_accuracy = False
    reporter = mnpar.Reporter()
    reporter.add_observer("main", model)
    with reporter:
        model(X, T)
    assert model.accuracy is None
    assert list(reporter.observation) == ["main/loss"]


def test_only_the_predictor_learns():
    model = identity()
    assert [path for path, _ in model.namedparams()] == ["/predictor/W", "/predictor/b"]
    before = model.predictor.W.array.copy()
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    optimizer.update(model, X, T)
    p = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    gW = ((p - np.eye(2)[T]) / 2).T @ X
    np.testing.assert_allclose(model.predictor.W.array, before - 0.1 * gW, rtol=1e-5)


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_it_can_be_copied_between_batches_without_the_last_graph(how):
    model = identity()
    model(X, T)
    other = how(model)
    assert (other.y, other.loss, other.accuracy) == (None, None, None)
    assert model.loss is not None
    np.testing.assert_allclose(other(X, T).array, LOSS)
