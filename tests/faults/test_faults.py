"""Jobs that go wrong: within seconds they end, with the culprit's traceback, a non-zero exit code
and no process left behind.

Each row of ``JOBS`` is an mpiexec job of its own, of a program in tests/faults/programs.py; the
numbers are the cases of the reliability study. Four jobs run at a time, ahead of the test that
looks at their result: most of them wait for something. ``MNPAR_TEST_PYTHON=/path/to/python pytest
tests/faults/test_faults.py`` runs the same table under the MPI of another environment.
"""

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import pytest

from mnpar.runtime.cleanup import segments
from tests.faults.job import FOREIGN, PYTHON, SLOWER, Job
from tests.faults.soak import all_traces, files_in, left_behind
from tests.harness.mpi import is_mpich

HERE = r"faults/programs.py:\d+"
LIMIT = 5.0  # s from the start of a job to its end, the start of Python and MPI included
CROWD = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # of programs that use the machine too
BAD = "not 0"
MPICH = is_mpich(PYTHON)
ELSEWHERE = (  # rank 1 has a launcher of its own, as on another machine
    (
        "-launcher",
        "ssh",
        "-launcher-exec",
        f"{Path(__file__).parent}/elsewhere.sh",
        "-hosts",
        "127.0.0.1:1,127.0.0.2:1",
    )
    if MPICH
    else (
        "--prtemca",
        "plm_ssh_agent",
        f"{Path(__file__).parent}/elsewhere.sh",
        "-H",
        "localhost:1,elsewhere:1",
    )
)
# Open MPI makes empty folders for a process that finds no launcher, or loses it inside MPI_Init,
# and leaves them: with the names of the machine and the user, not of a process, they are in no
# launcher's way.
LONE = re.compile(r"ompi\.[^/]+\.\d+(/jf\.0(/\d+){0,2})?$")


def interrupt(job):
    os.killpg(job.process.pid, signal.SIGINT)


def terminate(job):
    job.process.terminate()


def kill_launcher(job):
    job.process.kill()


