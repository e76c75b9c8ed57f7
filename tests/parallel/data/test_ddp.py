"""A model whose backward ends with the gradients of all ranks, and the hooks by which a user writes
such a model himself.
"""

import copy
import operator

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

pytestmark = pytest.mark.usefixtures("float64")

RANKS = pytest.mark.ranks(1, 2, 3, on="threads")
STEPS, LR = 5, 0.1


class MLP(mnpar.Chain):
    def __init__(self, seed=0, size=4):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.a = L.Linear(size, 6, initialW=lambda w: np.copyto(w, rng.standard_normal(w.shape)))
        self.b = L.Linear(6, 3, initialW=lambda w: np.copyto(w, rng.standard_normal(w.shape)))

    def forward(self, x):
        return self.b(F.tanh(self.a(x)))


def loss_of(model, x, t):
    y = model(x)
    return F.softmax_cross_entropy(y, t) if len(x) else F.sum(y)


def descend(model):
    for param in model.params():
        param.array -= LR * param.grad


def serial(data, size):
    model = MLP(0, size)
    for x, t in data:
        model.cleargrads()
        loss_of(model, x, t).backward()
        descend(model)
    return [p.array for p in model.params()]


def samples(shards, steps=STEPS):
    rng = np.random.default_rng(1)
    return [
        (rng.standard_normal((sum(shards), 4)), rng.integers(0, 3, sum(shards)))
        for _ in range(steps)
    ]


def part(comm, shards, x, t):
    edges = np.cumsum([0, *shards])
    return x[edges[comm.rank] : edges[comm.rank + 1]], t[edges[comm.rank] : edges[comm.rank + 1]]


@pytest.mark.grid
@RANKS
@pytest.mark.parametrize("bucket_bytes", [None, 1, 200])
@pytest.mark.parametrize("size", [4, None], ids=["sized", "lazily sized"])
@pytest.mark.parametrize(
    "shards", [[3, 3, 3], [2, 5, 1], [4, 0, 3]], ids=["even", "uneven", "one empty"]
)
def test_descent_by_hand_equals_one_process_with_all_samples(comm, shards, size, bucket_bytes):
    shards = shards[: comm.size]
    data = samples(shards)
    model = mnpar.DistributedDataParallel(MLP(comm.rank, size), comm, bucket_bytes=bucket_bytes)
    for x, t in data:
        model.cleargrads()
        loss_of(model, *part(comm, shards, x, t)).backward()
        descend(model)
    for mine, expected in zip(model.params(), serial(data, size), strict=True):
        np.testing.assert_allclose(mine.array, expected, rtol=1e-11, atol=1e-13)


@RANKS
def test_gradients_that_were_added_up_are_part_of_the_mean(comm):
    shards = [2, 4, 1][: comm.size]
    data = samples(shards, 2)
    model = mnpar.DistributedDataParallel(MLP(), comm)
    with mnpar.no_backprop_mode():
        model(data[0][0])  # parameters are made equal
    with model.no_sync():
        loss_of(model, *part(comm, shards, *data[0])).backward()
    loss_of(model, *part(comm, shards, *data[1])).backward()
    twin = MLP()
    mnpar.backward([loss_of(twin, *data[0]), loss_of(twin, *data[1])])
    for mine, expected in zip(model.params(), twin.params(), strict=True):
        np.testing.assert_allclose(mine.grad, expected.grad, rtol=1e-11, atol=1e-13)


@RANKS
def test_two_forwards_before_one_backward_are_reduced_once(comm):
    (x, t), *_ = samples([2] * comm.size, 1)
    model = mnpar.DistributedDataParallel(MLP(), comm)
    mine = part(comm, [2] * comm.size, x, t)
    mnpar.backward([loss_of(model, *mine), loss_of(model, 2 * mine[0], mine[1])])
    twin = MLP()
    mnpar.backward([loss_of(twin, x, t), loss_of(twin, 2 * x, t)])
    for mine, expected in zip(model.params(), twin.params(), strict=True):
        np.testing.assert_allclose(mine.grad, expected.grad, rtol=1e-11, atol=1e-13)


