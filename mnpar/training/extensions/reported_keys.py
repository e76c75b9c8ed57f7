"""The keys that an extension shows beside those that are reported: a misspelt one would stay empty
without a word.
"""

from __future__ import annotations

from collections.abc import Iterable

from mnpar.communicators.create import current_size
from mnpar.errors import closest, listed
from mnpar.runtime.callsite import warn_user

_ALIKE = 0.85  # main/loss and validation/main/loss are less alike


class ReportedKeys:
    """The keys that are reported, to be compared with those that an extension shows.

    What is nearly the name of a reported key is told at the first comparison, everything else that
    was never reported at the end: it might have come.

    Args:
        who: the name of the extension.
        shown: the keys that it shows.

    Example:
        >>> import warnings
        >>> from mnpar.training.extensions.reported_keys import ReportedKeys
        >>> keys = ReportedKeys("PrintReport", ["main/acuracy"])
        >>> keys.add(["main/loss", "main/accuracy"])
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     keys.compare()
        >>> str(told[0].message)
        "PrintReport: nothing reports 'main/acuracy': did you mean 'main/accuracy'?"
    """

    def __init__(self, who: str, shown: Iterable[str]) -> None:
        self._who = who
        self._missing = dict.fromkeys(shown)
        self._shown = tuple(self._missing)
        self._seen: dict[str, None] = {}
        self._compared = False

    def add(self, keys: Iterable[str]) -> None:
        """Note keys that were reported."""
        self._seen.update(dict.fromkeys(keys))

    def compare(self) -> None:
        """Warn of keys that are nearly reported ones, at the first call."""
        self._missing = {key: None for key in self._missing if key not in self._seen}
        if self._compared:
            return
        self._compared = True
        others = [key for key in self._seen if key not in self._shown]
        for key in list(self._missing):
            meant = closest(key, others, _ALIKE)
            if meant is not None:
                del self._missing[key]
                self._warn(f"nothing reports {key!r}: did you mean {meant!r}?")

    def end(self) -> None:
        """Warn of the keys that were never reported, if any were compared. One of several ranks may
        have nothing to report: a stage whose loss is computed elsewhere.
        """
        self._missing = {key: None for key in self._missing if key not in self._seen}
        if self._missing and self._compared and (self._seen or current_size() == 1):
            keys = listed(map(repr, self._missing))
            self._warn(f"nothing has reported {keys}; reported were {listed(self._seen, 16)}")
        self.forget()

    def forget(self) -> None:
        """Miss no key any more."""
        self._missing = {}

    def _warn(self, what: str) -> None:
        warn_user(f"{self._who}: {what}")
