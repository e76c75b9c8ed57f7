"""Benchmarks are listed and run by name; what several find is kept and compared; the walks
through mnpar can be counted.
"""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import machine, report, walks
from benchmarks.__main__ import SHARED, SUITE, benchmarks, docstrings, ranks_of

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
    assert len(re.findall(r"^\S.* \d+ files, +\d+ changes of file$", done.stdout, re.M)) == len(
        walks.WALKS
    )
    assert "    communicators/communicator.py\n" in done.stdout


def test_a_name_that_is_none_is_told():
    done = run("nothing")
    assert done.returncode == 1
    assert done.stderr.startswith("there is no benchmark nothing, only ")


def test_the_suite_has_benchmarks_that_exist():
    assert [name for name in SUITE if name not in benchmarks()] == []


def test_what_benchmarks_use_of_mnpar_is_there():
    names = [f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("[!_]*.py")]
    code = f"""
import importlib
for name in {sorted(names)}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in ("mnpar", "benchmarks"):
            raise
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_a_benchmark_of_ranks_is_started_on_as_many_as_its_first_command():
    ranks = {name: ranks_of(doc) for name, doc in docstrings().items()}
    assert (ranks["steps"], ranks["communication"], ranks["spatial"]) == (0, 0, 0)
    assert (ranks["data_parallel"], ranks["pipeline"], ranks["pipeline_bubble"]) == (2, 2, 4)


def row(name, **seconds):
    return {"benchmark": "steps", "name": name, "seconds": seconds}


def test_rows_are_compared_by_the_ratio_to_the_peer_that_both_runs_had():
    before = {"rows": [row("a", mnpar=1.0, torch=1.0), row("b", mnpar=1.0), row("gone", mnpar=1.0)]}
    after = {"rows": [row("a", mnpar=4.0, torch=2.0), row("b", mnpar=0.5), row("new", mnpar=1.0)]}
    assert report.changes(before, after) == {("steps", "a"): 2.0, ("steps", "b"): 0.5}


def test_several_benchmarks_keep_what_they_find_and_are_compared_with_an_earlier_run(tmp_path):
    old, new, picture = tmp_path / "old.json", tmp_path / "new.json", tmp_path / "suite.png"
    command = ("overhead", "--json", str(new))
    assert run(*command).returncode == 0
    found = report.read(new)
    assert [one["name"] for one in found["rows"]] == ["forward", "forward and backward"]
    assert found["machine"]["products"] > 0
    assert found["machine"]["copies"] > 0
    for one in found["rows"]:
        one["seconds"] = {"mnpar": one["seconds"]["mnpar"] / 1e3, "torch": 1.0}
    old.write_text(json.dumps({"machine": {}, "rows": found["rows"]}), encoding="utf-8")
    done = run(*command, "--compare", str(old))
    assert done.returncode == 0, done.stderr
    assert "2 rows in both: 2 slower, 0 faster" in done.stdout
    assert "on another machine" in done.stdout
    report.plot(picture, found)
    assert picture.read_bytes()[1:4] == b"PNG"


def test_a_page_gets_the_tables_of_what_ran_in_place_of_those_that_it_had(tmp_path):
    page = tmp_path / "performance.md"
    begin, end = report.MARKS
    first, last = "### overhead\n\n| first |\n\n", "### spatial\n\n| last |\n\n"
    old = f"{first}### steps\n\nold\n\n{last}"
    page.write_text(f"before\n{begin}\n\n{old}{end}\nafter\n", encoding="utf-8")
    facts = {"limit": 0.0005, "bytes": {"mnpar": 3 * 2**20, "torch": 2**20}}
    found = {
        "machine": machine.facts(),
        "rows": [
            row("a | b", mnpar=0.002, torch=0.003) | facts,
            row("c", mnpar=3e-6, torch=None),
            row("d", mnpar=1.0) | {"benchmark": "pipeline"},
        ],
    }
    told = machine.told(found["machine"])
    for _ in range(2):
        report.put_into_page(page, found)
        assert page.read_text(encoding="utf-8") == (
            f"before\n{begin}\n\n{first}"
            "### steps\n\n"
            "|  | mnpar | torch | limit | MB |\n"
            "|---|--:|--:|--:|--:|\n"
            "| a \\| b | 2 ms | 1.50 | 25% | 3 / 1 |\n"
            "| c | 3 µs |  |  |  |\n\n"
            f"{told}.\n\n"
            f"{last}"
            "### pipeline\n\n"
            "|  | mnpar |\n"
            "|---|--:|\n"
            "| d | 1e+03 ms |\n\n"
            f"{told}.\n\n{end}\nafter\n"
        )


def test_a_page_without_marks_is_told(tmp_path):
    page = tmp_path / "page.md"
    page.touch()
    with pytest.raises(SystemExit, match="has no lines"):
        report.put_into_page(page, {"machine": {}, "rows": []})


@pytest.mark.parametrize(
    "flags", [["relu"], ["--chainer", "python", "relu"], ["--threads", "2"]], ids=" ".join
)
def test_no_table_of_a_page_is_replaced_by_a_part_of_it(tmp_path, flags):
    page = tmp_path / "page.md"
    text = "\n".join(report.MARKS)
    page.write_text(text, encoding="utf-8")
    done = run("functions", *flags, "--page", str(page))
    assert done.returncode == 1
    assert done.stderr.startswith(f"--page replaces whole tables of {page}: leave out ")
    assert done.stdout == ""
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"machine": 3, "rows": []}'])
def test_a_file_that_is_no_earlier_run_is_told_before_anything_is_measured(tmp_path, text):
    path = tmp_path / "old.json"
    path.write_text(text, encoding="utf-8")
    done = run("overhead", "--compare", str(path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"{path} is no file that --json has written")
    assert done.stdout == ""


LEARNS = """
import mnpar.functions as F
from benchmarks import steps
for name in steps.NETWORKS:
    step = steps.ours(name, steps.STEP)
    x, t = steps.data(name)
    before = F.softmax_cross_entropy(step.model(x), t).item()
    step()
    print(name, F.softmax_cross_entropy(step.model(x), t).item() < before, sep=": ")
"""


def test_each_network_of_the_steps_learns():
    # in a process of its own: the benchmark sets the number of threads
    done = subprocess.run(
        [sys.executable, "-c", LEARNS], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 9
    assert [line for line in lines if not line.endswith(": True")] == []


@pytest.mark.parametrize("name", walks.WALKS)
def test_a_walk_is_the_same_each_time(name):
    files = walks.walk(*walks.WALKS[name])
    assert files
    assert all(one != other for one, other in pairwise(files))
    assert files == walks.walk(*walks.WALKS[name])
