"""Cross entropy of scores divided by classes, against that of one process: loss, derivatives of two
orders, messages.
"""

import itertools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.plans import block

WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 3.0, 1.5, 0.25])
LABELS = np.array([6, 0, 3, -1, 3, 2])
OPTIONS = {
    "mean": {},
    "of each": {"reduce": "no"},
    "over N": {"normalize": False},
    "recomputed": {"cache_score": False},
    "class weights": {"class_weight": WEIGHTS},
    "ignoring class 3": {"ignore_label": 3, "reduce": "no"},
}
CUTS = {  # the classes of each rank
    "one": [7],
    "two": [4, 3],
    "uneven": [1, 5, 1],
    "with empty blocks": [0, 4, 0, 3],
    "all on the last": [0, 0, 7],
}


def labels_for(options):
    return np.where(LABELS < 0, 1, LABELS) if options.get("ignore_label") == 3 else LABELS


def derivatives(loss_of, x0, comm=None):
    """Loss, its gradient, and the gradient of a function of the gradient."""
    x = mnpar.Variable(x0)
    loss = loss_of(x)
    (g,) = mnpar.grad([F.sum(F.sin(loss) + loss)], [x], enable_double_backprop=True)
    second = F.sum(F.sin(3 * g))
    (second if comm is None else F.reduce_from(comm, second)).backward()
    return loss.array, g.array, x.grad


def mine(sizes, rank):
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("cut", CUTS)
def test_loss_and_derivatives_are_those_of_one_process(cut, name):
    options = OPTIONS[name]
    sizes = CUTS[cut]
    x0 = np.random.default_rng(0).standard_normal((6, 7)) * 30
    t = labels_for(OPTIONS[name])
    x0[0, 2] = 700.0  # more than exp takes
    truth = derivatives(lambda x: F.softmax_cross_entropy(x, t, **options), x0)

    def program(comm):
        columns = mine(sizes, comm.rank)
        found = derivatives(
            lambda x: F.vocabulary_parallel_softmax_cross_entropy(comm, x, t, **options),
            x0[:, columns].copy(),
            comm,
        )
        for one, whole in zip(found, truth, strict=True):
            np.testing.assert_allclose(
                one, whole if np.ndim(whole) < 2 else whole[:, columns], rtol=1e-11, atol=1e-12
            )

    mnpar.run(program, ranks=len(sizes))


@pytest.mark.ranks(1, 2, 3)
def test_images_of_labels_and_halves(comm):
    rng = np.random.default_rng(1)
    x0 = rng.standard_normal((2, 5, 3, 4))
    t = rng.integers(-1, 5, (2, 3, 4))
    cut = slice(*block(5, comm.size, comm.rank))
    for dtype, exact in (("f8", 1e-12), ("f4", 1e-6), ("f2", 2e-3)):
        whole = mnpar.Variable(x0.astype(dtype))
        x = mnpar.Variable(x0[:, cut].astype(dtype))
        truth = F.softmax_cross_entropy(whole, t)
        truth.backward()
        loss = F.vocabulary_parallel_softmax_cross_entropy(comm, x, t)
        assert loss.dtype == dtype
        np.testing.assert_allclose(loss.array, truth.array, rtol=exact)
        loss.backward()
        assert x.grad.dtype == dtype
        np.testing.assert_allclose(x.grad, whole.grad[:, cut], rtol=4 * exact, atol=exact)


@pytest.mark.parametrize("shape", [(0, 7), (4, 7, 0)], ids=str)
def test_no_samples_have_no_loss(shape):
    def program(comm):
        x = mnpar.Variable(np.ones((shape[0], *block_shape(comm, shape))))
        loss = F.vocabulary_parallel_softmax_cross_entropy(
            comm, x, np.ones((shape[0], *shape[2:]), int)
        )
        loss.backward()
        return loss.item(), x.grad.shape == x.shape

    assert mnpar.run(program, ranks=3) == [(0.0, True)] * 3


def block_shape(comm, shape):
    first, last = block(shape[1], comm.size, comm.rank)
    return last - first, *shape[2:]


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("ranks", [2, 3])
def test_two_messages_go_forward_and_none_backward(ranks):
    """What the ranks say to each other is counted where collectives begin."""

    def program(comm):
        x = mnpar.Variable(np.ones((50, 4)))
        t = np.arange(50) % (4 * ranks)
        loss = F.vocabulary_parallel_softmax_cross_entropy(comm, x, t)
        forward = [comm.channel(0).next_number // 2, comm.channel(1).next_number // 2]
        loss.backward()
        return forward, [comm.channel(0).next_number // 2, comm.channel(1).next_number // 2]

    assert mnpar.run(program, ranks=ranks) == [([2, 0], [2, 0])] * ranks


def test_a_rank_whose_scores_are_constants_works_too():
    """Their gradient is wanted on rank 0 only."""

    def program(comm):
        x = mnpar.Variable(np.array([[1.0, 2.0]])) if comm.rank == 0 else np.array([[3.0]])
        F.vocabulary_parallel_softmax_cross_entropy(comm, x, np.array([1])).backward()
        return x.grad if comm.rank == 0 else None

    whole = mnpar.Variable(np.array([[1.0, 2.0, 3.0]]))
    F.softmax_cross_entropy(whole, np.array([1])).backward()
    np.testing.assert_allclose(mnpar.run(program, ranks=2)[0], whole.grad[:, :2])


WRONG = {
    "a label outside": ([0, 4], {}, r"label 4 at t\[1\] is outside the 4 classes 0 … 3 of x"),
    "labels of another shape": ([0], {}, r"scores \(2, 2\) and labels \(1,\) are not"),
    "soft targets": ([0.5, 0.5], {}, "soft targets are not divided"),
    "an unknown reduction": ([0, 1], {"reduce": "sum"}, "reduce is 'mean' or 'no', not 'sum'"),
    "too few weights": (
        [0, 1],
        {"class_weight": np.ones(2)},
        r"class_weight of shape \(2,\).*of shape \(4,\)",
    ),
}


@pytest.mark.parametrize(("wrong", "ranks"), [*itertools.product(WRONG, [2])], ids=str)
def test_what_is_wrong_is_named(wrong, ranks):
    t, options, message = WRONG[wrong]

    def program(comm):
        F.vocabulary_parallel_softmax_cross_entropy(comm, np.ones((2, 2)), np.array(t), **options)

    with pytest.raises(ValueError, match=message):
        mnpar.run(program, ranks=ranks)
