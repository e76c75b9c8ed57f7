"""mnpar: deep learning spread over processes."""

from mnpar.backprop import Tape
from mnpar.communicators import Communicator, create_communicator, run
from mnpar.config import config, force_backprop_mode, global_config, no_backprop_mode, using_config
from mnpar.function_node import FunctionNode
from mnpar.parameter import Parameter
from mnpar.variable import Variable, as_variable, backward, grad

__version__ = "0.1.0"
