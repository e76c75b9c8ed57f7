"""Benchmarks are listed and run by name; the three walks through mnpar can be counted."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import walks
from benchmarks.__main__ import SHARED, benchmarks

ROOT = Path(__file__).parents[1]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def test_every_benchmark_is_listed_with_what_it_measures():
    done = run()
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"^(\w+)  +\S", done.stdout, re.M)
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - set(SHARED)
    assert listed == list(benchmarks()) == sorted(files)


def test_a_benchmark_runs_by_its_name():
    done = run("walks", "--files")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\S.* \d+ files, +\d+ changes of file$", done.stdout, re.M)) == 3
    assert "    communicators/communicator.py\n" in done.stdout


def test_a_name_that_is_none_is_told():
    done = run("nothing")
    assert done.returncode == 1
    assert done.stderr.startswith("there is no benchmark nothing, only ")


@pytest.mark.parametrize("name", walks.WALKS)
def test_a_walk_is_the_same_each_time(name):
    files = walks.walk(*walks.WALKS[name])
    assert files
    assert all(one != other for one, other in pairwise(files))
    assert files == walks.walk(*walks.WALKS[name])
