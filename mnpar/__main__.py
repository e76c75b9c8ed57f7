"""``python -m mnpar doctor``: what works here. ``python -m mnpar run -n 4 script.py …``: start
ranks of a script. ``python -m mnpar check script.py``: are its gradients those of one process?
"""

from __future__ import annotations

import argparse
import sys

from mnpar import doctor
from mnpar.errors import LauncherError
from mnpar.launch import parse_args
from mnpar.runtime.launcher import launched_ranks
from mnpar.runtime.mpiexec import start
from mnpar.testing import check_script


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    whole = argparse.ArgumentParser(prog="python -m mnpar", description="mnpar's commands.")
    commands = whole.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "doctor",
        help="look at this machine, alone or under mpiexec, and say what works and what to type",
    )
    run = commands.add_parser(
        "run",
        help="start ranks of a script",
        description="Start ranks of a script by the mpiexec of this Python.",
    )
    run.add_argument("-n", "--ranks", type=int, default=2, metavar="N", help="how many ranks (2)")
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
    checked = commands.add_parser(
        "check",
        help="compare what a script computes on several ranks with one rank",
        usage="%(prog)s [options] SCRIPT [options] [-- ARGS of the script]",
        description="Run a training script on thread ranks, and compare gradients and updated "
        "weights with those of one rank and with finite differences. The exit code is 0 if all "
        "agrees, 1 if something is wrong, 2 if it could not be checked.",
    )
    check_script.add_arguments(checked)
    return whole


def main() -> int:
    """Return the exit code: the doctor's is 0 if training will work, 1 if it will not; that of
    ``run`` is the job's; ``check``'s is 0 if the script is right, 1 if it is wrong, 2 if it could
    not be checked.
    """
    whole = parser()
    flags: list[str] = []
    if sys.argv[1:2] == ["check"] and "--" in sys.argv:
        cut = sys.argv.index("--")
        flags, sys.argv = sys.argv[cut + 1 :], sys.argv[:cut]
    if sys.argv[1:2] == ["check"]:
        args, unknown = whole.parse_known_args()
        if unknown:
            whole.error(
                f"unrecognized arguments: {' '.join(unknown)}; flags of the script follow --: "
                f"check {args.script} -- {' '.join(unknown)}"
            )
        return check_script.check_script(args, flags, whole.error)
    args = parse_args(whole)
    if args.command == "doctor":
        return doctor.examine()
    if args.ranks < 1:
        whole.error(f"-n is at least 1, not {args.ranks}")
    if launched_ranks() > 1:
        whole.error(
            "this is a rank of a job already: run starts ranks, it is not started by mpiexec"
        )
    try:
        start(args.ranks, [args.script, *args.args], args.hosts, args.module)
    except LauncherError as error:
        whole.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
