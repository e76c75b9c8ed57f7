"""Tournaments between the members of an ensemble: who wins, and how a loser becomes a copy of the
winner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mnpar.backend import Array
from mnpar.link import Link
from mnpar.serializers import DictionarySerializer, NpzDeserializer

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.optimizers import GradientMethod


Scores = float | None | Sequence[float | None]  # of a rank's member, or of its members
Member: TypeAlias = tuple[Link, "GradientMethod | None"]  # with its optimizer
# of a rank's member, or of its members; None: only weights are copied
Optimizers: TypeAlias = "GradientMethod | Sequence[GradientMethod | None] | None"
# arrays by name (None: a value without an array), and hyperparameters
State = tuple[dict[str, Array | None], dict[str, Any]]


@dataclass(frozen=True)
class Round:
    """The outcome of a tournament, the same on all ranks.

    Attributes:
        scores: of each member.
        winners: the number of the member whose weights each member has now: its own, or that of the
            member to which it lost.

    Example:
        >>> from mnpar.parallel import Round
        >>> Round([0.5, 0.9], [1, 1]).best
        1
    """

    scores: list[float]
    winners: list[int]

    @property
    def best(self) -> int:
        """The member with the highest score; of several, the first."""
        return max(range(len(self.scores)), key=lambda i: (_comparable(self.scores[i]), -i))


def gather_scores(
    comm: Communicator, numbers: Sequence[int], score: Scores, size: int, living: Sequence[int]
) -> list[float]:
    """Return all members' scores, each from the lowest rank that knows it; NaN for members that are
    lost.

    Raises:
        ValueError: no rank knows the score of a member.
    """
    scores = list(score) if isinstance(score, Sequence) else [score] * len(numbers)
    mine = [(i, None if s is None else float(s)) for i, s in zip(numbers, scores, strict=True)]
    known: dict[int, float] = {}
    for pairs in comm.allgather_obj(mine):
        for i, s in pairs:
            if s is not None:
                known.setdefault(i, s)
    missing = [i for i in living if i not in known]
    if missing:
        raise ValueError(
            f"nobody knows the score of member {missing[0]}: one of its ranks has to give a "
            "number, not None"
        )
    return [known.get(i, math.nan) for i in range(size)]


def decide(
    scores: list[float],
    how: str,
    share: float,
    rng: np.random.Generator,
    living: Sequence[int] | None = None,
) -> Round:
    """Return who continues from whom.

    Args:
        scores: of the M members.
        how: ``'pairs'`` or ``'truncation'``.
        share: of the members that are the best, and the worst, by truncation.
        rng: in the same state on all ranks.
        living: the members that take part; None: all.

    Raises:
        ValueError: no such ``how`` or ``share``.
    """
    winners = list(range(len(scores)))
    living = range(len(scores)) if living is None else living
    M = len(living)
    if how == "pairs":
        shuffled = [living[place] for place in rng.permutation(M)]
        # with an odd number, one is left out
        for a, b in zip(shuffled[0::2], shuffled[1::2], strict=False):
            first, second = sorted([a, b])
            winner = second if _comparable(scores[second]) > _comparable(scores[first]) else first
            winners[a] = winners[b] = winner
    elif how == "truncation" and 0 < share <= 0.5:
        n = min(max(1, int(share * M)), M // 2)
        order = sorted(living, key=lambda i: (-_comparable(scores[i]), i))
        for loser in sorted(order[M - n :]):
            winners[loser] = order[int(rng.integers(n))]
    else:
        raise ValueError(
            "a tournament is by 'pairs', or by 'truncation' with a share up to a half, not "
            f"{how!r} ({share})"
        )
    return Round(scores, winners)


def _comparable(score: float) -> float:
    """Return a score that compares as the lowest where a member has diverged (NaN)."""
    return -math.inf if math.isnan(score) else score


def copy_winners(
    peers: Communicator,
    winners: Sequence[int],
    where: Mapping[int, int],
    mine: Mapping[int, Member],
) -> None:
    """Copy the winners' state to the losers; no winner is also a loser.

    Args:
        peers: the ranks with the same part of each member.
        winners: the number of the member whose state each member gets.
        where: the rank, among the peers, of each member.
        mine: this rank's members: links and optimizers (None: weights only).
    """
    copies = [(loser, winner) for loser, winner in enumerate(winners) if loser != winner]
    for loser, winner in copies:
        if winner in mine and where[loser] != peers.rank:
            state, numbers = _state(*mine[winner])
            peers.send(state, where[loser])
            peers.send_obj(numbers, where[loser])
    for loser, winner in copies:
        if loser in mine:
            state, numbers = (
                _state(*mine[winner])
                if winner in mine
                else (peers.recv(where[winner]), peers.recv_obj(where[winner]))
            )
            restore(*mine[loser], state, numbers)


class _StateSerializer(DictionarySerializer):
    """Collects values in a dict; of divided parameters this rank's parts."""

    knows_places = True


class _StateDeserializer(NpzDeserializer):
    """Loads what :class:`_StateSerializer` collected."""

    knows_places = True


def _state(link: Link, optimizer: GradientMethod | None) -> State:
    """Return arrays by name, and hyperparameters."""
    serializer = _StateSerializer()
    link.serialize(serializer["link"])
    if optimizer is not None:
        optimizer.serialize(serializer["optimizer"])
    arrays = {key: None if x.dtype == object else x for key, x in serializer.target.items()}
    return arrays, {} if optimizer is None else optimizer.hyperparam.get_dict()


def snapshot(link: Link, optimizer: GradientMethod | None) -> State:
    """Return copies for :func:`restore`: parameters, persistent values, the optimizer's state and
    hyperparameters.
    """
    arrays, numbers = _state(link, optimizer)
    return {key: None if x is None else x.copy() for key, x in arrays.items()}, numbers


def restore(
    link: Link,
    optimizer: GradientMethod | None,
    state: Mapping[str, Array | None],
    numbers: Mapping[str, Any],
) -> None:
    """Set a member, and its optimizer, to a state from :func:`snapshot` or from another member."""
    _StateDeserializer(state, "link/").load(link)
    if optimizer is not None:
        _StateDeserializer(state, "optimizer/").load(optimizer)
        for name, value in numbers.items():
            setattr(optimizer.hyperparam, name, value)
