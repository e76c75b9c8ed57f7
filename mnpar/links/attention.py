"""Attention with several heads, whose weights may be divided among ranks by heads.

Queries, keys and values are one product with one parameter, W_qkv (3, heads, d, size): the weights
of some heads are one box of it, so any number of ranks can divide it, evenly or not, and starts
from the weights of one process. The ranks' parts of the output are summed: one allreduce forward,
one backward (Megatron-LM: Shoeybi et al. 2019, arXiv 1909.08053, figure 3b).

The sequence may be cut too, among the ranks of another communicator, as on another axis of a mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import initializers
from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.functions import (
    all_to_all_attention,
    copy_to,
    linear,
    reduce_from,
    reshape,
    ring_attention,
    scaled_dot_product_attention,
    separate,
    transpose,
)
from mnpar.functions.divided.features import part_of
from mnpar.initializers.initializer import InitialValue, put
from mnpar.link import GradientComms
from mnpar.links.divided import Divided, initialize_part
from mnpar.parameter import Parameter
from mnpar.plans import Box, block
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class Matrices:
    """An initializer for a parameter that holds several matrices: each is drawn by itself, with its
    own fans.

    Args:
        initializer: of one matrix.
        shape: (matrices, rows, columns).
    """

    def __init__(self, initializer: Callable[[Array], None], shape: tuple[int, int, int]) -> None:
        self.initializer, self.shape = initializer, shape
        self.dtype = getattr(initializer, "dtype", None)

    def __call__(self, array: Array) -> None:
        """Fill ``array``, of any shape with as many elements."""
        whole = np.empty(self.shape, array.dtype)
        for matrix in whole:
            self.initializer(matrix)
        put(array, whole.reshape(array.shape))


SEQUENCES = {"ring": ring_attention, "all_to_all": all_to_all_attention}


class MultiHeadAttention(Divided):
    """softmax(Q Kᵀ / √d) V for each head, after a linear layer that computes Q, K and V and before
    one that joins the heads.

    Args:
        n_heads: H.
        size: D, the features of inputs and outputs; each head has d = D / H of them, unless
            ``head_size`` is given.
        comm: its ranks divide the heads, as :func:`mnpar.plans.block` does, evenly or not; all of
            them make the layer and call it. None: one rank has them all.
        causal: a query attends only to keys up to its own position.
        head_size: d.
        nobias: no b_qkv and b_out.
        sequence_comm: each of its ranks has a part of the sequence. None: every rank has the whole
            sequence.
        sequence: how parts attend to the whole sequence, ``'ring'``
            (:func:`mnpar.functions.ring_attention`) or ``'all_to_all'``
            (:func:`mnpar.functions.all_to_all_attention`).
        whole_gradients: with ``sequence_comm``, sum the parameters' gradients over its ranks.
            False: each rank gets its share of them, for a multi-node optimizer that sums the
            gradients of the whole model over these ranks.
        initialW, initial_bias: initializers of each of the four matrices (d·H, D), (d·H, D), (d·H,
            D) and (D, d·H), and of the biases; None is LeCunNormal, and 0. Weights begin as the
            whole layer's where all ranks' generators are in the same state
            (:func:`mnpar.random.seed`).

    On each rank W_qkv is (3, block of H, d, D), b_qkv (3, block of H, d) and W_out (D, block of H,
    d); b_out (D,) is whole. The ranks hold x, y and the loss alike and own them together (law 1:
    the loss counts once): gradients are those of one layer.

    Raises:
        ValueError: a size below 1, or H does not divide D.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     mnpar.random.seed(0)
        ...     layer = L.MultiHeadAttention(3, 6, comm, causal=True)
        ...     y = layer(np.ones((2, 5, 6), "f4"))
        ...     return layer.W_qkv.shape, y.shape
        >>> mnpar.run(program, ranks=2)
        [((3, 2, 2, 6), (2, 5, 6)), ((3, 1, 2, 6), (2, 5, 6))]

    Source:
        Vaswani et al. 2017, "Attention is all you need", arXiv 1706.03762.
    """

    def __init__(
        self,
        n_heads: int,
        size: int,
        comm: Communicator | None = None,
        causal: bool = False,
        head_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        sequence_comm: Communicator | None = None,
        sequence: str = "ring",
        whole_gradients: bool = True,
    ) -> None:
        super().__init__()
        for given in (comm, sequence_comm):
            if given is not None:
                require_communicator(given, "MultiHeadAttention(n_heads, size, comm)")
        if sequence not in SEQUENCES:
            raise ValueError(
                f"MultiHeadAttention: sequence is one of {', '.join(map(repr, SEQUENCES))}, "
                f"not {sequence!r}"
            )
        self.sequence_comm = sequence_comm
        self.sequence = sequence
        self.whole_gradients = whole_gradients
        if min(n_heads, size, head_size or 1) < 1 or (head_size is None and size % n_heads):
            raise ValueError(
                f"MultiHeadAttention({n_heads}, {size}): {size} features are not {n_heads} "
                "heads of equal size"
            )
        self.n_heads = n_heads
        self.size = size
        self.causal = causal
        self.heads_comm = comm
        self.head_size = d = size // n_heads if head_size is None else head_size
        W = initializers._get_initializer(initialW)
        b = initializers._get_initializer(initial_bias, 0)
        self.W_qkv = self._parameter(Matrices(W, (3, n_heads * d, size)), (3, n_heads, d, size))
        self.W_out = self._parameter(Matrices(W, (1, size, n_heads * d)), (size, n_heads, d))
        self.b_qkv: Parameter | None = None
        self.b_out: Parameter | None = None
        if not nobias:
            self.b_qkv = self._parameter(b, (3, n_heads, d))
            self.b_out = Parameter(b, size)
            if comm is not None and comm.size > 1:
                self.b_out.array[...] = comm.bcast(self.b_out.array)
        if comm is not None:
            self.comm = comm

    def gradient_comms(self) -> GradientComms:
        """Add the ranks that have parts of the sequence."""
        return super().gradient_comms().add(self.sequence_comm, self.whole_gradients)

    def _parameter(self, initializer: InitialValue, shape: tuple[int, ...]) -> Parameter:
        """Return a parameter of which this rank has its heads, on axis 1."""
        parameter, comm = Parameter(initializer), self.heads_comm
        if comm is None:
            parameter.initialize(shape)
            return parameter
        first, last = block(self.n_heads, comm.size, comm.rank)
        start = [0] * len(shape)
        stop = list(shape)
        start[1], stop[1] = first, last
        initialize_part(parameter, shape, Box(tuple(start), tuple(stop)))
        return parameter

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from (
            ("n_heads", self.n_heads),
            ("size", self.size),
            ("causal", self.causal),
            ("nobias", self.b_out is None),
        )
        if self.heads_comm is not None:
            yield "ranks", self.heads_comm.size
        if self.sequence_comm is not None:
            yield from (("sequence", self.sequence), ("sequence_ranks", self.sequence_comm.size))

    def forward(
        self,
        x: Variable | Array,
        source: Variable | Array | None = None,
        mask: Variable | Array | None = None,
        cut: Any = None,
    ) -> Variable:
        """Return the layer's outputs.

        Args:
            x: (…, T, D), the same on each rank of ``comm``; on those of ``sequence_comm`` each its
                part.
            source: (…, S, D), where keys and values come from; None: from x.
            mask: boolean, broadcast to (…, H, T, S): True where a query attends to a key; (N, 1, 1,
                S) masks keys. With ``sequence_comm``: this rank's T rows, and S is the length of
                the whole sequence.
            cut: which stretches of the sequence each rank of ``sequence_comm`` has; None: blocks in
                order.

        Returns:
            (…, T, D), the same on each rank of ``comm``.

        Raises:
            ValueError: x or source has not D features.
        """
        x = self._require_features(x)
        W = self._whole(self.W_qkv)
        b = None if self.b_qkv is None else self._whole(self.b_qkv)
        if source is None:
            q, k, v = self._project(x, W, b)
        else:
            first, rest = (None, None) if b is None else (b[:1], b[1:])
            (q,), (k, v) = (
                self._project(x, W[:1], first),
                self._project(self._require_features(source), W[1:], rest),
            )
        return self._join_heads(self._attend(q, k, v, mask, cut))

    def _attend(
        self, q: Variable, k: Variable, v: Variable, mask: Variable | Array | None, cut: Any
    ) -> Variable:
        """Return the attention of this rank's heads."""
        comm = self.heads_comm
        if mask is not None and comm is not None and mask.ndim > 2 and mask.shape[-3] > 1:
            mask = mask[..., slice(*block(self.n_heads, comm.size, comm.rank)), :, :]
        if self.sequence_comm is None or (self.sequence_comm.size == 1 and cut is None):
            return scaled_dot_product_attention(q, k, v, mask, self.causal)
        return SEQUENCES[self.sequence](self.sequence_comm, q, k, v, mask, self.causal, cut=cut)

    def _whole(self, parameter: Variable) -> Variable:
        """Return a parameter, whose gradient is to be summed over the ranks that use it for parts
        of the sequence.
        """
        comm = self.sequence_comm
        own: Variable = part_of(parameter)
        return (
            own
            if comm is None or comm.size == 1 or not self.whole_gradients
            else copy_to(comm, own)
        )

    def _require_features(self, x: Variable | Array) -> Variable:
        x = as_variable(x)
        if x.ndim < 2 or x.shape[-1] != self.size:
            raise ValueError(f"{self}: x of shape {x.shape} is not (…, T, {self.size})")
        return (
            x
            if self.heads_comm is None or self.heads_comm.size == 1
            else copy_to(self.heads_comm, x)
        )

    @staticmethod
    def _project(x: Variable, W: Variable, b: Variable | None) -> tuple[Variable, ...]:
        """(…, T, D) → q, k and v, or some of them, each (…, heads, T, d)."""
        n, h, d, D = W.shape
        y = linear(
            x,
            reshape(W, (n * h * d, D)),
            None if b is None else reshape(b, (n * h * d,)),
            n_batch_axes=x.ndim - 1,
        )
        y = reshape(y, (*x.shape[:-1], n, h, d))  # (…, T, n, h, d)
        m = x.ndim - 2
        return separate(transpose(y, (m + 1, *range(m), m + 2, m, m + 3)))

    def _join_heads(self, y: Variable) -> Variable:
        """(…, heads, T, d) → (…, T, D)."""
        *lead, h, T, d = y.shape
        m = len(lead)
        y = reshape(transpose(y, (*range(m), m + 1, m, m + 2)), (*lead, T, h * d))
        y = linear(y, reshape(self._whole(self.W_out), (self.size, h * d)), n_batch_axes=y.ndim - 1)
        y = (
            y
            if self.heads_comm is None or self.heads_comm.size == 1
            else reduce_from(self.heads_comm, y)
        )
        return y if self.b_out is None else y + self._whole(self.b_out)
