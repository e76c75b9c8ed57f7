"""Logs, tables, bars and pictures: what they say, who says it, and in how many writes."""

import io
import json
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest

import mnpar
from mnpar.runtime import processes
from mnpar.training import extensions
from mnpar.training.extensions import progress_bar
from tests.harness.trainers import counting, load, saved

X = [float(i) ** 2 for i in range(20)]


class Stream(io.StringIO):
    """Keeps each write apart."""

    def __init__(self, terminal=False):
        super().__init__()
        self.writes, self.terminal = [], terminal

    def write(self, text):
        self.writes.append(text)
        return super().write(text)

    def isatty(self):
        return self.terminal


def logged(tmp_path, *more, stop=(12, "iteration"), comm=None, **kwargs):
    """A trainer with a log that has run."""
    trainer = counting(tmp_path, stop, length=4, comm=comm, x=X, text=["word"] * 20)
    trainer.extend(extensions.LogReport(**kwargs))
    for one in more:
        trainer.extend(one)
    trainer.run()
    return trainer


def timeless(log):
    assert all(entry["elapsed_time"] >= 0 for entry in log)
    return [
        {name: value for name, value in entry.items() if name != "elapsed_time"} for entry in log
    ]


def test_a_log_holds_the_means_of_each_interval(tmp_path):
    log = logged(tmp_path).get_extension("LogReport").log
    assert timeless(log) == [
        {"x": np.mean(X[4 * i : 4 * i + 4]), "epoch": i + 1, "iteration": 4 * i + 4}
        for i in range(3)
    ]
    assert json.loads((tmp_path / "log").read_text()) == log


