"""Links of divided images, against the same in one process: parameters, checkpoints, outputs,
gradients and steps of an optimizer.
"""

import functools
import re
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import Normal
from mnpar.plans import blocks
from tests.harness.parts import cut, on_blocks

ROOT = Path(__file__).parents[2]
SHAPE = (9, 6)
W = Normal(1.0, "d")
B = Normal(1.0, "d")
INIT = {"initialW": W, "initial_bias": B}

LAYERS = {
    "convolution": lambda: L.Convolution2D(3, 4, 3, 2, 1, **INIT),
    "convolution, sizes left to the first batch": lambda: L.Convolution2D(
        None, 4, (3, 2), nobias=True, initialW=W, dilate=2
    ),
    "convolution around the edges": lambda: L.Convolution2D(
        3, 4, 3, pad=[(2, 0), (1, 1)], mode=("wrap", "reflect"), **INIT
    ),
    "any number of axes, groups, all covered": lambda: L.ConvolutionND(
        2, 3, 6, 2, 2, cover_all=True, groups=3, **INIT
    ),
    "transposed": lambda: L.Deconvolution2D(3, 4, 4, 2, 1, **INIT),
    "transposed, larger": lambda: L.DeconvolutionND(2, 3, 2, 2, 3, outsize=(27, 17), **INIT),
    "depthwise": lambda: L.DepthwiseConvolution2D(None, 2, 3, 1, 1, **INIT),
    "batch normalization": lambda: L.BatchNormalization(
        3, dtype="d", initial_gamma=W, initial_beta=B
    ),
    "layer normalization": lambda: L.LayerNormalization(
        (3, *SHAPE), initial_gamma=W, initial_beta=B
    ),
    "group normalization": lambda: L.GroupNormalization(3, initial_gamma=W, initial_beta=B),
}
GRIDS = [(1, 1), (2, 2), (3, 1), (1, 7)]
on_grids = pytest.mark.parametrize("dims", GRIDS, ids=str)


def whole_of(pieces, shape, dims):
    """The array of which these are the blocks."""
    y = np.full((*pieces[0].shape[:-2], *shape), np.nan)
    for piece, box in zip(pieces, blocks(shape, dims), strict=True):
        y[(..., *[slice(a, b) for a, b in zip(box.start, box.stop, strict=True)])] = piece
    return y


def work(layer, x, function=None):
    """Output, the gradient of x, and the parameters with theirs, under their names in a
    checkpoint.
    """
    x = mnpar.Variable(x)
    y = (function or layer)(x)
    F.sum(F.sin(y) * y).backward()
    return y.array, x.grad, {name: (p.array, p.grad) for name, p in layer.namedparams()}


def seeded(make, *args):
    mnpar.random.seed(8)
    return make(*args)


@on_grids
@pytest.mark.parametrize("name", LAYERS)
def test_a_link_of_a_divided_image_has_the_outputs_and_gradients_of_one_process(name, dims):
    x = np.random.default_rng(0).standard_normal((2, 3, *SHAPE))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        layer = seeded(LAYERS[name])
        return work(layer, cut(x, grid.block(SHAPE)).copy(), on_blocks(layer, grid, SHAPE))

    y, gx, params = work(seeded(LAYERS[name]), x.copy())
    results = mnpar.run(program, ranks=int(np.prod(dims)))
    np.testing.assert_allclose(
        whole_of([r[0] for r in results], y.shape[2:], dims), y, rtol=1e-10, atol=1e-10
    )
    np.testing.assert_allclose(
        whole_of([r[1] for r in results], SHAPE, dims), gx, rtol=1e-9, atol=1e-9
    )
    for _, _, mine in results:
        assert list(mine) == list(params)
        for path, (array, grad) in mine.items():
            np.testing.assert_array_equal(array, params[path][0])
            np.testing.assert_allclose(grad, params[path][1], rtol=1e-9, atol=1e-9)


@on_grids
def test_by_running_values_batch_normalization_has_the_gradients_of_one_process_too(dims):
    x = np.random.default_rng(0).standard_normal((2, 3, *SHAPE))

    def one():
        layer = seeded(LAYERS["batch normalization"])
        layer.avg_mean[...], layer.avg_var[...] = 0.5, 2
        return layer

    def program(comm):
        grid, layer = mnpar.SpatialGrid(comm, dims), one()
        with mnpar.using_config("train", False):
            return work(layer, cut(x, grid.block(SHAPE)).copy(), on_blocks(layer, grid, SHAPE))

    with mnpar.using_config("train", False):
        y, gx, params = work(one(), x.copy())
    results = mnpar.run(program, ranks=int(np.prod(dims)))
    np.testing.assert_allclose(whole_of([r[0] for r in results], SHAPE, dims), y)
    np.testing.assert_allclose(whole_of([r[1] for r in results], SHAPE, dims), gx)
    for _, _, mine in results:
        for path in params:
            np.testing.assert_allclose(mine[path][1], params[path][1])


