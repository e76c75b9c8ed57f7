"""mpiexec jobs of programs that go wrong, started, watched and swept up.

``MNPAR_TEST_PYTHON=/path/to/python`` runs them in another environment (with another MPI): its
mpiexec has to lie beside it.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from mnpar.runtime.mpiexec import clean_environment, mpiexec_command
from tests.harness.scripts import client_for

PYTHON = os.environ.get("MNPAR_TEST_PYTHON", sys.executable)
FOREIGN = "MNPAR_TEST_PYTHON" in os.environ
PROGRAMS = Path(__file__).parent / "programs.py"
ROOT = str(PROGRAMS.parents[2])
SLOWER = 3.0 if FOREIGN else 0.0  # s: Open MPI takes longer to start and to end
HANGS = 20.0  # s


def _own_group():
    """A group of users for the jobs of this process, by which the files that they leave are known;
    None without the right.
    """
    try:
        mine = os.getegid()
        other = 60_000 + os.getpid() % 5_000
        os.setegid(other)
        os.setegid(mine)
    except OSError:
        return None
    return other


GROUP = _own_group()


class Job:
    """A job in a session of its own, as a terminal's foreground job is.

    Args:
        fresh: its ranks start Python, instead of being forks of a process that has
            (tests/harness/scripts.py).
    """

    def __init__(
        self, program, ranks=2, stall="30", options=(), command=None, fresh=True, **environment
    ):
        if command is None:
            command, inherited = mpiexec_command(ranks, PYTHON)
        else:
            inherited = clean_environment(os.environ)
        self.mark = f"MNPAR_TEST_JOB={uuid.uuid4().hex}"
        inherited |= {
            "MNPAR_STALL": stall,
            # reports as they are outside of debug mode, without mnpar's own lines
            "MNPAR_DEBUG": "0",
            "PYTHONPATH": ROOT,
            **environment,
            **dict([self.mark.split("=")]),
        }
        if GROUP is not None:
            inherited["MNPAR_TEST_GROUP"] = str(GROUP)
        self.program = program
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [
                *command,
                *options,
                *([PYTHON, str(PROGRAMS)] if fresh or FOREIGN else client_for(PROGRAMS)),
                program,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=inherited,
            start_new_session=True,
            group=GROUP,
        )

    def expect(self, word, times):
        """Read until every rank has said it (a launcher may mix their lines); the time counts from
        there.
        """
        text = ""
        while text.count(word) < times:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"{self.program} ended early: {self.end()}")
            text += line
        self.begin = time.monotonic()

    def end(self):
        """(exit code, stdout, stderr, seconds), with nothing left behind.

        Raises:
            AssertionError: it did not end, or processes of it are left.
        """
        try:
            out, err = self.process.communicate(timeout=HANGS + 30 * (self.program == "slow_steps"))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.kill(self.left())
            out, err = self.process.communicate()
            raise AssertionError(f"{self.program} did not end\n{out}\n{err}") from None
        took = time.monotonic() - self.begin
        deadline = time.monotonic() + 1 + SLOWER
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill(left)
        if left:
            raise AssertionError(f"{len(left)} processes of {self.program} were left behind\n{err}")
        return self.process.returncode, out, err, took

    def left(self):
        """The processes of this job that still run (the ended have no environment)."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue  # it has just ended, or is another user's
        return found

    def ranks(self):
        """The processes of its ranks."""
        return [
            pid for pid in self.left() if f"{PYTHON}\0" in Path(f"/proc/{pid}/cmdline").read_text()
        ]

    @staticmethod
    def kill(pids):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
