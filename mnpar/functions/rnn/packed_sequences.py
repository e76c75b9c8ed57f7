"""Sequences as recurrent layers compute with them: in one array, step by step, so that what a layer
computes of its inputs alone is one product over all steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mnpar.backend import Array
from mnpar.functions.array.joining import concat, separate, split_axis
from mnpar.functions.array.rearranging import join_by_step
from mnpar.functions.array.shape import reshape
from mnpar.variable import Variable, as_variable


class PackedSequences(Sequence[Variable]):
    """N sequences, the longest first; as a sequence of Python it has their T steps.

    Args:
        rows: (total, D), one step after the other; of each the rows of the sequences that reach it.
        counts: how many these are, for each step.

    Example:
        >>> import numpy as np, mnpar
        >>> packed = PackedSequences(mnpar.Variable(np.arange(6).reshape(3, 2)), [2, 1])
        >>> [step.array.tolist() for step in packed]
        [[[0, 1], [2, 3]], [[4, 5]]]
        >>> [x.array.tolist() for x in packed.unpack(2)]
        [[[0, 1], [4, 5]], [[2, 3]]]
    """

    def __init__(self, rows: Variable, counts: Sequence[int]) -> None:
        self.rows = rows
        self.counts = list(counts)

    @classmethod
    def of_sequences(cls, xs: Sequence[Variable | Array]) -> PackedSequences:
        """Pack sequences (T_i, D), of which one at least has a step."""
        return cls(*join_by_step([as_variable(x) for x in xs]))

    @classmethod
    def of_steps(cls, steps: Sequence[Variable | Array]) -> PackedSequences:
        """Pack steps (N_t, D), one at least."""
        if isinstance(steps, PackedSequences):
            return steps
        return cls(concat(list(steps), axis=0), [len(step) for step in steps])

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, t: Any) -> Any:
        """Return the rows of step t."""
        return self.steps[t]

    @functools.cached_property
    def steps(self) -> tuple[Variable, ...]:
        """The steps, (N_t, D) each."""
        ends = list(accumulate(self.counts))[:-1]
        return split_axis(self.rows, ends, 0, force_tuple=True)  # type: ignore[return-value]

    def unpack(self, N: int) -> tuple[Variable, ...]:
        """Return the N sequences, (T_i, D) each; those that no step has are empty."""
        counts = self.counts
        if counts[-1] == N:
            shape = len(counts), N, *self.rows.shape[1:]
            return separate(reshape(self.rows, shape), axis=1)
        lengths = [sum([n > i for n in counts]) for i in range(N)]
        starts = list(accumulate(counts, initial=0))
        places = [start + i for i, n in enumerate(lengths) for start in starts[:n]]
        rows = self.rows[self.rows.xp.asarray(places, "i8")]
        ends = list(accumulate(lengths))[:-1]
        return split_axis(rows, ends, 0, force_tuple=True)  # type: ignore[return-value]
