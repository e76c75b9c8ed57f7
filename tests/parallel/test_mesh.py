"""A mesh: its communicators; and what does not fit together on it, which is reported and never a
wrong number.
"""

import argparse
import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import MismatchError
from mnpar.initializers import initialize_by_path
from mnpar.plans import Box
from tests.harness.mpi import needs_mpich


def check_axes(comm, n):
    """On 2 x n ranks."""
    axes = {"data": 2, "pipe": 1, "model": n}
    mesh = mnpar.Mesh(comm, **axes)
    d, m = divmod(comm.rank, n)
    assert mesh.coordinates == {"data": d, "pipe": 0, "model": m}
    assert [(c.rank, c.size) for c in (mesh.data, mesh.pipe, mesh.model, mesh.space)] == [
        (d, 2),
        (0, 1),
        (m, n),
        (0, 1),
    ]
    assert list(mesh.model.allgather_obj(comm.rank)) == list(range(n * d, n * d + n))
    assert list(mesh.data.allgather_obj(comm.rank)) == [m, m + n]
    assert mesh["data", "model"] is mesh.comm is comm
    assert mesh["model", "space"] is mesh.model
    assert mesh.axes_of(mesh.model) == ("model",)
    assert mesh.axes_of(comm) == ("data", "model")
    assert mesh.rank_at(model=n - 1, data=0) == n - 1
    assert str(mesh) == f"data=2,pipe=1,model={n}"
    assert (
        repr(mesh)
        == f"Mesh(data=2, pipe=1, model={n}; rank {comm.rank} at data {d}, pipe 0, model {m})"
    )
    assert mnpar.Mesh.parse(str(mesh)) == axes


