"""Ranks run the same passes of backward, or are told so before a gradient of one pass is taken for
one of another.
"""

import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.errors import MismatchError
from mnpar.plans import Plan, blocks, everywhere
from mnpar.runtime.callsite import call_site, decode_site, encode_site


def send(comm, x):
    if comm.rank:
        return F.recv(comm, 0)
    for rank in range(1, comm.size):
        F.send(x, comm, rank)
    return x


def exchange(comm, x, later=""):
    plan = Plan(blocks((2 * comm.size,), (comm.size,)), everywhere((2 * comm.size,), comm.size))
    return getattr(F, f"{later}exchange")(comm, x, plan)


COMMUNICATIONS = {
    "send": send,
    "shift": F.shift,
    "ishift": F.ishift,
    "large shift": lambda comm, x: F.shift(comm, F.broadcast_to(x, (2**14, 2))),
    "exchange": exchange,
    "iexchange": lambda comm, x: exchange(comm, x, "i"),
    "bcast": F.bcast,
    "allreduce": F.allreduce,
    "iallreduce": F.iallreduce,
    "copy_to": F.copy_to,
    "scatter_to": lambda comm, x: F.scatter_to(comm, F.concat([x, x], axis=0)),
}


def grad(**options):
    def run(x, loss):
        mnpar.grad([loss], [x], **options)

    return run


def backward(**options):
    def run(x, loss):
        mnpar.backward([loss], **options)

    return run


RECORDED, KEPT, LAST = (grad(enable_double_backprop=True), backward(retain_tape=True), backward())
DIFFERENT = {  # the passes of rank 0, and those of the others
    "a recorded pass too many": ((RECORDED, LAST), (LAST,)),
    "a recorded pass too few": ((LAST,), (RECORDED, LAST)),
    "a kept pass too many": ((KEPT, LAST), (LAST,)),
    "one of two kept passes too few": ((KEPT, LAST), (KEPT, KEPT, LAST)),
    "swapped": ((KEPT, RECORDED), (RECORDED, KEPT)),
    "recorded on one rank": ((RECORDED,), (grad(),)),
    "another kind": ((grad(),), (LAST,)),
}


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("name", COMMUNICATIONS)
@pytest.mark.parametrize("how", DIFFERENT)
def test_ranks_in_different_passes_are_told_so(name, how):
    def program(comm):
        x = mnpar.Variable(np.array([2.0, 3.0]))
        y = COMMUNICATIONS[name](comm, x)
        loss = F.sum(y * y)
        for run in DIFFERENT[how][comm.rank]:
            run(x, loss)

    with pytest.raises(MismatchError, match=r"different passes of backward|record this backward"):
        mnpar.run(program, ranks=2)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("name", COMMUNICATIONS)
@pytest.mark.parametrize("scales", [(None, 8), (8, None), (8, 4), (1, 3e38)], ids=str)
def test_ranks_with_losses_of_different_scales_are_told_so(name, scales):
    """A collective with a root tells only whether there is a scale, as its header has the root."""

    def program(comm):
        x = mnpar.Variable(np.array([2.0, 3.0]))
        y = COMMUNICATIONS[name](comm, x)
        F.sum(y * y).backward(loss_scale=scales[comm.rank])

    if name == "bcast" and scales == (8, 4):
        mnpar.run(program, ranks=2)
        return
    told = r"multiply their losses by different scales[\s\S]*loss_scale=|plans, or loss scales"
    with pytest.raises(MismatchError, match=told):
        mnpar.run(program, ranks=2)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("name", COMMUNICATIONS)
@pytest.mark.parametrize("scale", [2.0**15, 0.1])
def test_gradients_of_one_scale_are_that_many_times_as_large(name, scale):
    def program(comm):
        x = mnpar.Variable(np.array([2.0, 3.0]))
        y = COMMUNICATIONS[name](comm, x)
        loss = F.sum(y * y)
        loss.backward(retain_tape=True)
        g = x.grad
        x.cleargrad()
        loss.backward(loss_scale=scale)
        if g is not None:
            np.testing.assert_allclose(x.grad, g * scale, rtol=1e-12)

    mnpar.run(program, ranks=2)


def test_a_rank_that_has_no_gradient_to_give_needs_no_scale():
    def program(comm):
        x = mnpar.Variable(np.array([2.0]))
        if comm.rank:
            F.recv(comm, 0)
            mnpar.backward()
            return
        F.send(x, comm, 1)
        (x * 3.0).backward(loss_scale=4.0)
        assert float(x.grad[0]) == 12.0

    mnpar.run(program, ranks=2)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.filterwarnings("ignore::mnpar.errors.UnreceivedWarning")