def starting(job):
    """The ranks, once MPI has made its files, which only a rank that lives removes."""
    ranks = job.ranks()
    deadline = time.monotonic() + LIMIT
    while MPICH and not any(map(segments, ranks)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return ranks


def kill_launcher_of_ranks_that_start(job):
    starting(job)
    job.process.kill()


def kill_a_rank_that_starts(job):
    ranks = starting(job)
    os.kill(max(ranks, key=lambda rank: (len(segments(rank)), rank)), signal.SIGKILL)


# of the reliability study, those of communication; the others: tests/faults/__init__.py
CASES = {
    1: "an error on one rank, the others wait",
    2: "an error in backward",
    3: "an error in a thread or a worker",
    4: "sys.exit(3)",
    5: "sys.exit(0), or an early end",
    6: "os._exit(0)",
    8: "SIGSEGV",
    9: "SIGSTOP",
    10: "a long computation",
    11: "no memory",
    12: "Ctrl-C",
    13: "SIGTERM",
    14: "kill -9 of mpiexec",
    15: "all receive",
    16: "all send first",
    17: "tags",
    18: "ranks and tags that there are not",
    19: "dtypes",
    20: "shapes",
    21: "reductions, roots and operations",
    22: "orders",
    23: "a collective that one rank skips",
    24: "a batch more on one rank",
    25: "no backward on one rank",
    26: "splits",
    27: "arrays of all sorts",
    28: "an array that is changed after it was sent",
    29: "a message that nobody receives",
    43: "children of ranks, by fork, spawn and forkserver",
    44: "a slow rank, for 500 steps",
}


class Row(NamedTuple):
    """A job, and what becomes of it."""

    cases: str  # numbers of CASES; "" for what the study has not
    code: object  # its exit code, the possible ones, or BAD
    says: str | tuple[str, ...] = ()  # on stderr, regular expressions
    ranks: int = 2
    stall: str = "30"
    out: str | None = None  # what every rank prints
    act: Callable | None = None  # what is done to it from outside, once every rank is "ready"
    options: tuple[str, ...] = ()  # of mpiexec
    limit: float = LIMIT
    once: str = "Traceback"  # what stderr has exactly one of, if the job fails
    # its ranks really start Python: False where they only speak to each other, or raise an error
    fresh: bool = True


def traceback_of(rank, ranks, program, error):
    """The report of one rank, up to its error."""
    return (
        rf"mnpar: rank {rank} of {ranks} failed, the job ends\nTraceback(.|\n)*in "
        rf"{program}\n(.|\n)*^{error}"
    )


def fails(cases, program, ranks=2, rank=1, also=(), error="ValueError: boom"):
    return Row(cases, BAD, (traceback_of(rank, ranks, program, error), *also), ranks, fresh=False)


def ends(cases, how, code=BAD):
    return Row(cases, code, rf"^  rank 0: waits in .* at {HERE}\n  rank 1: {how}$", fresh=False)


def deadlock(cases, *rows):
    table = "".join(rf"\n  rank {rank}: {row}" for rank, row in enumerate(rows))
    return Row(
        cases,
        BAD,
        ("DeadlockError: rank 0 waits for ever in", rf":{table}\n"),
        len(rows),
        "0.5",
        fresh=False,
    )


def mismatch(cases, match):
    return Row(cases, BAD, rf"mnpar.errors.MismatchError: (.|\n)*{match}", fresh=False)


def different(cases, one, other):
    return mismatch(
        cases,
        rf"rank 0: collective \d, {one}, at {HERE}\n  rank 1: collective \d, {other}, at {HERE}",
    )


def works(cases, ranks=2, stall="30", out="done", says=(), limit=LIMIT):
    return Row(cases, 0, says, ranks, stall, out, limit=limit, once="", fresh=False)


def ends_at_the_start(cases, ranks=2):
    who = (
        rf"mnpar: rank [^1] of {ranks} waits for ever for the start of MPI at {HERE}, the job ends"
    )
    says = rf"{who}\n  rank 1: has ended before it made a communicator\n"
    # the lowest says it alone, unless it comes seconds after the others, as on a busy machine; Open
    # MPI's may end all before
    return Row(cases, BAD, says if MPICH else (), ranks, once="")


def interrupted(code, ranks):
    """Rank 0 says so. (Open MPI's launcher ends the ranks before they can.)"""
    says, once = (
        (rf"^mnpar: interrupted \(rank 0 of {ranks}\)$", "interrupted") if MPICH else ((), "")
    )
    return Row("12", code, says, ranks, act=interrupt, limit=3, once=once)


DONE = "has finished its program"
BUSY = rf"busy in its own code at {HERE}"
JOBS = {
    "slow_steps": works("44", stall="0.5", limit=45),  # the longest first: the others run beside it
    "error_that_nobody_reads": Row(
        "1", BAD, "mnpar: rank 1 of 2 failed, and has not come to its end", limit=8, once=""
    ),
    "start_error": fails("1", "start", 4)._replace(fresh=True),
    "start_error_where_mpi4py_was_first": fails("1", "start")._replace(fresh=True),
    "start_error_in_a_thread_that_nobody_reads": Row("3", BAD, once=""),
    "start_exit_0_where_mpi4py_was_first": Row(
        "5",
        BAD,
        rf"mnpar: rank 0 of 2 waits for ever for all ranks at {HERE}, the job ends\n  rank 1: "
        r"has ended",
        once="",
    ),
    "start_exit_0": ends_at_the_start("5", 4),
    "start_exit_3": ends_at_the_start("4"),
    "start_os_exit_0": ends_at_the_start("6"),
    "start_before_any_import": ends_at_the_start("5"),
    "start_exit_0_early, elsewhere": ends_at_the_start("5")._replace(options=ELSEWHERE),
    "start_nowhere, elsewhere": works("", out="ready")._replace(options=ELSEWHERE, fresh=True),
    "start_imports": interrupted(BAD, 3),
    "start_waits": interrupted(BAD, 3),
    "start_late, launcher killed": Row("14", -9, act=kill_launcher, once=""),
    "start_waits, launcher killed": Row("14", -9, act=kill_launcher_of_ranks_that_start, once=""),
    "start_waits, a rank killed": Row("", BAD, act=kill_a_rank_that_starts, once=""),
    "error_while_others_receive": fails("1", "error_while_others_receive")._replace(fresh=True),
    "error_while_the_launcher_sleeps": fails("1", "error_while_the_launcher_sleeps"),
    "error_while_others_reduce": fails("1", "error_while_others_reduce", 3),
    "error_while_others_compute": fails("1", "error_while_others_compute"),
    "error_without_streams": fails("1", "error_without_streams"),
    "error_in_a_group": fails("1", "error_in_a_group", 3),
    "error_on_all": fails("1", "error_on_all", rank=0),
    "error_in_backward": fails(
        "2",
        "error_in_backward",
        also=[
            "in the backward of Bad",
            rf"^meanwhile rank 0 waited in gradient of allreduce .* of float64 \(3,\) at {HERE}$",
        ],
    ),
    "error_in_a_thread": Row(
        "3",
        BAD,
        r"mnpar: rank 1 of 2 failed, the job ends\nTraceback(.|\n)*^ValueError: boom",
        fresh=False,
    ),
    "error_in_a_worker_thread": fails(
        "3", "error_in_an_iterator", also=[r"^\(raised while a thread read example 13\)$"]
    ),
    "error_in_a_worker_process": Row(
        "3",
        BAD,
        (
            traceback_of(1, 2, "error_in_an_iterator", "ValueError: boom"),
            r"^\(raised while worker .* read example 13\)$",
        ),
        once="mnpar: rank",
        limit=10,
    ),
    "error_in_training": fails("1", "fail", also=[r"\(in the training loop, after 5 iterations\)"]),
    "exit_3": ends("4", rf"{DONE}, by sys.exit\(3\) at {HERE}", 3)._replace(fresh=True),
    "exit_3_on_all": Row("4", 3, out="", once="", fresh=False),
    "exit_0": ends("5", rf"{DONE}, by sys.exit\(0\) at {HERE}"),
    "early_end": ends("5", DONE),
    "finalize_early": ends("5", f"has called MPI.Finalize at {HERE}"),
    "error_after_finalize": Row("1", 1, r"\ATraceback(.|\n)*^ValueError: boom"),
    "os_exit_0": Row("6", 1, rf"mnpar: rank 1 of 2 called os._exit\(0\) at {HERE}", once="mnpar:"),
    "os_exit_4": Row(
        "6", 4, rf"mnpar: rank 1 of 2 called os._exit\(4\) at {HERE}", once="mnpar:", fresh=False
    ),
    "silent_death": Row(
        "6",
        BAD,
        r"rank 1: is gone: its process has ended without a word" if MPICH else (),
        options=("-disable-auto-cleanup",) if MPICH else (),
        once="Traceback" if MPICH else "",
    ),
    "silent_death_when_all_is_done": Row(
        "6",
        BAD,
        r"rank 0 has finished its program, but rank 1 is gone: its process has ended"
        if MPICH
        else (),
        options=("-disable-auto-cleanup",) if MPICH else (),
        once="",
    ),
    "kill": Row("", {9, 137}, once=""),
    "segmentation_fault": Row(
        "8",
        {11, 139},
        r"Segmentation fault(.|\n)*programs.py\", line \d+ in segmentation_",
        once="",
    ),
    "stopped": Row(
        "9",
        BAD,
        rf"rank 1: is stopped at {HERE}, \d s ago, by a signal .*\na job ends if one of its ranks "
        r"is stopped for 0.5 s: .* MNPAR_STALL$",
        stall="0.5",
        limit=LIMIT,
    ),
    "stopped_in_a_split": Row(
        "9",
        BAD,
        rf"rank 0 of 2 waits for ever in split at {HERE}, the job ends\n  rank 1: is stopped at ",
        stall="0.5",
        limit=10,
        once="",
    ),
    "slow_rank": works(
        "10",
        stall="0.25",
        out="is done",
        says=rf"^mnpar: rank 1 has waited \d s in barrier at {HERE}; rank 0 is {BUSY}; "
        "it goes on waiting$",
    ),
    "slow_ranks_in_turn": works(
        "10", stall="0.25", out="is done", says=rf"rank 1 has waited .*; rank 0 is {BUSY}", limit=9
    ),
    "slow_rank_after_an_uneven_split": works(
        "10", 3, "0.25", "is done", rf"has waited .*; rank 0 is {BUSY}"
    ),
    "out_of_memory": fails(
        "11", "out_of_memory", error=r"numpy\..*Unable to allocate .* shape \(1048576, 1073741824\)"
    ),
    "waits": interrupted({130, 1}, 3),
    "waits_in_collectives": interrupted({130, 1}, 3)._replace(fresh=False),
    "trains": interrupted({130, 1}, 2)._replace(fresh=False),
    "waits, terminated": Row("13", BAD, ranks=3, act=terminate, limit=3, once="", fresh=False),
    "waits, launcher killed": Row("14", -9, ranks=3, act=kill_launcher, once=""),
    "ring_of_receives": deadlock(
        "15", *[rf"waits in recv from rank {(r + 1) % 3}, tag 0 at {HERE}" for r in range(3)]
    ),
    "head_on_sends": works("16"),
    "other_tag": deadlock(
        "17",
        rf"waits in barrier at {HERE}",
        rf"waits in recv from rank 0, tag 6 at {HERE}; a message with tag 5 .*",
    ),
    "calls_without_meaning": works("18"),
    "receive_from_itself": deadlock(
        "18", rf"waits in barrier at {HERE}", rf"waits in recv from rank 1, tag 0 at {HERE}"
    ),
    "other_dtype": different(
        "19", r"allreduce \(sum\) of float32 \(3,\)", r"allreduce \(sum\) of float64 \(3,\)"
    ),
    "object_for_an_array": mismatch(
        "19", rf"rank 1 waits in recv at {HERE} .* send_obj at {HERE} sent an object"
    ),
    "other_shape": different(
        "20", r"allreduce \(sum\) of float64 \(1000,\)", r"allreduce \(sum\) of float64 \(1001,\)"
    ),
    "other_reduction": different("21", r"allreduce \(sum\) of .*", r"allreduce \(max\) of .*"),
    "other_root": different("21", "bcast, root 0 of .*", "bcast, root 1 of .*"),
    "other_collectives": different(
        "21", r"allreduce \(sum\) of float64 \(3,\)", "bcast, root 0 .*"
    ),
    "other_order": different(
        "22", r"allreduce \(sum\) of float64 \(2, 3\)", r"allreduce \(sum\) of float64 \(2,\)"
    ),
    "skipped_collective": different("23", r"allreduce \(sum\) of .*", "bcast, root 0 .*"),
    "one_batch_more": ends("24", DONE),
    "one_barrier_too_many": ends("24", DONE),
    "unused_result": works("", out="is done"),
    "other_time": mismatch(
        "", rf"rank 0: waits in allreduce .* at {HERE}\n  rank 1: waits in iallreduce .* at {HERE}"
    ),
    "no_backward_on_rank_1": deadlock(
        "25",
        rf"waits in gradient of allreduce .* of float64 \(3,\) at {HERE}",
        rf"waits in barrier at {HERE}",
    ),
    "forgotten_backward": works(
        "25", out="", says=r"^mnpar: rank 0 never took a gradient from rank 1: .*: mnpar.b"
    )._replace(code=BAD),
    "forgotten_backward_without_a_gradient": works(
        "25", out="", says=r"^mnpar: rank 0 never took a gradient from rank 1: .* of nothing at"
    ),
    "dropped_delegate": works("25"),
    "splits_without_meaning": works("26"),
    "all_sorts_of_arrays": works("27"),
    "changed_after_send": works("28"),
    "unreceived": works(
        "29",
        out="",
        says=r"^mnpar: rank 1 never received a message from rank 0, tag 5: send of float32 "
        rf"\(2, 3\) at {HERE}; every send needs a recv on rank 1$",
    ),
    "unreceived_from_itself": works(
        "29",
        out="",
        says=tuple(
            rf"^mnpar: rank {r} never received a message from rank {r}, tag 0: send of"
            for r in (0, 1)
        ),
    ),
    "loads_in_processes": works("43", limit=10)._replace(fresh=True),
    "forks": works("43"),
    "forks_that_communicate": works("43"),
    "two_threads": works(""),
    "two_threads_wait_for_operations": works(""),
    "file_by_the_receiver": works(""),
    "error_on_two": fails(
        "1",
        "error_on_two",
        3,
        "[12]",  # on a busy machine, rank 2 may come so early that it does not hear of rank 1
        also=(
            r"^meanwhile rank 0(, 1)? waited in barrier",
            "^rank 2 failed alike$|rank 2 of 3 failed",
        ),
    ),
    "late_error_on_two": fails(
        "1", "late_error_on_two", 3, "[12]", also=("^meanwhile rank 0 waited in barrier",)
    ),
    "execs": Row(
        "6",
        BAD,
        rf"^mnpar: rank 1 of 2 calls os.exec of .* at {HERE}, .* no rank; the job ends",
        once="",
        fresh=False,
    ),
    "another_communicator": deadlock(
        "26",
        rf"waits in recv from rank 1, tag 0 at {HERE}, on communicator 0\.\d",
        rf"waits in recv from rank 0, tag 4 at {HERE}, on communicator 0\.\d; a message with tag "
        r"4 from rank 0 has come, on communicator 0\.\d, .*\nranks wait on different comm.*",
    ),
    "forks_where_mpi4py_was_first": works("43")._replace(fresh=True),
    "alone_it_forks_where_mpi4py_was_first": works("43")._replace(fresh=True, ranks=1),
    "alone": works("", ranks=1, out="[]")._replace(fresh=True),
    "fine": works("", out="is done")._replace(fresh=True),
    "forgotten_communicator": works(""),
}


def carry_out(name):
    """A job: (exit code, stdout, stderr, seconds, what it has left of its temporary files)."""
    row = JOBS[name]
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            name.partition(",")[0],
            row.ranks,
            row.stall,
            row.options,
            fresh=row.fresh,
            TMPDIR=folder,
        )
        if row.act is not None:
            job.expect("ready", row.ranks)
            row.act(job)
        return *job.end(), [file for file in files_in(folder) if MPICH or not LONE.match(file)]


