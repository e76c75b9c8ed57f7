"""The detection of deadlocks: a rank waits by polling, and finds out why a wait takes long.

A rank never sits in a blocking MPI call. It polls: first eagerly, then with short naps; so Ctrl-C
gets through, and a rank that waits can answer questions. After half a second it asks the awaited
ranks whether they have ended; after its patience it asks all ranks for their waits. If by all the
answers, given twice, nobody in its reach can go on, that is a deadlock: it raises an error with the
table of all ranks. If a rank does not answer, its neighbours on the same machine know more
(``PeerState``): one that is gone or stopped is an error too; one that is busy, or that nobody can
see, is never an error, and a note now and then, at first after six times the patience: a rank that
computes for less, on a machine with much else to do, too, needs no note.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, Protocol

from mnpar.errors import DeadlockError, MismatchError
from mnpar.runtime.heartbeat import PeerState
from mnpar.runtime.output import speak
from mnpar.runtime.system import give_way

_NAP, _LONG_NAP = 0.0001, 0.001  # s
_FIRST_QUESTION = 0.5  # s
_DELAY = 0.5  # s between a suspicion and its confirmation
_BEFORE_NOTE = 6  # patiences of waiting for a busy rank before the first note
_MANY = 64  # ranks that are asked by one that has failed
_LONGEST_PAUSE = 600.0  # s between notes
ASK, ANSWER, COMPLAINT = 1, 2, 3

_SAID = {
    "waiting": "waits in ",
    "finished": "",
    "running": "is running",
    "failed": "has failed: ",
    "gone": "is gone: ",
    "stopped": "is ",
    "silent": "",
}


def _form(failure: str) -> str:
    """Return an error's text without its numbers."""
    return re.sub(r"\d+", "#", failure)


class Polling:
    """The pace at which ranks poll for the message that they await."""

    spins = 30  # polls that hand on no core: most of what is awaited comes within them
    eager = 300  # polls before the first look at the clock
    yielding = 0.003  # s before the first nap

    def nap_at_once(self) -> None:
        """Nap from the first poll on, as processes do that share their cores with many others."""
        self.spins, self.eager, self.yielding = 1, 3, 0.0


polling = Polling()  # the pace of this process


class Awaited(Protocol):
    """The description of a wait; ``str`` shows it as errors do."""

    @property
    def from_any(self) -> bool:
        """Return whether one of the ranks is enough, whichever it is."""

    def advice(self, finished: bool, rows: str) -> str:
        """Return the remedy; ``finished``: some ranks have finished instead; ``rows``: the table of
        all ranks.
        """


class ControlChannel(Protocol):
    """The messages with questions and answers, apart from the data."""

    rank: int
    size: int

    def tell(self, dest: int, tag: int, text: bytes) -> None:
        """Start sending; return at once."""

    def heard(self) -> tuple[int, int, bytes] | None:
        """Return the next (source, tag, text) that has arrived, if any."""

    def peer_state(self, rank: int) -> PeerState | None:
        """Return the state of the process of a rank on this machine; None if it cannot be seen."""


class ActiveWait:
    """One wait that is going on."""

    def __init__(
        self,
        waiting: Awaited,
        peers: tuple[int, ...],
        meeting: object,
        count: int,
        also: Callable[[], str] | None,
    ) -> None:
        self.waiting = waiting
        self.also = also  # more to say of it, should it last for ever
        self.peers = peers  # numbers in the world of those it waits for
        # the same for all ranks that wait in the same collective; "" for messages
        self.meeting = str(meeting)
        self.count = count  # how many waits this rank has been through
        self.since = time.monotonic()
        self.next_question = _FIRST_QUESTION  # s after the beginning
        self.asked_all = float("inf")  # when everybody was asked first, s after the beginning
        # when, after which question, and the counts
        self.suspected: tuple[float, int, dict[int, int]] | None = None


