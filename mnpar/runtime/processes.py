"""The processes around a rank before there is MPI, by ``/proc``: its launcher on this machine, and
the processes that the launcher has started.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from mnpar.runtime.heartbeat import stat_of
from mnpar.runtime.launcher import launched_rank, under_open_mpi

MPICHS = "hydra_pmi_proxy"
_MPIS_OWN = "MPIR_CVAR_PMI_VERSION"  # set: ranks and launcher speak another protocol
# the name of a rank that has come to its end without a communicator; of 15 letters at most
LEAVES = "mnpar leaves"

# names of programs that start ranks on a machine
_LAUNCHERS = (
    MPICHS,
    "prterun",
    "prted",
    "orterun",
    "orted",
    "mpiexec",
    "mpirun",
)

_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def _ancestors() -> Iterator[int]:
    """Return this process, the one that has started it, and so on, as far as they can be seen."""
    pid = os.getpid()
    with contextlib.suppress(OSError, ValueError):
        while pid:
            yield pid
            pid = int(stat_of(pid)[1])


def launcher() -> tuple[int | None, int]:
    """Return the process that has started this rank on this machine, None if it cannot be seen, and
    its child, which is the rank or its wrapper.
    """
    mine = os.getpid()
    for pid in _ancestors():
        if name(pid) in _LAUNCHERS:
            told = rank_of(mine)  # None of a program that runs with another user's rights
            return pid if told in (launched_rank(), None) else None, mine
        mine = pid
    return None, mine


def name(pid: int) -> str:
    """Return the name of a process's program; empty if it cannot be seen."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def is_mpichs(launcher: int | None) -> bool:
    """Return whether a launcher is MPICH's, and its ranks speak its protocol with it."""
    return launcher is not None and name(launcher) == MPICHS and _MPIS_OWN not in os.environ


@functools.cache
def reaches_terminal(file: int) -> bool:
    """Return whether the standard output (1) or error (2) of a rank, a terminal, is seen on one:
    Open MPI's launcher gives ranks terminals of their own, and passes their output on to its own.
    """
    if not under_open_mpi() or file not in (1, 2):
        return True
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{launcher()[0]}/fd/{file}").startswith(_TERMINALS)
    return False


def leave() -> None:
    """Let the other ranks see that this one makes no communicator any more; MPI may still wait. The
    main thread must call it.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(LEAVES, encoding="ascii")


def is_helper() -> bool:
    """Return whether a rank has started this process, which has its variables: another Python above
    it has them too.
    """
    with contextlib.suppress(OSError):
        own = os.readlink("/proc/self/exe")
        above = launcher()[0]
        for pid in _ancestors():
            if pid == above:
                return False
            if (
                pid != os.getpid()
                and rank_of(pid) == launched_rank()
                and os.readlink(f"/proc/{pid}/exe") == own
            ):
                return True
    return False


def children(parent: int) -> dict[int, int]:
    """Return the ranks, or their wrappers, of a launcher that have not ended, and when each was
    started, in ticks of the kernel's clock.
    """
    there = {}
    with contextlib.suppress(OSError):  # the launcher has ended
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            for pid in map(int, task.read_text().split()):
                if (since := begun(pid)) and not _is_a_way_out(pid):
                    there[pid] = since
    return there


def _is_a_way_out(pid: int) -> bool:
    """Return whether it is the ``ssh`` by which Open MPI's launcher reaches another machine: it has
    no rank among its variables.
    """
    return (
        under_open_mpi() and bool(variables := _variables(pid)) and launched_rank(variables) is None
    )


def begun(pid: int) -> int | None:
    """Return the start of a process, in ticks of the kernel's clock; 0 if it has ended, None if it
    cannot be seen.
    """
    try:
        fields = stat_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except (OSError, ValueError):
        return None
    return 0 if fields[0] in "ZX" else int(fields[19])


def age(since: int | None) -> float:
    """Return the age in seconds of a process that was started then."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME) - since / os.sysconf("SC_CLK_TCK") if since else 0.0
    )


def rank_of(pid: int) -> int | None:
    """Return the rank that a process, or the process in its wrapper, is; None: it does not tell."""
    return launched_rank(_variables(pid))


def _variables(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started; empty if they cannot be seen."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return dict([variable.split("=", 1) for variable in text.split("\0") if "=" in variable])
    return {}


def has_mpi(pid: int) -> bool:
    """Return whether a process has loaded an MPI library, and so may have a connection to the
    launcher.
    """
    with contextlib.suppress(OSError):
        return "/libmpi" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return False
