"""The samples of a batch, however its arrays are put together; an error where nobody can know."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel.data.samples import SampleCounter, positions_of, samples_of

X, T = np.ones((5, 3)), np.zeros(5, int)
SEQUENCES = [np.ones((n, 3)) for n in (4, 2, 6)]
TOKENS = [np.zeros(n, np.int32) for n in (4, 2, 6, 6)]
COUNTED = {
    "an array": ((X,), 5),
    "arrays": ((X, T), 5),
    "a Variable": ((mnpar.Variable(X), T), 5),
    "a list of columns": (([X, T],), 5),
    "a list of columns, as Variables": (([mnpar.Variable(X), T],), 5),
    "a tuple of columns": (((X, T),), 5),
    "a tuple of columns that are alike": (((X, X + 1),), 5),
    "a dict of columns": (({"x": X, "t": T},), 5),
    "a dict of sequences": (({"xs": SEQUENCES, "ts": TOKENS[:3]},), 3),
    "sequences": ((SEQUENCES,), 3),
    "sequences and labels": ((SEQUENCES, np.zeros(3)), 3),
    "sequences of equal length, and labels": (([X] * 4, np.zeros(4)), 4),
    "columns that are alike, and labels": (([X, X], T), 5),
    "sequences of equal length, as many": (([X] * 5,), 5),
    "tokens": ((TOKENS,), 4),
    "tokens, each an argument": (tuple(TOKENS), 4),
    "tokens in a tuple": ((tuple(TOKENS),), 4),
    "sequences in two lists": (([SEQUENCES, SEQUENCES], [1, 2, 3]), 3),
    "lists of tokens": (([[1, 2], [3], [4, 5]],), 3),
    "examples": (([(X[0], 1), (X[1], 0)],), 2),
    "numbers": (([1.0, 2.0, 3.0],), 3),
    "images of some sizes, and labels": (([np.ones((3, n, 8)) for n in (4, 6)], [0, 1]), 2),
    "nothing": (([],), 0),
    "columns of nothing": (([X[:0], T[:0]],), 0),
    "a link and a number": ((L.Linear(3, 2), np.array(1.0), T), 5),
    "a number alone": ((np.array(1.0),), -1),
}
UNSURE = {
    "columns or sequences": ([X, X],),
    "one sequence or one column": ([X],),
    "columns or images": ([np.ones((3, 4, 8)), np.ones((3, 6, 8))],),
    "sequences in a tuple, or columns of different lengths": (tuple(SEQUENCES),),
    "two lists of sequences, or of columns": ([SEQUENCES, SEQUENCES],),
}


@pytest.mark.parametrize(("args", "n"), COUNTED.values(), ids=COUNTED)
def test_samples_are_counted(args, n):
    assert samples_of(*args) == n


@pytest.mark.parametrize("args", UNSURE.values(), ids=UNSURE)
def test_what_can_be_read_in_two_ways_is_an_error_where_it_matters(args):
    with pytest.raises(
        ValueError, match=r"can be \d samples?, or \d, .*one by one.*samples=lambda"
    ):
        samples_of(*args)
    assert SampleCounter(strict=False).count(args, {}) == len(args[0])
    assert SampleCounter(lambda *args: 7).count(args, {}) == 7


def test_positions_are_those_of_the_first_sequences():
    x, t = np.zeros((5, 3), int), np.zeros((5, 4), int)
    assert positions_of(x, t) == positions_of(np.zeros(5), x=x) == 15
    assert positions_of(np.zeros((2, 3, 8)), t) == 6
    assert positions_of(np.zeros((2, 0)), t) == 0
    assert positions_of(np.zeros(7)) == 7


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("axes", "name"),
    [(("data", "sequence"), "sequence"), ("sequence", "sequence"), (("data", "time"), "time")],
    ids=str,
)
def test_parts_of_sequences_of_any_length_count_their_positions(comm, axes, name):
    """Sequences of 5 positions, which no number of ranks divides."""
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((3, 5, 2)), rng.standard_normal((3, 5, 1))

    def learn(ranks):
        model = L.Linear(2, 1, initialW=np.ones((1, 2)), initial_bias=np.ones(1))
        mesh = mnpar.Mesh(ranks, **{name: ranks.size})
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(0.1), mesh, axes=axes
        ).setup(model)
        optimizer.update(
            lambda x, t: F.mean_squared_error(model(x, 2), t),
            *[mesh.cut(a, **{"data": 0, name: 1}) for a in (x, t)],
        )
        return model.W.array

    with mnpar.using_config("dtype", np.dtype("f8")):
        alone = learn(mnpar.create_communicator("self"))
        np.testing.assert_allclose(learn(comm), alone, rtol=1e-12)


def test_a_list_is_read_as_in_the_batches_before():
    counter = SampleCounter()
    assert counter.count((SEQUENCES,), {}) == 3
    assert counter.count(([X, X],), {}) == 2
    assert counter.count(([X],), {}) == 1
    counter = SampleCounter()
    assert counter.count(([X, X], T), {}) == 5
    assert counter.count(([X[:3], X[:3]],), {}) == 3
    counter = SampleCounter()
    assert counter.count(TOKENS, {}) == 4
    assert counter.count(TOKENS[2:], {}) == 2


def loss_of(model, form):
    return {
        "list": lambda pair: F.mean((model(pair[0]) - pair[1]) ** 2),
        "tuple": lambda pair: F.mean((model(pair[0]) - pair[1]) ** 2),
        "dict": lambda both: F.mean((model(both["x"]) - both["t"]) ** 2),
        "sequences": lambda xs: (
            sum([F.mean(model(x)) for x in xs[1:]], F.mean(model(xs[0]))) / len(xs)
        ),
        "tokens": lambda *xs: (
            sum([F.mean(model(x[:, None].astype("d"))) for x in xs], 0.0) / len(xs)
        ),
    }[form]


def batch(form, begin, end):
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((8, 3)), rng.standard_normal((8, 1, 2))[:, 0]
    x, t = x[begin:end], t[begin:end].astype("f4")
    sequences = [rng.standard_normal((n, 3)) for n in (3, 1, 4, 2, 5, 2, 6, 1)][begin:end]
    return {
        "list": ([x, t],),
        "tuple": ((x, t),),
        "dict": ({"x": x, "t": t},),
        "sequences": (sequences,),
        "tokens": tuple([one[:, 0].astype(int) for one in sequences]),
    }[form]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("form", ["list", "tuple", "dict", "sequences", "tokens"])
@pytest.mark.parametrize("kind", ["multi-node optimizer", "DistributedDataParallel"])
@pytest.mark.ranks(1, 2, 3, on="threads")
def test_uneven_batches_of_any_form_train_as_one_process(comm, form, kind):
    edges = [0, 5, 8] if comm.size == 2 else [0, 3, 5, 8] if comm.size == 3 else [0, 8]
    width = 1 if form == "tokens" else 3

    def make():
        return L.Linear(width, 2, initialW=0.5)

    alone = make()
    mnpar.optimizers.SGD(0.1).setup(alone).update(loss_of(alone, form), *batch(form, 0, 8))
    model = make()
    mine = batch(form, edges[comm.rank], edges[comm.rank + 1])
    if kind == "multi-node optimizer":
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(model)
        optimizer.update(loss_of(model, form), *mine)
    else:
        whole = Whole(model, form)
        parallel = mnpar.DistributedDataParallel(whole, comm)
        optimizer = mnpar.optimizers.SGD(0.1).setup(parallel)
        whole.cleargrads()
        parallel(*mine).backward()
        optimizer.update()
    np.testing.assert_allclose(model.W.array, alone.W.array, rtol=1e-12)


class Whole(mnpar.Chain):
    """A model that returns its loss."""

    def __init__(self, model, form):
        super().__init__(model=model)
        self.form = form

    def forward(self, *args):
        return loss_of(self.model, self.form)(*args)
