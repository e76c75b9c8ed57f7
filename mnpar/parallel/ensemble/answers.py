"""Answers of an ensemble: their mean, how far apart they are, and the class that most members
choose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mnpar.backend import Array
from mnpar.functions import average, expand_dims, sqrt
from mnpar.variable import Variable


@dataclass(frozen=True)
class Answers:
    """The answers of the members of an ensemble.

    Attributes:
        members: (M, N, …), of the M members in order (those that are not lost), the same on all
            ranks.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.parallel import Answers
        >>> answers = Answers(mnpar.Variable(np.array([[[3.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]])))
        >>> answers.mean().array, answers.vote()
        (array([[1.        , 0.66666667]]), array([1]))
    """

    members: Variable

    def mean(self) -> Variable:
        """Return the mean over members, (N, …)."""
        return average(self.members, axis=0)

    def variance(self) -> Variable:
        """Return the mean square distance from the mean, (N, …)."""
        distance = self.members - expand_dims(self.mean(), 0)
        return average(distance * distance, axis=0)

    def spread(self) -> Variable:
        """Return the standard deviation over members, (N, …).

        Where all agree its derivative is infinite: use the variance in a loss.
        """
        return sqrt(self.variance())

    def vote(self) -> Array:
        """Return the class that most members find largest, (N,), of answers (N, K) for K classes.

        Among classes with equally many votes, the one of the largest mean wins.
        """
        ys = self.members.array
        xp = self.members.xp
        K = ys.shape[2]
        votes = (ys.argmax(axis=2)[:, :, None] == xp.arange(K)).sum(axis=0)  # (N, K)
        most = votes == votes.max(axis=1, keepdims=True)
        answer: Array = xp.where(most, ys.mean(axis=0), -np.inf).argmax(axis=1)
        return answer
