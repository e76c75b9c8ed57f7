"""What users read when communications go wrong: each error names the cause, the ranks, the source
lines and the remedy, in 25 lines at most.

The programs are run on thread ranks; those whose errors are made elsewhere for processes are jobs
of tests/faults/test_faults.py, too.
"""

import os
import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.communicators.mpi import library
from mnpar.errors import CommunicatorError, DeadlockError, LauncherError, MismatchError

HERE = r"communicators/test_messages.py:\d+"
LINES = 25


def another_communicator(comm):
    other = comm.split(0, comm.rank)
    if comm.rank == 0:
        other.send(np.ones(3), 1, 4)
        comm.recv(1)
    elif comm.rank == 1:
        comm.recv(0, 4)


def collectives_of_two_communicators(comm):
    other = comm.split(0, comm.rank)
    (comm if comm.rank else other).allreduce(np.ones(3))


def another_group(comm):
    pair = comm.split(min(comm.rank, 1), comm.rank)
    if comm.rank == 1:
        pair.send(np.ones(3), 1, 4)
        comm.recv(2, 5)
    elif comm.rank == 2:
        comm.recv(1, 4)


def other_tags(comm):
    if comm.rank == 0:
        comm.send(np.ones(3), 1, 3)
    elif comm.rank == 1:
        comm.recv(0, 4)


def other_shapes(comm):
    comm.allreduce(np.ones(3 + comm.rank))


def many_names(comm):
    model = mnpar.ChainList(*[mnpar.links.Linear(1, 1) for _ in range(1500)])
    if comm.rank == 1:
        model = mnpar.Chain(inner=model)
    comm.bcast_data(model)


def another_order(comm):
    model = mnpar.Chain()
    with model.init_scope():
        for name in ("first", "second") if comm.rank == 0 else ("second", "first"):
            setattr(model, name, mnpar.links.Linear(2, 2))
    comm.bcast_data(model)


def narrow_wire(comm):
    model = mnpar.links.Linear(3, 2)
    optimizer = mnpar.optimizers.SGD()
    optimizer = mnpar.create_multi_node_optimizer(optimizer, comm, wire_dtype=np.float16)
    optimizer.setup(model)
    optimizer.update(lambda: F.sum(model(np.full((2, 3), 1e5, "f4"))))


def in_a_fork(call):
    """A program in which a fork of rank 1 makes a call, and tells the rank the error."""

    def program(comm):
        if comm.rank != 1:
            return
        end, mine = os.pipe()
        if os.fork() == 0:
            try:
                call(comm)
            except CommunicatorError as error:
                os.write(mine, str(error).encode())
            os._exit(0)
        os.wait()
        os.close(mine)
        with open(end, encoding="utf-8") as file:
            raise CommunicatorError(file.read())

    return program


MESSAGES = {
    "another communicator": (
        another_communicator,
        DeadlockError,
        rf"rank 0: waits in recv from rank 1, tag 0 at {HERE}, on communicator 0\n"
        rf"  rank 1: waits in recv from rank 0, tag 4 at {HERE}, on communicator 0; a message with "
        r"tag 4 from rank 0 has come, on communicator 1, which nobody has received: send of "
        rf"float64 \(3,\) at {HERE}\n(.*\n)*ranks wait on different communicators: only calls of",
    ),
    "collectives of two communicators": (
        collectives_of_two_communicators,
        DeadlockError,
        rf"rank 0: waits in allreduce .* at {HERE}, on communicator 1\n  rank 1: waits in "
        rf"allreduce .* at {HERE}, on communicator 0\n(.*\n)*ranks wait on different comm",
    ),
    "another group": (
        another_group,
        DeadlockError,
        rf"rank 2: waits in recv from rank 1, tag 4 at {HERE}; a message with tag 4 from rank 1 "
        r"has come, on the communicator of ranks 1, 2, which nobody has received: send of float64",
    ),
    "other tags": (
        other_tags,
        DeadlockError,
        rf"waits in recv from rank 0, tag 4 at {HERE}; a message with tag 3 from rank 0 has come, "
        rf"which nobody has received: send of float64 \(3,\) at {HERE}",
    ),
    "other shapes": (
        other_shapes,
        MismatchError,
        rf"ranks reduce values of different dtype or shape:\n.*float64 \(3,\), at {HERE}\n"
        rf".*float64 \(4,\), at {HERE}\n(.*\n)*all ranks give arrays of one dtype and shape; all",
    ),
    "many names": (many_names, MismatchError, r"the parameters of ranks 0 and 1 differ: only rank"),
    "another order": (
        another_order,
        MismatchError,
        r"the parameters of ranks 0 and 1 differ: number 0 is /second/W on rank 1, /first/W on "
        "rank 0",
    ),
    "a narrow wire": (
        narrow_wire,
        OverflowError,
        r"^rank \d: gradients of up to \S+ cannot travel as float16, which ends at 6.55e\+04 .* "
        r"let them travel as float32 or bfloat16, or use optimizer.loss_scaling",
    ),
    **{
        f"a fork that calls {name}": (
            in_a_fork(call),
            CommunicatorError,
            rf"^rank 1, {HERE}: this process is a fork of the rank's .*get_context\('spawn'\)",
        )
        for name, call in {
            "send": lambda comm: comm.send(np.ones(3), 0),
            "recv": lambda comm: comm.recv(0),
            "barrier": lambda comm: comm.barrier(),
            "F.allreduce": lambda comm: F.allreduce(comm, mnpar.Variable(np.ones(3))),
        }.items()
    },
    "a fork that calls create_communicator": (
        in_a_fork(lambda comm: mnpar.create_communicator()),
        CommunicatorError,
        rf"^{HERE}: this process is a fork of the rank's .*get_context\('spawn'\)",
    ),
}


@pytest.mark.parametrize(("program", "error", "says"), MESSAGES.values(), ids=MESSAGES)
def test_an_error_names_cause_ranks_lines_and_remedy(program, error, says):
    with pytest.raises(error) as caught:
        mnpar.run(program, ranks=3 if program is not many_names else 2)
    text = str(caught.value)
    assert re.search(says, text), text
    assert text.count("\n") < LINES
    assert len(text) < 2000


@pytest.mark.ranks(2, on="mpi")
def test_memory_that_a_machine_has_not_is_refused_on_all_ranks(comm, monkeypatch):
    left = 2**20 if comm.rank == 1 else 2**30
    monkeypatch.setattr("mnpar.communicators.mpi.transport.free_memory", lambda: left)
    with pytest.raises(MemoryError, match=rf"{HERE}: 2.0 MiB .* /dev/shm has 1.0 left on .*rank 1"):
        comm.share(2**21)
    memory = comm.share(2**10)
    assert memory.array.size >= 2**10
    comm.barrier()
    memory.free()


def test_mpi_is_not_started_where_it_would_end_by_a_bus_error(monkeypatch):
    monkeypatch.setattr(library, "launched_ranks_here", lambda: 4)
    monkeypatch.setattr(library, "free_memory", lambda: 2**20)
    match = r"/dev/shm has 1.00 MiB left, and MPICH 5 needs some 5.00 for 4 ranks .*--shm-size"
    with pytest.raises(LauncherError, match=match):
        library._check_memory("MPICH 5")
    library._check_memory("Open MPI 5")
    monkeypatch.setattr(library, "free_memory", lambda: 2**30)
    library._check_memory("MPICH 5")
