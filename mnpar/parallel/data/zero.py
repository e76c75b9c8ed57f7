"""Optimizer states in shards: each rank sums, and steps with, its own stretch of each buffer; then
all gather the values.

During a step a parameter *is* its piece: the part that this rank's stretch has of it, possibly of
no elements. Rules and hooks work on pieces as they do on parameters, and the states that they keep
are as small; what they need of the whole (norms, whether all is finite) they sum over the pieces.
What travels is as much as an allreduce. (Rajbhandari et al. 2020, "ZeRO", stage 1.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.holders import Piece
from mnpar.optimizers import GradientMethod
from mnpar.optimizers.flat_buffers import FlatBuffer, FlatBuffers
from mnpar.parallel.data.reducer import Reducer
from mnpar.parameter import Parameter

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.optimizers import UpdateRule


class Shards:
    """This rank's stretches of the buffers.

    Args:
        reducer: its ranks hold copies of the parameters.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._layout: list[tuple[int, slice]] = []  # by which states were cut
        self._places: list[Array] = []  # a few of each parameter, in each buffer
        # the buffers that the last step left, and what was at these places
        self._left: list[tuple[FlatBuffer, bytes]] = []

    def reduce(self, buffers: FlatBuffers, factor: float) -> None:
        """Add up the gradients of all ranks, each rank's stretch on that rank; the rest is left
        as it was.

        Raises:
            ValueError: two parameters share an array.
        """
        if buffers.aliased:
            raise ValueError(
                "parameters that share one array cannot be updated in shards: let links share "
                "one parameter"
            )
        self._reducer.note(buffers)
        for buffer in buffers.learning:
            sent = self._reducer.wire(buffer.grad)
            mine = self._channel(buffer).reduce_scatter([sent[cut] for cut in self._cuts(buffer)])
            buffer.grad[self._own(buffer)] = mine if factor == 1 else mine * factor

    def leave(self, buffers: FlatBuffers) -> None:
        """Note the values that a step leaves."""
        self._left = self._look(buffers.learning)

    def altered(self) -> bool:
        """Return whether values are others than the last step left, as far as a few of each
        parameter tell.

        A step makes values alike, each rank's stretch those of its rank: what was changed by hand
        on one rank only would be half lost, and not be found by comparing what ranks have
        afterwards.
        """
        if any(
            [
                param.array is not view
                for buffer, _ in self._left
                for param, view, _ in buffer.members
            ]
        ):
            return True
        return self._left != self._look([buffer for buffer, _ in self._left])

    def _look(self, buffers: Iterable[FlatBuffer]) -> list[tuple[FlatBuffer, bytes]]:
        pairs = zip(buffers, self._places, strict=True)
        return [
            (a, a.data[few].tobytes() if type(a.data) is np.ndarray else b"") for a, few in pairs
        ]

    def _channel(self, buffer: FlatBuffer) -> Communicator:
        return self._reducer.channel_of(buffer.summed)

    def _cuts(self, buffer: FlatBuffer) -> list[slice]:
        size = buffer.grad.size
        n = self._channel(buffer).size
        return [slice(size * r // n, size * (r + 1) // n) for r in range(n)]

    def _own(self, buffer: FlatBuffer) -> slice:
        return self._cuts(buffer)[self._channel(buffer).rank]

    @contextmanager
    def pieces(self, optimizer: GradientMethod) -> Iterator[None]:
        """Let parameters be their pieces inside a ``with`` block, around a step; afterwards they
        have the values of all ranks.
        """
        layout = [
            (id(p), place)
            for buffer in optimizer.buffers.learning
            for p, place in zip(buffer.params, buffer.slices, strict=True)
        ]
        if layout != self._layout:
            self._join(optimizer)  # parameters have come or gone: stretches begin elsewhere
            self._layout = layout
            self._places = [_few(buffer.slices) for buffer in optimizer.buffers.learning]
        wholes = [
            (param, param.array, param.grad, (*self._piece(buffer, i), self._channel(buffer)))
            for buffer in optimizer.buffers.learning
            for i, param in enumerate(buffer.params)
            if param.grad is not None
        ]
        for param, whole, _, (values, gradients, inside, channel) in wholes:
            param.update_rule.piece = Piece(whole.shape, inside, channel)
            _be(param, values, gradients)
            _cut_state(param.update_rule, inside)
        optimizer.in_pieces = True
        try:
            yield
        finally:
            optimizer.in_pieces = False
            for param, values, gradients, _ in wholes:
                param.update_rule.piece = None
                _be(param, values, None if param.grad is None else gradients)
        for buffer in optimizer.buffers.learning:
            for cut, part in zip(
                self._cuts(buffer),
                self._channel(buffer).allgather(buffer.data[self._own(buffer)]),
                strict=True,
            ):
                buffer.data[cut] = part

    def _piece(self, buffer: FlatBuffer, i: int) -> tuple[Array, Array, slice]:
        """Return what this rank has of a parameter's values and gradient, and which of its elements
        these are.
        """
        place = buffer.slices[i]
        own = self._own(buffer)
        start = min(max(own.start, place.start), place.stop)
        stop = max(min(own.stop, place.stop), start)
        return (
            buffer.data[start:stop],
            buffer.grad[start:stop],
            slice(start - place.start, stop - place.start),
        )

    @contextmanager
    def whole(self, optimizer: GradientMethod) -> Iterator[None]:
        """Give states all their elements, on every rank, around saving; all call it. The next step
        cuts what is loaded.
        """
        self._join(optimizer)
        yield

    def _join(self, optimizer: GradientMethod) -> None:
        """Make states that are in pieces whole."""
        for buffer in optimizer.buffers.learning:
            for param in buffer.params:
                rule = param.update_rule
                if rule is None or not rule.in_pieces:
                    continue
                for name in [name for name in rule.state if name not in rule.scalars]:
                    rule.state[name] = _joined(
                        self._channel(buffer).allgather(rule.state[name])
                    ).reshape(param.shape)
                rule.in_pieces = False


def _few(slices: list[slice]) -> Array:
    """Places in a vector: up to 16 in each of these stretches."""
    places = [
        np.linspace(cut.start, cut.stop - 1, min(16, cut.stop - cut.start)).astype(int)
        for cut in slices
    ]
    return np.concatenate(places)


def _be(param: Parameter, values: Array, gradients: Array | None) -> None:
    # the shape first: it stays itself
    param.node.shape, param.array, param.node.gradient = (
        values.shape,
        values,
        gradients,
    )


def _cut_state(rule: UpdateRule, inside: slice) -> None:
    """Cut states that are whole (loaded, or from before) to those of the piece."""
    if not rule.in_pieces:
        for name in [name for name in rule.state if name not in rule.scalars]:
            rule.state[name] = rule.state[name].reshape(-1)[inside].copy()
        rule.in_pieces = True


def _joined(parts: tuple[Array, ...]) -> Array:
    return backend.get_array_module(*parts).concatenate(parts)
