"""Copies of a model in DistributedDataParallel that drift apart are told on all ranks, as those of
an optimizer of several ranks are; right programs hear nothing.
"""

import copy

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import MismatchError

pytestmark = pytest.mark.usefixtures("float64", "debug_off")

RANKS = pytest.mark.ranks(2, 3, 4, on="threads")
D = 3


def odd(comm):
    """Return whether this is the rank that does something else."""
    return comm.rank == comm.size - 1


class Training:
    """A loop that a user writes, with a fault on one rank."""

    def __init__(self, comm, check=100):
        self.comm = comm
        self.net = mnpar.Chain(a=L.Linear(D, 2, initialW=1.0))
        self.net.forward = lambda x: self.net.a(x)
        self.model = mnpar.DistributedDataParallel(self.net, comm, check=check)
        self.optimizer = mnpar.optimizers.SGD(0.1).setup(self.model)

    def step(self, model=None, n=2):
        x = np.full((n, D), 1.0 + self.comm.rank)
        self.model.cleargrads()
        y = (model or self.model)(x)
        (F.mean(y) if n else F.sum(y)).backward()
        self.optimizer.update()


def sets_a_learning_rate(training):
    training.optimizer.lr = 0.2


def adds_a_hook(training):
    training.optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(0.1))


def freezes_a_parameter(training):
    training.net.a.b.update_rule.enabled = False


def changes_a_value(training):
    training.net.a.W.array[0, 0] += 1


FAULTS = {
    "another learning rate": (
        sets_a_learning_rate,
        r"/a/W .*Rank 0 changes it by SGDRule \(lr 0\.1\), and rank \d by SGDRule \(lr 0\.2\)",
    ),
    "a hook": (adds_a_hook, r"/a/W .*random numbers, hyperparameters, hooks"),
    "a frozen parameter": (freezes_a_parameter, r"/a/b .*SGDRule \(lr 0\.1\), disabled"),
    "a value changed by hand": (changes_a_value, r"/a/W .*changed by hand"),
}


@pytest.mark.parametrize("n", [2, 0], ids=["samples", "one rank without samples"])
@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS)
@RANKS
def test_copies_that_drift_are_told_at_the_next_comparison(comm, fault, words, n):
    training = Training(comm)
    mine = n if comm.rank == 0 else 2
    for _ in range(5):
        training.step(n=mine)
    if odd(comm):
        fault(training)
    for _ in range(3):
        training.step(n=mine)
    with pytest.raises(MismatchError, match=rf"update 9: the values of {words}"):
        training.step(n=mine)


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS)
@pytest.mark.ranks(2, on="threads")
def test_in_debug_mode_they_are_told_in_the_next_forward(comm, fault, words):
    training = Training(comm)
    for _ in range(5):
        training.step()
    if odd(comm):
        fault(training)
    training.optimizer.update()  # with the gradients that are there
    with (
        mnpar.using_config("debug", True),
        pytest.raises(MismatchError, match=rf"update 6: the values of {words}"),
    ):
        training.step()


@pytest.mark.ranks(2)
def test_processes_tell_it_too(comm):
    training = Training(comm, check=3)
    for _ in range(4):
        training.step()
    if odd(comm):
        sets_a_learning_rate(training)
    for _ in range(2):
        training.step()
    with pytest.raises(MismatchError, match=r"update 7: the values of /a/W are not the same on "):
        training.step()


@pytest.mark.parametrize("told", [1, 2, 4, 8, 16])
@pytest.mark.ranks(2, on="threads")
def test_a_drift_is_told_early(comm, told):
    training = Training(comm)
    for _ in range(told):
        training.step()
    if odd(comm):
        changes_a_value(training)
    with pytest.raises(MismatchError, match=rf"update {told + 1}: "):
        training.step()


@RANKS
def test_copies_that_were_taken_as_given_are_compared_in_the_first_forward(comm):
    model = mnpar.DistributedDataParallel(L.Linear(D, 1, initialW=1.0 + comm.rank), comm)
    model.take_as_given()
    with pytest.raises(MismatchError, match=r"update 1: the values of /W are not the same"):
        model(np.ones((1, D)))


