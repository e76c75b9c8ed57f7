"""The lessons' classroom: run a program on ranks, show an error, draw a picture, grade an answer.

In a notebook, and under plain ``python``, ranks are threads. Under ``mpiexec -n P`` they are the
launcher's P processes: then cells print once, by rank 0, and programs print on each rank.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from grading import verdict

import mnpar
from mnpar.errors import LauncherError
from mnpar.runtime.launcher import launched_ranks
from mnpar.runtime.mpiexec import mpiexec_command

THREADS = 4  # ranks where nobody says how many
RESULT = Path("result")  # pictures go there


def refuse(text):
    """End the lesson with one line, told by one rank."""
    if world is None or world.rank == 0:
        print(f"{Path(sys.argv[0]).name}: error: {text}", file=sys.__stderr__, flush=True)
    if world is not None:
        world.barrier()  # the first rank that ends would end the others before it is told
    sys.exit(2)


graded_by_pytest = False  # which asks for the answers, and needs neither verdicts nor pictures
world = None  # the communicator of mpiexec's ranks
_stdout = sys.stdout
if launched_ranks() == 1:
    refuse("a lesson needs 2 ranks or more, and 1 was started: mpiexec -n 4, or no mpiexec at all")
if launched_ranks() > 1:
    world = mnpar.create_communicator()
    _stdout = sys.stdout
    if world.rank > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  until the process ends


def run(program, ranks=None, args=()):
    """Call ``program(comm, *args)`` on ranks; return what they returned, in the order of ranks.

    Args:
        program: a function of the communicator.
        ranks: how many; None: all of mpiexec's, or 4 threads.
        args: more arguments, the same on all ranks.
    """
    if world is None:
        return mnpar.run(program, ranks or THREADS, args)
    ranks = ranks or world.size
    if ranks > world.size:
        refuse(f"{program.__name__} needs {ranks} ranks, and mpiexec started {world.size}")
    group = world.split(0 if world.rank < ranks else None, world.rank)
    result = None
    if group is not None:
        with group, contextlib.redirect_stdout(_stdout), mnpar.Tape():
            result = program(group, *args)
    return world.allgather_obj(result)[:ranks]


def show_error(program, ranks=2, args=()):
    """Run a program that fails, on thread ranks, and print its error.

    Threads find a deadlock at once; processes would wait for ten seconds, and end.
    """
    if world is not None and world.rank > 0:
        return
    try:
        mnpar.run(program, ranks, args)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print(f"{program.__name__} ends without an error")


def grade(answer):
    """Print whether an exercise is done: the same judgement as ``pytest course`` gives."""
    if not graded_by_pytest and (world is None or world.rank == 0):
        print(verdict(answer.__name__, answer))


def picture(name, draw=None, size=(7.5, 3)):
    """Show a picture in a notebook, and leave it in the folder ``result``.

    Args:
        name: of the file.
        draw: ``draw(axes)`` draws it on matplotlib's axes; None: the file is there.
        size: in inches.
    """
    if graded_by_pytest or (world is not None and world.rank > 0):
        return
    path = RESULT / name
    if draw is not None:
        if importlib.util.find_spec("matplotlib") is None:
            print(f"{path} was not drawn: pip install matplotlib")
            return
        from matplotlib.figure import Figure

        RESULT.mkdir(exist_ok=True)
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        figure.savefig(path, dpi=110)
    if not path.exists():
        return
    print(f"a picture: {path}")
    if "ipykernel" in sys.modules:
        from IPython.display import Image, display

        display(Image(str(path), width=800))


def on_processes():
    """Return whether ranks are processes, which work at the same time."""
    return world is not None


def start_processes(lesson, ranks):
    """Run a lesson's file once more, under mpiexec; nothing where it runs there already."""
    if graded_by_pytest or world is not None:
        return
    try:
        command, environment = mpiexec_command(ranks)
    except LauncherError as error:
        print(f"this needs mpiexec: {error}")
        return
    done = subprocess.run(
        [*command, sys.executable, str(Path(__file__).with_name(lesson))],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"mpiexec -n {ranks} python {lesson} failed:\n{done.stderr[-2000:]}")
    else:
        print(f"mpiexec -n {ranks} python {lesson} has run")
