"""Models spread over ranks: as parts, as stages of a pipeline, and as copies that learn together or
agree now and then.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.parallel.answers import Answers
    from mnpar.parallel.averaging import ElasticAveraging, ParameterAveraging, ParameterServer
    from mnpar.parallel.balancing import balance, measure
    from mnpar.parallel.coalescing import (
        CoalescingReducer,
        InlineReducer,
        allreduce_gradients,
        allreduce_multiple,
        allreduce_parameters,
        distribute_module_grads,
    )
    from mnpar.parallel.copies import ParameterCheck, broadcast_model, check_parameter_closeness
    from mnpar.parallel.data_parallel import create_multi_node_optimizer
    from mnpar.parallel.distributed import DistributedDataParallel
    from mnpar.parallel.ensemble import Ensemble
    from mnpar.parallel.known_schedules import (
        SCHEDULES,
        eager,
        gpipe,
        interleaved,
        make_schedule,
        one_f_one_b,
        zb1p,
        zbv,
    )
    from mnpar.parallel.mesh import Mesh
    from mnpar.parallel.model_methods import bcast_data, multi_node_mean_grad
    from mnpar.parallel.multi_node_chain_list import MultiNodeChainList
    from mnpar.parallel.pipeline import Pipeline
    from mnpar.parallel.pipeline_step import Step
    from mnpar.parallel.placement import Placement
    from mnpar.parallel.schedule import Action, Schedule, own_schedule
    from mnpar.parallel.shared_data import SharedData
    from mnpar.parallel.shared_variable import SharedVariable
    from mnpar.parallel.simulation import Simulation, draw, simulate
    from mnpar.parallel.spreading import ParallelFunction, parallel_function
    from mnpar.parallel.stage_visit import recv_from_stage, send_to_stage
    from mnpar.parallel.tournament import Round
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
