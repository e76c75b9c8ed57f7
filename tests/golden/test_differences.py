"""Where mnpar differs from Chainer 7.8.1 on purpose: what Chainer recorded, and what is right.

docs/coming_from.md tells users the same. test_pytorch.py has the peers of some.
"""

import numpy as np
import pytest

import mnpar
from tests.golden.differences import DIFFERENCES, NESTEROV
from tests.golden.optimizers import evaluate_optimizer, gradients
from tests.golden.recording import evaluate_function, inputs, load, weigh

RECORDED = load("chainer_differences")


def both(name):
    """Return what Chainer recorded and what mnpar computes."""
    call, *_ = DIFFERENCES[name]
    return RECORDED[name], evaluate_function(mnpar, call, inputs(RECORDED[name]))


def close(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("debug_off")
def test_labels_that_do_not_fit_cost_infinitely_much_and_have_no_gradient():
    chainer, ours = both("connectionist_temporal_classification of labels that do not fit")
    np.testing.assert_allclose(chainer["y0"][0], 1e10)
    assert chainer["gx0"][:, 0].all()
    assert ours["y0"][0] == np.inf
    assert not ours["gx0"][:, 0].any()
    close(ours["y0"][1], chainer["y0"][1])
    close(ours["gx0"][:, 1], chainer["gx0"][:, 1])


def test_the_norm_of_a_masked_pixel_has_a_gradient():
    chainer, ours = both("discriminative_margin_based_clustering_loss of L2")
    for loss in ("y0", "y1", "y2"):
        close(ours[loss], chainer[loss])
    assert np.isnan(chainer["gx0"]).all()
    assert np.isfinite(ours["gx0"]).all()


def test_the_gradient_of_an_edge_counts_its_repetitions():
    chainer, ours = both("pad with edges")
    close(ours["y0"], chainer["y0"])
    g = weigh(ours["y0"])
    close(chainer["gx0"], g[2:5])
    close(ours["gx0"], [g[:3].sum(), g[3], g[4:].sum()])


def test_scores_of_a_class_of_which_there_are_none_are_0():
    chainer, ours = both("scores of a class of which there are none")
    for score in ("y0", "y2", "y4"):
        assert np.isnan(chainer[score][2])
        assert ours[score].tolist() == [*chainer[score][:2], 0]


def test_a_region_that_no_pixel_is_in_has_0_as_its_maximum():
    chainer, ours = both("roi_max_pooling_2d outside")
    assert (chainer["y0"] == -np.inf).all()
    assert not ours["y0"].any()
    assert not ours["gx0"].any()


def test_a_window_that_sees_padding_alone_has_no_maximum():
    name = "max_pooling_2d of padding alone"
    assert RECORDED[name]["y0"][0, 0, 2, 0] == -np.inf
    with pytest.raises(ValueError, match="sees padding only, which has no maximum"):
        both(name)


def test_arctan2_of_two_shapes_is_an_error():
    """Chainer computes it, but fails in backward with respect to the smaller one."""
    name = "arctan2 of two shapes"
    assert RECORDED[name]["y0"].shape == (2, 3)
    with pytest.raises(ValueError, match="must be the same"):
        both(name)


def test_the_gradient_of_soft_targets_needs_no_sum_of_1():
    chainer, ours = both("softmax_cross_entropy of soft targets")
    close(ours["y0"], chainer["y0"])
    x, t = inputs(chainer)
    y = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    g = weigh(chainer["y0"])[:, None]
    close(chainer["gx0"], g * (y - t))
    close(ours["gx0"], g * (t.sum(1, keepdims=True) * y - t))


def test_weights_of_classes_count_for_soft_targets():
    chainer, ours = both("softmax_cross_entropy of soft targets, weighed")
    x, t = inputs(chainer)
    t = np.exp(t) / np.exp(t).sum(1, keepdims=True)
    losses = t * (np.log(np.exp(x).sum(1, keepdims=True)) - x)
    close(chainer["y0"], losses.sum(1))
    close(ours["y0"], losses @ [0.5, 2.0, 1.5])


def test_the_divergence_of_soft_targets_is_exact():
    """Chainer adds 10⁻⁷ to targets before their logarithm is taken."""
    chainer, ours = both("softmax_cross_entropy of soft targets, Kullback and Leibler")
    _, t = inputs(chainer)
    t = np.exp(t) / np.exp(t).sum(1, keepdims=True)
    close(chainer["y0"] - ours["y0"], (t * np.log1p(1e-7 / t)).sum(1))
    close(ours["gx0"], chainer["gx0"])


def test_unpooling_with_padding_takes_the_element_whose_window_it_is():
    """Windows of 3 begin at -2 and 1: the first pixel is in the first, the others in the next."""
    chainer, ours = both("unpooling_2d with padding")
    ((x,),) = inputs(chainer)[0]
    assert (chainer["y0"] == x[1, 1]).all()
    np.testing.assert_array_equal(ours["y0"][0, 0], x[:2, :2].repeat([1, 2], 0).repeat([1, 2], 1))


def test_nesterovs_momentum_adds_the_velocity_of_before():
    """Chainer adds μ² v with the velocity v that has this step's gradient in it already."""
    recorded = load("chainer_optimizers")
    arrays = inputs(recorded["inputs"])
    theirs = ours = arrays[0]
    v, lr, momentum = 0, 0.1, 0.8
    path = evaluate_optimizer(mnpar, arrays, *NESTEROV)["y0"]
    for t, (g, _) in enumerate(gradients(arrays)):
        before, v = v, momentum * v - lr * g
        theirs = theirs + momentum**2 * v - (1 + momentum) * lr * g
        ours = ours + momentum**2 * before - (1 + momentum) * lr * g
        close(recorded["NesterovAG"]["y0"][t], theirs)
        close(path[t], ours)
