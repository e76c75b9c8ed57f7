"""Small layers: Bias, Scale, PReLU, Swish, Parameter, Maxout, Highway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend, functions, initializers, parameter
from mnpar.chain import Chain
from mnpar.link import Link
from mnpar.links.linear import Linear
from mnpar.variable import Variable


class Bias(Link):
    """x + b along some axes of x; b is learnt, or comes with x.

    Args:
        axis: of x, where the axes of b begin.
        shape: of a b that is learnt, 0 at first; None: b is given with each x.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Bias()(np.zeros((1, 2)), np.array([1.0, 2.0])).array
        array([[1., 2.]])
        >>> [path for path, _ in L.Bias(shape=(2,)).namedparams()]
        ['/b']
    """

    def __init__(self, axis: int = 1, shape: Any = None) -> None:
        super().__init__()
        self.axis = axis
        self.b = None if shape is None else parameter.Parameter(0, shape)

    def forward(self, *xs: Any) -> Variable:
        """The sum.

        Args:
            xs: x, and b if it is not learnt.

        Returns:
            x's shape.

        Raises:
            ValueError: one argument too many or too few.
        """
        return functions.bias(*_with(self, xs, self.b), axis=self.axis)


class Scale(Chain):
    """x · W along some axes of x; W is learnt, or comes with x; after it, if wanted, a Bias.

    Args:
        axis: of x, where the axes of W begin.
        W_shape: of a W that is learnt, 1 at first; None: W is given with each x.
        bias_term: whether to add a bias that is learnt.
        bias_shape: of that bias; ``W_shape`` if W is learnt.

    Raises:
        ValueError: a bias is wanted, but neither shape is given.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Scale()(np.ones((1, 2)), np.array([1.0, 2.0])).array
        array([[1., 2.]])
        >>> [path for path, _ in L.Scale(W_shape=(2,), bias_term=True).namedparams()]
        ['/W', '/bias/b']
    """

    def __init__(
        self, axis: int = 1, W_shape: Any = None, bias_term: bool = False, bias_shape: Any = None
    ) -> None:
        super().__init__()
        self.axis = axis
        self.W = None if W_shape is None else parameter.Parameter(1, W_shape)
        self.bias = None
        if bias_term:
            if W_shape is None and bias_shape is None:
                raise ValueError("Scale: a bias beside a W that is not learnt needs its bias_shape")
            self.bias = Bias(axis, bias_shape if W_shape is None else W_shape)

    def forward(self, *xs: Any) -> Variable:
        """The product.

        Args:
            xs: x, and W if it is not learnt.

        Returns:
            x's shape.

        Raises:
            ValueError: one argument too many or too few.
        """
        y = functions.scale(*_with(self, xs, self.W), axis=self.axis)
        return y if self.bias is None else self.bias(y)


def _with(link: Link, xs: tuple[Any, ...], param: Any) -> tuple[Any, Any]:
    if len(xs) != (2 if param is None else 1):
        what = "x and its factor or shift" if param is None else "x alone"
        raise ValueError(f"{type(link).__name__} takes {what}, not {len(xs)}")
    return xs if param is None else (xs[0], param)


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

    def __init__(self, shape: Any = (), init: Any = 0.25) -> None:
        super().__init__()
        self.W = parameter.Parameter(initializers._get_initializer(init), shape)

    def forward(self, x: Any) -> Variable:
        """The activation.

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

    def __init__(self, beta_shape: Any, beta_init: Any = 1.0) -> None:
        super().__init__()
        self.beta = parameter.Parameter(initializers._get_initializer(beta_init), beta_shape)

    def forward(self, x: Any) -> Variable:
        """The activation.

        Args:
            x: (N, C, …).

        Returns:
            x's shape.
        """
        if not self.beta.is_initialized:
            self.beta.initialize(x.shape[1:])
        return functions.swish(x, self.beta)


class Parameter(Link):
    """A link with one parameter W, which it returns when it is called.

    Args:
        array: of W; it belongs to the link from then on.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Parameter(np.ones(2))().array
        array([1., 1.])
    """

    def __init__(self, array: Any) -> None:
        super().__init__()
        self.W = parameter.Parameter(array)

    def forward(self, volatile: str = "off") -> Variable:
        """The parameter W. (``volatile``, Chainer's of old, changes nothing.)"""
        return self.W


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
        initialW: Any = None,
        initial_bias: Any = 0,
    ) -> None:
        super().__init__()
        if out_size < 1 or pool_size < 1:
            raise ValueError(f"Maxout({in_size}, {out_size}, {pool_size}): sizes are 1 or more")
        self.out_size, self.pool_size = out_size, pool_size
        rows = out_size * pool_size
        initialW = _flat(initialW, (rows, -1))
        initial_bias = _flat(initial_bias, (rows,))
        self.linear = Linear(in_size, rows, initial_bias is None, initialW, initial_bias)

    def forward(self, x: Any) -> Variable:
        """The outputs.

        Args:
            x: (N, …), with the axes after the first flattened to D.

        Returns:
            (N, out_size).
        """
        return functions.maxout(self.linear(x), self.pool_size)


def _flat(initial: Any, shape: tuple[int, ...]) -> Any:
    return initial.reshape(shape) if backend.is_array(initial) and np.ndim(initial) else initial


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
        activate: Callable[[Any], Variable] = functions.relu,
        init_Wh: Any = None,
        init_Wt: Any = None,
        init_bh: Any = None,
        init_bt: Any = -1,
    ) -> None:
        super().__init__()
        self.activate = activate
        self.plain = Linear(in_out_size, in_out_size, nobias, init_Wh, init_bh)
        self.transform = Linear(in_out_size, in_out_size, nobias, init_Wt, init_bt)

    def forward(self, x: Any) -> Variable:
        """The outputs.

        Args:
            x: (N, D).

        Returns:
            (N, D).
        """
        t = functions.sigmoid(self.transform(x))
        y: Variable = self.activate(self.plain(x)) * t + x * (1 - t)
        return y
