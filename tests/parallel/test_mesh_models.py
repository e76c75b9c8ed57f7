"""One model function, on every mesh of 8 ranks: the losses, gradients and weights of one process."""

import functools
import itertools

import numpy as np
import pytest

import mnpar
from mnpar import optimizers
from tests.parallel.mesh_models import GRIDS, check, reference, train

STEPS = 3
SIZES = (1, 2, 4, 8)


def factorisations(*names):
    """All ways to divide 8 ranks among these axes."""
    for sizes in itertools.product(SIZES, repeat=len(names)):
        if np.prod(sizes) == 8:
            yield {name: GRIDS[n] if name == "space" else n for name, n in zip(names, sizes, strict=True)}


MESHES = [
    *[("transformer", axes) for axes in factorisations("data", "pipe", "model")],
    *[("cnn", axes) for axes in factorisations("data", "pipe", "model", "space")],
]
IDS = [f"{name}-{'x'.join(str(np.prod(size)) for size in axes.values())}" for name, axes in MESHES]


@functools.cache
def expected(name, optimizer):
    with mnpar.using_config("dtype", np.dtype("f8")):
        return reference(name, optimizer, STEPS)


@pytest.mark.parametrize(("name", "axes"), MESHES, ids=IDS)
def test_a_model_is_the_same_on_every_mesh(name, axes):
    check(mnpar.run(train, ranks=8, args=(axes, name, optimizers.Adam, STEPS)), expected(name, optimizers.Adam))
