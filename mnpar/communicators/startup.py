"""The start of a job, until there is a communicator: a rank that ends before ends all of them.

``MPI_Init`` returns when all ranks have called it, and never if one has ended before it did; launchers let that happen, as one
that leaves without MPI is no failure to them. So an uncaught error ends its process in a way that is one (:func:`install`). For
all other ends: each rank on a machine is a child process of its launcher there, or in a wrapper that is one and lasts as long,
and the launcher has told how many there are. While a rank is in ``MPI_Init``, a thread counts those children (``mpi.py``
calls MPI without the GIL); if some are missing, it says which, and ends this process. Ranks on other machines leave notices for
each other at MPICH's launcher (notices.py). Where the launcher or its children cannot be seen (systems without ``/proc``,
kernels that list no children, containers that hide processes, Slurm), nothing is watched.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from mnpar.communicators import sites, traces
from mnpar.communicators.launcher import launched_rank, launched_ranks, launched_ranks_here, under_open_mpi
from mnpar.communicators.neighbours import stat_of
from mnpar.communicators.notices import Notices
from mnpar.communicators.watch import speak, speak_at_once

if TYPE_CHECKING:
    from mnpar.communicators.rendezvous import Session

_MPICHS = "hydra_pmi_proxy"
_LAUNCHERS = (_MPICHS, "prterun", "prted", "orterun", "orted", "mpiexec", "mpirun")  # what starts ranks on a machine
_ALIKE = 0.8  # s: if all ranks fail alike, rank 0 speaks for them, and ends the job
_SPEAK = 0.2  # s for a launcher to pass on what a rank wrote
_PULSE = 0.2  # s
_ENDING = 1.0  # s in which a launcher that has lost a rank kills the others
_STARTING = 1.5  # s without a new rank, after which a launcher starts no more; and as long as this rank has taken to come here
_TURN = 12  # looks by which the lowest rank comes first, to speak for all


def install() -> None:
    """Let an uncaught error end the job; called by ``import mnpar``. The first communicator's hook takes its place."""
    if launched_ranks() < 2:
        return
    show, process = sys.excepthook, os.getpid()

    def on_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != process or _is_helper():  # a child's errors are its own
            show(kind, error, trace)
            return
        what = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed, the job ends"
        if launched_rank() and what != "interrupted":
            time.sleep(_ALIKE)
        speak(f"mnpar: rank {launched_rank()} of {launched_ranks()} {what}\n")
        show(kind, error, trace)
        speak()
        time.sleep(_SPEAK)
        MPI = sys.modules.get("mpi4py.MPI")
        if MPI is None or not MPI.Is_initialized():
            _end(_launcher()[0], _notices())
        elif not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1:
            _tidy(_launcher()[0])
            MPI.COMM_WORLD.Abort(1)

    sys.excepthook = on_error
    atexit.register(_leave, _notices())


def _notices() -> Notices | None:
    """How this process learns of ranks on other machines; None if there are none, no way to, or it is not a rank itself."""
    if launched_ranks_here() == launched_ranks() or not os.environ.get("PMI_FD", "").isdigit():
        return None
    launcher, rank = _launcher()
    if launcher is None or rank != os.getpid() or _name(launcher) != _MPICHS:  # a wrapper may start another process, that comes
        return None
    with contextlib.suppress(OSError):
        return Notices(int(os.environ["PMI_FD"]))
    return None


def _leave(notices: Notices | None) -> None:
    """At exit: if this process never was in MPI, and another rank waits for it there, end the job."""
    launcher, rank = _launcher()
    MPI = sys.modules.get("mpi4py.MPI")
    if launcher is None or rank != os.getpid() or (_has_mpi(rank) if MPI is None else MPI.Is_initialized()):
        return
    if under_open_mpi() and any(_has_mpi(pid) for pid in _children(launcher)):
        time.sleep(_ENDING / 2)  # the launcher may take this end for a failure: see _await_others
    if notices is None or (waits := notices.one_waits(launched_rank() or 0)) is None:
        return
    first = f"mnpar: rank {launched_rank()} of {launched_ranks()} has ended before it made a communicator, the job ends"
    speak(f"{first}\n  rank {waits}: waits for ever for the start of MPI\n")
    time.sleep(_SPEAK)
    _end(launcher, notices)


def _has_mpi(pid: int) -> bool:
    """Whether a process has loaded an MPI library, and so may have a connection to the launcher."""
    with contextlib.suppress(OSError):
        return "/libmpi" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return False


@contextlib.contextmanager
def watched(library: str, session: Session | None) -> Iterator[None]:
    """Around ``MPI_Init``: Ctrl-C ends it, and this process ends if another one has before it came so far.

    Args:
        library: MPI's name and version.
        session: of a job without a launcher.
    """
    if launched_ranks() < 2:
        yield
        return
    notices = _notices() if library.startswith("MPICH") else None
    if notices is not None and (left := notices.one_has_left(launched_rank() or 0)) is not None:
        speak(_report(sites.call_site(), f"rank {left}"))
        time.sleep(_SPEAK)
        _end(_launcher()[0], notices)
    _await_others()
    main = threading.current_thread() is threading.main_thread()
    wakes, wake = os.pipe()  # the numbers of signals, of which Python itself would learn only after MPI_Init
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake) if main else -1
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(over, wakes, sites.call_site(), session), name="mnpar start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if main:
            signal.set_wakeup_fd(before)
        over.set()
        os.write(wake, b"\0")
        thread.join()
        os.close(wake)
        os.close(wakes)


