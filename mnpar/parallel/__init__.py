"""Models spread over ranks: as a list of parts, and as copies that learn together, or each for itself and agreeing at times."""

from mnpar.parallel.agreement import ParameterCheck, broadcast_model, check_parameter_closeness
from mnpar.parallel.averaging import ElasticAveraging, ParameterAveraging, ParameterServer
from mnpar.parallel.data_parallel import create_multi_node_optimizer
from mnpar.parallel.distributed import DistributedDataParallel
from mnpar.parallel.multi_node_chain_list import MultiNodeChainList
from mnpar.parallel.reducing import (
    CoalescingReducer,
    InlineReducer,
    allreduce_gradients,
    allreduce_multiple,
    allreduce_parameters,
    distribute_module_grads,
)

__all__ = [
    "CoalescingReducer",
    "DistributedDataParallel",
    "ElasticAveraging",
    "InlineReducer",
    "MultiNodeChainList",
    "ParameterAveraging",
    "ParameterCheck",
    "ParameterServer",
    "allreduce_gradients",
    "allreduce_multiple",
    "allreduce_parameters",
    "broadcast_model",
    "check_parameter_closeness",
    "create_multi_node_optimizer",
    "distribute_module_grads",
]
