"""Mutants of users' programs are told, or right; none is silent, and none hangs.

A plain run takes a fixed sample of them. ``pytest tests/mutants --sweep`` takes all, and prints how
many there are of each kind (``python -m tests.mutants [program …]`` alone does, too).
"""

import zlib

import pytest

from tests.mutants.operators import mutants
from tests.mutants.outcomes import (
    DOCS,
    IMPOSSIBLE,
    MOST_LINES,
    NUMBERS,
    as_one,
    outcome,
    right,
)
from tests.mutants.programs import PROGRAMS

SHARE = 70  # of so many mutants a plain run takes one


def test_there_are_many_mutants_of_programs_that_are_short():
    assert sum(len(mutants(program)) for program in PROGRAMS.values()) > 980
    assert max(len(program.source.splitlines()) for program in PROGRAMS.values()) <= 40


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_right_computes_on_its_ranks_what_it_does_on_one(name):
    assert as_one(right(name, PROGRAMS[name].ranks), right(name, 1))


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_mutant_is_silent_or_hangs(name, request, record_property):
    found = mutants(PROGRAMS[name])
    if not request.config.getoption("--sweep"):
        found = [one for one in found if zlib.crc32(str(one).encode()) % SHARE == 0]
    outcomes = [outcome(one) for one in found]
    record_property("mutants", [one.row for one in outcomes])
    wrong = [
        str(one)
        for one in outcomes
        if one.kind in ("silent", "hung") or len(one.text.splitlines()) > MOST_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_the_docs_say_why_no_run_can_tell_some():
    text = " ".join((DOCS / "sharp_bits.md").read_text(encoding="utf-8").split())
    for sentence in (NUMBERS, *[page for _, page in IMPOSSIBLE]):
        assert sentence in text
