"""Data parallelism for programs that update parameters themselves: a backward that ends with the
gradients of all ranks.

The ranks tell each other after each forward what an optimizer's tell with their gradients
(:mod:`mnpar.parallel.data.update_record`), and the same is checked: whether all call the same
model, whether the copies are still equal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from mnpar import backend
from mnpar.autograd.graph import AddGradient, Gradient, GradSlot, VariableNode, tick
from mnpar.autograd.observer import observer
from mnpar.autograd.tape import Tape, current_tape
from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.communicators.communicator import require_communicator
from mnpar.configuration import is_debugging, is_recording
from mnpar.errors import MismatchError
from mnpar.function_node import FunctionNode
from mnpar.functions.communication.later import Phase
from mnpar.functions.node import GenericFunction
from mnpar.link import GradientComms, Link
from mnpar.optimizers.flat_buffers import FlatBuffers
from mnpar.optimizers.parameter_cache import ParameterCache
from mnpar.parallel.data.consistency import NO_DIGEST
from mnpar.parallel.data.fingerprint import ModelFingerprint
from mnpar.parallel.data.nonfinite import NonFiniteReport
from mnpar.parallel.data.reducer import Reducer, choose_bucket_bytes
from mnpar.parallel.data.replicas import ReplicaSet, have_common_parameters
from mnpar.parallel.data.samples import SampleCounter, samples_of
from mnpar.parallel.data.update_record import UpdateRecord
from mnpar.parameter import Parameter
from mnpar.runtime.callsite import warn_user
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


UNKNOWN, CLEARED, KEPT = range(3)  # what backward has found of earlier gradients


class End(FunctionNode):
    """A function whose number is lower than that of any other on the tape: backward visits it last,
    and in any case (law 4).

    To be recorded right before the model's forward would not be enough: a function that read a
    parameter before that, a penalty say, is visited later, and adds to the parameter's gradient.
    """

    communicates = True

    def __init__(self, act: Callable[[], None], module: Link, comm: Communicator) -> None:
        self.act = act
        self.module = module
        self.tape = current_tape()
        self.kept = UNKNOWN  # whether gradients stood there when backward came to the model
        self.averages_over = comm  # not ``comm``, as functions of the model that communicate
        self.number = -tick()
        self.tape.append(self)

    @property
    def reduces(self) -> list[VariableNode]:
        """The leaves whose gradients are reduced, with those that stand there already."""
        return [param.node for param in self.module.params()]

    def note_kept(self) -> None:
        """Note whether gradients stand there, before the model's backward adds to them."""
        if self.kept == UNKNOWN:
            found = [node.gradient for node in self.reduces if node.gradient is not None]
            self.kept = (
                KEPT if any([bool(getattr(g, "array", g).any()) for g in found]) else CLEARED
            )

    def waits(self, tape: Tape) -> bool:
        """Return whether a backward of this tape will visit this function."""
        return any([record is self for record in tape.records])

    def vjp(
        self,
        gys: list[Gradient | None],
        wanted: list[bool],
        record: bool,
        add_gradient: AddGradient,
    ) -> None:
        """Call the action; no gradient flows through."""
        self.act()


def ends() -> list[End]:
    """Return those that the next backward of the current tape will visit: an optimizer asks what
    else reduces gradients then.
    """
    return [record for record in current_tape().records if isinstance(record, End)]


class Samples:
    """The number of samples of one forward. The forward's result keeps it alive: what can no longer
    be differentiated no longer counts.

    Args:
        count: how many.
    """

    def __init__(self, count: float) -> None:
        self.count = count
        self.held = False  # whether a result keeps it


class Result(GenericFunction):
    """The identity, applied to the model's outputs: refuses a backward on whose tape no ``End``
    waits to reduce gradients.
    """

    def __init__(self, end: End, samples: Samples) -> None:
        self.end, self.samples = end, samples
        samples.held = True

    def forward(self, *xs: Array) -> tuple[Array, ...]:
        return xs

    def backward(self, *gys: Any) -> Any:
        if not self.end.waits(current_tape()):
            raise RuntimeError(_REDUCED)
        self.end.note_kept()
        return gys

    @classmethod
    def of(cls, value: Any, end: End, samples: Samples) -> Any:
        """Return what the model returned, with each Variable in it replaced by the output of such a
        function.
        """
        if isinstance(value, Variable):
            return cls(end, samples).apply((value,))[0]
        if isinstance(value, dict):
            return type(value)((name, cls.of(x, end, samples)) for name, x in value.items())
        if type(value) in (tuple, list):
            return type(value)(cls.of(x, end, samples) for x in value)
        return value


