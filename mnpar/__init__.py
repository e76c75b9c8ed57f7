"""mnpar: deep learning spread over processes, in Chainer's words; communication is a differentiable function."""

from mnpar import (
    backend,
    checkpoint,
    computational_graph,
    dataset,
    datasets,
    errors,
    extensions,
    function_hooks,
    functions,
    gradient_check,
    initializers,
    iterators,
    launch,
    link_hooks,
    links,
    meters,
    optimizer_hooks,
    optimizers,
    parallel,
    plans,
    random,
    reporter,
    serializer,
    serializers,
    summary,
    testing,
    training,
)  # fmt: skip
from mnpar.chain import Chain, ChainList, Sequential
from mnpar.checkpoint import create_multi_node_checkpointer
from mnpar.communicators import ANY_SOURCE, ANY_TAG, Communicator, Operation, create_communicator, run
from mnpar.config import (
    Config,
    config,
    force_backprop_mode,
    get_dtype,
    global_config,
    mixed16,
    no_backprop_mode,
    using_config,
)
from mnpar.datasets import create_empty_dataset, scatter_dataset, scatter_index
from mnpar.extensions import create_multi_node_evaluator
from mnpar.function_hook import FunctionHook, get_function_hooks
from mnpar.function_node import FunctionNode
from mnpar.functions.halo import SpatialGrid
from mnpar.future import Future
from mnpar.initializers import Initializer
from mnpar.launch import relaunch
from mnpar.link import Link
from mnpar.link_hook import LinkHook
from mnpar.optimizers import GradientMethod, Optimizer, UpdateRule
from mnpar.parallel import (
    DistributedDataParallel,
    MultiNodeChainList,
    Pipeline,
    SharedData,
    check_parameter_closeness,
    create_multi_node_optimizer,
    parallel_function,
)
from mnpar.parameter import Parameter
from mnpar.reporter import Reporter, get_current_reporter, report, report_scope
from mnpar.summary import DictSummary, Summary
from mnpar.tape import Tape
from mnpar.timeline import Timeline
from mnpar.tracing import profile
from mnpar.variable import Variable, as_variable, backward, grad

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "Chain",
    "ChainList",
    "Communicator",
    "Config",
    "DictSummary",
    "DistributedDataParallel",
    "FunctionHook",
    "FunctionNode",
    "Future",
    "GradientMethod",
    "Initializer",
    "Link",
    "LinkHook",
    "MultiNodeChainList",
    "Operation",
    "Optimizer",
    "Parameter",
    "Pipeline",
    "Reporter",
    "Sequential",
    "SharedData",
    "SpatialGrid",
    "Summary",
    "Tape",
    "Timeline",
    "UpdateRule",
    "Variable",
    "as_variable",
    "backend",
    "backward",
    "check_parameter_closeness",
    "checkpoint",
    "computational_graph",
    "config",
    "create_communicator",
    "create_empty_dataset",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "create_multi_node_optimizer",
    "dataset",
    "datasets",
    "errors",
    "extensions",
    "force_backprop_mode",
    "function_hooks",
    "functions",
    "get_current_reporter",
    "get_dtype",
    "get_function_hooks",
    "global_config",
    "grad",
    "gradient_check",
    "initializers",
    "iterators",
    "launch",
    "link_hooks",
    "links",
    "meters",
    "mixed16",
    "no_backprop_mode",
    "optimizer_hooks",
    "optimizers",
    "parallel",
    "parallel_function",
    "plans",
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
    "summary",
    "testing",
    "training",
    "using_config",
]
__version__ = "0.1.0"
