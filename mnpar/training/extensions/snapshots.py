"""Snapshots: the whole state of training in one file, or in a checkpoint of all ranks, from which
the same training goes on.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from string import Formatter
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from mnpar.checkpoint import save_folder
from mnpar.checkpoint.loading import load_newest
from mnpar.checkpoint.retention import keep_newest
from mnpar.checkpoint.store import is_checkpoint
from mnpar.communicators.consensus import run_on_all
from mnpar.errors import CheckpointError
from mnpar.serializer import Serializable
from mnpar.serializers import NpzDeserializer, NpzFile, serialize
from mnpar.training.extension import Extension
from mnpar.training.extensions.snapshot_writers import Save, SimpleWriter, Writer
from mnpar.training.trainer import Trainer

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

FILENAME = "snapshot_iter_{.updater.iteration}"


def snapshot(
    savefun: Save | None = None,
    filename: str | Callable[[Trainer], str] = FILENAME,
    *,
    target: Serializable | None = None,
    condition: Callable[[], bool] | None = None,
    writer: Writer | None = None,
    snapshot_on_error: bool = False,
    n_retains: int = -1,
    autoload: bool = False,
    comm: Communicator | None = None,
) -> _Snapshot:
    """Return an extension that writes the whole trainer to a file in its folder, at each epoch
    unless it is told otherwise.

    It comes last in an iteration (priority -100). ``mnpar.serializers.load_npz(file, trainer)``, or
    ``autoload``, lets a trainer that was made in the same way go on from there: with the same
    weights, batches, log.

    With ``comm``, it is no npz file, but a folder that :func:`mnpar.checkpoint.save_folder` writes:
    shards, and a manifest with the SHA-256 of each. All ranks extend their trainers with it, and
    write it together; any number of ranks goes on from it, by :func:`mnpar.checkpoint.load_folder`
    or ``autoload``. One process: ``comm=mnpar.create_communicator("self")``.

    Args:
        savefun: ``savefun(path, dict of arrays)``; None: :func:`mnpar.serializers.save_npz`.
        filename: with fields of the trainer, or a function of it.
        target: what to write instead of the trainer.
        condition: called before each; False, on all ranks of ``comm``: none is written.
        writer: of :mod:`mnpar.training.extensions.snapshot_writers`; None: training waits while it
            is written.
        snapshot_on_error: write one when training fails.
        n_retains: how many to keep, the last ones, with ``comm`` the last undamaged ones (they are
            read for it); -1: all.
        autoload: load the last one before training; one that is damaged is passed over with a
            warning.
        comm: whose ranks write a checkpoint together; None: this process writes a file.

    Raises:
        TypeError: both ``savefun`` and ``writer`` are given: the writer has a savefun of its own.
            Or one of them and ``comm``.
        ValueError: ``snapshot_on_error`` with several ranks.
        CheckpointError: before training, on all ranks of ``comm``: there are checkpoints, and all
            of them are damaged.

    Example:
        >>> import mnpar
        >>> from mnpar.training import extensions
        >>> last = extensions.snapshot(
        ...     n_retains=2, autoload=True
        ... )  # trainer.extend(last, trigger=(1000, "iteration"))
        >>> def program(comm):  # the same of all ranks, verified
        ...     return extensions.snapshot(comm=comm, n_retains=2, autoload=True).filename
        >>> mnpar.run(program, ranks=2)[0]
        'snapshot_iter_{.updater.iteration}'
    """
    if savefun is not None and writer is not None:
        raise TypeError(
            "savefun and writer were given: give the writer its savefun, ThreadWriter(savefun=…)"
        )
    if comm is not None:
        if savefun is not None or writer is not None:
            raise TypeError(
                "comm and savefun or writer were given: what writes files does not write a "
                "checkpoint of all ranks"
            )
        return _FolderSnapshot(
            comm, target, condition, filename, snapshot_on_error, n_retains, autoload
        )
    if writer is None:
        writer = SimpleWriter() if savefun is None else SimpleWriter(savefun)
    return _Snapshot(target, condition, writer, filename, snapshot_on_error, n_retains, autoload)


def snapshot_object(
    target: Serializable | None,
    filename: str | Callable[[Trainer], str],
    savefun: Save | None = None,
    *,
    condition: Callable[[], bool] | None = None,
    writer: Writer | None = None,
    snapshot_on_error: bool = False,
    n_retains: int = -1,
    autoload: bool = False,
    comm: Communicator | None = None,
) -> _Snapshot:
    """Return an extension that writes one object, a model, to a file in the trainer's folder; see
    :func:`snapshot`.

    Args:
        target: what to write.
        filename: with fields of the trainer, or a function of it.
        savefun, condition, writer, snapshot_on_error, n_retains, autoload, comm: as of
            :func:`snapshot`.

    Example:
        >>> import mnpar.links as L
        >>> from mnpar.training import extensions
        >>> each = extensions.snapshot_object(L.Linear(3, 2), "model_epoch_{.updater.epoch}")
    """
    return snapshot(
        savefun,
        filename,
        target=target,
        condition=condition,
        writer=writer,
        snapshot_on_error=snapshot_on_error,
        n_retains=n_retains,
        autoload=autoload,
        comm=comm,
    )


class _Snapshot(Extension):
    """See :func:`snapshot`. (Chainer's name: it stands in the files.)"""

    trigger = (1, "epoch")
    priority = -100

    def __init__(
        self,
        target: Serializable | None,
        condition: Callable[[], bool] | None,
        writer: Writer,
        filename: str | Callable[[Trainer], str],
        snapshot_on_error: bool,
        n_retains: int,
        autoload: bool,
    ) -> None:
        self._target = target
        self.condition = condition
        self.writer = writer
        self.filename = filename
        self._snapshot_on_error = snapshot_on_error
        self.n_retains = n_retains
        self.autoload = autoload

    @property
    def is_last(self) -> bool:
        """True if it comes after all others of its priority: what they do in an iteration is in a
        snapshot of the trainer.
        """
        return self._target is None

    def initialize(self, trainer: Trainer) -> None:
        """Load the last snapshot, where that is wanted."""
        if self.autoload:
            self.load(trainer)
        self.retain(trainer.out)

    def load(self, trainer: Trainer) -> str | None:
        """Load the last whole snapshot; returns its path, None if there is none."""
        for _, path in reversed(snapshots(self.filename, trainer.out)):
            content = read(path)
            if content is not None:
                self.take(trainer, content)
                return path
        return None

    def take(self, trainer: Trainer, content: dict[str, Any]) -> None:
        """Load what :func:`read` returned."""
        NpzDeserializer(content).load(trainer if self._target is None else self._target)

    def retain(self, out: str) -> None:
        """From now on, remove old ones after each that was written, where that is wanted."""
        if (
            self.n_retains > 0
            and isinstance(self.filename, str)
            and hasattr(self.writer, "add_hook")
        ):
            self.writer.add_hook(lambda: self._clean(out))

    def _clean(self, out: str) -> None:
        files = [path for _, path in snapshots(self.filename, out) if os.path.isfile(path)]
        for path in files[: -self.n_retains]:
            os.remove(path)

    def __call__(self, trainer: Trainer) -> None:
        if self.condition is None or self.condition():
            self._make(trainer)

    def _make(self, trainer: Trainer) -> None:
        content = serialize(trainer if self._target is None else self._target)
        self.writer(self._named(trainer), trainer.out, content)

    def _named(self, trainer: Trainer) -> str:
        return str(
            self.filename(trainer) if callable(self.filename) else self.filename.format(trainer)
        )

    def on_error(self, trainer: Trainer, exc: Exception, tb: TracebackType | None) -> None:
        """Write one, where that is wanted."""
        if self._snapshot_on_error:
            self._make(trainer)

    def finalize(self) -> None:
        """Wait until all is written."""
        self.writer.finalize()


class _FolderSnapshot(_Snapshot):
    """See :func:`snapshot`: what it does with ``comm``, all ranks together."""

    default_name = "_Snapshot"

    def __init__(
        self,
        comm: Communicator,
        target: Serializable | None,
        condition: Callable[[], bool] | None,
        filename: str | Callable[[Trainer], str],
        snapshot_on_error: bool,
        n_retains: int,
        autoload: bool,
    ) -> None:
        if snapshot_on_error and comm.size > 1:
            raise ValueError(
                f"snapshot_on_error with {comm.size} ranks: those without an error do not come "
                "to write their part"
            )
        super().__init__(
            target, condition, Writer(), filename, snapshot_on_error, n_retains, autoload
        )
        self.comm = comm

    def load(self, trainer: Trainer) -> int | None:  # type: ignore[override]
        """Load the last undamaged one; returns its iteration, None if there is none."""
        target = trainer if self._target is None else self._target
        return load_newest(trainer.out, lambda: self._names(trainer.out), target, self.comm)

    def retain(self, out: str) -> None:
        """Old ones are removed by all ranks together."""

    def _names(self, out: str) -> list[str]:
        found = [os.path.basename(path) for _, path in snapshots(self.filename, out, r"(?:~\d+)?")]
        return [name for name in found if not name.startswith(".")]  # unfinished ones

    def _old(self, out: str) -> list[str]:
        return [name for name in self._names(out) if is_checkpoint(os.path.join(out, name))]

    def _make(self, trainer: Trainer) -> None:
        out = trainer.out
        target = trainer if self._target is None else self._target
        save_folder(
            os.path.join(out, self._named(trainer)), target, self.comm, trainer.updater.iteration
        )
        if self.n_retains > 0 and isinstance(self.filename, str):
            listed = run_on_all(self.comm, lambda: self._old(out) if self.comm.rank == 0 else [])[0]
            keep_newest(out, listed, self.comm, self.n_retains)


def read(path: str | BinaryIO) -> dict[str, Any] | None:
    """Return all that is in a snapshot, before anything is changed by it; None, and a warning, if
    it is damaged.
    """
    try:
        with NpzFile(path) as file:
            return dict(file)
    except (OSError, CheckpointError) as error:
        warnings.warn(f"{path} is damaged, taking the one before it: {error}", stacklevel=2)
        return None


def snapshots(
    filename: str | Callable[[Trainer], str], out: str, again: str = ""
) -> list[tuple[tuple[str, ...], str]]:
    """Return the files that a snapshot's filename stands for, the oldest first: what stands in the
    places of its fields, and the path.

    Files that differ in one number are ordered by it (times of files change when they are copied),
    others by their times. ``again``: a regular expression of what may follow the name.

    Raises:
        TypeError: the filename is a function: nobody knows which files it has named.
    """
    if not isinstance(filename, str):
        raise TypeError(
            "autoload needs a filename that is a text: which files a function has named cannot "
            "be known"
        )
    parts = [
        re.escape(text) + _matching(field) for text, field, _, _ in Formatter().parse(filename)
    ]
    pattern = re.compile("".join(parts) + again)
    matches = [(pattern.fullmatch(name), os.path.join(out, name)) for name in os.listdir(out)]
    found = [(match.groups(), path) for match, path in matches if match]
    if all(len(fields) == 1 and fields[0].isdecimal() for fields, _ in found):
        return sorted(found, key=lambda file: (int(file[0][0]), len(file[1]), file[1]))
    return sorted(found, key=lambda file: (os.stat(file[1]).st_mtime_ns, file[1]))


def _matching(field: str | None) -> str:
    """Return the pattern of a field of the trainer in a name: counts are digits, so that
    ``best_3`` does not match.
    """
    if field is None:
        return ""
    return r"(\d+)" if field.endswith((".iteration", ".epoch")) else "(.+)"
