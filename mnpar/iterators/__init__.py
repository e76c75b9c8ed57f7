"""Batches of examples: on one rank, read ahead by threads or processes, the same on all ranks, in
one order on all ranks.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.dataset import Iterator
    from mnpar.iterators.multi_node_iterator import MultiNodeIterator, create_multi_node_iterator
    from mnpar.iterators.multiprocess_iterator import MultiprocessIterator
    from mnpar.iterators.multithread_iterator import MultithreadIterator
    from mnpar.iterators.order_samplers import OrderSampler, ShuffleOrderSampler
    from mnpar.iterators.serial_iterator import SerialIterator
    from mnpar.iterators.synchronized_iterator import create_synchronized_iterator
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "Iterator",
    "MultiNodeIterator",
    "MultiprocessIterator",
    "MultithreadIterator",
    "OrderSampler",
    "SerialIterator",
    "ShuffleOrderSampler",
    "create_multi_node_iterator",
    "create_synchronized_iterator",
]