def test_a_comparison_after_every_0_backwards_is_refused():
    def program(comm):
        mnpar.DistributedDataParallel(L.Linear(1, 1), comm, check=0)

    with pytest.raises(ValueError, match="compared every 1 or more backwards, not every 0"):
        mnpar.run(program, ranks=1)


# ---- its module called in its place ----


@pytest.mark.filterwarnings("ignore:rank")
@pytest.mark.parametrize("times", [1, 3])
@RANKS
def test_a_module_that_was_called_in_its_place_is_told_at_the_next_call(comm, times):
    training = Training(comm)
    for _ in range(5):
        training.step()
    for _ in range(times):
        training.step(training.net)
    with pytest.raises(
        MismatchError,
        match=r"update 6: .*On ranks \[0, 1.*\], backward found gradients .*call it, and not its ",
    ):
        training.step()


@pytest.mark.filterwarnings("ignore:rank")
@pytest.mark.ranks(2, on="threads")
def test_a_module_that_one_rank_has_called_once_more_is_told(comm):
    training = Training(comm)
    for _ in range(5):
        training.step()
    if odd(comm):
        training.step(training.net)
    with pytest.raises(MismatchError, match=r"On ranks \[1\], backward found gradients"):
        training.step()


@pytest.mark.ranks(2, on="threads")
def test_a_module_that_is_trained_by_itself_from_then_on_is_told_once(comm):
    training = Training(comm)
    training.step()
    training.step(training.net)
    with pytest.warns(UserWarning, match=rf"rank {comm.rank}: /a/. was changed .* alone: call"):
        training.step(training.net)
    training.step(training.net)


@pytest.mark.ranks(1, 2, 3, on="threads")
def test_gradients_that_its_module_gets_and_nobody_steps_by_are_nobodys_business(comm):
    """A generator that learns from a discriminator, whose gradients are dropped."""
    critic = mnpar.DistributedDataParallel(L.Linear(2, 1, initialW=1.0), comm)
    maker = mnpar.DistributedDataParallel(L.Linear(1, 2, initialW=1.0), comm)
    optimizers = [mnpar.optimizers.SGD(0.1).setup(model) for model in (critic, maker)]
    x = np.full((1 + comm.rank, 1), 1.0 + comm.rank)
    for _ in range(10):
        maker.cleargrads()
        F.mean(critic.module(maker(x))).backward()
        optimizers[1].update()
        critic.cleargrads()
        F.mean(critic(maker(x).array)).backward()
        optimizers[0].update()
    assert mnpar.check_parameter_closeness(critic, comm)
    assert mnpar.check_parameter_closeness(maker, comm)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.ranks(1, 2, 3, on="threads")
def test_gradients_that_are_added_up_and_looked_at_are_nobodys_business(comm, inside):
    training = Training(comm)
    x = np.full((1 + comm.rank, D), 1.0 + comm.rank)
    for _ in range(10):
        training.model.cleargrads()
        with training.model.no_sync():
            loss = F.mean(training.model(x))
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        mnpar.grad([F.sum(training.net(x))], [training.net.a.W])  # to be printed, say
        training.net(x)  # an evaluation that records
        F.mean(training.model(x)).backward()
        training.optimizer.update()
    assert mnpar.check_parameter_closeness(training.net, comm)


@pytest.mark.ranks(1, 2, 3, on="threads")
def test_an_optimizer_of_several_ranks_may_train_its_module_later(comm):
    training = Training(comm)
    for _ in range(3):
        training.step()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm)
    optimizer.setup(training.net)
    x = np.full((2, D), 1.0 + comm.rank)
    for _ in range(4):
        optimizer.update(lambda x: F.mean(training.net(x)), x)
    training.optimizer.setup(training.model)
    training.step()
    assert mnpar.check_parameter_closeness(training.net, comm)


