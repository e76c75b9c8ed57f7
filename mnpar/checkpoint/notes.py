"""Notes that ranks leave for rank 0 in the hidden folder, where they send no messages: each its shard, or why there is none."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from mnpar.checkpoint.store import Shard, reach


def _note(hidden: str, rank: int) -> str:
    return os.path.join(hidden, f"note-{rank:05d}")


def write_note(hidden: str, rank: int, content: Any) -> None:
    """Leave what JSON can hold; it is there whole or not at all."""
    path = _note(hidden, rank)
    with open(path + "~", "w") as file:  # half of one may be there, for which the disk had no room
        json.dump(content, file)
    reach("note written")
    os.rename(path + "~", path)
    reach("note left")


def write_failure(hidden: str, rank: int, error: Exception) -> None:
    """Leave word that there will be no shard, if that can still be written."""
    with suppress(OSError):
        write_note(hidden, rank, {"error": f"{type(error).__name__}: {error}"})


def has_note(hidden: str, rank: int) -> bool:
    """Whether a rank has left its note."""
    return os.path.exists(_note(hidden, rank))


def read_note(hidden: str, rank: int) -> Shard | str | None:
    """What a rank has left: its shard, None if it has none, or why it could not write it."""
    with open(_note(hidden, rank)) as file:
        content = json.load(file)
    return content["error"] if isinstance(content, dict) else None if content is None else Shard(*content)


def remove_notes(hidden: str) -> None:
    """Remove what was left: a checkpoint has a manifest and shards only."""
    for name in os.listdir(hidden):
        if name.startswith("note-"):
            os.remove(os.path.join(hidden, name))
