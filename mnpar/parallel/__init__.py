"""Models spread over ranks: data parallelism, pipelines, meshes, ensembles, and functions that all
ranks run on their rows.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.parallel.data.averaging import (
        ElasticAveraging as ElasticAveraging,
        ParameterAveraging as ParameterAveraging,
        ParameterServer as ParameterServer,
    )
    from mnpar.parallel.data.coalescing import (
        CoalescingReducer as CoalescingReducer,
        InlineReducer as InlineReducer,
        allreduce_gradients as allreduce_gradients,
        allreduce_multiple as allreduce_multiple,
        allreduce_parameters as allreduce_parameters,
        distribute_module_grads as distribute_module_grads,
    )
    from mnpar.parallel.data.communicator_methods import (
        bcast_data as bcast_data,
        multi_node_mean_grad as multi_node_mean_grad,
    )
    from mnpar.parallel.data.consistency import (
        ParameterCheck as ParameterCheck,
        check_parameter_closeness as check_parameter_closeness,
    )
    from mnpar.parallel.data.ddp import DistributedDataParallel as DistributedDataParallel
    from mnpar.parallel.data.multi_node_optimizer import (
        create_multi_node_optimizer as create_multi_node_optimizer,
    )
    from mnpar.parallel.data.placement import Placement as Placement
    from mnpar.parallel.data.replicas import broadcast_model as broadcast_model
    from mnpar.parallel.ensemble.answers import Answers as Answers
    from mnpar.parallel.ensemble.ensemble import Ensemble as Ensemble
    from mnpar.parallel.ensemble.tournament import Round as Round
    from mnpar.parallel.mesh import Mesh as Mesh
    from mnpar.parallel.multi_node_chain_list import MultiNodeChainList as MultiNodeChainList
    from mnpar.parallel.pipeline.partition import balance as balance, measure as measure
    from mnpar.parallel.pipeline.pipeline import Pipeline as Pipeline
    from mnpar.parallel.pipeline.schedules import (
        SCHEDULES as SCHEDULES,
        Action as Action,
        Schedule as Schedule,
        eager as eager,
        gpipe as gpipe,
        interleaved as interleaved,
        make_schedule as make_schedule,
        one_f_one_b as one_f_one_b,
        own_schedule as own_schedule,
        zb1p as zb1p,
        zbv as zbv,
    )
    from mnpar.parallel.pipeline.simulation import (
        Simulation as Simulation,
        draw as draw,
        simulate as simulate,
    )
    from mnpar.parallel.pipeline.stage import (
        recv_from_stage as recv_from_stage,
        send_to_stage as send_to_stage,
    )
    from mnpar.parallel.pipeline.step import Step as Step
    from mnpar.parallel.plan.divisions import (
        Division as Division,
        register_division as register_division,
    )
    from mnpar.parallel.plan.gathered import gathered as gathered
    from mnpar.parallel.plan.parallelize import parallelize as parallelize
    from mnpar.parallel.plan.table import (
        PlanRow as PlanRow,
        PlanTable as PlanTable,
        plan_of as plan_of,
    )
    from mnpar.parallel.spmd.parallel_function import (
        ParallelFunction as ParallelFunction,
        parallel_function as parallel_function,
    )
    from mnpar.parallel.spmd.shared_data import SharedData as SharedData
    from mnpar.parallel.spmd.shared_variable import SharedVariable as SharedVariable
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
