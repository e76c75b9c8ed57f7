"""Sums of gradients over ranks, in place in the flat buffers: one message for each buffer, or
buckets that leave during backward.

A bucket is a slice of a buffer. Backward finds gradients roughly in the reverse of the order of
definition, so buckets are cut from the end. Each leaves when all its gradients are final, but never
before the one cut before it: the order is the same on all ranks, whatever their backward does. A
gradient that some rank does not have counts as zeros there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.autograd.graph import GradientHook, GradSlot, VariableNode
from mnpar.autograd.tape import current_tape
from mnpar.backend import Array
from mnpar.communicators.piggyback import PiggybackSum
from mnpar.communicators.shared_sum import SLOT_VALUES
from mnpar.optimizers.flat_buffers import FlatBuffer, FlatBuffers
from mnpar.optimizers.gradient_method import Pieces

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.communicators.operation import Operation
    from mnpar.communicators.shared_sum import SharedVectors
    from mnpar.parameter import Parameter

BUCKET = 2**20  # bytes: latency matters little on any network, and a bucket is soon full
FEW = 64  # gradients of each bucket that are looked at for NaN
_NOTHING = np.empty(0, np.float32)

# the ranks that have copies of parameters with this ``param.summed``
Among = Callable[[tuple[str, ...]], "Communicator"]


class Bucket:
    """A stretch of a buffer's gradients.

    Args:
        buffer: where they live.
        start, stop: which of the buffer's parameters are in it: from ``start`` up to, and without,
            ``stop``.
    """

    def __init__(self, buffer: FlatBuffer, start: int, stop: int) -> None:
        self.params = buffer.params[start:stop]
        self.slots = buffer.slots[start:stop]
        self.summed = buffer.summed
        self.buffer = buffer
        self.place = slice(buffer.slices[start].start, buffer.slices[stop - 1].stop)
        self.grad = buffer.grad[self.place]
        # the shared memory in which ``sent`` lives, if there is any
        self.shared: SharedVectors | None = None
        # what is reduced: ``grad`` itself, or an array of the wire dtype, the same each time
        self.sent: Any = None
        self.operation: Operation | None = None
        self.awaited = 0  # parameters whose gradients are not final yet
        self._few = _few_of(self.grad)
        # some of this rank's own gradients in the last two sums, the last ones first
        self._own: tuple[Array | None, Array | None] = (None, None)

    def note(self) -> None:
        """Note a few of this rank's own gradients, which their sum over ranks replaces."""
        if self._few is not None:
            self._own = self._few.copy(), self._own[0]

    def find_nonfinite(self, sums_ago: int) -> Parameter | None:
        """Return the last parameter, the first that backward found, that had NaN or infinity among
        the gradients noted for the last sum (0), or for the one before (1).
        """
        own = self._own[sums_ago]
        found = [] if own is None else np.flatnonzero(~np.isfinite(own)).tolist()
        if not found:
            return None
        stops = np.cumsum([param.array.size for param in self.params])
        place = found[-1] * _stride_of(self.grad)
        param: Parameter = self.params[int(np.searchsorted(stops, place, "right"))]
        return param

    def is_finite(self) -> bool:
        """Return whether the gradients have neither NaN nor infinity, as far as a few of them
        show.
        """
        return self._few is None or bool(np.isfinite(self._few).all())

    def pack(self, weight: float, wire: Callable[[Array, Array], Array]) -> Array:
        """Apply the weight, and convert to the wire dtype; return what is sent, which may be the
        gradients themselves.
        """
        self.note()
        if weight != 1:
            self.grad *= weight
        self.sent = wire(self.grad, self.sent)
        sent: Array = self.sent
        return sent

    def share(self, vectors: SharedVectors | None) -> None:
        """Move the gradients to shared memory; or, if they are sent in another dtype, what is
        sent.
        """
        self.shared = vectors
        if vectors is not None:
            self.sent = vectors.mine
            if self.sent.dtype == self.grad.dtype:
                self.buffer.rebind(self.sent)
                self.grad = self.sent
                self._few = _few_of(self.grad)

    def unpack(self) -> None:
        """Wait for the sum, and write it to the gradients."""
        if self.operation is not None:
            self.operation.wait()
            self.operation = None
        if self.sent is not self.grad:
            self.grad[...] = self.sent


