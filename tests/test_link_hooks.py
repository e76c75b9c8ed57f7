"""Link hooks see links run, and may let them compute with another weight; whatever happens the
weight is there again.
"""

import copy

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.link_hooks import SpectralNormalization, TimerHook, WeightStandardization


class Log(mnpar.LinkHook):
    name = "Log"

    def __init__(self):
        self.lines = []

    def added(self, link):
        self.lines.append(("added", link))

    def deleted(self, link):
        self.lines.append(("deleted", link))

    def forward_preprocess(self, args):
        self.lines.append(
            ("before", args.link.name, args.forward_name, len(args.args), dict(args.kwargs))
        )

    def forward_postprocess(self, args):
        self.lines.append(("after", args.link.name, args.out.shape))

    def forward_failed(self, args):
        self.lines.append(("failed", args.link.name))


def model():
    return mnpar.Chain(l1=L.Linear(3, 2), l2=L.Linear(2, 1))


X = np.linspace(-1, 1, 12).reshape(4, 3).astype("f4")


def test_a_block_sees_all_links():
    log = Log()
    m = model()
    with log:
        m.l2(m.l1(X, n_batch_axes=1))
    m.l1(X)
    assert log.lines == [
        ("added", None),
        ("before", "l1", "forward", 1, {"n_batch_axes": 1}),
        ("after", "l1", (4, 2)),
        ("before", "l2", "forward", 1, {}),
        ("after", "l2", (4, 1)),
        ("deleted", None),
    ]


def test_one_link_is_watched_alone():
    log = Log()
    m = model()
    assert m.l1.add_hook(log, "mine") is m.l1
    m.l2(m.l1(X))
    assert list(m.l1.local_link_hooks) == ["mine"]
    m.l1.delete_hook("mine")
    m.l1(X)
    assert [line[0] for line in log.lines] == ["added", "before", "after", "deleted"]


def test_a_forward_that_raises_is_told():
    log = Log()
    m = model()
    m.l1.add_hook(log)
    with pytest.raises(ValueError, match="features"):
        m.l1(X[:, :2])
    assert [line[0] for line in log.lines] == ["added", "before", "failed"]


def test_hooks_of_a_copy_are_its_own():
    m = model()
    m.l1.add_hook(Log())
    other = m.copy()
    other.l1.delete_hook("Log")
    assert list(m.l1.local_link_hooks) == ["Log"]


def test_what_is_wrong_is_told():
    m = model()
    m.l1.add_hook(Log())
    with pytest.raises(KeyError, match="'Log' already"):
        m.l1.add_hook(Log())
    with Log(), pytest.raises(KeyError, match="'Log' is in use"), Log():
        pass
    with pytest.raises(KeyError, match="no hook 'other'; it has Log"):
        m.l1.delete_hook("other")
    with pytest.raises(TypeError, match="not int"):
        m.l1.add_hook(3)
    with pytest.raises(ValueError, match="no parameter 'V'"):
        m.l2.add_hook(SpectralNormalization(weight_name="V"))
    with pytest.raises(NotImplementedError, match="add_hook"), SpectralNormalization():
        pass
    with pytest.raises(ValueError, match="n_power_iteration = 0"):
        SpectralNormalization(0)


def test_the_timer_counts_links_inside_links():
    m = mnpar.Sequential(L.Linear(3, 2), F.relu, L.Linear(2, 1))
    with TimerHook() as timer:
        m(X)
    assert {name: row["occurrence"] for name, row in timer.summary().items()} == {
        "Linear": 2,
        "Sequential": 1,
    }
    assert timer.total_time() == timer.summary()["Sequential"]["elapsed_time"]
    with timer, pytest.raises(ValueError, match="features"):
        m(X[:, :2])
    with timer:
        m(X)
    assert timer.total_time() == timer.summary()["Sequential"]["elapsed_time"]


LINKS = {
    "linear": lambda: (
        L.Linear(3, 2, initialW=mnpar.initializers.Normal(1, "f8")),
        X.astype("d"),
        0,
    ),
    "lazy": lambda: (
        L.Linear(None, 2, initialW=mnpar.initializers.Normal(1, "f8")),
        X.astype("d"),
        0,
    ),
    "convolution": lambda: (
        L.Convolution2D(2, 3, 2, initialW=mnpar.initializers.Normal(1, "f8")),
        np.ones((1, 2, 3, 3)),
        0,
    ),
    "deconvolution": lambda: (
        L.Deconvolution2D(2, 3, 2, initialW=mnpar.initializers.Normal(1, "f8")),
        np.ones((1, 2, 3, 3)),
        1,
    ),
}


def rows(W, axis):
    W = np.moveaxis(W, axis, 0)
    return W.reshape(len(W), -1)


