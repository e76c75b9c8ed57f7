"""What benchmarks find: rows, printed as they come, and collected by ``python -m benchmarks`` if it
runs several.

A row is one piece of work, done in several ways: mnpar's comes first, then what a user would pick
instead. It has the seconds of each way and, where they are known, ``limit``, the seconds that the
machine needs at least (benchmarks/machine.py), and ``bytes``, the memory of each way.
"""

import json
import os
import sys
from pathlib import Path

# the file to which a benchmark adds its rows, a line of JSON each, if the suite has started it
COLLECTED = "MNPAR_BENCHMARK_ROWS"


def record(name, seconds, **facts):
    """Print a row, and collect it."""
    print(table({"name": name, "seconds": seconds, **facts}), flush=True)
    collect(name, seconds, **facts)


def collect(name, seconds, **facts):
    """Hand a row to the suite, if that has started this process; on one rank only."""
    if path := os.environ.get(COLLECTED):
        row = {"benchmark": Path(sys.argv[0]).stem, "name": name, "seconds": seconds, **facts}
        with open(path, "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)


def table(row):
    """A line: the first way's microseconds, and the others' times relative to it (more than 1: the
    first is faster).
    """
    (first, own), *others = row["seconds"].items()
    text = f"{row['name']:58} {first} {1e6 * own:8.0f} µs"
    text += "".join(f"   {who} ×{s / own:5.2f}" for who, s in others if s is not None)
    if "limit" in row:
        text += f"   limit {row['limit'] / own:4.0%}"
    if "bytes" in row:
        text += "   MB " + " / ".join(f"{n / 2**20:.0f}" for n in row["bytes"].values())
    return text
