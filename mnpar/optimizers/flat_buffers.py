"""Arenas: the parameters of a model in one vector, and their gradients in another, so that nothing
is packed or unpacked.

``param.array`` and ``param.grad`` are views, in the order of definition (law 5): a message is a
slice, and an optimizer updates slices of one vector. There is an arena for each dtype, device and
replication group. Programs may still assign arrays and gradients, move them to devices, add and
remove links: before anything relies on the views, :meth:`Arenas.gather` copies such values and
gradients back into the vectors, or makes new arenas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import Any

from mnpar import backend
from mnpar.autograd.graph import GradSlot, VariableNode
from mnpar.backend import Array
from mnpar.parameter import Parameter


class Arena:
    """Parameters of one dtype on one device, their values in ``data``, their gradients in ``grad``.

    Args:
        params: initialized parameters, in the order of definition.

    Example:
        >>> import mnpar
        >>> from mnpar.optimizers.flat_buffers import Arena
        >>> w, b = mnpar.Parameter(1, (2,)), mnpar.Parameter(0, (1,))
        >>> arena = Arena([w, b])
        >>> arena.data += 1
        >>> w.array, b.array
        (array([2., 2.], dtype=float32), array([1.], dtype=float32))
    """

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.params = list(params)
        self.summed = params[0].summed  # the same for all of them
        # a Joint: whether the parameters can be updated as one vector (optimizers/fused_update.py)
        self.joint: Any = None
        self.whole: Any = None  # a Whole, which updates them so
        sizes = [param.array.size for param in params]
        self.data = backend.empty_vector_like(sum(sizes), params[0].array)
        self.grad = backend.empty_vector_like(sum(sizes), params[0].array)
        self.slices: list[slice] = []  # of the vectors, one for each parameter
        self.members: list[
            tuple[Parameter, Array, GradSlot]
        ] = []  # each with its view of ``data`` and its place in ``grad``
        start = 0
        for param, size in zip(self.params, sizes, strict=True):
            place = slice(start, start + size)
            self.slices.append(place)
            view, slot = [
                vector[place].reshape(param.array.shape) for vector in (self.data, self.grad)
            ]
            self.members.append((param, view, GradSlot(slot)))
            start += size
        self.slots = [slot for _, _, slot in self.members]
        self._settle()
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
                if array is None or _place(array) != _place(view) or array.shape != view.shape:
                    return False
                view[...] = array
                param.move(view)
            if node.grad_slot is not slot:
                node.grad_slot = slot
            g = param.grad
            if g is not None and g is not slot.array:
                slot.array[...] = g
                param.grad, slot.reserved = slot.array, False
        return True

    def house(self, grad: Array) -> None:
        """Move the gradients into another vector, of the same length and dtype, for good."""
        grad[...] = self.grad
        self.grad = grad
        for (param, _, slot), place in zip(self.members, self.slices, strict=True):
            here, slot.array = slot.array, grad[place].reshape(slot.array.shape)
            if param.node.gradient is here:
                param.node.gradient = slot.array
        self._settle()

    def _settle(self) -> None:
        """Note each parameter's node and the place of its gradient, for ``gradients_at_home``."""
        self._grads = [(param.node, slot.array) for param, _, slot in self.members]

    def gradients_at_home(self) -> bool:
        """Whether every parameter has a gradient, at its place in ``grad``."""
        for node, array in self._grads:  # noqa: SIM110 - one call less, in each step
            if node.gradient is not array:
                return False
        return True

    @property
    def learns(self) -> bool:
        """Whether its parameters can have gradients: integers and booleans cannot."""
        return self.data.dtype.kind not in VariableNode.WITHOUT_GRADIENT

    def fill(self, loss_scale: float | None = None) -> None:
        """Give a gradient of zeros to the parameters that have none, and note this loss scale for
        it.
        """
        for param, slot in (
            () if self.gradients_at_home() else zip(self.params, self.slots, strict=True)
        ):
            if param.node.gradient is None:
                slot.array.fill(0)
                param.grad, param.node.loss_scale = slot.array, loss_scale

    def adopt(self) -> None:
        """Set every parameter's gradient to its view of ``grad``."""
        for param, slot in zip(self.params, self.slots, strict=True):
            param.grad = slot.array


