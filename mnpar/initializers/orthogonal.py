"""An initializer of matrices with orthogonal rows or columns, which keep the length of vectors up
to the factor ``scale``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.initializers.initializer import RandomInitializer, put

MODES = ("auto", "projection", "embedding", "basis")


class Orthogonal(RandomInitializer):
    """``scale`` times a matrix with orthonormal rows or columns: Saxe et al., arXiv:1312.6120.

    The array is taken as a matrix (first axis, all others). It is the Q of the QR decomposition of
    a matrix of normal numbers, whose signs are chosen so that R has a positive diagonal: so Q is
    uniformly distributed.

    Args:
        scale: the length of the rows (or columns).
        dtype: of the parameter.
        mode: ``'projection'`` asks for orthonormal rows (outputs ≤ inputs), ``'embedding'`` for
            columns (outputs ≥ inputs), ``'basis'`` for both, ``'auto'`` takes what the shape
            allows.
        rng: a numpy Generator (or RandomState) to draw from; None is the rank's.

    Raises:
        ValueError: the shape does not allow the mode, or the array is empty.

    Example:
        >>> import numpy as np, mnpar
        >>> W = mnpar.Parameter(mnpar.initializers.Orthogonal(1.0, "d"), (3, 5)).array
        >>> bool(np.allclose(W @ W.T, np.eye(3)))
        True
    """

    def __init__(
        self,
        scale: float = 1.1,
        dtype: DTypeLike | None = None,
        mode: str = "auto",
        rng: np.random.Generator | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"Orthogonal knows the modes {', '.join(MODES)}, not {mode!r}")
        super().__init__(scale, dtype, rng)
        self.mode = mode

    def __call__(self, array: Array) -> None:
        if not array.size:
            raise ValueError(f"Orthogonal cannot fill the empty shape {array.shape}")
        if not array.ndim:  # an orthogonal 1 × 1 matrix is a sign
            put(array, np.copysign(self.scale, self.generator.uniform(-1, 1)))
            return
        rows = len(array)
        columns = math.prod(array.shape[1:])
        if (rows > columns and self.mode in ("projection", "basis")) or (
            rows < columns and self.mode in ("embedding", "basis")
        ):
            raise ValueError(
                f"{rows} outputs of {columns} inputs (shape {array.shape}) cannot be an "
                f"orthogonal {self.mode}"
            )
        q, r = np.linalg.qr(self.generator.normal(size=(max(rows, columns), min(rows, columns))))
        q *= np.copysign(self.scale, np.diag(r))
        put(array, (q.T if rows < columns else q).reshape(array.shape))