def _wire_dtype(given: Any) -> np.dtype[Any]:
    """Return the dtype in which gradients travel; ValueError if they cannot travel as that."""
    dtype: np.dtype[Any] | None = None
    with suppress(TypeError):
        dtype = np.dtype(given)
    if dtype is None or dtype.kind not in "fV":  # bfloat16 is a V
        raise ValueError(
            "wire_dtype, allreduce_grad_dtype: gradients travel in a floating-point dtype, "
            f"np.float16, np.float32 or ml_dtypes.bfloat16, not in {given!r}"
        )
    return dtype


class Reducer:
    """Sums the gradients of parameters over ranks.

    Args:
        comm: the ranks that hold copies of the parameters; the reducer makes a duplicate of it for
            itself.
        bucket_bytes: how much leaves at once during backward; None: everything after it, by one
            message for each buffer.
        wire_dtype: the dtype in which wider floating-point gradients travel; sums are made in 32
            bits at least.
        among: for parameters of which only some of the ranks have copies (``param.summed``): which
            ranks those are.

    Raises:
        ValueError: the size is not positive, or the dtype has no fractions.
    """

    def __init__(
        self,
        comm: Communicator,
        bucket_bytes: int | None = None,
        wire_dtype: Any = None,
        among: Among | None = None,
    ) -> None:
        if bucket_bytes is not None and bucket_bytes <= 0:
            raise ValueError(
                f"a bucket has a positive number of bytes, or is None, not {bucket_bytes}"
            )
        self.comm, self.bucket_bytes = comm, bucket_bytes
        self._wire_dtype = None if wire_dtype is None else _wire_dtype(wire_dtype)
        self._among = among
        self._channels: dict[tuple[str, ...] | None, Communicator] = {}
        self._buffers: list[FlatBuffer] = []
        # the same, as the list object of the last call, to tell quickly
        self._attached: list[FlatBuffer] | None = None
        self._aliased: list[VariableNode] = []
        self.buckets: list[Bucket] = []
        # the first bucket of parameters that all ranks have copies of
        self._first: Bucket | None = None
        self._noted: PiggybackSum | None = None  # the sum of this bucket, with notes
        self.pieces: Pieces = ()  # for a step in one go: each buffer whole
        # if the only bucket is summed in shared memory: what this rank adds up, then the rest
        self.parts: Sequence[slice] = ()
        self.left = 0  # how many buckets have been sent
        self._off: list[Callable[[], None]] = []  # what removes the hooks from the parameters
        self._listening = False
        self._given_up = False
        self.weight = 1.0  # of this rank's gradients in the sum
        # called with each parameter, and its place, whose gradient is final in a backward that
        # sends no buckets
        self.on_unsent: Callable[[Parameter, GradSlot], None] | None = None

    @property
    def channel(self) -> Communicator:
        """A communicator of its own, as buckets may leave between any other communications.
        Collective the first time.
        """
        return self.channel_of(None)

    def channel_of(self, summed: tuple[str, ...] | None) -> Communicator:
        """Return such a communicator of the ranks that have copies of parameters with this
        ``param.summed``. Collective the first time.
        """
        if summed not in self._channels:
            comm = self.comm if summed is None or self._among is None else self._among(summed)
            channel = comm.split(0, comm.rank)
            assert channel is not None
            self._channels[summed] = channel
        return self._channels[summed]

    def wire(self, grad: Array, out: Array | None = None) -> Array:
        """Return gradients in the dtype in which they travel, in ``out`` if it is given;
        themselves, if they travel as they are.

        Raises:
            OverflowError: finite gradients would become infinite, and no loss scaling looks for
                that.
        """
        dtype = self._wire_dtype
        if dtype is None or grad.dtype.kind != "f" or grad.dtype.itemsize <= dtype.itemsize:
            return grad
        if out is None:
            out = backend.get_array_module(grad).empty_like(grad, dtype)
        scaled = any([p.node.loss_scale for buffer in self._buffers for p in buffer.params[:1]])
        try:
            with np.errstate(over="ignore" if scaled else "raise"):
                out[...] = grad
        except FloatingPointError:
            raise OverflowError(
                f"rank {self.comm.rank}: gradients of up to {abs(grad).max():.3g} cannot travel as "
                f"{dtype}, which ends at {np.finfo(dtype).max:.3g} (allreduce_grad_dtype, "
                "wire_dtype): let them travel as float32 or bfloat16, or use "
                "optimizer.loss_scaling()"
            ) from None
        return out

    def attach(self, buffers: FlatBuffers) -> None:
        """Reduce the gradients of these buffers from now on. Called before each backward, it does
        little if they are the same as before.

        Raises:
            RuntimeError: they changed while gradients were on their way.
        """
        if buffers.learning is self._attached and not self._given_up:
            return
        self._forget()
        self._attached = now = buffers.learning
        for buffer in now:
            self.channel_of(buffer.summed)  # all ranks make it together here
        aliased = [param.node for param in buffers.aliased]
        if (
            aliased == self._aliased
            and len(now) == len(self._buffers)
            and all([a is b for a, b in zip(now, self._buffers, strict=True)])
        ):
            return
        if self.left:
            raise RuntimeError(
                "parameters were added, removed, moved or reshaped while their gradients were "
                "on their way"
            )
        for off in self._off:
            off()
        self._buffers = now
        self._aliased = aliased
        self.pieces = [(buffer, None, buffer.params) for buffer in now]
        self.buckets = [bucket for buffer in reversed(now) for bucket in self._cut(buffer)]
        self.parts = ()
        self._first = next((bucket for bucket in self.buckets if bucket.summed is None), None)
        self._off = []
        if self.bucket_bytes is None:
            return
        for bucket in self.buckets:
            for param, slot in zip(bucket.params, bucket.slots, strict=True):
                hook = self._when_final(bucket, param, slot)
                self._off.append(param.register_hook(hook, after=True))
        # with a hook the gradient is kept as soon as it is final, and not after backward
        for node in aliased:
            self._off.append(node.add_hook(GradientHook(lambda node: None, after=True)))

    def _cut(self, buffer: FlatBuffer) -> Iterator[Bucket]:
        """Yield a buffer's buckets, from its end."""
        sizes = [param.array.nbytes for param in buffer.params]
        stop = len(sizes)
        room = buffer.grad.nbytes if self.bucket_bytes is None else self.bucket_bytes
        while stop:
            start = stop - 1
            size = sizes[stop - 1]
            while start and size + sizes[start - 1] <= room:
                start -= 1
                size += sizes[start]
            yield Bucket(buffer, start, stop)
            stop = start

    def _when_final(
        self, bucket: Bucket, param: Parameter, slot: GradSlot
    ) -> Callable[[VariableNode], None]:
        def final(node: VariableNode) -> None:
            if not self._listening:
                if self.on_unsent is not None:
                    self.on_unsent(param, slot)
                return
            # a recorded backward's, a Variable; or it lived in another optimizer's buffer
            if node.gradient is not slot.array:
                slot.array[...] = getattr(node.gradient, "array", node.gradient)
                node.gradient, node.grad_slot, slot.reserved = slot.array, slot, False
            bucket.awaited -= 1
            while self.left < len(self.buckets) and self.buckets[self.left].awaited == 0:
                self._leave()

        return final

    def go_on(self) -> None:
        """Advance the sums that are under way."""
        for bucket in self.buckets[: self.left]:
            if bucket.operation is not None:
                bucket.operation.step()

    def _hear(self, listening: bool) -> None:
        if self._listening != listening:
            meanwhile = current_tape().transfers
            (meanwhile.append if listening else meanwhile.remove)(self.go_on)
        self._listening = listening

    def give_up(self, buffers: FlatBuffers) -> None:
        """Drop a backward that failed on all ranks: the buffers get new vectors, so that sums under
        way end in the old ones, unused.
        """
        if self._listening:
            buffers.renew()
            self._given_up = True
            self._hear(False)

    def _forget(self) -> None:
        """Send the other buckets too after :meth:`give_up`, as ranks may have sent different
        numbers, and drop all.
        """
        if self._given_up:
            while self.left < len(self.buckets):
                self._leave()
            for bucket in self.buckets:
                bucket.unpack()
            self._given_up, self.left = False, 0

    def _leave(self) -> None:
        bucket = self.buckets[self.left]
        sent = bucket.pack(self.weight, self.wire)
        bucket.operation = self.channel_of(bucket.summed).iallreduce(sent, out=sent)
        self.left += 1

    def listen(self, buffers: FlatBuffers) -> None:
        """Send buckets during backward from now on, until :meth:`reduce`, which all ranks call."""
        if self.bucket_bytes is not None:
            self.attach(buffers)
            for bucket in self.buckets:
                bucket.awaited = len(bucket.params)
            # made now by all ranks together: in backward none waits
            self._hear(self.channel is not None)

    def reduce(self, buffers: FlatBuffers) -> None:
        """Sum the gradients over ranks, in place; all ranks call it, with every parameter's
        gradient in its buffer.
        """
        for _ in self.arrivals(buffers):
            pass

    def arrivals(self, buffers: FlatBuffers) -> Iterator[Bucket]:
        """Do what :meth:`reduce` does, bucket by bucket: later ones may still be under way. The
        iterator must be exhausted.
        """
        self._hear(False)
        self.attach(buffers)
        if self.bucket_bytes is None:
            self._reduce_at_once(buffers, self.buckets)
            yield from self.buckets
            return
        while self.left < len(self.buckets):
            self._leave()
        self.left = 0
        for bucket in self.buckets:
            bucket.unpack()
            yield bucket
        self._reduce_at_once(buffers, [])

    def noted(self, buffers: FlatBuffers) -> PiggybackSum:
        """Return the sum, with a note, of the first bucket. The caller begins and ends it, and then
        calls :meth:`finish` for the others: :meth:`reduce` without ``bucket_bytes``. If the notes
        are unusual nothing is summed (:meth:`Communicator.allreduce_if`). It goes by the
        communicator of the user, so that the error is found at once if one rank is in an update and
        another in some other collective.
        """
        if buffers.learning is not self._attached:
            self.attach(buffers)
        first, noted = self._first, self._noted
        if noted is None or first is None or first.grad is not noted.x:
            sent = _NOTHING if first is None else first.pack(self.weight, self.wire)
            if noted is None or noted.x is not sent:
                self._noted = noted = PiggybackSum(self.comm, sent)
        elif self.comm.size > 1:
            first.note()
        return noted

    def finish(self, buffers: FlatBuffers) -> None:
        """Sum the other buckets after the first."""
        first = self._first
        if first is not None and first.sent is not first.grad:
            first.unpack()
        if len(self.buckets) != 1 or first is None or buffers.aliased:
            self._reduce_at_once(
                buffers, [bucket for bucket in self.buckets if bucket is not first]
            )

    def note(self, buffers: FlatBuffers) -> None:
        """Note some of this rank's gradients, which another than :meth:`reduce` is about to sum."""
        self.attach(buffers)
        for bucket in self.buckets:
            bucket.note()

    def find_nonfinite(self, sums_ago: int) -> Parameter | None:
        """Return a parameter of which this rank's own gradient had NaN or infinity, as far as a few
        elements of each bucket show, in the last sum (0) or in the one before (1).
        """
        found = [bucket.find_nonfinite(sums_ago) for bucket in self.buckets]
        return next((param for param in found if param is not None), None)

    def nowhere(self, buffers: FlatBuffers) -> list[Parameter]:
        """Return the parameters that have a gradient on no rank; all ranks call it."""
        params = [param for buffer in buffers for param in buffer.params] + buffers.aliased
        anywhere = self.comm.allreduce(
            np.array([param.grad is not None for param in params], np.uint8), "max"
        )
        return [param for param, there in zip(params, anywhere, strict=True) if not there]

    def rest(self) -> None:
        """Wait for the parts of a sum in shared memory that other ranks add up."""
        if self._noted is not None:
            self._noted.wait_for_rest()

    def prepare(self, buffers: FlatBuffers) -> None:
        """Move gradients to shared memory, to be summed there, where the ranks have any; all ranks
        call it.
        """
        self.attach(buffers)
        bucket = self._first
        if self.comm.size == 1 or bucket is None or self.bucket_bytes is not None:
            return
        grad, known = bucket.grad, 0 if bucket.shared is None else bucket.shared.number
        dtype = self.wire(grad[:0]).dtype  # there may be no gradients yet
        forms = self.comm.allgather_obj((type(grad).__name__, dtype.str, grad.shape, known))
        if type(grad) is not np.ndarray or forms.count(forms[0]) < len(forms):
            return  # by messages: they go from devices too, and say what is not alike
        if (
            self.comm.sum_in_shared_memory()
            and grad.size * dtype.itemsize > SLOT_VALUES
            and not known
        ):
            bucket.share(self.comm.share_vectors(np.empty(grad.shape, dtype)))
            if (
                bucket.shared is not None
                and bucket.grad is bucket.shared.mine
                and len(self.buckets) == 1
            ):
                self.parts = bucket.shared.parts

    def _reduce_at_once(self, buffers: FlatBuffers, buckets: list[Bucket]) -> None:
        """Sum buckets one after the other, and then the gradients of parameters that are in no
        buffer.
        """
        for bucket in buckets:
            sent = bucket.pack(self.weight, self.wire)
            if bucket is self._first:
                self.comm.allreduce_if(sent, b"", lambda notes: True, sent)
            else:
                self.channel_of(bucket.summed).allreduce(sent, out=sent)
            bucket.unpack()
        for param in buffers.aliased:
            param.grad *= self.weight
            self.channel_of(param.summed).allreduce(param.grad, out=param.grad)


