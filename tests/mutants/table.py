"""The table of what became of mutants."""

from collections import Counter

KINDS = (
    "told",
    "right",
    "own",
    "another right",
    "impossible",
    "silent",
    "hung",
    "not applicable",
)


def table(rows):
    """Return lines: how many mutants there are of each kind, by program and by operator.

    Args:
        rows: of each mutant its program's name, its operator and its kind.
    """
    lines = []
    for column, of in enumerate(("program", "operator")):
        lines.append(f"{of:16}" + "".join([f"{kind:>15}" for kind in KINDS]))
        for name in [*sorted({row[column] for row in rows}), "all"]:
            n = Counter([row[2] for row in rows if name in (row[column], "all")])
            lines.append(f"{name:16}" + "".join([f"{n[kind]:15}" for kind in KINDS]))
    return lines
