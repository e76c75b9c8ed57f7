"""neon's network and its GB autoencoder on grids: the same costs, weights and pictures on every
grid, in every mode, as on one process.
"""

import os
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import block
from tests.examples.running import PNG, load, output

neon, gb = load("seeds/neon_cnn"), load("seeds/gb_autoencoder")


@pytest.fixture(scope="module", autouse=True)
def _one_core():
    """Ranks that are threads take turns, and small products on all cores wait for each other."""
    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("MNPAR_DATA", raising=False)
    with mnpar.using_config("dtype", mnpar.config.dtype):
        yield


ALONE = {}


def alone(module, main, flags, capsys, monkeypatch):
    """What one process prints; run once."""
    key = (module.__name__, *flags)
    if key not in ALONE:
        ALONE[key] = printed(module, main, flags, 1, capsys, monkeypatch)
    return ALONE[key]


def printed(module, main, flags, ranks, capsys, monkeypatch):
    """What rank 0 prints, without the line that says how many ranks there are."""
    monkeypatch.setattr(
        sys, "argv", ["example", *flags, *(["--threads", str(ranks)] if ranks > 1 else [])]
    )
    args = module.flags().read()
    mnpar.run(main, ranks=ranks, args=(args,))
    lines = capsys.readouterr().out.split("\n")
    return [line for line in lines if "rank(s)" not in line and "others must print" not in line]


SMALL = ["--epoch", "2", "--train", "14", "--test", "5", "--batchsize", "10"]
WAYS = {
    "blocks": (["--halopar", "2x2"], 4),
    "more blocks than some layers have rows": (["--halopar", "5x1"], 5),
    "inputs of large layers": (["--modelpar"], 3),
    "batches": (["--datapar"], 3),
    "batches that are not enough for all": (["--datapar", "--batchsize", "2", "--train", "5"], 3),
    "blocks and batches": (["--halodatapar", "2x2"], 8),
}


@pytest.mark.parametrize(("flags", "ranks"), WAYS.values(), ids=WAYS)
def test_every_switch_prints_the_costs_of_one_process(flags, ranks, capsys, monkeypatch):
    more = flags[flags.index("--batchsize") :] if "--batchsize" in flags else []
    one = alone(neon, neon.main, [*SMALL, *more], capsys, monkeypatch)
    costs = [re.match(r"epoch +(\d) +test cost \d\.\d{5}, ", line)[1] for line in one[:2]]
    assert costs == ["1", "2"]
    assert printed(neon, neon.main, [*SMALL, *flags], ranks, capsys, monkeypatch) == one


# neon's --halopar, --modelpar (its vecpar layers), --datapar and --halodatapar
MODES = {"space=2x2": 4, "model=2": 2, "data=3": 3, "data=2,space=1x2": 4}


def ten_steps(comm, divide):
    """The losses of ten steps, the weights after them, and the accuracy, by the script's parts."""
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(1)
    mesh = mnpar.Mesh(comm, **mnpar.Mesh.parse(divide))
    model = mnpar.parallelize(neon.Net(), mesh, neon.RULES)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.MomentumSGD(lr=0.02), mesh
    ).setup(model)
    data, _ = mnpar.datasets.get_toy_images(5, 1, 28, 1)
    x, t = mnpar.dataset.concat_examples(data[:])
    seen, losses = [], []

    def cost(x, t):
        seen.append(F.softmax_cross_entropy(model(x), t))
        return seen[-1]

    for _ in range(10):
        mine = mesh.cut(t, data=0)
        optimizer.update(cost, mesh.cut(x, data=0, space=(2, 3)), mine)
        total = seen.pop().item() * len(mine)
        losses.append(mesh.data.allreduce(np.array(total)).item() / len(t))
    with mnpar.no_backprop_mode():
        right = F.accuracy(model(mesh.cut(x, space=(2, 3))), t).item()
    return losses, [param.array for param in mnpar.gathered(model).params()], right


def test_four_values_of_one_option_are_one_process():
    losses, weights, right = mnpar.run(ten_steps, ranks=1, args=("",))[0]
    assert losses[-1] < losses[0]
    for divide, ranks in MODES.items():
        for mine, own, accuracy in mnpar.run(ten_steps, ranks=ranks, args=(divide,)):
            np.testing.assert_allclose(mine, losses, rtol=1e-10, err_msg=divide)
            assert accuracy == right
            for w, w1 in zip(own, weights, strict=True):
                np.testing.assert_allclose(w, w1, rtol=1e-10, atol=1e-12, err_msg=divide)


