"""Folders of checkpoints: one is written so that it is there whole or not at all, and can be
checked.

    run/step-00000120/manifest.json                 what is in which shard, and the size and
                                                    SHA-256 of each
                      shard-00000-of-00002.safetensors
                      shard-00001-of-00002.safetensors

A folder with a hidden name is filled, brought to the disk (fsync), and then renamed. So a folder
whose name does not begin with a dot is a whole checkpoint, whenever the job is killed. A step that
is saved again becomes ``step-00000120.2``. The latest checkpoint is found by the names alone: there
is no pointer to it that could be wrong.

Or the user chose the name, and the checkpoint replaces one of that name: the new one is first
called ``name~2``, then the old one is removed, and then the new one is renamed. There is a whole
one at each moment, and readers find it.

Only this module makes, renames and removes folders, and it removes none that is not named like a
checkpoint or has other files. Digests detect accidents, not forgery. A file lock lets one job at a
time write into a folder; the system releases the lock when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mnpar.communicators.consensus import run_on_all
from mnpar.errors import CheckpointError
from mnpar.runtime import system
from mnpar.serializers.atomic import naming_path, sync_folder

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

T = TypeVar("T")

FORMAT = 1
MANIFEST = "manifest.json"
_LONGEST_MANIFEST = 1 << 30
_DONE = re.compile(r"step-(\d{8,})(?:\.([1-9]\d*))?")
_HIDDEN = re.compile(r"\.[^/]+~([^~/]+)~(\d+)~[0-9a-f]+\.(?:tmp|old)")
_SHARD = re.compile(r"shard-\d{5,}-of-\d{5,}\.safetensors")
UNDER_WAY: dict[str, None] = {}  # hidden folders that this process is filling or removing

# called with the name of each step of writing after it: tests end the job there
after_step: ContextVar[Callable[[str], None]] = ContextVar(
    "mnpar.checkpoint.after_step", default=lambda step: None
)


def reach(step: str) -> None:
    """Call ``after_step`` with the name of a step of writing."""
    after_step.get()(step)


class Shard(NamedTuple):
    """A file that a rank has written."""

    name: str
    size: int
    sha256: str


class Name(NamedTuple):
    """The name of a step's checkpoint; a later one is larger."""

    step: int
    again: int

    def __str__(self) -> str:
        return f"step-{self.step:08d}" + (f".{self.again}" if self.again > 1 else "")


def names(folder: str) -> list[Name]:
    """Return the checkpoints in a folder, oldest first, damaged or not."""
    if not os.path.isdir(folder):
        return []
    found = [_DONE.fullmatch(name) for name in os.listdir(folder)]
    return sorted(Name(int(match[1]), int(match[2] or 1)) for match in found if match)


def versions(folder: str, name: str) -> list[str]:
    """Return the checkpoints of a user's name, oldest first: one, and others if a job was killed
    while it replaced one.
    """
    numbered = [name if number == 1 else f"{name}~{number}" for number in _numbers(folder, name)]
    return [other for other in numbered if is_checkpoint(os.path.join(folder, other))]


def _numbers(folder: str, name: str) -> list[int]:
    pattern = re.compile(re.escape(name) + r"(?:~([1-9]\d*))?")
    found = [
        pattern.fullmatch(other) for other in (os.listdir(folder) if os.path.isdir(folder) else ())
    ]
    return sorted({int(match[1] or 1) for match in found if match})


def is_checkpoint(path: str) -> bool:
    """Return whether a folder has the files of a checkpoint, damaged or not, and no others."""
    if os.path.islink(path) or not os.path.isdir(path):
        return False
    return all([name == MANIFEST or _SHARD.fullmatch(name) for name in os.listdir(path)])


