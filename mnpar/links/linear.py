"""Fully connected layers: the plain one, one with dropped weights, one of two inputs, and one with
a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mnpar import functions, initializers
from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.configuration import config
from mnpar.functions import bilinear, linear, simplified_dropconnect
from mnpar.functions.connection.linear import features_error
from mnpar.initializers.initializer import InitialValue
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class Linear(Link):
    """y = x Wᵀ + b.

    Args:
        in_size: D, the features of an example, flattened; None (or only one size given) takes it
            from the first batch.
        out_size: the features of an output.
        nobias: no b.
        initialW: initializer of W (out_size, in_size); None is LeCunNormal.
        initial_bias: initializer of b (out_size,); None is 0.

    W and b are of the dtype ``mnpar.config.dtype`` unless their initializers say otherwise.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.Linear(None, 2)
        >>> layer(np.ones((5, 3), "f4")).shape, layer.W.shape
        ((5, 2), (2, 3))
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        if out_size is None:
            in_size, out_size = None, in_size
        if out_size is None or out_size < 1 or (in_size is not None and in_size < 1):
            raise ValueError(f"Linear({in_size}, {out_size}): sizes must be 1 or more")
        self.in_size, self.out_size = in_size, out_size
        self.W = Parameter(initializers._get_initializer(initialW))
        self.b: Parameter | None = None
        if not nobias:
            self.b = Parameter(initializers._get_initializer(initial_bias, 0), out_size)
        if in_size is not None:
            self._initialize_params(in_size)

    def _initialize_params(self, in_size: int) -> None:
        self.in_size = in_size
        self.W.initialize((self.out_size, in_size))

    def _infer_sizes(self, x: Variable | Array, n_batch_axes: int) -> None:
        in_size = int(np.prod(x.shape[n_batch_axes:]))
        if not 0 < n_batch_axes < x.ndim or in_size < 1:
            raise ValueError(
                features_error(f"Linear(None, {self.out_size})", x.shape, n_batch_axes)
            )
        self._initialize_params(in_size)

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from (
            ("in_size", self.in_size),
            ("out_size", self.out_size),
            ("nobias", self.b is None),
        )

    def forward(self, x: Variable | Array, n_batch_axes: int = 1) -> Variable:
        """Return the layer's outputs.

        Args:
            x: (N, …), with the axes after ``n_batch_axes`` flattened to D.
            n_batch_axes: how many axes count examples.

        Returns:
            (N, out_size), with all of the ``n_batch_axes`` first axes of x.

        Raises:
            ValueError: x has other features than ``in_size``, or none.
        """
        if self.W.array is None:
            self._infer_sizes(x, n_batch_axes)
        return linear(x, self.W, self.b, n_batch_axes=n_batch_axes)


class Bilinear(Link):
    """y_l = Σ_jk e1_j e2_k W_jkl, and with biases e1 V1 + e2 V2 + b.

    Args:
        left_size, right_size: features J and K of the two inputs.
        out_size: L.
        nobias: without V1, V2 and b.
        initialW: initializer of W (J, K, L); None is LeCunNormal.
        initial_bias: initializers of V1 (J, L), V2 (K, L) and b (L,), a tuple; None is LeCunNormal,
            LeCunNormal and 0.

    Raises:
        ValueError: ``initial_bias`` is neither a tuple nor None.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Bilinear(2, 3, 4)(np.ones((5, 2), "f4"), np.ones((5, 3), "f4")).shape
        (5, 4)

    Source:
        Socher et al., "Reasoning with neural tensor networks for knowledge base completion", NIPS
        2013.
    """

    def __init__(
        self,
        left_size: int,
        right_size: int,
        out_size: int,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        self.in_sizes, self.nobias = (left_size, right_size), nobias
        self.W = Parameter(
            initializers._get_initializer(initialW), (left_size, right_size, out_size)
        )
        self.V1 = self.V2 = self.b = None
        if nobias:
            return
        if initial_bias is not None and not (
            isinstance(initial_bias, tuple) and len(initial_bias) == 3
        ):
            raise ValueError(
                "Bilinear: initial_bias is None or initializers of V1, V2 and b, not "
                f"{initial_bias!r}"
            )
        initial = [
            initializers._get_initializer(value) for value in (initial_bias or (None, None, 0))
        ]
        self.V1 = Parameter(initial[0], (left_size, out_size))
        self.V2 = Parameter(initial[1], (right_size, out_size))
        self.b = Parameter(initial[2], (out_size,))

    def forward(self, e1: Variable | Array, e2: Variable | Array) -> Variable:
        """(N, J), (N, K) → (N, L)."""
        return bilinear(e1, e2, self.W, self.V1, self.V2, self.b)


class SimplifiedDropconnect(Linear):
    """A linear layer whose weights are set to 0 with probability ``ratio`` while ``config.train``
    is on.

    Args:
        in_size: D; None takes it from the first batch.
        out_size: outputs.
        ratio: the probability that a weight is dropped.
        nobias: no b.
        initialW, initial_bias: initializers of W (out_size, D) and b; None is LeCunNormal and 0.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.SimplifiedDropconnect(3, 2)(np.ones((4, 3), "f4")).shape
        (4, 2)

    Source:
        Wan et al., "Regularization of neural networks using DropConnect", ICML 2013.
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        ratio: float = 0.5,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__(in_size, out_size, nobias, initialW, initial_bias)
        self.ratio = ratio

    def forward(  # type: ignore[override]
        self,
        x: Variable | Array,
        train: bool = True,
        mask: Array | None = None,
        use_batchwise_mask: bool = True,
    ) -> Variable:
        """Return the layer's outputs.

        Args:
            x: (N, …), with the axes after the first flattened to D.
            train, mask, use_batchwise_mask: as of :func:`mnpar.functions.simplified_dropconnect`;
                with ``config.train`` off nothing is dropped either.

        Returns:
            (N, out_size).
        """
        if not self.W.is_initialized:
            self._infer_sizes(x, 1)
        drop = train and config.train
        return simplified_dropconnect(x, self.W, self.b, self.ratio, drop, mask, use_batchwise_mask)


class Highway(Chain):
    """A layer and a gate: ``t · activate(plain(x)) + (1 - t) · x`` with ``t =
    sigmoid(transform(x))``.

    Args:
        in_out_size: features D.
        nobias: no biases.
        activate: of the layer.
        init_Wh, init_Wt: initializers of W of ``plain`` and ``transform`` (D, D); None is
            LeCunNormal.
        init_bh, init_bt: of their biases; None is 0. The gate is rather closed at first: -1.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Highway(3)(np.ones((5, 3), "f4")).shape
        (5, 3)

    Source:
        Srivastava, Greff and Schmidhuber, "Highway networks" (2015), arXiv 1505.00387.
    """

    def __init__(
        self,
        in_out_size: int,
        nobias: bool = False,
        activate: Callable[[Variable | Array], Variable] = functions.relu,
        init_Wh: InitialValue = None,
        init_Wt: InitialValue = None,
        init_bh: InitialValue = None,
        init_bt: InitialValue = -1,
    ) -> None:
        super().__init__()
        self.activate = activate
        self.plain = Linear(in_out_size, in_out_size, nobias, init_Wh, init_bh)
        self.transform = Linear(in_out_size, in_out_size, nobias, init_Wt, init_bt)

    def forward(self, x: Variable | Array) -> Variable:
        """Return the outputs.

        Args:
            x: (N, D).

        Returns:
            (N, D).
        """
        t = functions.sigmoid(self.transform(x))
        y: Variable = self.activate(self.plain(x)) * t + x * (1 - t)
        return y
