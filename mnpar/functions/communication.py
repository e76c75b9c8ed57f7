"""What differentiable communications share (laws 1 to 4).

A communication is linear in what it moves, so its gradient is the adjoint communication: who received, sends. Each class here
and in point_to_point.py and collective.py names its adjoint in ``backward``, one order of differentiation further, and the
adjoint is itself such a class: gradients of gradients need nothing more. Each order has its own messages (``Channel``).
The ranks agree, by what their messages say, whether a gradient will flow; if it will, all of them put the communication on
their tapes and all of them visit it in backward, those without a gradient saying so in a short message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mnpar.communicators.message import Call, call_site
from mnpar.config import is_recording
from mnpar.function_node import FunctionNode

if TYPE_CHECKING:
    from mnpar.communicators.channel import Channel
    from mnpar.communicators.communicator import Communicator


class Communication(FunctionNode):
    """A function that speaks to other ranks.

    Args:
        comm: the communicator.
        of: the communication whose gradient this one carries, None in forward.
    """

    generic = True
    communicates = True
    op: ClassVar[str]

    def __init__(self, comm: Communicator, of: Communication | None = None) -> None:
        self.comm = comm
        self.order: int = 0 if of is None else of.order + 1
        self.site: str = call_site() if of is None else of.site

    @property
    def label(self) -> str:
        return f"{'gradient of ' * self.order}{self.op} at {self.site} (rank {self.comm.rank})"

    @property
    def channel(self) -> Channel:
        """The messages of this order."""
        return self.comm.channel(self.order)

    def call(self, root: int = 0, reduction: str = "sum") -> Call:
        """What this rank's messages say of it."""
        recording = is_recording()
        return Call(self.op, self.site, self.differentiable and recording, recording, root, reduction, self.order)

    def agreed(self, y: Any, wants: bool) -> Any:
        """The outputs, after all ranks have said whether they want a gradient."""
        self.differentiable = wants and is_recording()
        return y

    def adjoint(self, function: Communication, *gys: Any) -> tuple[Any, ...]:
        """Run the adjoint: recorded if this backward is, else on the bare arrays."""
        if not is_recording():
            gxs = function.forward(*gys)
            return gxs if isinstance(gxs, tuple) else (gxs,)
        return function.apply(gys)
