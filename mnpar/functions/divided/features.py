"""Features in parts: outputs and parameters of a layer that several ranks share.

A layer whose weights are divided among ranks leaves its outputs where they were computed: each
rank has a block of the features (of channels, of classes). They are a divided Variable, as images
in blocks are (layout.py), with some more rules: functions that treat each channel by itself send
nothing, and a cross entropy sums over the classes of all ranks. A function that neither these
rules nor those of all divided Variables know raises LayoutError.

The layer's parameters are parts, too. Inside of the layer they are ordinary arrays; anywhere else
a part would be taken for the whole, so a :class:`DividedParameter` is divided for all functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.communicator import Communicator
from mnpar.configuration import no_backprop_mode
from mnpar.errors import LayoutError
from mnpar.functions.array.resize_images import Resize
from mnpar.functions.communication.exchange import repartition
from mnpar.functions.communication.shared import copy_to
from mnpar.functions.connection.linear import Linear
from mnpar.functions.divided.halo import SpatialGrid
from mnpar.functions.divided.layout import REMEDY, DividedVariable, GridLayout, Rule, zeros_like
from mnpar.functions.divided.vocabulary import cross_entropy_of_blocks
from mnpar.functions.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from mnpar.functions.node import is_divided
from mnpar.functions.normalization.batch_normalization import (
    BatchNormalization,
    FixedBatchNormalization,
)
from mnpar.functions.pooling.lp_pooling import LpPooling
from mnpar.functions.pooling.pooling import MaxPooling, SumPooling, Unpooling
from mnpar.initializers.initializer import put
from mnpar.parameter import Parameter
from mnpar.plans import Box
from mnpar.serializer import AbstractSerializer, Deserializer, placed
from mnpar.variable import Variable

Decorated = TypeVar("Decorated", bound=Rule)
RULES: dict[type, Rule] = {}


class FeatureGrid(SpatialGrid):
    """The ranks that share a layer, as a grid of one axis.

    Args:
        comm: of these ranks.
        origin: the end of errors: which layer divides, and how it may be told to gather.
    """

    layout_type: type[GridLayout]

    def __init__(
        self, comm: Communicator, dims: Sequence[int] | None = None, origin: str = ""
    ) -> None:
        super().__init__(comm, (comm.size,) if dims is None else dims)
        self.origin = origin

    def _of_same_ranks(self, dims: tuple[int, ...]) -> FeatureGrid:
        return FeatureGrid(self.comm, dims, self.origin)


class FeatureLayout(GridLayout):
    """The layout of an array that is cut along its features, among the ranks of a
    :class:`FeatureGrid`.
    """

    __slots__ = ()

    def like(self, shape: Sequence[int], axes: Sequence[int] | None = None) -> FeatureLayout:
        """Return the layout of another array, cut along the same axis if none is named."""
        return FeatureLayout(self.grid, shape, self.axes if axes is None else axes)

    def apply(self, node: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Carry out a function by its rule for features, or else for any divided Variable."""
        rule = RULES.get(type(node))
        if rule is not None:
            node.layout = None
            ys = rule(node, *inputs)
            if ys is not None:
                return ys if isinstance(ys, tuple) else (ys,)
        return super().apply(node, inputs)

    def refuse(self, who: str, why: str, remedy: str = REMEDY) -> NoReturn:
        """Raise LayoutError, with what can be done, and with the layer that divides."""
        try:
            super().refuse(who, why, remedy)
        except LayoutError as error:
            raise LayoutError(f"{error}{getattr(self.grid, 'origin', '')}") from None


# layouts that rules make of a FeatureGrid are of this class, too
FeatureGrid.layout_type = FeatureLayout


def in_features(part: Variable, grid: FeatureGrid, axis: int, size: int) -> DividedVariable:
    """Return the divided Variable of which each rank of a grid has a block of the features.

    Args:
        part: of this rank.
        grid: of the ranks that have the blocks.
        axis: of the features; negative ones count from the end.
        size: how many features there are in all.
    """
    axis %= part.ndim
    shape = (*part.shape[:axis], size, *part.shape[axis + 1 :])
    return FeatureLayout(grid, shape, (axis,)).divided(part)


def feature_rule(*nodes: type) -> Callable[[Decorated], Decorated]:
    """Declare how functions work on an array whose features are cut, as a decorator of the rule,
    which returns None where it does not apply.
    """

    def decorate(rule: Decorated) -> Decorated:
        for node in nodes:
            RULES[node] = rule
        return rule

    return decorate


@feature_rule(MaxPooling, SumPooling, LpPooling, Unpooling, Resize)
def each_channel(node: Any, x: Any) -> Any:
    """Channels are cut, and each is treated by itself."""
    if x.layout.cut_axes != (1,):
        return None
    (y,) = node.apply((x.part,))
    return x.layout.like((*x.shape[:2], *y.shape[2:])).divided(y)


@feature_rule(SoftmaxCrossEntropy)
def softmax_cross_entropy(node: Any, x: Any) -> Any:
    """Classes are cut: two messages, and no rank has all scores of a sample."""
    if x.layout.cut_axes != (1,):
        return None
    firsts = [box.start[1] for box in x.layout.boxes]
    comm, labels = x.layout.grid.comm, node.labels
    first = firsts[comm.rank]
    return cross_entropy_of_blocks(
        comm, x.part, labels, first, node.weight, node.mean, node.cache_score
    )


