"""Every function of the table: values, gradients of three orders, dtypes, batches of any size; and
nobody is missing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Iterator

import numpy as np
import pytest

import mnpar.functions as F
from mnpar.configuration import using_config
from mnpar.function_node import FunctionNode
from mnpar.gradient_check import check_backward, check_double_backward
from mnpar.variable import Variable, backward, grad
from tests.functions import cases
from tests.harness.layouts import LAYOUTS
from tests.harness.tables import try_all

BATCHES = [4, 1, 0]
RULES = []  # (rule, what it is given beside the row each time that it is tried, for which rows)


def rule(*values, differentiable=(True, False)):
    """A function of a row, and of one of the values if there are any, which raises if the row
    breaks the rule.
    """

    def add(function):
        RULES.append((function, [(value,) for value in values] or [()], differentiable))
        return function

    return add


def as_tuple(y):
    return y if isinstance(y, tuple) else (y,)


def skip_if_meaningless(case, n):
    if n == 0 and not case.empty:
        pytest.skip("an empty batch means nothing here")


def output_gradients(case, arrays, seed=1):
    rng = np.random.default_rng(seed)
    return tuple([rng.standard_normal(np.shape(y)) for y in as_tuple(case.truth(*arrays))])


@rule(*BATCHES)
def values_are_what_numpy_says(case, n):
    skip_if_meaningless(case, n)
    arrays = case.arrays(n)
    ys = as_tuple(case.call(*map(Variable, arrays)))
    expected = as_tuple(case.truth(*arrays))
    assert len(ys) == len(expected)
    for y, e in zip(ys, expected, strict=True):
        assert isinstance(y, Variable)
        assert y.shape == np.shape(e)
        np.testing.assert_allclose(y.array, e, rtol=1e-12, atol=1e-14)


@rule(*BATCHES, differentiable=[True])
def gradients_are_those_of_finite_differences(case, n):
    skip_if_meaningless(case, n)
    arrays = case.arrays(n)
    check_backward(
        case.call, tuple(arrays), output_gradients(case, arrays), eps=1e-4, atol=1e-8, rtol=1e-6
    )


@rule(*BATCHES, differentiable=[True])
def second_gradients_are_those_of_finite_differences(case, n):
    skip_if_meaningless(case, n)
    arrays = case.arrays(n)
    gxs = tuple([np.random.default_rng(2).standard_normal(x.shape) for x in arrays])
    check_double_backward(
        case.call,
        tuple(arrays),
        output_gradients(case, arrays),
        gxs,
        eps=1e-4,
        atol=1e-7,
        rtol=1e-6,
    )


@rule(differentiable=[True])
def third_gradients_are_those_of_finite_differences(case):
    arrays = case.arrays(2)
    gys = [Variable(gy) for gy in output_gradients(case, arrays)]

    def gradients(*xs):
        with using_config("enable_backprop", True):
            found = grad(as_tuple(case.call(*xs)), xs, gys, enable_double_backprop=True)
        return tuple([x * 0 if g is None else g for x, g in zip(xs, found, strict=True)])

    rng = np.random.default_rng(3)
    given, twice = ([rng.standard_normal(x.shape) for x in arrays] for _ in range(2))
    check_double_backward(
        gradients, tuple(arrays), tuple(given), tuple(twice), eps=1e-4, atol=1e-6, rtol=1e-5
    )


@rule(differentiable=[True])
def recorded_and_plain_backward_agree(case):
    arrays = case.arrays(3)
    gys = output_gradients(case, arrays)
    results = []
    for record in (False, True):
        xs = [Variable(x.copy()) for x in arrays]
        ys = as_tuple(case.call(*xs))
        results.append(grad(ys, xs, [Variable(gy) for gy in gys], enable_double_backprop=record))
    for plain, recorded in zip(*results, strict=True):
        assert (plain is None) == (recorded is None)
        if plain is not None:
            np.testing.assert_allclose(plain.array, recorded.array, rtol=1e-12, atol=1e-14)


@rule(np.float16, np.float32, np.float64, differentiable=[True])
def dtypes_are_kept(case, dtype):
    tolerance = {"e": case.halves, "f": 2e-6, "d": 1e-13}[np.dtype(dtype).char]
    arrays = case.arrays(4, dtype)
    xs = [Variable(x) for x in arrays]
    ys = as_tuple(case.call(*xs))
    expected = as_tuple(case.truth(*[x.astype("d") for x in arrays]))
    for y, e in zip(ys, expected, strict=True):
        assert y.dtype == dtype
        np.testing.assert_allclose(y.array, e, rtol=tolerance, atol=tolerance)
    backward(ys, [Variable(np.ones(y.shape, dtype)) for y in ys])
    for x in xs:
        assert x.grad is None or (
            x.grad.dtype == dtype and x.grad.shape == x.shape and x.grad.flags.writeable
        )


@rule()
def inputs_stay_as_they_are(case):
    arrays = case.arrays(3)
    xs = [Variable(x.copy()) for x in arrays]
    ys = as_tuple(case.call(*xs))
    gys = [np.ones(y.shape) for y in ys]
    if case.differentiable:
        for _ in range(2):  # a second backward must find what the first one found
            results = grad(ys, xs, [Variable(gy) for gy in gys])
        once = grad(as_tuple(case.call(*xs)), xs, [Variable(gy) for gy in gys])
        for a, b in zip(results, once, strict=True):
            np.testing.assert_array_equal(getattr(a, "array", None), getattr(b, "array", None))
    for x, original in zip(xs, arrays, strict=True):
        np.testing.assert_array_equal(x.array, original)
    for gy in gys:
        np.testing.assert_array_equal(gy, 1)


@rule(*itertools.product(LAYOUTS, ["inputs", "gradients", "inputs and gradients"]))
def it_does_not_matter_how_arrays_lie_in_memory(case, layout):
    how, which = layout
    rng = np.random.default_rng(0)
    arrays = case.arrays(3)

    def results(lay):
        xs = [Variable(lay(x) if "inputs" in which else x) for x in arrays]
        ys = as_tuple(case.call(*xs))
        found = list(ys)
        if case.differentiable:
            given = output_gradients(case, arrays)
            gys = [Variable(lay(gy) if "gradients" in which else gy) for gy in given]
            found += grad(ys, xs, gys)
            first = [gx for gx in grad(ys, xs, gys, enable_double_backprop=True) if gx is not None]
            if any(gx.requires_grad for gx in first):
                found += grad(first, [*xs, *gys], [Variable(lay(gx.array)) for gx in first])
        return found

    expected = results(lambda x: x)
    for y, e in zip(results(lambda x: LAYOUTS[how](x, rng)), expected, strict=True):
        assert (y is None) == (e is None)
        if e is not None:
            assert y.shape == e.shape
            largest = max(1, abs(e.array).max(initial=0, where=np.isfinite(e.array)))
            np.testing.assert_allclose(y.array, e.array, rtol=1e-12, atol=1e-13 * largest)


@rule(differentiable=[False])
def nothing_flows_back_through_what_has_no_derivative(case):
    y = case.call(*map(Variable, case.arrays(4)))
    assert not y.requires_grad
    assert y.creator is None


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.id)
def test_a_row_keeps_every_rule(case):
    """One test of a row, which names each rule that it breaks."""
    calls = []
    for rule, tries, differentiable in RULES:
        for values in tries if case.differentiable in differentiable else []:
            words = f"of {case.id}: {' '.join([rule.__name__, *map(str, values)])}"
            calls.append((words, functools.partial(rule, case, *values)))
    try_all(case.id, calls)


# each is imported when it is needed: here all are
for file in pkgutil.walk_packages(F.__path__, "mnpar.functions."):
    importlib.import_module(file.name)


def subclasses(cls: type) -> Iterator[type[FunctionNode]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_every_function_node_has_a_row():
    have = {node for case in cases.CASES for node in case.answers_for()}
    abstract = {"GenericFunction", "Reduction", "Convolving", "LocallyConvolving"}
    # what needs another library has tests of its own, tests/functions/bridges/
    missing = [
        f"{node.__module__}.{node.__name__}"
        for node in subclasses(FunctionNode)
        if node.__module__.startswith("mnpar.functions.")
        and not node.__module__.startswith("mnpar.functions.bridges.")
        and not node.communicates
        and node.__name__ not in abstract
        if node not in have
    ]
    assert not missing, (
        f"no Case in tests/functions/cases/ names these FunctionNodes (its second field): {missing}"
    )


def test_every_function_node_is_generic():
    nodes = [
        node for node in subclasses(FunctionNode) if node.__module__.startswith("mnpar.functions.")
    ]
    assert [node.__name__ for node in nodes if not node.generic] == []


def test_every_public_function_has_a_row():
    have = {case.id.split(":")[0] for case in cases.CASES}
    speaking = {node.__module__ for node in subclasses(FunctionNode) if node.communicates}
    speaking |= {
        f"mnpar.functions.{name}"
        for name in (
            "bridges.from_jax",
            "bridges.from_numba",
            "bridges.from_torch",
            "communication.later",
            "divided.halo",
            "divided.sequence",
            "divided.vocabulary",
        )
    }
    missing = [
        name
        for name in F.__all__
        if inspect.unwrap(getattr(F, name)).__module__ not in speaking and name not in have
    ]
    assert not missing, (
        f"no Case in tests/functions/cases/ has an id that begins with these names: {missing}"
    )


def test_ids_are_unique():
    ids = [case.id for case in cases.CASES]
    assert len(ids) == len(set(ids))
