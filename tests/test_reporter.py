"""Reporter: who hears what, under which name; one current reporter for each rank."""

import threading

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L


def test_without_a_reporter_nobody_listens():
    mnpar.report({"loss": 1})
    mnpar.report({"loss": 1}, object())
    assert mnpar.get_current_reporter() is None


def test_the_innermost_reporter_hears():
    outer = mnpar.Reporter()
    inner = mnpar.Reporter()
    with outer:
        mnpar.report({"a": 1})
        with inner:
            assert mnpar.get_current_reporter() is inner
            mnpar.report({"b": 2})
        mnpar.report({"c": 3})
    mnpar.report({"d": 4})
    assert outer.observation == {"a": 1, "c": 3}
    assert inner.observation == {"b": 2}


def test_a_reporter_can_be_entered_again_inside_itself():
    reporter = mnpar.Reporter()
    with reporter:
        with reporter:
            pass
        assert mnpar.get_current_reporter() is reporter
    assert mnpar.get_current_reporter() is None


def test_a_reporter_ends_with_an_error():
    with pytest.raises(KeyError, match="stop"), mnpar.Reporter():
        raise KeyError("stop")
    assert mnpar.get_current_reporter() is None


def test_the_last_report_of_a_name_counts():
    with mnpar.Reporter() as reporter:
        mnpar.report({"loss": 1})
        mnpar.report({"loss": 2})
    assert reporter.observation == {"loss": 2}


def test_observers_report_under_their_names():
    model = mnpar.Chain(l1=L.Linear(1, 1))
    reporter = mnpar.Reporter()
    reporter.add_observer("main", model)
    reporter.add_observers("main", model.namedlinks(skipself=True))
    with reporter:
        mnpar.report({"x": 1}, model)
        mnpar.report({"x": 2}, model.l1)
        mnpar.report({"x": 3})
    assert reporter.observation == {"main/x": 1, "main/l1/x": 2, "x": 3}


def test_a_stranger_is_named():
    with (
        mnpar.Reporter() as reporter,
        pytest.raises(KeyError, match="Linear reports, but was not added"),
    ):
        mnpar.report({"x": 1}, L.Linear(1, 1))
    assert reporter.observation == {}


def test_an_observer_that_nobody_else_holds_keeps_its_name_to_itself():
    reporter = mnpar.Reporter()
    for n in range(50):  # without a reference, a new object would take the id of one that is gone
        reporter.add_observer(str(n), type("Observer", (), {})())
    with pytest.raises(KeyError, match="Observer"):
        reporter.report({"x": 1}, type("Observer", (), {})())
    assert len(reporter._names) == 50


def test_variables_are_reported_without_their_graph():
    x = mnpar.Variable(np.ones(2))
    y = F.sum(x)
    with mnpar.Reporter() as reporter:
        mnpar.report({"y": y})
    seen = reporter.observation["y"]
    assert seen.array is y.array
    assert seen.creator is None
    assert not seen.requires_grad
    assert y.creator is not None


def test_the_graph_can_be_kept():
    y = F.sum(mnpar.Variable(np.ones(2)))
    with mnpar.Reporter() as reporter, mnpar.using_config("keep_graph_on_report", True):
        mnpar.report({"y": y})
    assert reporter.observation["y"] is y


def test_other_values_are_reported_as_they_are():
    array = np.ones(2)
    with mnpar.Reporter() as reporter:
        mnpar.report({"array": array, "text": "x", "none": None})
    assert reporter.observation["array"] is array
    assert reporter.observation == {"array": array, "text": "x", "none": None}


def test_a_scope_collects_into_another_dict_and_ends_with_an_error():
    reporter, mine = mnpar.Reporter(), {}

    def fail():
        mnpar.report({"a": 1})
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"), reporter.scope(mine):
        fail()
    assert mine == {"a": 1}
    assert reporter.observation == {}
    assert mnpar.get_current_reporter() is None


def test_a_report_scope_is_one_of_the_current_reporter():
    mine = {}
    with mnpar.Reporter() as reporter:
        with mnpar.report_scope(mine):
            mnpar.report({"a": 1})
        mnpar.report({"b": 2})
    assert (mine, reporter.observation) == ({"a": 1}, {"b": 2})


def test_a_report_scope_needs_a_reporter():
    with pytest.raises(RuntimeError, match="no current reporter"), mnpar.report_scope({}):
        pass


def test_threads_do_not_hear_each_other():
    heard = []
    with mnpar.Reporter():
        thread = threading.Thread(target=lambda: heard.append(mnpar.get_current_reporter()))
        thread.start()
        thread.join()
    assert heard == [None]


@pytest.mark.ranks(3)
def test_each_rank_has_a_reporter_of_its_own(comm):
    with mnpar.Reporter() as reporter:
        comm.allgather_obj(None)  # all of them are inside
        mnpar.report({"rank": comm.rank})
        comm.allgather_obj(None)
    assert reporter.observation == {"rank": comm.rank}
