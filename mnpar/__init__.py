"""mnpar: deep learning spread over processes, in Chainer's words; communication is a differentiable
function.

To read it, begin with variable.py and function_node.py, then autograd/: the graph, the engine and
the tape. functions/communication/ makes communication differentiable, communicators/ carries the
messages, plans/ has the geometry of divided arrays, and parallel/ is built on all of these.
"""

from typing import TYPE_CHECKING

# first: it looks after Ctrl-C and errors from here on
from mnpar import communicators as communicators

# isort: split
from mnpar import functions as functions, lazy
from mnpar.autograd.arraylike import as_array as as_array
from mnpar.autograd.tape import Tape as Tape
from mnpar.backend import (
    get_array_module as get_array_module,
    get_device as get_device,
    using_device as using_device,
)
from mnpar.chain import Chain as Chain, ChainList as ChainList
from mnpar.checks import communication_checks, graph_checks  # noqa: F401 - hooks
from mnpar.communicators import (
    ANY_SOURCE as ANY_SOURCE,
    ANY_TAG as ANY_TAG,
    Communicator as Communicator,
    CommunicatorBase as CommunicatorBase,
    Operation as Operation,
    create_communicator as create_communicator,
)
from mnpar.configuration import (
    Config as Config,
    config as config,
    force_backprop_mode as force_backprop_mode,
    get_dtype as get_dtype,
    global_config as global_config,
    is_debug as is_debug,
    mixed16 as mixed16,
    no_backprop_mode as no_backprop_mode,
    set_debug as set_debug,
    using_config as using_config,
)
from mnpar.function_hook import (
    FunctionHook as FunctionHook,
    get_function_hooks as get_function_hooks,
)
from mnpar.function_node import FunctionNode as FunctionNode
from mnpar.link import Link as Link
from mnpar.link_hook import LinkHook as LinkHook
from mnpar.parameter import Parameter as Parameter
from mnpar.sequential import Sequential as Sequential
from mnpar.variable import (
    Variable as Variable,
    as_variable as as_variable,
    backward as backward,
    from_dlpack as from_dlpack,
    grad as grad,
)

if TYPE_CHECKING:
    from mnpar import (
        backend as backend,
        backends as backends,
        checkpoint as checkpoint,
        computational_graph as computational_graph,
        configuration as configuration,
        dataset as dataset,
        datasets as datasets,
        errors as errors,
        extensions as extensions,
        function_hooks as function_hooks,
        gradient_check as gradient_check,
        initializers as initializers,
        iterators as iterators,
        launch as launch,
        link_hooks as link_hooks,
        links as links,
        meters as meters,
        optimizers as optimizers,
        parallel as parallel,
        plans as plans,
        random as random,
        reporter as reporter,
        serializer as serializer,
        serializers as serializers,
        testing as testing,
        training as training,
    )
    from mnpar.checkpoint import create_multi_node_checkpointer as create_multi_node_checkpointer
    from mnpar.compat import (
        cuda as cuda,
        function as function,
        global_except_hook as global_except_hook,
        initializer as initializer,
        nccl as nccl,
        optimizer as optimizer,
        optimizer_hooks as optimizer_hooks,
        utils as utils,
    )
    from mnpar.datasets import (
        DataSizeError as DataSizeError,
        create_empty_dataset as create_empty_dataset,
        scatter_dataset as scatter_dataset,
        scatter_index as scatter_index,
    )
    from mnpar.doctor import print_runtime_info as print_runtime_info
    from mnpar.extensions import create_multi_node_evaluator as create_multi_node_evaluator
    from mnpar.functions.communication.future import Future as Future
    from mnpar.functions.divided.halo import SpatialGrid as SpatialGrid
    from mnpar.functions.divided.layout import (
        DividedVariable as DividedVariable,
        GridLayout as GridLayout,
        divided as divided,
    )
    from mnpar.functions.divided.rules.table import layout_rule as layout_rule
    from mnpar.initializers import Initializer as Initializer
    from mnpar.launch import run as run
    from mnpar.link_hooks.model_summary import ModelSummary as ModelSummary, summary as summary
    from mnpar.optimizers import (
        GradientMethod as GradientMethod,
        Optimizer as Optimizer,
        UpdateRule as UpdateRule,
    )
    from mnpar.parallel import (
        DistributedDataParallel as DistributedDataParallel,
        Ensemble as Ensemble,
        Mesh as Mesh,
        MultiNodeChainList as MultiNodeChainList,
        Pipeline as Pipeline,
        SharedData as SharedData,
        check_parameter_closeness as check_parameter_closeness,
        create_multi_node_optimizer as create_multi_node_optimizer,
        gathered as gathered,
        parallel_function as parallel_function,
        parallelize as parallelize,
        plan_of as plan_of,
    )
    from mnpar.profiling.profiler import profile as profile
    from mnpar.profiling.timeline import Timeline as Timeline
    from mnpar.reporter import (
        DictSummary as DictSummary,
        Reporter as Reporter,
        Summary as Summary,
        get_current_reporter as get_current_reporter,
        report as report,
        report_scope as report_scope,
    )
    from mnpar.runtime.mpiexec import relaunch as relaunch
    from mnpar.serializer import (
        AbstractSerializer as AbstractSerializer,
        Deserializer as Deserializer,
        Serializer as Serializer,
    )
    from mnpar.testing.program_check import CheckResult as CheckResult, check as check
else:
    __path__.append(f"{__path__[0]}/compat")  # so that mnpar.cuda is found: Chainer's small modules
    __getattr__, __dir__, __all__ = lazy.names(__name__)

__version__ = "0.1.0"
