"""A process that ends the job waits until its reader has what it wrote."""

import os
import subprocess
import sys
import time

from mnpar.runtime import output, system
from mnpar.runtime.mpiexec import mpiexec_command

SAYS = """
import time
from mnpar.runtime import output
output.speak("boom\\n")
output.await_reader()
print("read", file=open("after", "w"))
"""


def says(folder, **streams):
    return subprocess.Popen([sys.executable, "-c", SAYS], cwd=folder, **streams)


def test_a_process_waits_until_its_words_are_read(tmp_path):
    reads, writes = os.pipe()
    process = says(tmp_path, stderr=writes, stdout=subprocess.DEVNULL)
    while not system.unread(reads):
        time.sleep(0.01)
    time.sleep(3 * output._PASS_ON)
    assert process.poll() is None
    assert os.read(reads, 100) == b"boom\n"
    assert process.wait() == 0
    assert (tmp_path / "after").read_text() == "read\n"
    os.close(reads)
    os.close(writes)


def test_it_does_not_wait_for_ever(tmp_path):
    reads, writes = os.pipe()
    assert says(tmp_path, stderr=writes, stdout=subprocess.DEVNULL).wait() == 0
    assert os.read(reads, 100) == b"boom\n"
    os.close(reads)
    os.close(writes)


def test_only_a_pipe_has_a_reader(tmp_path):
    with open(tmp_path / "file", "wb+") as file:
        file.write(b"boom")
        file.flush()
        assert system.unread(file.fileno()) == 0
    assert system.unread(10**6) == 0
    reads, writes = os.pipe()
    os.write(writes, b"boom")
    assert system.unread(writes) == system.unread(reads) == 4
    os.close(reads)
    os.close(writes)


PRINTS = """
import os, sys, time
import mnpar
comm = mnpar.create_communicator()
print("rank", comm.rank, "is here")
if comm.rank == 0:
    while not os.path.exists("go"):
        time.sleep(0.01)
    comm.send_obj("go", 1)
if comm.rank == 1:
    comm.recv_obj(0)
if comm.rank == 1:
    raise ValueError("on rank 1")
comm.recv(1)
"""


def test_lines_leave_ranks_at_once_whole_and_are_there_when_another_fails(tmp_path):
    command, environment = mpiexec_command(3)
    environment.pop("PYTHONUNBUFFERED", None)
    with subprocess.Popen(
        [*command, sys.executable, "-c", PRINTS],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        lines = [job.stdout.readline() for _ in range(3)]  # while rank 0 waits for the file
        assert sorted(lines) == [f"rank {rank} is here\n" for rank in range(3)]
        (tmp_path / "go").touch()
        rest, errors = job.communicate(timeout=60)
    assert job.returncode != 0
    assert rest == ""
    assert "on rank 1" in errors


PIECES = """
import os, time
from mnpar.runtime import output
output.write_lines_at_once()
print("half", end=" ")
open("half", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
print("line")
"""


def test_a_line_leaves_as_a_whole_where_python_is_unbuffered(tmp_path):
    reads, writes = os.pipe()
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", PIECES]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=writes) as process:
        while not (tmp_path / "half").exists():
            time.sleep(0.01)
        unread = system.unread(reads)
        (tmp_path / "go").touch()
    assert process.returncode == 0
    assert unread == 0
    assert os.read(reads, 100) == b"half line\n"
    os.close(reads)
    os.close(writes)
