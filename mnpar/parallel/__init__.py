"""Models spread over ranks: as parts, as stages of a pipeline, and as copies that learn together or
agree now and then.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.parallel.data.averaging import ElasticAveraging, ParameterAveraging, ParameterServer
    from mnpar.parallel.data.coalescing import (
        CoalescingReducer,
        InlineReducer,
        allreduce_gradients,
        allreduce_multiple,
        allreduce_parameters,
        distribute_module_grads,
    )
    from mnpar.parallel.data.communicator_methods import bcast_data, multi_node_mean_grad
    from mnpar.parallel.data.consistency import ParameterCheck, check_parameter_closeness
    from mnpar.parallel.data.ddp import DistributedDataParallel
    from mnpar.parallel.data.multi_node_optimizer import create_multi_node_optimizer
    from mnpar.parallel.data.placement import Placement
    from mnpar.parallel.data.replicas import broadcast_model
    from mnpar.parallel.ensemble.ensemble import Answers, Ensemble
    from mnpar.parallel.ensemble.tournament import Round
    from mnpar.parallel.mesh import Mesh
    from mnpar.parallel.multi_node_chain_list import MultiNodeChainList
    from mnpar.parallel.pipeline.partition import balance, measure
    from mnpar.parallel.pipeline.pipeline import Pipeline
    from mnpar.parallel.pipeline.schedules import (
        SCHEDULES,
        Action,
        Schedule,
        eager,
        gpipe,
        interleaved,
        make_schedule,
        one_f_one_b,
        own_schedule,
        zb1p,
        zbv,
    )
    from mnpar.parallel.pipeline.simulation import Simulation, draw, simulate
    from mnpar.parallel.pipeline.stage import recv_from_stage, send_to_stage
    from mnpar.parallel.pipeline.step import Step
    from mnpar.parallel.spmd.parallel_function import ParallelFunction, parallel_function
    from mnpar.parallel.spmd.shared_data import SharedData
    from mnpar.parallel.spmd.shared_variable import SharedVariable
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "SCHEDULES",
    "Action",
    "Answers",
    "CoalescingReducer",
    "DistributedDataParallel",
    "ElasticAveraging",
    "Ensemble",
    "InlineReducer",
    "Mesh",
    "MultiNodeChainList",
    "ParallelFunction",
    "ParameterAveraging",
    "ParameterCheck",
    "ParameterServer",
    "Pipeline",
    "Placement",
    "Round",
    "Schedule",
    "SharedData",
    "SharedVariable",
    "Simulation",
    "Step",
    "allreduce_gradients",
    "allreduce_multiple",
    "allreduce_parameters",
    "balance",
    "bcast_data",
    "broadcast_model",
    "check_parameter_closeness",
    "create_multi_node_optimizer",
    "distribute_module_grads",
    "draw",
    "eager",
    "gpipe",
    "interleaved",
    "make_schedule",
    "measure",
    "multi_node_mean_grad",
    "one_f_one_b",
    "own_schedule",
    "parallel_function",
    "recv_from_stage",
    "send_to_stage",
    "simulate",
    "zb1p",
    "zbv",
]
