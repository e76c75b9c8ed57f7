"""backward and grad: PyTorch's, for programs that communicate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch

from mnpar.torch.history import History, current_history
from mnpar.variable import Variable

Tensors: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
Gradients: TypeAlias = "torch.Tensor | Sequence[torch.Tensor | None] | None"


def backward(
    tensors: Tensors = (),
    grad_tensors: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add to every leaf's ``grad`` the derivative of the sum of ``tensors``, and of all ranks'
    tensors, as :func:`torch.autograd.backward`, and visit all communications.

    Every rank that took part in a communication must call it, those without a loss as
    ``mnpar.torch.backward()``.

    Args:
        tensors: where to start: a tensor or several.
        grad_tensors: their gradients; None where a tensor has one element.
        retain_graph: keep the graph, and what it needs to communicate, for another backward; the
            same on all ranks.
        create_graph: make the gradients differentiable themselves; the same on all ranks.

    Raises:
        TypeError: something else than a tensor is among ``tensors``; RuntimeError: an earlier
            backward has used up the graph; MismatchError: another rank, from
            which a gradient comes, runs a pass of another kind.

    Example:
        >>> import torch, mnpar, mnpar.torch as mt
        >>> def program(comm):
        ...     x = torch.tensor([1.0, 2.0], requires_grad=True)
        ...     if comm.rank == 0:
        ...         mt.send(x, comm, 1)
        ...         mt.backward()
        ...         return x.grad
        ...     y = mt.recv(comm, 0)
        ...     mt.backward((y * y).sum())
        >>> mnpar.run(program, ranks=2)[0]
        tensor([2., 4.])
    """
    roots, gradients = _paired(tensors, grad_tensors)
    with _visiting(create_graph if retain_graph is None else retain_graph) as history:
        if len(history):
            roots.append(history.token)
            gradients.append(torch.zeros(0))
        if roots:
            torch.autograd.backward(roots, gradients, retain_graph, create_graph)


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """Return the derivative of the sum of ``outputs`` with respect to each of ``inputs``, as
    :func:`torch.autograd.grad`, and visit all communications.

    Every rank calls it; those without outputs and inputs call ``mnpar.torch.grad([], [])``.

    Args:
        outputs: where to start.
        inputs: of which the derivatives are wanted.
        grad_outputs, retain_graph, create_graph: as in :func:`backward`.

    Returns:
        A tensor for each input, None where no output of any rank depends on it.

    Example:
        >>> import torch, mnpar, mnpar.torch as mt
        >>> def program(comm):
        ...     x = torch.tensor(3.0, requires_grad=True)
        ...     y = mt.allreduce(comm, x * x)
        ...     (g,) = mt.grad(y, x, create_graph=True)
        ...     (gg,) = mt.grad(g, x)
        ...     return g.item(), gg.item()
        >>> mnpar.run(program, ranks=2)
        [(12.0, 4.0), (12.0, 4.0)]
    """
    roots, gradients = _paired(outputs, grad_outputs)
    wanted = _as_list(inputs)
    count = len(wanted)
    with _visiting(create_graph if retain_graph is None else retain_graph) as history:
        if len(history):
            roots.append(history.token)
            gradients.append(torch.zeros(0))
            # all communications lie between the latest token and the first
            wanted.append(history.root)
        if not (roots and wanted):
            return (None,) * count
        found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            roots, wanted, gradients, retain_graph, create_graph, allow_unused=True
        )
    return found[:count]


def _paired(
    tensors: Tensors, gradients: Gradients
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return tensors and their gradients as lists of one length."""
    roots = _as_list(tensors)
    if gradients is None:
        return roots, [None] * len(roots)
    given = [gradients] if isinstance(gradients, torch.Tensor) else list(gradients)
    if len(given) != len(roots):
        raise ValueError(f"{len(roots)} tensors have {len(given)} gradients")
    return roots, given


def _as_list(tensors: Tensors) -> list[torch.Tensor]:
    """Return one tensor, or several, as a list.

    Raises:
        TypeError: something else is among them.
    """
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    several = hasattr(tensors, "__iter__") and not hasattr(tensors, "dtype")
    listed = list(tensors) if several else [tensors]
    for x in listed:
        if not isinstance(x, torch.Tensor):
            instead = ": mnpar.backward takes Variables" if isinstance(x, Variable) else ""
            raise TypeError(f"mnpar.torch differentiates tensors, not {type(x).__name__}{instead}")
    return listed


@contextmanager
def _visiting(keeps: bool) -> Iterator[History]:
    """Run a pass of backward; after an error its history is forgotten."""
    history = current_history()
    history.keeps, history.begun = keeps, len(history)
    try:
        yield history
    except BaseException:
        history.clear()
        raise
    finally:
        history.keeps, history.begun = False, None