@pytest.mark.ranks(6, on="threads")
def test_an_axis_has_the_ranks_that_differ_on_it_only(comm):
    check_axes(comm, comm.size // 2)


@pytest.mark.ranks(4, on="mpi")  # more would make the pool of all tests as large
def test_an_axis_of_processes_has_the_ranks_that_differ_on_it_only(comm):
    check_axes(comm, 2)


def test_a_grid_of_a_mesh_is_made_once_and_may_hide_halos():
    def program(comm):
        mesh = mnpar.Mesh(comm, space=(2, 1))
        cut = mesh.cut(np.ones((1, 1, 4, 4)), space=(2, 3), hide=True)
        again = mesh.cut(np.ones((1, 1, 4, 4)), space=(2, 3), hide=True)
        return (
            mesh.grid() is mesh.grid(),
            mesh.grid(hide=True) is cut.layout.grid is again.layout.grid,
            (mesh.grid().hide, cut.layout.grid.hide),
        )

    assert mnpar.run(program, ranks=2) == [(True, True, (None, True))] * 2


def test_several_axes_are_one_communicator_and_a_tuple_is_a_grid():
    def program(comm):
        mesh = mnpar.Mesh(comm, data=2, time=-1, space=(2, 1))
        both = mesh["data", "space"]
        return (
            list(both.allgather_obj(comm.rank)),
            mesh.coordinates["space"],
            mesh.grid().block((4, 4)).start,
            (mesh.axes["time"], mesh.time.size, mesh.rank_at(space=(1, 0), time=0)),
            mesh.grid("model", 3).dims,
        )

    assert mnpar.run(program, ranks=8)[5] == ([0, 1, 4, 5], (1, 0), (2, 0), (2, 2, 5), (1, 1, 1))


def test_a_stage_alone_may_ask_for_several_axes():
    """A pipeline makes a layer on the ranks of its stage only, and the layer may want such a
    communicator.
    """

    def program(comm):
        mesh = mnpar.Mesh(comm, data=2, pipe=2, model=2, space=(1, 2))
        asked = mesh["data", "space"] if mesh.pipe.rank == 0 else mesh["data", "model"]
        everyone = mesh["pipe", "data"]
        return asked.allgather_obj(comm.rank), everyone.allgather_obj(comm.rank)

    found = mnpar.run(program, ranks=16)
    assert found[3] == ([2, 3, 10, 11], [3, 7, 11, 15])
    assert found[13] == ([5, 7, 13, 15], [1, 5, 9, 13])


WRONG_SIZES = {
    "a wrong product": (
        {"data": 2, "model": 3},
        ValueError,
        "data=2, model=3 has 6 ranks, but the communicator has 4",
    ),
    "no axes": ({}, ValueError, "no axes has 1 ranks, but the communicator has 4"),
    "what is left is no number": (
        {"data": 3, "model": -1},
        ValueError,
        "3 times 1 that are left open",
    ),
    "two are left open": ({"data": -1, "model": -1}, ValueError, "1 times 2 that are left open"),
    "zero": ({"data": 0}, ValueError, "not data=0"),
    "a method's name": ({"grid": 4}, ValueError, "cannot be called 'grid'"),
    "modle": ({"data": 2, "modle": 2}, ValueError, "'modle': did you mean 'model', which"),
    "pip": ({"data": 2, "pip": 2}, ValueError, "a mesh's axis 'pip': did you mean 'pipe', which"),
    "models": ({"models": 4}, ValueError, "a mesh's axis 'models': did you mean 'model', which"),
}


def test_axes_of_ones_own_have_other_names_and_unknown_ones_are_told():
    comm = mnpar.create_communicator("self")
    mesh = mnpar.Mesh(comm, modes=1, model2=1, data_1=1, tensor=1, member=1)
    assert mesh.modes.size == mesh["tensor"].size == 1
    told = "has no axis 'expret': did you mean 'expert'[?] There are modes, model2, .* more"
    for ask in (
        lambda: mesh["expret"],
        lambda: mesh.rank_at(expret=0),
        lambda: mesh.grid("expret"),
    ):
        with pytest.raises(KeyError, match=told):
            ask()


@pytest.mark.parametrize(("axes", "kind", "message"), WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_sizes_that_do_not_fit_are_refused(axes, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        mnpar.run(lambda comm: mnpar.Mesh(comm, **axes), ranks=4)


def test_ranks_that_make_different_meshes_are_told():
    with pytest.raises(
        mnpar.errors.MismatchError, match=r"rank 0 made data=2 and others \['model=2'\]"
    ):
        mnpar.run(lambda comm: mnpar.Mesh(comm, **{["data", "model"][comm.rank]: 2}), ranks=2)


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(KeyError, match="has no axis 'modle'"):
        mnpar.run(lambda comm: mnpar.Mesh(comm, model=2)["modle"], ranks=2)


@pytest.mark.parametrize(
    "text",
    ["data", "data=0", "data=2,data=2", "=2", "data=2 x", "space=1x-1", "2", "data=-1,model=-1"],
)
def test_a_flag_that_is_no_mesh_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"names and sizes|may be -1"):
        mnpar.Mesh.parse(text)


def test_initial_weights_depend_on_path_and_seed_only():
    def values(model, seed=0):
        mnpar.random.seed(None)
        before = mnpar.random.get_state()
        initialize_by_path(model, seed)
        assert mnpar.random.get_state() == before
        return {path: param.array for path, param in model.namedparams()}

    whole = values(
        mnpar.Chain(
            a=L.Linear(3, 4),
            b=L.BatchNormalization(4),
            c=mnpar.Sequential(L.Linear(4, 4), L.Linear(4, 4)),
        )
    )
    part = values(mnpar.Chain(c=mnpar.Sequential(L.Linear(4, 4), L.Linear(4, 4)), a=L.Linear(3, 4)))
    assert all((whole[path] == array).all() for path, array in part.items())
    assert (whole["/c/0/W"] != whole["/c/1/W"]).any()
    assert (values(mnpar.Chain(a=L.Linear(3, 4)), 1)["/a/W"] != whole["/a/W"]).any()
    assert (whole["/b/gamma"] == 1).all()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_divided_and_lazy_parameters_begin_as_the_whole(ranks):
    whole = initialize_by_path(mnpar.Chain(a=L.Linear(3, 4), b=L.Linear(4, 2)), 7)

    def program(comm):
        mnpar.random.seed(comm.rank)  # does not matter
        grid = mnpar.SpatialGrid(comm, (comm.size,))
        model = mnpar.Chain(
            a=L.ColumnParallelLinear(comm, None, 4),
            b=L.RowParallelLinear(comm, 4, 2),
            c=L.SpatialLinear(grid, None, 2),
        )
        initialize_by_path(model, 7)
        model.b(model.a(np.zeros((1, 3), "f4")))
        model.c(grid.cut(np.zeros((1, 2, 6), "f4")))
        return [L.gather_parameter(comm, p) for p in (model.a.W, model.b.W)], model.c.whole_W()

    for (a, b), c in mnpar.run(program, ranks=ranks):
        np.testing.assert_array_equal(a, whole.a.W.array)
        np.testing.assert_array_equal(b, whole.b.W.array)
        np.testing.assert_array_equal(c, mnpar.run(program, ranks=1)[0][1])


# ---- combinations that are wrong ----


def part(x, comm):
    return x[:, slice(*mnpar.plans.block(x.shape[1], comm.size, comm.rank))]


def plain_normalization_of_a_part(mesh):
    model = mnpar.Chain(norm=L.LayerNormalization(3))
    return model, lambda x: F.reduce_from(
        mesh.model, F.sum(model.norm(F.scatter_to(mesh.model, x, axis=1)) ** 3)
    )


def whole_weights_of_a_part(mesh):
    model = mnpar.Chain(l=L.Linear(3, 3, initialW=np.eye(3)))
    return model, lambda x: F.sum(
        F.gather_from(mesh.model, model.l(F.scatter_to(mesh.model, x, axis=1), 2), axis=1) ** 2
    )


def other_values(mesh):
    model = mnpar.Chain(l=L.Linear(3, 3, initialW=np.full((3, 3), mesh.model.rank + 1.0)))
    return model, lambda x: F.sum(model.l(x, 2))


def a_layer_over_all_ranks(mesh):
    model = mnpar.Chain(l=L.ColumnParallelLinear(mesh.comm, 3, 4))
    return model, lambda x: F.sum(model.l(x, 2))


def a_layer_over_other_ranks(mesh):
    model = mnpar.Chain(l=L.RowParallelLinear(mesh.data, 3, 4))
    return model, lambda x: F.sum(model.l(x, 2))


def a_grid_over_data(mesh):
    grid = mnpar.SpatialGrid(mesh.data, (2,))
    model = mnpar.Chain(l=L.SpatialLinear(grid, 4))
    return model, lambda x: F.sum(
        model.l(mnpar.divided(x[:, :, :2], grid, shape=(*x.shape[:2], 4)))
    )


def statistics_that_nobody_sums(mesh):
    model = mnpar.Chain(norm=L.MultiNodeBatchNormalization(4, mesh.comm))
    return model, lambda x: F.sum(model.norm(x) ** 3)


def boxed(mesh, start, stop, whole=6, path="W"):
    model = mnpar.Chain(l=mnpar.Link())
    setattr(model.l, path, mnpar.Parameter(np.ones(stop - start)))
    param = getattr(model.l, path)
    param.whole = (whole,)
    param.box = Box((start,), (stop,))
    return model, lambda x: F.sum(param)


def a_gap(mesh):
    return boxed(mesh, 4 * mesh.model.rank, 4 * mesh.model.rank + 2)


def an_overlap(mesh):
    return boxed(mesh, 2 * mesh.model.rank, 2 * mesh.model.rank + 4)


def a_part_that_is_missing(mesh):
    return (
        boxed(mesh, 0, 6, path=f"W{mesh.model.rank}")
        if mesh.data.rank
        else boxed(mesh, 0, 6, path="W0")
    )


def other_shapes(mesh):
    model = mnpar.Chain(l=L.Linear(3, 3 + mesh.model.rank))
    return model, lambda x: F.sum(model.l(x, 2))


def whole_here_and_a_part_there(mesh):
    return boxed(mesh, 0, 6) if mesh.model.rank else boxed(mesh, 0, 3)


def attention_whose_shares_nobody_sums(mesh):
    model = mnpar.Chain(
        l=L.MultiHeadAttention(1, 3, sequence_comm=mesh.model, whole_gradients=False)
    )
    return model, lambda x: F.sum(model.l(x))


def attention_over_the_samples_of_others(mesh):
    model = mnpar.Chain(l=L.MultiHeadAttention(1, 3, sequence_comm=mesh.data))
    return model, lambda x: F.sum(model.l(x))


COMBINATIONS = {
    plain_normalization_of_a_part: (
        r"of /norm/gamma are not the same on ranks \[[02], [13]\] .*along 'model'.*copy_to"
    ),
    whole_weights_of_a_part: (
        r"the gradients of /l/W are not the same on ranks \[[02], [13]\] of data=2,model=2"
    ),
    other_values: (
        r"/l/W is not the same on ranks \[0, 1\] of data=2,model=2, which differ along 'model'"
    ),
    a_layer_over_all_ranks: r"/l, ColumnParallelLinear: it is divided among ranks along \['data'\]",
    a_layer_over_other_ranks: r"/l, RowParallelLinear: it is divided among ranks along \['data'\]",
    a_grid_over_data: r"/l, SpatialLinear: it is divided among ranks along \['data'\]",
    statistics_that_nobody_sums: (
        r"MultiNodeBatchNormalization: it is over ranks along \['model'\], .*along \['data'\]"
    ),
    attention_whose_shares_nobody_sums: (
        r"MultiHeadAttention: it is over ranks along \['model'\], .*along \['data'\]"
    ),
    attention_over_the_samples_of_others: (
        r"MultiHeadAttention: it is divided among ranks along \['data'\]"
    ),
    a_gap: r"/l/W: its parts have 4 of the 6 cells",
    an_overlap: r"/l/W: the parts \[0:4\] and \[2:6\] overlap",
    a_part_that_is_missing: r"the parameters of ranks 0 and 1 differ: only rank 1 has",
    other_shapes: r"/l/W is \(3, 3\) float64 on rank 0 and \(4, 3\) float64 on rank 1",
    whole_here_and_a_part_there: r"/l/W: the parts \[0:3\] and \[0:6\] overlap",
}


def update(comm, combination):
    with mnpar.using_config("dtype", np.dtype("f8")):
        mesh = mnpar.Mesh(comm, data=2, model=2)
        mnpar.random.seed(0)
        model, lossfun = combination(mesh)
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), mesh).setup(model)
        optimizer.update(lossfun, np.random.default_rng(mesh.data.rank).normal(size=(2, 4, 3)))


