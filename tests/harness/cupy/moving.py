"""A row of a table with the arrays that it mentions on the device: they stand in its function, or
in what that calls.
"""

import dataclasses
import types

import numpy as np

from tests.harness.cupy.stand_in import cupy


class Numpy:
    """In the place of ``np`` in a test's own lines: what CuPy has is CuPy's."""

    def __getattr__(self, name):
        if name == "random":
            return Random
        return getattr(np if name == "linalg" else cupy, name, None) or getattr(np, name)


class Random:
    """Numbers are drawn on the host, and go where the test's other arrays are."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def __getattr__(self, name):
        return lambda *args, **kwargs: cupy.asarray(getattr(self.generator, name)(*args, **kwargs))

    default_rng = classmethod(lambda cls, seed: cls(seed))


NUMPY = Numpy()


def moved(x, seen=None):
    """``x`` on the device: an array, a list of them, a function of a test that mentions some."""
    seen = {} if seen is None else seen
    if x is np:
        return NUMPY
    if isinstance(x, np.ndarray) and x.dtype.kind in "biufc":
        return cupy.asarray(x)
    if isinstance(x, list | tuple) and type(x) in (list, tuple):
        return type(x)([moved(part, seen) for part in x])
    if hasattr(x, "_replace"):
        return x._replace(**{name: moved(part, seen) for name, part in x._asdict().items()})
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(
            x, **{f.name: moved(getattr(x, f.name), seen) for f in dataclasses.fields(x)}
        )
    if isinstance(x, types.FunctionType) and not x.__module__.startswith(("mnpar", "numpy")):
        return _function(x, seen)
    return x


def _function(function, seen):
    if id(function) not in seen:
        around: dict = {}
        closure = tuple([types.CellType() for _ in function.__closure__ or ()])
        made = types.FunctionType(
            function.__code__,
            around,
            function.__name__,
            moved(function.__defaults__, seen),
            closure,
        )
        made.__kwdefaults__ = function.__kwdefaults__
        seen[id(function)] = made
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        around.update(
            {k: moved(v, seen) if k in names else v for k, v in function.__globals__.items()}
        )
        for cell, old in zip(closure, function.__closure__ or (), strict=True):
            cell.cell_contents = moved(old.cell_contents, seen)
    return seen[id(function)]


def _codes(code):
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)
