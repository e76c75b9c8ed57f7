"""Grade all exercises: ``pytest course``, or some of them: ``pytest course -k ring_sum``."""

import functools
import runpy
from pathlib import Path
from traceback import extract_tb

import pytest
from grading import by_number, fault

HERE = Path(__file__).parent


@functools.cache
def answers(lesson, solutions):
    """Run a lesson, or its solutions; return the file and its names, or the error it stops with."""
    (path,) = (HERE / "solutions" if solutions else HERE).glob(f"{lesson}_*.py")
    try:
        return path, runpy.run_path(str(path))
    except Exception as error:
        lines = [one.lineno for one in extract_tb(error.__traceback__) if one.filename == str(path)]
        where = f" at line {lines[-1]}" if lines else ""
        return path, f"{path.name} stops{where}: {type(error).__name__}: {error}"


@pytest.mark.parametrize("exercise", by_number(), ids=lambda one: f"{one.number}-{one.name}")
def test_exercise(exercise, request):
    path, names = answers(exercise.lesson, request.config.getoption("--solutions"))
    if isinstance(names, str):
        pytest.fail(names, pytrace=False)
    answer = names.get(exercise.name)
    if answer is None:
        pytest.fail(f"{path.name} defines no {exercise.name}", pytrace=False)
    wrong = fault(exercise.name, answer)
    if wrong:
        pytest.fail(f"exercise {exercise.number}, {exercise.name}: {wrong}", pytrace=False)
