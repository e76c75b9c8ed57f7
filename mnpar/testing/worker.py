"""One rank of the pool: a pytest session that runs the tests it is told, one at a time, together
with the other ranks.

It is a fork of the session that has started the pool, as that was after it had collected the tests;
or, where nothing can be forked, a session that collects for itself.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from mnpar.autograd.tape import Tape
from mnpar.communicators.create import create_communicator
from mnpar.runtime.output import record
from mnpar.runtime.tracebacks import to_own_lines
from mnpar.testing.forks import Forks, die_with_parent
from mnpar.testing.pool import WORKER


class Worker:
    """The pytest plugin that turns a session into a rank of the pool."""

    def __init__(self, folder: Path) -> None:
        self._world = create_communicator("mpi")
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(folder / "socket"))
        # of the first so many ranks: the others sleep through their tests
        sizes = range(1, self._world.size + 1)
        self._groups = [
            self._world.split(0 if self._world.rank < size else None, self._world.rank)
            for size in sizes
        ]
        self._sub: Any = None  # the communicator of the test

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[WORKER] = self

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop over the tests."""
        # of the mark xfail: the session that has started the pool knows what is expected
        session.config.option.runxfail = True
        items = {item.nodeid: item for item in session.items}
        self._say({"rank": self._world.rank, "pid": os.getpid()})
        for text in self._line.makefile():
            order = json.loads(text)
            # how the rank left the test before its end: the exception's name and arguments
            self._left: list[Any] = []
            try:
                self._sub = self._groups[order["ranks"] - 1].split(0, self._world.rank)
                failure = self._run(items.get(order["nodeid"]))
                if not (failure or self._left):
                    self._sub.finalize()
            except Exception:  # around the test: the job would end without a word of it
                failure = traceback.format_exc()
            self._say({"failure": failure, "left": self._left})
        return True

    def _run(self, item: pytest.Item | None) -> str:
        """Run a test; return what failed, or an empty string."""
        if item is None:
            return "this rank did not collect the test: the ranks see different files or parameters"
        reports = runtestprotocol(item, log=False, nextitem=None)
        for report in reports:
            if report.skipped:  # by a fixture, on this rank alone
                reason: Any = report.longrepr  # (file, line, reason)
                self._left = ["Skipped", reason[2].removeprefix("Skipped: ")]
        return "\n".join(report.longreprtext for report in reports if report.failed)

    def call(self, test: Any, arguments: dict[str, Any]) -> None:
        """Run a test function with this rank's communicator (called by the plugin)."""
        __tracebackhide__ = True
        try:
            self._call(test, arguments)
        except Exception as error:
            to_own_lines(error)
            raise

    def _call(self, test: Any, arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        try:
            with Tape():  # so that what a test leaves on its tape is not on that of the next one
                test(**{**arguments, "comm": self._sub})
        except (pytest.skip.Exception, pytest.xfail.Exception) as error:
            self._left = [type(error).__name__, error.msg]
            return
        except pytest.exit.Exception as error:
            self._left = ["Exit", error.msg, error.returncode]
            return
        check_received(self._sub)

    def _say(self, what: dict[str, Any]) -> None:
        self._line.sendall(json.dumps(what).encode() + b"\n")


def check_received(comm: Any) -> None:
    """Fail if a message to this rank was not received, or an operation cannot end; all ranks call
    this at the end of a test.
    """
    __tracebackhide__ = True
    comm.barrier()
    left = comm.transport.unreceived()
    if left:
        raise pytest.fail.Exception(", ".join(left), pytrace=False)


def ranks_of(session: pytest.Session) -> Forks:
    """Start a process that forks ranks of this session, as it is after it has collected its tests.

    The forks' argument is the pool's folder.
    """
    config = session.config
    capture: Any = config.pluginmanager.getplugin("capturemanager")

    def be_rank(arguments: list[str]) -> None:
        log = os.dup(2)
        record(log)
        faulthandler.enable(log)
        faulthandler.register(signal.SIGUSR1, log)
        capture.start_global_capturing()
        capture.suspend_global_capture(in_=True)
        worker = Worker(Path(arguments[0]))
        worker.pytest_configure(config)
        worker.pytest_runtestloop(session)

    return Forks(capture.stop_global_capturing, be_rank)


def main() -> None:
    """``python -m mnpar.testing.worker FOLDER PYTEST_ARGS…``, started by the pool where nothing can
    be forked.
    """
    die_with_parent()  # a rank does not outlive its launcher
    record(os.dup(2))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    sys.exit(pytest.main(sys.argv[2:], plugins=[Worker(Path(sys.argv[1]))]))


if __name__ == "__main__":
    main()
