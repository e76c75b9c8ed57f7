"""mnpar: deep learning spread over processes, in Chainer's words; communication is a differentiable
function.

To read it, begin with variable.py, function_node.py and autograd/engine.py, the core of automatic
differentiation; communication.py, collective.py and point_to_point.py in functions/ make
communication differentiable; communicators/ carries the messages, plans/ has the geometry of
divided arrays, and parallel/ is what is built on all of these.
"""

from typing import TYPE_CHECKING

from mnpar import communicators  # first: it looks after Ctrl-C and errors from here on

# isort: split
from mnpar import chainer_names as chainer_names  # it puts names where Chainer has them
from mnpar import functions, lazy
from mnpar.autograd.arraylike import as_array
from mnpar.autograd.tape import Tape
from mnpar.backend import get_array_module, get_device, using_device
from mnpar.chain import Chain, ChainList
from mnpar.communicators import (
    ANY_SOURCE,
    ANY_TAG,
    Communicator,
    CommunicatorBase,
    Operation,
    create_communicator,
    run,
)
from mnpar.configuration import (
    Config,
    config,
    force_backprop_mode,
    get_dtype,
    global_config,
    is_debug,
    mixed16,
    no_backprop_mode,
    set_debug,
    using_config,
)
from mnpar.function_hook import FunctionHook, get_function_hooks
from mnpar.function_node import FunctionNode
from mnpar.link import Link
from mnpar.link_hook import LinkHook

# it gives communicators methods that take models
from mnpar.parallel.data import communicator_methods as communicator_methods
from mnpar.parameter import Parameter
from mnpar.sequential import Sequential
from mnpar.variable import Variable, as_variable, backward, grad

if TYPE_CHECKING:
    from mnpar import (
        backend,
        backends,
        checkpoint,
        computational_graph,
        configuration,
        cuda,
        dataset,
        datasets,
        errors,
        extensions,
        function,
        function_hooks,
        global_except_hook,
        gradient_check,
        initializer,
        initializers,
        iterators,
        link_hooks,
        links,
        meters,
        nccl,
        optimizer,
        optimizer_hooks,
        optimizers,
        parallel,
        plans,
        random,
        reporter,
        serializer,
        serializers,
        testing,
        training,
        utils,
    )
    from mnpar.checkpoint import create_multi_node_checkpointer
    from mnpar.datasets import DataSizeError, create_empty_dataset, scatter_dataset, scatter_index
    from mnpar.doctor import print_runtime_info
    from mnpar.extensions import create_multi_node_evaluator
    from mnpar.functions.communication.future import Future
    from mnpar.functions.divided.halo import SpatialGrid
    from mnpar.initializers import Initializer
    from mnpar.optimizers import GradientMethod, Optimizer, UpdateRule
    from mnpar.parallel import (
        DistributedDataParallel,
        Ensemble,
        Mesh,
        MultiNodeChainList,
        Pipeline,
        SharedData,
        check_parameter_closeness,
        create_multi_node_optimizer,
        parallel_function,
    )
    from mnpar.profiling.profiler import profile
    from mnpar.profiling.timeline import Timeline
    from mnpar.reporter import (
        DictSummary,
        Reporter,
        Summary,
        get_current_reporter,
        report,
        report_scope,
    )
    from mnpar.runtime.mpiexec import relaunch
    from mnpar.serializer import AbstractSerializer, Deserializer, Serializer
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "AbstractSerializer",
    "Chain",
    "ChainList",
    "Communicator",
    "CommunicatorBase",
    "Config",
    "DataSizeError",
    "Deserializer",
    "DictSummary",
    "DistributedDataParallel",
    "Ensemble",
    "FunctionHook",
    "FunctionNode",
    "Future",
    "GradientMethod",
    "Initializer",
    "Link",
    "LinkHook",
    "Mesh",
    "MultiNodeChainList",
    "Operation",
    "Optimizer",
    "Parameter",
    "Pipeline",
    "Reporter",
    "Sequential",
    "Serializer",
    "SharedData",
    "SpatialGrid",
    "Summary",
    "Tape",
    "Timeline",
    "UpdateRule",
    "Variable",
    "as_array",
    "as_variable",
    "backend",
    "backends",
    "backward",
    "check_parameter_closeness",
    "checkpoint",
    "communicators",
    "computational_graph",
    "config",
    "configuration",
    "create_communicator",
    "create_empty_dataset",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "create_multi_node_optimizer",
    "cuda",
    "dataset",
    "datasets",
    "errors",
    "extensions",
    "force_backprop_mode",
    "function",
    "function_hooks",
    "functions",
    "get_array_module",
    "get_current_reporter",
    "get_device",
    "get_dtype",
    "get_function_hooks",
    "global_config",
    "global_except_hook",
    "grad",
    "gradient_check",
    "initializer",
    "initializers",
    "is_debug",
    "iterators",
    "launch",
    "link_hooks",
    "links",
    "meters",
    "mixed16",
    "nccl",
    "no_backprop_mode",
    "optimizer",
    "optimizer_hooks",
    "optimizers",
    "parallel",
    "parallel_function",
    "plans",
    "print_runtime_info",
    "profile",
    "random",
    "relaunch",
    "report",
    "report_scope",
    "reporter",
    "run",
    "scatter_dataset",
    "scatter_index",
    "serializer",
    "serializers",
    "set_debug",
    "summary",
    "testing",
    "training",
    "using_config",
    "using_device",
    "utils",
]
__version__ = "0.1.0"
