"""The start of a job, until there is a communicator: a rank that ends before ends all of them.

``MPI_Init`` returns when all ranks have called it, and never if one has ended before it did;
launchers let that happen, as a rank that leaves without MPI is no failure to them. So an uncaught
error ends its process in a way that is a failure to them (:class:`EndBeforeMeeting`). For all other
ends: each rank on a machine is a child process of its launcher there, or in a wrapper that is one
and lasts as long, and the launcher has told how many there are. While a rank is in ``MPI_Init``, a
thread counts those children (mpi/library.py calls MPI without the GIL); if some are missing, it
says which, and ends this process. Ranks on other machines leave notices for each other at the
launcher (pmi.py for MPICH's, pmix.py for Open MPI's). If the launcher or its children cannot be
seen (systems without ``/proc``, kernels that list no children, containers that hide processes,
Slurm), nothing is watched.
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
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mnpar.runtime import callsite, cleanup, exit, pmix, processes
from mnpar.runtime.launcher import (
    launched_rank,
    launched_ranks,
    launched_ranks_here,
    under_open_mpi,
)
from mnpar.runtime.output import ALIKE, await_reader, speak, speak_at_once
from mnpar.runtime.pmi import Notices

if TYPE_CHECKING:
    from mnpar.runtime.rendezvous import Session


_PULSE = 0.2  # s
_LOOK = 1.0  # s in MPI_Init, and again, after which a rank looks for notices of others
_GRACE = 3.0  # s for a process whose launcher has died
# s without a new rank, after which a launcher starts no more; and as long as this rank has taken to
# come here
_STARTING = 1.5
_TURN = 12  # looks by which the lowest rank comes first, to speak for all
_starter: tuple[int, int | None] | None = None  # the launcher, and when it was started


def install() -> None:
    """Let an uncaught error of any thread end the job; called by ``import mnpar``. A communicator
    has its own hooks.
    """
    global _starter
    if not launched_ranks():
        return
    if (launcher := processes.launcher()[0]) is not None:
        _starter = launcher, processes.begun(launcher)
        if under_open_mpi():  # MPICH's launcher takes its ranks along
            threading.Thread(
                target=_follow, args=_starter, name="mnpar launcher", daemon=True
            ).start()
    if launched_ranks() < 2:
        return
    exit.use(EndBeforeMeeting())
    atexit.register(_leave, _notices())


class EndBeforeMeeting:
    """The way to end the job before all ranks have met: the launcher has to notice
    (exit.Ending).
    """

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_rank(self) -> bool:
        """Return whether this is the rank, and no child of it, and MPI is not over: errors after
        MPI's end are no other rank's.
        """
        MPI = sys.modules.get("mpi4py.MPI")
        return (
            os.getpid() == self._pid
            and not processes.is_helper()
            and (MPI is None or not MPI.Is_finalized())
        )

    def end_job(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        show: exit.Hook,
    ) -> None:
        """Show the error, and end the job; return if there is no other rank."""
        interrupted = issubclass(kind, KeyboardInterrupt)
        if interrupted and threading.current_thread() is threading.main_thread():
            # launchers pass on the Ctrl-C that the terminal has sent already
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        deadline = threading.Timer(
            exit.LAST_WORDS, exit.kill, [processes.launcher()[0], _notices()]
        )
        deadline.daemon = True
        with contextlib.suppress(RuntimeError):  # to write may block, where nobody reads
            deadline.start()
        if launched_rank():
            time.sleep(ALIKE)
        speak(
            _interrupted()
            if interrupted
            else f"mnpar: rank {launched_rank()} of {launched_ranks()} failed, the job ends\n"
        )
        if not interrupted and show is sys.__excepthook__:
            speak("".join(traceback.format_exception(kind, error, trace)))
        elif not interrupted:
            show(kind, error, trace)
            speak()
        await_reader()
        MPI = sys.modules.get("mpi4py.MPI")
        if MPI is None or not MPI.Is_initialized():
            exit.kill(processes.launcher()[0], _notices())
        elif not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1:
            exit.tidy(processes.launcher()[0])
            MPI.COMM_WORLD.Abort(1)
        deadline.cancel()  # MPI is over, or there is this rank alone: it goes on

    def note_error(self) -> None:
        """Do nothing: Python's exit code tells."""


def _follow(launcher: int, since: int | None) -> None:
    """Run in a thread: end this process if its launcher has died, until a communicator looks after
    that.
    """
    while not _all_met.wait(_LOOK):
        if _has_died(launcher, since):
            cleanup.remove_session(launcher)
            # the user's handler, if there is one, may still save something
            os.kill(os.getpid(), signal.SIGTERM)
            if not _all_met.wait(_GRACE):
                os._exit(143)
            return


