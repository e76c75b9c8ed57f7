"""Checkpoints of the state of all ranks: written atomically, checked by digests, read by any number
of ranks.

``save`` and ``load`` take objects that have ``serialize``, and keep a directory of checkpoints by
step; ``save_folder`` and ``load_folder`` take a name of your own;
``create_multi_node_checkpointer`` is ChainerMN's extension for a Trainer, made of them. Read
manifest.py (what is stored), store.py (how it is on the disk), saving.py and loading.py in this
order.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.checkpoint.chainermn import (
        MultiNodeCheckpointer as MultiNodeCheckpointer,
        create_multi_node_checkpointer as create_multi_node_checkpointer,
    )
    from mnpar.checkpoint.loading import load as load, load_folder as load_folder
    from mnpar.checkpoint.preemption import Notice as Notice
    from mnpar.checkpoint.retention import collect_garbage as collect_garbage, steps as steps
    from mnpar.checkpoint.saving import save as save, save_folder as save_folder
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
