"""Ordinary links whose batches, heads, channels and images are cut, against one process; and what
their halos send.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import Window, halo_plan

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((3, 4, 7, 6))
SEQUENCES = RNG.standard_normal((3, 5, 8))
ROWS = RNG.standard_normal((5, 6))


@pytest.fixture(autouse=True)
def _double():
    with mnpar.using_config("dtype", np.dtype("f8")):
        yield


def recurrent(layer):
    def steps(x):
        for _ in range(3):
            y = layer(x)
        return y

    return layer, steps


def whole_model(link):
    return link, link


def normalized_by_all(comm):
    link = L.MultiNodeBatchNormalization(4, comm or mnpar.create_communicator("self"))
    return link, link


def max_and_back(x):
    y, places = F.max_pooling_2d(x, 2, return_indices=True)
    return F.upsampling_2d(y * y, places, 2, outsize=x.shape[2:])


def every_place(layer):
    return layer, lambda x: layer(x, n_batch_axes=2)


MODELS = {
    "linear over positions": (lambda _: every_place(L.Linear(8, 3)), None, SEQUENCES),
    "LSTM": (lambda _: recurrent(L.LSTM(6, 4)), None, ROWS),
    "GRU": (lambda _: recurrent(L.GRU(6, 4)), None, ROWS),
    "peepholes": (lambda _: recurrent(L.StatefulPeepholeLSTM(6, 4)), None, ROWS),
    "MGU": (lambda _: recurrent(L.StatefulMGU(6, 4)), None, ROWS),
    "attention": (lambda _: whole_model(L.MultiHeadAttention(2, 8)), None, SEQUENCES),
    "causal attention": (
        lambda _: whole_model(L.MultiHeadAttention(2, 8, causal=True)),
        None,
        SEQUENCES,
    ),
    "convolution": (lambda _: whole_model(L.Convolution2D(4, 3, 3, pad=1)), None, IMAGES),
    "transposed": (lambda _: whole_model(L.Deconvolution2D(4, 3, 3, stride=2)), None, IMAGES),
    "batch normalization": (lambda _: whole_model(L.BatchNormalization(4)), None, IMAGES),
    "by all ranks": (normalized_by_all, None, IMAGES),
    "layer normalization": (
        lambda _: whole_model(L.LayerNormalization((4, 7, 6))),
        None,
        IMAGES,
    ),
    "group normalization": (lambda _: whole_model(L.GroupNormalization(2, 4)), None, IMAGES),
    "local filters": (
        lambda _: whole_model(L.LocalConvolution2D(4, 3, (7, 6), 3)),
        None,
        IMAGES,
    ),
    "maxima and back": (lambda _: (mnpar.Chain(), max_and_back), None, IMAGES),
    "swish": (lambda _: whole_model(L.Swish((4,))), None, IMAGES),
    "local contrast": (
        lambda _: (mnpar.Chain(), lambda x: F.local_contrast_normalization(x, 3)),
        None,
        IMAGES,
    ),
}
CUTS = {
    2: [((2,), (0,), 2), ((3,), (0,), 4)],
    3: [((2,), (0,), 2), ((3,), (0,), 4)],
    4: [((2,), (0,), 2), ((2, 2), (0, 2), 4), ((2, 1, 2), (0, 2, 3), 4), ((2, 2), (0, 3), 5)],
}


def trained(make, array, comm, cut):
    """Outputs, the gradients of the input and of the weights, and one of a gradient."""
    mnpar.random.seed(2)
    link, call = make(comm)
    x = image = mnpar.Variable(array.copy())
    if cut is not None:
        dims, axes = cut
        x = mnpar.divided(image, mnpar.SpatialGrid(comm, dims), axes)
    y = call(x)
    w = np.random.default_rng(1).standard_normal(y.shape)
    loss = F.sum(F.sin(y) * w)
    (gx,) = mnpar.grad([loss], [image], enable_double_backprop=True)
    v = np.random.default_rng(2).standard_normal(image.shape)
    mnpar.backward([loss + F.sum(gx * v)])
    whole = y if y.layout is None else y.gather()
    return [whole.array, image.grad, *[p.grad for p in link.params()]]


@pytest.mark.parametrize("name", MODELS)
def test_an_ordinary_link_of_a_cut_batch_computes_what_one_process_does(name):
    make, _, array = MODELS[name]
    expected = trained(make, array, None, None)
    for dims, axes, ranks in CUTS[array.ndim]:
        found = mnpar.run(lambda comm, cut=(dims, axes): trained(make, array, comm, cut), ranks)
        for result in found:
            for one, right in zip(result, expected, strict=True):
                np.testing.assert_allclose(one, right, rtol=1e-9, atol=1e-10, err_msg=str(dims))


def test_rows_of_an_embedding_are_looked_up_by_cut_numbers():
    W, numbers = RNG.standard_normal((5, 3)), np.array([[0, 4, 2], [1, 1, -1], [3, 0, 2]])

    def program(comm):
        table = mnpar.Variable(W)
        x = numbers
        if comm is not None:
            x = mnpar.divided(numbers, mnpar.SpatialGrid(comm, (2,)), (0,))
        y = F.embed_id(x, table, ignore_label=-1)
        F.sum(y * y * np.arange(27.0).reshape(3, 3, 3)).backward()
        return (y if y.layout is None else y.gather()).array, table.grad

    expected = program(None)
    for found in mnpar.run(program, ranks=2):
        np.testing.assert_allclose(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1])


# a function of a divided image, and the window that its outputs read
HALOS = {
    "convolution": (
        lambda x: F.convolution_2d(x, np.ones((2, 4, 3, 3)), pad=1),
        {"kernel": 3, "pad": 1},
        4,
    ),
    "even kernel, stride": (
        lambda x: F.convolution_2d(x, np.ones((2, 4, 4, 2)), stride=(2, 1)),
        {"kernel": (4, 2), "stride": (2, 1)},
        4,
    ),
    "dilated": (
        lambda x: F.convolution_2d(x, np.ones((2, 4, 2, 2)), dilate=3),
        {"kernel": 2, "dilation": 3},
        4,
    ),
    "pooling": (
        lambda x: F.average_pooling_2d(x, 3, 1, 1),
        {"kernel": 3, "pad": 1},
        4,
    ),
    "maxima": (
        lambda x: F.max_pooling_2d(x, 3, 2),
        {"kernel": 3, "stride": 2, "cover_all": True},
        4,
    ),
    "dilated and strided": (
        lambda x: F.convolution_2d(x, np.ones((2, 4, 2, 2)), stride=2, dilate=(2, 4)),
        {"kernel": 2, "stride": 2, "dilation": (2, 4)},
        4,
    ),
    "of windows apart": (
        lambda x: F.lp_pooling_nd(x, 2, 3),
        {"kernel": 2, "stride": 3},
        4,
    ),
}


@pytest.mark.parametrize("dims", [(2, 1), (1, 3), (2, 2)], ids=str)
@pytest.mark.parametrize("name", HALOS)
def test_a_halo_has_the_cells_that_outputs_read_and_no_others(name, dims):
    call, given, channels = HALOS[name]
    window, shape, ranks = Window.of(2, **given), IMAGES.shape[2:], int(np.prod(dims))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        x = grid.cut(mnpar.Variable(IMAGES.copy()))
        y = call(x)
        forward = comm.traffic.bytes
        F.sum(y * y).backward()
        return forward

    have = mnpar.plans.blocks(shape, dims, ranks)
    out = mnpar.plans.blocks(window.outputs(shape), dims, ranks)
    # the least: the cells that its outputs read, of each other rank
    cells = [
        {c for o in np.ndindex(*box.shape) for c in read(window, o, box.start, shape)}
        for box in out
    ]
    owned = [{tuple(np.add(i, box.start)) for i in np.ndindex(*box.shape)} for box in have]
    for rank, sent in enumerate(mnpar.run(program, ranks)):
        wanted = sum(len(owned[rank] & cells[other]) for other in range(ranks) if other != rank)
        assert sent == wanted * len(IMAGES) * channels * 8, (rank, wanted)
    plan = halo_plan(have, out, shape, window, gaps=True)
    assert [plan.sent(r) for r in range(ranks)] == [
        sum(len(owned[r] & cells[o]) for o in range(ranks) if o != r) for r in range(ranks)
    ]


def read(window, output, start, shape):
    """The cells of the image that an output reads."""
    first = [
        (o + a) * s - before
        for o, a, s, (before, _) in zip(output, start, window.stride, window.pad, strict=True)
    ]
    for offset in np.ndindex(*window.kernel):
        steps = zip(first, offset, window.dilation, strict=True)
        cell = tuple(int(f + i * d) for f, i, d in steps)
        if all(0 <= c < n for c, n in zip(cell, shape, strict=True)):
            yield cell
