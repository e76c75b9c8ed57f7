"""Batches of examples: on one rank, read ahead by threads or processes, the same on all ranks, in
one order on all ranks.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.dataset import Iterator as Iterator
    from mnpar.iterators.multi_node_iterator import (
        MultiNodeIterator as MultiNodeIterator,
        create_multi_node_iterator as create_multi_node_iterator,
    )
    from mnpar.iterators.multiprocess_iterator import MultiprocessIterator as MultiprocessIterator
    from mnpar.iterators.multithread_iterator import MultithreadIterator as MultithreadIterator
    from mnpar.iterators.order_samplers import (
        OrderSampler as OrderSampler,
        ShuffleOrderSampler as ShuffleOrderSampler,
    )
    from mnpar.iterators.serial_iterator import SerialIterator as SerialIterator
    from mnpar.iterators.synchronized_iterator import (
        create_synchronized_iterator as create_synchronized_iterator,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
