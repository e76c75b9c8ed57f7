"""Models on a device are what they are on the host: outputs, gradients, steps, what is saved, on
several ranks.
"""

import io

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import gradient_check, optimizers, serializers
from mnpar.dataset import concat_examples
from tests.harness.cupy.stand_in import cupy

RNG = np.random.default_rng(0)
HERE = (np.asarray, "@numpy")
THERE = (cupy.asarray, "@cupy:0")
pytestmark = pytest.mark.usefixtures("device")


def floats(*shape, dtype="f4"):
    return RNG.standard_normal(shape).astype(dtype)


IDS = np.array([1, 0, 3, 2])
X = floats(4, 3)
IMAGE = floats(2, 4, 6, 6)
SEQUENCES = [floats(4, 3), floats(2, 3)]
LINKS = {  # how to make it, and its inputs
    "Linear": (lambda: L.Linear(2), X),
    "Convolution2D": (lambda: L.Convolution2D(4, 3, 3, stride=2, pad=1), IMAGE),
    "Convolution2D, groups": (lambda: L.Convolution2D(4, 4, 3, pad=1, groups=2), IMAGE),
    "Convolution3D": (lambda: L.Convolution3D(2, 3, 2), floats(1, 2, 3, 3, 3)),
    "DilatedConvolution2D": (lambda: L.DilatedConvolution2D(4, 3, 3, dilate=2, pad=2), IMAGE),
    "Deconvolution2D": (lambda: L.Deconvolution2D(4, 3, 3, stride=2), IMAGE),
    "DeformableConvolution2D": (lambda: L.DeformableConvolution2D(4, 3, 3, pad=1), IMAGE),
    "DepthwiseConvolution2D": (lambda: L.DepthwiseConvolution2D(4, 2, 3), IMAGE),
    "LocalConvolution2D": (lambda: L.LocalConvolution2D(4, 3, in_size=6, ksize=3), IMAGE),
    "MLPConvolution2D": (lambda: L.MLPConvolution2D(4, (3, 4), 3), IMAGE),
    "BatchNormalization": (lambda: L.BatchNormalization(), IMAGE),
    "BatchRenormalization": (lambda: L.BatchRenormalization(3), X),
    "DecorrelatedBatchNormalization": (
        lambda: L.DecorrelatedBatchNormalization(4, groups=2),
        floats(8, 4),
    ),
    "GroupNormalization": (lambda: L.GroupNormalization(2), IMAGE),
    "LayerNormalization": (lambda: L.LayerNormalization(3), X),
    "Scale": (lambda: L.Scale(1, (3,), bias_term=True), X),
    "Highway": (lambda: L.Highway(3), X),
    "Maxout": (lambda: L.Maxout(3, 2, 3), X),
    "PReLU": (lambda: L.PReLU((3,)), X),
    "Swish": (lambda: L.Swish((3,)), X),
    "Bilinear": (lambda: L.Bilinear(3, 2, 4), X, floats(4, 2)),
    "InceptionBN": (lambda: L.InceptionBN(4, 2, 2, 2, 2, 2, "avg", 2), IMAGE),
    "EmbedID": (lambda: L.EmbedID(5, 3, ignore_label=0), IDS),
    "LSTM": (lambda: L.LSTM(2), X),
    "GRU": (lambda: L.GRU(3, 2), X),
    "StatefulPeepholeLSTM": (lambda: L.StatefulPeepholeLSTM(3, 2), X),
    "StatefulZoneoutLSTM": (lambda: L.StatefulZoneoutLSTM(3, 2), X),
    "NStepBiLSTM": (lambda: L.NStepBiLSTM(2, 3, 2, 0.1), None, None, SEQUENCES),
    "NStepGRU": (lambda: L.NStepGRU(1, 3, 2, 0.0), None, SEQUENCES),
    "MultiHeadAttention": (lambda: L.MultiHeadAttention(2, 4), floats(2, 5, 4)),
    "ChildSumTreeLSTM": (lambda: L.ChildSumTreeLSTM(3, 2), *floats(4, 2, 2), floats(2, 3)),
    "SimplifiedDropconnect": (lambda: L.SimplifiedDropconnect(3, 2), X),
    "NegativeSampling": (lambda: L.NegativeSampling(3, [1, 2, 3, 4], 2), X, IDS),
    "BlackOut": (lambda: L.BlackOut(3, [1, 2, 3, 4], 2), X, IDS),
    "BinaryHierarchicalSoftmax": (lambda: L.BinaryHierarchicalSoftmax(3, ((0, 1), (2, 3))), X, IDS),
    "CRF1d": (lambda: L.CRF1d(3), SEQUENCES, [IDS % 3, IDS[:2]]),
    "Classifier": (lambda: L.Classifier(L.Linear(3, 4)), X, IDS),
    "MixtureOfExperts": (
        lambda: L.MixtureOfExperts(
            mnpar.create_communicator("self"), lambda i: L.Linear(3, 3, initialW=i), 3, 3, k=2
        ),
        X,
    ),
}


def pytest_generate_tests(metafunc):
    if "link" in metafunc.fixturenames:
        metafunc.parametrize(
            "link", list(LINKS)[:: 1 if metafunc.config.getoption("--sweep") else 4]
        )


def leaves(y):
    return [leaf for part in y for leaf in leaves(part)] if isinstance(y, list | tuple) else [y]


def placed(x, put):
    if isinstance(x, list):
        return [placed(part, put) for part in x]
    return x if x is None else mnpar.Variable(put(x)) if x.dtype.kind == "f" else put(x)


def assert_same(there, here):
    for a, b in zip(there, here, strict=True):
        assert isinstance(a, cupy.ndarray) == isinstance(b, np.ndarray)
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a.get(), b, rtol=1e-3, atol=1e-5)


