"""Run benchmarks by their names.

python -m benchmarks                              list them
python -m benchmarks overhead mlp_step            run these, one after the other
python -m benchmarks functions relu --chainer …   what follows the names is for the benchmark
mpiexec -n 2 python -m benchmarks data_parallel   on ranks
"""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

SHARED = ("__init__", "__main__", "timing")


def benchmarks():
    """What each benchmark measures, by name."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    docs = {
        file.stem: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) for file in files
    }
    return {name: doc.split("\n\n")[0] for name, doc in docs.items() if name not in SHARED}


def main():
    names, flags = [], sys.argv[1:]
    known = benchmarks()
    while flags and flags[0] in known:
        names.append(flags.pop(0))
    if not names and flags and not flags[0].startswith("-"):
        raise SystemExit(f"there is no benchmark {flags[0]}, only {', '.join(known)}")
    if not names:
        print(__doc__)
        for name, doc in known.items():
            print(f"{name:26}{' '.join(doc.split())}")
    elif len(names) == 1:
        # in this process, which may be a rank
        sys.argv[1:] = flags
        runpy.run_module(f"benchmarks.{names[0]}", run_name="__main__", alter_sys=True)
    for name in names if len(names) > 1 else ():
        print(f"---- {name} ----", flush=True)
        # in one of its own: it sets the number of BLAS threads before numpy is imported
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *flags], check=True)


if __name__ == "__main__":
    main()
