"""What an MPI job must neither leave behind (files in shared memory) nor hand on to child processes (the launcher's variables).

MPI libraries keep shared memory as files in ``/dev/shm``, and remove them only at a regular end: a job that is aborted leaves
megabytes there for ever. But a file that all ranks have mapped, or read, needs no name any more: it is unlinked then. And a
child process that imports mpi4py (a data loader started by ``spawn`` or ``forkserver``, a ``subprocess``) would take the
launcher's variables for its own, and hang or bring the job down. They are hidden from children; ``os.environ`` of the rank
itself keeps them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from pathlib import Path

from mnpar import supervisor

_SEGMENTS = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.", "/dev/shm/Intel_MPI_")
_MARKS = ("PMI", "HYDI_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_FILE_", "MPI_LOCAL")
_SETTINGS = ("PMIX_MCA_",)  # the user's, read when they are needed


def segments(pid: int | str = "self") -> list[str]:
    """The files in shared memory that MPI has mapped into a process."""
    found = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            name = line.split(None, 5)[-1].strip()
            if name.startswith(_SEGMENTS) and not name.endswith("(deleted)"):
                found.add(name)
    return sorted(found)


def launchers_file(launcher: int) -> list[str]:
    """The file by which MPICH's launcher describes the machine to its ranks, and which stays when a job is aborted.

    Its name is not passed on, but the launcher has it open.
    """
    found = []
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{launcher}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(file)
                if Path(name).name.startswith("hydra_hwloc_xmlfile_"):
                    found.append(name)
    return found


def fingerprint(names: list[str]) -> int:
    """A checksum of names: the same on ranks that have mapped the same files."""
    return zlib.crc32("\n".join(names).encode())


def remove(names: list[str]) -> None:
    """Unlink files; their memory lives as long as a process has it mapped."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(name)


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
