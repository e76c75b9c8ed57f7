"""A residual network on grids: losses and weights of one process, with strides, projections and
statistics over blocks.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import output_shape


class Residual(mnpar.Chain):
    """relu(x + convolutions of x); with a stride, x goes through a projection."""

    def __init__(self, grid, channels, filters, stride):
        super().__init__()
        self.stride = stride
        self.conv1 = L.SpatialConvolution2D(
            grid, channels, filters, 3, stride=stride, pad=1, nobias=True
        )
        self.bn1 = L.SpatialBatchNormalization(grid, filters)
        self.conv2 = L.SpatialConvolution2D(grid, filters, filters, 3, pad=1, nobias=True)
        self.bn2 = L.SpatialBatchNormalization(grid, filters)
        if stride > 1 or channels != filters:
            self.short = L.SpatialConvolution2D(grid, channels, filters, 1, stride=stride)

    def __call__(self, x, shape):
        out = output_shape(shape, 3, self.stride, 1)
        h = F.relu(self.bn1(self.conv1(x, shape), out))
        h = self.bn2(self.conv2(h, out), out)
        return F.relu(h + (self.short(x, shape) if hasattr(self, "short") else x)), out


class ResNet(mnpar.Chain):
    def __init__(self, grid):
        super().__init__()
        self.grid = grid
        self.stem = L.SpatialConvolution2D(grid, 2, 3, 3, pad=1)
        self.blocks = mnpar.ChainList(
            Residual(grid, 3, 3, 1), Residual(grid, 3, 4, 2), Residual(grid, 4, 5, 2)
        )
        self.fc = L.Linear(5, 3)

    def loss(self, x, shape, t):
        h = F.relu(self.stem(x, shape))
        for block in self.blocks:
            h, shape = block(h, shape)
        return F.softmax_cross_entropy(
            self.fc(F.spatial_global_average_pooling(h, self.grid, shape)), t
        )


def learn(comm, dims, whole, t):
    """The losses of four steps, and the weights and statistics after them."""
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(4)
    grid = mnpar.SpatialGrid(comm, dims)
    shape = whole.shape[2:]
    net = ResNet(grid)
    x = mnpar.datasets.shard_image(whole, grid)
    optimizer, losses = mnpar.optimizers.MomentumSGD(lr=0.1).setup(net), []
    for _ in range(4):
        loss = net.loss(x, shape, t)
        net.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    return losses, {**{k: p.array for k, p in net.namedparams()}, **dict(net.namedpersistents())}


@pytest.mark.parametrize(
    "dims", [(2, 2), (3, 2), (1, 4)], ids=lambda dims: "x".join(map(str, dims))
)
def test_four_steps_keep_the_losses_weights_and_statistics_of_one_process(dims):
    """Images of 9 × 7, then 5 × 4, then 3 × 2: on some grids the last blocks of all are empty."""
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((6, 2, 9, 7))
    t = np.arange(6) % 3
    ((losses, values),) = mnpar.run(learn, ranks=1, args=((1, 1), whole, t))
    assert losses[-1] < losses[0]
    for mine, own in mnpar.run(learn, ranks=int(np.prod(dims)), args=(dims, whole, t)):
        np.testing.assert_allclose(mine, losses, rtol=1e-9)
        assert own.keys() == values.keys()
        for name, value in values.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-7, atol=1e-10, err_msg=name)