@pytest.mark.parametrize("name", ["send", "allreduce", "exchange"])
def test_the_error_names_the_lines_of_both_passes_and_the_remedy_on_both_ranks(name):
    errors = []

    def program(comm):
        x = mnpar.Variable(np.array([2.0, 3.0]))
        y = COMMUNICATIONS[name](comm, x)
        loss = F.sum(y * y)
        try:
            if comm.rank:
                (g,) = mnpar.grad([loss], [y], enable_double_backprop=True)
                F.sum(g * g).backward()
            else:
                mnpar.backward([loss])
            comm.barrier()  # a rank that waits for nothing more is told where it next waits
        except MismatchError as error:
            errors.append(str(error))

    mnpar.run(program, ranks=2)
    assert len(errors) == 2
    plain = r"in mnpar.backward\(\) at \S*test_passes.py:\d+\n"
    recorded = r"in mnpar.grad\(enable_double_backprop=True\) at \S*test_passes.py:\d+\n"
    for text in errors:
        assert re.search(rf"  rank 0: .*test_passes.py:\d+, {plain}", text)
        assert re.search(rf"  rank 1: .*test_passes.py:\d+, {recorded}", text)
        assert "mnpar.grad([], [], enable_double_backprop=True)" in text


@pytest.mark.parametrize("name", COMMUNICATIONS)
@pytest.mark.ranks(2, 3)
def test_any_number_of_passes_that_all_ranks_run_is_right(comm, name):
    x = mnpar.Variable(np.array([2.0, 3.0]))
    y = COMMUNICATIONS[name](comm, x)
    loss = F.sum(y * y)
    passes = (KEPT, RECORDED, KEPT, LAST)
    grads = []
    for run in passes:
        x.zerograd()
        run(x, loss)
        grads.append(x.grad)
    assert not np.any(grads[1])  # of mnpar.grad
    np.testing.assert_allclose(grads[2:], [grads[0]] * 2)


@pytest.mark.ranks(2)
def test_a_rank_without_outputs_joins_each_pass_by_a_call_without_outputs(comm):
    """d/dx (dx³/dx)² = 36x³."""
    x = mnpar.Variable(np.array(2.0))
    y = send(comm, x)
    if comm.rank:
        (g,) = mnpar.grad([y * y * y], [y], enable_double_backprop=True)
        mnpar.backward([g * g])
    else:
        mnpar.grad([], [], enable_double_backprop=True)
        mnpar.backward()
        np.testing.assert_allclose(x.grad, 36 * 2.0**3)


@pytest.mark.ranks(2)
def test_tapes_of_their_own_may_divide_the_passes_of_one_rank_otherwise_than_those_of_another(comm):
    """One backward of two forwards on rank 0, two of one forward each on rank 1."""
    x = mnpar.Variable(np.array(2.0))
    tapes = mnpar.Tape(), mnpar.Tape()
    losses = []
    for factor, tape in zip((2, 3), tapes, strict=True):
        if comm.rank:
            with tape:
                losses.append(factor * F.recv(comm, 0))
        else:
            F.send(x, comm, 1)
    if comm.rank:
        for loss, tape in reversed(list(zip(losses, tapes, strict=True))):
            with tape:
                loss.backward()
    else:
        mnpar.backward()
        assert float(x.grad) == 5


@pytest.mark.usefixtures("both_matches")
def test_the_gradient_of_a_collective_of_another_tape_is_not_taken_for_this_ones():
    """All passes keep their tapes; rank 0 runs two of the first, and rank 1 two of the second."""

    def program(comm):
        x = mnpar.Variable(np.ones(2))
        tapes = [mnpar.Tape(), mnpar.Tape()]
        losses = []
        for tape in tapes:
            with tape:
                losses.append(F.sum(F.allreduce(comm, x)))
        for i in (0, comm.rank, 1):
            with tapes[i]:
                losses[i].backward(retain_tape=True)

    with pytest.raises(MismatchError, match="different collectives"):
        mnpar.run(program, ranks=2)


def test_a_source_line_survives_its_way_through_a_header():
    site = call_site()
    assert decode_site(encode_site(site)) == site
    assert decode_site(encode_site("the end of its program")) == "the end of its program"
    assert decode_site(encode_site("autograd/engine.py:7")) == "autograd/engine.py:7"
    assert decode_site(encode_site("nowhere/at_all.py:12")) == "line 12 of its program"
    assert 0 <= encode_site("a/b.py:99999") < 2**31
