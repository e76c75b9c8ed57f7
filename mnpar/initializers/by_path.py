"""Initial weights that depend only on a seed and on each parameter's path: the same however a model
is split over ranks.

They do not depend on the order in which parameters are made, nor on other random numbers that a
rank draws: a rank that holds one stage of a pipeline, or a part of each layer, gets the values that
one process would have there. A divided parameter is drawn whole, and cut (links/parallel.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend, random
from mnpar.backend import Array
from mnpar.initializers.initializer import put


class ByPath:
    """An initializer that lets another one draw from the generator of a seed and a path
    (:func:`mnpar.random.of_path`).

    Args:
        initializer: the other one.
        seed, path: of the generator.
    """

    def __init__(self, initializer: Any, seed: int | list[int], path: str) -> None:
        self.initializer, self.seed, self.path = initializer, seed, path
        self.dtype = getattr(initializer, "dtype", None)

    def __call__(self, array: Array) -> None:
        """Fill the array."""
        with random.using(random.of_path(self.seed, self.path)):
            self.initializer(array)


def initialize_by_path(model: Any, seed: int | list[int], prefix: str = "") -> Any:
    """Draw all parameters of a model anew, each from a generator of its own that depends on the
    seed and its path only.

    Parameters that have no array yet are drawn in the same way when they get one. Parameters that
    were made from an array keep their values, and initializers with a generator of their own
    (``rng``) draw from it. The rank's generator does not advance. A weight that stages of a
    pipeline share gets the values of its first stage: the pipeline's ranks call this together.

    Args:
        model: a link; on ranks that have parts of one model, with the paths of the whole model.
        seed: the same on all ranks; another one for each member of an ensemble, as ``[seed,
            member]``.
        prefix: goes before the paths, where the link is a part of the model: ``'/encoder'``.

    Returns:
        The model.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> from mnpar.initializers import initialize_by_path
        >>> one = initialize_by_path(mnpar.Chain(l1=L.Linear(3, 2), l2=L.Linear(2, 2)), seed=0)
        >>> other = initialize_by_path(
        ...     mnpar.Chain(l2=L.Linear(None, 2)), seed=0
        ... )  # a part of it, of which no size is known yet
        >>> other.l2.W.initialize((2, 2))
        >>> bool((one.l2.W.array == other.l2.W.array).all())
        True
    """
    for path, param in model.namedparams():
        if backend.is_array(param.initializer):
            continue
        if param.is_initialized:
            values = np.empty(param.shape, param.dtype)
            ByPath(param.initializer, seed, prefix + path)(values)
            put(param.array, values)
        else:
            inner = (
                param.initializer.initializer
                if isinstance(param.initializer, ByPath)
                else param.initializer
            )
            param.initializer = ByPath(inner, seed, prefix + path)
    for link in model.links():
        if hasattr(link, "share_values"):  # a Pipeline
            link.share_values()
    return model
