"""The communicator's methods for Python objects: ``send_obj`` and its like, pickled, between the
ranks of this job only.

Each stands for the method of arrays without the ``_obj``, and has a non-blocking twin with an ``i``
before its name, too.
"""

from __future__ import annotations

from typing import Any

from mnpar.communicators.calls import Calls
from mnpar.communicators.operation import Operation, no_steps
from mnpar.communicators.waiting import ANY


class Objects(Calls):
    """What a rank can do with objects on a communicator."""

    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Start sending any object that can be pickled."""
        self._send_obj(obj, dest, tag)

    def isend_obj(self, obj: Any, dest: int, tag: int = 0) -> Operation:
        """:meth:`send_obj`, for programs that expect an operation."""
        self._send_obj(obj, dest, tag)
        return self._later(no_steps())

    def recv_obj(self, source: int, status: Any = None, tag: int = ANY) -> Any:
        """Wait for an object; ``status``, if given, gets ``source`` and ``tag`` as attributes."""
        return self._now(self._recv_obj(source, status, tag))

    def irecv_obj(self, source: int, status: Any = None, tag: int = ANY) -> Operation:
        """:meth:`recv_obj`, later."""
        return self._later(self._recv_obj(source, status, tag))

    def sendrecv_obj(self, obj: Any, dest: int, source: int, tag: int = 0) -> Any:
        """Send an object to one rank and receive one from another."""
        return self._now(self._sendrecv_obj(obj, dest, source, tag))

    def isendrecv_obj(self, obj: Any, dest: int, source: int, tag: int = 0) -> Operation:
        """:meth:`sendrecv_obj`, later."""
        return self._later(self._sendrecv_obj(obj, dest, source, tag))

    def shift_obj(self, obj: Any, steps: int = 1) -> Any:
        """Hand an object round the ring: to rank + steps, from rank - steps. All ranks call it."""
        return self._now(self._shift_obj(obj, steps))

    def ishift_obj(self, obj: Any, steps: int = 1) -> Operation:
        """:meth:`shift_obj`, later."""
        return self._later(self._shift_obj(obj, steps))

    def bcast_obj(self, obj: Any = None, max_buf_len: int = 0, root: int = 0) -> Any:
        """The root's object on every rank. (``max_buf_len``, ChainerMN's, is not needed: give
        ``root`` by its name.)
        """
        return self._now(self._bcast_obj(obj, root))

    def ibcast_obj(self, obj: Any = None, max_buf_len: int = 0, root: int = 0) -> Operation:
        """:meth:`bcast_obj`, later."""
        return self._later(self._bcast_obj(obj, root, later=True))

    def gather_obj(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Every rank's object in rank order on the root; None elsewhere."""
        return self._now(self._gather_obj(obj, root))

    def igather_obj(self, obj: Any, root: int = 0) -> Operation:
        """:meth:`gather_obj`, later."""
        return self._later(self._gather_obj(obj, root, later=True))

    def allgather_obj(self, obj: Any) -> list[Any]:
        """Every rank's object in rank order on every rank."""
        return self._now(self._allgather_obj(obj))

    def iallgather_obj(self, obj: Any) -> Operation:
        """:meth:`allgather_obj`, later."""
        return self._later(self._allgather_obj(obj, later=True))

    def scatter_obj(self, objs: Any = None, root: int = 0) -> Any:
        """The root's ``objs[rank]`` on each rank."""
        return self._now(self._scatter_obj(objs, root))

    def iscatter_obj(self, objs: Any = None, root: int = 0) -> Operation:
        """:meth:`scatter_obj`, later."""
        return self._later(self._scatter_obj(objs, root, later=True))

    def alltoall_obj(self, objs: Any) -> list[Any]:
        """Rank r gets what each rank q has as its ``objs[r]``."""
        return self._now(self._alltoall_obj(objs))

    def ialltoall_obj(self, objs: Any) -> Operation:
        """:meth:`alltoall_obj`, later."""
        return self._later(self._alltoall_obj(objs, later=True))

    def allreduce_obj(self, obj: Any, op: str = "sum") -> Any:
        """The sum (``+``), ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` (``*``) of the ranks'
        objects, on every rank.
        """
        return self._now(self._allreduce_obj(obj, op))

    def iallreduce_obj(self, obj: Any, op: str = "sum") -> Operation:
        """:meth:`allreduce_obj`, later."""
        return self._later(self._allreduce_obj(obj, op, later=True))

    def reduce_obj(self, obj: Any, root: int = 0, op: str = "sum") -> Any:
        """The same as :meth:`allreduce_obj` on the root; None elsewhere."""
        return self._now(self._reduce_obj(obj, root, op))

    def ireduce_obj(self, obj: Any, root: int = 0, op: str = "sum") -> Operation:
        """:meth:`reduce_obj`, later."""
        return self._later(self._reduce_obj(obj, root, op, later=True))

    def reduce_scatter_obj(self, objs: Any, op: str = "sum") -> Any:
        """Rank r gets the reduction over ranks of their ``objs[r]``."""
        return self._now(self._reduce_scatter_obj(objs, op))

    def ireduce_scatter_obj(self, objs: Any, op: str = "sum") -> Operation:
        """:meth:`reduce_scatter_obj`, later."""
        return self._later(self._reduce_scatter_obj(objs, op, later=True))

    def scan_obj(self, obj: Any, op: str = "sum") -> Any:
        """The reduction of the objects of the ranks up to this one, its own included."""
        return self._now(self._scan_obj(obj, op, exclusive=False))

    def iscan_obj(self, obj: Any, op: str = "sum") -> Operation:
        """:meth:`scan_obj`, later."""
        return self._later(self._scan_obj(obj, op, exclusive=False, later=True))

    def exscan_obj(self, obj: Any, op: str = "sum") -> Any:
        """The reduction of the objects of the ranks before this one; None on rank 0."""
        return self._now(self._scan_obj(obj, op, exclusive=True))

    def iexscan_obj(self, obj: Any, op: str = "sum") -> Operation:
        """:meth:`exscan_obj`, later."""
        return self._later(self._scan_obj(obj, op, exclusive=True, later=True))