@pytest.mark.parametrize(
    ("combination", "message"), COMBINATIONS.items(), ids=[c.__name__ for c in COMBINATIONS]
)
def test_a_wrong_combination_is_an_error(combination, message):
    with pytest.raises(MismatchError, match=message):
        mnpar.run(update, ranks=4, args=(combination,))


def test_a_weight_in_two_stages_has_to_be_shared():
    def program(comm, tied):
        mesh = mnpar.Mesh(comm, pipe=2)
        stages = [L.Linear(3, 3), L.Classifier(mnpar.Sequential(L.Linear(3, 3)))]
        link = mnpar.Chain(l=stages[0]) if comm.rank == 0 else stages[1]
        if comm.rank:
            link.l = stages[1].predictor[0]  # the same path
        initialize_by_path(link, 0)
        stage = stages[comm.rank]
        pipeline = mnpar.Pipeline(
            comm, stage, shared={"W": link.l.W, "b": link.l.b} if tied else None
        )
        model = mnpar.Chain(l=link.l, pipeline=pipeline)
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), mesh).setup(model)
        optimizer.update(pipeline, np.ones((2, 3), "f4") if comm.rank == 0 else np.array([0, 1]))
        return link.l.W.array

    a, b = mnpar.run(program, ranks=2, args=(True,))
    np.testing.assert_array_equal(a, b)
    with pytest.raises(
        MismatchError, match=r"/l/W is on ranks \[0, 1\] of pipe=2, in several stages along 'pipe'"
    ):
        mnpar.run(program, ranks=2, args=(False,))