def _await_others() -> None:
    """Give the launcher time to end this rank if another one is gone: Open MPI's hangs if a rank connects to it meanwhile."""
    launcher, mine = _launcher()
    deadline = time.monotonic() + _ENDING
    while launcher is not None and mine in (there := _children(launcher)) and time.monotonic() < deadline:
        if len(there) >= launched_ranks_here():
            return
        time.sleep(_SPEAK / 10)


def _watch(over: threading.Event, wakes: int, site: str, session: Session | None) -> None:
    """In a thread: end this process at Ctrl-C, or if a rank of this machine is gone, or if a job without a launcher ends."""
    expected, most, found, looks, last = launched_ranks_here(), 0, 0, 0, set[int]()
    launcher, mine = _launcher()
    begun, starting = launcher and _begun(launcher), _STARTING + _age(_begun(os.getpid()))
    while True:
        told = os.read(wakes, 256) if select.select([wakes], [], [], _PULSE)[0] else b""
        if over.is_set():
            return
        if signal.SIGINT in told and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _end(launcher)
        if session is not None:
            session.obey(_exit)
        if launcher is None or not begun:
            continue
        if _begun(launcher) not in (begun, None):  # it has died
            traces.remove_session(launcher)
            _end(launcher)
        there = _children(launcher)
        if mine not in there:  # these are not all
            continue
        most = max(most, len(there))
        if len(there) >= expected or there.keys() != last or (most < expected and _age(max(there.values())) < starting):
            looks, last = 0, set(there)
            continue
        looks += 1
        ranks = [_rank_of(pid) for pid in there]
        found = found or len(ranks)
        first = len(ranks) == found and not any(rank is not None and rank < (launched_rank() or 0) for rank in ranks)
        if looks > (0 if first else _TURN):
            speak_at_once(_report(site, _missing(expected, ranks)))
            time.sleep(_SPEAK)
            _end(launcher)


def _end(launcher: int | None, notices: Notices | None = None) -> None:
    """End this process so that its launcher ends the others, and first what these would leave behind: of a process that leaves
    by itself the launcher may think nothing."""
    _tidy(launcher)
    if notices is not None:
        notices.end_job()
        time.sleep(_ENDING)
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(code: int) -> NoReturn:
    """End this process alone."""
    traces.remove(traces.segments())
    os._exit(code)


def _tidy(launcher: int | None) -> None:
    """Remove the files of MPI's shared memory that the ranks here have mapped, which are about to end, and their launcher's."""
    if launcher is not None:
        traces.remove(traces.launchers_file(launcher))
        for pid in _children(launcher):
            traces.remove(traces.segments(pid))


def _missing(expected: int, ranks: list[int | None]) -> str:
    """The ranks of this machine that are not among ``ranks``, those that are there."""
    size, lost = launched_ranks(), expected - len(ranks)
    gone = sorted(set(range(size)).difference(ranks)) if expected == size else []
    return f"rank {', '.join(map(str, gone))}" if len(gone) == lost else f"{lost} of the {expected} ranks on this machine"


def _report(site: str, gone: str) -> str:
    first = f"mnpar: rank {launched_rank()} of {launched_ranks()} waits for ever for the start of MPI at {site}, the job ends"
    return f"{first}\n  {gone}: has ended before it made a communicator\n"


def _ancestors() -> Iterator[int]:
    """This process, the one that has started it, and so on, as far as they can be seen."""
    pid = os.getpid()
    with contextlib.suppress(OSError, ValueError):
        while pid:
            yield pid
            pid = int(stat_of(pid)[1])


def _launcher() -> tuple[int | None, int]:
    """(What has started this rank on this machine, None if it cannot be seen; its child, which is the rank or its wrapper.)"""
    mine = os.getpid()
    for pid in _ancestors():
        if _name(pid) in _LAUNCHERS:
            told = _rank_of(mine)  # None of a program that runs with another user's rights
            return pid if told in (launched_rank(), None) else None, mine
        mine = pid
    return None, mine


def _name(pid: int) -> str:
    """That of a process's program; empty if it cannot be seen."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _is_helper() -> bool:
    """Whether a rank has started this process, which has its variables: another Python above it has them too."""
    with contextlib.suppress(OSError):
        own, launcher = os.readlink("/proc/self/exe"), _launcher()[0]
        for pid in _ancestors():
            if pid == launcher:
                return False
            if pid != os.getpid() and _rank_of(pid) == launched_rank() and os.readlink(f"/proc/{pid}/exe") == own:
                return True
    return False


def _children(launcher: int) -> dict[int, int]:
    """The child processes of the launcher that have not ended, and when each was started, in ticks of the kernel's clock."""
    there = {}
    with contextlib.suppress(OSError):  # the launcher has ended
        for task in Path(f"/proc/{launcher}/task").glob("*/children"):
            for pid in map(int, task.read_text().split()):
                if begun := _begun(pid):
                    there[pid] = begun
    return there


def _begun(pid: int) -> int | None:
    """When a process was started, in ticks of the kernel's clock; 0 if it has ended, None if it cannot be seen."""
    try:
        fields = stat_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except (OSError, ValueError):
        return None
    return 0 if fields[0] in "ZX" else int(fields[19])


def _age(begun: int | None) -> float:
    """For how many seconds a process has been there."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begun / os.sysconf("SC_CLK_TCK") if begun else 0.0


def _rank_of(pid: int) -> int | None:
    """The rank that a process, or what it wraps, is; None if it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return launched_rank(dict(variable.split("=", 1) for variable in variables if "=" in variable))
    return None
