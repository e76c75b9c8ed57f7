"""The adjoint of a collective that is waited for later.

Ranks finish such collectives each in an order of its own, so they start the adjoints in different orders, perhaps with a
blocking collective in between: nothing of it can be one of MPI's collectives, its opening neither.
"""

from __future__ import annotations

import numpy as np

from mnpar.communicators.channel import Channel
from mnpar.communicators.transport import ANY, BACKWARD, OPENING, Steps, Waiting


class Answer(Channel):
    """A channel for one collective only.

    Args:
        channel: of its order.
        number: of the collective whose adjoint it is; its own is the next, which is odd, and so no other's.
    """

    by_messages = True

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__(channel.transport, channel.order)
        self._collectives = number | 1

    def _hear(self, block: bytes, waiting: Waiting) -> Steps[bytes]:
        transport, tag, blocks = self.transport, self.reply_tag(waiting.seq, OPENING), []
        for rank in self.others():
            transport.post(np.frombuffer(block, np.uint8), rank, tag, BACKWARD)
        for rank in range(transport.size):
            if rank == transport.rank:
                blocks.append(block)
            else:
                letter = yield from self._letter(rank, tag, BACKWARD, waiting._replace(peer=rank, tag=ANY))
                blocks.append((yield from transport.read(letter, BACKWARD, waiting)).tobytes())
        return b"".join(blocks)