class Arenas:
    """The arenas of a link's parameters, made when they are first asked for, and again when the
    parameters have changed.

    Example:
        >>> import mnpar.links as L
        >>> from mnpar.optimizers.flat_buffers import Arenas
        >>> model, arenas = L.Linear(3, 2), Arenas()
        >>> [arena.data.size for arena in arenas.gather(model.params())]
        [8]
    """

    def __init__(self) -> None:
        self._params: list[Parameter] = []
        self._given: Iterable[Parameter] | None = None
        self._arenas: list[Arena] = []
        self.learning: list[
            Arena
        ] = []  # arenas with gradients; a new list whenever the arenas are made anew
        self.filled = False  # at the last ``gather``, all parameters had gradients at their places
        self.strays: list[
            Parameter
            # Parameters that share an array with an earlier one: they have no place of their own
        ] = []

    def gather(self, params: Iterable[Parameter]) -> list[Arena]:
        """Arenas that hold the values and gradients of these parameters, but for uninitialized
        ones, in their order.

        If ``params`` is the same object as at the last call, the parameters are taken to be the
        same (optimizers/parameter_cache.py).
        """
        self.filled = (
            params is self._given
            and not self.strays
            and all([arena.gradients_at_home() for arena in self._arenas])
        )
        if self.filled or (
            params is self._given and all([arena.gather() for arena in self._arenas])
        ):
            return self._arenas
        self._given = params
        params = [param for param in params if param.array is not None]
        same = len(params) == len(self._params) and all(map(is_, params, self._params))
        if not (same and all([arena.gather() for arena in self._arenas])):
            self._params = params
            # of those that share an array
            first = {id(param.array): param for param in reversed(params)}
            self.strays = [param for param in params if first[id(param.array)] is not param]
            self._arenas = [Arena(group) for group in _groups(params, self.strays)]
            self.learning = [arena for arena in self._arenas if arena.learns]
        return self._arenas

    def renew(self) -> None:
        """Move to new vectors: messages that were given up may still arrive in the old ones."""
        params, self._params = self._params, []
        self.gather(params)

    def fill(self, loss_scale: float | None = None) -> None:
        """Give a gradient of zeros to the parameters that have none, and note this loss scale for
        it.
        """
        for arena in self.learning:
            arena.fill(loss_scale)
        for param in self.strays:
            if param.grad is None:
                param.zerograd()
                param.node.loss_scale = loss_scale

    def multiply(self, factor: float) -> None:
        """Multiply all gradients."""
        if factor != 1:
            for grad in [
                *[arena.grad for arena in self.learning],
                *[param.grad for param in self.strays],
            ]:
                grad *= factor

    def adopt(self) -> None:
        """Set every parameter's gradient to its view of an arena's vector."""
        for arena in self._arenas:
            arena.adopt()

    def __iter__(self) -> Iterator[Arena]:
        return iter(self._arenas)

    def __reduce__(self) -> Any:
        return (
            Arenas,
            (),
            # the arrays of copied and pickled parameters are no views: the first ``gather`` makes
            # new arenas
        )


def _groups(params: Sequence[Parameter], strays: Sequence[Parameter]) -> list[list[Parameter]]:
    """The parameters but strays, grouped by dtype, device and ``summed``, the groups in the order
    of their first parameters.
    """
    left_out = {id(param) for param in strays}
    groups: dict[Any, list[Parameter]] = {}
    for param in params:
        if id(param) not in left_out:
            groups.setdefault((*_place(param.array), param.summed), []).append(param)
    return list(groups.values())


def _place(array: Array) -> tuple[str, str]:
    return array.dtype.str, backend.device_of(array)
