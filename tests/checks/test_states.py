"""Programs whose graph alone shows that a gradient is wrong, off a mesh, and right ones."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import MismatchError
from mnpar.plans import blocks, everywhere
from tests.checks import divided_programs
from tests.harness.parts import on_blocks

pytestmark = pytest.mark.usefixtures("float64", "debug_off")

N = 12  # a multiple of all numbers of ranks here
X = np.random.default_rng(0).normal(size=(4, N))
T = np.arange(4) % 3


def weight(comm, own=False):
    """A weight that all ranks have alike, or one of each rank's own."""
    rng = np.random.default_rng(comm.rank if own else 99)
    return mnpar.Variable(rng.normal(size=N))


def middle(comm, w):
    """What the ranks own together, computed from a weight and from parts of the work."""
    return F.tanh(F.reduce_from(comm, F.copy_to(comm, w) * weight(comm, own=True)))


def pair(comm):
    """The two halves of a layer that is divided, and layers before and after, which are not."""
    mnpar.random.seed(0)
    return mnpar.Chain(
        before=L.Linear(N, N),
        wide=L.ColumnParallelLinear(comm, N, N, gather_output=False),
        out=L.RowParallelLinear(comm, N, N, input_is_parallel=True),
        after=L.Linear(N, 3),
    )


def run(m, x):
    return F.tanh(m.out(F.tanh(m.wide(x))))


def loss(m, y):
    return F.softmax_cross_entropy(m.after(y), T)


# ---- wrong: each gets a communicator and returns the loss that all ranks differentiate ----


def copied_twice(comm):
    h = F.tanh(F.copy_to(comm, weight(comm)))
    return F.sum(F.reduce_from(comm, F.copy_to(comm, h) * weight(comm, own=True)))


def copied_before_a_layer_that_copies(comm):
    m = pair(comm)
    return loss(m, run(m, F.copy_to(comm, m.before(X))))


def copied_and_then_cut(comm):
    return F.sum(F.gather_from(comm, F.scatter_to(comm, F.copy_to(comm, weight(comm)) ** 2)) ** 3)


def cut_twice(comm):
    part = F.scatter_to(comm, F.scatter_to(comm, weight(comm)) ** 2)
    return F.sum(F.gather_from(comm, part))


def a_part_copied(comm):
    m = pair(comm)
    part = F.linear(F.tanh(m.wide(m.before(X))), m.out.W)
    return loss(m, run(m, F.tanh(part)))


def a_part_cut(comm):
    part = F.tanh(F.copy_to(comm, weight(comm)) * weight(comm, own=True))
    return F.sum(F.gather_from(comm, F.scatter_to(comm, part) ** 2))


def gathered_and_copied(comm):
    whole = F.allgather(comm, weight(comm, own=True), axis=0)
    return F.sum(F.reduce_from(comm, F.copy_to(comm, whole) * (comm.rank + 1.0)))


def broadcast_and_copied(comm):
    w = F.bcast(comm, weight(comm) if comm.rank == 0 else None)
    return F.sum(F.reduce_from(comm, F.copy_to(comm, w) * weight(comm, own=True)))


def summed_by_allreduce_and_copied(comm):
    h = F.allreduce(comm, F.copy_to(comm, weight(comm)) * weight(comm, own=True))
    return F.sum(F.reduce_from(comm, F.copy_to(comm, h) ** 2 * (comm.rank + 1.0)))


def summed_later_by_allreduce_and_copied(comm):
    h = F.iallreduce(comm, F.copy_to(comm, weight(comm)) * weight(comm, own=True))
    return F.sum(F.reduce_from(comm, F.copy_to(comm, h) ** 2 * (comm.rank + 1.0)))


def exchanged_and_copied(comm):
    whole = F.repartition(
        comm,
        F.scatter_to(comm, weight(comm)),
        blocks((N,), (comm.size,)),
        everywhere((N,), comm.size),
    )
    return F.sum(F.reduce_from(comm, F.copy_to(comm, whole) * (comm.rank + 1.0)))


def summed_twice(comm):
    return F.reduce_from(comm, F.sum(middle(comm, weight(comm)) ** 2))


def a_loss_summed(comm):
    m = pair(comm)
    return F.reduce_from(comm, loss(m, run(m, m.before(X))))


