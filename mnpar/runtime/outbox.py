"""The outbox: messages that this process has started to send, and that MPI has not taken yet.

MPI takes a message at once while it has room for it; one that it has no room for (MPICH has it for
64 messages between two ranks of a machine), and most large ones, move on only in calls of MPI by
their sender. A program that computes makes none: its peers would wait for messages whose sends have
returned. So a thread makes such calls when a message is left here for longer than a tick: within a
tick the program is likely to communicate, which moves the message. The thread sleeps otherwise, and
is never woken by a message that was taken at once, as nearly all small ones are.

Two threads are in MPI then, so MPI must have been started for that (THREAD_MULTIPLE, as mpi4py and
mnpar do). If a program has asked for less, messages move on when it next communicates.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any

_TICK = 0.005  # s between two looks at messages that do not move
_NAP = 0.0002  # s between two looks at messages that do
_MOVING = 0.003  # s for which they are taken to, after one was sent
_CALM = 60  # ticks without a message, after which the thread sleeps
# s for which a thread that computes in Python keeps the others from running, while messages move
_TURN = 0.00005


class Outbox:
    """The messages under way of one process.

    Args:
        MPI: mpi4py's.
    """

    def __init__(self, MPI: Any) -> None:
        self._MPI = MPI
        # each message with the tick in which it came
        self._queues: dict[tuple[Any, int], deque[tuple[Any, Any, int]]] = {}
        self._tick = 0
        self._lock = threading.Lock()  # held in all calls of MPI with requests of the queues
        self._helped = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        self._thread: threading.Thread | None = None
        self._awake = self._ended = False
        self._alarm = threading.Event()

    def keep(self, owner: Any, dest: int, request: Any, memory: Any) -> None:
        """Keep a message until it has been sent: its memory must not change before.

        Args:
            owner: the group of ranks in which it is sent; its messages to one rank leave in order.
            dest: the rank.
            request: MPI's, which nobody else waits for.
            memory: of the message.
        """
        with self._lock:
            queue = self._queues.get((owner, dest))
            if queue is None:
                queue = self._queues[owner, dest] = deque()
            self._release(queue)
            queue.append((request, memory, self._tick))
        if not self._awake and self._helped:
            self._wake()

    def is_empty(self, owner: Any) -> bool:
        """Return whether all messages of a group have been sent; the memory of those that have is
        released.
        """
        self._move_on()
        with self._lock:  # the thread removes queues
            return not any([key[0] is owner for key in self._queues])

    def _move_on(self) -> bool:
        """Release the memory of the messages that have been sent; return whether there were any."""
        moved = False
        with self._lock:
            for key, queue in tuple(self._queues.items()):
                moved = self._release(queue) or moved
                if not queue:
                    del self._queues[key]
        return moved

    def _release(self, queue: deque[tuple[Any, Any, int]]) -> bool:
        """Drop the messages that have been sent from the front of a queue; return whether there
        were any.
        """
        length = len(queue)
        try:
            while queue and queue[0][0].Test():
                queue.popleft()
        except self._MPI.Exception:
            queue.popleft()  # its rank is lost: the program learns that where it next waits
        return len(queue) < length

    # ---- the thread ----

    def _wake(self) -> None:
        self._awake = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._help, name="mnpar outbox", daemon=True)
            self._thread.start()
        self._alarm.set()

    def _help(self) -> None:
        while self._alarm.wait() and not self._ended:
            self._alarm.clear()
            calm = 0
            while calm < _CALM and not self._ended:
                time.sleep(_TICK)
                calm = 0 if self._queues else calm + 1
                if self._has_old():
                    self._push()
                self._tick += 1
            self._awake = False
            if self._queues:  # since the last look
                self._wake()

    def _has_old(self) -> bool:
        """Return whether a message was here before the tick that ends now."""
        with self._lock:
            return any([queue[0][2] < self._tick for queue in self._queues.values() if queue])

    def _push(self) -> None:
        """Let MPI send messages as long as it takes any."""
        turn = sys.getswitchinterval()
        sys.setswitchinterval(min(_TURN, turn))
        try:
            until = 0.0
            while self._queues and not self._ended:
                if self._move_on():
                    until = time.monotonic() + _MOVING
                elif time.monotonic() < until:
                    time.sleep(_NAP)
                else:
                    return
        finally:
            sys.setswitchinterval(turn)

    def end(self) -> None:
        """Let the thread end, before MPI does."""
        self._ended = True
        if self._thread is not None:
            self._alarm.set()
            self._thread.join()
