"""Ranks that are started one by one, and become one MPI job by a file that all of them can see.

Rank 0 starts a process manager (process_manager.py) and publishes its address in the file; the
others connect to it, each when it comes, and nobody starts MPI before all are there. Every wait is
polled and has an end. The file is there only while ranks are missing. Rank 0 replaces one that an
earlier job has left, as nobody answers at its address.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from mnpar.errors import LauncherError
from mnpar.runtime import process_manager, system
from mnpar.runtime.heartbeat import boot
from mnpar.runtime.output import speak
from mnpar.runtime.process_manager import REMEDY, end_line, end_of, numbers, proof

_POLL = 0.05  # s
_REPORT = 10.0  # s between reports of who is missing
_CONNECT = 2.0  # s for a machine to take a connection
_ANSWER = 5.0  # s for a process manager to answer
_REFUSAL = 3.0  # s for a process that cannot take part to tell the others so
_NOBODY = 65534  # a file's owner whom this machine does not know: NFS, with other numbers there
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_LAUNCHERS_MARKS = ("PMI_", "PMIX_", "MPI_LOCAL", "HYDI_", "OMPI_COMM_WORLD_")


class Session:
    """The lines of this process to the process manager: by the first one the job ends everywhere.

    Attributes:
        path, rank, size: what was asked for.
        mpis: the number of the file of the second one, which the MPI library uses, and may close.
    """

    def __init__(
        self, line: socket.socket, mpis: socket.socket, path: str, rank: int, size: int
    ) -> None:
        self._line = line
        self.path = path
        self.rank = rank
        self.size = size
        line.setblocking(False)
        self.mpis = mpis.detach()
        self._which = os.fstat(self.mpis)
        self._told = b""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        """Close the lines in a child process: those of a rank that has gone would seem open."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self.mpis), self._which):
                os.close(self.mpis)
        self._line.close()

    def obey(self, leave: Callable[[int], object]) -> None:
        """Say why and ``leave(exit code)`` if the job has ended: another rank has failed, or the
        process manager is gone.
        """
        try:
            more = self._line.recv(2**16)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        self._told += more
        if more and not self._told.endswith(b"\n"):  # the rest is on its way
            return
        code = 1
        text = (
            f"mnpar: rank {self.rank} of {self.size} has lost the process manager of this job, "
            "the job ends\n"
        )
        if more:
            code, text = end_of(self._told.decode(errors="replace").splitlines()[0])
        speak(text)
        leave(code)

    def end(self, code: int, text: str) -> None:
        """End all ranks, which say this text."""
        with contextlib.suppress(OSError):
            self._line.settimeout(_ANSWER)
            self._line.sendall(end_line(code, text))


