"""LSTM cells with two or more preceding cell states: S-LSTM and Tree-LSTM."""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array
from mnpar.functions.activation.sigmoid import sigmoid, tanh
from mnpar.functions.array.joining import separate
from mnpar.functions.array.shape import reshape
from mnpar.functions.node import show_shapes
from mnpar.variable import Variable, as_variable


def slstm(
    c_prev1: Variable | Array, c_prev2: Variable | Array, x1: Variable | Array, x2: Variable | Array
) -> tuple[Variable, Variable]:
    """Two memories joined into one, each with gates of its own: c = Σ_k σ(f_k) c_k + σ(i_k)
    tanh(a_k), h = σ(o₁ + o₂) tanh(c).

    Args:
        c_prev1, c_prev2: memories ``(N, H)``.
        x1, x2: gates ``(N, 4 H)``: of each unit a, i, f, o, one after the other.

    Returns:
        The memory and the output, both ``(N, H)``.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> c, h = F.slstm(np.ones((1, 2)), np.ones((1, 2)), np.zeros((1, 8)), np.zeros((1, 8)))
        >>> c.array
        array([[1., 1.]])

    Source:
        Zhu, Sobhani and Guo, "Long short-term memory over tree structures", arXiv 1503.04881.
    """
    cs = [as_variable(c) for c in (c_prev1, c_prev2)]
    xs = [as_variable(x) for x in (x1, x2)]
    N, H, *more = cs[0].shape if cs[0].ndim > 1 else (0, 0)
    if cs[1].shape != (N, H, *more) or any(x.shape != (N, 4 * H, *more) for x in xs):
        raise ValueError(
            f"slstm: shapes {show_shapes([v.shape for v in (*cs, *xs)])} are not twice (N, H, …) "
            "and twice (N, 4 H, …)"
        )
    (a1, i1, f1, o1), (a2, i2, f2, o2) = [
        separate(reshape(x, (N, H, 4, *more)), axis=2) for x in xs
    ]
    c: Variable = (
        tanh(a1) * sigmoid(i1) + tanh(a2) * sigmoid(i2) + sigmoid(f1) * cs[0] + sigmoid(f2) * cs[1]
    )
    return c, sigmoid(o1 + o2) * tanh(c)


def tree_lstm(*inputs: Any) -> tuple[Variable, Variable]:
    """A node of a tree: c = tanh(a) σ(i) + Σ_k σ(f_k) c_k, h = σ(o) tanh(c), with a forget gate for
    each child.

    Args:
        inputs: the memories of the n children, each ``(N, H)``, then the gates ``(N, (3 + n) H)``:
            all a, all i, all o, then all of each f.

    Returns:
        The memory and the output, both ``(N, H)``.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> c, h = F.tree_lstm(np.ones((1, 2)), np.ones((1, 2)), np.zeros((1, 10)))
        >>> c.array
        array([[1., 1.]])

    Source:
        Tai, Socher and Manning, "Improved semantic representations from tree-structured LSTM
        networks", ACL 2015.
    """
    *cs, x = [as_variable(v) for v in inputs]
    n = len(cs)
    N, H, *more = cs[0].shape if n and cs[0].ndim > 1 else (0, 0)
    if x.shape != (N, (3 + n) * H, *more) or any(c.shape != (N, H, *more) for c in cs):
        raise ValueError(
            f"tree_lstm: shapes {show_shapes([v.shape for v in (*cs, x)])} are not n times (N, H, "
            "…) and (N, (3 + n) H, …)"
        )
    a, i, o, *fs = separate(reshape(x, (N, 3 + n, H, *more)), axis=1)
    c: Variable = tanh(a) * sigmoid(i)
    for f, before in zip(fs, cs, strict=True):
        c = c + sigmoid(f) * before
    return c, sigmoid(o) * tanh(c)
