"""MultiNodeChainList: a model-parallel network as a list of parts on ranks, ChainerMN's way to
describe one.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.chain import ChainList, Layer
from mnpar.communicators.communicator import require_communicator
from mnpar.functions import recv, send
from mnpar.link import GradientComms
from mnpar.serializer import AbstractSerializer
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

Ranks = int | Sequence[int] | None


class MultiNodeChainList(ChainList):
    """This rank's parts of a network; each receives its inputs from ranks and sends its output to
    ranks.

    Parts run in the order in which they were added. A part without ``rank_in`` gets the model's own
    inputs; the output of the (only) part without ``rank_out`` is the model's. On a rank without
    such a part the model returns an empty Variable, whose ``backward()`` visits its parts. A part
    with several ``rank_in`` is called with one argument from each; a tuple that it returns goes to
    each of its ``rank_out`` as a tuple. A rank may send values to itself, and to one rank twice.

    Args:
        comm: the communicator of all parts.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     model = mnpar.MultiNodeChainList(comm)
        ...     if comm.rank == 0:
        ...         model.add_link(L.Linear(3, 4), rank_in=None, rank_out=1)
        ...         model.add_link(L.Linear(4, 2), rank_in=1, rank_out=None)
        ...         y = F.sum(model(np.ones((5, 3), "f4")))
        ...     else:
        ...         model.add_link(L.Linear(4, 4), rank_in=0, rank_out=0)
        ...         y = model()
        ...     y.backward()
        ...     return [part.W.grad.shape for part in model]
        >>> mnpar.run(program, ranks=2)
        [[(4, 3), (2, 4)], [(4, 4)]]
    """

    def __init__(self, comm: Communicator) -> None:
        require_communicator(comm, "MultiNodeChainList(comm)")
        super().__init__()
        self._comm = comm
        self._routes: list[tuple[list[int] | None, list[int] | None]] = []

    def gradient_comms(self) -> GradientComms:
        """Add the ranks that have the other links."""
        return super().gradient_comms().add(self._comm, holds="stages")

    def __deepcopy__(self, memo: dict[int, Any]) -> MultiNodeChainList:
        other = MultiNodeChainList(self._comm)
        memo[id(self)] = other
        for part, (rank_in, rank_out) in zip(self, self._routes, strict=True):
            other.add_link(copy.deepcopy(part, memo), rank_in, rank_out)
        return other

    def add_link(self, link: Layer, rank_in: Ranks = None, rank_out: Ranks = None) -> None:
        """Add a part.

        Args:
            link: called with its inputs.
            rank_in: the rank, or ranks, that its inputs come from; None: the model's inputs.
            rank_out: the rank, or ranks, that its output goes to; None: it is the model's output.

        Raises:
            ValueError: there is no such rank, or a second part would give the model's output.
        """
        route = self._ranks(rank_in), self._ranks(rank_out)
        if route[1] is None and any(rank_out is None for _, rank_out in self._routes):
            raise ValueError(
                f"rank {self._comm.rank}: two parts without rank_out, but a model has one "
                "output: give one a rank_out"
            )
        super().append(link)
        self._routes.append(route)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load as a link does; tell a checkpoint that each rank has parts of its own."""
        super().serialize(serializer)
        if hasattr(serializer, "staged") and self._comm.size > 1:
            serializer.staged(self, self._comm.rank, ())

    def _ranks(self, ranks: Ranks) -> list[int] | None:
        if ranks is None:
            return None
        return [
            self._comm.peer(rank)
            for rank in ([ranks] if isinstance(ranks, int | np.integer) else ranks)
        ]

    def forward(self, *inputs: Any) -> Any:
        """Run this rank's parts; return the model's output, or, on a rank without it, what the last
        :func:`~mnpar.functions.send` returned.
        """
        if not len(self):
            raise ValueError(
                f"rank {self._comm.rank} has no part in this MultiNodeChainList: add_link first"
            )
        own: deque[Any] = deque()  # values that this rank sends to itself
        output: Any = None
        delegate: Variable | None = None
        for part, (rank_in, rank_out) in zip(self, self._routes, strict=True):
            y = part(*(inputs if rank_in is None else [self._recv(rank, own) for rank in rank_in]))
            if rank_out is None:
                output = y
            for rank in rank_out or ():
                if rank == self._comm.rank:
                    own.append(y)
                else:
                    delegate = send(y, self._comm, rank)
        if own:
            raise ValueError(
                f"rank {self._comm.rank} hands itself {len(own)} value(s) that no later part "
                "takes (rank_in)"
            )
        if any(rank_out is None for _, rank_out in self._routes):
            return output
        return Variable(self.xp.empty(0, np.float32)) if delegate is None else delegate

    def _recv(self, rank: int, own: deque[Any]) -> Any:
        if rank != self._comm.rank:
            return recv(self._comm, rank)
        if not own:
            raise ValueError(
                f"rank {rank} takes a value from itself that no earlier part has handed on "
                "(rank_out)"
            )
        return own.popleft()
