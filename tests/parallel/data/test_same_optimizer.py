"""Ranks that update different optimizers, or by different hyperparameters, are told in the very
update.
"""

import contextlib
import copy

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import MismatchError

OTHERS = (
    r"the ranks update different optimizers:\n  rank 0: optimizer 1, of a Linear with (.*)\n  "
    r"rank 1: optimizer 2, of a "
)
WAYS = pytest.mark.parametrize(
    "options", [{}, {"bucket_bytes": 100}, {"sharded": True}, {"double_buffering": True}], ids=str
)


def made(comm, **options):
    net = L.Linear(3, 2)
    return mnpar.create_multi_node_optimizer(
        mnpar.optimizers.MomentumSGD(0.1), comm, **options
    ).setup(net)


def update(optimizer, n=2):
    optimizer.update(lambda x: F.mean(optimizer.target(x) ** 2), np.ones((n, 3), "f4"))


def updated(comm, times, **options):
    optimizer = made(comm, **options)
    for _ in range(times):
        update(optimizer)
    return optimizer


@pytest.mark.usefixtures("both_matches")
@WAYS
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.ranks(2, on="threads")
def test_two_optimizers_in_another_order_on_one_rank_are_told(comm, before, options):
    """Their gradients have the same form, so nothing else tells them apart."""
    both = [made(comm, **options), made(comm, **options)]
    for _ in range(before):
        for optimizer in both:
            update(optimizer)
    values = [param.array.copy() for optimizer in both for param in optimizer.target.params()]
    with pytest.raises(MismatchError, match=OTHERS + r"(.|\n)*in the same order on all ranks"):
        update(both[comm.rank])
    for value, param in zip(
        values, [p for optimizer in both for p in optimizer.target.params()], strict=True
    ):
        np.testing.assert_array_equal(param.array, value)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2)
def test_processes_tell_it_too_and_go_on(comm):
    both = [made(comm), made(comm)]
    for _ in range(3):
        for optimizer in both:
            update(optimizer)
    with pytest.raises(MismatchError, match=OTHERS):
        update(both[comm.rank])
    both[1].lr = 0.1 + comm.rank
    with pytest.raises(MismatchError, match=r"  lr: 0\.1, 1\.1"):
        update(both[1])
    update(both[0])
    assert mnpar.check_parameter_closeness(both[0].target, comm)


@pytest.mark.usefixtures("both_matches")
@WAYS
@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.ranks(2, on="threads")
def test_copies_in_another_order_on_one_rank_are_told(comm, before, options):
    first = updated(comm, before, **options)
    copies = [first, copy.deepcopy(first)]
    copies += [copy.deepcopy(one) for one in copies]
    for optimizer in copies:
        update(optimizer)
    for one in range(4):
        other = (one + 1) % 4
        with pytest.raises(
            MismatchError,
            match=r"the ranks update different optimizers:\n  rank 0: .*optimizer 1, of a L",
        ):
            update(copies[(one, other)[comm.rank]])


@pytest.mark.usefixtures("both_matches")
@WAYS
@pytest.mark.ranks(2, on="threads")
def test_a_copy_on_one_rank_only_is_nobodys_business(comm, options):
    first = updated(comm, 2, **options)
    if comm.rank:
        copy.deepcopy(first)
    for optimizer in (first, updated(comm, 2, **options)):
        update(optimizer)
    last = copy.deepcopy(first)
    with pytest.raises(
        MismatchError,
        match=r"rank 0: copy 1 of optimizer 1, of a (.|\n)*rank 1: copy 2 of optimizer 1, of a ",
    ):
        update(last)


@pytest.mark.usefixtures("both_matches")
@WAYS
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.ranks(3, on="threads")
def test_a_learning_rate_that_differs_is_told_in_the_next_update(comm, before, options):
    optimizer = updated(comm, before, **options)
    optimizer.lr = 0.5 if comm.rank == 2 else 0.25
    with pytest.raises(
        MismatchError,
        match=r"not the same on all ranks .*\n  lr: 0\.25, 0\.25, 0\.5\n(.|\n)*optimizer\.t",
    ):
        update(optimizer)


@pytest.mark.usefixtures("both_matches")
@WAYS
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.ranks(2, on="threads")
def test_a_loss_scale_that_differs_is_told_in_the_next_update(comm, before, options):
    """A sum of gradients that are scaled and others that are not is of no use to any rank."""
    optimizer = updated(comm, before, **options)
    optimizer.set_loss_scale(8.0 if comm.rank else None)
    with pytest.raises(MismatchError, match=r"not the same on all ranks .*\n  loss scale: 1, 8\n"):
        update(optimizer)
    optimizer.loss_scaling()
    for _ in range(5):  # another scale each time, but the same on all ranks
        update(optimizer)


