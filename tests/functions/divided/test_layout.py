"""Ordinary chains on divided arrays, against one process; and what is refused."""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import DeadlockError, LayoutError, MismatchError

IMAGES = np.random.default_rng(0).standard_normal((2, 2, 9, 13))
LABELS = np.array([1, 2])
GRIDS = [(1, 1), (2, 1), (1, 3), (2, 2), (4, 1)]


@pytest.fixture(autouse=True)
def _double():
    with mnpar.using_config("dtype", np.dtype("f8")):
        yield


class Classifier(mnpar.Chain):
    """A network that knows of no grid."""

    def __init__(self):
        super().__init__()
        self.conv1 = L.Convolution2D(2, 4, 3, pad=1)
        self.conv2 = L.Convolution2D(None, 6, (2, 4), stride=(1, 2), groups=2)
        self.linear = L.Linear(None, 3)

    def forward(self, x):
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 2)
        return self.linear(F.tanh(self.conv2(h) * 2 + 1))


def train(comm, dims, steps=2):
    """Losses, the gradient of the image, and the weights after some steps, one of them with a
    penalty on a gradient.
    """
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(3)
    model = Classifier()
    image = mnpar.Variable(IMAGES.copy())
    grid = None if dims is None else mnpar.SpatialGrid(comm, dims)
    with mnpar.no_backprop_mode():
        model(IMAGES if grid is None else grid.cut(IMAGES))
    optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
    losses = []
    for _ in range(steps):
        image.cleargrad()
        model.cleargrads()
        x = image if grid is None else grid.cut(image)
        loss = F.softmax_cross_entropy(model(x), LABELS) + F.mean(F.exp(x) * 0.1)
        (gx,) = mnpar.grad([loss], [x], enable_double_backprop=True)
        assert gx.shape == IMAGES.shape
        loss = loss + F.sum(gx * gx)
        loss.backward()
        losses.append(loss.item())
        optimizer.update()
    return losses, image.grad, [p.array.copy() for p in model.params()]


def ranks_of(dims):
    return int(np.prod(dims))


@pytest.mark.parametrize("dims", GRIDS, ids=str)
@pytest.mark.parametrize("more", [0, 1])
def test_an_ordinary_chain_trains_on_parts_as_in_one_process(dims, more):
    losses, gradient, weights = train(None, None)
    for found in mnpar.run(lambda comm: train(comm, dims), ranks=ranks_of(dims) + more):
        np.testing.assert_allclose(found[0], losses, rtol=1e-12)
        np.testing.assert_allclose(found[1], gradient, rtol=1e-10, atol=1e-14)
        for one, right in zip(found[2], weights, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-10, atol=1e-14)


@pytest.mark.ranks(2, 3)
def test_an_ordinary_chain_trains_on_parts_that_processes_have(comm):
    losses, _, weights = train(None, None)
    found = train(comm, (comm.size, 1))
    np.testing.assert_allclose(found[0], losses, rtol=1e-12)
    for one, right in zip(found[2], weights, strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-10, atol=1e-14)


def test_shapes_are_those_of_the_whole_and_printing_shows_the_part():
    def program(comm):
        x = mnpar.SpatialGrid(comm, (2,)).cut(np.arange(3.0))
        return x.shape, x.whole_shape, len(x), x.size, x.ndim, x.box.shape, repr(x)

    first, second = mnpar.run(program, ranks=2)
    assert first[:5] == second[:5] == ((3,), (3,), 3, 3, 1)
    assert first[5:] == ((2,), "divided variable[0:2] of (3,)([0., 1.])")
    assert second[5:] == ((1,), "divided variable[2:3] of (3,)([2.])")


def refused(comm, call):
    grid = mnpar.SpatialGrid(comm, (2, 1))
    with pytest.raises(LayoutError) as info:
        call(grid.cut(IMAGES), grid, comm)
    return str(info.value)


class Unknown(mnpar.FunctionNode):
    def forward(self, x):
        return x * 2


