"""One update of a mesh whose communications are checked: which ranks share samples and a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.functions.communication.base import Communication
    from mnpar.link import Link


class MeshUpdate:
    """An update of a mesh whose communications are checked.

    Args:
        ranks: those that have samples and a loss in common with this one, by their numbers in the
            world.
        everyone: all of the mesh.
        model: the link that is updated.
    """

    def __init__(self, ranks: Sequence[int], everyone: Sequence[int], model: Link) -> None:
        self.ranks = frozenset(ranks)
        self.everyone = frozenset(everyone)
        self.model = model

    def shares_samples(self, comm: Communicator) -> bool:
        """Return whether all ranks of a communicator have the same samples as this rank."""
        return self.ranks.issuperset(comm.transport.world_ranks)

    def mixes_samples(self, comm: Communicator) -> bool:
        """Return whether a communicator lies in the mesh and has ranks with other samples."""
        return not self.shares_samples(comm) and self.everyone.issuperset(
            comm.transport.world_ranks
        )

    def depends_on_parameter(self, function: Communication) -> bool:
        """Return whether this rank's inputs of a function may depend on a parameter of the model.

        A gradient of data updates nothing. A value that came from another rank, or was computed
        outside the graph, may depend on a parameter.
        """
        params = {param.node for param in self.model.params(include_uninit=False)}
        nodes = [*function.inputs]
        seen = set()
        while nodes:
            node = nodes.pop()
            if node in params:
                return True
            creator = node.creator
            if creator is None or creator.number in seen:
                continue
            seen.add(creator.number)
            if creator.opaque or (creator.communicates and not creator.inputs):
                return True
            nodes += [x for x in (*creator.inputs, *creator.extra_inputs) if x.requires_grad]
        return False
