"""What becomes of a mutant: it is run, and its results are compared with those of the right
program.

    told           it ended with an error, or a warning names what is wrong
    right          the results are those of the right program
    own            one rank got other numbers, and neither another rank nor any weight has changed
    another right  it is a right program, which computes something else (see below)
    impossible     no single run can tell it, as a page of docs/ proves, and mnpar.check does
    silent         other results without a word
    hung           it did not end in time

A mistake may make another right program, such as one with another learning rate. Nobody decides
that by hand. A mutant is another right program if

    * the mistake is on all ranks, and on one rank the mutant computes the same as on several: then
      it is what one process computes; or
    * its gradients are the finite differences of the sum of the losses on which its ranks call
      backward (law 1), as mnpar.check finds without the program on one rank, and weights of which
      ranks have copies are alike on them.
"""

import contextlib
import contextvars
import functools
import linecache
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import mnpar
from mnpar import random
from tests.mutants.operators import NARROW, SHORTER
from tests.mutants.program import PROGRAMS
from tests.random_programs.spoiling import HungError, limit

LIMIT = 20  # s for a program of milliseconds
MOST_LINES = 25  # of a message
DOCS = Path(__file__).parents[2] / "docs"


class NotApplicableError(Exception):
    """There is nothing that the mistake could change."""


@dataclass
class Outcome:
    """What became of a mutant: the kind, and what was told, or what differs."""

    mutant: object
    kind: str
    text: str = ""
    error: str = ""  # the name of its class

    def __str__(self):
        return f"{self.kind}: {self.mutant}\n    {self.text}"

    @property
    def row(self):
        """What is counted: the program's name, the operator, the kind."""
        return self.mutant.program.name, self.mutant.operator, self.kind


def narrow(x):
    """The mistake of another dtype."""
    if isinstance(x, np.ndarray) and x.dtype == np.float64:
        return x.astype(np.float32)
    raise NotApplicableError


def shorter(x):
    """The mistake of an element less."""
    if isinstance(x, np.ndarray | list) and len(x) > 1:
        return x[:-1]
    raise NotApplicableError


def function_of(mutant):
    """Return a mutant as a function."""
    module = mutant.program.function.__globals__
    name = f"<mutant {zlib.crc32(mutant.source.encode())}>"
    linecache.cache[name] = (len(mutant.source), None, mutant.source.splitlines(True), name)
    space = {**module, NARROW: narrow, SHORTER: shorter}
    space.pop("program", None)
    exec(compile(mutant.source, name, "exec"), space)
    return space[mutant.program.name]


def run(function, ranks):
    """Run a program on thread ranks, in float64 and from the same random numbers each time; return
    what its ranks returned, and the warnings.
    """

    def body(comm):
        with mnpar.using_config("dtype", np.dtype("f8")):
            return function(comm)

    def fresh():
        np.random.seed(0)
        random.seed(0)
        return mnpar.run(body, ranks=ranks)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with limit(LIMIT):
            found = contextvars.copy_context().run(fresh)
    return found, [str(one.message) for one in caught]


@functools.cache
def right(name, ranks):
    """Return what the ranks of a right program return."""
    found, said = run(PROGRAMS[name].function, ranks)
    assert not said, f"{name} on {ranks} ranks warns: {said}"
    return found


