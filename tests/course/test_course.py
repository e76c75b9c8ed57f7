"""Lessons run as notebooks, on threads and under mpiexec, and print the same; stubs fail
the graders, solutions pass, and wrong answers are told why.
"""

import functools
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mnpar.runtime.mpiexec import mpiexec_command
from tests.harness.scripts import run_script

COURSE = Path(__file__).parents[2] / "course"
LESSONS = sorted(path.stem for path in COURSE.glob("[0-9]*.py"))
sys.path.append(str(COURSE))  # where lessons find what they share

import classroom  # noqa: E402
from grading import by_number, fault  # noqa: E402

from tests.course.answers import WRONG  # noqa: E402

EXERCISES = by_number()


@functools.cache
def names_of(path):
    """Return what a lesson, or its solutions, define."""
    return runpy.run_path(str(path))


@pytest.fixture(autouse=True)
def definitions(monkeypatch):
    """No verdicts and pictures while answers are taken from lessons."""
    monkeypatch.setattr(classroom, "graded_by_pytest", True)


def lesson_of(exercise, folder=COURSE):
    (path,) = folder.glob(f"{exercise.lesson}_*.py")
    return path


# ---- exercises ----


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
def test_a_stub_fails_and_the_solution_passes(exercise):
    stub = names_of(lesson_of(exercise))[exercise.name]
    solution = names_of(lesson_of(exercise, COURSE / "solutions"))[exercise.name]
    assert re.match("still to do|it never ends", fault(exercise.name, stub))
    assert fault(exercise.name, solution) == ""


@pytest.mark.parametrize(
    ("exercise", "answer", "says"), WRONG, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_wrong_answer_is_told_what_is_wrong(exercise, answer, says):
    told = fault(exercise, answer)
    assert re.search(says, re.sub(r"\n +", "\n", told)), told
    assert len(told.splitlines()) <= 20


def test_each_exercise_has_a_wrong_answer():
    assert {exercise for exercise, _, _ in WRONG} == {one.name for one in EXERCISES}


def test_exercises_stand_in_the_lessons_under_their_numbers():
    found = []
    for lesson in LESSONS:
        text = (COURSE / f"{lesson}.py").read_text()
        found += re.findall(r"^# ### Exercise ([\d.]+):.*?^grade\((\w+)\)", text, re.S | re.M)
    assert found == [(one.number, one.name) for one in EXERCISES]
    assert len({one.lesson for one in EXERCISES}) == len(LESSONS) == 7


def graded(*flags):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "course", *flags],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=COURSE.parent,
    )
    return done.returncode, done.stdout + done.stderr


def test_pytest_grades_the_lessons():
    code, text = graded("-k", "1.")
    assert code == 1
    assert "exercise 1.1, allreduce_by_hand: still to do: write it in place of" in text
    assert "0 of 3 exercises are right. Next: 1.1, allreduce_by_hand" in text
    assert "Traceback" not in text
    assert len(text.splitlines()) < 20


def test_pytest_grades_the_solutions():
    code, text = graded("-k", "1.", "--solutions")
    assert code == 0
    assert "3 passed" in text


def test_a_lesson_that_stops_says_where(tmp_path):
    for path in ("conftest.py", "pytest.ini", "test_exercises.py"):
        (tmp_path / path).write_text((COURSE / path).read_text())
    for path in ("classroom.py", "grading"):
        (tmp_path / path).symlink_to(COURSE / path)
    (tmp_path / "1_ranks.py").write_text("x = 1\n\ny = x + z\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", ".", "-k", "my_block"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert "1_ranks.py stops at line 3: NameError: name 'z' is not defined" in done.stdout


# ---- lessons ----


def started(lesson, ranks, folder, **environment):
    """Run a lesson under mpiexec, or on threads: 0 ranks."""
    command, env = mpiexec_command(ranks or 1)
    env |= {"OMP_NUM_THREADS": "1", **environment}
    return run_script(COURSE / f"{lesson}.py", (), env, folder, command if ranks else ())


def told(done):
    """Return the lines that a lesson prints, without those of times and files; sorted, as processes
    print when they like.
    """
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    measured = re.compile(r"[\d.]+ s on \d ranks$|rank \d: computes|mpiexec -n 3|a picture")
    return sorted([line for line in lines if not measured.match(line)])


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_prints_the_same_under_mpiexec(lesson, tmp_path):
    threads, processes = started(lesson, 0, tmp_path), started(lesson, 4, tmp_path)
    assert told(threads) == told(processes)


@pytest.mark.parametrize(("lesson", "ranks"), [(one, 2 + i % 2) for i, one in enumerate(LESSONS)])
def test_a_lesson_runs_on_any_number_of_ranks(lesson, ranks, tmp_path):
    assert told(started(lesson, ranks, tmp_path))


def errors(done):
    """Return the lines that a refused lesson prints; Open MPI's launcher has a word of its own."""
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if "error:" in line]


