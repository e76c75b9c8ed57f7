"""The examples after flashlight, pathway2ai and Synkhronos: their numbers, alone, on mpiexec ranks and on threads."""

import os
import re
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar.launch import clean_environment, mpiexec_command
from tests.scripts import load_script, run_script

ROOT = Path(__file__).parents[1]
NAMES = ("flashlight_perceptron", "pathway2ai_mlp", "resnet50", "synkhronos_mnist")
perceptron, exercise, resnet50, digits = [load_script(ROOT / "examples" / f"{name}.py") for name in NAMES]
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


@pytest.fixture
def n_epochs(request):
    return 100 if request.config.getoption("--sweep") else 1


def replica(ranks, samples, own):
    """The tutorial in numpy, two epochs: the mean squared error of each (mean over ranks), with the gradient's mean over ranks.

    Args:
        own: each rank draws data and weights of its own, and begins with the mean of the weights.
    """
    draws, starts = [], []
    for rank in range(ranks):
        x, y = perceptron.draw(rank * own, samples // ranks if own else samples)
        mnpar.random.seed(rank * own)
        starts.append([param.array for param in perceptron.Perceptron(100).params()])
        draws.append((x, y[:, 0]) if own else (x[rank::ranks], y[rank::ranks, 0]))
    W1, b1, W2, b2 = ws = [np.mean(parts, axis=0) for parts in zip(*starts, strict=True)]
    vs, errors = [np.zeros_like(w) for w in ws], []
    for _ in range(2):
        total = 0
        for i in range(samples // ranks):
            x, y = np.stack([xs[i] for xs, _ in draws]), np.array([ys[i] for _, ys in draws])
            a = x @ W1.T + b1
            h = np.maximum(a, 0)
            e = h @ W2[0] + b2 - y
            total += e @ e / ranks
            g = 2 * e / ranks
            ga = g[:, None] * W2 * (a > 0)
            for w, v, gw in zip(ws, vs, (ga.T @ x, ga.sum(0), g[None] @ h, g.sum(keepdims=True)), strict=True):
                v *= 0.9
                v -= 1e-4 * gw
                w += v
        errors.append(total / (samples // ranks))
    return errors


@pytest.mark.parametrize(
    ("ranks", "own", "first", "second"), [(1, False, (11, 16), (2.2, 3.4)), (2, True, (15, 20), (2.6, 4))], ids=["one", "two"]
)
def test_a_replica_learns_as_the_tutorial_prints(ranks, own, first, second):
    """13.13, 2.589 there on one rank, 13.69, 3.02 here; on two 16.7 to 17.2, 3.1 to 3.4 (flashlight's page: 20.21, 5.28)."""
    errors = replica(ranks, 10000, own)
    assert first[0] < errors[0] < first[1]
    assert second[0] < errors[1] < second[1]


@pytest.mark.parametrize(
    ("way", "flags"), [(ALONE, []), (MPI, []), (MPI, ["--tutorial"])], ids=["one rank", "two", "two that draw for themselves"]
)
def test_the_perceptron_learns_as_a_replica(way, flags):
    """Its units, rates and first weights are those of the tutorial, so it learns from 10,000 samples what the replica does."""
    found = numbers(r"mean squared error ([\d.]+)", run(way, "flashlight_perceptron.py", "-e", "2", "-n", "600", *flags))
    np.testing.assert_allclose(found, replica(max(way[0], 1), 600, bool(flags)), rtol=1e-3)


@pytest.mark.grid
def test_the_perceptron_is_in_the_bands_of_the_tutorial(capsys, n_epochs):
    """13.13, 2.589, and 0.8136 after 100 epochs there; a plain run has the second of the replica."""
    args = Namespace(epoch=n_epochs, samples=10000, unit=100, lr=1e-4, seed=0, tutorial=False, check=False)
    mnpar.run(perceptron.main, ranks=1, args=(args,))
    errors = numbers(r"mean squared error ([\d.]+)", capsys.readouterr().out)
    assert len(errors) == n_epochs
    assert 11 < errors[0] < 16
    assert n_epochs < 2 or 2.2 < errors[1] < 3.4
    assert n_epochs < 100 or 0.75 < errors[-1] < 0.95


@pytest.mark.parametrize("way", [MPI, THREADS, (0, ["--threads", "1"])], ids=["mpiexec", "threads", "one thread"])
def test_ranks_with_one_sample_each_learn_what_one_does_with_their_minibatch(way):
    text = run(way, "flashlight_perceptron.py", "-e", "2", "-n", "200", "--check")  # 3 do not divide 200
    [difference] = numbers(r"the weights differ by (\S+) at most", text)
    assert difference < 1e-12
    first, second = numbers(r"mean squared error ([\d.]+)", text)
    assert second < first


# ---- pathway2ai's exercise (X1) ----


ONE = {0: 3.73, 100: 1.910, 200: 1.394, 300: 1.113, 900: 0.398}
TWO = {0: 3.71, 100: 0.732, 200: 0.261, 300: 0.2355, 900: 0.220}


@pytest.fixture
def stop(request):
    return 900 if request.config.getoption("--sweep") else 200


@pytest.mark.grid
@pytest.mark.parametrize(
    ("way", "flags", "table"), [((0, []), ["--batch-mean"], ONE), ((2, []), [], TWO)], ids=["one worker", "two workers"]
)
def test_the_curve_is_the_exercises_and_the_held_out_loss_does_not_fall(way, flags, table, stop):
    """It trains on 1000 samples, as the exercise does; of the others, which take longest to make, there are fewer."""
    text = run(way, "pathway2ai_mlp.py", "--stop", str(stop), "--train-size", "2000", "--train-fraction", "0.5", *flags)
    assert text.startswith("{'n_layers': 4, 'd_in': 1024, 'n_classes': 32, 'd_hidden': 256, 'batch_size': 64")
    steps = numbers(r"step: (\d+) \|", text)
    assert steps == list(range(0, stop + 1, 100))
    losses = dict(zip(steps, numbers(r"train_loss: ([\d.]+)", text), strict=True))
    expected = {step: loss for step, loss in table.items() if step <= stop}
    np.testing.assert_allclose([losses[step] for step in expected], [*expected.values()], rtol=0.25)
    held_out = numbers(r"test_loss: ([\d.]+)", text)
    assert held_out == sorted(held_out)
    assert ("the workers' parameters are the same" in text) == (way[0] == 2)


SMALL = ["--dim-in", "64", "--n-classes", "4", "--train-size", "600", "--niters", "20", "--every", "10", "--dim-hidden", "16"]


@pytest.mark.parametrize("layers", ["1", "3"])
def test_three_workers_take_every_third_of_batches_that_three_do_not_divide(layers, monkeypatch, capsys):
    flags = [*SMALL, "--n-layers", layers, "--train-fraction", "0.9", "--batch-size", "50", "--learning-rate", "0.02"]
    monkeypatch.setattr(sys, "argv", ["pathway2ai_mlp.py", *flags, "--threads", "3"])
    mnpar.run(exercise.main, ranks=3, args=(exercise.parse(),))
    text = capsys.readouterr().out
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


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_of_a_thousand_rows_are_those_of_one(dtype):
    text = run(MPI, "parallel_matmul.py", "--dtype", dtype)
    assert max(map(float, re.findall(r"(?:C|dA|dB) (\d\S+?),?\s", text))) < (1e-6 if dtype == "f4" else 1e-12)


# ---- Synkhronos' demo (S7) ----


def validation(text):
    return numbers(r"validation: loss ([\d.]+)", text), numbers(r"right ([\d.]+) %", text)


def test_any_number_of_ranks_and_of_slices_learns_the_same():
    flags = ["synkhronos_mnist.py", "-e", "2", "-b", "41", "--lr", "0.05"]
    one, right = validation(run(ALONE, *flags))
    assert len(one) == 2
    assert right[-1] > 70
    for way, slices in ((MPI, "4"), (THREADS, "7")):
        np.testing.assert_allclose(validation(run(way, *flags, "--slices", slices))[0], one, atol=2e-4)


@pytest.mark.parametrize("model", ["cnn", "mlp"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_validation_loss_is_the_same_in_any_number_of_pieces(model, ranks):
    args = {"model": model, "batchsize": 1500, "epoch": 1, "unit": 16, "lr": 0.01, "seed": 0, "data": None}
    one, *others = [mnpar.run(digits.main, ranks=ranks, args=(Namespace(**args, slices=n),))[0][0][1] for n in (1, 4)]
    np.testing.assert_allclose(others, one, rtol=0, atol=1e-6)


@WAYS
def test_the_perceptron_with_dropout_learns(way):
    text = run(way, "synkhronos_mnist.py", "--model", "mlp", "-e", "2", "-b", "100", "-u", "64")
    losses = numbers(r"epoch +\d+ +loss ([\d.]+)", text)
    assert losses[1] < losses[0]


# ---- Synkhronos' other one (S8) ----

TINY = ["--size", "16", "--batchsize", "2", "--steps", "1"]


def test_resnet_50_has_the_layers_of_its_paper(monkeypatch):
    """Table 1 of He et al.: 1 × 1, 3 × 3, 1 × 1; torchvision's 25,557,032 parameters."""
    monkeypatch.setattr(mnpar.initializers, "HeNormal", mnpar.initializers.Zero)
    model = resnet50.ResNet50(L.BatchNormalization, 1000)
    shapes = {path: param.shape for path, param in model.namedparams()}
    assert sum(map(np.prod, shapes.values())) == 25_557_032
    assert [shape for path, shape in shapes.items() if path.endswith("/conv/W")] == [
        (64, 3, 7, 7),
        *[
            shape
            for stage, (number, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)))
            for i in range(number)
            for c_in in [4 * width if i else 64 if stage == 0 else 2 * width]
            for shape in [
                (width, c_in, 1, 1),
                (width, width, 3, 3),
                (4 * width, width, 1, 1),
                *[(4 * width, c_in, 1, 1)] * (i == 0),
            ]
        ],
    ]


def test_resnet_50_makes_a_step_whole():
    text = run(ALONE, "resnet50.py", *TINY)
    assert "ResNet-50 of 25,557,032 parameters" in text
    assert re.search(r"loss at first \d+\.\d+, at last \d+\.\d+$", text, re.M)


def narrow(folder, blocks):
    """The example with other blocks in its stages."""
    text = (ROOT / "examples" / "resnet50.py").read_text()
    text, number = re.subn(r"^BLOCKS = .*", f"BLOCKS = {blocks}", text, flags=re.M)
    assert number == 1
    (folder / "resnet50.py").write_text(text)
    return folder / "resnet50.py"


DEEP = ((3, 8), (4, 16), (6, 32), (3, 64))  # as deep as it is, and an eighth as wide


def pytest_generate_tests(metafunc):
    if "blocks" in metafunc.fixturenames:  # as wide as it is it takes half a minute
        whole = {"whole": resnet50.BLOCKS} if metafunc.config.getoption("--sweep") else {}
        metafunc.parametrize("blocks", [DEEP, *whole.values()], ids=["narrow", *whole])


@pytest.mark.grid
def test_a_step_of_resnet_50_on_two_ranks_is_that_of_one(tmp_path, blocks):
    text = run(MPI, narrow(tmp_path, blocks), *TINY, "--size", "32", "--check", "--dtype", "f8")
    assert ("25,557,032 parameters" in text) == (blocks == resnet50.BLOCKS)
    losses, weights = re.search(r"losses differ by (\S+), weights by (\S+) at most", text).groups()
    assert float(losses) < 1e-9
    assert float(weights) < 1e-9


def test_in_float32_the_loss_of_two_ranks_is_that_of_one(tmp_path):
    """Its gradients cannot be: where the first weights change by 1e-7 they change by 3 %, in PyTorch too."""
    text = run((0, ["--threads", "2"]), narrow(tmp_path, DEEP), "-b", "2", "--size", "64", "--steps", "1", "--check")
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
    "a negative rate": ("flashlight_perceptron.py", ["--lr", "-1"], "--lr is positive and finite, not -1.0"),
    "no rate": ("pathway2ai_mlp.py", ["--learning-rate", "nan"], "--learning-rate is positive and finite, not nan"),
    "a rate beyond": ("synkhronos_mnist.py", ["--lr", "inf"], "--lr is positive and finite, not inf"),
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


def test_the_tutorial_needs_a_sample_for_each_rank():
    said = run((0, ["--threads", "3"]), "flashlight_perceptron.py", "--tutorial", "-n", "2", fails=True)
    assert "--tutorial: 2 samples are none for each of 3 ranks" in said


@pytest.mark.parametrize("example", sorted({example for example, _, _ in BAD.values()}))
def test_help_says_how_to_start_it(example):
    text = run((0, []), example, "--help")
    assert "mpiexec -n" in text
    assert "--threads" in text