REFUSED = {
    "no rule": lambda x, grid, comm: Unknown().apply((x,)),
    "the array": lambda x, grid, comm: x.array,
    "a number": lambda x, grid, comm: float(x),
    "no scalar": lambda x, grid, comm: x.backward(),
    "communication": lambda x, grid, comm: F.allreduce(comm, x),
    "layouts": lambda x, grid, comm: x + mnpar.SpatialGrid(comm, (1, 2)).cut(IMAGES),
    "other axes": lambda x, grid, comm: x + grid.cut(IMAGES, (0, 3)),
    "divided weights": lambda x, grid, comm: F.convolution_2d(x, grid.cut(np.ones((1, 2, 3, 3)))),
    "channels": lambda x, grid, comm: F.convolution_2d(
        grid.cut(IMAGES, (1, 2)), np.ones((1, 2, 3, 3))
    ),
    "a piece for each place": lambda x, grid, comm: F.separate(x, axis=2),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_rule_is_refused_on_all_ranks_with_the_remedy(call):
    for message in mnpar.run(lambda comm: refused(comm, call), ranks=2):
        assert "cut (2, 1) along axes" in message
        assert "x.gather()" in message
        assert "x.repartition" in message


def test_two_layouts_are_told():
    call = REFUSED["layouts"]
    (message, _) = mnpar.run(lambda comm: refused(comm, call), ranks=2)
    assert "cut (2, 1)" in message
    assert "cut (1, 2)" in message


def test_weights_that_differ_between_ranks_are_an_error():
    def program(comm):
        mnpar.random.seed(comm.rank)
        with pytest.raises(MismatchError, match="one seed"):
            Classifier()(mnpar.SpatialGrid(comm, (2, 1)).cut(IMAGES))

    mnpar.run(program, ranks=2)


@pytest.mark.parametrize("first", [0, 2])
def test_weights_that_drift_apart_later_are_an_error(first):
    def program(comm):
        mnpar.random.seed(0)
        model, grid = Classifier(), mnpar.SpatialGrid(comm, (2, 1))
        optimizer = mnpar.optimizers.SGD(0.1).setup(model)
        for step in range(4):
            model.cleargrads()
            F.sum(model(grid.cut(IMAGES))).backward()
            if comm.rank == 0 or step < first:
                optimizer.update()

    with pytest.raises(MismatchError, match="copies must be the same on all ranks") as told:
        mnpar.run(program, ranks=2)
    assert len(str(told.value).splitlines()) <= 5


def test_a_part_that_is_not_the_ranks_is_an_error():
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 1))
        with pytest.raises(ValueError, match="is not its box"):
            mnpar.divided(IMAGES, grid, shape=(2, 2, 5, 13))
        with pytest.raises(ValueError, match="in rising order"):
            grid.cut(IMAGES, (3, 2))
        with pytest.raises(ValueError, match="another communicator"):
            grid.cut(IMAGES).repartition(
                mnpar.SpatialGrid(mnpar.create_communicator("self"), (1, 1))
            )
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(grid.cut(IMAGES))

    mnpar.run(program, ranks=2)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_divided_array_is_not_copied_and_the_error_says_what_to_take(copied):
    def program(comm):
        with pytest.raises(TypeError, match=r"\(2, 1\).* is not pickled, copied .*x\.gather\(\)"):
            copied(mnpar.SpatialGrid(comm, (2, 1)).cut(IMAGES))

    mnpar.run(program, ranks=2)


def test_a_divided_array_broadcast_as_an_object_is_an_error_on_all_ranks():
    def program(comm):
        x = mnpar.SpatialGrid(comm, (2, 1)).cut(IMAGES)
        error = MismatchError if comm.rank else TypeError
        with pytest.raises(error, match="is not pickled, copied or sent as an object"):
            comm.bcast_obj(x)

    mnpar.run(program, ranks=2)


def test_elements_of_divided_arrays_are_not_written_and_sums_make_new_ones():
    def program(comm):
        x = y = mnpar.SpatialGrid(comm, (2, 1)).cut(IMAGES)
        before = x.part.array.copy()
        with pytest.raises(LayoutError, match="changing the elements of a divided array"):
            x[:1] = 0
        with pytest.raises(TypeError, match="are not written"):
            x.part[:1] = 0
        with pytest.raises(LayoutError, match="this rank has a part of it"):
            x.array[...] = 0
        x += 1
        np.testing.assert_array_equal(y.part.array, before)
        np.testing.assert_array_equal(x.part.array, before + 1)

    mnpar.run(program, ranks=2)


