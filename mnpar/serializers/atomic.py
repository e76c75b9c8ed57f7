"""Files that are complete or not there: written under a temporary name, synced to the disk, then
renamed.

:func:`replacing` gives an open file, :func:`replacing_path` a path, for functions that open files
themselves.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@contextmanager
def naming_path(
    path: str | os.PathLike[str], temporary: str | os.PathLike[str] | None = None
) -> Iterator[None]:
    """Add the path to errors of a full or broken disk, which the system raises without one, and to
    those of a full disk the bytes that were written, and those that are free.

    Args:
        path: of the file that is written.
        temporary: where it is written now, if that is elsewhere.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _OF_THE_DISK:
            raise
        text = os.strerror(error.errno)
        here = os.fspath(path if temporary is None else temporary)
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and os.path.isfile(here):
            with suppress(OSError):
                disk = shutil.disk_usage(os.path.dirname(here) or ".")
                text += (
                    f", after {os.path.getsize(here):,} bytes of the file (its folder has "
                    f"{disk.free:,} of {disk.total:,} bytes left)"
                )
        raise OSError(error.errno, text, os.fspath(path)) from error


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a new file, open for writing, that takes its name when the ``with`` block ends; after
    an error there is no trace of it.

    Whoever reads the name finds the old file or the new one, whatever happens: an error, a full
    disk, a kill, a power cut.

    Args:
        path: of the file; a link is followed, a device or pipe is written to as it is.

    Raises:
        OSError: the folder is not there, cannot be written to, or is full.

    Example:
        >>> import os, tempfile
        >>> from mnpar.serializers import replacing
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "weights")
        ...     with replacing(path) as file:
        ...         n = file.write(b"new")
        ...         before = os.path.exists(path)
        ...     print(before, os.listdir(folder))
        False ['weights']
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        with naming_path(path), open(path, "wb") as file:
            yield file
        return
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(6)}.tmp")
    # the umask has its say
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with naming_path(path, temporary), os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Sync a folder's entries to the disk, if the file system supports that."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows opens no folders
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing_path(path: str) -> Iterator[str]:
    """Yield the path of a temporary file that the ``with`` block writes; at the end of the block it
    is renamed to ``path``.

    After an error the old file is still at ``path``, and the temporary one is removed.

    Args:
        path: of the file; its folder exists.

    Example:
        >>> import os, tempfile
        >>> from mnpar.serializers.atomic import replacing_path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing_path(folder + "/log") as temporary, open(temporary, "w") as file:
        ...         _ = file.write("text")
        ...     os.listdir(folder)
        ['log']
    """
    folder, name = os.path.split(path)
    # the ending stays: some functions choose the format by it
    stem, ending = os.path.splitext(name)
    with tempfile.TemporaryDirectory(prefix=f".{stem}.", dir=folder or ".") as beside:
        temporary = os.path.join(beside, "new" + ending)
        with naming_path(path, temporary):
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    with suppress(OSError):  # not every file system lets a folder be opened
        sync_folder(folder or ".")
