"""The profiler: records what each rank computes and sends, and for whom it waits.

Patching methods is the one way that costs nothing while nobody profiles. While ``mnpar.profile``
runs, the methods through which every function, message and wait goes are replaced by methods that
also record times; afterwards the original ones are put back. Each rank records times of its own
clock; the offsets of the clocks are measured by short messages before and after (Cristian 1989),
and the times are corrected by them.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from mnpar.communicators.communicator import Communicator
from mnpar.communicators.create import create_communicator
from mnpar.communicators.mailbox import Mailbox
from mnpar.communicators.mpi.transport import MpiTransport
from mnpar.communicators.threads.transport import ThreadTransport
from mnpar.communicators.waiting import ANY
from mnpar.communicators.wire import Call
from mnpar.function_node import FunctionNode
from mnpar.optimizers import GradientMethod
from mnpar.parallel.pipeline.step import Step
from mnpar.profiling.timeline import Event, Timeline
from mnpar.runtime.callsite import call_site
from mnpar.serializers.atomic import naming_path

Clock = Callable[[], float]
_STATM = "/proc/self/statm"  # Linux: pages of the process; the second number are those in memory
_ROUNDS = 20  # messages there and back; the quickest one counts


class Recorder:
    """The events that a rank records.

    Args:
        clock: seconds since any moment.

    Attributes:
        sites: the source lines of functions, by their numbers.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.events: list[Event] = []
        self.sites: dict[int, str] = {}
        self._pages = os.open(_STATM, os.O_RDONLY) if os.path.exists(_STATM) else -1

    def span(self, kind: str, start: float, described: Described) -> None:
        """Record an event that began at ``start`` and ends now."""
        end = self.clock()
        memory = self.memory() if kind in _COMPUTES else 0
        name, peer, detail, site, nbytes = described
        self.events.append(Event(kind, name, start, end, peer, detail, site, nbytes, memory))

    def memory(self) -> int:
        """Return the bytes of memory that the rank's process uses; 0 where that is not known."""
        if self._pages < 0:
            return 0
        return int(os.pread(self._pages, 100, 0).split()[1]) * mmap.PAGESIZE

    def close(self) -> None:
        """End the recording."""
        if self._pages >= 0:
            os.close(self._pages)
            self._pages = -1


_recorder: ContextVar[Recorder | None] = ContextVar("mnpar.recorder", default=None)
_COMPUTES = ("forward", "backward", "update")  # kinds of events after which memory is read


class Described(NamedTuple):
    """A description of an event: see :class:`mnpar.profiling.timeline.Event`."""

    name: str
    peer: int | None = None
    detail: str = ""
    site: str = ""
    nbytes: int = 0


# ---- the methods that are replaced ----


def _spanning(kind: str, describe: Callable[[Any, Any, Any], Described]) -> Callable[[Any], Any]:
    """Return a wrapper that records when a method began and ended; ``describe`` gets the object,
    the arguments and the result.
    """

    def around(old: Any) -> Any:
        def method(self: Any, *args: Any) -> Any:
            if (recorder := _recorder.get()) is None:
                return old(self, *args)
            start = recorder.clock()
            result = old(self, *args)
            recorder.span(kind, start, describe(self, args, result))
            return result

        return method

    return around


def _receiving(describe: Callable[[Any, Any, Any], Described]) -> Callable[[Any], Any]:
    """Return a wrapper of a method that receives in steps: it records the moment in which the
    message is there.
    """

    def around(old: Any) -> Any:
        def steps(self: Mailbox, *args: Any) -> Any:
            result = yield from old(self, *args)
            if recorder := _recorder.get():
                recorder.span("recv", recorder.clock(), describe(self, args, result))
            return result

        return steps

    return around


def _applied(function: FunctionNode, args: Any, ys: Any) -> Described:
    site = call_site()
    if (recorder := _recorder.get()) is not None:
        recorder.sites[function.number] = site
    arrays = [y.array for y in ys if y.array is not None]
    shapes = " ".join([str(array.shape) for array in arrays])
    return Described(type(function).__name__, None, shapes, site, _bytes_of(arrays))


