"""Recurrent networks of several layers over batches of whole sequences of different lengths; the
layers may continue on another rank.

:func:`create_multi_node_n_step_rnn` lets such a network start from the final states of a network on
another rank, and send its own final states on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mnpar import functions as F, initializers
from mnpar.backend import Array
from mnpar.chain import Chain, ChainList
from mnpar.communicators.communicator import require_communicator
from mnpar.configuration import get_dtype
from mnpar.functions.node import array_of
from mnpar.functions.rnn.packed_sequences import PackedSequences
from mnpar.initializers.initializer import InitialValue
from mnpar.link import GradientComms, Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class NStepRNNBase(ChainList):
    """Several recurrent layers; each is a child with weights ``w0``, ``w1`` … and biases ``b0``,
    ``b1`` ….

    Args:
        n_layers: S.
        in_size: D.
        out_size: H.
        dropout: the ratio of dropout between layers, while ``config.train`` is on.
        initialW: initializer of the weights; None is LeCunNormal.
        initial_bias: initializer of the biases; None is 0.
    """

    # of each layer: the first half for the input, the second for the state
    n_weights: ClassVar[int]
    n_cells: ClassVar[int] = 1  # how many states a layer has: LSTMs have two
    use_bi_direction: ClassVar[bool] = False
    function: ClassVar[Callable[..., tuple[Any, ...]] | None] = None

    def __init__(
        self,
        n_layers: int,
        in_size: int,
        out_size: int,
        dropout: float,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        directions = 2 if self.use_bi_direction else 1
        layers = []
        for i in range(n_layers * directions):
            width = in_size if i < directions else out_size * directions
            layer = Link()
            for k in range(self.n_weights):
                shape = out_size, width if k < self.n_weights // 2 else out_size
                filler = initializers._get_initializer(initialW)
                setattr(layer, f"w{k}", Parameter(filler, shape))
            for k in range(self.n_weights):
                filler = initializers._get_initializer(initial_bias, 0)
                setattr(layer, f"b{k}", Parameter(filler, (out_size,)))
            layers.append(layer)
        super().__init__(*layers)
        self.n_layers = n_layers
        self.dropout = dropout
        self.out_size = out_size
        self.direction = directions

    @property
    def ws(self) -> list[list[Parameter]]:
        """The weights of each layer."""
        return [
            [getattr(layer, f"w{k}") for k in range(self.n_weights)] for layer in self.children()
        ]

    @property
    def bs(self) -> list[list[Parameter]]:
        """The biases of each layer."""
        return [
            [getattr(layer, f"b{k}") for k in range(self.n_weights)] for layer in self.children()
        ]

    def init_hx(self, xs: Sequence[Variable | Array]) -> Variable:
        """Initial states for these sequences: zeros (S, N, H), or (2 S, N, H) in both
        directions.
        """
        dtype = array_of(xs[0]).dtype if len(xs) else get_dtype()
        return as_variable(
            self.xp.zeros((self.n_layers * self.direction, len(xs), self.out_size), dtype)
        )

    def rnn(self, states: Sequence[Variable], xs: Sequence[Variable | Array]) -> tuple[Any, ...]:
        """Compute the layers: (initial states, steps) → (final states …, outputs of each step),
        longest sequences first.
        """
        if self.function is None:
            raise TypeError(f"{type(self).__name__} does not define rnn(self, states, xs)")
        return self.function(self.n_layers, self.dropout, *states, self.ws, self.bs, xs)

    def _run(
        self, states: Sequence[Variable | Array | None], xs: Sequence[Variable | Array]
    ) -> tuple[Any, ...]:
        if not isinstance(xs, list | tuple):
            raise TypeError(
                f"{type(self).__name__} takes a list of sequences (T_i, D), not {type(xs).__name__}"
            )
        order = np.argsort([-len(x) for x in xs], kind="stable")
        back = np.argsort(order, kind="stable")
        in_order = order.tolist() == list(range(len(xs)))
        first = [as_variable(self.init_hx(xs) if state is None else state) for state in states]
        # a rank's part of a batch may have no sequences, or only empty ones
        if not any([len(x) for x in xs]):
            return (
                *first,
                [
                    as_variable(self.xp.zeros((0, self.out_size * self.direction), first[0].dtype))
                    for _ in xs
                ],
            )
        if not in_order:
            first = [F.permutate(state, order, 1) for state in first]
        sequences = [xs[i] for i in order]
        *finals, steps = self.rnn(first, PackedSequences.of_sequences(sequences))
        ys = PackedSequences.of_steps(steps).unpack(len(sequences))
        if not in_order:
            finals = [F.permutate(final, back, 1) for final in finals]
        return (*finals, [ys[i] for i in back])

    def forward(
        self, hx: Variable | Array | None, xs: Sequence[Variable | Array]
    ) -> tuple[Any, ...]:
        """Initial states (S, N, H) or None, N sequences (T_i, D) in any order → final states, a
        list of outputs (T_i, H).
        """
        return self._run([hx], xs)


class NStepLSTM(NStepRNNBase):
    """:func:`mnpar.functions.n_step_lstm` with its parameters.

    Args:
        n_layers, in_size, out_size, dropout, initialW, initial_bias: as in :class:`NStepRNNBase`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> hy, cy, ys = L.NStepLSTM(2, 3, 4, 0.0)(
        ...     None, None, [np.ones((1, 3), "f4"), np.ones((5, 3), "f4")]
        ... )
        >>> hy.shape, [y.shape for y in ys]
        ((2, 2, 4), [(1, 4), (5, 4)])
    """

    n_weights = 8
    n_cells = 2
    function = staticmethod(F.n_step_lstm)

    def forward(  # type: ignore[override]
        self,
        hx: Variable | Array | None,
        cx: Variable | Array | None,
        xs: Sequence[Variable | Array],
    ) -> tuple[Any, ...]:
        """Initial h and c (S, N, H) or None, N sequences (T_i, D) → final h and c, a list of
        outputs (T_i, H).
        """
        return self._run([hx, cx], xs)


class NStepBiLSTM(NStepLSTM):
    """:class:`NStepLSTM` in both directions: states (2 S, N, H), outputs (T_i, 2 H).

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.NStepBiLSTM(1, 3, 4, 0.0)(None, None, [np.ones((5, 3), "f4")])[2][0].shape
        (5, 8)
    """

    use_bi_direction = True
    function = staticmethod(F.n_step_bilstm)


class NStepGRU(NStepRNNBase):
    """:func:`mnpar.functions.n_step_gru` with its parameters; arguments as :class:`NStepLSTM`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> hy, ys = L.NStepGRU(1, 3, 4, 0.0)(None, [np.ones((5, 3), "f4")])
        >>> hy.shape, ys[0].shape
        ((1, 1, 4), (5, 4))
    """

    n_weights = 6
    function = staticmethod(F.n_step_gru)


class NStepBiGRU(NStepGRU):
    """:class:`NStepGRU` in both directions: states (2 S, N, H), outputs (T_i, 2 H).

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.NStepBiGRU(1, 3, 4, 0.0)(None, [np.ones((5, 3), "f4")])[1][0].shape
        (5, 8)
    """

    use_bi_direction = True
    function = staticmethod(F.n_step_bigru)


class NStepRNNTanh(NStepRNNBase):
    """:func:`mnpar.functions.n_step_rnn` with its parameters; arguments as :class:`NStepLSTM`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.NStepRNNTanh(1, 3, 4, 0.0)(None, [np.ones((5, 3), "f4")])[1][0].shape
        (5, 4)
    """

    n_weights = 2
    activation: ClassVar[str] = "tanh"

    def rnn(self, states: Sequence[Variable], xs: Sequence[Variable | Array]) -> tuple[Any, ...]:
        function = F.n_step_birnn if self.use_bi_direction else F.n_step_rnn
        return function(
            self.n_layers, self.dropout, states[0], self.ws, self.bs, xs, self.activation
        )


class NStepRNNReLU(NStepRNNTanh):
    """:class:`NStepRNNTanh` with relu.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.NStepRNNReLU(1, 3, 4, 0.0)(None, [np.ones((5, 3), "f4")])[1][0].shape
        (5, 4)
    """

    activation = "relu"


class NStepBiRNNTanh(NStepRNNTanh):
    """:class:`NStepRNNTanh` in both directions: states (2 S, N, H), outputs (T_i, 2 H).

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.NStepBiRNNTanh(1, 3, 4, 0.0)(None, [np.ones((5, 3), "f4")])[1][0].shape
        (5, 8)
    """

    use_bi_direction = True


class NStepBiRNNReLU(NStepRNNReLU):
    """:class:`NStepRNNReLU` in both directions: states (2 S, N, H), outputs (T_i, 2 H).

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.NStepBiRNNReLU(1, 3, 4, 0.0)(None, [np.ones((5, 3), "f4")])[1][0].shape
        (5, 8)
    """

    use_bi_direction = True


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

    def gradient_comms(self) -> GradientComms:
        """Add the ranks that have the layers before and behind."""
        return super().gradient_comms().hold(self.communicator, "stages")

    def forward(self, *inputs: Variable | Array) -> tuple[Any, ...]:
        """Map the link's arguments without its initial states to the link's results, and a
        delegate variable (or None).
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
    require_communicator(communicator, "create_multi_node_n_step_rnn(actual_link, communicator)")
    if not isinstance(actual_link, NStepRNNBase):
        raise ValueError(
            f"create_multi_node_n_step_rnn takes an NStep link, not a {type(actual_link).__name__}"
        )
    return MultiNodeNStepRNN(actual_link, communicator, rank_in, rank_out)
