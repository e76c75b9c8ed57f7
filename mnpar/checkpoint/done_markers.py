"""Done markers: files in a checkpoint's hidden folder by which ranks that send no messages tell
rank 0 that their shard is written, or why it is not.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from mnpar.checkpoint.store import Shard, reach
from mnpar.serializers.atomic import naming_path


def _path(hidden: str, rank: int) -> str:
    return os.path.join(hidden, f"note-{rank:05d}")


def write_marker(hidden: str, rank: int, content: Any) -> None:
    """Write a rank's marker, anything that JSON can hold, atomically."""
    path = _path(hidden, rank)
    # the file may exist already, written in part, if the disk was full
    with naming_path(path + "~"), open(path + "~", "w") as file:
        json.dump(content, file)
    reach("note written")
    os.rename(path + "~", path)
    reach("note left")


def write_failure(hidden: str, rank: int, error: Exception) -> None:
    """Write a marker that there will be no shard, if that can still be written."""
    with suppress(OSError):
        write_marker(hidden, rank, {"error": f"{type(error).__name__}: {error}"})


def has_marker(hidden: str, rank: int) -> bool:
    """Return whether a rank has written its marker."""
    return os.path.exists(_path(hidden, rank))


def read_marker(hidden: str, rank: int) -> Shard | str | None:
    """Return what a rank's marker says: its shard, None if it had nothing to write, or its
    error.
    """
    with open(_path(hidden, rank)) as file:
        content = json.load(file)
    if content is None:
        return None
    return content["error"] if isinstance(content, dict) else Shard(*content)


def remove_markers(hidden: str) -> None:
    """Remove all markers: a complete checkpoint has a manifest and shards only."""
    for name in os.listdir(hidden):
        if name.startswith("note-"):
            os.remove(os.path.join(hidden, name))
