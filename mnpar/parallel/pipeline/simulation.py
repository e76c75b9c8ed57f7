"""Simulation of a schedule before it runs: whether it can end, how long it takes, how many graphs
it keeps, where its bubbles are.

The messages of a schedule are known: a forward needs the forward of the stage before, a backward
that of the stage after. So the simulation carries out each rank's list as far as it can, in turn.
If all lists end, no run of the schedule can deadlock: sends never wait, so a rank waits only for
what the simulation waited for. If some list does not end, an error says who waits for what, before
any message is sent.

Messages that skip stages change nothing: from a lower stage to a higher one of the same micro-batch
they go where the chain of neighbours leads too, and their gradients the same way back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mnpar.parallel.pipeline.schedules import Action, Schedule

Cost = float | Sequence[float]  # of all stages, or of each


@dataclass(frozen=True)
class Span:
    """An action, and when it begins and ends."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """The times of a schedule's actions, and how many graphs it keeps.

    Args:
        schedule: the schedule that was simulated.
        spans: for each rank its actions with their times, in order.
        in_flight: for each rank how many graphs it keeps at most: forwards without (all of) their
            backward.
    """

    schedule: Schedule
    spans: tuple[tuple[Span, ...], ...]
    in_flight: tuple[int, ...]

    @property
    def duration(self) -> float:
        """The time from the first action's begin to the last one's end."""
        return max(span.end for spans in self.spans for span in spans)

    @property
    def busy(self) -> float:
        """The time that all ranks work, added up."""
        return sum(span.end - span.start for spans in self.spans for span in spans)

    @property
    def bubble(self) -> float:
        """The share of the ranks' time in which they wait."""
        return 1 - self.busy / (self.duration * len(self.spans))

    def text(self, width: int = 4) -> str:
        """Return a picture: a line for each rank, ``width`` letters a unit of time; the stage is
        named where a rank has several.

        Example:
            >>> from mnpar.parallel import make_schedule, simulate
            >>> print(simulate(make_schedule("1f1b", 2, 2)).text(width=3))
            rank 0 |F0 F1 ...B0----...B1----|  2 graphs
            rank 1 |...F0 B0----F1 B1----...|  1 graph
            bubble 25.0 %, 8 units
        """
        length = round(self.duration * width)
        several = len(self.schedule.where) > len(self.spans)
        lines = []
        for rank, (spans, graphs) in enumerate(zip(self.spans, self.in_flight, strict=True)):
            line = ["."] * length
            for span in spans:
                start = round(span.start * width)
                end = round(span.end * width)
                label = (
                    str(span.action) if several else str(span.action)[len(str(span.action.stage)) :]
                )
                filler = " " if end - start <= width else "-"
                line[start:end] = list(label.ljust(end - start, filler)[: end - start])
            lines.append(
                f"rank {rank} |{''.join(line)}|  {graphs} graph{'' if graphs == 1 else 's'}"
            )
        return "\n".join([*lines, f"bubble {100 * self.bubble:.1f} %, {self.duration:g} units"])


def simulate(
    schedule: Schedule,
    forward: Cost = 1.0,
    inputs: Cost = 1.0,
    weights: Cost = 1.0,
    message: float = 0.0,
    *,
    early: bool = True,
) -> Simulation:
    """Carry out a schedule without computing anything, and check it.

    Args:
        schedule: the schedule to simulate.
        forward, inputs, weights: what F, I and W cost: a number for all stages, or one for each. B
            costs I and W.
        message: how long a message between two ranks is under way.
        early: a B sends the gradients of its inputs before it computes those of its weights, as
            :class:`Pipeline` does; False: at its end, as the formulas in the literature have it.

    Raises:
        ValueError: an action is missing, twice there, before one that it needs, or on the wrong
            rank; or the ranks would wait for each other for ever.

    Example:
        >>> from mnpar.parallel import make_schedule
        >>> found = simulate(make_schedule("gpipe", ranks=4, micro_batches=8))
        >>> found.in_flight, round(found.bubble, 4), round(6 / 30, 4)
        ((8, 8, 8, 8), 0.2, 0.2)
    """
    _check_complete(schedule)
    costs = {
        "F": _costs_of_stages(forward, schedule),
        "I": _costs_of_stages(inputs, schedule),
        "W": _costs_of_stages(weights, schedule),
    }
    run = _Run(schedule, costs, message, early)
    run.run()
    in_flight = tuple([_most_in_flight(actions) for actions in schedule.actions])
    return Simulation(schedule, tuple([tuple(spans) for spans in run.spans]), in_flight)


def _costs_of_stages(cost: Cost, schedule: Schedule) -> list[float]:
    costs = (
        [float(cost)] * schedule.stages
        if isinstance(cost, int | float)
        else [float(one) for one in cost]
    )
    if len(costs) != schedule.stages:
        raise ValueError(
            f"{len(costs)} costs were given for {schedule.stages} stages: give one number, or "
            "one for each stage"
        )
    return costs