@pytest.mark.usefixtures("debug_off")
def test_values_that_drift_apart_are_found_when_they_are_looked_at():
    def program(comm):
        mesh = mnpar.Mesh(comm, model=2)
        model = L.Linear(3, 2, initialW=1)
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), mesh, check=3).setup(
            model
        )
        for i in range(5):
            optimizer.update(lambda: F.sum(model(np.ones((1, 3), "f4"))))
            model.W.array[...] += 0.1 * comm.rank * (i > 1)
            yield i

    updates = []
    with pytest.raises(MismatchError, match=r"update 4: the values of /W .*drifted apart"):
        mnpar.run(lambda comm: updates.extend(program(comm)), ranks=2)
    assert max(updates) == 2


def test_copies_stay_the_same_to_the_last_bit_where_norms_are_summed_over_pieces_of_uneven_models():
    """The ranks of ``model`` have 9 and 6 numbers of one weight, so their pieces of the other one
    end elsewhere.
    """

    def program(comm):
        mesh = mnpar.Mesh(comm, model=2, data=2)
        mnpar.random.seed(0)
        model = mnpar.Sequential(L.ColumnParallelLinear(mesh.model, 3, 5), F.tanh, L.Linear(5, 7))
        optimizer = mnpar.optimizers.LAMB(0.1)
        optimizer = mnpar.create_multi_node_optimizer(optimizer, mesh, sharded=True, check=1).setup(
            model
        )
        x = np.random.default_rng(mesh.data.rank).standard_normal((4, 3)).astype("f4")
        for _ in range(8):
            optimizer.update(lambda: F.mean(F.sin(model(x))))
        return model[2].W.array.tobytes()

    with mnpar.using_config("dtype", np.dtype("f8")):
        assert len(set(mnpar.run(program, ranks=4))) == 1


