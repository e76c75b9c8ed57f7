"""When graphs are looked at: before backward visits one, and where a value is reported.

A rank looks at a graph when it comes to a sequence of communications for the first time, the
second, the fourth, the eighth …, and in debug mode each time: that costs nothing where no
communication is on the tape, and next to nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from mnpar.autograd.engine import Seed, before_backward
from mnpar.autograd.tape import current_tape
from mnpar.checks.joint_loss import compare_gradients
from mnpar.checks.nonfinite import warn_of_nonfinite
from mnpar.checks.states import Survey
from mnpar.configuration import is_debugging
from mnpar.runtime.callsite import call_site, warn_user

if TYPE_CHECKING:
    from mnpar.backend import Array
    from mnpar.communicators.transport import Transport
    from mnpar.functions.communication.base import Communication
    from mnpar.variable import Variable


class Visits:
    """The counts of how often each rank has come to a sequence of communications, and what it was
    told.
    """

    MANY = 1000  # sequences, of a program that makes new ones all the time

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Transport, dict[Hashable, int]] = WeakKeyDictionary()
        # those that were asked for last: to find them costs more than all else here
        self._latest: tuple[Transport | None, dict[Hashable, int]] = None, {}
        self._told: WeakKeyDictionary[Transport, set[str]] = WeakKeyDictionary()

    def is_due(self, communications: Iterable[Any], what: Hashable) -> bool:
        """Count a visit; return whether it is the first, second, fourth, eighth …, or all are
        looked at.

        Args:
            communications: without any, nothing is to be looked at.
            what: is counted, for the communicator of the first of them.
        """
        for function in communications:
            comm = function.comm
            if comm is not None:
                break
        else:
            return False
        transport, counts = self._latest
        if comm.transport is not transport:
            counts = self._counts.setdefault(comm.transport, {})
            self._latest = comm.transport, counts
        try:
            count = counts[what] = counts[what] + 1
        except KeyError:
            if len(counts) > self.MANY:
                counts.clear()
            counts[what] = 1
            return True
        return not count & (count - 1) or is_debugging()

    def told(self, kind: Communication) -> set[str]:
        """Return what was said already of communications of the same ranks."""
        return self._told.setdefault(kind.comm.transport, set())


_visits = Visits()
_site = attrgetter("site")


def look(
    seeds: Sequence[Seed], communications: Sequence[Any], losses: Sequence[Array | None]
) -> None:
    """Look at a graph before backward visits it.

    Raises:
        MismatchError: see :class:`Survey`.
    """
    for loss in losses:
        # (of NaN and infinity the difference is NaN)
        if type(loss) is np.ndarray and not loss.shape and (x := loss.item()) - x:
            warn_of_nonfinite(seeds, communications, loss, _visits.told)
    # its hash alone is kept: a program may have a thousand long sequences
    if _visits.is_due(communications, hash(tuple(map(_site, communications)))):
        survey = Survey([node for node, _ in seeds], communications)
        compare_gradients(survey, seeds, _visits.told)


before_backward.append(look)


def check_reported(name: str, x: Variable) -> None:
    """Warn if what a rank reports is its part of what ranks have together, once for a name.

    Args:
        name: under which it is reported.
        x: what is reported.
    """
    if x.size != 1 or not _visits.is_due(current_tape().records, name):
        return
    for state in Survey([x.node]).of(x.node).values():
        if state is None or state.varying is None or state.together is not None:
            continue
        kind = state.varying
        told = _visits.told(kind)
        if kind.comm.rank == 0 and name not in told:
            told.add(name)
            P = kind.comm.size
            warn_user(_PART_REPORTED.format(kind=kind, name=name, site=call_site(1), P=P))


_PART_REPORTED = (
    "{name}, reported at {site}, is on each of {P} ranks that of the rank's part, which {kind.op} "
    "at {kind.site} gave, and not the whole. A sum over the part: let it pass "
    "F.reduce_from(comm, {name}) before, which is the whole on each rank; as a loss it counts "
    "once, and has the same gradient. A mean over the part: multiply it before by the part's share "
    "of all numbers (grid.share(shape)), or the loss is a sum of {P} means, and so are its "
    "gradients"
)
