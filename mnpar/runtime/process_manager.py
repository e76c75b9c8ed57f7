"""The process manager of ranks that were started one by one: it brings them together, and then is
their MPI library's launcher.

An MPI library learns of its job from its launcher, over a connection that the process inherits (PMI
1, the protocol of MPICH's launcher): the number of ranks and of this one, the ranks that share a
machine, and the addresses of the others. So rank 0 starts this file as a script, in a process of
its own; all ranks connect to it, and become a job like any other.

Both ends of a line first prove that they know the token in the file, which nobody sends. A rank
says ``{"rank": 1, "size": 4, …}``, and is told, as JSON, who is missing, what is wrong, or that the
job begins. Then it opens a second line, for MPI, which speaks PMI there. As any launcher does, this
one ends all ranks if one fails or leaves: it writes ``cmd=mnpar_end`` on the first lines, where
ranks look four times a second, and after a while it kills those on its own machine. It ends with
the last line. It imports nothing of mnpar.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import selectors
import signal
import socket
import sys
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

with contextlib.suppress(ImportError):  # Windows; this file runs without mnpar
    import resource

END = "cmd=mnpar_end"  # code=1 text=…

REMEDY = (
    "start all ranks, with a path of one file that all their machines share; timeout= lets "
    "them wait longer"
)

# s in which another rank may say how one has ended, before this process says that it has
_UNEXPLAINED = 1.5

_GRACE = 2.0  # s for ranks to end, once they were told
_HELLO = 10.0  # s for those who connect to say who they are
_LONGEST = 2**16  # bytes of a line
_VALUE = 900  # bytes of a value, in a line of at most 1024
_OWN_FILES = 32  # files of this process beside its lines
_KILLED = 1  # the exit code of ranks that end because another one has left


def end_line(code: int, text: str) -> bytes:
    """Return the line that ends all ranks, with this exit code, after they have said this text."""
    return f"{END} code={code} text={urllib.parse.quote(text)[: _LONGEST // 2]}\n".encode()


def end_of(line: str) -> tuple[int, str]:
    """Return (exit code, text) of an :func:`end_line`."""
    told = _fields(line)
    return int(told["code"]), urllib.parse.unquote(told["text"])


def proof(token: str, who: str, *said: str) -> str:
    """Return the proof that only one who knows the token can give, after these words of both
    ends.
    """
    return hmac.new(token.encode(), "\n".join([who, *said]).encode(), "sha256").hexdigest()


def numbers(ranks: Sequence[int]) -> str:
    """Name ranks: 'rank 2', 'ranks 2, 3', 'ranks 1, 2, 3, 4, 5, 6, 7, 8 and 5 more'."""
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{more}"


def mapping(nodes: Sequence[str]) -> str:
    """Return the machine of each rank in PMI's form: blocks of (first machine, how many, ranks on
    each).

    Args:
        nodes: the machine of each rank, by a name.
    """
    places = list(dict.fromkeys(nodes))
    blocks: list[list[int]] = []
    for node in map(places.index, nodes):
        if blocks and blocks[-1][0] == node:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1])
    return f"(vector,{','.join([f'({node},1,{ranks})' for node, ranks in blocks])})"


def _fields(line: str) -> dict[str, str]:
    return dict([word.partition("=")[::2] for word in line.split(" ") if word])


def keep_alive(connection: socket.socket) -> None:
    """Let a connection fail half a minute after the other machine has lost its power, or its
    network.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Line:
    """The connection of a process, with its statements about itself."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.since = time.monotonic()
        self.about: dict[str, Any] = {}
        self.is_mpis = False
        self.challenge: tuple[str, str] | None = None  # the other end's, and ours
        self.finalized = False
        self.end = "has ended without a word"
        self._bytes = b""
        connection.settimeout(_GRACE)
        keep_alive(connection)

    def __str__(self) -> str:
        return f"rank {self.about['rank']} (process {self.about['pid']} on {self.about['host']})"

    def read(self) -> list[str] | None:
        """Return the lines that have come; None if no more will come."""
        try:
            more = self.socket.recv(_LONGEST)
        except OSError as error:
            more, self.end = b"", f"cannot be reached any more ({error.strerror})"
        *lines, self._bytes = (self._bytes + more).split(b"\n")
        return (
            [line.decode(errors="replace") for line in lines]
            if more and len(self._bytes) < _LONGEST
            else None
        )

    def write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, and reading will tell
            self.socket.sendall(line)

    def tell(self, **what: Any) -> None:
        self.write(json.dumps(what).encode() + b"\n")


class Manager:
    """One job.

    Args:
        listener: where the ranks come.
        token: what they know from the file; who does not prove it is sent away.
        size: how many there will be.
        timeout: seconds for all to come.
        path: the file, which is removed when they have, or will not.
        node: this machine, as ranks name theirs.
    """

    def __init__(
        self, listener: socket.socket, token: str, size: int, timeout: float, path: str, node: str
    ) -> None:
        self._listener = listener
        self._token = token
        self._size = size
        self._path = path
        self._node = node
        self._timeout, self._since = timeout, time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._lines: list[Line] = []  # all that are open
        self._ranks: dict[int, Line] = {}
        self._mpis: dict[int, Line] = {}
        self._begun = False
        self._name = os.urandom(8).hex()
        self._values: dict[str, str] = {}
        self._at_barrier: list[Line] = []
        self._left: tuple[float, str] | None = None  # when that will be told, and what
        self._ends: float | None = None  # when lines are closed that are open still

    def serve(self) -> None:
        """Serve until all lines are closed."""
        while (self._lines or not (self._begun or self._ends)) and time.monotonic() < (
            self._ends or float("inf")
        ):
            for key, _ in self._selector.select(0.25):
                if key.fileobj is self._listener:
                    self._welcome()
                elif key.data in self._lines:  # another line's message may have closed it
                    self._read(key.data)
            self._look_at_clock()
        self.remove_file()
        for line in self._ranks.values():
            if (
                self._begun
                and line in self._lines
                and not line.finalized
                and line.about["node"] == self._node
            ):
                with contextlib.suppress(OSError):  # its line is open, so it lives
                    os.kill(line.about["pid"], signal.SIGKILL)

    def remove_file(self) -> None:
        """Remove the file of this job, and no other's."""
        with contextlib.suppress(OSError, ValueError):
            with open(self._path, encoding="utf-8") as file:
                mine = json.load(file)["token"] == self._token
            if mine:
                os.unlink(self._path)

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if self._left is not None and now > self._left[0] and self._ends is None:
            self._end(end_line(_KILLED, self._left[1]))
        if (
            0 not in self._ranks
            and not self._begun
            and self._ends is None
            and now > self._since + _HELLO
        ):
            self._refuse("rank 0 left before all had come")
        if not self._begun and self._ends is None and now > self._since + self._timeout:
            missing = numbers(self._missing())
            self._refuse(
                f"in {self._timeout:g} s {missing} of {self._size} did not come to "
                f"{self._path}: {REMEDY}"
            )
        for line in [line for line in self._lines if not line.about and now > line.since + _HELLO]:
            self._close(line)

    # ---- before the job begins ----

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):
            line = Line(self._listener.accept()[0])
            self._lines.append(line)
            self._selector.register(line.socket, selectors.EVENT_READ, line)

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._size) if rank not in self._ranks]

    def _hear(self, line: Line, text: str) -> None:
        """Note the rank of a line, once it has proved that it knows the file."""
        if line.challenge is None:
            line.challenge = text, os.urandom(16).hex()
            return line.write(
                f"{line.challenge[1]} {proof(self._token, 'manager', *line.challenge)}\n".encode()
            )
        proved, _, about = text.partition(" ")
        if not hmac.compare_digest(
            proved.encode(), proof(self._token, "rank", *line.challenge, about).encode()
        ):
            return self._close(line)
        told = json.loads(about)
        line.is_mpis = told["mpi"]
        if line.is_mpis != self._begun or (line.is_mpis and told["rank"] in self._mpis):
            return self._close(line)
        line.about = told
        if line.is_mpis:
            return self._hear_mpi(line)
        if wrong := self._wrong_with(line):
            return self._refuse(wrong)
        self._ranks[line.about["rank"]] = line
        missing = self._missing()
        for other in self._ranks.values():
            other.tell(missing=missing)
        if not missing and self._ends is None:
            self._begin()
        return None

    def _hear_mpi(self, line: Line) -> None:
        """Take the second line of a rank; after the last one nobody can come any more."""
        self._mpis[line.about["rank"]] = line
        line.tell(begin=True)
        if len(self._mpis) == self._size:
            self._selector.unregister(self._listener)
            self._listener.close()

    def _wrong_with(self, line: Line) -> str:
        about, other = line.about, self._ranks.get(line.about["rank"])
        if about["size"] != self._size:
            return (
                f"{line} was told of {about['size']} ranks, and rank 0 of {self._size}: tell "
                "all of them the same"
            )
        if other is not None:
            return (
                f"{other} and {line} have the same rank: each process has its own, from 0 to "
                f"{self._size - 1}"
            )
        for other in self._ranks.values():
            if (its := other.about["library"]) != about["library"]:
                return (
                    f"{other} has {its}, {line} has {about['library']}: ranks of one job have "
                    "the same MPI library"
                )
        return ""

    def _refuse(self, text: str) -> None:
        """Tell all that have come that there will be no job."""
        self.remove_file()
        for line in [line for line in self._lines if line.about]:
            line.tell(error=text)
        self._ends = time.monotonic() + _GRACE

    def _begin(self) -> None:
        self.remove_file()
        self._begun = True
        lines = [self._ranks[rank] for rank in range(self._size)]
        vector = mapping([line.about["node"] for line in lines])
        if len(vector) <= _VALUE:  # else MPI compares the names of the machines
            self._values["PMI_process_mapping"] = vector
        for line in lines:
            line.tell(begin=True)

    # ---- what comes ----

    def _read(self, line: Line) -> None:
        lines = line.read()
        for text in lines or ():
            if line.is_mpis:
                self._answer(line, text)
            elif not line.about:
                self._hear(line, text)
            elif text.startswith(END):
                self._end(text.encode() + b"\n", line)
        if lines is None:
            self._close(line)

    def _close(self, line: Line) -> None:
        """Close a line whose process has left."""
        if line not in self._lines:
            return
        self._lines.remove(line)
        self._selector.unregister(line.socket)
        line.socket.close()
        if self._ranks.get(line.about.get("rank", -1)) is not line:
            return
        if not self._begun:
            del self._ranks[line.about["rank"]]
            for other in self._ranks.values():
                other.tell(missing=self._missing())
            if line.about["rank"] == 0:
                self._refuse(f"{line} left before all had come")
        elif not line.finalized and self._left is None:
            text = f"mnpar: {line} of {self._size} {line.end}, the job ends\n"
            self._left = time.monotonic() + _UNEXPLAINED, text

    def _end(self, told: bytes, sender: Line | None = None) -> None:
        """Tell all ranks to end, but the one that has told this."""
        if self._ends is None:
            self._ends = time.monotonic() + _GRACE
            for line in self._ranks.values():
                if line is not sender and line in self._lines:
                    line.write(told)

    # ---- PMI ----

    def _answer(self, line: Line, text: str) -> None:
        told = _fields(text)
        match told.get("cmd"):
            case "init":
                good = told.get("pmi_version") == "1"
                line.write(
                    b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=%d\n"
                    % (0 if good else -1)
                )
            case "get_maxes":
                line.write(b"cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n")
            case "get_appnum":
                line.write(b"cmd=appnum rc=0 appnum=0\n")
            case "get_universe_size":
                line.write(b"cmd=universe_size rc=0 size=%d\n" % self._size)
            case "get_my_kvsname":
                line.write(f"cmd=my_kvsname rc=0 kvsname=mnpar_{self._name}\n".encode())
            case "put":
                self._values[told["key"]] = text.partition(" value=")[2]
                line.write(b"cmd=put_result rc=0 msg=success\n")
            case "get":
                value = self._values.get(told["key"])
                found = (
                    "rc=-1 msg=key_not_found value=unknown"
                    if value is None
                    else f"rc=0 msg=success value={value}"
                )
                line.write(f"cmd=get_result {found}\n".encode())
            case "barrier_in":
                self._at_barrier.append(line)
                if len(self._at_barrier) == self._size:
                    for other in self._at_barrier:
                        other.write(b"cmd=barrier_out rc=0\n")
                    self._at_barrier.clear()
            case "finalize":
                self._ranks[line.about["rank"]].finalized = True
                line.write(b"cmd=finalize_ack rc=0\n")
            case "abort":
                code = int(told.get("exitcode", "1"))
                caller = self._ranks[line.about["rank"]]
                self._end(
                    end_line(
                        code,
                        f"mnpar: {line} of {self._size} called MPI_Abort({code}), the job ends\n",
                    ),
                    caller,
                )
            case None if "endcmd" not in told:  # more of a command of several lines, to spawn
                pass
            case what:  # there are no such services here
                line.write(
                    f"cmd={(what or 'spawn').removesuffix('_name')}_result rc=-1 "
                    "msg=unsupported\n".encode()
                )


def listen() -> socket.socket:
    """Return a socket that takes connections from all machines, on a free port."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
    return socket.create_server(("", 0), backlog=1024)


def make_room(size: int) -> None:
    """Let this process open as many files as so many ranks need.

    Raises:
        SystemExit: the system does not allow it.
    """
    needed = 2 * size + _OWN_FILES
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        sys.exit(
            f"{size} ranks need {needed} open files there, and the system allows {most}: raise "
            "ulimit -Hn, or use mpiexec"
        )
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def main() -> None:
    """Read the settings of :class:`Manager`, print the port, and go on as a process that is
    nobody's child.
    """
    settings = json.load(sys.stdin)
    make_room(settings["size"])
    listener = listen()
    if os.fork():
        return
    os.setsid()  # a Ctrl-C is for the ranks, which tell
    os.chdir("/")
    port = listener.getsockname()[1]
    os.write(1, b"%d\n" % port)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    manager = Manager(listener, **settings)
    try:
        manager.serve()
    finally:
        manager.remove_file()


if __name__ == "__main__":
    main()