def _backward(function: FunctionNode, args: Any, result: None) -> Described:
    recorder = _recorder.get()
    site = "" if recorder is None else recorder.sites.get(function.number, "")
    return Described(type(function).__name__, site=site)


def _waited(transport: Any, args: Any, result: None) -> Described:
    waiting = args[0].waiting
    peer = None if waiting.peer in (None, ANY) else transport.world_ranks[waiting.peer]
    return Described(waiting.what, peer, waiting.site, waiting.site)


def _message(
    box: Mailbox, call: Call, peer: int, out: bool, seq: int, nbytes: int, site: str
) -> Described:
    """Return a message, with a text that is the same at both ends.

    ``site``: of its sender.
    """
    ranks = box.transport.world_ranks
    ends = (
        (ranks[box.transport.rank], ranks[peer])
        if out
        else (ranks[peer], ranks[box.transport.rank])
    )
    text = " ".join(map(str, (*ends, box.order, seq, site)))
    return Described(call.name, ranks[peer], text, call.site, nbytes)


def _sent(box: Mailbox, args: Any, seq: int) -> Described:
    x, call, dest = args[:3]
    return _message(box, call, dest, True, seq, _bytes_of(x), call.site)


def _received(box: Mailbox, args: Any, got: Any) -> Described:
    value, header, source, _ = got
    return _message(box, args[3](), source, False, header.seq, _bytes_of(value), header.site)


def _sent_in_exchange(box: Mailbox, args: Any, result: None) -> Described:
    frame, dest, seq = args
    return _message(box, _EXCHANGE, dest, True, seq, frame.nbytes, "exchange")


def _received_in_exchange(box: Mailbox, args: Any, got: Any) -> Described:
    call, source, seq = args
    return _message(box, call, source, False, seq, _bytes_of(got[0]), "exchange")


def _bytes_of(x: Any) -> int:
    """Return the bytes of an array, or of those in a container."""
    if isinstance(x, dict):
        return _bytes_of(list(x.values()))
    if isinstance(x, tuple | list):
        return sum([_bytes_of(one) for one in x])
    return int(getattr(x, "nbytes", 0))


_EXCHANGE = Call("exchange", "")


class _Place(NamedTuple):
    owner: type
    name: str
    around: Callable[[Any], Any]


_PLACES = (
    _Place(FunctionNode, "apply", _spanning("forward", _applied)),
    _Place(FunctionNode, "vjp", _spanning("backward", _backward)),
    _Place(MpiTransport, "wait", _spanning("wait", _waited)),
    _Place(ThreadTransport, "wait", _spanning("wait", _waited)),
    _Place(Mailbox, "send", _spanning("send", _sent)),
    _Place(Mailbox, "_read", _spanning("recv", _received)),
    _Place(Mailbox, "send_exchange", _spanning("send", _sent_in_exchange)),
    _Place(Mailbox, "recv_exchange", _receiving(_received_in_exchange)),
    _Place(Step, "act", _spanning("stage", lambda step, a, _: Described(" ".join(map(str, a))))),
    _Place(
        GradientMethod,
        "_change",
        _spanning("update", lambda optimizer, a, _: Described(type(optimizer).__name__)),
    ),
)

_lock = threading.Lock()
_olds: list[Any] = []  # the methods that were replaced
_running = [0]  # how many profiles: ranks can be threads


def _install() -> None:
    with _lock:
        _running[0] += 1
        if _running[0] == 1:
            _olds.extend([place.owner.__dict__[place.name] for place in _PLACES])
            for place, old in zip(_PLACES, _olds, strict=True):
                setattr(place.owner, place.name, place.around(old))


def _uninstall() -> None:
    with _lock:
        _running[0] -= 1
        if _running[0] == 0:
            for place, old in zip(_PLACES, _olds, strict=True):
                setattr(place.owner, place.name, old)
            _olds.clear()


