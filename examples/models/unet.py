"""A U-Net (Ronneberger, Fischer and Brox, 2015): how likely each pixel of an image, of any size,
belongs to each class.
"""

import mnpar
import mnpar.functions as F
import mnpar.links as L


class Stage(mnpar.Chain):
    """Convolution of 3 × 3, batch normalization, relu; twice."""

    def __init__(self, filters):
        super().__init__()
        self.conv1 = L.Convolution2D(None, filters, 3, pad=1, nobias=True)
        self.conv2 = L.Convolution2D(None, filters, 3, pad=1, nobias=True)
        self.bn1, self.bn2 = L.BatchNormalization(filters), L.BatchNormalization(filters)

    def __call__(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class UNet(mnpar.Chain):
    """Down some scales and up again, with what was seen on the way."""

    def __init__(self, filters, scales, classes):
        super().__init__()
        sizes = [filters * 2**i for i in range(scales)]
        self.down = mnpar.ChainList(Stage(filters), *[Stage(2 * n) for n in sizes])
        self.up = mnpar.ChainList(*[L.Deconvolution2D(2 * n, n, 2, stride=2) for n in sizes])
        self.merge = mnpar.ChainList(*[Stage(n) for n in sizes])
        self.last = L.Convolution2D(filters, classes, 1)

    def __call__(self, x):
        seen = [self.down[0](x)]
        for stage in self.down[1:]:
            seen.append(stage(F.max_pooling_2d(seen[-1], 2, cover_all=False)))
        h = seen.pop()
        for i, skip in reversed([*enumerate(seen)]):
            self.up[i].outsize = skip.shape[2:]
            h = self.merge[i](F.concat([skip, self.up[i](h)]))
        return self.last(h)  # (N, classes, H, W)
