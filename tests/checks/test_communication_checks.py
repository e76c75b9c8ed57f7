"""Programs on a mesh that compute wrong numbers, and are told so: what ranks own together is not
alike, or is counted again.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import MismatchError
from mnpar.link_hooks import WholeGradients
from mnpar.plans import Box

pytestmark = pytest.mark.usefixtures("float64", "debug_off")

X = np.random.default_rng(0).normal(size=(4, 6))
SEQUENCES = np.random.default_rng(1).normal(size=(2, 4, 6))
T = np.arange(4) % 3
WORDS = np.arange(8).reshape(2, 4)


def loss(y, t=T):
    return F.softmax_cross_entropy(y, t)


def pair(comm, **options):
    """Two layers with a layer's work divided between them, and one before, whose gradients pass
    them.
    """
    return mnpar.Chain(
        before=L.Linear(6, 6),
        wide=L.ColumnParallelLinear(comm, 6, 8, gather_output=False, **options),
        out=L.RowParallelLinear(comm, 8, 6, input_is_parallel=True, **options),
    )


def run(m, x=X):
    return m.out(F.tanh(m.wide(m.before(x))))


# Each is called with a mesh of model=2 and space=2 or, as PLACES says, another one; it gives a
# model and a loss function.


def other_samples(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(run(m, X + mesh.model.rank))


def other_labels(mesh):
    m = pair(mesh.model, nobias=True)
    return m, lambda: loss(run(m), (T + mesh.model.rank) % 3)


def another_gradient_of_what_was_gathered(mesh):
    """Of the same loss."""
    m = L.ColumnParallelLinear(mesh.model, 6, 8)

    def lossfun():
        y = m(X)
        more = F.sum(y * mesh.model.rank)
        return loss(y) + more - more.array

    return m, lossfun


def other_words(mesh):
    m = L.VocabularyParallelEmbedID(mesh.model, 9, 6)
    return m, lambda: loss(m((T + mesh.model.rank) % 9))


def other_words_in_a_cut_sequence(mesh):
    m = L.VocabularyParallelEmbedID(mesh.model, 9, 6, sequence_axis=1)
    return m, lambda: F.sum(
        F.gather_from(mesh.model, m((WORDS + mesh.model.rank) % 9), axis=1) ** 2
    )


def other_labels_of_a_vocabulary(mesh):
    m = L.ColumnParallelLinear(mesh.model, 6, 9, gather_output=False)
    return m, lambda: F.vocabulary_parallel_softmax_cross_entropy(
        mesh.model, m(X), T + mesh.model.rank
    )


def other_batches_in_the_stages(mesh):
    m = mnpar.Pipeline.of(
        mesh.pipe,
        {"a": lambda: L.Linear(6, 6), "b": lambda: L.Classifier(L.Linear(6, 3))},
        "1f1b",
        2,
    )
    return m, lambda: m(X + mesh.pipe.rank, T)


class Pair(mnpar.Chain):
    def __init__(self, mesh):
        super().__init__()
        self.pair = pair(mesh.model)

    def forward(self, x):
        return run(self.pair, x)


def other_micro_batches(mesh):
    layers = {"a": lambda: Pair(mesh), "b": lambda: L.Classifier(L.Linear(6, 3))}
    m = mnpar.Pipeline.of(mesh.pipe, layers, "1f1b", [1, 3] if mesh.model.rank else [2, 2])
    return m, lambda: m(X, T)


def other_masks_before(mesh):
    m = pair(mesh.model)
    mask = np.random.default_rng(mesh.model.rank).random(X.shape) < 0.5
    return m, lambda: loss(m.out(m.wide(m.before(X) * mask)))


def other_masks_after(mesh):
    m = pair(mesh.model)
    mask = np.random.default_rng(mesh.model.rank).random(X.shape) < 0.5
    return m, lambda: loss(F.reduce_from(mesh.model, F.linear(m.wide(X), m.out.W)) * mask)


def other_weights_drawn(mesh):
    mnpar.random.seed(mesh.model.rank)
    m = mnpar.Chain(wide=L.ColumnParallelLinear(mesh.model, 6, 8))
    return m, lambda: loss(m.wide(X))


def other_scales(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(run(m)) * (1.0 + mesh.model.rank)


def cut_along_another_axis(mesh):
    m = L.Linear(6, 6)
    return m, lambda: loss(
        F.gather_from(mesh.model, F.tanh(F.scatter_to(mesh.space, m(X), axis=0)), axis=0)
    )


def joined_along_another_axis(mesh):
    m = L.Linear(6, 6)
    return m, lambda: loss(
        F.gather_from(mesh.space, F.tanh(F.scatter_to(mesh.model, m(X), axis=0)), axis=0)
    )


def summed_along_another_axis(mesh):
    m = L.Linear(6, 6)
    return m, lambda: F.reduce_from(
        mesh.model, F.sum(F.tanh(F.scatter_to(mesh.space, m(X), axis=0)))
    )


def cut_among_other_samples(mesh):
    m = L.Linear(6, 6)
    return m, lambda: loss(F.gather_from(mesh.model, F.scatter_to(mesh.data, m(X), axis=0), axis=0))


def joined_with_other_samples(mesh):
    m = L.Linear(6, 6)
    return m, lambda: loss(F.gather_from(mesh.data, F.scatter_to(mesh.model, m(X), axis=0), axis=0))


def summed_with_other_samples(mesh):
    m = L.Linear(6, 6)
    return m, lambda: F.reduce_from(mesh.data, loss(m(X + mesh.data.rank)))


def layers_of_other_axes(mesh):
    wide = L.ColumnParallelLinear(mesh.space, 6, 8, nobias=True, gather_output=False)
    m = mnpar.Chain(
        wide=wide, out=L.RowParallelLinear(mesh.model, 8, 6, nobias=True, input_is_parallel=True)
    )
    return m, lambda: loss(m.out(m.wide(X)))


def words_and_scores_of_other_axes(mesh):
    m = L.VocabularyParallelEmbedID(mesh.model, 8, 6)
    score = lambda h: F.linear(F.copy_to(mesh.space, h), m.W)
    return m, lambda: F.vocabulary_parallel_softmax_cross_entropy(mesh.space, score(m(T)), T)


def copied_twice(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(m.out(m.wide(F.copy_to(mesh.model, m.before(X)))))


def copied_twice_in_what_is_forgotten(mesh):
    m = pair(mesh.model)
    rest = lambda h: m.out(m.wide(F.copy_to(mesh.model, h)))
    return m, lambda: loss(F.forget(rest, m.before(X), comm=mesh.model))


def copied_for_the_whole_work(mesh):
    m = mnpar.Chain(l=L.Linear(6, 6), k=L.Linear(6, 6))
    return m, lambda: loss(m.k(F.copy_to(mesh.model, m.l(X))))


def a_weight_copied_for_the_whole_work(mesh):
    m = L.Linear(6, 6)
    return m, lambda: loss(F.linear(X, F.copy_to(mesh.model, m.W)))


def whole_gradients_of_the_whole_work(mesh):
    m = L.Linear(6, 6).add_hook(WholeGradients(mesh.model))
    return m, lambda: loss(m(X))


def a_part_of_a_weight(mesh):
    m = pair(mesh.model, nobias=True)
    r = mesh.model.rank
    m.W = mnpar.Parameter(np.random.default_rng(r).normal(size=(6, 6)))
    m.W.whole = (12, 6)
    m.W.box = Box((6 * r, 0), (6 * r + 6, 6))
    return m


def not_copied_behind_a_sum(mesh):
    m = a_part_of_a_weight(mesh)
    del m.before
    h = lambda: m.out(F.tanh(m.wide(X)))
    return m, lambda: F.reduce_from(mesh.model, F.sum(F.tanh(F.linear(h(), m.W))))


def not_copied_behind_a_layer(mesh):
    m = a_part_of_a_weight(mesh)
    del m.wide, m.out
    return m, lambda: F.reduce_from(mesh.model, F.sum(F.tanh(F.linear(m.before(X), m.W))))


def scores_of_what_is_not_copied(mesh):
    m = L.VocabularyParallelEmbedID(mesh.model, 8, 6)
    return m, lambda: F.vocabulary_parallel_softmax_cross_entropy(
        mesh.model, F.linear(m(T), m.W), T
    )


def a_whole_loss_summed(mesh):
    m = pair(mesh.model)
    return m, lambda: F.reduce_from(mesh.model, loss(run(m)))


def summed_twice(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(F.reduce_from(mesh.model, run(m)))


def copies_summed(mesh):
    m = L.Linear(6, 6)
    return m, lambda: loss(F.reduce_from(mesh.model, m(F.copy_to(mesh.model, X))))


def not_summed_before_a_layer(mesh):
    m = pair(mesh.model)
    m.after = L.ColumnParallelLinear(mesh.model, 6, 3)
    return m, lambda: loss(m.after(F.tanh(F.linear(F.tanh(m.wide(X)), m.out.W))))


def an_allreduce_where_a_loss_follows(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(F.allreduce(mesh.model, F.linear(F.tanh(m.wide(X)), m.out.W)))


def a_mean_where_a_loss_follows(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(F.allreduce(mesh.model, F.linear(F.tanh(m.wide(X)), m.out.W), op="mean"))


def an_allgather_where_a_loss_follows(mesh):
    m = L.ColumnParallelLinear(mesh.model, 6, 8, gather_output=False)
    return m, lambda: loss(F.allgather(mesh.model, m(X), axis=1))


def a_weight_inside_and_outside(mesh):
    m = L.Linear(6, 6)
    part = lambda: F.scatter_to(mesh.model, m(X), axis=0)
    return m, lambda: loss(F.gather_from(mesh.model, m(part()), axis=0))


def statistics_of_a_part(mesh):
    m = L.BatchNormalization(6)
    return m, lambda: loss(
        F.gather_from(mesh.model, m(F.scatter_to(mesh.model, X, axis=0)), axis=0)
    )


def experts_of_other_samples(mesh):
    m = L.MixtureOfExperts(mesh.model, lambda i: L.Linear(6, 6), 2, 6)
    return m, lambda: loss(m(X + mesh.model.rank))


def scores_that_were_gathered(mesh):
    m = L.ColumnParallelLinear(mesh.model, 6, 9)
    return m, lambda: F.vocabulary_parallel_softmax_cross_entropy(mesh.model, m(X), T)


def biased(mesh):
    m = pair(mesh.model)
    m.out.b.array[...] = np.arange(6) / 7
    return m, lambda: F.linear(F.tanh(m.wide(m.before(X))), m.out.W)


def a_bias_in_each_part(mesh):
    m, part = biased(mesh)
    return m, lambda: loss(F.reduce_from(mesh.model, part() + m.out.b))


def a_fraction_of_the_bias_in_each_part(mesh):
    """The sum is right, and the gradient of b half of what it should be."""
    m, part = biased(mesh)
    return m, lambda: loss(F.reduce_from(mesh.model, part() + m.out.b / 2))


def a_bias_in_each_part_of_a_layer(mesh):
    m, _ = biased(mesh)
    return m, lambda: loss(
        F.reduce_from(mesh.model, F.linear(F.tanh(m.wide(m.before(X))), m.out.W, m.out.b))
    )


def a_bias_in_each_part_of_a_cut_sequence(mesh):
    m, part = biased(mesh)
    return m, lambda: F.sum(
        F.gather_from(mesh.model, F.reduce_scatter(mesh.model, part() + m.out.b, axis=0), axis=0)
        ** 2
    )


def a_penalty_in_each_part(mesh):
    m = pair(mesh.model)
    return (
        m,
        lambda: loss(run(m)) + F.reduce_from(mesh.model, F.sum(m.wide.W**2) + F.sum(m.before.W**2)),
    )


def an_allreduce_that_is_awaited_later(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(F.iallreduce(mesh.model, F.linear(F.tanh(m.wide(X)), m.out.W)))


def a_mean_that_is_awaited_later(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(
        F.iallreduce(mesh.model, F.linear(F.tanh(m.wide(X)), m.out.W), op="mean")
    )


def an_allgather_that_is_awaited_later(mesh):
    m = L.ColumnParallelLinear(mesh.model, 6, 8, gather_output=False)
    return m, lambda: loss(F.iallgather(mesh.model, m(X), axis=1))


def a_broadcast_where_a_loss_follows(mesh):
    m = pair(mesh.model, nobias=True)
    return m, lambda: loss(
        F.bcast(mesh.model, F.reduce(mesh.model, F.linear(F.tanh(m.wide(X)), m.out.W)))
    )


def a_broadcast_that_is_awaited_later(mesh):
    m = pair(mesh.model, nobias=True)
    return m, lambda: loss(
        F.ibcast(mesh.model, F.reduce(mesh.model, F.linear(F.tanh(m.wide(X)), m.out.W)))
    )


def squares(mesh):
    m = pair(mesh.model)
    return m, lambda: F.sum(m.wide(m.before(X)) ** 2)


def a_sum_that_is_the_loss(mesh):
    m, part = squares(mesh)
    return m, lambda: F.log(F.allreduce(mesh.model, part()) / 8)


def a_later_sum_that_is_the_loss(mesh):
    m, part = squares(mesh)
    return m, lambda: F.iallreduce(mesh.model, part()) / 8


def a_sum_in_the_loss(mesh):
    m, part = squares(mesh)
    return m, lambda: loss(run(m)) + 0.5 * F.allreduce(mesh.model, part())


def a_loss_that_is_sent(mesh):
    m = pair(mesh.model)
    y = lambda: F.reduce(mesh.model, F.linear(F.tanh(m.wide(X)), m.out.W))

    def lossfun():
        whole = y()
        return F.bcast(mesh.model, None if mesh.model.rank else loss(whole))

    return m, lossfun


WRONG = {
    other_samples: (
        r"copy_to at .*: its input is 24 numbers, .* on rank 0 and .* on rank 1 of .*the same "
        r"samples"
    ),
    other_labels: (
        r"reduce_from at .*: the gradient of its output is 24 numbers, .* on rank 0 and .* on rank "
        r"1"
    ),
    another_gradient_of_what_was_gathered: r"gather_from at .*: the gradient of its output",
    other_words: (
        r"VocabularyParallelEmbedID at .*: its argument x is 4 numbers, 3 in all, on rank 0"
    ),
    other_words_in_a_cut_sequence: r"VocabularyParallelEmbedID at .*: its argument x",
    other_labels_of_a_vocabulary: (
        r"vocabulary_parallel_softmax_cross_entropy at .*: its argument t"
    ),
    other_batches_in_the_stages: r"Pipeline at .*: its argument 0 is 24 numbers",
    other_micro_batches: r"copy_to at .*: its input is 12 numbers, .* on rank 0 and 6 numbers, ",
    other_masks_before: r"copy_to at .*: its input is .*random numbers",
    other_masks_after: (
        r"reduce_from at .*: the gradient of its output is 24 numbers, .* on rank 0 and .* on rank "
        r"1"
    ),
    other_weights_drawn: (
        r"ranks \[0, 2\] of .*along 'model', have drawn their parts of /wide/W from different "
        r"whole arrays"
    ),
    other_scales: (
        r"reduce_from at .*: the gradient of its output is 24 numbers, .* on rank 0 and .* on rank "
        r"1"
    ),
    cut_along_another_axis: (
        r"gather_from at .*: each of 2 ranks has the same part: cut and join along the same axis"
    ),
    joined_along_another_axis: r"gather_from at .*: each of 2 ranks has the same part",
    summed_along_another_axis: (
        r"reduce_from at .*: each of 2 ranks has the same, so that the sum is 2 times"
    ),
    cut_among_other_samples: r"scatter_to at .* has ranks with samples of their own",
    joined_with_other_samples: r"gather_from at .* has ranks with samples of their own",
    summed_with_other_samples: r"reduce_from at .* has ranks with samples of their own",
    layers_of_other_axes: (
        r"the gradients of /wide/W are not the same on ranks .0, 2. of model=2,space=2"
    ),
    words_and_scores_of_other_axes: (
        r"cross_entropy at .*: each of 2 ranks has the same scores, and not a block"
    ),
    copied_twice: (
        r"copy_to at .*computed from what copy_to at .*, which copy_to would add up a second time"
    ),
    copied_twice_in_what_is_forgotten: (
        r"copy_to at .*computed from what copy_to at .*, which copy_to would add up a second time"
    ),
    copied_for_the_whole_work: (
        r"copy_to at .*: each of 2 ranks has the same gradient of its result"
    ),
    a_weight_copied_for_the_whole_work: (
        r"copy_to at .*: each of 2 ranks has the same gradient of its result"
    ),
    whole_gradients_of_the_whole_work: (
        r"copy_to at .*: each of 2 ranks has the same gradient of its result"
    ),
    not_copied_behind_a_sum: (
        r"reduce_from at .*computed from what reduce_from at .* let it pass copy_to before"
    ),
    not_copied_behind_a_layer: r"the gradients of /before/W are not the same",
    scores_of_what_is_not_copied: (
        r"reduce_from at .*computed from what reduce_from at .* let it pass copy_to before"
    ),
    a_whole_loss_summed: (
        r"reduce_from at .*: each of 2 ranks has the same, so that the sum is 2 times what it "
        r"should be"
    ),
    summed_twice: (
        r"reduce_from at .*: each of 2 ranks has the same, so that the sum is 2 times what it "
        r"should be"
    ),
    copies_summed: (
        r"reduce_from at .*: each of 2 ranks has the same, so that the sum is 2 times what it "
        r"should be"
    ),
    not_summed_before_a_layer: r"copy_to at .*: its input is",
    a_mean_where_a_loss_follows: (
        r"allreduce at .*: each of 2 ranks has the same gradient .*for a mean divide"
    ),
    an_allreduce_where_a_loss_follows: (
        r"allreduce at .*: each of 2 ranks has the same gradient .*take reduce_from"
    ),
    an_allgather_where_a_loss_follows: (
        r"allgather at .*: each of 2 ranks has the same gradient .*take gather_from"
    ),
    a_weight_inside_and_outside: (
        r"the weight W of shape \(6, 6\) is used in two ways: .*let it pass copy_to"
    ),
    statistics_of_a_part: r"the gradients of /gamma are not the same",
    scores_that_were_gathered: (
        r"cross_entropy at .*: each of 2 ranks has the same scores, .*gather_output=False"
    ),
    a_bias_in_each_part: (
        r"reduce_from at .*: each of 2 ranks adds the same /out/b to its part, so that the sum has "
        r"it 2 times"
    ),
    a_fraction_of_the_bias_in_each_part: r"reduce_from at .*: each of 2 ranks adds the same /out/b",
    a_bias_in_each_part_of_a_layer: r"reduce_from at .*: each of 2 ranks adds the same /out/b",
    a_bias_in_each_part_of_a_cut_sequence: (
        r"reduce_scatter at .*: each of 2 ranks adds the same /out/b"
    ),
    a_penalty_in_each_part: r"reduce_from at .*: each of 2 ranks adds the same /before/W",
    an_allreduce_that_is_awaited_later: r"allreduce at .*: each of 2 ranks has the same gradient",
    a_mean_that_is_awaited_later: r"allreduce at .*: each of 2 ranks has the same gradient",
    an_allgather_that_is_awaited_later: r"allgather at .*: each of 2 ranks has the same gradient",
    a_broadcast_where_a_loss_follows: r"bcast at .*: each of 2 ranks has the same gradient",
    a_broadcast_that_is_awaited_later: r"bcast at .*: each of 2 ranks has the same gradient",
    a_sum_that_is_the_loss: (
        r"allreduce at .*: each of 2 ranks has the same loss, of which it is a term, and so the "
        r"gradient"
    ),
    a_later_sum_that_is_the_loss: r"allreduce at .*: each of 2 ranks has the same loss",
    a_sum_in_the_loss: r"allreduce at .*: each of 2 ranks has the same loss",
    a_loss_that_is_sent: r"bcast at .*: each of 2 ranks has the same loss",
    experts_of_other_samples: r"scatter_to at .*: its input is 24 numbers",
}
MODEL_AND_SPACE = {"model": 2, "space": 2}
DATA_AND_MODEL = {"data": 2, "model": 2}
PIPE_AND_MODEL = {"pipe": 2, "model": 2}
PLACES = {
    cut_among_other_samples: DATA_AND_MODEL,
    joined_with_other_samples: DATA_AND_MODEL,
    summed_with_other_samples: DATA_AND_MODEL,
    other_batches_in_the_stages: {"pipe": 2},
    other_micro_batches: PIPE_AND_MODEL,
}


def update(comm, axes, program, times=1, check=100):
    """Updates of a model; the bytes that this rank has sent in the last of them among the ranks of
    ``model``.
    """
    with mnpar.using_config("dtype", np.dtype("f8")):
        mesh = mnpar.Mesh(comm, **axes)
        mnpar.random.seed(0)
        model, lossfun = program(mesh)
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(), mesh, check=check
        ).setup(model)
        for _ in range(times):
            before = mesh.model.traffic.collective_bytes
            optimizer.update(lossfun)
        return mesh.model.traffic.collective_bytes - before


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize(
    ("program", "message"), WRONG.items(), ids=[program.__name__ for program in WRONG]
)
def test_a_wrong_number_is_told(program, message):
    axes = PLACES.get(program, MODEL_AND_SPACE)
    with pytest.raises(MismatchError, match=message):
        mnpar.run(update, ranks=int(np.prod(list(axes.values()))), args=(axes, program))


def right_pair(mesh):
    m = pair(mesh.model)
    return m, lambda: loss(run(m))


def right_parts(mesh):
    m = L.Linear(6, 6)
    return m, lambda: loss(
        F.gather_from(mesh.model, F.tanh(F.scatter_to(mesh.model, m(X), axis=0)), axis=0)
    )


def right_sums_over_two_axes(mesh):
    m = L.Linear(6, 6)
    part = lambda: F.scatter_to(mesh.space, F.scatter_to(mesh.model, m(X), axis=0), axis=1)
    return m, lambda: F.reduce_from(mesh.space, F.reduce_from(mesh.model, F.sum(F.tanh(part()))))


def right_losses_of_parts(mesh):
    """Of parts of the sequence: nothing is owned together after the last layer, and the sum of the
    losses is meant (law 1).
    """
    m = mnpar.Chain(pair=pair(mesh.model, sequence_axis=1))
    m.pair.before.add_hook(WholeGradients(mesh.model))
    part = lambda: m.pair.before(F.scatter_to(mesh.model, SEQUENCES, axis=1), 2)
    return m, lambda: F.sum(m.pair.out(F.tanh(m.pair.wide(part(), 2)), 2) ** 2)


def right_by_chance(mesh):
    """Constant weights and samples: all ranks have the same parts."""
    wide = L.ColumnParallelLinear(mesh.model, 6, 8, initialW=0.1, gather_output=False)
    m = mnpar.Chain(
        wide=wide, out=L.RowParallelLinear(mesh.model, 8, 6, initialW=0.1, input_is_parallel=True)
    )
    return m, lambda: loss(m.out(F.tanh(m.wide(np.full((4, 6), 0.3)))))


def right_scalars_by_chance(mesh):
    m = L.Linear(6, 6)
    return m, lambda: loss(m(X)) * F.reduce_from(mesh.model, np.array(0.5))


def right_penalty_of_parts(mesh):
    """The squares of a rank's own part of the weights: losses differ, gradients are right."""
    m = pair(mesh.model)
    return m, lambda: loss(run(m)) + 0.1 * sum(F.sum(param**2) for param in m.params())


