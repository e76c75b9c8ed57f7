"""The result of a profile: the events of all ranks on one clock, as a trace for Perfetto, as a
picture, and as text.
"""

from __future__ import annotations

import bisect
import importlib.util
import io
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mnpar.serializers.atomic import naming_path


class Event(NamedTuple):
    """Something that a rank did.

    Args:
        kind: ``'forward'``, ``'backward'``, ``'update'``, ``'wait'``, ``'send'``, ``'recv'`` or
            ``'stage'`` (an action of a pipeline, around its functions).
        name: of the function, communication or action.
        start, end: seconds.
        peer: the other rank.
        detail: shapes, source lines; what a message's two ends have in common.
        site: the user's source line.
        nbytes: of a function's outputs, or of a message.
        memory: bytes that the rank's process used then; 0: not read.
    """

    kind: str
    name: str
    start: float
    end: float
    peer: int | None = None
    detail: str = ""
    site: str = ""
    nbytes: int = 0
    memory: int = 0


_COLOURS = {"forward": "#7fb2e5", "backward": "#8fce9b", "update": "#d9c27c"}
_WAITS = "#f4b6b6"
_MEANINGS = {"wait": "wait for the rank named"}
_MANY = 600  # arrows: more would hide what is under them


class Timeline:
    """The events of all ranks; empty until the profile ends, and on ranks other than 0.

    Example:
        >>> timeline = Timeline()
        >>> first, second = (
        ...     [("forward", "Sum", 5.0, 6.0)],
        ...     [("wait", "recv", 5.0, 6.0, 0), ("forward", "Sum", 6.0, 7.0)],
        ... )
        >>> timeline.take([(0, first), (1, second)])
        >>> print(timeline.text())
        2.000 s on 2 ranks
        rank 0: computes  50 %, waits   0 %
        rank 1: computes  50 %, waits  50 % (for rank 0 50 %)
    """

    def __init__(self) -> None:
        self.events: list[list[Event]] = []

    def take(self, known: Iterable[tuple[int, list[Any]]]) -> None:
        """Take each rank's number in the job, and its events."""
        pairs = [(number, [Event(*event) for event in events]) for number, events in known]
        place: dict[int | None, int] = {number: rank for rank, (number, _) in enumerate(pairs)}
        self.events = [
            [event._replace(peer=place.get(event.peer)) for event in events] for _, events in pairs
        ]
        begin = min((event.start for events in self.events for event in events), default=0.0)
        self.events = [
            [event._replace(start=event.start - begin, end=event.end - begin) for event in events]
            for events in self.events
        ]

    @property
    def duration(self) -> float:
        """Seconds from the first event to the last."""
        return max((event.end for events in self.events for event in events), default=0.0)

    def waits(self, rank: int) -> dict[int | None, float]:
        """Return the seconds that a rank waited for each other one; under None for several at
        once.
        """
        found: dict[int | None, float] = defaultdict(float)
        for event in self.events[rank]:
            if event.kind == "wait":
                found[event.peer] += event.end - event.start
        return dict(found)

    def busy(self, rank: int) -> float:
        """Return the seconds in functions and updates, without those of waits inside them."""
        return sum(end - start for start, end, _ in self._work(rank))

    def _work(self, rank: int) -> list[tuple[float, float, str]]:
        """Return the outermost functions and updates, cut where the rank waits: start, end,
        kind.
        """
        waits = sorted(
            (event.start, event.end) for event in self.events[rank] if event.kind == "wait"
        )
        ends = [end for _, end in waits]
        pieces, last = [], float("-inf")
        for event in sorted(self.events[rank], key=lambda event: (event.start, -event.end)):
            if event.kind not in _COLOURS or event.end <= last:
                continue
            last, start = event.end, event.start
            for a, b in waits[bisect.bisect(ends, event.start) :]:
                if a >= event.end:
                    break
                pieces.append((start, max(a, start), event.kind))
                start = max(b, start)
            pieces.append((start, event.end, event.kind))
        return [piece for piece in pieces if piece[1] > piece[0]]

    def messages(self) -> list[tuple[int, float, int, float]]:
        """Source, time of sending, dest and time of arrival of each message both of whose ends were
        recorded.
        """
        return [(source, sent.end, dest, taken.end) for source, sent, dest, taken in self._pairs()]

    def _pairs(self) -> list[tuple[int, Event, int, Event]]:
        """Return the two ends of each message, each with its rank, in the order of sending."""
        sent: dict[str, list[tuple[int, Event]]] = defaultdict(list)
        for rank, events in enumerate(self.events):
            for event in events:
                if event.kind == "send":
                    sent[event.detail].append((rank, event))
        found = []
        for rank, events in enumerate(self.events):
            for event in events:
                if event.kind == "recv" and sent[event.detail]:
                    found.append((*sent[event.detail].pop(0), rank, event))
        return sorted(found, key=lambda message: message[1].end)

    def text(self) -> str:
        """Return how long each rank computed and waited, and for whom."""
        whole = self.duration or 1.0
        lines = [f"{self.duration:.3f} s on {len(self.events)} ranks"]
        for rank in range(len(self.events)):
            waits = self.waits(rank)
            whom = ", ".join(
                f"for {'several' if peer is None else f'rank {peer}'} {100 * seconds / whole:.0f} %"
                for peer, seconds in sorted(waits.items(), key=lambda item: -item[1])
                if 100 * seconds / whole >= 0.5
            )
            total = 100 * sum(waits.values()) / whole
            line = (
                f"rank {rank}: computes {100 * self.busy(rank) / whole:3.0f} %, waits "
                f"{total:3.0f} %"
            )
            lines.append(line + (f" ({whom})" if whom else ""))
        return "\n".join(lines)

    def trace(self) -> dict[str, Any]:
        """Return the trace event format that Perfetto and Chrome read: one process a rank, arrows
        for messages; microseconds.
        """
        events: list[dict[str, Any]] = []
        for rank, some in enumerate(self.events):
            events.append(
                {
                    "ph": "M",
                    "name": "process_name",
                    "pid": rank,
                    "tid": 0,
                    "args": {"name": f"rank {rank}"},
                }
            )
            for event in some:
                told = {
                    "detail": event.detail,
                    "line": event.site,
                    "bytes": event.nbytes,
                    "memory": event.memory,
                }
                args: dict[str, Any] = {name: value for name, value in told.items() if value}
                if event.peer is not None:
                    args["peer"] = event.peer
                peer = "" if event.peer is None else f" rank {event.peer}"
                name = {
                    "wait": f"wait for{peer or ' others'}",
                    "send": f"send to{peer}",
                    "recv": f"recv from{peer}",
                }
                events.append(
                    {
                        "ph": "X",
                        "pid": rank,
                        "tid": 0,
                        "cat": event.kind,
                        "name": name.get(event.kind, event.name),
                        "ts": 1e6 * event.start,
                        "dur": 1e6 * (event.end - event.start),
                        "args": {**args, "what": event.name},
                    }
                )
        for number, (source, sent, dest, taken) in enumerate(self._pairs()):
            flow = {"cat": "message", "name": sent.name, "id": number, "tid": 0}
            order = (*sent.detail.split(), "0", "0", "0")[2]  # of differentiation; odd: a gradient
            gradient = int(order) % 2 if order.isdigit() else 0
            args = {"bytes": sent.nbytes, "line": sent.site, "gradient": gradient}
            arrived = 1e6 * max(taken.end, sent.end)
            events.append({**flow, "ph": "s", "pid": source, "ts": 1e6 * sent.end, "args": args})
            events.append({**flow, "ph": "f", "bp": "e", "pid": dest, "ts": arrived})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def __repr__(self) -> str:
        return self.text() if self.events else "<no events: the profile runs, or rank 0 has them>"

    def _repr_png_(self) -> bytes | None:
        """Return the picture for a notebook, if it can be drawn; else the text is shown."""
        if not self.events or importlib.util.find_spec("matplotlib") is None:
            return None
        picture = io.BytesIO()
        self._figure().savefig(picture, format="png", dpi=80)
        return picture.getvalue()

    def draw(self, path: Path) -> None:
        """Draw all ranks below each other, and say below what the colours and labels mean. Needs
        matplotlib, else says so.
        """
        if importlib.util.find_spec("matplotlib") is None:
            sys.stderr.write(f"mnpar: {path} was not drawn: pip install matplotlib\n")
            return
        with naming_path(path):
            self._figure().savefig(path, dpi=120)

    def _figure(self) -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(14, 1.7 + 0.9 * len(self.events)), layout="constrained")
        self.draw_on(figure.subplots())
        return figure

    def draw_on(self, axes: Any) -> None:
        """Draw on matplotlib's axes what :meth:`draw` draws."""
        scale, least = 1e3, self.duration / 60
        for rank, events in enumerate(self.events):
            for kind, colour in _COLOURS.items():
                bars = [
                    (scale * start, scale * (end - start))
                    for start, end, what in self._work(rank)
                    if what == kind
                ]
                axes.broken_barh(bars, (rank - 0.35, 0.7), color=colour, linewidth=0)
            waits = [event for event in events if event.kind == "wait"]
            bars = [(scale * event.start, scale * (event.end - event.start)) for event in waits]
            axes.broken_barh(bars, (rank - 0.35, 0.7), color=_WAITS, linewidth=0)
            for event in [*waits, *(event for event in events if event.kind == "stage")]:
                if event.end - event.start > least:
                    middle = scale * (event.start + event.end) / 2
                    if event.kind == "wait":
                        whom = "all" if event.peer is None else str(event.peer)
                        axes.text(
                            middle,
                            rank,
                            f"waits for {whom}",
                            ha="center",
                            va="center",
                            fontsize=7,
                            color="#a03030",
                        )
                    else:
                        axes.text(
                            middle, rank - 0.42, event.name, ha="center", va="center", fontsize=6
                        )
        for source, sent, dest, taken in self.messages()[:_MANY]:
            if source != dest:
                axes.plot(
                    [scale * sent, scale * taken],
                    [source, dest],
                    color="#606060",
                    linewidth=0.5,
                    alpha=0.6,
                )
        axes.set_yticks(
            range(len(self.events)), [f"rank {rank}" for rank in range(len(self.events))]
        )
        axes.set_ylim(len(self.events) - 0.4, -0.6)
        axes.set_xlim(0, scale * self.duration or 1)
        axes.set_xlabel("ms")
        computing = ", ".join(
            f"{100 * self.busy(rank) / (self.duration or 1):.0f}"
            for rank in range(len(self.events))
        )
        axes.set_title(f"ranks compute {computing} % of the time", fontsize=9)
        self._explain(axes)

    def _explain(self, axes: Any) -> None:
        """Say below the axes what colours, lines and labels mean: those that are there."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        kinds = {event.kind for events in self.events for event in events}
        names = {**_COLOURS, "wait": _WAITS}
        handles: list[Any] = [
            Patch(color=names[kind], label=kind) for kind in names if kind in kinds
        ]
        handles.append(
            Patch(facecolor="white", edgecolor="#c0c0c0", label="the program's own code")
        )
        if self.messages():
            handles.append(Line2D([], [], color="#606060", linewidth=0.5, label="message"))
        stages = [event.name for events in self.events for event in events if event.kind == "stage"]
        if stages:
            kinds_of_actions = "F forward, B backward, I gradients of inputs, W of weights"
            label = f"{stages[0]}: stage, action, micro-batch ({kinds_of_actions})"
            handles.append(Line2D([], [], linewidth=0, label=label))
        axes.figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=len(handles),
            fontsize=8,
            frameon=False,
        )