_all_met = threading.Event()  # in a communicator

# removes the files that a rank would leave that is killed before all have met
_remover: cleanup.Remover | None = None


def _remove_if_killed(session: Session | None) -> None:
    """Let the files of MPI and of MPICH's launcher be removed if this process is killed, until
    :func:`settled`.
    """
    global _remover
    launcher = processes.launcher()[0]
    with contextlib.suppress(OSError, KeyError, ValueError):
        if session is None and not processes.is_mpichs(launcher):
            _remover = cleanup.Remover("")  # _watch tells it names
            return
        notices = Notices(int(os.environ["PMI_FD"]))
        job = notices.job()
        _remover = cleanup.Remover(cleanup.job_segments(job))
        for name in notices.machine_file(job) if launcher else ():
            _remover.add(name)


def settled() -> None:
    """Note that all ranks have met, and have removed the files that they have in common."""
    global _remover
    _all_met.set()
    if _remover is not None:
        _remover.release()
        _remover = None


def _some_elsewhere() -> bool:
    """Return whether ranks of this job are on other machines."""
    return launched_ranks_here() != launched_ranks()


def _notices() -> Notices | None:
    """Return the notices by which this process learns of ranks on other machines; None if there are
    no such ranks, there is no way to, or it is not a rank itself.
    """
    if not _some_elsewhere() or not os.environ.get("PMI_FD", "").isdigit():
        return None
    launcher, rank = processes.launcher()
    if rank != os.getpid():  # a wrapper may start another process, that comes
        return None
    if launcher is None or processes.name(launcher) != processes.MPICHS:
        return None
    with contextlib.suppress(OSError):
        return Notices(int(os.environ["PMI_FD"]))
    return None


def _leave(notices: Notices | None) -> None:
    """Tell others, at exit of a rank that has made no communicator, that it has left; end the job
    if one of them is known to wait.
    """
    launcher, rank = processes.launcher()
    if launcher is None or rank != os.getpid():
        return
    MPI = sys.modules.get("mpi4py.MPI")
    if processes.has_mpi(rank) if MPI is None else MPI.Is_initialized():
        processes.leave()
        return
    if under_open_mpi() and any(processes.has_mpi(pid) for pid in processes.children(launcher)):
        time.sleep(
            exit.ENDING / 2
        )  # the launcher may take this end for a failure: see _await_others
    if _some_elsewhere() and under_open_mpi():
        pmix.publish_that_this_one_has_left(launcher)
    if notices is not None and (waits := notices.one_waits(launched_rank() or 0)) is not None:
        first = (
            f"mnpar: rank {launched_rank()} of {launched_ranks()} has ended before it made a "
            "communicator, the job ends"
        )
        speak(f"{first}\n  rank {waits}: waits for ever for the start of MPI\n")
        await_reader()
        exit.kill(launcher, notices)


@contextlib.contextmanager
def watched(library: str, session: Session | None) -> Iterator[None]:
    """Return a context around ``MPI_Init``: Ctrl-C ends it, and this process ends if another one
    has ended before its own ``MPI_Init``.

    Args:
        library: MPI's name and version.
        session: of a job without a launcher.
    """
    if launched_ranks() < 2:
        yield
        return
    notices = _notices() if library.startswith("MPICH") else None
    if notices is not None and (left := notices.one_has_left(launched_rank() or 0)) is not None:
        speak(_report("the start of MPI", callsite.call_site(), f"rank {left}"))
        await_reader()
        exit.kill(processes.launcher()[0], notices)
    if _starter is not None and _has_died(*_starter):  # Open MPI would start alone
        cleanup.remove_session(_starter[0])
        exit.kill(None)
    # before it was seen
    if _starter is None and under_open_mpi() and (killed := pmix.killed_launcher()) is not None:
        cleanup.remove_session(killed)
        exit.kill(None)
    _await_others()
    _remove_if_killed(session)
    main = threading.current_thread() is threading.main_thread()
    # the numbers of signals, of which Python itself would learn only after MPI_Init
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake) if main else -1
    over = threading.Event()
    thread = threading.Thread(
        target=_watch,
        args=(over, wakes, callsite.call_site(), session),
        name="mnpar start",
        daemon=True,
    )
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


