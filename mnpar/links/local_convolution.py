"""Local convolution, a convolutional layer whose filters differ from position to position, and its
transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mnpar import initializers
from mnpar.backend import Array
from mnpar.functions import local_convolution_2d, local_deconvolution_2d
from mnpar.functions.connection.local_convolution import local_windows
from mnpar.initializers.initializer import InitialValue, RandomInitializer
from mnpar.kernels.windows import PerAxis, numbers_per_axis
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class UntiedFilters:
    """An initializer for filters (K, OH, OW, C, kH, kW) that draws them as K·OH·OW filters of
    fan-in C·kH·kW.

    By the shape of the array alone, fan-in would be OH·OW times as large, and the filters far too
    small.
    """

    def __init__(self, initializer: Callable[[Array], None]) -> None:
        self.initializer = initializer
        self.dtype = getattr(initializer, "dtype", None)

    def __call__(self, array: Array) -> None:
        """Fill ``array``."""
        by_place = isinstance(self.initializer, RandomInitializer) and array.ndim == 6
        self.initializer(array.reshape(-1, *array.shape[3:]) if by_place else array)


class _LocalLayer(Link):
    """The base of both layers: W (K, OH, OW, C, kH, kW), b, and their sizes, which may come from
    the first batch.
    """

    def __init__(
        self,
        channels: int | None,
        filters: int | None,
        in_size: Any,
        ksize: PerAxis | None,
        stride: PerAxis,
        nobias: bool,
        initialW: InitialValue,
        initial_bias: InitialValue,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if ksize is None or any(n is not None and n < 1 for n in (channels, filters)):
            raise ValueError(
                f"{name}: channels and ksize are numbers from 1 on, not {channels}, {filters} "
                f"and {ksize}"
            )
        self.ksize = numbers_per_axis(f"{name}: ksize", ksize, 2, 1)
        self.stride = numbers_per_axis(f"{name}: stride", stride, 2, 1)
        self.in_size = (
            None if in_size is None else numbers_per_axis(f"{name}: in_size", in_size, 2, 1)
        )
        self.channels, self.filters = channels, filters
        self.W = Parameter(UntiedFilters(initializers._get_initializer(initialW)))
        self.b: Parameter | None = None
        if not nobias:
            self.b = Parameter(initializers._get_initializer(initial_bias, 0))
        self._complete()

    def _complete(self) -> None:
        """Make the parameters, if all sizes are known."""
        if (
            self.channels is None
            or self.filters is None
            or self.in_size is None
            or self.W.is_initialized
        ):
            return
        out = local_windows(type(self).__name__, self.in_size, self.ksize, self.stride).out
        if 0 in out:
            raise ValueError(
                f"{type(self).__name__}: windows of {self.ksize} do not fit in an image of "
                f"{self.in_size}"
            )
        self._make(self.W, (self.filters, *out, self.channels, *self.ksize))
        if self.b is not None:
            self._make(self.b, self._bias_shape(out))

    def _make(self, parameter: Parameter, shape: tuple[int, ...]) -> None:
        parameter.initialize(shape)

    def _bias_shape(self, out: tuple[int, ...]) -> tuple[Any, ...]:
        return self.filters, *out

    def _weights(self) -> tuple[Any, Any]:
        """Return W and b as the function takes them."""
        return self.W, self.b

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        for name in ("channels", "filters", "in_size", "ksize", "stride"):
            yield name, getattr(self, name)
        yield "nobias", self.b is None


class LocalConvolution2D(_LocalLayer):
    """A convolutional layer with its own filters and biases at each position:
    :func:`mnpar.functions.local_convolution_2d`.

    Args:
        in_channels: C; None takes it from the first batch.
        out_channels: K.
        in_size: (H, W) of the images, or one number for both; None takes it from the first batch.
        ksize, stride: a number, or one for each axis.
        nobias: no b.
        initialW: initializer of W (K, OH, OW, C, kH, kW); None is LeCunNormal. Random ones are
            scaled by a filter's own fan-in, C·kH·kW.
        initial_bias: initializer of b (K, OH, OW); None is 0.

    Raises:
        ValueError: numbers below 1, or windows that do not fit.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.LocalConvolution2D(None, 4, ksize=3)
        >>> layer(np.ones((2, 1, 8, 8), "f4")).shape, layer.W.shape, layer.b.shape
        ((2, 4, 6, 6), (4, 6, 6, 1, 3, 3), (4, 6, 6))
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int,
        in_size: PerAxis | None = None,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, in_size, ksize, stride, nobias, initialW, initial_bias
        )

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """(OH, OW) of an image (H, W)."""
        return local_windows(type(self).__name__, tuple(shape), self.ksize, self.stride).out

    def forward(self, x: Variable | Array) -> Variable:
        """(N, C, H, W) → (N, K, OH, OW)."""
        if not self.W.is_initialized:
            if x.ndim != 4:
                raise ValueError(f"LocalConvolution2D: x of shape {x.shape} must be (N, C, H, W)")
            self.channels = self.channels or x.shape[1]
            self.in_size = self.in_size or x.shape[2:]
            self._complete()
        W, b = self._weights()
        return local_convolution_2d(x, W, b, self.stride)

    def decoder(self, tied: bool = True, nobias: bool = True) -> LocalDeconvolution2D:
        """Return the transposed layer, which makes images of this one's input size from its
        outputs.

        Args:
            tied: True: it has this layer's W itself, which then learns from both. False: W of its
                own, with the same values.
            nobias: no b.

        Raises:
            RuntimeError: this layer's sizes are not known yet.

        Example:
            >>> import numpy as np, mnpar.links as L
            >>> encoder = L.LocalConvolution2D(1, 4, in_size=8, ksize=3)
            >>> decoder = encoder.decoder()
            >>> decoder(encoder(np.ones((2, 1, 8, 8), "f4"))).shape, decoder.W is encoder.W
            ((2, 1, 8, 8), True)
        """
        if not self.W.is_initialized:
            raise RuntimeError(
                f"{self}: its decoder can be made when its sizes are known: give them, or call "
                "it once"
            )
        decoder = self._decoder(nobias)
        if tied:
            decoder.W = self.W
        else:
            decoder.W.copydata(self.W)
        return decoder

    def _decoder(self, nobias: bool) -> LocalDeconvolution2D:
        """Return one with this layer's sizes."""
        return LocalDeconvolution2D(
            self.filters, self.channels, self.in_size, self.ksize, self.stride, nobias, initialW=0
        )