@RANKS
def test_a_backward_that_is_recorded_leaves_the_same_gradients(comm):
    (x, t), *_ = samples([2] * comm.size, 1)
    model = mnpar.DistributedDataParallel(MLP(), comm)
    loss_of(model, *part(comm, [2] * comm.size, x, t)).backward(enable_double_backprop=True)
    twin = MLP()
    loss_of(twin, x, t).backward()
    for mine, expected in zip(model.params(), twin.params(), strict=True):
        np.testing.assert_allclose(mine.grad, expected.grad, rtol=1e-11, atol=1e-13)


@RANKS
@pytest.mark.parametrize("bucket_bytes", [None, 1])
def test_after_a_backward_that_failed_the_next_one_is_as_if_it_had_not_been(comm, bucket_bytes):
    class Failing(mnpar.FunctionNode):
        def forward(self, x):
            return x.copy()

        def backward(self, gy):
            raise ZeroDivisionError

    class Net(MLP):
        def forward(self, x):
            h = self.a(x)
            return self.b(Failing().apply((h,))[0] if broken else F.tanh(h))

    broken = []

    def train(fails):
        model = mnpar.DistributedDataParallel(Net(0), comm, bucket_bytes=bucket_bytes)
        for i, (x, t) in enumerate(samples([2, 5, 1][: comm.size])):
            model.cleargrads()
            if fails and i == 2:
                broken.append(True)
                with pytest.raises(ZeroDivisionError):
                    loss_of(model, *part(comm, [1, 1, 6][-comm.size :], x, t)).backward()
                broken.clear()
                model.cleargrads()
            loss_of(model, *part(comm, [2, 5, 1][: comm.size], x, t)).backward()
            descend(model)
        return [param.array for param in model.params()]

    for mine, expected in zip(train(True), train(False), strict=True):
        np.testing.assert_array_equal(mine, expected)


@RANKS
@pytest.mark.parametrize("retain_tape", [True, False])
def test_a_second_backward_of_one_forward_is_reduced_too_or_refused(comm, retain_tape):
    model = mnpar.DistributedDataParallel(L.Linear(4, 1, initialW=1, nobias=True), comm)
    shards = [2, 5, 1][: comm.size]
    x, t = samples(shards)[0]
    y = model(part(comm, shards, x, t)[0])
    F.mean(y).backward(retain_tape=retain_tape)
    if retain_tape:
        F.mean(y * y).backward()
        np.testing.assert_allclose(
            model.module.W.grad[0], (x + 2 * x * x.sum(1, keepdims=True)).mean(0)
        )
    else:
        with pytest.raises(RuntimeError, match=r"has reduced already.*retain_tape=True"):
            F.mean(y * y).backward()


@RANKS
def test_forwards_whose_results_were_dropped_have_no_weight(comm):
    model = mnpar.DistributedDataParallel(L.Linear(4, 1, initialW=1, nobias=True), comm)
    shards = [2, 5, 1][: comm.size]
    x, t = samples(shards)[0]
    model(np.ones((9 if comm.rank == 0 else 1, 4)))  # an evaluation, by the side, that was recorded
    F.mean(model(part(comm, shards, x, t)[0])).backward()
    np.testing.assert_allclose(model.module.W.grad[0], x.mean(0))


