"""The blocks of Inception networks, without and with batch normalization."""

from __future__ import annotations

from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.functions import average_pooling_2d, concat, max_pooling_2d, relu
from mnpar.initializers.initializer import InitialValue
from mnpar.links.convolution import Convolution2D
from mnpar.links.normalization import BatchNormalization
from mnpar.variable import Variable


class Inception(Chain):
    """Convolutions of three sizes and a pooling side by side (Szegedy et al. 2015, arXiv 1409.4842,
    figure 2b).

    Args:
        in_channels: C; None takes it from the first batch.
        out1, proj3, out3, proj5, out5, proj_pool: channels of the 1 × 1 convolution, of the
            projection before the 3 × 3 one and of itself, the same for 5 × 5, and of the projection
            after the pooling.
        conv_init, bias_init: initializers of all W and b.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Inception(3, 1, 2, 3, 2, 4, 5)(np.ones((1, 3, 6, 6), "f4")).shape
        (1, 13, 6, 6)
    """

    def __init__(
        self,
        in_channels: int | None,
        out1: int,
        proj3: int,
        out3: int,
        proj5: int,
        out5: int,
        proj_pool: int,
        conv_init: InitialValue = None,
        bias_init: InitialValue = None,
    ) -> None:
        super().__init__()

        def convolution(inside: int | None, out: int, ksize: int, pad: int = 0) -> Convolution2D:
            return Convolution2D(
                inside, out, ksize, pad=pad, initialW=conv_init, initial_bias=bias_init
            )

        self.conv1 = convolution(in_channels, out1, 1)
        self.proj3 = convolution(in_channels, proj3, 1)
        self.conv3 = convolution(proj3, out3, 3, 1)
        self.proj5 = convolution(in_channels, proj5, 1)
        self.conv5 = convolution(proj5, out5, 5, 2)
        self.projp = convolution(in_channels, proj_pool, 1)

    def forward(self, x: Variable | Array) -> Variable:
        """(N, C, H, W) → (N, out1 + out3 + out5 + proj_pool, H, W)."""
        pooled = max_pooling_2d(x, 3, stride=1, pad=1)
        branches = (
            self.conv1(x),
            self.conv3(relu(self.proj3(x))),
            self.conv5(relu(self.proj5(x))),
            self.projp(pooled),
        )
        return relu(concat(branches, axis=1))


class InceptionBN(Chain):
    """Convolutions of three sizes and a pooling side by side, each convolution normalized (Ioffe
    and Szegedy 2015).

    Args:
        in_channels: C; None takes it from the first batch.
        out1: channels of the 1 × 1 convolution; 0: there is none.
        proj3, out3: of the projection before the 3 × 3 convolution and of itself.
        proj33, out33: of the projection before two 3 × 3 convolutions and of these.
        pooltype: ``'max'`` or ``'avg'``.
        proj_pool: of the projection after the pooling; None: there is none.
        stride: of the last convolutions and the pooling.
        conv_init: initializer of all W.
        dtype: of the normalizations.

    Raises:
        NotImplementedError: another ``pooltype``.
        ValueError: a 1 × 1 convolution together with a stride, or with no projection after the
            pooling.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.InceptionBN(3, 1, 2, 3, 2, 4, "avg", 5)(np.ones((2, 3, 6, 6), "f4")).shape
        (2, 13, 6, 6)
        >>> L.InceptionBN(3, 0, 2, 3, 2, 4, "max", stride=2)(np.ones((2, 3, 6, 6), "f4")).shape
        (2, 10, 3, 3)

    Source:
        "Batch normalization: accelerating deep network training by reducing internal covariate
        shift", arXiv 1502.03167.
    """

    def __init__(
        self,
        in_channels: int | None,
        out1: int,
        proj3: int,
        out3: int,
        proj33: int,
        out33: int,
        pooltype: str,
        proj_pool: int | None = None,
        stride: int = 1,
        conv_init: InitialValue = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        if pooltype not in ("max", "avg"):
            raise NotImplementedError(f"InceptionBN: pooltype is 'max' or 'avg', not {pooltype!r}")
        if out1 > 0 and (stride != 1 or proj_pool is None):
            raise ValueError(
                f"InceptionBN: out1 = {out1} goes with stride 1, not {stride}, and a proj_pool "
                f"(here {proj_pool})"
            )
        self.out1 = out1
        self.proj_pool = proj_pool
        self.stride = stride
        self.pooltype = pooltype

        def add(name: str, inside: int | None, out: int, ksize: int, stride: int = 1) -> None:
            pad = ksize // 2
            self.add_link(
                name,
                Convolution2D(inside, out, ksize, stride, pad, nobias=True, initialW=conv_init),
            )
            self.add_link(f"{name}n", BatchNormalization(out, dtype=dtype))

        if out1 > 0:
            add("conv1", in_channels, out1, 1)
        add("proj3", in_channels, proj3, 1)
        add("conv3", proj3, out3, 3, stride)
        add("proj33", in_channels, proj33, 1)
        add("conv33a", proj33, out33, 3)
        add("conv33b", out33, out33, 3, stride)
        if proj_pool is not None:
            add("poolp", in_channels, proj_pool, 1)

    def _branch(self, x: Variable | Array, *names: str) -> Variable | Array:
        for name in names:
            x = relu(self[f"{name}n"](self[name](x)))
        return x

    def forward(self, x: Variable | Array) -> Variable:
        """(N, C, H, W) → (N, the channels of all branches, H / stride, W / stride), rounded up."""
        branches = [self._branch(x, "conv1")] if self.out1 > 0 else []
        branches += [
            self._branch(x, "proj3", "conv3"),
            self._branch(x, "proj33", "conv33a", "conv33b"),
        ]
        if self.pooltype == "max":
            pooled = max_pooling_2d(x, 3, stride=self.stride, pad=1, cover_all=False)
        else:
            pooled = average_pooling_2d(x, 3, stride=self.stride, pad=1)
        branches.append(pooled if self.proj_pool is None else self._branch(pooled, "poolp"))
        return concat(branches, axis=1)
