"""Starting ranks: find the mpiexec that belongs to this Python, and start the running script again
under it.

The file is long because it also parses the flags of scripts, and looks after the files that they
name: what is wrong there is wrong on all ranks, and one of them reports it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import importlib.util
import io
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from mnpar import supervisor
from mnpar.communicators.last_words import ALIKE
from mnpar.communicators.launcher import launched_after_first, launched_ranks, under_open_mpi
from mnpar.errors import DatasetError, LauncherError

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

# What a launcher leaves in the environment of its ranks; a second launcher inside must not see it.
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
    supervisor.FILE,
)
_SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID")
_AGAIN = "MNPAR_RELAUNCHED"


def find_mpiexec(python: str | None = None) -> str:
    """The mpiexec beside this Python (it belongs to the MPI that pip installed), else the first on
    PATH.

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


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without a launcher's marks, as a launcher inside needs it; other threads may
    change it meanwhile.
    """
    names = [name for name in list(environment) if not name.startswith(_LAUNCHERS_MARKS)]
    return {name: value for name in names if (value := environment.get(name)) is not None}


def mpiexec_command(
    ranks: int, python: str | None = None, hosts: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command that starts ``ranks`` ranks on this machine, and the environment to start it in.

    Open MPI alone refuses more ranks than cores, and to run as root (containers, CI): both are
    allowed here.

    Args:
        ranks: how many.
        python: another Python than the one that runs: its mpiexec is taken.
        hosts: a file that names machines, one a line, in the form of the launcher (MPICH's
            ``name:slots``, Open MPI's ``name slots=4``): the ranks are started there instead.
    """
    mpiexec = find_mpiexec(python)
    environment = clean_environment(os.environ)
    openmpi = _is_open_mpi(mpiexec)
    where = [] if hosts is None else ["--hostfile" if openmpi else "-f", hosts]
    if openmpi:
        environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        if os.getuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            environment |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [mpiexec, *where, "-n", str(ranks)], environment


def _is_open_mpi(mpiexec: str) -> bool:
    return kind_of(mpiexec) == "Open MPI"


@functools.cache
def kind_of(mpiexec: str) -> str:
    """The MPI of a launcher: ``'Open MPI'``, ``'MPICH'`` (and Intel MPI: each starts the other's
    ranks), or empty: unknown.
    """
    environment = clean_environment(os.environ)
    version = subprocess.run(
        [mpiexec, "--version"], capture_output=True, text=True, env=environment, check=False
    ).stdout
    if "Open MPI" in version or "OpenRTE" in version or "prte" in version.lower():
        return "Open MPI"
    return "MPICH" if "HYDRA" in version.upper() or "Intel(R) MPI" in version else ""