def test_a_log_has_the_keys_interval_name_and_entries_that_it_is_told(tmp_path):
    with pytest.warns(UserWarning, match="^LogReport: nothing has reported 'y'; reported were x,"):
        logged(
            tmp_path,
            keys=["x", "y"],
            trigger=(6, "iteration"),
            filename="log_{iteration}.json",
            postprocess=lambda entry: entry.update(more=1),
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log_12.json", "log_6.json"]
    assert list(json.loads((tmp_path / "log_6.json").read_text())[0]) == [
        "x",
        "epoch",
        "iteration",
        "elapsed_time",
        "more",
    ]


@pytest.mark.parametrize(
    ("kwargs", "files"), [({"log_name": "other"}, ["other"]), ({"log_name": None}, [])]
)
def test_a_log_may_go_by_its_old_name_or_to_no_file(kwargs, files, tmp_path):
    logged(tmp_path, **kwargs)
    assert [path.name for path in tmp_path.iterdir()] == files


def test_a_log_can_begin_before_training(tmp_path):
    trainer = counting(tmp_path, (4, "iteration"), length=4, x=X)
    trainer.extend(extensions.LogReport(), call_before_training=True)
    trainer.run()
    assert [entry["iteration"] for entry in trainer.get_extension("LogReport").log] == [0, 4]


@pytest.mark.parametrize("moment", [3, 4, 7])
def test_a_log_goes_on(moment, tmp_path):
    whole = logged(tmp_path / "whole")
    first = logged(tmp_path, stop=(moment, "iteration"))
    second = counting(tmp_path, (12, "iteration"), length=4, x=X)
    second.extend(extensions.LogReport())
    load(saved(first), second)
    second.run()
    logs = [trainer.get_extension("LogReport").log for trainer in (whole, second)]
    assert timeless(logs[0]) == timeless(logs[1])
    assert [e["elapsed_time"] for e in logs[1]] == sorted(e["elapsed_time"] for e in logs[1])


def test_a_failed_write_leaves_the_old_log(tmp_path, monkeypatch):
    logged(tmp_path)
    before = (tmp_path / "log").read_text()
    monkeypatch.setattr(json, "dump", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        logged(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert (tmp_path / "log").read_text() == before


# Tables.

TABLE = """\
epoch       iteration   x           not there   a column that is wide
1           4           3.5                                            \n\
2           8           31.5                                           \n\
3           12          91.5                                           \n\
"""
COLUMNS = ["epoch", "iteration", "x", "not there", "a column that is wide"]


def test_a_table_has_a_line_for_each_entry(tmp_path, capsys):
    with pytest.warns(UserWarning, match="nothing has reported 'not there', 'a column"):
        logged(tmp_path, extensions.PrintReport(COLUMNS))
    assert capsys.readouterr().out == TABLE


def test_a_table_is_written_line_by_line_each_in_one_write(tmp_path):
    out = Stream()
    with pytest.warns(UserWarning, match="nothing has reported 'not there', 'a column"):
        logged(tmp_path, extensions.PrintReport(COLUMNS, out=out))
    assert out.writes == TABLE.splitlines(keepends=True)


def test_a_table_on_a_terminal_writes_over_the_progress_bar(tmp_path):
    out = Stream(terminal=True)
    logged(tmp_path, extensions.PrintReport(["epoch"], out=out))
    assert out.writes == [
        "\r\033[J" + line
        for line in ["epoch     \n", "1           \n", "2           \n", "3           \n"]
    ]


def test_a_table_may_have_a_log_of_its_own_and_shows_it_again_after_a_resumption(tmp_path):
    def make(stop, out):
        trainer = counting(tmp_path, (stop, "iteration"), length=4, x=X)
        trainer.extend(
            extensions.PrintReport(["iteration", "x"], extensions.LogReport(log_name=None), out)
        )
        return trainer

    first = Stream()
    second = Stream()
    trainer = make(9, first)
    again = make(12, second)
    trainer.run()
    load(saved(trainer), again)
    again.run()
    assert [line.split() for line in second.writes] == [
        ["iteration", "x"],
        ["4", "3.5"],
        ["8", "31.5"],
        ["12", "91.5"],
    ]


def test_a_log_keeps_no_trainer_alive(tmp_path):
    log = extensions.LogReport()
    trainer = counting(tmp_path, (2, "iteration"), length=4, x=X)
    trainer.extend(log)
    trainer.run()
    seen = weakref.ref(trainer)
    del trainer
    assert seen() is None


def test_a_log_that_is_an_extension_and_a_tables_own_has_each_iteration_once(tmp_path):
    out = Stream()
    trainer = counting(tmp_path, (12, "iteration"), length=4, x=X)
    log = extensions.LogReport()
    trainer.extend(log)
    trainer.extend(extensions.PrintReport(["iteration", "x"], log, out), trigger=(1, "iteration"))
    trainer.run()
    assert [line.split() for line in out.writes] == [
        ["iteration", "x"],
        ["4", "3.5"],
        ["8", "31.5"],
        ["12", "91.5"],
    ]


def test_a_table_shows_words(tmp_path):
    out = Stream()
    logged(
        tmp_path,
        extensions.PrintReport(["word"], out=out),
        postprocess=lambda entry: entry.update(word="yes"),
    )
    assert out.writes[1] == "yes         \n"


def test_a_table_of_something_else_is_refused():
    with pytest.raises(TypeError, match="the name of one, not a int"):
        extensions.PrintReport([], log_report=3)


# Bars.


def bars(tmp_path, out, stop=(8, "iteration"), **kwargs):
    trainer = counting(tmp_path, stop, length=4)
    trainer.extend(extensions.ProgressBar(update_interval=4, out=out, **kwargs))
    trainer.run()
    return out.writes


def fields(line):
    return [part for part in line.strip().split("  ") if "/s" not in part and "left" not in part]


@pytest.mark.parametrize(
    ("stop", "kwargs", "lines"),
    [
        ((8, "iteration"), {}, ["4 / 8 iterations 50.0%", "8 / 8 iterations 100.0%"]),
        ((2, "epoch"), {}, ["1 / 2 epochs 50.0%", "2 / 2 epochs 100.0%"]),
        (
            (2, "epoch"),
            {"training_length": (16, "iteration")},
            ["4 / 16 iterations 25.0%", "8 / 16 iterations 50.0%"],
        ),
    ],
    ids=["iterations", "epochs", "told"],
)
def test_a_bar_in_a_file_is_a_line(stop, kwargs, lines, tmp_path):
    writes = bars(tmp_path, Stream(), stop, **kwargs)
    assert [" ".join(fields(line)) for line in writes] == ["training " + line for line in lines]
    assert all(line.endswith("\n") for line in writes)


def test_a_bar_says_how_long_it_will_take(tmp_path):
    assert "/s  0:00:00 left\n" in bars(tmp_path, Stream())[1]


@pytest.mark.parametrize("seen", [True, False])
def test_ranks_to_whom_open_mpi_gives_terminals_look_where_its_own_output_goes(monkeypatch, seen):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.delenv("MPIR_CVAR_PMI_VERSION", raising=False)
    monkeypatch.setattr(progress_bar, "reaches_terminal", processes.reaches_terminal.__wrapped__)
    ours, of_rank = os.openpty()
    goes_to = of_rank if seen else subprocess.DEVNULL
    with (
        open(of_rank, "w") as out,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=goes_to) as launcher,
    ):
        monkeypatch.setattr(processes, "launcher", lambda: (launcher.pid, os.getpid()))
        assert progress_bar.is_terminal(out)  # a terminal that the program has opened
        monkeypatch.setattr(out, "fileno", lambda: 1)
        assert progress_bar.is_terminal(out) == seen
        launcher.stdin.close()
    os.close(ours)


def test_a_bar_on_a_terminal_is_drawn_in_place_and_wiped_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)  # as if it were not installed
    writes = bars(tmp_path, Stream(terminal=True), bar_length=10)
    assert writes[0].startswith("\r\033[Ktraining [#####.....] 4 / 8 iterations  50.0%")
    assert writes[-1] == "\r\033[K"
    assert not any("\n" in text for text in writes)


def test_a_bar_on_a_terminal_is_drawn_by_tqdm(tmp_path, monkeypatch):
    # no thread that stays: it would keep later tests from forking
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)
    text = "".join(bars(tmp_path, Stream(terminal=True), bar_length=10))
    assert "training  50%|#####     | 4/8 iterations" in text
    assert "\n" not in text


