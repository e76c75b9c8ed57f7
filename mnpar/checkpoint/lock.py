"""One job at a time in a folder: a file lock, which the system releases when the process ends,
however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os

from mnpar.errors import CheckpointError


def take_lock(folder: str) -> int:
    """Keep other processes from taking this folder's lock, until this one ends or closes the
    descriptor.

    Where the file system knows no locks, nobody is kept out. Child processes do not inherit it.

    Args:
        folder: is made if necessary.

    Returns:
        A descriptor.

    Raises:
        CheckpointError: another process has it: the message says which.
        OSError: the folder cannot be written to.
    """
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(
        os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
    )
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return descriptor
        owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another job"
        os.close(descriptor)
        raise CheckpointError(
            f"{folder} is in use by {owner}: end that job, or give this run another name"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
    return descriptor