@pytest.mark.usefixtures("both_matches")
@WAYS
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.ranks(2, on="threads")
def test_a_hook_that_one_rank_has_not_is_told_in_the_next_update(comm, before, options):
    """One that changes gradients; what a user's hook does nobody knows, and it may be on one rank
    only.
    """
    optimizer = updated(comm, before, **options)
    if comm.rank:
        optimizer.add_hook(lambda optimizer: None, "only looks")
    update(optimizer)
    optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(0.1))
    if comm.rank:
        optimizer.remove_hook("WeightDecay")
    with pytest.raises(
        MismatchError, match=r"not the same on all ranks .*\n  hooks: WeightDecay, none\n"
    ):
        update(optimizer)


@pytest.mark.usefixtures("both_matches")
@WAYS
@pytest.mark.ranks(3, on="threads")
def test_gradients_that_are_reduced_in_another_way_on_one_rank_are_told(comm, options):
    optimizer = made(comm, reduce="sum" if comm.rank == 1 else "weighted", **options)
    with pytest.raises(
        MismatchError, match=r"not the same on all ranks .*\n  reduce: weighted, sum, weighted\n"
    ):
        update(optimizer)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("change", ["lr", "own", "own deleted", "disabled"])
@pytest.mark.parametrize("between", ["nothing", "gradients by hand", "samples"])
@pytest.mark.ranks(2, on="threads")
def test_whatever_came_between_it_is_told(comm, between, change):
    optimizer = made(comm)
    rule = optimizer.target.W.update_rule
    rule.hyperparam.momentum = 0.5
    for _ in range(3):
        update(optimizer)
    if change == "disabled":
        rule.enabled = comm.rank == 0
    elif comm.rank:
        if change == "lr":
            optimizer.lr = 0.2
        elif change == "own":
            rule.hyperparam.lr = 0.2
        else:
            del rule.hyperparam.momentum
    for _ in range(2):  # it stays so
        with pytest.raises(MismatchError, match="hyperparameters are not the same"):
            optimizer.update() if between == "gradients by hand" else update(
                optimizer, 1 + comm.rank * (between == "samples")
            )


@WAYS
@pytest.mark.ranks(2, on="threads")
def test_a_schedule_that_is_the_same_on_all_ranks_goes_on(comm, options):
    optimizer = made(comm, **options)
    twin = mnpar.optimizers.MomentumSGD(0.1).setup(L.Linear(3, 2))
    for param, other in zip(twin.target.params(), optimizer.target.params(), strict=True):
        param.copydata(other)
        param.array[...] = comm.bcast(param.array)
    for t in range(6):
        optimizer.lr = twin.lr = 0.1 / (t + 1)
        update(optimizer)
        update(twin)
    if not options.get("double_buffering"):
        for param, other in zip(twin.target.params(), optimizer.target.params(), strict=True):
            np.testing.assert_allclose(other.array, param.array, rtol=1e-5)


def fails_on_rank_1(comm, optimizer, timing):
    """An update in which a hook fails there, and the program goes on."""
    optimizer.add_hook(lambda optimizer: {0: 0}[comm.rank], "fails", timing)
    with pytest.raises(KeyError) if comm.rank == 1 else contextlib.nullcontext():
        update(optimizer)
    optimizer.remove_hook("fails")


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    "options", [{}, {"bucket_bytes": 100}, {"double_buffering": True}], ids=str
)
@pytest.mark.ranks(2, on="threads")
def test_a_copy_that_lacks_a_step_after_an_error_that_was_caught_is_told_until_all_load_a_snapshot(
    comm, before, options
):
    optimizer = made(comm, **options)
    saved = mnpar.serializers.DictionarySerializer()
    for _ in range(before + 1):
        update(optimizer)
    for thing in (optimizer, optimizer.target):
        thing.serialize(saved[type(thing).__name__])
    snapshot = {key: np.array(value) for key, value in saved.target.items()}
    fails_on_rank_1(comm, optimizer, "pre")
    for _ in range(2):
        with pytest.raises(
            MismatchError,
            match=r"an error has interrupted .*\n  interrupted updates: 0, 1\n(.|\n)*load a "
            r"snapshot",
        ):
            update(optimizer)
    for thing in (optimizer, optimizer.target):
        thing.serialize(mnpar.serializers.NpzDeserializer(snapshot)[type(thing).__name__])
    update(optimizer)
    assert mnpar.check_parameter_closeness(optimizer.target, comm)


@pytest.mark.parametrize(
    "options", [{}, {"bucket_bytes": 100}, {"double_buffering": True}], ids=str
)
@pytest.mark.ranks(2, on="threads")
def test_after_an_error_that_came_when_the_step_was_done_the_copies_go_on(comm, options):
    optimizer = made(comm, **options)
    twin = made(comm, **options)
    twin.target.copyparams(optimizer.target)
    for step in range(6):
        update(twin)
        if step == 3:
            fails_on_rank_1(comm, optimizer, "post")
        else:
            update(optimizer)
    for param, other in zip(optimizer.target.params(), twin.target.params(), strict=True):
        np.testing.assert_array_equal(param.array, other.array)