@RANKS
@pytest.mark.parametrize("bucket_bytes", [None, 1])
def test_gradients_of_what_read_the_parameters_before_the_forward_are_reduced_too(
    comm, bucket_bytes
):
    def gradient(comm, x):
        link = L.Linear(4, 1, initialW=1, nobias=True)
        model = (
            link
            if comm is None
            else mnpar.DistributedDataParallel(link, comm, bucket_bytes=bucket_bytes)
        )
        penalty = F.sum(link.W**4)
        (F.mean(model(x) ** 2) + penalty).backward()
        return link.W.grad

    shards = [2, 5, 1][: comm.size]
    x, t = samples(shards)[0]
    np.testing.assert_allclose(gradient(comm, part(comm, shards, x, t)[0]), gradient(None, x))


@RANKS
@pytest.mark.parametrize("bucket_bytes", [None, 1])
def test_parameters_that_share_an_array_are_reduced_each(comm, bucket_bytes):
    def gradients(comm, x):
        link = L.Linear(4, 4, initialW=0.5 * np.eye(4))
        both = mnpar.Sequential(link, F.tanh, link.copy())
        model = (
            both
            if comm is None
            else mnpar.DistributedDataParallel(both, comm, bucket_bytes=bucket_bytes)
        )
        for _ in range(2):
            both.cleargrads()
            F.mean(model(x) ** 2).backward()
        return [param.grad for param in both.params()]

    shards = [2, 5, 1][: comm.size]
    x, t = samples(shards)[0]
    for mine, expected in zip(
        gradients(comm, part(comm, shards, x, t)[0]), gradients(None, x), strict=True
    ):
        np.testing.assert_allclose(mine, expected)


@pytest.mark.ranks(2, on="threads")
def test_two_models_that_have_parameters_in_common_are_refused_in_one_backward(comm):
    link = L.Linear(4, 4)
    one, other = (
        mnpar.DistributedDataParallel(mnpar.Sequential(link, f), comm) for f in (F.tanh, F.sigmoid)
    )
    y = one(np.ones((1, 4)))
    with pytest.raises(RuntimeError, match="parameters in common"):
        other(y)


@pytest.mark.ranks(2, on="threads")
def test_a_multi_node_optimizer_of_it_is_refused(comm):
    model = mnpar.DistributedDataParallel(L.Linear(4, 1), comm)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
    with pytest.raises(RuntimeError, match="reduced twice"):
        optimizer.update(lambda x: F.sum(model(x)), np.ones((1, 4)))
    inner = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model.module)
    with pytest.raises(RuntimeError, match="reduced twice"):
        inner.update(lambda x: F.sum(model(x)), np.ones((1, 4)))
    mnpar.backward()
    other = L.Linear(4, 4)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(other)
    optimizer.update(lambda x: F.sum(model(other(x))), np.ones((1, 4)))  # each reduces its own


@pytest.mark.ranks(2, on="threads")
def test_uneven_shards_are_refused_where_the_model_communicates_among_the_same_ranks(comm):
    model = mnpar.Sequential(L.Linear(4, 4), L.MultiNodeBatchNormalization(4, comm))
    model = mnpar.DistributedDataParallel(model, comm)
    F.sum(model(np.ones((3, 4)))).backward()
    with pytest.raises(
        RuntimeError, match=r"ranks of \[1.0, 2.0\] samples.*create_multi_node_optimizer"
    ):
        model(np.ones((comm.rank + 1, 4)))


@pytest.mark.ranks(2, on="threads")
def test_uneven_shards_are_refused_where_the_loss_communicates_among_the_same_ranks(comm):
    model = mnpar.DistributedDataParallel(L.Linear(4, 4), comm)
    F.sum(F.allgather(comm, model(np.ones((3, 4))), axis=0)).backward()
    F.sum(F.allreduce(comm, np.ones(3))).backward()  # concerns no model
    loss = F.mean(F.allgather(comm, model(np.ones((comm.rank + 1, 4))), axis=0))
    with pytest.raises(
        RuntimeError, match=r"ranks of \[1.0, 2.0\] samples.*create_multi_node_optimizer"
    ):
        loss.backward()
    F.sum(model(np.ones((comm.rank + 1, 4)))).backward()  # goes on


