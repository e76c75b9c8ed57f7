"""A network described part by part on ranks has the outputs and gradients of the same network in
one process.
"""

import copy
from collections import defaultdict, deque

import numpy as np
import pytest

import mnpar
import mnpar.functions as F

SIZE = 3


class Part(mnpar.Link):
    """tanh of the sum of its inputs times a matrix; twice, as a tuple, if asked."""

    def __init__(self, name, two=False):
        super().__init__()
        self.two = two
        self.W = mnpar.Parameter(
            np.random.default_rng(sum(name.encode())).standard_normal((SIZE, SIZE))
        )

    def forward(self, *xs):
        flat = [v for x in xs for v in (x if isinstance(x, tuple) else (x,))]
        y = F.tanh(sum(flat[1:], flat[0]) @ self.W)
        return (y, y * 2) if self.two else y


# for each rank its parts: name, rank_in, rank_out
MODELS = {
    "cycle of two": {0: [("a", None, 1), ("c", 1, None)], 1: [("b", 0, 0)]},
    "cycle of three": {0: [("a", None, 1), ("d", 2, None)], 1: [("b", 0, 2)], 2: [("c", 1, 0)]},
    "crossing, both with a loss": {
        0: [("a", None, 1), ("c", 1, None)],
        1: [("b", None, 0), ("d", 0, None)],
    },
    "branching to children": {
        0: [("a", None, [1, 2]), ("d", [1, 2], None)],
        1: [("b", 0, 0)],
        2: [("c", 0, 0)],
    },
    "branching, itself first": {0: [("a", None, [0, 1]), ("d", [0, 1], None)], 1: [("b", 0, 0)]},
    "branching, itself between": {
        0: [("a", None, [1, 0, 2]), ("d", [1, 0, 2], None)],
        1: [("b", 0, 0)],
        2: [("c", 0, 0)],
    },
    "branching, itself last": {0: [("a", None, [1, 0]), ("d", [1, 0], None)], 1: [("b", 0, 0)]},
    "twisting": {
        0: [("a", None, 1), ("f", 1, None)],
        1: [("b", None, [2, 1]), ("c", [0, 1], 0), ("g", 2, None)],
        2: [("d", 1, 1)],
    },
    "the same peer twice": {
        0: [("a", None, [1, 1]), ("c", [1, 1], None)],
        1: [("b", [0, 0], [0, 0])],
    },
    "tuples between two": {0: [("A", None, 1), ("c", 1, None)], 1: [("B", 0, 0)]},
    "a tuple to several ranks": {
        0: [("A", None, [1, 2]), ("d", [1, 2], None)],
        1: [("b", 0, 0)],
        2: [("c", 0, 0)],
    },
    "a line": {0: [("a", None, 1)], 1: [("b", 0, 2)], 2: [("c", 1, None)]},
    "a tuple in a line, to itself too": {
        0: [("A", None, 1)],
        1: [("B", 0, [2, 1]), ("d", 1, 2)],
        2: [("c", [1, 1], None)],
    },
    "a rank that sends to nobody": {
        0: [("a", None, [1, 2])],
        1: [("b", 0, [])],
        2: [("c", 0, None)],
    },
    "a later part with the model's inputs": {
        0: [("a", None, 1), ("b", None, 1), ("d", 1, None)],
        1: [("c", [0, 0], 0)],
    },
}
CASES = [pytest.param(model, id=name) for name, model in MODELS.items()]


def build(comm, parts):
    model = mnpar.MultiNodeChainList(comm)
    for name, rank_in, rank_out in parts:
        model.add_link(Part(name, two=name.isupper()), rank_in, rank_out)
    return model


def serial(model, inputs):
    """The outputs of each rank and the parts by name, run in one process with a queue for each pair
    of ranks.
    """
    queues = defaultdict(deque)
    todo = {rank: deque(parts) for rank, parts in model.items()}
    outputs = {}
    links = {}
    while any(todo.values()):
        for rank, parts in todo.items():
            while parts:
                name, rank_in, rank_out = parts[0]
                sources = [] if rank_in is None else np.atleast_1d(rank_in).tolist()
                if any(len(queues[s, rank]) < sources.count(s) for s in sources):
                    break
                parts.popleft()
                links[name] = Part(name, two=name.isupper())
                y = links[name](
                    *(
                        inputs[rank]
                        if rank_in is None
                        else [queues[s, rank].popleft() for s in sources]
                    )
                )
                if rank_out is None:
                    outputs[rank] = y
                for dest in [] if rank_out is None else np.atleast_1d(rank_out).tolist():
                    queues[rank, dest].append(y)
    return outputs, links


@pytest.mark.parametrize("model", CASES)
@pytest.mark.ranks(3)
def test_outputs_and_gradients_equal_those_of_one_process(comm, model):
    inputs = {
        rank: [np.random.default_rng(rank).standard_normal((4, SIZE)) for _ in range(2)]
        for rank in model
    }
    outputs, links = serial(model, inputs)
    mnpar.backward([F.sum(y * y) for y in outputs.values()])
    if comm.rank not in model:
        return
    mine = build(comm, model[comm.rank])
    y = mine(*inputs[comm.rank])
    if comm.rank in outputs:
        np.testing.assert_allclose(y.array, outputs[comm.rank].array, rtol=1e-12)
        F.sum(y * y).backward()
    else:
        assert y.size == 0
        y.backward()
    for (name, _, _), part in zip(model[comm.rank], mine, strict=True):
        expected = links[name].W.grad
        if expected is None:
            assert part.W.grad is None
        else:
            np.testing.assert_allclose(part.W.grad, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.ranks(2, on="threads")
def test_what_cannot_work_is_refused_where_it_is_written(comm):
    model = mnpar.MultiNodeChainList(comm)
    with pytest.raises(ValueError, match="no part"):
        model(np.ones((1, SIZE)))
    model.add_link(Part("a"))
    with pytest.raises(ValueError, match="one output"):
        model.add_link(Part("b"), rank_in=1)
    with pytest.raises(ValueError, match="no rank 7"):
        model.add_link(Part("b"), rank_in=7, rank_out=1)
    alone = mnpar.MultiNodeChainList(comm)
    alone.add_link(Part("a"), None, comm.rank)
    with pytest.raises(ValueError, match="hands itself 1 value"):
        alone(np.ones((1, SIZE)))
    alone = mnpar.MultiNodeChainList(comm)
    alone.add_link(Part("a"), comm.rank, None)
    with pytest.raises(ValueError, match="no earlier part"):
        alone()


def test_a_copy_has_parts_of_its_own():
    comm = mnpar.create_communicator("self")
    model = build(comm, [("a", None, 0), ("b", 0, None)])
    other = copy.deepcopy(model)
    x = np.ones((2, SIZE))
    np.testing.assert_array_equal(other(x).array, model(x).array)
    assert other[0].W is not model[0].W
    assert [path for path, _ in other.namedparams()] == ["/0/W", "/1/W"]