# functions of 7 cells, some of which nothing reads
READERS = {
    "the first cells": lambda x: x[:, :, :2],
    "the last cell": lambda x: x[:, :, 6:],
    "no cell": lambda x: x[:, :, 3:3],
    "windows with gaps": lambda x: F.convolution_nd(x, np.ones((1, 1, 2)), stride=5),
    "maxima": lambda x: F.max_pooling_nd(x, 2, stride=5),
    "values that are no input": lambda _: mnpar.Variable(np.ones((1, 1, 3))),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 9])
def test_a_gradient_of_cells_that_nothing_reads_is_zeros_on_every_rank(name, ranks):
    values = np.arange(7.0).reshape(1, 1, 7)

    def gradients(x):
        """The gradient of a loss, and that of a function of it; None stands for zeros."""
        (g,) = mnpar.grad([F.sum(READERS[name](x) ** 2)], [x], enable_double_backprop=True)
        if g is None:
            return None, None
        return g, mnpar.grad([F.sum(g * g)], [x], set_grad=True)[0]

    def program(comm):
        x = mnpar.SpatialGrid(comm, (ranks,)).cut(mnpar.Variable(values))
        g, second = gradients(x)
        assert g.part.shape == second.part.shape == x.grad.shape == x.box.shape
        return g.gather().array, second.gather().array

    expected = [
        np.zeros_like(values) if g is None else g.array for g in gradients(mnpar.Variable(values))
    ]
    for found in mnpar.run(program, ranks=ranks):
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def cut_of(comm, dims, axes, shape=IMAGES.shape):
    return mnpar.SpatialGrid(comm, dims).cut(np.ones(shape), axes)


# what ranks other than 0 do otherwise
OTHERWISE = {
    "dims": lambda comm, other: cut_of(comm, (1, 2) if other else (2, 1), (2, 3)),
    "axes": lambda comm, other: cut_of(comm, (2, 1), (1, 2) if other else (2, 3)),
    "shape": lambda comm, other: cut_of(comm, (2, 1), None, (2, 2, 9, 12 if other else 13)),
    "a second shape": lambda comm, other: [
        cut_of(comm, (2, 1), None),
        cut_of(comm, (2, 1), None, (2, 2, 8, 12 if other else 13)),
    ],
    "repartition": lambda comm, other: cut_of(comm, (2, 1), None).repartition(
        mnpar.SpatialGrid(comm, (1, 2) if other else (2, 1))
    ),
    "a mesh": lambda comm, other: mnpar.Mesh(comm, rows=comm.size).cut(
        IMAGES, rows=(2,) if other else (3,)
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
@pytest.mark.ranks(2, 3)
def test_ranks_that_cut_differently_are_told_of_all_cuts(comm, name):
    with pytest.raises(MismatchError, match="cut an array in different ways") as told:
        OTHERWISE[name](comm, comm.rank > 0)
    text = str(told.value)
    assert text.startswith(f"rank {comm.rank}, divided/test_layout.py:")
    assert [f"rank {rank}: (2, 2, " in text for rank in range(comm.size)] == [True] * comm.size


def test_ranks_agree_once_on_the_cut_of_a_shape():
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 1))
        counts = []
        for shape in (IMAGES.shape, IMAGES.shape, (1, *IMAGES.shape[1:]), IMAGES.shape):
            grid.cut(np.ones(shape))
            counts.append(comm.traffic.collectives)
        return counts

    assert mnpar.run(program, ranks=2) == [[1, 1, 2, 2]] * 2


@pytest.mark.parametrize("axes", [(0, 1), (1, 3), (2, 3)])
def test_gathering_and_cutting_anew_keep_values_and_gradients(axes):
    def program(comm):
        image = mnpar.Variable(IMAGES.copy())
        x = mnpar.divided(image, mnpar.SpatialGrid(comm, (2, 2)), axes)
        y = x.repartition(mnpar.SpatialGrid(comm, (3,)), (2,))
        assert y.part.array.tolist() == IMAGES[y.box.index].tolist()
        whole = (y * y).gather()
        F.sum(whole * whole).backward()
        return whole.array, image.grad

    for whole, gradient in mnpar.run(program, ranks=4):
        np.testing.assert_array_equal(whole, IMAGES**2)
        np.testing.assert_allclose(gradient, 4 * IMAGES**3, rtol=1e-14)


