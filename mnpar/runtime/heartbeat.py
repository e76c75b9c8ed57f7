"""The state of the other ranks on this machine, seen without MPI: running, stopped or gone.

A rank that computes for a long time answers no questions, and neither does one that is stopped or
dead. The kernel tells these apart: ``/proc/<pid>/stat``. So that the source line of a busy rank can
be named, every process writes its own four times a second, from a thread that never calls MPI, to
an unnamed file that is mapped into its memory; the others read it through ``/proc/<pid>/fd``.
Nothing is left to clean up when a process ends in any way. Ranks on other machines, or on systems
without these files, cannot be seen.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from mnpar.runtime.callsite import site_of_thread

_PULSE = 0.25  # s
_NOTE = struct.Struct("<d48s")  # when (the clock of the machine), and the source line
_CARD = struct.Struct("<128sqqi")
CARD = _CARD.size


class PeerState(NamedTuple):
    """A rank's process, as another process on its machine sees it."""

    state: str  # running, stopped or gone
    detail: str  # more to say of it


class Heartbeat:
    """A thread that notes the source line of the main thread four times a second.

    Args:
        look: called at each beat, with the id of the process that has started this one: it may end
            this process.
    """

    def __init__(self, look: Callable[[int], None]) -> None:
        self._look = look
        self._parent = os.getppid()
        self.fd = os.memfd_create("mnpar") if hasattr(os, "memfd_create") else -1
        if self.fd >= 0:
            os.ftruncate(self.fd, _NOTE.size)
            self._memory = mmap.mmap(self.fd, _NOTE.size)
        self._note()  # a process may be stopped before the first beat
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="mnpar heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(_PULSE):
            self._note()
            self._look(self._parent)

    def _note(self) -> None:
        if self.fd >= 0:
            site = site_of_thread(threading.main_thread().ident or 0)
            _NOTE.pack_into(self._memory, 0, time.monotonic(), site.encode())

    def stop(self) -> None:
        """Stop the heartbeat: the process is about to end."""
        self._stop.set()
        self._thread.join(1)


def boot() -> str:
    """Return the kernel's boot id, which tells machines of one name apart (that of containers is
    often the same); empty if unknown.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def card(heart: Heartbeat) -> bytes:
    """Return the description by which others see this process, in ``CARD`` bytes: its place
    (machine and namespace of process ids; empty if processes cannot be seen), its id, when it was
    started, and the descriptor of its heartbeat's file.
    """
    try:
        place = boot() + os.readlink("/proc/self/ns/pid")
        since = int(stat_of(os.getpid())[19])
    except (OSError, ValueError):
        place, since = "", 0
    return _CARD.pack(place.encode(), os.getpid(), since, heart.fd)


class Neighbours:
    """The ranks of the job on this machine, by the cards of all ranks."""

    def __init__(self, cards: bytes, rank: int) -> None:
        found = [_CARD.unpack_from(cards, start) for start in range(0, len(cards), CARD)]
        place = found[rank][0]
        self.here = [r for r, one in enumerate(found) if one[0] == place and place.strip(b"\0")]
        self._processes = {r: found[r][1:] for r in self.here if r != rank}

    def state_of(self, rank: int) -> PeerState | None:
        """Return the state of a rank's process; None if it cannot be seen."""
        if rank not in self._processes:
            return None
        pid, since, fd = self._processes[rank]
        try:
            fields = stat_of(pid)
        except (FileNotFoundError, ProcessLookupError):
            return PeerState("gone", "its process has ended without a word")
        except (OSError, ValueError):
            return None
        if int(fields[19]) != since or fields[0] in "ZX":
            return PeerState("gone", _ending(int(fields[-1]) if int(fields[19]) == since else 0))
        when, site = self._note(pid, fd)
        still = time.monotonic() - when if when else 0.0
        if fields[0] == "T":
            return PeerState(
                "stopped",
                f"stopped{_at(site)}, {still:.0f} s ago, by a signal (as Ctrl-Z sends it)",
            )
        compiled = "compiled code called" if still > 2 else "its own code"
        return PeerState("running", f"busy in {compiled}{_at(site)}")

    @staticmethod
    def _note(pid: int, fd: int) -> tuple[float, str]:
        """Return the last note of the process: its time and source line."""
        with contextlib.suppress(OSError, struct.error):
            other = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY)
            try:
                when, site = _NOTE.unpack(os.pread(other, _NOTE.size, 0))
            finally:
                os.close(other)
            return when, site.rstrip(b"\0").decode(errors="replace")
        return 0.0, ""


def _at(site: str) -> str:
    return f" at {site}" if site else ""


def stat_of(pid: int) -> list[str]:
    """Return the fields of a process's stat, from its state on (proc(5) counts it as the third)."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _ending(code: int) -> str:
    """Describe the end of a process by its wait status, which is 0 also where the kernel does not
    tell.
    """
    if number := code & 127:
        with contextlib.suppress(ValueError):
            return f"its process was killed by {signal.Signals(number).name}"
        return f"its process was killed by signal {number}"
    return f"its process has ended{f' with exit code {code >> 8},' if code else ''} without a word"
