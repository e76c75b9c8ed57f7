"""All examples in each of their ways, and what is wrong with flags and files: one table of each."""

import json
import re
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from mnpar.runtime.mpiexec import mpiexec_command
from tests.examples.one_process import PROGRAMS as COMPARED
from tests.examples.running import EXAMPLES, NOWHERE, PNG, SCRIPTS, output, run
from tests.harness.mpi import TO_END, needs_mpich
from tests.harness.scripts import client_for


class Way(NamedTuple):
    """A way to run an example, and what it prints."""

    example: str
    ranks: int  # of mpiexec; 0: plain python
    flags: str  # OUT is a folder
    says: dict[str, int] | None = None  # regular expressions of lines, and how many lines there are
    differs: float = 0  # how far the weights may be from those of one process
    picture: str = ""  # a file in OUT
    check: Callable = lambda text, folder: None
    size: int = 0  # the ranks that there are, where they are compared with one process

    def __str__(self):
        started = f"mpiexec -n {self.ranks}" if self.ranks else "python"
        return f"{started} {self.example} {self.flags}"


def whole_weights(text, folder):
    with np.load(folder / "model.npz") as file:
        assert file["filters/W"].shape == (5, 1, 3, 3)
        assert file["channels/W"].shape == (10, 5, 1, 1)
        assert file["l2/W"].shape == (10, 7)


def timeline(text, folder):
    assert json.loads((folder / "timeline.json").read_text())["traceEvents"]


def learnt(reached):
    """A check of what a trainer printed: accuracies rise, and reach that much."""

    def check(text, folder):
        lines = [line.split() for line in text.splitlines()]
        [header] = [line for line in lines if line[:1] == ["epoch"]]
        rows = [
            dict(zip(header, line, strict=True))
            for line in lines
            if len(line) == len(header) and line[0].isdigit()
        ]
        assert [row["epoch"] for row in rows] == ["1", "2", "3"]
        name = "validation/main/" + ("letters" if "main/letters" in text else "accuracy")
        accuracies = [float(row[name]) for row in rows]
        assert accuracies[-1] > max(reached, accuracies[0])
        assert [entry["epoch"] for entry in json.loads((folder / "log").read_text())] == [1, 2, 3]

    return check


def joint_ensemble(ranks, flags, members):
    epoch = rf"^epoch +\d +members (?:[\d.]+ +){{{members}}} *ensemble [\d.]+$"
    flags = f"--epoch 2 --unit 16 --batchsize 64 --out OUT {flags}"
    return Way("ensemble_mnist", ranks, flags, {epoch: 2}, 1e-10, "ensemble_mnist.png")


def ensemble(ranks, flags, members):
    epoch = rf"^epoch +\d+ +loss [\d.]+ +members (?:[\d.]+ +){{{members}}} *ensemble [\d.]+$"
    return Way(
        "ensemble_bagging",
        ranks,
        f"--epoch 2 --unit 16 --batchsize 64 --out OUT {flags}",
        {epoch: 2, "^data: scikit-learn's handwritten digits": 1},
        differs=1e-10 if "--joint" in flags else 0,
        picture="ensemble_bagging.png",
    )


def mixture(ranks, flags, size, experts=6):
    says = {
        rf"^epoch +\d +accuracy [\d.]+ +experts see(?: +[\d.]+%){{{experts}}}$": 2,
        r"^rank \d of \d has experts (?:[\d, ]+|none)$": size,
    }
    return Way("mixture_of_experts", ranks, f"--epoch 2 --batchsize 400 {flags}", says, 1e-10)


def tournament(ranks, flags, members):
    says = {
        rf"^round +\d +losses (?:[^\d\n]*\d+\.\d{{4}}(?: ← \d+)? *){{{members}}}$": 3,
        r"^round  1 .* ← \d": 1,
        rf"^accuracy +best member [\d.]+ +mean of {members} [\d.]+ +their vote [\d.]+$": 1,
    }
    return Way("ensemble_tournament", ranks, f"--rounds 3 --unit 8 {flags}", says, 1e-10)


