"""Parameters that are divided among ranks: their initialization, and how they are saved and loaded
as whole arrays.

Every rank draws the whole array, from generators in the same state, and keeps its box: so a model
that is divided among any number of ranks starts from the weights of the undivided one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.functions.divided.features import whole_array
from mnpar.initializers import Constant, _get_initializer
from mnpar.initializers.initializer import put
from mnpar.link import GradientComms, Link
from mnpar.parameter import Parameter
from mnpar.plans import Box
from mnpar.serializer import AbstractSerializer, Deserializer, persistent, placed
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class BoxInitializer:
    """An initializer that fills an array with a box of the whole array that another initializer
    fills.

    Args:
        initializer: of the whole.
        whole: the shape of the whole.
        box: of the whole: what this rank has.
    """

    def __init__(
        self, initializer: Callable[[Array], None], whole: tuple[int, ...], box: Box
    ) -> None:
        self.initializer = initializer
        self.whole = tuple(whole)
        self.box = box
        self.dtype = getattr(initializer, "dtype", None)
        # digests of the whole and of the part, as they were drawn
        self.drawn: tuple[bytes, bytes] | None = None

    def __call__(self, array: Array) -> None:
        """Fill ``array``, of the box's shape."""
        whole = np.empty(self.whole, array.dtype)
        self.initializer(whole)
        part = np.ascontiguousarray(whole[self.box.index])
        put(array, part)
        self.drawn = digest_of(whole), digest_of(part)

    def whole_of(self, digest: bytes) -> bytes:
        """Return the digest of the whole array that a part with this digest was drawn from; empty
        if it was not drawn here.
        """
        return self.drawn[0] if self.drawn is not None and self.drawn[1] == digest else b""


def digest_of(x: Array) -> bytes:
    """Return a digest of the values of an array."""
    return hashlib.blake2b(backend.as_bytes(backend.to_host(x)).data, digest_size=16).digest()


class Divided(Link):
    """A link with parameters that are divided among ranks. In files they are whole, as those of the
    undivided link.

    To save to a file of one rank, all ranks save together; a checkpoint of all ranks takes each
    rank's parts. Loading needs no other rank, and any number of ranks loads what any other number
    saved.
    """

    comm: Communicator

    def gradient_comms(self) -> GradientComms:
        """Add the ranks that have the other parts: backward gives each part its whole gradient."""
        # a layer for one rank has no communicator
        return super().gradient_comms().add(getattr(self, "comm", None), holds="parts")

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save the whole parameters, for which all ranks call this; or load this rank's parts of
        them.
        """
        loading = isinstance(serializer, Deserializer)
        in_parts = getattr(serializer, "knows_places", False)
        for name in self._params:
            param: Parameter = self.__dict__[name]
            part = param.initializer
            if not param.is_initialized:
                whole = serializer(name, None)
                if whole is not None:  # to be cut when the sizes are known
                    param.initializer = Constant(whole)
            elif in_parts or not isinstance(part, BoxInitializer):
                placed(serializer, param)(name, param.array)
            elif loading:
                whole = serializer(name, np.empty(part.whole, param.dtype))
                put(param.array, whole[part.box.index])
            else:
                serializer(name, gather_parameter(self.comm, param))
        for name in self._persistent:
            setattr(self, name, persistent(serializer)(name, getattr(self, name)))


def initialize_part(parameter: Parameter, whole: tuple[int, ...], box: Box) -> None:
    """Initialize a parameter with this rank's box of an array of shape ``whole``."""
    parameter.initializer = BoxInitializer(_get_initializer(parameter.initializer), whole, box)
    parameter.whole, parameter.box = tuple(whole), box
    parameter.initialize(box.shape)


def cut_parameter(parameter: Parameter, box: Box) -> Parameter:
    """Return a parameter with a box of the array of another, initialized one."""
    part = Parameter(BoxInitializer(_get_initializer(parameter.initializer), parameter.shape, box))
    part.whole, part.box = parameter.shape, box
    part.copydata(Variable(parameter.array[box.index]))
    return part


def gather_parameter(comm: Communicator, parameter: Parameter) -> Array:
    """Return the whole array of a parameter that is divided among ranks; a copy of the array of one
    that is not.

    Args:
        comm: all its ranks call this.
        parameter: of a link such as :class:`ColumnParallelLinear` or
            :class:`SpatialLocalConvolution2D`, initialized.

    Returns:
        A new array, the same on every rank.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.links as L
        >>> def program(comm):
        ...     layer = L.ColumnParallelLinear(comm, 2, 3, initialW=np.arange(6.0).reshape(3, 2))
        ...     return layer.W.shape, L.gather_parameter(comm, layer.W).tolist()
        >>> mnpar.run(program, ranks=2)[1]
        ((1, 2), [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    """
    require_communicator(comm, "gather_parameter(comm, parameter)")
    if parameter.whole is None or parameter.box is None:
        return parameter.array.copy()
    return whole_array(comm, parameter)
