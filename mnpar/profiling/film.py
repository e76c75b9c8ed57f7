"""The film of a profile: one page that shows what each rank did, and plays it.

Ranks are lanes; functions, waits, messages and memory are drawn as they were recorded. The page
needs nothing else, no network either: the events are in it, with the program that draws them
(film.html).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mnpar.errors import DatasetError
from mnpar.serializers.atomic import naming_path

KINDS = ("forward", "backward", "update", "wait", "send", "recv", "stage")
_TEMPLATE = Path(__file__).with_name("film.html")


class _Words:
    """Texts that occur often, by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def list(self) -> list[str]:
        """Return all texts, by their numbers."""
        return [*self._numbers]


def make_film(trace: dict[str, Any], title: str = "mnpar") -> str:
    """Return the page, as HTML.

    Args:
        trace: what :meth:`mnpar.profiling.timeline.Timeline.trace` returns: the contents of
            ``timeline.json``.
        title: of the page.

    Raises:
        DatasetError: the trace is not one that :func:`mnpar.profile` has written.

    Example:
        >>> from mnpar.profiling.film import make_film
        >>> from mnpar.profiling.timeline import Timeline
        >>> timeline = Timeline()
        >>> timeline.take([(0, [("forward", "Sum", 0.0, 1e-3)])])
        >>> page = make_film(timeline.trace(), "one rank")
        >>> page.startswith("<!doctype html>"), '"Sum"' in page
        (True, True)
    """
    try:
        film = _film_of(trace["traceEvents"], title)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DatasetError(
            f"this is no timeline of mnpar.profile: {type(error).__name__}: {error}"
        ) from None
    data = json.dumps(film, separators=(",", ":")).replace("</", "<\\/")
    return _TEMPLATE.read_text(encoding="utf-8").replace("{{DATA}}", data)


def _film_of(events: list[dict[str, Any]], title: str) -> dict[str, Any]:
    """Return the numbers and texts that the page draws; times in microseconds."""
    ranks = {int(e["pid"]): str(e["args"]["name"]) for e in events if e["ph"] == "M"}
    if not ranks:
        raise ValueError("it names no ranks")
    lanes: dict[int, list[list[float]]] = {rank: [] for rank in ranks}
    names, details, sites = _Words(), _Words(), _Words()
    details.number("")
    sites.number("")
    whole = sorted([e for e in events if e["ph"] == "X"], key=lambda e: (e["ts"], -e["dur"]))
    for event in whole:
        args = event["args"]
        kind = KINDS.index(event["cat"])
        # the text of a message is for finding its other end, that of a wait is the line
        detail = str(args.get("detail", ""))
        if event["cat"] in ("send", "recv", "wait"):
            detail = ""
        row = [
            kind,
            names.number(str(args["what"])),
            event["ts"],
            event["dur"],
            int(args.get("peer", -1)),
            details.number(detail),
            sites.number(str(args.get("line", ""))),
            int(args.get("bytes", 0)),
            int(args.get("memory", 0)),
        ]
        lanes[event["pid"]].append(row)
    arrivals = {event["id"]: event for event in events if event["ph"] == "f"}
    messages = [
        [
            sent["pid"],
            sent["ts"],
            arrivals[sent["id"]]["pid"],
            arrivals[sent["id"]]["ts"],
            names.number(str(sent["name"])),
            int(sent["args"]["gradient"]),
            int(sent["args"]["bytes"]),
            sites.number(str(sent["args"]["line"])),
        ]
        for sent in events
        if sent["ph"] == "s"
    ]
    return {
        "title": title,
        "kinds": KINDS,
        "ranks": [ranks[rank] for rank in sorted(ranks)],
        "names": names.list(),
        "details": details.list(),
        "sites": sites.list(),
        "duration": max([event["ts"] + event["dur"] for event in whole], default=0.0),
        "events": [_flat(lanes[rank]) for rank in sorted(ranks)],
        "messages": _flat(messages),
    }


def _flat(rows: Iterable[Iterable[float]]) -> list[float]:
    return [round(x, 3) if isinstance(x, float) else x for row in rows for x in row]


def write_film(trace: str | Path, out: str | Path) -> None:
    """Write the film of a file ``timeline.json``.

    Args:
        trace: the file.
        out: the page to write.

    Raises:
        OSError: a file cannot be read or written.
        DatasetError: the file is not a timeline.
    """
    try:
        events = json.loads(Path(trace).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"{trace} is no timeline of mnpar.profile: {error}") from None
    try:
        page = make_film(events, Path(trace).parent.name or "mnpar")
    except DatasetError as error:
        raise DatasetError(f"{trace}: {error}") from None
    with naming_path(out):
        Path(out).write_text(page, encoding="utf-8")
