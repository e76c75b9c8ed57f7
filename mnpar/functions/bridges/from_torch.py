"""from_torch: a function of PyTorch's tensors as a differentiable function of mnpar.

A call runs PyTorch's function on tensors that share memory with the arrays, and keeps the graph
that PyTorch records; the backward of the node asks ``torch.autograd.grad`` for the gradients. A
backward that is recorded asks with ``create_graph=True``, and is a node of the same kind: so
gradients have any order that PyTorch has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.configuration import config, is_recording
from mnpar.function_node import InputGradients
from mnpar.functions.bridges.nesting import (
    ArrayPlace,
    arrays_in,
    check_on_host,
    filled,
    separate,
)
from mnpar.functions.node import GenericFunction
from mnpar.functions.util.no_messages import NoMessages
from mnpar.functions.util.recomputation import is_remembering, remembered
from mnpar.random import generator
from mnpar.variable import Variable, as_variable


def from_torch(function: Callable[..., Any]) -> Any:
    """Return a differentiable function of one that PyTorch computes and differentiates.

    Gradients have any order that PyTorch has. In training mode (``mnpar.config.train``) modules are
    in theirs, and PyTorch's random numbers inside start from one that the rank's generator draws
    (:func:`mnpar.random.generator`), so that :func:`mnpar.functions.forget` repeats them. On each
    rank the function computes with that rank's arrays.

    Args:
        function: of tensors on the processor, also in tuples, lists and dicts, and of other
            values, which are handed over as they are; or a module without parameters. A module
            with parameters is a link: :class:`mnpar.links.TorchModule`.

    Returns:
        A function that takes Variables and arrays in place of tensors, without copies, and returns
        Variables in place of tensors.

    Raises:
        ImportError: PyTorch is missing. TypeError: the module has parameters. When it is called,
            TypeError: an array has a dtype that PyTorch does not have, or is not on the host, or a
            result is neither a tensor nor a simple value; RuntimeError: ``function`` communicates,
            changes an argument in place, or uses a tensor that requires a gradient and is no
            argument; and PyTorch's own errors.

    Example:
        >>> import numpy as np, torch, mnpar
        >>> import mnpar.functions as F
        >>> smooth = F.from_torch(torch.nn.functional.softplus)
        >>> x = mnpar.Variable(np.zeros(2))
        >>> F.sum(smooth(x, beta=2)).backward()
        >>> x.grad
        array([0.5, 0.5])
    """
    torch = import_torch("from_torch")
    if not callable(function):
        raise TypeError(f"from_torch takes a function, not a {type(function).__name__}")
    is_module = isinstance(function, torch.nn.Module)
    module: Any = function
    if is_module and next(module.parameters(), None) is not None:
        raise TypeError(
            f"from_torch: a {type(function).__name__} has parameters, which optimizers and "
            "checkpoints are to see: mnpar.links.TorchModule(module) is a link with them"
        )
    name = getattr(function, "__name__", type(function).__name__)

    def run(_: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        with in_mode(module) if is_module else _nothing():
            return call_torch(run, f"from_torch({name})", {}, args, kwargs)

    return call if is_module else functools.wraps(function)(call)


def import_torch(who: str) -> Any:
    """Return PyTorch.

    Raises:
        ImportError: it is missing; ``who`` needs it.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{who} needs PyTorch ({error}): pip install 'mnpar[torch]'") from None
    return torch


def array_of(x: Any) -> Array:
    """Return an array that shares the memory of a tensor on the processor.

    Raises:
        TypeError: there is no such array.
    """
    try:
        array: Array = x.detach().resolve_conj().resolve_neg().numpy()
        return array
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"a tensor of {x.dtype}, layout {x.layout}, on {x.device} is no array of numpy's, as "
            "mnpar needs one: x.float(), x.to_dense() and x.cpu() make such tensors"
        ) from error


def tensor_of(array: Array, others: Sequence[Array] = ()) -> Any:
    """Return a tensor of an array; it shares memory with the array, but not with the others.

    Raises:
        TypeError: PyTorch does not have the array's dtype.
    """
    import torch

    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif (
        not array.flags.writeable
        or any([step < 0 for step in array.strides])
        or any([np.may_share_memory(array, one) for one in others])
    ):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise TypeError(f"PyTorch has no tensors of {array.dtype}: {error}") from None


