"""Random programs over ranks have the gradients of one process; spoilt ones are reported, never wrong and never hanging.

``MNPAR_PROGRAMS=10000 pytest tests/test_random_programs.py`` runs more of them, ``MNPAR_PROGRAMS_MPI`` more on processes;
``--sweep`` runs four times as many on threads as a plain run, and twice as many on processes. ``--detection`` prints at the end
how many of the spoilt ones were reported.
"""

import os
from collections import Counter

import numpy as np
import pytest

import mnpar
from tests.conftest import OUTCOMES
from tests.programs import draw, gradients, mutations

PIECE = 50


def pytest_generate_tests(metafunc):
    if "first" in metafunc.fixturenames:
        on_mpi = "comm" in metafunc.fixturenames
        number = (200 if on_mpi else 400) if metafunc.config.getoption("--sweep") else 100
        number = int(os.environ.get("MNPAR_PROGRAMS_MPI" if on_mpi else "MNPAR_PROGRAMS", number))
        metafunc.parametrize("first", range(0, number, PIECE))


def check(program, found):
    truth = gradients(program, None)
    for name, g in found.items():
        np.testing.assert_allclose(g, truth[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.grid
def test_gradients_of_random_programs_on_thread_ranks_equal_those_of_one_process(first):
    for seed in range(first, first + PIECE):
        program = draw(seed)
        try:
            found = mnpar.run(lambda comm, program=program: gradients(program, comm), ranks=program.size)
            check(program, {name: g for rank in found for name, g in rank.items()})
        except BaseException as error:
            error.add_note(f"program {seed}: {program}")
            raise


@pytest.mark.grid
@pytest.mark.ranks(4, on="mpi")
def test_gradients_of_random_programs_on_processes_equal_those_of_one_process(comm, first):
    for seed in range(first, first + PIECE):
        program = draw(seed, most_ranks=4)
        sub = comm.split(0 if comm.rank < program.size else None, comm.rank)
        mine = {} if sub is None else gradients(program, sub)
        found = comm.gather_obj(mine, seed % comm.size)
        if found is not None:
            check(program, {name: g for rank in found for name, g in rank.items()})
        if sub is not None:
            sub.finalize()
        comm.barrier()


def outcome(seed):
    """What became of the program when one step on one rank was spoilt."""
    program = draw(seed)
    mutation = mutations(program, seed)
    if mutation is None:
        return "nothing to spoil"

    try:
        found = mnpar.run(lambda comm: gradients(program, comm, mutation), ranks=program.size)
    except (mnpar.errors.MnparError, mnpar.errors.UnreceivedWarning, ValueError, TypeError):
        return "reported"
    truth = gradients(program, None)
    same = all(np.allclose(g, truth[name], rtol=1e-9) for rank in found for name, g in rank.items())
    return "harmless" if same else f"silently wrong: {mutation}"


@pytest.mark.grid
def test_a_spoilt_program_is_reported(request, first):
    outcomes = Counter(outcome(seed) for seed in range(first, first + PIECE))
    request.config.stash[OUTCOMES].update(outcomes)
    wrong = {what: n for what, n in outcomes.items() if what.startswith("silently")}
    assert not wrong, wrong
    assert outcomes["reported"] > outcomes["harmless"]
