"""Flat buffers: the parameters of a model in one vector, and their gradients in another, so that
nothing is packed or unpacked.

``param.array`` and ``param.grad`` are views, in the order of definition (law 5): a message is a
slice, and an optimizer updates slices of one vector. There is a buffer for each dtype, device and
replication group. Programs may still assign arrays and gradients, move them to devices, add and
remove links: before anything relies on the views, :meth:`FlatBuffers.gather` copies such values and
gradients back into the vectors, or makes new buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import Any

from mnpar import backend
from mnpar.autograd.graph import GradSlot, VariableNode
from mnpar.backend import Array
from mnpar.parameter import Parameter


class FlatBuffer:
    """Parameters of one dtype on one device, their values in ``data``, their gradients in ``grad``.

    Args:
        params: initialized parameters, in the order of definition.
        synchronized: ranks sum the gradients before an optimizer uses them.
        values: whether the values are here, too; if not, ``data`` is None, and parameters keep
            their arrays.

    Example:
        >>> import mnpar
        >>> from mnpar.optimizers.flat_buffers import FlatBuffer
        >>> w, b = mnpar.Parameter(1, (2,)), mnpar.Parameter(0, (1,))
        >>> buffer = FlatBuffer([w, b])
        >>> buffer.data += 1
        >>> w.array, b.array
        (array([2., 2.], dtype=float32), array([1.], dtype=float32))
    """

    def __init__(
        self, params: Sequence[Parameter], synchronized: bool = False, values: bool = True
    ) -> None:
        self.params = list(params)
        self.summed = params[0].summed  # the same for all of them
        # CommonRules and FusedUpdate of optimizers/fused_update.py: how the parameters can be
        # updated as one vector
        self.common_rules: Any = None
        self.fused_update: Any = None
        sizes = [param.array.size for param in params]
        self.data: Any = backend.empty_vector_like(sum(sizes), params[0].array) if values else None
        self.grad = backend.empty_vector_like(sum(sizes), params[0].array)
        self.slices: list[slice] = []  # of the vectors, one for each parameter
        # each parameter with its view of ``data`` and its place in ``grad``
        self.members: list[tuple[Parameter, Any, GradSlot]] = []
        start = 0
        for param, size in zip(self.params, sizes, strict=True):
            place = slice(start, start + size)
            self.slices.append(place)
            view = None if self.data is None else self.data[place].reshape(param.array.shape)
            grad = self.grad[place].reshape(param.array.shape)
            self.members.append((param, view, GradSlot(grad, synchronized)))
            start += size
        self.slots = [slot for _, _, slot in self.members]
        self._list_gradients()
        self.gather()

    def gather(self) -> bool:
        """Copy values and gradients that are in other arrays into the vectors.

        Returns:
            False if that is impossible: a parameter's shape, dtype, device or replication group has
            changed.
        """
        for param, view, slot in self.members:
            array, node = param.array, param.node
            if (
                array is view
                and node.grad_slot is slot
                and node.gradient is slot.array
                and param.summed == self.summed
            ):
                continue  # nothing was assigned since the last time
            if param.summed != self.summed:
                return False
            if array is not view:
                like = slot.array if view is None else view
                if array is None or _kind(array) != _kind(like) or array.shape != like.shape:
                    return False
                if view is not None:
                    view[...] = array
                    param.move(view)
            if node.grad_slot is not slot:
                node.grad_slot = slot
            g = param.grad
            if g is not None and g is not slot.array:
                slot.array[...] = g
                param.grad, slot.reserved = slot.array, False
        return True

    def rebind(self, grad: Array) -> None:
        """Move the gradients into another vector, of the same length and dtype, for good."""
        grad[...] = self.grad
        self.grad = grad
        for (param, _, slot), place in zip(self.members, self.slices, strict=True):
            before, slot.array = slot.array, grad[place].reshape(slot.array.shape)
            if param.node.gradient is before:
                param.node.gradient = slot.array
        self._list_gradients()

    def _list_gradients(self) -> None:
        """Note each parameter's node and the place of its gradient, for ``is_filled``."""
        self._gradients = [(param.node, slot.array) for param, _, slot in self.members]

    def is_filled(self) -> bool:
        """Return whether every parameter has a gradient, at its place in ``grad``."""
        for node, array in self._gradients:  # noqa: SIM110 - one call less, in each step
            if node.gradient is not array:
                return False
        return True

    @property
    def learns(self) -> bool:
        """Return whether its parameters can have gradients: integers and booleans cannot."""
        return self.grad.dtype.kind not in VariableNode.WITHOUT_GRADIENT

    def fill(self, loss_scale: float | None = None) -> None:
        """Give a gradient of zeros to the parameters that have none, and note this loss scale for
        it.
        """
        if self.is_filled():
            return
        for param, slot in zip(self.params, self.slots, strict=True):
            if param.node.gradient is None:
                slot.array.fill(0)
                param.grad, param.node.loss_scale = slot.array, loss_scale

    def adopt(self) -> None:
        """Set every parameter's gradient to its view of ``grad``."""
        for param, slot in zip(self.params, self.slots, strict=True):
            param.grad = slot.array