class Dictionary(mnpar.serializer.Serializer):
    def __init__(self):
        self.values = {}

    def __call__(self, key, value):
        self.values[key] = value if value is None else np.array(value)
        return value


class Back(mnpar.serializer.Deserializer):
    def __init__(self, values):
        self.values = values

    def __call__(self, key, value):
        found = self.values[key]
        if value is None or found is None:
            return found
        value[...] = found
        return value


@pytest.mark.parametrize("target", [None, (1, 1), (3, 2), (1, 7)], ids=str)
@pytest.mark.parametrize("source", [None, (2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("lazy", [False, True], ids=["sized", "lazy"])
def test_the_matrix_of_a_seam_is_saved_whole_and_loaded_by_any_grid(source, target, lazy):
    x = np.random.default_rng(0).standard_normal((2, 3, *SHAPE)).astype("f4")

    def layer_of(grid, first_size):
        return (
            L.Linear(first_size, 4)
            if grid is None
            else L.SpatialLinear(grid, first_size and (3, *SHAPE), 4)
        )

    def outputs(layer, grid):
        with mnpar.no_backprop_mode():
            return layer(x if grid is None else grid.cut(x)).array

    def save(comm, dims):
        grid = None if dims is None else mnpar.SpatialGrid(comm, dims)
        layer = layer_of(grid, 162)
        written = Dictionary()
        y = outputs(layer, grid)
        layer.serialize(written)
        return written.values, y

    values, y = mnpar.run(
        lambda comm: save(comm, source), ranks=1 if source is None else int(np.prod(source))
    )[0]
    assert {key: value.shape for key, value in values.items()} == {"W": (4, 162), "b": (4,)}

    def load(comm):
        grid = None if target is None else mnpar.SpatialGrid(comm, target)
        layer = layer_of(grid, None if lazy else 162)
        layer.serialize(Back(values))
        return outputs(layer, grid)

    for found in mnpar.run(load, ranks=1 if target is None else int(np.prod(target))):
        np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)


# ---- a network ----


class Network(mnpar.Chain):
    """Two convolutions, pooling, and a matrix that is cut as the images are."""

    def __init__(self, grid):
        super().__init__()
        self.conv1 = L.Convolution2D(1, 4, 5, initialW=W)
        self.bn = L.BatchNormalization(4, dtype="d")
        self.conv2 = L.Convolution2D(4, 6, 5, initialW=W)
        self.fc1 = L.SpatialLinear(grid, (6, 4, 4), 8, initialW=Normal(0.1, "d"), initial_bias=B)
        self.fc2 = L.Linear(8, 10, initialW=Normal(0.1, "d"), initial_bias=B)

    def forward(self, x):
        x = F.max_pooling_2d(F.relu(self.bn(self.conv1(x))), 2)
        x = F.max_pooling_2d(F.tanh(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x)))


def learn(comm, dims, steps):
    """From images of 28 × 28, as in Krizhevsky's and neon's networks."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((steps, 5, 1, 28, 28))
    labels = rng.integers(0, 10, (steps, 5))
    mnpar.random.seed(4)
    grid = mnpar.SpatialGrid(comm, dims)
    model = Network(grid)
    optimizer = mnpar.optimizers.MomentumSGD(0.01).setup(model)
    losses = []
    for x, t in zip(images, labels, strict=True):
        model.cleargrads()
        loss = F.softmax_cross_entropy(model(grid.cut(x)), t)
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    return losses, model.conv1.W.array, model.bn.avg_var, model.fc1.whole_W(), model.fc2.W.array


@functools.cache
def one_process(steps):
    return mnpar.run(learn, ranks=1, args=((1, 1), steps))[0]


@pytest.mark.parametrize(
    ("dims", "steps"), [((2, 2), 20), ((3, 2), 4), ((1, 5), 4), ((4, 4), 4)], ids=str
)
def test_steps_of_a_network_are_those_of_one_process(dims, steps):
    """On 4 × 4 ranks blocks shrink to a single cell."""
    for found in mnpar.run(learn, ranks=int(np.prod(dims)), args=(dims, steps)):
        for mine, theirs in zip(found, one_process(steps), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


def test_grids_that_divide_a_batch_train_as_one_process_does():
    """Eight ranks: two grids of 2 × 2, with batches of 3 and 2; batch normalization over all of
    them.
    """
    rng = np.random.default_rng(0)
    images = rng.standard_normal((3, 5, 1, 28, 28))
    labels = rng.integers(0, 10, (3, 5))

    def program(comm):
        mnpar.random.seed(4)
        group, place = divmod(comm.rank, 4)
        within = comm.split(group, place)
        across = comm.split(place, group)
        grid = mnpar.SpatialGrid(within, (2, 2))
        model = Network(grid)
        model.bn = L.MultiNodeBatchNormalization(4, across, dtype="d", blocks=comm)
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.MomentumSGD(0.01), across
        ).setup(model)
        mine = slice(0, 3) if group == 0 else slice(3, 5)
        for x, t in zip(images, labels, strict=True):
            optimizer.update(
                lambda x, t: F.softmax_cross_entropy(model(grid.cut(x)), t), x[mine], t[mine]
            )
        return (
            model.conv1.W.array,
            model.bn.gamma.array,
            model.bn.avg_var,
            model.fc1.whole_W(),
            model.fc2.W.array,
        )

    def serial(comm):
        mnpar.random.seed(4)
        grid = mnpar.SpatialGrid(comm, (1, 1))
        model = Network(grid)
        optimizer = mnpar.optimizers.MomentumSGD(0.01).setup(model)
        for x, t in zip(images, labels, strict=True):
            optimizer.update(lambda x, t: F.softmax_cross_entropy(model(grid.cut(x)), t), x, t)
        return (
            model.conv1.W.array,
            model.bn.gamma.array,
            model.bn.avg_var,
            model.fc1.whole_W(),
            model.fc2.W.array,
        )

    (truth,) = mnpar.run(serial, ranks=1)
    for found in mnpar.run(program, ranks=8):
        for mine, theirs in zip(found, truth, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


def test_the_page_about_blocks_says_what_happens():
    programs = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "spatial.md").read_text(encoding="utf-8"), re.S
    )
    page = {"__name__": "page"}
    exec("\n".join(programs), page)  # compares one rank with several
    np.testing.assert_allclose(page["one"], page["four"], rtol=1e-4)
    x = np.pad(np.arange(6.0) ** 2, 1, "reflect")
    for ranks in (1, 2, 3):
        smooth = np.concatenate(mnpar.run(page["smooth"], ranks=ranks))
        assert smooth.tolist() == ((x[:-2] + 2 * x[1:-1] + x[2:]) / 4).tolist()


class UNet(mnpar.Chain):
    """Down twice, up twice, the finer images beside: odd sizes all the way."""

    def __init__(self):
        super().__init__()
        self.first = L.Convolution2D(2, 3, 3, pad=1, initialW=W)
        self.down = mnpar.ChainList(
            *[L.Convolution2D(3, 3, 3, pad=1, mode="reflect", initialW=W) for _ in range(2)]
        )
        self.up = mnpar.ChainList(*[L.Deconvolution2D(3, 3, 3, 2, 1, initialW=W) for _ in range(2)])
        self.norm = L.GroupNormalization(3, initial_gamma=W, initial_beta=B)
        self.last = L.Convolution2D(6, 2, 1, initialW=W)

    def forward(self, x):
        x = self.norm(F.tanh(self.first(x)))
        seen = []
        for layer in self.down:
            seen.append(x)
            x = F.tanh(layer(F.average_pooling_2d(x, 3, 2, 1)))
        for layer, fine in zip(self.up, reversed(seen), strict=True):
            layer.outsize = fine.shape[2:]
            x = layer(x) + F.resize_images(x, fine.shape[2:]) * fine
        x = self.last(F.concat([x, seen[0]]))
        return F.sum(F.square(x)) * (1 / (x.shape[2] * x.shape[3]))


@pytest.mark.parametrize("dims", [(2, 2), (1, 3), (4, 2)], ids=str)
def test_gradients_of_a_network_are_those_of_one_process(dims):
    shape = (13, 11)
    x = np.random.default_rng(0).standard_normal((3, 2, *shape))

    def gradients(cut):
        with mnpar.using_config("dtype", np.float64):
            model = seeded(UNet)
        image = mnpar.Variable(x.copy())
        loss = model(cut(image))
        loss.backward()
        return loss.item(), image.grad, {name: p.grad for name, p in model.namedparams()}

    loss, gx, params = gradients(lambda image: image)
    results = mnpar.run(
        lambda comm: gradients(mnpar.SpatialGrid(comm, dims).cut), ranks=int(np.prod(dims))
    )
    for one, whole, mine in results:
        np.testing.assert_allclose(whole, gx, rtol=1e-8, atol=1e-8)
        assert one == pytest.approx(loss, rel=1e-10)
        for name, g in params.items():
            np.testing.assert_allclose(mine[name], g, rtol=1e-8, atol=1e-8, err_msg=name)
