"""The adjoint of a non-blocking collective: made of point-to-point messages alone.

MPI matches the collectives of a communicator by the order in which they are started. But ranks
complete their non-blocking collectives in different orders, and so start the adjoints in different
orders, perhaps with a blocking collective in between. So neither the opening of such an adjoint nor
its values can go by MPI's collectives: messages carry the number of the collective, and are matched
by it.
"""

from __future__ import annotations

import numpy as np

from mnpar.communicators.channel import Channel
from mnpar.communicators.transport import ANY, BACKWARD, OPENING, Steps, Waiting


class AdjointChannel(Channel):
    """A channel for one adjoint only.

    Args:
        channel: of the same order of differentiation.
        number: of the collective whose adjoint this is. All of these are even: the adjoint has the
            odd number after it.
    """

    by_messages = True

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__(channel.transport, channel.order)
        self._collectives = number | 1

    def _hear(self, block: bytes, waiting: Waiting) -> Steps[bytes]:
        transport = self.transport
        tag = self.reply_tag(waiting.seq, OPENING)
        blocks = []
        for rank in self.others():
            transport.post(np.frombuffer(block, np.uint8), rank, tag, BACKWARD)
        for rank in range(transport.size):
            if rank == transport.rank:
                blocks.append(block)
            else:
                letter = yield from self._letter(
                    rank, tag, BACKWARD, waiting._replace(peer=rank, tag=ANY)
                )
                blocks.append((yield from transport.read(letter, BACKWARD, waiting)).tobytes())
        return b"".join(blocks)
