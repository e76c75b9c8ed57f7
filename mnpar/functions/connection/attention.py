"""Embedding lookup and scaled dot-product attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.functions.array.broadcast import broadcast_to
from mnpar.functions.connection.blocked_attention import attend
from mnpar.functions.connection.tiled_attention import prepared
from mnpar.variable import Variable


def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None
) -> Variable:
    """Attention, softmax(s q kᵀ) v: for each query a weighted mean of values (Vaswani et al. 2017,
    arXiv 1706.03762).

    Args:
        q: queries ``(…, T, D)``.
        k: keys ``(…, S, D)``.
        v: values ``(…, S, E)``.
        mask: boolean, broadcast to ``(…, T, S)``: True where a query attends to a key.
        causal: a query attends only to keys up to its own position; the last query is at the
            position of the last key.
        scale: s; None is 1 / √D.

    Returns:
        ``(…, T, E)``. A query whose keys are all masked gets the mean of all values. No array of
        all scores is made: they are computed in blocks that stay in the cache, and again in
        backward.

    Raises:
        ValueError: the shapes do not fit together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> q, v = np.zeros((3, 2)), np.array([[0.0], [2.0], [4.0]])
        >>> F.scaled_dot_product_attention(q, q, v, causal=True).array.ravel()
        array([0., 1., 2.])
    """
    q, k, v, shown, s = prepared(q, k, v, mask, scale)
    if not k.shape[-2] and q.size:
        raise ValueError(f"attention: there are no keys to look at, k has shape {k.shape}")
    lead = np.broadcast_shapes(
        q.shape[:-2], k.shape[:-2], () if shown is None else shown.shape[:-2]
    )
    q, k, v = [broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v)]
    return attend(q, k, v, s, causal, shown)
