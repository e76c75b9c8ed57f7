"""One batch on its way through a pipeline: the actions of a rank, and what becomes of their
gradients, losses and reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mnpar.autograd.engine import DeferredGradients, apply_hooks
from mnpar.autograd.graph import Gradient, VariableNode
from mnpar.backend import add_gradients
from mnpar.configuration import is_recording, recording
from mnpar.function_hook import around_vjp, function_hooks
from mnpar.functions import concat
from mnpar.functions.connection.linear import Linear
from mnpar.parallel.pipeline.lockstep import reverse_abreast
from mnpar.parallel.pipeline.schedules import Action
from mnpar.parallel.pipeline.stage import Frugal, Visit
from mnpar.reporter import get_current_reporter, report
from mnpar.variable import Variable, as_variable

Piece = tuple[tuple[Any, ...], dict[str, Any]]  # what a stage is called with, of one micro-batch


class Leaves:
    """Adds the gradients of all micro-batches to what the leaves have; hooks hear of a leaf once,
    when all are there.
    """

    def __init__(self) -> None:
        self._touched: dict[
            VariableNode, Gradient
        ] = {}  # with the sums that hooks are to hear, apart from what is there
        self._taken: set[int] = set()

    def add(self, node: VariableNode, g: Gradient) -> None:
        """One micro-batch's gradient."""
        if any([not hook.after for hook in node.hooks]):
            before = self._touched.get(node)
            self._touched[node] = g if before is None else add_gradients(before, g)
        else:
            self._touched[node] = None
            self._keep(node, g)

    def _keep(self, node: VariableNode, g: Gradient) -> None:
        if node.grad_slot is not None and node.grad_slot.accumulate(node, g):
            return
        if node.gradient is not None:
            node.gradient = add_gradients(node.gradient, g)
        else:
            # functions pass arrays on
            node.gradient = g.copy() if id(g) in self._taken or g.base is not None else g
            self._taken.add(id(node.gradient))

    def expect(self, nodes: Iterable[VariableNode]) -> None:
        """Leaves whose gradients come from elsewhere too, perhaps only from there."""
        for node in nodes:
            self._touched.setdefault(node, None)

    def finish(self, loss_scale: float | None, share: Callable[[], None] = lambda: None) -> None:
        """All gradients are there; ``share`` is called when they are in their places, before
        anybody hears that they are.
        """
        for node, total in self._touched.items():
            if total is not None:
                self._keep(node, apply_hooks(node, total))
        share()
        for node in self._touched:
            node.loss_scale = loss_scale
            for hook in node.hooks:
                if hook.after:
                    hook.function(node)


