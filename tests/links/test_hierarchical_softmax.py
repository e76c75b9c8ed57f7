"""Hierarchical softmax: its tree, its probabilities, its gradients; and deformable convolution's
link.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

RNG = np.random.default_rng(0)
TREE = ((3, (0, 4)), (1, 2))


def test_the_probabilities_of_all_words_add_up_to_1():
    loss = L.BinaryHierarchicalSoftmax(4, TREE, "d")
    x = RNG.standard_normal((1, 4))
    chances = [np.exp(-loss(x, np.array([word])).item()) for word in range(5)]
    assert sum(chances) == pytest.approx(1)
    loss.W.array[:] = 0
    chances = [np.exp(-loss(x, np.array([word])).item()) for word in range(5)]
    np.testing.assert_allclose(chances, [1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8])


def test_the_loss_is_that_of_each_turn_on_the_paths():
    loss = L.BinaryHierarchicalSoftmax(3, TREE, "d")
    assert loss.W.shape == (4, 3)
    x = RNG.standard_normal((3, 3))
    t = np.array([4, 2, 3])
    # sample, node, sign
    turns = [
        (0, 0, 1),
        (0, 1, -1),
        (0, 2, -1),
        (1, 0, -1),
        (1, 3, -1),
        (2, 0, 1),
        (2, 1, 1),
    ]
    expected = sum(np.log1p(np.exp(-sign * loss.W.array[node] @ x[i])) for i, node, sign in turns)
    assert loss(x, t).item() == pytest.approx(expected)
    mnpar.gradient_check.check_backward(
        lambda x, W: loss(x, t), (x, loss.W.array.copy()), None, loss.W, eps=1e-4, atol=1e-7
    )


def test_rare_words_have_long_paths():
    make = L.BinaryHierarchicalSoftmax.create_huffman_tree
    assert make({0: 8, 1: 5, 2: 6, 3: 4}) == ((3, 1), (2, 0))
    assert make({5: 1}) == 5
    deep = make({i: 2.0**i for i in range(1000)})  # a path of 999 nodes
    assert L.BinaryHierarchicalSoftmax(1, deep).W.shape == (999, 1)
    with pytest.raises(ValueError, match="word_counts is empty"):
        make({})


@pytest.mark.parametrize("t", [5, -1, 8])
def test_a_word_that_is_not_in_the_tree_is_told(t):
    loss = L.BinaryHierarchicalSoftmax(2, ((0, 6), (1, 7)))
    with pytest.raises(ValueError, match=f"no word {t}"):
        loss(np.ones((2, 2), "f4"), np.array([6, t]))


def test_no_words_have_no_loss():
    assert (
        L.BinaryHierarchicalSoftmax(2, (0, 1))(np.ones((0, 2), "f4"), np.zeros(0, "i4")).item() == 0
    )


def test_a_node_that_is_no_pair_is_told():
    with pytest.raises(ValueError, match=r"not \(0, 1, 2\)"):
        L.BinaryHierarchicalSoftmax(2, (0, 1, 2))


def test_deformable_convolution_starts_with_zeros_and_learns_both_its_filters():
    layer = L.DeformableConvolution2D(None, 2, 3, stride=2, pad=1)
    x = RNG.standard_normal((2, 3, 5, 5)).astype("f4")
    assert not layer(x).array.any()
    layer.deform_conv.W.array[...] = RNG.standard_normal((2, 3, 3, 3))
    layer.cleargrads()
    F.sum(layer(x) ** 2).backward()
    assert [name for name, p in layer.namedparams() if not np.any(p.grad)] == []
    layer.offset_conv.W.array[...] = 0
    np.testing.assert_allclose(
        layer(x).array, F.convolution_2d(x, layer.deform_conv.W, None, 2, 1).array, atol=1e-5
    )
