"""Debug mode tells of arrays that were changed in place between a function and its backward."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

CHANGES = {  # what is changed, and which function still needs it
    "an input": (lambda x, h, link: x.__setattr__("array", np.add(x.array, 1, x.array)), "Linear"),
    "an output": (lambda x, h, link: np.negative(h.array, h.array), "Exp"),
    "a parameter": (lambda x, h, link: np.multiply(link.W.array, 2, link.W.array), "Linear"),
}


def forward():
    x = mnpar.Variable(np.ones((2, 3)))
    with mnpar.using_config("dtype", np.float64):
        link = L.Linear(3, 2)
    h = F.exp(link(x))
    return x, h, link, F.sum(h)


@pytest.mark.parametrize("name", CHANGES)
def test_an_array_that_backward_needs_is_not_changed_before_it(name):
    change, function = CHANGES[name]
    with mnpar.using_config("debug", True):
        *made, loss = forward()
        change(*made)
        line = r"autograd/test_retained.py:\d+"
        text = rf"^(in|out)put \d of {function} at {line}, .* the backward at {line}, "
        with pytest.raises(RuntimeError, match=text):
            loss.backward()


LABELS = {  # functions that keep integers or booleans
    "labels": lambda x, t: F.softmax_cross_entropy(x, t),
    "rows of a table": lambda x, t: F.sum(F.embed_id(t, x) ** 2),
    "an index": lambda x, t: F.sum(x[t] ** 2),
    "an index of several": lambda x, t: F.sum(x[t, t] ** 2),
    "a permutation": lambda x, t: F.sum(F.permutate(x, t) ** 2),
    "a mask": lambda x, t: F.sum(F.where(t.view("?")[:3, None], x, 2 * x)),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_and_indices_are_not_changed_before_backward(name):
    with mnpar.using_config("debug", True):
        x, t = mnpar.Variable(np.arange(9.0).reshape(3, 3)), np.array([0, 1, 2])
        LABELS[name](x, t).backward()
        loss = LABELS[name](x, t)
        t[:2] = t[1::-1].copy()
        line = r"autograd/test_retained.py:\d+"
        text = rf"^array \w+ of \w+ at {line}, \w+ \(3,.* changed in place .* backward at {line}, "
        with pytest.raises(RuntimeError, match=text):
            loss.backward()


def test_the_functions_that_read_labels_in_forward_alone_let_them_change():
    x = mnpar.Variable(np.arange(12.0).reshape(3, 4))
    with mnpar.using_config("debug", True):
        for function in (F.hinge, lambda x, t: F.sigmoid_cross_entropy(x[:, 0], t)):
            wanted, found = [], []
            for gradients in (wanted, found):
                t = np.array([0, 1, 1])
                loss = function(x, t)
                if gradients is found:
                    t[...] = 0
                x.cleargrad()
                loss.backward()
                gradients.append(x.grad)
            np.testing.assert_array_equal(found, wanted)


RIGHT = {
    "after backward": lambda x, h, link, loss: (loss.backward(), np.add(x.array, 1, x.array)),
    "a new array": lambda x, h, link, loss: (
        setattr(x, "array", x.array + 1),
        setattr(link.W, "array", 2 * link.W.array),
        loss.backward(),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_other_changes_are_right(name):
    with mnpar.using_config("debug", True):
        x, h, link, loss = forward()
        want = (h.array.T @ np.ones((2, 3))).copy()
        RIGHT[name](x, h, link, loss)
        np.testing.assert_allclose(link.W.grad, want)


def test_a_weight_whose_value_no_gradient_depends_on_may_change():
    """The input needs no gradient, so the weight is needed for nothing."""
    with mnpar.using_config("debug", True):
        link = L.Linear(3, 2)
        y = link(np.ones((2, 3), "f4"))
        link.W.array[...] = 7
        F.sum(y).backward()
        np.testing.assert_array_equal(link.W.grad, np.full((2, 3), 2.0))


@pytest.mark.usefixtures("debug_off")
def test_outside_debug_mode_nothing_is_remembered():
    y = F.exp(mnpar.Variable(np.ones(2)))
    assert y.creator._retained is None
