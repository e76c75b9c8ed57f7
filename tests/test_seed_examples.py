"""The examples after flashlight, pathway2ai and Synkhronos: their numbers, alone, on mpiexec ranks and on threads."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from mnpar.launch import clean_environment, mpiexec_command
from tests.scripts import run_script

ROOT = Path(__file__).parents[1]
NOWHERE = f"{__file__}/nowhere"  # nobody can make a folder in a file
MPI, ALONE, THREADS = (2, []), (0, ["--ranks", "1"]), (0, ["--threads", "3"])
WAYS = pytest.mark.parametrize("way", [MPI, ALONE, THREADS], ids=["mpiexec", "python", "threads"])


def run(way, example, *flags, fails=False, cwd=ROOT):
    """What it prints; its errors, if it should fail."""
    ranks, more = way
    command, environment = mpiexec_command(ranks) if ranks else ([], clean_environment(os.environ))
    environment["OMP_NUM_THREADS"] = "1"
    done = run_script(ROOT / "examples" / example, [*flags, *more], environment, cwd, command)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def numbers(pattern, text):
    return [float(x) for x in re.findall(pattern, text)]


# ---- flashlight's tutorial (F10) ----


def test_the_perceptron_learns_as_the_tutorial_prints():
    """13.13, 2.589 there; 13.69, 3.02 in a replica."""
    first, second = numbers(r"mean squared error ([\d.]+)", run(ALONE, "flashlight_perceptron.py", "-e", "2"))
    assert 11 < first < 16
    assert 2.2 < second < 3.4


@pytest.mark.parametrize("way", [MPI, THREADS, (0, ["--threads", "1"])], ids=["mpiexec", "threads", "one thread"])
def test_ranks_with_one_sample_each_learn_what_one_does_with_their_minibatch(way):
    text = run(way, "flashlight_perceptron.py", "-e", "2", "-n", "200", "--check")  # 3 do not divide 200
    [difference] = numbers(r"the weights differ by (\S+) at most", text)
    assert difference < 1e-12
    first, second = numbers(r"mean squared error ([\d.]+)", text)
    assert second < first


def test_ranks_that_draw_for_themselves_learn_as_a_replica_of_the_tutorial_does():
    """16.7 to 17.2, then 3.1 to 3.4 in numpy, of three seeds. (flashlight's page prints 20.21, 5.28.)"""
    first, second = numbers(r"mean squared error ([\d.]+)", run(MPI, "flashlight_perceptron.py", "-e", "2", "--tutorial"))
    assert 15 < first < 20
    assert 2.6 < second < 4


# ---- pathway2ai's exercise (X1) ----


@pytest.mark.parametrize(
    ("way", "flags", "table"),
    [((0, []), ["--batch-mean"], (3.73, 1.910)), ((2, []), [], (3.71, 0.732))],
    ids=["one worker", "two workers"],
)
def test_the_curve_is_the_exercises_and_the_held_out_loss_does_not_fall(way, flags, table):
    text = run(way, "pathway2ai_mlp.py", "--stop", "100", *flags)
    assert text.startswith("{'n_layers': 4, 'd_in': 1024, 'n_classes': 32, 'd_hidden': 256, 'batch_size': 64")
    assert numbers(r"step: (\d+) \|", text) == [0, 100]
    np.testing.assert_allclose(numbers(r"train_loss: ([\d.]+)", text), table, rtol=0.25)
    held_out = numbers(r"test_loss: ([\d.]+)", text)
    assert held_out[0] < held_out[1]
    assert ("the workers' parameters are the same" in text) == (way[0] == 2)


SMALL = ["--dim-in", "64", "--n-classes", "4", "--train-size", "600", "--niters", "20", "--every", "10", "--dim-hidden", "16"]


@pytest.mark.parametrize("layers", ["1", "3"])
def test_three_workers_take_every_third_of_batches_that_three_do_not_divide(layers):
    flags = [*SMALL, "--n-layers", layers, "--train-fraction", "0.9", "--batch-size", "50", "--learning-rate", "0.02"]
    text = run((0, ["--threads", "3"]), "pathway2ai_mlp.py", *flags)
    losses = numbers(r"train_loss: ([\d.]+)", text)
    assert losses[0] > losses[1] > losses[2]
    assert "parameters are the same" in text


# ---- pathway2ai's products (X2) ----


@pytest.mark.parametrize("way", [MPI, *[(0, ["--threads", str(n)]) for n in (1, 3, 4, 5)]], ids=str)
@pytest.mark.parametrize("flags", [["--shape", "1000x777x513", "--dtype", "f8"], ["--shape", "3x2x4"]], ids=" ".join)
def test_products_of_ranks_and_their_gradients_are_those_of_one(way, flags):
    text = run(way, "parallel_matmul.py", *flags)
    found = np.array(re.findall(r"C (\S+), dA (\S+), dB (\S+)", text)).astype(float)
    assert found.shape == (2, 3)  # by row, by reduction
    assert found.max() < (1e-10 if "f8" in flags else 1e-4)
    size = way[0] or int(way[1][1])
    assert sorted(re.findall(r"My rank is (\d), of", text)) == [str(rank) for rank in range(size)]


# ---- Synkhronos' demo (S7) ----


def validation(text):
    return numbers(r"validation: loss ([\d.]+)", text), numbers(r"right ([\d.]+) %", text)


def test_any_number_of_ranks_and_of_slices_learns_the_same():
    flags = ["synkhronos_mnist.py", "-e", "3", "-b", "41", "--lr", "0.05"]
    one, right = validation(run(ALONE, *flags))
    assert len(one) == 3
    assert right[-1] > 70
    for way, slices in ((MPI, "4"), (THREADS, "7")):
        np.testing.assert_allclose(validation(run(way, *flags, "--slices", slices))[0], one, atol=2e-4)


@WAYS
def test_the_perceptron_with_dropout_learns(way):
    text = run(way, "synkhronos_mnist.py", "--model", "mlp", "-e", "2", "-b", "100", "-u", "64")
    losses = numbers(r"epoch +\d+ +loss ([\d.]+)", text)
    assert losses[1] < losses[0]


# ---- Synkhronos' other one (S8) ----

TINY = ["--size", "16", "--batchsize", "2", "--steps", "1"]


def test_a_step_of_resnet_50_on_two_ranks_is_that_of_one():
    text = run(MPI, "resnet50.py", *TINY, "--size", "32", "--check", "--dtype", "f8")
    assert "25,557,032 parameters" in text
    losses, weights = re.search(r"losses differ by (\S+), weights by (\S+) at most", text).groups()
    assert float(losses) < 1e-9
    assert float(weights) < 1e-9


def narrow(folder, blocks):
    """The example with other blocks in its stages."""
    text = (ROOT / "examples" / "resnet50.py").read_text()
    text, number = re.subn(r"^BLOCKS = .*", f"BLOCKS = {blocks}", text, flags=re.M)
    assert number == 1
    (folder / "resnet50.py").write_text(text)
    return folder / "resnet50.py"


def test_in_float32_the_loss_of_two_ranks_is_that_of_one(tmp_path):
    """Its gradients cannot be: where the first weights change by 1e-7 they change by 3 %, in PyTorch too.

    As deep as it is, and an eighth as wide.
    """
    small = narrow(tmp_path, ((3, 8), (4, 16), (6, 32), (3, 64)))
    text = run((0, ["--threads", "2"]), small, "-b", "2", "--size", "64", "--steps", "1", "--check")
    [losses] = numbers(r"losses differ by (\S+),", text)
    assert losses < 1e-4


def test_resnet_50_reads_pictures_and_prints_its_scaling(tmp_path):
    """With one narrow block in each stage: its six networks are not looked at."""
    rng = np.random.default_rng(0)
    for i, label in enumerate("aab"):
        (tmp_path / label).mkdir(exist_ok=True)
        np.save(tmp_path / label / f"{i}.npy", rng.integers(0, 256, (3, 40, 20 + 10 * i), np.uint8))
    small = narrow(tmp_path, ((1, 4), (1, 8), (1, 16), (1, 32)))
    text = run(MPI, small, *TINY, "--classes", "2", "--images", str(tmp_path), "--scaling")
    assert re.findall(r"(\w+) +scaling, (\d) rank", text) == [("weak", "1"), ("weak", "2"), ("strong", "1"), ("strong", "2")]


# ---- bad flags ----

BAD = {
    "no epochs": ("flashlight_perceptron.py", ["-e", "0"], "--epoch is at least 1, not 0"),
    "tutorial and check": ("flashlight_perceptron.py", ["--tutorial", "--check"], "not with --tutorial"),
    "a negative rate": ("flashlight_perceptron.py", ["--lr", "-1"], "--lr is positive, not -1.0"),
    "half a layer": ("pathway2ai_mlp.py", ["--n-layers", "1.5"], "invalid int value"),
    "no batch": ("pathway2ai_mlp.py", ["--train-size", "100"], "0.1 of 100 samples are no batch of 64"),
    "few features": ("pathway2ai_mlp.py", ["--dim-in", "8"], "8 features are too few for 32 classes"),
    "late stop": ("pathway2ai_mlp.py", ["--stop", "2000"], "--stop is at most --niters, 1000, not 2000"),
    "two axes": ("parallel_matmul.py", ["--shape", "3x4"], "--shape is rows of A x columns of A x columns of B, not 3x4"),
    "no shape": ("parallel_matmul.py", ["--shape", "3,4"], "a grid is numbers from 1 on"),
    "no model": ("synkhronos_mnist.py", ["--model", "rnn"], "invalid choice: 'rnn'"),
    "no folder": ("synkhronos_mnist.py", ["--data", NOWHERE], f"--data: there is no folder {NOWHERE}"),
    "small images": ("resnet50.py", ["--size", "4"], "--size is at least 8, not 4"),
    "no pictures": ("resnet50.py", ["--images", NOWHERE], f"--images: there is no folder {NOWHERE}"),
}


@pytest.mark.parametrize(("example", "flags", "message"), BAD.values(), ids=BAD)
def test_bad_flags_are_one_usage_error(example, flags, message):
    said = run((2 if example == "resnet50.py" else 0, []), example, *flags, fails=True)
    assert said.count(message) == 1
    assert said.count("usage:") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize("example", sorted({example for example, _, _ in BAD.values()}))
def test_help_says_how_to_start_it(example):
    text = run((0, []), example, "--help")
    assert "mpiexec -n" in text
    assert "--threads" in text