def test_a_bar_in_a_notebook_is_drawn_in_place(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(progress_bar, "ipython_shell", lambda: "a shell")
    monkeypatch.setattr(sys, "stdout", Stream())
    writes = bars(tmp_path, sys.stdout, bar_length=10)
    assert writes[0].startswith("\r\033[Ktraining [#####.....] 4 / 8 iterations  50.0%")
    assert writes[-1] == "\r\033[K"


def test_a_bar_needs_to_know_the_length(tmp_path):
    trainer = counting(tmp_path, lambda trainer: trainer.updater.iteration == 100)
    trainer.extend(extensions.ProgressBar())
    with pytest.raises(TypeError, match="does not say how long training is"):
        trainer.run()


# Pictures.

PNG = b"\x89PNG\r\n"


def test_curves_are_drawn_and_go_on(tmp_path):
    seen = []

    def make(stop):
        trainer = counting(tmp_path, (stop, "iteration"), length=4, x=X, y=X)
        post = lambda figure, axes, summary: seen.append(
            [line.get_xydata().tolist() for line in axes.get_lines()]
        )
        trainer.extend(
            extensions.PlotReport(
                ["x", "y", "z"], "epoch", trigger=(4, "iteration"), postprocess=post
            )
        )
        return trainer

    first = make(6)
    second = make(12)
    told = "^PlotReport: nothing has reported 'z'; reported were epoch, iteration, x, y$"
    with pytest.warns(UserWarning, match=told):
        first.run()
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
    load(saved(first), second)
    with pytest.warns(UserWarning, match=told):
        second.run()
    curve = [[1.0, 3.5], [2.0, 31.5], [3.0, 91.5]]
    assert seen == [[curve[:1]] * 2, [curve[:2]] * 2, [curve] * 2]
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


@pytest.mark.parametrize(
    "make",
    [
        lambda keys: extensions.PrintReport(keys, out=Stream()),
        lambda keys: extensions.PlotReport(keys, trigger=(4, "iteration")),
        lambda keys: extensions.LogReport(keys, trigger=(4, "iteration"), filename=None),
    ],
    ids=["table", "plot", "log"],
)
def test_keys_that_are_never_reported_are_told_misspelt_ones_at_once(tmp_path, recwarn, make):
    def shown(keys, **values):
        recwarn.clear()
        trainer = counting(tmp_path, (12, "iteration"), length=4, **values)
        trainer.extend(extensions.LogReport())
        report = make(keys)
        trainer.extend(report)
        trainer.extend(lambda trainer: seen.append(len(recwarn)), name="look")
        seen = []
        trainer.run()
        assert all(one.filename == __file__ for one in recwarn)
        kind = type(report).__name__
        return [str(one.message).removeprefix(f"{kind}: ") for one in recwarn], seen

    late = [None] * 8 + X
    told, seen = shown(["main/loss", "main/acuracy"], **{"main/loss": X, "main/accuracy": X})
    assert told == ["nothing reports 'main/acuracy': did you mean 'main/accuracy'?"]
    assert (min(seen), max(seen)) == (0, 1)
    told, seen = shown(["main/loss", "nothing", "late"], **{"main/loss": X, "late": late})
    assert [one.partition(";")[0] for one in told] == ["nothing has reported 'nothing'"]
    assert set(seen) == {0}
    told, _ = shown(["main/loss1", "main/loss2"], **{"main/loss1": X, "main/loss2": late})
    assert told == []


def test_keys_that_might_have_come_are_not_told_after_an_error(tmp_path):
    trainer = counting(tmp_path, (12, "iteration"), length=4, x=X)
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.PrintReport(["x", "later"], out=Stream()))

    @trainer.extend
    def stop(trainer):
        if trainer.updater.iteration == 6:
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        trainer.run()


