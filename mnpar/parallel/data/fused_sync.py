"""One message for each update: what ranks have to tell each other travels with the gradients, not
before backward.

That is possible where no gradient leaves a rank during backward, as then its weight need not be
known before. Each loss is weighted by its samples over the total of the update *before*. What a
rank has to tell (a ``Row``) is the note of the sum of the gradients (``allreduce_noted``). If all
is as usual, and it nearly always is, the gradients are summed there and then, and the sum is
corrected if the total is another one now. If anything is unusual nothing is summed, on no rank: the
ranks set it right, meet before backward in the next updates (``Team``), and come back to this when
those were usual.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from mnpar.autograd.tape import current_tape
from mnpar.optimizers.flat_buffers import Arena
from mnpar.optimizers.gradient_method import Pieces
from mnpar.parallel.data.consistency import DIGEST, compare_copies, digest_of
from mnpar.parallel.data.ddp import ends
from mnpar.parallel.data.leaf_gradients import Weighted
from mnpar.parallel.data.replicas import restore
from mnpar.parallel.data.sync import Team
from mnpar.parallel.data.update_record import (
    OFTEN,
    Row,
    check_known,
    own_weight,
    skipped,
    total_of,
    unknown_among_known,
    warn_user,
    weighted,
)
from mnpar.parameter import structure
from mnpar.variable import Variable


class Plain:
    """What is kept of an update in which this rank had nothing to tell but its weight: the next is
    nearly always the same.

    Args:
        samples: of the loss.
        base: what weights were divided by.
        note: this rank's.
        start: the array that backward started from: the weight.
    """

    __slots__ = ("base", "note", "samples", "start", "tuned", "weight")

    def __init__(
        self, samples: float = -2.0, base: float = 0.0, note: bytes = b"", start: Any = None
    ) -> None:
        self.samples = samples
        self.base = base
        self.note = note
        self.start = start
        self.weight = 0.0 if start is None else float(start.sum())
        # of that moment: hyperparameters and links are the same since
        self.tuned = None if start is None else structure.tuned


class QuietTeam(Team):
    """A team whose rows travel with the gradients whenever that is possible, and otherwise before
    backward.
    """

    _noted = False  # whether the rows of this update travel with the gradients
    # the total in this update, if the rows of the next may travel with the gradients
    _next: float | None = None
    _note = b""  # of this rank in this update
    _plain = Plain()  # of the last update that was one
    # of all ranks in the update before, if nothing was to be done about them
    _notes: list[bytes] | None = None
    # of all ranks in this update, if they are not those of the update before
    _rows: list[Row] | None = None
    # whether the digests in the notes tell that values are not the same on all ranks
    _drifted = False
    # whether all ranks have joined, so that the next round of ``join`` is the last
    _all_joined = False

    # what the loss of this update is computed with; None: this rank joins
    _forward: tuple[Any, ...] | None = None

    def loss(self, lossfun: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> Any:
        if self._alone or not self._noted:
            return super().loss(lossfun, args, kwds)
        plain, before = self._plain, None
        like = plain.tuned is structure.tuned and plain.base == self._base and not self._holding
        if not like:
            before = self._begin()
        loss = lossfun(*args, **kwds)
        samples = self._samples(args, kwds)
        if (
            like
            and samples == plain.samples
            and plain.tuned is structure.tuned
            and not current_tape().records
        ):
            array = loss.array if type(loss) is Variable and loss.node.gradient is None else None
            if (
                type(array) is np.ndarray
                and array.shape == plain.start.shape
                and array.dtype is plain.start.dtype
            ):
                self._note, self._forward = plain.note, (lossfun, args, kwds, None)
                plain.start.fill(plain.weight)  # a user's function may have changed it
                return Weighted(loss, plain.start, self._others)
        own = own_weight(loss, samples, self._how)
        if self.comm.size == 1 and not self._held:
            self._base = abs(own) or self._base  # the total, known without asking anybody
        weight = 1.0 if self._how == "sum" else abs(own) / self._base
        for end in ends():
            self._others.leave(
                [node for node in end.reduces if node not in self.optimizer.owned.nodes]
            )
        result = weighted(loss, own, weight, self.optimizer.loss_scale, self._others)
        self._note, is_plain = self._told(own, before is not None)
        self._forward = lossfun, args, kwds, before
        if (
            is_plain
            and isinstance(result, Weighted)
            and loss.node.gradient is None
            and type(result.start) is np.ndarray
        ):
            self._plain = Plain(samples, self._base, self._note, result.start)
        return result

    def _told(self, weight: float, undoable: bool) -> tuple[bytes, bool]:
        """This rank's note for a loss of this weight, and whether it tells nothing but that."""
        if self._copies.stale(self.optimizer.target) or self._held or current_tape().records:
            return self._now(weight, undoable).packed(), False
        number, rules = self._identity.told
        note = Row(weight, number=number, rules=rules).packed()
        before = self._plain.note
        return before if note == before else note, True  # the same object costs nothing

    def _share(self, rows: list[Row]) -> float:
        share = super()._share(rows)
        total = total_of(rows)
        self._next = total if total and not any([row.talks or row.manual for row in rows]) else None
        return share

    def serialize(self, serializer: Any) -> None:
        """Also what weights are divided by in the next update: divided by something else they would
        have other last digits.
        """
        super().serialize(serializer)
        with suppress(KeyError):  # saved by another team, or by one process
            self._base = float(serializer["team"]("base", self._base))

    def listen(self) -> None:
        """Nothing leaves during backward."""

    def give_up(self) -> None:
        super().give_up()
        self._note, self._forward = b"", None

    def reduce(self, by_pieces: Callable[[], bool]) -> bool | Pieces | None:
        if self._alone:
            return False
        if self._noted:
            try:
                steps = self._meet_in_sum(by_pieces)
            except BaseException:
                self._others.forget()
                raise
        else:
            steps = super().reduce(by_pieces)
            self._noted = self._next is not None
            self._base = (self._next if self._how != "sum" else None) or 1.0
            if self._noted:
                self._prepare()
        return steps

    def _meet_in_sum(self, by_pieces: Callable[[], bool]) -> bool | Pieces | None:
        """:meth:`reduce`, by a sum with notes. Between its two halves the rank does what it can
        while others arrive.
        """
        note, self._note, self._rows = self._note, b"", None
        if not note:  # the gradients were there already
            self._in_own_scale()
            note = self._now(0.0, manual=True).packed()
        arenas, reducer = self.optimizer.arenas, self.reducer
        if not arenas.filled:
            arenas.fill(self.optimizer.loss_scale)
        compares = self._compares
        if compares and self._placement is None:
            note = note[:-DIGEST] + digest_of(arenas, self.comm.rank)
        noted = reducer.noted(arenas)
        noted.begin(note)
        at_once = self._placement is None and by_pieces()
        parts = reducer.parts if at_once and not compares else ()
        if parts and any(
            [param.node.loss_scale is not None for param in arenas.learning[0].params]
        ):
            parts = ()  # whole gradients are divided by it
        # of parts all but the first are there after reducer.rest() only
        added = noted.end(self._usual, bool(parts))
        if added:
            reducer.finish(arenas)
        if self._holding or self._held:
            self._forget_held()
        forward, self._forward = self._forward, None
        if added and (compares or self._drifted):
            self._heed()
        if self._rows is not None:  # not as the last time
            reducer.rest()
            steps = self._corrected(self._rows) if added else self._set_right(self._rows, forward)
            if not steps:
                return steps
        elif self._others.waiting:
            self._others.settle()
        if parts:
            return self._in_parts(arenas.learning[0], *parts)
        return reducer.pieces if at_once else True

    def _heed(self) -> None:
        """Compare what copies have: on a mesh by meeting once more, else where digests differ."""
        if self._placement is not None:
            self._compare()
        elif self._drifted:
            compare_copies(self.comm, self.optimizer.target, self.optimizer.t)

    def _in_parts(self, arena: Arena, own: slice, *others: slice) -> Pieces:
        """The pieces of a vector that is still being summed: first what this rank has added up,
        then the other ranks' parts.
        """
        try:
            yield arena, own, arena.params
        finally:
            self.reducer.rest()
        for place in others:
            if place.start < place.stop:
                yield arena, place, []

    def _usual(self, notes: list[bytes]) -> bool:
        """Whether the notes of all ranks allow to sum the gradients: the sum is then right but for
        a factor.
        """
        if notes == self._notes:
            return True
        before, self._notes = self._notes, notes
        self._drifted = len({note[-DIGEST:] for note in notes}) > 1
        alike = len({note[-OFTEN:-DIGEST] for note in notes}) == 1
        if (
            alike
            and before is not None
            and [note[:-OFTEN] for note in notes] == [note[:-OFTEN] for note in before]
        ):
            return True
        self._rows = rows = [Row.of(note) for note in notes]
        changed = (
            self._how != "sum" and total_of(rows) != self._base and any([row.talks for row in rows])
        )
        mixed = len({row.manual for row in rows if not row.joining}) > 1
        alike = alike and len({row.number for row in rows}) == 1
        alike = alike and not (
            any([row.stale or row.unsettled for row in rows]) or all([row.joining for row in rows])
        )
        return alike and not (changed or mixed or unknown_among_known(rows))

    def _corrected(self, rows: list[Row]) -> bool:
        """After a sum: correct it, as its weights are by the total of the update before."""
        manual = any([row.manual for row in rows])
        talks = any([row.talks for row in rows])
        total = total_of(rows)
        if self._how != "sum":
            factor = 1 / self.comm.size if manual else self._base / total if total else 1.0
            self.optimizer.arenas.multiply(factor)
            self._others.settle(factor)
            self._base = total or self._base
        self._others.settle()
        if talks:
            self._meet_before()
        if manual or talks:
            self._notes = None
        return True

    def _meet_before(self) -> None:
        """From the next update on the ranks meet before backward again."""
        self._noted, self._base, self._notes = False, 1.0, None

    def _set_right(self, rows: list[Row], forward: tuple[Any, ...] | None) -> bool | None:
        """After notes that were not usual, and no sum: set it right. Returns what :meth:`reduce`
        does.
        """
        self._notes = None
        self._others.forget()
        self._identity.check(rows)
        self._meet_before()
        if all([row.joining for row in rows]):
            self._all_joined = True
            return False
        stale = any([row.stale or row.unsettled for row in rows])
        if stale:
            self._make_equal()
        if stale or len({row.rules for row in rows}) > 1:  # the same now
            if not any([row.manual or row.final or row.held for row in rows]):
                self.optimizer.differentiate(self._again(forward))
                return None
            warn_user(skipped(rows), self.comm.rank)
            return False
        check_known(rows)
        warn_user(_CHANGED, self.comm.rank)
        return False

    def _again(self, forward: tuple[Any, ...] | None) -> Any:
        """The loss of this update once more; None on a rank that joins."""
        if forward is None:
            self._share(self._meet(0.0, joining=True))
            self.keeps = self._holding
            return None
        lossfun, args, kwds, before = forward
        restore(before)
        return self.loss(lossfun, args, kwds)

    def _joins(self) -> bool:
        if not self._noted and not self._all_joined:
            return super()._joins()
        self.keeps = self._holding
        self._note = self._now(0.0, joining=True).packed()
        joins, self._all_joined = not self._all_joined, False
        return joins


_CHANGED = (
    "no step was taken: the model has begun to communicate, or some ranks brought gradients "
    "and others a loss, in an update of "
    "other sample counts than the one before; what travelled had the weights of that one"
)
