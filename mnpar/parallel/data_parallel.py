"""Data parallelism: copies of one model, each with its own samples, that step as one model with all samples would.

Each rank's loss is a mean over its own n samples; weighted by n / N, with N the samples of all ranks, the losses add up to the
mean over all, and so do the gradients (law 1): uneven shards and empty ones need nothing else. The weight enters with the loss,
so a gradient that travels to another rank of a model-parallel model has it already, and no pass over memory applies it.
"""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.arena import Arenas
from mnpar.backend import Array
from mnpar.optimizers import GradientMethod
from mnpar.parallel.agreement import broadcast_model
from mnpar.parallel.reducer import Reducer, choose_bucket_bytes
from mnpar.tape import current_tape

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.communicators.operation import Operation

REDUCTIONS = ("weighted", "mean", "sum")


def samples_of(*args: Any, **kwds: Any) -> float:
    """How many samples the arguments of a loss function hold: the length of the first that has one; -1 if none has."""
    for arg in (*args, *kwds.values()):
        if getattr(arg, "shape", None) == ():
            continue
        if isinstance(arg, dict | tuple):
            inside = samples_of(*(arg.values() if isinstance(arg, dict) else arg))
            if inside >= 0:
                return inside
        elif hasattr(arg, "__len__") and not isinstance(arg, str):
            return len(arg)
    return -1


