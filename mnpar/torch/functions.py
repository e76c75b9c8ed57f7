"""mnpar's communications as functions of PyTorch's tensors, with their own arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from mnpar import functions as F
from mnpar.torch.bridge import run

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

P = ParamSpec("P")


def on_tensors(function: Callable[P, Any]) -> Callable[P, Any]:
    """Return the function of tensors that does what a function of Variables does.

    Args:
        function: of mnpar.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        return run(function, *args, **kwargs)

    call.__module__ = __name__
    call.__annotations__ = {}
    call.__doc__ = _DOC.format(name=function.__name__)
    return call


_DOC = """:func:`mnpar.functions.{name}` of tensors.

The arguments are the same, with tensors in place of Variables, and so is the result.

Raises:
    TypeError: a tensor has a dtype that numpy does not have, or is sparse.
"""


def send(x: Any, communicator: Communicator, rank: int, tag: int = 0) -> None:
    """:func:`mnpar.functions.send` of tensors; backward receives their gradients.

    Args:
        x: a tensor, or a tuple, list or dict of them.
        communicator: the ranks among which ``rank`` counts.
        rank: who calls :func:`recv`.
        tag: distinguishes messages between the same ranks.

    Example:
        See :func:`mnpar.torch.backward`.
    """
    run(F.send, x, communicator, rank, tag)


recv = on_tensors(F.recv)
sendrecv = on_tensors(F.sendrecv)
shift = on_tensors(F.shift)

bcast = on_tensors(F.bcast)
reduce = on_tensors(F.reduce)
gather = on_tensors(F.gather)
scatter = on_tensors(F.scatter)
allgather = on_tensors(F.allgather)
reduce_scatter = on_tensors(F.reduce_scatter)
allreduce = on_tensors(F.allreduce)
alltoall = on_tensors(F.alltoall)
scan = on_tensors(F.scan)
exscan = on_tensors(F.exscan)

copy_to = on_tensors(F.copy_to)
reduce_from = on_tensors(F.reduce_from)

exchange = on_tensors(F.exchange)
halo_exchange = on_tensors(F.halo_exchange)
repartition = on_tensors(F.repartition)