class LocalDeconvolution2D(_LocalLayer):
    """The transpose of :class:`LocalConvolution2D`: each position adds its values to its window, by
    its own filters.

    Args:
        in_channels: K.
        out_channels: C.
        out_size: (H, W) of the images that it makes, or one number for both.
        ksize, stride: of the convolution.
        nobias: no b.
        initialW: initializer of W (K, OH, OW, C, kH, kW), as the convolution has it; None is
            LeCunNormal.
        initial_bias: initializer of b (C, H, W); None is 0.

    :meth:`LocalConvolution2D.decoder` makes one that belongs to a layer.

    Raises:
        ValueError: numbers below 1, or windows that do not fit.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.LocalDeconvolution2D(4, 1, 8, ksize=3)
        >>> layer(np.ones((2, 4, 6, 6), "f4")).shape, layer.W.shape, layer.b.shape
        ((2, 1, 8, 8), (4, 6, 6, 1, 3, 3), (1, 8, 8))
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int | None,
        out_size: PerAxis | None = None,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__(
            out_channels, in_channels, out_size, ksize, stride, nobias, initialW, initial_bias
        )

    def _bias_shape(self, out: tuple[int, ...]) -> tuple[Any, ...]:
        return self.channels, *(self.in_size or ())

    def forward(self, x: Variable | Array) -> Variable:
        """(N, K, OH, OW) → (N, C, H, W)."""
        W, b = self._weights()
        return local_deconvolution_2d(x, W, b, self.stride, self.in_size)
