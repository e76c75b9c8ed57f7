"""``python -m mnpar doctor``: what works here. ``python -m mnpar run -n 4 script.py …``: start
ranks of a script. ``python -m mnpar check script.py``: are its gradients those of one process?
``python -m mnpar film timeline.json``: a page that plays a profile. ``python -m mnpar plan-of
model.py:make``: which rank has which parameter.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import math
import runpy
import sys
from pathlib import Path
from typing import NoReturn

from mnpar import __version__, doctor, launch, random
from mnpar.communicators.communicator import Communicator
from mnpar.errors import DatasetError, LauncherError
from mnpar.launch import parse_args
from mnpar.parallel.mesh import Mesh
from mnpar.parallel.plan.table import plan_of
from mnpar.profiling.film import write_film
from mnpar.runtime.launcher import launched_ranks
from mnpar.runtime.mpiexec import start
from mnpar.testing import check_script


def parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the command line, and the names of the commands."""
    # installed, the command is mnpar, too
    name = "mnpar" if Path(sys.argv[0]).stem == "mnpar" else "python -m mnpar"
    whole = argparse.ArgumentParser(prog=name, description="mnpar's commands.")
    whole.add_argument("--version", action="version", version=f"mnpar {__version__}")
    commands = whole.add_subparsers(dest="command", required=True)
    examined = commands.add_parser(
        "doctor",
        help="look at this machine, alone or under mpiexec, and say what works and what to type",
    )
    examined.add_argument(
        "--compile", action="store_true", help="compile all kernels, for this kind of processor"
    )
    examined.add_argument(
        "--tune", action="store_true", help="choose constants of kernels for this machine"
    )
    run = commands.add_parser(
        "run",
        help="start ranks of a script",
        description="Start ranks of a script by the mpiexec of this Python.",
    )
    run.add_argument("-n", "--ranks", type=int, metavar="N", help="how many ranks (2)")
    run.add_argument(
        "--hosts",
        metavar="FILE",
        help="machines to start them on, one a line, as mpiexec wants them",
    )
    run.add_argument(
        "-m", "--module", action="store_true", help="SCRIPT is a module's name, as after python -m"
    )
    run.add_argument("script", metavar="SCRIPT")
    run.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="what the script gets")
    filmed = commands.add_parser(
        "film",
        help="make a page that plays a profile: ranks, functions and messages",
        description="Make one HTML page that plays what mnpar.profile has recorded.",
    )
    filmed.add_argument("trace", metavar="TRACE", help="timeline.json, or the folder that has it")
    filmed.add_argument(
        "-o", "--out", default="film.html", metavar="FILE", help="the page (film.html)"
    )
    checked = commands.add_parser(
        "check",
        help="compare what a script computes on several ranks with one rank",
        usage="%(prog)s [options] SCRIPT [options] [-- ARGS of the script]",
        description="Run a training script on thread ranks, and compare gradients and updated "
        "weights with those of one rank and with finite differences. The exit code is 0 if all "
        "agrees, 1 if something is wrong, 2 if it could not be checked.",
    )
    check_script.add_arguments(checked)
    planned = commands.add_parser(
        "plan-of",
        help="print which rank has which part of a model's parameters",
        description="Call make(mesh), which returns a model that mnpar.parallelize has divided, on "
        "thread ranks, and print its plan.",
    )
    planned.add_argument("model", metavar="FILE:MAKE", help="a script, and a function in it")
    planned.add_argument(
        "--divide",
        type=Mesh.parse,
        default={},
        metavar="MESH",
        help="names and sizes of axes, like data=2,model=2 (one rank)",
    )
    planned.add_argument("--rank", type=int, metavar="R", help="of which rank (all)")
    return whole, [*commands.choices]