# ---- clocks ----


def clock_offset(comm: Communicator, clock: Clock) -> tuple[float, float]:
    """Return how far this rank's clock is ahead of rank 0's; all ranks call it.

    Rank 0 asks each rank for its time, many times, and takes the answer with the shortest round
    trip: the clock was read in the middle of that, give or take half of it. An offset below this
    error is taken for 0, which it is on one machine.

    Returns:
        When it was measured, by this clock, and the seconds.
    """
    mine = 0.0
    for rank in range(1, comm.size):
        if comm.rank == 0:
            answers = []
            for _ in range(_ROUNDS):
                asked = clock()
                comm.send_obj(None, rank)
                its = comm.recv_obj(rank)
                back = clock()
                answers.append((back - asked, its - (asked + back) / 2))
            way, offset = min(answers)
            comm.send_obj(0.0 if abs(offset) <= way / 2 else offset, rank)
        elif comm.rank == rank:
            for _ in range(_ROUNDS):
                comm.recv_obj(0)
                comm.send_obj(clock(), 0)
            mine = comm.recv_obj(0)
    return clock(), mine


def _corrected(
    events: list[Event], before: tuple[float, float], after: tuple[float, float]
) -> list[Event]:
    """Return the events by rank 0's clock: the offset is taken to change steadily between the two
    measurements.
    """
    drift = (after[1] - before[1]) / max(after[0] - before[0], 1e-9)

    def right(t: float) -> float:
        return t - before[1] - drift * (t - before[0])

    return [event._replace(start=right(event.start), end=right(event.end)) for event in events]


@contextlib.contextmanager
def profile(
    out: str | Path = "result",
    comm: Communicator | None = None,
    clock: Clock = time.perf_counter,
    *,
    picture: bool = True,
) -> Iterator[Timeline]:
    """Record what all ranks do inside a ``with`` block; all of them enter and leave it.

    Afterwards rank 0 writes ``timeline.json``, to be opened in Perfetto (ui.perfetto.dev) or in
    Chrome (about:tracing): each rank's functions, waits, messages (as arrows) and the actions of a
    pipeline; and, where matplotlib is installed, the picture ``timeline.png``. Not profiling costs
    nothing; profiling, a few microseconds for each function.

    Args:
        out: a folder, made if it is not there.
        comm: the ranks; None: all.
        clock: seconds from any moment on.
        picture: whether to draw.

    Returns:
        A :class:`Timeline`, filled at the end, on rank 0: ``print(timeline.text())`` says who
        waited for whom.

    Example:
        >>> import tempfile, numpy as np, mnpar, mnpar.functions as F
        >>> def program(comm):
        ...     with mnpar.profile(tempfile.mkdtemp(), comm, picture=False) as timeline:
        ...         x = mnpar.Variable(np.ones((2, 2)))
        ...         F.sum(F.allreduce(comm, F.tanh(x))).backward()
        ...     return (
        ...         sorted({event.name for event in timeline.events[0] if event.kind == "forward"})
        ...         if comm.is_root
        ...         else None
        ...     )
        >>> mnpar.run(program, ranks=2)[0]
        ['AllReduce', 'Sum', 'Tanh']
    """
    comm = comm or create_communicator()
    timeline = Timeline()
    recorder = Recorder(clock)
    before = clock_offset(comm, clock)
    comm.barrier()
    _install()
    token = _recorder.set(recorder)
    try:
        yield timeline
    finally:
        _recorder.reset(token)
        _uninstall()
        recorder.close()
    comm.barrier()  # after an error nobody comes here
    events = _corrected(recorder.events, before, clock_offset(comm, clock))
    known = comm.gather_obj(
        (comm.transport.world_ranks[comm.rank], [tuple(event) for event in events])
    )
    if known is not None:
        timeline.take(known)
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / "timeline.json"
        with naming_path(trace):
            trace.write_text(json.dumps(timeline.trace()))
        if picture:
            timeline.draw(folder / "timeline.png")
