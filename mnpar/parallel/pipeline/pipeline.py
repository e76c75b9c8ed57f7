"""Pipeline: a network cut into stages on ranks, and a batch cut into micro-batches that pass
through the stages one after another.

Every micro-batch in every stage has a tape of its own (stage.py), so a schedule is an order of
forwards and backwards and nothing more, and the gradients are those of one process whatever the
order is.

No accepted schedule can deadlock. An action waits only to receive, never to send, since a send
keeps a copy and returns. A forward receives from forwards of lower stages on the same micro-batch,
a backward from backwards of the higher stages to which its forward sent. The simulation carried out
all actions in an order in which every rank follows its list, and each action comes after the same
micro-batch's action in the neighbouring stage, hence after those in all stages on that side. In
that order, all messages for which an action waits are sent before it. So at any time the first
action that is not done can be done, until all are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from mnpar.chain import ChainList
from mnpar.communicators.communicator import require_communicator
from mnpar.configuration import is_recording
from mnpar.functions.communication.base import communication_hook
from mnpar.link import GradientComms, Link
from mnpar.parallel.pipeline.layers import Makers, Stage, make_stages
from mnpar.parallel.pipeline.schedules import Schedule, make_schedule
from mnpar.parallel.pipeline.shared_weights import (
    Shared,
    check_owners,
    copy_values,
    share,
    tie,
)
from mnpar.parallel.pipeline.simulation import simulate
from mnpar.parallel.pipeline.stage import StageMessages
from mnpar.parallel.pipeline.step import Arguments, LocalStages, Step
from mnpar.parameter import Parameter
from mnpar.reporter import get_current_reporter, report
from mnpar.serializer import AbstractSerializer

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class Pipeline(ChainList):
    """This rank's stages of a network, run by a schedule; all ranks of ``comm`` make one, and call
    it together.

    Each stage is called with what the stage before it returned (one argument, or several if that
    was a tuple; the first stage: none) and then with the rank's own part of the batch. Usually the
    first stage's rank has the inputs, the last one's the labels, and its stage returns the loss, a
    mean over the micro-batch; ranks between are called without arguments
    (:func:`mnpar.create_empty_dataset`). A stage may also send to any later one, by
    :func:`mnpar.parallel.send_to_stage`.

    It is a link, for an optimizer: ``optimizer.update(pipeline, x, t)`` runs the schedule.
    Gradients are those of the mean loss over the whole batch, whatever the sizes of the
    micro-batches are. Under ``no_backprop_mode`` it runs the forwards only, and returns on the last
    stage's rank what the stage returned for the whole batch.

    Args:
        comm: as many ranks as the schedule has.
        stage: a link or a function; a list of them where the schedule has several stages on a rank,
            in order.
        schedule: a key of ``mnpar.parallel.SCHEDULES``, such as ``'1f1b'``, or a
            :class:`Schedule`.
        micro_batches: M, or their sizes. A batch of N examples is cut into M pieces that differ by
            one at most.
        labels: where one rank has the first stage and the last, how many of its last arguments are
            for the last stage.
        recompute: keep only what stages receive, and compute everything else again in backward.
        shared: names of parameters that several ranks have: all start from those of the first such
            rank, and all get the sum of the gradients of all. (Stages of one rank may simply use
            the same link.)
        late_weights: put the gradients of weights off to the end of the batch, where one product
            gives those of all micro-batches: much faster where these are small, and the stages
            before wait less; it keeps the inputs of all layers with weights, and the gradients of
            their outputs. None: with GPipe, which keeps all inputs anyway.
        abreast: let backwards of the last stage that follow each other in the schedule go function
            by function, where one product gives the gradients of a linear layer's inputs for all of
            them: faster where micro-batches are small and the last stage sets the pace, but the
            stage before gets the first of them later. Not with ``recompute``.

    Attributes:
        loss: the mean loss of the last batch, an array, on the last stage's rank; None elsewhere.
        most_in_flight: how many graphs this rank kept at once, so far.

    Raises:
        ValueError: the schedule cannot be run, or is for other numbers of ranks, stages or
            micro-batches.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> from mnpar.parallel import Pipeline
        >>> def program(comm):
        ...     stage = L.Linear(2, 4) if comm.rank == 0 else L.Classifier(L.Linear(4, 3))
        ...     pipeline = Pipeline(comm, stage, "1f1b", micro_batches=4)
        ...     optimizer = mnpar.optimizers.SGD().setup(pipeline)
        ...     data = np.ones((10, 2), "f4") if comm.rank == 0 else np.zeros(10, int)
        ...     optimizer.update(pipeline, data)
        ...     return pipeline.most_in_flight
        >>> mnpar.run(program, ranks=2)
        [2, 1]
    """

    def __init__(
        self,
        comm: Communicator,
        stage: Any,
        schedule: str | Schedule = "1f1b",
        micro_batches: int | Sequence[int] = 1,
        *,
        labels: int = 1,
        recompute: bool = False,
        shared: Mapping[str, Parameter] | None = None,
        late_weights: bool | None = None,
        abreast: bool = False,
    ) -> None:
        require_communicator(comm, "Pipeline(comm, stage, schedule)")
        stages = list(stage) if isinstance(stage, list | tuple) else [stage]
        super().__init__(*[one for one in stages if isinstance(one, Link)])
        self.sizes = None if isinstance(micro_batches, Integral) else _sizes(micro_batches)
        M = int(micro_batches) if self.sizes is None else len(self.sizes)  # type: ignore[arg-type]
        self.schedule = (
            make_schedule(schedule, comm.size, M) if isinstance(schedule, str) else schedule
        )
        self.labels, self.recompute = labels, recompute
        self.late_weights = self.schedule.name == "gpipe" if late_weights is None else late_weights
        self.abreast = abreast and not recompute
        # how many arguments of the model the first layer has, where each rank is called with all
        self._inputs: int | None = None
        self.loss: Any = None
        self.most_in_flight = 0
        self.micro_batches = M
        simulate(self.schedule)  # it raises an error for a schedule that cannot be run
        self._mine = self.schedule.stages_of(comm.rank)
        self._check(comm, stages)
        everyone = comm.split(0, comm.rank)
        assert everyone is not None
        meets = any([comm.size > 1 for link in self.links() for comm in link.batch_comms])
        self.messages = StageMessages(
            everyone, self.schedule.where, M, skips=not any(everyone.allgather_obj(meets))
        )
        self._stages = LocalStages(
            self.schedule,
            self.messages,
            dict(zip(self._mine, stages, strict=True)),
            recompute,
            self.late_weights,
            self.abreast,
        )
        self._tied: list[Shared] = share(everyone, shared or {}, {})

    def gradient_comms(self) -> GradientComms:
        """Add the ranks that have the other stages, and the weights that stages share."""
        comms = super().gradient_comms().add(self.messages.comm, holds="stages")
        return comms._replace(tied=tuple(self._tied))

    @classmethod
    def of(
        cls,
        comm: Communicator,
        layers: Makers,
        schedule: str | Schedule = "1f1b",
        micro_batches: int | Sequence[int] = 1,
        *,
        sizes: Sequence[int] | None = None,
        tied: Mapping[str, str] | None = None,
        inputs: int = 1,
        **options: Any,
    ) -> Pipeline:
        """Return the pipeline of a model that is a list of named layers.

        The layers are cut into the schedule's stages; on a single rank there may be one. Every rank
        calls the pipeline like the model, ``pipeline(x, t)``: x goes to the first layer, t to the
        last one; a rank may give None for an argument that it does not need. Each layer is made on
        the rank that has it, and its parameters have the paths of the whole model: so checkpoints
        fit any number of stages, and :func:`mnpar.initializers.initialize_by_path` gives all of
        them the same weights.

        Args:
            comm, schedule, micro_batches, options: as the class has them.
            layers: functions that make the layers, by name. Each layer is called with the result of
                the one before (several arguments, if it is a tuple); the last one with the labels
                too.
            sizes: how many layers each stage has; None: as equal as can be.
                (:func:`mnpar.parallel.balance` gives them.)
            tied: weights that are those of an earlier layer, path by path: ``{"/head/W":
                "/embed/W"}``.
            inputs: how many arguments of the model are for the first layer.

        Raises:
            ValueError: the layers cannot be cut so, or there is no such weight.

        Example:
            >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
            >>> layers = {
            ...     "one": lambda: L.Linear(2, 4),
            ...     "tanh": lambda: F.tanh,
            ...     "two": lambda: L.Classifier(L.Linear(4, 3)),
            ... }
            >>> def program(comm):
            ...     pipeline = mnpar.Pipeline.of(comm, layers, micro_batches=2)
            ...     return [path for path, _ in pipeline.namedparams()]
            >>> mnpar.run(program, ranks=2)
            [['/one/W', '/one/b'], ['/two/predictor/W', '/two/predictor/b']]
        """
        require_communicator(comm, "Pipeline.of(comm, layers, schedule)")
        if isinstance(schedule, str):
            M = micro_batches if isinstance(micro_batches, int) else len(micro_batches)
            schedule = make_schedule(schedule, comm.size, M)
        stages = make_stages(layers, schedule.stages, schedule.stages_of(comm.rank), sizes, inputs)
        check_owners([*layers], tied or {})
        elsewhere, shared, owned = tie(stages, tied or {})
        pipeline = cls(comm, stages, schedule, micro_batches, **options)
        pipeline._tied = share(pipeline.messages.comm, shared, owned)
        pipeline._inputs = inputs
        if elsewhere is not None:
            pipeline.insert(0, elsewhere)
        return pipeline

    def _named_children(self) -> Iterator[tuple[str, Link]]:
        for name, stage in super()._named_children():
            yield from stage._named_children() if isinstance(stage, Stage) else [(name, stage)]

    @property
    def tied(self) -> list[Parameter]:
        """This rank's parameters whose gradients are summed over stages."""
        return [parameter for _, parameter in self._tied]

    def _check(self, comm: Communicator, stages: list[Any]) -> None:
        plan = self.schedule
        if (plan.ranks, plan.micro_batches) != (comm.size, self.micro_batches):
            raise ValueError(
                f"schedule {plan.name!r} is for {plan.ranks} ranks and {plan.micro_batches} "
                "micro-batches, but the pipeline "
                f"has {comm.size} ranks and {self.micro_batches} micro-batches"
            )
        if len(stages) != len(self._mine):
            raise ValueError(
                f"rank {comm.rank}: schedule {plan.name!r} puts the stages {self._mine} here, "
                f"but {len(stages)} were given: "
                f"give a list of {len(self._mine)}"
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the batch through the stages.

        Args:
            args, kwargs: this rank's part of the batch: arrays, whose first axis counts examples,
                or lists of examples.

        Returns:
            While gradients are recorded, a :class:`Step`, whose ``backward()`` runs forwards and
            backwards by the schedule; else the last stage's outputs, joined along the first axis
            (of losses the mean), and None on other ranks.

        Raises:
            ValueError: arguments of different lengths, or other than the micro-batches' sizes.
        """
        step = Step(self._stages, *self._cut(args, kwargs), self._tied, self._finish)
        hook = communication_hook()
        # of the whole model, of which each stage takes what it needs
        if self._inputs is not None and hook is not None:
            hook.check_arguments(
                self.messages.comm,
                type(self).__name__,
                {**{str(i): x for i, x in enumerate(args)}, **kwargs},
            )
        return step if is_recording() else step.forward()

    def _finish(self, step: Step) -> None:
        """Keep and report what is known of a batch at its end."""
        self.most_in_flight = max(self.most_in_flight, step.most_in_flight)
        self.loss = step.mean_loss()
        reporter = get_current_reporter()
        if reporter is not None:
            reporter.observation.update(step.observation())
            if self.loss is not None:
                report({"loss": self.loss}, self)

    def _cut(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[int, list[Arguments]], list[float]]:
        """Return what each stage is called with, and the weight of each micro-batch in the mean."""
        lengths = {
            len(x) for x in [*args, *kwargs.values()] if self._inputs is None or x is not None
        }
        if len(lengths) > 1:
            raise ValueError(
                f"rank {self.messages.comm.rank}: the arguments of a batch have different "
                f"lengths: {sorted(lengths)}"
            )
        M, N = self.micro_batches, max(lengths, default=0)
        sizes = self.sizes or [N // M + (i < N % M) for i in range(M)]
        if lengths and sum(sizes) != N:
            raise ValueError(
                f"a batch of {N} examples is not cut into micro-batches of {sizes}, which are "
                f"{sum(sizes)}"
            )
        bounds = [sum(sizes[:i]) for i in range(M + 1)]
        micro_batches: list[Arguments] = [
            (
                tuple([_rows(x, a, b) for x in args]),
                {name: _rows(x, a, b) for name, x in kwargs.items()},
            )
            for a, b in itertools.pairwise(bounds)
        ]
        weights = [size / max(N, 1) for size in sizes] if lengths else [1 / M] * M
        return self._distribute(micro_batches, len(args)), weights

    def _distribute(self, pieces: list[Arguments], n: int) -> dict[int, list[Arguments]]:
        """Return what each stage is called with, of n positional arguments of this rank."""
        by_stage: dict[int, list[Arguments]] = {
            stage: [((), {})] * self.micro_batches for stage in self._mine
        }
        last = self.schedule.stages - 1
        # each stage takes what it needs of the arguments of the whole model
        if self._inputs is not None and last > 0:
            if 0 in by_stage:
                by_stage[0] = [(args[: self._inputs], {}) for args, _ in pieces]
            if last in by_stage:
                by_stage[last] = [(args[self._inputs :], kwargs) for args, kwargs in pieces]
            return by_stage
        if len(self._mine) == 1:
            return {self._mine[0]: pieces}
        ends = self._mine[0] == 0, self._mine[-1] == last
        cut = n - self.labels if all(ends) else n
        by_stage[self._mine[-1 if ends == (False, True) else 0]] = [
            (args[:cut], kwargs) for args, kwargs in pieces
        ]
        if all(ends):
            by_stage[self._mine[-1]] = [(args[cut:], {}) for args, _ in pieces]
        return by_stage

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load as a link does; tell a checkpoint which parameters are those of this rank's
        stages alone.
        """
        super().serialize(serializer)
        if hasattr(serializer, "staged") and self.messages.comm.size > 1:
            serializer.staged(self, self.messages.comm.rank, self.tied)

    def share_values(self) -> None:
        """Give all copies of each shared parameter the values of the first, or of its owner; all
        ranks call it.
        """
        copy_values(self._tied)


def _sizes(micro_batches: Any) -> list[int]:
    sizes = list(micro_batches) if isinstance(micro_batches, Iterable) else [micro_batches]
    if any([not isinstance(size, Integral) or size < 0 for size in sizes]):
        raise ValueError(
            "micro_batches is how many there are, or the size of each, from 0 on: not "
            f"{micro_batches!r}"
        )
    return sizes


def _rows(x: Any, first: int, last: int) -> Any:
    return None if x is None else x[first:last]
