"""What collectives and the agreements built on them cost a rank as ranks grow: its messages and
bytes, by the code's own counters, are the functions of the number of ranks that
docs/communication.md names. Thread ranks count what processes would send.
"""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import checkpoint
from mnpar.communicators.comparison import WORDS_BYTES
from mnpar.communicators.matching import BLOCK, MOST_GATHERED

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "communication.md"
N = 32  # bytes of a small array
LARGE = 2**16
SMALL = np.ones(N // 8)


def pytest_generate_tests(metafunc):
    if "ranks" in metafunc.fixturenames:
        more = [1024] if metafunc.config.getoption("--sweep") else []
        metafunc.parametrize("ranks", [4, 16, 64, 256, *more])


def updates(comm):
    """An update of a data-parallel optimizer, after those in which ranks get to know each other."""
    model = L.Linear(4, 4, initialW=1.0)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(model)
    x = np.ones((2, 4), np.float32)
    for _ in range(3):
        optimizer.update(lambda x: F.mean(model(x) ** 2), x)
    return lambda: optimizer.update(lambda x: F.mean(model(x) ** 2), x)


def of_models(method):
    def prepare(comm):
        model = L.Linear(4, 4, initialW=1.0)
        F.sum(model(np.ones((2, 4), np.float32))).backward()
        return lambda: method(comm, model)

    return prepare


def log(P):
    """The messages of a rank that knows of twice as many ranks after each."""
    return (P - 1).bit_length()


# messages and bytes of a rank at most, as functions of the number of ranks, beside those by which
# many ranks compare what they state
COSTS = {
    "barrier": (lambda comm: comm.barrier, lambda P: (0, 0)),
    "split": (lambda comm: lambda: comm.split(comm.rank % 2, 0), lambda P: (0, 0)),
    "allreduce": (
        lambda comm: lambda: comm.allreduce(SMALL),
        lambda P: (2 * log(P), 2 * N * (P - 1) // P),
    ),
    "allreduce of 64 KiB": (
        lambda comm: lambda: comm.allreduce(np.ones(LARGE // 8)),
        lambda P: (2 * log(P), 2 * LARGE * (P - 1) // P),
    ),
    "iallreduce": (
        lambda comm: lambda: comm.iallreduce(SMALL).wait(),
        lambda P: (2 * log(P), 2 * N * (P - 1) // P),
    ),
    "reduce": (lambda comm: lambda: comm.reduce(SMALL), lambda P: (1, N)),
    "bcast": (lambda comm: lambda: comm.bcast(SMALL), lambda P: (log(P), log(P) * BLOCK)),
    "ibcast": (lambda comm: lambda: comm.ibcast(SMALL).wait(), lambda P: (log(P), log(P) * N)),
    "bcast_obj": (lambda comm: lambda: comm.bcast_obj("few"), lambda P: (log(P), log(P) * BLOCK)),
    "scan": (lambda comm: lambda: comm.scan(SMALL), lambda P: (log(P), log(P) * N)),
    "allgather of one value": (lambda comm: lambda: comm.allgather(SMALL), lambda P: (0, 0)),
    "allgather_obj of one object": (
        lambda comm: lambda: comm.allgather_obj(["alike"]),
        lambda P: (0, 0),
    ),
    "allgather": (
        lambda comm: lambda: comm.allgather(SMALL + comm.rank),
        lambda P: (log(P), (P - 1) * N),
    ),
    "gather": (lambda comm: lambda: comm.gather(SMALL), lambda P: (1, N)),
    "scatter": (
        lambda comm: lambda: comm.scatter([SMALL] * comm.size),
        lambda P: (P - 1, (P - 1) * N),
    ),
    "alltoall": (
        lambda comm: lambda: comm.alltoall([SMALL] * comm.size),
        lambda P: (P - 1, (P - 1) * N),
    ),
    "reduce_scatter": (
        lambda comm: lambda: comm.reduce_scatter([SMALL] * comm.size),
        lambda P: (P - 1, (P - 1) * N),
    ),
    "update": (updates, lambda P: (2 * log(P), 2 * 80 * (P - 1) // P)),
    "check_parameter_closeness": (
        of_models(lambda comm, model: mnpar.check_parameter_closeness(model, comm)),
        lambda P: (0, 0),
    ),
}


def cost(program, ranks):
    """The collectives, and the most messages and bytes of a rank in all, in one call of what the
    program returns.
    """

    def on_rank(comm):
        call = program(comm)
        call()
        before = dataclasses.replace(comm.traffic)
        call()
        change = {
            name: getattr(comm.traffic, name) - getattr(before, name) for name in vars(comm.traffic)
        }
        return (
            change["collectives"],
            change["messages"] + change["check_messages"] + change["collective_messages"],
            change["bytes"] + change["check_bytes"] + change["collective_bytes"],
        )

    return tuple(np.max(mnpar.run(on_rank, ranks), axis=0).tolist())


@pytest.mark.parametrize("name", COSTS)
def test_messages_and_bytes_of_a_rank_are_these_functions_of_the_ranks(name, ranks):
    program, expected = COSTS[name]
    collectives, messages, nbytes = cost(program, ranks)
    assert collectives == 1
    if ranks <= MOST_GATHERED:  # blocks, and the values in them
        assert messages <= log(ranks) + 2 * (ranks - 1)
    else:
        more, body = expected(ranks)
        assert messages == log(ranks) + more
        assert nbytes == log(ranks) * WORDS_BYTES + body


AGREEMENTS = {
    "bcast_data": of_models(lambda comm, model: comm.bcast_data(model)),
    "multi_node_mean_grad": of_models(lambda comm, model: comm.multi_node_mean_grad(model)),
    "the first updates": lambda comm: lambda: updates(comm),
}


@pytest.mark.parametrize("name", AGREEMENTS)
def test_agreements_of_ranks_that_agree_cost_as_the_logarithm_of_their_number(name):
    at = {P: cost(AGREEMENTS[name], P) for P in (32, 64, 256)}
    assert len({collectives for collectives, _, _ in at.values()}) == 1
    for one, other in ((32, 64), (64, 256)):
        assert at[other][1] * log(one) == at[one][1] * log(other)
        # twice an array, but for one part, does not grow
        assert at[other][2] <= at[one][2] * log(other) / log(one)


def test_a_checkpoint_costs_a_table_of_contents_of_all_ranks(tmp_path):
    def program(comm):
        model = L.Linear(4, 4, initialW=1.0)
        steps = iter(range(9))
        folder = tmp_path / str(comm.size)
        return lambda: checkpoint.save(folder, {"model": model}, comm=comm, step=next(steps))

    at = {P: cost(program, P) for P in (32, 64)}
    assert at[64][1] == pytest.approx(at[32][1] * log(64) / log(32), abs=3)
    assert at[64][2] < 2.1 * at[32][2]


def test_the_page_names_each_of_them():
    table = re.search(r"## Cost as ranks grow\n(.*?)\n## ", DOCS.read_text(), re.DOTALL).group(1)
    for name in [*COSTS, "save"]:
        assert re.search(rf"`{name.split()[0]}`", table), name
