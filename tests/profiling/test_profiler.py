"""A profile has every function, message and wait of all ranks on one clock, and leaves no trace of
itself in the program.
"""

import importlib.util
import itertools
import json

import numpy as np
import pytest
from matplotlib.figure import Figure

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import Pipeline
from mnpar.plans import blocks
from mnpar.profiling import profiler

METHODS = [(place.owner, place.name) for place in profiler._PLACES]


def ring(comm):
    """Each rank computes, sends to the right, receives from the left, and goes back."""
    x = mnpar.Variable(np.ones(3))
    F.send(F.tanh(x), comm, (comm.rank + 1) % comm.size)
    y = F.recv(comm, (comm.rank - 1) % comm.size)
    F.sum(y * x).backward()


def profiled(comm, out, program=ring, clock=None):
    options = {} if clock is None else {"clock": clock(comm.rank)}
    with mnpar.profile(out, comm, picture=False, **options) as timeline:
        program(comm)
    return timeline


def named(events, kind):
    return [event.name for event in events if event.kind == kind]


def test_every_function_and_message_is_there(tmp_path):
    timeline = mnpar.run(profiled, 3, (tmp_path,))[0]
    assert len(timeline.events) == 3
    for rank, events in enumerate(timeline.events):
        assert named(events, "forward") == ["Tanh", "Send", "Recv", "Mul", "Sum"]
        assert named(events, "backward") == ["Sum", "Mul", "Recv", "Send", "Tanh"]
        left = (rank - 1) % 3
        right = (rank + 1) % 3
        assert [(event.name, event.peer) for event in events if event.kind == "send"] == [
            ("send", right),
            ("gradient of send", left),
        ]
        assert [event.peer for event in events if event.kind == "recv"] == [left, right]
    assert sorted((source, dest) for source, _, dest, _ in timeline.messages()) == sorted(
        [(rank, (rank + step) % 3) for rank in range(3) for step in (1, -1)]
    )


def test_other_ranks_get_nothing(tmp_path):
    assert mnpar.run(profiled, 2, (tmp_path,))[1].events == []


def one_after_the_other(comm):
    if comm.rank:
        F.recv(comm, comm.rank - 1)
    if comm.rank < 2:
        F.send(np.ones(1), comm, comm.rank + 1)


def test_it_says_who_waited_for_whom(tmp_path):
    timeline = mnpar.run(profiled, 3, (tmp_path, one_after_the_other))[0]
    assert [[peer for peer in timeline.waits(rank) if peer is not None] for rank in range(3)] == [
        [],
        [],
        [1],
    ]
    assert "for rank 1" in timeline.text().splitlines()[3]


def test_who_was_hardly_waited_for_is_not_named():
    timeline = mnpar.Timeline()
    waits = [
        ("wait", "recv", 0.0, 5.0, 0),
        ("wait", "recv", 5.0, 5.01, 1),
        ("forward", "Sum", 5.01, 10.0),
    ]
    timeline.take([(0, waits), (1, [])])
    assert (
        timeline.text().splitlines()[1] == "rank 0: computes  50 %, waits  50 % (for rank 0 50 %)"
    )


def test_a_collective_waits_for_several(tmp_path):
    timeline = mnpar.run(profiled, 2, (tmp_path, lambda comm: F.allreduce(comm, np.ones(1))))[0]
    waits = [event for events in timeline.events for event in events if event.kind == "wait"]
    assert [(event.name, event.peer) for event in waits] == [("allreduce", None)]  # one comes first


def test_parts_of_an_exchange_are_messages_too(tmp_path):
    rows = blocks((2, 4), (2, 1))
    columns = blocks((2, 4), (1, 2))

    def program(comm):
        F.repartition(comm, np.ones((1, 4)), rows, columns)

    timeline = mnpar.run(profiled, 2, (tmp_path, program))[0]
    assert sorted((source, dest) for source, _, dest, _ in timeline.messages()) == [(0, 1), (1, 0)]


def test_in_a_group_the_ranks_keep_their_numbers(tmp_path):
    def program(comm):
        half = comm.split(comm.rank % 2, -comm.rank)  # the other way round
        F.send(np.ones(1), half, 1 - half.rank)
        F.recv(half, 1 - half.rank)

    timeline = mnpar.run(profiled, 4, (tmp_path, program))[0]
    assert sorted((source, dest) for source, _, dest, _ in timeline.messages()) == [
        (0, 2),
        (1, 3),
        (2, 0),
        (3, 1),
    ]


class Ticks:
    """One true time for all ranks, a tick for each look at it; each rank's clock is fast or slow,
    and set wrong.
    """

    true = itertools.count()

    def __init__(self, rank):
        self.rate = 1 + 1e-3 * rank
        self.shift = 1e6 * rank

    def __call__(self):
        return self.shift + self.rate * next(self.true)


def test_clocks_that_go_wrong_are_set_right(tmp_path):
    def program(comm):
        for _ in range(30):
            ring(comm)

    timeline = mnpar.run(profiled, 3, (tmp_path, program, Ticks))[0]
    messages = timeline.messages()
    assert len(messages) == 3 * 60
    # of a million; half the way of an answer is unknown
    assert all(taken - sent > -30 for _, sent, _, taken in messages)
    assert timeline.duration < 20_000