class DeadlockDetector:
    """The part of a rank that polls for it, answers the others' questions, and finds deadlocks."""

    def __init__(self, control: ControlChannel, patience: float) -> None:
        self._control = control
        self.patience = patience
        self._wait: ActiveWait | None = None
        self._count = 0
        self._finished: tuple[int, str] | None = None  # exit code and how, once it has
        self._failure: str | None = None  # the error that ends the job
        self._speaks = False  # this rank says so
        self._questions = 0  # asked so far
        self._answers: dict[int, tuple[float, dict[str, Any]]] = {}
        self._peer_states: dict[int, PeerState] = {}
        self._next_note, self._pause = 0.0, patience
        self.lost: set[int] = set()  # ranks without which the others go on

    def until(
        self,
        ready: Callable[[], bool],
        waiting: Awaited,
        peers: tuple[int, ...],
        meeting: object,
        also: Callable[[], str] | None = None,
    ) -> None:
        """Return when ``ready()``.

        Raises:
            DeadlockError: it never will be.
        """
        for poll in range(polling.eager):
            if ready():
                return
            if poll > polling.spins:
                give_way()
        self._count += 1
        self._wait = ActiveWait(waiting, peers, meeting, self._count, also)
        try:
            self._poll(ready, self._wait)
        finally:
            self._wait = None

    def _poll(self, ready: Callable[[], bool], wait: ActiveWait) -> None:
        while not ready():
            if (elapsed := time.monotonic() - wait.since) < polling.yielding:
                give_way()
                continue
            time.sleep(_NAP if elapsed < 1 else _LONG_NAP)
            self.serve()
            if elapsed > _FIRST_QUESTION:
                self._inquire(wait, elapsed)

    def finish(self, ready: Callable[[], bool], how: tuple[int, str]) -> None:
        """Note that the rank's program has ended (exit code, and how), and answer questions until
        all others' have ended too.

        Raises:
            DeadlockError: one of them never will, because it is gone.
        """
        self._finished = how
        begin = time.monotonic()
        next_look = _FIRST_QUESTION
        missing = 0
        while not ready():
            self.serve()
            elapsed = time.monotonic() - begin
            if elapsed > next_look:
                next_look = elapsed + _FIRST_QUESTION
                self._look_at_peers()
                gone = [
                    f"rank {rank} is gone: {seen.detail}"
                    for rank, seen in self._peer_states.items()
                    if seen.state == "gone"
                ]
                missing = missing + 1 if gone else 0
                if missing > 1 and not ready():
                    raise DeadlockError(
                        f"rank {self._control.rank} {how[1]}, but " + ", ".join(gone)
                    )
            time.sleep(_NAP if elapsed < 1 else _LONG_NAP)

    def meanwhile(self, seconds: float, failure: str) -> tuple[list[int], str, bool]:
        """Return the ranks that have failed alike; the waits of others, a line for each; and
        whether one that failed alike speaks already.

        Args:
            seconds: that this rank has to hear from them.
            failure: this rank's error. Ranks fail alike whose errors differ in numbers only.
        """
        self._failure = failure
        # one that has asked before, and hears now, may have heard that this rank waits
        self._tell_others(ANSWER, json.dumps(self._state()).encode())
        self._questions += 1
        self._tell_others(ASK, b"%d" % self._questions)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.serve()
            time.sleep(_LONG_NAP)
        waits: dict[str, list[str]] = {}
        alike, spoken = [], False
        for rank, (_, state) in sorted(self._answers.items()):
            if state["state"] == "failed" and _form(state["what"]) == _form(failure):
                alike.append(rank)
                spoken |= state["speaks"]
            elif state["state"] == "waiting" and state["question"] == self._questions:
                waits.setdefault(state["what"], []).append(str(rank))
        rows = [f"meanwhile rank {', '.join(r)} waited in {what}\n" for what, r in waits.items()]
        return alike, "".join(rows), spoken

    def claim_word(self, failure: str) -> None:
        """Tell the others that this rank speaks now of its error, and ends the job: one that fails
        alike later, as may happen on a busy machine, is silent.
        """
        self._failure, self._speaks = failure, True
        self._tell_others(ANSWER, json.dumps(self._state()).encode())

    def _tell_others(self, tag: int, text: bytes) -> None:
        for rank in range(self._control.size)[:_MANY]:
            if rank != self._control.rank:
                self._control.tell(rank, tag, text)

    def serve(self) -> None:
        """Answer the questions that have arrived, and note the answers.

        Raises:
            MismatchError: another rank found that what this one sent does not belong.
        """
        while (heard := self._control.heard()) is not None:
            source, tag, text = heard
            if tag == ASK:
                self._control.tell(
                    source, ANSWER, json.dumps({**self._state(), "question": int(text)}).encode()
                )
            elif tag == COMPLAINT:
                raise MismatchError(text.decode())
            else:
                self._answers[source] = (time.monotonic(), json.loads(text))

    def _state(self) -> dict[str, Any]:
        wait = self._wait
        if self._finished is not None:
            return {
                "state": "finished",
                "count": self._count,
                "code": self._finished[0],
                "what": self._finished[1],
            }
        if self._failure is not None:
            return {
                "state": "failed",
                "count": self._count,
                "what": self._failure,
                "speaks": self._speaks,
            }
        if wait is None:
            return {"state": "running", "count": self._count}
        any_of = wait.waiting.from_any
        return {
            "state": "waiting",
            "count": wait.count,
            "peers": wait.peers,
            "what": str(wait.waiting) + (wait.also() if wait.also else ""),
            "meeting": wait.meeting,
            "any": any_of,
        }

    def _inquire(self, wait: ActiveWait, elapsed: float) -> None:
        """Ask now and then, the peers first and everybody later, and judge by the answers."""
        if elapsed > wait.next_question:
            wait.next_question = elapsed + _FIRST_QUESTION
            self._look_at_peers()
            self._questions += 1
            everybody = elapsed >= self.patience - 2 * _FIRST_QUESTION
            wait.asked_all = min(wait.asked_all, elapsed if everybody else wait.asked_all)
            for rank in range(self._control.size) if everybody else wait.peers:
                if rank != self._control.rank:
                    self._control.tell(rank, ASK, b"%d" % self._questions)
        states = self._fresh()
        if self._crossed(states):
            rows = (
                self._rows(states)
                + "\nall ranks of a communicator make the same calls in the same order"
            )
            raise MismatchError(
                f"ranks are in different collectives, one waited for at once and one later:\n{rows}"
            )
        stuck = self._stuck(wait, elapsed, states)
        if not stuck:
            wait.suspected = None
            return
        counts = {
            rank: states[rank].get("count", 0) for rank in stuck if rank != self._control.rank
        }
        now = time.monotonic()
        first = min(rank for rank in stuck if states[rank]["state"] not in ("gone", "stopped"))
        if wait.suspected is None or wait.suspected[2] != counts:
            wait.suspected = (now, self._questions, counts)
            return
        since, question, _ = wait.suspected
        # all have said it since
        again = all([states[rank].get("question", question + 2) > question + 1 for rank in stuck])
        # the lowest speaks first
        if again and now - since > _DELAY * (1 if self._control.rank == first else 3):
            error = DeadlockError(self._table(wait, states))
            # as of who ended by sys.exit(3)
            error.exit_code = max([states[rank].get("code", 0) & 255 for rank in stuck]) or 1
            raise error

    def _look_at_peers(self) -> None:
        states = {
            rank: self._control.peer_state(rank)
            for rank in range(self._control.size)
            if rank not in self.lost
        }
        self._peer_states = {rank: seen for rank, seen in states.items() if seen is not None}

    def _fresh(self) -> dict[int, dict[str, Any]]:
        """Return the answers of the last moments, with this rank's own state."""
        now = time.monotonic()
        states = {
            rank: answer
            for rank, (when, answer) in sorted(self._answers.items())
            if now - when < 3 * _FIRST_QUESTION
        }
        for rank, seen in self._peer_states.items():
            if seen.state != "running":
                states[rank] = {"state": seen.state, "what": seen.detail}
        states[self._control.rank] = self._state()
        return states

    def _stuck(
        self, wait: ActiveWait, elapsed: float, states: dict[int, dict[str, Any]]
    ) -> list[int]:
        """Return the ranks that can never go on, if this one is among them: a lost peer shows soon,
        a cycle after the patience.
        """
        lost = [rank for rank, state in states.items() if state["state"] == "gone"]
        finished = [rank for rank, state in states.items() if state["state"] == "finished"]
        if lost or (not wait.waiting.from_any and any(rank in finished for rank in wait.peers)):
            return [self._control.rank, *lost, *finished]
        if elapsed < self.patience:
            return []
        free = {
            rank: rank not in states or states[rank]["state"] in ("running", "failed")
            for rank in range(self._control.size)
        }
        changed = True
        while changed:
            changed = False
            for rank, state in states.items():
                if (
                    not free[rank]
                    and state["state"] == "waiting"
                    and self._can_go_on(state, free, states)
                ):
                    free[rank] = changed = True
        if free[self._control.rank]:
            answered = elapsed > wait.asked_all + _FIRST_QUESTION  # there was time to
            if answered and self._control.rank == min(
                rank for rank, state in states.items() if state["state"] == "waiting"
            ):
                self._note(
                    elapsed,
                    [
                        rank
                        for rank in range(self._control.size)
                        if rank not in (*states, *self.lost)
                    ],
                )
            return []
        return [rank for rank in sorted(states) if not free[rank]]

    def _crossed(self, states: dict[int, dict[str, Any]]) -> bool:
        """Return whether ranks are in the same collective, but this one waits for it at once and
        another later: they never meet.
        """
        name, _, mine = states[self._control.rank]["meeting"].rpartition(", ")
        others = [state.get("meeting", "").rpartition(", ") for state in states.values()]
        return any(name == other and {mine, its} == {"'')", "'later')"} for other, _, its in others)

    def _can_go_on(
        self, state: dict[str, Any], free: dict[int, bool], states: dict[int, dict[str, Any]]
    ) -> bool:
        met = [
            state["meeting"] != "" and states.get(peer, {}).get("meeting") == state["meeting"]
            for peer in state["peers"]
        ]
        able = [free[peer] or here for peer, here in zip(state["peers"], met, strict=True)]
        return any(able) if state["any"] else all(able)

    def _note(self, elapsed: float, silent: list[int]) -> None:
        long = elapsed > _BEFORE_NOTE * self.patience
        if silent and long and time.monotonic() > self._next_note:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._next_note = time.monotonic() + self._pause
            what = self._wait.waiting if self._wait else ""
            seen = [
                f"rank {rank} is {self._peer_states[rank].detail}"
                for rank in silent
                if rank in self._peer_states
            ]
            unseen = ", ".join(str(rank) for rank in silent if rank not in self._peer_states)
            told = (
                [*seen, f"no answer from rank {unseen}: busy in its own code, or stopped"]
                if unseen
                else seen
            )
            speak(
                f"mnpar: rank {self._control.rank} has waited {elapsed:.0f} s in {what}; "
                f"{', '.join(told)}; it goes on waiting\n"
            )

    def _table(self, wait: ActiveWait, states: dict[int, dict[str, Any]]) -> str:
        finished = any(state["state"] == "finished" for state in states.values())
        stopped = any(state["state"] == "stopped" for state in states.values())
        first = f"rank {self._control.rank} waits for ever in {wait.waiting}:"
        rows = self._rows(states)
        advice = self.stopped_advice if stopped else wait.waiting.advice(finished, rows)
        return "\n".join(filter(None, [first, rows, advice]))

    @property
    def stopped_advice(self) -> str:
        """Return the remedy where a rank is stopped."""
        return (
            f"a job ends if one of its ranks is stopped for {self.patience:g} s: to stop one for "
            "longer, start the job with more seconds in MNPAR_STALL"
        )

    def _rows(self, states: dict[int, dict[str, Any]]) -> str:
        """Describe the state of each rank."""
        rows = []
        for rank in [rank for rank in range(self._control.size) if rank not in self.lost]:
            seen = self._peer_states.get(
                rank, PeerState("", "does not answer: busy in its own code, or stopped")
            )
            silent = {"state": "silent", "what": f"is {seen.detail}" if seen.state else seen.detail}
            state = states.get(rank, silent)
            rows.append(f"  rank {rank}: {_SAID[state['state']]}{state.get('what', '')}")
        return "\n".join(rows)
