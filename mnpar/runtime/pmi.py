"""Notices at MPICH's launcher: by them ranks learn that one has ended before MPI began, on any
machine.

``MPI_Publish_name`` lets a launcher keep names, and tell them to any rank at any time, over the
connection that each process inherits from it (PMI 1, lines of text). A rank that is about to start
MPI publishes that it waits, then asks whether one has left; a rank that ends without MPI publishes
that it has left, and then asks whether one waits. So the one that comes second learns of the other,
and in a job whose ranks all come, or none of them, nobody learns anything.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat

from mnpar.runtime import cleanup

_WAITS, _LEFT = "mnpar_waits", "mnpar_left"
_LIMIT = 2.0  # s for a launcher to answer a rank that is about to end
_LONGEST = 1024  # bytes of an answer


class Notices:
    """The connection to the launcher, as long as no MPI library uses it.

    Args:
        number: of the file.

    Raises:
        OSError: it is none that this process has inherited.
    """

    def __init__(self, number: int) -> None:
        self._number, self._file = number, _socket(number)

    def job(self, limit: float | None = None) -> str:
        """Return the launcher's name of this job: those that it has spawned have the same launcher.

        Raises:
            OSError, KeyError: the launcher does not tell.
        """
        self._ask("init pmi_version=1 pmi_subversion=1", limit)
        return self._ask("get_my_kvsname", limit)["kvsname"]

    def machine_file(self, job: str) -> list[str]:
        """Return the file by which the launcher describes the machine to its ranks. The launcher
        makes it now; MPI would ask for it in a moment.
        """
        name = self._ask(f"get kvsname={job} key=PMI_hwloc_xmlfile", None).get("value", "")
        return [name] if cleanup.is_launchers(name) else []

    def one_has_left(self, rank: int) -> int | None:
        """Publish that this rank waits; return a rank that has left before, if one has. The
        question has no time limit, like MPI's own.
        """
        with contextlib.suppress(OSError, ValueError, KeyError):
            return self._publish(_WAITS, rank, _LEFT, None)
        return None

    def one_waits(self, rank: int) -> int | None:
        """Publish that this rank has left; return a rank that waits, if one does. If none does the
        connection is closed.
        """
        waits = None
        with contextlib.suppress(OSError, ValueError, KeyError):
            waits = self._publish(_LEFT, rank, _WAITS, _LIMIT)
        if waits is None:
            self.finalize()
        return waits

    def finalize(self) -> None:
        """Tell the launcher that the end of this process is no failure."""
        with contextlib.suppress(OSError, ValueError):
            self._ask("finalize", _LIMIT)

    def end_job(self) -> None:
        """Let the launcher end all ranks, this one too, in a moment."""
        with contextlib.suppress(OSError, ValueError):
            self._ask("init pmi_version=1 pmi_subversion=1", _LIMIT)
            self._ask("abort exitcode=1", 0)

    def _publish(self, mine: str, rank: int, other: str, limit: float | None) -> int | None:
        job = self.job(limit)
        # a second one is refused, and not needed
        self._ask(f"publish_name service={mine}_{job} port={rank}", limit)
        told = self._ask(f"lookup_name service={other}_{job}", limit)
        return int(told["port"]) if told.get("rc") == "0" else None

    def _ask(self, what: str, limit: float | None) -> dict[str, str]:
        """Return the answer of the launcher.

        Raises:
            OSError: there is none.
        """
        if _socket(self._number) != self._file:
            raise OSError("the connection is closed")
        os.write(self._number, f"cmd={what}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            more = (
                os.read(self._number, _LONGEST)
                if select.select([self._number], [], [], limit)[0]
                else b""
            )
            if not more:
                raise OSError(f"no answer to {what}")
            answer += more
        return dict([word.partition("=")[::2] for word in answer.decode(errors="replace").split()])


def _socket(number: int) -> tuple[int, int]:
    """Return the identity of the socket that a file is."""
    found = os.fstat(number)
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(f"file {number} is no connection")
    return found.st_dev, found.st_ino