def right_task_for_each_rank(mesh):
    head = L.Linear(6, 3)
    m = mnpar.Chain(trunk=L.Linear(6, 6), **{f"head{mesh.model.rank}": head})
    return m, lambda: loss(head(F.copy_to(mesh.model, m.trunk(X))), (T + mesh.model.rank) % 3)


def right_means_of_what_is_alike(mesh):
    m = pair(mesh.model)

    def lossfun():
        y = F.allreduce(mesh.model, run(m)) / mesh.model.size
        shown = F.allreduce(mesh.model, loss(y))
        return loss(F.allreduce(mesh.model, y, op="mean")) + 0 * shown.array

    return m, lossfun


def right_counts(mesh):
    """Nothing is differentiated through them."""
    m = pair(mesh.model)

    def lossfun():
        F.reduce_from(mesh.model, np.array(5001.0)), F.gather_from(mesh.model, np.array([3.3, 1.1]))
        return loss(run(m)) + 0 * F.allreduce(mesh.model, np.array([3, 5, 7])).array.sum()

    return m, lossfun


def right_gradient_penalty(mesh):
    m = pair(mesh.model)

    def lossfun():
        x = mnpar.Variable(X)
        y = F.allreduce(mesh.model, run(m, x)) / mesh.model.size
        (gx,) = mnpar.grad([F.sum(y**2)], [x], enable_double_backprop=True)
        return loss(y) + F.mean((F.sum(gx**2, axis=1) - 1) ** 2)

    return m, lossfun


