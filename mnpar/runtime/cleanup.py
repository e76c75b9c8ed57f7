"""The cleanup after an MPI job, which must neither leave files in shared memory behind nor hand the
launcher's variables on to child processes.

MPI libraries keep shared memory as files in ``/dev/shm``, and remove them only at a regular end: a
job that is aborted leaves megabytes there for ever. But a file that all ranks have mapped, or read,
needs no name any more: it is unlinked then. Until then a process that outlives the rank
(:class:`Remover`) unlinks it if the rank is killed. And a child process that imports mpi4py (a data
loader started by ``spawn`` or ``forkserver``, a ``subprocess``) would take the launcher's variables
for its own, and hang or bring the job down. They are hidden from children; ``os.environ`` of the
rank itself keeps them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from pathlib import Path

from mnpar.runtime import supervisor

_SEGMENTS = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.", "/dev/shm/Intel_MPI_")
_MARKS = ("PMI", "HYDI_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_FILE_", "MPI_LOCAL")
_STDERR = 2
_SETTINGS = ("PMIX_MCA_",)  # the user's, read when they are needed


def segments(pid: int | str = "self") -> list[str]:
    """Return the files in shared memory that MPI has mapped into a process."""
    found = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            name = line.split(None, 5)[-1].strip()
            if name.startswith(_SEGMENTS) and not name.endswith("(deleted)"):
                found.add(name)
    return sorted(found)


def unfinished(pid: int | str = "self") -> list[str]:
    """Return the files in shared memory that UCX has made in a process, and must still map and
    unlink.
    """
    found = []
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(file)
                if name.startswith("/dev/shm/ucx_shm_") and not name.endswith("(deleted)"):
                    found.append(name)
    return found


def launchers_file(launcher: int) -> list[str]:
    """Return the file by which MPICH's launcher describes the machine to its ranks, and which stays
    when a job is aborted.

    The launcher does not pass its name on, but has it open.
    """
    found = []
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{launcher}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(file)
                if is_launchers(name):
                    found.append(name)
    return found


def is_launchers(name: str) -> bool:
    """Return whether a file has the name of a launcher's file."""
    return Path(name).name.startswith("hydra_hwloc_xmlfile_")


def fingerprint(names: list[str]) -> int:
    """Return a checksum of names: the same on ranks that have mapped the same files."""
    return zlib.crc32("\n".join(names).encode())


def remove(names: list[str]) -> None:
    """Unlink files; their memory lives as long as a process has it mapped."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(name)


_COLLECT = 'while IFS= read -r name; do [ "$name" ] || exit; set -- "$@" "$name"; done'


class Remover:
    """A process that removes files if this one ends, in any way, before it calls ``release``.

    It is a shell, which starts in a millisecond, that waits for the end of a pipe: in a session of
    its own, as launchers kill groups of processes, and without the files that this process has
    inherited, whose end others may wait for.

    Args:
        pattern: of names, with the shell's wildcards.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, pattern: str) -> None:
        wait, self._wake = os.pipe()
        try:
            inherited = [int(file) for file in os.listdir("/proc/self/fd")]
            inherited = [file for file in inherited if file > _STDERR and _is_inheritable(file)]
            self._pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", f'{_COLLECT}; exec rm -f {pattern} "$@"'],
                {"PATH": os.defpath},
                file_actions=[
                    *[(os.POSIX_SPAWN_CLOSE, file) for file in inherited],
                    (os.POSIX_SPAWN_DUP2, wait, 0),
                    *[
                        (os.POSIX_SPAWN_OPEN, file, os.devnull, os.O_WRONLY, 0)
                        for file in (1, _STDERR)
                    ],
                ],
                setsid=True,
            )
        except BaseException:
            os.close(self._wake)
            raise
        finally:
            os.close(wait)

    def add(self, name: str) -> None:
        """Remove this file too."""
        with contextlib.suppress(OSError):
            os.write(self._wake, os.fsencode(name) + b"\n")

    def release(self) -> None:
        """End the process: nothing is left to remove, or somebody else removes it."""
        with contextlib.suppress(OSError):  # somebody has killed it, or waited for it
            os.write(self._wake, b"\n")
        os.close(self._wake)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _is_inheritable(file: int) -> bool:
    try:
        return os.get_inheritable(file)
    except OSError:  # it has been closed
        return False


def job_segments(job: str) -> str:
    """Return a pattern, with the shell's wildcards, of the files in shared memory that ranks of a
    job open while MPICH starts.

    Args:
        job: MPICH's name of it (of its "key value space"). The files' names have its hash (32-bit
            FNV-1a).
    """
    world = 0x811C9DC5
    for byte in job.encode():
        world = (world ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"/dev/shm/mpich_*_{world:x}_*"


def hide_launcher() -> None:
    """Remove the launcher's variables from the environment that child processes inherit."""
    for name in os.environ:
        if name.startswith((*_MARKS, supervisor.FILE)) and not name.startswith(_SETTINGS):
            os.unsetenv(name)


def remove_session(launcher: int) -> None:
    """Remove the folder of Open MPI's launcher, which has died."""
    folder = os.environ.get("PMIX_SERVER_TMPDIR", "")
    if folder.endswith(f"/ompi.{launcher}"):
        shutil.rmtree(folder, ignore_errors=True)
