"""What a run of several benchmarks found: kept in a file, compared with an earlier one, drawn, and
put into a page of the documentation.

A row's *ratio* is mnpar's time over that of the fastest other way that is a user's choice: it is
the same on a quick machine and on a slow one, or nearly, and so it is what is compared where both
runs had the same peer. Rows without a peer are compared by their seconds, which only says
something on one machine.
"""

import json
import re
import statistics

from benchmarks import machine

PEERS = ("torch", "DDP", "gloo", "raw", "chainer", "chainermn")  # in the order of preference
NOISE = 1.05  # a row counts as slower, or faster, from here on
# of a page: its tables stand between them
MARKS = "<!-- python -m benchmarks: begin -->", "<!-- python -m benchmarks: end -->"


def read(path):
    """An earlier run; SystemExit in one line if the file is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"machine": dict(found["machine"]), "rows": list(found["rows"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} is no file that --json has written: {error}") from None


def write(path, found):
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def peer_of(row):
    """The way that a user would pick instead; None: there is none."""
    return next((peer for peer in PEERS if row["seconds"].get(peer)), None)


def ratio(row, peer):
    return row["seconds"]["mnpar"] / row["seconds"][peer]


def grouped(rows):
    """The ratios of all rows that have a peer, by benchmark and peer."""
    groups = {}
    for row in rows:
        if peer := peer_of(row):
            groups.setdefault((row["benchmark"], peer), {})[row["name"]] = ratio(row, peer)
    return groups


def summarize(found):
    """A line for each benchmark: how many rows, the middle and the worst."""
    for (benchmark, peer), ratios in grouped(found["rows"]).items():
        worst = max(ratios, key=ratios.get)
        print(
            f"{benchmark:18} mnpar / {peer:10} {len(ratios):4} rows   "
            f"median {statistics.median(ratios.values()):5.2f}   "
            f"worst {ratios[worst]:5.2f} ({worst})"
        )


def changes(before, after):
    """Of the rows that both runs have: how much longer mnpar takes now, by benchmark and name, the
    slowest first.
    """
    earlier = {(row["benchmark"], row["name"]): row for row in before["rows"]}
    found = {}
    for row in after["rows"]:
        old = earlier.get((row["benchmark"], row["name"]))
        if old is None:
            continue
        peer = peer_of(row)
        if peer and old["seconds"].get(peer):
            found[row["benchmark"], row["name"]] = ratio(row, peer) / ratio(old, peer)
        else:
            found[row["benchmark"], row["name"]] = row["seconds"]["mnpar"] / old["seconds"]["mnpar"]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def compare(before, after):
    """Say what has become slower, and what faster."""
    found = changes(before, after)
    if before["machine"].get("processor") != after["machine"].get("processor"):
        print("(the earlier run was on another machine: rows without a peer say nothing)")
    slower = {row: times for row, times in found.items() if times > NOISE}
    faster = {row: times for row, times in found.items() if times < 1 / NOISE}
    print(f"{len(found)} rows in both: {len(slower)} slower, {len(faster)} faster")
    for (benchmark, name), times in slower.items():
        print(f"  × {times:.2f}  {benchmark}: {name}")


def put_into_page(path, found):
    """Put the table of each benchmark that ran between a page's two marks: in place of the table
    that the page has of it, or else behind the others, which stay. SystemExit in one line if the
    page has no marks.
    """
    begin, end = MARKS
    before, is_begun, rest = path.read_text(encoding="utf-8").partition(begin)
    old, is_ended, after = rest.partition(end)
    if not (is_begun and is_ended):
        raise SystemExit(f"{path} has no lines {begin} and {end}, between which tables stand")
    sections = dict(HEADING.findall(old)) | tables(found)
    text = "\n\n".join([f"### {name}\n\n{body.strip()}" for name, body in sections.items()])
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


# of a benchmark's tables in a page, and what follows up to the next one
HEADING = re.compile(r"^### (\S+)\n(.*?)(?=^### |\Z)", re.M | re.S)


def tables(found):
    """For each benchmark a table in Markdown, and the machine on which it ran."""
    by_benchmark = {}
    for row in found["rows"]:
        by_benchmark.setdefault(row["benchmark"], []).append(row)
    told = f"{machine.told(found['machine'])}."
    return {name: f"{table(rows)}\n\n{told}" for name, rows in by_benchmark.items()}


def table(rows):
    ways = list(dict.fromkeys([way for row in rows for way in row["seconds"]]))[1:]
    columns = ["", "mnpar", *ways]
    columns += ["limit"] * any(["limit" in row for row in rows])
    columns += ["MB"] * any(["bytes" in row for row in rows])
    lines = [line_of(columns), "|---" + "|--:" * (len(columns) - 1) + "|"]
    return "\n".join(lines + [line_of([cell(row, column) for column in columns]) for row in rows])


def line_of(cells):
    return f"| {' | '.join(cells)} |"


def cell(row, column):
    """What a table has for a row: mnpar's time, another way's as a multiple of it, the machine's
    least as a share of it, or the memory of each way.
    """
    seconds = row["seconds"]
    own = seconds["mnpar"]
    if column == "":
        return row["name"].replace("|", "\\|")
    if column == "mnpar":
        return f"{own * 1e3:.3g} ms" if own >= 1e-3 else f"{own * 1e6:.3g} µs"
    if column == "limit":
        return f"{row['limit'] / own:.0%}" if "limit" in row else ""
    if column == "MB":
        return " / ".join([f"{n / 2**20:.0f}" for n in row.get("bytes", {}).values()])
    return f"{seconds[column] / own:.2f}" if seconds.get(column) else ""


def plot(path, found):
    """Draw the ratios of each benchmark: a dot for each row, left of the line mnpar is faster."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups = grouped(found["rows"])
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.45 * len(groups)), layout="constrained")
    for place, ratios in enumerate(groups.values()):
        axes.plot([*ratios.values()], [place] * len(ratios), "o", alpha=0.5)
        axes.plot(statistics.median(ratios.values()), place, "k|", markersize=16)
    axes.axvline(1, color="grey")
    axes.set_xscale("log")
    axes.set_yticks(range(len(groups)), [f"{name} / {peer}" for name, peer in groups])
    axes.invert_yaxis()
    axes.set_xlabel("mnpar's time / the peer's (left: mnpar is faster; the bar is the median)")
    figure.savefig(path, dpi=150)