def a_mean_of_a_loss_that_all_have(comm):
    m = pair(comm)
    return F.reduce_from(comm, loss(m, run(m, m.before(X)))) / comm.size


def what_is_whole_gathered(comm):
    return F.sum(F.gather_from(comm, middle(comm, weight(comm))) ** 2)


def whole_scores(comm):
    m = L.ColumnParallelLinear(comm, N, N)
    return F.vocabulary_parallel_softmax_cross_entropy(comm, m(X), T)


def not_copied(comm):
    part = middle(comm, weight(comm)) * weight(comm, own=True)
    return F.sum(F.reduce_from(comm, F.tanh(part)))


def not_copied_behind_layers(comm):
    m = pair(comm)
    h = run(m, m.before(X))
    own = L.Linear(N, N, initialW=np.random.default_rng(comm.rank).normal(size=(N, N)))
    return loss(m, F.reduce_from(comm, F.tanh(own(h))))


def not_copied_beside_what_is(comm):
    h = middle(comm, weight(comm))
    return F.sum(F.reduce_from(comm, F.tanh(h) * F.copy_to(comm, h) * weight(comm, own=True)))


def not_cut_before_it_is_joined(comm):
    h = middle(comm, weight(comm))
    n = N // comm.size
    return F.sum(F.gather_from(comm, h[n * comm.rank : n * (comm.rank + 1)] ** 2) ** 2)


def a_whole_in_each_part(comm):
    m = pair(comm)
    h = run(m, m.before(X))
    return loss(m, F.reduce_from(comm, F.linear(F.tanh(m.wide(h)), m.out.W) + h))


def a_whole_beside_a_part(comm):
    m = pair(comm)
    h = run(m, m.before(X))
    return loss(m, F.tanh(h + F.linear(F.tanh(m.wide(h)), m.out.W)))


def a_scale_of_what_is_whole(comm):
    part = F.copy_to(comm, weight(comm)) * weight(comm, own=True)
    norm = F.sqrt(F.reduce_from(comm, F.sum(part**2)))
    return F.sum(F.reduce_from(comm, F.tanh(part / norm)))


def a_weight_copied_for_the_same_work(comm):
    return F.sum(middle(comm, weight(comm)) * F.copy_to(comm, weight(comm)))


def a_weight_inside_and_outside(comm):
    w = weight(comm)
    part = F.copy_to(comm, F.tanh(w)) * weight(comm, own=True) * w
    return F.sum(F.reduce_from(comm, part))


def a_weight_behind_and_inside(comm):
    w = weight(comm)
    h = middle(comm, weight(comm)) * w
    return F.sum(h) + F.sum(F.reduce_from(comm, w * weight(comm, own=True)))


def layers_that_share_a_weight(comm):
    m = pair(comm)
    rows = F.scatter_to(comm, F.tanh(m.before(X)), axis=0)
    return loss(m, F.gather_from(comm, m.before(rows), axis=0))


def a_table_before_and_behind(comm):
    """The second use of the table divides the work by words: what enters it is to be copied."""
    m = L.VocabularyParallelEmbedID(comm, N, N)
    h = F.tanh(m(T))
    return F.vocabulary_parallel_softmax_cross_entropy(comm, F.linear(h, m.W), T)


def joined_ranks(comm):
    """Of a part of the ranks, which own it together."""
    half = comm.split(comm.rank % 2, comm.rank)
    h = F.reduce_from(half, F.copy_to(half, weight(comm)) * weight(comm, own=True))
    return F.sum(F.reduce_from(half, h**2))