def test_a_switch_starts_the_ranks_it_needs():
    text = output(0, "seeds/neon_cnn", [*SMALL, "--halopar", "1x2"])
    assert text.count("mesh space=1x2: others must print the same") == 1
    assert len(re.findall(r"^epoch +\d +test cost", text, re.M)) == 2


# images of a step; neon's had 100, which takes minutes
BATCH = int(os.environ.get("MNPAR_N6", "5"))


def learn(comm, dims, steps):
    """The losses of steps of SGD, and the weights."""
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(1)
    net = neon.Net()
    train, _ = mnpar.datasets.get_synthetic_images(BATCH, 0)
    x, t = mnpar.dataset.concat_examples(train[:])
    x = mnpar.SpatialGrid(comm, dims).cut(x)
    optimizer, losses = mnpar.optimizers.SGD(lr=0.05).setup(net), []
    for _ in range(steps):
        loss = F.softmax_cross_entropy(net(x), t)
        net.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    return losses, [param.array for param in net.params()]


@pytest.fixture(scope="module")
def steps(request):
    return 20 if request.config.getoption("--sweep") else 4


@pytest.fixture(scope="module")
def learnt(steps):
    """The same on one rank."""
    return mnpar.run(learn, ranks=1, args=((1, 1), steps))[0]


@pytest.mark.grid
@pytest.mark.parametrize(
    "dims", [(2, 2), (4, 4), (3, 2), (1, 5)], ids=lambda dims: "x".join(map(str, dims))
)
def test_steps_on_a_grid_keep_the_losses_and_weights_of_one_process(dims, steps, learnt):
    losses, arrays = learnt
    assert losses[-1] < 0.7 * losses[0]
    for mine, own in mnpar.run(learn, ranks=int(np.prod(dims)), args=(dims, steps)):
        np.testing.assert_allclose(mine, losses, rtol=1e-10)
        for w, w1 in zip(own, arrays, strict=True):
            np.testing.assert_allclose(w, w1, rtol=1e-9, atol=1e-12)


def learn_in_batches(comm, hidden):
    """The parameters after 3 steps of neon's perceptron, on batches of 100 images that the ranks
    share.
    """
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(1)
    model = mnpar.Sequential(L.Linear(784, hidden), F.sigmoid, L.Linear(hidden, 10))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(lr=0.1), comm).setup(model)
    train, _ = mnpar.datasets.get_synthetic_images(300, 0)
    x = np.stack([image.reshape(784) for image, _ in train]).astype("f8")
    t = np.array([label for _, label in train])
    for step in range(3):
        mine = slice(*[100 * step + end for end in block(100, comm.size, comm.rank)])
        optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x[mine], t[mine])
    return [param.array for param in model.params()]


@pytest.mark.ranks(2, 3)
def test_steps_on_shared_batches_of_100_keep_the_weights_of_one_process(comm):
    """On three ranks 34, 33 and 33 images."""
    expected = learn_in_batches(mnpar.create_communicator("self"), 100)
    for mine, whole in zip(learn_in_batches(comm, 100), expected, strict=True):
        np.testing.assert_allclose(mine, whole, rtol=1e-10, atol=1e-12)


# ---- GB ----

SHORT = [
    "--train",
    "5",
    "--test",
    "10",
    "--batchsize",
    "4",
    "--pretrain",
    "1",
    "--initial",
    "1",
    "--epoch",
    "1",
]


def smaller(load):
    """What it loads, and of images 20 × 20 of their 28 × 28: 20 → 17 → 15 → 13 → 11 → 9 → 7."""

    def middle(args):
        *parts, name = load(args)
        return *[
            mnpar.datasets.TupleDataset(x[:, :, 4:24, 4:24], t)
            for x, t in [part.datasets for part in parts]
        ], name

    return middle


