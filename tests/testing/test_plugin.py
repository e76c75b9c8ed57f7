"""The pytest plugin, seen from outside: which tests it makes, and what it shows of ranks that fail,
die or leave mail.
"""

import functools
import os
import re
import subprocess
import sys

import pytest

from tests.faults.soak import TEMPORARY
from tests.harness.scripts import QUIET, client_for

INI = "[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n"


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Runs pytest on a test file in a process of its own: outcomes by test, what it wrote and its
    exit code.
    """

    @functools.cache
    def run(text, *options):
        folder = tmp_path_factory.mktemp("session")
        (folder / "pytest.ini").write_text(INI)
        (folder / "test_it.py").write_text(
            "import os, signal, sys, threading\nimport numpy as np\nimport pytest\nimport mnpar\n"
            f"{text}"
        )
        command = [
            *client_for("-m", "pytest"),
            *QUIET,
            "-p",
            "no:cacheprovider",
            "-v",
            "-p",
            "mnpar.testing.options",
            "--rank-timeout",
            "20",
            *options,
        ]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        } | {
            "MNPAR_STALL": "1",
            "TMPDIR": str(folder / "t"),
        }
        (folder / "t").mkdir()
        done = subprocess.run(
            [*command, str(folder)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        left = [
            path.name
            for path in (folder / "t").iterdir()
            if path.name.startswith(("mnpar-pool-", *TEMPORARY))
        ]
        assert not left, "folders of a pool of ranks, or of its launcher"
        pairs = re.findall(
            r"^test_it\.py::(\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)", done.stdout, re.MULTILINE
        )
        return dict(pairs), done.stdout + done.stderr, done.returncode

    return run


def expected(size, on=("threads", "mpi"), **outcomes):
    return {f"{test}[{one}-{size}]": outcome for test, outcome in outcomes.items() for one in on}


# Two files of tests, so that few sessions start: of the first all tests pass or are left, of the
# second some fail.

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
def test_that_follows(comm):
    assert comm.allreduce_obj(1) == 2
"""
MARKS = """
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
def test_it(comm):
    assert comm.name == "threads"
    assert comm.allreduce_obj(1) == comm.size
"""
GOOD = f"""{LEFT}{MARKS}
@pytest.fixture
def number():
    return 41
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.ranks(2)
def test_parameters(comm, number, step, tmp_path):
    assert comm.allreduce_obj(number + step) == 2 * (41 + step)
@pytest.mark.skip
@pytest.mark.ranks(2)
def test_skipped(comm):
    raise KeyError
@pytest.mark.xfail(strict=True)
@pytest.mark.ranks(2)
def test_marked(comm):
    raise KeyError
@pytest.mark.ranks(2)
def test_all_skip(comm):
    pytest.skip("not today")
@pytest.mark.ranks(2)
def test_one_skips(comm):
    if comm.rank == 1:
        pytest.skip("nobody home")
@pytest.mark.ranks(2)
def test_next(comm):
    assert comm.allreduce_obj(1) == 2
"""
BAD = f"""{LEFT}
@pytest.mark.ranks(3)
def test_fails(comm):
    value = comm.rank * 100
    assert value != 100, "this rank has 100"
@pytest.mark.ranks(3)
def test_after_a_failure(comm):
    comm.barrier()
@pytest.mark.ranks(2, on="mpi")
def test_killed(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
@pytest.mark.ranks(2, on="mpi")
def test_thread_dies(comm):
    if comm.rank == 1:
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    comm.recv(1 - comm.rank)
@pytest.mark.ranks(2, on="mpi")
def test_after_a_death(comm):
    assert comm.allreduce_obj(1) == 2
@pytest.mark.ranks(2)
def test_stray(comm):
    if comm.rank == 0:
        comm.send(np.ones((2, 3)), 1, tag=9)
@pytest.mark.ranks(2)
def test_after_a_stray(comm):
    comm.barrier()
@pytest.mark.ranks(2)
def test_ring(comm):
    comm.recv(1 - comm.rank)
@pytest.mark.ranks(2)
def test_after_a_deadlock(comm):
    comm.barrier()
@pytest.mark.ranks(2)
def test_gone(comm):
    if comm.rank == 1:
        comm.recv(0)
"""
GPU = "sys.modules.setdefault('jax', os)\n"
OF_THEIR_OWN = """
@pytest.mark.ranks(2, on="mpi")
def test_worker(comm):
    assert "worker" in sys.modules["__main__"].__file__
@pytest.mark.ranks(2, on="mpi")
def test_rank_1_fails(comm):
    assert comm.rank == 0
"""


