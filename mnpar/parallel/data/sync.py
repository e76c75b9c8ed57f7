"""What an optimizer does together with those of other ranks, so that copies of one model step as
one with all samples would.

Each rank's loss is a mean over its own n samples; weighted by n / N, with N the samples of all
ranks, the losses add up to the mean over all, and so do the gradients (law 1): uneven shards and
empty ones need nothing else. The weight enters with the loss, so a gradient that travels to another
rank of a model-parallel model has it already, and no pass over memory applies it. The ranks tell
each other of their samples before backward; where nothing travels during it they need not
(:mod:`mnpar.parallel.data.fused_sync`). The file is long because all of a step's stages share the
state of one object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from mnpar.autograd.tape import current_tape
from mnpar.checks.communication_checks import checking
from mnpar.checks.mesh_update import MeshUpdate
from mnpar.configuration import is_debugging
from mnpar.functions.communication.base import communication_hook
from mnpar.optimizers import GradientMethod
from mnpar.optimizers.gradient_method import Pieces
from mnpar.parallel.data.consistency import alike, compare
from mnpar.parallel.data.ddp import ends
from mnpar.parallel.data.double_buffering import DoubleBuffering
from mnpar.parallel.data.leaf_gradients import OtherGradients
from mnpar.parallel.data.placement import Placement
from mnpar.parallel.data.reducer import Reducer
from mnpar.parallel.data.replicas import Copies, Persistent, persistents, restore, shared
from mnpar.parallel.data.update_record import (
    TWICE,
    UNKNOWN,
    Identity,
    Row,
    check_known,
    own_weight,
    samples_in,
    samples_of,
    share_of,
    skipped,
    told,
    warn_user,
    weighted,
)
from mnpar.parallel.data.zero import Shards
from mnpar.parameter import structure
from mnpar.serializer import Deserializer

REDUCTIONS = ("weighted", "mean", "sum")
_AS_EVER = nullcontext()


class Team:
    """Ranks that meet before backward; :func:`create_multi_node_optimizer` explains the
    arguments.
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
        self.optimizer, self.reducer, self.comm = optimizer, reducer, reducer.comm
        self._how, self._zero_fill = reduce, zero_fill
        self._samples = (
            samples_in if samples is samples_of else lambda args, kwds: samples(*args, **kwds)
        )
        self._double_buffering = DoubleBuffering(reducer) if double_buffering else None
        self._shards = Shards(reducer) if sharded else None
        self._placement, self._check = placement, check
        self.on_mesh = placement is not None and placement.mesh.comm.size > 1
        self._others = OtherGradients(optimizer.owned)
        self._nowhere: list[
            Any
            # with double buffering: parameters without a gradient on any rank in the update before
        ] = []
        self._copies = Copies(self.comm, None if placement is None else placement.among)
        self._identity = Identity(optimizer, self.comm, placement, reduce)
        self._alone = False  # inside no_sync
        self._held = 0.0  # the weight of the gradients that were added up there
        self._added = 0.0  # what this update has added to that
        self._holding = False  # whether there are such gradients
        self.keeps = False  # this update's are added to them
        # what weights are divided by before those of the others are known: a QuietTeam's are by
        # another
        self._base = 1.0
        self._factor: float | None = None  # of the sum over ranks, once they have met
        self._only_synchronizes = False  # this update: it makes the copies equal, and takes no step
        # whether any rank's step may sum norms of pieces of weights that stages share
        self._asks = False
        self._altered = 0  # how often any rank's values were altered between steps
        self._suspects = False  # they were, and are to be compared in this update

    def take_as_given(self) -> None:
        """Do not broadcast rank 0's values at the first update: each rank has loaded its own."""
        self._copies.take_as_equal(self.optimizer.target)

    def _make_equal(self, final: bool = False) -> bool:
        """Make the copies equal; returns whether that may have changed values. ``final``: the
        forward cannot be run again.
        """
        model, placement = self.optimizer.target, self._placement
        self._identity.check_updates()
        if any([getattr(link, "reduces_over", None) is self.comm for link in model.links()]):
            raise RuntimeError(TWICE)
        equal = (
            final and alike(model, self.comm)
            if placement is None
            else placement.settle(model, values=False)
        )
        self._copies.make_equal(model, self.optimizer.arenas, equal)
        self._prepare()
        return not equal

    def _meet(
        self, weight: float, undoable: bool = True, manual: bool = False, joining: bool = False
    ) -> list[Row]:
        """All ranks meet and hear of each other; what is stale is synchronized.

        ``undoable``: the forward has left nothing that cannot be undone, so that it can be run
        again.
        """
        rows = told(self._now(weight, undoable, manual, joining), self.comm, self._placement)
        self._identity.check(rows)
        self._asks = rows[0].asks
        altered = any([row.altered for row in rows])
        self._altered += altered
        self._suspects = altered and self._is_due(self._altered)
        if any([row.stale for row in rows]) and not all([row.joining for row in rows]):
            final = any([row.manual or row.final for row in rows])
            if not self._make_equal(final):
                rows = [row._replace(stale=False) for row in rows]
            elif final:
                self._only_synchronizes = True
                warn_user(skipped(rows), self.comm.rank)
        if self._placement is not None and any([row.unsettled for row in rows]):
            self._placement.settle(self.optimizer.target)
            self._prepare()
        return rows

    def _prepare(self) -> None:
        """The parameters stay for a while; all ranks that have copies are here."""
        if not (self._double_buffering or self._shards):
            self.optimizer.arenas.gather(self.optimizer.members())
            self.reducer.prepare(self.optimizer.arenas)

    def _now(
        self, weight: float, undoable: bool = True, manual: bool = False, joining: bool = False
    ) -> Row:
        """This rank's row."""
        model = self.optimizer.target
        if any([end.reduces_over is self.comm and shared(end.module, model) for end in ends()]):
            raise RuntimeError(TWICE)
        stale = self._copies.stale(model)
        talks = bool(current_tape().records)
        final = talks or (stale and not undoable and any([True for _ in model.namedpersistents()]))
        unsettled = self._placement is not None and self._placement.stale(model)
        asks = altered = False
        if self._shards is not None:
            asks = self._placement is not None and self._placement.asks(self.optimizer)
            altered = self._shards.altered()
        return Row(
            weight,
            self._held,
            stale,
            final,
            manual,
            joining,
            talks,
            unsettled,
            asks,
            altered,
            *self._identity.told,
        )

    def watching(self) -> AbstractContextManager[None]:
        """Around forward and backward: in an update after which gradients are compared, so is what
        ranks own together.
        """
        placement = self._placement
        if placement is None or not (self._is_due(self.optimizer.t) or is_debugging()):
            return _AS_EVER
        ranks, everyone = [
            comm.transport.world_ranks for comm in (placement.copy, placement.mesh.comm)
        ]
        return checking(MeshUpdate(ranks, everyone, self.optimizer.target))

    def loss(self, lossfun: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> Any:
        """The loss on this rank, to be differentiated; None where there are no samples."""
        if not self._copies.ever:
            self._make_equal()
        before = self._begin()
        loss = lossfun(*args, **kwds)
        own = own_weight(loss, self._samples(args, kwds), self._how)
        if self._alone:
            self._add_up(own, loss)
            return weighted(loss, own, own / self._base, self.optimizer.loss_scale, None)
        rows = self._meet(own, before is not None)
        if any([row.stale for row in rows]) and not self._only_synchronizes:
            restore(before)
            loss = lossfun(*args, **kwds)  # the first was of other parameters
        hook = communication_hook()
        if hook is not None and self.on_mesh and self._placement is not None:
            hook.check_loss(self._placement.copy, loss)
        share = self._share(rows)
        # what stands there is part of what a model reduces in backward
        others = None if self._factor == 1 else self._others
        return weighted(loss, own, share, self.optimizer.loss_scale, others)

    def _begin(self) -> list[Persistent] | None:
        """Begin an update; returns what its forward may change, if it may have to be run again: it
        makes missing parameters.
        """
        self._added, self.keeps = 0.0, self._holding
        copies, model = self._copies, self.optimizer.target
        if copies.settled is structure.now or (copies.complete and not copies.stale(model)):
            return None
        return persistents(model)

    def _add_up(self, own: float, loss: Any) -> None:
        """An update inside no_sync."""
        if own < 0:
            raise ValueError(UNKNOWN.format(f"rank {self.comm.rank}'s"))
        if self._copies.stale(self.optimizer.target):
            raise RuntimeError(
                f"rank {self.comm.rank}: the model has parameters that no update outside of "
                "no_sync has seen: give layers "
                "their sizes, and take a step with new ones first"
            )
        if (
            own == 0
            and self._how != "sum"
            and current_tape().records
            and getattr(loss, "array", None) is None
        ):
            raise RuntimeError(
                f"rank {self.comm.rank}: no_sync cannot know the weights of losses that other "
                "ranks of a model-parallel model "
                "have: use reduce='sum', and divide the losses yourself"
            )
        self._holding = True
        self._held += own
        self._added = own

    def _share(self, rows: list[Row]) -> float:
        """What this rank's loss counts; sets the factor of the sum of gradients."""
        check_known(rows)
        share, self._factor = share_of(rows, self.comm.rank, self._how, self._base)
        return share

    def listen(self) -> None:
        """Before a backward: gradients may leave while it goes on."""
        if not (
            self._alone
            or self._only_synchronizes
            or self._double_buffering
            or self._shards
            or self.reducer.bucket_bytes is None
        ):
            # another optimizer may have moved shared ones
            self.optimizer.arenas.gather(self.optimizer.members())
            self.reducer.listen(self.optimizer.arenas)

    def give_up(self) -> None:
        """A backward failed: drop what belongs to this update."""
        if self._factor is not None and self._double_buffering is not None:
            self.interrupt()  # elsewhere the others wait for this rank's part
        self._others.settle()
        self._factor = None
        self._only_synchronizes = False
        self._held = self._held - self._added
        self._added = 0.0
        self.reducer.give_up(self.optimizer.arenas)

    def interrupt(self) -> None:
        """An error came after the other ranks may have had this rank's gradients: it may lack a
        step that they take.
        """
        self._identity.interrupt()

    def reduce(self, by_pieces: Callable[[], bool]) -> bool | Pieces | None:
        """After backward: the gradients of all ranks added up; False if no step is to be taken now,
        None if one is to be begun anew, with other gradients. If they travel in buckets and
        ``by_pieces()``: arena, place in its vectors and parameters of gradients, as they arrive.
        """
        if self._alone:
            return False
        if self._factor is None:  # the gradients were there already
            self._in_own_scale()
            self._share(self._meet(0.0, manual=True))
        factor, skipped = self._factor or 0.0, self._only_synchronizes
        self._others.settle(factor)
        self._factor, self._only_synchronizes = None, False
        self._forget_held()
        if skipped:
            return False
        arenas = self.optimizer.arenas
        nowhere, steps = [] if self._zero_fill else self.reducer.nowhere(arenas), True
        arenas.fill(self.optimizer.loss_scale)
        # what is compared is not summed yet, or is used later
        late = self._double_buffering is not None or self._shards is not None
        if late:
            self._compare()
        if self._double_buffering is not None:
            steps = self._double_buffering.reduce(arenas, factor, self.optimizer.loss_scale or 1.0)
            nowhere, self._nowhere = self._nowhere, nowhere
        elif self._shards is not None:
            self._shards.reduce(arenas, factor)
        elif (
            self.reducer.bucket_bytes is not None
            and not (nowhere or self._compares)
            and by_pieces()
        ):
            self._count_once()
            return self._pieces(factor)
        else:
            self.reducer.reduce(arenas)
            arenas.multiply(factor)
        if not late:
            self._compare()
        for param in nowhere:
            param.cleargrad()
        return steps

    def _in_own_scale(self) -> None:
        """Gradients of another's backward have its loss scale, on ranks that have any: let all
        ranks' have this optimizer's.
        """
        scale = self.optimizer.loss_scale
        for param in self.optimizer.members() if self.comm.size > 1 else ():
            if param.node.loss_scale != scale and (g := param.grad) is not None:
                g *= (scale or 1.0) / (param.node.loss_scale or 1.0)
                param.node.loss_scale = scale

    def _pieces(self, factor: float) -> Pieces:
        for bucket in self.reducer.arrivals(self.optimizer.arenas):
            if factor != 1:
                bucket.grad *= factor
            yield bucket.arena, bucket.place, bucket.params

    def _forget_held(self) -> None:
        self._held = 0.0
        self._added = 0.0
        self._holding = False
        self.keeps = False

    @property
    def _compares(self) -> bool:
        """Every so many updates, and after 1, 2, 4 …: whether ranks have the same values; on a
        mesh, also gradients.
        """
        if not (self._is_due(self.optimizer.t) or self._suspects or is_debugging()):
            return False
        return self.comm.size > 1 or (self._placement is not None and bool(self._placement.others))

    def _is_due(self, t: int) -> bool:
        return not t % self._check or (t <= self._check and not t & (t - 1))

    def _compare(self) -> None:
        if self._compares:
            compare(
                self.comm,
                self.optimizer.target,
                self.optimizer.arenas,
                self.optimizer.t,
                self._placement,
            )

    def _count_once(self) -> None:
        """On a mesh: let what is computed of the whole model in this step count each parameter
        once.
        """
        if self._placement is not None:
            self._placement.equip(self.optimizer, self._shards is not None, self.reducer)

    @contextmanager
    def _in_pieces(self, shards: Shards) -> Iterator[None]:
        steps = self.optimizer.t
        with shards.pieces(self.optimizer):
            self._count_once()
            yield
        if self._placement is not None:
            self._placement.agree(self.optimizer, self._asks)
        if self.optimizer.t > steps:  # not skipped
            for param in self.optimizer.members():
                param.update_rule.call_post_hooks(param)
            self.optimizer.call_hooks("post")
        shards.leave(self.optimizer.arenas)

    def stepping(self) -> AbstractContextManager[None]:
        """Around a step."""
        if self._shards is not None:
            return self._in_pieces(self._shards)
        self._count_once()
        return _AS_EVER

    def saving(self) -> AbstractContextManager[None]:
        """Around saving and loading."""
        return _AS_EVER if self._shards is None else self._shards.whole(self.optimizer)

    def serialize(self, serializer: Any) -> None:
        """Save or load what the next update needs of the last one."""
        if isinstance(serializer, Deserializer):
            self._identity.interrupt(None)
        elif self._holding:
            warn_user(
                f"rank {self.comm.rank}: the gradients that no_sync has added up are not "
                "saved: save after a step"
            )
        if self._double_buffering is not None:
            self._double_buffering.serialize(serializer["late"])

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, updates only add up gradients."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def join(self) -> None:
        """Take part in the updates of the ranks that still have samples, until none has."""
        if not self._copies.ever:
            self._make_equal()
        while self._joins():
            self.optimizer.differentiate(None)
            self.optimizer.step()

    def _joins(self) -> bool:
        """Whether there is another update, of other ranks."""
        self.keeps = self._holding
        rows = self._meet(0.0, joining=True)
        if all([row.joining for row in rows]):
            return False
        self._share(rows)
        return True
