"""Reporting of values, such as losses, from inside models: ``report`` hands them to this rank's
current Reporter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from mnpar.config import config
from mnpar.summary import DictSummary, Summary
from mnpar.variable import Variable

__all__ = ["DictSummary", "Reporter", "Summary", "get_current_reporter", "report", "report_scope"]

_current: ContextVar[Reporter | None] = ContextVar("mnpar.reporter", default=None)


class Reporter:
    """Collects reported values under the names of the links that report them.

    Example:
        >>> import mnpar
        >>> reporter = mnpar.Reporter()
        >>> with reporter:
        ...     mnpar.report({"loss": 0.5})
        >>> reporter.observation
        {'loss': 0.5}
    """

    def __init__(self) -> None:
        self.observation: dict[str, Any] = {}
        self._names: dict[int, tuple[str, Any]] = {}
        self._tokens: list[Any] = []

    def __enter__(self) -> Reporter:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())

    @contextmanager
    def scope(self, observation: dict[str, Any]) -> Iterator[None]:
        """Collect into another dict inside a ``with`` block."""
        before, self.observation = self.observation, observation
        with self:
            try:
                yield
            finally:
                self.observation = before

    def add_observer(self, name: str, observer: Any) -> None:
        """The name under which an object reports.

        Args:
            name: its values are then ``name/…``.
            observer: any object; the reporter keeps it alive.
        """
        self._names[id(observer)] = (name, observer)  # held, so that its id stays its own

    def add_observers(self, prefix: str, observers: Any) -> None:
        """Names for several, as ``link.namedlinks()`` gives them."""
        for name, observer in observers:
            self.add_observer(prefix + name, observer)

    def report(self, values: Mapping[str, Any], observer: Any = None) -> None:
        """Take values; those of an observer under its name.

        Raises:
            KeyError: the observer was not added.
        """
        prefix = ""
        if observer is not None:
            if id(observer) not in self._names:
                raise KeyError(
                    f"{type(observer).__name__} reports, but was not added: "
                    "reporter.add_observer(name, it)"
                )
            prefix = self._names[id(observer)][0] + "/"
        for name, value in values.items():
            bare = isinstance(value, Variable) and not config.keep_graph_on_report
            self.observation[prefix + name] = (
                Variable(value.array, requires_grad=False) if bare else value
            )


def report(values: Mapping[str, Any], observer: Any = None) -> None:
    """Hand values to this rank's current reporter; without one, nothing happens.

    Args:
        values: by name; Variables are taken without their graph.
        observer: the link that speaks.

    Raises:
        KeyError: the current reporter does not know the observer.

    Example:
        >>> import mnpar
        >>> mnpar.report({"loss": 0.5})
    """
    reporter = _current.get()
    if reporter is not None:
        reporter.report(values, observer)


@contextmanager
def report_scope(observation: dict[str, Any]) -> Iterator[None]:
    """Let the current reporter collect into ``observation`` inside a ``with`` block.

    Raises:
        RuntimeError: there is no current reporter.

    Example:
        >>> import mnpar
        >>> mine = {}
        >>> with mnpar.Reporter(), mnpar.report_scope(mine):
        ...     mnpar.report({"loss": 0.5})
        >>> mine
        {'loss': 0.5}
    """
    reporter = _current.get()
    if reporter is None:
        raise RuntimeError("there is no current reporter: with mnpar.Reporter(): …")
    with reporter.scope(observation):
        yield


def get_current_reporter() -> Reporter | None:
    """This rank's current reporter, the innermost ``with``; None without one.

    Example:
        >>> import mnpar
        >>> with mnpar.Reporter() as reporter:
        ...     mnpar.get_current_reporter() is reporter
        True
    """
    return _current.get()
