"""Checkpoints of the state of all ranks: written atomically, checked by digests, read by any number
of ranks.

``save`` and ``load`` take objects that have ``serialize``, and keep a directory of checkpoints by
step; ``save_folder`` and ``load_folder`` one of a name of your own;
``create_multi_node_checkpointer`` is ChainerMN's extension for a Trainer, made of them.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.checkpoint.collecting import collect_garbage, steps
    from mnpar.checkpoint.loading import load, load_folder
    from mnpar.checkpoint.multi_node_checkpointer import (
        MultiNodeCheckpointer,
        create_multi_node_checkpointer,
    )
    from mnpar.checkpoint.notice import Notice
    from mnpar.checkpoint.saving import save, save_folder
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "MultiNodeCheckpointer",
    "Notice",
    "collect_garbage",
    "create_multi_node_checkpointer",
    "load",
    "load_folder",
    "save",
    "save_folder",
    "steps",
]