@feature_rule(BatchNormalization)
def batch_normalization(node: Any, x: Any, gamma: Any, beta: Any) -> Any:
    """Channels are cut: each rank has all numbers of its channels, and what it knows of them."""
    if x.layout.cut_axes != (1,) or node.shape[1] != x.shape[1]:
        return None
    layout, comm = x.layout, x.layout.grid.comm
    A, _, B = node.shape
    own = BatchNormalization((A, x.part.shape[1], B), node.eps)
    params = [_own_channels(layout, z) for z in (gamma, beta)]
    (y,) = own.apply((x.part, *params))
    xp = x.xp
    # of all channels, for running statistics, which every rank has
    node.shift = xp.concatenate(comm.allgather(own.mean))
    node.rest, node.var = 0, xp.concatenate(comm.allgather(own.var))
    return layout.divided(y)


@feature_rule(FixedBatchNormalization)
def fixed_batch_normalization(node: Any, x: Any, *params: Any) -> Any:
    """Channels are cut: each rank normalizes its own."""
    if x.layout.cut_axes != (1,) or node.shape[1] != x.shape[1]:
        return None
    A, _, B = node.shape
    own = FixedBatchNormalization((A, x.part.shape[1], B), node.eps)
    return x.layout.divided(own.apply((x.part, *[_own_channels(x.layout, z) for z in params]))[0])


def _own_channels(layout: GridLayout, z: Any) -> Variable:
    """Return this rank's channels of a value (C,) that all ranks have."""
    return layout.like((layout.shape[1],), (0,)).take_own(z)


# ---- parameters ----


class ParameterLayout:
    """The layout of a divided parameter, for functions outside of its layer.

    Args:
        parameter: of this rank.
        grid: of the ranks that have the parts.
    """

    __slots__ = ("grid", "parameter")

    def __init__(self, parameter: DividedParameter, grid: FeatureGrid) -> None:
        self.parameter, self.grid = parameter, grid

    def check(self, node: Any) -> ParameterLayout:
        """Return the layout, for :meth:`apply`."""
        return self

    def apply(self, node: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Carry out a linear layer whose weights are divided by outputs, as that of scores by a
        table of words, and refuse all other functions.
        """
        node.layout = None
        x, *params = inputs
        divided = [isinstance(p, DividedParameter) and p.axis == 0 for p in params]
        if type(node) is not Linear or not all(divided) or is_divided(x):
            self.refuse(node.label, "it would use a part of it as the whole")
        (y,) = Linear().apply((copy_to(self.grid.comm, x), *[part_of(p) for p in params]))
        return (in_features(y, self.grid, 1, params[0].whole[0]),)

    def gradient(self, part: Variable, g: Variable | None) -> Variable:
        """Return the gradient of this rank's part; zeros, where nothing has used it."""
        return zeros_like(part) if g is None else g

    def labels(self, who: str, *_: Any) -> NoReturn:
        """Raise LayoutError: parameters are no scores."""
        self.refuse(who, "it is a parameter")

    def refuse(self, who: str, why: str) -> NoReturn:
        """Raise LayoutError."""
        param = self.parameter
        raise LayoutError(
            f"{who} of the parameter {param.name or ''} {param.whole}, of which rank "
            f"{self.grid.comm.rank} has {param.shape}: {why}. Let the layer use it, or leave the "
            f"layer whole; mnpar.links.gather_parameter(comm, parameter) gives the whole array"
            f"{self.grid.origin}"
        )


class DividedParameter(Parameter):
    """A parameter of which each rank of a grid has a part: only its layer uses it as an array.

    Attributes:
        grid: of the ranks that have the parts.
        axis: along which it is cut.
    """

    __slots__ = ()
    grid: FeatureGrid
    axis: int

    @property
    def layout(self) -> Any:
        """The layout for functions outside of the layer; None while there is no array."""
        return None if self.box is None else ParameterLayout(self, self.grid)

    @property
    def part(self) -> Variable:
        """The part of this rank, an ordinary Variable at the same place in the graph."""
        return Variable.of(self.array, self.node)

    def serialize_whole(self, serializer: AbstractSerializer, name: str) -> None:
        """Save the whole array, for which all ranks of the grid call this; or load this rank's part
        of it. A checkpoint of all ranks takes parts.
        """
        if getattr(serializer, "knows_places", False):
            placed(serializer, self)(name, self.array)
        elif isinstance(serializer, Deserializer):
            assert self.whole is not None
            assert self.box is not None
            put(self.array, serializer(name, np.empty(self.whole, self.dtype))[self.box.index])
        else:
            serializer(name, whole_array(self.grid.comm, self))

    @classmethod
    def divide(cls, parameter: Parameter, grid: FeatureGrid, axis: int) -> None:
        """Let a parameter become one that is divided, or will be when it gets its array. It stays
        the same object, so that whoever refers to it still does.
        """
        object.__setattr__(parameter, "__class__", cls)
        vars(parameter).update(grid=grid, axis=axis)


def whole_array(comm: Communicator, parameter: Parameter) -> Array:
    """Return the whole array of a parameter of which each rank has a box; all ranks call this."""
    whole, box = parameter.whole, parameter.box
    assert whole is not None
    assert box is not None
    boxes = [Box(*ends) for ends in comm.allgather_obj((box.start, box.stop))]
    with no_backprop_mode():
        return repartition(comm, parameter.array, boxes, [Box.whole(whole)] * comm.size).array


def part_of(x: Any) -> Any:
    """Return a divided parameter's part, for its layer; anything else itself."""
    return x.part if isinstance(x, DividedParameter) and x.box is not None else x
