"""Sessions that are shared by processes, and grids of which a part runs, seen from outside."""

import itertools
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ET

import pytest

from mnpar.testing import grids, processes, product
from tests.harness.scripts import QUIET, client_for

MANY = """
@pytest.mark.parametrize("n", range(40))
def test_many(n):
    assert os.listdir("/proc/self/task") == [str(os.getpid())], "threads of BLAS burn a core"
"""
ON_MPI = "@pytest.mark.ranks(2, on='mpi')\ndef test_mpi(comm):\n    comm.barrier()\n"


@pytest.fixture
def start(tmp_path):
    """Starts pytest on files of these names and texts, in two processes."""

    def begin(*options, **texts):
        (tmp_path / "pytest.ini").write_text(
            "[pytest]\naddopts = --strict-markers -p mnpar.testing.options --processes 2\n"
        )
        for name, text in texts.items():
            (tmp_path / f"test_{name}.py").write_text(
                f"import os, signal, time, warnings\nimport pytest\n{text}"
            )
        command = [
            *client_for("-m", "pytest"),
            *QUIET,
            "-p",
            "no:cacheprovider",
            *options,
            str(tmp_path),
        ]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        }
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return begin


def ended(process):
    text, _ = process.communicate(timeout=60)
    return text, process.returncode


RANKS = """
@pytest.mark.ranks(2)
def test_ranks(comm):
    assert comm.allreduce_obj(os.getpid()) > 0
@pytest.mark.ranks(2, on="mpi")
def test_rank_1_fails(comm):
    assert comm.rank != 1, "it is rank 1"
"""
TROUBLE = """
def test_before():
    print("said by the test")
    warnings.warn("told by the test")
    assert os.getppid() == 0, "it fails"
def test_that_dies():
    os.kill(os.getpid(), signal.SIGKILL)
@pytest.mark.skip(reason="why not")
def test_skipped():
    pass
def test_after(tmp_path, capsys):
    print(5)
    assert capsys.readouterr().out == "5\\n"
"""


def test_files_of_many_tests_begin_first_and_the_others_follow_from_the_last():
    files = [[0], [*range(1, 401)], [401, 402], [*range(403, 1000)]]
    shares = processes._Shares(None, 2, files, None)
    assert [file[0] for file in shares._tests([])] == [403, 1, 401, 0]
    os.close(shares._queue)
    shares._selector.close()


def test_a_shared_session_reports_what_one_process_would(start, tmp_path):
    text, code = ended(
        start(
            "-v",
            "--junitxml",
            str(tmp_path / "it.xml"),
            a=MANY + ON_MPI,
            b=MANY + ON_MPI,
            ranks=RANKS,
            trouble=TROUBLE,
        )
    )
    assert code == 1, text
    assert "3 failed, 85 passed, 1 skipped, 1 warning" in text
    outcomes = dict(
        re.findall(r"^test_(?:ranks|trouble)\.py::test_(\S+) (PASSED|FAILED|SKIPPED)", text, re.M)
    )
    assert outcomes == {
        "ranks[threads-2]": "PASSED",
        "ranks[mpi-2]": "PASSED",
        "rank_1_fails[mpi-2]": "FAILED",
        "before": "FAILED",
        "that_dies": "FAILED",
        "skipped": "SKIPPED",
        "after": "PASSED",
    }
    assert "the process that ran this test was ended by SIGKILL" in text
    for said in (
        "said by the test",
        "UserWarning: told by the test",
        "AssertionError: it fails",
        "why not",
    ):
        assert said in text
    assert re.search(
        r"---------- rank 1 of 2 ----------\n(.|\n)*test_ranks\.py:\d+: AssertionError", text
    )
    shown = [line.partition("::")[0] for line in text.splitlines() if "::" in line and "%]" in line]
    # the files' lines do not mix
    assert sum(one != other for one, other in itertools.pairwise(shown)) == 3
    suite = ET.parse(tmp_path / "it.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("89", "3", "1")


SLOW = """
# while it collects: as nohup and the shell's & leave it
signal.signal(signal.SIGINT, signal.SIG_IGN)
def test_slow():
    try:
        open("began", "w").close()
        time.sleep(60)
    except KeyboardInterrupt:
        open("interrupted", "w").close()
        raise
"""
BAD = """
def test_bad():
    while not os.path.exists("began"):
        time.sleep(0.02)
    assert False
"""


def test_it_ends_at_the_first_failure_if_it_is_told_so(start, tmp_path):
    begin = time.monotonic()
    text, code = ended(start("-x", "-q", a=MANY, b=MANY, c=SLOW, d=BAD))
    assert (
        tmp_path / "interrupted"
    ).exists()  # a process is not killed, though its session ignores Ctrl-C
    assert code == 1
    assert "stopping after 1 failures" in text
    assert "1 failed" in text
    assert time.monotonic() - begin < 40


def test_ctrl_c_ends_all_processes(start, tmp_path):
    wait = (
        "def test_slow():\n    open(os.path.join(os.path.dirname(__file__), str(os.getpid())), "
        "'w')\n    time.sleep(60)\n"
    )
    process = start("-q", a=MANY, b=MANY, c=wait, d=wait)
    deadline = time.monotonic() + 30
    while len(pids := [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    text, code = ended(process)
    assert code == 2
    assert "KeyboardInterrupt" in text
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_few_tests_and_tests_that_are_looked_at_run_in_the_session(start):
    alone = (
        "SESSION = os.getpid()  # it collects\ndef test_it():\n    assert os.getpid() == SESSION\n"
    )
    assert ended(start("-q", a=alone, b=alone))[1] == 0
    assert ended(start("-q", "-s", a=MANY, b=MANY, c=alone))[1] == 0
    assert ended(start("-q", a=MANY, b=MANY, c=alone))[1] == 1


GRID = """
@pytest.mark.grid
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", range(3))
def test_grid(a, b, c):
    pass
"""


@pytest.mark.parametrize(
    ("options", "number"),
    [((), 10), (("--sweep",), 27), (("-k", "grid"), 27)],
    ids=["plain", "sweep", "named"],
)
def test_a_grid_runs_in_part_unless_it_is_swept_or_named(start, options, number):
    text, code = ended(start("-q", *options, a=GRID))
    assert code == 0
    assert f"{number} passed" in text
    assert ("17 deselected" in text) == (number == 10)


@pytest.mark.parametrize(
    "sizes", [(1,), (5,), (2, 3), (3, 3, 3), (2, 5, 4, 3), (8, 21, 2)], ids=str
)
def test_a_part_covers_every_pair_of_values_and_is_not_much_more_than_that(sizes):
    grid = product([list(range(n)) for n in sizes])
    part = [grid[number] for number in grids.cover(grid)]
    for i in range(len(sizes)):
        for j in range(i):
            assert {(values[i], values[j]) for values in part} == {
                (a, b) for a in range(sizes[i]) for b in range(sizes[j])
            }
        assert {values[i] for values in part} == set(range(sizes[i]))
    largest = sorted(sizes)[-2:]
    assert len(part) <= 1.5 * largest[0] * largest[-1] or len(sizes) == 1
