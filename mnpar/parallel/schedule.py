"""What each rank of a pipeline does, and in which order: a list of actions, plain data.

A network is cut into *stages* and a batch into *micro-batches*; an action is one stage's work on
one micro-batch. Which stage is on which rank and in which order a rank acts is all that
distinguishes GPipe, 1F1B, the interleaved and the zero-bubble schedules (known_schedules.py makes
them), and a list of your own works just as well. Every schedule is checked before it runs
(simulation.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


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
        """The stages of a rank, in order."""
        return [stage for stage, its_rank in enumerate(self.where) if its_rank == rank]

    def __str__(self) -> str:
        return "\n".join(
            f"rank {rank}: {' '.join(map(str, actions))}"
            for rank, actions in enumerate(self.actions)
        )


def own_schedule(actions: Sequence[str | Iterable[str | Action]], name: str = "own") -> Schedule:
    """A schedule of your own.

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
    homes = {action.stage: rank for rank, some in enumerate(lists) for action in some}
    for rank, some in enumerate(lists):
        for action in some:
            if homes[action.stage] != rank:
                raise ValueError(
                    f"stage {action.stage} acts on rank {rank} and on rank "
                    f"{homes[action.stage]}: it has one rank"
                )
    if sorted(homes) != list(range(len(homes))):
        raise ValueError(
            "the stages are numbered from 0 on without a gap, but those of this schedule are "
            f"{sorted(homes)}"
        )
    micro_batches = 1 + max((action.micro_batch for some in lists for action in some), default=-1)
    return Schedule(
        tuple(lists), tuple([homes[stage] for stage in sorted(homes)]), micro_batches, name
    )


def _action(one: str | Action, rank: int) -> Action:
    if isinstance(one, Action):
        return one
    found = re.fullmatch(r"(\d*)([FBIW])(\d+)", one)
    if not found:
        raise ValueError(
            f"{one!r} is no action: write F0, B0, I0 or W0 (micro-batch 0), after the stage's "
            f"number if that is not {rank}"
        )
    return Action(found[2], int(found[1] or rank), int(found[3]))
