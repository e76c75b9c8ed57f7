"""Starting ranks: find the mpiexec that belongs to this Python, and start the running script again
under it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from mnpar.errors import LauncherError
from mnpar.runtime import supervisor, system
from mnpar.runtime.blas_threads import IDLE
from mnpar.runtime.callsite import ipython_shell
from mnpar.runtime.launcher import launched_ranks

if TYPE_CHECKING:
    pass


# The variables that a launcher sets for its ranks; a second launcher inside must not see them.
_LAUNCHERS_MARKS = (
    "PMI",  # and PMIX
    "OMPI_",
    "PRTE",
    "HYDI",
    "HYDRA",
    "MPI_LOCAL",
    "MPIEXEC_",
    "I_MPI_HYDRA",
    "MPIR_",
    "PALS_",
    "JSM_",
    "FLUX_TASK_",
    "FLUX_JOB_SIZE",
    supervisor.FILE,
)

_SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID", "FLUX_JOB_ID")
_AGAIN = "MNPAR_RELAUNCHED"


def find_mpiexec(python: str | None = None) -> str:
    """Return the mpiexec beside this Python (it belongs to the MPI that pip installed), else the
    first on PATH.

    Args:
        python: another Python than the one that runs.

    Raises:
        LauncherError: there is none.
    """
    beside = os.path.join(os.path.dirname(python or sys.executable), "mpiexec")
    found = beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise LauncherError(
            "no mpiexec beside this Python or on PATH: pip install 'mnpar[mpi]', or load the "
            "machine's MPI"
        )
    return found


def require_mpi4py() -> None:
    """Check that ranks which a launcher starts will find MPI for Python.

    Raises:
        LauncherError: they will not.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise LauncherError("mpi4py is missing: pip install 'mnpar[mpi]'")


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without a launcher's variables, as a launcher inside needs it; other
    threads may change it meanwhile.
    """
    names = [name for name in list(environment) if not name.startswith(_LAUNCHERS_MARKS)]
    return {name: value for name in names if (value := environment.get(name)) is not None}


def mpiexec_command(
    ranks: int, python: str | None = None, hosts: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts ``ranks`` ranks on this machine, and the environment to start
    it in.

    Open MPI alone refuses more ranks than cores, and to run as root (containers, CI): both are
    allowed here.

    Args:
        ranks: how many.
        python: another Python than the one that runs: its mpiexec is taken.
        hosts: a file that names machines, one a line, in the form of the launcher (MPICH's
            ``name:slots``, Open MPI's ``name slots=4``): the ranks are started there instead.
    """
    mpiexec = find_mpiexec(python)
    environment = dict([IDLE]) | clean_environment(os.environ)
    openmpi = _is_open_mpi(mpiexec)
    where = [] if hosts is None else ["--hostfile" if openmpi else "-f", hosts]
    if openmpi:
        environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        if system.is_root():
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            environment |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [mpiexec, *where, "-n", str(ranks)], environment


def _is_open_mpi(mpiexec: str) -> bool:
    return kind_of(mpiexec) == "Open MPI"


@functools.cache
def kind_of(mpiexec: str) -> str:
    """Return the MPI of a launcher: ``'Open MPI'``, ``'MPICH'`` (and Intel MPI: each starts the
    other's ranks), or empty: unknown.
    """
    environment = clean_environment(os.environ)
    version = subprocess.run(
        [mpiexec, "--version"], capture_output=True, text=True, env=environment, check=False
    ).stdout
    if "Open MPI" in version or "OpenRTE" in version or "prte" in version.lower():
        return "Open MPI"
    return "MPICH" if "HYDRA" in version.upper() or "Intel(R) MPI" in version else ""


