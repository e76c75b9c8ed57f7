"""A process is seen from outside as running, stopped or gone; a watch judges by that, and never by
silence alone.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from mnpar.communicators import wire
from mnpar.communicators.waiting import Waiting
from mnpar.errors import DeadlockError
from mnpar.runtime.callsite import site_of, site_of_thread
from mnpar.runtime.deadlock import ANSWER, DeadlockDetector
from mnpar.runtime.heartbeat import Heartbeat, Neighbours, PeerState, card

PROGRAM = """
import sys, time
from mnpar.runtime.heartbeat import Heartbeat, card
heart = Heartbeat(lambda launcher: None)
print(card(heart).hex(), flush=True)
sys.stdin.readline()
"""


def until(condition):
    """Wait for what another process does."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def other():
    """A process, and how rank 0, this one, sees it as rank 1."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    theirs = bytes.fromhex(process.stdout.readline())
    heart = Heartbeat(lambda launcher: None)
    neighbours = Neighbours(card(heart) + theirs, 0)
    yield process, lambda: neighbours.state_of(1)
    heart.stop()
    process.kill()
    process.communicate()


def test_a_busy_process_is_seen_with_its_source_line(other):
    _, look = other
    assert look().state == "running"
    until(lambda: look() == PeerState("running", "busy in its own code at <string>:6"))


def test_a_process_that_stops_before_the_first_beat_has_said_where_it_is(monkeypatch):
    monkeypatch.setattr(Heartbeat, "_beat", lambda heart: None)
    heart = Heartbeat(lambda launcher: None)
    when, site = Neighbours._note(os.getpid(), heart.fd)
    assert site.startswith("runtime/test_heartbeat.py:")
    assert 0 <= time.monotonic() - when < 5


def test_the_line_of_another_thread_is_found_whatever_its_file_is_called():
    for name in ("/home/me/plain.py", "/home/me/größe ☃😀.py", "<string>"):
        stop = threading.Lock()
        stop.acquire()
        names = {"stop": stop}
        exec(compile("def wait():\n    stop.acquire()\n", name, "exec"), names)
        thread = threading.Thread(target=names["wait"])
        thread.start()
        site = f"{name.removeprefix('/home/')}:2"
        until(lambda ident=thread.ident, site=site: site_of_thread(ident) == site)
        stop.release()
        thread.join()
    assert site_of_thread(threading.get_ident()) == site_of(sys._getframe())


def test_a_process_whose_program_has_ended_is_not_in_its_own_code():
    """Its last frame is mnpar's, called by the interpreter as it ends."""
    assert site_of(sys._getframe()).startswith("runtime/test_heartbeat.py:")
    code = types.SimpleNamespace(co_filename=wire.__file__)
    assert (
        site_of(types.SimpleNamespace(f_back=None, f_code=code, f_lineno=1))
        == "the end of its program"
    )


def test_a_stopped_process_is_seen_as_stopped_until_it_goes_on(other):
    process, look = other
    process.send_signal(signal.SIGSTOP)
    until(lambda: look().state == "stopped")
    assert "s ago, by a signal (as Ctrl-Z sends it)" in look().detail
    process.send_signal(signal.SIGCONT)
    until(lambda: look().state == "running")


@pytest.mark.parametrize(
    "reaped", [False, True], ids=["its launcher has not noticed yet", "its launcher has noticed"]
)
def test_a_killed_process_is_gone(other, reaped):
    process, look = other
    process.kill()
    until(lambda: look().state == "gone")
    assert look() == PeerState("gone", "its process was killed by SIGKILL")
    if reaped:
        process.wait()
        assert look() == PeerState("gone", "its process has ended without a word")


def test_a_process_that_ends_by_itself_is_gone_with_its_exit_code(other):
    process, look = other
    process.stdin.write("\n")
    process.stdin.flush()
    until(lambda: look().state == "gone")
    assert look().detail == "its process has ended without a word"


def test_processes_of_other_machines_are_not_seen():
    heart = Heartbeat(lambda launcher: None)
    mine = card(heart)
    heart.stop()
    elsewhere = mine.replace(mine[:36], b"another machine".ljust(36))
    neighbours = Neighbours(mine + elsewhere, 0)
    assert neighbours.here == [0]
    assert neighbours.state_of(1) is None
    assert neighbours.state_of(0) is None  # oneself


def test_a_number_that_another_process_has_got_since_is_not_taken_for_it():
    heart = Heartbeat(lambda launcher: None)
    mine = card(heart)
    heart.stop()
    # a process of the same number that started long ago
    before = mine[:136] + bytes(8) + mine[144:]
    assert Neighbours(mine + before, 0).state_of(1).state == "gone"


class Silence:
    """Two ranks, of which the other answers nothing."""

    rank, size = 0, 2

    def __init__(self, look):
        self.peer_state = lambda rank: look if rank == 1 else None

    def tell(self, dest, tag, text):
        pass

    def heard(self):
        return None


WAITING = Waiting("recv", "train.py:7", 1)


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (None, "no answer from rank 1: busy in its own code, or stopped"),
        (
            PeerState("running", "busy in its own code at train.py:42"),
            "rank 1 is busy in its own code at train.py:42",
        ),
    ],
    ids=["on another machine", "on this machine"],
)
def test_a_rank_that_is_silent_is_warned_about_and_waited_for(capsys, look, said):
    end, told = time.monotonic() + 20, []

    def warned():
        told.append(capsys.readouterr().err)
        return said in "".join(told) or time.monotonic() > end

    DeadlockDetector(Silence(look), 0.5).until(warned, WAITING, (1,), "")
    assert said in "".join(told)


class Once(Silence):
    """Two ranks, of which the other answers once that it waits too; then it goes on, and is
    busy.
    """

    def __init__(self):
        super().__init__(None)
        self.letters = []

    def tell(self, dest, tag, text):
        state = {
            "state": "waiting",
            "count": 1,
            "peers": [0],
            "what": "recv",
            "meeting": "",
            "any": False,
            "question": int(text),
        }
        self.letters += [(1, ANSWER, json.dumps(state).encode())] if int(text) == 1 else []

    def heard(self):
        return self.letters.pop() if self.letters else None


def test_what_a_rank_has_said_once_is_no_deadlock():
    end = time.monotonic() + 1.3
    DeadlockDetector(Once(), 0.5).until(lambda: time.monotonic() > end, WAITING, (1,), "")


@pytest.mark.parametrize(
    ("look", "patience"),
    [
        (PeerState("stopped", "stopped for 3 s"), 0.5),
        (PeerState("gone", "its process was killed by SIGKILL"), 1e9),
    ],
)
def test_a_stopped_rank_is_waited_for_until_patience_ends_and_one_that_is_gone_less_long(
    look, patience
):
    with pytest.raises(DeadlockError, match=f"rank 1: is .*{look.detail}"):
        DeadlockDetector(Silence(look), patience).until(lambda: False, WAITING, (1,), "")


def test_a_rank_that_has_finished_does_not_wait_for_one_that_is_gone():
    watch = DeadlockDetector(Silence(PeerState("gone", "its process was killed by SIGKILL")), 0.5)
    with pytest.raises(
        DeadlockError,
        match="rank 0 has finished its program, but rank 1 is gone: its process was killed by "
        "SIGKILL",
    ):
        watch.finish(lambda: False, (0, "has finished its program"))


def test_a_process_whose_launcher_has_died_is_told_so():
    told = []
    heart = Heartbeat(told.append)
    heart._parent = launcher = 2**22 + 1  # no process has this number
    until(lambda: told)
    heart.stop()
    assert set(told) == {launcher}
    assert os.getppid() != launcher
