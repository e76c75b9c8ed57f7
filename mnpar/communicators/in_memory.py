"""A communicator's methods that use shared memory: to allocate it, and to sum arrays in it without
messages.

``allreduce_noted`` is a sum in whose message each rank also sends a short *note*. By the notes of
all ranks they decide whether to sum at all: so a step of the multi-node optimizer agrees on what it
does and sums the gradients in one message, not two.
"""

from __future__ import annotations

from collections.abc import Callable

from mnpar.backend import Array
from mnpar.communicators.board import NOTE, Board
from mnpar.communicators.message import UPDATE
from mnpar.communicators.objects import Objects
from mnpar.communicators.shared_memory import SharedMemory
from mnpar.communicators.shared_vectors import Vectors, share_vectors


class InMemory(Objects):
    """The methods of a communicator that use shared memory where its ranks have any."""

    def share(self, nbytes: int) -> SharedMemory:
        """Allocate memory, ``nbytes`` zeros, that the ranks of each machine share
        (:class:`mnpar.SharedData`); all call it.
        """
        self._now(self.channel(0).barrier(self._call("share")))
        return self.transport.share(nbytes)

    def allreduce_noted(
        self, x: Array, note: bytes, usual: Callable[[list[bytes]], bool], out: Array
    ) -> bool:
        """The sum over ranks, written to ``out`` if the notes that the ranks send with it are as
        usual; returns whether.

        Args:
            x: an array, of one shape and dtype on all ranks unless the notes are unusual.
            note: this rank's: bytes, as many on all ranks, at most 256.
            usual: called with the notes in rank order, and returns the same on all ranks: False,
                and nothing is summed.
            out: an array like ``x``, or ``x`` itself.

        Raises:
            ValueError: the note is longer.

        Example:
            >>> import numpy as np, mnpar
            >>> def program(comm):
            ...     x = np.ones(2)
            ...     comm.allreduce_noted(
            ...         x, b"no" if comm.rank else b"ok", lambda notes: b"no" not in notes, x
            ...     )
            ...     return bool(x[0] > 1)
            >>> mnpar.run(program, ranks=2)
            [False, False]
        """
        if len(note) > NOTE:
            raise ValueError(f"rank {self.rank}: a note has at most {NOTE} bytes, not {len(note)}")
        board = self.transport.board
        channel = self.channel(0)
        if board is not None and out is x and (form := board.form(x)) is not None:
            board.begin(form, x, note, channel)
            if (summed := board.end(usual, x, channel)) is not None:
                return bool(summed)
        return channel.allreduce_noted(x, self._call(UPDATE), note, usual, out)

    def open_board(self, wanted: bool = True) -> bool:
        """Let :meth:`allreduce_noted` sum in shared memory, where all ranks have it in common; all
        ranks call it.

        Args:
            wanted: False: by messages again.

        Returns:
            Whether it does: the ranks are processes of one machine, and their MPI is not Open MPI.
            Arrays of more than 32 KiB go by messages nevertheless, but for those of
            :meth:`share_vectors`.
        """
        transport = self.transport
        if transport.board is not None and not wanted:
            self._now(self._barrier())
            transport.board.free()
            transport.board = None
        elif transport.board is None and wanted and transport.adds_up:
            transport.board = Board(transport, self.share(Board.size(self.size)))  # type: ignore[arg-type]
        return transport.board is not None

    def share_vectors(self, like: Array) -> Vectors | None:
        """A vector for each rank in shared memory, where :meth:`allreduce_noted` sums them in
        place.

        Args:
            like: one-dimensional; all ranks call it with arrays of one form.

        Returns:
            None if there is no such memory.
        """
        if not self.open_board():
            return None
        vectors = share_vectors(self, like, self.channel(0).next_number)
        if vectors is not None:
            self.transport.board.know(vectors)
        return vectors
