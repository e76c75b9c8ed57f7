"""A process of an MPI job: the control messages by which ranks find deadlocks (deadlock.py), and
its end.

Unless it is told otherwise, MPI lets the other ranks hang for ever when one of them fails. So from
the first communicator on, an uncaught error on any rank aborts the job (exit.py). ``os._exit`` does
too (mpiexec may take it for success), and ``sys.exit`` notes its code for the ranks that wait for
this one. In forked children all hooks are off. All ways to the end meet here: the rank's own, and
those of its launcher and of other ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from mnpar.errors import CommunicatorError, DeadlockError, MnparError
from mnpar.runtime import callsite, cleanup, exit, heartbeat, startup, supervisor
from mnpar.runtime.deadlock import DeadlockDetector
from mnpar.runtime.heartbeat import CARD, Heartbeat, Neighbours, PeerState
from mnpar.runtime.outbox import Outbox
from mnpar.runtime.output import ALIKE, SPOKEN, await_reader, speak, speak_at_once
from mnpar.runtime.tracebacks import to_own_lines

if TYPE_CHECKING:
    from mnpar.runtime.rendezvous import Session


_GRACE = 12  # heartbeats, 3 s, for a process whose launcher has died
_CERTAIN = 3  # heartbeats for which a rank is seen to be stopped
_NAME = 256  # bytes of a machine's name
_PROMPT = 0.2  # s for the others to answer
_KILLED = 2.0  # s for a launcher to end a process that has aborted the job


# the error of a forked child that communicates
NO_RANK = (
    "this process is a fork of the rank's (by os.fork, or by multiprocessing), and no rank itself, "
    "so it cannot communicate. Let it return what is to be sent to the rank, and that send it; "
    "processes that multiprocessing.get_context('spawn') starts have nothing of the rank"
)


class Process:
    """This process among all of the job, and the way to end the job (exit.Ending). The first
    communicator makes the only one.
    """

    _one: Process | None = None
    session: Session | None = None  # the lines of a job without a launcher
    # mpi4py would end MPI in forked children, too: they would wait for the other ranks, or fail
    finalizes_forks = False

    @classmethod
    def get(cls, MPI: Any, patience: float) -> Process:
        """Return the process; the first call makes it, on all ranks together."""
        if cls._one is None:
            cls._one = Process(MPI, patience)
        if cls._one.size > 1 and os.getpid() != cls._one._pid:
            raise CommunicatorError(f"{callsite.call_site()}: {NO_RANK}")
        cls._one.deadlocks.patience = patience
        return cls._one

    @classmethod
    def known(cls) -> Process | None:
        """Return the process, if a communicator was made; None before."""
        return cls._one

    def __init__(self, MPI: Any, patience: float) -> None:
        self.MPI = MPI
        # kept until finalized: MPI goes on reading what a forgotten communicator has sent
        self.transports: list[Any] = []
        self.active: dict[Any, None] = {}  # operations under way, in the order of their start
        # waits that ended in an error, and transports that were revoked: they hold the memory that
        # MPI may yet read or write
        self.given_up: list[Any] = []
        # MPI operations of our own, by dtype and reduction: MPI has room for few
        self.operations: dict[Any, Any] = {}
        self._control, request = MPI.COMM_WORLD.Idup()
        startup.wait_for_all(MPI, request)
        self.rank, self.size, self._pid = (
            self._control.Get_rank(),
            self._control.Get_size(),
            os.getpid(),
        )
        self.outbox = Outbox(MPI)
        self._status = MPI.Status()
        self.deadlocks = DeadlockDetector(self, patience)
        self._heart: Heartbeat | None = None
        self._neighbours: Neighbours | None = None
        self._os_exit, self._mpis_finalize = os._exit, MPI.Finalize
        self._orphaned_for = self._blocked_for = 0
        # in a call of MPI: since when, where, by whom perhaps
        self._blocked: tuple[float, str, list[int]] | None = None
        # by when the process must have ended, and its exit code
        self._ends: tuple[float, int] | None = None
        self.machines = [""]  # the name of each rank's machine
        self._exit: tuple[int, str] = 0, "has finished its program"
        if self.size > 1:
            self._meet()
            self._install()
            supervisor.note(self.rank, supervisor.BEGUN)
        else:
            cleanup.remove(cleanup.segments())  # Open MPI leaves that of a process alone
        if self.size == 1 and self.finalizes_forks and hasattr(os, "register_at_fork"):
            # a rank alone needs no hooks, but its children's exit code does
            os.register_at_fork(after_in_child=self._install)
        atexit.register(self._leave)

    def _meet(self) -> None:
        """Learn on which machines the ranks are; unlink the files of MPI's shared memory, which all
        here have mapped by now.
        """
        self._heart = Heartbeat(self._look_out)
        names = cleanup.segments()
        machine = f"{heartbeat.boot()} {self.MPI.Get_processor_name()}".encode()[:_NAME].ljust(
            _NAME, b"\0"
        )
        mine = (
            heartbeat.card(self._heart) + machine + cleanup.fingerprint(names).to_bytes(8, "little")
        )
        length = len(mine)
        whole = bytearray(len(mine) * self.size)
        request = self._control.Iallgather(
            [mine, length, self.MPI.BYTE], [whole, length, self.MPI.BYTE]
        )
        while not request.Test():
            time.sleep(0.0001)
        raw = [bytes(whole[start : start + length]) for start in range(0, len(whole), length)]
        self._neighbours = Neighbours(b"".join([one[:CARD] for one in raw]), self.rank)
        self.machines = [
            one[CARD : CARD + _NAME].rstrip(b"\0").decode(errors="replace") for one in raw
        ]
        here = self._neighbours.here
        if self.rank in here[:1]:
            cleanup.remove(cleanup.launchers_file(os.getppid()))
            if len({raw[rank][CARD + _NAME :] for rank in here}) == 1:  # all have mapped the same
                cleanup.remove(names)
        startup.settled()
        cleanup.hide_launcher()

    def _install(self) -> None:
        if sys.exit == self._on_sys_exit:  # a child of a child has them
            return
        exit.use(self)
        self._sys_exit, sys.exit = sys.exit, self._on_sys_exit
        os._exit = self._on_os_exit
        for name in ("execv", "execve"):  # the others call these
            setattr(os, name, partial(self._on_exec, getattr(os, name)))
        self.MPI.Finalize = self._on_finalize
        with contextlib.suppress(Exception):  # no stderr of the system, as in some notebooks
            if not faulthandler.is_enabled():
                faulthandler.enable(all_threads=False)

    # ---- questions and answers (deadlock.ControlChannel) ----

    def tell(self, dest: int, tag: int, text: bytes) -> None:
        if dest in self.deadlocks.lost:
            return
        request = self._control.Isend([text, len(text), self.MPI.BYTE], dest, tag)
        if not request.Test():
            self.outbox.keep(self, dest, request, text)

    def heard(self) -> tuple[int, int, bytes] | None:
        letter = self._control.Improbe(self.MPI.ANY_SOURCE, self.MPI.ANY_TAG, self._status)
        if letter is None:
            return None
        source = self._status.Get_source()
        tag = self._status.Get_tag()
        text = bytearray(self._status.Get_count(self.MPI.BYTE))
        request = letter.Irecv([text, len(text), self.MPI.BYTE])
        while not request.Test():
            pass
        return source, tag, bytes(text)

    def peer_state(self, rank: int) -> PeerState | None:
        return None if self._neighbours is None else self._neighbours.state_of(rank)

    # ---- calls of MPI that wait ----

    @contextlib.contextmanager
    def blocking(self, what: str, ranks: Sequence[int]) -> Iterator[None]:
        """Return a context around a blocking call of MPI, which the other ranks are about to make
        too. This rank answers no questions meanwhile, and nothing can be raised from outside, so
        the heartbeat's thread watches it (``_look_at``).
        """
        self._blocked_for = 0
        self._blocked = (
            time.monotonic(),
            f"{what} at {callsite.call_site()}",
            [rank for rank in ranks if rank != self.rank],
        )
        try:
            yield
        finally:
            self._blocked = None

    def _look_at(self, since: float, where: str, ranks: list[int]) -> None:
        """End the job if a blocking call waits for ranks that are stopped or gone; called at each
        heartbeat, in its thread.
        """
        if time.monotonic() - since < self.deadlocks.patience:
            return
        looks = {
            rank: seen
            for rank in ranks
            if (seen := self.peer_state(rank)) is not None and seen.state != "running"
        }
        self._blocked_for = self._blocked_for + 1 if looks else 0
        # the lowest speaks first
        first = min(rank for rank in (*ranks, self.rank) if rank not in looks)
        if self._blocked_for > _CERTAIN * (1 if self.rank == first else 3):
            rows = "".join([f"\n  rank {rank}: is {seen.detail}" for rank, seen in looks.items()])
            if any(seen.state == "stopped" for seen in looks.values()):
                rows += f"\n{self.deadlocks.stopped_advice}"
            speak(
                f"mnpar: rank {self.rank} of {self.size} waits for ever in {where}, the job "
                f"ends{rows}\n"
            )
            await_reader()
            exit.hang_up()
            self._os_exit(1)  # MPI is in use in another thread

    # ---- other processes that are lost ----

    def until_done(self, request: Any) -> None:
        """Poll a request that waits for the ranks that are left, and for nobody else."""
        while not request.Test():
            time.sleep(0.0001)
            with contextlib.suppress(self.MPI.Exception):
                self.deadlocks.serve()

    def lose(self, ranks: Sequence[int]) -> None:
        """Note that these ranks are lost: nobody asks them or waits for them any more."""
        self.deadlocks.lost.update(ranks)
        if ranks:
            self._control.Ack_failed()

    def forget(self, transport: Any, place: int) -> None:
        """Drop the operations of a transport that was revoked; keep the transport itself, whose
        buffers MPI may still read.
        """
        if self.transports[place] is transport:
            self.transports[place] = None
            self.given_up.append(transport)
        for operation in [one for one in self.active if one.belongs_to(transport)]:
            del self.active[operation]

    # ---- the end ----

    def _on_sys_exit(self, status: Any = None) -> NoReturn:
        code = status if isinstance(status, int) else int(status is not None)
        if threading.current_thread() is threading.main_thread():
            self._exit = (
                code,
                f"has finished its program, by sys.exit({status!r}) at {callsite.call_site()}",
            )
        self._sys_exit(status)

    def _on_os_exit(self, status: int) -> NoReturn:
        if os.getpid() == self._pid and not self.MPI.Is_finalized():
            where = (
                f"mnpar: rank {self.rank} of {self.size} called os._exit({status}) at "
                f"{callsite.call_site()}, the job ends\n"
            )
            self._abort(where, status or 1)
        if os.getpid() == self._pid:
            exit.part_from_launcher()
            supervisor.note(self.rank, supervisor.ENDED)
        self._os_exit(status)

    def _on_exec(self, execute: Callable[..., NoReturn], path: Any, *args: Any) -> NoReturn:
        """End the job where the program would replace itself by another one, which is no rank: the
        other ranks would wait for ever, or each would go on alone.
        """
        if self.is_rank():
            self._abort(
                f"mnpar: rank {self.rank} of {self.size} calls os.exec of {os.fsdecode(path)} at "
                f"{callsite.call_site()}, which makes it another program that is no rank; the job "
                "ends. subprocess.run starts one beside the rank\n",
                1,
            )
        execute(path, *args)

    def _on_finalize(self) -> None:
        """End this rank's part in the job where the program calls ``MPI.Finalize``, as some do at
        their end: from then on the rank answers nobody.
        """
        if os.getpid() != self._pid or self.MPI.Is_finalized():
            self._mpis_finalize()
        else:
            self._exit = 0, f"has called MPI.Finalize at {callsite.call_site()}"
            self._finalize()

    def _look_out(self, launcher: int) -> None:
        """Act if the launcher has died, or the end or a call of MPI takes too long; called at each
        heartbeat, in its thread.
        """
        if self._ends is not None and time.monotonic() > self._ends[0]:
            speak_at_once(
                f"mnpar: rank {self.rank} of {self.size} failed, and has not come to its end, "
                "the job ends\n"
            )
            exit.hang_up()
            self._os_exit(self._ends[1])
        if (blocked := self._blocked) is not None:
            self._look_at(*blocked)
        if self.session is not None:
            return self.session.obey(self._os_exit)  # the process that started it may go
        if os.getppid() == launcher:
            return None
        self._orphaned_for += 1
        if self._orphaned_for == 1:
            cleanup.remove_session(launcher)
            # the user's handler, if there is one, may still save something
            os.kill(self._pid, signal.SIGTERM)
        elif self._orphaned_for > _GRACE:
            self._os_exit(143)
        return None

    def is_rank(self) -> bool:
        """Return whether this is the rank, and no forked child, and MPI is not over."""
        return os.getpid() == self._pid and not self.MPI.Is_finalized()

    def note_error(self) -> None:
        """Remember the exit code of a forked child that failed."""
        self._exit = 1, ""

    def end_job(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        show: exit.Hook = sys.__excepthook__,
    ) -> NoReturn:
        """Show an error and the waits of the others, and abort the job."""
        self._end_soon(1)
        with contextlib.suppress(ValueError):  # a thread that is not the main one
            # launchers pass on the Ctrl-C that the terminal has sent already
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        alike, others, spoken, begin = list[int](), "", False, time.monotonic()
        known = isinstance(error, MnparError)  # its table says what the others do
        in_words = f"{kind.__name__}: {error}"
        # only the main thread speaks with the other ranks
        on_main = threading.current_thread() is threading.main_thread()
        tells = on_main and isinstance(error, Exception)
        if tells and (self.rank or not known):
            # errors of MPI, from which this one may come, or a complaint
            with contextlib.suppress(Exception):
                alike, others, spoken = self.deadlocks.meanwhile(
                    ALIKE if self.rank else _PROMPT, in_words
                )
        if self.rank:  # if all ranks have failed alike, rank 0 speaks for them, and ends the job
            time.sleep(max(0.0, begin + ALIKE - time.monotonic()))
        # if some have, the lowest of them does, or the one that was so early that it speaks already
        if spoken or any(rank < self.rank for rank in alike):
            time.sleep(SPOKEN)
        if tells:
            with contextlib.suppress(Exception):
                self.deadlocks.claim_word(in_words)
        if issubclass(kind, KeyboardInterrupt):
            self._abort(f"mnpar: interrupted (rank {self.rank} of {self.size})\n", 130)
        to_own_lines(error)
        text = "".join(traceback.format_exception(error))
        code = error.exit_code if isinstance(error, DeadlockError) else 1
        others = "" if known else others
        same = f"rank {', '.join(map(str, alike))} failed alike\n" if alike else ""
        self._abort(
            f"mnpar: rank {self.rank} of {self.size} failed, the job ends\n{text}{others}{same}",
            code,
        )

    def _end_soon(self, code: int) -> None:
        """Set a deadline, at which the heartbeat's thread ends the process: to write may block,
        where nobody reads, or fail.
        """
        self._ends = time.monotonic() + exit.LAST_WORDS, code

    def _abort(self, text: str, code: int) -> NoReturn:
        self._end_soon(code)
        speak(text)
        await_reader()
        if self.session is not None:
            self.session.end(code, text)
            await_reader()
        else:
            self.MPI.COMM_WORLD.Abort(code)
            # MPICH's returns. One that ends by itself would be gone without a word, to the others
            time.sleep(_KILLED)
        self._os_exit(code)

    def _leave(self) -> None:
        """Leave the job at exit."""
        if os.getpid() != self._pid:
            if self.finalizes_forks and not self.MPI.Is_finalized():
                speak()
                # as children of multiprocessing end: what MPI has registered is not called
                self._os_exit(self._exit[0])
            return
        if not self.MPI.Is_finalized():
            self._finalize()
        supervisor.note(self.rank, supervisor.ENDED)

    def _finalize(self) -> None:
        """Wait until all ranks are there, so that one which still waits for this one can learn that
        it has ended.
        """
        speak()
        try:
            if self.deadlocks.lost:
                self._meet_survivors()
            else:
                all_here = self._control.Ibarrier()
                self.deadlocks.finish(lambda: self._go_on(all_here), self._exit)
                self._report_unreceived()
            if self._heart is not None:
                self._heart.stop()
            self.outbox.end()
            # else Open MPI may wait for ever: its last fence is of all ranks, those that are gone
            # too
            if not self.deadlocks.lost:
                self._mpis_finalize()
        except KeyboardInterrupt:
            self._abort("" if self.rank else "mnpar: interrupted\n", 130)
        except MnparError as error:  # its peer complains of what it sent
            self.end_job(type(error), error, None)

    def _meet_survivors(self) -> None:
        """Wait for the ranks that are left."""
        with contextlib.suppress(self.MPI.Exception):  # one more was lost
            self.until_done(self._control.Iagree(array("i", [1])))

    def _go_on(self, until: Any) -> bool:
        """Advance the operations that were never waited for, as other ranks may need them; return
        whether the request is done.
        """
        for operation in tuple(self.active):
            operation.step()
        return bool(until.Test())

    def _report_unreceived(self) -> None:
        """Report the messages that this rank never took. If a gradient is among them, the program
        has trained on a part of its gradients only, and ends the job as a failure.
        """
        transports = [transport for transport in self.transports if transport is not None]
        for transport in transports:
            for text in transport.unreceived():
                speak(f"mnpar: {text}\n")
        if self._exit[0] == 0 and any([transport.lost_gradients for transport in transports]):
            self._abort("", 1)
