"""Small layers: a shift, a scale, a bare parameter, activations that learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnpar.chain import Chain
from mnpar.functions import maxout, prelu, relu, reshape, sigmoid
from mnpar.link import Link
from mnpar.links.linear import Linear
from mnpar.parameter import Parameter as Param
from mnpar.variable import Variable, as_variable


def _along(y: Any, axis: int, x: Variable) -> Variable:
    """``y`` with ones around it, so that its axes lie at ``axis`` and after of ``x``."""
    y = as_variable(y)
    if y.shape != x.shape[axis : axis + y.ndim]:
        raise ValueError(f"a shape {y.shape} does not lie at axis {axis} of x, {x.shape}")
    return reshape(y, (*[1] * axis, *y.shape, *[1] * (x.ndim - axis - y.ndim)))


class Bias(Link):
    """x + b, with b along some axes.

    Args:
        axis: of x where b begins.
        shape: of b, which is learnt; None: b is given at each call.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Bias(shape=(2,))(np.ones((1, 2), "f4")).array
        array([[1., 1.]], dtype=float32)
    """

    def __init__(self, axis: int = 1, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.axis = axis
        self.b = None if shape is None else Param(0, tuple(shape))

    def forward(self, *xs: Any) -> Variable:
        """x, or x and b → the shape of x."""
        x, b = _pair(self, xs, self.b)
        y: Variable = x + _along(b, self.axis, x)
        return y


class Scale(Link):
    """W x, with W along some axes; and a shift, if asked for.

    Args:
        axis: of x where W begins.
        W_shape: of W, which is learnt; None: W is given at each call.
        bias_term: also add b.
        bias_shape: of b, where W is given at each call.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Scale(W_shape=(2,))(np.full((1, 2), 3, "f4")).array
        array([[3., 3.]], dtype=float32)
    """

    def __init__(
        self, axis: int = 1, W_shape: tuple[int, ...] | None = None, bias_term: bool = False,
        bias_shape: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.axis = axis
        self.W = None if W_shape is None else Param(1, tuple(W_shape))
        shape = W_shape if bias_shape is None else bias_shape
        if bias_term and shape is None:
            raise ValueError("Scale: without W_shape a bias needs bias_shape")
        self.b = Param(0, tuple(shape)) if bias_term and shape is not None else None

    def forward(self, *xs: Any) -> Variable:
        """x, or x and W → the shape of x."""
        x, W = _pair(self, xs, self.W)
        y: Variable = x * _along(W, self.axis, x)
        return y if self.b is None else y + _along(self.b, self.axis, x)


def _pair(link: Link, xs: tuple[Any, ...], own: Any) -> tuple[Variable, Any]:
    if len(xs) != (2 if own is None else 1):
        raise ValueError(
            f"{type(link).__name__} takes {'x and its factor or shift' if own is None else 'x alone'}, not {len(xs)}"
        )
    return as_variable(xs[0]), xs[1] if own is None else own


class Parameter(Link):
    """A parameter that stands alone: called, it is the parameter.

    Args:
        array: what it starts from.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Parameter(np.zeros(2))().array
        array([0., 0.])
    """

    def __init__(self, array: Any) -> None:
        super().__init__()
        self.W = Param(array)

    def forward(self) -> Variable:
        """The parameter."""
        return self.W


class PReLU(Link):
    """:func:`mnpar.functions.prelu` with slopes that are learnt.

    Args:
        shape: of the slopes: ``()`` is one for all, ``(C,)`` one for each channel.
        init: the first slope.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.PReLU()(np.array([[-1.0, 2.0]], "f4")).array
        array([[-0.25,  2.  ]], dtype=float32)
    """

    def __init__(self, shape: tuple[int, ...] = (), init: Any = 0.25) -> None:
        super().__init__()
        self.W = Param(init, tuple(shape))

    def forward(self, x: Any) -> Variable:
        """(N, …) → the same shape."""
        return prelu(x, self.W)


class Maxout(Chain):
    """The largest of several linear functions, for each output.

    Args:
        in_size: D; None takes it from the first batch.
        out_size: outputs.
        pool_size: linear functions for each.
        initialW: initializer of the weights (out_size pool_size, D); None is LeCunNormal.
        initial_bias: initializer of the biases; None is 0.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Maxout(None, 3, 2)(np.ones((4, 5), "f4")).shape
        (4, 3)
    """

    def __init__(
        self, in_size: int | None, out_size: int, pool_size: int, initialW: Any = None, initial_bias: Any = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.out_size, self.pool_size = out_size, pool_size
        self.linear = Linear(in_size, out_size * pool_size, initialW=initialW, initial_bias=initial_bias)

    def forward(self, x: Any) -> Variable:
        """(N, D) → (N, out_size)."""
        return maxout(self.linear(x), self.pool_size)


class Highway(Chain):
    """A layer that may let its input through (Srivastava, Greff and Schmidhuber 2015, arXiv 1505.00387): t h(x) + (1 − t) x.

    Args:
        in_out_size: D.
        nobias: no biases.
        activate: of h.
        init_Wh, init_Wt, init_bh, init_bt: initializers of the weights and biases of h and t; the gate t begins almost shut.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Highway(3)(np.ones((2, 3), "f4")).shape
        (2, 3)
    """

    def __init__(
        self, in_out_size: int, nobias: bool = False, activate: Callable[[Any], Variable] = relu, init_Wh: Any = None,
        init_Wt: Any = None, init_bh: Any = None, init_bt: Any = -1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activate = activate
        self.plain = Linear(in_out_size, in_out_size, nobias, init_Wh, init_bh)
        self.transform = Linear(in_out_size, in_out_size, nobias, init_Wt, init_bt)

    def forward(self, x: Any) -> Variable:
        """(N, D) → (N, D)."""
        h, t = self.activate(self.plain(x)), sigmoid(self.transform(x))
        y: Variable = h * t + as_variable(x) * (1 - t)
        return y
