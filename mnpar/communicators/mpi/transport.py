"""Ranks that are processes of an MPI job.

No call here blocks: each is posted and polled (``DeadlockDetector``). Calls that MPI offers only in
a blocking form (making a group, or shared memory) are made right after an exchange that has brought
all their ranks to the same place.

Matches of collectives are a persistent allgather, set up once; before MPI 4, and with Intel MPI, a
new one each time. (Intel MPI's persistent one (2021.18) sends at every start what its buffer held
at the first one, between 2, 4, 8, … ranks.)
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import wire
from mnpar.communicators.matching import BLOCK, MatchBuffer, MatchBuffers, block_sizes
from mnpar.communicators.mpi.reduction import PIECE, Reductions
from mnpar.communicators.operation import complete, wait
from mnpar.communicators.shared_memory import MORE_MEMORY, SHM, WindowMemory, free_memory
from mnpar.communicators.shared_sum import SharedSum
from mnpar.communicators.transport import (
    KINDS,
    PIECE_OF_MESSAGE,
    PIECE_OF_PART,
    Envelope,
    Traffic,
    numbered_tag,
)
from mnpar.communicators.waiting import (
    ANY,
    BACKWARD,
    FORWARD,
    Pending,
    Steps,
    Waiting,
    nothing,
    on_communicator,
    on_ranks,
    unfinished,
    untaken,
)
from mnpar.errors import DeadlockError, LauncherError, MismatchError
from mnpar.runtime.callsite import call_site
from mnpar.runtime.deadlock import COMPLAINT, polling
from mnpar.runtime.process import Process
from mnpar.runtime.system import give_way

_UNFINISHED = 1.0  # s


class MpiTransport(Reductions):
    """The transport of processes: two private duplicates of an MPI communicator, one for each
    lane.
    """

    name = "mpi"
    in_one_process = False
    at_once = 16
    shared_sum: SharedSum | None = None
    lost_gradients = 0  # gradients with values among the messages that ``unreceived`` names

    def __init__(self, process: Process, mpi_comm: Any, own: bool = False) -> None:
        self.process, self.MPI = process, process.MPI
        self.mpi_comm = mpi_comm
        self.active = process.active
        self.traffic = Traffic()
        self.in_use = 0
        self._own = own
        self.rank = mpi_comm.Get_rank()
        self.size = mpi_comm.Get_size()
        # Open MPI tells it there only
        self.tag_limit = min(self.MPI.COMM_WORLD.Get_attr(self.MPI.TAG_UB), 2**30)
        group = mpi_comm.Get_group()
        everyone = self.MPI.COMM_WORLD.Get_group()
        self._world_ranks = group.Translate_ranks(list(range(self.size)), everyone)
        if strangers := [
            rank for rank, known in enumerate(self._world_ranks) if known == self.MPI.UNDEFINED
        ]:
            raise LauncherError(
                f"ranks {strangers} of the {self.size} of this mpi_comm belong to another MPI "
                "job, joined by connect or "
                "spawn: a communicator has ranks of one job, which one launcher has started"
            )
        self._machines = [process.machines[rank] for rank in self._world_ranks]
        self.apart = len(set(self._machines)) > 1
        # Open MPI prints errors where it makes memory for that, and its ranks can go on without
        # lost ones
        self.can_sum_in_memory = (
            self.size > 1 and not self.apart and self.MPI.get_vendor()[0] != "Open MPI"
        )
        self._others = tuple([rank for rank in self._world_ranks if rank != process.rank])
        self.lanes: list[Any] = []
        self._outbox = process.outbox
        # without a copy, by requests that somebody waits for
        self._lent: deque[tuple[Any, Array]] = deque()
        self._status = self.MPI.Status()
        self._byte = self.MPI.BYTE
        self.label = f"{self._world_ranks} made"
        making = Waiting("making a communicator", call_site())
        for _ in range(2):
            lane, request = mpi_comm.Idup()
            wait(self, Pending(request.Test, nothing, making, self.label))
            self.lanes.append(lane)
        self._all_buffers = [
            [MpiMatchBuffer(self, lane, size) for size in block_sizes(self.size)]
            for lane in self.lanes
        ]
        self.match_buffers = (
            MatchBuffers(self._all_buffers[FORWARD]),
            MatchBuffers(self._all_buffers[BACKWARD]),
        )
        self._place = len(process.transports)
        # ranks may have made different communicators before: the first rank names it
        number = np.array([self._place])
        process.transports.append(self)
        complete(self, self.bcast(number.view(np.uint8), 0, FORWARD, making))
        self.label = f"{self._world_ranks[0]}.{number[0]}"
        self._machine: Any = None  # the ranks on this one, once they share memory

    @property
    def world_ranks(self) -> list[int]:
        return self._world_ranks  # type: ignore[no-any-return]

    # ---- messages ----

    def post(self, frame: Array, dest: int, tag: int, lane: int) -> None:
        nbytes = frame.nbytes
        if nbytes <= PIECE:
            request = self.lanes[lane].Isend((frame, nbytes, self._byte), dest, tag)
            if not request.Test():
                self._outbox.keep(self, dest, request, frame)
        else:
            for request, piece in self._send_apart(
                frame[: wire.SIZE], frame[wire.SIZE :], dest, tag, lane
            ):
                self._outbox.keep(self, dest, request, piece)

    def post_rendezvous(
        self, header: bytes, body: Array, dest: int, tag: int, lane: int, waiting: Waiting
    ) -> Pending:
        self._sweep()
        sent = self._send_apart(header, body, dest, tag, lane)
        self._lent.extend(sent)
        return Pending(self._test([request for request, _ in sent]), self._sweep, waiting)

    def _sweep(self) -> None:
        """Forget the buffers whose messages MPI has sent."""
        lent = self._lent
        while lent and lent[0][0].Test():
            lent.popleft()

    def _send_apart(
        self, head: bytes | Array, body: Array, dest: int, tag: int, lane: int
    ) -> list[tuple[Any, Array]]:
        """Start sending a header, and then what follows it in pieces; the requests of the pieces,
        and these.
        """
        rest_tag, _ = self._following(head)
        request = self.lanes[lane].Isend((head, wire.SIZE, self._byte), dest, tag)
        if not request.Test():
            self._outbox.keep(self, dest, request, head)
        isend = self.lanes[BACKWARD].Isend
        return [
            (isend((piece, piece.nbytes, self._byte), dest, rest_tag), piece)
            for piece in self._cut(body)
        ]

    def _following(self, head: bytes | Array) -> tuple[int, int]:
        """Return the tag of the pieces that follow a header, which no other message under way has,
        and the number of their bytes.
        """
        of_send, order, seq, nbytes = wire.what_follows(head)
        return numbered_tag(
            self.tag_limit, seq, order, PIECE_OF_MESSAGE if of_send else PIECE_OF_PART
        ), nbytes

    def _test(self, requests: list[Any]) -> Callable[[], bool]:
        """Return a function that returns whether all of the requests are done."""
        return (
            requests[0].Test if len(requests) == 1 else lambda: self.MPI.Request.Testall(requests)
        )

    def wait(self, pending: Pending) -> None:
        peer = pending.waiting.peer
        peers = self._others if peer is None or peer == ANY else (self._world_ranks[peer],)
        if self.shared_sum is not None and pending.meeting and pending.waiting.order == 0:
            self.shared_sum.elsewhere(pending.waiting.seq)
        try:
            self.process.deadlocks.until(
                pending.ready,
                pending.waiting,
                peers,
                pending.meeting,
                partial(self._beside, pending.waiting),
            )
        except BaseException:
            # MPI may yet write what it awaited: the memory must not become another array's
            self.process.given_up.append(pending.ready)
            raise

    def _beside(self, waiting: Waiting) -> str:
        """Describe the ranks and the communicator of a wait, where its text does not name them, and
        the first message that has come and is not awaited.
        """
        process = self.process
        where = self._named()
        whom = waiting.beside(self._world_ranks, process.rank, process.size) + where
        open_ones = [one for one in process.transports if one is not None and one is not self]
        for transport in (self, *open_ones):
            for lane, comm in enumerate(transport.lanes):
                if comm.Iprobe(self.MPI.ANY_SOURCE, self.MPI.ANY_TAG, self._status):
                    source = transport.world_ranks[self._status.Get_source()]
                    what = (
                        f"a message with tag {self._status.Get_tag()}"
                        if lane == FORWARD
                        else "a gradient or a part of a collective"
                    )
                    there = transport._named() or on_ranks(transport.world_ranks)
                    there = "" if transport is self else there
                    return (
                        f"{whom}; {what} from rank {source} has come{there}, which nobody has "
                        "received"
                    )
        return whom

    def _named(self) -> str:
        """Return the communicator's name, where another one has the same ranks."""
        known = [one.world_ranks for one in self.process.transports if one is not None]
        return on_communicator(self.label) if known.count(self._world_ranks) > 1 else ""

    def pause(self) -> None:
        give_way()

    def go_on(self) -> bool:
        """Let MPI make progress with the messages under way; return False."""
        return self.lanes[BACKWARD].Iprobe(self.MPI.ANY_SOURCE, self.tag_limit) and False

    def probe(self, source: int, tag: int, lane: int) -> Envelope | None:
        source = self.MPI.ANY_SOURCE if source == ANY else source
        handle = self.lanes[lane].Improbe(
            source, self.MPI.ANY_TAG if tag == ANY else tag, self._status
        )
        return (
            None
            if handle is None
            else Envelope(self._status.Get_source(), self._status.Get_tag(), self._received(handle))
        )

    def try_recv(
        self, source: int, tag: int, lane: int, waiting: Callable[[], Waiting]
    ) -> tuple[Array, int, int] | None:
        source = self.MPI.ANY_SOURCE if source == ANY else source
        tag = self.MPI.ANY_TAG if tag == ANY else tag
        improbe, status = self.lanes[lane].Improbe, self._status
        for poll in range(2 * polling.spins):
            if (handle := improbe(source, tag, status)) is not None:
                break
            if poll > polling.spins:
                give_way()
        else:
            return None
        source = status.Get_source()
        tag = status.Get_tag()
        frame, request = self._received(handle)
        if not request.Test():
            wait(self, Pending(request.Test, nothing, waiting()))
        if frame.nbytes == wire.SIZE:
            frame = complete(self, self._rest(frame, source, waiting))
        return frame, source, tag

    def _received(self, handle: Any) -> tuple[Array, Any]:
        """Return memory for the message that was probed last, and the request that fills it."""
        nbytes = self._status.Get_count(self._byte)
        frame = np.empty(nbytes, np.uint8)
        # mpi4py need not find out what it is: that takes 1 µs
        return frame, handle.Irecv((frame, nbytes, self._byte))

    def read(self, envelope: Envelope, lane: int, waiting: Waiting) -> Steps[Array]:
        frame, request = envelope.handle
        if not request.Test():
            yield Pending(request.Test, nothing, waiting)
        return (
            frame
            if frame.nbytes > wire.SIZE
            else (yield from self._rest(frame, envelope.source, lambda: waiting))
        )

    def _rest(self, head: Array, source: int, waiting: Callable[[], Waiting]) -> Steps[Array]:
        """Return the message whose header has come alone."""
        tag, nbytes = self._following(head)
        if nbytes == 0:
            return head
        frame = np.empty(wire.SIZE + nbytes, np.uint8)
        frame[: wire.SIZE] = head
        irecv = self.lanes[BACKWARD].Irecv
        done = self._test(
            [
                irecv((piece, piece.nbytes, self._byte), source, tag)
                for piece in self._cut(frame[wire.SIZE :])
            ]
        )
        if not done():
            yield Pending(done, nothing, waiting())
        return frame

    def complain(self, rank: int, text: str) -> None:
        self.process.tell(self._world_ranks[rank], COMPLAINT, text.encode())

    def unreceived(self) -> list[str]:
        """Return the messages that have arrived and that nobody took, and the operations that
        nobody waited for and that do not end, in words. All ranks call it, when they are done.
        """
        me = self.process.rank
        found = [unfinished(me, str(one.waiting)) for one in self._unfinished()]
        for lane, comm in enumerate(self.lanes):
            probe = partial(comm.Improbe, self.MPI.ANY_SOURCE, self.MPI.ANY_TAG, self._status)
            # MPICH looks first, and takes in what has come then
            while envelope := probe() or probe():
                frame = np.empty(self._status.Get_count(self.MPI.BYTE), np.uint8)
                source = self._status.Get_source()
                tag = self._status.Get_tag()
                request = envelope.Irecv(frame)
                while not request.Test():
                    give_way()
                # these follow a header
                if lane == FORWARD or tag % len(KINDS) not in (
                    PIECE_OF_MESSAGE,
                    PIECE_OF_PART,
                ):
                    header = wire.read_header(frame)
                    self.lost_gradients += header.order > 0 and header.kind != wire.NOTHING
                    found.append(untaken(me, self._world_ranks[source], tag, header.text))
        return found

    def _unfinished(self) -> list[Any]:
        """Return this transport's operations under way that do not end though all ranks go on with
        them for a while.
        """
        deadline = time.monotonic() + _UNFINISHED
        while True:
            mine = [one for one in self.active if one.belongs_to(self)]
            if not mine or time.monotonic() > deadline:
                return mine
            for one in tuple(self.active):
                one.step()
            give_way()

    # ---- collectives ----

    def exchange(self, block: bytes, lane: int, waiting: Waiting) -> Pending:
        size = len(block)
        mine = bytearray(block)
        whole = bytearray(self.size * size)
        request = self.lanes[lane].Iallgather(
            [mine, size, self.MPI.BYTE], [whole, size, self.MPI.BYTE]
        )
        return Pending(request.Test, partial(bytes, whole), waiting, self.meeting(waiting, "later"))

    def maximum(self, words: Array, lane: int, waiting: Waiting) -> Pending:
        largest = np.empty_like(words)
        request = self.lanes[lane].Iallreduce(words, largest, self.MPI.MAX)
        return Pending(request.Test, lambda: largest, waiting, self.meeting(waiting, "compared"))

    def meet(self, thing: Any, waiting: Waiting, join: Callable[[list[Any]], list[Any]]) -> Pending:
        raise NotImplementedError  # not in one process

    def bcast(self, array: Array, root: int, lane: int, waiting: Waiting) -> Steps[None]:
        for start in range(0, array.size, PIECE):
            request = self.lanes[lane].Ibcast(array[start : start + PIECE], root)
            yield Pending(request.Test, nothing, waiting, self.meeting(waiting, "data"))

    # ---- the group ----

    @property
    def _group(self) -> Any:
        """The communicator that groups are made from: nothing else goes on there, unless it is the
        user's, who may have freed it.
        """
        return self.mpi_comm or self.lanes[FORWARD]

    def split(self, color: int | None, key: int) -> MpiTransport | None:
        try:
            # all are here: see Communicator.split
            with self.process.blocking("split", self._world_ranks):
                comm = self._group.Split(self.MPI.UNDEFINED if color is None else color, key)
            return None if color is None else MpiTransport(self.process, comm, own=True)
        except self.MPI.Exception as error:
            error.add_note(
                "if there are too many: groups of before go by `with comm.split(...) as "
                "group:` or group.finalize()"
            )
            raise

    def places(self) -> tuple[int, int, int, int]:
        machines = list(dict.fromkeys(self._machines))
        mine = self._machines[self.rank]
        intra = [rank for rank, name in enumerate(self._machines) if name == mine]
        return intra.index(self.rank), len(intra), machines.index(mine), len(machines)

    def _all_come(self, block: bytes = bytes(BLOCK)) -> bytes:
        """Wait for all ranks, before a call that blocks in MPI, or that writes memory which others
        read. Return the blocks of all ranks.
        """
        pending = self.exchange(block, 0, Waiting("sharing memory", call_site()))
        wait(self, pending)
        whole: bytes = pending.value()
        return whole

    def _check_memory(self, nbytes: int) -> None:
        """Wait for all ranks; raise MemoryError on all of them if a machine has less to share."""
        free = free_memory()
        left = 2**62 if free is None else free
        whole = self._all_come(left.to_bytes(8, "little"))
        for rank in range(self.size):
            left = int.from_bytes(whole[8 * rank : 8 * rank + 8], "little")
            if left < nbytes:
                raise MemoryError(
                    f"rank {self.rank}, {call_site()}: {nbytes / 2**20:.1f} MiB are to be shared "
                    f"by the ranks of each machine, and {SHM} has {left / 2**20:.1f} left on that "
                    f"of rank {rank}: {MORE_MEMORY}"
                )

    def share(self, nbytes: int) -> WindowMemory:
        place = self.places()
        if self._machine is None:
            with self.process.blocking("sharing memory", self._world_ranks):
                self._machine = self._group.Split(place[2], self.rank)
        self._check_memory(nbytes)
        with self.process.blocking("sharing memory", self._world_ranks):
            window = self.MPI.Win.Allocate_shared(
                max(nbytes, 1) if place[0] == 0 else 0, 1, comm=self._machine
            )
        memory = WindowMemory(self.MPI, window, place[0] == 0)
        memory.sync()
        self._all_come()  # it is filled: nobody's first writes come before
        memory.sync()
        return memory

    def finalize(self) -> None:
        if self.shared_sum is not None:
            self._all_come()
            self.shared_sum.free()
            self.shared_sum = None
        self._sweep()
        if found := self.unreceived():
            raise MismatchError(
                "a communicator that is finalized has messages which nobody took:\n  "
                + "\n  ".join(found)
            )
        if not self._lent and self._outbox.is_empty(self):
            for comm, buffers in zip(self.lanes, self._all_buffers, strict=True):
                for buffer in buffers:
                    buffer.free()
                comm.Free()
            self.lanes.clear()
            self.process.transports[self._place] = None
            if self._machine is not None:
                self._machine.Free()
            if self._own and self.mpi_comm:
                self.mpi_comm.Free()

    # ---- going on without ranks that are lost: User Level Failure Mitigation, a part of Open MPI
    # ----

    @property
    def survives(self) -> bool:
        # mpiexec --with-ft ulfm sets it
        told = os.environ.get("OMPI_MCA_mpi_ft_enable", "0")  # noqa: SIM112
        return told.lower() in ("1", "true") and hasattr(self.mpi_comm, "Shrink")

    def revoke(self) -> None:
        for lane in self.lanes:
            lane.Revoke()
        self.process.forget(self, self._place)

    def lost(self, error: BaseException) -> bool:
        MPI = self.MPI
        if isinstance(error, MPI.Exception):
            # (Open MPI at times makes ERR_OTHER of them in a collective under way. An error of this
            # rank alone is raised all the same, as nobody is lost.)
            return error.Get_error_class() in (
                MPI.ERR_PROC_FAILED,
                MPI.ERR_PROC_FAILED_PENDING,
                MPI.ERR_REVOKED,
                MPI.ERR_OTHER,
            )
        return isinstance(error, DeadlockError)  # the watch has seen sooner that a process is gone

    def agree(self, well: bool) -> bool:
        flag = np.array([well], np.intc)
        try:
            self.process.until_done(self._group.Iagree(flag))
        except self.MPI.Exception as error:
            if not self.lost(error):
                raise
            return False
        return bool(flag[0])

    def survivors(self, well: bool) -> MpiTransport | None:
        # all that are left are here, since they have agreed that some are lost
        left = self._group.Shrink()
        group = left.Get_group()
        everyone = self.MPI.COMM_WORLD.Get_group()
        there = group.Translate_ranks(list(range(left.Get_size())), everyone)
        self.process.lose([rank for rank in self._world_ranks if rank not in there])
        return MpiTransport(self.process, left, own=True).split(0 if well else None, self.rank)


