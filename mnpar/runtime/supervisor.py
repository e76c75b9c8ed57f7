"""The supervisor of MPICH's mpiexec: it fails where mpiexec reports success although a rank has
left in the middle of the job.

A rank can leave without an error: a library calls C's ``_exit(0)``, say. MPICH's launcher then
kills the other ranks, before they can report it, and returns 0, or reports those that it has
killed. So each rank notes (:func:`note`) that it has begun and that it has come to its end, in a
file without a name that this process has open: nothing is left behind when the job ends in any way.
A rank on another machine cannot reach the file, and is left out.

``mnpar.launch`` runs this file as a script. It imports nothing of mnpar: it stays until the job has
ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

# the variable of the environment that says where the file is, and its name: a note for each rank
FILE = "MNPAR_ENDINGS"
_NOTE = struct.Struct("<ii")  # state, process id
BEGUN, ENDED = 1, 2
_SHOWN = 64  # process ids in an error

_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD")
    if hasattr(signal, name)
)

_GRACE = 2  # s for the launcher to end after a Ctrl-C
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>; this file runs without mnpar, too
_KILLED = 9  # MPICH's exit code of a job that has lost a rank
_SI_USER = 0  # <signal.h>: somebody sent it to this process


def start(command: list[str]) -> int:
    """Start the launcher, which ends if this process is killed; return its process id."""
    libc = ctypes.CDLL(None)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    if hasattr(libc, "prctl"):  # Linux
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execv(command[0], command)
    os._exit(1)


def wait(pid: int) -> int:
    """Wait for the launcher, and pass signals on to it; return its exit code.

    A SIGINT that comes from a terminal, or is sent to the process group, reaches the launcher too.
    So it is passed on only if the launcher has not ended a moment later: a second one would
    interrupt it while it cleans up.
    """
    while True:
        told = signal.sigwaitinfo(_SIGNALS)
        if told.si_signo == signal.SIGINT:
            sent = told.si_code == _SI_USER
            told = signal.sigtimedwait([signal.SIGCHLD], _GRACE) or told
            if told.si_signo == signal.SIGINT and not sent:
                continue
        if told.si_signo != signal.SIGCHLD:
            os.kill(pid, told.si_signo)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def note(rank: int, state: int) -> None:
    """Tell the supervisor of this job, if it has one, that the rank has begun, or has come to its
    end.
    """
    path, _, name = os.environ.get(FILE, "").partition(" ")
    try:
        # and no other process's file on another machine
        if os.readlink(path) == f"/memfd:{name} (deleted)":
            with open(path, "r+b", buffering=0) as endings:
                os.pwrite(endings.fileno(), _NOTE.pack(state, os.getpid()), rank * _NOTE.size)
    except OSError:
        return


def unended(notes: bytes, code: int) -> str:
    """Return the error if ranks have begun and never come to their end; else an empty text.

    Args:
        notes: of all ranks.
        code: the launcher's exit code. If a signal has ended a rank, the launcher has named its
            process.
    """
    endings = list(_NOTE.iter_unpack(notes))
    missing = {rank: pid for rank, (state, pid) in enumerate(endings) if state == BEGUN}
    if not missing:
        return ""
    some = (
        f"mnpar: of {len(endings)} ranks, {', '.join(map(str, missing))} never came to an end: one "
        "of them left without a word, as by C's _exit(0), or was killed, and MPICH killed the "
        "others. "
    )
    if code == _KILLED and len(missing) <= _SHOWN:
        pids = ", ".join([f"rank {rank} was {pid}" for rank, pid in missing.items()])
        return f"{some}MPICH names the process of that one above (PID): {pids}\n"
    return f"{some}mpiexec -disable-auto-cleanup lets them tell which it was\n"


def main(ranks: int, command: list[str]) -> int:
    """Run the launcher's command; return the exit code of the job."""
    name = f"mnpar-{os.urandom(8).hex()}"
    file = os.memfd_create(name)
    os.ftruncate(file, ranks * _NOTE.size)
    os.environ[FILE] = f"/proc/{os.getpid()}/fd/{file} {name}"
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    code = wait(start(command))
    notes = os.pread(file, ranks * _NOTE.size, 0)
    wrong = unended(notes, code) if code in (0, _KILLED) else ""
    if wrong and sys.stderr is not None:
        sys.stderr.write(wrong)
    return code or bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
