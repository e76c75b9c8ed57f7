"""A value that a hyperparameter cannot have, and an attribute that nobody reads, are told where
they are set: in the constructor, by an assignment, by an extension.
"""

import copy
import pickle

import numpy as np
import pytest

import mnpar.links as L
import mnpar.optimizers as opt
from mnpar.optimizers.hyperparameter import declared
from mnpar.training import extensions
from tests.harness.trainers import learning

CLASSES = {
    name: getattr(opt, name)
    for name in opt.__all__
    if isinstance(getattr(opt, name), type) and issubclass(getattr(opt, name), opt.GradientMethod)
}
NUMBERS = [
    (name, key)
    for name, kind in CLASSES.items()
    for key, proxy in declared(kind).items()
    if proxy.within is not None
]


def test_every_number_has_an_interval():
    assert {key for kind in CLASSES.values() for key in declared(kind)} - {
        key for _, key in NUMBERS
    } == {"amsgrad", "adabound", "eps_inside_sqrt"}


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_a_number_outside_its_interval_is_told_with_it(name, key):
    for value in (-1, np.nan, np.inf, -np.inf, np.float32(-0.5)):
        with pytest.raises(ValueError, match=rf"{name}: {key} must be a number in \[0, .*, not "):
            setattr(CLASSES[name](), key, value)
    for value in ("0.1", None, 1j):
        with pytest.raises(TypeError, match=rf"{name}: {key} must be a number in \[0, .*, not "):
            setattr(CLASSES[name](), key, value)
    for value in (0, 0.5, np.float32(0.5), np.array(0.5)):
        setattr(CLASSES[name](), key, value)


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: opt.SGD(float("nan")), ValueError, r"SGD: lr must be .* \[0, inf\), not nan"),
        (lambda: opt.Adam(beta1=2), ValueError, r"Adam: beta1 must be .* in \[0, 1\), not 2.0"),
        (lambda: opt.Adam(beta2=1), ValueError, r"Adam: beta2 must be .* in \[0, 1\), not 1.0"),
        (
            lambda: opt.MomentumSGD(momentum=1.5),
            ValueError,
            r"MomentumSGD: momentum must be .* in \[0, 1\], not 1.5",
        ),
        (lambda: opt.SGD(lr="0.1"), TypeError, r"not the text '0.1': lr=float\('0.1'\)"),
        (
            lambda: opt.apply_momentum(opt.RMSprop(), 1.5),
            ValueError,
            r"momentum must be a number in \[0, 1\], not 1.5",
        ),
    ],
    ids=["nan", "beta1", "beta2", "momentum", "text", "applied momentum"],
)
def test_a_constructor_tells_it(make, error, told):
    with pytest.raises(error, match=told):
        make()


def test_the_rule_of_one_parameter_has_the_same_intervals():
    model = L.Linear(2, 1)
    opt.SGD().setup(model)
    rule = model.W.update_rule
    with pytest.raises(ValueError, match=r"SGD: lr must be a number in \[0, inf\), not -1.0"):
        rule.hyperparam.lr = -1
    with pytest.raises(AttributeError, match=r"SGD.hyperparam has no attribute 'rate'"):
        rule.hyperparam.rate = 1


def test_an_extension_that_sets_it_tells_it(tmp_path):
    trainer = learning(tmp_path, (2, "iteration"))
    trainer.extend(extensions.LinearShift("alpha", (1.0, -1.0), (0, 2)), trigger=(1, "iteration"))
    with pytest.raises(ValueError, match=r"Adam: alpha must be a number in \[0, inf\), not -1.0"):
        trainer.run()


def test_an_extension_that_sets_an_unknown_attribute_tells_it(tmp_path):
    trainer = learning(tmp_path, (2, "iteration"))
    trainer.extend(extensions.ExponentialShift("learning_rate", 0.5, init=1.0))
    with pytest.raises(AttributeError, match=r"Adam has no attribute 'learning_rate', .* alpha;"):
        trainer.run()


@pytest.mark.parametrize(
    ("name", "attribute", "told"),
    [
        ("SGD", "learning_rate", "which nothing would read: mnpar has lr; the hyperparameters are"),
        ("Adam", "learning_rate", "mnpar has alpha; the hyperparameters are alpha, beta1, beta2"),
        ("Adam", "bate1", "mnpar has beta1;"),
        ("SGD", "momentum", "mnpar has mnpar.optimizers.MomentumSGD;"),
        ("SGD", "weight_decay", r"mnpar has optimizer.add_hook\(.*WeightDecay\(rate\)\) after"),
        ("SGD", "epohc", "mnpar has epoch;"),
        ("SGD", "foo", "read; .* Attributes of your own belong in a subclass of SGD$"),
    ],
)
def test_an_attribute_that_nobody_reads_is_told(name, attribute, told):
    with pytest.raises(AttributeError, match=f"^{name} has no attribute {attribute!r}.*{told}"):
        setattr(CLASSES[name](), attribute, 0.1)
    assert not hasattr(CLASSES[name](), attribute)


def test_so_is_a_hyperparameter():
    with pytest.raises(AttributeError, match=r"SGD.hyperparam has no attribute 'foo'"):
        opt.SGD().hyperparam.foo = 1


def test_an_optimizer_of_ones_own_has_attributes_and_hyperparameters_of_its_own():
    class Mine(opt.SGD):
        def __init__(self, lr, factor):
            super().__init__(lr)
            self.factor = factor
            self.hyperparam.decay = 2.0

    mine = Mine(0.5, 3)
    mine.learning_rate = "anything"
    mine.hyperparam.slack = -1
    mine.setup(L.Linear(2, 1)).target.W.update_rule.hyperparam.slack = 3
    assert (mine.factor, mine.hyperparam.decay) == (3, 2.0)
    with pytest.raises(ValueError, match=r"Mine: lr must be a number in \[0, inf\), not -1.0"):
        mine.lr = -1


@pytest.mark.parametrize(
    "how",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deep", "pickle"],
)
def test_a_copy_tells_it_too(how):
    other = how(opt.SGD())
    with pytest.raises(AttributeError, match="no attribute 'learning_rate'"):
        other.learning_rate = 0.1
    with pytest.raises(ValueError, match="lr must be"):
        other.lr = -1
