"""Sum the gradients of ranks that hold copies of one model, so that the copies step as one with all
samples would.

Each rank's loss is a mean over its own n samples; weighted by n / N, with N the samples of all
ranks, the losses add up to the mean over all, and so do the gradients (law 1). Nobody needs N
before the sum: backward starts from n over the N of the update before, and the sum is corrected by
the factor between the two. The ranks tell each other their n, and whatever else may be unusual, in
the very message of the gradients (:mod:`mnpar.parallel.data.update_record`). If anything is, that
message sums nothing, on no rank: the ranks set it right, and then sum.

A rank that must know N before its backward tells its record before it, without gradients. That is
so where gradients travel during backward: to other ranks of a model-parallel model, which cannot
correct them, or in buckets, whose parameters are updated as they arrive. The others learn by its
record that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from mnpar.autograd.tape import current_tape
from mnpar.checks.communication_checks import checking
from mnpar.checks.mesh_update import MeshUpdate
from mnpar.communicators.create import current_size
from mnpar.communicators.replication import describe_model
from mnpar.errors import listed
from mnpar.functions.communication.base import communication_hook
from mnpar.optimizers import GradientMethod
from mnpar.optimizers.gradient_method import Pieces
from mnpar.parallel.data.consistency import NO_DIGEST, are_equal
from mnpar.parallel.data.ddp import ends
from mnpar.parallel.data.double_buffering import DoubleBuffering
from mnpar.parallel.data.fingerprint import OptimizerFingerprint
from mnpar.parallel.data.nonfinite import NonFiniteReport
from mnpar.parallel.data.placement import Placement
from mnpar.parallel.data.reducer import Reducer
from mnpar.parallel.data.replicas import (
    Persistent,
    ReplicaSet,
    copy_persistents,
    have_common_parameters,
    restore_persistents,
)
from mnpar.parallel.data.rows import Rows, take_rows
from mnpar.parallel.data.samples import SampleCounter, samples_of
from mnpar.parallel.data.update_record import (
    UNKNOWN,
    UpdateRecord,
    check_known,
    find_unknown,
    total_weight,
)
from mnpar.parallel.data.weighting import (
    UnownedGradients,
    is_finite,
    own_weight,
    weighted,
)
from mnpar.parallel.data.zero import Shards
from mnpar.parameter import Parameter, structure
from mnpar.runtime.callsite import warn_user
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.variable import Variable

REDUCTIONS = ("weighted", "mean", "sum")
_NOTHING = nullcontext()
_NO_ROWS = Rows()


class _Update:
    """The update that is under way.

    Args:
        record: what this rank tells the others.
        forward: computes this rank's loss once more; None: it has none.
        started: the weight from which backward starts.
        before: the persistent values before the forward, if it may have to run again.
    """

    __slots__ = (
        "before",
        "factor",
        "forward",
        "graphless",
        "record",
        "reruns",
        "skips",
        "started",
        "talks",
    )

    def __init__(
        self,
        record: UpdateRecord,
        forward: Callable[[], Any] | None = None,
        started: float = 0.0,
        before: list[Persistent] | None = None,
    ) -> None:
        self.record = record
        self.forward = forward
        self.started = started
        self.before = before
        # of the sum of gradients; None: the ranks have not met yet
        self.factor: float | None = None
        self.reruns = False  # the forward was of other parameters than all ranks have now
        self.skips = False  # there is no step
        self.graphless = False  # no function has computed the loss
        self.talks = False  # gradients may come from other ranks' losses


class GradientSync:
    """The part of an optimizer that sums gradients over ranks;
    :func:`create_multi_node_optimizer` explains the arguments.
    """

    def __init__(
        self,
        optimizer: GradientMethod,
        reducer: Reducer,
        reduce: str = "weighted",
        zero_fill: bool = True,
        double_buffering: bool = False,
        samples: Callable[..., float] = samples_of,
        sharded: bool = False,
        placement: Placement | None = None,
        check: int = 100,
    ) -> None:
        if reduce not in REDUCTIONS:
            raise ValueError(f"gradients are reduced as {', '.join(REDUCTIONS)}, not {reduce!r}")
        self.optimizer = optimizer
        self.reducer = reducer
        self.comm = reducer.comm
        optimizer.buffers.synchronized = True
        self.replicas = ReplicaSet(reducer.comm, placement, check)
        self.on_mesh = placement is not None and placement.mesh.comm.size > 1
        # whether no other rank can have a loss that this model has a part in
        self._has_all_losses = self.comm.size == current_size()
        self.keeps = False  # whether this update's gradients are added to those that are there
        self._how = reduce
        self._zero_fill = zero_fill
        matters = reducer.comm.size > 1 and reduce == "weighted"
        self._samples = SampleCounter(samples, strict=matters)
        # whether ranks tell how many rows their losses have, of which nobody counts the samples
        self._compares_rows = matters
        self._placement = placement
        self._double_buffering = DoubleBuffering(reducer) if double_buffering else None
        self._shards = Shards(reducer) if sharded else None
        # whether records come before backward in each update
        self._meets_first = (
            reducer.bucket_bytes is not None
            or double_buffering
            or sharded
            or not zero_fill
            or (placement is not None and placement.copy.size > 1)
        )
        self._fingerprint = OptimizerFingerprint(optimizer, self.comm, placement, reduce)
        self._others = UnownedGradients(optimizer.owned)
        # what weights are divided by before N is known: the N of the update before
        self._base: float | None = 1.0 if reduce == "sum" else None
        # records of the update before, packed, if there is nothing to be done about them
        self._notes: list[bytes] | None = None
        self._packed: tuple[UpdateRecord | None, bytes] = (None, b"")  # this rank's last
        self._tuned: object = None  # ``structure.tuned`` when it was made
        self._update: _Update | None = None
        self._alone = False  # inside no_sync
        self._held = 0.0  # the weight of the gradients that were added up there
        self._added = 0.0  # what this update has added to that
        self._holding = False  # whether there are such gradients
        # with double buffering: parameters without a gradient on any rank in the update before
        self._nowhere: list[Any] = []
        # whether any rank's step may sum norms of pieces of weights that stages share
        self._asks = False
        self._all_joined = False
        self._ever_lost = False  # whether any rank had a loss in any update
        self._without = False  # this rank's loss function has returned no loss before
        self._ever_reached = False  # whether any parameter of any rank ever had a gradient
        everyone = self.comm if placement is None else placement.mesh.comm
        self._nonfinite = NonFiniteReport(everyone, reducer)

    def take_as_given(self) -> None:
        """Do not broadcast rank 0's values at the first update: each rank has loaded its own."""
        self.replicas.take_as_equal(self.optimizer.target)

    def _make_equal(self, final: bool = False) -> bool:
        """Make the copies equal; return whether that may have changed values. ``final``: the
        forward cannot be run again.
        """
        model, placement = self.optimizer.target, self._placement
        self._fingerprint.check_updates()
        if any([self.comm in link.gradient_comms().averaged for link in model.links()]):
            raise RuntimeError(_TWICE)
        equal = (
            final and are_equal(model, self.comm)
            if placement is None
            else placement.settle(model, values=False)
        )
        self.replicas.make_equal(model, self.optimizer.buffers, equal)
        self._prepare()
        return not equal

    def _prepare(self) -> None:
        """Let gradients live where they are summed: the parameters stay for a while. All ranks that
        have copies call it.
        """
        if not (self._double_buffering or self._shards):
            self.optimizer.buffers.gather(self.optimizer.members())
            self.reducer.prepare(self.optimizer.buffers)

    # ---- before backward ----

    def watching(self) -> AbstractContextManager[None]:
        """Return a context around forward and backward: on a mesh, in updates in which values are
        compared, ranks also compare what they own together.
        """
        placement = self._placement
        if placement is None or not self.replicas.is_due(self.optimizer.t):
            return _NOTHING
        ranks, everyone = [
            comm.transport.world_ranks for comm in (placement.copy, placement.mesh.comm)
        ]
        return checking(MeshUpdate(ranks, everyone, self.optimizer.target))

    def loss(self, lossfun: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> Any:
        """Return the loss on this rank, to be differentiated; None where there are no samples."""
        model = self.optimizer.target
        if not self.replicas.ever_equal:
            self._make_equal()
        self._added, self.keeps = 0.0, self._holding
        settled = self.replicas.is_settled(model)
        before = None if settled else copy_persistents(model)
        loss = lossfun(*args, **kwds)
        samples = self._samples.count(args, kwds)
        own = own_weight(loss, samples, self._how)
        if self.comm.size == 1 and self._how != "sum" and not self._held:
            self._base = abs(own) or self._base  # N
        started = abs(own) / (self._base or 1.0)
        if self._alone:
            self._add_up(own, loss)
            return weighted(loss, own, started, self.optimizer.loss_scale, None)
        # a loss scaling skips the step then
        diverged = own != 0 and not is_finite(loss) and not self.optimizer.skips_overflows
        record = self._packed[0]
        # nobody counts a closure's samples; a tuple may be columns, or batches
        unsure = own < 0 or tuple in map(type, args)
        seen = unsure and self._compares_rows and isinstance(loss, Variable)
        rows = Rows.of(loss.node) if seen else _NO_ROWS
        if record is None or diverged or not (settled and self._repeats(record, own, rows)):
            lossless = loss is None and self._lacks_loss(samples)
            record = self._record(
                own, before is not None, rows=rows, lossless=lossless, diverged=diverged
            )
        forward = lambda: lossfun(*args, **kwds)
        update = self._begin(_Update(record, forward, started, before))
        if not self._ever_reached:
            update.graphless = isinstance(loss, Variable) and loss.creator is None
            update.talks = bool(current_tape().records or current_tape().pending)
        return self._weigh(update, loss)

    def _weigh(self, update: _Update, loss: Any) -> Any:
        """Return the loss as backward is to start from it: run anew, if that is needed."""
        if update.reruns and update.forward is not None:
            update.reruns = False
            restore_persistents(update.before)
            loss = update.forward()  # the first was of other parameters
        if self.on_mesh and self._placement is not None:
            hook = communication_hook()
            if hook is not None:
                hook.check_loss(self._placement.copy, loss)
        others = None if update.factor == 1 else self._others
        if others is not None and current_tape().records:
            for end in ends():
                others.leave(end.reduces)
        own = update.record.weight
        return weighted(loss, own, update.started, self.optimizer.loss_scale, others)

    def _repeats(self, record: UpdateRecord, weight: float, rows: Rows) -> bool:
        """Return whether this rank has nothing else to tell than its last record: nearly always."""
        return (
            weight == record.weight
            and rows.number == record.rows
            and rows.weight == record.rows_weight
            and record.digest is NO_DIGEST
            and self._notes is not None
            and self._placement is None
            and self._tuned is structure.tuned
            and not (self._held or current_tape().records or self.replicas.is_due(self.optimizer.t))
        )

    def _record(
        self,
        weight: float,
        undoable: bool = True,
        *,
        rows: Rows = _NO_ROWS,
        manual: bool = False,
        joining: bool = False,
        lossless: bool = False,
        diverged: bool = False,
    ) -> UpdateRecord:
        """Return this rank's record. ``undoable``: the persistent values from before the forward
        are there, so that it can be run again.
        """
        model, records = self.optimizer.target, current_tape().records
        if records and any(
            [
                end.averages_over is self.comm and have_common_parameters(end.module, model)
                for end in ends()
            ]
        ):
            raise RuntimeError(_TWICE)
        talks = bool(records)
        stale = self.replicas.is_stale(model)
        first = talks or stale or self._base is None or self._meets_first
        final = (
            talks
            or (stale and not undoable and any([True for _ in model.namedpersistents()]))
            or (self._holding and not first)
        )
        self._tuned = structure.tuned
        unsettled = asks = altered = False
        if self._placement is not None:
            unsettled = self._placement.is_stale(model)
            asks = self._shards is not None and self._placement.asks(self.optimizer)
        if self._shards is not None:
            altered = self._shards.altered()
        number, rules = self._fingerprint.numbers
        return UpdateRecord(
            weight,
            self._held,
            *rows,
            first,
            stale,
            final,
            manual,
            joining,
            unsettled,
            asks,
            altered,
            lossless=lossless and not talks,  # others may have the loss
            diverged=diverged,
            number=number,
            rules=rules,
            digest=self.replicas.digest(model, self.optimizer.t),
        )

    def _begin(self, update: _Update) -> _Update:
        """Begin an update, in which this rank tells its record now, or with its gradients."""
        if self._update is not None:  # ended by an error
            self._others.forget()
            self._update = None
        if update.record.first:
            records = self.replicas.exchange(update.record)
            self._meet(update, records)
            if not self._all_joined:
                update.started, update.factor = self._share(records)
        self._update = update
        return update

    def _meet(self, update: _Update, records: list[UpdateRecord]) -> None:
        """Set right what the records tell; all ranks call it with the same."""
        model = self.optimizer.target
        self._notes = None
        self._fingerprint.check(records)
        self._check_losses(update, records)
        self._asks = records[0].asks
        if all([record.joining for record in records]):
            self._all_joined = True
            return
        if any([record.stale for record in records]):
            final = any([record.manual or record.final for record in records])
            if self._make_equal(final):
                update.reruns = not final
                if final:
                    unweighted = any([record.manual or record.held for record in records])
                    self._skip(update, _EQUALIZED.format(_MANUAL if unweighted else _FINAL))
        elif len({record.manual for record in records if not record.joining}) > 1:
            self._skip(update, _MIXED)
        if self._placement is not None and any([record.unsettled for record in records]):
            self._placement.settle(model)
            self._prepare()
        elif not any([record.stale for record in records]):
            self.replicas.compare(records, model, self.optimizer.t)

    def _check_losses(self, update: _Update, records: list[UpdateRecord]) -> None:
        """Tell losses that are missing everywhere or not finite, and whose rows weigh more on some
        ranks than on others; all ranks call it with the same records.
        """
        if self._compares_rows:
            self._compare_rows(records)
        if any([record.diverged for record in records]):
            mine = update.record
            loss = mine.diverged if mine.weight else None
            self._nonfinite.tell(self.optimizer.target, self.optimizer.t, loss)
        self._ever_lost = self._ever_lost or total_weight(records) > 0
        if (
            not self._ever_lost
            and any([record.lossless for record in records])
            and not any([record.manual for record in records])
            and self._has_all_losses
        ):
            raise TypeError(_LOSSLESS.format(type(self.optimizer.target).__name__))

    def _compare_rows(self, records: list[UpdateRecord]) -> None:
        """Warn, once, if the mean over ranks is a mean of means."""
        rows = [(one.rows, abs(one.weight) or 1.0, one.rows_weight) for one in records if one.rows]
        each = [weight * own / count for count, weight, own in rows]
        if rows and max(each) - min(each) > 1e-6 * max(map(abs, each)):
            self._compares_rows = False
            told = [listed([f"{n:g}" for n in some]) for some in list(zip(*rows, strict=True))[:2]]
            warn_user(_UNEVEN.format(*told), self.comm.rank)

    def _trained(self) -> list[Parameter]:
        """Return the parameters that steps are to change."""
        members = self.optimizer.members()
        return [p for p in members if p.update_rule is None or p.update_rule.enabled]

    def _lacks_loss(self, samples: float) -> bool:
        """Return whether a loss function must have returned a loss: one update without samples may
        be there to make the copies equal.
        """
        before, self._without = self._without, True
        return (samples > 0 or (samples < 0 and before)) and bool(self._trained())

    def _reach(self, update: _Update) -> int:
        """Return how far this rank's backward got, for :meth:`_check_reach`."""
        trained = self._trained()
        if update.record.manual or update.talks or not trained:
            return _FOUND  # not a question for this rank
        if any([param.node.gradient is not None for param in trained]):
            return _FOUND
        if update.record.weight == 0:
            return _NO_LOSS
        return _NO_GRAPH if update.graphless else _MISSED

    def _check_reach(self, reach: int) -> None:
        """Tell, at the first update, a model of which no parameter gets a gradient on any rank; all
        ranks call it.
        """
        furthest = int(self.comm.allreduce(np.array(reach), "max"))
        self._ever_reached = furthest != _NO_LOSS
        if furthest == _NO_GRAPH:
            raise RuntimeError(_WITHOUT_GRAPH.format(type(self.optimizer.target).__name__))
        if furthest == _MISSED:
            warn_user(_UNREACHED.format(describe_model(self.optimizer.target)), self.comm.rank)

    def _skip(self, update: _Update, why: str) -> None:
        update.skips = True
        warn_user(why, self.comm.rank)

    def _share(self, records: list[UpdateRecord]) -> tuple[float, float]:
        """Return what this rank's loss counts, and the factor of the sum of the gradients."""
        check_known(records)
        weight = abs(records[self.comm.rank].weight)
        base, total = self._base or 1.0, total_weight(records)
        if self._how == "sum":
            return weight, 1.0
        if any([record.manual for record in records]):
            return 1.0, 1 / len(records)
        if total:
            self._base = total
        if any([record.held for record in records]):  # by the same base
            return weight / base, base / total
        return (weight / total if total else 0.0), 1.0

    def _add_up(self, own: float, loss: Any) -> None:
        """Note an update inside no_sync."""
        if own < 0:
            raise ValueError(UNKNOWN.format(f"rank {self.comm.rank}'s"))
        if self.replicas.is_stale(self.optimizer.target):
            raise RuntimeError(
                f"rank {self.comm.rank}: the model has parameters that no update outside of "
                "no_sync has seen: give layers their sizes, and take a step with new ones first"
            )
        if (
            own == 0
            and self._how != "sum"
            and current_tape().records
            and getattr(loss, "array", None) is None
        ):
            raise RuntimeError(
                f"rank {self.comm.rank}: no_sync cannot know the weights of losses that other "
                "ranks of a model-parallel model have: use reduce='sum', and divide the losses "
                "yourself"
            )
        self._holding = True
        self._held += own
        self._added = own

    def listen(self) -> None:
        """Let gradients leave during the backward that begins now, in buckets."""
        if not (
            self.reducer.bucket_bytes is None
            or self._alone
            or self._double_buffering
            or self._shards
            or (self._update is not None and self._update.skips)
        ):
            # another optimizer may have moved shared ones
            self.optimizer.buffers.gather(self.optimizer.members())
            self.reducer.listen(self.optimizer.buffers)

    def give_up(self) -> None:
        """Drop what belongs to this update, whose backward failed."""
        if self._double_buffering is not None and self._update is not None:
            self.interrupt()  # elsewhere the others wait for this rank's part
        self._update = None
        self._others.settle()
        self._held -= self._added
        self._added = 0.0
        self.reducer.give_up(self.optimizer.buffers)

    def interrupt(self) -> None:
        """Note an error that came after the other ranks may have had this rank's gradients: it may
        lack a step that they take.
        """
        self._fingerprint.interrupt()

    # ---- after backward ----

    def reduce(self, by_pieces: Callable[[], bool]) -> bool | Pieces | None:
        """Add the gradients of all ranks up. Return whether to step; None if the step is to begin
        anew, with other gradients. If they arrive one after the other and ``by_pieces()``: return
        them as buffer, place in its vectors and parameters.
        """
        if self._alone:
            return False
        update = self._update
        if update is None:  # the gradients were there already
            self._in_own_scale()
            rows = take_rows() if self._compares_rows else _NO_ROWS
            update = self._begin(_Update(self._record(0.0, rows=rows, manual=True)))
        self._update = None
        if self._all_joined:
            return False
        # told once all ranks know that they sum
        examined = self._ever_reached or not self._has_all_losses
        reach = None if examined else self._reach(update)
        if update.factor is None:
            try:
                return self._sum_with_records(update, by_pieces, reach)
            except BaseException:
                self._others.forget()
                raise
        self._others.settle(update.factor)
        self._forget_held()
        if update.skips:
            return False
        if reach is not None:
            self._check_reach(reach)
        return self._sum(update.factor, by_pieces)

    def _sum_with_records(
        self, update: _Update, by_pieces: Callable[[], bool], reach: int | None
    ) -> bool | Pieces | None:
        """Sum gradients in one message with the records. Between its two halves the rank does what
        it can while others arrive.
        """
        buffers, reducer = self.optimizer.buffers, self.reducer
        records: list[UpdateRecord] | None = None

        def accept(notes: list[bytes]) -> bool:
            nonlocal records
            if notes == self._notes:
                return True
            records = [UpdateRecord.unpack(note) for note in notes]
            return _can_be_summed(records)

        if not buffers.filled:
            buffers.fill(self.optimizer.loss_scale)
        noted = reducer.noted(buffers)
        noted.begin(self._pack(update.record))
        at_once = self._placement is None and by_pieces()
        # of parts all but the first are there after reducer.rest() only
        parts = reducer.parts if at_once else ()
        if parts and any(
            [param.node.loss_scale is not None for param in buffers.learning[0].params]
        ):
            parts = ()  # whole gradients are divided by it
        added = noted.end(accept, bool(parts))
        if not added:
            return self._begin_anew(update, records or [])
        reducer.finish(buffers)
        factor = 1.0
        if records is not None:
            reducer.rest()
            parts = ()
            self._check_losses(update, records)
            self.replicas.compare(records, self.optimizer.target, self.optimizer.t)
            factor = self._factor_after(records)
            buffers.multiply(factor)
            if reach is not None:
                self._check_reach(reach)
        self._others.settle(factor)
        if self._holding or self._held:
            self._forget_held()
        if parts:
            return self._in_parts(*parts)
        return reducer.pieces if at_once else True

    def _pack(self, record: UpdateRecord) -> bytes:
        before, note = self._packed
        if record is before or record == before:
            return note  # the same object costs nothing
        note = record.pack()
        self._packed = record, note
        return note

    def _factor_after(self, records: list[UpdateRecord]) -> float:
        """Return the factor of a sum whose weights were divided by the base."""
        manual = any([record.manual for record in records])
        base, total = self._base or 1.0, total_weight(records)
        if self._how == "sum":
            factor = 1.0
        elif manual:
            factor = 1 / len(records)
        else:
            factor = base / total if total else 1.0
            self._base = total or base
        usual = not manual and not any(
            [record.held or record.joining or record.diverged for record in records]
        )
        self._notes = [record.pack() for record in records] if usual else None
        return factor

    def _begin_anew(self, update: _Update, records: list[UpdateRecord]) -> bool | None:
        """Go on after records that prevented the sum: as if this rank had told its own before its
        backward.
        """
        self._meet(update, records)
        if not self._all_joined:
            started = update.started
            update.started, update.factor = self._share(records)
            if update.skips:
                self._others.forget()
            elif update.reruns:
                self._others.forget()
                if update.forward is not None:
                    self.optimizer.differentiate(self._weigh(update, None))
            else:
                correction = update.started / started if started else 1.0
                self.optimizer.buffers.multiply(correction)
                self._others.settle(correction * update.factor)
        self._update = update
        return None

    def _sum(self, factor: float, by_pieces: Callable[[], bool]) -> bool | Pieces:
        """Sum gradients when all ranks know all records."""
        buffers, steps = self.optimizer.buffers, True
        nowhere = [] if self._zero_fill else self.reducer.nowhere(buffers)
        buffers.fill(self.optimizer.loss_scale)
        model, t = self.optimizer.target, self.optimizer.t
        # what is compared is not summed yet, or is used later
        late = self._double_buffering is not None or self._shards is not None
        if late:
            self.replicas.compare_parts(model, t)
        if self._double_buffering is not None:
            steps = self._double_buffering.reduce(buffers, factor, self.optimizer.loss_scale or 1.0)
            nowhere, self._nowhere = self._nowhere, nowhere
        elif self._shards is not None:
            self._shards.reduce(buffers, factor)
        elif (
            self.reducer.bucket_bytes is not None
            and not (nowhere or self.replicas.compares(t))
            and by_pieces()
        ):
            self._count_once()
            return self._in_buckets(factor)
        else:
            self.reducer.reduce(buffers)
            buffers.multiply(factor)
        if not late:
            self.replicas.compare_parts(model, t)
        for param in nowhere:
            param.cleargrad()
        return steps

    def _in_parts(self, own: slice, *others: slice) -> Pieces:
        """Yield the pieces of a vector that is still being summed: first what this rank has added
        up, then the other ranks' parts.
        """
        buffer = self.optimizer.buffers.learning[0]
        try:
            yield buffer, own, buffer.params
        finally:
            self.reducer.rest()
        for place in others:
            if place.start < place.stop:
                yield buffer, place, []

    def _in_buckets(self, factor: float) -> Pieces:
        for bucket in self.reducer.arrivals(self.optimizer.buffers):
            if factor != 1:
                bucket.grad *= factor
            yield bucket.buffer, bucket.place, bucket.params

    def _in_own_scale(self) -> None:
        """Bring gradients of another's backward, which only some ranks may have, to this
        optimizer's loss scale.
        """
        scale = self.optimizer.loss_scale
        for param in self.optimizer.members() if self.comm.size > 1 else ():
            if param.node.loss_scale != scale and (g := param.grad) is not None:
                g *= (scale or 1.0) / (param.node.loss_scale or 1.0)
                param.node.loss_scale = scale

    def _forget_held(self) -> None:
        self._held = self._added = 0.0
        self._holding = self.keeps = False

    # ---- around a step ----

    def _count_once(self) -> None:
        """Let what is computed of the whole model in this step count each parameter once, on a
        mesh.
        """
        if self._placement is not None:
            self._placement.equip(self.optimizer)

    @contextmanager
    def _in_pieces(self, shards: Shards) -> Iterator[None]:
        steps = self.optimizer.t
        with shards.pieces(self.optimizer):
            self._count_once()
            yield
        if self._placement is not None:
            self._placement.agree(self._asks)
        if self.optimizer.t > steps:  # not skipped
            for param in self.optimizer.members():
                param.update_rule.call_post_hooks(param)
            self.optimizer.call_hooks("post")
        shards.leave(self.optimizer.buffers)

    def stepping(self) -> AbstractContextManager[None]:
        """Return a context around a step."""
        if self._shards is not None:
            return self._in_pieces(self._shards)
        self._count_once()
        return _NOTHING

    def saving(self) -> AbstractContextManager[None]:
        """Return a context around saving and loading."""
        return _NOTHING if self._shards is None else self._shards.whole(self.optimizer)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load what the next update needs of the last one: divided by another base,
        gradients would have other last digits.
        """
        if isinstance(serializer, Deserializer):
            self._fingerprint.interrupt(None)
            self._notes = None
        elif self._holding:
            warn_user(
                f"rank {self.comm.rank}: the gradients that no_sync has added up are not "
                "saved: save after a step"
            )
        if self._double_buffering is not None:
            self._double_buffering.serialize(serializer["late"])
        if not self._meets_first:
            with suppress(KeyError):  # saved by an optimizer with other options, or of one process
                self._base = float(serializer["team"]("base", self._base or 0.0)) or None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let updates inside a ``with`` block only add up gradients."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def join(self) -> None:
        """Take part in the updates of the ranks that still have samples, until none has."""
        if not self.replicas.ever_equal:
            self._make_equal()
        while True:
            self.keeps = self._holding
            self._begin(_Update(self._record(0.0, joining=True)))
            if not self._all_joined:
                self.optimizer.differentiate(None)
                self.optimizer.step()
            if self._all_joined:
                self._all_joined, self._update = False, None
                return


def _can_be_summed(records: list[UpdateRecord]) -> bool:
    """Return whether gradients that come with these records can be summed: the sum is then right
    but for a factor.
    """
    return (
        len({(record.number, record.rules) for record in records}) == 1
        and len({record.manual for record in records if not record.joining}) == 1
        and not any([record.first or record.stale or record.unsettled for record in records])
        and not find_unknown(records)
    )


_TWICE = (
    "the model has, or is in, a DistributedDataParallel of these ranks: gradients would be "
    "reduced twice. Use one of them"
)

# how far a rank's backward got
_NO_LOSS, _NO_GRAPH, _MISSED, _FOUND = range(4)

_WITHOUT_GRAPH = (
    "the losses of all ranks have no graph, so no parameter of the {} is trained: they must be "
    "computed by functions of Variables, not of their arrays (.array), and not under "
    "mnpar.no_backprop_mode()"
)

_UNREACHED = (
    "no parameter of {} has a gradient on any rank: the loss does not depend on the model that the "
    "optimizer was set up for (on a copy of it?)"
)

_LOSSLESS = (
    "the loss function returned None on every rank that had samples, so no parameter of the {} is "
    "trained: it must return the loss (does a path through it end without return?)"
)

_EQUALIZED = (
    "this update only made the parameters equal on all ranks, those of rank 0, and no step was "
    "taken. The first update of an optimizer does so, of one that was copied before it made one "
    "too, and the first with new parameters: {}"
)

_MIXED = "no step was taken: some ranks brought gradients, and others a loss function"

_UNEVEN = (
    "the ranks' losses are of {} rows of data, and count as {}, as far as the loss function's "
    "arguments tell: a mean of means is not the mean over all samples. Give it the arrays, "
    "update(lossfun, x, t), or create_multi_node_optimizer(samples=a function of its arguments); "
    "if the program weighs losses itself, or these rows are not their samples, reduce='mean'"
)

_MANUAL = (
    "gradients that were there already are of other values; update(lossfun, ...) computes them "
    "once more instead"
)

_FINAL = (
    "its forward communicated, or changed persistent values, and so cannot be run once more "
    "with these: give layers their sizes to avoid it"
)
