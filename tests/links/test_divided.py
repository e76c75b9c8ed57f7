"""Links that are divided among ranks, in checkpoints: whole, and loaded by any number of ranks."""

import itertools

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar.serializer import Deserializer, Serializer


class Into(Serializer):
    """Saves into a dict."""

    def __init__(self, into):
        self.into = into

    def __call__(self, key, value):
        self.into[key] = None if value is None else np.array(value)
        return value


class From(Deserializer):
    """Loads from a dict, into the array that is given."""

    def __init__(self, source):
        self.source = source

    def __call__(self, key, value):
        found = self.source[key]
        if value is None:
            return found
        value[...] = found
        return value


def on_grid(make):
    return lambda comm: make(mnpar.SpatialGrid(comm, (comm.size, 1)))


LAYERS = {
    "columns": (
        lambda: L.Linear(5, 7),
        lambda c: L.ColumnParallelLinear(c, 5, 7),
        lambda c: L.ColumnParallelLinear(c, 7),
    ),
    "rows": (
        lambda: L.Linear(5, 7),
        lambda c: L.RowParallelLinear(c, 5, 7),
        lambda c: L.RowParallelLinear(c, 7),
    ),
    "places": (
        lambda: L.LocalConvolution2D(2, 3, (7, 6), 3),
        on_grid(lambda grid: L.SpatialLocalConvolution2D(grid, 2, 3, (7, 6), 3)),
        on_grid(lambda grid: L.SpatialLocalConvolution2D(grid, None, 3, (7, 6), 3)),
    ),
    "places, back": (
        lambda: L.LocalDeconvolution2D(3, 2, (7, 6), 3, stride=2),
        on_grid(lambda grid: L.SpatialLocalDeconvolution2D(grid, 3, 2, (7, 6), 3, stride=2)),
        None,
    ),
}


def save(layer):
    saved = {}
    layer.serialize(Into(saved))
    return saved


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(("before", "after"), [*itertools.product([1, 4], [1, 3, 6])], ids=str)
def test_any_number_of_ranks_loads_what_any_number_saved(layers, before, after):
    make, divided, _ = layers
    mnpar.random.seed(2)
    one = save(make())

    def written(comm):
        layer = divided(comm)
        layer.serialize(From(one))
        return save(layer)

    def read(comm, saved):
        layer = divided(comm)
        layer.serialize(From(saved))
        return [L.gather_parameter(comm, param) for param in layer.params()]

    for saved in mnpar.run(written, ranks=before):
        assert {name: value.shape for name, value in saved.items()} == {
            name: value.shape for name, value in one.items()
        }
        for name, value in one.items():
            np.testing.assert_array_equal(saved[name], value)
    for params in mnpar.run(read, ranks=after, args=(saved,)):
        for param, value in zip(params, one.values(), strict=True):
            np.testing.assert_array_equal(param, value)


@pytest.mark.parametrize("name", ["columns", "rows", "places"])
def test_what_is_loaded_before_the_sizes_are_known_is_cut_later(name):
    make, _, lazy = LAYERS[name]
    mnpar.random.seed(3)
    one = save(make())

    def program(comm):
        layer = lazy(comm)
        assert save(layer)["W"] is None
        layer.serialize(From(one))
        if name == "places":
            layer(layer.grid.cut(np.ones((1, 2, 7, 6), "f4")))
        else:
            layer(np.ones((1, 5), "f4"))
        np.testing.assert_array_equal(L.gather_parameter(comm, layer.W), one["W"])
        np.testing.assert_array_equal(L.gather_parameter(comm, layer.b), one["b"])

    mnpar.run(program, ranks=3)


def test_a_bias_that_all_ranks_hold_alike_begins_as_that_of_rank_0():
    def program(comm):
        mnpar.random.seed(comm.rank)
        return L.RowParallelLinear(comm, 4, 3, initial_bias=mnpar.initializers.Normal()).b.array

    a, b = mnpar.run(program, ranks=2)
    np.testing.assert_array_equal(a, b)
