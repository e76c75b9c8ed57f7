"""A mixture of experts over ranks against the one of one process, and that one against all experts
on all tokens.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import checkpoint
from mnpar.functions.divided.routing import make_routes
from mnpar.plans import block

pytestmark = pytest.mark.usefixtures("float64")

N, D, OUT = 13, 4, 3
X = np.random.default_rng(0).standard_normal((N, D))


def expert(i):
    return mnpar.Sequential(L.Linear(None, 5), F.tanh, L.Linear(5, OUT))


def layer(comm, n_experts=5, make=expert, **options):
    mnpar.random.seed(3)
    return L.MixtureOfExperts(comm, make, n_experts, D, OUT, **options)


def uneven(comm):
    """Which of the tokens a rank has of its own: rank 1 none, the last one most."""
    ends = [0, *[min(2 + rank, N) if rank != 1 else 2 for rank in range(comm.size - 1)], N]
    return slice(ends[comm.rank], ends[comm.rank + 1])


def gradients(comm, twice=False, parallel=False, options=None):
    """Output and all gradients of a loss with the balance in it, of the tokens that this rank
    has.
    """
    moe = layer(comm, input_is_parallel=parallel, **options or {})
    x = mnpar.Variable(X[uneven(comm)] if parallel else X)
    y = moe(x)
    loss = F.sum(F.sin(y) * y) + moe.balance * (len(x) / N if parallel else 1)
    if twice:
        (gx,) = mnpar.grad([loss], [x], enable_double_backprop=True)
        loss = F.sum(gx * gx * gx)
        moe.cleargrads()
    loss.backward()
    return (
        y.array,
        x.grad,
        {path: param.grad for path, param in moe.namedparams()},
        moe.load.tolist(),
        moe.dropped,
    )


def compare(results, alone, parallel):
    y, gx, grads, *numbers = alone
    if parallel:
        joined = [np.concatenate([result[i] for result in results]) for i in range(2)]
        results = [(*joined, *rest) for _, _, *rest in results]
    paths = set()
    for one in results:
        np.testing.assert_allclose(one[0], y, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(one[1], gx, rtol=1e-12, atol=1e-13)
        for path, g in one[2].items():
            np.testing.assert_allclose(g, grads[path], rtol=1e-12, atol=1e-13, err_msg=path)
        assert [*one[3:]] == numbers
        paths |= set(one[2])
    assert paths == set(grads)


OPTIONS = {
    "two of five": {},
    "one of five": {"k": 1},
    "one of two, fewer than ranks": {"k": 1, "n_experts": 2},
    "three of seven, not normalized": {"k": 3, "n_experts": 7, "normalize": False},
    "with a capacity": {"capacity_factor": 0.7},
    "with a small capacity": {"capacity_factor": 0.2, "k": 3},
}


@pytest.mark.grid
@pytest.mark.parametrize("twice", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("parallel", [False, True], ids=["tokens of all", "tokens of its own"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_outputs_and_gradients_are_those_of_one_process(ranks, options, parallel, twice):
    alone = mnpar.run(gradients, ranks=1, args=(twice, False, options))[0]
    compare(mnpar.run(gradients, ranks=ranks, args=(twice, parallel, options)), alone, parallel)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("parallel", [False, True], ids=["tokens of all", "tokens of its own"])
def test_the_same_under_mpi(comm, parallel):
    alone = gradients(mnpar.create_communicator("self"), True)
    compare(comm.allgather_obj(gradients(comm, True, parallel)), alone, parallel)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_one_process_computes_what_all_experts_on_all_tokens_give(k):
    moe = layer(mnpar.create_communicator("self"), k=k)
    x = mnpar.Variable(X)
    y = moe(x)
    F.sum(F.sin(y) * y).backward()
    got = [y.array, x.grad, *[param.grad for param in moe.params()]]
    moe.cleargrads()
    x.cleargrad()
    p = F.softmax(F.linear(x, moe.gate.W))
    mask = np.zeros((N, 5))
    np.put_along_axis(mask, np.argsort(-p.array, axis=1)[:, :k], 1, axis=1)
    w = p * mask
    w = w / F.sum(w, axis=1, keepdims=True) if k > 1 else w
    y = F.sum(
        F.stack([moe.experts[str(i)](x) for i in range(5)], axis=1) * F.expand_dims(w, 2), axis=1
    )
    F.sum(F.sin(y) * y).backward()
    for a, b in zip(got, [y.array, x.grad, *[param.grad for param in moe.params()]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_axes_before_the_features_count_tokens(ranks):
    def program(comm):
        moe = layer(comm)
        flat = moe(X[:12]).array
        cube = moe(X[:12].reshape(2, 3, 2, D))
        assert cube.shape == (2, 3, 2, OUT)
        return flat, cube.array.reshape(12, OUT)

    for flat, cube in mnpar.run(program, ranks=ranks):
        np.testing.assert_array_equal(flat, cube)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_experts_without_tokens_and_ranks_without_any_have_gradients_of_zeros(ranks):
    def program(comm):
        # token 0 goes to 0, nothing else comes
        moe = layer(comm, k=1, initialW=np.eye(5, D) * [[9], [9], [0], [0], [0]])
        x = mnpar.Variable(np.eye(1, D))
        F.sum(moe(x)).backward()
        return {path: param.grad for path, param in moe.experts.namedparams()}, moe.load.tolist()

    for grads, load in mnpar.run(program, ranks=ranks):
        assert load == [1, 0, 0, 0, 0]
        for path, g in grads.items():
            assert bool(g.any()) == path.startswith("/0"), path


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_no_tokens_at_all_are_answered_by_none(ranks):
    def program(comm):
        moe = layer(comm, capacity_factor=1.0)
        x = mnpar.Variable(X[:0])
        y = moe(x)
        (F.sum(y) + moe.balance).backward()
        return y.shape, x.grad.shape, all(not param.grad.any() for param in moe.params())

    assert mnpar.run(program, ranks=ranks) == [((0, OUT), (0, D), True)] * ranks


@pytest.mark.parametrize("ranks", [2, 5])
def test_noise_on_tokens_that_all_have_is_that_of_one_process(ranks):
    options = {"noise": 3.0, "k": 1}
    alone = mnpar.run(gradients, ranks=1, args=(False, False, options))[0]
    quiet = mnpar.run(gradients, ranks=1, args=(False, False, {"k": 1}))[0]
    assert alone[3] != quiet[3]
    compare(mnpar.run(gradients, ranks=ranks, args=(False, False, options)), alone, False)


def test_noise_is_for_training_only():
    moe = layer(mnpar.create_communicator("self"), noise=9.0)
    with mnpar.using_config("train", False):
        np.testing.assert_array_equal(moe(X).array, moe(X).array)
    assert (moe(X).array != moe(X).array).any()


def test_the_balance_is_one_where_experts_get_alike_and_their_number_where_one_gets_all():
    moe = layer(mnpar.create_communicator("self"), n_experts=D, k=1, initialW=np.eye(D) * 200)
    moe(np.eye(D).repeat(3, axis=0))
    assert moe.balance.item() == pytest.approx(1)
    moe(np.ones((7, D)) * np.eye(D)[0])
    assert moe.balance.item() == pytest.approx(D)


# ---- capacity ----


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_first_choices_come_before_second_ones_and_then_tokens_in_order(ranks):
    choices = np.array([[1, 0], [0, 1], [0, 2], [0, 1]])

    def program(comm):
        mine = slice(*block(4, comm.size, comm.rank))
        routes = make_routes(comm, choices[mine], 4, capacity_factor=1.0)  # 2 for each expert
        kept = routes.slots < len(routes.tokens)
        assert routes.chosen.tolist() == [4, 3, 1, 0]
        assert (
            routes.counts[comm.rank].tolist()
            == np.bincount(choices[mine][kept], minlength=4).tolist()
        )
        return kept

    kept = np.concatenate(mnpar.run(program, ranks=ranks))
    assert kept.tolist() == [[True, False], [True, True], [True, True], [False, False]]


def test_what_is_dropped_adds_nothing():
    # one token for each expert
    moe = layer(mnpar.create_communicator("self"), k=1, capacity_factor=0.1)
    y = moe(X)
    used = moe.load.sum()
    assert (moe.load <= 1).all()
    assert moe.dropped == N - used
    assert (y.array != 0).any(axis=1).sum() == used


# ---- weights ----


@pytest.mark.parametrize("make", [expert, lambda i: L.Linear(D, OUT)], ids=["sized later", "sized"])
def test_first_weights_do_not_depend_on_the_number_of_ranks(make):
    def program(comm):
        mnpar.random.seed([comm.rank, 5])
        moe = L.MixtureOfExperts(comm, make, 5, D, OUT)
        moe(X)
        return {
            path: param.array for path, param in moe.namedparams()
        }, mnpar.random.generator().random()

    weights, after = mnpar.run(program, ranks=1)[0]
    for ranks in (2, 3, 6):
        for rank, (some, then) in enumerate(mnpar.run(program, ranks=ranks)):
            assert [*some] == [
                "/gate/W",
                *[p for p in weights if p.split("/")[2] in map(str, range(*block(5, ranks, rank)))],
            ]
            for path, array in some.items():
                np.testing.assert_array_equal(array, weights[path])
            assert rank or then == after


def trained(comm, steps, start=None, into=None):
    moe = layer(comm)
    optimizer = mnpar.optimizers.Adam().setup(moe)
    moe(X)
    everything = {"model": moe, "optimizer": optimizer}
    if start is not None:
        assert checkpoint.load(start, everything, comm) == 2
    for _ in range(steps):
        moe.cleargrads()
        F.sum(moe(X) ** 2).backward()
        optimizer.update()
    if into is not None:
        checkpoint.save(into, everything, comm, 2)
    return {path: param.array for path, param in moe.namedparams()}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 4), (4, 3), (3, 1), (2, 6)], ids=str)
def test_a_checkpoint_is_loaded_by_another_number_of_ranks(before, after, tmp_path):
    truth = mnpar.run(trained, ranks=1, args=(5,))[0]
    mnpar.run(trained, ranks=before, args=(2, None, tmp_path))
    for some in mnpar.run(trained, ranks=after, args=(3, tmp_path)):
        for path, array in some.items():
            np.testing.assert_allclose(array, truth[path], rtol=1e-10, err_msg=path)


def test_a_file_of_one_rank_has_all_experts(tmp_path):
    def save(comm):
        moe = layer(comm)
        moe(X)
        mnpar.serializers.save_npz(tmp_path / f"{comm.size}-{comm.rank}.npz", moe)

    def load(comm, file):
        moe = layer(comm)
        moe(X)
        moe.zerograds()
        for param in moe.params():
            param.array[...] = 0
        mnpar.serializers.load_npz(tmp_path / file, moe)
        return moe(X).array

    mnpar.run(save, ranks=1)
    mnpar.run(save, ranks=3)
    whole = dict(np.load(tmp_path / "1-0.npz"))
    for rank in range(3):
        some = dict(np.load(tmp_path / f"3-{rank}.npz"))
        assert [*some] == [*whole]
        assert all((some[key] == whole[key]).all() for key in whole)
    np.testing.assert_array_equal(
        mnpar.run(load, ranks=2, args=("3-1.npz",))[1],
        mnpar.run(load, ranks=1, args=("1-0.npz",))[0],
    )


# ---- training beside data parallelism ----


class Net(mnpar.Chain):
    def __init__(self, comm):
        super().__init__()
        mnpar.random.seed(0)
        self.rest = mnpar.Chain(a=L.Linear(D, D), b=L.Linear(OUT, 1))
        self.experts = layer(comm, input_is_parallel=True)

    def loss(self, x):
        y = F.sum(self.rest.b(self.experts(F.tanh(self.rest.a(x)))) ** 2) / max(len(x), 1)
        return y + 0.1 * self.experts.balance


def stepped(comm, mine):
    net = Net(comm)
    rest = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(0.1), comm).setup(net.rest)
    experts = mnpar.optimizers.Adam(0.1).setup(net.experts)
    for _ in range(3):
        net.experts.cleargrads()
        rest.update(net.loss, mine(comm))
        experts.update()
    return {path: param.array for path, param in net.namedparams()}


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_are_data_parallel_in_the_rest_train_as_one_process_does(ranks):
    truth = mnpar.run(stepped, ranks=1, args=(lambda comm: X,))[0]
    for some in mnpar.run(stepped, ranks=ranks, args=(lambda comm: X[uneven(comm)],)):
        for path, array in some.items():
            np.testing.assert_allclose(array, truth[path], rtol=1e-9, atol=1e-12, err_msg=path)


def test_copies_of_the_layer_on_other_ranks_train_as_one_process_does():
    def program(comm):
        data = comm.split(comm.rank % 2, comm.rank)
        experts = comm.split(comm.rank // 2, comm.rank)
        moe = layer(experts, make=lambda i: L.Linear(D, OUT))
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(0.1), data).setup(moe)
        for _ in range(3):
            optimizer.update(
                lambda x: F.sum(moe(x) ** 2) / len(x), X[slice(*block(N, data.size, data.rank))]
            )
        return {path: param.array for path, param in moe.namedparams()}

    truth = mnpar.run(program, ranks=1)[0]
    for some in mnpar.run(program, ranks=4):
        for path, array in some.items():
            np.testing.assert_allclose(array, truth[path], rtol=1e-9, atol=1e-12, err_msg=path)


# ---- traffic ----


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bytes_are_those_of_the_rows_that_travel(ranks):
    def program(comm):
        n, width = 200, 64
        mnpar.random.seed(1)
        moe = L.MixtureOfExperts(
            comm, lambda i: L.Linear(width, width), 6, width, input_is_parallel=True
        )
        x = mnpar.Variable(np.random.default_rng(comm.rank).standard_normal((n + comm.rank, width)))
        before = comm.traffic.collective_bytes
        y = moe(x)
        forward = comm.traffic.collective_bytes - before
        weights = F.softmax(F.linear(x, moe.gate.W)).array
        owners = np.argsort(-weights, axis=1)[:, :2]
        mine = range(*block(6, comm.size, comm.rank))
        out = sum(np.count_nonzero(owners == e) for e in range(6) if e not in mine)
        back = moe.load[mine.start : mine.stop].sum() - sum(
            np.count_nonzero(owners == e) for e in mine
        )
        F.sum(y * y).backward()
        backward = comm.traffic.collective_bytes - before - forward
        return forward, backward, (out + back) * width * 8

    for forward, backward, rows in mnpar.run(program, ranks=ranks):
        # and how many rows go to each of six experts, to every other rank
        assert forward == rows + (ranks - 1) * 6 * 8
        # and the gradient of the gate's weight, 6 x 64 numbers, to every other rank, and in the
        # first passes the seven numbers by which ranks compare their copies of that weight
        assert backward == rows + (ranks - 1) * (6 * 64 + 7) * 8


# ---- errors ----

WRONG = {
    "no expert": ({"n_experts": 0}, "a mixture of 0 experts"),
    "more choices than experts": ({"k": 6}, "with k = 6"),
    "shares of what all have alike": (
        {"whole_gradients": False},
        "for ranks with tokens of their own: input_is_parallel=True",
    ),
    "no capacity": ({"capacity_factor": 0}, "capacity_factor = 0"),
}


@pytest.mark.parametrize(("options", "text"), WRONG.values(), ids=WRONG)
def test_sizes_that_are_none_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        layer(mnpar.create_communicator("self"), **options)


def test_other_features_are_named():
    moe = layer(mnpar.create_communicator("self"), make=lambda i: L.Linear(D, D))
    with pytest.raises(ValueError, match=r"x of shape \(2, 9\) has not 4 features"):
        moe(np.zeros((2, 9)))
    with pytest.raises(
        ValueError, match=r"expert 0 gives \(\d, 4\) for \d tokens, not \(\d, 3\): say its out_size"
    ):
        moe(X)
