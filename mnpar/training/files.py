"""Files that are there whole, or not at all, for what wants the name of a file to write.

:func:`mnpar.serializers.replacing` gives a file that is open already; users' own functions that save, and matplotlib, open it
themselves. One that was not written under the name that was given is an error, and not an empty file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """A ``with`` block that writes the file of the name it is given; at its end that takes the place of ``path``.

    After an error, what was at ``path`` is still there, and nothing else.

    Args:
        path: of the file; its folder exists.

    Example:
        >>> import os, tempfile
        >>> from mnpar.training.files import replacing
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(folder + "/log") as temporary, open(temporary, "w") as file:
        ...         _ = file.write("text")
        ...     os.listdir(folder)
        ['log']
    """
    folder, name = os.path.split(path)
    stem, ending = os.path.splitext(name)  # the ending stays: it may tell what writes the file which format to write
    with tempfile.TemporaryDirectory(prefix=f".{stem}.", dir=folder or ".") as beside:
        temporary = os.path.join(beside, "new" + ending)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    with suppress(OSError):  # not every file system lets a folder be opened
        descriptor = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
