"""Share the tests among several processes: ``pytest -p mnpar.testing.options --processes 2``.

The session collects the tests once and forks. Each process takes one file of tests after another
from a queue: first the files of hundreds of tests, or one process would be left alone with such a
file at the end; then the others, from the last to the first. It sends its reports to the session,
which shows, counts and writes them as if it had run the tests itself, so ``-x``, ``--junitxml``,
``--durations`` and exit codes work as usual. A file is never divided: its fixtures are made once.
Each process has a pool of mpiexec ranks of its own, started when a test needs it. If a process
dies, the test that it ran fails, and another process goes on after that test.

The session runs the tests itself where little would be gained (few tests, or one file) or with
``-s`` and ``--pdb``.

(pytest-xdist collects the tests in every process and sends report by report: the 5,955 tests of
functions, links and optimizers took 31 % more processor time with ``-n 3 --dist loadfile``. Its
threads also rule out ranks that are forks of a session.)
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import selectors
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from _pytest import runner

from mnpar.testing.forks import die_with_parent, fork

_LEAST = 50  # tests: fewer are not worth a process
_MANY = 300  # tests: a file of so many takes long
_GRACE = 10.0  # s for a process to tidy up
File = list[int]  # the numbers of its tests in the session


class ProcessRunner:
    """The pytest plugin that runs a session's tests in so many processes."""

    def __init__(self, number: int, close: Callable[[bool], None]) -> None:
        self._number, self._close = number, close

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Instead of pytest's own loop over the tests."""
        option = session.config.option
        files = dict[str, File]()
        for number, item in enumerate(session.items):
            files.setdefault(item.nodeid.partition("::")[0], []).append(number)
        alone = option.collectonly or option.usepdb or option.capture == "no" or session.testsfailed
        if alone or self._number < 2 or len(files) < 2 or len(session.items) < _LEAST:
            return None
        _Shares(session, self._number, list(files.values()), self._close).run()
        return True


