"""Every function of the table of cases on divided arrays: what one process computes, outputs and
gradients, or a LayoutError; never anything else.
"""

import functools
import re
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import LayoutError
from tests.functions.cases import CASES

SAMPLES = 3
TESTED = [case for case in CASES if case.arrays(SAMPLES)]


def several(ys):
    return ys if isinstance(ys, tuple | list) else (ys,)


def whole(y):
    return y if y.layout is None else y.gather()


def with_halos(x, axis):
    """The same array, of which each rank has the next cell along an axis, too."""
    ksize = [min(2, x.shape[axis])] + [1] * (x.ndim - axis - 1)
    return F.halo_exchange(x, None, x.shape[axis:], ksize)


def computed(case, comm=None, divided=(), axes=(), dims=(), halos=False):
    """Outputs and gradients; some inputs are cut along some axes."""
    mnpar.random.seed(5)
    inputs = [mnpar.Variable(x) for x in case.arrays(SAMPLES)]
    cut = list(inputs)
    for i in divided:
        cut[i] = mnpar.divided(inputs[i], mnpar.SpatialGrid(comm, dims), axes)
        if halos and cut[i].size:
            cut[i] = with_halos(cut[i], axes[0])
    found = several(case.call(*cut))
    ys = [whole(y) for y in found if isinstance(y, mnpar.Variable)]
    rng = np.random.default_rng(1)
    terms = [
        F.sum(y * rng.standard_normal(y.shape))
        for y in ys
        if y.requires_grad and y.dtype.kind == "f"
    ]
    mnpar.backward(terms)
    return [y.array for y in ys], [x.grad for x in inputs]


def result_of(case, divided, axes, dims, halos, comm):
    return computed(case, comm, divided, axes, dims, halos)


def differs(found, expected):
    if found is None or expected is None:
        rest = found if expected is None else expected
        return rest is not None and np.any(rest)
    return (
        found.shape != expected.shape
        or found.dtype != expected.dtype
        or not np.allclose(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    )


def inputs_to_divide(case):
    """Each input alone, and all of one shape."""
    arrays = case.arrays(SAMPLES)
    yield from [((i,), x.ndim) for i, x in enumerate(arrays)]
    alike = tuple([i for i, x in enumerate(arrays) if x.shape == arrays[0].shape])
    if len(alike) > 1:
        yield alike, arrays[0].ndim


def compare(case, divided, axes, dims, ranks, expected, halos=False):
    """Whether it is refused; else all ranks have the result of one process."""
    program = functools.partial(result_of, case, divided, axes, dims, halos)
    try:
        results = mnpar.run(program, ranks=ranks)
    except LayoutError:
        return True
    for result in results:
        for found, right in zip(result, expected, strict=True):
            assert len(found) == len(right)
            assert not any(map(differs, found, right)), (divided, axes, dims)
    return False


@pytest.mark.filterwarnings("ignore")  # of numpy, about zeros in powers
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.id)
def test_a_divided_input_gives_the_result_of_one_process_or_a_layout_error(case, ranks):
    expected = computed(case)
    for divided, ndim in inputs_to_divide(case):
        for axis in range(ndim):
            compare(case, divided, (axis,), (ranks,), ranks, expected)


# functions of inputs with halos, along any axis of theirs
KEEPING = {"relu", "tanh", "clip", "add", "maximum", "where", "elu", "absolute"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.id)
def test_an_input_with_halos_gives_the_result_of_one_process_or_a_layout_error(case):
    expected = computed(case)
    for divided, ndim in inputs_to_divide(case):
        for axis in range(ndim):
            refused = compare(case, divided, (axis,), (2,), 2, expected, halos=True)
            assert not (
                refused and len(divided) == len(case.arrays(SAMPLES)) and case.id in KEEPING
            )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.id)
def test_several_axes_of_an_input_may_be_divided_and_ranks_may_have_nothing(case):
    expected = computed(case)
    for divided, ndim in inputs_to_divide(case):
        if ndim > 1:
            compare(case, divided, (0, ndim - 1), (2, 2), 4, expected)
            compare(case, divided, (ndim - 2, ndim - 1), (2, 1), 3, expected)


# functions of which any axis of the first input may be cut
WORKING = {
    "sum", "mean", "max", "min", "argmax", "argmin", "logsumexp", "softmax", "log_softmax",
    "matmul", "max_pooling_2d", "average_pooling_2d", "lp_pooling_nd", "unpooling_2d",
    "upsampling_2d", "swish", "local_response_normalization", "normalize", "resize_images",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [c for c in TESTED if c.id in WORKING], ids=lambda case: case.id)
def test_no_axis_of_the_input_is_refused(case):
    expected = computed(case)
    for axis in range(case.arrays(SAMPLES)[0].ndim):
        assert not compare(case, (0,), (axis,), (2,), 2, expected), axis


def is_refused(case, i, axis):
    """Whether an input may not be cut along an axis, not even into one part."""
    inputs = [mnpar.Variable(x) for x in case.arrays(SAMPLES)]
    grid = mnpar.SpatialGrid(mnpar.create_communicator("self"), (1,))
    inputs[i] = mnpar.divided(inputs[i], grid, (axis,))
    try:
        case.call(*inputs)
    except LayoutError:
        return True
    return False


def test_the_page_names_the_functions_that_have_no_rule():
    refused = {}
    for case in TESTED:
        name = case.id.partition(":")[0]
        if hasattr(F, name):
            cuts = [(i, axis) for i, x in enumerate(case.arrays(SAMPLES)) for axis in range(x.ndim)]
            refused.setdefault(name, []).extend([is_refused(case, *cut) for cut in cuts])
    page = (Path(__file__).parents[3] / "docs" / "spatial.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.endswith("| there is no rule for them |")]
    named = set(re.findall(r"`(\w+)`", row))
    assert sorted({name for name in refused if all(refused[name])} - named) == []
    assert [name for name in named if not any(refused.get(name, [True]))] == []
    assert [name for name in named if not hasattr(F, name)] == []


def test_the_page_names_each_twin_of_an_ordinary_function_or_link():
    page = (Path(__file__).parents[3] / "docs" / "spatial.md").read_text(encoding="utf-8")
    table = page[page.index("| link | the ordinary one | on each rank |") :].partition("\n\n")[0]
    named = [row.partition("|")[0] for row in table.split("\n| ")]
    twins = [n for n in L.__all__ if n[:7] == "Spatial" and hasattr(L, n[7:])]
    assert sorted(re.findall(r"L\.(\w+)\(", "".join(named))) == sorted(twins)
    assert not [n for n in F.__all__ if n[:8] == "spatial_" and hasattr(F, n[8:])]
