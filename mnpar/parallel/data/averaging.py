"""Ranks that train for themselves and agree now and then: local SGD, elastic averaging, and a
parameter server.

The first two are hooks of optimizers that all ranks' updates call in step; a server is asked by
each rank when it likes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators import ANY_SOURCE
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.replication import check_same_model
from mnpar.errors import MismatchError
from mnpar.optimizers import GradientMethod
from mnpar.serializer import AbstractSerializer

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class ParameterAveraging:
    """Local SGD: every so many updates, the parameters of all ranks become their mean.

    Args:
        comm: the ranks that train; all update equally often.
        every: updates in between.

    Raises:
        ValueError: it is less than 1.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> from mnpar.parallel import ParameterAveraging
        >>> def program(comm):
        ...     model = L.Linear(1, 1, initialW=comm.rank, nobias=True)
        ...     optimizer = mnpar.optimizers.SGD(0.0).setup(model)
        ...     optimizer.add_hook(ParameterAveraging(comm, every=2))
        ...     seen = []
        ...     for _ in range(2):
        ...         optimizer.update(lambda: F.sum(model.W))
        ...         seen.append(float(model.W.array[0, 0]))
        ...     return seen
        >>> mnpar.run(program, ranks=2)
        [[0.0, 0.5], [1.0, 0.5]]

    Source:
        Stich 2019, "Local SGD converges fast and communicates little", arXiv 1805.09767.
    """

    name = "ParameterAveraging"
    timing = "post"

    def __init__(self, comm: Communicator, every: int = 1) -> None:
        require_communicator(comm, "ParameterAveraging(comm, every)")
        self.comm, self.every = comm, _positive(every)

    def __call__(self, optimizer: GradientMethod) -> None:
        if optimizer.t % self.every == 0:
            check_same_model(self.comm, optimizer.target)
            for vector in _vectors(optimizer):
                backend.copyto(vector, self.comm.allreduce(vector, "mean"))


class ElasticAveraging:
    """Elastic averaging: every so many updates each rank's parameters x and a centre c, the same on
    all ranks, move towards each other.

    x_r ← x_r − α (x_r − c),  c ← c + α Σ_r (x_r − c).  The centre starts as the mean of the ranks'
    parameters.

    Args:
        comm: the ranks that train; all update equally often.
        alpha: α, at most 1 / ranks for a centre that does not overshoot.
        every: updates in between.

    Raises:
        ValueError: α is not in (0, 1], or ``every`` is less than 1.

    Example:
        >>> import mnpar, mnpar.functions as F, mnpar.links as L
        >>> from mnpar.parallel import ElasticAveraging
        >>> def program(comm):
        ...     model = L.Linear(1, 1, initialW=comm.rank, nobias=True)
        ...     optimizer = mnpar.optimizers.SGD(0.0).setup(model)
        ...     optimizer.add_hook(ElasticAveraging(comm, alpha=0.5))
        ...     optimizer.update(lambda: F.sum(model.W))
        ...     return float(model.W.array[0, 0])
        >>> mnpar.run(program, ranks=2)
        [0.25, 0.75]

    Source:
        Zhang, Choromanska and LeCun 2015, "Deep learning with elastic averaging SGD", arXiv
        1412.6651.
    """

    name = "ElasticAveraging"
    timing = "post"

    def __init__(self, comm: Communicator, alpha: float, every: int = 1) -> None:
        require_communicator(comm, "ElasticAveraging(comm, alpha)")
        self.comm = comm
        self.alpha = _rate(alpha)
        self.every = _positive(every)
        self.centre: list[Array] = []

    def __call__(self, optimizer: GradientMethod) -> None:
        if optimizer.t % self.every:
            return
        check_same_model(self.comm, optimizer.target)
        vectors = _vectors(optimizer)
        if not self.centre:
            self.centre = [self.comm.allreduce(vector, "mean") for vector in vectors]
        # it may have been loaded
        self.centre = [
            backend.to_device_of(c, x) for x, c in zip(vectors, self.centre, strict=True)
        ]
        for x, c in zip(vectors, self.centre, strict=True):
            difference = x - c
            x -= self.alpha * difference
            c += self.alpha * self.comm.allreduce(difference)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the centre; the optimizer does it. One that was not saved starts as the mean
        of what was loaded.
        """
        with suppress(KeyError):
            count = int(serializer("n", len(self.centre)))
            centre = self.centre if count == len(self.centre) else [None] * count
            self.centre = [serializer(str(i), c) for i, c in enumerate(centre)]