def whole(weights):
    """Join the ranks' weights: a path's array, or all that are there if ranks differ in it."""
    found = {}
    for path in sorted({path for one in weights for path in one}):
        boxes = {}
        for one in weights:
            if path in one:
                box, array = one[path]
                boxes.setdefault((box.start, box.stop) if box else None, []).append(array)
        if any(not close(array, arrays[0]) for arrays in boxes.values() for array in arrays):
            found[path] = [array for arrays in boxes.values() for array in arrays]
        elif None in boxes:
            found[path] = boxes[None][0] if len(boxes) == 1 else [*boxes.values()]
        else:
            stops = [stop for _, stop in boxes]
            array = np.full([max(axis) for axis in zip(*stops, strict=True)], np.nan)
            for (start, stop), (part, *_) in boxes.items():
                array[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = part
            found[path] = array
    return found


def close(a, b):
    """Whether numbers are the same, up to rounding."""
    if isinstance(a, list) or isinstance(b, list):
        return False  # ranks differ
    return a.shape == b.shape and np.allclose(a, b, 1e-7, 1e-9, equal_nan=True)


def difference(found, wanted):
    """Say in what results differ: names of numbers with their ranks, and paths of weights."""
    said = []
    for rank, ((mine, _), (theirs, _)) in enumerate(zip(found, wanted, strict=True)):
        names = [*dict.fromkeys([*mine, *theirs])]
        said += [
            (rank, name)
            for name in names
            if name not in mine or name not in theirs or not close(mine[name], theirs[name])
        ]
    weights, others = whole([w for _, w in found]), whole([w for _, w in wanted])
    said += [
        (None, path)
        for path in [*dict.fromkeys([*weights, *others])]
        if path not in weights or path not in others or not close(weights[path], others[path])
    ]
    return said


def as_one(found, alone):
    """Whether several ranks' results are those of one rank, as far as they have them."""
    (numbers, weights), *_ = alone
    have = [
        name in numbers and (not value.size or close(value, numbers[name]))
        for mine, _ in found
        for name, value in mine.items()
    ]
    mine, theirs = whole([w for _, w in found]), whole([weights])
    return all(have) and all(path in theirs and close(mine[path], theirs[path]) for path in mine)


def copies_are_alike(found):
    """Whether no weight differs on ranks that have it alike in the right program."""
    joined = whole([weights for _, weights in found])
    return not any(isinstance(array, list) for array in joined.values())


def outcome(mutant):
    """Return what becomes of a mutant on thread ranks."""
    program = mutant.program
    wanted = right(program.name, program.ranks)
    try:
        function = function_of(mutant)
        found, said = run(function, program.ranks)
    except HungError as hung:
        return Outcome(mutant, "hung", str(hung))
    except NotApplicableError:
        return Outcome(mutant, "not applicable")
    except Exception as error:
        return Outcome(mutant, "told", str(error), type(error).__name__)
    except SystemExit as error:
        return Outcome(mutant, "told", str(error), "SystemExit")
    parts = difference(found, wanted)
    if not parts:
        return Outcome(mutant, "right", "\n".join(said))
    if said:
        return Outcome(mutant, "told", "\n".join(said), "warning")
    if mutant.rank is not None and all(rank == mutant.rank for rank, _ in parts):
        return Outcome(mutant, "own", str(parts))
    return _judge(mutant, function, found, parts)


def _judge(mutant, function, found, parts):
    """Return what a mutant is that ended without a word and computes something else."""
    ranks = mutant.program.ranks
    text = str(parts)
    if mutant.rank is None:
        with contextlib.suppress(Exception):
            if as_one(found, run(function, 1)[0]):
                return Outcome(mutant, "another right", f"one process; {text}")
    if all(rank is not None for rank, _ in parts):
        return Outcome(mutant, "impossible", f"{NUMBERS}; {text}")
    law = _check(function, (ranks,))
    if law.ok and law.checked and copies_are_alike(found):
        return Outcome(mutant, "another right", f"law 1; {text}")
    told = _check(function, (1, ranks))
    report = "\n".join(told.problems)
    for phrase, page in IMPOSSIBLE:
        # what one rank does otherwise in the middle of a training can be told, by the others
        if phrase in report and not told.ok and (mutant.rank is None or page == OWN_START):
            return Outcome(mutant, "impossible", f"{page}; {report}")
    return Outcome(mutant, "silent", f"{text}\n  law: {law}\n  check: {told}")


def _check(function, ranks):
    with limit(10 * LIMIT):
        return mnpar.check(function, ranks)


# Why no run can tell: a sentence of docs/sharp_bits.md for each class, which a test looks for.
NUMBERS = "A number that nothing differentiates"
OWN_MODEL = "each rank has a model of its own"
OWN_WEIGHT = "the same program is right if the weight is each rank's own"
OWN_START = "divided layers, and another seed on each rank"
MEANT = "the number may be the half of a square, or `/ comm.size`"
# A class is what mnpar.check says of the mutant; what it does not find, either, is silent.
IMPOSSIBLE = (
    ("mnpar.create_multi_node_optimizer(optimizer, comm), or comm.multi_node_mean", OWN_MODEL),
    ("means of uneven shards are weighted by their samples", OWN_MODEL),
    ("nothing adds them", OWN_WEIGHT),
    ("have other gradients of it", OWN_WEIGHT),
    ("copies must begin alike", OWN_START),
    ("a loss that all ranks hold counts P times", MEANT),
)