def convolution(ranks, flags, size):
    return Way(
        "parallel_convolution",
        ranks,
        f"--epoch 1 --train 60 --filters 5 --unit 7 --batchsize 20 --out OUT {flags}",
        differs=1e-10,
        check=whole_weights,
        size=size,
    )


def pipeline(ranks, flags, size):
    says = {
        r"^rank \d \|[FB\d.-]+ *": size,
        r"^rank \d: computes": size,
        r"^epoch  1  loss [\d.]+": 1,
    }
    flags = f"--batches 3 --epoch 1 --unit 20 --out OUT {flags}"
    return Way("pipeline_mlp", ranks, flags, says, 1e-10, "timeline.png", timeline)


def u_net(ranks, flags=""):
    flags = f"--steps 2 --batchsize 6 --width 4 --out OUT {flags}"
    return Way(
        "applications/pipeline_unet", ranks, flags, differs=1e-8, picture="pipeline_unet.png"
    )


def translator(ranks, flags=""):
    flags = f"--lines 53 --epoch 2 --unit 16 {flags}"
    says = {r"^epoch +\d  loss +[\d.]+ per line  digits right [\d.]+$": 2}
    return Way("applications/pipeline_seq2seq", ranks, flags, says, 1e-8)


def trained(example, ranks, flags, reached):
    says = {r"^ranks: \d+ \(\w+\)": 1} if example.startswith("mnist") else {}
    flags = f"--epoch 3 --out OUT {flags}"
    return Way(example, ranks, flags, says, check=learnt(reached))


WAYS = [
    Way("mlp_model_parallel", 2, "--unit 20", differs=1e-10),
    Way("mlp_model_parallel", 0, "--unit 20", differs=1e-10),
    Way("mlp_model_parallel", 0, "--unit 20 --threads", differs=1e-10),
    ensemble(0, "", 4),
    ensemble(2, "", 2),
    ensemble(0, "--threads 3", 3),
    ensemble(0, "--groups 2", 2),
    ensemble(0, "--joint --threads 3", 3),
    ensemble(0, "--joint --threads 4 --groups 2", 2),
    mixture(2, "", 2),
    mixture(0, "--ranks 3", 3),
    mixture(0, "--threads 4 --experts 3 --k 2", 4, experts=3),  # more ranks than experts
    mixture(0, "--threads 3 --capacity 1", 3),
    tournament(2, "", 2),
    tournament(0, "--ranks 3", 3),
    tournament(0, "--threads 4 --members 2", 2),
    tournament(0, "--threads 2 --members 6 --how truncation", 6),
    convolution(3, "", 3),
    convolution(0, "", 2),
    convolution(0, "--threads 4", 4),
    convolution(0, "--threads 1", 1),
    convolution(0, "--threads 6", 6),  # more ranks than filters
    pipeline(3, "", 3),
    pipeline(0, "", 2),
    pipeline(0, "--threads 4", 4),
    u_net(2),
    u_net(4),
    u_net(0, "--threads 4 --schedule zb1p --recompute"),
    translator(2),
    translator(0, "--schedule zb1p --threads"),
    trained("mnist_data_parallel", 2, "", 0.85),
    trained("mnist_data_parallel", 0, "--progress", 0.85),
    trained("mnist_data_parallel", 0, "--threads 3", 0.75),
    trained("mnist_model_parallel", 2, "", 0.85),
    trained("mnist_model_parallel", 0, "--threads", 0.85),
    trained("mnist_dual_parallel", 0, "", 0.85),
    trained("mnist_dual_parallel", 0, "--threads 4", 0.85),
    trained("seeds/seq2seq_model_parallel", 2, "--unit 64", 0.6),
    trained("seeds/seq2seq_model_parallel", 0, "--threads --unit 32 --longest 4", 0.25),
]


