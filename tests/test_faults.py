"""Jobs that go wrong: within seconds they end, with the culprit's traceback, a non-zero exit code and no process left behind.

Each is an mpiexec job of its own, of a program in tests/faults/programs.py. A reason that no program can give for itself is not
here: a rank that ends by ``os._exit(0)`` or by SIGKILL is the launcher's to notice, and MPICH's takes the former for success.
"""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from mnpar.launch import mpiexec_command

PROGRAMS = Path(__file__).parent / "faults" / "programs.py"
LIMIT = 5.0  # s from the start of a job to its end, the start of Python and MPI included
HERE = r"faults/programs.py:\d+"


class Job:
    """An mpiexec job in a session of its own, as a terminal's foreground job is."""

    def __init__(self, program, ranks=2, stall="1", command=None, **environment):
        if command is None:
            command, inherited = mpiexec_command(ranks)
        else:
            inherited = dict(os.environ)
        self.mark = f"MNPAR_TEST_JOB={uuid.uuid4().hex}"
        inherited |= {"MNPAR_STALL": stall, **environment, **dict([self.mark.split("=")])}
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [*command, sys.executable, str(PROGRAMS), program],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=inherited, start_new_session=True,
        )  # fmt: skip

    def expect(self, word, times):
        """Read until every rank has said it (a launcher may mix their lines)."""
        text = ""
        while text.count(word) < times:
            line = self.process.stdout.readline()
            assert line, f"the job ended early: {self.end()}"
            text += line

    def end(self, limit=LIMIT):
        """Exit code, stdout, stderr."""
        try:
            out, err = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            for pid in self.left():
                os.kill(pid, signal.SIGKILL)
            out, err = self.process.communicate()
            pytest.fail(f"the job did not end\n{out}\n{err}")
        took = time.monotonic() - self.begin
        deadline = time.monotonic() + 1
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"{len(left)} processes were left behind\n{err}"
        assert took < limit, f"it took {took:.1f} s\n{err}"
        return self.process.returncode, out, err

    def left(self):
        """The processes of this job that still run (the ended have no environment)."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue  # it has just ended, or is another user's
        return found


def run(program, ranks=2, **options):
    return Job(program, ranks, **options).end()


def traceback_of(rank, ranks, program, error):
    """The report of one rank, up to its error."""
    return rf"mnpar: rank {rank} of {ranks} failed, the job ends\nTraceback(.|\n)*in {program}\n(.|\n)*^{error}"


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("error_while_others_receive", 2),
        ("error_while_others_reduce", 3),
        ("error_while_others_compute", 2),
        ("error_in_backward", 2),
        ("error_in_a_group", 3),
    ],
)
def test_an_error_on_one_rank_ends_the_job_with_its_traceback(program, ranks):
    code, _, err = run(program, ranks, stall="30")
    assert code != 0
    assert re.search(traceback_of(1, ranks, program, "ValueError: boom"), err, re.MULTILINE)
    assert err.count("Traceback") == 1
    assert ("in the backward of Bad" in err) is (program == "error_in_backward")


def test_an_error_on_all_ranks_is_shown_once():
    code, _, err = run("error_on_all", stall="30")
    assert code != 0
    assert re.search(traceback_of(0, 2, "error_on_all", "ValueError: boom"), err, re.MULTILINE)
    assert err.count("Traceback") == 1


def test_an_error_in_a_thread_ends_the_job():
    code, _, err = run("error_in_a_thread", stall="30")
    assert code != 0
    assert re.search(r"mnpar: rank 1 of 2 failed, the job ends\nTraceback(.|\n)*^ValueError: boom", err, re.MULTILINE)


@pytest.mark.parametrize("program", ["exit_3", "exit_0", "early_end", "one_barrier_too_many"])
def test_a_rank_that_ends_while_another_waits_for_it_ends_the_job(program):
    code, _, err = run(program, stall="30")
    assert code != 0
    assert re.search(rf"^  rank 0: waits in .* at {HERE}\n  rank 1: has finished its program$", err, re.MULTILINE)


def test_the_exit_code_on_which_all_ranks_agree_is_the_jobs():
    code, _, err = run("exit_3_on_all", stall="30")
    assert code == 3
    assert "mnpar" not in err


@pytest.mark.parametrize(("program", "signal_or_code"), [("kill", 9), ("segmentation_fault", 11), ("os_exit_1", 1)])
def test_a_rank_that_dies_ends_the_job(program, signal_or_code):
    code, _, _ = run(program, stall="30")
    assert code in (signal_or_code, 128 + signal_or_code)


DEADLOCKS = {
    "ring_of_receives": (3, [rf"waits in recv from rank {(r + 1) % 3}, tag 0 at {HERE}" for r in range(3)]),
    "other_tag": (2, [rf"waits in barrier at {HERE}", rf"waits in recv from rank 0, tag 6 at {HERE}"]),
    "no_backward_on_rank_1": (2, [rf"waits in gradient of allreduce at {HERE}", rf"waits in barrier at {HERE}"]),
}


@pytest.mark.parametrize("program", DEADLOCKS)
def test_a_deadlock_ends_the_job_with_a_table_of_who_waits_for_what(program):
    ranks, rows = DEADLOCKS[program]
    code, _, err = run(program, ranks)
    assert code != 0
    assert "DeadlockError: rank 0 waits for ever in" in err
    table = "".join(rf"\n  rank {rank}: {row}" for rank, row in enumerate(rows))
    assert re.search(rf":{table}\n", err)
    assert "/mnpar/communicators/" not in err  # the traceback ends with the user's line


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (
            "other_collectives",
            rf"rank 0: .* allreduce \(sum\) of float64 \(3,\), at {HERE}\n  rank 1: .* bcast, root 0 .* at {HERE}",
        ),
        ("object_for_an_array", rf"rank 1 waits in recv at {HERE} .* send_obj at {HERE} sent an object"),
    ],
)
def test_a_mismatch_ends_the_job_with_both_source_lines(program, match):
    code, _, err = run(program, stall="30")
    assert code != 0
    assert re.search(rf"mnpar.errors.MismatchError: (.|\n)*{match}", err)
    assert err.count("Traceback") == 1


@pytest.mark.parametrize(
    ("program", "ranks"), [("slow_rank", 2), ("slow_ranks_in_turn", 2), ("slow_rank_after_an_uneven_split", 3)]
)
def test_a_slow_rank_is_at_most_warned_about(program, ranks):
    code, out, err = run(program, ranks, stall="0.5")
    assert code == 0
    assert sorted(re.findall(r"rank \d is done", out)) == [f"rank {rank} is done" for rank in range(ranks)]
    assert "Error" not in err
    if program == "slow_rank":
        assert re.search(rf"^mnpar: rank 1 has waited 1 s in barrier at {HERE}; no answer from rank 0: busy", err, re.MULTILINE)


def test_a_good_job_says_nothing_of_its_own():
    code, out, err = run("fine")
    assert code == 0
    assert sorted(re.findall(r"rank \d is done", out)) == ["rank 0 is done", "rank 1 is done"]
    assert "mnpar:" not in err


def test_what_a_forgotten_communicator_has_sent_arrives():
    code, out, err = run("forgotten_communicator", stall="30")
    assert code == 0, err
    assert out.split() == ["done", "done"]


def test_a_message_that_nobody_received_is_listed_at_the_end():
    code, _, err = run("unreceived")
    assert code == 0
    assert re.search(
        rf"^mnpar: rank 1 never received a message from rank 0, tag 5: send of float32 \(2, 3\) at {HERE}$", err, re.MULTILINE
    )


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM to mpiexec"])
def test_an_interrupted_job_ends_at_once_whatever_its_ranks_do(how):
    job = Job("waits", 3, stall="30")
    job.expect("ready", 3)
    job.begin = time.monotonic()
    if how == "Ctrl-C":
        os.killpg(job.process.pid, signal.SIGINT)
    else:
        job.process.send_signal(signal.SIGTERM)
    code, _, err = job.end(limit=3.0)
    assert code != 0
    assert "Traceback" not in err


def test_copies_of_a_world_of_one_rank_under_a_foreign_launcher_are_refused():
    job = Job("fine", command=[], PMI_SIZE="4", PMI_RANK="2")
    code, _, err = job.end()
    assert code != 0
    last = err.strip().splitlines()[-1]
    assert last.startswith("mnpar.errors.LauncherError: the launcher started 4 ranks, but this one is alone: its MPI library (")
    assert last.endswith(
        f"is not the launcher's. Use the mpiexec beside this Python: {Path(sys.executable).parent / 'mpiexec'}"
    )
