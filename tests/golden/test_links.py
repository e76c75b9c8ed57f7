"""Links against the outputs and gradients that Chainer 7.8.1 recorded of the same calls."""

import pytest

import mnpar
import mnpar.link_hooks
from tests.golden.links import LINKS, evaluate_link
from tests.golden.recording import compare, inputs, load

RECORDED = load("chainer_links")


@pytest.mark.parametrize("name", LINKS)
def test_outputs_and_gradients_are_chainers(name):
    make, call, *_ = LINKS[name]
    case = RECORDED[name]
    parameters = {key[1:]: value for key, value in case.items() if key.startswith("p/")}

    def draw_parameters(shapes):
        assert shapes == {path: value.shape for path, value in parameters.items()}
        return parameters

    compare(case, evaluate_link(mnpar, make, call, inputs(case), draw_parameters))
