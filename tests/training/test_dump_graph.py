"""The graph of the first iteration, as text, once; graphs are kept no longer than for that."""

import os
import stat

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.training import extensions
from tests.harness.parts import names
from tests.harness.trainers import counting, learning, load, saved


@pytest.fixture(autouse=True)
def no_dot(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")


@pytest.mark.parametrize("kept", [False, True])
def test_the_graph_of_the_first_iteration_is_written(kept, tmp_path):
    trainer = learning(tmp_path, (3, "iteration"))
    trainer.extend(extensions.DumpGraph("main/loss"))
    graphs = []
    trainer.extend(
        lambda trainer: graphs.append(trainer.observation["main/loss"].creator is not None),
        name="see",
    )
    with mnpar.using_config("keep_graph_on_report", kept):
        trainer.run()
        assert mnpar.config.keep_graph_on_report is kept
    assert graphs == [True, kept, kept]
    text = (tmp_path / "cg.dot").read_text()
    assert text.startswith("digraph")
    assert all(word in text for word in ("ReLU", "Dropout", "Linear", "Softmax", "W: "))
    assert names(tmp_path) == ["cg.dot"]


def test_a_resumed_training_writes_no_graph(tmp_path):
    first = learning(tmp_path / "a", (1, "iteration"))
    second = learning(tmp_path / "b", (2, "iteration"))
    for trainer in (first, second):
        trainer.extend(extensions.DumpGraph("main/loss"))
    first.run()
    load(saved(first), second)
    second.run()
    assert names(tmp_path / "b") == []


@pytest.mark.parametrize("kwargs", [{"filename": "a.dot"}, {"out_name": "a.dot"}])
def test_the_file_has_the_name_and_style_that_it_is_told(kwargs, tmp_path):
    trainer = learning(tmp_path, (1, "iteration"))
    trainer.extend(extensions.DumpGraph("main/loss", function_style={"shape": "star"}, **kwargs))
    trainer.run()
    assert 'shape="star"' in (tmp_path / "a.dot").read_text()


@pytest.mark.parametrize(
    ("root", "error", "message"),
    [
        ("main/lost", KeyError, "main/lost was not observed; observed was x"),
        ("x", TypeError, "x is a float"),
    ],
)
def test_what_has_no_graph_is_named_and_the_flag_is_put_back(root, error, message, tmp_path):
    trainer = counting(tmp_path, x=[1.0])
    trainer.extend(extensions.DumpGraph(root))
    with pytest.raises(error, match=message):
        trainer.run()
    assert mnpar.config.keep_graph_on_report is False


def test_the_flag_is_put_back_if_training_fails_before(tmp_path):
    trainer = counting(tmp_path)
    trainer.extend(extensions.DumpGraph("x"))
    trainer.updater.update = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert mnpar.config.keep_graph_on_report is False


@pytest.mark.parametrize("works", [True, False])
def test_a_picture_is_drawn_where_dot_is(works, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    dot = programs / "dot"
    dot.write_text(
        "#!/bin/sh\n" + ('echo picture > "$4"\n' if works else "echo broken >&2; exit 1\n")
    )
    dot.chmod(dot.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(programs))
    trainer = counting(tmp_path / "out", (1, "iteration"), x=[F.sum(mnpar.Variable(np.ones(2)))])
    trainer.extend(extensions.DumpGraph("x"))
    if works:
        trainer.run()
        assert (tmp_path / "out" / "cg.png").read_text() == "picture\n"
    else:
        with pytest.warns(UserWarning, match=r"dot cannot draw .*cg\.dot: broken"):
            trainer.run()


@pytest.mark.ranks(2, on="threads")
def test_rank_0_writes_for_all(comm, tmp_path_factory):
    folder = comm.bcast_obj(tmp_path_factory.mktemp("out") if comm.rank == 0 else None)
    trainer = counting(
        folder,
        (1, "iteration"),
        comm=comm,
        x=[F.sum(mnpar.Variable(np.ones(2)))] if comm.rank == 0 else [],
    )
    trainer.extend(extensions.DumpGraph("x"))
    trainer.run()
    comm.barrier()
    assert os.listdir(folder) == ["cg.dot"]