def right_counts_as_gradients(mesh):
    """The numbers of samples that pass each bias: by chance the same on all ranks."""
    m = mnpar.Chain(l=L.Linear(6, 6))
    m.b = mnpar.Parameter(np.zeros(3))
    passes = np.roll([[1, 0, 1], [1, 1, 0], [1, 0, 1]], mesh.model.rank, axis=0)
    return (
        m,
        lambda: (
            loss(m.l(X)) + F.reduce_from(mesh.model, F.sum(F.copy_to(mesh.model, m.b) * passes))
        ),
    )


def right_gradient_of_a_sum_of_gradients(mesh):
    """Each rank has a loss of its own; what their gradients add up to is the same on all."""
    m = L.Linear(6, 6).add_hook(WholeGradients(mesh.model))
    r = mesh.model.rank + 1

    def lossfun():
        x = mnpar.Variable(X * r)
        own = F.sum(F.tanh(F.allreduce(mesh.model, m(x)) * r))
        (gx,) = mnpar.grad([own], [x], enable_double_backprop=True)
        (ggx,) = mnpar.grad([F.sum(gx**2)], [x], enable_double_backprop=True)
        return own + F.sum(ggx**2)

    return m, lossfun


def right_sums_in_losses_that_differ(mesh):
    """Losses that add up, to each of which a P-th of a sum is added: its gradient is the same on
    all ranks, and whole.
    """
    head = L.Linear(6, 3)
    m = mnpar.Chain(trunk=L.Linear(6, 6), **{f"head{mesh.model.rank}": head})

    def lossfun():
        own = loss(head(F.copy_to(mesh.model, m.trunk(X))), (T + mesh.model.rank) % 3)
        return own + F.allreduce(mesh.model, F.sum(head.W**2)) / (3 * mesh.model.size)

    return m, lossfun