def test_one_rank_sends_what_the_halo_needs_and_no_more():
    def program(comm):
        x = mnpar.SpatialGrid(comm, (2, 1)).cut(IMAGES)
        W = np.ones((1, 2, 3, 3))
        F.convolution_2d(F.relu(x), W, pad=1)
        return comm.traffic.messages, comm.traffic.bytes

    row = IMAGES[:, :, :1].nbytes
    assert mnpar.run(program, ranks=2) == [(1, row), (1, row)]


SCORES = np.random.default_rng(5).standard_normal((2, 3, 5, 4))
CELLS = np.random.default_rng(6).integers(-1, 3, (2, 5, 4))
BINARY = np.random.default_rng(7).integers(-1, 2, (2, 3, 5, 4))
OF_LABELS = {
    "softmax cross entropy": (F.softmax_cross_entropy, CELLS),
    "divided by samples": (lambda x, t: F.softmax_cross_entropy(x, t, normalize=False), CELLS),
    "of each": (lambda x, t: F.sum(F.softmax_cross_entropy(x, t, reduce="no") ** 2), CELLS),
    "weights": (
        lambda x, t: F.softmax_cross_entropy(x, t, class_weight=np.array([1.0, 2.0, 3.0])),
        CELLS,
    ),
    "accuracy": (lambda x, t: F.accuracy(x, t, ignore_label=-1), CELLS),
    "all count": (lambda x, t: F.accuracy(x, t), CELLS),
    "sigmoid cross entropy": (F.sigmoid_cross_entropy, BINARY),
    "binary accuracy": (F.binary_accuracy, BINARY),
}


def from_labels(comm, name, dims, labels_divided):
    call, labels = OF_LABELS[name]
    x = scores = mnpar.Variable(SCORES.copy())
    if dims is not None:
        grid = mnpar.SpatialGrid(comm, dims)
        x = grid.cut(scores)
        labels = grid.cut(labels) if labels_divided else labels
    y = call(x, labels)
    if y.requires_grad:
        y.backward()
    return y.item(), scores.grad


