"""Learnt arrays as layers: added to x (Bias), multiplied by it (Scale), or by themselves
(Parameter).
"""

from __future__ import annotations

from typing import Any

from mnpar import functions, parameter
from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.link import Link
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

    def __init__(self, axis: int = 1, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.axis = axis
        self.b = None if shape is None else parameter.Parameter(0, shape)

    def forward(self, *xs: Variable | Array) -> Variable:
        """Return the sum.

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
        self,
        axis: int = 1,
        W_shape: tuple[int, ...] | None = None,
        bias_term: bool = False,
        bias_shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.axis = axis
        self.W = None if W_shape is None else parameter.Parameter(1, W_shape)
        self.bias = None
        if bias_term:
            if W_shape is None and bias_shape is None:
                raise ValueError("Scale: a bias beside a W that is not learnt needs its bias_shape")
            self.bias = Bias(axis, bias_shape if W_shape is None else W_shape)

    def forward(self, *xs: Variable | Array) -> Variable:
        """Return the product.

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
        """Return the parameter W. (``volatile``, Chainer's of old, changes nothing.)"""
        return self.W
