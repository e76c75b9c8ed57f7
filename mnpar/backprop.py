"""Reverse mode: the one loop that walks the graph and the tape of communications backwards.

A rank's backward visits functions in exactly the reverse of the order in which they ran there (law 3): every function takes
a number from one clock, and a heap pops the largest first. The functions that communicate are also kept on a tape, and each
of them is visited whether a gradient reached it or not (law 4): a peer may be waiting for it. Reversing the order of a forward
that ended cannot deadlock, because sends never block: docs/backward_order.md has the argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from mnpar.config import recording
from mnpar.function_hook import around_backward, function_hooks
from mnpar.gradients import Gradients
from mnpar.graph import Gradient, Owed, VariableNode, put_off
from mnpar.reach import leads_to
from mnpar.tape import current_tape


def reverse(
    seeds: Sequence[tuple[VariableNode, Gradient]], targets: Sequence[VariableNode] | None = None, *, record: bool = False,
    retain_grad: bool = False, retain_tape: bool = False, keep: Callable[[VariableNode, Gradient], None] | None = None,
    later: list[Owed] | None = None,
) -> dict[Any, Gradient]:  # fmt: skip
    """Walk the graph backwards from ``seeds``, and the current tape with it.

    ``seeds`` are variables with the gradients they start from. Only what leads to ``targets`` is computed (None: to every leaf
    that requires a gradient). ``record`` makes the backward differentiable itself; ``retain_grad`` leaves gradients on the
    intermediate variables; ``retain_tape`` keeps the tape; ``keep`` takes the gradients of leaves with hooks as soon as they
    are final; ``later`` takes all that leaves wait for. Returns the gradients of other leaves and targets, by their ``key``.
    """
    tape, hooks = current_tape().finished(), function_hooks()
    functions = {f.number: f for f in tape.records}
    heap = sorted(-number for number in functions)
    sums = Gradients(record, functions, keep)
    wants = attrgetter("requires_grad") if targets is None else leads_to(targets, [node for node, _ in seeds], tape.records)
    stays = set() if targets is None else {node.key for node in targets}

    def deliver(node: VariableNode, g: Gradient) -> None:
        creator = node.creator
        if creator is not None and creator.number not in functions:
            if creator.communicates:
                raise RuntimeError(_SPENT.format(creator.label))
            functions[creator.number] = creator
            heapq.heappush(heap, -creator.number)
        sums.add(node, g)

    with recording(record), tape.replayed():
        for node, seed in seeds:
            deliver(node, seed)
        while heap:
            function = functions[-heapq.heappop(heap)]
            if sums.awaited:
                sums.passed(function.number + 1)
            gys = [sums.pop((function.number, i), stays) for i in range(len(function.outputs))]
            if retain_grad:
                for node, gy in zip([reference() for reference in function.outputs], gys, strict=True):
                    if node is not None:  # somebody holds it still; a copy, because functions pass arrays on
                        node.gradient = gy if record or gy is None else gy.copy()
            wanted = [wants(x) for x in function.inputs]
            wanted = wanted if later is None else put_off(function, gys, wanted, later)
            if function.communicates or any(wanted):  # no: what is asked for lies after it
                gxs = function.pull(gys, wanted, record)
                gxs = around_backward(function, gys, gxs, hooks) if hooks else gxs
                for x, gx in zip(function.inputs, gxs, strict=True):
                    if gx is not None:
                        deliver(x, gx)
                for go_on in tape.meanwhile:
                    go_on()
        sums.passed(0)
    if not (record or retain_tape):
        tape.records.clear()
    return sums.totals


_SPENT = (
    "backward reached {}, which was replayed already or is on another tape: start from all losses at once with "
    "mnpar.backward([loss1, loss2]), keep the tape with retain_tape=True, or give each forward its own `with mnpar.Tape():`"
)
