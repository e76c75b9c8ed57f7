"""``python -m mnpar doctor``, alone or under mpiexec: what works here, and what to type where it does not."""

from __future__ import annotations

import argparse
import sys

from mnpar import doctor, launch


def main() -> int:
    """The exit code: 0 if training will work, 1 if it will not."""
    parser = argparse.ArgumentParser(prog="python -m mnpar", description=__doc__)
    parser.add_argument("command", choices=["doctor"], help="look at this machine and say what works")
    launch.parse_args(parser)
    return doctor.examine()


if __name__ == "__main__":
    sys.exit(main())
