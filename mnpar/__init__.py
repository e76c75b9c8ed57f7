"""mnpar: deep learning spread over processes, in Chainer's words; communication is a differentiable function."""

from mnpar import backend, datasets, errors, functions, gradient_check, initializers, iterators, launch, random, testing
from mnpar.backprop import Tape
from mnpar.communicators import ANY_SOURCE, ANY_TAG, Communicator, create_communicator, run
from mnpar.config import Config, config, force_backprop_mode, global_config, no_backprop_mode, using_config
from mnpar.function_node import FunctionNode
from mnpar.launch import relaunch
from mnpar.parameter import Parameter
from mnpar.variable import Variable, as_variable, backward, grad

__version__ = "0.1.0"