def shard_name(rank: int, size: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"shard-{rank:05d}-of-{size:05d}.safetensors"


def begin(folder: str, name: Name | str) -> str:
    """Make the hidden folder of a new checkpoint, and return its path; remove hidden folders that a
    killed job of this machine left.
    """
    os.makedirs(folder, exist_ok=True)
    wanted = os.path.join(folder, str(name))
    if isinstance(name, str) and os.path.lexists(wanted) and not is_checkpoint(wanted):
        raise FileExistsError(
            errno.EEXIST, "is no checkpoint, and stays: remove it, or take another name", wanted
        )
    for other in os.listdir(folder):
        match = _HIDDEN.fullmatch(other)
        left = os.path.join(folder, other)
        if (
            match
            and match[1] == system.machine()
            and left not in UNDER_WAY
            and not _alive(int(match[2]))
        ):
            shutil.rmtree(left, ignore_errors=True)
    path = os.path.join(folder, _hidden(name, "tmp"))
    UNDER_WAY[path] = None
    try:
        os.mkdir(path)
        reach("folder made")
    except BaseException:
        discard(path)
        raise
    return path


def _hidden(name: Name | str, end: str) -> str:
    return f".{str(name)[:100]}~{system.machine()}~{os.getpid()}~{secrets.token_hex(4)}.{end}"


def _alive(pid: int) -> bool:
    # one of this process was left by an earlier attempt of it
    return pid != os.getpid() and system.exists(pid)


class ShardFile:
    """A new file for writing, which is synchronized to the disk (fsync) when it is closed, and
    computes its own digest.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._digest = hashlib.sha256()
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")
        try:
            reach("shard opened")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *error: object) -> None:
        with naming_path(self.path), contextlib.closing(self._file):
            if error[0] is None:
                self._file.flush()
                reach("shard written")
                os.fsync(self._file.fileno())
        if error[0] is None:
            reach("shard on the disk")

    def write(self, data: Any) -> None:
        """Append bytes."""
        with naming_path(self.path):
            self._file.write(data)
        self._digest.update(data)
        if not self.size:
            reach("shard begun")
        self.size += len(data)

    def seal(self) -> tuple[int, str]:
        """Return size and SHA-256."""
        return self.size, self._digest.hexdigest()


def finish(folder: str, hidden: str, name: Name | str, content: dict[str, Any]) -> str:
    """Write the manifest, and rename the folder to the step's next free name, or to the user's
    name, which it replaces; return the path.
    """
    text = _dump(content)
    head = {"mnpar checkpoint": FORMAT, "sha256": hashlib.sha256(text).hexdigest(), "content": None}
    with ShardFile(os.path.join(hidden, MANIFEST)) as file:
        file.write(_dump(head)[: -len("null}")])
        file.write(text + b"}\n")
    sync_folder(hidden)
    reach("folder on the disk")
    if isinstance(name, str):
        return _replace(folder, hidden, name)
    later = [other.again for other in names(folder) if other.step == name.step]
    return _rename(hidden, os.path.join(folder, str(Name(name.step, max(later, default=0) + 1))))


def _rename(hidden: str, path: str) -> str:
    os.rename(hidden, path)  # fails if the name is taken by files: two jobs in one folder
    UNDER_WAY.pop(hidden, None)
    reach("renamed")
    sync_folder(os.path.dirname(path))
    reach("name on the disk")
    return path


def _replace(folder: str, hidden: str, name: str) -> str:
    path = os.path.join(folder, name)
    older = versions(folder, name)
    taken = _numbers(folder, name)
    free = f"{path}~{taken[-1] + 1}" if taken else path
    _rename(hidden, free)
    for other in older:
        remove(folder, other)
    if taken:
        _rename(free, path)
    return path


def _dump(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=True).encode()


def discard(hidden: str) -> None:
    """Remove what a failed attempt wrote."""
    shutil.rmtree(hidden, ignore_errors=True)
    UNDER_WAY.pop(hidden, None)


def remove(folder: str, name: Name | str) -> None:
    """Remove a checkpoint; it gets a hidden name first, so that nobody sees it in part."""
    hidden = os.path.join(folder, _hidden(name, "old"))
    UNDER_WAY[hidden] = None
    os.rename(os.path.join(folder, str(name)), hidden)
    reach("old one hidden")
    shutil.rmtree(hidden)
    UNDER_WAY.pop(hidden)
    reach("old one removed")


def read_manifest(path: str) -> dict[str, Any]:
    """Return the content of a checkpoint's manifest.

    Raises:
        CheckpointError: the manifest is missing, damaged, or of another version.
    """
    file = os.path.join(path, MANIFEST)
    try:
        with open_plain(file) as stream:
            data = stream.read(_LONGEST_MANIFEST + 1)
        document = json.loads(data)
        version = document["mnpar checkpoint"]
        digest = document["sha256"]
        content = document["content"]
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged, or no manifest of mnpar: {error}") from None
    if version != FORMAT:
        raise CheckpointError(
            f"{file} has version {version!r} of the format; this mnpar reads version {FORMAT}"
        )
    if hashlib.sha256(_dump(content)).hexdigest() != digest:
        raise CheckpointError(f"{file} is damaged: its SHA-256 is not the one that it gives")
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} is no manifest of mnpar")
    return content


def open_plain(path: str) -> Any:
    """Open a file for reading.

    Raises:
        OSError: the path is a link, a device or a pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(descriptor, "rb")
    if not os.path.isfile(path):
        file.close()
        raise OSError(errno.EINVAL, "is no plain file", path)
    return file


def check_files(path: str, files: Mapping[str, Any]) -> None:
    """Check that a folder has these shards and no others; their content is not read.

    Raises:
        CheckpointError: it has others, or not all.
    """
    there = {name: None for name in os.listdir(path) if name.startswith("shard-")}
    for name in files:
        if not _SHARD.fullmatch(name):
            raise CheckpointError(f"{path}: {name!r} is no name of a shard")
        if name not in there:
            raise CheckpointError(f"{os.path.join(path, name)} is missing")
    for name in there:
        if name not in files:
            raise CheckpointError(f"{os.path.join(path, name)} does not belong to this checkpoint")


def check_file(path: str, size: int, digest: str) -> None:
    """Check that a file has this size and SHA-256.

    Raises:
        CheckpointError: it has not.
    """
    try:
        with open_plain(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise CheckpointError(f"{path} is damaged: it has {found} bytes, not {size}")
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise CheckpointError(
                    f"{path} is damaged or another file: its SHA-256 is not the manifest's"
                )
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None


def lock_folder(folder: str) -> int:
    """Lock a folder for this process, until it ends or closes the descriptor.

    Where the system or the file system knows no locks, nothing is locked. Child processes do
    not inherit the lock.

    Args:
        folder: is made if necessary.

    Returns:
        A descriptor.

    Raises:
        CheckpointError: another process has the lock: the message says which.
        OSError: the folder cannot be written to.
    """
    os.makedirs(folder, exist_ok=True)
    # Python's descriptors are closed in programs that are started from here
    descriptor = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    fcntl = system.fcntl
    if fcntl is None:
        return descriptor
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
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, f"process {os.getpid()} on {system.machine()}\n".encode())
    return descriptor


def agree_on_folder(
    comm: Communicator, folder: str | os.PathLike[str], work: Callable[[], T]
) -> tuple[str, list[T]]:
    """Run ``work()`` on all ranks, which name one folder. Collective.

    Machines may see one folder under different working directories, so the relative or the absolute
    paths must agree.

    Returns:
        Rank 0's path of the folder, and what ``work()`` returned on each rank.

    Raises:
        ValueError: on all ranks: they name different folders.

    Example:
        >>> import mnpar
        >>> mnpar.run(
        ...     lambda comm: agree_on_folder(comm, f"/tmp/of-rank-{comm.rank}", lambda: None),
        ...     ranks=2,
        ... )
        Traceback (most recent call last):
        ValueError: ranks name different folders for one checkpoint, /tmp/of-rank-0 on rank 0 ...
    """
    outcomes = run_on_all(comm, lambda: (os.path.abspath(folder), os.path.relpath(folder), work()))
    path, relative, _ = outcomes[0]
    for rank, (other, seen, _) in enumerate(outcomes):
        if other != path and seen != relative:
            raise ValueError(
                f"ranks name different folders for one checkpoint, {path} on rank 0 and "
                f"{other} on rank {rank}: "
                "all ranks name the same one, on a file system that they share"
            )
    return path, [result for _, _, result in outcomes]
