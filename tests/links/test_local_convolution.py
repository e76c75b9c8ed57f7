"""Local convolution and its decoder: the layer, and the same in blocks on grids of ranks."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import LayoutError
from mnpar.initializers import LeCunNormal, Normal


@pytest.fixture(autouse=True)
def _float64():
    with mnpar.using_config("dtype", np.dtype("f8")):
        mnpar.random.seed(0)
        yield


def test_sizes_may_come_from_the_first_batch():
    layer = L.LocalConvolution2D(None, 4, ksize=(3, 2), stride=(2, 1))
    assert not layer.W.is_initialized
    y = layer(np.ones((2, 3, 8, 5)))
    assert y.shape == (2, 4, 3, 4)
    assert layer.W.shape == (4, 3, 4, 3, 3, 2)
    assert layer.b.shape == (4, 3, 4)
    assert [path for path, _ in layer.namedparams()] == ["/W", "/b"]


def test_random_filters_are_scaled_by_their_own_fan_in():
    layer = L.LocalConvolution2D(3, 8, 20, 4, initialW=LeCunNormal(rng=np.random.default_rng(0)))
    assert layer.W.array.std() == pytest.approx(1 / np.sqrt(3 * 16), rel=0.01)


def test_numbers_and_arrays_are_taken_as_they_are():
    W = np.arange(8.0).reshape(1, 2, 1, 1, 2, 2)
    layer = L.LocalConvolution2D(
        1, 1, (3, 2), 2, initialW=W, initial_bias=np.array([[[1.0], [2.0]]])
    )
    np.testing.assert_array_equal(layer.W.array, W)
    np.testing.assert_array_equal(layer(np.ones((1, 1, 3, 2))).array.ravel(), [7.0, 24.0])


BAD = {
    "no ksize": (lambda: L.LocalConvolution2D(1, 1, 5), "ksize"),
    "no channels": (lambda: L.LocalConvolution2D(0, 1, 5, 3), "from 1 on, not 0"),
    "windows too large": (
        lambda: L.LocalConvolution2D(1, 1, 5, 6),
        r"do not fit in an image of \(5, 5\)",
    ),
    "an image of another size": (
        lambda: L.LocalConvolution2D(1, 1, 5, 3)(np.ones((1, 1, 6, 6))),
        r"has \(4, 4\) windows",
    ),
    "not an image": (
        lambda: L.LocalConvolution2D(None, 1, ksize=3)(np.ones((1, 5))),
        r"must be \(N, C, H, W\)",
    ),
    "a decoder too early": (
        lambda: L.LocalConvolution2D(None, 1, ksize=3).decoder(),
        "when its sizes are known",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_named(make, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        make()


def test_a_tied_decoder_shares_the_filters_and_an_untied_one_begins_with_them():
    encoder = L.LocalConvolution2D(1, 2, 6, 3)
    tied = encoder.decoder()
    own = encoder.decoder(tied=False, nobias=False)
    assert tied.W is encoder.W
    assert own.W is not encoder.W
    assert own.b.shape == (1, 6, 6)
    np.testing.assert_array_equal(own.W.array, encoder.W.array)
    x = np.random.default_rng(0).standard_normal((2, 1, 6, 6))
    y = np.random.default_rng(1).standard_normal((2, 2, 4, 4))
    # it is the transpose
    np.testing.assert_allclose((encoder(x).array * y).sum(), (tied(y).array * x).sum())


class Autoencoder(mnpar.Chain):
    def __init__(self, encoder, tied):
        super().__init__()
        self.encoder, self.decoder = encoder, encoder.decoder(tied, nobias=tied)

    def loss(self, x):
        recon = self.decoder(F.tanh(self.encoder(x))) - x
        return F.sum(recon * recon) / 2 + F.sum(F.sin(recon))


def learnt(model, x):
    """The losses of three steps, and the weights after them."""
    optimizer = mnpar.optimizers.MomentumSGD(lr=0.01).setup(model)
    losses = []
    for _ in range(3):
        losses.append(model.loss(x))
        model.cleargrads()
        losses[-1].backward()
        optimizer.update()
    return [v.item() for v in losses], list(model.params())


GRIDS = [(1, 1), (2, 2), (3, 2), (1, 5), (4, 1)]


@pytest.mark.grid
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("size", "k", "stride"), [((9, 8), 4, 1), ((7, 7), 5, 1), ((8, 11), (3, 2), (2, 3))], ids=str
)
@pytest.mark.parametrize("dims", GRIDS, ids=str)
def test_in_blocks_it_learns_the_weights_of_one_process(dims, size, k, stride, tied):
    whole = np.random.default_rng(2).standard_normal((3, 2, *size))
    mnpar.random.seed(7)
    losses, weights = learnt(
        Autoencoder(L.LocalConvolution2D(2, 3, size, k, stride, initial_bias=Normal()), tied), whole
    )

    def program(comm):
        mnpar.random.seed(7)
        grid = mnpar.SpatialGrid(comm, dims)
        encoder = L.SpatialLocalConvolution2D(grid, 2, 3, size, k, stride, initial_bias=Normal())
        mine, own = learnt(Autoencoder(encoder, tied), grid.cut(whole))
        np.testing.assert_allclose(mine, losses, rtol=1e-12)
        for p, w in zip(own, weights, strict=True):
            np.testing.assert_allclose(L.gather_parameter(comm, p), w.array, rtol=1e-11, atol=1e-13)

    mnpar.run(program, ranks=int(np.prod(dims)))


@pytest.mark.ranks(1, 2, 3)
def test_both_gradients_are_those_of_one_process(comm):
    """Rows over the ranks; the gradient of x, and the gradient of a function of it, which every
    rank gets whole.
    """
    rng = np.random.default_rng(3)
    whole = rng.standard_normal((2, 1, 6, 5))
    W = rng.standard_normal((2, 4, 4, 1, 3, 2))
    v = rng.standard_normal((2, 1, 6, 5))
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))

    def derivatives(layer, cut):
        x = mnpar.Variable(whole.copy())
        y = layer.decoder()(F.tanh(layer(cut(x))))
        (g,) = mnpar.grad([F.sum(F.sin(y) * y)], [x], enable_double_backprop=True)
        mnpar.backward([F.sum(F.sin(g) * v)])
        return g.array, x.grad

    layer = L.LocalConvolution2D(1, 2, (6, 5), (3, 2), initialW=W)
    one = derivatives(layer, lambda x: x)
    layer = L.SpatialLocalConvolution2D(grid, 1, 2, (6, 5), (3, 2), initialW=W)
    for mine, all_of in zip(derivatives(layer, grid.cut), one, strict=True):
        np.testing.assert_allclose(mine, all_of, rtol=1e-11, atol=1e-12)


def test_the_grid_has_two_axes_and_the_size_is_given_somewhere():
    grid = mnpar.SpatialGrid(mnpar.create_communicator("self"), (1, 1))
    with pytest.raises(ValueError, match="grid of two axes"):
        L.SpatialLocalConvolution2D(mnpar.SpatialGrid(grid.comm, (1,)), 1, 1, 8, 3)
    with pytest.raises(ValueError, match="out_size"):
        L.SpatialLocalDeconvolution2D(grid, 1, 1, None, 3)
    layer = L.SpatialLocalConvolution2D(grid, None, 2, ksize=3)
    with pytest.raises(TypeError, match=r"must be divided as the weights are: grid.cut\(x\)"):
        layer(np.ones((1, 1, 5, 5)))
    y = layer(grid.cut(np.ones((1, 1, 5, 5))))
    assert y.shape == (1, 2, *layer.output_shape((5, 5)))
    with pytest.raises(ValueError, match=r"an image of \(6, 6\) came to a layer for \(5, 5\)"):
        layer(grid.cut(np.ones((1, 1, 6, 6))))


@pytest.mark.parametrize(
    "cut",
    [
        lambda comm, x: mnpar.SpatialGrid(comm, (1, 2)).cut(x),
        lambda comm, x: mnpar.SpatialGrid(comm, (2,)).cut(x, (0,)),
        lambda comm, x: mnpar.SpatialGrid(comm.split(0, comm.rank), (2, 1)).cut(x),
    ],
    ids=["other axis", "samples", "other communicator"],
)
@pytest.mark.parametrize("layer", ["local", "linear"])
def test_an_image_that_is_cut_in_another_way_than_the_weights_is_refused(layer, cut):
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 1))
        local = L.SpatialLocalConvolution2D(grid, 1, 1, 4, 3)
        made = local if layer == "local" else L.SpatialLinear(grid, (1, 4, 4), 3)
        made(cut(comm, np.ones((2, 1, 4, 4), "f4")))

    with pytest.raises(LayoutError, match="its weights are cut along the axes after the channels"):
        mnpar.run(program, ranks=2)
