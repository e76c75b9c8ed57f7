"""Schedules of pipelines: what each rank does, and in which order, as plain data.

A network is cut into *stages* and a batch into *micro-batches*; an action is one stage's work on
one micro-batch. A schedule is a list of actions for each rank, and a rank for each stage: nothing
else distinguishes GPipe, 1F1B, the interleaved and the zero-bubble schedules below, and a list of
your own works just as well. Every schedule is checked before it runs (simulation.py).

Letters: P ``ranks``, M ``micro_batches``, S stages. The bubbles are those of stages that cost the
same, with F, I and W of one unit each, for M ≥ P. In the literature a B of two units gives the
gradients of its inputs at its end, and 1F1B's bubble is (P-1)/(M+P-1). Here the inputs' gradients
leave before those of weights are computed: a third less bubble, for nothing. Sources: GPipe (Huang
2019), PipeDream-flush (Narayanan 2019), Megatron-LM's interleaving (Narayanan 2021), zero bubble
(Qi 2023), controllable memory: V-shapes (Qi 2024), eager 1F1B (Zhuang 2023).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Action(NamedTuple):
    """One stage's work on one micro-batch.

    Args:
        kind: ``'F'`` forward; ``'B'`` backward; or its two halves: ``'I'``, the gradients of the
            inputs, for which the stage before waits, and ``'W'``, those of the weights, which
            nobody waits for.
        stage, micro_batch: counted from 0.

    Example:
        >>> str(Action("F", stage=2, micro_batch=5))
        '2F5'
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """The actions of each rank.

    Args:
        actions: for each rank its actions, in order.
        where: the rank of each stage.
        micro_batches: M.
        name: shown in pictures and errors.

    Example:
        >>> from mnpar.parallel import make_schedule
        >>> print(make_schedule("1f1b", ranks=2, micro_batches=3))
        rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
        rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """

    actions: tuple[tuple[Action, ...], ...]
    where: tuple[int, ...]
    micro_batches: int
    name: str = "own"

    @property
    def ranks(self) -> int:
        """P."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """S."""
        return len(self.where)

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages of a rank, in order."""
        return [stage for stage, its_rank in enumerate(self.where) if its_rank == rank]

    def __str__(self) -> str:
        return "\n".join(
            f"rank {rank}: {' '.join(map(str, actions))}"
            for rank, actions in enumerate(self.actions)
        )


def own_schedule(actions: Sequence[str | Iterable[str | Action]], name: str = "own") -> Schedule:
    """Return a schedule of your own.

    Args:
        actions: for each rank its actions, in order, as Actions or as text: ``'1F0'`` is the
            forward of stage 1 on micro-batch 0; without a first number, stage r of rank r is meant.
            One text with blanks between is fine.
        name: shown in pictures and errors.

    Raises:
        ValueError: text that is no action; a stage on two ranks, or on none.

    Example:
        >>> schedule = own_schedule(["F0 F1 B1 B0", "F0 F1 B1 B0"])
        >>> schedule.stages, schedule.micro_batches
        (2, 2)
    """
    split = [some.split() if isinstance(some, str) else some for some in actions]
    lists = [tuple([_action(one, rank) for one in some]) for rank, some in enumerate(split)]
    where = {action.stage: rank for rank, some in enumerate(lists) for action in some}
    for rank, some in enumerate(lists):
        for action in some:
            if where[action.stage] != rank:
                raise ValueError(
                    f"stage {action.stage} acts on rank {rank} and on rank "
                    f"{where[action.stage]}: it has one rank"
                )
    if sorted(where) != list(range(len(where))):
        raise ValueError(
            "the stages are numbered from 0 on without a gap, but those of this schedule are "
            f"{sorted(where)}"
        )
    micro_batches = 1 + max((action.micro_batch for some in lists for action in some), default=-1)
    return Schedule(
        tuple(lists), tuple([where[stage] for stage in sorted(where)]), micro_batches, name
    )


def _action(one: str | Action, rank: int) -> Action:
    if isinstance(one, Action):
        return one
    found = re.fullmatch(r"(\d*)([FBIW])(\d+)", one)
    if not found:
        raise ValueError(
            f"{one!r} is no action of a schedule: write F0, B0, I0 or W0 (micro-batch 0), after "
            f"the stage's number if that is not {rank}"
        )
    return Action(found[2], int(found[1] or rank), int(found[3]))


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """Return the schedule of all forwards, then all backwards: M graphs in flight; bubble
    2(P-1)/(3M+2(P-1)).

    Example:
        >>> print(gpipe(2, 2))
        rank 0: 0F0 0F1 0B0 0B1
        rank 1: 1F0 1F1 1B0 1B1
    """
    _check(ranks, micro_batches)
    every = range(micro_batches)
    lists = [
        [*(Action("F", rank, m) for m in every), *(Action("B", rank, m) for m in every)]
        for rank in range(ranks)
    ]
    return _schedule(lists, list(range(ranks)), micro_batches, "gpipe")


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """Return 1F1B: backward as early as possible. min(P-r, M) graphs in flight on rank r; the
    bubble of GPipe.

    Example:
        >>> print(one_f_one_b(2, 3))
        rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
        rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """
    _check(ranks, micro_batches)
    lists = [
        _alternate(rank, min(ranks - rank - 1, micro_batches), micro_batches)
        for rank in range(ranks)
    ]
    return _schedule(lists, list(range(ranks)), micro_batches, "1f1b")


