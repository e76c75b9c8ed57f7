"""A function of mnpar's Variables as a function of PyTorch's tensors.

Arrays and tensors share memory. The function runs on a tape of its own, and PyTorch's graph gets
one node for it, whose backward runs mnpar's backward along that tape. If that backward is recorded
(``create_graph=True``), it is itself such a function, of the inputs and of the gradients; so
gradients have any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mnpar.autograd.engine import run_backward
from mnpar.autograd.tape import Tape
from mnpar.backend import Array
from mnpar.configuration import recording
from mnpar.functions.bridges.from_torch import array_of, tensor_of
from mnpar.functions.bridges.nesting import replaced
from mnpar.runtime.callsite import call_site
from mnpar.torch.history import current_history
from mnpar.variable import Variable

_UNSEEN = (
    "does not see through communications: it would keep what came while it looked. Communicate "
    "outside of what it traces or transforms"
)


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of mnpar with tensors in place of Variables.

    Args:
        function: takes Variables, also in tuples, lists and dicts, and returns such.
        args, kwargs: its arguments. Tensors of other devices than the processor are copied to it.

    Returns:
        What the function returns, with tensors in place of Variables, on the device of the first
        tensor that was given.

    Raises:
        TypeError: a Variable was given, or a tensor that is sparse, or has a dtype that numpy does
            not have; RuntimeError: PyTorch traces or transforms the program, which would send
            nothing when it runs.
    """
    name = function.__name__
    if torch.jit.is_tracing():
        raise RuntimeError(f"{name} at {call_site()}: torch.jit.trace {_UNSEEN}")
    tensors: list[torch.Tensor] = []

    def enter(x: torch.Tensor) -> Variable:
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise RuntimeError(
                f"{name} at {call_site()}: torch.func {_UNSEEN}; mnpar.torch.grad differentiates"
            )
        tensors.append(x)
        wanted = x.requires_grad and torch.is_grad_enabled()
        return Variable(array_of(x.cpu()), requires_grad=wanted)

    def refuse(x: Variable) -> Variable:
        raise TypeError(
            f"{name} at {call_site()}: mnpar.torch takes tensors, not a Variable, whose gradient "
            f"would end here: mnpar.functions.{name} takes Variables"
        )

    replaced((args, kwargs), Variable, refuse)
    args, kwargs = replaced((args, kwargs), torch.Tensor, enter)
    given = [x.cpu() for x in tensors]
    inputs: list[Variable] = []
    replaced((args, kwargs), Variable, inputs.append)
    with recording(torch.is_grad_enabled()), Tape() as tape:
        result = function(*args, **kwargs)
    outputs: list[Variable] = []
    replaced(result, Variable, outputs.append)
    label = f"{name} at {call_site()}"
    call = TensorCall(label, inputs, outputs, tape.records)
    returned = iter(call.on_tensors(given))
    device = tensors[0].device if tensors else torch.device("cpu")
    return replaced(result, Variable, lambda y: next(returned).to(device))


class TensorCall:
    """A call of a function of mnpar: what went in, what came out, and what it recorded.

    Args:
        label: says in errors which call it was.
        inputs, outputs: Variables. What its communications gave to other functions of mnpar counts
            among its outputs, too: later derivatives may depend on that.
        records: the communications that it made.
        is_adjoint: whether it is the backward of another call. Its graph goes on to that call's,
            which has a backward of its own; so its gradients stop at its inputs.
    """

    def __init__(
        self,
        label: str,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        records: Sequence[Any],
        is_adjoint: bool = False,
    ) -> None:
        self.label = label
        self.inputs = inputs
        self.outputs = [*outputs, *_between(records, outputs)]
        self.records = records
        self.targets = [x.node for x in inputs] if is_adjoint else None

    def on_tensors(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the outputs as tensors, in PyTorch's graph if a gradient can flow.

        Args:
            tensors: the inputs.
        """
        if not self.records:
            arrays = _arrays_of(self.inputs)
            return [_tensor_of_output(y, arrays) for y in self.outputs]
        history = self.history = current_history()
        self.number = history.add(self.label)
        history.token, *ys = _Communicate.apply(self, history.token, *tensors)
        return ys

    def gradients(
        self, gys: Sequence[torch.Tensor | None], tensors: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients of the inputs, from those of the outputs.

        Args:
            gys: the gradients of the outputs; None: there is none.
            tensors: the inputs, then the outputs.
        """
        recorded = torch.is_grad_enabled()
        self.history.visit(self.number, recorded)
        given = [(y, gy) for y, gy in zip(self.outputs, gys, strict=True) if gy is not None]
        arriving = [Variable(array_of(gy), requires_grad=recorded) for _, gy in given]
        seeds: list[Any] = [
            (y.node, g if recorded else g.array) for (y, _), g in zip(given, arriving, strict=True)
        ]
        tape = Tape()
        tape.records = list(self.records)
        with tape:
            found = run_backward(
                seeds, self.targets, record=recorded, retain_tape=self.history.keeps
            )
        gxs = [found.get(x.node.key) for x in self.inputs]
        if not recorded:
            arrays = [g.array for g in arriving]
            return [None if g is None else tensor_of(_own(g), arrays) for g in gxs]
        adjoint = TensorCall(
            f"gradient of {self.label}",
            [*self.inputs, *self.outputs, *arriving],
            [g for g in gxs if isinstance(g, Variable)],  # all that there are
            tape.records[len(self.records) :],
            is_adjoint=True,
        )
        returned = iter(adjoint.on_tensors([*tensors, *[gy for _, gy in given]]))
        return [None if g is None else next(returned) for g in gxs]


def _between(records: Sequence[Any], outputs: Sequence[Variable]) -> list[Variable]:
    """Return what communications gave to functions that keep it, without its arrays."""
    known = {y.node for y in outputs}
    nodes = [place() for function in records for place in function.outputs]
    return [
        Variable.of(None, node)
        for node in nodes
        if node is not None and node.requires_grad and node not in known
    ]


def _arrays_of(xs: Sequence[Variable]) -> list[Array]:
    return [x.array for x in xs if x.array is not None]


def _tensor_of_output(y: Variable, inputs: Sequence[Array]) -> torch.Tensor:
    """Return an output as a tensor; zeros, which take no memory, where its array is not known."""
    if y.array is not None:
        return tensor_of(y.array, inputs)
    zero = torch.from_numpy(np.zeros((), y.node.dtype))
    return zero.expand(y.node.shape)


def _own(g: Any) -> Array:
    """Return a gradient as an array that is no broadcast view: PyTorch may add to it in place."""
    array: Array = getattr(g, "array", g)
    return array if 0 not in array.strides or array.size < 2 else array.copy()


class _Communicate(torch.autograd.Function):
    """The node of a call in PyTorch's graph."""

    @staticmethod
    def forward(ctx: Any, call: TensorCall, token: torch.Tensor, *tensors: torch.Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        arrays = _arrays_of(call.inputs)
        ys = [_tensor_of_output(y, arrays) for y in call.outputs]
        ctx.save_for_backward(*tensors, *ys)
        ctx.mark_non_differentiable(
            *[y for y, one in zip(ys, call.outputs, strict=True) if not one.requires_grad]
        )
        return (token.new_empty(0), *ys)

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor | None, *gys: torch.Tensor | None) -> Any:
        gxs = ctx.call.gradients(gys, ctx.saved_tensors)
        return (None, torch.zeros(0), *gxs)
