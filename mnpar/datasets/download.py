"""Download files once, from the first mirror that has them, and check their SHA-256.

Ranks and jobs may fetch at the same time: each writes a file of its own and renames it, so that a
file under its final name is always complete. The digest protects against accidents and tampered
mirrors alike, as it is known beforehand.

The pooch package (1.9) is not used: it takes one address for a file, reads whatever a mirror sends
however much that is, has no file:// addresses, and brings seven packages, where a data set is
downloaded today with numpy alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mnpar.serializers.atomic import replacing


class KnownFile(NamedTuple):
    """A file with a known content."""

    name: str
    size: int
    sha256: str

    def problem(self, data: bytes) -> str | None:
        """Return how data differs from the content, or None."""
        digest = hashlib.sha256(data).hexdigest()
        if len(data) == self.size and digest == self.sha256:
            return None
        found = f"{len(data)} bytes" if len(data) <= self.size else "more bytes"
        return f"expected {self.size} bytes with SHA-256 {self.sha256}, got {found}, {digest}"


def cache_folder(name: str) -> Path:
    """Return where downloads are kept: ``$XDG_CACHE_HOME/mnpar/name``, or
    ``~/.cache/mnpar/name``.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mnpar", name)


def fetch(file: KnownFile, folder: Path, mirrors: Sequence[str], timeout: float = 30.0) -> Path:
    """Return the path of a known file in a folder; download it if it is not there, or damaged.

    Args:
        file: its name, size and digest.
        folder: is made if necessary.
        mirrors: addresses ending in ``/``, tried in order.
        timeout: how many seconds of silence a mirror is given.

    Raises:
        ConnectionError: no mirror gave the file; the message has each one's reason.
    """
    path = folder / file.name
    if path.is_file() and path.stat().st_size == file.size and not file.problem(path.read_bytes()):
        return path
    reasons = []
    for mirror in mirrors:
        try:
            data = _download(mirror + file.name, file.size, timeout)
            reason = file.problem(data)
        except (OSError, ValueError) as error:
            reason = str(error)
        if reason is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as stream:
                stream.write(data)
            return path
        reasons.append(f"{mirror}: {reason}")
    raise ConnectionError(f"{file.name} could not be downloaded: " + "; ".join(reasons))


def _download(url: str, size: int, timeout: float) -> bytes:
    from urllib.request import urlopen  # 30 ms to import, for something that happens once

    with urlopen(url, timeout=timeout) as response:
        data: bytes = response.read(size + 1)  # never more than is known to be there
    return data
