"""Links of sampled losses and of random fields, and what draws words."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

T = np.array([0, 2, 1, 2], "i4")
X = np.random.default_rng(0).standard_normal((4, 3)).astype("f4")
CHANCES = {"even": [1, 1, 1], "uneven": [1, 0, 5, 2], "one": [3], "large": list(range(1, 40))}


@pytest.mark.parametrize("chances", CHANCES.values(), ids=CHANCES)
def test_words_are_drawn_with_their_probabilities(chances):
    sampler = mnpar.utils.WalkerAlias(chances)
    cells = len(chances)
    found = np.bincount(np.arange(cells), sampler.threshold, cells)
    found += np.bincount(sampler.other, 1 - sampler.threshold, cells)  # exactly what a draw gives
    np.testing.assert_allclose(found / cells, np.array(chances) / sum(chances), atol=1e-12)
    drawn = sampler.sample((50, 40), np.random.default_rng(0))
    assert (drawn.shape, drawn.dtype) == ((50, 40), np.int32)
    shares = np.bincount(drawn.ravel(), minlength=cells) / drawn.size
    np.testing.assert_allclose(shares, np.array(chances) / sum(chances), atol=0.04)


@pytest.mark.parametrize("chances", [[], [0, 0], [1, -1], [[1, 2]]], ids=str)
def test_what_are_no_probabilities_is_refused(chances):
    with pytest.raises(ValueError, match="not negative"):
        mnpar.utils.WalkerAlias(chances)


def test_negative_sampling_learns_the_words_of_its_inputs():
    link = L.NegativeSampling(3, [1, 1, 1], 4)
    link.sampler.sample = functools.partial(link.sampler.sample, rng=np.random.default_rng(0))
    optimizer = mnpar.optimizers.SGD(0.1).setup(link)
    for _ in range(200):
        optimizer.update(lambda: link(X, T))
    assert (X @ link.W.array.T).argmax(1).tolist() == T.tolist()
    loss, samples = link(X, T, reduce="no", return_samples=True)
    assert (loss.shape, samples.shape, samples[:, 0].tolist()) == ((4,), (4, 5), T.tolist())


def test_black_out_takes_the_samples_that_it_is_given():
    link = L.BlackOut(3, [1, 2, 3], 2)
    link.sample_data = np.array([[1, 1], [0, 1], [0, 0], [1, 0]], "i4")
    np.testing.assert_array_equal(
        link(X, T).array, F.black_out(X, T, link.W, link.sample_data).array
    )


def test_a_field_takes_sequences_in_any_order():
    field = L.CRF1d(3, mnpar.initializers.Normal(1.0))
    random = np.random.default_rng(0)
    xs = [random.standard_normal((n, 3)).astype("f4") for n in (1, 4, 2)]
    ys = [random.integers(0, 3, n).astype("i4") for n in (1, 4, 2)]
    each = [field(list(x[:, None]), list(y[:, None])).item() for x, y in zip(xs, ys, strict=True)]
    np.testing.assert_allclose(field(xs, ys, transpose=True).item(), np.mean(each), rtol=1e-5)
    np.testing.assert_allclose(
        field(xs, ys, "no", transpose=True).array, [each[1], each[2], each[0]], rtol=1e-5
    )
    scores, labels = field.argmax(xs, transpose=True)
    for x, path, i in zip(xs, labels, (2, 0, 1), strict=True):
        score, alone = field.argmax(list(x[:, None]))
        assert path.tolist() == [int(y[0]) for y in alone]
        np.testing.assert_allclose(scores.array[i], score.array[0], rtol=1e-5)
