"""Downloads files once, from the first mirror that has them, and checks their SHA-256.

Ranks and jobs may fetch at the same time: each writes a file of its own and renames it, so that a
file under its final name is always complete. The digest protects against accidents and tampered
mirrors alike, as it is known beforehand.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class KnownFile(NamedTuple):
    """A file with a known content."""

    name: str
    size: int
    sha256: str


def cache_folder(name: str) -> Path:
    """Where downloads are kept: ``$XDG_CACHE_HOME/mnpar/name``, or ``~/.cache/mnpar/name``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mnpar", name)


def fetch(file: KnownFile, folder: Path, mirrors: Sequence[str], timeout: float = 30.0) -> Path:
    """The path of a known file in a folder; downloaded if it is not there, or not what it should
    be.

    Args:
        file: its name, size and digest.
        folder: is made if necessary.
        mirrors: addresses ending in ``/``, tried in order.
        timeout: how many seconds of silence a mirror is given.

    Raises:
        ConnectionError: no mirror gave the file; the message has each one's reason.
    """
    path = folder / file.name
    if (
        path.is_file()
        and path.stat().st_size == file.size
        and _sha256(path.read_bytes()) == file.sha256
    ):
        return path
    reasons = []
    for mirror in mirrors:
        try:
            data = _download(mirror + file.name, file.size, timeout)
        except (OSError, ValueError) as error:
            reasons.append(f"{mirror}: {error}")
            continue
        if len(data) != file.size or _sha256(data) != file.sha256:
            found = f"{len(data)} bytes" if len(data) <= file.size else "more bytes"
            reasons.append(
                f"{mirror}: expected {file.size} bytes with SHA-256 {file.sha256}, got "
                f"{found}, {_sha256(data)}"
            )
            continue
        _write(path, data)
        return path
    raise ConnectionError(f"{file.name} could not be downloaded: " + "; ".join(reasons))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(url: str, size: int, timeout: float) -> bytes:
    from urllib.request import urlopen  # 30 ms to import, for something that happens once

    with urlopen(url, timeout=timeout) as response:
        data: bytes = response.read(size + 1)  # never more than is known to be there
    return data


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
