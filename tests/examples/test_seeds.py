"""The examples after flashlight, pathway2ai and Synkhronos: their numbers, alone, on mpiexec ranks
and on threads.
"""

import re
import sys
from argparse import Namespace

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.examples import running
from tests.examples.running import EXAMPLES, load

NAMES = ("flashlight_perceptron", "pathway2ai_mlp", "resnet50", "synkhronos_mnist")
perceptron, exercise, resnet50, digits = [load(f"seeds/{name}") for name in NAMES]
MPI = (2, [])
ALONE = (0, ["--ranks", "1"])
THREADS = (0, ["--threads", "3"])


def run(way, example, *flags, fails=False, timeout=120):
    """Return what an example prints; its errors, if it must fail."""
    ranks, more = way
    done = running.run(ranks, example, [*flags, *more], timeout=timeout)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def numbers(pattern, text):
    return [float(x) for x in re.findall(pattern, text)]


# ---- flashlight's tutorial (F10) ----


@pytest.fixture
def n_epochs(request):
    return 100 if request.config.getoption("--sweep") else 1


def replica(ranks, samples, tutorial=None, seeds=(0,), n_epochs=2):
    """The tutorial in numpy: mean squared errors (epochs, seeds), with the mean over ranks of
    gradients.

    Args:
        tutorial: ranks draw for themselves ("own") or "alike", and take the mean of their weights;
            None: one draw is shared.
    """
    x, y, starts = [], [], []
    for seed in seeds:
        draws, weights = [], []
        for rank in range(ranks):
            own = seed + rank * (tutorial == "own")
            draws.append(perceptron.draw(own, samples // ranks if tutorial else samples))
            mnpar.random.seed(own)
            weights.append([param.array for param in perceptron.Perceptron(100).params()])
        x.append(
            np.stack(
                [a if tutorial else a[rank::ranks] for rank, (a, _) in enumerate(draws)], axis=1
            )
        )
        y.append(
            np.stack(
                [b if tutorial else b[rank::ranks] for rank, (_, b) in enumerate(draws)], axis=1
            )
        )
        starts.append([np.mean(parts, axis=0) for parts in zip(*weights, strict=True)])
    # (steps, seeds, ranks, 10), (steps, seeds, ranks)
    x, y = (
        np.stack(x, axis=1),
        np.stack(y, axis=1)[..., 0],
    )
    W1, b1, W2, b2 = ws = [np.stack(parts) for parts in zip(*starts, strict=True)]
    vs = [np.zeros_like(w) for w in ws]
    errors = np.zeros((n_epochs, len(seeds)))
    for total in errors:
        for xs, ys in zip(x, y, strict=True):
            a = xs @ W1.swapaxes(1, 2) + b1[:, None]
            h = np.maximum(a, 0)
            e = (h @ W2.swapaxes(1, 2))[..., 0] + b2 - ys
            total += (e**2).mean(axis=1) / len(x)
            g = (2 / ranks) * e[..., None]
            ga = g * W2 * (a > 0)
            gradients = (
                ga.swapaxes(1, 2) @ xs,
                ga.sum(1),
                g.swapaxes(1, 2) @ h,
                g[..., 0].sum(1, keepdims=True),
            )
            for w, v, gw in zip(ws, vs, gradients, strict=True):
                v *= 0.9
                v -= 1e-4 * gw
                w += v
    return errors


# by ranks and epochs
PAGE = {
    1: {1: 13.13, 2: 2.589, 100: 0.8136},
    2: {1: 20.2124, 2: 5.28266, 3: 2.91948, 100: 0.922085},
}
# how it is started, the curve, and the band of the last epoch
BANDS = {"one rank": (ALONE, [], PAGE[1], (0.75, 0.95))}
ALIKE = {"two alike": (MPI, ["--tutorial", "alike"], PAGE[2], (0.8, 1.05))}
# two ranks that have 5,000 samples each are below the page's band
BETTER = {"two": (MPI, [], {1: 15.6, 2: 3.02}, (0.65, 0.8))}


@pytest.mark.parametrize(("ranks", "tutorial"), [(1, None), (2, "alike")], ids=["one", "two alike"])
def test_what_the_page_prints_is_among_what_seeds_give(ranks, tutorial, n_epochs):
    """Two ranks with data of their own do better than the page's two: those learned what one does
    from 5,000 samples.
    """
    found = replica(ranks, 10000, tutorial, range(6), n_epochs)
    for epoch, error in PAGE[ranks].items():
        if epoch <= n_epochs:
            assert abs(error - found[epoch - 1].mean()) < 3 * found[epoch - 1].std(ddof=1)
    if tutorial is None:
        own = replica(2, 10000, "own", range(0, 12, 2))
        assert (own[1] < PAGE[2][2] - 3 * own[1].std(ddof=1)).all()


def test_first_weights_are_drawn_as_flashlight_draws_them():
    """Of variance 1 / fan_in; biases of a third of it. All uniform."""
    mnpar.random.seed(0)
    model = perceptron.Perceptron(1000)
    for layer, fan_in in ((model.l1, 10), (model.l2, 1000)):
        for param, bound in ((layer.W, (3 / fan_in) ** 0.5), (layer.b, fan_in**-0.5)):
            assert 0 < abs(param.array).max() <= bound
            assert param.size == 1 or abs(param.array.std() * 3**0.5 / bound - 1) < 0.05


@pytest.mark.parametrize(
    ("way", "flags"),
    [(ALONE, []), (MPI, []), (MPI, ["--tutorial"]), (MPI, ["--tutorial", "alike"])],
    ids=["one rank", "two", "two that draw for themselves", "two that draw alike"],
)
def test_the_perceptron_learns_as_a_replica(way, flags):
    found = numbers(
        r"mean squared error ([\d.]+)",
        run(way, "seeds/flashlight_perceptron", "-e", "2", "-n", "600", *flags),
    )
    tutorial = "alike" if "alike" in flags else "own" if flags else None
    np.testing.assert_allclose(found, replica(max(way[0], 1), 600, tutorial)[:, 0], rtol=1e-3)


@pytest.mark.grid
def test_the_perceptron_is_in_the_bands_of_the_tutorial(band, n_epochs):
    way, flags, curve, (low, high) = band
    text = run(way, "seeds/flashlight_perceptron", "-e", str(n_epochs), *flags, timeout=1200)
    errors = numbers(r"mean squared error ([\d.]+)", text)
    assert len(errors) == n_epochs
    for epoch in (1, 2)[:n_epochs]:
        assert abs(errors[epoch - 1] / curve[epoch] - 1) < 0.25
    assert n_epochs < 100 or low < errors[-1] < high


def test_two_ranks_that_draw_alike_learn_what_one_does_from_half_the_samples():
    two, one = [
        numbers(
            r"mean squared error ([\d.]+)",
            run(way, "seeds/flashlight_perceptron", "-e", "2", *flags),
        )
        for way, flags in ((MPI, ["-n", "600", "--tutorial", "alike"]), (ALONE, ["-n", "300"]))
    ]
    assert two == one


@pytest.mark.parametrize(
    "way", [MPI, THREADS, (0, ["--threads", "1"])], ids=["mpiexec", "threads", "one thread"]
)
def test_ranks_with_one_sample_each_learn_what_one_does_with_their_minibatch(way):
    # 3 do not divide 200
    text = run(way, "seeds/flashlight_perceptron", "-e", "2", "-n", "200", "--check")
    [difference] = numbers(r"the weights differ by (\S+) at most", text)
    assert difference < 1e-12
    first, second = numbers(r"mean squared error ([\d.]+)", text)
    assert second < first


def test_the_tutorial_needs_a_sample_for_each_rank():
    flags = ["--tutorial", "-n", "2"]
    said = run(THREADS, "seeds/flashlight_perceptron", *flags, fails=True)
    assert "--tutorial: 2 samples are none for each of 3 ranks" in said


# ---- pathway2ai's exercise (X1) ----


ONE = {0: 3.73, 100: 1.910, 200: 1.394, 300: 1.113, 900: 0.398}
TWO = {0: 3.71, 100: 0.732, 200: 0.261, 300: 0.2355, 900: 0.220}


@pytest.fixture
def stop(request):
    return 900 if request.config.getoption("--sweep") else 100


@pytest.mark.grid
@pytest.mark.parametrize(
    ("way", "flags", "table"),
    [((0, []), ["--batch-mean"], ONE), ((2, []), [], TWO)],
    ids=["one worker", "two workers"],
)
def test_the_curve_is_the_exercises_and_the_held_out_loss_does_not_fall(way, flags, table, stop):
    """It trains on 1000 samples, as the exercise does; of the others, which take longest to make,
    there are fewer.
    """
    text = run(
        way,
        "seeds/pathway2ai_mlp",
        "--stop",
        str(stop),
        "--train-size",
        "2000",
        "--train-fraction",
        "0.5",
        *flags,
    )
    assert text.startswith(
        "{'n_layers': 4, 'd_in': 1024, 'n_classes': 32, 'd_hidden': 256, 'batch_size': 64"
    )
    steps = numbers(r"step: (\d+) \|", text)
    assert steps == list(range(0, stop + 1, 100))
    losses = dict(zip(steps, numbers(r"train_loss: ([\d.]+)", text), strict=True))
    expected = {step: loss for step, loss in table.items() if step <= stop}
    np.testing.assert_allclose([losses[step] for step in expected], [*expected.values()], rtol=0.25)
    held_out = numbers(r"test_loss: ([\d.]+)", text)
    assert held_out == sorted(held_out)
    assert ("the workers' parameters are the same" in text) == (way[0] == 2)


SMALL = [
    "--dim-in",
    "64",
    "--n-classes",
    "4",
    "--train-size",
    "600",
    "--niters",
    "20",
    "--every",
    "10",
    "--dim-hidden",
    "16",
]


@pytest.mark.parametrize("layers", ["1", "3"])
def test_three_workers_take_every_third_of_batches_that_three_do_not_divide(
    layers, monkeypatch, capsys
):
    flags = [
        *SMALL,
        "--n-layers",
        layers,
        "--train-fraction",
        "0.9",
        "--batch-size",
        "50",
        "--learning-rate",
        "0.02",
    ]
    monkeypatch.setattr(sys, "argv", ["seeds/pathway2ai_mlp", *flags, "--threads", "3"])
    mnpar.run(exercise.main, ranks=3, args=(exercise.flags().read(),))
    text = capsys.readouterr().out
    losses = numbers(r"train_loss: ([\d.]+)", text)
    assert losses[0] > losses[1] > losses[2]
    assert "parameters are the same" in text


def test_workers_that_have_drifted_apart_are_an_error(monkeypatch):
    """The exercise throws the result of its check away."""
    monkeypatch.setattr(
        sys,
        "argv",
        ["seeds/pathway2ai_mlp", *SMALL, "--batch-size", "20", "--stop", "1", "--threads", "2"],
    )
    monkeypatch.setattr(mnpar, "create_multi_node_optimizer", lambda optimizer, comm: optimizer)
    with pytest.raises(SystemExit, match="the workers' parameters are not the same"):
        mnpar.run(exercise.main, ranks=2, args=(exercise.flags().read(),))


# ---- pathway2ai's products (X2) ----


@pytest.mark.parametrize("way", [MPI, *[(0, ["--threads", str(n)]) for n in (1, 3, 4, 5)]], ids=str)
@pytest.mark.parametrize(
    "flags", [["--shape", "500x389x257", "--dtype", "f8"], ["--shape", "3x2x4"]], ids=" ".join
)
def test_products_of_ranks_and_their_gradients_are_those_of_one(way, flags):
    text = run(way, "seeds/parallel_matmul", *flags)
    found = np.array(re.findall(r"C (\S+), dA (\S+), dB (\S+)", text)).astype(float)
    assert found.shape == (2, 3)  # by row, by reduction
    assert found.max() < (1e-10 if "f8" in flags else 1e-4)
    size = way[0] or int(way[1][1])
    assert sorted(re.findall(r"My rank is (\d), of", text)) == [str(rank) for rank in range(size)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_of_a_thousand_rows_are_those_of_one(dtype):
    text = run(MPI, "seeds/parallel_matmul", "--dtype", dtype)
    assert max(map(float, re.findall(r"(?:C|dA|dB) (\d\S+?),?\s", text))) < (
        1e-6 if dtype == "f4" else 1e-12
    )


# ---- Synkhronos' demo (S7) ----


def validation(text):
    return numbers(r"validation: loss ([\d.]+)", text), numbers(r"right ([\d.]+) %", text)


def test_any_number_of_ranks_and_of_slices_learns_the_same():
    flags = ["seeds/synkhronos_mnist", "-e", "2", "-b", "41", "--lr", "0.05"]
    one, right = validation(run(ALONE, *flags))
    assert len(one) == 2
    assert right[-1] > 70
    for way, slices in ((MPI, "4"), (THREADS, "7")):
        np.testing.assert_allclose(
            validation(run(way, *flags, "--slices", slices))[0], one, atol=2e-4
        )


@pytest.mark.parametrize("model", ["cnn", "mlp"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_validation_loss_is_the_same_in_any_number_of_pieces(model, ranks, monkeypatch):
    few = [part[:101] for part in digits.load(Namespace(data=None))]
    monkeypatch.setattr(digits, "load", lambda args: few)
    args = {
        "model": model,
        "batchsize": 1500,
        "epoch": 1,
        "unit": 16,
        "lr": 0.01,
        "seed": 0,
        "data": None,
    }
    one, *others = [
        mnpar.run(digits.main, ranks=ranks, args=(Namespace(**args, slices=n),))[0][0][1]
        for n in (1, 4)
    ]
    np.testing.assert_allclose(others, one, rtol=0, atol=1e-6)


def test_the_perceptron_drops_and_learns_the_same_on_any_number_of_ranks():
    """1,442 images in batches of 131: the last one has a single row."""
    flags = {
        "model": "mlp",
        "batchsize": 131,
        "epoch": 2,
        "unit": 64,
        "lr": 0.01,
        "seed": 0,
        "data": None,
        "slices": 1,
    }
    one, *others = [
        mnpar.run(digits.main, ranks=n, args=(Namespace(**flags),))[0] for n in (1, 2, 3)
    ]
    for found in others:
        np.testing.assert_allclose(found, one, rtol=0, atol=1e-5)
    flags = ["--model", "mlp", "-e", "2", "-b", "131", "-u", "64", "--lr", "0.01"]
    text = run(MPI, "seeds/synkhronos_mnist", *flags)
    np.testing.assert_allclose(
        numbers(r"epoch +\d+ +loss ([\d.]+)", text), [loss for loss, _, _ in one], atol=2e-5
    )
    assert one[1][0] < one[0][0]


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


def narrow(folder, blocks):
    """The example with other blocks in its stages."""
    text = (EXAMPLES / "seeds" / "resnet50.py").read_text()
    text, number = re.subn(r"^BLOCKS = .*", f"BLOCKS = {blocks}", text, flags=re.M)
    assert number == 1
    (folder / "resnet50.py").write_text(text)
    return folder / "resnet50"


DEEP = ((3, 8), (4, 16), (6, 32), (3, 64))  # as deep as it is, and an eighth as wide


def pytest_generate_tests(metafunc):
    if "band" in metafunc.fixturenames:
        # the replica is compared in each run
        bands = BANDS | (ALIKE | BETTER if metafunc.config.getoption("--sweep") else {})
        metafunc.parametrize("band", bands.values(), ids=bands)
    if "blocks" in metafunc.fixturenames:  # as wide as it is it takes half a minute
        whole = {"whole": resnet50.BLOCKS} if metafunc.config.getoption("--sweep") else {}
        metafunc.parametrize("blocks", [DEEP, *whole.values()], ids=["narrow", *whole])


@pytest.mark.grid
def test_resnet_50_makes_a_step(tmp_path, blocks):
    text = run(ALONE, narrow(tmp_path, blocks), *TINY)
    assert ("ResNet-50 of 25,557,032 parameters" in text) == (blocks == resnet50.BLOCKS)
    assert re.search(r"loss at first \d+\.\d+, at last \d+\.\d+$", text, re.M)


@pytest.mark.grid
def test_a_step_of_resnet_50_on_two_ranks_is_that_of_one(tmp_path, blocks):
    flags = ["--size", "32", "--steps", "2", "--check"]  # in the first, branches have no gradient
    text = run(MPI, narrow(tmp_path, blocks), *TINY, *flags)
    assert ("25,557,032 parameters" in text) == (blocks == resnet50.BLOCKS)
    losses, weights = re.search(r"losses differ by (\S+), weights by (\S+) at most", text).groups()
    assert float(losses) < 1e-9
    assert float(weights) < 1e-9


def step(comm):
    """Loss, outputs and gradients of a step of four images of 64²."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 64, 64), "f4")
    t = rng.integers(0, 1000, 4)
    mnpar.random.seed(0)
    model = resnet50.ResNet50(lambda size: L.MultiNodeBatchNormalization(size, comm), 1000)
    model.cleargrads()
    mine = slice(4 * comm.rank // comm.size, 4 * (comm.rank + 1) // comm.size)
    y = model(x[mine])
    loss = F.softmax_cross_entropy(y, t[mine]) * (len(y) / 4)
    loss.backward()
    gradient = np.concatenate([param.grad.ravel() for param in model.params()])
    return (
        comm.allreduce(loss.array),
        np.concatenate(comm.allgather(y.array)),
        comm.allreduce(gradient),
    )


@pytest.mark.grid
@pytest.mark.parametrize(
    ("activation", "compared"), [(F.relu, 2), (F.softplus, 3)], ids=["relu", "softplus"]
)
def test_in_float32_a_step_on_two_ranks_is_that_of_one(monkeypatch, blocks, activation, compared):
    """Not the gradients with ReLU: the rounding of 50 layers changes the sign of some units, whose
    gradient is all or nothing.

    One rank in float32 is as far from one in float64 (3 %), and that one from itself where first
    weights differ by 6e-7.
    """
    monkeypatch.setattr(resnet50, "BLOCKS", blocks)
    monkeypatch.setattr(resnet50.F, "relu", activation)
    (one,), (two, _) = mnpar.run(step, ranks=1), mnpar.run(step, ranks=2)
    for whole, parts in [*zip(one, two, strict=True)][:compared]:
        np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-4 * abs(whole).max())


def test_resnet_50_reads_pictures_and_prints_its_scaling(tmp_path):
    """With one narrow block in each stage: its six networks are not looked at."""
    rng = np.random.default_rng(0)
    for i, label in enumerate("aab"):
        (tmp_path / label).mkdir(exist_ok=True)
        np.save(tmp_path / label / f"{i}.npy", rng.integers(0, 256, (3, 40, 20 + 10 * i), np.uint8))
    small = narrow(tmp_path, ((1, 4), (1, 8), (1, 16), (1, 32)))
    text = run(MPI, small, *TINY, "--classes", "2", "--images", str(tmp_path), "--scaling")
    assert re.findall(r"(\w+) +scaling, (\d) rank", text) == [
        ("weak", "1"),
        ("weak", "2"),
        ("strong", "1"),
        ("strong", "2"),
    ]
