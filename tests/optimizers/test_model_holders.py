"""Norms, clipping, noise and loss scales of models that several ranks hold together: as of one
process, without being told which ranks hold what.
"""

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import optimizers
from mnpar.errors import MismatchError
from mnpar.initializers import initialize_by_path
from mnpar.optimizers import hooks
from tests.parallel.mesh_models import check_pieces, pieces

RNG = np.random.default_rng(0)
# samples, features, classes
N, D, K = 4, 6, 3
X = RNG.standard_normal((N, D))
T = np.array([0, 2, 1, 2])
IMAGE = RNG.standard_normal((2, 2, 5, 4))
WORDS = np.array([[0, 3, 1], [2, 4, 0]])


def pipeline(comm, tied=None):
    layers = {
        "one": lambda: L.Linear(D, D),
        "tanh": lambda: F.tanh,
        "two": lambda: L.Linear(D, D),
        "sin": lambda: F.sin,
        "three": lambda: L.Linear(D, D),
        "last": lambda: L.Classifier(L.Linear(D, K)),
    }
    model = mnpar.Pipeline.of(comm, layers, micro_batches=2, tied=tied)
    return model, lambda: model(X, T)


def tied(comm):
    return pipeline(comm, {"/three/W": "/one/W"})


def divided(comm):
    model = mnpar.Chain(inside=Divided(comm), scale=L.Scale(W_shape=(K,)))
    return model, lambda: loss(model.scale(model.inside(X)))


def loss(y):
    return F.softmax_cross_entropy(y, T[: len(y)])


def vocabulary(comm):
    model = mnpar.Chain(
        words=L.VocabularyParallelEmbedID(comm, 5, D),
        norm=L.LayerNormalization(D),
        attend=L.MultiHeadAttention(2, D, comm),
    )
    return model, lambda: F.mean(model.attend(model.norm(model.words(WORDS))) ** 3)


def filters(comm):
    model = mnpar.Chain(
        wide=L.FilterParallelConvolution2D(comm, 2, 5, 3, gather_output=False),
        out=L.ChannelParallelConvolution2D(comm, 5, 2, 1, input_is_parallel=True),
        norm=L.GroupNormalization(1, 2),
    )
    return model, lambda: F.mean(model.norm(model.out(F.tanh(model.wide(IMAGE)))) ** 3)


def space(comm):
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))
    model = mnpar.Chain(
        conv=L.Convolution2D(2, 3, 3, pad=1),
        norm=L.BatchNormalization(3),
        local=L.SpatialLocalConvolution2D(grid, 3, 2, (5, 4), 1),
        out=L.SpatialLinear(grid, (2, 5, 4), K),
    )

    def forward():
        y = model.norm(model.conv(grid.cut(IMAGE)))
        return loss(model.out(model.local(F.tanh(y))))

    return model, forward


def experts(comm):
    model = mnpar.Chain(
        first=L.Linear(D, D),
        moe=L.MixtureOfExperts(comm, lambda i: L.Linear(D, D), 3, D),
        out=L.Linear(D, K),
    )
    return model, lambda: loss(model.out(model.moe(F.tanh(model.first(X)))))


def ensemble(comm):
    model = mnpar.Chain(
        first=L.Linear(D, D),
        members=mnpar.Ensemble(comm, lambda group, i: L.Linear(D, K), 4),
    )
    return model, lambda: loss(model.members(F.copy_to(comm, F.tanh(model.first(X)))))


class Divided(mnpar.Chain):
    def __init__(self, comm):
        super().__init__()
        self.wide = L.ColumnParallelLinear(comm, D, 5, gather_output=False)
        self.out = L.RowParallelLinear(comm, 5, K, input_is_parallel=True)

    def forward(self, x):
        return self.out(F.tanh(self.wide(x)))


def divided_members(comm):
    """Two members, each divided among two ranks."""
    model = mnpar.Ensemble(comm, lambda group, i: Divided(group), 2)
    return model, lambda: loss(model(X))