@pytest.mark.parametrize("labels_divided", [False, True])
@pytest.mark.parametrize("dims", [(2, 1), (1, 3), (2, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("name", OF_LABELS)
def test_losses_and_accuracies_of_each_cell_are_those_of_one_process(name, dims, labels_divided):
    value, gradient = from_labels(None, name, None, False)
    ranks = int(np.prod(dims))
    for found in mnpar.run(lambda comm: from_labels(comm, name, dims, labels_divided), ranks):
        assert found[0] == pytest.approx(value, rel=1e-13)
        if gradient is not None:
            np.testing.assert_allclose(found[1], gradient, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("name", OF_LABELS)
def test_classes_along_which_a_grid_has_one_part_are_whole(name):
    call, labels = OF_LABELS[name]
    value, gradient = from_labels(None, name, None, False)

    def program(comm, dims, axes):
        scores = mnpar.Variable(SCORES.copy())
        y = call(mnpar.divided(scores, mnpar.SpatialGrid(comm, dims), axes), labels)
        if y.requires_grad:
            y.backward()
        return y.item(), scores.grad

    for dims, axes in ((2, 1), (0, 1)), ((1, 3), (1, 2)), ((1,), (1,)):
        for found in mnpar.run(lambda comm, d=dims, a=axes: program(comm, d, a), ranks_of(dims)):
            assert found[0] == pytest.approx(value, rel=1e-13)
            if gradient is not None:
                np.testing.assert_allclose(found[1], gradient, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("name", OF_LABELS)
def test_labels_that_are_cut_in_another_way_than_scores_are_refused(name):
    call, labels = OF_LABELS[name]

    def program(comm):
        rows, columns = mnpar.SpatialGrid(comm, (2, 1)), mnpar.SpatialGrid(comm, (1, 2))
        with pytest.raises(LayoutError):
            call(rows.cut(SCORES), columns.cut(labels))
        with pytest.raises(LayoutError):
            call(SCORES, columns.cut(labels))

    mnpar.run(program, ranks=2)


def forgetting(grid, how):
    """Outputs and both gradients of two layers with statistics and dropout, and of a sum."""
    mnpar.random.seed(3)
    normal = mnpar.initializers.Normal(1.0, "d")
    conv, norm = (
        L.Convolution2D(2, 3, 3, pad=1, initialW=normal),
        L.BatchNormalization(3, dtype="d"),
    )
    x = mnpar.Variable(IMAGES[:, :2].astype("d"))

    def layers(h):
        y = F.dropout(F.tanh(norm(conv(h))), 0.4)
        return y, F.sum(y * y)

    y, total = how(layers, x if grid is None else grid.cut(x))
    W = conv.W
    gs = mnpar.grad([F.sum(y**3) + total], [x, W], enable_double_backprop=True)
    mnpar.backward([sum([F.sum(g * g) for g in gs])])
    outputs = y if grid is None else y.gather()
    return outputs.array, total.array, *[g.array for g in gs], x.grad, W.grad, norm.avg_var


@pytest.mark.parametrize("dims", [(2, 1), (2, 2), (1, 3)], ids=str)
def test_what_is_forgotten_on_blocks_has_the_gradients_of_one_process(dims):
    expected = forgetting(None, lambda layers, x: layers(x))
    ranks = int(np.prod(dims))
    program = lambda comm: forgetting(mnpar.SpatialGrid(comm, dims), F.forget)
    for found in mnpar.run(program, ranks=ranks):
        for one, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-9, atol=1e-9)


def test_a_rank_that_forgets_alone_is_told_of_forget():
    def program(comm):
        x = mnpar.SpatialGrid(comm, (2, 1)).cut(IMAGES)
        function = lambda h: F.convolution_2d(h, np.ones((1, 2, 3, 3)), pad=1)
        F.forget(function, x) if comm.rank == 0 else F.sum(function(x))

    with pytest.raises(DeadlockError, match="rank 0: waits in forget"):
        mnpar.run(program, ranks=2)


def test_numpy_makes_no_array_of_a_divided_one():
    def program(comm):
        np.asarray(mnpar.SpatialGrid(comm, (2, 1)).cut(IMAGES))

    with pytest.raises(LayoutError, match=r"this rank has a part of it, x\.part\.array"):
        mnpar.run(program, ranks=2)


def test_statistics_over_ranks_without_blocks_of_theirs_are_refused():
    """Half of the ranks have other images, of which each has a half."""

    def program(comm, *blocks):
        mesh = mnpar.Mesh(comm, data=2, space=(2, 1))
        norm = L.MultiNodeBatchNormalization(2, mesh.data, blocks=comm if blocks else None)
        y = norm(mesh.cut(IMAGES[mesh.data.rank :][:1], space=(2, 3)))
        return y.gather().array

    with pytest.raises(LayoutError, match=r"over the 2 ranks of comm.* blocks=mesh\["):
        mnpar.run(program, ranks=4)
    whole = L.BatchNormalization(2)(IMAGES).array
    for rank, y in enumerate(mnpar.run(program, ranks=4, args=(True,))):
        np.testing.assert_allclose(y, whole[rank // 2 :][:1], rtol=1e-5, atol=1e-5)


def test_a_function_without_a_rule_says_how_one_is_declared():
    program = lambda comm: refused(comm, REFUSED["no rule"])
    for message in mnpar.run(program, ranks=2):
        assert "elementwise = True in the class Unknown" in message
        assert "@mnpar.layout_rule(Unknown)" in message


@pytest.mark.parametrize(
    ("dims", "axes"), [((2, 1), (2, 3)), ((2, 2), (0, 2)), ((1, 3), (2, 3))], ids=str
)
def test_clipping_of_what_works_on_parts_is_that_of_one_process(dims, axes):
    """No link says which ranks have the model: they all have all of its gradients."""

    def learn(cut):
        with mnpar.using_config("dtype", np.dtype("f8")):
            mnpar.random.seed(0)
            model = mnpar.Sequential(
                L.Convolution2D(2, 3, 3, pad=1), F.tanh, L.GroupNormalization(3), L.Linear(None, 4)
            )
            optimizer = mnpar.optimizers.SGD(1.0).setup(model)
            optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(0.1))
            for _ in range(2):
                optimizer.update(lambda: F.sum(model(cut(IMAGES)) ** 2))
            return [p.array for p in model.params()]

    expected = learn(lambda x: x)
    program = lambda comm: learn(lambda x: mnpar.SpatialGrid(comm, dims).cut(x, axes))
    for found in mnpar.run(program, ranks=int(np.prod(dims))):
        for one, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-9, atol=1e-12)