def wait_for_all(MPI: Any, request: Any) -> None:
    """Wait for a request that is done when all ranks make a communicator; end the job if one on
    this machine never will. (That one has started MPI before, so ``MPI_Finalize`` would wait for
    it.)
    """
    launcher = processes.launcher()[0]
    seen = 0
    next_look = time.monotonic() + _PULSE
    while not request.Test():
        time.sleep(0.0001)
        if launcher is None or time.monotonic() < next_look:
            continue
        next_look = time.monotonic() + _PULSE
        there = processes.children(launcher)
        # MPI_Comm_spawn's too, and a rank that leaves may be of the other job
        if len(there) > launched_ranks_here():
            continue
        names = {processes.rank_of(pid): processes.name(pid) for pid in there}
        gone = sorted(
            [rank for rank, name in names.items() if rank is not None and name == processes.LEAVES]
        )
        seen += bool(gone)
        first = min([rank for rank in names if rank is not None and rank not in gone], default=None)
        if seen > (0 if first == launched_rank() else _TURN):
            speak(_report("all ranks", callsite.call_site(), f"rank {', '.join(map(str, gone))}"))
            await_reader()
            exit.tidy(launcher)
            MPI.COMM_WORLD.Abort(1)
    atexit.unregister(_leave)


def _await_others() -> None:
    """Give the launcher time to end this rank if another one is gone: Open MPI's hangs if a rank
    connects to it meanwhile.
    """
    launcher, mine = processes.launcher()
    deadline = time.monotonic() + exit.ENDING
    while (
        launcher is not None
        and mine in (there := processes.children(launcher))
        and time.monotonic() < deadline
    ):
        if len(there) >= launched_ranks_here():
            return
        time.sleep(_PULSE / 10)


def _watch(over: threading.Event, wakes: int, site: str, session: Session | None) -> None:
    """Run in a thread: end this process at Ctrl-C, or if a rank of this machine is gone, or if a
    job without a launcher ends.
    """
    expected = launched_ranks_here()
    most = 0
    found = 0
    looks = 0
    elsewhere = 0
    last = set[int]()
    known = set[str]()
    launcher, mine = processes.launcher()
    next_look = time.monotonic() + _LOOK if _some_elsewhere() and under_open_mpi() else float("inf")
    begun = launcher and processes.begun(launcher)
    starting = _STARTING + processes.age(processes.begun(os.getpid()))
    while True:
        told = os.read(wakes, 256) if select.select([wakes], [], [], _PULSE)[0] else b""
        if over.is_set():
            return
        if _remover is not None:
            new = set(cleanup.segments()) - known
            known |= new
            for name in new:
                _remover.add(name)
        if signal.SIGINT in told and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            if launched_rank() and over.wait(ALIKE):  # rank 0 speaks for all
                return
            speak_at_once(_interrupted())
            await_reader()
            exit.kill(launcher)
        if session is not None:
            session.obey(exit.leave_alone)
        if launcher is None or not begun:
            continue
        if _has_died(launcher, begun):
            cleanup.remove_session(launcher)
            exit.kill(launcher)
        if time.monotonic() > next_look:
            next_look += _LOOK
            left = pmix.one_has_left()
            elsewhere += left is not None
            if left is not None and elsewhere > (
                0 if launched_rank() == (left == 0) else _TURN // 4
            ):
                speak_at_once(_report("the start of MPI", site, f"rank {left}"))
                await_reader()
                exit.kill(launcher)
        there = processes.children(launcher)
        if mine not in there:  # these are not all
            continue
        most = max(most, len(there))
        if (
            len(there) >= expected
            or there.keys() != last
            or (most < expected and processes.age(max(there.values())) < starting)
        ):
            looks, last = 0, set(there)
            continue
        looks += 1
        ranks = [processes.rank_of(pid) for pid in there]
        found = found or len(ranks)
        first = len(ranks) == found and not any(
            rank is not None and rank < (launched_rank() or 0) for rank in ranks
        )
        if looks > (0 if first else _TURN):
            speak_at_once(_report("the start of MPI", site, _missing(expected, ranks)))
            await_reader()
            exit.kill(launcher)


def _has_died(pid: int, since: int | None) -> bool:
    """Return whether a process has ended that was started then; False if it cannot be seen."""
    return bool(since) and processes.begun(pid) not in (since, None)


def _missing(expected: int, ranks: list[int | None]) -> str:
    """Return the ranks of this machine that are missing: all but ``ranks``, which are there."""
    size = launched_ranks()
    lost = expected - len(ranks)
    gone = sorted(set(range(size)).difference(ranks)) if expected == size else []
    return (
        f"rank {', '.join(map(str, gone))}"
        if len(gone) == lost
        else f"{lost} of the {expected} ranks on this machine"
    )


def _interrupted() -> str:
    return f"mnpar: interrupted (rank {launched_rank()} of {launched_ranks()})\n"


def _report(what: str, site: str, gone: str) -> str:
    first = (
        f"mnpar: rank {launched_rank()} of {launched_ranks()} waits for ever for {what} at "
        f"{site}, the job ends"
    )
    return f"{first}\n  {gone}: has ended before it made a communicator\n"
