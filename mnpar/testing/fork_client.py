"""The client of a fork server, which a launcher starts in place of a rank: ``python -IS
fork_client.py SOCKET ARGUMENTS…``.

It starts in less than a hundredth of a second, because it imports nothing of mnpar, and of Python's
library only what is compiled (``signal`` and ``socket`` take as long as all the rest). It sends the
server its arguments, environment, working directory and open files (the launcher's connection is
one of them), passes signals on to the fork, and ends as the fork has ended; if it is killed, so is
the fork.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

# variables that hold the number of a file that the launcher has opened for its rank
_LINES = ("PMI_FD",)


def hand_over(
    path: str,
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    files: tuple[int, int, int] = (0, 1, 2),
) -> tuple[_socket.socket, int]:
    """Ask for a fork; return the connection on which its exit code will come, and its process id.

    Args:
        path: of the socket of :class:`mnpar.testing.forks.Forks`.
        arguments, environment, folder, files: what the fork will have; its files are standard
            input, output and errors.
    """
    lines = [name for name in _LINES if name in environment]
    numbers = [*files, *(int(environment[name]) for name in lines)]
    line = _socket.socket(_socket.AF_UNIX)
    line.connect(path)
    rights = b"".join([number.to_bytes(4, sys.byteorder) for number in numbers])
    line.sendmsg([b"\n"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    line.sendall(repr((arguments, environment, folder, lines, os.getppid())).encode() + b"\n")
    return line, _number(line)


def exit_code(line: _socket.socket) -> int:
    """Return the fork's exit code once it has ended; -N if signal N has ended it.

    Raises:
        TimeoutError: the connection has a time limit. (When it is closed the fork is killed.)
    """
    return _number(line)


def _number(line: _socket.socket) -> int:
    text = b""
    while not text.endswith(b"\n"):
        more = line.recv(1)
        if not more:
            raise EOFError("the process that forks has ended")
        text += more
    return int(text)


def main(path: str, *arguments: str) -> None:
    """Ask for a fork, pass signals on to it, and end as it ends."""
    line, pid = hand_over(path, list(arguments), dict(os.environ), os.getcwd())
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGUSR1):
        _signal.signal(number, lambda number, frame: os.kill(pid, number))
    code = exit_code(line)
    if code < 0:
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
