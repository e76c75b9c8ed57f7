"""Ways to spread a model over ranks."""

from mnpar.parallel.multi_node_chain_list import MultiNodeChainList

__all__ = ["MultiNodeChainList"]
