"""from_torch and TorchModule beside mnpar's own functions and links, and what goes wrong."""

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402
import mnpar.torch as mt  # noqa: E402
from mnpar.errors import LayoutError  # noqa: E402


def product(x, w):
    return torch.tanh(x @ w) ** 2


def own(x, w):
    return F.tanh(x @ w) ** 2


def arrays(rows=3):
    rng = np.random.default_rng(0)
    return rng.random((rows, 4)), rng.random((4, 2))


def test_nested_arguments_and_results_and_those_without_gradients():
    def function(pair, options, scale=1.0):
        values, index = torch.max(scale * pair[0] + options["b"], dim=0)
        return {"max": values, "where": [index, None]}, values.detach()

    x = mnpar.Variable(np.array([[1.0, 5.0], [4.0, 2.0]]))
    found, detached = F.from_torch(function)((x, "unused"), {"b": np.ones(2)}, scale=2.0)
    np.testing.assert_array_equal(found["max"].array, [9, 11])
    np.testing.assert_array_equal(found["where"][0].array, [1, 0])
    assert found["where"][1] is None
    F.sum(found["max"] + 3 * detached).backward()
    np.testing.assert_array_equal(x.grad, [[0, 2], [2, 0]])


def test_arrays_share_memory_and_gradients_do_not():
    x = np.ones(5000)
    seen = []
    F.from_torch(lambda t: seen.append(t) or t + 1)(x)
    assert np.shares_memory(seen[0].numpy(), x)
    a, b = mnpar.Variable(x), mnpar.Variable(x.copy())
    F.sum(F.from_torch(torch.add)(a, b)).backward()
    a.grad += 1
    assert (a.grad[0], b.grad[0]) == (2, 1)


def test_any_layout_and_byte_order_of_an_array():
    whole = np.arange(12.0).reshape(3, 4)
    for x in (whole[::-1], whole.T, whole.astype(">f8"), np.broadcast_to(whole[0], (3, 4))):
        v = mnpar.Variable(x)
        y = F.from_torch(lambda t: t * t)(v)
        F.sum(y).backward()
        np.testing.assert_array_equal(y.array, x * x)
        np.testing.assert_array_equal(v.grad, 2 * x)


def test_nothing_is_kept_where_nothing_is_recorded():
    with mnpar.no_backprop_mode():
        y = F.from_torch(torch.sin)(mnpar.Variable(np.ones(2)))
    assert not y.requires_grad


# ---- modules ----