def right_sum_in_a_part(mesh):
    """A number that all ranks use alike for their parts, a P-th of it each."""
    m = pair(mesh.model)

    def lossfun():
        total = F.allreduce(mesh.model, F.sum(m.wide.W**2))
        return F.reduce_from(
            mesh.model, F.sum(m.wide(m.before(X)) ** 2) + 0.3 * total / mesh.model.size
        )

    return m, lossfun


def right_bias_added_once_by_hand(mesh):
    m, part = biased(mesh)
    b = lambda: m.out.b if mesh.model.rank == 0 else m.out.b + -m.out.b.array
    return m, lambda: loss(F.reduce_from(mesh.model, part() + b()))


def right_bias_copied(mesh):
    m, part = biased(mesh)
    return m, lambda: loss(
        F.reduce_from(mesh.model, part() + F.copy_to(mesh.model, m.out.b) / mesh.model.size)
    )


def right_ensemble_in_a_sum(mesh):
    """Each rank has a member of its own, with a bias."""
    m = mnpar.Chain(**{f"member{mesh.model.rank}": L.Linear(6, 3)})
    (member,) = m.children()
    member.b.array[...] = np.random.default_rng(mesh.model.rank).normal(size=3)
    return m, lambda: loss(F.reduce_from(mesh.model, member(X)) / mesh.model.size)