def main() -> int:
    """Return the exit code: the doctor's is 0 if training will work, 1 if it will not; that of
    ``run`` is the job's; ``check``'s is 0 if the script is right, 1 if it is wrong, 2 if it could
    not be checked.
    """
    whole, commands = parser()
    word = sys.argv[1] if sys.argv[1:] else ""
    near = difflib.get_close_matches(word, commands, 1)
    if near and word not in commands:
        whole.error(f"there is no command {word}: did you mean {near[0]}?")
    if word == "check":
        return _check(whole)
    args = parse_args(whole)
    if args.command == "doctor":
        done = doctor.compile_kernels() if args.compile else 0
        if args.tune:
            return doctor.tune_kernels() or done
        return done if args.compile else doctor.examine()
    if args.command == "plan-of":
        return _plan_of(args, whole)
    return _film(args, whole) if args.command == "film" else _run(args, whole)


def _plan_of(args: argparse.Namespace, whole: argparse.ArgumentParser) -> int:
    """Print the plan of a model."""
    file, _, name = args.model.rpartition(":")
    sizes = [
        n for size in args.divide.values() for n in ((size,) if isinstance(size, int) else size)
    ]
    ranks = math.prod(sizes)
    if not Path(file).is_file() or ranks < 1:
        whole.error(
            f"there is no file {file!r}: FILE:MAKE is a script and a function, like model.py:make"
            if ranks >= 1
            else "--divide: say each size, -1 needs ranks that are there already"
        )
    sys.path.insert(0, str(Path(file).parent))  # modules beside it, as `python file` finds them
    make = runpy.run_path(file, run_name="mnpar_plan").get(name)
    if not callable(make):
        whole.error(f"{file} has no function {name!r}")
    try:
        inspect.signature(make).bind(None)
    except TypeError:
        whole.error(
            f"{name} takes the mesh and returns the model: "
            f"def {name}(mesh): return mnpar.parallelize(Model(), mesh, RULES)"
        )
    if args.rank is not None and not 0 <= args.rank < ranks:
        whole.error(f"--rank is 0 to {ranks - 1}, not {args.rank}")

    def plan(comm: Communicator) -> str:
        random.seed(0)  # all ranks begin with the same weights, whichever these are
        return str(plan_of(make(Mesh(comm, **args.divide))))

    tables = launch.run(plan, ranks=ranks)
    for rank in range(ranks) if args.rank is None else [args.rank]:
        print(tables[rank], end="\n\n" if args.rank is None and rank + 1 < ranks else "\n")
    return 0


def _check(whole: argparse.ArgumentParser) -> int:
    """Check a script, whose flags follow ``--``."""
    flags: list[str] = []
    if "--" in sys.argv:
        cut = sys.argv.index("--")
        flags, sys.argv = sys.argv[cut + 1 :], sys.argv[:cut]
    args, unknown = whole.parse_known_args()
    if unknown:
        whole.error(
            f"unrecognized arguments: {' '.join(unknown)}; flags of the script follow --: "
            f"check {args.script} -- {' '.join(unknown)}"
        )
    return check_script.check_script(args, flags, whole.error)


def _film(args: argparse.Namespace, whole: argparse.ArgumentParser) -> int:
    """Write the film of a profile."""
    trace = Path(args.trace)
    try:
        write_film(trace / "timeline.json" if trace.is_dir() else trace, args.out)
    except (OSError, DatasetError) as error:
        whole.error(str(error))
    print(f"film: {args.out}")
    return 0


def _run(args: argparse.Namespace, whole: argparse.ArgumentParser) -> NoReturn:
    """Start ranks of a script; its exit code becomes that of this process."""
    ranks = 2 if args.ranks is None else args.ranks
    if ranks < 1:
        whole.error(f"-n is at least 1, not {ranks}")
    if launched_ranks() > 1:
        whole.error(
            "this is a rank of a job already: run starts ranks, it is not started by mpiexec"
        )
    misplaced = [flag for flag in args.args if flag in ("-n", "--ranks")]
    if args.ranks is None and misplaced:
        print(
            f"mnpar: starting {ranks} ranks: {misplaced[0]} after {args.script} is a flag of "
            f"that script; for other ranks write {whole.prog} run -n N {args.script}",
            file=sys.stderr,
        )
    try:
        start(ranks, [args.script, *args.args], args.hosts, args.module)
    except LauncherError as error:
        whole.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