class FlatBuffers:
    """The buffers of a link's parameters, made when they are first asked for, and again when the
    parameters have changed.

    Args:
        values: whether the parameters' values are in them, too, and not only their gradients.

    Attributes:
        learning: the buffers with gradients; a new list whenever the buffers are made anew.
        aliased: parameters that share an array with an earlier one, and so have no place of their
            own.
        filled: at the last ``gather``, all parameters had gradients at their places.
        synchronized: ranks sum the gradients before an optimizer uses them.

    Example:
        >>> import mnpar.links as L
        >>> from mnpar.optimizers.flat_buffers import FlatBuffers
        >>> model, buffers = L.Linear(3, 2), FlatBuffers()
        >>> [buffer.data.size for buffer in buffers.gather(model.params())]
        [8]
    """

    def __init__(self, values: bool = True) -> None:
        self.learning: list[FlatBuffer] = []
        self.aliased: list[Parameter] = []
        self.filled = False
        self.synchronized = False
        self._values = values
        self._buffers: list[FlatBuffer] = []
        self._params: list[Parameter] = []
        self._given: Iterable[Parameter] | None = None

    def gather(self, params: Iterable[Parameter]) -> list[FlatBuffer]:
        """Return buffers that hold the values and gradients of these parameters, but for
        uninitialized ones, in their order.

        If ``params`` is the same object as at the last call, the parameters are taken to be the
        same (optimizers/parameter_cache.py).
        """
        same = params is self._given
        self.filled = (
            same and not self.aliased and all([buffer.is_filled() for buffer in self._buffers])
        )
        if self.filled or (same and all([buffer.gather() for buffer in self._buffers])):
            return self._buffers
        self._given = params
        params = [param for param in params if param.array is not None]
        same = len(params) == len(self._params) and all(map(is_, params, self._params))
        if not (same and all([buffer.gather() for buffer in self._buffers])):
            self._params = params
            first = {id(param.array): param for param in reversed(params)}
            self.aliased = [param for param in params if first[id(param.array)] is not param]
            self._buffers = [
                FlatBuffer(group, self.synchronized, self._values)
                for group in _groups(params, self.aliased)
            ]
            self.learning = [buffer for buffer in self._buffers if buffer.learns]
        return self._buffers

    def renew(self) -> None:
        """Move to new vectors: messages that were given up may still arrive in the old ones."""
        params, self._params = self._params, []
        self.gather(params)

    def fill(self, loss_scale: float | None = None) -> None:
        """Give a gradient of zeros to the parameters that have none, and note this loss scale for
        it.
        """
        for buffer in self.learning:
            buffer.fill(loss_scale)
        for param in self.aliased:
            if param.grad is None:
                param.zerograd()
                param.node.loss_scale = loss_scale

    def multiply(self, factor: float) -> None:
        """Multiply all gradients."""
        if factor != 1:
            for grad in [
                *[buffer.grad for buffer in self.learning],
                *[param.grad for param in self.aliased],
            ]:
                grad *= factor

    def adopt(self) -> None:
        """Set every parameter's gradient to its view of a buffer's vector."""
        for buffer in self._buffers:
            buffer.adopt()

    def __iter__(self) -> Iterator[FlatBuffer]:
        return iter(self._buffers)

    def __reduce__(self) -> Any:
        # the arrays of copied and pickled parameters are no views: the first ``gather`` makes new
        # buffers
        return (FlatBuffers, (self._values,))


def _groups(params: Sequence[Parameter], aliased: Sequence[Parameter]) -> list[list[Parameter]]:
    """Return the parameters but those aliased, grouped by dtype, device and ``summed``, the groups
    in the order of their first parameters.
    """
    left_out = {id(param) for param in aliased}
    groups: dict[Any, list[Parameter]] = {}
    for param in params:
        if id(param) not in left_out:
            groups.setdefault((*_kind(param.array), param.summed), []).append(param)
    return list(groups.values())


def _kind(array: Array) -> tuple[str, str]:
    return array.dtype.str, backend.device_of(array)
