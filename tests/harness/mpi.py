"""The MPI library of the tests' ranks."""

import functools
import signal
import subprocess
import sys

import pytest

from mnpar.errors import LauncherError
from mnpar.runtime.mpiexec import find_mpiexec


@functools.cache
def is_mpich(python=sys.executable):
    """Return whether the mpiexec beside a Python is MPICH's."""
    try:
        command = [find_mpiexec(python), "--version"]
    except LauncherError:
        return False
    return "HYDRA" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


needs_mpich = pytest.mark.skipif(
    not is_mpich(),
    reason="MPICH alone sums in shared memory, meets by a file, and starts one rank untold",
)

# passed on by mpiexec: at SIGTERM Open MPI's kills the ranks
TO_END = signal.SIGTERM if is_mpich() else signal.SIGUSR1
