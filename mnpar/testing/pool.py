"""A pool of mpiexec ranks for tests, seen from the pytest process, which itself never starts MPI.

Each rank is a pytest session of its own (``worker.py``) with a local socket: the pool sends the
node id of a test, the rank answers with its outcome. A rank is a fork of this session
(``forks.py``), which starts at once; or, where that is not possible, a process that collects the
tests itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mnpar.runtime.mpiexec import mpiexec_command, require_mpi4py
from mnpar.runtime.tracebacks import own_lines_of_dump
from mnpar.testing.forks import Forks

# where a session that is a rank keeps its Worker
WORKER = pytest.StashKey[Any]()
# ways to leave a test that do not fail it: pytest's exceptions
LEAVING: dict[str, Callable[..., BaseException]] = {
    "Skipped": functools.partial(pytest.skip.Exception, _use_item_location=True),
    "XFailed": pytest.xfail.Exception,
    "Exit": pytest.exit.Exception,
}
_START = 120.0  # s for all ranks to import, collect and connect
_FAREWELL = 5.0  # s for the launcher, after its ranks: it removes its files then
_GRACE = 2.0  # s for the other ranks to finish after one has failed, or left the test
_LOG_SHOWN = 6000  # characters, from its end


class Pool:
    """A number of ranks, started when the first test asks, and again after a test has broken
    them.
    """

    def __init__(
        self, size: int, files: list[str], config: pytest.Config, forks: Forks | None
    ) -> None:
        self.size = size
        self._files = files
        self._config = config
        self._forks = forks
        self._timeout: float = config.getoption("rank_timeout", 60.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._folder: Path | None = None

    def run(self, nodeid: str, ranks: int) -> str:
        """Run a test on the first ``ranks`` ranks; return what failed, rank by rank, or an empty
        string.

        Raises:
            LauncherError: this machine has no MPI.
            Exception: no rank failed, and one called ``pytest.skip``, ``xfail`` or ``exit``: what
                these raise.
        """
        if self._process is None:
            trouble = self._start()
            if trouble:
                return trouble
        for rank in range(ranks):
            self._lines[rank].sendall(
                json.dumps({"nodeid": nodeid, "ranks": ranks}).encode() + b"\n"
            )
        answers, silent = self._collect(ranks, self._timeout)
        failed = {
            rank: answer["failure"] for rank, answer in sorted(answers.items()) if answer["failure"]
        }
        left = [answer["left"] for _, answer in sorted(answers.items()) if answer["left"]]
        if left and not failed:
            if silent:  # they wait for those that left it
                self.close(kill=True)
            name, *arguments = left[0]
            raise LEAVING[name](*arguments)
        if not failed and not silent:
            return ""
        report = [
            f"---------- rank {rank} of {ranks} ----------\n{text}" for rank, text in failed.items()
        ]
        if silent:
            report.append(self._autopsy(silent, bool(failed)))
        if silent or failed:
            self.close(kill=True)
        return "\n".join(report)

    def _start(self) -> str:
        """Start the ranks; return what went wrong, or an empty string."""
        require_mpi4py()
        command, environment = mpiexec_command(self.size)
        self._folder = Path(tempfile.mkdtemp(prefix="mnpar-pool-"))
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(self._folder / "socket"))
        server.listen(self.size)
        server.settimeout(0.2)
        rootdir = str(self._config.rootpath)
        command += (
            self._session_of_its_own()
            if self._forks is None
            else self._forks.command(str(self._folder))
        )
        environment.setdefault("MNPAR_STALL", "5")
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=rootdir,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START
        while len(self._lines) < self.size:
            with contextlib.suppress(TimeoutError):
                line, _ = server.accept()
                line.settimeout(_START)
                text = line.makefile().readline()
                if not text:
                    line.close()
                    continue  # it failed while it collected: the process ends, and its log says why
                hello = json.loads(text)
                self._lines[hello["rank"]], self._pids[hello["rank"]] = line, hello["pid"]
            if time.monotonic() > deadline or self._process.poll() is not None:
                server.close()
                log_text = self._log()
                self.close(kill=True)
                return (
                    f"the pool of {self.size} mpiexec ranks did not "
                    f"start:\n{' '.join(command)}\n{log_text}"
                )
        server.close()
        return ""

    def _session_of_its_own(self) -> list[str]:
        inifile = self._config.inipath
        # the worker imports mnpar before pytest
        quiet = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
        options = [
            f"--rootdir={self._config.rootpath}",
            *(["-c", str(inifile)] if inifile else []),
            "-p",
            "no:cacheprovider",
        ]
        options += [
            *(
                ["-p", "mnpar.testing.options", "--processes=1"]
                if self._config.pluginmanager.hasplugin("mnpar.testing.options")
                else []
            ),
            "-q",
            "-W",
            quiet,
            *["--runxfail"] * self._config.option.runxfail,
        ]
        return [
            sys.executable,
            "-m",
            "mnpar.testing.worker",
            str(self._folder),
            *options,
            *self._files,
        ]

    def _collect(self, ranks: int, timeout: float) -> tuple[dict[int, dict[str, Any]], list[int]]:
        """Return the ranks' answers (what failed, how they left the test before its end), and the
        ranks that gave none.
        """
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for rank in range(ranks):
                selector.register(self._lines[rank], selectors.EVENT_READ, rank)
            while len(answers) < ranks and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, 0.5)):
                    text = self._lines[key.data].makefile().readline()
                    selector.unregister(key.fileobj)
                    if text:
                        answers[key.data] = json.loads(text)
                        if any(answers[key.data].values()):
                            deadline = min(deadline, time.monotonic() + _GRACE)
                if not selector.get_map():
                    break
        return answers, [rank for rank in range(ranks) if rank not in answers]

    def _autopsy(self, silent: list[int], others_failed: bool) -> str:
        """Return the report on ranks that did not answer, with tracebacks of what they were
        doing.
        """
        for rank in silent:  # one after the other: they write into one file
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGUSR1)
            time.sleep(0.3)
        names = ", ".join(map(str, silent))
        what = (
            "was left waiting"
            if others_failed
            else f"died or did not end within {self._timeout:g} s (--rank-timeout)"
        )
        return f"---------- rank {names} {what} ----------\n{self._log()}"

    def _log(self) -> str:
        assert self._folder is not None
        log = own_lines_of_dump((self._folder / "log").read_text(errors="replace"))
        return log[-_LOG_SHOWN:].partition("\n")[2] if len(log) > _LOG_SHOWN else log

    def close(self, kill: bool = False) -> None:
        """End the ranks; the next test starts new ones."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(0.1 if kill else 20)
            except subprocess.TimeoutExpired:
                for pid in self._pids.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if len(self._pids) < self.size:
                    process.terminate()
                try:
                    process.wait(_FAREWELL)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._pids.clear()
        if self._folder is not None:
            for path in self._folder.iterdir():
                path.unlink()
            self._folder.rmdir()
            self._folder = None
