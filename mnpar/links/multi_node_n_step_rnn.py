"""Recurrent layers over several ranks: initial states are received from one rank, and final states
are sent to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnpar import functions as F
from mnpar.chain import Chain
from mnpar.communicators.communicator import needed
from mnpar.links.n_step import NStepRNNBase

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class MultiNodeNStepRNN(Chain):
    """The link that :func:`create_multi_node_n_step_rnn` returns; it is called with the sequences
    alone.

    Args:
        link, communicator, rank_in, rank_out: as of :func:`create_multi_node_n_step_rnn`.

    Example:
        See :func:`create_multi_node_n_step_rnn`.
    """

    def __init__(
        self,
        link: NStepRNNBase,
        communicator: Communicator,
        rank_in: int | None,
        rank_out: int | None,
    ) -> None:
        super().__init__()
        self.communicator, self.rank_in, self.rank_out = communicator, rank_in, rank_out
        self.actual_rnn = link

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """The link's arguments without its initial states → the link's results, and a delegate
        variable (or None).
        """
        states: tuple[Any, ...] = (None,) * self.actual_rnn.n_cells
        if self.rank_in is not None:
            states = F.recv(self.communicator, self.rank_in, force_tuple=True)
            if len(states) != self.actual_rnn.n_cells:
                raise ValueError(
                    f"rank {self.communicator.rank}: {type(self.actual_rnn).__name__} has "
                    f"{self.actual_rnn.n_cells} states, "
                    f"but rank {self.rank_in} sent {len(states)}: the layers on both ranks are "
                    "of one kind"
                )
        results = self.actual_rnn(*states, *inputs)
        delegate = None
        if self.rank_out is not None:
            delegate = F.send(results[:-1], self.communicator, self.rank_out)
        return (*results, delegate)


def create_multi_node_n_step_rnn(
    actual_link: NStepRNNBase,
    communicator: Communicator,
    rank_in: int | None = None,
    rank_out: int | None = None,
) -> MultiNodeNStepRNN:
    """Let a recurrent link start from the final states of the link of another rank (an encoder and
    a decoder, say).

    Args:
        actual_link: one of the eight NStep links.
        communicator: the communicator of these ranks.
        rank_in: the rank whose final states are the initial states here; None: zeros.
        rank_out: the rank that gets the final states; None: no rank.

    Returns:
        A link that is called without states and returns, after the link's results, a delegate
        variable, which need not be used; None if ``rank_out`` is None.

    Raises:
        ValueError: ``actual_link`` is not an NStep link.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     first = comm.rank == 0
        ...     ends = {"rank_out": 1} if first else {"rank_in": 0}
        ...     rnn = L.create_multi_node_n_step_rnn(L.NStepGRU(1, 3, 2, 0.0), comm, **ends)
        ...     hy, ys, delegate = rnn([np.ones((4, 3), "f4")])
        ...     mnpar.backward([] if first else [mnpar.functions.sum(ys[0])])
        ...     return rnn.actual_rnn[0].w0.grad is not None
        >>> mnpar.run(program, ranks=2)
        [True, True]
    """
    needed(communicator, "create_multi_node_n_step_rnn(actual_link, communicator)")
    if not isinstance(actual_link, NStepRNNBase):
        raise ValueError(
            f"create_multi_node_n_step_rnn takes an NStep link, not a {type(actual_link).__name__}"
        )
    return MultiNodeNStepRNN(actual_link, communicator, rank_in, rank_out)