def join(path: str, rank: int, size: int, timeout: float, library: str) -> Session:
    """Meet the other ranks, and set the variables by which the MPI library, which is not yet
    started, joins their job.

    Args:
        path: of the file, the same one for all ranks.
        rank, size: of this process.
        timeout: seconds for all ranks to come.
        library: name and version of the MPI library.

    Raises:
        LauncherError: the ranks are not all there in time, or do not belong together; or the
            library is not MPICH.
    """
    path = os.path.abspath(path)
    if not library.startswith("MPICH"):
        _refuse(path, rank, size, library)
    session = Session(*meet(path, rank, size, timeout, library), path, rank, size)
    for name in [name for name in os.environ if name.startswith(_LAUNCHERS_MARKS)]:
        # the variables of a launcher that has started this process alone, or for another MPI
        del os.environ[name]
    os.environ |= {"PMI_FD": str(session.mpis), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
    return session


def _refuse(path: str, rank: int, size: int, library: str) -> NoReturn:
    """Tell the others, if they are there, that this process has an MPI library that cannot take
    part.
    """
    if rank:
        with contextlib.suppress(LauncherError):
            for line in meet(path, rank, size, _REFUSAL, library):
                line.close()
    raise LauncherError(
        f"rank {rank} of {size} has {library}, and only MPICH lets ranks meet by a file: pip "
        "install mpich in place of it, or "
        f"start them together: mpiexec -n {size} python …, or python -m mnpar run -n {size} "
        "--hosts FILE …"
    )


def meet(
    path: str, rank: int, size: int, timeout: float, library: str
) -> tuple[socket.socket, socket.socket]:
    """Return two connections to the process manager, ours and MPI's, once all ranks have come;
    arguments and errors as of join.
    """
    return _Meeting(path, rank, size, timeout, library).lines()


class _Meeting:
    """One process's way to a line whose job begins."""

    def __init__(self, path: str, rank: int, size: int, timeout: float, library: str) -> None:
        self._path = path
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._about = {
            "rank": rank,
            "size": size,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "node": node(),
            "library": library,
            "mpi": False,
        }
        self._began = time.monotonic()
        self._next_report = self._began + _REPORT
        self._waits_for = ""
        self._there: dict[str, Any] = {}  # the content of the file whose publisher has answered

    def lines(self) -> tuple[socket.socket, socket.socket]:
        """Return both connections, when all other ranks are there too.

        Raises:
            LauncherError: they did not come in time, or something is wrong with one of them.
        """
        while True:
            told, self._waits_for = self._read(), "rank 0, which publishes it"
            line = None if told is None else self._connect(told)
            if line is None and self._rank == 0:
                line = self._publish(told)
            if line is not None:
                with contextlib.ExitStack() as undo:
                    undo.callback(line.close)
                    if self._all_come(line):
                        mpis = self._connect(self._there, mpi=True)
                        if mpis is None or _next_line(mpis) is None:
                            raise LauncherError(
                                f"rank {self._rank} of {self._size} has lost the process "
                                "manager of this job"
                            )
                        undo.pop_all()
                        mpis.settimeout(None)
                        return line, mpis
            self._look_at_clock()
            time.sleep(_POLL)

    def _look_at_clock(self, longer: float = 0.0) -> None:
        now = time.monotonic()
        what = f"{now - self._began:.0f} s at {self._path} for {self._waits_for}"
        if now > self._began + self._timeout + longer:
            raise LauncherError(f"rank {self._rank} of {self._size} has waited {what}: {REMEDY}")
        if now > self._next_report:
            self._next_report += _REPORT
            speak(f"mnpar: rank {self._rank} of {self._size} has waited {what}\n")

    # ---- the file ----

    def _read(self) -> dict[str, Any] | None:
        """Return the content of the file; None if there is none, or it is empty."""
        try:
            with open(self._path, encoding="utf-8") as file:
                text = file.read(2**16)
                owner = os.fstat(file.fileno()).st_uid
        except FileNotFoundError:
            folder = os.path.dirname(self._path)
            if not os.path.isdir(folder):
                raise LauncherError(
                    f"rank {self._rank} of {self._size}: there is no folder {folder} for the "
                    "shared file"
                ) from None
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.ESTALE:
                return None  # NFS: rank 0 has replaced it meanwhile
            raise LauncherError(
                f"rank {self._rank} of {self._size} cannot read the shared file {self._path}: "
                f"{error}"
            ) from error
        # ranks believe what the process manager says, and unpickle what ranks send
        if owner not in (
            os.geteuid(),
            _NOBODY,
        ):
            raise LauncherError(
                f"rank {self._rank} of {self._size}: the shared file {self._path} is user "
                f"{owner}'s, not "
                f"{os.geteuid()}'s: take a path in a folder of your own"
            )
        if not text.strip():
            return None  # made by mktemp, say
        with contextlib.suppress(ValueError, TypeError, KeyError):
            told = json.loads(text)
            return {name: told[name] for name in ("token", "hosts", "port", "node")}
        raise LauncherError(
            f"{self._path} is not a file by which ranks meet: take a path where there is none"
        )

    def _publish(self, stale: dict[str, Any] | None) -> socket.socket | None:
        """Start a process manager, and write its address; return the first line to it, or None if
        another file is there now.
        """
        token = os.urandom(16).hex()
        here = node()
        settings = {
            "token": token,
            "size": self._size,
            "timeout": self._timeout,
            "path": self._path,
            "node": here,
        }
        draft = f"{self._path}.{token}"
        with contextlib.ExitStack() as undo:
            try:
                handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except OSError as error:
                why = f"{self._path}: {error.strerror}"
                raise LauncherError(
                    f"rank 0 of {self._size} cannot write the shared file {why}"
                ) from error
            undo.callback(_remove, draft)
            undo.callback(os.close, handle)
            started = subprocess.run(
                [sys.executable, "-I", "-S", process_manager.__file__, self._path],
                input=json.dumps(settings),
                capture_output=True,
                text=True,
                check=False,
            )
            if not started.stdout.strip().isdigit():
                raise LauncherError(
                    f"rank 0 of {self._size} could not start the process manager:\n{started.stderr}"
                )
            told = {"token": token, "hosts": hosts(), "port": int(started.stdout), "node": here}
            line = self._connect(told)
            if line is None:
                raise LauncherError(
                    f"rank 0 of {self._size} gets no answer from its own process manager, port "
                    f"{told['port']}"
                )
            with contextlib.ExitStack() as unless_published:
                # rank 0 leaves, and so the process manager ends
                unless_published.callback(line.close)
                os.write(handle, json.dumps(told).encode())
                os.fsync(handle)
                if self._read() == stale:
                    _remove(self._path)
                if not _link(draft, self._path):
                    return None
                unless_published.pop_all()
        return line

    # ---- the process manager ----

    def _connect(self, told: dict[str, Any], mpi: bool = False) -> socket.socket | None:
        """Connect to the publisher of the file, for MPI or not; return the line, or None if nobody
        answers who knows the file's content.
        """
        first = ["localhost"] if told["node"] == self._about["node"] else []
        for host in [*first, *told["hosts"]]:
            line = None
            with contextlib.suppress(OSError):
                line = socket.create_connection((host, told["port"]), _CONNECT)
                line.settimeout(_ANSWER)
                if _greet(line, told["token"], json.dumps(self._about | {"mpi": mpi})):
                    process_manager.keep_alive(line)
                    self._there = told
                    return line
            if line is not None:
                line.close()
        where = f"{told['hosts'][0]}, port {told['port']}"
        self._waits_for = (
            f"an answer from {where} (the file is of an earlier job, or a firewall lets nobody in)"
        )
        return None

    def _all_come(self, line: socket.socket) -> bool:
        """Wait until all have come; return False if the process manager has gone meanwhile."""
        line.settimeout(_POLL)
        while True:
            try:
                text = _next_line(line)
            except TimeoutError:
                self._look_at_clock(_CONNECT)  # the process manager tells all that the time is over
                continue
            if text is None:
                return False
            told = json.loads(text)
            if "error" in told:
                raise LauncherError(told["error"])
            if "begin" in told:
                return True
            self._waits_for = numbers(told["missing"]) if told["missing"] else "the job's beginning"


def _greet(line: socket.socket, token: str, about: str) -> bool:
    """State this process's rank, if the other end proves that it knows the token, as this does."""
    mine = os.urandom(16).hex()
    line.sendall(f"{mine}\n".encode())
    its, _, proved = (_next_line(line) or b"").decode(errors="replace").strip().partition(" ")
    if not hmac.compare_digest(proved.encode(), proof(token, "manager", mine, its).encode()):
        return False
    line.sendall(f"{proof(token, 'rank', mine, its, about)} {about}\n".encode())
    return line.recv(1, socket.MSG_PEEK) == b"{"


def _next_line(line: socket.socket) -> bytes | None:
    """Read a line of text, and nothing of the bytes behind it; return None if no more will come.
    Raise TimeoutError if nothing has come yet.
    """
    with contextlib.suppress(ConnectionError):
        while told := line.recv(2**16, socket.MSG_PEEK):
            if (length := told.find(b"\n") + 1) > 0:
                return line.recv(length)
            time.sleep(0.001)
    return None


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _link(draft: str, path: str) -> bool:
    """Give a file its name, unless there is another of that name; return whether it has it."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        os.rename(draft, path)  # a file system without links
    return True


def node() -> str:
    """Return the name of this machine as far as its memory is shared: containers have names of
    their own.
    """
    with contextlib.suppress(OSError):
        return (
            f"{boot()} {socket.gethostname()} {os.stat('/dev/shm').st_dev} "
            f"{os.readlink('/proc/self/ns/pid')}"
        )
    return f"{boot()} {socket.gethostname()}"


def hosts() -> list[str]:
    """Return the addresses of this machine that others may know, and last its name, whose lookup
    may take long.
    """
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for _, interface in socket.if_nameindex():
            with contextlib.suppress(OSError):
                told = system.fcntl.ioctl(
                    out, _SIOCGIFADDR, struct.pack("256s", interface.encode())
                )
                found.append(socket.inet_ntoa(told[20:24]))
        # sends nothing; nobody has this address, so it is the way to the outside: first
        out.connect(("192.0.2.1", 9))
        found.insert(0, out.getsockname()[0])
    return list(
        dict.fromkeys([*[one for one in found if not one.startswith("127.")], socket.gethostname()])
    )
