"""What the recorders and the tests of golden values share: inputs, evaluation, files.

A case of Chainer is written once, in the words that Chainer and mnpar have in common: the recorder
evaluates it with Chainer as ``library``, the test with mnpar. Only numpy is imported here, because
the recorders run where mnpar is not installed.
"""

import json
import math
import sys
import zlib
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).parent / "recorded"


def draw(name, descriptions):
    """Return the input arrays of the case ``name``; the name is the seed.

    A description is a shape, for normal numbers in float64, or a list, for the array of what it
    says.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))

    def one(description):
        if isinstance(description, tuple):
            return rng.standard_normal(description)
        array = np.array(description)
        return array.astype("i4") if array.dtype.kind == "i" else array  # as Chainer wants labels

    return [one(description) for description in descriptions]


def flatten(values):
    """Return the leaves of nested lists and tuples, in order."""
    if isinstance(values, list | tuple):
        return [leaf for value in values for leaf in flatten(value)]
    return [values]


def weigh(array):
    """Return the gradient from which backward starts: fixed numbers in the array's shape."""
    return np.cos(1 + np.arange(array.size, dtype=float)).reshape(array.shape)


def differentiate(library, outputs):
    """Go backward from all outputs that are Variables of floats, and return the arrays of all."""
    loss, arrays = 0, []
    for y in flatten(outputs):
        arrays.append(y.array if isinstance(y, library.Variable) else y)
        if isinstance(y, library.Variable) and y.dtype.kind == "f":
            loss = loss + library.functions.sum(y * weigh(y.array))
    if isinstance(loss, library.Variable) and loss.requires_grad:
        loss.backward()
    return arrays


def evaluate_function(library, call, arrays):
    """Return outputs ``y0``, ``y1`` … and the gradients ``gx0``, ``gx1`` … of inputs.

    Floats are handed to ``call`` as Variables, integers as arrays.
    """
    xs = [library.Variable(x.copy()) if x.dtype.kind == "f" else x for x in arrays]
    ys = differentiate(library, call(library.functions, *xs))
    return numbered("y", ys) | numbered("gx", [getattr(x, "grad", None) for x in xs])


def numbered(letter, arrays):
    """Return the arrays that there are, by letter and number."""
    return {f"{letter}{i}": np.asarray(x) for i, x in enumerate(arrays) if x is not None}


def save(file, cases, **versions):
    """Write the arrays of all cases, and the versions that made them.

    All numbers are in one array of float64, which holds integers exactly, because a member of an
    archive for each array takes more room than its numbers. No pickles.
    """
    index = {
        name: {key: (array.dtype.str, array.shape) for key, array in case.items()}
        for name, case in cases.items()
    }
    arrays = [np.ravel(array) for case in cases.values() for array in case.values()]
    numbers = np.concatenate(arrays, dtype="f8", casting="unsafe")
    numbers[np.isnan(numbers)] = np.nan  # whose sign may differ from run to run
    versions |= {"numpy": np.__version__, "python": sys.version.split()[0]}
    RECORDED.mkdir(exist_ok=True)
    np.savez_compressed(
        RECORDED / f"{file}.npz",
        versions=json.dumps(versions),
        index=json.dumps(index),
        numbers=numbers,
    )


def load(file):
    """Return the arrays of each case by its name."""
    with np.load(RECORDED / f"{file}.npz", allow_pickle=False) as archive:
        index, numbers = json.loads(str(archive["index"])), archive["numbers"]
    cases, start = {}, 0
    for name, arrays in index.items():
        cases[name] = {}
        for key, (dtype, shape) in arrays.items():
            end = start + math.prod(shape)
            cases[name][key] = numbers[start:end].reshape(shape).astype(dtype)
            start = end
    return cases


def inputs(case):
    """Return the recorded inputs ``x0``, ``x1`` …"""
    return [case[f"x{i}"] for i in range(len(case)) if f"x{i}" in case]


def compare(case, values):
    """Check that ``values`` has what was recorded, except inputs, in its shape and close to it."""
    missing = {key for key in case if key[0] != "x"} - values.keys()
    assert not missing, f"without {sorted(missing)}"
    for key in values.keys() & case.keys():
        kind = values[key].shape, values[key].dtype.kind
        assert kind == (case[key].shape, case[key].dtype.kind), key
        np.testing.assert_allclose(values[key], case[key], rtol=1e-11, atol=1e-12, err_msg=key)
