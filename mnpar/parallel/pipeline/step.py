"""One batch on its way through a pipeline: the actions of a rank, and what becomes of their
gradients, losses and reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mnpar.autograd.engine import DeferredGradients, apply_hooks
from mnpar.autograd.graph import Gradient, VariableNode
from mnpar.autograd.observer import observer
from mnpar.autograd.tape import current_tape
from mnpar.backend import Array, add_gradients
from mnpar.configuration import is_recording, recording
from mnpar.function_hook import around_vjp, function_hooks
from mnpar.functions import concat
from mnpar.parallel.pipeline.lockstep import backward_in_lockstep
from mnpar.parallel.pipeline.schedules import Action, Schedule
from mnpar.parallel.pipeline.shared_weights import Shared, set_aside, sum_gradients
from mnpar.parallel.pipeline.stage import MicroBatch, RematerializedMicroBatch, StageMessages
from mnpar.reporter import get_current_reporter
from mnpar.variable import Variable, as_variable

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a stage, for one micro-batch


@dataclass(frozen=True)
class LocalStages:
    """The stages of a rank, and how it runs them.

    Args:
        schedule: of all ranks.
        messages: between the stages.
        calls: what each stage of this rank computes, by its number.
        recompute, late_weights, lockstep: as :class:`mnpar.Pipeline` has them.
    """

    schedule: Schedule
    messages: StageMessages
    calls: Mapping[int, Callable[..., Any]]
    recompute: bool
    late_weights: bool
    lockstep: bool

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return what this rank does, in order."""
        return self.schedule.actions[self.messages.comm.rank]

    @property
    def last(self) -> int:
        """The number of the last stage of all."""
        return self.schedule.stages - 1

    @cached_property
    def groups(self) -> list[list[Action]]:
        """The actions of this rank, grouped into those that are done together."""
        return [list(group) for _, group in itertools.groupby(self.actions, self._company)]

    def _company(self, action: Action) -> Any:
        kind, stage, _ = action
        if kind == "W":
            return kind
        together = self.lockstep and kind in "BI" and stage == self.last
        return (kind, stage) if together else action


