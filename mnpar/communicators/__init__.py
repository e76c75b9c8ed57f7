"""The ranks that work together, and what carries their messages."""

from mnpar.communicators import startup
from mnpar.communicators.communicator import ANY_SOURCE, ANY_TAG, Communicator
from mnpar.communicators.create import create_communicator, current_rank, run
from mnpar.communicators.operation import Operation

startup.install()
CommunicatorBase = Communicator  # ChainerMN's name, for isinstance
__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "Communicator",
    "CommunicatorBase",
    "Operation",
    "create_communicator",
    "current_rank",
    "run",
]
