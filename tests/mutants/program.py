"""Right programs that are to be mutated: a register, what each rank returns, and the data."""

import inspect
import textwrap
from dataclasses import dataclass

import numpy as np

PROGRAMS = {}

X = np.random.default_rng(0).normal(size=(7, 4))
T = np.arange(7) % 3
Y = np.random.default_rng(1).normal(size=(7, 3))


@dataclass(frozen=True)
class Program:
    """A right program of a user's.

    Attributes:
        function: of the communicator; it returns what :func:`result` makes.
        ranks: how many it is tried on; on one rank it computes the same.
    """

    function: object
    ranks: int

    @property
    def name(self):
        return self.function.__name__

    @property
    def source(self):
        """Its text, without the decorator."""
        lines, _ = inspect.getsourcelines(self.function)
        start = next(i for i, line in enumerate(lines) if line.startswith("def "))
        return textwrap.dedent("".join(lines[start:]))


def program(ranks):
    """Register a right program for so many ranks."""

    def add(function):
        PROGRAMS[function.__name__] = Program(function, ranks)
        return function

    return add


def result(models=(), **values):
    """Return what a rank has in the end: numbers by name, and the weights of links.

    A part of a divided weight keeps its box. No rank communicates here: a mutant that goes wrong is
    to be told by what the program itself does.
    """
    links = models if isinstance(models, tuple | list) else [models]
    weights = {
        path: (param.box, np.array(param.array))
        for link in links
        for path, param in link.namedparams()
    }
    numbers = {name: np.array(_plain(value), dtype=np.float64) for name, value in values.items()}
    return numbers, weights


def _plain(value):
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return np.asarray(getattr(value, "array", value))