def right_blocks_of_scores(mesh):
    m = L.ColumnParallelLinear(mesh.model, 6, 8, initialW=0.1, gather_output=False)
    return m, lambda: F.vocabulary_parallel_softmax_cross_entropy(mesh.model, m(X), T)


def right_sums_that_are_awaited_in_another_order(mesh):
    """Of what is alike, and divided; one is used first on one rank, and the other one on
    another.
    """
    m = pair(mesh.model)

    def lossfun():
        y = run(m)
        sums = [F.iallreduce(mesh.model, y), F.iallreduce(mesh.model, y * y)]
        for each in sums if mesh.model.rank else sums[::-1]:
            each.array  # noqa: B018
        return loss((sums[0] + sums[1]) / mesh.model.size)

    return m, lossfun


def right_message_between_the_start_and_the_end_of_a_sum(mesh):
    """One rank starts a sum before, the other one after the first has sent it something."""
    m = pair(mesh.model)
    r = mesh.model.rank

    def lossfun():
        y = run(m)
        if r:
            F.recv(mesh.model, 0)
        total = F.iallreduce(mesh.model, y)
        if not r:
            F.send(y * 2, mesh.model, 1)
        return loss(total / mesh.model.size)

    return m, lossfun


def right_losses_that_are_shown(mesh):
    m = pair(mesh.model)

    def lossfun():
        mine = loss(run(m))
        for show in (F.allreduce, F.iallreduce, F.bcast, F.ibcast, F.allgather, F.iallgather):
            show(mesh.model, mine)
        return F.allreduce(mesh.model, mine, op="mean")

    return m, lossfun