@pytest.mark.parametrize("rule", ["LAMB", "LARS"])
def test_weights_that_stages_share_stay_the_same_to_the_last_bit_where_norms_are_summed_over_pieces(
    rule,
):
    """The first and the last stage have other weights besides, so their pieces of the shared one
    end elsewhere.
    """
    layers = {"a": (7, 7), "b": (7, 5), "c": (5, 7), "d": (7, 7)}
    layers = {name: lambda n=n, m=m: L.Linear(n, m) for name, (n, m) in layers.items()}
    layers["loss"] = lambda: lambda y, t: F.mean(F.sin(y - t))

    def program(comm):
        mesh = mnpar.Mesh(comm, pipe=3, data=2)
        pipeline = mnpar.Pipeline.of(
            mesh.pipe, layers, micro_batches=2, tied={"/d/W": "/a/W"}, sizes=[2, 1, 2]
        )
        model = initialize_by_path(pipeline, seed=3)
        optimizer = mnpar.optimizers.SGD(0.1) if rule == "LARS" else mnpar.optimizers.LAMB(0.1)
        mnpar.create_multi_node_optimizer(optimizer, mesh, sharded=True).setup(model)
        if rule == "LARS":
            optimizer.add_hook(mnpar.optimizer_hooks.GradientLARS(0.1))
        rng = np.random.default_rng(mesh.data.rank)
        for _ in range(8):
            optimizer.update(model, *rng.standard_normal((2, 4, 7)))
        return [param.array.tobytes() for path, param in model.namedparams() if path == "/a/W"]

    with mnpar.using_config("dtype", np.dtype("f8")):
        found = [values for some in mnpar.run(program, ranks=6) for values in some]
    assert len(found) == 4
    assert len(set(found)) == 1


def shared_by_stages(comm, rule, sharded=True, **axes):
    """An optimizer of a pipeline of two stages that share a weight, the weight on this rank, and a
    batch.
    """
    mesh = mnpar.Mesh(comm, pipe=2, **axes)
    layers = {
        "a": lambda: L.Linear(4, 4),
        "b": lambda: L.Linear(4, 3),
        "c": lambda: L.Linear(3, 4),
        "d": lambda: L.Linear(4, 4),
    }
    layers["loss"] = lambda: lambda y, t: F.mean(F.sin(y - t))
    pipeline = mnpar.Pipeline.of(mesh.pipe, layers, tied={"/d/W": "/a/W"}, sizes=[2, 3])
    model = initialize_by_path(pipeline, seed=3)
    optimizer = mnpar.create_multi_node_optimizer(rule, mesh, sharded=sharded).setup(model)
    return (
        mesh,
        optimizer,
        pipeline.tied[0],
        np.random.default_rng(mesh.data.rank).standard_normal((2, 4, 4)).astype("f4"),
    )


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("rule", [mnpar.optimizers.LAMB, mnpar.optimizers.Adam])
def test_a_shared_weight_that_is_disabled_in_one_stage_is_told_and_nobody_waits_for_it(
    rule,
):
    steps = []

    def program(comm):
        mesh, optimizer, weight, batch = shared_by_stages(comm, rule())
        for i in range(10):
            weight.update_rule.enabled = i < 5 or mesh.pipe.rank == 1
            optimizer.update(optimizer.target, *batch)
            steps.append(i)

    message = (
        r"update 9: /a/W is one parameter of pipe=2, and rank 1 updates it, but on rank 0 its "
        r"update is disabled"
    )
    with pytest.raises(MismatchError, match=message):
        mnpar.run(program, ranks=2)
    assert max(steps) == 7


