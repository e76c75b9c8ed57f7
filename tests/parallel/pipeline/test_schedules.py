"""Schedules do each action once, end, and have the bubbles and the memory that their formulas
say.
"""

import itertools
import random
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from mnpar.parallel import (
    SCHEDULES,
    Action,
    Schedule,
    balance,
    draw,
    make_schedule,
    own_schedule,
    simulate,
)
from tests.harness.tables import together

SIZES = list(itertools.product(range(1, 5), range(1, 10)))
FULL = [(P, M) for P, M in SIZES if M >= P]

# The share of time in which ranks wait, for stages of one unit, with M >= P: here, and in the
# literature.
BUBBLES = {
    "gpipe": lambda P, M: 2 * (P - 1) / (3 * M + 2 * (P - 1)),
    "1f1b": lambda P, M: 2 * (P - 1) / (3 * M + 2 * (P - 1)),
    "interleaved": lambda P, M: 2 * (P - 1) / (6 * M + 2 * (P - 1)),
    "zb1p": lambda P, M: (P - 1) / (3 * M + P - 1),
    "zbv": lambda P, M: (P - 1) / (6 * M + P - 1),
    "eager": lambda P, M: (P - 1) / (3 * M + P - 1),
}
LITERATURE = BUBBLES | {
    "gpipe": lambda P, M: (P - 1) / (M + P - 1),
    "1f1b": lambda P, M: (P - 1) / (M + P - 1),
    "interleaved": lambda P, M: (P - 1) / (2 * M + P - 1),
}
# Graphs in flight on rank r.
GRAPHS = {
    "gpipe": lambda P, M, r: M,
    "1f1b": lambda P, M, r: min(P - r, M),
    "zb1p": lambda P, M, r: min(P, M),
    "eager": lambda P, M, r: M,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_has_a_bubble_here_and_a_row_in_the_docs(name):
    assert name in BUBBLES, f"add the bubble of {name!r} to BUBBLES in this file"
    page = Path(__file__).parents[3] / "docs" / "pipelines.md"
    assert f"\n| `{name}`" in page.read_text(), f"add a row for {name!r} to the table of {page}"


@together(name=BUBBLES, ranks_and_batches=FULL)
def test_the_bubble_is_the_formulas(name, ranks_and_batches):
    P, M = ranks_and_batches
    assert simulate(make_schedule(name, P, M)).bubble == pytest.approx(BUBBLES[name](P, M))
    assert simulate(make_schedule(name, P, M), early=False).bubble == pytest.approx(
        LITERATURE[name](P, M)
    )


@together(name=GRAPHS, ranks_and_batches=FULL)
def test_the_graphs_in_flight_are_the_formulas(name, ranks_and_batches):
    P, M = ranks_and_batches
    found = simulate(make_schedule(name, P, M)).in_flight
    assert list(found) == [GRAPHS[name](P, M, r) for r in range(P)]


@pytest.mark.parametrize(("P", "M"), SIZES, ids=[f"{P} ranks, {M}" for P, M in SIZES])
def test_zbv_keeps_no_more_than_1f1b(P, M):
    # of half the size
    assert max(simulate(make_schedule("zbv", P, M)).in_flight) == min(2 * P, 2 * M)


@together(name=BUBBLES, ranks_and_batches=[*SIZES, (6, 13), (8, 5), (7, 20)])
def test_every_schedule_ends(name, ranks_and_batches):
    schedule = make_schedule(name, *ranks_and_batches)
    assert sum(len(spans) for spans in simulate(schedule).spans) == sum(map(len, schedule.actions))


@pytest.mark.parametrize(("P", "M"), [(5, 11), (6, 12), (8, 32)])
def test_zbv_on_many_ranks_takes_at_most_two_units_more(P, M):
    assert simulate(make_schedule("zbv", P, M)).duration <= 6 * M + P - 1 + 2


def test_costs_differ_between_stages_and_messages_take_time():
    schedule = make_schedule("gpipe", 2, 1)
    assert (
        simulate(schedule, forward=[1, 5], inputs=0, weights=2, message=0.5).duration
        == 1 + 0.5 + 5 + 0.5 + 2
    )


def test_eager_hides_messages_that_take_as_long_as_an_action():
    assert [
        simulate(make_schedule(name, 4, 8), message=1).duration
        for name in ("1f1b", "zb1p", "eager")
    ] == [41, 41, 31]


WRONG = {
    "a forward is missing": (["F0 B0", "B0"], "stage 1 has ['B'] for micro-batch 0"),
    "weights without inputs": (["F0 W0", "F0 B0"], "stage 0 has ['F', 'W']"),
    "backward first": (["B0 F0"], "stage 0 has ['B', 'F']"),
    "twice": (["F0 B0 B0"], "0B0 is there 2 times on rank 0"),
    "ranks wait for each other": (
        ["F0 B0 F1 B1", "F1 B1 F0 B0"],
        "0B0, which waits for 1I0 on rank 1",
    ),
}


@pytest.mark.parametrize(("actions", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_schedule_is_refused_before_it_runs(actions, message):
    with pytest.raises(ValueError, match="schedule 'own'") as caught:
        simulate(own_schedule(actions))
    assert message in str(caught.value)


def test_an_action_on_the_wrong_rank_is_refused():
    with pytest.raises(ValueError, match="0F0 is not for rank 1"):
        simulate(Schedule(((), (Action("F", 0, 0),)), (0,), 1))


UNREADABLE = {
    "no action": (["X0"], "'X0' is no action"),
    "a stage on two ranks": (["0F0 0B0", "0F1 0B1"], "stage 0 acts on rank 0 and on rank 1"),
    "a gap": (["0F0 0B0", "2F0 2B0"], r"those of this schedule are \[0, 2\]"),
}


@pytest.mark.parametrize(("actions", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_list_that_is_no_schedule_says_why(actions, message):
    with pytest.raises(ValueError, match=message):
        own_schedule(actions)


def test_a_schedule_of_an_unknown_name_says_which_are_known():
    with pytest.raises(ValueError, match="known are gpipe"):
        make_schedule("2f2b", 2, 2)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_no_ranks_or_micro_batches_says_so(name):
    for ranks, micro_batches in ((0, 2), (2, 0), (-1, 1)):
        with pytest.raises(ValueError, match=f"not for {ranks} and {micro_batches}"):
            SCHEDULES[name](ranks, micro_batches)


def test_a_rank_without_a_stage_has_no_schedule():
    with pytest.raises(ValueError, match=r"1 stage \(chunk\) or more, not 0"):
        make_schedule("interleaved", 2, 2, chunks=0)


def test_wrong_costs_are_refused():
    with pytest.raises(ValueError, match="3 costs were given for 2 stages"):
        simulate(make_schedule("gpipe", 2, 2), forward=[1, 2, 3])


def test_a_simulation_is_drawn_with_its_bubble_in_the_title():
    axes = Figure().subplots()
    draw(simulate(make_schedule("zbv", 2, 3)), axes)
    assert len(axes.patches) == 2 * 2 * 3 * 3
    assert "zbv, M = 3: bubble 5.3 %" in axes.get_title()


SPLITS = {
    "alike": ([1, 1, 1, 1], 2, [2, 2]),
    "one is heavy": ([1, 1, 1, 9], 2, [3, 1]),
    "not greedy": ([4, 3, 3, 4, 3, 3], 3, [2, 2, 2]),
    "as many as layers": ([5, 1], 2, [1, 1]),
    "more stages than layers": ([5], 2, [1, 0]),
}


@pytest.mark.parametrize(("costs", "parts", "counts"), SPLITS.values(), ids=SPLITS)
def test_layers_are_balanced(costs, parts, counts):
    assert balance(costs, parts) == counts


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cut_has_a_cheaper_dearest_stage(seed):
    rng = random.Random(seed)
    costs = [rng.random() for _ in range(7)]
    ends = [0, *itertools.accumulate(balance(costs, 3))]
    best = min(
        max(sum(costs[:a]), sum(costs[a:b]), sum(costs[b:])) for a in range(8) for b in range(a, 8)
    )
    assert max(sum(costs[a:b]) for a, b in itertools.pairwise(ends)) == pytest.approx(best)
