"""Under the standard binary interface of MPI 5, random programs have the values and gradients of
one process.

The wheels of mpi4py 4.1 do not use this interface. ``MNPAR_TEST_PYTHON=/path/to/python pytest
tests/communicators/test_standard_abi.py`` takes the Python of an environment whose mpi4py does
(docs/cluster.md says how it is built); elsewhere the test is skipped.
"""

import subprocess

import pytest

from mnpar.runtime.mpiexec import mpiexec_command
from tests.faults.job import PYTHON, ROOT

VERSION = "from mpi4py import MPI; print(*MPI.Get_abi_version())"  # -1 -1: another interface
PROGRAM = """
import sys
import mnpar
from tests.random_programs.programs import Ranked, draw, equal, over_ranks, truth

comm = mnpar.create_communicator()
assert comm.transport.MPI.Get_abi_version() >= (1, 0)
for seed in range(int(sys.argv[1])):
    program = draw(seed, most_ranks=4)
    sub = comm.split(0 if comm.rank < program.size else None, comm.rank)
    if sub is not None:
        values, gradients = over_ranks(program, Ranked(program, sub).run())
        all_values, wanted = truth(program)
        for name, y in values.items():
            assert equal(y, all_values.came[name].array, program.coarse), (seed, name)
        for name, g in gradients.items():
            assert equal(g, wanted[name], program.coarse), (seed, name)
        sub.finalize()
    comm.barrier()
sys.stdout.write(f"rank {comm.rank} of {comm.size}: {seed + 1} programs are right\\n")
"""


@pytest.fixture
def python():
    """The Python whose mpi4py uses the interface."""
    said = subprocess.run(
        [PYTHON, "-c", VERSION], capture_output=True, text=True, timeout=60, check=False
    )
    if said.returncode or said.stdout.startswith("-1"):
        pytest.skip(f"{PYTHON}: its mpi4py does not use the standard interface")
    return PYTHON


def test_random_programs_under_the_standard_interface_equal_those_of_one_process(python):
    command, environment = mpiexec_command(4, python)
    done = subprocess.run(
        [*command, python, "-c", PROGRAM, "40"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**environment, "PYTHONPATH": ROOT},
    )
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"rank {rank} of 4: 40 programs are right" in done.stdout
