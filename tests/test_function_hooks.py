"""Function hooks see what runs, forward and backward, on this rank or in one node; and are gone
where their block ends.
"""

import gc
import io
import weakref

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.function_hooks import PrintHook, TimerHook


class Log(mnpar.FunctionHook):
    name = "Log"

    def __init__(self):
        self.lines = []

    def added(self, function):
        self.lines.append(("added", function and type(function).__name__))

    def deleted(self, function):
        self.lines.append(("deleted", function and type(function).__name__))

    def forward_preprocess(self, function, in_data):
        self.lines.append(
            ("before forward", type(function).__name__, [x.tolist() for x in in_data])
        )

    def forward_postprocess(self, function, in_data):
        self.lines.append(("after forward", type(function).__name__))

    def backward_preprocess(self, function, in_data, out_grad):
        data, grads = [
            [None if x is None else x.tolist() for x in xs] for xs in (in_data, out_grad)
        ]
        self.lines.append(("before backward", type(function).__name__, data, grads))

    def backward_postprocess(self, function, in_data, out_grad):
        self.lines.append(("after backward", type(function).__name__))


def variable(value):
    return mnpar.Variable(np.array(value))


def test_a_block_sees_forward_and_backward_of_all_functions():
    x = variable(3.0)
    log = Log()
    with log:
        y = x * x * 2
        y.backward()
    assert log.lines == [
        ("added", None),
        ("before forward", "Mul", [3.0, 3.0]),
        ("after forward", "Mul"),
        ("before forward", "MulConstant", [9.0]),
        ("after forward", "MulConstant"),
        ("before backward", "MulConstant", [None], [1.0]),
        ("after backward", "MulConstant"),
        ("before backward", "Mul", [3.0, 3.0], [2.0]),
        ("after backward", "Mul"),
        ("deleted", None),
    ]
    assert x.grad == 12


def test_a_block_around_backward_alone_sees_functions_that_ran_before():
    y = variable(3.0) * 2
    log = Log()
    with log:
        y.backward()
    assert [line[0] for line in log.lines] == [
        "added",
        "before backward",
        "after backward",
        "deleted",
    ]


def test_nothing_is_seen_after_the_block():
    log = Log()
    with log:
        y = variable(3.0) * 2
    seen = len(log.lines)
    (y * 2).backward()
    assert len(log.lines) == seen
    assert mnpar.get_function_hooks() == {}


def test_a_block_that_ends_in_an_error_ends_the_hook():
    log = Log()
    with pytest.raises(ZeroDivisionError), log:
        raise ZeroDivisionError
    assert mnpar.get_function_hooks() == {}


def test_a_recorded_backward_is_seen_as_backward_and_as_the_functions_it_runs():
    x = variable(3.0)
    log = Log()
    y = x * x
    with log:
        mnpar.grad([y], [x], enable_double_backprop=True)
    names = [line[:2] for line in log.lines]
    assert ("before backward", "Mul") in names
    assert ("before forward", "Mul") in names


def test_a_node_is_watched_alone():
    x = variable(3.0)
    log = Log()
    y = x * x
    z = y * 2
    y.creator.add_hook(log)
    z.backward()
    assert log.lines == [
        ("added", "Mul"),
        ("before backward", "Mul", [3.0, 3.0], [2.0]),
        ("after backward", "Mul"),
    ]
    assert x.grad == 12


def test_a_node_is_watched_in_its_forward():
    log = Log()
    node = F.exp.node()
    node.add_hook(log)
    (y,) = node.apply((np.zeros(1),))
    assert [line[0] for line in log.lines] == ["added", "before forward", "after forward"]
    assert y.array == 1


def test_a_hook_of_a_node_can_be_deleted():
    x = variable(3.0)
    log = Log()
    y = x * x
    y.creator.add_hook(log, "mine")
    assert list(y.creator.local_function_hooks) == ["mine"]
    y.creator.delete_hook("mine")
    y.backward()
    assert log.lines == [("added", "Mul"), ("deleted", "Mul")]


def test_a_watched_node_is_freed_as_any_other():
    y = variable(3.0) * 2
    y.creator.add_hook(Log())
    node = weakref.ref(y.creator)
    gc.disable()
    try:
        del y
        assert node() is None
    finally:
        gc.enable()


def test_two_hooks_of_one_name_are_refused():
    node = (variable(1.0) * 2).creator
    node.add_hook(Log())
    with pytest.raises(KeyError, match="'Log' already"):
        node.add_hook(Log())
    with Log(), pytest.raises(KeyError, match="'Log' is in use"), Log():
        pass
    with pytest.raises(KeyError, match="no hook 'other'; it has Log"):
        node.delete_hook("other")
    with pytest.raises(TypeError, match="not int"):
        node.add_hook(3)


def test_each_thread_rank_has_its_own_hooks():
    def program(comm):
        log = Log()
        if comm.rank:
            y = F.recv(comm, 0)
            (y * y).backward()
            return len(mnpar.get_function_hooks())
        x = variable(2.0)
        with log:
            F.send(x, comm, 1)
            mnpar.backward()
        return [line[:2] for line in log.lines[1:-1]], float(x.grad)

    first, second = mnpar.run(program, ranks=2)
    steps = [
        ("before forward", "Send"),
        ("after forward", "Send"),
        ("before backward", "Send"),
        ("after backward", "Send"),
    ]
    assert first == (steps, 4.0)
    assert second == 0


def test_a_receive_for_later_is_seen_when_it_is_posted_and_when_it_has_come():
    def program(comm):
        if comm.rank == 0:
            F.send(np.ones(2), comm, 1)
            return None
        log = Log()
        with log:
            y = F.irecv(comm, 0)
            seen = len(log.lines)
            y.wait()
        return seen, [line[:2] for line in log.lines]

    seen, lines = mnpar.run(program, ranks=2)[1]
    assert seen == 2
    assert lines[1:3] == [("before forward", "Recv"), ("after forward", "Recv")]


def test_the_timer_adds_up():
    x = mnpar.Variable(np.ones((20, 20)))
    with TimerHook() as timer:
        F.sum(x @ x).backward()
    summary = timer.summary()
    assert {name: row["occurrence"] for name, row in summary.items()} == {"MatMul": 2, "Sum": 2}
    np.testing.assert_allclose(
        sum(row["elapsed_time"] for row in summary.values()), timer.total_time()
    )
    assert all(seconds > 0 for _, seconds in timer.call_history)
    for unit in ("auto", "auto_foreach", "us"):
        out = io.StringIO()
        timer.print_report(unit, out)
        assert len(out.getvalue().splitlines()) == 3
    with pytest.raises(ValueError, match="'hours'"):
        timer.print_report("hours")


def test_the_printer_tells_of_inputs_and_gradients():
    out = io.StringIO()
    x = mnpar.Variable(np.array([1.0, 3.0], "f4"))
    with PrintHook(file=out):
        F.sum(x * x).backward()
    text = out.getvalue()
    assert (
        "function Mul\ninput data\narray of shape (2,), dtype float32, on @numpy: mean 2, "
        "standard deviation 1\n" in text
    )
    assert "kept input data" in text
    assert "output gradient" in text