def test_clocks_that_agree_are_left_alone():
    class Same(Ticks):
        def __init__(self, rank):
            self.rate, self.shift = 1, 0

    assert [
        offset
        for _, offset in mnpar.run(lambda comm: profiler.clock_offset(comm, Same(comm.rank)), 3)
    ] == [0, 0, 0]


def pipeline_step(comm):
    stage = L.Linear(3, 3) if comm.rank == 0 else L.Classifier(L.Linear(3, 3))
    pipeline = Pipeline(comm, stage, "1f1b", 3)
    optimizer = mnpar.optimizers.SGD().setup(pipeline)
    optimizer.update(pipeline, np.ones((6, 3), "f4") if comm.rank == 0 else np.zeros(6, int))


def test_the_trace_can_be_read_by_perfetto(tmp_path):
    mnpar.run(profiled, 2, (tmp_path, pipeline_step))
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["rank 0", "rank 1"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in spans if event["cat"] == "stage"} == {
        f"{stage}{kind}{m}" for stage in range(2) for kind in "FB" for m in range(3)
    }
    assert {event["name"] for event in spans if event["cat"] == "update"} == {"SGD"}
    assert "wait for rank 1" in {event["name"] for event in spans}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    starts, ends = ({e["id"]: e["ts"] for e in events if e["ph"] == ph} for ph in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == 6
    assert all(ends[number] >= starts[number] for number in starts)


def test_spans_of_a_rank_lie_inside_each_other_or_apart(tmp_path):
    for events in mnpar.run(profiled, 2, (tmp_path, pipeline_step))[0].events:
        for a, b in itertools.combinations(events, 2):
            assert (
                a.end <= b.start or b.end <= a.start or (a.start - b.start) * (a.end - b.end) <= 0
            )


def test_work_is_what_is_no_wait(tmp_path):
    timeline = mnpar.run(profiled, 2, (tmp_path, pipeline_step))[0]
    for rank in range(2):
        assert (
            0
            < timeline.busy(rank) + sum(timeline.waits(rank).values())
            <= timeline.duration * (1 + 1e-9)
        )


def test_a_picture_is_drawn(tmp_path):
    def program(comm):
        with mnpar.profile(tmp_path / "new", comm) as timeline:
            pipeline_step(comm)
        return timeline

    timeline = mnpar.run(program, 2)[0]
    assert (tmp_path / "new" / "timeline.png").read_bytes().startswith(b"\x89PNG")
    axes = Figure().subplots()
    timeline.draw_on(axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_without_matplotlib_the_trace_is_written_all_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with mnpar.profile(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.json"]
    assert "pip install matplotlib" in capsys.readouterr().err


def test_without_a_profile_the_program_runs_its_own_methods(tmp_path):
    before = [owner.__dict__[name] for owner, name in METHODS]
    mnpar.run(profiled, 2, (tmp_path,))
    assert [owner.__dict__[name] for owner, name in METHODS] == before
    assert all(method.__module__ != "mnpar.profiling.profiler" for method in before)


def test_an_error_inside_is_the_programs_own(tmp_path):
    before = [owner.__dict__[name] for owner, name in METHODS]

    def fails(comm):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mnpar.run(profiled, 2, (tmp_path, fails))
    assert [owner.__dict__[name] for owner, name in METHODS] == before
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_are_not_profiled_are_not_recorded(tmp_path):
    def program(comm):
        half = comm.split(comm.rank // 2, comm.rank)
        if comm.rank < 2:
            return profiled(half, tmp_path)
        ring(half)
        return None

    timeline = mnpar.run(program, 4)[0]
    assert len(timeline.events) == 2
    assert {event.peer for events in timeline.events for event in events} <= {None, 0, 1}


def test_one_process_has_a_timeline_too(tmp_path):
    with mnpar.profile(tmp_path, picture=False) as timeline:
        F.sum(mnpar.Variable(np.ones(2))).backward()
    assert named(timeline.events[0], "forward") == ["Sum"]


@pytest.mark.ranks(2)
def test_processes_have_one_timeline(comm, tmp_path):
    timeline = profiled(comm, tmp_path, pipeline_step)
    if comm.is_root:
        assert len(timeline.messages()) == 6
        assert (tmp_path / "timeline.json").exists()


def test_a_notebook_shows_the_picture_with_its_meaning_and_the_text_where_there_is_none(tmp_path):
    timeline = mnpar.run(lambda comm: profiled(comm, tmp_path, pipeline_step), 2)[0]
    assert timeline._repr_png_().startswith(b"\x89PNG")
    [legend] = timeline._figure().legends
    said = [text.get_text() for text in legend.get_texts()]
    assert {"forward", "backward", "message", "the program's own code"} <= set(said)
    assert any("stage, action, micro-batch" in text for text in said)
    assert repr(timeline) == timeline.text()
    empty = type(timeline)()
    assert empty._repr_png_() is None
    assert "no events" in repr(empty)
