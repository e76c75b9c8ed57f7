"""Backward of several micro-batches of a stage in lockstep, so that linear layers with the same
weights share one product.

OpenBLAS takes two thirds of the time of a product of 50 rows for one of 25, because the other
matrix has to be read and packed in both. The results are the same; the rows of several
micro-batches only stand in one array while they are multiplied.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mnpar.autograd.engine import BackwardWalk, DeferredGradients, defer_leaves
from mnpar.autograd.graph import Function, Gradient, VariableNode
from mnpar.autograd.tape import Tape
from mnpar.backend import Array
from mnpar.configuration import recording
from mnpar.function_hook import around_vjp, function_hooks

Seeds = Iterable[tuple[VariableNode, Gradient]]
# a function to visit, with the gradients of its outputs, on each tape; None at a tape's end
Row = Sequence[tuple[Function, list[Gradient | None]] | None]


def backward_in_lockstep(
    tapes: Sequence[Tape], seeds: Sequence[Seeds], later: list[DeferredGradients]
) -> list[dict[Any, Gradient]]:
    """Run :func:`mnpar.autograd.engine.run_backward` of several tapes at the same time: a function
    of each, then the next of each.

    It is right only where no function waits for another rank's answer to what a later function
    sends: in the last stage of a pipeline.

    Args:
        tapes: each is visited in its own order.
        seeds: where the backward of each tape starts.
        later: gets what is to be computed for weights.

    Returns:
        The gradients that each tape gives to leaves.
    """
    sums = [BackwardWalk(tape.complete().records, partial=True) for tape in tapes]
    for gradients, start in zip(sums, seeds, strict=True):
        for node, seed in start:
            gradients.add(node, seed)
    try:
        with recording(False):
            for row in itertools.zip_longest(*sums):
                if None not in row and _can_join(row):
                    _visit_joined(row, sums, later)
                else:
                    _visit_each(row, sums, tapes, later)
    finally:  # after an error, too: some were visited, and nobody can visit them again
        for tape in tapes:
            tape.clear()
    return [gradients.totals for gradients in sums]


def _visit_each(
    row: Row,
    sums: Sequence[BackwardWalk],
    tapes: Sequence[Tape],
    later: list[DeferredGradients],
) -> None:
    for visit, gradients, tape in zip(row, sums, tapes, strict=True):
        if visit is not None:
            function, gys = visit
            wanted = defer_leaves(function, gys, [x.requires_grad for x in function.inputs], later)
            if function.communicates or True in wanted:
                with tape:
                    _vjp_of(function)(gys, wanted, False, gradients.add)


def _vjp_of(function: Function) -> Callable[..., None]:
    hooks = function_hooks()
    return around_vjp(function, hooks) if hooks else function.vjp


def _can_join(row: Sequence[Any]) -> bool:
    """Return whether the functions can be joined, and the gradients of their first inputs are
    wanted, the other inputs being leaves.
    """
    key = row[0][0].join_key()
    for function, (gy, *_) in row:
        if key is None or gy is None or function.join_key() != key:
            return False
        x, *weights = function.inputs
        if (
            x.creator is None
            or not x.requires_grad
            or any([w.creator is not None for w in weights])
        ):
            return False
    return True


def _visit_joined(
    row: Sequence[Any], sums: Sequence[BackwardWalk], later: list[DeferredGradients]
) -> None:
    """Visit linear layers that share a matrix: one product for all of them."""
    functions: list[Any] = [function for function, _ in row]
    whole, whole_gys = functions[0].join(functions[1:], [gys[0] for _, gys in row])
    x = VariableNode(whole._kept_inputs[0], True)
    weights = functions[0].inputs[1:]
    whole.inputs = x, *weights
    leaves = [False, *[w.requires_grad for w in weights]]
    if True in leaves:
        later.append(DeferredGradients(whole, whole_gys, leaves))

    def add_gradient(_: VariableNode, gx: Array) -> None:
        start = 0
        for function, gradients in zip(functions, sums, strict=True):
            x = function.inputs[0]
            gradients.add(x, gx[start : start + x.shape[0]])
            start += x.shape[0]

    _vjp_of(whole)(whole_gys, [True] + [False] * len(weights), False, add_gradient)
