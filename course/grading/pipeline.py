"""Graders of lesson 5."""

import numpy as np

from grading.exercise import exercise, is_close, on_ranks, require
from mnpar.parallel import make_schedule, own_schedule, simulate


def simulated(ranks, micro_batches):
    return simulate(make_schedule("gpipe", ranks, micro_batches)).bubble


def require_number(got, case):
    require(
        isinstance(got, int | float | np.number),
        f"{case}: your answer is {got!r}, and should be a number",
    )


@exercise("5.1")
def bubble(answer):
    for ranks, m in ((1, 4), (2, 1), (3, 1), (3, 4), (4, 8), (2, 16)):
        case = f"{on_ranks(ranks)} with {m} micro-batches"
        got, expected = answer(ranks, m), simulated(ranks, m)
        require_number(got, case)
        textbook = (ranks - 1) / (m + ranks - 1)
        require(
            is_close(expected, textbook) or not is_close(got, textbook),
            f"{case}: {got:.3f} is right where a stage sends its gradient on after the whole of "
            "its backward, as textbooks have it. Here it sends it after the first of two units",
        )
        require(
            is_close(expected, 100 * expected) or not is_close(got, 100 * expected),
            f"{case}: {got:.3g} is the bubble in per cent; return a share, from 0 to 1",
        )
        require(
            is_close(got, expected),
            f"{case}: your formula says {got:.3f}, and the drawing has {expected:.3f}",
        )


@exercise("5.2")
def my_schedule(answer):
    actions = answer()
    require(
        isinstance(actions, list | tuple) and len(actions) == 2,
        "return two texts in a list, one for each rank",
    )
    try:
        schedule = own_schedule(list(actions))
        simulation = simulate(schedule)
    except ValueError as error:
        require(False, f"this schedule is refused:\n{error}")
    require(
        schedule.micro_batches == 4,
        f"this schedule has {schedule.micro_batches} micro-batches, and should have 4",
    )
    text = simulation.text()
    require(
        max(simulation.in_flight) <= 2,
        f"a rank keeps {max(simulation.in_flight)} graphs, and may keep 2: go back before you go "
        f"forward a third time\n{text}",
    )
    best = simulate(make_schedule("1f1b", 2, 4)).bubble
    require(
        simulation.bubble <= best + 1e-9,
        f"the bubble is {simulation.bubble:.1%}, and can be {best:.1%}: where does a rank wait, "
        f"and what could it do meanwhile?\n{text}",
    )


@exercise("5.3")
def micro_batches_for(answer):
    for ranks, share in ((2, 0.25), (4, 0.2), (3, 0.1), (8, 0.05), (2, 0.5), (1, 0.1)):
        case = f"{on_ranks(ranks)}, for a bubble of {share:.0%}"
        got = answer(ranks, share)
        require_number(got, case)
        require(got == int(got) and got >= 1, f"{case}: {got} is no number of micro-batches")
        got = int(got)
        has = simulated(ranks, got)
        require(
            has <= share + 1e-9,
            f"{case}: {got} micro-batches are too few, they have a bubble of {has:.1%}",
        )
        require(
            got == 1 or simulated(ranks, got - 1) > share + 1e-9,
            f"{case}: {got} micro-batches are more than needed, {got - 1} would do",
        )