@pytest.mark.ranks(1, 2, 3, on="threads")
def test_persistent_values_of_each_rank_are_its_own(comm):
    model = mnpar.DistributedDataParallel(
        mnpar.Sequential(L.Linear(D, 2, initialW=1.0), L.BatchNormalization(2)), comm
    )
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    x = np.random.default_rng(comm.rank).standard_normal((4, D))
    with mnpar.using_config("debug", True):
        for _ in range(5):
            model.cleargrads()
            F.mean(model(x) ** 2).backward()
            optimizer.update()
    assert mnpar.check_parameter_closeness(model, comm)


# ---- which model ----


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.ranks(2, 3, on="threads")
def test_two_models_in_another_order_on_one_rank_are_told(comm, before):
    both = [mnpar.DistributedDataParallel(L.Linear(D, 2), comm) for _ in range(2)]
    for _ in range(before):
        for model in both:
            F.mean(model(np.ones((1, D)))).backward()
    values = [[param.array.copy() for param in model.params()] for model in both]
    with pytest.raises(
        MismatchError,
        match=r"call different models.*\n  rank 0: DistributedDataParallel 1, of a Linear with /W "
        r"\(2, 3\)(.|\n)*DistributedDataParallel 2(.|\n)*in the same order on all ranks",
    ):
        both[odd(comm)](np.ones((1, D)))
    for model, arrays in zip(both, values, strict=True):
        for param, array in zip(model.params(), arrays, strict=True):
            np.testing.assert_array_equal(param.array, array)


@pytest.mark.ranks(2)
def test_processes_tell_two_models_in_another_order(comm):
    both = [mnpar.DistributedDataParallel(L.Linear(D, 2), comm) for _ in range(2)]
    with pytest.raises(MismatchError, match="the ranks call different models"):
        both[comm.rank](np.ones((1, D)))


@pytest.mark.ranks(2, on="threads")
def test_copies_are_told_apart_and_one_that_only_one_rank_makes_changes_nothing(comm):
    model = mnpar.DistributedDataParallel(L.Linear(D, 2), comm)
    model(np.ones((1, D)))
    mnpar.backward()
    if odd(comm):
        copy.deepcopy(mnpar.DistributedDataParallel.__deepcopy__(model, {}))
    later = mnpar.DistributedDataParallel(L.Linear(D, 2), comm)
    for each in (model, later):
        F.mean(each(np.ones((1, D)))).backward()
    copies = [copy.deepcopy(later) for _ in range(2)]
    with pytest.raises(MismatchError, match=r"copy 1 of DistributedDataParallel 2, of a "):
        copies[comm.rank](np.ones((1, D)))


@pytest.mark.ranks(2, on="threads")
def test_a_mean_over_samples_here_and_over_ranks_there_is_told(comm):
    how = "mean" if odd(comm) else "weighted"
    model = mnpar.DistributedDataParallel(L.Linear(D, 2), comm, reduce=how)
    with pytest.raises(MismatchError, match=r"not made alike .*\n  reduce: weighted, mean\n"):
        model(np.ones((1, D)))


@RANKS
@pytest.mark.parametrize("held", [False, True])
def test_gradients_that_one_rank_does_not_clear_are_told(comm, held):
    training = Training(comm)
    x = np.full((2, D), 1.0 + comm.rank)

    def step(clear):
        if clear:
            training.model.cleargrads()
        F.mean(training.model(x)).backward()

    if held:
        with training.model.no_sync():
            step(True)
    step(not held)
    step(not odd(comm))
    with pytest.raises(MismatchError, match="cleargrads"):
        step(True)


@RANKS
def test_gradients_that_all_ranks_keep_or_some_hold_back_are_right(comm):
    training = Training(comm)
    x = np.full((2, D), 1.0 + comm.rank)
    for step in range(4):
        if step % 2 == 0:
            training.model.cleargrads()
        if odd(comm):  # more micro-batches than the others
            with training.model.no_sync():
                F.mean(training.model(x)).backward()
        F.mean(training.model(x)).backward()