def before_other_ranks_sum(comm):
    """What is wrong among some ranks is so whatever goes on among others."""
    half, other = comm.split(comm.rank % 2, comm.rank), comm.split(comm.rank // 2, comm.rank)
    h = F.reduce_from(half, F.copy_to(half, weight(comm)) * weight(comm, own=True))
    h = F.reduce_from(other, F.tanh(F.copy_to(other, h)) * (comm.rank // 2 + 1.0))
    return F.sum(F.reduce_from(half, h**2))


TWICE = r"copy_to at .*test_states.py:\d+ takes .* from what copy_to at .* add up a second time"
WHOLE = r"{} at .*test_states.py:\d+ takes a part .* from what {} at .*, which is whole"
MEETS = r"{} computes with what reduce_from at .* and with what each rank has .* by {} at"

WRONG = {
    copied_twice: TWICE,
    copied_before_a_layer_that_copies: TWICE,
    copied_and_then_cut: r"scatter_to at .* from what copy_to at .*a second time",
    cut_twice: r"scatter_to at .* from what scatter_to at .*, and it is a part",
    a_part_copied: TWICE,
    a_part_cut: r"scatter_to at .* from what copy_to at .* what are parts, reduce_from before",
    gathered_and_copied: r"copy_to at .* allgather adds up the gradients .* count \d times",
    broadcast_and_copied: r"copy_to at .* bcast adds up the gradients of all ranks in backward",
    summed_by_allreduce_and_copied: r"copy_to at .* allreduce adds up the gradients",
    summed_later_by_allreduce_and_copied: r"copy_to at .* allreduce adds up the gradients",
    exchanged_and_copied: r"copy_to at .* exchange adds up the gradients",
    summed_twice: WHOLE.format("reduce_from", "reduce_from"),
    a_loss_summed: WHOLE.format("reduce_from", "reduce_from"),
    a_mean_of_a_loss_that_all_have: WHOLE.format("reduce_from", "reduce_from"),
    what_is_whole_gathered: WHOLE.format("gather_from", "reduce_from"),
    whole_scores: WHOLE.format("reduce_from", "gather_from"),
    not_copied: WHOLE.format("reduce_from", "reduce_from") + ".* let it pass copy_to before",
    not_copied_behind_layers: WHOLE.format("reduce_from", "reduce_from"),
    not_copied_beside_what_is: MEETS.format("Mul", "copy_to"),
    not_cut_before_it_is_joined: WHOLE.format("gather_from", "reduce_from") + ".*scatter_to or",
    a_whole_in_each_part: WHOLE.format("reduce_from", "reduce_from"),
    a_whole_beside_a_part: MEETS.format("Tanh", "copy_to"),
    a_scale_of_what_is_whole: MEETS.format("Div", "copy_to"),
    a_weight_copied_for_the_same_work: MEETS.format("Mul", "copy_to"),
    a_weight_inside_and_outside: r"a Variable of shape .* is used in two ways: with copy_to",
    a_weight_behind_and_inside: r"a Variable of shape .* is used in two ways: with reduce_from",
    layers_that_share_a_weight: r"the weight W of shape \(12, 12\) is used in two ways",
    a_table_before_and_behind: WHOLE.format("reduce_from", "reduce_from"),
    joined_ranks: WHOLE.format("reduce_from", "reduce_from"),
    before_other_ranks_sum: WHOLE.format("reduce_from", "reduce_from"),
}
ON_FOUR = (joined_ranks, before_other_ranks_sum)


def differentiate(comm, program, times=1):
    with mnpar.using_config("dtype", np.dtype("f8")):
        for _ in range(times):
            program(comm).backward()


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("program", "message"), WRONG.items(), ids=[program.__name__ for program in WRONG]
)
def test_a_wrong_program_is_told(program, message, ranks):
    with pytest.raises(MismatchError, match=message) as caught:
        mnpar.run(differentiate, ranks=4 if program in ON_FOUR else ranks, args=(program,))
    assert len(str(caught.value).splitlines()) < 5


# ---- right ----


def right_pair(comm):
    m = pair(comm)
    return loss(m, run(m, run(m, m.before(X))))


def right_own_penalty(comm):
    m = pair(comm)
    return loss(m, run(m, m.before(X))) + 0.1 * sum(F.sum(param**2) for param in m.params())


def right_tasks(comm):
    m = pair(comm)
    head = L.Linear(N, 3)
    return F.softmax_cross_entropy(head(F.copy_to(comm, run(m, m.before(X)))), (T + comm.rank) % 3)


def right_parts(comm):
    part = F.scatter_to(comm, middle(comm, weight(comm)))
    return F.sum(F.gather_from(comm, F.tanh(part)) ** 2)


def right_losses_of_parts(comm):
    return F.sum(F.scatter_to(comm, middle(comm, weight(comm))) ** 2)


def right_residual(comm):
    m = pair(comm)
    h = run(m, m.before(X))
    return loss(m, F.tanh(h + run(m, h)))


def right_scale(comm):
    part = F.copy_to(comm, weight(comm)) * weight(comm, own=True)
    norm = F.copy_to(comm, F.sqrt(F.reduce_from(comm, F.sum(part**2))))
    return F.sum(F.reduce_from(comm, F.tanh(part / norm)))


def right_mean_of_what_is_alike(comm):
    m = pair(comm)
    y = F.allreduce(comm, run(m, m.before(X))) / comm.size
    return loss(m, F.allreduce(comm, y, op="mean"))


def right_bias(comm):
    m = pair(comm)
    part = F.linear(F.tanh(m.wide(m.before(X))), m.out.W)
    return loss(m, F.reduce_from(comm, part + F.copy_to(comm, m.out.b) / comm.size))


def right_value_without_a_gradient(comm):
    h = middle(comm, weight(comm))
    return F.sum(F.reduce_from(comm, weight(comm, own=True) * h.array))


def right_ring(comm):
    """A sum that is made by hand, of messages round the ring, of which each rank has its own."""
    total = part = F.copy_to(comm, weight(comm)) * weight(comm, own=True)
    for _ in range(comm.size - 1):
        part = F.sendrecv(part, comm, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
        total = total + part
    return F.sum(F.reduce_from(comm, F.tanh(total) / comm.size))


def right_sums_of_losses(comm):
    """Law 1 from end to end: each rank has a loss of its own."""
    m = L.Linear(N, N, initialW=np.random.default_rng(comm.rank).normal(size=(N, N)))
    ys = F.allgather(comm, m(X))
    y = F.allreduce(comm, sum(ys)) * F.bcast(comm, ys[0]) + F.reduce_scatter(comm, ys)
    return F.sum(F.tanh(sum(F.alltoall(comm, [y] * comm.size)))) * (comm.rank + 1)


def right_gradient_penalty(comm):
    m = pair(comm)
    x = mnpar.Variable(X)
    y = run(m, x)
    (gx,) = mnpar.grad([F.sum(y**2)], [x], enable_double_backprop=True)
    return loss(m, y) + F.mean((F.sum(gx**2, axis=1) - 1) ** 2)


def right_forgotten(comm):
    m = pair(comm)
    return loss(m, F.forget(lambda x: run(m, x), m.before(X), comm=comm))


def right_sequence(comm):
    m = mnpar.Chain(
        wide=L.ColumnParallelLinear(comm, N, N, gather_output=False, sequence_axis=0),
        out=L.RowParallelLinear(comm, N, N, input_is_parallel=True, sequence_axis=0),
    )
    rows = F.scatter_to(comm, middle(comm, weight(comm)) * np.ones((4, 1)), axis=0)
    return F.sum(F.gather_from(comm, rows + m.out(F.tanh(m.wide(rows))), axis=0) ** 2)


def right_mixture(comm):
    m = L.MixtureOfExperts(comm, lambda i: L.Linear(N, N), 2 * comm.size, N)
    return F.sum(m(middle(comm, weight(comm)) * np.ones((4, 1))) ** 2)


def right_sums_that_are_shown(comm):
    """Nothing is differentiated through them."""
    m = pair(comm)
    h = run(m, m.before(X))
    for show in (F.reduce_from, F.gather_from, F.allreduce, F.allgather):
        show(comm, h)
    F.copy_to(comm, F.copy_to(comm, h))
    return loss(m, h)


def right_table_before_and_behind(comm):
    m = L.VocabularyParallelEmbedID(comm, N, N)
    h = F.copy_to(comm, F.tanh(m(T)))
    return F.vocabulary_parallel_softmax_cross_entropy(comm, F.linear(h, m.W), T)


def right_weight_inside_and_outside(comm):
    w = weight(comm)
    part = F.copy_to(comm, F.tanh(w)) * weight(comm, own=True) * F.copy_to(comm, w)
    return F.sum(F.reduce_from(comm, part) * w)


def right_two_groups(comm):
    half, other = comm.split(comm.rank % 2, comm.rank), comm.split(comm.rank // 2, comm.rank)
    h = F.reduce_from(half, F.copy_to(half, weight(comm)) * weight(comm, own=True))
    h = F.reduce_from(other, F.tanh(F.copy_to(other, h)) * (comm.rank // 2 + 1.0))
    return F.sum(F.reduce_from(half, F.copy_to(half, h) ** 2 * (comm.rank + 1.0)))


def right_data_in_variables(comm):
    """Whose gradients nobody uses, beside a model that is trained."""
    m = pair(comm)
    scale = F.copy_to(comm, mnpar.Variable(X)) + F.bcast(comm, mnpar.Variable(X))
    return loss(m, F.tanh(run(m, m.before(X)) * scale))


RIGHT = [value for name, value in globals().copy().items() if name.startswith("right_")]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("program", RIGHT, ids=[program.__name__ for program in RIGHT])
def test_a_right_program_passes(program, ranks):
    mnpar.run(differentiate, ranks=4 if program is right_two_groups else ranks, args=(program, 2))


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_programs_are_right_and_pass_and_doubled_entrances_and_exits_are_told(first):
    for seed in range(first, first + 25):
        steps, ranks = divided_programs.draw(seed)
        truth = divided_programs.alone(steps, ranks)
        found = mnpar.run(divided_programs.over_ranks, ranks=ranks, args=(steps,))
        assert not any(map(divided_programs.differ, found, truth)), (seed, steps)
        for spoilt in divided_programs.places(steps):
            with pytest.raises(MismatchError, match="own together"):
                mnpar.run(divided_programs.over_ranks, ranks=ranks, args=(steps, "twice", spoilt))


@pytest.mark.usefixtures("both_matches")
def test_a_graph_is_looked_at_again_when_its_number_doubles():
    def program(comm, wrong_at):
        for step in range(1, 8):
            h = middle(comm, weight(comm))
            part = h if step == wrong_at else F.copy_to(comm, h)
            F.sum(F.reduce_from(comm, (part if step == wrong_at else part * 1) ** 2)).backward()

    def no_other_communication(comm, wrong_at):
        for step in range(1, 8):
            h = middle(comm, weight(comm))
            x = weight(comm) if step != wrong_at else h
            F.sum(F.reduce_from(comm, x * weight(comm, own=True))).backward()

    with pytest.raises(MismatchError, match="reduce_from"):  # another sequence of communications
        mnpar.run(program, ranks=2, args=(3,))
    mnpar.run(no_other_communication, ranks=2, args=(3,))
    with pytest.raises(MismatchError, match="reduce_from"):
        mnpar.run(no_other_communication, ranks=2, args=(4,))
    with (
        mnpar.using_config("debug", True),
        pytest.raises(MismatchError, match="reduce_from"),
    ):
        mnpar.run(no_other_communication, ranks=2, args=(3,))


# ---- one loss that counts P times ----


def train(comm, joined, times=3):
    mnpar.random.seed([0, comm.rank])
    m = L.Linear(N, 3)
    optimizer = mnpar.optimizers.SGD().setup(m)
    for _ in range(times):
        found = joined(comm, m)
        m.cleargrads()
        mnpar.backward() if found is None else found.backward()
        optimizer.update()


def average(ys):
    return F.average(F.stack(ys), axis=0)


def joint(y, t=T):
    return F.softmax_cross_entropy(y, t)


COUNTED = {
    "allgather": lambda comm, m: joint(average(F.allgather(comm, m(X)))),
    "a sum that is divided": lambda comm, m: joint(sum(F.allgather(comm, m(X))) / comm.size),
    "allreduce": lambda comm, m: joint(F.allreduce(comm, m(X)) / comm.size),
    "iallreduce": lambda comm, m: joint(F.iallreduce(comm, m(X))),
    "mean": lambda comm, m: joint(F.allreduce(comm, m(X), op="mean")),
    "bcast": lambda comm, m: joint(F.bcast(comm, m(X) if comm.rank == 0 else None)),
    "a critic's mean": lambda comm, m: -F.mean(F.concat(F.allgather(comm, m(X)), axis=0)),
    "a penalty": lambda comm, m: joint(m(X)) + 0.7 * F.sum(F.allreduce(comm, F.sum(m.W**2))),
    "the square of one number": lambda comm, m: F.mean((F.allreduce(comm, F.sum(m(X))) - 0.3) ** 2),
}
ONCE = {
    "divided": lambda comm, m: joint(average(F.allgather(comm, m(X)))) / comm.size,
    "multiplied": lambda comm, m: (1 / comm.size) * joint(average(F.allgather(comm, m(X)))),
    "together": lambda comm, m: joint(F.reduce_from(comm, m(X)) / comm.size),
    "shown and divided": lambda comm, m: (
        F.reduce_from(comm, joint(F.allreduce(comm, m(X)))) / comm.size
    ),
    "absolute errors of own labels": lambda comm, m: F.sum(
        abs(F.allreduce(comm, m(X)) - 100.0 * (1 + comm.rank))
    ),
    "own masks": lambda comm, m: F.sum(
        F.allreduce(comm, m(X)) * (np.arange(4)[:, None] < 4 + comm.rank)
    ),
    "own labels": lambda comm, m: joint(F.allreduce(comm, m(X)), (T + comm.rank) % 3),
    "one rank has it": lambda comm, m: (
        joint(ys)
        if (ys := average(F.allgather(comm, m(X)))) is not None and not comm.rank
        else None
    ),
    "a term that is divided": lambda comm, m: (
        joint(m(X)) + F.sum(F.allreduce(comm, m.W**2)) / (3 * comm.size)
    ),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("joined", COUNTED.values(), ids=COUNTED)
def test_a_joint_loss_that_each_rank_differentiates_is_told_once(joined, ranks):
    with pytest.warns(
        UserWarning,
        match=rf"at .*test_states.py:\d+: each of {ranks} ranks .*"
        rf"counts {ranks} times",
    ) as told:
        mnpar.run(train, ranks=ranks, args=(joined,))
    assert len(told) == 1


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("joined", ONCE.values(), ids=ONCE)
def test_a_loss_that_counts_once_is_not(joined, ranks):
    mnpar.run(train, ranks=ranks, args=(joined,))


def test_a_loss_over_gathered_features_of_all_samples_is_not_if_gradients_are_averaged():
    def program(comm, update):
        mnpar.random.seed(0)
        m = L.Linear(N, 3)
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(m)

        def lossfun():
            y = F.concat(F.allgather(comm, m(X[comm.rank :: comm.size])), axis=0)
            return F.softmax_cross_entropy(y @ y.T, np.arange(4))

        for _ in range(3):
            if update:
                optimizer.update(lossfun)
            else:
                m.cleargrads()
                lossfun().backward()
                optimizer.update()

    mnpar.run(program, ranks=2, args=(True,))
    mnpar.run(program, ranks=2, args=(False,))


# ---- reports of parts ----


def of_blocks(comm, whole=False):
    """The loss of an image in blocks, a label for each cell."""
    mnpar.random.seed(0)
    grid = mnpar.SpatialGrid(comm, (comm.size,))
    shape = (N,)
    m = mnpar.Chain(
        a=L.ConvolutionND(1, 1, 2, 3, pad=1),
        b=L.ConvolutionND(1, 2, 3, 3, pad=1),
    )
    given = X[:, None], np.arange(4 * N).reshape(4, N) % 3
    x, t = [mnpar.datasets.shard_image(part, grid) for part in given]
    y = on_blocks(lambda x: m.b(F.tanh(m.a(x))), grid, shape)(mnpar.Variable(x))
    loss = F.sum(F.softmax_cross_entropy(y, t, reduce="no"))
    return m, F.reduce_from(comm, loss) if whole else loss


def of_rows(comm, whole=False):
    """The loss of a part of the rows of a batch."""
    m = pair(comm)
    part = F.scatter_to(comm, run(m, m.before(X)), axis=0)
    loss = F.sum(F.tanh(part))
    return m, F.reduce_from(comm, loss) if whole else loss


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("of", [of_blocks, of_rows])
def test_a_part_of_a_loss_that_is_reported_is_told_once_and_has_a_remedy(of, ranks):
    def program(comm, whole):
        with mnpar.using_config("dtype", np.dtype("f8")):
            for _ in range(4):
                m, loss = of(comm, whole)
                with mnpar.Reporter() as reporter:
                    mnpar.report({"loss": loss, "other": F.reduce_from(comm, np.array(1.0))})
                m.cleargrads()
                loss.backward()
            return reporter.observation["loss"].item(), [
                p.grad.copy() for p in m.params() if p.grad is not None
            ]

    with pytest.warns(
        UserWarning, match=r"^loss, reported at .*test_states.py:\d+, is on "
    ) as told:
        parts = mnpar.run(program, ranks=ranks, args=(False,))
    assert len(told) == 1
    wholes = mnpar.run(program, ranks=ranks, args=(True,))
    ((one, _),) = mnpar.run(program, ranks=1, args=(False,))
    assert [loss for loss, _ in wholes] == pytest.approx([one] * ranks)
    assert sum(loss for loss, _ in parts) == pytest.approx(one)
    for (_, gs), (_, others) in zip(parts, wholes, strict=True):
        for g, other in zip(gs, others, strict=True):
            np.testing.assert_allclose(g, other, atol=1e-12)


class Denoiser(mnpar.Chain):
    """A model of rows in blocks, whose loss is a mean over the block, or over the whole row."""

    def __init__(self, grid, whole):
        super().__init__()
        self.grid, self.whole = grid, whole
        with self.init_scope():
            self.a = L.ConvolutionND(1, 1, 2, 3, pad=1)
            self.b = L.ConvolutionND(1, 2, 1, 3, pad=1)

    def forward(self, x, t):
        layers = on_blocks(lambda x: self.b(F.tanh(self.a(x))), self.grid, (7,))
        loss = F.mean((layers(mnpar.Variable(x)) - t) ** 2)
        if self.whole:
            loss = F.reduce_from(self.grid.comm, loss * self.grid.share((7,)))
        mnpar.report({"loss": loss}, self)
        return loss


def log_of_a_trainer(comm, whole, out):
    mnpar.random.seed(0)
    with mnpar.using_config("dtype", np.dtype("f8")):
        grid = mnpar.SpatialGrid(comm, (comm.size,))
        draw = np.random.RandomState(0)
        x, t = [mnpar.datasets.shard_image(draw.rand(8, 1, 7), grid) for _ in range(2)]
        batches = mnpar.iterators.SerialIterator(mnpar.datasets.TupleDataset(x, t), 4)
        optimizer = mnpar.optimizers.SGD(0.1).setup(Denoiser(grid, whole))
        updater = mnpar.training.StandardUpdater(batches, optimizer)
        trainer = mnpar.training.Trainer(updater, (3, "epoch"), out=out / str(comm.rank))
        log = mnpar.training.extensions.LogReport(trigger=(1, "epoch"))
        trainer.extend(log)
        trainer.run()
    return [entry["main/loss"] for entry in log.log]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_trainer_of_uneven_blocks_logs_the_loss_of_one_rank_or_says_that_it_is_a_mean_of_a_part(
    ranks, tmp_path
):
    (one,) = mnpar.run(log_of_a_trainer, ranks=1, args=(False, tmp_path))
    for log in mnpar.run(log_of_a_trainer, ranks=ranks, args=(True, tmp_path)):
        assert log == pytest.approx(one, rel=1e-12)
    with pytest.warns(
        UserWarning, match=r"^main/loss, reported at .* A mean over the part: multiply it"
    ) as told:
        logs = mnpar.run(log_of_a_trainer, ranks=ranks, args=(False, tmp_path))
    assert len(told) == 1
    assert all(log != pytest.approx(one, rel=1e-3) for log in logs)


@pytest.mark.parametrize("program", RIGHT, ids=[program.__name__ for program in RIGHT])
def test_what_is_whole_or_of_each_rank_is_reported_as_it_is(program):
    def reporting(comm):
        with mnpar.using_config("dtype", np.dtype("f8")), mnpar.Reporter():
            loss = program(comm)
            mnpar.report({"loss": loss})
            loss.backward()

    if program is right_losses_of_parts:
        with pytest.warns(UserWarning, match="loss, reported at .* which scatter_to at .* gave"):
            mnpar.run(reporting, ranks=2)
    else:
        mnpar.run(reporting, ranks=4 if program is right_two_groups else 2)
