"""What an optimizer does together with those of other ranks, so that copies of one model step as one with all samples would.

Each rank's loss is a mean over its own n samples; weighted by n / N, with N the samples of all ranks, the losses add up to the
mean over all, and so do the gradients (law 1): uneven shards and empty ones need nothing else. The weight enters with the loss,
so a gradient that travels to another rank of a model-parallel model has it already, and no pass over memory applies it.
The ranks tell each other of their samples before backward or, where no gradient travels during it, with the gradients
(:mod:`mnpar.parallel.meeting`). (The file is long because all the ways
that an update can go are here; each method is short.)
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.arena import Arenas
from mnpar.config import is_debug
from mnpar.errors import MismatchError
from mnpar.optimizers import GradientMethod
from mnpar.parallel.agreement import Copies
from mnpar.parallel.late import Late
from mnpar.parallel.likeness import compare
from mnpar.parallel.meeting import Row, Weighted, total_of, unknown_among_known
from mnpar.parallel.placement import Placement
from mnpar.parallel.reducer import Reducer
from mnpar.parallel.samples import samples_of
from mnpar.parallel.shards import Shards
from mnpar.tape import current_tape
from mnpar.variable import Variable

REDUCTIONS = ("weighted", "mean", "sum")


class Team:
    """What an optimizer does together with those of other ranks; :func:`create_multi_node_optimizer` explains the arguments."""

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
        self._how, self._zero_fill, self._samples = reduce, zero_fill, samples
        self._late = Late(reducer) if double_buffering else None
        self._shards = Shards(reducer) if sharded else None
        self._placement, self._check = placement, check
        self._nowhere: list[Any] = []  # parameters that had no gradient in the update before, where that comes late
        self._copies = Copies(self.comm, None if placement is None else placement.among)
        self._alone = False  # inside no_sync
        self._held = 0.0  # the weight of the gradients that were added up there
        self._added = 0.0  # by this update
        self._adds_up = False  # some were
        self.keeps = False  # this update's are added to them
        self._factor: float | None = None  # of the sum over ranks, once they have met
        self._only_synchronizes = False  # this update
        self._quiet = zero_fill and not (double_buffering or sharded or placement) and reducer.bucket_bytes is None
        self._noted = False  # the ranks meet in the message of the gradients
        self._base = 1.0  # what weights are divided by before backward: then the total of the update before
        self._next: float | None = None  # that of the next update, if they meet there in the message of the gradients
        self._row: Row | None = None  # of this update, if they do
        self._again: Callable[[], Any] = self._nothing_again  # computes the loss of this update once more
        self._all_joined = False
        self._arriving: float | None = None  # the factor of gradients that are waited for in the step

    def take_as_given(self) -> None:
        """Do not give the ranks rank 0's values at first: each has loaded what it is to have."""
        self._copies.take_as_equal(self.optimizer.target)

    def _make_equal(self) -> bool:
        """Let copies be copies; whether that may have changed values."""
        updates = [int(t) for t in self.comm.allgather(np.array(self.optimizer.t))]
        if len(set(updates)) > 1:  # values are given to all ranks, and states are not
            raise MismatchError(f"the ranks' optimizers have made {updates} updates: load one snapshot on all ranks, or none")
        if any([getattr(link, "reduces_over", None) is self.comm for link in self.optimizer.target.links()]):
            raise RuntimeError(_TWICE)
        equal = self._placement is not None and self._placement.settle(self.optimizer.target, values=False)
        self._copies.make_equal(self.optimizer.target, self.optimizer.arenas, equal)
        return not equal

    def _meet(self, weight: float, undoable: bool = True, manual: bool = False, joining: bool = False) -> list[Row]:
        """All ranks meet and hear of each other; what is stale is synchronized.

        ``undoable``: the forward has left nothing that cannot be undone, so that it can be run again.
        """
        rows = self._tell(self._now(weight, undoable, manual, joining))
        if any([row.stale for row in rows]) and not all([row.joining for row in rows]):
            if not self._make_equal():
                rows = [row._replace(stale=False) for row in rows]
            elif any([row.manual or row.final for row in rows]):
                self._only_synchronizes = True
                self._warn(_SKIPPED)
        if self._placement is not None and any([row.unsettled for row in rows]):
            self._placement.settle(self.optimizer.target)
        return rows

    def _now(self, weight: float, undoable: bool = True, manual: bool = False, joining: bool = False) -> Row:
        """What this rank has to tell."""
        model = self.optimizer.target
        stale, talks = self._copies.stale(model), bool(current_tape().records)
        final = talks or (stale and not undoable and any([True for _ in model.namedpersistents()]))
        unsettled = self._placement is not None and self._placement.stale(model)
        return Row(weight, self._held, stale, final, manual, joining, talks, unsettled)

    def _tell(self, mine: Row) -> list[Row]:
        """The rows of the ranks that have copies; on a mesh, what holds for any of its ranks holds for all."""
        comm = self.comm if self._placement is None else self._placement.mesh.comm
        rows = [Row(*values) for values in np.stack(comm.allgather(np.array(mine, np.float64))).tolist()]
        if self._placement is None:
            return rows
        names = ("stale", "final", "manual", "talks", "unsettled")
        flags = {name: any([getattr(row, name) for row in rows]) for name in names}
        line = self._placement.mesh.line(self._placement.summed, comm.rank)
        return [rows[rank]._replace(**flags) for rank in line]

    def _warn(self, what: str) -> None:
        if self.comm.rank == 0:
            warnings.warn(what, stacklevel=6)

    # ---- the loss, with its weight ----

    def loss(self, lossfun: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> Any:
        """The loss on this rank, to be differentiated; None where there are no samples."""
        if not self._copies.ever:
            self._make_equal()
        self._added = 0.0
        before = None if self._copies.complete and not self._copies.stale(self.optimizer.target) else self._persistents()
        loss = lossfun(*args, **kwds)
        own = self._own_weight(loss, self._samples(*args, **kwds))
        self.keeps = self._adds_up
        if self._alone:
            self._add_up(own)
            return self._weighted(loss, own, own / self._base)
        if self._noted:
            self._row = self._now(own, before is not None)
            self._again = lambda: self._repeat(before, lossfun, args, kwds)
            return self._weighted(loss, own, 1.0 if self._how == "sum" else abs(own) / self._base)
        rows = self._meet(own, before is not None)
        if any([row.stale for row in rows]) and not self._only_synchronizes:
            self._restore(before)
            loss = lossfun(*args, **kwds)  # the first was of other parameters
        return self._weighted(loss, own, self._share(rows))

    def _repeat(self, before: Any, lossfun: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> Any:
        self._restore(before)
        return self.loss(lossfun, args, kwds)

    def _nothing_again(self) -> None:
        """What a rank that joins has instead of a loss."""
        self._share(self._meet(0.0, joining=True))
        self.keeps = self._adds_up

    def _restore(self, before: list[tuple[Any, str, Any]] | None) -> None:
        for link, name, value in before or []:
            setattr(link, name, value)

    def _add_up(self, own: float) -> None:
        """An update inside no_sync."""
        if own < 0:
            raise ValueError(_UNKNOWN.format(f"rank {self.comm.rank}'s"))
        if self._copies.stale(self.optimizer.target):
            raise RuntimeError(f"rank {self.comm.rank}: parameters appeared inside no_sync: give layers their sizes")
        if own == 0 and self._how != "sum" and current_tape().records:
            raise RuntimeError(
                f"rank {self.comm.rank}: no_sync cannot know the weights of losses that other ranks of a model-parallel model "
                "have: use reduce='sum', and divide the losses yourself"
            )
        self._adds_up = True
        self._held += own
        self._added = own

    def _own_weight(self, loss: Any, samples: float) -> float:
        """This rank's weight before it knows the others'."""
        if samples == 0 or getattr(loss, "array", None) is None or not loss.array.size:
            return 0.0
        return samples if self._how == "weighted" else 1.0

    def _share(self, rows: list[Row]) -> float:
        """What this rank's loss counts; sets the factor of the sum of gradients."""
        mine, total = rows[self.comm.rank], total_of(rows)
        self._check_known(rows)
        self._next = total if self._quiet and total and not any([row.talks or row.manual for row in rows]) else None
        if self._how == "sum":
            self._factor = 1.0
            return 1.0
        if any([row.manual for row in rows]):
            self._factor = 1 / self.comm.size
            return 1.0
        if any([row.held for row in rows]):  # they were added up with whole weights: the mean is made of the sum
            self._factor = 1 / total
            return mine.weight
        self._factor = 1.0
        return abs(mine.weight) / total if total else 0.0

    def _check_known(self, rows: list[Row]) -> None:
        if unknown := unknown_among_known(rows):
            raise ValueError(_UNKNOWN.format(f"the losses' of ranks {unknown}"))

    def _weighted(self, loss: Any, own: float, weight: float) -> Any:
        """Start backward from the weight instead of from 1; a mean over no samples may be NaN, and is left out."""
        if own == 0:
            return loss if getattr(loss, "array", None) is None or not loss.array.size else None
        if isinstance(loss, Variable):
            return Weighted(loss, weight, self.optimizer.loss_scale)
        if loss.grad is not None:
            loss.grad = backend.unscalar(loss.grad * loss.dtype.type(weight))
        elif loss.size == 1:
            loss.grad = loss.xp.full_like(loss.array, weight * (self.optimizer.loss_scale or 1.0))
        return loss

    def _persistents(self) -> list[tuple[Any, str, Any]]:
        """Persistent values, before a forward that may have to be run again: it makes parameters that are not there yet."""
        links = self.optimizer.target.links()
        return [(link, name, copy.deepcopy(getattr(link, name))) for link in links for name in link._persistent]

    # ---- the gradients ----

    def listen(self) -> None:
        """Before a backward: gradients may leave while it goes on."""
        if not (self._alone or self._only_synchronizes or self._late or self._shards or self.reducer.bucket_bytes is None):
            self.optimizer.arenas.gather(self.optimizer.target.params())  # another optimizer may have moved shared ones
            self.reducer.listen(self.optimizer.arenas)

    def give_up(self) -> None:
        """Backward failed: the next update begins anew."""
        self._factor, self._only_synchronizes, self._row = None, False, None
        self._held -= self._added
        self._added = 0.0
        self.reducer.give_up(self.optimizer.arenas)

    def reduce(self, by_pieces: Callable[[], bool]) -> bool | None:
        """After backward: the gradients of all ranks added up; False if no step is to be taken now, None if one is to be begun
        anew, with other gradients. If they travel in buckets and ``by_pieces()``, :meth:`pieces` waits for them instead."""
        if self._alone:
            return False
        if self._noted:
            return self._reduce_noted()
        if self._factor is None:  # the gradients were there already
            self._share(self._meet(0.0, manual=True))
        factor, skipped = self._factor or 0.0, self._only_synchronizes
        self._factor, self._only_synchronizes = None, False
        self._forget_held()
        self._noted, self._base = self._next is not None, (self._next if self._how != "sum" else None) or 1.0
        if skipped:
            return False
        arenas = self.optimizer.arenas
        nowhere, steps = self._fill(arenas), True
        late = self._late is not None or self._shards is not None  # what is compared is not summed yet, or is used later
        if late:
            self._compare()
        if self._late is not None:
            steps = self._late.reduce(arenas, factor, self.optimizer.loss_scale or 1.0)
            nowhere, self._nowhere = self._nowhere, nowhere
        elif self._shards is not None:
            self._shards.reduce(arenas, factor)
        elif self._placement is None and self.reducer.bucket_bytes is not None and not nowhere and by_pieces():
            self._arriving = factor
        else:
            self.reducer.reduce(arenas)
            self._multiply(factor)
        if not late:
            self._compare()
        for param in nowhere:
            param.cleargrad()
        return steps

    def pieces(self) -> Iterator[tuple[Any, slice, list[Any]]] | None:
        """Arena, place in its vectors and parameters of gradients, as they arrive; None if all are there already."""
        factor, self._arriving = self._arriving, None
        return None if factor is None else self._pieces(factor)

    def _pieces(self, factor: float) -> Iterator[tuple[Any, slice, list[Any]]]:
        for bucket in self.reducer.arrivals(self.optimizer.arenas):
            if factor != 1:
                bucket.grad *= factor
            yield bucket.arena, bucket.place, bucket.params

    def _forget_held(self) -> None:
        self._held, self._adds_up, self.keeps = 0.0, False, False

    def _reduce_noted(self) -> bool | None:
        """The same, where ranks tell each other who they are with the gradients."""
        row, self._row = self._row or self._now(0.0, manual=True), None
        self._fill(self.optimizer.arenas)
        rows: list[Row] = []

        def usual(notes: list[bytes]) -> bool:
            rows[:] = map(Row.of, notes)
            return self._usual(rows)

        added = self.reducer.reduce_noted(self.optimizer.arenas, row.packed(), usual)
        self._forget_held()
        if not added:
            return self._set_right(rows)
        manual, total = any([row.manual for row in rows]), total_of(rows)
        if self._how != "sum":
            self._multiply(1 / self.comm.size if manual else self._base / total if total else 1.0)
            self._base = total or self._base
        self._noted = not any([row.talks for row in rows])
        if not self._noted:
            self._base = 1.0
        return True

    def _usual(self, rows: list[Row]) -> bool:
        """Whether the sum of the gradients, with the weights that they have, is what is wanted but for a factor."""
        first = rows[0]
        if all([row == first for row in rows]) and not (first.stale or first.joining or first.talks):  # the common case
            return True
        changed = self._how != "sum" and total_of(rows) != self._base and any([row.talks for row in rows])
        mixed = len({row.manual for row in rows if not row.joining}) > 1
        alike = not (any([row.stale for row in rows]) or all([row.joining for row in rows]))
        return alike and not (changed or mixed or unknown_among_known(rows))

    def _set_right(self, rows: list[Row]) -> bool | None:
        """Something was unusual, and nothing was added up: from here on the ranks meet before backward again."""
        self._noted, self._base = False, 1.0
        if all([row.joining for row in rows]):
            self._all_joined = True
            return False
        if any([row.stale for row in rows]):
            self._make_equal()
            if not any([row.manual or row.final or row.held for row in rows]):
                self.optimizer.differentiate(self._again())
                return None
            self._warn(_SKIPPED)
            return False
        self._check_known(rows)
        self._warn(_CHANGED)
        return False

    def _compare(self) -> None:
        """On a mesh, every so many updates: whether the gradients of what several ranks have are the same."""
        placement, t = self._placement, self.optimizer.t
        if placement is not None and placement.others and (is_debug() or t % self._check == 0):
            compare(placement, self.optimizer.target, t)

    def _multiply(self, factor: float) -> None:
        if factor != 1:
            arenas = self.optimizer.arenas
            for grad in [*[arena.grad for arena in arenas.learning], *[param.grad for param in arenas.strays]]:
                grad *= factor

    def stepping(self) -> AbstractContextManager[None]:
        """Around a step."""
        pieces = nullcontext() if self._shards is None else self._shards.pieces(self.optimizer)
        return pieces if self._placement is None else self._counting_once(pieces, self._placement)

    @contextmanager
    def _counting_once(self, pieces: AbstractContextManager[None], placement: Placement) -> Iterator[None]:
        with pieces:
            placement.equip(self.optimizer, self._shards is not None, self.reducer)
            yield

    def saving(self) -> AbstractContextManager[None]:
        """Around saving and loading."""
        return nullcontext() if self._shards is None else self._shards.whole(self.optimizer)

    def serialize(self, serializer: Any) -> None:
        """Save or load what the next update needs of the last one."""
        if self._late is not None:
            self._late.serialize(serializer["late"])

    def _fill(self, arenas: Arenas) -> list[Any]:
        """Zeros for gradients that are not there. If they are not wanted, the parameters that have a gradient on no rank."""
        nowhere: list[Any] = []
        if not self._zero_fill:
            params = [param for arena in arenas for param in arena.params] + arenas.strays
            anywhere = self.comm.allreduce(np.array([param.grad is not None for param in params], np.uint8), "max")
            nowhere = [param for param, there in zip(params, anywhere, strict=True) if not there]
        arenas.fill(self.optimizer.loss_scale)
        return nowhere

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
        self._all_joined = False
        while not self._all_joined:
            self.keeps = self._adds_up
            if self._noted:
                self._row, self._again = self._now(0.0, joining=True), self._nothing_again
            else:
                rows = self._meet(0.0, joining=True)
                if all([row.joining for row in rows]):
                    return
                self._share(rows)
            self.optimizer.differentiate(None)
            self.optimizer.step()


_UNKNOWN = (
    "of how many samples {} loss is the mean cannot be told from the arguments of the loss function: give "
    "create_multi_node_optimizer(samples=a function of these arguments), or reduce='mean'"
)
_TWICE = (
    "the model has a DistributedDataParallel of the same communicator: gradients would be reduced twice. Use one of the two"
)
_SKIPPED = (
    "this update only made the parameters equal on all ranks, and no step was taken: they appeared or changed in a forward "
    "that communicated, or whose gradients were there already. Give layers their sizes to avoid it"
)
_CHANGED = (
    "no step was taken: the model has begun to communicate, or some ranks brought gradients and others a loss, in an update of "
    "other sample counts than the one before; what travelled had the weights of that one"
)