class DistributedDataParallel(Chain):
    """A model whose gradients, when a backward has ended, are the mean over the samples of all
    ranks.

    Every rank calls it and runs backward, as often as the others; a rank without samples calls it
    with none. Gradients that stood there already (with :meth:`no_sync`, or from a backward before)
    are part of the mean.

    Args:
        module: the model; its parameters and persistent values become rank 0's at the first call,
            and when new ones appear.
        comm: the ranks that hold copies of it.
        reduce: ``'weighted'``: by the samples of each rank; ``'mean'``: over ranks. The losses are
            means over samples.
        bucket_bytes: as in :func:`mnpar.create_multi_node_optimizer`.
        samples: called with the arguments of the model: how many samples they are.
        check: after how many backwards the ranks compare their values of the parameters; before
            that already after 1, 2, 4, 8 and so on. In debug mode, in each forward.

    A backward that is recorded leaves reduced gradients too, but as arrays: second derivatives lead
    through :func:`mnpar.grad`, not through ``grad_var``.

    Raises:
        ValueError: an argument has none of these values. In ``forward`` or backward, RuntimeError:
            uneven shards, and a model or loss that communicates on ``comm`` itself: the weights
            come last here. In backward, RuntimeError: its gradients are reduced already.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     model = mnpar.DistributedDataParallel(L.Linear(1, 1, initialW=0, nobias=True), comm)
        ...     F.mean(model(np.full((1, 1), comm.rank, "f4"))).backward()
        ...     return float(model.module.W.grad[0, 0])
        >>> mnpar.run(program, ranks=3)
        [1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        module: Link,
        comm: Communicator,
        reduce: str = "weighted",
        bucket_bytes: int | str | None = "auto",
        samples: Callable[..., float] = samples_of,
        check: int = 100,
    ) -> None:
        require_communicator(comm, "DistributedDataParallel(module, comm)")
        super().__init__()
        if reduce not in ("weighted", "mean"):
            raise ValueError(f"gradients are reduced by 'weighted' or 'mean', not {reduce!r}")
        if check < 1:
            raise ValueError(f"values are compared every 1 or more backwards, not every {check}")
        size = choose_bucket_bytes(comm) if bucket_bytes == "auto" else bucket_bytes
        self._set_up(ModelFingerprint(module, comm, reduce), size, samples, check)

    def _set_up(
        self,
        fingerprint: ModelFingerprint,
        bucket_bytes: int | str | None,
        samples: Callable[..., float],
        check: int,
    ) -> None:
        self.module = fingerprint.model
        self._comm = comm = fingerprint.comm
        self._fingerprint = fingerprint
        self._by_samples = fingerprint.how == "weighted"
        self._samples = samples
        self._counter = SampleCounter(samples, strict=comm.size > 1 and self._by_samples)
        # in buckets always, which hooks send: End comes before backward's end
        self._reducer = Reducer(comm, bucket_bytes or 2**62)  # type: ignore[arg-type]
        self._reducer.on_unsent = self._note_unsent
        self._buffers = FlatBuffers(values=False)  # those of an optimizer have them
        self._buffers.synchronized = True
        self._replicas = ReplicaSet(comm, check=check)
        self._nonfinite = NonFiniteReport(comm, self._reducer)
        self._diverged = False  # whether the last sum of gradients had NaN or infinity
        self._t = 0  # how many sums of gradients there were
        self._compared = -1  # after how many of them the values were compared last
        # parameters with gradients that no backward with a forward of this model has found, and a
        # few of their values then
        self._unsent: dict[VariableNode, bytes] = {}
        self._warned = False
        self._held = False  # whether no_sync has added up gradients since the last reduction
        self._kept = UNKNOWN  # of the last backward
        self._members = ParameterCache()
        self._end: End | None = None
        self._count = 0.0  # the samples of forwards since the last reduction that count in any case
        # those of forwards that count as long as a result keeps them
        self._pending: list[ref[Samples]] = []
        # the ranks' samples if they differ: weights come too late for what communicates
        self._uneven: list[float] = []
        self._alone = False

    def take_as_given(self) -> None:
        """Do not give the ranks rank 0's values at first: each has loaded what it is to have."""
        self._replicas.take_as_equal(self.module)

    def gradient_comms(self) -> GradientComms:
        """Return the ranks over whose samples backward averages the gradients."""
        return GradientComms(averaged=(self._comm,), averages=self._replicas.ever_equal)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own result, recorded so that backward ends with the reduction."""
        if not self._replicas.ever_equal:
            self._fingerprint.check_numbers()
            self._make_equal()
        if self._end is not None and not self._end.waits(self._end.tape):  # its backward failed
            self._end, self._count, self._pending = None, 0.0, []
            self._reducer.give_up(self._buffers)
        if not is_recording() or self._alone:
            self._count += self._weight(args, kwargs) if is_recording() else 0
            return self.module(*args, **kwargs)
        if self._end is None or not self._end.waits(current_tape()):
            self._end = self._begin()
        before = len(current_tape().records)
        result = self.module(*args, **kwargs)
        samples = Samples(self._weight(args, kwargs))
        functions = current_tape().records[before:]
        records = self._meet(samples, functions)
        if any([record.stale for record in records]):
            self._make_equal()
            if any([record.final for record in records]):
                raise RuntimeError(
                    f"rank {self._comm.rank}: parameters appeared in a forward that "
                    f"communicated: {_SIZES}"
                )
            result = self.module(*args, **kwargs)  # the first was of other parameters
        counts = [record.weight + record.held for record in records]
        self._uneven = counts if len({count for count in counts if count}) > 1 else []
        if self._uneven and any([record.within for record in records]):
            raise RuntimeError(_UNEVEN.format(self._uneven))
        total = sum(counts)
        self._reducer.weight = counts[self._comm.rank] / total if total else 0.0
        self._buffers.gather(self._members.of(self.module))
        self._reducer.listen(self._buffers)
        result = Result.of(result, self._end, samples)
        if samples.held and not functions:
            self._pending.append(ref(samples))
        else:
            self._count += samples.count
        return result

    def _make_equal(self) -> None:
        self._replicas.make_equal(self.module, FlatBuffers())
        self._compared = self._t
        self._unsent.clear()

    def _meet(self, samples: Samples, functions: list[Any]) -> list[UpdateRecord]:
        """Return what the ranks tell each other after a forward that has put these functions on the
        tape; all ranks call it.

        Raises:
            MismatchError: the ranks call different models, or their copies have drifted apart; on
                all ranks.
        """
        pending = [some.count for some in [one() for one in self._pending] if some is not None]
        compares = self._t != self._compared or is_debugging()
        number, rules = self._fingerprint.numbers
        records = self._replicas.gather(
            UpdateRecord(
                samples.count,
                self._count + sum(pending),
                stale=self._replicas.is_stale(self.module),
                final=bool(functions),
                altered=bool(self._unsent),
                within=any([_within(function, self._comm) for function in functions]),
                diverged=self._diverged,
                kept=self._kept,
                number=number,
                rules=rules,
                digest=self._replicas.digest(self.module, self._t) if compares else NO_DIGEST,
            )
        )
        self._fingerprint.check(records)
        self._kept = UNKNOWN
        kept = [rank for rank, record in enumerate(records) if record.kept == KEPT]
        cleared = [rank for rank, record in enumerate(records) if record.kept == CLEARED]
        if kept and cleared:
            raise MismatchError(_NOT_CLEARED.format(kept, cleared))
        if any([record.diverged for record in records]):
            self._diverged = False
            self._nonfinite.tell(self.module, self._t - 1)
        if not any([record.stale for record in records]):
            around = [rank for rank, record in enumerate(records) if record.altered]
            self._replicas.compare(
                records, self.module, self._t, _AROUND.format(around) if around else ""
            )
        self._compared = self._t
        self._unsent.clear()
        return records

    def _note_unsent(self, param: Parameter, slot: GradSlot) -> None:
        """Note that a backward has found a parameter's gradient, and none of its forwards was one
        of this model: if the parameter is then changed, it is by this rank's gradient alone.
        """
        if self._alone or self._count or any([param.node in end.reduces for end in ends()]):
            return
        place = param.node.grad_slot
        if place is not None and place is not slot and place.synchronized:
            return  # an optimizer of several ranks reduces it
        few = backend.to_host(param.array.ravel()[:: max(1, param.array.size // 16)]).tobytes()
        if self._unsent.get(param.node, few) != few and not self._warned:
            self._warned = True
            path = next(path for path, p in self.module.namedparams() if p is param)
            warn_user(_UNREDUCED.format(self._comm.rank, path))
        self._unsent[param.node] = few

    def _begin(self) -> End:
        for end in ends():
            if end.module is not self.module and have_common_parameters(end.module, self.module):
                raise RuntimeError(_SHARED)
        return End(self._finish, self.module, self._comm)

    def _weight(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        count = self._counter.count(args, kwargs)
        return count if self._by_samples and count >= 0 else float(count != 0)

    def _finish(self) -> None:
        """Reduce the gradients, at the end of backward."""
        if self._uneven and self._end is not None:
            records = self._end.tape.records
            # a loss, for example
            if any(
                [_within(record, self._comm) for record in records[records.index(self._end) + 1 :]]
            ):
                raise RuntimeError(_UNEVEN.format(self._uneven))
        if self._end is not None and not self._held:
            self._kept = self._end.kept  # those of no_sync are this rank's own
        self._end, self._count, self._pending, self._held = None, 0.0, [], False
        watching = observer()
        if watching is not None:
            watching.weighed(self._reducer.weight * self._comm.size)
        self._buffers.gather(self._members.of(self.module))
        self._buffers.fill()
        self._reducer.reduce(self._buffers)
        self._t += 1
        scaled = any([param.node.loss_scale is not None for param in self._members.of(self.module)])
        # with a loss scale they may overflow
        self._diverged = not (scaled or all([b.is_finite() for b in self._reducer.buckets]))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up gradients inside a ``with`` block, without messages: the next forward outside has
        them in its mean.
        """
        before, self._alone, self._held = self._alone, True, True
        try:
            yield
        finally:
            self._alone = before

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        other = DistributedDataParallel.__new__(DistributedDataParallel)
        Chain.__init__(other)
        fingerprint = self._fingerprint.copy_for(copy.deepcopy(self.module, memo))
        size = self._reducer.bucket_bytes
        other._set_up(fingerprint, size, self._samples, self._replicas.every)
        return other


