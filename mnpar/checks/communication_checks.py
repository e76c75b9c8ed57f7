"""CommunicationChecks: the checks of this package as the hook that communications call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from mnpar.checks import double_count_checks, replication_checks
from mnpar.functions.communication.base import set_debug_hook, using_communication_hook

if TYPE_CHECKING:
    from mnpar.backend import Array
    from mnpar.checks.mesh_update import MeshUpdate
    from mnpar.communicators.communicator import Communicator
    from mnpar.communicators.wire import Call
    from mnpar.functions.communication.base import Communication
    from mnpar.variable import Variable


class CommunicationChecks:
    """A :class:`mnpar.functions.communication.base.CommunicationHook` that raises MismatchError, on
    all ranks, where ranks own something together that is not the same on each, or count it twice.

    Args:
        update: the update of a mesh in which it is installed; None: debug mode, without a mesh.
    """

    def __init__(self, update: MeshUpdate | None = None) -> None:
        self.update = update

    def check_inputs(self, function: Communication, xs: tuple[Array | None, ...]) -> None:
        """Check what a communication is about to carry, by what its inputs should be."""
        match function.inputs_are:
            case "copies":
                replication_checks.check_copies(self.update, function, xs[0])
            case "parts":
                double_count_checks.check_parts(self.update, function, xs[0])
            case "terms":
                double_count_checks.check_sum(self.update, function, xs)

    def asks(self, comm: Communicator) -> bool:
        """Return whether collectives of a communicator that are awaited later ask a question."""
        return double_count_checks.asks(self.update, comm)

    def question(
        self, function: Communication, xs: tuple[Array | None, ...]
    ) -> tuple[Array, Call] | None:
        """Return what to tell the other ranks of such a collective, and the message's header."""
        row = double_count_checks.question(self.update, function, xs)
        return None if row is None else (row, replication_checks.call_of_check(function, True))

    def judge(self, function: Communication, answers: tuple[Array, ...]) -> None:
        """Judge what all ranks told."""
        double_count_checks.judge(function, answers)

    def check_arguments(self, comm: Communicator, who: str, given: Mapping[str, Any]) -> None:
        """Check that all ranks call ``who`` with the same arrays."""
        replication_checks.check_arguments(self.update, comm, who, given)

    def check_blocks(self, comm: Communicator, who: str, what: str, x: Variable) -> None:
        """Check that no rank gives ``who`` a whole array in place of its block."""
        double_count_checks.check_blocks(self.update, comm, who, what, x)

    def check_terms(self, comm: Communicator, who: str, x: Any) -> None:
        """Check that no parameter that all ranks have alike is a term of each rank's part."""
        double_count_checks.check_terms(self.update, comm, who, x)

    def describe_copies(self, function: Communication, x: Array | None) -> Array | None:
        """Return what to compare of a copy in backward; None: nothing, on all ranks."""
        return replication_checks.describe_copies(function, x)

    def compare_copies(self, function: Communication, adjoint: Communication, mine: Array) -> None:
        """Check what the ranks have described."""
        replication_checks.compare_copies(function, adjoint, mine)

    def check_loss(self, comm: Communicator, loss: Any) -> None:
        """Check that no term of a common loss counts once for each rank."""
        double_count_checks.check_loss(self.update, comm, loss)


def checking(update: MeshUpdate) -> AbstractContextManager[None]:
    """Check communications inside a ``with`` block; all ranks of the mesh do the same."""
    return using_communication_hook(CommunicationChecks(update))


set_debug_hook(CommunicationChecks())