def parse_args(parser: argparse.ArgumentParser, **least: int) -> argparse.Namespace:
    """``parser.parse_args()``, except that one rank alone reports a wrong command line.

    That holds for a later ``parser.error(…)`` too, and for ``--threads``, which runs on one
    process, where the launcher has started several. What is printed from here on may hold letters
    that the output's encoding has not (``LC_ALL=en_US.ISO-8859-1``, ``PYTHONIOENCODING=ascii``):
    they become question marks, and do not end the job.

    Args:
        parser: of the script.
        least: the smallest number that a flag may have; one that is None may.

    Example:
        >>> import argparse, mnpar
        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("--epoch", type=int, default=5)
        >>> mnpar.launch.parse_args(parser, epoch=1)  # doctest: +SKIP
        Namespace(epoch=5)
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    if launched_after_first():
        parser.error = _leave_it_to_rank_0  # type: ignore[method-assign]
        # --help
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            args = parser.parse_args()
    else:
        args = parser.parse_args()
    for name, number in least.items():
        value = getattr(args, name)
        if value is not None and value < number:
            parser.error(f"--{name.replace('_', '-')} is at least {number}, not {value}")
    if getattr(args, "threads", None) and launched_ranks() > 1:
        parser.error(
            f"--threads is for one process, and the launcher has started {launched_ranks()}: "
            "choose one of them"
        )
    return args


def _leave_it_to_rank_0(message: str) -> NoReturn:
    """End as rank 0 does, which reports a wrong command line: later than it, as Open MPI's launcher
    then ends the others.
    """
    if under_open_mpi():
        time.sleep(ALIKE)
    sys.exit(2)


def started_ranks(args: argparse.Namespace, otherwise: int) -> int:
    """How many ranks there will be: ``args.threads``, if it is given; or as many as the launcher
    has started, if several.

    Args:
        args: what :func:`parse_args` returned.
        otherwise: the number in all other cases: that with which :func:`relaunch` is called.

    Example:
        >>> import argparse, mnpar
        >>> mnpar.launch.started_ranks(argparse.Namespace(threads=6), 4)
        6
    """
    launched = launched_ranks()
    return getattr(args, "threads", None) or (launched if launched > 1 else otherwise)


def ranks_of_grid(
    parser: argparse.ArgumentParser, args: argparse.Namespace, flag: str, axes: int = 2
) -> int:
    """How many ranks the grid of a flag like ``--halopar 2x3`` is for; a usage error if there will
    be others.

    Args:
        parser: of the script.
        args: what :func:`parse_args` returned: the flag's value is what :func:`dims` makes, or
            None. The ranks are ``args.threads``, if there is such a number, or those of the
            launcher, if it has started several. None becomes blocks of rows, one for each rank.
        flag: its name.
        axes: of the grid.

    Example:
        >>> import argparse, mnpar
        >>> args = argparse.Namespace(halopar=(2, 3), threads=6)
        >>> mnpar.launch.ranks_of_grid(argparse.ArgumentParser(), args, "halopar")
        6
    """
    started = started_ranks(args, 0)
    grid: tuple[int, ...] = getattr(args, flag) or (started or 1, *(1,) * (axes - 1))
    setattr(args, flag, grid)
    needed = math.prod(grid)
    ranks = started or needed
    if ranks != needed or len(grid) != axes:
        names = "rows x columns" if axes == 2 else f"{axes} numbers"
        parser.error(
            f"--{flag} is {names} of all ranks: {grid} is for {needed}, and there are {ranks}"
        )
    return needed


def seed(text: str) -> int:
    """The number that a flag ``--seed`` means: ``parser.add_argument("--seed",
    type=mnpar.launch.seed)``.

    Args:
        text: a number that all of numpy's generators take.

    Raises:
        argparse.ArgumentTypeError: it is none; argparse makes it a usage error.

    Example:
        >>> import mnpar
        >>> mnpar.launch.seed("-1")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: a seed is a whole number from 0 to 4294967295, not -1
    """
    if not (text.isdecimal() and int(text) < 2**32):
        raise argparse.ArgumentTypeError(
            f"a seed is a whole number from 0 to {2**32 - 1}, not {text}"
        )
    return int(text)


def folder(text: str) -> str:
    """The folder that a flag ``--out`` means: ``parser.add_argument("--out",
    type=mnpar.launch.folder)``.

    It does not make the folder, as every rank reads the command line. But it tells now, and not
    after hours of training, if nothing could be written there.

    Args:
        text: its path; empty: none.

    Raises:
        argparse.ArgumentTypeError: nothing can be written there; argparse makes it a usage error.

    Example:
        >>> import mnpar
        >>> mnpar.launch.folder("/dev/null/result")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: nothing can be written to /dev/null/result: Not a directory
    """
    there = os.path.abspath(text)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    trouble = None if os.path.isdir(there) else errno.ENOTDIR
    if text and trouble is None:
        try:
            tempfile.TemporaryFile(
                dir=there
            ).close()  # permissions do not tell all: root has them in /proc, too
        except OSError as error:
            trouble = error.errno or errno.EACCES
    if trouble is None:
        return text
    raise argparse.ArgumentTypeError(f"nothing can be written to {text}: {os.strerror(trouble)}")


def existing_folder(text: str) -> str:
    """The folder that a flag ``--data`` means, which has to be there:
    ``parser.add_argument("--data", type=…)``.

    Example:
        >>> import mnpar
        >>> mnpar.launch.existing_folder("/dev/null")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: there is no folder /dev/null
    """
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return text


@contextlib.contextmanager
def reading(comm: Communicator) -> Iterator[None]:
    """Around what reads a script's files, on all ranks or some: missing and damaged ones, or a
    missing package that has them, end the script, told in one line.

    Collective; none waits for what another could not read. Rank 0 prints the first error of all
    ranks, each exits with code 1.

    Args:
        comm: of all ranks that go on together.

    Raises:
        SystemExit: a file could not be read on one of the ranks.

    Example:
        >>> import mnpar
        >>> comm = mnpar.create_communicator("self")
        >>> with mnpar.launch.reading(comm):
        ...     train, test = mnpar.datasets.get_mnist(data="/dev")
        Traceback (most recent call last):
        SystemExit: 1
    """
    trouble = None
    try:
        yield
    except (OSError, DatasetError, ModuleNotFoundError) as error:
        trouble = " ".join(str(error).split())
    found = [each for each in comm.gather_obj(trouble) or () if each is not None]
    if found:
        print(f"{os.path.basename(sys.argv[0])}: error: {found[0]}", file=sys.stderr, flush=True)
    if comm.bcast_obj(bool(found)):  # it is printed: the first that exits ends the others
        sys.exit(1)


def dims(text: str) -> tuple[int, ...]:
    """The grid that a flag like ``--halopar 2x3`` means: ``parser.add_argument("--halopar",
    type=mnpar.launch.dims)``.

    Args:
        text: numbers from 1 on with an x between them.

    Raises:
        argparse.ArgumentTypeError: it is something else; the parser makes a usage error of it.

    Example:
        >>> import mnpar
        >>> mnpar.launch.dims("2x3"), mnpar.launch.dims("4")
        ((2, 3), (4,))
    """
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(
            f"a grid is numbers from 1 on with an x between them, like 2x2, not {text!r}"
        )
    return tuple([int(part) for part in parts])


def relaunch(ranks: int) -> bool:
    """Start this program again on ``ranks`` ranks, if it runs alone; call it first, before anything
    starts MPI.

    ``python script.py`` and ``mpiexec python script.py`` (which with MPICH starts one rank) so
    become ``mpiexec -n ranks``; under a launcher with several ranks, and in the second run, nothing
    happens. It replaces the process: the exit code is the job's, and 1 if a rank left without a
    word (``mnpar/supervisor.py``) where the launcher itself would call that a success.

    Args:
        ranks: how many to start; 1 changes nothing.

    Returns:
        Whether the script now runs as it should; False if it stays alone because no MPI is
        installed, or because a scheduler is to start the ranks: what to type is then printed.

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
        if importlib.util.find_spec("mpi4py") is None:
            raise LauncherError("mpi4py is missing: pip install 'mnpar[mpi]'")
        command, environment = mpiexec_command(ranks)
        program = _this_program()
    except LauncherError as error:
        print(f"mnpar: running alone, because {error}")
        return False
    return _become([*command, sys.executable, *program], ranks, environment)


def _this_program() -> list[str]:
    """The arguments that Python was started with: its own options, a script or ``-m`` or ``-c``,
    and that program's arguments.

    Raises:
        LauncherError: the program came through standard input, and cannot come there again.
    """
    if sys.argv[0] in ("", "-"):
        raise LauncherError("this program is not in a file: save it, and start that")
    # where -m or -c would be in ``given``
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
    if importlib.util.find_spec("mpi4py") is None:
        raise LauncherError("mpi4py is missing: pip install 'mnpar[mpi]'")
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
