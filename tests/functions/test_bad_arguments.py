"""What does not belong together is told with its numbers, for the functions that rearrange,
contract and judge.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F

NO_ARRAY = mnpar.Parameter(0)
OBJECTS, LETTERS = (mnpar.Variable(np.array(given)) for given in ([{}, None], ["a"]))
ONES = np.ones((2, 3))
IMAGE = np.ones((1, 1, 2, 2))
REGION = np.ones((1, 4))
FIRST = np.array([0])
BYTES = IMAGE.astype("u1")
NO_NUMBERS = {
    "relu of a number without a shape": (
        lambda: F.relu(NO_ARRAY),
        "ReLU: input 0 has no array yet",
    ),
    "+ a number": (
        lambda: NO_ARRAY + 1,
        r"\+: input 0 has no array yet.*Parameter\(numpy.zeros\(\(\)\)\) has one",
    ),
    "a number *": (lambda: 2 * NO_ARRAY, r"\*: input 0 has no array yet"),
    "+ the second": (
        lambda: mnpar.Variable(np.ones(2)) + NO_ARRAY,
        "Add: input 1 has no array yet",
    ),
    "a method": (lambda: NO_ARRAY.sum(), "Sum: input 0 has no array yet"),
    "an index": (lambda: NO_ARRAY[0], "GetItem: input 0 has no array yet"),
    "a Variable of nothing": (lambda: F.exp(mnpar.Variable()), "Exp: input 0 has no array yet"),
    "what has no derivative": (lambda: F.floor(NO_ARRAY), "floor: input 0 has no array yet"),
    "the largest of objects": (lambda: F.argmax(OBJECTS), "argmax: input 0 is of dtype object"),
    "objects": (lambda: F.sigmoid(OBJECTS), "Sigmoid: input 0 is of dtype object"),
    "letters": (lambda: F.mean(LETTERS), "Mean: input 0 is of dtype <U1"),
    "integers": (
        lambda: F.gelu(np.arange(3)[None]),
        "Gelu: input 0 is of dtype int64, .* give astype a floating-point",
    ),
    "dropout of integers": (
        lambda: F.dropout(np.arange(3)),
        "dropout: input 0 is of dtype int64, .* give astype a floating",
    ),
    "dropout of nothing": (
        lambda: F.dropout(mnpar.Variable()),
        "dropout: input 0 has no array yet",
    ),
    "rrelu of integers": (
        lambda: F.rrelu(np.arange(3) - 2),
        "rrelu: input 0 is of dtype int64, .* has fractions",
    ),
    "gumbel_softmax of integers": (
        lambda: F.gumbel_softmax(np.zeros((2, 3), "i4")),
        "gumbel_softmax: .* int32, .* fractions",
    ),
    "weights of integers": (
        lambda: F.simplified_dropconnect(ONES, np.ones((2, 3), "i4")),
        "dropconnect, of W: .* int32",
    ),
    "windows of integers": (
        lambda: F.average_pooling_2d(BYTES, 1),
        "^average_pooling_2d: input 0 is of dtype uint8, .*fract",
    ),
    "a slope of integers": (
        lambda: F.leaky_relu(np.arange(3)),
        "LeakyReLU: input 0 is of dtype int64, .* has fractions",
    ),
    "the means of bytes": (
        lambda: F.roi_average_pooling_2d(BYTES, REGION, FIRST, 1, 1),
        "^roi_average_pool.* dtype uint8, .*fract",
    ),
    "bytes between cells": (
        lambda: F.roi_average_align_2d(BYTES, REGION, FIRST, 1, 1),
        "^roi_average_align_2d: input 0 is of dtype uint8",
    ),
    "the largest between": (
        lambda: F.roi_max_align_2d(BYTES, REGION, FIRST, 1, 1),
        "^roi_max_align_2d: input 0 is .* uint8",
    ),
    "whitened bytes": (
        lambda: F.decorrelated_batch_normalization(BYTES, groups=1),
        "^decorrelated_.* input 0 is .* uint8",
    ),
    "aligned integers": (
        lambda: F.connectionist_temporal_classification(
            np.ones((2, 1, 2), "i4"), np.array([[1]]), 0
        ),
        "input 0 is of dtype int32",
    ),
}
BAD = {
    "einsum: operands": (lambda: F.einsum("ij,jk->ik", ONES), "a formula for 2 operands, not 1"),
    "einsum: axes": (lambda: F.einsum("ijk->i", ONES), r"operand 0 has shape \(2, 3\)"),
    "einsum: lengths": (lambda: F.einsum("ij,ij->i", ONES, np.ones((2, 4))), "lengths 4 and 3"),
    "einsum: a diagonal": (
        lambda: F.einsum("ii->i", ONES[:1]),
        r"in one operand have lengths \(1, 3\)",
    ),
    "einsum: output": (lambda: F.einsum("ij->k", ONES), "some of those before it"),
    "tensordot": (lambda: F.tensordot(ONES, ONES, 1), "cannot be summed over axes"),
    "flip": (lambda: F.flip(ONES, 2), "has no axis 2"),
    "sum: axis": (lambda: F.sum(ONES, 2), "^Sum: axis 2 is out of bounds"),
    "softmax: axis": (lambda: F.softmax(ONES, 2), "^Softmax: axis 2 is out of bounds"),
    "argmax: axis": (lambda: F.argmax(ONES, 2), "^argmax: axis 2 is out of bounds"),
    "cumsum": (lambda: F.cumsum(ONES, 2), "cumsum: x of shape .* has no axis 2"),
    "cumprod": (lambda: F.cumprod(ONES, -3), "cumprod: x of shape .* has no axis -3"),
    "prod": (lambda: F.prod(ONES, 2), "prod: x of shape .* has no axis 2"),
    "prod: twice": (lambda: F.prod(ONES, (0, -2)), "axis -2 of shape .* is named twice"),
    "squeeze": (lambda: F.squeeze(ONES[:1], (2,)), "squeeze: x of shape .* has no axis 2"),
    "squeeze: twice": (lambda: F.squeeze(ONES[:1], (0, 0)), "named twice"),
    "roll": (lambda: F.roll(ONES, 1, 2), "roll: x of shape .* has no axis 2"),
    "roll: shifts": (lambda: F.roll(ONES, (1, 2), 1), r"shift = \(1, 2\) is not one number for"),
    "rollaxis": (lambda: F.rollaxis(ONES, 2), "rollaxis: x of shape .* has no axis 2"),
    "rollaxis: start": (lambda: F.rollaxis(ONES, 0, 3), "start = 3 is no place"),
    "swapaxes": (lambda: F.swapaxes(ONES, 0, 2), "swapaxes: x of shape .* has no axis 2"),
    "moveaxis": (lambda: F.moveaxis(ONES, 0, 2), "moveaxis: x of shape .* has no axis 2"),
    "moveaxis: to": (lambda: F.moveaxis(ONES, 0, -3), "moveaxis: x of shape .* has no axis -3"),
    "moveaxis: twice": (
        lambda: F.moveaxis(ONES, (0, 1), (1, -1)),
        "axis -1 of shape .* is named twice",
    ),
    "diagonal": (lambda: F.diagonal(ONES, 0, 0, -3), "diagonal: x of shape .* has no axis -3"),
    "tensordot: axis": (
        lambda: F.tensordot(ONES, ONES, ((2,), (0,))),
        "tensordot: x of shape .* has no axis 2",
    ),
    "tensordot: twice": (lambda: F.tensordot(ONES, ONES, ((0, 0), (0, 0))), "named twice"),
    "tensordot: negative": (lambda: F.tensordot(ONES, ONES, -1), "0 or more"),
    "repeat: axis": (lambda: F.repeat(ONES, 2, -3), "repeat: x of shape .* has no axis -3"),
    "repeat: a number": (
        lambda: F.repeat(np.ones(()), 2, 0),
        r"repeat: x of shape \(\) has no axis 0",
    ),
    "permutate: axis": (
        lambda: F.permutate(ONES, np.array([0, 1]), 2),
        "permutate: x of shape .* has no axis 2",
    ),
    "split_axis: beyond": (
        lambda: F.split_axis(ONES, [3], 0),
        "do not rise from 0 to the length 2",
    ),
    "squared_difference": (
        lambda: F.squared_difference(ONES, ONES[:, :1]),
        r"\(2, 3\) and \(2, 1\) must be the same",
    ),
    "clipped_relu": (lambda: F.clipped_relu(ONES, 0), "z = 0 must be above 0"),
    "linear_interpolate": (
        lambda: F.linear_interpolate(ONES, ONES, ONES[:, :1]),
        "must be the same",
    ),
    "scatter_add": (
        lambda: F.scatter_add(ONES, 0, np.ones(1)),
        r"b of shape \(1,\) must have the shape \(3,\)",
    ),
    "simplified_dropconnect": (
        lambda: F.simplified_dropconnect(ONES, np.ones((4, 3)), np.ones(1)),
        r"must have shape \(4,\)",
    ),
    "n_step_rnn: bias": (
        lambda: F.n_step_rnn(
            1,
            0,
            np.ones((1, 2, 2)),
            [[ONES, np.ones((2, 2))]],
            [[np.ones(1)] * 2],
            [np.ones((2, 3))],
        ),
        r"\(1,\) begins with another length than H = 2",
    ),
    "slstm": (
        lambda: F.slstm(np.ones(2), np.ones(2), np.ones(8), np.ones(8)),
        r"not twice \(N, H, …\)",
    ),
    "tree_lstm": (lambda: F.tree_lstm(ONES), "not n times"),
    "tile": (lambda: F.tile(ONES, -1), "0 or more"),
    "repeat": (lambda: F.repeat(ONES, (1, 2), 1), "2 repeats for 3 places"),
    "pad_sequence: none": (lambda: F.pad_sequence([]), "xs is empty"),
    "pad_sequence: long": (
        lambda: F.pad_sequence([ONES], 1),
        "a sequence of 2 is longer than length = 1",
    ),
    "permutate": (lambda: F.permutate(ONES, np.array([0, 0])), "each once"),
    "transpose_sequence": (lambda: F.transpose_sequence([ONES[:1], ONES]), "the longest first"),
    "squared_error": (
        lambda: F.squared_error(ONES, np.ones(3)),
        r"shapes \(2, 3\) and \(3,\) must be the same",
    ),
    "huber_loss": (lambda: F.huber_loss(ONES, ONES, 1, "mean"), "sum_along_second_axis"),
    "hinge: labels": (lambda: F.hinge(ONES, np.ones(2)), "integer labels"),
    "hinge: a negative label": (
        lambda: F.hinge(ONES, np.array([0, -1])),
        "hinge: labels -1 … 0 are not all in 0 … 2",
    ),
    "hinge: no class": (
        lambda: F.hinge(ONES, np.array([0, 3])),
        "hinge: labels 0 … 3 are not all in 0 … 2",
    ),
    "hinge: norm": (lambda: F.hinge(ONES, np.array([0, 1]), "L3"), "'L1' or 'L2'"),
    "hinge: reduce": (lambda: F.hinge(ONES, np.array([0, 1]), reduce="sum"), "'mean' or 'no'"),
    "kl": (
        lambda: F.gaussian_kl_divergence(ONES, ONES, "max"),
        "reduce is 'sum', 'mean' or 'no', not 'max'",
    ),
    "as_strided: axes": (lambda: F.as_strided(ONES, (2, 2), (1,)), "as many steps"),
    "as_strided: outside": (
        lambda: F.as_strided(ONES, (2, 3), (3, 1), 1),
        "elements 1 to 6 are asked for of the 6",
    ),
    "discriminative: shapes": (
        lambda: F.discriminative_margin_based_clustering_loss(
            IMAGE, np.zeros((1, 2), "i4"), 0.5, 1.5, 1
        ),
        r"not \(N, D, H, W\)",
    ),
    "discriminative: norm": (
        lambda: F.discriminative_margin_based_clustering_loss(
            IMAGE, np.zeros((1, 2, 2), "i4"), 0.5, 1.5, 1, norm=3
        ),
        "norm is 1 or 2",
    ),
    "gelu": (lambda: F.gelu(ONES, approximate="erf"), "'none' or 'tanh'"),
    "fft": (lambda: F.fft((ONES, np.ones(3))), "of one dtype and shape"),
    "crf1d: growing": (
        lambda: F.crf1d(np.ones((3, 3)), [ONES[:1], ONES], [np.array([0]), np.array([0, 0])]),
        "the longest first",
    ),
    "crf1d: labels": (
        lambda: F.crf1d(np.ones((3, 3)), [ONES], [np.array([0])]),
        r"labels \(1,\) for \(2, 3\)",
    ),
    "crf1d: reduce": (
        lambda: F.crf1d(np.ones((3, 3)), [ONES], [np.array([0, 1])], "sum"),
        "'mean' or 'no'",
    ),
    "argmax_crf1d": (lambda: F.argmax_crf1d(np.ones((2, 2)), [ONES]), r"not \(2, 2\) and \(2, 3\)"),
    "negative_sampling": (
        lambda: F.negative_sampling(ONES, np.zeros(2), ONES, np.zeros, 1),
        "integers t",
    ),
    "negative_sampling: reduce": (
        lambda: F.negative_sampling(ONES, [0, 1], ONES, np.zeros, 1, "mean"),
        "'sum' or 'no'",
    ),
    "negative_sampling: no word": (
        lambda: F.negative_sampling(
            ONES, np.array([-1, -2]), ONES, lambda shape: np.zeros(shape, "i4"), 1
        ),
        "negative_sampling: labels -2 … -1 are not all in -1 … 1",
    ),
    "black_out: no word": (
        lambda: F.black_out(ONES, np.array([-1, 0]), ONES, np.zeros((2, 1), "i4")),
        "black_out: labels -1 … 0 are not all in 0 … 1",
    ),
    "black_out": (
        lambda: F.black_out(ONES, np.array([0, 1]), ONES, np.array([[0]])),
        r"samples \(N, S\)",
    ),
    "spatial_transformer_grid": (
        lambda: F.spatial_transformer_grid(ONES, (2, 2)),
        r"theta \(N, 2, 3\)",
    ),
    "spatial_transformer_sampler": (lambda: F.spatial_transformer_sampler(IMAGE, ONES), "grid"),
    "roi_max_pooling_2d": (
        lambda: F.roi_max_pooling_2d(IMAGE, ONES, np.array([0, 0]), 1, 1),
        "4 numbers each",
    ),
    "roi_pooling_2d": (lambda: F.roi_pooling_2d(IMAGE, ONES, 1, 1, 1), r"regions \(R, 5\)"),
    "roi_average_align_2d": (
        lambda: F.roi_average_align_2d(IMAGE, np.ones((1, 4)), np.array([1]), 1, 1),
        "x has 1",
    ),
    "roi_max_align_2d": (
        lambda: F.roi_max_align_2d(IMAGE, np.ones((1, 4)), np.array([0]), 1, 1, 0),
        "sampling_ratio = 0",
    ),
    "shift_channels: even": (lambda: F.shift_channels(IMAGE, (1, 2)), "1 × 2 has no middle"),
    "shift_channels: few": (lambda: F.shift_channels(IMAGE), "with C of 9 = 3 · 3 or more"),
    "unpooling_1d": (
        lambda: F.unpooling_1d(IMAGE, 2),
        r"x of shape \(1, 1, 2, 2\) must be .* with 1 spatial",
    ),
    "unpooling_2d": (
        lambda: F.unpooling_2d(IMAGE[0], 2),
        r"x of shape \(1, 2, 2\) must be .* with 2 spatial",
    ),
    "upsampling_2d": (lambda: F.upsampling_2d(IMAGE[0], IMAGE[0], 2), "with 2 spatial"),
    "spatial_pyramid_pooling_2d": (
        lambda: F.spatial_pyramid_pooling_2d(IMAGE, 1, "mean"),
        "is 'max'",
    ),
    "pad": (lambda: F.pad(ONES, -1), "0 or more"),
    "pad: mean": (lambda: F.pad(ONES, 1, "mean"), "mode 'mean' is none of 'constant', 'edge'"),
    "pad: unknown, with nothing to pad": (
        lambda: F.pad(ONES, 0, "edges"),
        "mode 'edges' is none of",
    ),
    "repeat: negative": (lambda: F.repeat(ONES, -1), "0 or more"),
    "cholesky: shape": (lambda: F.cholesky(ONES), r"not \(D, D\)"),
    "cholesky": (lambda: F.cholesky(-np.eye(2)), "not positive definite"),
    "deformable: images": (
        lambda: F.deformable_convolution_2d_sampler(IMAGE, IMAGE, ONES),
        r"not \(1, 1, 2, 2\) and \(2, 3\)",
    ),
    "deformable: offset": (
        lambda: F.deformable_convolution_2d_sampler(IMAGE, IMAGE, IMAGE),
        r"must have shape \(1, 8, 1, 1\)",
    ),
    "decorrelated": (
        lambda: F.decorrelated_batch_normalization(ONES, groups=2),
        "multiple of groups = 2",
    ),
    "decorrelated: fixed": (
        lambda: F.fixed_decorrelated_batch_normalization(ONES, ONES, ONES, 1),
        "must be",
    ),
    "swish": (lambda: F.swish(ONES, np.ones(2)), "axes after the batch's"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_belong_together_is_told(name):
    call, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.pad(ONES, 1.5),
        lambda: F.repeat(ONES, 1.5),
        lambda: F.repeat(ONES, (1, 1.5), 0),
        lambda: F.split_axis(ONES, [1.5], 1),
    ],
    ids=["pad", "repeat", "repeat: each", "split_axis"],
)
def test_what_is_counted_is_an_integer(call):
    with pytest.raises(TypeError, match="integer"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.where([True, False], np.ones(2), 0),
        lambda: F.select_item(ONES, [0, 1]),
        lambda: F.negative_sampling(ONES, [0, 1], ONES, np.zeros, 1),
        lambda: F.black_out(ONES, np.array([0, 1]), ONES, [[0], [1]]),
        lambda: F.roi_pooling_2d(IMAGE, [[0, 0, 0, 1, 1]], 1, 1, 1),
        lambda: F.roi_max_pooling_2d(IMAGE, np.ones((1, 4)), [0], 1, 1),
        lambda: F.roi_average_pooling_2d(IMAGE, [[0, 0, 1, 1]], np.array([0]), 1, 1),
    ],
    ids=[
        "where",
        "select_item",
        "negative_sampling",
        "black_out",
        "roi: pooling",
        "roi: images",
        "roi: corners",
    ],
)
def test_a_list_where_an_array_belongs_is_told(call):
    with pytest.raises(TypeError, match="not list: wrap it in"):
        call()


def test_the_largest_of_bytes_are_bytes():
    assert F.roi_max_pooling_2d(BYTES, REGION * [0, 0, 2, 2], FIRST, 1, 1).array.tolist() == [
        [[[1]]]
    ]


def test_nothing_has_no_steps_and_no_product():
    assert F.transpose_sequence([]) == ()
    np.testing.assert_array_equal(F.prod(np.ones((0, 2)), 0).array, [1, 1])


def test_gaussian_draws_from_the_generator_that_it_is_given():
    mean = np.zeros(1000)
    ln_var = np.full(1000, np.log(4.0))
    y, eps = F.gaussian(mean, ln_var, rng=np.random.default_rng(0), return_eps=True)
    np.testing.assert_allclose(y.array, 2 * eps)
    np.testing.assert_allclose(y.array.std(), 2, rtol=0.1)


@pytest.mark.parametrize(("call", "told"), NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_has_no_numbers_is_told(call, told):
    with pytest.raises(TypeError, match=told):
        call()


def test_what_is_wrong_with_a_function_of_numbers_is_told_as_it_is():
    class Wrong(mnpar.FunctionNode):
        def forward(self, x):
            return x.nothing

    with pytest.raises(AttributeError, match="nothing"):
        Wrong().apply((ONES,))