def _check_complete(schedule: Schedule) -> None:
    """Check that each micro-batch goes once through each stage, and once back, on the stage's rank
    and in this order.
    """
    for rank, actions in enumerate(schedule.actions):
        for action, count in Counter(actions).items():
            if count > 1:
                raise ValueError(
                    f"schedule {schedule.name!r}: {action} is there {count} times on rank {rank}"
                )
            where = schedule.where[action.stage] if action.stage < schedule.stages else None
            if where != rank or not 0 <= action.micro_batch < schedule.micro_batches:
                raise ValueError(f"schedule {schedule.name!r}: {action} is not for rank {rank}")
    for stage, rank in enumerate(schedule.where):
        for m in range(schedule.micro_batches):
            found = [action.kind for action in schedule.actions[rank] if action[1:] == (stage, m)]
            if found not in (["F", "B"], ["F", "I", "W"]):
                raise ValueError(
                    f"schedule {schedule.name!r}: stage {stage} has {found or 'nothing'} for "
                    f"micro-batch {m}, "
                    f"in this order: it needs F and then B, or F, I and W"
                )


def _most_in_flight(actions: Sequence[Action]) -> int:
    now = most = 0
    for action in actions:
        now += {"F": 1, "I": 0}.get(action.kind, -1)
        most = max(most, now)
    return most


class _Run:
    """A simulated run: each rank goes through its list as far as it can, again and again."""

    def __init__(
        self, schedule: Schedule, costs: dict[str, list[float]], message: float, early: bool
    ) -> None:
        self.schedule = schedule
        self.costs = costs
        self.message = message
        self.early = early
        self.spans: list[list[Span]] = [[] for _ in schedule.actions]
        self.ends: dict[Action, float] = {}  # when others can go on; B's stands as I

    def run(self) -> None:
        """Run to the end.

        Raises:
            ValueError: the ranks wait for each other.
        """
        moved = True
        while moved:
            moved = False
            for rank, actions in enumerate(self.schedule.actions):
                while len(self.spans[rank]) < len(actions) and self._act(
                    rank, actions[len(self.spans[rank])]
                ):
                    moved = True
        if any(
            len(spans) < len(actions)
            for spans, actions in zip(self.spans, self.schedule.actions, strict=True)
        ):
            raise ValueError(
                f"schedule {self.schedule.name!r} cannot end, its ranks wait for each other:\n"
                + self._stuck()
            )

    def _needed(self, action: Action) -> Action | None:
        """Return what another stage must do before."""
        kind, stage, m = action
        if kind == "F":
            return Action("F", stage - 1, m) if stage else None
        if kind == "W" or stage == self.schedule.stages - 1:
            return None
        return Action("I", stage + 1, m)

    def _act(self, rank: int, action: Action) -> bool:
        """Do an action; return False if the rank must wait before it."""
        needed = self._needed(action)
        start = self.spans[rank][-1].end if self.spans[rank] else 0.0
        if needed is not None:
            if needed not in self.ends:
                return False
            away = self.schedule.where[needed.stage] != rank
            start = max(start, self.ends[needed] + self.message * away)
        first = self.costs["I" if action.kind == "B" else action.kind][action.stage]
        end = start + first + (self.costs["W"][action.stage] if action.kind == "B" else 0.0)
        self.ends[action if action.kind != "B" else action._replace(kind="I")] = (
            start + first if self.early else end
        )
        self.spans[rank].append(Span(action, start, end))
        return True

    def _stuck(self) -> str:
        rows = []
        for rank, actions in enumerate(self.schedule.actions):
            done = len(self.spans[rank])
            if done < len(actions):
                needed = self._needed(actions[done])
                reason = (
                    ""
                    if needed is None
                    else f", which waits for {needed} on rank {self.schedule.where[needed.stage]}"
                )
                rows.append(f"  rank {rank}: {actions[done]}{reason}")
        return "\n".join(rows)


def draw(simulation: Simulation, axes: Any) -> None:
    """Draw a simulation on matplotlib's axes: one row a rank, forwards blue, backwards green,
    bubbles white.

    Args:
        simulation: the result of :func:`simulate`.
        axes: a matplotlib ``Axes``.

    Example:
        >>> from mnpar.parallel import draw, make_schedule, simulate
        >>> def save(schedule, path):
        ...     import matplotlib.pyplot as plt
        ...
        ...     figure, axes = plt.subplots(figsize=(12, 3))
        ...     draw(simulate(schedule), axes)
        ...     figure.savefig(path)
    """
    colours = {"F": "#7fb2e5", "B": "#8fce9b", "I": "#8fce9b", "W": "#d9c27c"}
    for rank, spans in enumerate(simulation.spans):
        for span in spans:
            # a rank's second stage is paler
            shade = 1 - 0.45 * (span.action.stage // len(simulation.spans) % 2)
            axes.barh(
                rank,
                span.end - span.start,
                left=span.start,
                height=0.9,
                color=colours[span.action.kind],
                alpha=shade,
                edgecolor="white",
                linewidth=0.5,
            )
            if span.end - span.start > simulation.duration / 120:
                axes.text(
                    (span.start + span.end) / 2,
                    rank,
                    str(span.action.micro_batch),
                    ha="center",
                    va="center",
                    fontsize=7,
                )
    axes.set_yticks(
        range(len(simulation.spans)), [f"rank {rank}" for rank in range(len(simulation.spans))]
    )
    axes.invert_yaxis()
    axes.set_xlim(0, simulation.duration)
    axes.set_title(
        f"{simulation.schedule.name}, M = {simulation.schedule.micro_batches}: bubble "
        f"{100 * simulation.bubble:.1f} %, "
        f"{max(simulation.in_flight)} graphs in flight"
    )