def test_curves_have_the_name_and_format_that_they_are_told(tmp_path):
    trainer = counting(tmp_path, (5, "iteration"), x=X)
    trainer.extend(extensions.PlotReport("x", filename="a.svg", marker=None, grid=False))
    trainer.extend(extensions.PlotReport("x", file_name="b.pdf"))
    trainer.run()
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")


STATISTICS = {
    "all": {},
    "mean": {"plot_std": False, "percentile_sigmas": ()},
    "std": {"plot_mean": False, "percentile_sigmas": ()},
    "percentiles": {"plot_mean": False, "plot_std": False, "percentile_sigmas": (10, 90)},
    "one percentile of values": {"percentile_sigmas": 50, "report_grad": False},
    "gradients": {"report_data": False},
    "few": {"max_sample_size": 2},
}


@pytest.mark.parametrize("kwargs", STATISTICS.values(), ids=STATISTICS)
def test_statistics_of_variables_are_drawn(kwargs, tmp_path):
    trainer = counting(tmp_path, (5, "iteration"))
    model = trainer.updater.model
    model.w.array, model.w.grad = np.array([1.0, 3.0], "f"), np.array([0.0, 2.0], "f")
    plot = extensions.VariableStatisticsPlot([model, mnpar.Variable(np.array([8.0]))], **kwargs)
    trainer.extend(plot)
    trainer.run()
    assert (tmp_path / "statistics.png").read_bytes().startswith(PNG)
    iterations = [iteration for iteration, _ in plot._samples]
    assert len(iterations) == min(5, kwargs.get("max_sample_size", 5))
    assert set(iterations) <= {1, 2, 3, 4, 5}
    if not kwargs:
        of = [[1.0, 3.0, 8.0], [0.0, 2.0]]
        percentiles = (0, 0.13, 2.28, 15.87, 50, 84.13, 97.72, 99.87, 100)
        expected = [[np.mean(x), np.std(x), *np.percentile(x, percentiles)] for x in of]
        np.testing.assert_allclose(plot._samples[0][1], expected, rtol=1e-6)


def test_each_iteration_has_the_same_chance_to_be_drawn():
    counts = np.zeros(10)
    plot = extensions.VariableStatisticsPlot(
        mnpar.Variable(np.ones(1)), 3, report_grad=False, percentile_sigmas=()
    )
    for _ in range(1000):
        plot._samples, plot._seen = [], 0
        for i in range(10):
            plot._sample(i)
        counts[[i for i, _ in plot._samples]] += 1
    assert abs(counts - 300).max() < 60  # four standard deviations


@pytest.mark.parametrize(
    "arguments",
    [([],), (mnpar.Variable(np.ones(1)), 9, False, False)],
    ids=["no variable", "nothing of it"],
)
def test_nothing_to_draw_is_refused(arguments):
    with pytest.raises(ValueError, match="nothing to draw"):
        extensions.VariableStatisticsPlot(*arguments)


def test_without_matplotlib_nothing_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not extensions.PlotReport.available()
    trainer = counting(tmp_path, (5, "iteration"), x=X)
    with pytest.warns(UserWarning, match="draws nothing: matplotlib is missing"):
        trainer.extend(extensions.PlotReport("x"))
    with pytest.warns(UserWarning, match="draws nothing"):
        trainer.extend(extensions.VariableStatisticsPlot(trainer.updater.model))
    trainer.run()
    assert list(tmp_path.iterdir()) == []


# Ranks.


@pytest.mark.ranks(3, on="threads")
def test_rank_0_speaks_for_all_and_the_others_if_they_are_asked(comm, tmp_path_factory):
    folder = comm.bcast_obj(tmp_path_factory.mktemp("out") if comm.rank == 0 else None)
    out = Stream()
    before, sys.stdout = sys.stdout, out  # of all thread ranks, one after the other
    comm.barrier()
    try:
        logged(
            folder,
            extensions.LogReport(filename=f"own_{comm.rank}"),
            extensions.PrintReport(["epoch"]),
            extensions.ProgressBar(update_interval=6),
            comm=comm,
        )
    finally:
        comm.barrier()
        sys.stdout = before
    writes = [line for lines in comm.allgather_obj(out.writes) for line in lines]
    assert len([line for line in writes if line.startswith("training")]) == 2
    assert [line.split() for line in writes if not line.startswith("training")] == [
        ["epoch"],
        ["1"],
        ["2"],
        ["3"],
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["log", "own_0", "own_1", "own_2"]
    asked = Stream()
    logged(folder, extensions.PrintReport(["epoch"], out=asked), comm=comm)
    assert len(asked.writes) == 4