@pytest.fixture
def good(session):
    return session(GOOD, "-rxs")


@pytest.fixture
def bad(session):
    return session(BAD, "--runxfail")


def section(text, name):
    """What the session says of a test that failed."""
    return re.search(
        rf"^_+ {re.escape(name)} _+\n((.|\n)*?)(?=^(_+ test_|=+ ))", text, re.MULTILINE
    )[1]


def test_a_session_in_which_nothing_fails_says_so(good):
    _, text, code = good
    assert code == 0, text
    assert re.search(r" 19 passed, 8 skipped, 6 xfailed in ", text)


def test_a_test_that_takes_comm_runs_on_one_to_four_thread_ranks(good):
    names = [name for name in good[0] if name.startswith("test_it[")]
    assert names == [f"test_it[threads-{size}]" for size in (1, 2, 3, 4)]
    assert {good[0][name] for name in names} == {"PASSED"}


def test_the_mark_chooses_sizes_and_kinds_and_the_option_narrows_them(good, session):
    def of(outcomes):
        chosen = ("test_both", "test_threads", "test_mpi", "test_none")
        return {name: outcome for name, outcome in outcomes.items() if name.startswith(chosen)}

    names = [f"test_both[{on}-{size}]" for on in ("threads", "mpi") for size in (2, 3)]
    assert of(good[0]) == dict.fromkeys(
        [*names, "test_threads[threads-2]", "test_mpi[mpi-3]", "test_none"], "PASSED"
    )
    outcomes, _, _ = session(MARKS, "--ranks-on", "threads")
    passed = [name for name, outcome in of(outcomes).items() if outcome == "PASSED"]
    assert passed == [
        "test_both[threads-2]",
        "test_both[threads-3]",
        "test_threads[threads-2]",
        "test_none",
    ]


def test_fixtures_parameters_skips_and_expected_failures_work_on_every_rank(good):
    outcomes = good[0]
    assert [
        outcome for test, outcome in outcomes.items() if test.startswith("test_parameters[")
    ] == ["PASSED"] * 4
    assert outcomes.items() >= expected(2, test_skipped="SKIPPED", test_marked="XFAIL").items()


def test_a_failing_rank_is_shown_with_its_traceback_and_the_next_test_passes(bad):
    outcomes, text, code = bad
    assert (
        outcomes.items() >= expected(3, test_fails="FAILED", test_after_a_failure="PASSED").items()
    )
    assert code == 1
    assert "on rank 1 of 3" in section(text, "test_fails[threads-3]")  # a note
    report = section(text, "test_fails[mpi-3]")
    assert "---------- rank 1 of 3 ----------" in report
    assert "this rank has 100" in report
    assert re.search(r"test_it\.py:\d+: AssertionError", report)
    assert "rank 2 of 3" not in report


def test_a_rank_that_is_killed_costs_its_test_and_not_the_session(bad):
    outcomes, text, _ = bad
    assert (
        outcomes.items()
        >= expected(2, on=("mpi",), test_killed="FAILED", test_after_a_death="PASSED").items()
    )
    assert re.search(
        r"---------- rank [01, ]+ died or did not end within", section(text, "test_killed[mpi-2]")
    )


def test_a_rank_that_ends_the_job_says_why_in_the_report(bad):
    outcomes, text, _ = bad
    assert outcomes.items() >= expected(2, on=("mpi",), test_thread_dies="FAILED").items()
    report = section(text, "test_thread_dies[mpi-2]")
    assert re.search(r"mnpar: rank 1 of \d failed, the job ends", report), report
    assert "ZeroDivisionError" in report


def test_ranks_are_sessions_of_their_own_where_the_session_may_have_begun_on_a_gpu(session):
    outcomes, text, _ = session(GPU + LEFT + OF_THEIR_OWN, "--runxfail")
    assert (
        outcomes.items()
        >= expected(2, on=("mpi",), test_worker="PASSED", test_rank_1_fails="FAILED").items()
    ), text
    assert "---------- rank 1 of 2 ----------" in section(text, "test_rank_1_fails[mpi-2]")