def outcome(make, inputs, put, where):
    mnpar.random.seed(0)
    model = make().to_device(where)
    inputs = [placed(x, put) for x in inputs]
    ys = [y for y in leaves(model(*inputs)) if isinstance(y, mnpar.Variable)]
    model.cleargrads()
    mnpar.backward(ys, [mnpar.Variable(put(np.ones(y.shape, y.dtype))) for y in ys])
    found = [y.array for y in ys] + [p.grad for p in model.params()]
    found += [x.grad for x in leaves(inputs) if isinstance(x, mnpar.Variable)]
    return found + [getattr(part, name) for part in model.links() for name in part._persistent]


def test_a_link_is_the_same_on_a_device(link):
    make, *inputs = LINKS[link]
    assert_same(outcome(make, inputs, *THERE), outcome(make, inputs, *HERE))


# ---- training ----


def steps(model, optimizer, put, batches):
    for x in batches:
        optimizer.update(lambda: F.sum(model(put(x)) ** 2))  # noqa: B023
    return [p.array for p in model.params()]


def optimizer_by(rule):
    name, _, momentum = rule.partition(" with ")
    optimizer = getattr(optimizers, name)()
    return optimizers.apply_momentum(optimizer) if momentum else optimizer


def network(lazy):
    return mnpar.Sequential(
        L.Linear(None if lazy else 3, 4, nobias=True),
        L.BatchNormalization(4),
        F.tanh,
        L.Linear(4, 2),
    )


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
@pytest.mark.parametrize("rule", ["Adam", "Novograd", "MomentumSGD", "AdaGrad with momentum"])
def test_training_goes_on_on_a_device_from_what_was_saved_on_the_host(rule, order):
    """What the optimizer has kept for a lazy parameter waits on the host until that has an
    array.
    """
    batches = floats(4, 4, 3)
    pages = (io.BytesIO(), io.BytesIO())
    model = network(False)
    optimizer = optimizer_by(rule)
    steps(model, optimizer.setup(model), HERE[0], batches[:2])
    for page, what in zip(pages, (model, optimizer), strict=True):
        serializers.save_npz(page, what)
    expected = steps(model, optimizer, HERE[0], batches[2:])

    twin = network(True).to_device("@cupy:0")
    other = optimizer_by(rule)
    other.setup(twin)
    for page, what in list(zip(pages, (twin, other), strict=True))[
        :: 1 if order == "model first" else -1
    ]:
        page.seek(0)
        serializers.load_npz(page, what)
    assert_same(steps(twin, other, THERE[0], batches[2:]), expected)


def test_gradient_checks_take_arrays_on_a_device():
    x, gy, ggx = (cupy.asarray(floats(3, 2, dtype="d")) for _ in range(3))
    gradient_check.check_backward(F.tanh, x, gy, detect_nondifferentiable=True)
    gradient_check.check_double_backward(F.tanh, x, gy, ggx)
    gradient_check.check_double_backward(lambda x: F.sum(x**3), x, None, ggx)
    (g,) = gradient_check.numerical_grad(lambda: x**2, [x], [gy])
    np.testing.assert_allclose(g.get(), (2 * x * gy).get(), rtol=1e-6)


def test_a_batch_goes_where_it_is_wanted():
    x, t = concat_examples([(X[0], 1), (X[1], 2)], 2)
    assert x.device.id == t.device.id == 2
    assert concat_examples([X[0], X[1][:2]], 0, padding=0).tolist() == [
        X[0].tolist(),
        [*X[1][:2].tolist(), 0],
    ]


def test_arrays_of_two_devices_are_named():
    with pytest.raises(
        TypeError, match=r"Add: the inputs are on different devices, @cupy:0, @numpy: to_device"
    ):
        mnpar.Variable(cupy.asarray(X)) + X


def test_what_is_copied_goes_to_the_device_of_its_place():
    with cupy.cuda.Device(1):
        place = mnpar.Variable(cupy.zeros((4, 3), "f4"))
    place.copydata(mnpar.Variable(X))
    assert place.array.device.id == 1
    np.testing.assert_array_equal(place.array.get(), X)


# ---- several ranks ----


def data_parallel(comm, put, where):
    mnpar.random.seed(0)
    model = mnpar.Sequential(
        L.Linear(3, 4, nobias=True), L.MultiNodeBatchNormalization(4, comm), F.tanh, L.Linear(4, 2)
    )
    optimizer = mnpar.create_multi_node_optimizer(optimizers.Adam(), comm).setup(
        model.to_device(where)
    )
    mine = np.random.default_rng(comm.rank).standard_normal((3, 2 + comm.rank, 3)).astype("f4")
    return steps(model, optimizer, put, mine)


def model_parallel(comm, put, where):
    mnpar.random.seed(0)
    model = mnpar.Sequential(
        L.ColumnParallelLinear(comm, 3, 4, gather_output=False),
        F.relu,
        L.RowParallelLinear(comm, 4, 2, input_is_parallel=True),
    )
    return steps(
        model.to_device(where), optimizers.SGD().setup(model), put, np.ones((2, 4, 3), "f4")
    )


def ring(comm, put, where):
    x = mnpar.Variable(put(X + comm.rank))
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    F.send(x, comm, right)
    y = F.allreduce(comm, F.recv(comm, left) * x)
    whole = F.concat(F.allgather(comm, x), axis=0)
    mnpar.backward([y, whole], [mnpar.Variable(put(np.ones(v.shape, "f4"))) for v in (y, whole)])
    return [y.array, whole.array, x.grad]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("program", [data_parallel, model_parallel, ring])
def test_ranks_do_the_same_on_devices(comm, program):
    assert_same(program(comm, *THERE), program(comm, *HERE))