_GIVEN_UP = (
    "rank {}: {} ended in an error, and the other ranks may come to it yet, so nothing else "
    "can take place on this "
    "communicator: let the error end the job, or create another communicator on all ranks"
)


class MpiMatchBuffer(MatchBuffer):
    """The memory of the matches of one size on one lane of a transport of processes."""

    def __init__(self, transport: Any, lane: Any, size: int) -> None:
        super().__init__(size, transport.size)
        self.whole = bytearray(size * transport.size)
        self._transport, BYTE = transport, transport.MPI.BYTE
        buffers = [self.mine, size, BYTE], [self.whole, size, BYTE]
        self._request: Any = None
        self._start: Any = partial(self._start_anew, lane, buffers)
        self._start_maximum, self._max = lane.Iallreduce, transport.MPI.MAX
        if transport.MPI.get_vendor()[0] == "Intel MPI":
            return
        with contextlib.suppress(NotImplementedError):
            self._request = lane.Allgather_init(*buffers)
            self._start = self._request.Start
            self._test = self._request.Test

    def _start_anew(self, lane: Any, buffers: Any) -> None:
        self._test = lane.Iallgather(*buffers).Test

    def exchange(self) -> bool:
        self._start()
        return self._poll(self._test)

    def _poll(self, test: Callable[[], bool]) -> bool:
        """Return whether a request is done after a short time of polling."""
        for poll in range(1 if self._transport.active else 2 * polling.spins):
            if test():
                return True
            if poll > polling.spins:
                give_way()
        return False

    def wait(self, waiting: Waiting) -> None:
        self._wait_for(self._test, waiting)

    def maximum(self, words: Array, waiting: Waiting) -> Array:
        largest = np.empty_like(words)
        test = self._start_maximum(words, largest, self._max).Test
        if not self._poll(test):
            self._wait_for(test, waiting)
        return largest

    def _wait_for(self, test: Callable[[], bool], waiting: Waiting) -> None:
        try:
            wait(
                self._transport,
                Pending(test, nothing, waiting, self._transport.meeting(waiting)),
            )
        except BaseException:
            # the allgather goes on in these buffers: no other one may start there
            self._start = self._start_maximum = partial(self._refuse, waiting)
            raise

    def _refuse(self, waiting: Waiting, *_: Any) -> None:
        raise DeadlockError(_GIVEN_UP.format(self._transport.rank, waiting))

    def free(self) -> None:
        """Free MPI's persistent request, unless it was given up and is still under way."""
        if self._request is not None and self._request.Test():
            self._request.Free()
