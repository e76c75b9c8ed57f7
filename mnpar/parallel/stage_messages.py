"""The messages between the stages of a pipeline: which rank, and which tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mnpar.functions import recv, send
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class StageMessages:
    """The stages of a pipeline in order, and the messages between them.

    Args:
        comm: of the pipeline alone.
        where: the rank of each stage.
        micro_batches: M.
        skips: whether stages compute nothing for a micro-batch without examples.
    """

    def __init__(
        self, comm: Communicator, where: Sequence[int], micro_batches: int, skips: bool = True
    ) -> None:
        self.comm = comm
        self.where = where
        self.M = micro_batches
        self.skips = skips
        # which of its rank's stages
        self._places = [list(where[:stage]).count(rank) for stage, rank in enumerate(where)]
        self._most = 1 + max(self._places)

    def tag(self, source: int, dest: int, micro_batch: int, tag: int) -> int:
        """A tag for each pair of stages and micro-batch, so that messages match in whatever order a
        schedule sends them.
        """
        return (
            (tag * self._most + self._places[source]) * self._most + self._places[dest]
        ) * self.M + micro_batch

    def send(self, value: Any, source: int, dest: int, micro_batch: int, tag: int = 0) -> None:
        """Start sending to a stage: a Variable, a tuple of them, or nothing (None)."""
        self._check(source, dest, source)
        send(
            () if value is None else value,
            self.comm,
            self.where[dest],
            self.tag(source, dest, micro_batch, tag),
        )

    def recv(self, source: int, dest: int, micro_batch: int, tag: int = 0) -> tuple[Variable, ...]:
        """Receive what a stage sent."""
        self._check(source, dest, dest)
        values: tuple[Variable, ...] = recv(
            self.comm,
            self.where[source],
            tag=self.tag(source, dest, micro_batch, tag),
            force_tuple=True,
        )
        return values

    def _check(self, source: int, dest: int, me: int) -> None:
        stages = len(self.where)
        if not 0 <= source < dest < stages:
            other = source + dest - me
            way = (
                f"gives to later stages, not to {other}"
                if me == source
                else f"takes from earlier stages, not from {other}"
            )
            raise ValueError(f"stage {me} of 0 to {stages - 1} {way}")