def right_number_in_each_part(mesh):
    """Its gradient may be the same on all ranks by chance; and terms of each rank's own weights."""
    m = pair(mesh.model)
    m.scale = mnpar.Parameter(np.array(1.3))
    part = lambda: (
        F.sum(m.wide(m.before(X)) ** 2)
        + F.sum(m.wide.W**2)
        + F.sum(m.wide.b)
        + np.arange(6.0).sum() / 7
    )
    return m, lambda: F.reduce_from(mesh.model, part() + F.copy_to(mesh.model, m.scale) / 3)


def right_gradient_penalty_that_is_awaited_later(mesh):
    m = pair(mesh.model)

    def lossfun():
        x = mnpar.Variable(X)
        y = F.iallreduce(mesh.model, run(m, x)) / mesh.model.size
        (gx,) = mnpar.grad([F.sum(y**2)], [x], enable_double_backprop=True)
        return loss(y) + F.sum(gx**2)

    return m, lossfun


def right_sums_of_data(mesh):
    """In Variables, which have a gradient that nobody's update is."""
    m = pair(mesh.model)

    def lossfun():
        given = lambda: mnpar.Variable(X * (mesh.model.rank + 1))
        sums = [
            F.sum(kind(mesh.model, given() ** 2)) for kind in (F.allreduce, F.iallreduce, F.bcast)
        ]
        scale = F.tanh(F.allreduce(mesh.model, given(), op="mean")) + F.copy_to(
            mesh.model, mnpar.Variable(X)
        )
        joined = F.allgather(mesh.model, given(), axis=0)
        return loss(run(m) * scale) + 0.1 * sum(sums) + 0.1 * F.sum(joined**2)

    return m, lossfun


