"""Forks that clients ask for: each is what a process started in its place would be, and ends as
that would.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from mnpar.runtime.deadlock import polling
from mnpar.testing import forks
from tests.conftest import start_alike
from tests.harness.scripts import client_for, run_script

SHOWN = (
    "import os, sys\nprint(sys.argv[1:], os.environ['HERE'], os.getcwd(), "
    "__name__)\nprint(input(), file=sys.stderr)\n"
)
ENDS = {
    "nothing": ("pass", 0),
    "sys.exit": ("import sys; sys.exit(7)", 7),
    "a message": ("raise SystemExit('why')", 1),
    "an error": ("raise ValueError('boom')", 1),
    "os._exit": ("import os; os._exit(5)", 5),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", -9),
    "SIGTERM": ("import os; os.kill(os.getpid(), 15)", -15),
}


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def test_a_fork_has_the_arguments_environment_folder_and_files_of_its_client(script, tmp_path):
    done = subprocess.run(
        [*client_for(script(SHOWN)), "a b", "é\n"],
        input="typed\n",
        capture_output=True,
        text=True,
        env=os.environ | {"HERE": "1"},
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"['a b', 'é\\n'] 1 {tmp_path} __main__\n",
        "typed\n",
    )


def test_a_fork_may_run_a_module_of_its_folder(script):
    folder = script(SHOWN).parent
    done = subprocess.run(
        [*client_for("-m", "script"), "a b"],
        input="typed\n",
        capture_output=True,
        text=True,
        env=os.environ | {"HERE": "1"},
        cwd=folder,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"['a b'] 1 {folder} __main__\n"), done.stderr


def test_ranks_that_are_forks_nap_where_they_wait(script):
    polls = "from mnpar.runtime.deadlock import polling\nprint(polling.yielding)"
    assert run_script(script(polls), [], os.environ, os.getcwd()).stdout == "0.0\n"
    assert polling.yielding > 0


@pytest.mark.parametrize(("text", "code"), ENDS.values(), ids=ENDS)
def test_a_client_ends_as_its_fork_does(script, text, code):
    done = subprocess.run(client_for(script(text)), capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("ValueError: boom" in done.stderr) == ("boom" in text)
    assert ("why\n" in done.stderr) == ("why" in text)
    alone = run_script(script(text), [], os.environ, os.getcwd())
    assert (alone.returncode, alone.stderr) == (done.returncode, done.stderr)


HANGS = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_to_a_client_ends_its_fork(script, number):
    with subprocess.Popen(client_for(script(HANGS)), stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(20) == -number
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_script_that_does_not_end_in_time_is_an_error(script):
    with pytest.raises(AssertionError, match=r"did not end within 0\.2 s"):
        run_script(script(HANGS), [], os.environ, os.getcwd(), timeout=0.2)


@pytest.mark.parametrize("library", sorted(forks._GPU))
def test_a_process_that_may_have_begun_on_a_gpu_does_not_fork(library, monkeypatch):
    assert forks.possible()
    monkeypatch.setitem(sys.modules, library, os)
    assert not forks.possible()


def test_what_tests_start_prints_whole_lines_and_hears_ctrl_c_however_pytest_was_started(
    monkeypatch,
):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        start_alike()
        alone = [
            sys.executable,
            "-c",
            "import signal, sys; print(signal.getsignal(2).__name__, sys.stdout.write_through)",
        ]
        assert subprocess.check_output(alone, text=True) == "default_int_handler False\n"
    finally:
        signal.signal(signal.SIGINT, before)