@contextmanager
def in_mode(module: Any) -> Iterator[None]:
    """Put a module into the mode that ``mnpar.config.train`` says. When backward repeats a call,
    what the module changes by itself (running means, vectors of a spectral norm) is at first as it
    was before the call, and in the end left alone.
    """
    if module.training != config.train:
        module.train(config.train)
    if not is_remembering():
        yield
        return
    arrays = [array_of(buffer) for buffer in module.buffers()]
    now = [x.copy() for x in arrays]
    before = remembered(lambda: now)
    if config.in_recomputing:
        _fill(arrays, before)
    try:
        yield
    finally:
        if config.in_recomputing:
            _fill(arrays, now)


def _fill(arrays: Iterable[Array], values: Iterable[Array]) -> None:
    """Write values into arrays; not by PyTorch, whose graph may have kept them as they were."""
    for x, value in zip(arrays, values, strict=True):
        x[...] = value


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def call_torch(
    run: Callable[..., Any],
    label: str,
    parameters: Mapping[str, Variable],
    args: Any,
    kwargs: Any,
) -> Any:
    """Call a function of tensors with Variables and arrays.

    Args:
        run: takes a dict of the parameters' tensors, and the arguments.
        label: says in errors what was called.
        parameters: Variables by name.
        args, kwargs: arguments, also in tuples, lists and dicts.

    Returns:
        What ``run`` returns, with Variables in place of tensors.
    """
    form, xs = arrays_in((args, kwargs))
    count = len(xs)
    xs += parameters.values()
    result: Any = None

    def compute(tensors: Sequence[Any]) -> list[Any]:
        nonlocal result
        given, words = filled(form, tensors)
        named = dict(zip(parameters, tensors[count:], strict=True))
        with NoMessages(_LOCAL.replace("{who}", label)), _seeded():
            result, ys = _tensors_in(label, run(named, *given, **words))
        return ys

    wanted = [isinstance(x, Variable) and x.requires_grad for x in xs]
    ys = TorchCall(label, compute, wanted).apply(tuple(xs))
    return filled(result, ys)


@contextmanager
def _seeded() -> Iterator[None]:
    """In training mode start PyTorch's random numbers from one of the rank's generator."""
    import torch

    if not config.train:
        yield
        return
    numbers = torch.default_generator
    before = numbers.get_state()
    numbers.manual_seed(int(generator().integers(2**63)))
    try:
        yield
    finally:
        numbers.set_state(before)


def _tensors_in(label: str, result: Any) -> tuple[Any, list[Any]]:
    """Return a result with places for its tensors, and these."""
    import torch

    found: list[Any] = []

    def form_of(y: Any) -> Any:
        if isinstance(y, torch.Tensor):
            found.append(y)
            return ArrayPlace(len(found) - 1)
        if isinstance(y, tuple):  # such as that of torch.max, which has names
            return tuple(map(form_of, y))
        if type(y) is list:
            return list(map(form_of, y))
        if type(y) is dict:
            return {key: form_of(one) for key, one in y.items()}
        if y is not None and not isinstance(y, bool | int | float | complex | str):
            raise TypeError(_NO_TENSORS.format(who=label, kind=type(y).__name__))
        return y

    form = form_of(result)
    if not found:
        raise TypeError(_NO_TENSORS.format(who=label, kind=f"{type(result).__name__} without any"))
    return form, found


_NO_TENSORS = (
    "{who} returned a {kind}: it returns tensors, also in tuples, lists and dicts, beside numbers, "
    "strings and None"
)