def test_a_message_that_nobody_received_fails_its_test_and_no_other(bad):
    outcomes, text, _ = bad
    assert outcomes.items() >= expected(2, test_stray="FAILED", test_after_a_stray="PASSED").items()
    told = (
        r"^rank 1 never received a message from rank 0, tag 9: send of "
        r"float64 \(2, 3\) at "
    )
    for name in ("test_stray[threads-2]", "test_stray[mpi-2]"):
        assert len(re.findall(told, section(text, name), re.MULTILINE)) == 1


def test_a_deadlock_fails_its_test_with_the_table(bad):
    outcomes, text, _ = bad
    assert (
        outcomes.items() >= expected(2, test_ring="FAILED", test_after_a_deadlock="PASSED").items()
    )
    table = (
        r"waits for ever in recv from rank [01], tag 0 at .*test_it\.py:\d+:\n.*rank 0: waits "
        r"in recv"
    )
    assert re.search(table, section(text, "test_ring[mpi-2]"))
    assert "no rank can go on" in section(text, "test_ring[threads-2]")


@pytest.mark.parametrize("on", ["threads", "mpi"])
def test_errors_show_the_lines_of_the_test_and_none_of_mnpars_or_pytests(bad, on):
    for name in ("test_ring", "test_fails", "test_stray", "test_gone"):
        size = 3 if name == "test_fails" else 2
        said = section(bad[1], f"{name}[{on}-{size}]")
        assert not re.search(r"(pluggy|threading|launch|transport|deadlock|worker)\S*\.py", said), (
            said
        )
        assert len(said.splitlines()) < 40
    assert "rank 0: waits in barrier at the end of its program" in said
    assert re.search(r"rank 1: waits in recv from rank 0, tag 0 at \S*test_it\.py:\d+", said)


def test_where_there_is_no_mpiexec_tests_on_processes_are_skipped_and_nothing_is_left(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    temporary = tmp_path / "t"
    temporary.mkdir()
    (tmp_path / "test_it.py").write_text(f"import pytest\n{MARKS}")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed, 3 skipped" in done.stdout
    reason = "no ranks on MPI: no mpiexec beside this Python or on PATH: pip install 'mnpar[mpi]'"
    assert done.stdout.count(reason) >= 1
    assert [path.name for path in temporary.iterdir() if "mnpar" in path.name] == []


def test_a_test_that_ranks_skip_while_it_runs_is_skipped_on_all_kinds_of_ranks(good):
    outcomes, text, _ = good
    assert (
        outcomes.items()
        >= expected(
            2, test_all_skip="SKIPPED", test_one_skips="SKIPPED", test_next="PASSED"
        ).items()
    )
    assert text.count("not today") == text.count("nobody home") >= 2


@pytest.mark.parametrize("fork", [True, False], ids=["forks", "sessions of their own"])
def test_a_test_may_be_left_in_all_of_pytests_ways_on_all_kinds_of_ranks(session, fork):
    outcomes, said, _ = session(GOOD, "-rxs") if fork else session(GPU + LEFT, "-rxs")
    left = expected(
        2,
        test_expected="XFAIL",
        test_one="XFAIL",
        test_missing="SKIPPED",
        test_that_follows="PASSED",
    )
    assert outcomes.items() >= left.items(), said
    assert said.count("not yet") == said.count("not here") >= 2
    outcomes, said, _ = (
        session(BAD, "--runxfail") if fork else session(GPU + LEFT + OF_THEIR_OWN, "--runxfail")
    )
    left = expected(
        2,
        test_expected="FAILED",
        test_one="PASSED",
        test_missing="SKIPPED",
        test_that_follows="PASSED",
    )
    assert outcomes.items() >= left.items(), said


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
def test_the_ranks_leave_a_given_folder_of_temporary_files_as_it_is(
    session, tmp_path_factory, options
):
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
        "--basetemp",
        str(folder),
        *options,
    )
    assert code == 0, text
    assert set(outcomes.values()) == {"PASSED"}
    assert len([name for name in os.listdir(folder) if name.startswith("test_mine")]) >= 3 * 4
