"""Random programs over ranks have the gradients of one process, and trainings its weights; spoilt
ones are reported, never wrong and never hanging.

``MNPAR_PROGRAMS=10000 pytest tests/random_programs/test_random_programs.py`` runs more of them,
``MNPAR_PROGRAMS_MPI`` more on processes, ``MNPAR_SPOILT_MPI`` more of those that are spoilt and are
jobs of their own, and ``MNPAR_PROGRAMS_FIRST`` is the first seed. ``--sweep`` runs four times as
many on threads as a plain run, and three times as many on processes. How many of the spoilt ones
were reported is printed at the end, with ``--detection`` by kind of mistake.
"""

import os

import pytest

import mnpar
from tests.random_programs import spoiling, training
from tests.random_programs.programs import Ranked, draw, equal, over_ranks, truth

PIECE = 50
HOW_MANY = {  # what is asked for by: the variable, in a plain run, in a sweep, in one test
    "first": ("MNPAR_PROGRAMS", 100, 400, PIECE),
    "first_on_mpi": ("MNPAR_PROGRAMS_MPI", 200, 600, PIECE),
    "job": ("MNPAR_SPOILT_MPI", 2, 40, 1),
}


def pytest_generate_tests(metafunc):
    for name in set(HOW_MANY) & set(metafunc.fixturenames):
        variable, plain, sweep, step = HOW_MANY[name]
        number = int(
            os.environ.get(variable, sweep if metafunc.config.getoption("--sweep") else plain)
        )
        first = int(os.environ.get("MNPAR_PROGRAMS_FIRST", 0))
        metafunc.parametrize(name, range(first, first + number, step))


def check(program, found):
    """``found``: what each rank found."""
    wanted = truth(program)
    for values, gradients in found:
        for name, y in values.items():
            assert equal(y, wanted[0].came[name].array, program.coarse), f"the value of {name}"
        for name, g in gradients.items():
            assert equal(g, wanted[1][name], program.coarse), (
                f"the gradient of {name}: {g}, not {wanted[1][name]}"
            )


@pytest.mark.grid
def test_gradients_of_random_programs_on_thread_ranks_equal_those_of_one_process(first):
    for seed in range(first, first + PIECE):
        program = draw(seed)
        try:
            with spoiling.limit():
                check(
                    program,
                    mnpar.run(
                        lambda comm, p=program: over_ranks(p, Ranked(p, comm).run()),
                        ranks=program.size,
                    ),
                )
        except BaseException as error:
            error.add_note(f"program {seed}: {program}")
            raise


@pytest.mark.grid
@pytest.mark.ranks(4, on="mpi")
def test_gradients_of_random_programs_on_processes_equal_those_of_one_process(comm, first_on_mpi):
    for seed in range(first_on_mpi, first_on_mpi + PIECE):
        program = draw(seed, most_ranks=4)
        sub = comm.split(0 if comm.rank < program.size else None, comm.rank)
        mine = ({}, {}) if sub is None else over_ranks(program, Ranked(program, sub).run())
        found = comm.gather_obj(mine, seed % comm.size)
        if found is not None:
            try:
                check(program, found)
            except AssertionError as error:
                error.add_note(f"program {seed}: {program}")
                raise
        if sub is not None:
            sub.finalize()
        comm.barrier()


@pytest.mark.grid
def test_a_spoilt_program_is_reported(record_property, first):
    spoiling.expect_reports(
        [spoiling.outcome(seed) for seed in range(first, first + PIECE)], record_property
    )


@pytest.mark.grid
def test_a_spoilt_program_ends_its_job(record_property, job):
    spoiling.expect_reports([spoiling.job(100 * job)], record_property)


@pytest.mark.grid
def test_weights_of_random_trainings_on_thread_ranks_equal_those_of_one_process(first):
    for seed in range(first, first + PIECE):
        program = training.draw(seed)
        found = mnpar.run(lambda comm, p=program: training.over_ranks(p, comm), ranks=program.size)
        wanted, _ = training.truth(program)
        assert all(training.same(one, wanted) for one, _ in found), f"training {seed}: {program}"


@pytest.mark.filterwarnings("ignore:the ranks' losses are of")  # of updates that do not match
@pytest.mark.grid
def test_a_copy_that_goes_its_own_way_is_reported(record_property, first):
    spoiling.expect_reports(
        [training.outcome(seed) for seed in range(first, first + PIECE)], record_property
    )


@pytest.mark.grid
def test_a_copy_that_goes_its_own_way_ends_its_job(record_property, job):
    spoiling.expect_reports([training.job(100 * job)], record_property)
