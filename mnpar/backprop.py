"""Reverse mode: the one loop that walks the graph and the tape of communications backwards.

A rank's backward visits functions in exactly the reverse of the order in which they ran there (law
3): every function takes a number from one clock, and the largest comes first (gradients.py). The
functions that communicate are also kept on a tape, and each of them is visited whether a gradient
reached it or not (law 4): a peer may be waiting for it. Reversing the order of a forward that ended
cannot deadlock, because sends never block: docs/backward_order.md has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mnpar.config import recording
from mnpar.function_hook import around_pull, function_hooks
from mnpar.gradients import Gradients, leave
from mnpar.graph import Gradient, Owed, VariableNode, put_off
from mnpar.reach import leads_to
from mnpar.tape import current_tape


def reverse(
    seeds: Sequence[tuple[VariableNode, Gradient]],
    targets: Sequence[VariableNode] | None = None,
    *,
    record: bool = False,
    retain_grad: bool = False,
    retain_tape: bool = False,
    keep: Callable[[VariableNode, Gradient], None] | None = None,
    later: list[Owed] | None = None,
) -> dict[Any, Gradient]:
    """Walk the graph backwards from ``seeds``, and the current tape with it.

    ``seeds`` are variables with the gradients they start from. Only gradients that ``targets`` need
    are computed (None: those of every leaf that requires one). ``record`` makes the backward
    differentiable itself; ``retain_grad`` leaves gradients on the intermediate variables;
    ``retain_tape`` keeps the tape; ``keep`` is called with each leaf that has hooks and its final
    gradient; ``later`` collects gradients of leaves to compute afterwards. Returns all other
    gradients, by ``node.key``.
    """
    tape = current_tape().finished()
    hooks = function_hooks()
    meanwhile = tape.meanwhile
    stays = {node.key for node in targets or () if node.creator is not None}
    wants = (
        None if targets is None else leads_to(targets, [node for node, _ in seeds], tape.records)
    )
    sums = Gradients(record, tape.records, stays, keep, later is not None)
    try:
        with recording(record):
            sums.start(seeds)
            for function, gys in sums:
                if retain_grad:
                    leave(function, gys)
                wanted = []
                for x in function.inputs:
                    wanted.append(x.requires_grad if wants is None else wants(x))
                wanted = wanted if later is None else put_off(function, gys, wanted, later)
                # else none of its gradients would be used
                if function.communicates or True in wanted:
                    (around_pull(function, hooks) if hooks else function.pull)(
                        gys, wanted, record, sums.add
                    )
                    for go_on in meanwhile:
                        go_on()
    except BaseException:
        tape.clear()  # some of them were visited, and nobody can visit them again
        raise
    if not (record or retain_tape):
        tape.clear()
    return sums.totals