def _within(record: Any, comm: Communicator) -> bool:
    """Return whether a function on the tape communicates with ranks of this communicator."""
    return getattr(record, "comm", None) is comm or (
        isinstance(record, Phase) and record.whole.what.comm is comm
    )


_AROUND = (
    "On ranks {}, backward found gradients of these parameters without a forward of "
    "DistributedDataParallel, and so did not reduce them: call it, and not its module"
)

_NOT_CLEARED = (
    "in the last backward of this DistributedDataParallel, ranks {} added gradients to those of "
    "the backward before, and ranks {} had cleared theirs: the mean of both is the gradient of "
    "nothing. All ranks call model.cleargrads() equally often, before backward"
)

_UNREDUCED = (
    "rank {}: {} was changed after a backward that found its gradient without a forward of its "
    "DistributedDataParallel, so by this rank's gradient alone: call the DistributedDataParallel, "
    "and not its module"
)

_UNEVEN = (
    "ranks of {} samples, whose model or loss communicates on the communicator of "
    "DistributedDataParallel: gradients that "
    "travel in backward would be without the weights that end it. Give all ranks as many "
    "samples, or train by "
    "mnpar.create_multi_node_optimizer, whose weights enter with the loss; what is only to be "
    "shown, and has no gradient, is "
    "communicated as an array (comm.allreduce)"
)

_SHARED = (
    "two DistributedDataParallel that have parameters in common would both reduce these at the "
    "end of one backward: let one "
    "have both models, as links of a chain"
)

_REDUCED = (
    "backward reached the result of a DistributedDataParallel whose gradients another backward "
    "has reduced already, or that is "
    "on another tape: start from all losses at once with mnpar.backward([loss1, loss2]), keep "
    "the tape with retain_tape=True, "
    "or give each forward its own `with mnpar.Tape():`"
)

_SIZES = "give layers their sizes, or call the model once under mnpar.no_backprop_mode() first"
