"""Data parallelism for programs that update parameters themselves: a backward that ends with the
gradients of all ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from mnpar.autograd.graph import AddGradient, Gradient, VariableNode, tick
from mnpar.autograd.tape import Tape, current_tape
from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.communicators.communicator import require_communicator
from mnpar.configuration import is_recording
from mnpar.function_node import FunctionNode
from mnpar.functions.communication.later import Phase
from mnpar.functions.node import GenericFunction
from mnpar.link import GradientComms, Link
from mnpar.optimizers.flat_buffers import FlatBuffers
from mnpar.optimizers.parameter_cache import ParameterCache
from mnpar.parallel.data.reducer import Reducer, choose_bucket_bytes
from mnpar.parallel.data.replicas import ReplicaSet, have_common_parameters
from mnpar.parallel.data.samples import SampleCounter, samples_of
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


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
        self.averages_over = comm  # not ``comm``, as functions of the model that communicate
        self.number = -tick()
        self.tape.append(self)

    @property
    def reduces(self) -> list[VariableNode]:
        """The leaves whose gradients are reduced, with those that stand there already."""
        return [param.node for param in self.module.params()]

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
    ) -> None:
        require_communicator(comm, "DistributedDataParallel(module, comm)")
        super().__init__()
        if reduce not in ("weighted", "mean"):
            raise ValueError(f"gradients are reduced by 'weighted' or 'mean', not {reduce!r}")
        size = choose_bucket_bytes(comm) if bucket_bytes == "auto" else bucket_bytes
        self.module = module
        self._comm = comm
        self._by_samples = reduce == "weighted"
        self._samples = samples
        self._counter = SampleCounter(samples, strict=comm.size > 1 and self._by_samples)
        # in buckets always, which hooks send: End comes before backward's end
        self._reducer = Reducer(comm, size or 2**62)  # type: ignore[arg-type]
        self._buffers = FlatBuffers()
        self._buffers.synchronized = True
        self._replicas = ReplicaSet(comm)
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
        return GradientComms(averaged=(self._comm,))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own result, recorded so that backward ends with the reduction."""
        if not self._replicas.ever_equal:
            self._replicas.make_equal(self.module, self._buffers)
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
        records = current_tape().records[before:]
        counts, stale, talked, within = self._meet(samples, records)
        if stale:
            self._replicas.make_equal(self.module, self._buffers)
            if talked:
                raise RuntimeError(
                    f"rank {self._comm.rank}: parameters appeared in a forward that "
                    f"communicated: {_SIZES}"
                )
            result = self.module(*args, **kwargs)  # the first was of other parameters
        self._uneven = counts.tolist() if len(set(counts[counts > 0].tolist())) > 1 else []
        if within and self._uneven:
            raise RuntimeError(_UNEVEN.format(self._uneven))
        total = counts.sum()
        self._reducer.weight = float(counts[self._comm.rank] / total) if total else 0.0
        self._buffers.gather(self._members.of(self.module))
        self._reducer.listen(self._buffers)
        result = Result.of(result, self._end, samples)
        if samples.held and not records:
            self._pending.append(ref(samples))
        else:
            self._count += samples.count
        return result

    def _meet(self, samples: Samples, records: list[Any]) -> tuple[Array, bool, bool, bool]:
        """Exchange what the ranks tell each other after a forward.

        Returns:
            The samples of each rank since the last reduction; whether on any rank parameters have
            appeared, the forward has communicated, and has done so on the communicator of this
            model.
        """
        pending = [some.count for some in [one() for one in self._pending] if some is not None]
        mine = [
            self._count + sum([*pending, samples.count]),
            self._replicas.is_stale(self.module),
            len(records),
            any([_within(record, self._comm) for record in records]),
        ]
        counts, stale, talked, within = np.stack(self._comm.allgather(np.array(mine))).T
        return counts, bool(stale.any()), bool(talked.any()), bool(within.any())

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
        self._end, self._count, self._pending = None, 0.0, []
        self._buffers.gather(self._members.of(self.module))
        self._buffers.fill()
        self._reducer.reduce(self._buffers)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up gradients inside a ``with`` block, without messages: the next forward outside has
        them in its mean.
        """
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        reduce = "weighted" if self._by_samples else "mean"
        size = self._reducer.bucket_bytes
        return DistributedDataParallel(
            copy.deepcopy(self.module, memo), self._comm, reduce, size, self._samples
        )


def _within(record: Any, comm: Communicator) -> bool:
    """Return whether a function on the tape communicates with ranks of this communicator."""
    return getattr(record, "comm", None) is comm or (
        isinstance(record, Phase) and record.whole.what.comm is comm
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
