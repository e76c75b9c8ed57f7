"""Files in the hidden folder by which ranks that send no messages tell rank 0 that their shard is
written, or why it is not.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from mnpar.checkpoint.store import Shard, reach


def _note(hidden: str, rank: int) -> str:
    return os.path.join(hidden, f"note-{rank:05d}")


def write_note(hidden: str, rank: int, content: Any) -> None:
    """Write a note, anything that JSON can hold, atomically."""
    path = _note(hidden, rank)
    with open(
        path + "~", "w"
    ) as file:  # it may be there already, written in part, if the disk was full
        json.dump(content, file)
    reach("note written")
    os.rename(path + "~", path)
    reach("note left")


def write_failure(hidden: str, rank: int, error: Exception) -> None:
    """Write a note that there will be no shard, if that can still be written."""
    with suppress(OSError):
        write_note(hidden, rank, {"error": f"{type(error).__name__}: {error}"})


def has_note(hidden: str, rank: int) -> bool:
    """Whether a rank has written its note."""
    return os.path.exists(_note(hidden, rank))


def read_note(hidden: str, rank: int) -> Shard | str | None:
    """A rank's note: its shard, None if it has nothing to write, or its error."""
    with open(_note(hidden, rank)) as file:
        content = json.load(file)
    return (
        content["error"]
        if isinstance(content, dict)
        else None
        if content is None
        else Shard(*content)
    )


def remove_notes(hidden: str) -> None:
    """Remove all notes: a complete checkpoint has a manifest and shards only."""
    for name in os.listdir(hidden):
        if name.startswith("note-"):
            os.remove(os.path.join(hidden, name))
