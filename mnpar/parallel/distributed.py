"""Data parallelism for programs that update parameters themselves: a backward that ends with the gradients of all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.arena import Arenas
from mnpar.chain import Chain
from mnpar.config import is_recording
from mnpar.function_node import FunctionNode
from mnpar.graph import Gradient, tick
from mnpar.link import Link
from mnpar.parallel.agreement import Copies
from mnpar.parallel.reducer import Reducer, choose_bucket_bytes
from mnpar.parallel.team import samples_of
from mnpar.tape import current_tape

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class End(FunctionNode):
    """Stands before a forward, and so at the end of its backward, which visits it whatever happened (law 4)."""

    communicates = True

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.number = tick()
        current_tape().append(self)

    def pull(self, gys: list[Gradient], wanted: list[bool], record: bool) -> Iterator[Gradient]:
        """Nothing flows through: it acts."""
        self.act()
        return iter(())


class DistributedDataParallel(Chain):
    """A model whose gradients, when a backward has ended, are the mean over the samples of all ranks.

    Every rank calls it and runs backward, as often as the others; a rank without samples calls it with none. Gradients that
    stood there already (with :meth:`no_sync`, or from a backward before) are part of the mean.

    Args:
        module: the model; its parameters and persistent values become rank 0's at the first call, and when new ones appear.
        comm: the ranks that hold copies of it.
        reduce: ``'weighted'``: by the samples of each rank; ``'mean'``: over ranks. The losses are means over samples.
        bucket_bytes: as in :func:`mnpar.create_multi_node_optimizer`.
        samples: called with the arguments of the model: how many samples they are.

    Raises:
        ValueError: an argument has none of these values.

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
        super().__init__()
        if reduce not in ("weighted", "mean"):
            raise ValueError(f"gradients are reduced by 'weighted' or 'mean', not {reduce!r}")
        size = choose_bucket_bytes(comm) if bucket_bytes == "auto" else bucket_bytes
        self.module = module
        self._comm, self._by_samples, self._samples = comm, reduce == "weighted", samples
        self._reducer = Reducer(comm, size or 2**62)  # type: ignore[arg-type]  # by hooks always: End comes before backward's end
        self._arenas, self._copies = Arenas(), Copies(comm)
        self._end: End | None = None
        self._count = 0.0  # of the forwards since the last reduction
        self._alone = False

    def take_as_given(self) -> None:
        """Do not give the ranks rank 0's values at first: each has loaded what it is to have."""
        self._copies.take_as_equal(self.module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own result; recorded so that backward ends with the reduction."""
        if not self._copies.ever:
            self._copies.make_equal(self.module, self._arenas)
        if not is_recording() or self._alone:
            self._count += self._weight(args, kwargs) if is_recording() else 0
            return self.module(*args, **kwargs)
        if self._end is None or not any([record is self._end for record in current_tape().records]):
            self._end = End(self._finish)
        before = len(current_tape().records)
        result = self.module(*args, **kwargs)
        self._count += self._weight(args, kwargs)
        mine = [self._count, self._copies.stale(self.module), len(current_tape().records) - before]
        counts, stale, talked = np.stack(self._comm.allgather(np.array(mine))).T
        if stale.any():
            self._copies.make_equal(self.module, self._arenas)
            if talked.any():
                raise RuntimeError(f"rank {self._comm.rank}: parameters appeared in a forward that communicated: {_SIZES}")
            result = self.module(*args, **kwargs)  # the first was of other parameters
        total = counts.sum()
        self._reducer.weight = float(counts[self._comm.rank] / total) if total else 0.0
        self._arenas.gather(self.module.params())
        self._reducer.listen(self._arenas)
        return result

    def _weight(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        count = self._samples(*args, **kwargs)
        return count if self._by_samples and count >= 0 else float(count != 0)

    def _finish(self) -> None:
        """At the end of backward."""
        self._end, self._count = None, 0.0
        self._arenas.gather(self.module.params())
        self._arenas.fill()
        self._reducer.reduce(self._arenas)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up gradients inside a ``with`` block, without messages: the next forward outside has them in its mean."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        other = DistributedDataParallel(copy.deepcopy(self.module, memo), self._comm, samples=self._samples)
        other._by_samples, other._reducer.bucket_bytes = self._by_samples, self._reducer.bucket_bytes
        return other


_SIZES = "give layers their sizes, or call the model once under mnpar.no_backprop_mode() first"