class MicroBatchGradients:
    """Adds the gradients of all micro-batches to those that leaves have; hooks of a leaf are called
    once, when all gradients are there.
    """

    def __init__(self) -> None:
        # with the sums that hooks are to get, apart from the gradients that are there already
        self._sums: dict[VariableNode, Gradient | None] = {}
        self._taken: set[int] = set()

    def add(self, node: VariableNode, g: Gradient) -> None:
        """Add the gradient of one micro-batch."""
        if any([not hook.after for hook in node.hooks]):
            before = self._sums.get(node)
            self._sums[node] = g if before is None else add_gradients(before, g)
        else:
            self._sums[node] = None
            self._accumulate(node, g)

    def _accumulate(self, node: VariableNode, g: Any) -> None:
        if node.grad_slot is not None and node.grad_slot.accumulate(node, g):
            return
        if node.gradient is not None:
            node.gradient = add_gradients(node.gradient, g)
        else:
            # functions pass arrays on
            node.gradient = g.copy() if id(g) in self._taken or g.base is not None else g
            self._taken.add(id(node.gradient))

    def expect(self, nodes: Iterable[VariableNode]) -> None:
        """Name leaves whose gradients come from other ranks too, perhaps only from there."""
        for node in nodes:
            self._sums.setdefault(node, None)

    def finish(self, loss_scale: float | None, share: Callable[[], None]) -> None:
        """Add what waits for hooks, call ``share``, and then the hooks that want final
        gradients.
        """
        for node, total in self._sums.items():
            if total is not None:
                self._accumulate(node, apply_hooks(node, total))
        share()
        for node in self._sums:
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
        stages: of this rank.
        arguments: what each stage is called with, for each micro-batch.
        weights: the share of each micro-batch in the mean.
        shared: parameters that stages share.
        finished: called with the step after its last action.
    """

    size = 1
    xp = np
    dtype = np.dtype(np.float64)

    def __init__(
        self,
        stages: LocalStages,
        arguments: dict[int, list[Arguments]],
        weights: list[float],
        shared: Sequence[Shared],
        finished: Callable[[Step], None],
    ) -> None:
        self.stages, self.arguments, self.weights = stages, arguments, weights
        self.shared, self.finished = shared, finished
        self.array = np.zeros((), self.dtype)
        self.grad: Any = None
        self.most_in_flight = 0
        self._in_flight: dict[tuple[int, int], MicroBatch] = {}  # by stage and number
        self._deferred: dict[tuple[int, int], list[DeferredGradients]] = {}  # until their W
        self._due: list[DeferredGradients] = []
        self._gradients = MicroBatchGradients()
        self._losses: dict[int, Any] = {}
        self._observations: list[tuple[int, dict[str, Any]]] = []
        self._done = False

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
        if self._done:
            raise RuntimeError(
                "this batch went through the pipeline already: call the pipeline again"
            )
        self._done = True
        watching = observer()
        if watching is not None:
            watching.backward_begins()
        if self.grad is None:
            self.grad = 1.0 if loss_scale is None else loss_scale
        kept = set_aside(self.shared)
        with recording(True):
            for group in self.stages.groups:
                self.act(*group)
        self._compute_due()
        self._gradients.expect([parameter.node for _, parameter in self.shared])
        self._gradients.finish(loss_scale, lambda: sum_gradients(self.shared, kept))
        current_tape().crossed = {self.stages.messages.comm: ("Pipeline", "")}
        self.finished(self)
        if watching is not None:
            loss = self.mean_loss()
            watching.backward_ends([] if loss is None else [(loss, self.grad)], loss_scale)

    def forward(self) -> Any:
        """Run the forwards alone, and return the last stage's results as those of the whole batch;
        None on other ranks.
        """
        for action in self.stages.actions:
            if action.kind == "F":
                self.act(action)
        self.finished(self)
        last = [one for (stage, _), one in sorted(self._in_flight.items()) if stage == self.last]
        return joined([one.result for one in last], self.weights)

    @property
    def last(self) -> int:
        """The number of the last stage of all."""
        return self.stages.last

    def act(self, *actions: Action) -> None:
        """Do an action of the schedule, or several together."""
        kind = actions[0].kind
        keys = [(action.stage, action.micro_batch) for action in actions]
        if kind == "F":
            self._forward(*keys[0])
        elif kind == "W":
            for key in keys:
                self._due += self._deferred.pop(key)
        else:
            later = self._due if kind == "B" else self._defer(keys)
            self._backward([self._in_flight.pop(key) for key in keys], later)
        if not self.stages.late_weights and kind in "BW":
            self._compute_due()
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight) + len(self._deferred))

    def _defer(self, keys: Sequence[tuple[int, int]]) -> list[DeferredGradients]:
        """Return the list in which the weights' gradients of some micro-batches wait for the action
        W of the last of them.
        """
        for key in keys:
            self._deferred[key] = []
        return self._deferred[keys[-1]]

    def _backward(self, micro_batches: list[MicroBatch], later: list[DeferredGradients]) -> None:
        if len(micro_batches) == 1:
            (one,) = micro_batches
            one.backward(self._seeds(one), self._collect, later)
            return
        tapes = [one.tape for one in micro_batches]
        for found in backward_in_lockstep(tapes, list(map(self._seeds, micro_batches)), later):
            self._collect(found)

    def _forward(self, stage: int, index: int) -> None:
        stages = self.stages
        rerun = stages.recompute and is_recording()
        make = RematerializedMicroBatch if rerun else MicroBatch
        args, kwargs = self.arguments[stage][index]
        micro_batch = make(stages.messages, stage, index, stages.calls[stage], args, kwargs)
        reporter = get_current_reporter()
        if reporter is None:
            micro_batch.forward()
        else:
            observation: dict[str, Any] = {}
            with reporter.scope(observation):
                micro_batch.forward()
            self._observations.append((index, observation))
        self._in_flight[stage, index] = micro_batch
        if stage == self.last:
            if not self.weights[index]:
                micro_batch.result = None  # of no examples
            self._losses[index] = micro_batch.result

    def _seeds(self, micro_batch: MicroBatch) -> list[tuple[VariableNode, Gradient]]:
        """Return where the backward of a micro-batch starts: in the last stage, from its share of
        the loss.
        """
        loss = micro_batch.result
        if micro_batch.stage != self.last or loss is None or not float(self.grad):
            return []  # (a loss that does not count may be NaN)
        loss = as_variable(loss)
        if loss.size != 1:
            raise ValueError(
                f"the last stage returned an array of shape {loss.shape}: to be trained it "
                "returns a loss, a scalar"
            )
        seed = self.weights[micro_batch.index] * float(self.grad)
        return [(loss.node, loss.xp.full(loss.shape, seed, loss.dtype))]

    def _collect(self, found: dict[Any, Gradient]) -> None:
        """Add the gradients of leaves that a backward found, apart from those that are deferred."""
        for node, g in found.items():
            if node.requires_grad:
                self._gradients.add(node, g)

    def _compute_due(self) -> None:
        """Compute the gradients of weights that are due; for several micro-batches in one product
        where that is possible.
        """
        groups: dict[Any, list[DeferredGradients]] = {}
        for i, one in enumerate(self._due):
            joins = not one.leaves[0] and one.gys[0] is not None
            key = (one.function.join_key() if joins else None) or i
            groups.setdefault(key, []).append(one)
        self._due.clear()
        hooks = function_hooks()
        with recording(False):
            for group in groups.values():
                function, gys, leaves = group[0]
                if len(group) > 1:
                    others = [one.function for one in group[1:]]
                    function, gys = function.join(others, [one.gys[0] for one in group])
                vjp = function.vjp if not hooks else around_vjp(function, hooks)
                vjp(gys, leaves, False, self._gradients.add)

    def mean_loss(self) -> Array | None:
        """Return the mean of the losses, an array; None where there are none."""
        losses = {m: as_variable(y) for m, y in sorted(self._losses.items()) if y is not None}
        if not losses or any(y.size != 1 for y in losses.values()):
            return None
        first, *others = [y.array * self.weights[m] for m, y in losses.items()]
        return sum(others, first)

    def observation(self) -> dict[str, Any]:
        """Return the mean over micro-batches of each value that stages reported.

        A pair (value, weight) counts by its own weight; the weights are added up.
        """
        totals: dict[str, tuple[Any, Any, bool]] = {}
        for index, found in self._observations:
            share = self.weights[index]
            for name, value in found.items() if share else ():
                paired = isinstance(value, tuple)
                value, weight = value if paired else (value, share)
                value = value.array if isinstance(value, Variable) else value
                total, before, _ = totals.get(name, (0.0, 0.0, paired))
                totals[name] = total + value * weight, before + weight, paired
        means = {}
        for name, (total, weight, paired) in totals.items():
            mean = total / weight if weight else total
            means[name] = (mean, weight) if paired else mean
        return means


def joined(results: Sequence[Any], weights: Sequence[float]) -> Any:
    """Return the results of all micro-batches as one of the whole batch: joined along the first
    axis, of scalars the mean. Micro-batches without examples have None.
    """
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
