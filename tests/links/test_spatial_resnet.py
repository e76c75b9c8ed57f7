"""A residual network of divided images: losses and weights of one process, with strides,
projections and statistics over blocks.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L


class Residual(mnpar.Chain):
    """relu(x + convolutions of x); with a stride, x goes through a projection."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv1 = L.Convolution2D(channels, filters, 3, stride=stride, pad=1, nobias=True)
        self.bn1 = L.BatchNormalization(filters)
        self.conv2 = L.Convolution2D(filters, filters, 3, pad=1, nobias=True)
        self.bn2 = L.BatchNormalization(filters)
        if stride > 1 or channels != filters:
            self.short = L.Convolution2D(channels, filters, 1, stride=stride)

    def __call__(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + (self.short(x) if hasattr(self, "short") else x))


class ResNet(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.stem = L.Convolution2D(2, 3, 3, pad=1)
        self.blocks = mnpar.ChainList(Residual(3, 3, 1), Residual(3, 4, 2), Residual(4, 5, 2))
        self.fc = L.Linear(5, 3)

    def loss(self, x, t):
        h = F.relu(self.stem(x))
        for block in self.blocks:
            h = block(h)
        return F.softmax_cross_entropy(self.fc(F.average(h, axis=(2, 3))), t)


def learn(comm, dims, whole, t):
    """The losses of four steps, and the weights and statistics after them."""
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(4)
    grid = mnpar.SpatialGrid(comm, dims)
    net = ResNet()
    x = mnpar.divided(mnpar.datasets.shard_image(whole, grid), grid, shape=whole.shape)
    optimizer, losses = mnpar.optimizers.MomentumSGD(lr=0.1).setup(net), []
    for _ in range(4):
        loss = net.loss(x, t)
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