@RANKS
def test_evaluation_sends_nothing(comm):
    model = mnpar.DistributedDataParallel(MLP(), comm)
    model(np.ones((1, 4)))
    mnpar.backward()
    before = copy.copy(comm.traffic)
    assert before.collectives > 0  # of the step that was recorded
    if comm.rank == 0:
        with mnpar.no_backprop_mode():
            model(np.ones((1, 4)))
    assert comm.traffic == before


@RANKS
def test_a_copy_has_parameters_of_its_own(comm):
    model = mnpar.DistributedDataParallel(MLP(comm.rank), comm)
    model(np.ones((1, 4)))
    mnpar.backward()
    other = copy.deepcopy(model)
    other.module.a.W.array[...] = 0
    assert model.module.a.W.array.any()


def test_one_rank_alone_can_copy_it_as_nothing_is_measured_again():
    def program(comm):
        # each rank on a machine of its own: there it would be measured
        comm.transport.places = lambda: (
            0,
            1,
            comm.rank,
            2,
        )
        model = mnpar.DistributedDataParallel(MLP(), comm, bucket_bytes=64)
        return None if comm.rank else copy.deepcopy(model)._reducer.bucket_bytes

    assert mnpar.run(program, ranks=2) == [64, None]


@RANKS
def test_parameters_stay_where_their_optimizer_has_them(comm):
    """Values that went to and fro would cost a copy of the model twice in each step."""
    model = mnpar.DistributedDataParallel(MLP(), comm)
    optimizer = mnpar.optimizers.SGD(LR).setup(model)
    arrays = []
    for _ in range(3):
        model.cleargrads()
        F.sum(model(np.ones((1, 4)))).backward()
        arrays.append([param.array for param in model.params()])
        optimizer.update()
        arrays.append([param.array for param in model.params()])
    for row in arrays[2:]:
        assert all(map(operator.is_, row, arrays[1]))


class MyDataParallel(mnpar.Chain):
    """What a user writes, in a dozen lines."""

    def __init__(self, module, comm, mean):
        super().__init__(module=module)
        for param in module.params():
            param.array[...] = comm.bcast(param.array)
            param.register_hook(lambda g: comm.allreduce(g, "mean" if mean else "sum"))

    def forward(self, *args):
        return self.module(*args)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_a_users_own_wrapper_by_hooks_equals_the_built_in_one(comm, mean):
    shards = [3] * comm.size
    data = samples(shards)
    own = MyDataParallel(MLP(comm.rank), comm, mean)
    built_in = mnpar.DistributedDataParallel(MLP(comm.rank), comm)
    for x, t in data:
        x, t = part(comm, shards, x, t)
        for model in (own, built_in):
            model.cleargrads()
            loss_of(model, x, t).backward()
        for param, other in zip(own.params(), built_in.params(), strict=True):
            np.testing.assert_allclose(
                param.grad, other.grad * (1 if mean else comm.size), rtol=1e-10, atol=1e-13
            )
            other.array[...] = param.array = param.array - LR * other.grad


def test_hooks_hear_gradients_in_reverse_order_of_use_once_and_complete():
    heard = []
    model = MLP()
    for path, param in model.namedparams():
        param.register_hook(lambda g, path=path: heard.append((path, g.copy())))
    x, t = samples([4], 1)[0]
    mnpar.backward([loss_of(model, x, t), F.sum(model.a.b * model.a.b)])
    assert [path for path, _ in heard] == ["/b/b", "/b/W", "/a/b", "/a/W"]
    for path, g in heard:
        np.testing.assert_array_equal(g, dict(model.namedparams())[path].grad)


def test_a_hook_may_change_a_gradient_on_its_way():
    x = mnpar.Variable(np.array(3.0))
    y = x * x
    y.register_hook(lambda g: 5 * g)
    (2 * y).backward()
    assert x.grad == 60
    (gx,) = mnpar.grad([2 * y], [x])
    assert gx.array == 60


