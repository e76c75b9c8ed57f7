"""A room of the museum: a program, its source, and what is to be seen there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ROOMS: list[Room] = []


@dataclass
class Room:
    """One silent mistake of the field.

    Attributes:
        title: the mistake.
        hall: the heading under which it stands.
        source: ``owner/repository#number`` (or another text), several with commas between them.
        there: what the system in the source does.
        program: on each rank; it returns what is to be right.
        ranks: how many.
        value: of a right room, what each rank returns; a list has one for each rank. None: what one
            rank alone returns.
        error: of a room that is told, a part of the first lines of the error.
        checked: of a room that only mnpar.check tells, a part of its report.
        impossible: why no single run can tell it.
    """

    title: str
    hall: str
    source: str
    there: str
    program: Callable[..., Any]
    ranks: int = 2
    value: Any = None
    error: str = ""
    checked: str = ""
    impossible: str = ""

    @property
    def kind(self) -> str:
        """What mnpar does with it."""
        return "told" if self.error else "checked" if self.checked else "right"

    @property
    def text(self) -> str:
        """The program, without its decorator."""
        lines, _ = inspect.getsourcelines(self.program)
        start = next(i for i, line in enumerate(lines) if line.startswith("def "))
        return "".join(lines[start:]).rstrip()

    def __str__(self) -> str:
        return self.program.__name__


class Hall:
    """Rooms under one heading.

    Args:
        heading: of the part of the page.
    """

    def __init__(self, heading: str) -> None:
        self.heading = heading

    def room(
        self, title: str, source: str, there: str, **more: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a room of the program that follows."""

        def add(program: Callable[..., Any]) -> Callable[..., Any]:
            ROOMS.append(Room(title, self.heading, source, there, program, **more))
            return program

        return add