@pytest.fixture(scope="module")
def before():
    """What there was before the jobs."""
    return all_traces()


@pytest.fixture(scope="module")
def results(request, before):
    """The results of the jobs, by name, that the selected tests look at: four at a time are under
    way.
    """
    mine = [item for item in request.session.items if item.path == Path(__file__)]
    whole = any(
        item.name == test_jobs_that_are_ended_in_any_way_leave_nothing_behind.__name__
        for item in mine
    )
    names = (
        JOBS
        if whole
        else [item.callspec.params["name"] for item in mine if "name" in item.fixturenames]
    )
    with ThreadPoolExecutor(4) as pool:
        yield {name: pool.submit(carry_out, name) for name in sorted(names, key=list(JOBS).index)}
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def crowd(request):
    """How much longer all takes because others use the machine too: other programs, and other tests
    (``--processes``).
    """
    alone = {item.path for item in request.session.items} == {Path(__file__)}
    return CROWD * (1 if alone else request.config.getoption("--processes"))


@pytest.mark.parametrize("name", sorted(JOBS, key=lambda name: name == "slow_steps"))
def test_the_job(results, crowd, name):
    row = JOBS[name]
    code, out, err, took, left = results[name].result()
    assert (
        (code != 0)
        if row.code == BAD
        else code in (row.code if isinstance(row.code, set) else {row.code})
    ), err
    for says in (row.says,) if isinstance(row.says, str) else row.says:
        assert re.search(says, err, re.MULTILINE), err
    assert took < (row.limit + SLOWER) * crowd, f"it took {took:.1f} s\n{err}"
    assert row.out is None or out.count(row.out) == row.ranks or not row.out
    if row.once:
        assert err.count(row.once) == 1, err  # one rank speaks for all
    if "DeadlockError" in err or "MismatchError" in err:
        assert "/mnpar/communicators/" not in err  # the traceback ends with the user's line
    if code == 0 and not row.says:
        assert "mnpar:" not in err, err
    if row.act is not None:
        assert "Traceback" not in err, err
    if left and not MPICH and code >= 0:
        # Open MPI's launcher gives up its folder if a rank removes its own in the same moment: once
        # in some thousand jobs, where a mistake of mnpar's would leave it again
        left = carry_out(name)[-1]
    assert not left, f"{left} are left\n{err}"


def test_every_case_of_the_study_that_is_of_communication_has_a_job():
    assert {int(number) for row in JOBS.values() for number in row.cases.split()} == CASES.keys()


@pytest.mark.skipif(FOREIGN, reason="it is about this Python")
def test_copies_of_a_world_of_one_rank_under_a_foreign_launcher_are_refused():
    code, _, err, _ = Job("fine", command=[], PMI_SIZE="4", PMI_RANK="2").end()
    assert code != 0
    last = err.strip().splitlines()[-1]
    assert last.startswith(
        "mnpar.errors.LauncherError: the launcher started 4 ranks, but this one is alone: its "
        "MPI library ("
    )
    assert last.endswith(
        "is not the launcher's. Use the mpiexec beside this Python: "
        f"{Path(sys.executable).parent / 'mpiexec'}"
    )


def test_jobs_that_are_ended_in_any_way_leave_nothing_behind(results, before):
    wait(results.values())
    assert results.keys() == JOBS.keys()
    assert not left_behind(before)