def twins():
    """A network in PyTorch's words and in mnpar's, with the same values."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    ).double()
    with mnpar.using_config("dtype", np.dtype("f8")):
        own = mnpar.Sequential(
            L.Linear(3, 4), L.BatchNormalization(4, decay=0.9, eps=1e-5), F.relu, L.Linear(4, 2)
        )
    for mine, layer in ((own[0], net[0]), (own[3], net[3])):
        mine.W.array[...] = layer.weight.detach().numpy()
        mine.b.array[...] = layer.bias.detach().numpy()
    return L.TorchModule(net), own


def batch(rows=6):
    rng = np.random.default_rng(1)
    return rng.random((rows, 3)), rng.integers(0, 2, rows)


OPTIMIZERS = [
    lambda: mnpar.optimizers.SGD(0.1),
    lambda: mnpar.optimizers.Adam(0.01),
    lambda: mnpar.optimizers.MomentumSGD(0.1),
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["SGD", "Adam", "MomentumSGD"])
def test_a_module_learns_what_the_same_network_of_links_learns(make):
    x, t = batch()
    networks = twins()
    for model in networks:
        optimizer = make().setup(model)
        optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(1e-3))
        for _ in range(5):
            optimizer.update(lambda m=model: F.softmax_cross_entropy(m(x), t))
    for p, q in zip(*[model.params() for model in networks], strict=True):
        np.testing.assert_allclose(p.array, q.array, rtol=1e-9, atol=1e-12)
    with mnpar.using_config("train", False):
        y, z = [model(x).array for model in networks]
    np.testing.assert_allclose(y, z, rtol=1e-9)
    assert not networks[0].module.training


def same_memory(model):
    state = model.module.state_dict()
    for path, value in [*model.namedparams(), *model.namedpersistents()]:
        array = getattr(value, "array", value)
        assert np.shares_memory(array, state[path[1:]].numpy()), path


def trained():
    model, _ = twins()
    optimizer = mnpar.optimizers.Adam().setup(model)
    x, t = batch()
    optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
    return model


def test_parameters_and_running_means_lie_in_the_modules_tensors_whatever_moves_them(tmp_path):
    model = trained()
    same_memory(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.copy()):
        same_memory(other)
    fresh, _ = twins()
    mnpar.serializers.save_npz(tmp_path / "model.npz", model)
    mnpar.serializers.load_npz(tmp_path / "model.npz", fresh)
    same_memory(fresh)
    for name, tensor in model.module.state_dict().items():
        assert torch.equal(tensor, fresh.module.state_dict()[name]), name
    assert fresh.module[1].num_batches_tracked.item() == 1
    fresh.copyparams(twins()[0])
    same_memory(fresh)
    assert fresh.module[1].num_batches_tracked.item() == 0


def test_names_frozen_parameters_and_shared_ones():
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    net["b"].weight = net["a"].weight
    net["a"].bias.requires_grad_(False)
    net.register_parameter("device", torch.nn.Parameter(torch.ones(1)))
    net.forward = lambda x: net["b"](net["a"](x)) * net.device
    model = L.TorchModule(net)
    assert [name for name, _ in model.namedparams()] == ["/device_", "/a.weight", "/b.bias"]
    assert [name for name, _ in model.namedpersistents()] == ["/a.bias"]
    x = np.ones((1, 2), "f4")
    F.sum(model(x)).backward()
    F.sum(model(x))
    net.zero_grad()
    net(torch.ones(1, 2)).sum().backward()
    np.testing.assert_allclose(model.__dict__["a.weight"].grad, net["a"].weight.grad, rtol=1e-5)


def test_forget_repeats_random_numbers_and_leaves_running_means_alone():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
    ).double()
    x, _ = batch()
    results = []
    for call in (lambda m, x: m(x), lambda m, x: F.forget(m, x)):
        model = L.TorchModule(copy.deepcopy(net))
        mnpar.random.seed(0)
        F.sum(call(model, x) ** 2).backward()
        persistent = [np.copy(value) for _, value in model.namedpersistents()]
        results.append([p.grad for p in model.params()] + persistent)
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert results[0][-1] == 1  # batches


def test_random_numbers_are_the_ranks_and_torchs_own_go_on():
    dropout = F.from_torch(torch.nn.Dropout(0.5))
    x = np.ones(100)
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    draws = []
    for seed in (0, 0, 1):
        mnpar.random.seed(seed)
        draws.append(dropout(x).array.tolist())
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.rand(3), wanted)
    with mnpar.using_config("train", False):
        assert dropout(x).array.tolist() == x.tolist()


@pytest.mark.ranks(1, 2, 3)
def test_data_parallel_copies_learn_what_one_process_learns(comm):
    """Without batch normalization, whose statistics are each rank's; batches are uneven."""

    def network():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
        ).double()

    x, t = batch(7)
    mine = slice(comm.rank * 3, 7 if comm.rank == comm.size - 1 else comm.rank * 3 + 3)
    model = L.TorchModule(network())
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(model)
    for _ in range(3):
        optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x[mine], t[mine])
    one = L.TorchModule(network())
    optimizer = mnpar.optimizers.SGD(0.1).setup(one)
    for _ in range(3):
        optimizer.update(lambda: F.softmax_cross_entropy(one(x), t))
    for p, q in zip(model.params(), one.params(), strict=True):
        np.testing.assert_allclose(p.array, q.array, rtol=1e-10, atol=1e-13)
    same_memory(model)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_stages_of_a_pipeline_learn_what_one_process_learns(schedule):
    def layers():
        torch.manual_seed(0)
        return [torch.nn.Linear(3, 4).double(), torch.nn.Linear(4, 2).double()]

    x, t = batch()

    def program(comm):
        stage = L.TorchModule(layers()[comm.rank])
        last = comm.rank == 1
        pipeline = mnpar.Pipeline(
            comm, L.Classifier(stage) if last else stage, schedule, micro_batches=3
        )
        optimizer = mnpar.optimizers.SGD(0.1).setup(pipeline)
        for _ in range(3):
            optimizer.update(pipeline, *[t if last else x])
        return [p.array for p in stage.params()]

    found = mnpar.run(program, ranks=2)
    one = mnpar.Sequential(*map(L.TorchModule, layers()))
    optimizer = mnpar.optimizers.SGD(0.1).setup(one)
    for _ in range(3):
        optimizer.update(lambda: F.softmax_cross_entropy(one(x), t))
    for p, q in zip([a for part in found for a in part], one.params(), strict=True):
        np.testing.assert_allclose(p, q.array, rtol=1e-10)


@pytest.mark.ranks(1, 2, 3)
def test_it_is_a_function_like_any_other_between_communications(comm):
    """Three rows over the ranks, uneven or empty: values and gradients of one process."""
    x, w = arrays()
    mine = slice(comm.rank * 2, comm.rank * 2 + 2) if comm.size > 1 else slice(None)
    xs = [mnpar.Variable(x[mine].copy()), mnpar.Variable(w)]
    F.sum(F.from_torch(product)(xs[0], F.copy_to(comm, xs[1]))).backward()
    whole = [mnpar.Variable(x), mnpar.Variable(w)]
    F.sum(own(*whole)).backward()
    np.testing.assert_allclose(xs[0].grad, whole[0].grad[mine], rtol=1e-12)
    np.testing.assert_allclose(xs[1].grad, whole[1].grad, rtol=1e-12)