def test_a_weight_that_stages_share_is_sent_only_where_norms_of_its_pieces_were_summed():
    def program(comm, rule):
        _, optimizer, _, batch = shared_by_stages(comm, rule())
        collectives = []
        for _ in range(7):
            before = optimizer.target._tied[0][0].traffic.collectives
            optimizer.update(optimizer.target, *batch)
            collectives.append(optimizer.target._tied[0][0].traffic.collectives - before)
        return collectives[5:]

    rules = mnpar.optimizers.Adam, mnpar.optimizers.LAMB
    elementwise, by_norms = (
        mnpar.run(lambda comm, rule=rule: program(comm, rule), ranks=2) for rule in rules
    )
    # the sum of the gradients; and the values
    assert (elementwise, by_norms) == (
        [[1, 1]] * 2,
        [[2, 2]] * 2,
    )


@pytest.mark.parametrize("sharded", [False, True])
def test_a_weight_that_is_disabled_on_one_of_the_ranks_with_other_samples_is_told(sharded):
    def program(comm):
        mesh, optimizer, weight, batch = shared_by_stages(
            comm, mnpar.optimizers.LAMB(), sharded, data=2
        )
        for i in range(5):
            weight.update_rule.enabled = i < 3 or mesh.data.rank == 1
            optimizer.update(optimizer.target, *batch)

    with pytest.raises(MismatchError, match=r"update: disabled, not set"):
        mnpar.run(program, ranks=4)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.ranks(2, on="threads")
def test_gradients_that_are_not_finite_are_not_what_is_looked_for(comm, value):
    model = L.Linear(3, 2, initialW=1, nobias=True)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.0), mnpar.Mesh(comm, model=2)
    ).setup(model)
    optimizer.loss_scaling(scale=2.0)
    optimizer.update(lambda: F.sum(model.W) * value)
    assert optimizer.t == 0


@pytest.mark.parametrize("axes", [{"data": 2}, {"data": 2, "model": 2}], ids=str)
def test_copies_along_the_data_axis_that_drift_apart_are_told(axes):
    def program(comm):
        mesh = mnpar.Mesh(comm, **axes)
        model = L.Linear(3, 2, initialW=1)
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), mesh, check=3).setup(
            model
        )
        for i in range(4):
            optimizer.update(lambda: F.sum(model(np.ones((1, 3), "f4"))))
            model.W.array[...] += 0.1 * (mesh.data.rank == 1) * (i > 1)

    with pytest.raises(
        MismatchError,
        match=r"update 4: the values of /W are not the same on ranks \[0, 1\].*drifted apart",
    ):
        mnpar.run(program, ranks=int(np.prod(list(axes.values()))))


@pytest.mark.ranks(2, 3)
def test_on_a_mesh_whose_ranks_all_have_whole_copies_updates_meet_with_their_gradients(comm):
    steps = [
        np.random.default_rng(step).standard_normal((2 * comm.size - (step == 3), 3))
        for step in range(6)
    ]

    def train(mesh, rank):
        with mnpar.using_config("dtype", np.float64):
            model = L.Linear(None, 2, initialW=1)
            optimizer = mnpar.optimizers.MomentumSGD(0.1)
            if mesh is not None:
                mnpar.create_multi_node_optimizer(optimizer, mesh)
            optimizer.setup(model)
            for x in steps:
                optimizer.update(
                    lambda x: F.mean(model(x) ** 2), x[2 * rank :][:2] if mesh is not None else x
                )
        return model, optimizer

    mesh = mnpar.Mesh(comm, data=comm.size, model=1)
    model, optimizer = train(mesh, comm.rank)
    twin, _ = train(None, 0)
    np.testing.assert_allclose(model.W.array, twin.W.array, rtol=1e-12)
    model.W = mnpar.Parameter(np.full((2, 3), comm.rank + 1.0))  # another one: all get rank 0's
    optimizer.update(lambda x: F.mean(model(x) ** 2), steps[0][2 * comm.rank :][:2])
    for values in comm.allgather(model.W.array):
        np.testing.assert_array_equal(values, model.W.array)