class Step:
    """One batch on its way: ``backward()`` runs the schedule, as a loss's would, and adds to the
    gradients of the parameters.

    An optimizer calls it; without one, ``pipeline(x, t).backward()`` does the same. To an optimizer
    it looks like a loss whose value is not known yet: a scalar, from whose ``grad`` backward
    starts.

    Args:
        pipeline, pieces, weights: its stages, what they are called with, and each micro-batch's
            share of the mean.
    """

    size = 1
    xp = np
    dtype = np.dtype(np.float64)

    def __init__(self, pipeline: Any, pieces: dict[int, list[Piece]], weights: list[float]) -> None:
        self.pipeline, self.pieces, self.weights = pipeline, pieces, weights
        self.last = pipeline.schedule.stages - 1
        self.visits: dict[tuple[int, int], Visit] = {}
        self.owed: dict[tuple[int, int], list[DeferredGradients]] = {}
        self.due: list[DeferredGradients] = []
        self.leaves = Leaves()
        self.observed: list[dict[str, Any]] = []
        self.losses: dict[int, Any] = {}
        self.most = 0  # graphs at once
        self.array = np.zeros((), self.dtype)
        self.grad: Any = None
        self.done = False

    def backward(
        self,
        retain_grad: bool = False,
        enable_double_backprop: bool = False,
        loss_scale: float | None = None,
        *,
        retain_tape: bool = False,
    ) -> None:
        """Run all actions of this rank; all ranks call it.

        Args:
            loss_scale: as :func:`mnpar.backward` has it; the other arguments are for what a
                pipeline cannot do.

        Raises:
            RuntimeError: it ran before; ValueError: gradients were to be kept, or to be
                differentiated themselves.
        """
        if retain_grad or enable_double_backprop or retain_tape:
            raise ValueError(
                "a pipeline frees each micro-batch after its backward: neither graphs nor "
                "gradients can be kept"
            )
        if self.done:
            raise RuntimeError(
                "this batch went through the pipeline already: call the pipeline again"
            )
        self.done = True
        if self.grad is None:
            self.grad = 1.0 if loss_scale is None else loss_scale
        before = self.pipeline.put_aside()
        with recording(True):
            for together in self.pipeline.runs:
                self.act(*together)
        self._weights()
        self.leaves.expect([param.node for param in self.pipeline.tied])
        self.leaves.finish(loss_scale, lambda: self.pipeline.share_gradients(before))
        self.report()

    def act(self, *actions: Action) -> None:
        """One action of the schedule, or several together."""
        kind = actions[0].kind
        keys = [action[1:] for action in actions]
        late = self.pipeline.late_weights
        if kind == "F":
            self._forward(*keys[0])
        elif kind == "W":
            for key in keys:
                self.due += self.owed.pop(key)
        else:
            self._backward(
                [self.visits.pop(key) for key in keys], self.due if kind == "B" else self._owe(keys)
            )
        if not late and kind in "BW":
            self._weights()
        self.most = max(self.most, len(self.visits) + len(self.owed))

    def _owe(self, keys: Sequence[Any]) -> list[DeferredGradients]:
        """The list in which the weights' gradients of some micro-batches wait for the action W of
        the last of them.
        """
        for key in keys:
            self.owed[key] = []
        return self.owed[keys[-1]]

    def _backward(self, visits: list[Visit], owed: list[DeferredGradients]) -> None:
        """The backward of one micro-batch, or of several abreast."""
        if len(visits) == 1:
            visits[0].backward(self._seeds(visits[0]), self._collect, owed)
            return
        for found in reverse_abreast(
            [visit.tape for visit in visits], list(map(self._seeds, visits)), owed
        ):
            self._collect(found)

    def _forward(self, stage: int, m: int) -> None:
        pipeline = self.pipeline
        kind = Frugal if pipeline.recompute and is_recording() else Visit
        visit = kind(pipeline.messages, stage, m, pipeline._calls[stage], *self.pieces[stage][m])
        reporter = get_current_reporter()
        found = {"": m}
        if reporter is None:
            visit.forward()
        else:
            with reporter.scope(found):  # what the stage reports of a micro-batch, apart
                visit.forward()
            self.observed.append(found)
        self.visits[stage, m] = visit
        if stage == self.last:
            visit.result = visit.result if self.weights[m] else None  # of no examples
            self.losses[m] = visit.result

    def _seeds(self, visit: Visit) -> list[tuple[VariableNode, Gradient]]:
        """Where the backward of a micro-batch starts: in the last stage from its share of the
        loss.
        """
        loss = visit.result
        if visit.stage != self.last or loss is None or not float(self.grad):
            return []  # (a loss that does not count may be NaN)
        loss = as_variable(loss)
        if loss.size != 1:
            raise ValueError(
                f"the last stage returned an array of shape {loss.shape}: to be trained it "
                "returns a loss, a scalar"
            )
        return [
            (
                loss.node,
                loss.xp.full(
                    loss.shape, self.weights[visit.micro_batch] * float(self.grad), loss.dtype
                ),
            )
        ]

    def _collect(self, found: dict[Any, Gradient]) -> None:
        """Add the gradients of leaves that a backward has found: those that were not put off."""
        for node, g in found.items():
            if node.requires_grad:
                self.leaves.add(node, g)

    def _weights(self) -> None:
        """Compute the gradients of weights that are due; for several micro-batches in one product
        where that is possible.
        """
        groups: dict[Any, list[DeferredGradients]] = {}
        for i, one in enumerate(self.due):
            joins = type(one.function) is Linear and not one.leaves[0] and one.gys[0] is not None
            groups.setdefault(tuple(map(id, one.function.inputs[1:])) if joins else i, []).append(
                one
            )
        self.due.clear()
        hooks = function_hooks()
        with recording(False):
            for group in groups.values():
                function, gys, leaves = group[0]
                if len(group) > 1:
                    function, gy = Linear.joined(
                        [one.function for one in group], [one.gys[0] for one in group]
                    )
                    gys = [gy]
                vjp = function.vjp if not hooks else around_vjp(function, hooks)
                vjp(gys, leaves, False, self.leaves.add)

    def results(self) -> list[Visit]:
        """The last stage's visits in order; none on other ranks."""
        return [visit for (stage, _), visit in sorted(self.visits.items()) if stage == self.last]

    def report(self) -> None:
        """What is known of the batch at its end: its loss, and the means over micro-batches of what
        stages reported.
        """
        pipeline = self.pipeline
        pipeline.most_in_flight = max(pipeline.most_in_flight, self.most)
        losses = {m: as_variable(y).array for m, y in sorted(self.losses.items()) if y is not None}
        mean = None
        if losses and all(y.size == 1 for y in losses.values()):
            terms = [y * self.weights[m] for m, y in losses.items()]
            mean = sum(terms[1:], terms[0])
        pipeline.loss = mean
        reporter = get_current_reporter()
        if reporter is None:
            return
        reporter.observation.update(means(self.observed, self.weights))
        if mean is not None:
            report({"loss": mean}, pipeline)


def means(observed: Sequence[dict[str, Any]], weights: Sequence[float]) -> dict[str, Any]:
    """The mean of each value over micro-batches; pairs (value, weight) count by their own weights,
    which are added up.
    """
    totals: dict[str, tuple[Any, Any, bool]] = {}
    for found in observed:
        share = weights[found.pop("")]
        for name, value in found.items() if share else ():
            paired = isinstance(value, tuple)
            value, weight = value if paired else (value, share)
            value = value.array if isinstance(value, Variable) else value
            total, before, _ = totals.get(name, (0.0, 0.0, paired))
            totals[name] = total + value * weight, before + weight, paired
    results = {}
    for name, (total, weight, paired) in totals.items():
        mean = total / weight if weight else total
        results[name] = (mean, weight) if paired else mean
    return results


def joined(results: Sequence[Any], weights: Sequence[float]) -> Any:
    """The results of all micro-batches as the whole batch's; those without examples have None."""
    there = [(y, w) for y, w in zip(results, weights, strict=False) if y is not None]
    if not there:
        return None
    if isinstance(there[0][0], tuple):
        columns = zip(*[y for y, _ in there], strict=True)
        return tuple([joined(column, [w for _, w in there]) for column in columns])
    ys = [as_variable(y) for y, _ in there]
    if ys[0].ndim:
        return concat(ys, axis=0)
    terms = [y * y.dtype.type(w) for y, (_, w) in zip(ys, there, strict=True)]
    return sum(terms[1:], terms[0])
