"""NaN and infinity that one rank's data bring to others through communications: who had it first,
and in which communication it travelled.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

pytestmark = pytest.mark.usefixtures("float64")
BAD = 1  # the rank


def model():
    return L.Linear(3, 2, initialW=np.ones((2, 3)))


def data(comm, bad):
    x = np.ones((1, 3))
    if comm.rank == BAD:
        x[0, 1] = bad
    return x


def by_message(comm, h):
    if comm.rank == BAD:
        return F.send(h, comm, 0)
    return F.recv(comm, BAD) if comm.rank == 0 else None


CARRIED = {
    "allreduce": lambda comm, h: F.allreduce(comm, h),
    "iallreduce": lambda comm, h: F.iallreduce(comm, h),
    "allgather": lambda comm, h: F.concat(F.allgather(comm, h), axis=0),
    "bcast": lambda comm, h: F.bcast(comm, h if comm.rank == BAD else None, root=BAD),
    "recv": by_message,
}
EACH = pytest.mark.parametrize("carry", CARRIED.values(), ids=CARRIED)


def run_backward(loss):
    mnpar.backward() if loss is None else loss.backward()


@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@EACH
def test_a_loss_that_is_not_finite_is_told_once_with_the_communication_it_came_with(
    carry, bad, request
):
    def program(comm):
        m = model()
        for _ in range(3):
            with np.errstate(invalid="ignore"):
                y = carry(comm, m(data(comm, bad)))
                run_backward(None if y is None or y.size == 0 else F.sum(y * y))

    name = request.node.callspec.id.split("-")[0].removeprefix("i")
    with pytest.warns(UserWarning, match="its loss, from which backward") as told:
        mnpar.run(program, ranks=3)
    texts = [str(one.message) for one in told]
    came = [text for text in texts if f"It came with {name} at checks/test_nan_origins" in text]
    assert [text[:6] for text in came] == ["rank 0"]
    if name != "recv":  # there rank 1 has no loss
        (own,) = [text for text in texts if text not in came]
        assert own.startswith("rank 1: its loss")
        assert "here first in what the program gives, float64 (1, 3)" in own
        assert f"such as {name} at checks/test_nan_origins.py" in own


def test_a_function_of_finite_messages_and_a_weight_are_named():
    def program(comm, bad_weight):
        m = model()
        if comm.rank == BAD and bad_weight:
            m.W.array[0, 0] = np.nan
        mine = m(np.ones((1, 3)))
        y = F.allreduce(comm, F.tanh(mine) if bad_weight else mine)
        with np.errstate(divide="ignore"):
            loss = F.sum(F.log(y * (0 if comm.rank == BAD and not bad_weight else 1)))
        with np.errstate(divide="ignore", invalid="ignore"):
            loss.backward()

    with pytest.warns(UserWarning, match=r"rank 1: .*is -inf. It was here first in the result of "):
        mnpar.run(program, ranks=2, args=(False,))
    with pytest.warns(UserWarning, match="its loss") as told:
        mnpar.run(program, ranks=2, args=(True,))
    assert any("rank 1: its loss" in str(one.message) for one in told)
    assert any("here first in the weight W, float64 (2, 3)" in str(one.message) for one in told)


def test_nothing_is_said_where_the_optimizer_says_it_or_nobody_communicates():
    def alone(comm):
        F.sum(model()(data(comm, np.nan))).backward()

    def summed(comm):
        m = model()
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(m)
        optimizer.update(lambda: F.sum(F.allreduce(comm, m(data(comm, np.nan)))))

    mnpar.run(alone, ranks=2)
    with pytest.warns(UserWarning, match="NaN or infinite") as told:
        mnpar.run(summed, ranks=2)
    assert len(told) == 1


@pytest.mark.parametrize("name", CARRIED)
def test_debug_mode_names_the_rank_that_gives_it_to_others(name):
    """No function has looked at the array before."""

    def program(comm):
        x = mnpar.Variable(data(comm, np.nan))
        CARRIED[name](comm, x)

    op = "send" if name == "recv" else name
    with (
        mnpar.using_config("debug", True),
        pytest.raises(
            FloatingPointError,
            match=rf"input 0 of {op} at checks/test_nan_origins.py:\d+ \(rank 1\) has NaN",
        ),
    ):
        mnpar.run(program, ranks=2)


def test_debug_mode_names_the_rank_that_gives_others_a_gradient():
    def program(comm):
        y = F.allreduce(comm, mnpar.Variable(np.ones(2)))
        y.grad = np.array([1.0, np.inf if comm.rank == BAD else 1.0])
        y.backward()

    with (
        mnpar.using_config("debug", True),
        pytest.raises(FloatingPointError, match=r"input 0 of gradient of allreduce .*\(rank 1\)"),
    ):
        mnpar.run(program, ranks=2)


def test_debug_mode_names_the_line_of_a_function():
    x = mnpar.Variable(np.zeros(2))
    with (
        mnpar.using_config("debug", True),
        np.errstate(divide="ignore"),
        pytest.raises(
            FloatingPointError, match=r"Log has NaN or infinity, at .*nan_origins.py:\d+ "
        ),
    ):
        F.log(x)
