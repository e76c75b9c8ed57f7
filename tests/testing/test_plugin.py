"""The pytest plugin, seen from outside: which tests it makes, and what it shows of ranks that fail, die or leave mail."""

import os
import re
import subprocess

import pytest

from tests.scripts import QUIET, stand_in_for

INI = "[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n"


@pytest.fixture
def session(tmp_path):
    """Runs pytest on a test file in a process of its own: outcomes by test, and what it wrote."""

    def run(text, *options):
        (tmp_path / "pytest.ini").write_text(INI)
        (tmp_path / "test_it.py").write_text(f"import os, signal\nimport numpy as np\nimport pytest\nimport mnpar\n{text}")
        command = [*stand_in_for("-m", "pytest"), *QUIET, "-p", "no:cacheprovider", "-v", "--rank-timeout", "20", *options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
            "MNPAR_STALL": "1"
        }
        done = subprocess.run(
            [*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        pairs = re.findall(r"^test_it\.py::(\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)", done.stdout, re.MULTILINE)
        return dict(pairs), done.stdout + done.stderr, done.returncode

    return run


def expected(size, **outcomes):
    return {f"{test}[{on}-{size}]": outcome for test, outcome in outcomes.items() for on in ("threads", "mpi")}


def test_a_test_that_takes_comm_runs_on_one_to_four_thread_ranks(session):
    outcomes, _, code = session(
        "def test_it(comm):\n    assert comm.name == 'threads'\n    assert comm.allreduce_obj(1) == comm.size"
    )
    assert outcomes == {f"test_it[threads-{size}]": "PASSED" for size in (1, 2, 3, 4)}
    assert code == 0


def test_the_mark_chooses_sizes_and_kinds_and_the_option_narrows_them(session):
    text = """
@pytest.mark.ranks(2, 3)
def test_both(comm):
    assert comm.size in (2, 3)
    assert comm.allgather_obj(comm.rank) == list(range(comm.size))
@pytest.mark.ranks(2, on="threads")
def test_threads(comm):
    assert comm.name == "threads"
@pytest.mark.ranks(3, on="mpi")
def test_mpi(comm):
    assert comm.name == "mpi"
def test_none():
    pass
"""
    outcomes, _, code = session(text)
    names = [f"test_both[{on}-{size}]" for on in ("threads", "mpi") for size in (2, 3)]
    assert outcomes == dict.fromkeys([*names, "test_threads[threads-2]", "test_mpi[mpi-3]", "test_none"], "PASSED")
    assert code == 0
    outcomes, _, _ = session(text, "--ranks-on", "threads")
    passed = [name for name, outcome in outcomes.items() if outcome == "PASSED"]
    assert passed == ["test_both[threads-2]", "test_both[threads-3]", "test_threads[threads-2]", "test_none"]


def test_fixtures_parameters_skips_and_expected_failures_work_on_every_rank(session):
    outcomes, text, code = session("""
@pytest.fixture
def number():
    return 41
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.ranks(2)
def test_it(comm, number, step, tmp_path):
    assert comm.allreduce_obj(number + step) == 2 * (41 + step)
@pytest.mark.skip
@pytest.mark.ranks(2)
def test_skipped(comm):
    raise KeyError
@pytest.mark.xfail(strict=True)
@pytest.mark.ranks(2)
def test_expected(comm):
    raise KeyError
""")
    assert code == 0, text
    assert [outcome for test, outcome in outcomes.items() if test.startswith("test_it")] == ["PASSED"] * 4
    assert "4 passed, 2 skipped, 2 xfailed" in text


def test_a_failing_rank_is_shown_with_its_traceback_and_the_next_test_passes(session):
    outcomes, text, code = session("""
@pytest.mark.ranks(3)
def test_bad(comm):
    value = comm.rank * 100
    assert value != 100, "this rank has 100"
@pytest.mark.ranks(3)
def test_good(comm):
    comm.barrier()
""")
    assert outcomes == expected(3, test_bad="FAILED", test_good="PASSED")
    assert code == 1
    assert "on rank 1 of 3" in text  # threads: a note
    assert "---------- rank 1 of 3 ----------" in text
    report = text[text.index("---------- rank 1 of 3") :]
    assert "this rank has 100" in report
    assert re.search(r"test_it\.py:\d+: AssertionError", report)
    assert "rank 2 of 3" not in report


def test_a_rank_that_is_killed_costs_its_test_and_not_the_session(session):
    outcomes, text, _ = session("""
@pytest.mark.ranks(2, on="mpi")
def test_before(comm):
    comm.barrier()
@pytest.mark.ranks(2, on="mpi")
def test_killed(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
@pytest.mark.ranks(2, on="mpi")
def test_after(comm):
    assert comm.allreduce_obj(1) == 2
""")
    assert outcomes == {"test_before[mpi-2]": "PASSED", "test_killed[mpi-2]": "FAILED", "test_after[mpi-2]": "PASSED"}
    assert re.search(r"---------- rank [01, ]+ died or did not end within", text)


def test_ranks_are_sessions_of_their_own_where_the_session_may_have_begun_on_a_gpu(session):
    outcomes, text, _ = session("""
import sys
sys.modules.setdefault("jax", os)
@pytest.mark.ranks(2, on="mpi")
def test_good(comm):
    assert "worker" in sys.modules["__main__"].__file__
@pytest.mark.ranks(2, on="mpi")
def test_bad(comm):
    assert comm.rank == 0
""")
    assert outcomes == {"test_good[mpi-2]": "PASSED", "test_bad[mpi-2]": "FAILED"}, text
    assert "---------- rank 1 of 2 ----------" in text


def test_a_message_that_nobody_received_fails_its_test_and_no_other(session):
    outcomes, text, _ = session("""
@pytest.mark.ranks(2)
def test_stray(comm):
    if comm.rank == 0:
        comm.send(np.ones((2, 3)), 1, tag=9)
@pytest.mark.ranks(2)
def test_next(comm):
    comm.barrier()
""")
    assert outcomes == expected(2, test_stray="FAILED", test_next="PASSED")
    told = r"^E +AssertionError: messages that nobody received: from 0, tag 9: send of float64 \(2, 3\) at "
    assert len(re.findall(told, text.partition("short test summary")[0], re.MULTILINE)) == 2


def test_a_deadlock_fails_its_test_with_the_table(session):
    outcomes, text, _ = session("""
@pytest.mark.ranks(2)
def test_ring(comm):
    comm.recv(1 - comm.rank)
@pytest.mark.ranks(2)
def test_next(comm):
    comm.barrier()
""")
    assert outcomes == expected(2, test_ring="FAILED", test_next="PASSED")
    assert "no rank can go on" in text
    assert re.search(r"waits for ever in recv from rank [01], tag 0 at .*test_it\.py:\d+:\n.*rank 0: waits in recv", text)


def test_a_test_that_ranks_skip_while_it_runs_is_skipped_on_all_kinds_of_ranks(session):
    outcomes, text, code = session(
        """
@pytest.mark.ranks(2)
def test_all(comm):
    pytest.skip("not today")
@pytest.mark.ranks(2)
def test_one(comm):
    if comm.rank == 1:
        pytest.skip("not here")
@pytest.mark.ranks(2)
def test_next(comm):
    assert comm.allreduce_obj(1) == 2
""",
        "-rs",
    )
    assert code == 0, text
    assert outcomes == expected(2, test_all="SKIPPED", test_one="SKIPPED", test_next="PASSED")
    assert text.count("not today") == text.count("not here") >= 2


LEFT = """
@pytest.mark.ranks(2)
def test_expected(comm):
    pytest.xfail("not yet")
    raise KeyError
@pytest.mark.ranks(2)
def test_one(comm):
    if comm.rank == 1:
        pytest.xfail("not here")
    comm.barrier()
@pytest.mark.ranks(2)
def test_missing(comm):
    pytest.importorskip("no_such_module")
@pytest.mark.ranks(2)
def test_next(comm):
    assert comm.allreduce_obj(1) == 2
"""


@pytest.mark.parametrize("fork", [True, False], ids=["forks", "sessions of their own"])
def test_a_test_may_be_left_in_all_of_pytests_ways_on_all_kinds_of_ranks(session, fork):
    text = LEFT if fork else f"import sys\nsys.modules.setdefault('jax', os)\n{LEFT}"
    outcomes, said, code = session(text, "-rxs")
    assert code == 0, said
    assert outcomes == expected(2, test_expected="XFAIL", test_one="XFAIL", test_missing="SKIPPED", test_next="PASSED")
    assert said.count("not yet") == said.count("not here") >= 2
    outcomes, said, code = session(text, "--runxfail")
    assert outcomes == expected(2, test_expected="FAILED", test_one="PASSED", test_missing="SKIPPED", test_next="PASSED")


@pytest.mark.parametrize("on", ["threads", "mpi"])
def test_a_rank_may_end_the_session(session, on):
    text = f"""
@pytest.mark.ranks(2, on={on!r})
def test_it(comm):
    if comm.rank == 1:
        pytest.exit("enough", returncode=7)
def test_next():
    pass
"""
    outcomes, said, code = session(text)
    assert (outcomes, code) == ({}, 7)
    assert "Exit: enough" in said


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one process", "two"])
def test_the_ranks_leave_a_given_folder_of_temporary_files_as_it_is(session, tmp_path_factory, options):
    folder = tmp_path_factory.mktemp("given") / "base"
    outcomes, text, code = session(
        """
@pytest.mark.ranks(3, on="mpi")
@pytest.mark.parametrize("number", range(3))
def test_mine(comm, tmp_path, number):
    (tmp_path / "mine").write_text("mine")
    comm.barrier()
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
""",
        "--basetemp", str(folder), *options,
    )  # fmt: skip
    assert code == 0, text
    assert set(outcomes.values()) == {"PASSED"}
    assert len([name for name in os.listdir(folder) if name.startswith("test_mine")]) >= 3 * 4