def grid_of(comm):
    """Columns of two ranks, rows of the others."""
    width = min(comm.size, 2)
    return (
        comm.split(comm.rank // width, comm.rank),
        comm.split(comm.rank % width, comm.rank),
    )


def divided_stages(comm):
    inner, outer = grid_of(comm)
    layers = {
        "wide": lambda: L.ColumnParallelLinear(inner, D, 5, gather_output=False),
        "tanh": lambda: F.tanh,
        "out": lambda: L.RowParallelLinear(inner, 5, D, input_is_parallel=True),
        "last": lambda: L.Classifier(L.Linear(D, K)),
    }
    model = mnpar.Pipeline.of(outer, layers, micro_batches=2)
    return model, lambda: model(X, T)


def divided_and_experts(comm):
    """The experts are on all ranks, the parts on two."""
    inner, _ = grid_of(comm)
    model = mnpar.Chain(
        wide=L.ColumnParallelLinear(inner, D, D),
        moe=L.MixtureOfExperts(comm, lambda i: L.Linear(D, D), 3, D),
        out=L.RowParallelLinear(inner, D, K),
    )
    return model, lambda: loss(model.out(model.moe(F.tanh(model.wide(X)))))


def copies_of_parts(comm):
    return divided(grid_of(comm)[0])


def copies_of_stages(comm):
    return pipeline(grid_of(comm)[0])


def copies_of_tied_stages(comm):
    return tied(grid_of(comm)[0])


MODELS = {
    pipeline: (2, 3, 4),
    tied: (2, 3, 4),
    divided: (2, 3, 4),
    vocabulary: (2, 3),
    filters: (2, 3),
    space: (2, 3),
    experts: (2, 3, 4),
    ensemble: (2, 4),
    divided_members: (2, 4),
    divided_stages: (4,),
    divided_and_experts: (2, 4),
    copies_of_parts: (4,),
}
SGD = functools.partial(optimizers.SGD, 0.5)
WHOLE = {
    "clipping": (SGD, lambda comm: hooks.GradientClipping(0.05)),
    "LARS": (SGD, lambda comm: hooks.GradientLARS(weight_decay=0.01)),
    "noise": (SGD, lambda comm: hooks.GradientNoise(0.3, comm=None if comm.size > 1 else comm)),
    "LAMB": (lambda: optimizers.LAMB(0.01), None),
    "Novograd": (optimizers.Novograd, None),
    "LAMB with momentum": (lambda: optimizers.apply_momentum(optimizers.LAMB(0.01)), None),
}


def train(comm, build, rule, sharded=None):
    """Two updates; the weights."""
    with mnpar.using_config("dtype", np.dtype("f8")):
        mnpar.random.seed(0)
        model, lossfun = build(comm)
        initialize_by_path(model, 1)
        make, hook = WHOLE[rule]
        optimizer = make()
        if sharded is not None:
            optimizer = mnpar.create_multi_node_optimizer(
                optimizer, grid_of(comm)[1], sharded=sharded
            )
        optimizer.setup(model)
        mnpar.random.seed(0)
        if hook is not None:
            optimizer.add_hook(hook(comm))
        for _ in range(2):
            optimizer.update(lossfun)
        return pieces(model, "array")


@functools.cache
def alone(build, rule):
    ((weights),) = mnpar.run(train, ranks=1, args=(build, rule))
    return {path: array for path, _, _, array in weights}


@pytest.mark.parametrize("rule", WHOLE)
@pytest.mark.parametrize(
    ("build", "ranks"),
    [
        pytest.param(build, ranks, id=f"{build.__name__}-{ranks}")
        for build, sizes in MODELS.items()
        for ranks in sizes
    ],
)
def test_what_looks_at_a_whole_model_is_that_of_one_process(build, ranks, rule):
    check_pieces(mnpar.run(train, ranks=ranks, args=(build, rule)), alone(build, rule), 1e-9)


@pytest.mark.parametrize("rule", WHOLE)
@pytest.mark.parametrize("sharded", [False, True], ids=["copies", "in shards"])
@pytest.mark.parametrize("build", [copies_of_parts, copies_of_stages, copies_of_tied_stages])
def test_copies_of_a_model_on_several_ranks_are_that_of_one_process(build, sharded, rule):
    found = mnpar.run(train, ranks=4, args=(build, rule, sharded))
    check_pieces(found, alone(build, rule), 1e-9)


# ---- stages, whose paths are those of other parameters elsewhere ----


def chain_list(comm):
    """Each rank's part is under the same path, and has the same sizes and values."""
    model = mnpar.MultiNodeChainList(comm)
    before, behind = comm.rank - 1, comm.rank + 1
    model.add_link(
        L.Linear(D, D, initialW=0.1),
        rank_in=before if before >= 0 else None,
        rank_out=behind if behind < comm.size else None,
    )
    ends = {0: (X,)}.get(comm.rank, ())

    def forward():
        y = model(*ends)
        return F.mean(F.tanh(y)) if behind == comm.size else y

    return model, forward


def plain_stages(comm):
    last = comm.rank == comm.size - 1
    stage = L.Classifier(L.Linear(D, K)) if last else L.Linear(D, D)
    model = mnpar.Pipeline(comm, stage, micro_batches=2)
    arguments = [X] * (comm.rank == 0) + [T] * last
    return model, lambda: model(*arguments)


def recurrent(comm):
    """Each rank has other layers beside the recurrent ones."""
    ends = {"rank_in": comm.rank - 1 if comm.rank else None}
    ends["rank_out"] = comm.rank + 1 if comm.rank < comm.size - 1 else None
    model = mnpar.Chain(
        embed=L.EmbedID(5, D, initialW=0.5),
        rnn=L.create_multi_node_n_step_rnn(L.NStepGRU(1, D, D, 0.0), comm, **ends),
    )

    def forward():
        h, _, _ = model.rnn([model.embed(row) for row in WORDS])
        return F.sum(h) if ends["rank_out"] is None else None

    return model, forward


STAGES = [chain_list, plain_stages, recurrent]
SQUARE = lambda param: float((param.grad**2).sum())


@pytest.mark.parametrize("build", STAGES, ids=[build.__name__ for build in STAGES])
@pytest.mark.ranks(2, 3)
def test_parameters_of_stages_count_each(comm, build, float64):
    model, lossfun = build(comm)
    sums = []
    optimizer = optimizers.SGD(0.0).setup(model)
    hook = lambda opt: sums.append((opt.sum_over_model(SQUARE), opt.sum_over_model(lambda p: 1)))
    optimizer.add_hook(hook, "sums")
    optimizer.update(lossfun)
    mine = sum(map(SQUARE, model.params()))
    counts = comm.allreduce_obj(len([*model.params()]))
    np.testing.assert_allclose(sums, [(comm.allreduce_obj(mine), counts)])


@pytest.mark.ranks(2, 3, on="threads")
def test_new_parameters_on_one_rank_count_from_then_on(comm, float64):
    model, lossfun = chain_list(comm)
    counts = []
    optimizer = optimizers.SGD(0.0).setup(model)
    optimizer.add_hook(lambda opt: counts.append(opt.sum_over_model(lambda p: 1.0)), "count")
    for rank in (None, 1, None, 0):
        if comm.rank == rank:
            model[0].more = mnpar.Parameter(np.ones(3))
        optimizer.update(lossfun)
    assert counts == [2 * comm.size + more for more in (0, 1, 1, 2)]


# ---- loss scales ----


def forced(model):
    """The gradient of the first parameter overflows."""
    param = next(model.params())
    return param.register_hook(lambda node: node.gradient.fill(np.inf), after=True)


@pytest.mark.parametrize(
    "build",
    [pipeline, tied, divided, experts, ensemble, divided_stages, *STAGES],
    ids=lambda build: build.__name__,
)
@pytest.mark.ranks(2, 4, on="threads")
def test_one_rank_that_overflows_lets_all_skip_the_step(comm, build, float64):
    mnpar.random.seed(0)
    model, lossfun = build(comm)
    optimizer = optimizers.SGD(0.1).setup(model)
    optimizer.loss_scaling(interval=2)
    scales = []
    for bad in (None, None, comm.size - 1, None, None, None):
        before = [param.array.copy() for param in model.params()]
        remove = forced(model) if bad == comm.rank else lambda: None
        optimizer.update(lossfun)
        remove()
        same = [(p.array == b).all() for p, b in zip(model.params(), before, strict=True)]
        assert all(same) if bad is not None else not all(same)
        scales.append(optimizer.loss_scale)
    assert scales == [2, 4, 2, 2, 4, 4]
    assert optimizer.t == 5


@pytest.mark.usefixtures("debug_off")
@pytest.mark.ranks(2)
def test_halves_that_overflow_on_one_stage_alone_leave_scales_alike(comm):
    """The gradient of the last stage's weights overflows before that of the others does."""
    with mnpar.using_config("dtype", mnpar.mixed16), np.errstate(over="ignore", invalid="ignore"):
        model, _ = plain_stages(comm)
        optimizer = optimizers.SGD(0.0).setup(model)
        optimizer.use_fp32_update()
        optimizer.loss_scaling()
        scales = []
        first = [100 * X.astype("f2")] * (comm.rank == 0) + [T] * (comm.rank == 1)
        if comm.rank:
            model[0].predictor.W.array[...] *= 0.1
        for _ in range(20):
            optimizer.update(lambda: model(*first))
            scales.append(optimizer.loss_scale)
    assert len({*map(tuple, comm.allgather_obj(scales))}) == 1
    assert optimizer.t < 20


def test_other_scales_on_one_rank_are_told():
    def program(comm):
        model, lossfun = chain_list(comm)
        optimizer = optimizers.SGD(0.1).setup(model)
        optimizer.loss_scaling(scale=2.0**comm.rank)
        optimizer.update(lossfun)

    with (
        mnpar.using_config("dtype", np.dtype("f8")),
        pytest.raises(MismatchError, match="ranks multiply their losses by different scales"),
    ):
        mnpar.run(program, ranks=2)


# ---- what no link knows ----


def by_hand(comm):
    """Two stages that send and receive by hand."""
    model = mnpar.Chain(layer=L.Linear(D, D, initialW=0.1 + comm.rank))
    if comm.rank == 0:
        return model, lambda: F.send(model.layer(X), comm, 1)
    return model, lambda: F.mean(F.tanh(model.layer(F.recv(comm, 0))))


KNOWS_NOT = {
    "clipping": lambda optimizer, comm: optimizer.add_hook(hooks.GradientClipping(1.0, comm)),
    "loss_scaling": lambda optimizer, comm: optimizer.loss_scaling(comm=comm),
}


@pytest.mark.parametrize("add", KNOWS_NOT.values(), ids=KNOWS_NOT)
@pytest.mark.parametrize("build", [by_hand, lambda comm: stage_alone(comm)], ids=["send", "stage"])
def test_gradients_that_went_to_ranks_that_nobody_knows_are_told(build, add, float64):
    def program(comm):
        model, lossfun = build(comm)
        optimizer = optimizers.SGD(0.1).setup(model)
        add(optimizer, None)
        optimizer.update(lossfun)

    with pytest.raises(RuntimeError, match="does not know which ranks hold the model") as error:
        mnpar.run(program, ranks=2)
    assert "comm=" in str(error.value)
    assert "Pipeline" in str(error.value)
    if build is by_hand:
        assert "test_model_holders.py" in str(error.value)


def stage_alone(comm):
    """The optimizer is set up with what the pipeline has in it."""
    model, lossfun = plain_stages(comm)
    return model[0], lossfun


@pytest.mark.ranks(2)
def test_stages_by_hand_are_clipped_by_the_norm_over_the_ranks_that_are_given(comm, float64):
    model, lossfun = by_hand(comm)
    optimizer = optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(hooks.GradientClipping(1e-3, comm))
    optimizer.loss_scaling(scale=8.0, comm=comm)
    before = model.layer.W.array.copy(), model.layer.b.array.copy()
    optimizer.update(lossfun)
    steps = np.concatenate(
        [(old - p.array).ravel() for old, p in zip(before, model.params(), strict=True)]
    )
    np.testing.assert_allclose(comm.allreduce_obj((steps**2).sum()), 1e-6)


@pytest.mark.ranks(2, on="threads")
def test_this_ranks_parameters_alone_may_be_meant(comm, float64):
    model, lossfun = by_hand(comm)
    optimizer = optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(hooks.GradientClipping(1e-3, mnpar.create_communicator("self")))
    before = [param.array.copy() for param in model.params()]
    optimizer.update(lossfun)
    steps = np.concatenate(
        [(b - p.array).ravel() for b, p in zip(before, model.params(), strict=True)]
    )
    np.testing.assert_allclose((steps**2).sum(), 1e-6)


def test_a_communicator_without_all_ranks_of_the_model_is_refused():
    def program(comm):
        model, lossfun = pipeline(comm)
        optimizer = optimizers.SGD(1.0).setup(model)
        optimizer.add_hook(hooks.GradientClipping(1.0, comm.split(comm.rank // 2, comm.rank)))
        optimizer.update(lossfun)

    with pytest.raises(ValueError, match=r"lacks ranks \[.*\] of the world.*Leave comm out"):
        mnpar.run(program, ranks=3)


@pytest.mark.parametrize("build", [pipeline, tied, divided, experts, divided_stages])
@pytest.mark.ranks(2, 4, on="threads")
def test_a_communicator_of_all_ranks_says_the_same_as_the_links(comm, build, float64):
    mnpar.random.seed(0)
    model, lossfun = build(comm)
    initialize_by_path(model, 1)
    optimizer = optimizers.SGD(0.1).setup(model)
    sums = []
    both = lambda opt: sums.append([opt.sum_over_model(SQUARE, c) for c in (None, comm)])
    optimizer.add_hook(both, "both")
    optimizer.update(lossfun)
    np.testing.assert_allclose(sums[0][0], sums[0][1], rtol=1e-12)


def own_tokens(comm):
    """Each rank has tokens of its own, and nothing adds up the gradients of the other layers."""
    model = mnpar.Chain(
        first=L.Linear(D, D),
        moe=L.MixtureOfExperts(comm, lambda i: L.Linear(D, D), 3, D, input_is_parallel=True),
    )
    mine = slice(comm.rank, None, comm.size)
    return model, lambda: F.sum(model.moe(F.tanh(model.first(X[mine]))) ** 2)


def own_rows(comm):
    """Between layers with a sequence axis each rank has some of the rows."""
    model = mnpar.Chain(
        wide=L.ColumnParallelLinear(comm, D, 5, gather_output=False, sequence_axis=0),
        out=L.RowParallelLinear(comm, 5, D, input_is_parallel=True, sequence_axis=0),
        first=L.Scale(W_shape=(D,)),
    )
    mine = slice(comm.rank, None, comm.size)
    return model, lambda: F.sum(model.first(model.out(F.tanh(model.wide(X[mine])))) ** 2)


def own_blocks(comm):
    """A layer sees a block of the image that is no divided Variable."""
    grid = mnpar.SpatialGrid(comm, (comm.size,))
    model = mnpar.Chain(first=L.Scale(axis=1, W_shape=(1,)), out=L.SpatialLinear(grid, K))
    mine = grid.block((D,)).index

    def forward():
        block = model.first(X[:, None, *mine])
        return loss(model.out(mnpar.divided(block, grid, shape=(len(X), 1, D))))

    return model, forward


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (own_tokens, ""),
        (own_tokens, "clipping"),
        (own_rows, ""),
        (own_rows, "LARS"),
        (own_blocks, ""),
    ],
)
def test_copies_whose_gradients_are_shares_are_told_before_they_drift_apart(build, rule, float64):
    def program(comm):
        mnpar.random.seed(0)
        model, lossfun = build(comm)
        initialize_by_path(model, 1)
        optimizer = optimizers.SGD(1.0).setup(model)
        if rule:
            optimizer.add_hook(WHOLE[rule][1](comm))
        optimizer.update(lossfun)

    with pytest.raises(MismatchError, match=r"update 1: ranks \[0, 1\].*copies of /first/"):
        mnpar.run(program, ranks=2)


@pytest.mark.ranks(2, 3, on="threads")
def test_shares_that_are_summed_by_hand_pass(comm, float64):
    mnpar.random.seed(0)
    model, lossfun = own_tokens(comm)
    initialize_by_path(model, 1)
    optimizer = optimizers.SGD(1.0).setup(model)
    for _ in range(3):
        model.cleargrads()
        lossfun().backward()
        for param in model.first.params():
            param.grad[...] = comm.allreduce(param.grad)
        optimizer.update()
    assert len({array.tobytes() for array in comm.allgather(model.first.W.array)}) == 1


def test_ranks_that_no_sum_reaches_are_told(float64):
    """Rank 0 shares one layer with rank 1, and another with rank 2."""

    def program(comm):
        one, two = [comm.split(0 if comm.rank in (0, r) else None, comm.rank) for r in (1, 2)]
        model = mnpar.Chain()
        if one is not None:
            model.one = L.ColumnParallelLinear(one, D, 4)
        if two is not None:
            model.two = L.ColumnParallelLinear(two, D, 4)
        optimizer = optimizers.SGD(1.0).setup(model)
        optimizer.add_hook(hooks.GradientClipping(1.0))
        optimizer.update(lambda: sum([F.sum(layer(X)) for layer in model.children()]))

    with pytest.raises(MismatchError, match=r"hold it with different others.*comm="):
        mnpar.run(program, ranks=3)


@pytest.mark.ranks(1, 2, 3, on="threads")
def test_a_users_hook_for_each_parameter_sees_whole_ones(comm, float64):
    mnpar.random.seed(0)
    model, lossfun = divided(comm)
    initialize_by_path(model, 1)
    norms = {}

    def hook(rule, param):
        norms[id(param)] = float(param.sum_over_parts((param.array**2).sum()))

    hook.call_for_each_param = True
    optimizer = optimizers.SGD(0.0).setup(model)
    optimizer.add_hook(hook)
    optimizer.update(lossfun)
    for _, param in model.namedparams():
        whole = L.gather_parameter(comm, param)
        np.testing.assert_allclose(norms[id(param)], (whole**2).sum())


@pytest.mark.ranks(2, 3, on="threads")
def test_copies_without_a_communicator_get_the_same_noise(comm):
    mnpar.random.seed(comm.rank)
    model = L.Linear(D, K)
    optimizer = mnpar.create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)
    optimizer.add_hook(hooks.GradientNoise(0.3))
    for _ in range(2):
        optimizer.update(lambda: loss(model(X.astype("f4"))))
    for param in model.params():
        assert len({array.tobytes() for array in comm.allgather(param.array)}) == 1


@pytest.mark.ranks(2, on="threads")
def test_stages_under_one_path_get_other_noise(comm, float64):
    model, lossfun = chain_list(comm)
    optimizer = optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(hooks.GradientNoise(0.3))
    optimizer.update(lossfun)
    one, other = comm.allgather(model[0].W.array)
    assert not np.isclose(one, other).any()


def test_members_that_are_trained_alone_are_clipped_alone(float64):
    def program(comm):
        model = mnpar.Ensemble(comm, lambda group, i: L.Linear(D, K)).member
        optimizer = optimizers.SGD(1.0).setup(model)
        optimizer.add_hook(hooks.GradientClipping(1e-3))
        for _ in range(comm.rank):
            optimizer.update(lambda: loss(model(X)))
        return optimizer.t

    assert mnpar.run(program, ranks=3) == [0, 1, 2]