def _alternate(stage: int, ahead: int, micro_batches: int) -> list[Action]:
    """Return ``ahead`` forwards, then a forward and a backward in turn."""
    actions = [Action("F", stage, m) for m in range(ahead)]
    for m in range(micro_batches):
        if m + ahead < micro_batches:
            actions.append(Action("F", stage, m + ahead))
        actions.append(Action("B", stage, m))
    return actions


def interleaved(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Return 1F1B with V = ``chunks`` stages on each rank, r, r+P, …: bubble 2(P-1)/(3VM+2(P-1)), V
    times the messages.

    The micro-batches go through in groups of P (or a little more, where P does not divide M): a
    rank takes a group through its first stage, then through its next.

    Example:
        >>> print(interleaved(2, 2))
        rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    """
    _check(ranks, micro_batches, chunks)
    n = max(micro_batches // ranks, 1)
    bounds = [-(-micro_batches * i // n) for i in range(n + 1)]
    groups = [range(start, end) for start, end in itertools.pairwise(bounds)]
    lists, total = [], micro_batches * chunks
    for rank in range(ranks):
        mine = [rank + ranks * chunk for chunk in range(chunks)]
        forward = [Action("F", stage, m) for group in groups for stage in mine for m in group]
        backward = [
            Action("B", stage, m) for group in groups for stage in reversed(mine) for m in group
        ]
        ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * len(groups[0]), total)
        actions = forward[:ahead]
        for i in range(total):
            actions += [*forward[ahead + i : ahead + i + 1], backward[i]]
        lists.append(actions)
    return _schedule(
        lists, [stage % ranks for stage in range(ranks * chunks)], micro_batches, "interleaved"
    )


def zb1p(ranks: int, micro_batches: int) -> Schedule:
    """Return 1F1B with backward in two halves, the weights' deferred by r micro-batches on rank r:
    they fill the bubble at the end.

    Bubble (P-1)/(3M+P-1), about half of 1F1B's; min(P, M) graphs in flight.

    Example:
        >>> print(zb1p(2, 3))
        rank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
        rank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
    """
    _check(ranks, micro_batches)
    lists = []
    for rank in range(ranks):
        actions: list[Action] = []
        for action in _alternate(rank, min(ranks - rank - 1, micro_batches), micro_batches):
            actions.append(action._replace(kind="I") if action.kind == "B" else action)
            if action.kind == "B" and action.micro_batch >= rank:
                actions.append(Action("W", rank, action.micro_batch - rank))
        actions += [
            Action("W", rank, m) for m in range(max(micro_batches - rank, 0), micro_batches)
        ]
        lists.append(actions)
    return _schedule(lists, list(range(ranks)), micro_batches, "zb1p")


def eager(ranks: int, micro_batches: int) -> Schedule:
    """Return 1F1B with twice as many forwards ahead: what a rank needs next has arrived, though
    messages take time or stages differ.

    Weights' gradients fill the gaps between the last actions, two micro-batches' at a time, and end
    with the rest together: so they are few products. Bubble (P-1)/(3M+P-1), as of ZB1P; for this
    there are M graphs in flight.

    Example:
        >>> print(eager(2, 4))
        rank 0: 0F0 0F1 0F2 0I0 0F3 0I1 0I2 0W0 0W1 0I3 0W2 0W3
        rank 1: 1F0 1I0 1F1 1I1 1F2 1I2 1F3 1I3 1W0 1W1 1W2 1W3
    """
    _check(ranks, micro_batches)
    M = micro_batches
    lists = []
    together = 1 + (micro_batches > ranks)
    for rank in range(ranks):
        ahead = min(2 * (ranks - rank - 1), M)
        done = 0
        actions = list[Action]()
        # from this micro-batch on a gradient is waited for after the last forward
        waits = M - min(ahead, M - 1)
        for action in _alternate(rank, ahead, M):
            kind, _, m = action
            if kind == "B" and m >= waits and ((m - waits + 1) % together == 0 or m == M - 1):
                actions += [Action("W", rank, i) for i in range(done, m - waits + 1)]
                done = m - waits + 1
            actions.append(action._replace(kind="I") if kind == "B" else action)
        lists.append([*actions, *[Action("W", rank, m) for m in range(done, M)]])
    return _schedule(lists, list(range(ranks)), M, "eager")


def zbv(ranks: int, micro_batches: int) -> Schedule:
    """Return a schedule with stages down the ranks and up again (rank r has r and 2P-1-r), backward
    in halves: next to no bubble in 1F1B's memory.

    With stages of a unit each, a step takes 6M+P-1 units, P-1 of which the last rank waits for its
    first micro-batch: bubble (P-1)/(6M+P-1). At most min(2P, 2M) graphs of half a rank's size are
    in flight. The order is found by a greedy search (inputs' gradients first, then forward of the
    later stage, then what fills the gaps): up to 4 ranks it takes this time, with more at most 2
    units longer.

    Example:
        >>> print(zbv(1, 2))
        rank 0: 0F0 1F0 1I0 0I0 1W0 0F1 0W0 1F1 1I1 0I1 1W1 0W1
    """
    _check(ranks, micro_batches)
    where = [*range(ranks), *reversed(range(ranks))]
    return _schedule(
        _GreedySearch(where, micro_batches, 2 * ranks).lists(), where, micro_batches, "zbv"
    )


class _GreedySearch:
    """Lets all ranks act unit by unit, each by the first rule that it can follow.

    Args:
        where: the rank of each stage.
        micro_batches: M.
        limit: how many graphs may be in flight on a rank.
    """

    def __init__(self, where: list[int], micro_batches: int, limit: int) -> None:
        self.where, self.M, self.limit = where, micro_batches, limit
        self.ranks = 1 + max(where)
        # of how many micro-batches each stage has done F and I
        self.done = {"F": [0] * len(where), "I": [0] * len(where)}
        self.deferred: list[list[Action]] = [[] for _ in range(self.ranks)]  # W
        self.in_flight = [0] * self.ranks

    def lists(self) -> list[list[Action]]:
        lists: list[list[Action]] = [[] for _ in range(self.ranks)]
        while chosen := [
            (rank, action)
            for rank in range(self.ranks)
            if (action := self._choose(rank)) is not None
        ]:
            # all at the same time: no rank has seen the others' last action
            for rank, action in chosen:
                lists[rank].append(action)
                self._count(rank, action)
        return lists

    def _choose(self, rank: int) -> Action | None:
        F, I = self.done["F"], self.done["I"]  # noqa: E741 - the actions' letters
        last = len(self.where) - 1
        mine = [stage for stage in range(last + 1) if self.where[stage] == rank]
        back = [s for s in mine if I[s] < F[s] and (s == last or I[s] < I[s + 1])]
        if back:
            stage = min(back, key=lambda s: (I[s], -s))
            return Action("I", stage, I[stage])
        ahead = [s for s in mine if F[s] < (self.M if s == 0 else F[s - 1])]
        if ahead and self.in_flight[rank] < self.limit:
            return Action("F", ahead[-1], F[ahead[-1]])
        return self.deferred[rank][0] if self.deferred[rank] else None

    def _count(self, rank: int, action: Action) -> None:
        if action.kind == "W":
            self.deferred[rank].remove(action)
            self.in_flight[rank] -= 1
            return
        self.done[action.kind][action.stage] += 1
        if action.kind == "F":
            self.in_flight[rank] += 1
        else:
            self.deferred[rank].append(action._replace(kind="W"))


def _check(ranks: int, micro_batches: int, chunks: int = 1) -> None:
    if ranks < 1 or micro_batches < 1:
        raise ValueError(
            f"a schedule is for 1 rank and 1 micro-batch or more, not for {ranks} and "
            f"{micro_batches}"
        )
    if chunks < 1:
        raise ValueError(f"each rank has 1 stage (chunk) or more, not {chunks}")


def _schedule(
    lists: Sequence[Sequence[Action]], where: Sequence[int], micro_batches: int, name: str
) -> Schedule:
    return Schedule(tuple([tuple(actions) for actions in lists]), tuple(where), micro_batches, name)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb1p": zb1p,
    "zbv": zbv,
    "eager": eager,
}


def make_schedule(name: str, ranks: int, micro_batches: int, **options: Any) -> Schedule:
    """Return a known schedule by its name.

    Args:
        name: a key of ``SCHEDULES``, such as ``'1f1b'``.
        ranks, micro_batches: P and M, at least 1.
        options: ``chunks``, of the interleaved one.

    Raises:
        ValueError: no such name, or no rank, micro-batch or chunk.

    Example:
        >>> print(make_schedule("gpipe", ranks=1, micro_batches=2))
        rank 0: 0F0 0F1 0B0 0B1
    """
    if name not in SCHEDULES:
        raise ValueError(
            f"there is no schedule {name!r}: known are {', '.join(SCHEDULES)}; own_schedule "
            "takes a list"
        )
    return SCHEDULES[name](ranks, micro_batches, **options)