@pytest.mark.parametrize(
    "more", [[], ["--untied"], ["--neon-order"]], ids=["tied", "untied", "one after the other"]
)
def test_gb_prints_the_same_on_every_grid(more, capsys, monkeypatch):
    pictures = []
    monkeypatch.setattr(gb.stimuli, "__defaults__", (2,))
    monkeypatch.setattr(gb, "load", smaller(gb.load))
    monkeypatch.setattr(gb, "draw", lambda images, W, *rest: pictures.append([*images, W]))
    one = printed(gb, gb.main, [*SHORT, *more], 1, capsys, monkeypatch)
    phases = [
        re.sub(r"epoch.*|:.*", "", line).strip() for line in one if re.search(r"epoch +\d", line)
    ]
    assert phases == ["level 1", "level 2", "level 3", "last layer", "all layers"]
    for dims, ranks in (("4x4", 16),) if not more else (("2x2", 4), ("3x2", 6)):
        assert (
            printed(gb, gb.main, [*SHORT, *more, "--halopar", dims], ranks, capsys, monkeypatch)
            == one
        )
        for mine, whole in zip(pictures.pop(), pictures[0], strict=True):
            np.testing.assert_allclose(mine, whole, rtol=1e-7, atol=1e-9)
    assert (one != alone(gb, gb.main, SHORT, capsys, monkeypatch)) == bool(more)


def test_gb_has_the_costs_of_one_process_for_colour_images_of_32_by_32():
    """The shape of CIFAR: 32 → 29 → 27 → 25 → 23 → 21 → 19, contrast apart."""
    args = SimpleNamespace(
        seed=0,
        batchsize=2,
        pretrain=1,
        pretrain_lr=0.001,
        sparsity=0.1,
        neon_order=False,
        initial=1,
        epoch=1,
        lr=0.02,
    )

    def program(comm, dims):
        mnpar.config.dtype = np.dtype("f8")
        mnpar.random.seed(0)
        grid, said = mnpar.SpatialGrid(comm, dims), []
        rng = np.random.default_rng(0)
        data = mnpar.datasets.TupleDataset(
            rng.standard_normal((4, 3, 32, 32)), np.arange(4, dtype="i4")
        )
        (x, t), model = (
            mnpar.datasets.shard_image(data, grid).datasets,
            gb.GB(grid, (3, 32, 32), 4, True),
        )
        history = gb.pretrain(model, x, args, said.append)
        gb.teach(model, x, t, args, said.append)
        return model.levels[-1].size, history, said

    (whole,) = mnpar.run(program, ranks=1, args=((1, 1),))
    assert whole[0] == (19, 19)
    for size, history, said in mnpar.run(program, ranks=4, args=((2, 2),)):
        assert (size, said) == (whole[0], whole[2])
        np.testing.assert_allclose(history, whole[1], rtol=1e-9)


def test_gb_draws_a_plot(tmp_path):
    output(0, "seeds/gb_autoencoder", [*SHORT, "--out", str(tmp_path)])
    picture = (tmp_path / "gb_autoencoder.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 20_000


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_after_each_step_every_filter_has_the_length_1(tied):
    mnpar.config.dtype = np.dtype("f8")

    def program(comm):
        mnpar.random.seed(0)
        args = SimpleNamespace(
            seed=0,
            batchsize=4,
            pretrain=1,
            pretrain_lr=0.05,
            sparsity=0.1,
            neon_order=False,
            initial=0,
            epoch=1,
            lr=0.1,
        )
        grid = mnpar.SpatialGrid(comm, (2, 1))
        model = gb.GB(grid, (1, 28, 28), 3, tied)
        data = mnpar.datasets.shard_image(
            mnpar.datasets.get_synthetic_images(4, 0, n_classes=3)[0], grid
        ).datasets
        before = [level.encoder.W.array.copy() for level in model.levels]
        gb.pretrain(model, data[0], args, lambda line: None)
        gb.teach(model, *data, args, lambda line: None)
        for level, W in zip(model.levels, before, strict=True):
            assert (level.encoder.W.array != W).any()
            for param in level.params():
                np.testing.assert_allclose((param.array**2).sum(axis=(3, 4, 5)), 1, rtol=1e-12)

    mnpar.run(program, ranks=2)


def test_the_area_under_the_roc_curve_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    h = rng.standard_normal((12, 3))
    t = np.arange(12) % 3
    for c in range(3):
        pairs = h[t == c][:, None] > h[t != c][None]  # (pos, neg, units)
        np.testing.assert_allclose(gb.areas(h, t, 3)[c], pairs.mean(axis=(0, 1)))