class ParameterServer:
    """A rank that holds the parameters, and is asked by the others when they like: nobody waits for
    the slowest.

    Every rank makes one. The server's rank calls :meth:`serve`; the others train, each by one of
    two ways, and :meth:`finish`: :meth:`step` hands in gradients and gets parameters (the server
    steps with its own optimizer), :meth:`pull` lets the worker's and the server's parameters move
    towards each other.

    Args:
        comm: the server and its workers.
        server: the server's rank.

    Raises:
        ValueError: there is no such rank.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> from mnpar.parallel import ParameterServer
        >>> def program(comm):
        ...     server, model = ParameterServer(comm), L.Linear(1, 1, initialW=0, nobias=True)
        ...     optimizer = mnpar.optimizers.SGD(lr=1.0).setup(model)
        ...     if comm.rank == 0:
        ...         server.serve(optimizer)
        ...     else:
        ...         model.cleargrads()
        ...         F.sum(model.W).backward()
        ...         server.step(optimizer)
        ...         server.finish()
        ...     return float(model.W.array[0, 0])
        >>> mnpar.run(program, ranks=3)[0]
        -2.0

    Source:
        Dean et al. 2012, "Large scale distributed deep networks" (Downpour SGD); arXiv 1412.6651
        for ``pull``.
    """

    _GET, _STEP, _PULL, _BYE = range(4)

    def __init__(self, comm: Communicator, server: int = 0) -> None:
        require_communicator(comm, "ParameterServer(comm, server)")
        if not 0 <= server < comm.size:
            raise ValueError(
                f"there is no rank {server} in a communicator of {comm.size} to be the server"
            )
        self.comm, self.server = comm, server

    # ---- the server ----

    def serve(self, optimizer: GradientMethod) -> None:
        """Answer the workers until all have finished.

        Args:
            optimizer: set up with the model whose parameters are served.
        """
        workers = self.comm.size - 1
        while workers:
            head, *given = self.comm.recv(ANY_SOURCE)
            worker = int(head[0])
            request = int(head[1])
            alpha = float(head[2])
            if request == self._BYE:
                workers -= 1
                continue
            params = list(optimizer.target.params())
            optimizer.buffers.gather(params)
            buffers = optimizer.buffers.learning
            vectors = [buffer.data for buffer in buffers]
            self._check(worker, given, vectors)
            if request == self._PULL:
                vectors = [vector.copy() for vector in vectors]
            for buffer, x in zip(buffers, given, strict=bool(given)):
                if request == self._STEP:
                    backend.copyto(buffer.grad, x)
                else:
                    buffer.data += alpha * (backend.to_device_of(x, buffer.data) - buffer.data)
            if request == self._STEP:
                optimizer.buffers.adopt()
                optimizer.update()
            self.comm.send(tuple(vectors), worker)

    def _check(self, worker: int, given: list[Array], vectors: list[Array]) -> None:
        if given and [x.size for x in given] != [vector.size for vector in vectors]:
            raise MismatchError(
                f"rank {worker}'s model has {[x.size for x in given]} parameters, the server's "
                f"{[v.size for v in vectors]}: "
                "both are to be of the same structure"
            )

    # ---- workers ----

    def get(self, optimizer: GradientMethod) -> None:
        """Take the server's parameters."""
        for x, c in zip(_vectors(optimizer), self._ask(self._GET), strict=True):
            backend.copyto(x, c)

    def step(self, optimizer: GradientMethod) -> None:
        """Hand in the gradients that are there, and take the parameters after the server's step by
        them.
        """
        buffers = optimizer.buffers
        buffers.gather(optimizer.target.params())
        buffers.fill()
        grads = [buffer.grad for buffer in buffers.learning]
        for x, c in zip(_vectors(optimizer), self._ask(self._STEP, grads), strict=True):
            backend.copyto(x, c)

    def pull(self, optimizer: GradientMethod, alpha: float) -> None:
        """x ← x − α (x − c) here, c ← c + α (x − c) on the server, both from the values before.

        Raises:
            ValueError: α is not in (0, 1].
        """
        vectors = _vectors(optimizer)
        for x, c in zip(vectors, self._ask(self._PULL, vectors, _rate(alpha)), strict=True):
            x -= alpha * (x - backend.to_device_of(c, x))

    def finish(self) -> None:
        """Tell the server that this worker will ask no more."""
        self.comm.send((np.array([self.comm.rank, self._BYE, 0.0]),), self.server)

    def _ask(self, request: int, given: list[Array] | tuple[()] = (), alpha: float = 0.0) -> Any:
        if self.comm.rank == self.server:
            raise RuntimeError(f"rank {self.server} is the server: it serves, and does not ask")
        self.comm.send((np.array([self.comm.rank, request, alpha]), *given), self.server)
        return self.comm.recv(self.server)


def _vectors(optimizer: GradientMethod) -> list[Array]:
    """Return the parameters that learn, as the vectors in which they live."""
    optimizer.buffers.gather(optimizer.target.params())
    return [buffer.data for buffer in optimizer.buffers.learning]


def _positive(every: int) -> int:
    if every < 1:
        raise ValueError(f"ranks agree every 1 or more updates, not every {every}")
    return every


def _rate(alpha: float) -> float:
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is in (0, 1], not {alpha}")
    return alpha