class Row(NamedTuple):
    """What a rank tells the others when they meet, once in each update."""

    weight: float  # of its loss: samples, or 1; -1: it has a loss of it does not know how many samples; 0: it has none
    held: float  # the weight of the gradients that it added up before
    signature: int  # of its parameters
    stale: bool  # they are not as agreed
    records: int  # communications of its forward
    manual: bool  # its gradients are there already, unweighted
    joining: bool  # it has no samples any more


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
    ) -> None:
        if reduce not in REDUCTIONS:
            raise ValueError(f"gradients are reduced as {', '.join(REDUCTIONS)}, not {reduce!r}")
        self.optimizer, self.reducer, self.comm = optimizer, reducer, reducer.comm
        self._how, self._zero_fill, self._samples = reduce, zero_fill, samples
        self._late = Late(reducer) if double_buffering else None
        self._started = False
        self._agreed: int | None = None  # the signature of the parameters that all ranks were given; None: others came
        self._known: list[tuple[Any, Any]] = []
        self._signature = 0
        self._alone = False  # inside no_sync
        self._held = 0.0  # the weight of the gradients that were added up there
        self._adds_up = False  # some were
        self.keeps = False  # this update's are added to them
        self._factor: float | None = None  # of the sum over ranks, once they have met
        self._only_synchronizes = False  # this update

    # ---- one model ----

    def synchronize(self) -> None:
        """Give all ranks rank 0's parameters and persistent values."""
        broadcast_model(self.comm, self.optimizer.target, self.optimizer.arenas)
        signature = self.signature()  # which forgets what was agreed, if the parameters are others
        self._agreed = signature

    def _start(self) -> None:
        if not self._started:
            self.synchronize()
            self._started = True

    def signature(self) -> int:
        """A number for the parameters' paths, shapes and dtypes, which changes when they do."""
        params = list(self.optimizer.target.params())
        same = len(params) == len(self._known)
        if not (same and all([p is q for p, (q, _) in zip(params, self._known, strict=True)])):
            self._known, self._agreed = [(param, None) for param in params], None
        if not all([p.node.shape == shape for p, shape in self._known]):
            self._known = [(param, param.node.shape) for param in params]
            forms = [(path, p.node.shape, str(p.node.dtype)) for path, p in self.optimizer.target.namedparams()]
            self._signature = zlib.crc32(repr(forms).encode())
        return self._signature

    def _meet(self, weight: float, manual: bool = False, joining: bool = False) -> list[Row]:
        """All ranks meet and hear of each other; what is stale is synchronized."""
        signature = self.signature()
        row = Row(weight, self._held, signature, signature != self._agreed, len(current_tape().records), manual, joining)
        rows = [Row(*values) for values in np.stack(self.comm.allgather(np.array(row, np.float64))).tolist()]
        if any([row.stale for row in rows]) and not all([row.joining for row in rows]):
            self.synchronize()
            if any([row.manual or row.records for row in rows]):
                self._only_synchronizes = True
                if self.comm.rank == 0:
                    warnings.warn(_SKIPPED, stacklevel=5)
        return rows

    # ---- the loss, with its weight ----

    def loss(self, lossfun: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> Any:
        """The loss on this rank, to be differentiated; None where there are no samples."""
        self._start()
        before = self._persistents()
        loss = lossfun(*args, **kwds)
        own = self._own_weight(loss, self._samples(*args, **kwds))
        self.keeps = self._adds_up
        if self._alone:
            self._add_up(own)
            return self._weighted(loss, own, own)
        rows = self._meet(own)
        if any([row.stale for row in rows]) and not self._only_synchronizes:
            for link, name, value in before:
                setattr(link, name, value)
            loss = lossfun(*args, **kwds)  # the first was of other parameters
        return self._weighted(loss, own, self._share(rows))

    def _add_up(self, own: float) -> None:
        """An update inside no_sync."""
        if own < 0:
            raise ValueError(_UNKNOWN.format(f"rank {self.comm.rank}'s"))
        if self.signature() != self._agreed:
            raise RuntimeError(f"rank {self.comm.rank}: parameters appeared inside no_sync: give layers their sizes")
        if own == 0 and self._how != "sum" and current_tape().records:
            raise RuntimeError(
                f"rank {self.comm.rank}: no_sync cannot know the weights of losses that other ranks of a model-parallel model "
                "have: use reduce='sum', and divide the losses yourself"
            )
        self._adds_up = True
        self._held += own

    def _own_weight(self, loss: Any, samples: float) -> float:
        """This rank's weight before it knows the others'."""
        if samples == 0 or getattr(loss, "array", None) is None or not loss.array.size:
            return 0.0
        return samples if self._how == "weighted" else 1.0

    def _share(self, rows: list[Row]) -> float:
        """What this rank's loss counts; sets the factor of the sum of gradients."""
        mine = rows[self.comm.rank]
        unknown = [rank for rank, row in enumerate(rows) if row.weight < 0]
        if unknown and any([row.weight > 0 or row.held for row in rows]):
            raise ValueError(_UNKNOWN.format(f"the losses' of ranks {unknown}"))
        if self._how == "sum":
            self._factor = 1.0
            return 1.0
        if any([row.manual for row in rows]):
            self._factor = 1 / self.comm.size
            return 1.0
        total = sum([abs(row.weight) + row.held for row in rows])
        if any([row.held for row in rows]):  # they were added up with whole weights: the mean is made of the sum
            self._factor = 1 / total
            return mine.weight
        self._factor = 1.0
        return abs(mine.weight) / total if total else 0.0

    def _weighted(self, loss: Any, own: float, weight: float) -> Any:
        """Start backward from the weight instead of from 1; a mean over no samples may be NaN, and is left out."""
        if own == 0:
            return loss if getattr(loss, "array", None) is None or not loss.array.size else None
        if loss.grad is not None:
            loss.grad = backend.unscalar(loss.grad * loss.dtype.type(weight))
        elif loss.size == 1:
            loss.grad = loss.xp.full_like(loss.array, weight * (self.optimizer.loss_scale or 1.0))
        return loss

    def _persistents(self) -> list[tuple[Any, str, Any]]:
        """Persistent values, before a forward that may have to be run again: it makes parameters that are not there yet."""
        if all([param.array is not None for param in self.optimizer.target.params()]):
            return []
        links = self.optimizer.target.links()
        return [(link, name, copy.deepcopy(getattr(link, name))) for link in links for name in link._persistent]

    # ---- the gradients ----

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Around a backward: gradients may leave."""
        if self._alone or self._only_synchronizes or self._late is not None or self.reducer.bucket_bytes is None:
            yield
            return
        self.reducer.attach(self.optimizer.arenas)
        with self.reducer.listening():
            yield

    def reduce(self) -> bool:
        """After backward: the gradients of all ranks added up; False if no step is to be taken now."""
        if self._alone:
            return False
        if self._factor is None:  # the gradients were there already
            self._share(self._meet(0.0, manual=True))
        factor, skipped = self._factor or 0.0, self._only_synchronizes
        self._factor, self._only_synchronizes = None, False
        self._held, self._adds_up, self.keeps = 0.0, False, False
        if skipped:
            return False
        arenas = self.optimizer.arenas
        nowhere = self._fill(arenas)
        if self._late is not None:
            return self._late.reduce(arenas, factor)
        self.reducer.reduce(arenas)
        if factor != 1:
            for grad in [*[arena.grad for arena in arenas], *[param.grad for param in arenas.strays]]:
                grad *= factor
        for param in nowhere:
            param.cleargrad()
        return True

    def _fill(self, arenas: Arenas) -> list[Any]:
        """Zeros for gradients that are not there. If they are not wanted, the parameters that have a gradient on no rank."""
        params = [param for arena in arenas for param in arena.params] + arenas.strays
        here = np.array([param.grad is not None for param in params], np.uint8)
        anywhere = here if self._zero_fill else self.comm.allreduce(here, "max")
        for param, there in zip(params, here, strict=True):
            if not there:
                param.node.loss_scale = self.optimizer.loss_scale
        arenas.fill()
        return [] if self._zero_fill else [param for param, there in zip(params, anywhere, strict=True) if not there]

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
        self._start()
        rows = self._meet(0.0, joining=True)
        while not all([row.joining for row in rows]):
            self._share(rows)
            self.optimizer.differentiate(None)
            self.optimizer.step()
            rows = self._meet(0.0, joining=True)


class Late:
    """Gradients that are used one update after they were computed, so that they travel during the next forward and backward."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._flying: list[tuple[Operation, Array]] = []
        self._factor = 1.0

    def reduce(self, arenas: Arenas, factor: float) -> bool:
        """Send these gradients, and put those of the update before in their place; False if there are none."""
        channel = self._reducer.channel
        grads = [*[arena.grad for arena in arenas], *[param.grad for param in arenas.strays]]
        copies = [grad.copy() for grad in grads]
        before, scale = self._flying, self._factor
        self._flying, self._factor = [(channel.iallreduce(grad, out=grad), grad) for grad in copies], factor
        if [total.shape for _, total in before] != [grad.shape for grad in grads]:
            return False  # the first update, or the first of other parameters
        for (operation, total), grad in zip(before, grads, strict=True):
            operation.wait()
            xp = backend.get_array_module(grad)
            xp.multiply(total, scale, out=grad, casting="same_kind")
        return True


_UNKNOWN = (
    "of how many samples {} loss is the mean cannot be told from the arguments of the loss function: give "
    "create_multi_node_optimizer(samples=a function of these arguments), or reduce='mean'"
)
_SKIPPED = (
    "this update only made the parameters equal on all ranks, and no step was taken: they appeared or changed in a forward "
    "that communicated, or whose gradients were there already. Give layers their sizes to avoid it"
)


def create_multi_node_optimizer(
    actual_optimizer: GradientMethod,
    communicator: Communicator,
    double_buffering: bool = False,
    zero_fill: bool = True,
    *,
    reduce: str = "weighted",
    bucket_bytes: int | str | None = "auto",
    wire_dtype: Any = None,
    samples: Callable[..., float] = samples_of,
) -> GradientMethod:
    """Let an optimizer step together with those of other ranks, which hold copies of its model; returns the same optimizer.

    Every rank of the communicator calls this, then ``setup`` and each ``update``. At the first update all get rank 0's
    parameters and persistent values; so do parameters that appear later. Ranks may have any number of samples, and none: with
    the default the result is that of one process that has all of them, if the loss is a mean over samples.

    Args:
        actual_optimizer: of any kind; hooks added to it see the reduced gradients.
        communicator: the ranks that hold copies of the model.
        double_buffering: apply each gradient one update late: it travels meanwhile. The first update takes no step then.
        zero_fill: parameters without a gradient on any rank get zeros (momentum and decay go on); else they stay as they are.
        reduce: ``'weighted'``: the mean over samples; ``'mean'``: over ranks that have a loss; ``'sum'``: over ranks. The
            weight enters with the loss, so ranks of a model-parallel model that have none need nothing. ``update()`` without
            a loss function divides by the number of ranks, unless it is ``'sum'``.
        bucket_bytes: gradients leave during backward when so many are final; None: all leave after it, in one message;
            ``'auto'``: what is faster here, measured at the first update.
        wire_dtype: what wider floating-point gradients travel as: ``np.float16``, ml_dtypes' bfloat16, ``np.float32``.
        samples: called with the arguments of the loss function: how many samples its loss is the mean of. By default the length
            of the first argument that has one.

    Raises:
        ValueError: an argument has none of these values.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     model = L.Linear(1, 1, initialW=comm.rank, nobias=True)  # rank 0's 0 is everyone's
        ...     optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(1.0), comm).setup(model)
        ...     x = np.full((1 + comm.rank, 1), 3.0, "f4")  # 1, 2, 3 samples
        ...     optimizer.update(lambda x: F.mean(model(x)), x)
        ...     return float(model.W.array[0, 0])
        >>> mnpar.run(program, ranks=3)
        [-3.0, -3.0, -3.0]
    """
    size = choose_bucket_bytes(communicator) if bucket_bytes == "auto" else bucket_bytes
    reducer = Reducer(communicator, size, wire_dtype)  # type: ignore[arg-type]
    actual_optimizer.team = Team(actual_optimizer, reducer, reduce, zero_fill, double_buffering, samples)
    return actual_optimizer
