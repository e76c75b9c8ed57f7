"""The steps of CONTRIBUTING.md suffice: its files are there, and an activation and a schedule need
nothing that it does not name.
"""

import re
from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.functions.math.trigonometric import cosh
from mnpar.functions.node import array_of, elementwise
from mnpar.parallel import SCHEDULES, Pipeline, make_schedule, own_schedule, simulate
from tests.functions.cases.case import Case
from tests.functions.test_cases import test_a_row_keeps_every_rule as keeps_every_rule

ROOT = Path(__file__).parents[1]


def test_every_file_that_contributing_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"\b(?:benchmarks|docs|examples|mnpar|tests)/[\w/.]*\w/?", text))
    paths = {path for path in paths if not re.search(r"NAME|_build", path)}
    assert {"mnpar/checkpoint/", "tests/functions/test_cases.py"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@elementwise(gradient=lambda gy, x: gy / cosh.generic(x))
def gudermannian(xp, x):
    """Return the area under the hyperbolic secant."""
    return xp.arctan(xp.sinh(x))


def test_an_activation_is_a_formula_and_a_row():
    row = Case("gudermannian", (), gudermannian, lambda x: np.arctan(np.sinh(x)))
    assert row.answers_for() == (gudermannian.node,)
    keeps_every_rule(row)


@elementwise(gradient=lambda gy, y: gy * (array_of(y) != 0))
def softshrink(xp, x):
    """Return x moved by 0.5 towards 0, and 0 where x is nearer to 0 than that."""
    return x - xp.clip(x, -0.5, 0.5)


def test_an_activation_with_kinks_has_a_mask_and_inputs_beside_the_kinks():
    def truth(x):
        return np.sign(x) * np.maximum(abs(x) - 0.5, 0)

    keeps_every_rule(Case("softshrink", (), softshrink, truth, low=-1.7, high=1.8))


def one_at_a_time(ranks, micro_batches):
    """A schedule that waits for each micro-batch to come back."""
    actions = [f"F{i} B{i}" for i in range(micro_batches)]
    return own_schedule([" ".join(actions)] * ranks, "one at a time")


def test_a_schedule_is_a_function_and_a_name(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "one at a time", one_at_a_time)
    assert simulate(make_schedule("one at a time", 2, 3)).bubble > 0

    def program(comm):
        first, last = [
            L.Linear(*size, initialW=mnpar.initializers.Constant(0.1)) for size in ((4, 3), (3, 2))
        ]
        x = np.arange(24, dtype="f4").reshape(6, 4) / 24
        t = np.array([0, 1, 0, 1, 1, 0])
        F.softmax_cross_entropy(last(F.tanh(first(x))), t).backward()
        part = (first, last)[comm.rank]
        expected = [param.grad.copy() for param in part.params()]
        part.cleargrads()
        stage = (mnpar.Sequential(first, F.tanh), L.Classifier(last))[comm.rank]
        Pipeline(comm, stage, "one at a time", 3)((x, t)[comm.rank]).backward()
        for param, gradient in zip(part.params(), expected, strict=True):
            np.testing.assert_allclose(param.grad, gradient, rtol=1e-5, atol=1e-6)

    mnpar.run(program, ranks=2)
