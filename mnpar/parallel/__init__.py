"""Models spread over ranks: as a list of parts, and as copies that learn together."""

from mnpar.parallel.agreement import broadcast_model, check_parameter_closeness
from mnpar.parallel.data_parallel import create_multi_node_optimizer
from mnpar.parallel.distributed import DistributedDataParallel
from mnpar.parallel.multi_node_chain_list import MultiNodeChainList

__all__ = [
    "DistributedDataParallel",
    "MultiNodeChainList",
    "broadcast_model",
    "check_parameter_closeness",
    "create_multi_node_optimizer",
]