class _Shares:
    """The session's side: start the processes and read what they report."""

    def __init__(
        self, session: pytest.Session, number: int, files: list[File], close: Callable[[bool], None]
    ) -> None:
        self._session, self._number, self._close = session, number, close
        self._file = {number: file for file in files for number in file}
        # holds, for each file that no process has taken yet, the number of its first test
        self._queue, tell = os.pipe()
        in_turn = sorted(files, key=lambda file: (len(file) < _MANY, -file[0]))
        os.write(tell, b"".join(file[0].to_bytes(4) for file in in_turn))
        os.close(tell)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Run all tests."""
        _limit_threads(max(1, (os.cpu_count() or 1) // self._number))
        try:
            for _ in range(self._number):
                self._start([])
            while self._selector.get_map():
                for key, _ in self._selector.select():
                    self._hear(key.data)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            _end([key.data.pid for key in self._selector.get_map().values()])
            self._selector.close()
            os.close(self._queue)

    def _start(self, rest: File) -> None:
        line, tell = os.pipe()
        pid = fork()
        if pid == 0:
            os.close(line)
            _Share(self._session, tell, self._close).run(self._tests(rest))
        os.close(tell)
        self._selector.register(line, selectors.EVENT_READ, _RunnerProcess(pid, line))

    def _tests(self, rest: File) -> Iterator[File]:
        """Yield, in a process, what is left of a file in which another died, then the files of the
        queue.
        """
        if rest:
            yield rest
        while taken := os.read(self._queue, 4):
            yield self._file[int.from_bytes(taken)]

    def _hear(self, process: _RunnerProcess) -> None:
        """Read what a process reports, or note that it has ended."""
        text = os.read(process.line, 1 << 16)
        *lines, process.text = (process.text + text).split(b"\n")
        for number, *what in map(json.loads, lines):
            if process.at is not None and self._file[number] is not self._file[process.at]:
                self._show(process)
            process.at = number
            process.held += [(number, *one) for one in what]
            if any(
                data.get("outcome") == "failed"
                for _, reports, _ in process.held[-1:]
                for data in reports
            ):
                self._show(process)
        if not text:
            self._selector.unregister(process.line)
            os.close(process.line)
            self._show(process)
            self._ended(process, os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]))

    def _show(self, process: _RunnerProcess) -> None:
        """Report to pytest what the process has reported, a file at a time: the lines of two
        processes must not mix.
        """
        config = self._session.config
        hook = self._session.config.hook
        for number, reports, warned in process.held:
            place: Any = {
                "nodeid": self._session.items[number].nodeid,
                "location": self._session.items[number].location,
            }
            hook.pytest_runtest_logstart(**place)
            for data in reports:
                if isinstance(data["longrepr"], list):
                    data["longrepr"] = tuple(data["longrepr"])  # of a skip, as it was before JSON
                hook.pytest_runtest_logreport(
                    report=hook.pytest_report_from_serializable(config=config, data=data)
                )
            hook.pytest_runtest_logfinish(**place)
            for name, message, file, line, when in warned:
                record = warnings.WarningMessage(
                    message, getattr(builtins, name, UserWarning), file, line
                )
                told = {
                    "warning_message": record,
                    "when": when,
                    "nodeid": place["nodeid"],
                    "location": None,
                }
                hook.pytest_warning_recorded.call_historic(kwargs=told)
        process.held.clear()

    def _ended(self, process: _RunnerProcess, status: int) -> None:
        """Fail the test of a process that died, and start another for the rest of its file."""
        if status == 0:
            return
        how = (
            f"was ended by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with exit code {status}"
        )
        if process.at is None:
            raise RuntimeError(f"a process of pytest {how} before its first test")
        item = self._session.items[process.at]
        file = self._file[process.at]
        text = f"the process that ran this test {how}"
        report = pytest.TestReport(
            item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed", text, "call"
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        rest = file[file.index(process.at) + 1 :]
        for number in rest:
            self._file[number] = rest
        self._start(rest)


class _RunnerProcess:
    """A process, as the session knows it."""

    def __init__(self, pid: int, line: int) -> None:
        self.pid, self.line = pid, line
        self.at: int | None = None  # the test that it runs
        self.text = b""  # half a line that it said
        self.held: list[tuple[int, Any, Any]] = []  # what it reported of its file, not shown yet


class _Share:
    """The process's side. It writes a JSON list on each line: ``[number]`` of a test that begins,
    and at its end ``[number, [reports, warnings]]``.
    """

    def __init__(self, session: pytest.Session, tell: int, close: Callable[[bool], None]) -> None:
        self._session, self._tell, self._close = session, tell, close
        self._warned: list[list[Any]] = []

    def run(self, files: Iterator[File]) -> NoReturn:
        """Run the files' tests and end."""
        status = 1
        try:
            die_with_parent()
            # the session ends it so, though it may ignore that itself
            signal.signal(signal.SIGINT, signal.default_int_handler)
            capture: Any = self._session.config.pluginmanager.getplugin("capturemanager")
            capture.stop_global_capturing()  # its files are the session's
            capture.start_global_capturing()
            capture.suspend_global_capture(in_=True)
            self._session.config.pluginmanager.register(self)
            for file in files:
                for number, following in zip(file, [*file[1:], None], strict=True):
                    self._test(number, following)
            status = 0
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is ending
                self._close(status != 0)
                runner.pytest_sessionfinish(self._session)
            os._exit(status)

    def _test(self, number: int, following: int | None) -> None:
        items = self._session.items
        self._say([number])
        self._warned = []
        item = items[number]
        reports = item.config.hook.pytest_runtest_protocol(
            item=item, nextitem=None if following is None else items[following]
        )
        self._say([number, [reports, self._warned]])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[Any]:
        """Run a test without reporting it to this process's own plugins; returns the reports."""
        hook = item.config.hook
        reports = runner.runtestprotocol(item, log=False, nextitem=nextitem)
        return [
            hook.pytest_report_to_serializable(config=item.config, report=report)
            for report in reports
        ]

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Keep a warning for the session's summary."""
        one = warning_message
        self._warned.append(
            [one.category.__name__, str(one.message), one.filename, one.lineno, when]
        )

    def _say(self, what: list[Any]) -> None:
        text = json.dumps(what).encode() + b"\n"
        while text:
            text = text[os.write(self._tell, text) :]


def _limit_threads(number: int) -> None:
    """Limit the threads of BLAS: processes that compute side by side share the cores.

    The call must come before the forks: in a fork it would start such threads.
    """
    with contextlib.suppress(ImportError):
        import threadpoolctl

        threadpoolctl.threadpool_limits(number)


def _end(pids: list[int]) -> None:
    """Tell processes to end, and kill those that do not."""
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + _GRACE
    for pid in pids:
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
