"""Activations with parameters, which are learnt."""

from __future__ import annotations

import numpy as np

from mnpar import backend, functions, initializers, parameter
from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.initializers.initializer import InitialValue
from mnpar.link import Link
from mnpar.links.linear import Linear
from mnpar.variable import Variable


class PReLU(Link):
    """x where it is positive, W·x elsewhere, with slopes W that are learnt.

    Args:
        shape: of W: ``()`` for one slope, ``(C,)`` for one of each channel.
        init: initializer of W, a number or an array.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.PReLU()(np.array([[-1.0, 2.0]])).array
        array([[-0.25,  2.  ]])
    """

    def __init__(self, shape: tuple[int, ...] = (), init: InitialValue = 0.25) -> None:
        super().__init__()
        self.W = parameter.Parameter(initializers._get_initializer(init), shape)

    def forward(self, x: Variable | Array) -> Variable:
        """Return the activation.

        Args:
            x: (N, C, …).

        Returns:
            x's shape.
        """
        return functions.prelu(x, self.W)


class Swish(Link):
    """x · sigmoid(β x), with β that is learnt.

    Args:
        beta_shape: ``(C,)`` for one of each channel, ``(1,)`` for one of all; None: that of x
            without its first axis.
        beta_init: initializer of β: a number, an array or a function.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Swish((1,))(np.array([[0.0, 1.0]])).array.round(4)
        array([[0.    , 0.7311]])
    """

    def __init__(self, beta_shape: tuple[int, ...], beta_init: InitialValue = 1.0) -> None:
        super().__init__()
        self.beta = parameter.Parameter(initializers._get_initializer(beta_init), beta_shape)

    def forward(self, x: Variable | Array) -> Variable:
        """Return the activation.

        Args:
            x: (N, C, …).

        Returns:
            x's shape.
        """
        if not self.beta.is_initialized:
            self.beta.initialize(x.shape[1:])
        return functions.swish(x, self.beta)


class Maxout(Chain):
    """The largest of ``pool_size`` linear functions, for each output: a convex, piecewise linear
    activation that is learnt.

    Args:
        in_size: features D; None takes them from the first batch.
        out_size: features that come out.
        pool_size: how many linear functions each of them chooses from.
        initialW: initializer, a number, or an array (out_size, pool_size, in_size); None is
            LeCunNormal.
        initial_bias: a number, or an array (out_size, pool_size); None: no bias.

    The parameters are those of ``linear``, a Linear with ``out_size * pool_size`` outputs.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Maxout(3, 2, 4)(np.ones((5, 3), "f4")).shape
        (5, 2)

    Source:
        Goodfellow et al., "Maxout networks", ICML 2013.
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        pool_size: int,
        initialW: InitialValue = None,
        initial_bias: InitialValue = 0,
    ) -> None:
        super().__init__()
        if out_size < 1 or pool_size < 1:
            raise ValueError(f"Maxout({in_size}, {out_size}, {pool_size}): sizes must be 1 or more")
        self.out_size, self.pool_size = out_size, pool_size
        rows = out_size * pool_size
        initialW = _flat(initialW, (rows, -1))
        initial_bias = _flat(initial_bias, (rows,))
        self.linear = Linear(in_size, rows, initial_bias is None, initialW, initial_bias)

    def forward(self, x: Variable | Array) -> Variable:
        """Return the outputs.

        Args:
            x: (N, …), with the axes after the first flattened to D.

        Returns:
            (N, out_size).
        """
        return functions.maxout(self.linear(x), self.pool_size)


def _flat(initial: InitialValue, shape: tuple[int, ...]) -> InitialValue:
    return initial.reshape(shape) if backend.is_array(initial) and np.ndim(initial) else initial