def keeps_its_word(way, folder, **how):
    flags = [str(folder) if flag == "OUT" else flag for flag in way.flags.split()]
    compared = bool(way.differs) and way.example in COMPARED
    done = run(way.ranks, way.example, flags, compared=compared, **how)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for line, number in (way.says or {}).items():
        assert len(re.findall(line, done.stdout, re.M)) == number, done.stdout
    if way.differs:
        found = re.search(r"(.*)differ by (\S+) at most", done.stdout)
        assert float(found[2]) < way.differs
        assert not way.size or f"on {way.size} ranks and on one" in found[1]
    if way.picture:
        picture = (folder / way.picture).read_bytes()
        assert picture.startswith(PNG)
        assert len(picture) > 5000
    way.check(done.stdout, folder)


# what is compared runs in float64: once also as it is
WAYS += [
    Way("mlp_model_parallel", 2, "--unit 20", {r"^step +(?:1|50)   loss [\d.]+$": 2}),
    tournament(0, "--threads 2", 2)._replace(differs=0),
    convolution(2, "", 2)._replace(differs=0),
    mixture(2, "", 2)._replace(differs=0),
    joint_ensemble(2, "", 2)._replace(differs=0),
    ensemble(2, "--joint", 2)._replace(differs=0),
    pipeline(2, "", 2)._replace(differs=0),
    u_net(2)._replace(differs=0),
    translator(2)._replace(differs=0),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_example_does_what_it_says(way, tmp_path):
    keeps_its_word(way, tmp_path)


@needs_mpich
def test_under_mpiexec_without_a_number_an_example_starts_its_ranks(tmp_path):
    keeps_its_word(joint_ensemble(0, "", 4), tmp_path, bare_mpiexec=True)


@pytest.mark.parametrize("schedule", ["zbv", "F0 F1 B1 B0, F0 F1 B1 B0"])
def test_the_pipeline_takes_any_schedule(schedule):
    flags = ["--batches", "3", "--epoch", "1", "--unit", "20", "--threads", "2", "--out", ""]
    text = output(0, "pipeline_mlp", [*flags, "--schedule", schedule], compared=True)
    assert float(re.search(r"weights differ by (\S+) at most", text)[1]) < 1e-10


@pytest.mark.parametrize("ranks", [0, 3])
def test_the_ring_adds_the_left_and_the_right(ranks):
    done = run(ranks, "ring", fresh=True)
    assert done.returncode == 0, done.stderr
    size = ranks or 1
    for rank in range(size):
        x = rank + 1
        left = (rank - 1) % size + 1
        right = (rank + 1) % size + 1
        assert (
            f"rank {rank} of {size}: x = {x}, loss = {x * left}, gradient = {left + right}; "
            f"left + right = {left} + {right}\n" in done.stdout
        )


@pytest.mark.parametrize(
    ("example", "flags", "line"),
    [
        ("ensemble_mnist", ["--threads", "2", "--epoch", "1"], r"^epoch   1 "),
        ("ensemble_bagging", ["--threads", "2", "--epoch", "1"], r"^epoch   1 "),
        ("ensemble_tournament", ["--threads", "2", "--rounds", "1"], r"^round  1 "),
        ("mnist_data_parallel", ["--threads", "2", "--epoch", "1"], r"^1  "),
        ("checkpoint_resume", ["--epoch", "1"], r"^iteration 1,"),
    ],
)
def test_a_batch_larger_than_the_data_is_all_of_it_once(example, flags, line, tmp_path):
    out = [] if "tournament" in example else ["--out", str(tmp_path)]
    text = output(0, example, [*flags, "--batchsize", "5000", "--unit", "8", *out])
    assert re.search(line, text, re.M), text


@pytest.fixture(params=[False, True], ids=["short", "whole"])
def seeds_and_flags(request):
    """The whole takes half a minute."""
    if request.param and not request.config.getoption("--sweep"):
        pytest.skip("pytest --sweep trains for 30 epochs from 5 seeds")
    return (range(5), [], 0.97) if request.param else ([0], ["--epoch", "8"], 0.94)


@pytest.mark.parametrize("example", ["ensemble_mnist", "ensemble_bagging"])
def test_the_ensemble_is_better_than_its_mean_member_and_97_percent_right(
    example, seeds_and_flags, tmp_path
):
    seeds, flags, least = seeds_and_flags
    together = []
    for seed in seeds:
        more = ["--threads", "4", "--seed", str(seed), "--out", str(tmp_path)]
        text = output(0, example, [*more, *flags])
        last = [line for line in text.splitlines() if line.startswith("epoch")][-1]
        *members, ensemble = map(
            float, re.findall(r" (0\.\d{4})(?= |$)", last.partition("members")[2])
        )
        assert len(members) == 4
        assert ensemble > sum(members) / 4
        says = r"^The ensemble is right on ([\d.]+)% of the test images, its 4 .* on ([\d.]+)% on"
        found = map(float, re.search(says, text, re.M).groups())
        assert [*found] == pytest.approx([100 * ensemble, 25 * sum(members)], abs=0.06)
        together.append(ensemble)
    assert sum(together) / len(together) >= least


def test_the_translator_translates(tmp_path):
    flags = ["--epoch", "8", "--longest", "4", "--out", str(tmp_path)]
    text = output(2, "seeds/seq2seq_model_parallel", flags)
    right, of = map(
        int, re.search(r"^(\d+) of (\d+) words are written backwards", text, re.M).groups()
    )
    assert right > of / 2
    assert " → " in text


# ---- training that goes on ----


def test_training_goes_on_from_a_snapshot(tmp_path):
    flags = ["--out", str(tmp_path)]
    run(2, "mnist_data_parallel", ["--epoch", "2", *flags])
    [snapshot] = tmp_path.glob("snapshot_iter_*")
    text = output(2, "mnist_data_parallel", ["--epoch", "3", "--resume", str(snapshot), *flags])
    table = text.splitlines()[1:-1]  # between what it is run with, and what it has shown
    assert [line.split()[0] for line in table] == ["epoch", "1", "2", "3"]
    assert [entry["epoch"] for entry in json.loads((tmp_path / "log").read_text())] == [1, 2, 3]


def test_training_that_was_killed_goes_on_bit_for_bit_and_on_other_numbers_of_ranks(tmp_path):
    flags = ["--unit", "8", "--epoch", "2", "--out"]
    weights = r"^weights and logs: ([0-9a-f]{16})$"
    text = output(2, "checkpoint_resume", [*flags, str(tmp_path / "whole")])
    whole = re.search(weights, text, re.M)[1]
    killed = run(2, "checkpoint_resume", [*flags, str(tmp_path / "killed"), "--kill", "25"])
    assert killed.returncode != 0
    assert "begins on 2 ranks" in killed.stdout
    resumed = output(2, "checkpoint_resume", [*flags, str(tmp_path / "killed")])
    assert "goes on at iteration 20 on 2 ranks" in resumed
    assert re.search(weights, resumed, re.M)[1] == whole
    more = output(3, "checkpoint_resume", [*flags, str(tmp_path / "killed"), "--epoch", "3"])
    assert "goes on at iteration 20 on 3 ranks" in more
    assert "iteration 43, test accuracy 0." in more


def test_training_that_is_told_to_end_saves_and_goes_on_from_there(tmp_path):
    command, environment = mpiexec_command(2)
    flags = ["--unit", "8", "--out", str(tmp_path)]
    program = client_for(EXAMPLES / "checkpoint_resume.py")
    with subprocess.Popen(
        [*command, *program, *flags, "--epoch", "9999"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=EXAMPLES.parent,
    ) as job:
        assert job.stdout.readline() == "begins on 2 ranks\n"
        job.send_signal(TO_END)
        iteration = re.fullmatch(r"told to end: saved at iteration (\d+)\n", job.stdout.read())[1]
    assert job.returncode == 143
    more = run(2, "checkpoint_resume", [*flags, "--epoch", str(int(iteration) // 14 + 1)])
    assert f"goes on at iteration {iteration} on 2 ranks" in more.stdout, more.stderr


# ---- wrong flags ----

SEED = "a seed is a whole number from 0 to 4294967295, not"
# of one example, said once on one rank and on several
ENSEMBLE = {
    "--epoch 0": "--epoch is at least 1, not 0",
    "--epoch x": "invalid int value",
    "--gpus": "unrecognized arguments",
    "--groups 3": "ranks do not make members of 3 ranks each",
    "--seed -1": f"{SEED} -1",
    "--seed 4294967296": f"{SEED} 4294967296",
    "--out /dev/null/x": "nothing can be written to /dev/null/x: Not a directory",
    f"--data {NOWHERE}": f"--data: there is no folder {NOWHERE}",
}
# of each example, said once by one process
OF_PYTHON = {
    "checkpoint_resume": {"--interval 0": "--interval is at least 1, not 0"},
    "ensemble_tournament": {
        "--members 3": "4 ranks do not make 3 members of as many ranks",
        "--threads 3 --members 2": "3 ranks do not make 2 members of as many ranks: python "
        f"{EXAMPLES}/ensemble_tournament.py --members 2 --threads 2\n",
    },
    "mixture_of_experts": {
        "--k 9": "--k 9 is more than the 6 experts",
        "--capacity 0": "--capacity is more than 0, not 0",
    },
    "mlp_model_parallel": {"--steps -1": "--steps is at least 1, not -1"},
    "mnist_data_parallel": {"--resume nothing": "--resume: there is no file nothing"},
    "mnist_dual_parallel": {"--threads 3": "made for an even number of ranks, not 3"},
    "parallel_convolution": {"--filters 0": "--filters is at least 1, not 0"},
    "pipeline_mlp": {"--micro-batches 0": "--micro-batches is at least 1, not 0"},
    "transformer_lm": {
        "--run /dev/null/x": "nothing can be written to /dev/null/x: Not a",
        "--mesh pipe=6 --threads": "4 layers cannot be cut into 6 stages: python "
        f"{EXAMPLES}/transformer_lm.py --mesh pipe=6 --threads 6 --blocks 4",
        "--mesh data": "a mesh is names and sizes",
        "--mesh dtaa=2": "no axis 'dtaa': did you mean 'data'? There are data, pipe, model",
        "--mesh data=-1,model=2 --threads 3": "data=-1,model=2 is for a multiple of 2 ranks, not 3",
        "--mesh data=2x2": "--divide data=2x2: the axis data is given as data=2",
        "--mesh data=-1,model=-1": "one axis of a mesh may be -1",
        "--schedule 2f2b": "invalid choice: '2f2b'",
    },
    "applications/pipeline_seq2seq": {"--lines 0": "--lines is at least 1, not 0"},
    "applications/pipeline_unet": {
        "--steps 0": "--steps is at least 1, not 0",
        "--threads 3": "or two on each of 2, not for 3 ranks",
        "--threads 4 --schedule zbv": "zbv on 4 ranks has 8 stages",
    },
    "unet": {
        "--size 8 --scales 4": "--size 8 cannot be halved 4 times",
        "--divide space=2x2 --threads 3": "--divide space=2x2 is for 4 ranks, not 3: python "
        f"{EXAMPLES}/unet.py --divide space=2x2 --threads 4\n",
        "--divide space=2": "the axis space is given as space=2x2",
        "--divide data=0": "a mesh is names and sizes",
        "--divide model=2": "no axis 'model'; there are space, data",
    },
    "applications/halo_diffusion": {
        "--grid 2y2": "a mesh is names and sizes",
        "--grid 2x2 --threads 3": "--divide space=2x2 is for 4 ranks, not 3",
        "--grid 4": "the axis space is given as space=2x2",
        "--steps 0": "--steps is at least 5, not 0",
    },
    "applications/shallow_water": {
        "--cells 4x9": "--cells is columns x rows, 8x8 at least",
        "--cells 90": "--cells is columns x rows, 8x8 at least",
        "--steps 5": "--steps is at least 12, not 5",
        "--local torch": "invalid choice: 'torch'",
        "--viscosity -1": "--viscosity is at least 0, and at most",
        "--viscosity nan": "--viscosity is at least 0, and at most",
    },
    "seeds/flashlight_perceptron": {
        "-e 0": "--epoch is at least 1, not 0",
        "--tutorial --check": "not with --tutorial",
        "--lr -1": "--lr is positive and finite, not -1.0",
    },
    "seeds/pathway2ai_mlp": {
        "--learning-rate nan": "is positive and finite, not nan",
        "--n-layers 1.5": "invalid int value",
        "--train-size 60": "0.9 of 60 samples are no batch of 64",
        "--dim-in 8": "8 features are too few for 32 classes",
        "--world-size 2 --threads 3": "not allowed with argument --world-size",
        "--stop 2000": "--stop is at most --niters, 1000, not 2000",
    },
    "seeds/parallel_matmul": {
        "--shape 3x4": "--shape is rows of A x columns of A x columns of B, not 3x4",
        "--shape 3,4": "a grid is numbers from 1 on",
    },
    "seeds/synkhronos_mnist": {
        "--lr inf": "--lr is positive and finite, not inf",
        "--model rnn": "invalid choice: 'rnn'",
        f"--data {NOWHERE}": f"--data: there is no folder {NOWHERE}",
        "--threads 3 --ranks 4": "argument --ranks: not allowed with argument --threads",
    },
    "seeds/seq2seq_model_parallel": {"--longest 2": "--longest is at least 3, not 2"},
    "seeds/neon_cnn": {
        "--datapar --modelpar": "not allowed with argument",
        "--halopar 4": "--divide space=4: the axis space is given as space=2x2",
        "--halopar 2x2 --threads 3": "--divide space=2x2 is for 4 ranks, not 3",
        "--halodatapar 2x2 --threads 6": "data=-1,space=2x2 is for a multiple of 4 ranks, not 6",
        "--halopar 2y2": "a mesh is names and sizes",
        "--data /dev/null": "--data: there is no folder /dev/null",
        "--epoch 0": "--epoch is at least 1, not 0",
    },
    "seeds/gb_autoencoder": {"--halopar 2x2 --threads 3": "space=2x2 is for 4 ranks, not 3"},
}
USAGE_ERRORS = [  # example, ranks of mpiexec, flags, what is said once
    *[
        (example, ranks, flags, message)
        for example in ("ensemble_mnist", "ensemble_bagging")
        for flags, message in ENSEMBLE.items()
        for ranks in (0, 2)
        if example == "ensemble_bagging" or "--groups" not in flags
    ],
    *[
        (example, 0, flags, message)
        for example, errors in OF_PYTHON.items()
        for flags, message in errors.items()
    ],
    (
        "ensemble_bagging",
        2,
        "--threads 4",
        "error: --threads is for one process, and the launcher has started 2: choose one of them",
    ),
    ("mlp_model_parallel", 3, "", "made for 2 ranks, not 3: mpiexec -n 2 python "),
    ("mnist_data_parallel", 2, "--epoch 0", "--epoch is at least 1, not 0"),
    ("mnist_model_parallel", 2, "--epoch 0", "--epoch is at least 1, not 0"),
    ("mnist_model_parallel", 3, "", "made for 2 ranks, not 3: mpiexec -n 2 python "),
    ("mnist_dual_parallel", 2, "--epoch 0", "--epoch is at least 1, not 0"),
    ("mnist_dual_parallel", 3, "", "made for an even number of ranks, not 3"),
    ("applications/pipeline_seq2seq", 3, "", "made for 2 ranks, not 3: mpiexec -n 2 python "),
    ("applications/pipeline_unet", 3, "", "or two on each of 2, not for 3 ranks"),
    ("seeds/resnet50", 2, "--size 4", "--size is at least 8, not 4"),
    ("seeds/resnet50", 2, f"--images {NOWHERE}", f"--images: there is no folder {NOWHERE}"),
    ("seeds/seq2seq_model_parallel", 2, "--epoch 0", "--epoch is at least 1, not 0"),
    ("seeds/seq2seq_model_parallel", 3, "", "made for 2 ranks, not 3: mpiexec -n 2 python "),
]


@pytest.fixture
def without_data(monkeypatch):
    monkeypatch.delenv("MNPAR_DATA", raising=False)


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize(("example", "ranks", "flags", "message"), USAGE_ERRORS)
def test_what_is_wrong_with_flags_is_one_usage_error(example, ranks, flags, message):
    done = run(ranks, example, flags.split())
    assert done.returncode == 2
    assert done.stderr.count(message) == 1, done.stderr
    assert done.stderr.count("usage:") == 1
    assert "Traceback" not in done.stderr


NAMES = [str(path.relative_to(EXAMPLES))[:-3] for path in SCRIPTS]


@pytest.mark.parametrize("example", [name for name in NAMES if name != "ring"])
def test_help_says_how_to_start_an_example(example):
    text = output(0, example, ["--help"])
    assert "mpiexec -n" in text
    assert "--threads" in text


# what is in several words
SCHEDULES = {
    "F0 B0 F1 B1, F1 B1 F0 B0": "cannot end, its ranks wait for each other",
    "1f2b, 2f": "error: '1f2b' is no action of a schedule: write F0, B0",
    "F0 B0, F0 B0, F0 B0": "actions of 3 ranks, with commas between them, are given for 2 ranks",
}


@pytest.mark.parametrize(("schedule", "message"), SCHEDULES.items())
def test_a_schedule_that_cannot_be_followed_is_a_usage_error(schedule, message):
    done = run(0, "pipeline_mlp", ["--threads", "2", "--schedule", schedule])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("example", "ranks"),
    [
        ("mlp_model_parallel", 2),
        ("mnist_model_parallel", 2),
        ("seeds/seq2seq_model_parallel", 2),
        ("applications/pipeline_seq2seq", 2),
        ("applications/pipeline_unet", 2),
        ("transformer_lm", 4),
    ],
)
def test_ranks_that_cannot_be_started_are_a_usage_error(example, ranks, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")  # in a batch job a script starts no ranks
    done = run(0, example)
    assert done.returncode == 2
    assert f"srun -n {ranks} python" in done.stdout
    threads = f"python {EXAMPLES}/{example}.py --threads {ranks}\n"
    message = f"made for {ranks} ranks, not 1; as threads of one process: {threads}"
    assert done.stderr.endswith(message)


# ---- files that cannot be read ----

READERS = {
    "mnist_data_parallel": ["--threads", "2"],
    "mnist_dual_parallel": ["--threads", "2"],
    "mnist_model_parallel": ["--threads"],
    "ensemble_mnist": ["--threads", "2"],
    "ensemble_bagging": ["--threads", "2"],
    "seeds/neon_cnn": ["--threads", "2", "--datapar"],
    "seeds/gb_autoencoder": ["--threads", "2", "--images", "mnist"],
    "seeds/resnet50": ["--threads", "2"],
}


@pytest.mark.parametrize(("example", "flags"), READERS.items())
def test_a_file_that_cannot_be_read_is_told_in_one_line(example, flags, tmp_path):
    resnet = "resnet" in example
    file = tmp_path / ("cat/1.npy" if resnet else "train-images-idx3-ubyte")
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\0")
    (tmp_path / "train-labels-idx1-ubyte").touch()
    done = run(0, example, [*flags, "--images" if resnet else "--data", str(tmp_path)])
    assert done.returncode == 1
    assert done.stderr.startswith(f"{example.split('/')[-1]}.py: error: {file}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("example", ["ensemble_mnist", "seeds/synkhronos_mnist"])
@pytest.mark.parametrize(
    ("ranks", "flags"),
    [(2, []), (0, ["--ranks", "1"]), (0, ["--threads", "2"])],
    ids=["mpiexec", "python", "threads"],
)
def test_a_folder_without_mnist_is_told_in_one_line(example, ranks, flags, tmp_path):
    done = run(ranks, example, ["--data", str(tmp_path), *flags])
    assert done.returncode != 0
    message = "error: train-images-idx3-ubyte (or train-images-idx3-ubyte.gz"
    assert done.stderr.count(message) == 1, done.stderr
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