class TorchCall(GenericFunction):
    """A call of a function of tensors.

    Args:
        label: says in errors what was called.
        compute: returns a list of tensors, from one.
        wanted: which inputs may need gradients.
        leaves: tensors that stand for the first inputs: those of the call of which this is the
            derivative.
    """

    joint_vjp = True
    label = ""
    tensors: Sequence[Any]
    ys: Sequence[Any]

    def __init__(
        self,
        label: str,
        compute: Callable[[Sequence[Any]], list[Any]],
        wanted: Sequence[bool],
        leaves: Sequence[Any] = (),
    ) -> None:
        self.label = label
        self.compute = compute
        self.wanted = wanted
        self.leaves = leaves

    def forward(self, *xs: Array) -> tuple[Array, ...]:
        import torch

        check_on_host(self.label, xs)
        self.retain_inputs(tuple(range(len(xs))))
        recorded = is_recording()
        new = [tensor_of(x) for x in xs[len(self.leaves) :]]
        for x, want in zip(new, self.wanted[len(self.leaves) :], strict=True):
            if recorded and want:
                x.requires_grad_()
        with torch.set_grad_enabled(recorded):
            ys = self.compute([*self.leaves, *new])
        for i, x in enumerate(new):
            if x._version:
                raise RuntimeError(
                    f"{self.label} changes array {i} of its arguments in place, which mnpar may "
                    "need as it was: x.clone(), or inplace=False, leaves it alone"
                )
        self.tensors = [*self.leaves, *new]
        self.ys = ys
        if not self.leaves:
            self._check_arguments(_CAPTURED)
        if not self.differentiable:
            self.tensors = self.ys = []
        return tuple(map(array_of, ys))

    def _check_arguments(self, told: str) -> None:
        """Raise RuntimeError if a gradient would flow to a tensor that is no argument."""
        own = {id(x) for x in self.tensors}
        leaves = [y for y in self.ys if y.requires_grad and y.grad_fn is None]
        stack = [y.grad_fn for y in self.ys if y.grad_fn is not None]
        seen = set(stack)
        while stack:
            step = stack.pop()
            if hasattr(step, "variable"):
                leaves.append(step.variable)
            for behind, _ in step.next_functions:
                if behind is not None and behind not in seen:
                    seen.add(behind)
                    stack.append(behind)
        for leaf in leaves:
            if id(leaf) not in own:
                raise RuntimeError(told.format(who=self.label, shape=tuple(leaf.shape)))

    def backward(self, *gys: Variable | Array | None) -> InputGradients:
        if self.leaves:
            self._check_arguments(_ONCE)
        wanted = [i for i, x in enumerate(self.tensors) if x.requires_grad]
        leaves = [self.tensors[i] for i in wanted]
        pairs = [
            (y, gy)
            for y, gy in zip(self.ys, gys, strict=True)
            if gy is not None and y.requires_grad
        ]
        results: list[Any] = [None] * len(self.tensors)
        if not pairs:
            return tuple(results)
        ys = [y for y, _ in pairs]
        if self._on_arrays:
            arrays: list[Any] = [gy for _, gy in pairs]
            found = _vjp(ys, leaves, [tensor_of(gy) for gy in arrays], False)
            others = [*arrays, *self._kept_inputs]
            gxs: Any = separate([None if g is None else array_of(g) for g in found], others)
            for i, g in zip(wanted, gxs, strict=True):
                results[i] = g
            return tuple(results)
        there: list[int] = []

        def compute(tensors: Sequence[Any]) -> list[Any]:
            found = _vjp(ys, leaves, tensors[len(leaves) :], torch_records())
            there.extend([i for i, g in zip(wanted, found, strict=True) if g is not None])
            return [g for g in found if g is not None]

        xs = self.get_retained_inputs()
        given: list[Any] = [*[xs[i] for i in wanted], *[as_variable(gy) for _, gy in pairs]]
        needed = [x.requires_grad for x in given]
        node = TorchCall(f"gradient of {self.label}", compute, needed, leaves)
        outputs = node.apply(tuple(given))
        for i, g in zip(there, outputs, strict=True):
            results[i] = g
        return tuple(results)


def torch_records() -> bool:
    """Return whether PyTorch records a graph."""
    import torch

    return bool(torch.is_grad_enabled())


def _vjp(ys: Any, xs: Any, gys: Any, recorded: bool) -> list[Any]:
    """Return PyTorch's gradients. Those of complex numbers are the conjugates of mnpar's."""
    import torch

    gys = [_conjugate(gy) for gy in gys]
    # the graph may be asked again, by another backward
    found = torch.autograd.grad(
        ys, xs, gys, retain_graph=True, create_graph=recorded, allow_unused=True
    )
    return [None if g is None else _conjugate(g) for g in found]


def _conjugate(x: Any) -> Any:
    return x.conj().resolve_conj() if x.is_complex() else x


_CAPTURED = (
    "{who} uses a tensor of shape {shape} that requires a gradient and is no argument, so that it "
    "would get none: make it an argument, or a parameter of a module (mnpar.links.TorchModule), or "
    "x.detach() it"
)
# PyTorch would pass over such a function, as if its derivative were 0
_ONCE = (
    "the {who} cannot be differentiated: something in it, with a result of shape {shape}, is "
    "once_differentiable"
)
_LOCAL = (
    "{who}: {label} cannot run inside, where PyTorch's graph does not tell it when backward comes: "
    "communicate before and after it"
)