@pytest.mark.parametrize("name", LINKS)
def test_spectral_normalization_divides_by_the_largest_singular_value(name):
    mnpar.random.seed(0)
    link, x, axis = LINKS[name]()
    link.add_hook(SpectralNormalization(n_power_iteration=200, factor=2.0))
    y = link(x)
    W = link.W.array.copy()
    assert isinstance(link.W, mnpar.Parameter)
    assert [path for path, _ in link.namedparams()] == ["/W", "/b"]
    link.delete_hook("SpectralNormalization")
    assert not hasattr(link, "W_u")
    link.W.array[...] = 2 * W / np.linalg.svd(rows(W, axis), compute_uv=False)[0]
    np.testing.assert_allclose(y.array, link(x).array, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", LINKS)
def test_weight_standardization_gives_each_output_mean_0_and_variance_1(name):
    link, x, axis = LINKS[name]()
    link.add_hook(WeightStandardization(eps=1e-3))
    y = link(x)
    W = link.W.array.copy()
    flat = rows(W, axis)
    made = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-3)
    link.delete_hook("WeightStandardization")
    link.W.array[...] = np.moveaxis(made.reshape(np.moveaxis(W, axis, 0).shape), 0, axis)
    np.testing.assert_allclose(y.array, link(x).array, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [lambda: SpectralNormalization(20, use_gamma=True), WeightStandardization],
    ids=["spectral", "standardization"],
)
def test_gradients_go_through_to_the_weight(make):
    mnpar.random.seed(0)
    link = L.Linear(
        3, 2, initialW=mnpar.initializers.Normal(1, "f8"), initial_bias=np.zeros(2)
    ).add_hook(make())
    x = X.astype("d")
    g = np.linspace(-1, 2, 8).reshape(4, 2)

    def loss():
        return F.sum(link(x) * g)

    loss().backward()
    found = link.W.grad.copy()
    W = link.W.array
    eps = 1e-5
    for place in np.ndindex(W.shape):
        old, values = W[place], []
        for sign in (1, -1):
            W[place] = old + sign * eps
            for _ in range(5):  # power iteration follows
                value = loss().item()
            values.append(value)
        W[place] = old
        np.testing.assert_allclose(
            found[place], (values[0] - values[1]) / (2 * eps), rtol=1e-3, atol=1e-5
        )


def test_gamma_begins_as_the_largest_singular_value_and_is_a_parameter():
    link = L.Linear(3, 2, initialW=mnpar.initializers.Normal(1, "f8")).add_hook(
        SpectralNormalization(300, use_gamma=True)
    )
    np.testing.assert_allclose(link.gamma.array, np.linalg.svd(link.W.array, compute_uv=False)[0])
    x = X.astype("d")
    np.testing.assert_allclose(link(x).array, x @ link.W.array.T, rtol=1e-4, atol=1e-6)
    assert [path for path, _ in link.namedparams()] == ["/W", "/b", "/gamma"]
    link.delete_hook("SpectralNormalization")
    assert [path for path, _ in link.namedparams()] == ["/W", "/b"]


def test_the_vector_is_persistent_and_stays_while_testing():
    link = L.Linear(3, 2).add_hook(SpectralNormalization())
    before = link.W_u.copy()
    with mnpar.using_config("train", False):
        link(X)
    np.testing.assert_array_equal(link.W_u, before)
    link(X)
    assert (link.W_u != before).any()
    assert "/W_u" in dict(link.namedpersistents())


def test_the_weight_is_there_again_after_an_error():
    link = L.Linear(3, 2).add_hook(SpectralNormalization()).add_hook(WeightStandardization())
    W = link.W
    with pytest.raises(ValueError, match="features"):
        link(X[:, :2])
    assert link.W is W
    link(X)
    assert link.W is W


def test_a_link_with_hooks_is_copied_with_hooks_of_its_own():
    link = L.Linear(3, 2).add_hook(SpectralNormalization())
    other = copy.deepcopy(link)
    other(X)
    assert (
        other.local_link_hooks["SpectralNormalization"]
        is not link.local_link_hooks["SpectralNormalization"]
    )
    assert (other.W_u != link.W_u).any()


def test_what_spectral_normalization_adds_is_loaded_into_a_layer_without_a_size():
    def made(size):
        layer = L.Linear(size, 2).add_hook(SpectralNormalization(use_gamma=True))
        return layer, mnpar.optimizers.Adam().setup(layer)

    (one, optimizer), (other, another) = made(3), made(None)
    for _ in range(2):
        optimizer.update(lambda: F.sum(one(X)))
    for saved, loaded in ((one, other), (optimizer, another)):
        mnpar.serializers.NpzDeserializer(mnpar.serializers.serialize(saved)).load(loaded)
    for step in (optimizer, another):
        step.update(lambda x, target=step.target: F.sum(target(x)), X)
    np.testing.assert_array_equal(other.W_u, one.W_u)
    np.testing.assert_array_equal(other.gamma.array, one.gamma.array)


def test_a_weight_that_is_divided_is_refused_where_all_of_it_is_needed():
    """Weights that are divided by outputs have mean and variance of each output all the same."""
    x = np.ones((2, 3), "f4")

    def program(comm):
        mnpar.random.seed(1)
        column, *rows = [
            layer(comm, 3, 4)
            for layer in (L.ColumnParallelLinear, L.RowParallelLinear, L.RowParallelLinear)
        ]
        y = column.add_hook(WeightStandardization())(x).array
        for layer, hook in zip(
            [column, *rows],
            [SpectralNormalization(), WeightStandardization(), SpectralNormalization()],
            strict=True,
        ):
            with pytest.raises(
                ValueError,
                match=rf"{hook.name} needs the whole parameter W \(4, 3\), of which this rank has",
            ):
                layer.add_hook(hook)(x)
        return y

    mnpar.random.seed(1)
    whole = L.Linear(3, 4)
    y = whole.add_hook(WeightStandardization())(x).array
    for found in mnpar.run(program, ranks=2):
        np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-6)