def test_a_hook_of_what_is_asked_for_changes_what_is_returned():
    x = mnpar.Variable(np.array(3.0))
    y = x * x
    off = y.register_hook(lambda g: 5 * g)
    assert mnpar.grad([2 * y], [y])[0].array == 10
    x.register_hook(lambda g: -g)
    assert mnpar.grad([2 * y], [x])[0].array == -60
    off()
    assert mnpar.grad([2 * y], [x])[0].array == -12


def test_a_hook_that_was_taken_off_hears_nothing_and_copies_have_none():
    heard = []
    link = L.Linear(2, 1)
    off = link.W.register_hook(lambda g: heard.append(1))
    F.sum(link.copy("copy")(np.ones((1, 2)))).backward()
    assert not heard
    F.sum(link(np.ones((1, 2)))).backward()
    off()
    F.sum(link(np.ones((1, 2)))).backward()
    assert heard == [1]


def test_hooks_of_recorded_backwards_get_variables_and_their_work_is_differentiated():
    x = mnpar.Variable(np.array(3.0))
    x.register_hook(lambda g: g * g)
    (gx,) = mnpar.grad([x * x], [x], enable_double_backprop=True)
    assert gx.array == 36  # (2x)²
    x.node.hooks = ()
    (ggx,) = mnpar.grad([gx], [x])
    assert ggx.array == 24  # 8x


def test_a_parameter_read_by_an_early_function_is_heard_after_it():
    """W is read first and last; its gradient is final only when the first reader was visited."""
    W, heard = mnpar.Parameter(np.array([2.0])), []
    W.register_hook(lambda g: heard.append(float(g[0])))
    y = W * 3
    for _ in range(3):
        y = y * y
    F.sum(y * W).backward()
    assert heard == [float(W.grad[0])]


def test_a_hook_that_changes_the_shape_is_told_so():
    x = mnpar.Variable(np.ones(3))
    x.register_hook(lambda g: g.sum())
    with pytest.raises(
        ValueError, match=r"a hook made a \(\) float64 of the \(3,\) float64 gradient"
    ):
        F.sum(x).backward()


@RANKS
def test_gradients_from_no_sync_are_part_of_the_mean_where_the_backward_is_another_optimizers(comm):
    model = mnpar.DistributedDataParallel(L.Linear(3, 2, initialW=0.5), comm)
    head = L.Linear(2, 1, initialW=0.25)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(head)
    x = np.random.default_rng(comm.rank).standard_normal((4, 3))
    for held in (False, True):
        model.cleargrads()
        if held:
            with model.no_sync():
                F.mean(head(model(x)) ** 2).backward()
        optimizer.update(lambda x: F.mean(head(model(x)) ** 2), x)
        grads = comm.allgather(model.module.W.grad)
        assert all([np.array_equal(grad, grads[0]) for grad in grads])


@RANKS
def test_gradients_from_no_sync_are_part_of_the_mean_before_the_optimizer_has_met_the_model(
    comm,
):
    """Its ranks have met with their gradients so far, and learn only from these that this backward
    reduces others.
    """

    def gradient(before):
        model = mnpar.DistributedDataParallel(L.Linear(2, 1, initialW=0.5), comm)
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(
            head := L.Linear(2, 1, initialW=1)
        )
        x = np.full((1 + comm.rank, 2), 1.0 + comm.rank)
        for _ in range(before):
            optimizer.update(lambda x: F.mean(head(x)), x)
        with model.no_sync():
            F.mean(model(x)).backward()
        optimizer.update(lambda x: F.mean(head(x)) + F.mean(model(x)), x)
        return model.module.W.grad

    met = gradient(0)
    unmet = gradient(3)
    np.testing.assert_allclose(unmet, met, rtol=1e-6)
    assert len({one.tobytes() for one in comm.allgather(unmet)}) == 1
