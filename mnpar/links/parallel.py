"""Layers whose weights are divided among ranks (tensor parallelism): each equals a Linear or a
Convolution2D, whose work the ranks share.

============================ ========================================== ==========================
layer                        what a rank computes                       what it needs
============================ ========================================== ==========================
ColumnParallelLinear         some of the outputs: y = x [A₁ A₂ …] + b   all inputs
RowParallelLinear            a part of all outputs: y = Σ xᵣ Aᵣ + b     some of the inputs
FilterParallelConvolution2D  some of the output channels                all input channels
ChannelParallelConvolution2D a part of all output channels              some of the input channels
============================ ========================================== ==========================

(A = Wᵀ; the names of the first two are Megatron-LM's: Shoeybi et al. 2019, arXiv 1909.08053. neon's
*vecpar* layers, of 2015, are row-parallel with ``input_is_parallel=False``.) All ranks hold the
same x, y and loss, own them together, and call backward on the loss (law 1: it counts once): then
outputs and gradients are those of one layer. A column layer that does not gather its output, an
elementwise function, and a row layer with ``input_is_parallel`` need one allreduce forward and one
backward; so do a filter-parallel and a channel-parallel convolution. In checkpoints W and b are
whole.

With a ``sequence_axis`` the inputs and outputs of a pair of Linears are divided, too, along that
axis (Megatron-LM's sequence parallelism: Korthikanti et al. 2022, arXiv 2205.05198). An allreduce
is a reduce-scatter followed by an allgather: the row layer does the first and the next column layer
the second, so the number of bytes is the same, and norms, dropouts and sums in between compute, and
keep, 1/P of the sequence. Parameters in between get the gradients of the rank's part only: give
their links the hook :class:`mnpar.link_hooks.WholeGradients`, which sums them.

ChainerMN's example named channel-parallel convolution gives rank r the channels r, r + P … and
omits the products between ranks, which is a convolution in P groups. Dryden et al., "Channel and
filter parallelism for large-scale CNN training", SC 2019, describe the layers of this file.

Parts of features are plain arrays for a program that is written so. In a model that
:func:`mnpar.parallelize` has divided, a layer has a ``grid``, and parts are divided Variables
(functions/divided/features.py), so that an ordinary program between two layers cannot mistake them.
Inputs may also be divided along other axes over other ranks, as images in blocks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.functions import (
    allgather,
    bias,
    convolution_2d,
    copy_to,
    gather_from,
    linear,
    reduce_from,
    reduce_scatter,
    reshape,
    scatter_to,
)
from mnpar.functions.communication.shared import ScatterTo, add_once
from mnpar.functions.divided.features import FeatureGrid, in_features, part_of
from mnpar.initializers.initializer import InitialValue
from mnpar.kernels.windows import PerAxis
from mnpar.link import Link
from mnpar.links.convolution import Convolution2D
from mnpar.links.divided import Divided, cut_parameter, initialize_part
from mnpar.links.linear import Linear
from mnpar.plans import Box, block
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class _ParallelLayer(Divided):
    """The base of the layers of this file: their ``repr`` also shows a setting and the ranks.

    Attributes:
        grid: of ``comm``, where parts of features are divided Variables; None: they are arrays.
    """

    _setting: ClassVar[str]  # the attribute to show
    grid: FeatureGrid | None = None

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from super().printable_specs
        yield self._setting, getattr(self, self._setting)
        yield "ranks", self.comm.size

    @property
    def _origin(self) -> str:
        return "" if self.grid is None else self.grid.origin

    def _has_own_features(self, x: Variable, axis: int) -> bool:
        """Return whether each rank of the layer has a block of x's features, which are on this
        axis.
        """
        layout = x.layout
        return (
            layout is not None
            and layout.grid.comm is self.comm
            and layout.cut_axes == (axis % x.ndim,)
        )

    def _require_features(self, x: Variable, first: int, last: int | None = None) -> None:
        """Raise LayoutError if the axes of x's features, from ``first`` on and before ``last``, are
        cut, or if the ranks of this layer have parts of another axis.
        """
        layout = x.layout
        if layout is None:
            return
        who = type(self).__name__
        if layout.grid.comm is self.comm:
            layout.refuse(
                who, f"it needs all inputs, of which each of its ranks has a part{self._origin}"
            )
        if [a for a in layout.cut_axes if first <= a < (x.ndim if last is None else last)]:
            layout.refuse(who, f"the axes of its features must be whole{self._origin}")


class ColumnParallelLinear(_ParallelLayer, Linear):
    """A Linear of which each rank computes a block of the outputs.

    Args:
        comm: its ranks share the layer; all of them make it and call it.
        in_size, out_size, nobias, initialW, initial_bias: of the whole layer, as :class:`Linear`
            has them. Initial weights are those of the whole layer if all ranks' generators are in
            the same state (:func:`mnpar.random.seed`).
        gather_output: True: every rank gets all outputs. False: each rank gets its block of them.
        sequence_axis: x is divided along this axis, one of the batch axes, into blocks of any sizes
            in rank order, which the layer gathers; None: x is the same on each rank.

    On each rank W is (block of out_size, in_size) and b (block of out_size,); blocks are those of
    :func:`mnpar.plans.block`, and may be empty.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.ColumnParallelLinear(comm, 2, 3, initialW=np.arange(6.0).reshape(3, 2))
        ...     x = mnpar.Variable(np.ones((1, 2), "f4"))
        ...     y = layer(x)
        ...     F.sum(y).backward()
        ...     return layer.W.shape, y.array.tolist(), x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [((2, 2), [[1.0, 5.0, 9.0]], [[6.0, 9.0]]), ((1, 2), [[1.0, 5.0, 9.0]], [[6.0, 9.0]])]
    """

    _setting = "gather_output"

    def __init__(
        self,
        comm: Communicator,
        in_size: int | None,
        out_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        gather_output: bool = True,
        sequence_axis: int | None = None,
    ) -> None:
        require_communicator(comm, "ColumnParallelLinear(comm, in_size, out_size)")
        self.comm = comm
        self.gather_output = gather_output
        self.sequence_axis = sequence_axis
        super().__init__(in_size, out_size, nobias, initialW, initial_bias)
        assert self.out_size is not None
        if self.b is not None:
            first, last = block(self.out_size, comm.size, comm.rank)
            self.b = cut_parameter(self.b, Box((first,), (last,)))

    def _initialize_params(self, in_size: int) -> None:
        self.in_size, out_size = in_size, self.out_size
        assert out_size is not None
        first, last = block(out_size, self.comm.size, self.comm.rank)
        initialize_part(self.W, (out_size, in_size), Box((first, 0), (last, in_size)))

    def forward(self, x: Variable | Array, n_batch_axes: int = 1) -> Variable:
        """Return the layer's outputs.

        Args:
            x: (N, …), the same on each rank; with ``sequence_axis`` this rank's block along it, as
                (N, block of T, D).
            n_batch_axes: how many of the first axes are batch axes.

        Returns:
            (N, out_size), the same on each rank; without ``gather_output`` (N, block of out_size).
            The axis of the sequence is whole.

        Raises:
            ValueError: x has other features than ``in_size``, or ``sequence_axis`` is not a batch
                axis.
        """
        axis = require_batch_axis(self, self.sequence_axis, n_batch_axes)
        if self.comm.size == 1:
            return super().forward(x, n_batch_axes)
        x = as_variable(x)
        self._require_features(x, n_batch_axes)
        if not self.W.is_initialized:
            self._infer_sizes(x, n_batch_axes)
        if x.layout is not None and not self.gather_output:
            x.layout.refuse(type(self).__name__, f"the outputs would be cut twice{self._origin}")

        def outputs(x: Variable) -> Variable:
            x = copy_to(self.comm, x) if axis is None else allgather(self.comm, x, axis)
            y = linear(x, part_of(self.W), part_of(self.b), n_batch_axes)
            return gather_from(self.comm, y) if self.gather_output else y

        if x.layout is not None:
            return on_parts(outputs, x, n_batch_axes, self.out_size)
        y = outputs(x)
        if self.gather_output or self.grid is None:
            return y
        assert self.out_size is not None
        return in_features(y, self.grid, -1, self.out_size)


class RowParallelLinear(_ParallelLayer, Linear):
    """A Linear of which each rank computes the contribution of a block of the inputs; the
    contributions are summed.

    Args:
        comm: its ranks share the layer; all of them make it and call it.
        in_size, out_size, nobias, initialW, initial_bias: of the whole layer, as in
            :class:`ColumnParallelLinear`.
        input_is_parallel: False: x is the same on each rank, which takes its block of the features.
            True: x is that block.
        sequence_axis: each rank gets its block of the outputs along this axis, one of the batch
            axes; None: every rank gets all of them.

    On each rank W is (out_size, block of in_size). b (out_size,) is the same on each rank and stays
    so: every rank gets the gradient of the whole layer's b, also with ``sequence_axis``. Do not sum
    it over ranks.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.RowParallelLinear(comm, 3, 1, initialW=np.array([[1.0, 10.0, 100.0]]))
        ...     x = mnpar.Variable(np.ones((1, 3), "f4"))
        ...     y = layer(x)
        ...     y.backward()
        ...     return layer.W.shape, y.array.tolist(), x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [((1, 2), [[111.0]], [[1.0, 10.0, 100.0]]), ((1, 1), [[111.0]], [[1.0, 10.0, 100.0]])]
    """

    _setting = "input_is_parallel"

    def __init__(
        self,
        comm: Communicator,
        in_size: int | None,
        out_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        input_is_parallel: bool = False,
        sequence_axis: int | None = None,
    ) -> None:
        require_communicator(comm, "RowParallelLinear(comm, in_size, out_size)")
        self.comm = comm
        self.input_is_parallel = input_is_parallel
        self.sequence_axis = sequence_axis
        super().__init__(in_size, out_size, nobias, initialW, initial_bias)
        if self.b is not None and comm.size > 1:
            self.b.array[...] = comm.bcast(self.b.array)

    def _initialize_params(self, in_size: int) -> None:
        self.in_size, out_size = in_size, self.out_size
        assert out_size is not None
        first, last = block(in_size, self.comm.size, self.comm.rank)
        initialize_part(self.W, (out_size, in_size), Box((0, first), (out_size, last)))

    def forward(self, x: Variable | Array, n_batch_axes: int = 1) -> Variable:
        """Return the layer's outputs.

        Args:
            x: (N, …), the same on each rank; with ``input_is_parallel`` (N, block of in_size).
            n_batch_axes: how many of the first axes are batch axes.

        Returns:
            (N, out_size), the same on each rank; with ``sequence_axis`` this rank's block of them
            along it, by :func:`mnpar.plans.block`.

        Raises:
            ValueError: x has other features than ``in_size``, or than this rank's block of them, or
                ``sequence_axis`` is not a batch axis.
        """
        h: Any = as_variable(x)
        if not 0 < n_batch_axes < h.ndim:
            raise ValueError(
                f"{self}: x of shape {h.shape} has no features after {n_batch_axes} batch axes"
            )
        in_parts = self.input_is_parallel
        if n_batch_axes == h.ndim - 1 and self._has_own_features(h, -1):
            h, in_parts = h.part, True
        self._require_features(h, n_batch_axes)
        features = int(np.prod(h.shape[n_batch_axes:]))
        if not self.W.is_initialized:
            self._initialize_params(
                sum(self.comm.allgather_obj(features)) if in_parts else features
            )
        self._check(features, in_parts)
        if h.layout is not None:
            return on_parts(
                lambda x: self._outputs(x, n_batch_axes, in_parts), h, n_batch_axes, self.out_size
            )
        return self._outputs(h, n_batch_axes, in_parts)

    def _outputs(self, x: Variable, n_batch_axes: int, in_parts: bool) -> Variable:
        """Return the outputs for an x that is divided, if at all, along its features only."""
        axis = require_batch_axis(self, self.sequence_axis, n_batch_axes)
        x = reshape(x, (*x.shape[:n_batch_axes], int(np.prod(x.shape[n_batch_axes:]))))
        if self.comm.size == 1:
            return linear(x, self.W, self.b, n_batch_axes)
        part = x if in_parts else scatter_to(self.comm, x)
        y = linear(part, part_of(self.W), n_batch_axes=n_batch_axes)
        if axis is None:
            y = reduce_from(self.comm, y)
            return y if self.b is None else y + self.b
        return reduce_scatter(
            self.comm, y if self.b is None else add_once(self.comm, y, self.b), axis=axis
        )

    def _check(self, features: int, in_parts: bool) -> None:
        assert self.in_size is not None
        first, last = block(self.in_size, self.comm.size, self.comm.rank)
        wanted = last - first if in_parts else self.in_size
        if features != wanted:
            whose = f"its block {first} … {last - 1} of {self.in_size}" if in_parts else "in_size"
            raise ValueError(
                f"rank {self.comm.rank}: {self}: x has {features} features, not {wanted} ({whose})"
            )


def on_parts(
    f: Callable[[Variable], Variable], x: Variable, n_batch_axes: int, features: int | None
) -> Variable:
    """Return a function of features of an x that is divided along its batch axes."""
    layout: Any = x.layout
    y = f(x.part)  # type: ignore[attr-defined]
    shape = (*layout.shape[:n_batch_axes], features)
    found: Variable = layout.like(shape).divided(y)
    return found


def by_channels(f: Callable[[Variable], Variable], x: Variable) -> Variable:
    """Return a function of the channels (axis 1) of x, which may be divided along other axes."""
    if x.layout is None:
        return f(x)
    layout: Any = x.layout
    y = f(x.part)  # type: ignore[attr-defined]
    found: Variable = layout.like((layout.shape[0], y.shape[1], *layout.shape[2:])).divided(y)
    return found


def require_batch_axis(layer: Link, axis: int | None, n_batch_axes: int) -> int | None:
    """Return the axis of the sequence, or None if the sequence is not divided.

    Raises:
        ValueError: it is not one of the ``n_batch_axes`` first axes.
    """
    if axis is not None and not 0 <= axis < n_batch_axes:
        raise ValueError(
            f"{layer}: sequence_axis {axis} is not among the {n_batch_axes} axes that count "
            "examples: call it with "
            f"n_batch_axes={max(axis + 1, 2)}, for x of shape (N, T, D)"
        )
    return axis


class _ParallelConvolution(_ParallelLayer, Convolution2D):
    """The base of parallel convolutions: sizes, which may come from the first batch, and the check
    of the input's channels.
    """

    def _channels(self, rank: int) -> tuple[int, int]:
        """Return the first and the last (exclusive) input channel that a rank reads."""
        raise NotImplementedError

    def _infer_channels(self, x: Variable, in_parts: bool) -> None:
        if not self.W.is_initialized:
            if x.ndim != 4:
                raise ValueError(
                    f"{type(self).__name__}: x of shape {x.shape} must have 4 axes, (N, C, H, W)"
                )
            self._initialize_params(
                sum(self.comm.allgather_obj(x.shape[1])) if in_parts else x.shape[1]
            )

    def _check(self, x: Variable, in_parts: bool) -> None:
        assert self.in_channels is not None
        first, last = self._channels(self.comm.rank)
        wanted = last - first if in_parts else self.in_channels
        if x.ndim != 4 or x.shape[1] != wanted:
            whose = (
                f"its block {first} … {last - 1} of {self.in_channels}"
                if in_parts
                else "in_channels"
            )
            raise ValueError(
                f"rank {self.comm.rank}: {self}: x of shape {x.shape} has not (N, {wanted}, H, "
                f"W) ({whose})"
            )


class FilterParallelConvolution2D(_ParallelConvolution):
    """A Convolution2D of which each rank computes a block of the output channels.

    Args:
        comm: its ranks share the layer; all of them make it and call it.
        in_channels, out_channels, ksize, stride, pad, nobias, initialW, initial_bias, dilate: of
            the whole layer, as :class:`Convolution2D` has them. Initial weights are those of the
            whole layer if all ranks' generators are in the same state (:func:`mnpar.random.seed`).
        groups: of the whole layer. They are divided among the ranks, each of which then needs the
            channels of its groups only.
        gather_output: True: every rank gets all output channels. False: each rank gets its block of
            them.
        input_is_parallel: with groups, x is the block of channels of this rank's groups (for a
            depthwise convolution, the output of a layer that does not gather it); False: x is the
            same on each rank.

    On each rank W is (block of out_channels, in_channels / groups, kH, kW) and b (block of
    out_channels,); blocks are those of :func:`mnpar.plans.block`, of whole groups if there are
    several, and may be empty.

    Raises:
        ValueError: as Convolution2D; or a divided input without groups.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.FilterParallelConvolution2D(
        ...         comm, 2, 3, ksize=1, initialW=1, initial_bias=np.arange(3.0)
        ...     )
        ...     x = mnpar.Variable(np.ones((1, 2, 1, 1), "f4"))
        ...     y = layer(x)
        ...     F.sum(y).backward()
        ...     return layer.W.shape, y.array.ravel().tolist(), x.grad.ravel().tolist()
        >>> mnpar.run(program, ranks=2)
        [((2, 2, 1, 1), [2.0, 3.0, 4.0], [3.0, 3.0]), ((1, 2, 1, 1), [2.0, 3.0, 4.0], [3.0, 3.0])]
    """

    _setting = "gather_output"

    def __init__(
        self,
        comm: Communicator,
        in_channels: int | None,
        out_channels: int | None,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        *,
        dilate: PerAxis = 1,
        groups: int = 1,
        gather_output: bool = True,
        input_is_parallel: bool = False,
    ) -> None:
        require_communicator(
            comm, "FilterParallelConvolution2D(comm, in_channels, out_channels, ksize)"
        )
        if input_is_parallel and groups == 1:
            raise ValueError(
                "FilterParallelConvolution2D: each filter reads all channels, which no rank "
                "has if the input is divided: "
                "use ChannelParallelConvolution2D, or groups"
            )
        self.comm = comm
        self.gather_output = gather_output
        self.input_is_parallel = input_is_parallel
        super().__init__(
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            initialW,
            initial_bias,
            dilate=dilate,
            groups=groups,
        )
        if self.b is not None:
            first, last = self._filters
            self.b = cut_parameter(self.b, Box((first,), (last,)))

    def _of_groups(self, n: int, rank: int) -> tuple[int, int]:
        """Return the channels that belong to a rank's groups, of n."""
        first, last = block(self.groups, self.comm.size, rank)
        return first * (n // self.groups), last * (n // self.groups)

    def _channels(self, rank: int) -> tuple[int, int]:
        assert self.in_channels is not None
        return (
            (0, self.in_channels) if self.groups == 1 else self._of_groups(self.in_channels, rank)
        )

    @property
    def _filters(self) -> tuple[int, int]:
        """The first and the last (exclusive) output channel of this rank."""
        assert self.out_channels is not None
        if self.groups == 1:
            return block(self.out_channels, self.comm.size, self.comm.rank)
        return self._of_groups(self.out_channels, self.comm.rank)

    def _initialize_W(self, whole: tuple[int, ...]) -> None:
        first, last = self._filters
        initialize_part(self.W, whole, Box((first, 0, 0, 0), (last, *whole[1:])))

    def forward(self, x: Variable | Array) -> Variable:
        """Return the layer's outputs.

        Args:
            x: (N, in_channels, H, W), the same on each rank; with ``input_is_parallel`` (N,
                channels of its groups, H, W).

        Returns:
            (N, out_channels, …), the same on each rank; without ``gather_output`` (N, block of
            out_channels, …).

        Raises:
            ValueError: x has other channels.
        """
        h: Any = as_variable(x)
        in_parts = self.input_is_parallel
        if self._has_own_features(h, 1) and self.groups > 1 and self._in_blocks_of_groups(h):
            h, in_parts = h.part, True
        self._require_features(h, 1, 2)
        if h.layout is not None and not self.gather_output:
            h.layout.refuse(type(self).__name__, f"the outputs would be cut twice{self._origin}")
        self._infer_channels(h, in_parts)
        self._check(h, in_parts)
        P = self.comm.size
        W: Variable = part_of(self.W)
        groups = 1
        if self.groups == 1:
            h = by_channels(lambda x: copy_to(self.comm, x), h)
        else:
            sizes = tuple([b - a for a, b in (self._channels(rank) for rank in range(P))])
            if not in_parts:
                h = by_channels(lambda x: ScatterTo(self.comm, 1, sizes).apply((x,))[0], h)
            first, last = block(self.groups, P, self.comm.rank)
            W, groups = (W, last - first) if last > first else (W[:, :0], 1)
        b = part_of(self.b)
        y = convolution_2d(
            h, W, b, self.stride, self.pad, dilate=self.dilate, groups=groups, mode=self.mode
        )
        if self.gather_output:
            return by_channels(lambda y: gather_from(self.comm, y, axis=1), y)
        if self.grid is None:
            return y
        assert self.out_channels is not None
        return in_features(y, self.grid, 1, self.out_channels)

    def _in_blocks_of_groups(self, x: Any) -> bool:
        """Return whether each rank has the channels of its groups of a divided x."""
        self.in_channels = x.shape[1] if self.in_channels is None else self.in_channels
        ends = [(box.start[1], box.stop[1]) for box in x.layout.boxes]
        return ends == [self._channels(rank) for rank in range(self.comm.size)]


class ChannelParallelConvolution2D(_ParallelConvolution):
    """A Convolution2D of which each rank computes the contribution of a block of the input
    channels; they are summed.

    Args:
        comm: its ranks share the layer; all of them make it and call it.
        in_channels, out_channels, ksize, stride, pad, nobias, initialW, initial_bias, dilate: of
            the whole layer, as in :class:`FilterParallelConvolution2D`, which also has the groups.
        input_is_parallel: False: x is the same on each rank, which takes its block of the channels.
            True: x is that block.

    On each rank W is (out_channels, block of in_channels, kH, kW). b (out_channels,) is the same on
    each rank and stays so: its gradient is that of the one layer, on every rank. Do not sum it over
    ranks.

    Raises:
        ValueError: as Convolution2D.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.ChannelParallelConvolution2D(
        ...         comm, 3, 1, 1, initialW=np.array([1, 10, 100.0]).reshape(1, 3, 1, 1)
        ...     )
        ...     x = mnpar.Variable(np.ones((1, 3, 1, 1), "f4"))
        ...     y = layer(x)
        ...     y.backward()
        ...     return layer.W.shape, y.item(), x.grad.ravel().tolist()
        >>> mnpar.run(program, ranks=2)
        [((1, 2, 1, 1), 111.0, [1.0, 10.0, 100.0]), ((1, 1, 1, 1), 111.0, [1.0, 10.0, 100.0])]
    """

    _setting = "input_is_parallel"

    def __init__(
        self,
        comm: Communicator,
        in_channels: int | None,
        out_channels: int | None,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        *,
        dilate: PerAxis = 1,
        input_is_parallel: bool = False,
    ) -> None:
        require_communicator(
            comm, "ChannelParallelConvolution2D(comm, in_channels, out_channels, ksize)"
        )
        self.comm, self.input_is_parallel = comm, input_is_parallel
        super().__init__(
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            initialW,
            initial_bias,
            dilate=dilate,
        )
        if self.b is not None and comm.size > 1:
            self.b.array[...] = comm.bcast(self.b.array)

    def _channels(self, rank: int) -> tuple[int, int]:
        assert self.in_channels is not None
        return block(self.in_channels, self.comm.size, rank)

    def _initialize_params(self, in_channels: int) -> None:
        if in_channels < 1:
            raise ValueError(f"{type(self).__name__}: {in_channels} channels are not 1 or more")
        self.in_channels = in_channels
        whole, (first, last) = self._shape(in_channels), self._channels(self.comm.rank)
        initialize_part(self.W, whole, Box((0, first, 0, 0), (whole[0], last, *whole[2:])))

    def forward(self, x: Variable | Array) -> Variable:
        """Return the layer's outputs.

        Args:
            x: (N, in_channels, H, W), the same on each rank; with ``input_is_parallel`` (N, block
                of in_channels, H, W).

        Returns:
            (N, out_channels, …), the same on each rank.

        Raises:
            ValueError: x has other channels than ``in_channels``, or than this rank's block of
                them.
        """
        h: Any = as_variable(x)
        in_parts = self.input_is_parallel
        if self._has_own_features(h, 1):
            h, in_parts = h.part, True
        self._require_features(h, 1, 2)
        self._infer_channels(h, in_parts)
        self._check(h, in_parts)
        if not in_parts:
            h = by_channels(lambda x: scatter_to(self.comm, x, axis=1), h)
        W = part_of(self.W)
        y = convolution_2d(h, W, None, self.stride, self.pad, dilate=self.dilate, mode=self.mode)
        y = by_channels(lambda y: reduce_from(self.comm, y), y)
        return y if self.b is None else bias(y, self.b, axis=1)