def _few_of(grad: Array) -> Array | None:
    """Return a view of up to FEW elements of a vector; None if it is on a device, or cannot have
    NaN.
    """
    if type(grad) is not np.ndarray or grad.dtype.kind in "biu":
        return None
    return grad[:: _stride_of(grad)]


def _stride_of(grad: Array) -> int:
    return max(1, -(-grad.size // FEW))


def choose_bucket_bytes(comm: Communicator) -> int | None:
    """Return the size of buckets that leave during backward; None if everything must leave after
    it. All ranks call it, and agree.

    On one machine it is None: the cores that would move a message are computing. Between machines
    the network may transfer a message meanwhile. That is measured, with as much computing as the
    message takes: the message at the same time, or after it.
    """
    if comm.inter_size == 1:
        return None
    x = np.ones(BUCKET // 4, np.float32)
    a = np.ones((128, 128), np.float32)

    def compute(times: int, meanwhile: Callable[[], None]) -> None:
        for _ in range(times):
            a @ a
            meanwhile()

    def early(times: int) -> None:
        operation = comm.iallreduce(x)
        compute(times, operation.step)
        operation.wait()

    def late(times: int) -> None:
        compute(times, lambda: None)
        comm.allreduce(x)

    message = _slowest(comm, lambda: comm.allreduce(x))
    product = _slowest(comm, lambda: compute(10, lambda: None)) / 10
    times = max(1, round(message / product))
    return (
        BUCKET
        if _slowest(comm, lambda: early(times)) < 0.9 * _slowest(comm, lambda: late(times))
        else None
    )


def _slowest(comm: Communicator, work: Callable[[], Any]) -> float:
    """Return the median seconds of some work, on the rank where that is largest."""
    seconds = []
    for _ in range(5):
        comm.barrier()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return float(comm.allreduce(np.array(np.median(seconds)), "max"))