# ---- what goes wrong ----

CONSTANT = torch.ones(2, dtype=torch.float64)
LEARNT = torch.ones(2, dtype=torch.float64, requires_grad=True)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 1


def twice(x):
    y = F.from_torch(Once.apply)(x)
    (g,) = mnpar.grad([F.sum(y * y)], [x], enable_double_backprop=True)
    F.sum(g * g).backward()


def frozen_later(x):
    model = L.TorchModule(torch.nn.Linear(2, 2).double())
    model.module.bias.requires_grad_(False)
    model(x)


def communicating(x):
    mnpar.run(lambda comm: F.from_torch(lambda t: mt.allreduce(comm, t))(x), ranks=2)


def cut(x):
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2,))
        F.from_torch(torch.sin)(grid.cut(np.ones((1, 1, 4))))

    mnpar.run(program, ranks=2)


def of(function):
    return lambda x: F.from_torch(function)(x)


WRONG = {
    "a captured tensor": (of(lambda t: t * LEARNT), RuntimeError, r"shape \(2,\) .* no argument"),
    "in place": (
        lambda x: F.from_torch(lambda t: t.add_(1))(x.array),
        RuntimeError,
        "changes array 0 of its arguments in place.*x.clone",
    ),
    "in place of a leaf": (of(lambda t: t.add_(1)), RuntimeError, "leaf Variable"),
    "bfloat16": (of(lambda t: t.bfloat16()), TypeError, "bfloat16.*is no array of numpy's"),
    "sparse": (of(lambda t: t.to_sparse()), TypeError, r"x.to_dense\(\)"),
    "a number": (of(lambda t: 3), TypeError, "returned a int without any: it returns tensors"),
    "an object": (of(lambda t: [t, object()]), TypeError, "returned a object"),
    "a dtype": (
        lambda x: F.from_torch(torch.sin)(np.ones(2, np.longdouble)),
        TypeError,
        "PyTorch has no tensors of",
    ),
    "parameters": (
        lambda x: F.from_torch(torch.nn.Linear(2, 2)),
        TypeError,
        r"a Linear has parameters.*mnpar.links.TorchModule\(module\)",
    ),
    "no module": (lambda x: L.TorchModule(torch.sin), TypeError, "takes a torch.nn.Module, not"),
    "lazy": (lambda x: L.TorchModule(torch.nn.LazyLinear(2)), ValueError, "has no shape yet"),
    "frozen": (frozen_later, ValueError, "made with 2 parameters .* now 1 do"),
    "once": (twice, RuntimeError, "once_differentiable"),
    "communication": (communicating, RuntimeError, "allreduce at .* cannot run inside"),
    "cut": (cut, LayoutError, "from_torch|TorchCall"),
}


@pytest.mark.parametrize(("program", "error", "told"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(program, error, told):
    with pytest.raises(error, match=told):
        program(mnpar.Variable(np.ones(2)))


def test_a_captured_constant_is_none_of_these():
    x = mnpar.Variable(np.ones(2))
    F.sum(F.from_torch(lambda t: t * CONSTANT)(x)).backward()
    assert x.grad.tolist() == [1, 1]


# ---- handing arrays over ----


def test_a_tensor_in_place_of_an_array_is_told_where_to_go():
    with pytest.raises(TypeError, match=r"mnpar\.torch has the communications.*from_dlpack\(x\)"):
        F.sum(torch.ones(2))


def test_a_variable_without_a_gradient_is_handed_over_and_one_with_is_not():
    x = mnpar.Variable(np.ones(2), requires_grad=False)
    tensor = torch.from_dlpack(x)
    tensor += 1
    assert x.array.tolist() == [2, 2]
    with pytest.raises(BufferError, match=r"F\.from_torch"):
        torch.from_dlpack(mnpar.Variable(np.ones(2)))


def test_a_tensor_becomes_a_variable_with_the_same_memory():
    tensor = torch.ones(2)
    y = mnpar.from_dlpack(tensor, requires_grad=True)
    tensor += 1
    assert y.requires_grad
    assert y.array.tolist() == [2, 2]
    with pytest.raises(BufferError):
        mnpar.from_dlpack(torch.ones(2, requires_grad=True))
    with pytest.raises(BufferError, match="bfloat16"):
        mnpar.from_dlpack(torch.ones(2, dtype=torch.bfloat16))
