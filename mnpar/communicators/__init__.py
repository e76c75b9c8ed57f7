"""The ranks that work together, and what carries their messages."""

# ruff: noqa: E402
from mnpar.runtime import startup

# before the rest, and numpy, which take longer to import: a Ctrl-C or an error may come meanwhile
startup.install()

from mnpar.communicators.communicator import ANY_SOURCE, ANY_TAG, Communicator
from mnpar.communicators.create import create_communicator, current_rank
from mnpar.communicators.operation import Operation

CommunicatorBase = Communicator  # ChainerMN's name, for isinstance
__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "Communicator",
    "CommunicatorBase",
    "Operation",
    "create_communicator",
    "current_rank",
]