@needs_mpich
@pytest.mark.ranks(4, on="mpi")
def test_many_gradients_of_a_divided_model_are_summed_where_they_live(comm):
    def train(comm, **axes):
        mesh = mnpar.Mesh(comm, **axes)
        with mnpar.using_config("dtype", np.dtype("f8")):
            model = mnpar.Chain(
                a=L.ColumnParallelLinear(mesh.model, 60, 200),
                b=L.RowParallelLinear(mesh.model, 200, 60),
            )
            initialize_by_path(model, 7)
        rule = mnpar.optimizers.MomentumSGD(0.1)
        optimizer = mnpar.create_multi_node_optimizer(rule, mesh).setup(model)
        for step in range(4):
            x = np.random.default_rng(step).standard_normal((5, 60))
            mine = x[3 * mesh.data.rank :][:3] if mesh.data.size > 1 else x  # 3 samples and 2
            optimizer.update(lambda x: F.mean(model.b(F.tanh(model.a(x))) ** 2), mine)
        return mesh, model, optimizer

    mesh, model, optimizer = train(comm, data=2, model=2)
    _, twin, _ = train(mnpar.create_communicator("self"), data=1, model=1)
    shared = optimizer.sync.reducer.buckets[0].shared
    assert shared is not None
    assert np.shares_memory(model.a.W.grad, shared.mine)
    half = slice(100 * mesh.model.rank, 100 * mesh.model.rank + 100)
    np.testing.assert_allclose(model.a.W.array, twin.a.W.array[half], rtol=1e-10)
    np.testing.assert_allclose(model.b.W.array, twin.b.W.array[:, half], rtol=1e-10)


def test_clipping_by_a_communicator_beside_a_mesh_is_refused():
    def program(comm):
        model = L.Linear(3, 2, initialW=1)
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(), mnpar.Mesh(comm, model=2)
        ).setup(model)
        optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(1.0, comm))
        optimizer.update(lambda: F.sum(model(np.ones((1, 3), "f4"))))

    with pytest.raises(ValueError, match="needs no comm where the optimizer has a mesh"):
        mnpar.run(program, ranks=2)


def test_right_combinations_of_batch_statistics_pass():
    """Over data alone, and over data and a grid, whose ranks get the whole gradient."""

    def program(comm):
        mesh = mnpar.Mesh(comm, data=2, space=(2,))
        model = mnpar.Chain(
            a=L.MultiNodeBatchNormalization(3, mesh.data, blocks=comm),
            b=L.MultiNodeBatchNormalization(3, mesh.data),
        )
        x = np.random.default_rng(comm.rank).normal(size=(2, 3, 2))

        def loss():
            y = model.a(mnpar.divided(x, mesh.grid(), shape=(2, 3, 4))) ** 3
            return F.sum(model.b(F.average(y, axis=2)) ** 3)

        mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), mesh, reduce="sum").setup(
            model
        ).update(loss)
        return model.a.gamma.array.tolist()

    first, *others = mnpar.run(program, ranks=4)
    assert others == [first] * 3


def test_what_a_parameter_is_on_each_axis_can_be_asked():
    def program(comm):
        mesh = mnpar.Mesh(comm, data=2, pipe=2, model=2)
        layers = {
            "a": lambda: L.ColumnParallelLinear(mesh.model, 3, 4),
            "b": lambda: L.Classifier(L.Linear(4, 3)),
        }
        placement = mnpar.parallel.Placement(mesh)
        placement.settle(initialize_by_path(mnpar.Pipeline.of(mesh.pipe, layers), 0))
        return placement.kinds

    kinds = mnpar.run(program, ranks=8)[3]
    assert kinds["/a/W"] == {"data": "replicated", "pipe": "some", "model": "divided"}
    assert kinds["/b/predictor/b"] == {"data": "replicated", "pipe": "some", "model": "replicated"}


