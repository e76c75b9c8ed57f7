"""What a row of the table of functions is: a way to call a function, and what it computes in
numpy's words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

N = None
"""Stands for the length of the batch."""


@dataclass(frozen=True)
class Case:
    id: str  # the function's name, then what is special
    nodes: tuple[type, ...]  # the FunctionNodes that this row answers for
    call: Callable[..., Any]  # of Variables
    truth: Callable[..., Any]  # of arrays, numpy only
    shapes: tuple[tuple[Any, ...], ...] = ((N, 3),)
    # the inputs' elements are evenly spaced between these, ends included: no kink may be among them
    low: float = -1.5
    high: float = 1.5
    differentiable: bool = True
    empty: bool = True  # it has a meaning for no samples at all
    halves: float = 4e-3  # how far float16 may be from the truth

    def answers_for(self) -> tuple[type, ...]:
        """The nodes of the row, with that of an elementwise function that it calls."""
        node = getattr(self.call, "node", None)
        return self.nodes if node is None else (*self.nodes, node)

    def arrays(self, n: int, dtype: Any = np.float64) -> list[Any]:
        """Inputs whose elements all differ from each other by far more than a finite difference,
        and from 0.
        """
        rng, arrays = np.random.default_rng(n), []
        for i, letters in enumerate(self.shapes):
            dims = tuple(n if d is N else d for d in letters)
            size = int(np.prod(dims))
            values = np.linspace(self.low, self.high, 2 * (size // 2 + 1)) + 0.017 * i
            arrays.append(rng.permutation(values)[:size].reshape(dims).astype(dtype))
        return arrays
