"""Ranks that are processes started by mpiexec: the only file that knows mpi4py.

No call here blocks: each is posted and polled (``Watch``). The calls that MPI offers only in a blocking form (making a group)
are made right after an exchange that has brought all their ranks to the same place.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import message
from mnpar.communicators.process import Process
from mnpar.communicators.reduction import UFUNCS, reduce_arrays
from mnpar.communicators.transport import ANY, BACKWARD, BLOCK, FORWARD, Waiting
from mnpar.communicators.watch import COMPLAINT
from mnpar.errors import LauncherError

_PIECE = 2**30  # bytes: no MPI library is asked for more at once
_GATHERED = 2**15  # bytes: an array of at most so many is gathered everywhere and reduced there, a larger one in parts
_DIRECT = 16  # ranks: with more, the libraries' trees win
_OPS = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PROD"}
_WORLD_SIZES = ("PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")


def launched_ranks() -> int:
    """How many ranks the launcher says it has started; 0 where no launcher is seen."""
    return max((int(os.environ[name]) for name in _WORLD_SIZES if os.environ.get(name, "").isdigit()), default=0)


def under_launcher() -> bool:
    """Whether an MPI launcher started this process, or the program has started MPI with several ranks."""
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is not None and loaded.Is_initialized() and not loaded.Is_finalized() and loaded.COMM_WORLD.Get_size() > 1:
        return True
    return launched_ranks() > 1


def load() -> Any:
    """mpi4py's MPI, started.

    Raises:
        LauncherError: mpi4py or the MPI library is missing, or the launcher belongs to another MPI.
    """
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.finalize = False  # the end is ours: mpi4py's would wait for ever for a rank that failed
            mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI
    except ImportError as error:
        raise LauncherError(
            "this job was started by an MPI launcher, but mpi4py is missing: pip install 'mnpar[mpi]'"
        ) from error
    except RuntimeError as error:
        raise LauncherError(
            "mpi4py finds no MPI library: pip install 'mnpar[mpi]', or load the machine's MPI and set MPI4PY_LIBMPI to its "
            f"libmpi.so ({str(error).splitlines()[0]})"
        ) from error
    told, size = launched_ranks(), MPI.COMM_WORLD.Get_size()
    if size == 1 and told > 1:
        library, own = (
            " ".join(MPI.Get_library_version().splitlines()[0].split(",")[0].split()),
            os.path.join(os.path.dirname(sys.executable), "mpiexec"),
        )
        raise LauncherError(
            f"the launcher started {told} ranks, but this one is alone: its MPI library ({library}) is not the launcher's. "
            f"Use the mpiexec beside this Python: {own}"
        )
    return MPI


def _numpys(dtype: Any, ufunc: Any) -> Callable[[Any, Any, Any], None]:
    """A numpy function as an MPI operation on buffers of this dtype."""

    def combine(one: Any, other: Any, _: Any) -> None:
        target = np.frombuffer(other, dtype)
        ufunc(np.frombuffer(one, dtype), target, out=target)

    return combine


class MpiTransport:
    """The transport of processes: two private duplicates of an MPI communicator, one for each lane."""

    name = "mpi"

    def __init__(self, process: Process, mpi_comm: Any, own: bool = False) -> None:
        self._process, self.MPI = process, process.MPI
        self.mpi_comm = mpi_comm
        self._own = own
        self.rank, self.size = mpi_comm.Get_rank(), mpi_comm.Get_size()
        self.tag_limit = min(self.MPI.COMM_WORLD.Get_attr(self.MPI.TAG_UB), 2**30)  # Open MPI tells it there only
        group = mpi_comm.Get_group()
        everyone = self.MPI.COMM_WORLD.Get_group()
        self._world_ranks = group.Translate_ranks(list(range(self.size)), everyone)
        self._others = tuple([rank for rank in self._world_ranks if rank != process.rank])
        self._lanes: list[Any] = []
        self._outbox: deque[tuple[Any, Array]] = deque()
        self._status = self.MPI.Status()
        self._label = f"{self._world_ranks} made"
        making = Waiting("making a communicator", message.call_site())
        for _ in range(2):
            lane, request = mpi_comm.Idup()
            self._wait(request.Test, making, self._label)
            self._lanes.append(lane)
        self._exchanges = [self._prepared(lane) for lane in self._lanes]
        self._place = len(process.transports)
        number = np.array([self._place])  # ranks may have made different communicators before: the first rank names it
        process.transports.append(self)
        self.bcast(number.view(np.uint8), 0, FORWARD, making)
        self._label = f"{self._world_ranks[0]}.{number[0]}"
        self._places: tuple[int, int, int, int] | None = None

    # ---- messages ----

    def post(self, frame: Array, dest: int, tag: int, lane: int) -> None:
        outbox = self._outbox
        while outbox and outbox[0][0].Test():
            outbox.popleft()
        comm = self._lanes[lane]
        if frame.nbytes <= _PIECE:
            outbox.append((comm.Isend(frame, dest, tag), frame))
            return
        outbox.append((comm.Isend(frame[: message.SIZE], dest, tag), frame))
        for start in range(message.SIZE, frame.nbytes, _PIECE):
            piece = frame[start : start + _PIECE]
            outbox.append((comm.Isend(piece, dest, self.tag_limit), piece))

    def fetch(self, source: int, tag: int, lane: int, waiting: Waiting) -> tuple[Array, int, int]:
        comm, status = self._lanes[lane], self._status
        its_source = self.MPI.ANY_SOURCE if source == ANY else source
        its_tag = self.MPI.ANY_TAG if tag == ANY else tag
        found: list[Any] = []

        def arrived() -> bool:
            letter = comm.Improbe(its_source, its_tag, status)
            if letter is None:
                return False
            found.append(letter)
            return True

        peers = self._others if source == ANY else (self._world_ranks[source],)
        self._process.watch.until(arrived, waiting, peers, "")
        source, tag = status.Get_source(), status.Get_tag()
        frame = np.empty(status.Get_count(self.MPI.BYTE), np.uint8)
        self._finish(found[0].Irecv(frame), waiting, peers)
        if frame.nbytes == message.SIZE:
            frame = self._fetch_pieces(frame, source, comm, waiting, peers)
        return frame, source, tag

    def complain(self, rank: int, text: str) -> None:
        self._process.tell(self._world_ranks[rank], COMPLAINT, text.encode())

    def _fetch_pieces(self, head: Array, source: int, comm: Any, waiting: Waiting, peers: tuple[int, ...]) -> Array:
        """The rest of a message of more than a piece; ``head`` itself if there is none."""
        nbytes = message.read_header(head.tobytes()).nbytes
        if message.SIZE + nbytes <= _PIECE:
            return head
        frame = np.empty(message.SIZE + nbytes, np.uint8)
        frame[: message.SIZE] = head
        for start in range(message.SIZE, frame.nbytes, _PIECE):
            self._finish(comm.Irecv(frame[start : start + _PIECE], source, self.tag_limit), waiting, peers)
        return frame

    def _finish(self, request: Any, waiting: Waiting, peers: tuple[int, ...]) -> None:
        if not request.Test():
            self._process.watch.until(request.Test, waiting, peers, "")

    def unreceived(self) -> list[tuple[int, int, str]]:
        """(source, tag, description) of the messages that have arrived and that nobody took."""
        found = []
        for comm in self._lanes:
            while (letter := comm.Improbe(self.MPI.ANY_SOURCE, self.MPI.ANY_TAG, self._status)) is not None:
                frame = np.empty(self._status.Get_count(self.MPI.BYTE), np.uint8)
                source, tag = self._status.Get_source(), self._status.Get_tag()
                request = letter.Irecv(frame)
                while not request.Test():
                    os.sched_yield()
                header = message.read_header(frame[: message.SIZE].tobytes())
                found.append((source, tag, f"{header.name} of {header.form} at {header.site}"))
        return found

    # ---- collectives ----

    def exchange(self, block: bytes, lane: int, waiting: Waiting) -> bytes:
        mine, whole, request = self._exchanges[lane]
        mine[:] = block
        if request is None:
            request = self._lanes[lane].Iallgather([mine, BLOCK, self.MPI.BYTE], [whole, BLOCK, self.MPI.BYTE])
        else:
            request.Start()
        self._wait(request.Test, waiting, f"{self._label} {lane} {waiting.seq}")
        return bytes(whole)

    def _prepared(self, lane: Any) -> tuple[bytearray, bytearray, Any]:
        """Buffers and request of the exchanges on a lane: made once where the library has persistent collectives (MPI 4)."""
        mine, whole = bytearray(BLOCK), bytearray(self.size * BLOCK)
        try:
            return mine, whole, lane.Allgather_init([mine, BLOCK, self.MPI.BYTE], [whole, BLOCK, self.MPI.BYTE])
        except NotImplementedError:
            return mine, whole, None

    def bcast(self, array: Array, root: int, lane: int, waiting: Waiting) -> None:
        for start in range(0, array.size, _PIECE):
            request = self._lanes[lane].Ibcast(array[start : start + _PIECE], root)
            self._wait(request.Test, waiting, f"{self._label} {lane} {waiting.seq} data")

    def allgather(self, array: Array, counts: list[int], lane: int, waiting: Waiting) -> Array:
        whole = np.empty(sum(counts), np.uint8)
        request = self._lanes[lane].Iallgatherv(array, [whole, counts])
        self._wait(request.Test, waiting, f"{self._label} {lane} {waiting.seq} data")
        return whole

    def reduce(self, array: Array, reduction: str, root: int | None, lane: int, waiting: Waiting) -> Array:
        if root is not None or self.size > _DIRECT:
            return self._reduce_by_mpi(array, reduction, root, lane, waiting)
        if array.nbytes <= _GATHERED:
            gathered = self.allgather(array.view(np.uint8), [array.nbytes] * self.size, lane, waiting).view(array.dtype)
            return reduce_arrays(list(gathered.reshape(self.size, -1)), reduction)
        total, length = np.empty_like(array), _PIECE // array.itemsize
        for start in range(0, array.size, length):
            self._reduce_in_parts(array[start : start + length], total[start : start + length], reduction, waiting)
        return total

    def _reduce_in_parts(self, array: Array, total: Array, reduction: str, waiting: Waiting) -> None:
        """Each rank reduces one part, in rank order, and gives it to the others.

        No rank receives more than two arrays' worth; numpy adds faster than the MPI libraries do; and all ranks, thread ranks
        too, get the same bits.
        """
        P, me, comm, tag, meeting = self.size, self.rank, self._lanes[BACKWARD], waiting.tag, f"{self._label} parts {waiting.seq}"
        others = [(me + step) % P for step in range(1, P)]
        parts = [slice(array.size * r // P, array.size * (r + 1) // P) for r in range(P)]
        mine = [array[parts[me]] if r == me else np.empty_like(total[parts[me]]) for r in range(P)]
        requests = [comm.Irecv(mine[r].view(np.uint8), r, tag) for r in others]
        requests += [comm.Isend(array[parts[r]].view(np.uint8), r, tag) for r in others]
        self._wait(lambda: self.MPI.Request.Testall(requests), waiting, meeting)
        total[parts[me]] = reduce_arrays(mine, reduction)
        requests = [comm.Irecv(total[parts[r]].view(np.uint8), r, tag) for r in others]
        requests += [comm.Isend(total[parts[me]].view(np.uint8), r, tag) for r in others]
        self._wait(lambda: self.MPI.Request.Testall(requests), waiting, meeting)

    def _reduce_by_mpi(self, array: Array, reduction: str, root: int | None, lane: int, waiting: Waiting) -> Array:
        """Sums of 16-bit floats are made in 32 bits; other byte orders in the machine's; times go as integers."""
        dtype = array.dtype
        if dtype.itemsize == 2 and dtype.kind in "fV":
            array = array.astype(np.float32)
        elif dtype.kind == "b":
            array = array.view(np.uint8)
        elif not dtype.isnative:
            array = array.astype(dtype.newbyteorder("="))
        op = self._operation(array.dtype, reduction)
        if dtype.kind in "mM":
            array = array.view(np.int64)
        total = np.empty_like(array)
        comm, length = self._lanes[lane], _PIECE // array.itemsize
        for start in range(0, array.size, length):
            part, out = array[start : start + length], total[start : start + length]
            request = comm.Iallreduce(part, out, op) if root is None else comm.Ireduce(part, out, op, root)
            self._wait(request.Test, waiting, f"{self._label} {lane} {waiting.seq} data")
        if dtype.kind in "bmM":
            total = total.view(dtype.newbyteorder("="))
        return total.astype(dtype, copy=False)

    def _operation(self, dtype: Any, reduction: str) -> Any:
        """MPI's operation; numpy's own for the maximum of what may be NaN (or NaT), which MPI drops or keeps by chance."""
        if reduction not in ("max", "min") or dtype.kind not in "fmM":
            return getattr(self.MPI, _OPS[reduction])
        form = np.dtype("M8[s]") if dtype.kind in "mM" else dtype  # their integers are ordered alike in all units
        operations = self._process.operations
        if (form, reduction) not in operations:
            operations[form, reduction] = self.MPI.Op.Create(_numpys(form, UFUNCS[reduction]), commute=True)
        return operations[form, reduction]

    # ---- the group ----

    def split(self, color: int | None, key: int) -> MpiTransport | None:
        comm = self.mpi_comm.Split(
            self.MPI.UNDEFINED if color is None else color, key
        )  # everybody is here: see Communicator.split
        return None if color is None else MpiTransport(self._process, comm, own=True)

    def places(self) -> tuple[int, int, int, int]:
        if self._places is None:
            names = self._gather_names(self.MPI.Get_processor_name())
            machines = list(dict.fromkeys(names))
            mine = names[self.rank]
            intra = [rank for rank, name in enumerate(names) if name == mine]
            self._places = intra.index(self.rank), len(intra), machines.index(mine), len(machines)
        return self._places

    def _gather_names(self, name: str) -> list[str]:
        raw = self.exchange(name.encode()[:BLOCK].ljust(BLOCK, b"\0"), 0, Waiting("naming the machines", message.call_site()))
        return [raw[start : start + BLOCK].rstrip(b"\0").decode() for start in range(0, len(raw), BLOCK)]

    def finalize(self) -> None:
        while self._outbox and self._outbox[0][0].Test():
            self._outbox.popleft()
        if not self._outbox:
            for comm, (_, _, request) in zip(self._lanes, self._exchanges, strict=True):
                if request is not None:
                    request.Free()
                comm.Free()
            self._lanes.clear()
            self._process.transports[self._place] = None
            if self._own:
                self.mpi_comm.Free()

    def _wait(self, ready: Callable[[], bool], waiting: Waiting, meeting: str) -> None:
        if not ready():
            self._process.watch.until(ready, waiting, self._others, meeting)