def test_one_rank_is_refused_in_one_line(tmp_path):
    done = started("1_ranks", 1, tmp_path)
    assert done.returncode == 2
    (line,) = errors(done)
    assert line.startswith("1_ranks.py: error: a lesson needs 2 ranks or more, and 1 was started")


def test_more_ranks_than_there_are_are_refused_in_one_line(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        f"import sys\nsys.path.append({str(COURSE)!r})\nfrom classroom import run\n"
        "def mine(comm):\n    return comm.rank\nrun(mine, ranks=3)\n"
    )
    command, env = mpiexec_command(2)
    done = run_script(script, (), env, tmp_path, command)
    assert done.returncode == 2
    assert errors(done) == ["mine.py: error: mine needs 3 ranks, and mpiexec started 2"]


def test_without_matplotlib_a_lesson_goes_on(tmp_path):
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "mine.py").write_text(
        f"import importlib.util, runpy, sys\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'matplotlib' else find(name)\n"
        f"sys.path.append({str(COURSE)!r})\n"
        f"runpy.run_path({str(COURSE / '4_ring.py')!r})\n"
    )
    done = run_script(tmp_path / "mine.py", (), mpiexec_command(1)[1], tmp_path)
    assert done.returncode == 0
    assert "result/ring.png was not drawn: pip install matplotlib\n" in done.stdout


def test_without_mpiexec_a_lesson_goes_on(monkeypatch, capsys):
    def missing(ranks):
        raise classroom.LauncherError("no mpiexec")

    monkeypatch.setattr(classroom, "graded_by_pytest", False)
    monkeypatch.setattr(classroom, "mpiexec_command", missing)
    classroom.start_processes("5_pipeline.py", 3)
    assert capsys.readouterr().out == "this needs mpiexec: no mpiexec\n"


def test_without_jupyter_the_command_says_what_to_install(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import importlib.util, runpy\nimportlib.util.find_spec = lambda name: None\n"
        f"runpy.run_path({str(COURSE / '__main__.py')!r}, run_name='__main__')\n"
    )
    done = run_script(script, (), mpiexec_command(1)[1], tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "course: error: jupyterlab and jupytext missing: pip install -e '.[course]'\n"
    )


def test_the_pipelines_losses_are_those_of_one_rank():
    """As lesson 5 says."""
    with np.errstate(all="raise"):
        names = names_of(COURSE / "5_pipeline.py")
    import mnpar
    import mnpar.links as L

    def whole(comm):
        first, last = names["make_stages"]()
        model = L.Classifier(mnpar.Sequential(first, last.predictor))
        optimizer = mnpar.optimizers.SGD(0.5).setup(model)
        losses = []
        for _ in range(5):
            optimizer.update(
                lambda: losses.append(model(names["inputs"], names["labels"])) or losses[-1]
            )
        return [loss.item() for loss in losses]

    with mnpar.using_config("dtype", np.dtype("f8")):
        (expected,) = mnpar.run(whole, 1)
    np.testing.assert_allclose(names["losses"], expected, rtol=1e-12)


# ---- notebooks ----


def notebook(lesson):
    jupytext = pytest.importorskip("jupytext", reason="pip install 'mnpar[course]'")
    return jupytext.reads((COURSE / f"{lesson}.py").read_text(), "py:percent")


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_a_notebook(lesson):
    cells = notebook(lesson).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith(f"# {lesson[0]}. ")
    assert [cell.cell_type for cell in cells].count("code") >= 9
    assert max(len(cell.source.splitlines()) for cell in cells) <= 45


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_notebook_that_is_saved_is_the_same_file(lesson):
    import_or_skip = notebook(lesson)
    import jupytext

    text = (COURSE / f"{lesson}.py").read_text()
    assert jupytext.writes(import_or_skip, "py:percent") == text


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_notebook_runs_and_shows_its_pictures(lesson, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="pip install 'mnpar[course]'")
    pytest.importorskip("ipykernel", reason="pip install 'mnpar[course]'")
    cells = notebook(lesson)
    # as in the folder of the lessons; pictures go elsewhere
    monkeypatch.setenv("PYTHONPATH", str(COURSE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    client = nbclient.NotebookClient(
        cells, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [out for cell in cells.cells if cell.cell_type == "code" for out in cell.outputs]
    assert [out for out in outputs if out.get("name") == "stderr"] == []
    shown = [name for out in outputs for name in out.get("data", ()) if name == "image/png"]
    text = "".join([out.text for out in outputs if out.output_type == "stream"])
    assert len(shown) == text.count("a picture: ") == cells_with_pictures(lesson)
    assert text.count("exercise ") == 3


def cells_with_pictures(lesson):
    return (COURSE / f"{lesson}.py").read_text().count("\npicture(")
