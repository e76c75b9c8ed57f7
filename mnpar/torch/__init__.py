"""mnpar's communications on PyTorch's tensors: ``import mnpar.torch as mt``.

A model stays a PyTorch program; what crosses ranks is a function of this package, with gradients of
any order, over mnpar's communicators. ``mt.backward(loss)`` takes the place of
``loss.backward()``: on each rank it visits all communications, in the reverse of their order.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.torch.functions import (
        allgather as allgather,
        allreduce as allreduce,
        alltoall as alltoall,
        bcast as bcast,
        copy_to as copy_to,
        exchange as exchange,
        exscan as exscan,
        gather as gather,
        halo_exchange as halo_exchange,
        recv as recv,
        reduce as reduce,
        reduce_from as reduce_from,
        reduce_scatter as reduce_scatter,
        repartition as repartition,
        scan as scan,
        scatter as scatter,
        send as send,
        sendrecv as sendrecv,
        shift as shift,
    )
    from mnpar.torch.passes import backward as backward, grad as grad
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
