"""VGG, ResNet and U-Net as Chainer's users write them, on blocks of images, against one process."""

from itertools import pairwise

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _double():
    with mnpar.using_config("dtype", np.dtype("f8")):
        yield


class VGG(mnpar.Chain):
    """Five stages of 3 × 3 convolutions and poolings, three linear layers with dropout (Simonyan
    and Zisserman, 2015), by a list of functions as Chainer's own has it.
    """

    def __init__(self):
        super().__init__()
        widths = [3, 4, 5, 6, 6, 6]
        with self.init_scope():
            for stage in range(1, 6):
                inputs, filters = widths[stage - 1 : stage + 1]
                setattr(self, f"conv{stage}_1", L.Convolution2D(inputs, filters, 3, 1, 1))
                setattr(self, f"conv{stage}_2", L.Convolution2D(filters, filters, 3, 1, 1))
            self.fc6 = L.Linear(None, 12)
            self.fc7 = L.Linear(12, 12)
            self.fc8 = L.Linear(12, 5)

    def forward(self, x):
        for stage in range(1, 6):
            for one in "12":
                x = F.relu(self[f"conv{stage}_{one}"](x))
            x = F.max_pooling_2d(x, ksize=2)
        x = F.dropout(F.relu(self.fc6(x)))
        return self.fc8(F.dropout(F.relu(self.fc7(x))))


class Bottleneck(mnpar.Chain):
    """1 × 1, 3 × 3 and 1 × 1 convolutions beside a shortcut, which has one of its own where the
    resolution changes.
    """

    def __init__(self, inputs, middle, outputs, stride=1, project=False):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(inputs, middle, 1, stride, 0, nobias=True)
            self.bn1 = L.BatchNormalization(middle)
            self.conv2 = L.Convolution2D(middle, middle, 3, 1, 1, nobias=True)
            self.bn2 = L.BatchNormalization(middle)
            self.conv3 = L.Convolution2D(middle, outputs, 1, 1, 0, nobias=True)
            self.bn3 = L.BatchNormalization(outputs)
            if project:
                self.conv4 = L.Convolution2D(inputs, outputs, 1, stride, 0, nobias=True)
                self.bn4 = L.BatchNormalization(outputs)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(h)))))
        return F.relu(h + (self.bn4(self.conv4(x)) if hasattr(self, "conv4") else x))


class ResNet(mnpar.Chain):
    """A 7 × 7 convolution, a pooling, stages of bottlenecks, and the mean of each channel (He et
    al., 2016).
    """

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 4, 7, 2, 3)
            self.bn1 = L.BatchNormalization(4)
            self.stages = mnpar.Sequential(
                Bottleneck(4, 3, 8, 1, project=True),
                Bottleneck(8, 3, 8),
                Bottleneck(8, 4, 10, 2, project=True),
                Bottleneck(10, 4, 10),
            )
            self.fc = L.Linear(10, 5)

    def forward(self, x):
        h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), ksize=3, stride=2)
        h = self.stages(h)
        n, channels, height, width = h.shape
        h = F.average_pooling_2d(h, (height, width), stride=1)
        return self.fc(F.reshape(h, (n, channels)))


class UNet(mnpar.Chain):
    """Convolutions without padding down and up again, and cropped skip connections, as the paper
    has it (Ronneberger et al., 2015).
    """

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.down1 = L.Convolution2D(None, 3, 3)
            self.down2 = L.Convolution2D(None, 4, 3)
            self.bottom = L.Convolution2D(None, 6, 3)
            self.up2 = L.Deconvolution2D(None, 4, 2, stride=2)
            self.merge2 = L.Convolution2D(None, 4, 3)
            self.up1 = L.Deconvolution2D(None, 3, 2, stride=2)
            self.merge1 = L.Convolution2D(None, 3, 3)
            self.scores = L.Convolution2D(None, 2, 1)

    @staticmethod
    def cropped(x, like):
        top, left = [(a - b) // 2 for a, b in zip(x.shape[2:], like.shape[2:], strict=True)]
        return x[:, :, top : top + like.shape[2], left : left + like.shape[3]]

    def forward(self, x):
        c1 = F.relu(self.down1(x))
        c2 = F.relu(self.down2(F.max_pooling_2d(c1, 2)))
        h = self.up2(F.relu(self.bottom(F.max_pooling_2d(c2, 2))))
        h = self.up1(F.relu(self.merge2(F.concat([self.cropped(c2, h), h]))))
        h = F.relu(self.merge1(F.concat([self.cropped(c1, h), h])))
        return self.scores(h)


class StridedUNet(mnpar.Chain):
    """Strided 4 × 4 convolutions down, their transposes up, with dropout (pix2pix;
    Isola et al., 2017).
    """

    def __init__(self):
        super().__init__()
        widths = [3, 4, 5, 6]
        pairs = list(pairwise(widths))
        with self.init_scope():
            self.first = L.Convolution2D(None, 3, 3, 1, 1)
            self.down = mnpar.ChainList(*[L.Convolution2D(a, b, 4, 2, 1) for a, b in pairs])
            self.normalized = mnpar.ChainList(*[L.BatchNormalization(b) for b in widths[1:]])
            self.up = mnpar.ChainList(
                *[L.Deconvolution2D(b * (1 + (b < 6)), a, 4, 2, 1) for a, b in pairs]
            )
            self.last = L.Convolution2D(None, 2, 3, 1, 1)

    def forward(self, x):
        seen = [F.leaky_relu(self.first(x))]
        for conv, bn in zip(self.down, self.normalized, strict=True):
            seen.append(F.leaky_relu(bn(conv(seen[-1]))))
        h = seen.pop()
        for i in (2, 1, 0):
            h = F.concat([F.relu(F.dropout(self.up[i](h))), seen.pop()])
        return self.last(h)


NETWORKS = {
    "VGG": (VGG, (2, 3, 37, 45)),
    "ResNet": (ResNet, (3, 3, 41, 50)),
    "U-Net": (UNet, (2, 3, 30, 34)),
    "strided U-Net": (StridedUNet, (2, 3, 16, 24)),
}
IMAGES = {name: RNG.standard_normal(shape) for name, (_, shape) in NETWORKS.items()}


def learnt(name, comm=None, dims=()):
    """Loss and gradients, then loss and weights after a step of the optimizer, and what the network
    says afterwards.
    """
    mnpar.random.seed(1)
    model, image = NETWORKS[name][0](), mnpar.Variable(IMAGES[name].copy())
    cut = (lambda x: x) if comm is None else mnpar.SpatialGrid(comm, dims).cut
    with mnpar.no_backprop_mode():
        y = model(cut(image))  # sizes that the model left open
    shape = (y.shape[0], *y.shape[2:])
    labels = np.random.default_rng(1).integers(0, y.shape[1], shape)
    optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
    found = []
    for _ in range(2):
        loss = F.softmax_cross_entropy(model(cut(image)), labels)
        model.cleargrads()
        loss.backward()
        found += [loss.array, *[p.grad.copy() for p in model.params()]]
        optimizer.update()
    with mnpar.using_config("train", False), mnpar.no_backprop_mode():
        y = model(cut(image))
    weights = [p.array for p in model.params()]
    return [*found, image.grad, *weights, y.array if y.layout is None else y.gather().array]


@pytest.mark.parametrize("dims", [(2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_known_network_on_blocks_learns_as_in_one_process(name, dims):
    expected = learnt(name)
    for found in mnpar.run(lambda comm: learnt(name, comm, dims), ranks=int(np.prod(dims))):
        for one, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-9, atol=1e-10)