@pytest.mark.parametrize(
    "program",
    [
        right_sums_of_data,
        right_losses_that_are_shown,
        right_number_in_each_part,
        right_gradient_penalty_that_is_awaited_later,
        right_sums_in_losses_that_differ,
        right_sum_in_a_part,
        right_bias_added_once_by_hand,
        right_bias_copied,
        right_ensemble_in_a_sum,
        right_blocks_of_scores,
        right_sums_that_are_awaited_in_another_order,
        right_message_between_the_start_and_the_end_of_a_sum,
        right_pair,
        right_parts,
        right_sums_over_two_axes,
        right_losses_of_parts,
        right_by_chance,
        right_scalars_by_chance,
        right_penalty_of_parts,
        right_task_for_each_rank,
        right_means_of_what_is_alike,
        right_counts,
        right_gradient_penalty,
        right_counts_as_gradients,
        right_gradient_of_a_sum_of_gradients,
    ],
)
def test_right_programs_pass(program):
    mnpar.run(update, ranks=4, args=(MODEL_AND_SPACE, program, 2))


def test_batches_that_are_cut_and_losses_that_are_shown_along_the_data_axis_pass():
    def program(mesh):
        m = pair(mesh.model)

        def lossfun():
            mine = loss(
                run(m, F.scatter_to(mesh.data, X, axis=0)), F.scatter_to(mesh.data, T, axis=0).array
            )
            F.reduce_from(mesh.data, mine), F.gather_from(mesh.data, F.reshape(mine, (1,)))
            return mine

        return m, lossfun

    mnpar.run(update, ranks=4, args=(DATA_AND_MODEL, program, 2))


def test_stages_may_be_given_zeros_for_what_they_do_not_need():
    def program(mesh):
        m = mnpar.Pipeline.of(
            mesh.pipe,
            {"a": lambda: L.Linear(6, 6), "b": lambda: L.Classifier(L.Linear(6, 3))},
            "1f1b",
            2,
        )
        return m, lambda: m(X * (mesh.pipe.rank == 0), T * (mesh.pipe.rank == 1))

    mnpar.run(update, ranks=2, args=({"pipe": 2}, program))


def test_updates_that_are_not_compared_send_nothing_for_it():
    """The fourth of them: it is after 0, 1, 2 and 4 updates that gradients are compared."""
    few, more = (
        sum(mnpar.run(update, ranks=2, args=({"model": 2}, right_pair, times))) for times in (4, 5)
    )
    assert few < more


@pytest.mark.usefixtures("both_matches")
def test_in_debug_mode_each_update_is_looked_at():
    """The fourth, too, which is otherwise not compared."""
    calls = []

    def program(mesh):
        m = pair(mesh.model)
        part = lambda: F.linear(F.tanh(m.wide(X)), m.out.W)

        def lossfun():
            calls.append(mesh.comm.rank)
            return loss(
                (F.reduce_from if calls.count(mesh.comm.rank) < 4 else F.allreduce)(
                    mesh.model, part()
                )
            )

        return m, lossfun

    mnpar.run(update, ranks=2, args=({"model": 2}, program, 4))
    calls.clear()
    with (
        mnpar.using_config("debug", True),
        pytest.raises(MismatchError, match=r"allreduce at .*: each of 2 ranks has"),
    ):
        mnpar.run(update, ranks=2, args=({"model": 2}, program, 4))


