"""Files that are replaced as a whole, for functions that write to a path.

:func:`mnpar.serializers.replacing` gives an open file; matplotlib and users' functions that save
open a path themselves. If the block does not write the file, that is an error, and not an empty
file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mnpar.serializers.atomic import sync_folder


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """The path of a temporary file that the ``with`` block writes; at the end of the block it is
    renamed to ``path``.

    After an error the old file is still at ``path``, and the temporary one is removed.

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
    # the ending stays: some functions choose the format by it
    stem, ending = os.path.splitext(name)
    with tempfile.TemporaryDirectory(prefix=f".{stem}.", dir=folder or ".") as beside:
        temporary = os.path.join(beside, "new" + ending)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    with suppress(OSError):  # not every file system lets a folder be opened
        sync_folder(folder or ".")
