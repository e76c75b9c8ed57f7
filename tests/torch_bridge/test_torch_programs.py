"""Random programs in PyTorch's words have the values and gradients of one process in mnpar's, and
spoilt ones are reported, never wrong and never hanging.

``MNPAR_PROGRAMS=2000`` runs more of them, ``MNPAR_SPOILT_MPI`` more spoilt ones that are jobs of
their own, and ``MNPAR_PROGRAMS_FIRST`` is the first seed. How many of the spoilt ones were reported
is printed at the end, with ``--detection`` by kind of mistake.
"""

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mnpar  # noqa: E402
from tests.random_programs import spoiling  # noqa: E402
from tests.random_programs.programs import Ranked, draw, equal, over_ranks, truth  # noqa: E402
from tests.torch_bridge.torch_words import TorchWords  # noqa: E402

NUMBER = int(os.environ.get("MNPAR_PROGRAMS", 150))
FIRST = int(os.environ.get("MNPAR_PROGRAMS_FIRST", 0))
JOBS = int(os.environ.get("MNPAR_SPOILT_MPI", 1))
PIECE = 50
SEEDS = range(FIRST, FIRST + NUMBER, PIECE)


@pytest.mark.parametrize("first", SEEDS)
def test_random_programs_on_tensors_equal_those_of_one_process(first):
    for seed in range(first, first + PIECE):
        program = draw(seed, most_ranks=5)
        found = mnpar.run(
            lambda comm, p=program: over_ranks(p, Ranked(p, comm, TorchWords).run()),
            ranks=program.size,
        )
        wanted = truth(program)
        for values, gradients in found:
            for name, y in values.items():
                assert equal(y, wanted[0].came[name].array, program.coarse), (seed, name)
            for name, g in gradients.items():
                assert equal(g, wanted[1][name], program.coarse), (seed, name)


@pytest.mark.parametrize("first", SEEDS)
def test_a_spoilt_program_on_tensors_is_reported(record_property, first):
    seeds = range(first, first + PIECE)
    spoiling.expect_reports([spoiling.outcome(seed, TorchWords) for seed in seeds], record_property)


@pytest.mark.parametrize("job", range(FIRST, FIRST + JOBS))
def test_a_spoilt_program_on_tensors_ends_its_job(record_property, job):
    outcome = spoiling.job(100 * job, TorchWords, "tests.torch_bridge.spoilt")
    spoiling.expect_reports([outcome], record_property)
