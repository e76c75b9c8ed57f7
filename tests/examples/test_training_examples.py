"""The examples with a trainer, run as a user runs them."""

import json
import re

import pytest

from tests.examples.test_examples import run

# With a trainer: (example, ranks under mpiexec or 0, flags, the first column of accuracies, what it
# is to reach).
TRAINED = {
    "data parallel, mpiexec": ("mnist_data_parallel.py", 2, [], 0.85),
    "data parallel, python": ("mnist_data_parallel.py", 0, ["--progress"], 0.85),
    "data parallel, threads": ("mnist_data_parallel.py", 0, ["--threads", "3"], 0.75),
    "model parallel, mpiexec": ("mnist_model_parallel.py", 2, [], 0.85),
    "model parallel, threads": ("mnist_model_parallel.py", 0, ["--threads"], 0.85),
    "dual parallel, python": ("mnist_dual_parallel.py", 0, [], 0.85),
    "dual parallel, threads": ("mnist_dual_parallel.py", 0, ["--threads", "4"], 0.85),
    "translator, mpiexec": ("seeds/seq2seq_model_parallel.py", 2, ["--unit", "64"], 0.6),
    "translator, threads": (
        "seeds/seq2seq_model_parallel.py",
        0,
        ["--threads", "--unit", "32", "--longest", "4"],
        0.25,
    ),
}


@pytest.mark.parametrize(("example", "ranks", "flags", "reached"), TRAINED.values(), ids=TRAINED)
def test_an_example_with_a_trainer_learns_and_one_rank_speaks(
    example, ranks, flags, reached, tmp_path
):
    done = run(ranks, example, ["--epoch", "3", "--out", str(tmp_path), *flags])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    assert re.search(r"^ranks: \d+ \(\w+\)", done.stdout) or not example.startswith("mnist")
    [header] = [line for line in lines if line[:1] == ["epoch"]]
    rows = [
        dict(zip(header, line, strict=True))
        for line in lines
        if len(line) == len(header) and line[0].isdigit()
    ]
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    accuracies = [
        float(row.get("validation/main/accuracy") or row["validation/main/letters"]) for row in rows
    ]
    assert accuracies[-1] > max(reached, accuracies[0])
    assert [entry["epoch"] for entry in json.loads((tmp_path / "log").read_text())] == [1, 2, 3]


def test_the_translator_translates(tmp_path):
    done = run(
        2,
        "seeds/seq2seq_model_parallel.py",
        ["--epoch", "6", "--longest", "4", "--out", str(tmp_path)],
    )
    right, of = map(
        int, re.search(r"^(\d+) of (\d+) words are written backwards", done.stdout, re.M).groups()
    )
    assert right > of / 2
    assert " → " in done.stdout


def test_training_goes_on_from_a_snapshot(tmp_path):
    flags = ["--out", str(tmp_path)]
    run(2, "mnist_data_parallel.py", ["--epoch", "2", *flags])
    [snapshot] = tmp_path.glob("snapshot_iter_*")
    done = run(2, "mnist_data_parallel.py", ["--epoch", "3", "--resume", str(snapshot), *flags])
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["epoch", "1", "2", "3"]
    assert [entry["epoch"] for entry in json.loads((tmp_path / "log").read_text())] == [1, 2, 3]


@pytest.mark.parametrize(
    ("example", "ranks", "message"),
    [
        ("mnist_model_parallel.py", 3, "made for 2 ranks, not 3"),
        ("mnist_dual_parallel.py", 3, "an even number of ranks, not 3"),
    ],
)
def test_an_example_names_the_number_of_ranks_that_it_is_made_for(example, ranks, message):
    done = run(ranks, example)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize(
    "example",
    [
        "mnist_data_parallel",
        "mnist_model_parallel",
        "mnist_dual_parallel",
        "seeds/seq2seq_model_parallel",
    ],
)
def test_a_bad_number_is_one_usage_error(example):
    done = run(2, example + ".py", ["--epoch", "0"])
    assert done.returncode == 2
    assert done.stderr.count("--epoch is at least 1, not 0") == 1
