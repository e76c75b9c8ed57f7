"""Run benchmarks by their names, beside what a user would pick instead, where that is installed.

python -m benchmarks                              list them
python -m benchmarks all                          run the suite: about 20 minutes
python -m benchmarks steps overhead               run these, one after the other
    --json new.json                               keep what they found
    --compare old.json                            say what has become slower since then
    --plot suite.png                              draw it
    --page docs/performance.md                    put their whole tables into that page
python -m benchmarks functions relu --chainer …   what follows the names is for the benchmark
mpiexec -n 2 python -m benchmarks data_parallel   on ranks
"""

import argparse
import ast
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.rows import COLLECTED

SHARED = ("__init__", "__main__", "report", "rows", "timing")
SUITE = (
    "overhead",
    "steps",
    "functions",
    "optimizers",
    "communication",
    "data_parallel",
    "pipeline",
    "tensor_parallel",
    "spatial",
)


def docstrings():
    """The docstring of each benchmark, by name."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    docs = {
        file.stem: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) for file in files
    }
    return {name: doc for name, doc in docs.items() if name not in SHARED}


def benchmarks():
    """What each benchmark measures, by name."""
    return {name: doc.split("\n\n")[0] for name, doc in docstrings().items()}


def ranks_of(doc):
    """The ranks of the first command in a docstring; 0: it starts none, or starts them itself."""
    found = re.search(r"^ +(?:mpiexec -n (\d+) )?python -m", doc, re.M)
    return int(found[1] or 0) if found else 0


def run_one(name, flags, rows):
    """Run a benchmark in a process, or a job, of its own: it sets the number of BLAS threads before
    numpy is imported.
    """
    ranks = ranks_of(docstrings()[name])
    command, environment = [], dict(os.environ)
    if ranks:
        from mnpar.runtime.mpiexec import mpiexec_command

        command, environment = mpiexec_command(ranks)
    command += [sys.executable, "-m", f"benchmarks.{name}", *flags]
    print(f"---- {name} ----", flush=True)
    subprocess.run(command, env={**environment, COLLECTED: str(rows)}, check=True)


def run_several(names, flags, args):
    """Run benchmarks one after the other, and say what they found together."""
    # (a module that is imported here cannot run as a program in this process)
    from benchmarks import machine, report

    if args.page and (others := without_chainer(flags)):
        raise SystemExit(
            f"--page replaces whole tables of {args.page}: leave out {' '.join(others)}, "
            "with which benchmarks run in part, or otherwise than for such a page"
        )
    if args.compare:
        before = report.read(args.compare)  # or fail now
    print("---- machine ----", flush=True)
    measured = subprocess.run(
        [sys.executable, "-m", "benchmarks.machine", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = {"machine": json.loads(measured.stdout), "rows": []}
    print(machine.told(found["machine"]), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        rows.touch()
        for name in names:
            run_one(name, flags, rows)
        lines = rows.read_text(encoding="utf-8").splitlines()
        found["rows"] = [json.loads(line) for line in lines]
    if args.json:
        report.write(args.json, found)
    print("---- in all ----")
    report.summarize(found)
    if args.compare:
        report.compare(before, found)
    if args.plot:
        report.plot(args.plot, found)
    if args.page:
        report.put_into_page(args.page, found)


def without_chainer(flags):
    """The flags for benchmarks but ``--chainer PYTHON``, which adds a column to a table."""
    at = flags.index("--chainer") if "--chainer" in flags else len(flags)
    return flags[:at] + flags[at + 2 :]


def main():
    names, flags = [], sys.argv[1:]
    known = benchmarks()
    while flags and flags[0] in (*known, "all"):
        names.append(flags.pop(0))
    if not names and flags and not flags[0].startswith("-"):
        raise SystemExit(f"there is no benchmark {flags[0]}, only {', '.join(known)}")
    if not names:
        print(__doc__)
        for name, doc in known.items():
            print(f"{name:26}{' '.join(doc.split())}")
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", allow_abbrev=False)
    for flag in ("--json", "--compare", "--plot", "--page"):
        parser.add_argument(flag, metavar="FILE", type=Path)
    args, flags = parser.parse_known_args(flags)
    if len(names) > 1 or names == ["all"] or any(vars(args).values()):
        names = [one for name in names for one in (SUITE if name == "all" else (name,))]
        run_several(names, flags, args)
    else:  # in this process, which may be a rank
        sys.argv[1:] = flags
        runpy.run_module(f"benchmarks.{names[0]}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
