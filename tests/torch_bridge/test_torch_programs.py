"""Random programs in PyTorch's words have the values and gradients of one process in mnpar's.

``MNPAR_PROGRAMS=2000`` runs more of them.
"""

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mnpar  # noqa: E402
from tests.random_programs.programs import draw, equal, truth  # noqa: E402
from tests.torch_bridge.torch_words import over_ranks  # noqa: E402

NUMBER = int(os.environ.get("MNPAR_PROGRAMS", 150))
FIRST = int(os.environ.get("MNPAR_PROGRAMS_FIRST", 0))
PIECE = 50


@pytest.mark.parametrize("first", range(FIRST, FIRST + NUMBER, PIECE))
def test_random_programs_on_tensors_equal_those_of_one_process(first):
    for seed in range(first, first + PIECE):
        program = draw(seed, most_ranks=5)
        found = mnpar.run(lambda comm, p=program: over_ranks(p, comm), ranks=program.size)
        wanted = truth(program)
        for values, gradients in found:
            for name, y in values.items():
                assert equal(y, wanted[0].came[name].array, program.coarse), (seed, name)
            for name, g in gradients.items():
                assert equal(g, wanted[1][name], program.coarse), (seed, name)