def relaunch(ranks: int) -> bool:
    """Start this program again on ``ranks`` ranks, if it runs alone; call it first, before anything
    starts MPI.

    ``python script.py`` and ``mpiexec python script.py`` (which with MPICH starts one rank) so
    become ``mpiexec -n ranks``; under a launcher with several ranks, and in the second run, nothing
    happens. It replaces the process: the exit code is the job's, and 1 if a rank left without a
    word (``mnpar/runtime/supervisor.py``) where the launcher itself would call that a success.

    Args:
        ranks: how many to start; 1 changes nothing.

    Returns:
        True if the script now runs as it should; False if it stays alone because no MPI is
        installed, because a scheduler is to start the ranks, or in a notebook: what to type is
        then printed.

    Example:
        >>> import mnpar
        >>> mnpar.relaunch(1)
        True
    """
    if ranks <= 1 or launched_ranks() > 1 or _AGAIN in os.environ:
        return True
    if any(name in os.environ for name in _SCHEDULERS):
        print(
            "mnpar: running alone; in this batch job start the ranks yourself: srun -n "
            f"{ranks} python {' '.join(sys.argv)}"
        )
        return False
    try:
        require_mpi4py()
        command, environment = mpiexec_command(ranks)
        program = _this_program(ranks)
    except LauncherError as error:
        print(f"mnpar: running alone, because {error}")
        return False
    return _become([*command, sys.executable, *program], ranks, environment)


@contextmanager
def without_relaunch() -> Iterator[None]:
    """Let :func:`relaunch` start nothing inside a ``with`` block: ranks are here already."""
    before = os.environ.get(_AGAIN)
    os.environ[_AGAIN] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_AGAIN]
        else:
            os.environ[_AGAIN] = before


def _this_program(ranks: int) -> list[str]:
    """Return the arguments that Python was started with: its own options, a script or ``-m`` or
    ``-c``, and that program's arguments.

    Raises:
        LauncherError: the program came through standard input, and cannot come there again; or from
            a notebook, whose kernel would end.
    """
    if ipython_shell() is not None:
        raise LauncherError(
            "a notebook's process cannot become several: mnpar.run(program, ranks="
            f"{ranks}) runs a function of the communicator on {ranks} ranks here, and "
            f"'!{os.path.basename(sys.executable)} -m mnpar run -n {ranks} script.py' a script "
            "(%%writefile script.py makes one of a cell)"
        )
    if sys.argv[0] in ("", "-"):
        raise LauncherError("this program is not in a file: save it, and start that")
    # the place of -m or -c in ``given``
    given, before = (
        sys.orig_argv[1:],
        len(sys.orig_argv) - len(sys.argv) - 2,
    )
    if given[-len(sys.argv) :] == sys.argv:
        return given
    if before >= 0 and given[before] in ("-m", "-c") and given[before + 2 :] == sys.argv[1:]:
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if sys.argv[0] == (
            given[before] if given[before] == "-c" else getattr(spec, "origin", None)
        ):
            return given
    return sys.argv  # which were changed since


def start(
    ranks: int, command: Sequence[str], hosts: str | None = None, module: bool = False
) -> NoReturn:
    """Become ``mpiexec -n ranks python command …``: what ``python -m mnpar run`` does. The exit
    code is as of :func:`relaunch`.

    Args:
        ranks: how many.
        command: a script and its arguments.
        hosts: as :func:`mpiexec_command` has it.
        module: the first word is the name of a module, as after ``python -m``.

    Raises:
        LauncherError: there is no mpiexec, no mpi4py, no such script or no such file of hosts.
    """
    require_mpi4py()
    for what, file in (("script", None if module else command[0]), ("file of hosts", hosts)):
        if file is not None and not os.path.isfile(file):
            raise LauncherError(f"there is no {what} {file}")
    start, environment = mpiexec_command(ranks, hosts=hosts)
    _become([*start, sys.executable, *(["-m"] if module else []), *command], ranks, environment)


def _become(command: list[str], ranks: int, environment: dict[str, str]) -> NoReturn:
    """Replace this process by the launcher, or by its supervisor: MPICH's may report success of a
    job that failed.
    """
    environment[_AGAIN] = "1"  # a script that would start ranks itself has them
    if hasattr(os, "memfd_create") and not _is_open_mpi(command[0]):
        command = [sys.executable, "-I", "-S", supervisor.__file__, str(ranks), *command]
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        # closed by who started this: mpiexec needs all three
        if stream is None and os.open(os.devnull, os.O_RDWR) == number:
            os.set_inheritable(number, True)
    if sys.stdout is not None:
        sys.stdout.flush()
    os.execve(command[0], command, environment)
