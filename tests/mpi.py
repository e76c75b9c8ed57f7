"""Which MPI library the tests' ranks have."""

import subprocess
import sys

import pytest

from mnpar.errors import LauncherError
from mnpar.launch import find_mpiexec


def is_mpich(python=sys.executable):
    """Whether the mpiexec beside a Python is MPICH's."""
    try:
        command = [find_mpiexec(python), "--version"]
    except LauncherError:
        return False
    return "HYDRA" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


needs_mpich = pytest.mark.skipif(not is_mpich(), reason="only MPICH's ranks have it: sums in shared memory, meeting by a file")
