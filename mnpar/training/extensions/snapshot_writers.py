"""Writers of snapshots: in the calling thread, or in another one while training goes on.

A file is written under a temporary name and renamed, so that it is complete or not there. Arrays
that another thread writes are copied first. An error in that thread is raised in the calling one,
at the next snapshot or at the end of training.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from mnpar.backend import Array, to_host
from mnpar.serializers import save_npz
from mnpar.serializers.atomic import replacing_path

Save = Callable[..., Any]


class Writer:
    """The base: a writer is called with a file's name, its folder, and a dict of arrays.

    Example:
        >>> from mnpar.training.extensions import snapshot_writers
        >>> class Silent(snapshot_writers.Writer):
        ...     def __call__(self, filename, outdir, target):
        ...         pass
    """

    def __init__(self, savefun: Save = save_npz, **kwds: Any) -> None:
        self._savefun, self._kwds = savefun, kwds
        self._hooks: list[Callable[[], None]] = []

    def __call__(self, filename: str, outdir: str, target: dict[str, Array]) -> None:
        """Write the arrays to a file, now or later."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define __call__(self, filename, outdir, target)"
        )

    def save(
        self, filename: str, outdir: str, target: dict[str, Array], savefun: Save, **kwds: Any
    ) -> None:
        """Write the file now, then call the hooks."""
        with replacing_path(os.path.join(outdir, filename)) as temporary:
            savefun(temporary, target, **kwds)
        for hook in self._hooks:
            hook()

    def add_hook(self, hook: Callable[[], None]) -> None:
        """Call a function without arguments after each snapshot that was written."""
        self._hooks.append(hook)

    def finalize(self) -> None:
        """Wait until all is written."""


class SimpleWriter(Writer):
    """Writes at once; training waits.

    Args:
        savefun: ``savefun(path, dict of arrays)``.
        kwds: more arguments of it.

    Example:
        >>> from mnpar.training.extensions import snapshot_writers
        >>> writer = snapshot_writers.SimpleWriter(compression=False)
    """

    def __call__(self, filename: str, outdir: str, target: dict[str, Array]) -> None:
        self.save(filename, outdir, target, self._savefun, **self._kwds)


class ThreadWriter(Writer):
    """Writes in a thread; the next snapshot waits for the last one.

    Args:
        savefun: ``savefun(path, dict of arrays)``.
        kwds: more arguments of it.

    Example:
        >>> from mnpar.training.extensions import snapshot_writers
        >>> writer = snapshot_writers.ThreadWriter()  # extensions.snapshot(writer=writer)
    """

    def __init__(self, savefun: Save = save_npz, **kwds: Any) -> None:
        super().__init__(savefun, **kwds)
        self._executor: ThreadPoolExecutor | None = None
        self._writing: list[Future[None]] = []

    def __call__(self, filename: str, outdir: str, target: dict[str, Array]) -> None:
        self.finalize()
        self._begin(filename, outdir, target)

    def _begin(self, filename: str, outdir: str, target: dict[str, Array]) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "mnpar-snapshot")
        self._writing.append(
            self._executor.submit(
                self.save, filename, outdir, copied_of(target), self._savefun, **self._kwds
            )
        )

    def finalize(self) -> None:
        """Wait until all is written, and end the thread."""
        executor, self._executor = self._executor, None
        writing, self._writing = self._writing, []
        if executor is not None:
            executor.shutdown()
        for one in writing:
            one.result()


class ThreadQueueWriter(ThreadWriter):
    """Writes in a thread, one snapshot after the other; training never waits, and the copies wait
    in memory.

    Args:
        savefun: ``savefun(path, dict of arrays)``.
        kwds: more arguments of it.

    Example:
        >>> from mnpar.training.extensions import snapshot_writers
        >>> writer = snapshot_writers.ThreadQueueWriter()
    """

    def __call__(self, filename: str, outdir: str, target: dict[str, Array]) -> None:
        self._writing = [one for one in self._writing if not one.done() or one.exception()]
        if self._writing and self._writing[0].done():
            self.finalize()  # raises the error
        self._begin(filename, outdir, target)


class ProcessWriter(ThreadWriter):
    """A :class:`ThreadWriter` under Chainer's other name.

    Processes that are started inside MPI ranks hang or abort with most MPIs; a thread lets training
    go on just as well, for compression and writing hold no lock of Python's.

    Example:
        >>> from mnpar.training.extensions import snapshot_writers
        >>> writer = snapshot_writers.ProcessWriter()
    """


class ProcessQueueWriter(ThreadQueueWriter):
    """A :class:`ThreadQueueWriter` under Chainer's other name; see :class:`ProcessWriter`.

    Example:
        >>> from mnpar.training.extensions import snapshot_writers
        >>> writer = snapshot_writers.ProcessQueueWriter()
    """


def copied_of(target: dict[str, Array]) -> dict[str, Array]:
    """Return copies of the arrays on the host, as training changes them in place."""
    return {name: np.array(to_host(value)) for name, value in target.items()}
