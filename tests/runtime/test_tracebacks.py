"""Errors show the user's lines, in scripts, in notebooks, on thread ranks and on processes."""

import re
import subprocess
import sys
import traceback

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import mnpar
from mnpar.runtime.mpiexec import mpiexec_command
from mnpar.runtime.tracebacks import own_lines_of_dump, to_own_lines

PROGRAM = """
import sys
import numpy as np
import mnpar
import mnpar.functions as F
import mnpar.links as L


def shape(comm):
    x = np.ones((2, 4), "f")
    if comm.rank == comm.size - 1:
        L.Linear(3, 2)(x)  # of mnpar
    comm.barrier()


def mine(comm):
    if comm.rank == comm.size - 1:
        {}["mine"]  # of the program
    comm.barrier()


def callback(comm):
    model = L.Classifier(L.Linear(3, 2), lossfun=lambda y, t: F.sum(y[:, 7]))  # of a callback
    data = mnpar.datasets.TupleDataset(np.ones((8, 3), "f"), np.zeros(8, "i"))
    iterator = mnpar.iterators.SerialIterator(data, 2)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
    updater = mnpar.training.StandardUpdater(iterator, optimizer)
    mnpar.training.Trainer(updater, (1, "epoch"), out=sys.argv[-1]).run()  # of the program


def deadlock(comm):
    F.recv(comm, (comm.rank + 1) % comm.size)  # of mnpar
"""
MAIN = """
if __name__ == "__main__":
    program = globals()[sys.argv[1]]
    if sys.argv[2] == "0":
        program(mnpar.create_communicator())
    elif sys.argv[2] == "threads":
        mnpar.run(program, ranks=2)
    else:
        program(mnpar.create_communicator("mpi"))
"""
# how many of the program's lines are marked
CASES = {"shape": 1, "mine": 1, "callback": 2, "deadlock": 1}


def shown(text):
    """The files of a traceback, and how many lines it has."""
    trace = text[text.index("Traceback") :]
    return re.findall(r'^ *File "(.*)", line', trace, re.M), trace.splitlines()


@pytest.mark.parametrize("way", ["alone", "threads", "mpi"])
@pytest.mark.parametrize("case", CASES)
def test_a_script_shows_its_own_lines_only(case, way, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + MAIN)
    command, environment = mpiexec_command(2)
    command = command if way == "mpi" else []
    done = subprocess.run(
        [*command, sys.executable, str(script), case, way.replace("alone", "0"), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment | {"MNPAR_STALL": "1", "OMP_NUM_THREADS": "1"},
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    files, lines = shown(done.stderr)
    assert set(files) == {str(script)}
    assert "\n".join(lines).count("# of ") == CASES[case], done.stderr
    assert len(lines) <= 20


def executed(*cells, **kernel):
    """What the cells of a notebook print, without colours."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    NotebookClient(notebook, timeout=100, allow_errors=True, **kernel).execute()
    return ["".join([as_text(output) for output in cell.outputs]) for cell in notebook.cells]


def as_text(output):
    if output.output_type == "error":
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
    return output.text if output.output_type == "stream" else output.data["text/plain"]


@pytest.fixture(scope="module")
def notebook():
    runs = [f"mnpar.run({case}, ranks=2)" for case in CASES]
    alone = ["shape(mnpar.create_communicator())"]
    more = ["mnpar.relaunch(2)", "'still here'", "%env MNPAR_DEBUG=1", runs[0]]
    cells = [PROGRAM.replace("sys.argv[-1]", "'.'"), *runs, *alone, *more]
    return dict(zip(["", *CASES, "alone", *more[:-1], "debug"], executed(*cells), strict=True))


@pytest.mark.parametrize("case", [*CASES, "alone"])
def test_a_notebook_shows_its_own_lines_only(notebook, case):
    said = notebook[case]
    assert "Error" in said
    assert ".py" not in said, said
    assert len(said.splitlines()) <= 25
    lines = re.findall(r"^-+> \d+ .*# of", said, re.M)
    assert len(lines) == CASES.get(case, 1)


def test_a_deadlock_in_a_notebook_names_the_cell(notebook):
    assert "rank 1: waits in recv from rank 0, tag 0 at In[1]:" in notebook["deadlock"]


def test_in_a_notebook_relaunch_says_what_to_do_and_the_kernel_lives(notebook):
    said = notebook["mnpar.relaunch(2)"]
    assert "mnpar.run(program, ranks=2)" in said
    assert "-m mnpar run -n 2 script.py" in said
    assert notebook["'still here'"] == "'still here'"


def test_all_lines_are_shown_for_who_asks(notebook):
    assert "links/linear.py" in notebook["debug"]


class Broken(mnpar.FunctionNode):
    """A function of a user's."""

    def forward(self, x):
        return x.no_such_thing


def caught(function):
    """The names of the functions in an error's traceback, and its notes."""
    with pytest.raises(Exception) as info:  # noqa: PT011
        function()
    to_own_lines(info.value)
    frames = traceback.extract_tb(info.value.__traceback__)
    return [one.name for one in frames][1:], getattr(info.value, "__notes__", [])


def test_a_note_says_that_lines_are_left_out_if_something_failed_in_them():
    def user(x):
        return mnpar.functions.sum(x[7])

    x = mnpar.Variable(np.ones(3))
    note = ["(mnpar's own lines are left out: MNPAR_DEBUG=1 shows them)"]
    assert caught(lambda: user(x)) == (["<lambda>", "user"], note)
    assert caught(lambda: mnpar.functions.matmul(x, np.ones((2, 2)))) == (["<lambda>"], [])
    assert caught(lambda: Broken().apply((x,))) == (["<lambda>", "forward"], [])


def test_a_dump_of_threads_shows_those_that_run_the_users_lines():
    package = mnpar.__path__[0]
    dump = (
        f'Thread 0x1 (most recent call first):\n  File "{package}/link.py", line 6 in b\n'
        f'\nCurrent thread 0x2 (most recent call first):\n  File "{package}/link.py", line 1 in c\n'
        '  File "/home/me/test_it.py", line 3 in test\n'
    )
    assert own_lines_of_dump(dump) == (
        'Current thread 0x2 (most recent call first):\n  File "/home/me/test_it.py", line 3 in test'
    )
    assert own_lines_of_dump("printed\n") == "printed\n"
    crash = f"Fatal Python error: Segmentation fault\n\n{dump}"
    assert own_lines_of_dump(crash) == crash
