"""How bytes get from rank to rank: the small protocol behind every communicator.

A transport knows neither Variables nor shapes nor what a gradient is: :class:`Channel` builds all communications on these
methods, so each of them is written, and proved, once for processes, threads and a single rank.
Each transport has two lanes, forward and backward: a rank that is still in forward can never take a gradient for its data.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mnpar.backend import Array
from mnpar.communicators.message import SIZE

ANY = -1  # any source, any tag
BLOCK = 512  # bytes of the opening of a collective: a header, and the value itself where it fits
ROOM = BLOCK - SIZE
FORWARD, BACKWARD = 0, 1


class Waiting(NamedTuple):
    """What a rank waits for; shown when it waits too long."""

    what: str  # "recv", "gradient of allreduce"
    site: str
    peer: int | None = None  # None: all ranks of the communicator
    tag: int = 0
    seq: int = 0

    def __str__(self) -> str:
        whom = "" if self.peer is None else f" from {'any rank' if self.peer == ANY else f'rank {self.peer}'}"
        tag = f", tag {self.tag}" if self.peer is not None and self.tag != ANY else ""
        return f"{self.what}{whom}{tag} at {self.site}"


class Transport(Protocol):
    """A group of ranks. Arrays here are one-dimensional, contiguous and on the host.

    Every method but ``post`` is collective or waits, and all of them wait politely: signals, errors of other ranks and the
    search for deadlocks get through.
    """

    rank: int
    size: int
    tag_limit: int  # the largest tag
    name: str

    def post(self, frame: Array, dest: int, tag: int, lane: int) -> None:
        """Start sending bytes and return at once; ``frame`` belongs to the transport from now on."""

    def fetch(self, source: int, tag: int, lane: int, waiting: Waiting) -> tuple[Array, int, int]:
        """Wait for the oldest matching message; its bytes, source and tag."""

    def complain(self, rank: int, text: str) -> None:
        """Have a rank raise MismatchError with this text when it next waits: what it sent does not belong."""

    def exchange(self, block: bytes, lane: int, waiting: Waiting) -> bytes:
        """Every rank gives ``BLOCK`` bytes; every rank gets all of them, in rank order."""

    def bcast(self, array: Array, root: int, lane: int, waiting: Waiting) -> None:
        """Fill ``array`` with the root's."""

    def allgather(self, array: Array, counts: list[int], lane: int, waiting: Waiting) -> Array:
        """The bytes of all ranks, joined; ``counts[r]`` of them are rank r's."""

    def reduce(self, array: Array, reduction: str, root: int | None, lane: int, waiting: Waiting) -> Array:
        """The elementwise reduction over ranks; on ``root`` alone, or everywhere (None)."""

    def split(self, color: int | None, key: int) -> Transport | None:
        """The group of those who gave the same color, ordered by (key, rank)."""

    def places(self) -> tuple[int, int, int, int]:
        """intra_rank, intra_size, inter_rank, inter_size: the rank on its machine, and the machine among the machines."""

    def finalize(self) -> None:
        """Give the group's resources back."""