def test_in_debug_mode_losses_of_their_own_are_told_but_not_of_models_of_their_own(recwarn):
    def own_losses(mesh):
        m = pair(mesh.model)
        return m, lambda: loss(run(m)) + F.sum(m.wide.W**2)

    with mnpar.using_config("debug", True):
        mnpar.run(update, ranks=2, args=({"model": 2}, right_task_for_each_rank))
        assert not recwarn.list
        mnpar.run(update, ranks=2, args=({"model": 2}, own_losses))
    assert [str(w.message)[:48] for w in recwarn] == [
        "ranks [0, 1] have samples in common, and losses "
    ]


@pytest.mark.usefixtures("both_matches")
def test_in_debug_mode_it_is_told_without_a_mesh():
    def program(comm):
        with mnpar.using_config("debug", True):
            layer = L.ColumnParallelLinear(comm, 6, 8)
            layer(X + comm.rank)

    with pytest.raises(
        MismatchError, match=r"copy_to at .*test_communication_checks.py:\d+: its input"
    ):
        mnpar.run(program, ranks=2)


@pytest.mark.usefixtures("both_matches")
def test_a_gradient_that_one_rank_alone_begins_is_told_in_debug_mode():
    def program(comm):
        with mnpar.using_config("debug", True):
            x = mnpar.Variable(X * (comm.rank + 1))
            y = F.sum(F.reduce_from(comm, x) ** 2)
            y.backward() if comm.rank == 0 else mnpar.backward()

    with pytest.raises(
        MismatchError,
        match=r"reduce_from at .*: the gradient of its output is 24 numbers.*missing on rank 1",
    ):
        mnpar.run(program, ranks=2)


def test_weights_that_were_loaded_may_have_been_drawn_from_other_numbers():
    def program(mesh):
        mnpar.random.seed(mesh.model.rank)
        m = mnpar.Chain(wide=L.ColumnParallelLinear(mesh.model, 6, 8))
        m.wide.W.array[...] = np.random.default_rng(mesh.model.rank).normal(size=(4, 6))
        return m, lambda: loss(m.wide(X))

    mnpar.run(update, ranks=2, args=({"model": 2}, program))


def train_by_hand(comm, updates=lambda comm, step: 1, make=None, steps=5):
    """Replicated layers before work that is divided by hand; how often a rank's optimizer steps."""
    mnpar.random.seed(0)
    layer = L.Linear(6, 3)
    optimizer = mnpar.optimizers.SGD(0.1).setup(layer)
    for step in range(steps):
        layer.cleargrads()
        h = F.copy_to(comm, F.tanh(layer(X) if make is None else make(layer(X))))
        F.sum(F.reduce_from(comm, h**2 * (1 + comm.rank) / 9)).backward()
        for _ in range(updates(comm, step)):
            optimizer.update()
    return layer.W.array


@pytest.mark.ranks(2, 3, 4, on="threads")
@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("first", [0, 2])
def test_copies_that_drift_without_a_mesh_are_told_before_the_next_step(comm, times, first):
    def updates(comm, step):
        return times if comm.rank == comm.size - 1 and step >= first else 1

    with pytest.raises(MismatchError, match=r"which depends on W \(3, 6\).*equally often"):
        train_by_hand(comm, updates)


@pytest.mark.ranks(2, 3, on="threads")
def test_copies_are_compared_at_uses_that_get_rarer(comm):
    counts = []
    for steps in (0, 10, 10, 1000):
        before = comm.traffic.collectives
        train_by_hand(comm, steps=steps)
        counts.append(comm.traffic.collectives - before - 2 * steps)
    assert counts[:3] == [0, 10, 6]  # uses 1 to 10 | 11 to 20
    assert 20 <= counts[3] <= 45  # one of 31


@pytest.mark.ranks(2, on="threads")
@pytest.mark.parametrize("copies", [1, 4, 10, 31, 62])
def test_each_of_the_copies_of_a_step_is_compared_in_turn(comm, copies):
    params = [mnpar.Parameter(np.ones(3), name=f"p{i}") for i in range(copies)]

    def train():
        for step in range(400):
            for i, param in enumerate(params):
                param.cleargrad()
                F.sum(F.reduce_from(comm, F.copy_to(comm, param) * (comm.rank + 1.0))).backward()
                if step < 20 or i or comm.rank == 0:  # rank 1 forgets one
                    param.array = param.array - 0.1 * param.grad

    with pytest.raises(MismatchError, match="which depends on p0"):
        train()


@pytest.mark.ranks(2, 3, on="threads")
def test_values_that_no_parameter_is_behind_may_differ(comm):
    x = mnpar.Variable(np.full(3, 1.0 + comm.rank))
    for _ in range(4):
        x.cleargrad()
        F.sum(F.reduce_from(comm, F.copy_to(comm, x))).backward()
        np.testing.assert_array_equal(x.grad, np.full(3, float(comm.size)))


@pytest.mark.ranks(2, on="threads")
def test_a_value_of_a_parameter_on_one_rank_alone_may_differ(comm):
    x = mnpar.Variable(np.ones(3)) if comm.rank else mnpar.Parameter(np.zeros(3))
    for _ in range(4):
        F.sum(F.reduce_from(comm, F.copy_to(comm, x))).backward()
