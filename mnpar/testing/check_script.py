"""``python -m mnpar check script.py``: :func:`mnpar.check` of a whole script.

Each rank runs the script's text in names of its own, as ``__main__``, with its own communicator:
``mnpar.create_communicator()`` returns the thread rank's, and ``mnpar.relaunch`` starts nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mnpar.communicators.communicator import Communicator
from mnpar.runtime.callsite import site_of
from mnpar.runtime.mpiexec import without_relaunch
from mnpar.runtime.process import Process
from mnpar.testing.program_check import CheckResult, check

RIGHT, WRONG, NOT_CHECKED = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument(
        "-n",
        "--ranks",
        default="1,2,3",
        metavar="N[,N…]",
        help="numbers of thread ranks (1,2,3); 3 is 1,3. Without a 1, as in 2,3 or 3,, finite "
        "differences alone decide",
    )
    parser.add_argument(
        "--reference", metavar="FILE", help="a script for one process, to compare with"
    )
    parser.add_argument(
        "--passes", type=int, default=3, metavar="K", help="how many backwards are compared (3)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of all random numbers (0)"
    )
    parser.add_argument(
        "--dtype", default="float64", help="of parameters (float64), where the script says nothing"
    )
    parser.add_argument("--rtol", type=float, metavar="R", help="how far numbers may be apart")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds for all of it; then it says where each rank is (600)",
    )


def check_script(args: argparse.Namespace, flags: Sequence[str], fail: Callable[[str], Any]) -> int:
    """Check a script, print the report, and return the exit code: 0 right, 1 wrong, 2 not checked.

    Args:
        args: what the parser of :func:`add_arguments` has read.
        flags: of the script itself.
        fail: called with what is wrong with the command line.
    """
    ranks = _numbers(args.ranks, fail)
    program = script_program(args.script, flags, fail)
    reference = script_program(args.reference, flags, fail) if args.reference else None
    for name in ("passes", "timeout"):
        if not getattr(args, name) > 0:
            fail(f"--{name} is more than 0, not {getattr(args, name)}")
    watch = threading.Timer(args.timeout, _give_up, (args.timeout,))
    watch.daemon = True
    watch.start()
    started = Process.known() is not None
    try:
        with without_relaunch():
            result = check(
                program,
                ranks,
                reference=reference,
                passes=args.passes,
                dtype=args.dtype,
                seed=args.seed,
                rtol=args.rtol,
            )
    finally:
        watch.cancel()
    if Process.known() is not None and not started:
        result = CheckResult(
            [
                "the script uses MPI's ranks, and a check runs it on threads: "
                "mnpar.create_communicator() is right for both"
            ],
            checked=False,
        )
    print(result)
    return (RIGHT if result.ok else WRONG) if result.checked else NOT_CHECKED


def _numbers(text: str, fail: Callable[[str], Any]) -> tuple[int, ...]:
    parts = text.removesuffix(",").split(",")
    if not all([part.strip().isdecimal() and int(part) for part in parts]):
        fail(f"-n is a number of ranks, or several with commas between them, not {text!r}")
    counts = [int(part) for part in parts]
    return tuple(counts) if "," in text else (1, *counts)


def script_program(
    script: str, flags: Sequence[str], fail: Callable[[str], Any]
) -> Callable[[Communicator], None]:
    """Return the program of a rank that runs a script's text.

    Args:
        script: the file.
        flags: what follows its name in ``sys.argv``.
        fail: called with what is wrong: the file cannot be read, or is no Python.
    """
    path = Path(script)
    try:
        code = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    except (OSError, SyntaxError, ValueError) as error:
        return fail(f"{script}: {error}")  # type: ignore[no-any-return]

    def program(comm: Communicator) -> None:
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        sys.argv = [script, *flags]
        names = {"__name__": "__main__", "__file__": str(path), "__builtins__": __builtins__}
        exec(code, names)

    return program


def _give_up(seconds: float) -> None:
    """End the process; say where each rank is."""
    frames = sys._current_frames()
    where = [
        f"  {thread.name} is at {site_of(frames[thread.ident])}"
        for thread in threading.enumerate()
        if thread.name.startswith("rank ") and thread.ident in frames
    ]
    lines = ["not checked:", f"  not finished after {seconds:g} s (--timeout)", *where[:20]]
    print("\n".join(lines), file=sys.__stderr__, flush=True)
    os._exit(NOT_CHECKED)
