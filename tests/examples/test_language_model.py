"""The language model, run as a user runs it, on several meshes: they print the same losses and the
same text.
"""

import re

import pytest

from tests.examples.running import run

SMALL = [
    "--steps",
    "4",
    "--report",
    "2",
    "--unit",
    "16",
    "--length",
    "12",
    "--batchsize",
    "6",
    "--letters",
    "8",
    "--micro-batches",
    "2",
    "--dtype",
    "f8",
]
WAYS = {
    "one rank": (0, ["--threads", "--mesh", "data=1"]),
    "threads": (0, ["--threads", "--mesh", "data=2,pipe=2,model=2"]),
    "threads, in a V": (0, ["--threads", "--mesh", "pipe=2,sequence=3", "--schedule", "zbv"]),
    "python, which starts two": (0, ["--mesh", "model=2"]),
    "mpiexec without a number": (0, ["--mesh", "data=2"]),
    "mpiexec -n 2": (2, ["--mesh", "pipe=-1"]),
    "mpiexec -n 3, and no mesh": (3, []),
}


def output(ranks, flags, bare_mpiexec=False):
    done = run(ranks, "transformer_lm", [*SMALL, *flags], bare_mpiexec)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^step +\d+   loss [\d.]+$", done.stdout, re.M), done.stdout.split(
        "\n\n", 1
    )[1]


@pytest.fixture(scope="module")
def alone():
    return output(*WAYS["one rank"])


@pytest.mark.parametrize("way", [way for way in WAYS if way != "one rank"])
def test_every_mesh_prints_the_same_losses_and_text(way, alone):
    assert len(alone[0]) == 2
    assert output(*WAYS[way], bare_mpiexec="without" in way) == alone


def test_four_ranks_without_a_mesh_divide_batches_and_layers():
    done = run(0, "transformer_lm", [*SMALL, "--steps", "1"])
    assert done.stdout.startswith("data=2,model=2: 4 rank(s)"), done.stdout + done.stderr


def test_a_run_goes_on_on_another_mesh(alone, tmp_path):
    half = ["--steps", "2", "--run", str(tmp_path), "--threads", "--mesh"]
    first, _ = output(0, [*half, "data=2,model=2"])
    second, text = output(0, [*half, "pipe=4"])
    assert (first + second, text) == alone


def test_more_stages_than_layers_are_refused():
    done = run(0, "transformer_lm", ["--mesh", "pipe=6", "--threads"])
    assert done.returncode != 0
    assert "4 layers cannot be cut into 6 stages" in done.stderr
