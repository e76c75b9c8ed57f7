"""One model function, on every mesh of 8 ranks: the losses, gradients and weights of one
process.
"""

import functools
import itertools
import math

import numpy as np
import pytest

import mnpar
from mnpar import optimizers
from mnpar.optimizers import hooks as hooks
from tests.parallel.mesh_models import (
    GRIDS,
    check,
    check_pieces,
    make,
    pieces,
    reference,
    step,
    train,
)

STEPS = 2  # the second has what the first left in the optimizer
SIZES = (1, 2, 4, 8)


def factorisations(*names):
    """All ways to divide 8 ranks among these axes: the axes that have several ranks, and how
    many.
    """
    for sizes in itertools.product(SIZES, repeat=len(names)):
        if np.prod(sizes) == 8:
            yield tuple(
                zip(
                    *[(name, n) for name, n in zip(names, sizes, strict=True) if n > 1], strict=True
                )
            )


MESHES = [
    *[("transformer", *mesh) for mesh in factorisations("data", "pipe", "model")],
    ("transformer", ("sequence", "pipe", "model"), (2, 2, 2)),
    ("transformer", ("data", "sequence"), (2, 4)),
    *[("cnn", *mesh) for mesh in factorisations("data", "pipe", "model", "space")],
]
# of equal ones: the grid asks which are the same
ONE = {value: value for mesh in MESHES for value in mesh}
MESHES = [tuple(ONE[value] for value in mesh) for mesh in MESHES]
IDS = [
    f"{name}-{'-'.join(f'{axis}{n}' for axis, n in zip(axes, sizes, strict=True))}"
    for name, axes, sizes in MESHES
]


@functools.cache
def expected(name, optimizer, added=()):
    with mnpar.using_config("dtype", np.dtype("f8")):
        return reference(name, optimizer, STEPS, added)


@pytest.mark.grid
@pytest.mark.parametrize(("name", "axes", "sizes"), MESHES, ids=IDS)
def test_a_model_is_the_same_on_every_mesh(name, axes, sizes):
    mesh = {axis: GRIDS[n] if axis == "space" else n for axis, n in zip(axes, sizes, strict=True)}
    check(
        mnpar.run(train, ranks=8, args=(mesh, name, optimizers.Adam, STEPS)),
        expected(name, optimizers.Adam),
    )


HYBRID = {
    "transformer": {"data": 2, "pipe": 2, "model": 2},
    "cnn": {"data": 2, "model": 2, "space": (2, 1)},
}
WHOLE = {  # what looks at norms of the whole model, or of whole parameters
    "clipping": (lambda: optimizers.MomentumSGD(0.1), (lambda: hooks.GradientClipping(0.05),)),
    "LARS": (lambda: optimizers.SGD(0.5), (lambda: hooks.GradientLARS(weight_decay=0.01),)),
    "LAMB": (lambda: optimizers.LAMB(0.01), ()),
    "Novograd": (lambda: optimizers.Novograd(), ()),
    "LAMB with momentum": (lambda: optimizers.apply_momentum(optimizers.LAMB(0.01)), ()),
}


WAYS = {"": {}, "sharded": {"sharded": True, "check": 1}, "buckets": {"bucket_bytes": 4096}}


@pytest.mark.grid
@pytest.mark.parametrize("name", HYBRID)
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("rule", WHOLE)
def test_norms_count_each_parameter_once(name, rule, options):
    optimizer, added = WHOLE[rule]
    curve, _, weights = expected(name, optimizer, added)
    results = mnpar.run(
        functools.partial(train, **options),
        ranks=8,
        args=(HYBRID[name], name, optimizer, STEPS, added),
    )
    check_pieces([w for _, _, w in results], weights, 1e-9)
    np.testing.assert_allclose(
        next(losses for losses, _, _ in results if None not in losses), curve, rtol=1e-9
    )


@pytest.mark.parametrize(
    "axes", [{"pipe": 2, "data": 2}, {"model": 2, "pipe": 2}, {"data": 3}], ids=str
)
def test_loss_scaling_decides_for_the_whole_mesh(axes):
    def program(comm):
        with mnpar.using_config("dtype", np.dtype("f8")):
            mesh = mnpar.Mesh(comm, **axes)
            model, optimizer = make(mesh, "transformer", lambda: optimizers.SGD(0.1))
            optimizer.loss_scaling(scale=2.0**10)
            step(mesh, "transformer", model, optimizer, 0)
            before = [p.array.copy() for p in model.params()]
            if comm.rank == comm.size - 1:  # one rank alone overflows
                next(optimizer.target.params()).register_hook(
                    lambda node: node.gradient.fill(np.inf), after=True
                )
            step(mesh, "transformer", model, optimizer, 1)
            return optimizer.t, all(
                (p.array == b).all() for p, b in zip(model.params(), before, strict=True)
            )

    assert mnpar.run(program, ranks=int(np.prod(list(axes.values())))) == [(1, True)] * int(
        np.prod(list(axes.values()))
    )


def noisy(comm, axes, name, options):
    with mnpar.using_config("dtype", np.dtype("f8")):
        mesh = mnpar.Mesh(comm, **axes)
        model, optimizer = make(mesh, name, lambda: optimizers.SGD(0.1), **options)
        mnpar.random.seed([3, comm.rank])  # rank 0's counts
        optimizer.add_hook(hooks.GradientNoise(0.3, comm=comm))
        for i in range(2):
            step(mesh, name, model, optimizer, i)
        return pieces(model, "array")


@pytest.mark.parametrize("options", [{}, {"sharded": True}], ids=["", "sharded"])
@pytest.mark.parametrize(
    ("axes", "name"),
    [
        ({"data": 2, "model": 2}, "transformer"),
        ({"pipe": 2, "model": 2}, "transformer"),
        ({"data": 3}, "transformer"),
        ({"space": (1, 2), "pipe": 2}, "cnn"),
        ({"sequence": 2}, "transformer"),
    ],
    ids=str,
)
def test_the_noise_of_gradients_is_that_of_one_process(axes, name, options):
    (one,) = mnpar.run(noisy, ranks=1, args=({}, name, {}))
    expected = {path: array for path, _, _, array in one}
    size = math.prod([math.prod(np.atleast_1d(n)) for n in axes.values()])
    check_pieces(mnpar.run(noisy, ranks=size, args=(axes, name, options)), expected, 1e-9)
