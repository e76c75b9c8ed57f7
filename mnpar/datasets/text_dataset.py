"""The lines of text files, each read when it is asked for: only where the lines begin is kept in
memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from mnpar.dataset.mixin import DatasetMixin

Path = str | os.PathLike[str]


class TextDataset(DatasetMixin):
    """Lines of a text file, or tuples of the lines of several: a text and its translation.

    It can be pickled, and then opens its files anew; several threads may read it.

    Args:
        paths: one path: examples are strings; several: examples are tuples of strings. Line ends
            are kept.
        encoding, errors, newline: as in :func:`open`, for all files or one for each.
        filter_func: a function of the lines (one argument for each file) that says whether to keep
            them.

    Raises:
        ValueError: no files, files with different numbers of lines, or options for another number
            of files.

    Example:
        >>> import os, tempfile
        >>> from mnpar.datasets import TextDataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "words")
        ...     with open(path, "w") as file:
        ...         _ = file.write("one\\ntwo\\nthree\\n")
        ...     lines = TextDataset(path, filter_func=lambda line: "o" in line)
        ...     lines[:]
        ['one\\n', 'two\\n']
    """

    _files: list[TextIO] | None = None

    def __init__(
        self,
        paths: Path | Sequence[Path],
        encoding: str | Sequence[str | None] | None = None,
        errors: str | Sequence[str | None] | None = None,
        newline: str | Sequence[str | None] | None = None,
        filter_func: Callable[..., Any] | None = None,
    ) -> None:
        self._paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        n = len(self._paths)
        if n == 0:
            raise ValueError("a TextDataset needs at least one file")
        options = [
            [option] * n if option is None or isinstance(option, str) else option
            for option in (encoding, errors, newline)
        ]
        if any(len(option) != n for option in options):
            raise ValueError(
                f"there are {n} files; encoding, errors and newline are for "
                f"{[len(option) for option in options]}"
            )
        self._options = [
            dict(zip(("encoding", "errors", "newline"), one, strict=True))
            for one in zip(*options, strict=True)
        ]
        self._lock = threading.Lock()
        self._begins = self._index(filter_func)

    def _index(self, filter_func: Callable[..., Any] | None) -> list[tuple[int, ...]]:
        """Return where each example's lines begin in their files."""
        files, begins = self._open(), []
        while True:
            places = tuple([file.tell() for file in files])
            lines = [file.readline() for file in files]
            if not all(lines):
                break
            if filter_func is None or filter_func(*lines):
                begins.append(places)
        if any(lines):
            longer = [
                os.fspath(path) for path, line in zip(self._paths, lines, strict=True) if line
            ]
            raise ValueError(
                f"the files of a TextDataset have one number of lines; {', '.join(longer)} has "
                "more than others"
            )
        return begins

    def _open(self) -> list[TextIO]:
        if self._files is None:
            self._files = []
            for path, options in zip(self._paths, self._options, strict=True):
                self._files.append(open(path, **options))  # noqa: SIM115 (they stay open)
        return self._files

    def __len__(self) -> int:
        return len(self._begins)

    def get_example(self, idx: int) -> str | tuple[str, ...]:
        with self._lock:
            lines = []
            for file, begin in zip(self._open(), self._begins[idx], strict=True):
                file.seek(begin)
                lines.append(file.readline())
        return lines[0] if len(lines) == 1 else tuple(lines)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_files", "_lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the files. The next example that is asked for opens them anew."""
        with self._lock:
            for file in self._files or []:
                file.close()
            self._files = None

    def __del__(self) -> None:
        for file in self._files or []:
            file.close()