def test_lazy_parameters_that_begin_alike_lose_no_step():
    """In the first forward, which communicates: it need not run again, as there is nothing to be
    made equal.
    """
    x = np.random.default_rng(0).normal(size=(6, 3))

    def program(comm, axes):
        with mnpar.using_config("dtype", np.dtype("f8")):
            mesh = mnpar.Mesh(comm, **axes)
            model = mnpar.Chain(a=L.ColumnParallelLinear(mesh.model, None, 4), b=L.Linear(None, 2))
            initialize_by_path(model, 0)
            optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), mesh).setup(
                model
            )
            for _ in range(2):
                mine = x[slice(*mnpar.plans.block(6, mesh.data.size, mesh.data.rank))]
                optimizer.update(lambda x: F.mean(model.b(F.tanh(model.a(x))) ** 2), mine)
            return optimizer.t, [L.gather_parameter(mesh.model, p) for p in model.params()]

    ((_, expected),) = mnpar.run(program, ranks=1, args=({},))
    for t, found in mnpar.run(program, ranks=4, args=({"data": 2, "model": 2},)):
        assert t == 2
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_gradients_that_are_added_up_and_ranks_that_join_early():
    """``no_sync`` and ``join`` with ranks that have a layer together: the weights of one process
    with all samples.
    """
    x = np.random.default_rng(0).normal(size=(10, 3))

    def program(comm, axes):
        with mnpar.using_config("dtype", np.dtype("f8")):
            mesh = mnpar.Mesh(comm, **axes)
            model = initialize_by_path(
                mnpar.Chain(a=L.ColumnParallelLinear(mesh.model, 3, 4), b=L.Linear(4, 2)), 0
            )
            optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), mesh).setup(
                model
            )

            def loss(x):
                return F.mean(model.b(F.tanh(model.a(x))) ** 2)

            parts = (
                [x[:6], x[6:]]
                if mesh.data.size == 1
                else [[x[:4], x[6:]], [x[4:6]]][mesh.data.rank]
            )
            with optimizer.no_sync():
                optimizer.update(loss, parts[0][:1])
            optimizer.update(loss, parts[0][1:])
            for part in parts[1:]:
                optimizer.update(loss, part)
            optimizer.join()
            return [L.gather_parameter(mesh.model, p) for p in model.params()]

    (expected,) = mnpar.run(program, ranks=1, args=({},))
    for found in mnpar.run(program, ranks=4, args=({"data": 2, "model": 2},)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.ranks(2, 4, on="threads")
@pytest.mark.parametrize("check", [1, 3])
def test_buckets_of_a_mesh_are_stepped_as_they_arrive_but_where_gradients_are_compared(
    comm, check, monkeypatch
):
    def train(**options):
        mesh = mnpar.Mesh(comm, data=2, model=comm.size // 2)
        model = mnpar.Chain(
            a=L.ColumnParallelLinear(mesh.model, 3, 4), b=L.RowParallelLinear(mesh.model, 4, 2)
        )
        for param in initialize_by_path(model, 7).params():
            param.array = param.array.astype("f8")
        rule = mnpar.optimizers.MomentumSGD(0.1)
        optimizer = mnpar.create_multi_node_optimizer(rule, mesh, check=check, **options).setup(
            model
        )
        pieces, change = [], optimizer._change_by
        monkeypatch.setattr(
            optimizer, "_change_by", lambda given: pieces.append(optimizer.t) or change(given)
        )
        for step in range(5):
            n = 1 + (step + mesh.data.rank) % 3  # of samples
            x = np.random.default_rng([step, mesh.data.rank]).standard_normal((n, 3))
            optimizer.update(lambda x: F.mean(model.b(F.tanh(model.a(x))) ** 2), x)
        return [param.array for param in model.params()], pieces

    (whole, none), (found, pieces) = train(bucket_bytes=None), train(bucket_bytes=32)
    for a, b in zip(whole, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert (none, pieces) == ([], [4] if check == 3 else [])  # after 0, 1, 2 and 3 they are


def test_a_notebook_shows_the_ranks_at_their_places():
    page = mnpar.run(lambda comm: mnpar.Mesh(comm, data=2, model=3)._repr_html_(), 6)[4]
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    words = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows]
    assert words == [
        ["", "model 0", "model 1", "model 2"],
        ["data 0", "rank 0", "rank 1", "rank 2"],
        ["data 1", "rank 3", "<b>rank 4</b>", "rank 5"],
    ]
    assert "<b>rank 0</b>" in mnpar.Mesh(mnpar.create_communicator("self"))._repr_html_()
