"""The page of the museum, docs/museum.md, made from its rooms."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from tests.museum.room import ROOMS, Room

PAGE = Path(__file__).parents[2] / "docs" / "museum.md"
HALLS = (
    "reductions",
    "losses",
    "norms",
    "replication",
    "experts",
    "copies",
    "normalization",
    "messages",
    "training",
)

OPENING = """# A museum of silent gradients

Mistakes that change numbers without a word, as small programs. Most were reported for other
systems; each room names the place. A room shows one of three results:

* **right**: the program computes here what one process computes, or what the room says;
* **told**: the program ends with an error on all ranks, or a warning names the line;
* **checked**: the program has two meanings, both of them right, which no run can tell apart. The
  room says why. `mnpar.check`, which compares the program with one rank, names the mistake ([is my
  parallel program right?](checking.md)).

No room is silent to both. The programs are those of `tests/museum/`, which run with every change;
`comm` is the communicator of a rank. Other systems are described as they were reported; they may
have been mended since.

"""


def open_all() -> list[Room]:
    """Return all rooms, in the order of the halls."""
    names = [f"tests.museum.rooms_{name}" for name in HALLS]
    for name in names:
        importlib.import_module(name)
    # others may have imported some of them before
    ROOMS.sort(key=lambda room: names.index(room.program.__module__))
    return ROOMS


def links(source: str) -> str:
    """Return a source with a link for each ``owner/repository#number``."""
    return re.sub(
        r"([\w.-]+/[\w.-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", source
    )


def shared(room: Room) -> str:
    """Return what the programs of a hall share: the text before its first room."""
    module = sys.modules[room.program.__module__]
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    found = re.search(r"^hall = .*?\n(.*?)^@hall\.room", text, re.S | re.M)
    return "" if found is None else found[1].strip()


def page(rooms: list[Room]) -> str:
    """Return the text of the page."""
    kinds = [room.kind for room in rooms]
    parts = [
        OPENING,
        f"{len(rooms)} rooms: {kinds.count('right')} right, {kinds.count('told')} told, "
        f"{kinds.count('checked')} checked.\n",
    ]
    hall = ""
    for number, room in enumerate(rooms, 1):
        if room.hall != hall:
            hall = room.hall
            parts.append(f"\n## {hall}\n")
            if shared(room):
                parts.append(f"\nIts programs share:\n\n```py\n{shared(room)}\n```\n")
        parts.append(f"\n### {number}. {room.title}\n\n")
        parts.append(f"* Reported: {links(room.source)}\n* There: {room.there}.\n")
        ranks = "1 rank" if room.ranks == 1 else f"{room.ranks} ranks"
        parts.append(f"* Here, on {ranks}: {here(room)}\n")
        parts.append(f"\n```py\n{room.text}\n```\n")
    return "".join(parts)


def here(room: Room) -> str:
    """Say what mnpar does with a room's program."""
    if room.kind == "told":
        return f"**told**: “… {room.error} …”."
    if room.kind == "checked":
        return f"**checked**: “… {room.checked} …”. {room.impossible}"
    if room.value is None:
        return "**right**: what one process computes."
    first = room.value[0]
    alike = all([value == first for value in room.value])
    return (
        f"**right**: {first} on each."
        if alike
        else f"**right**: {room.value}, rank by rank."
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(open_all()), encoding="utf-8")
    print(f"{PAGE}: {len(ROOMS)} rooms")
