"""Compositions of parallelism that went wrong elsewhere, and silently (Megatron-LM issue 7452 and
others), against one process: right ones learn alike, and wrong ones, composed as they were there,
are told.

A program is called with a mesh and the name of a mistake, or none; it gives a model, a loss
function and its arguments. All updates clip the norm of the whole gradient and let weights decay,
so that what is counted twice in either shows too.
"""

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import MismatchError
from mnpar.initializers import Normal, initialize_by_path
from mnpar.link_hooks import WholeGradients
from mnpar.links.divided import initialize_part
from mnpar.plans import Box, block
from tests.parallel.mesh_models import check_pieces, pieces

pytestmark = pytest.mark.usefixtures("float64")

# samples, length, features, words, heads
N = 5
T = 4
D = 6
V = 7
H = 6
_rng = np.random.default_rng(0)
X = _rng.normal(size=(N, T, D))
WORDS = _rng.integers(V, size=(N, T))
LABELS = _rng.integers(V, size=(N, T))
# -1: padding
MASKED = np.where(_rng.random((N, T)) < [[0.1], [0.9], [0.2], [0.6], [0.0]], -1, LABELS)


def mine(comm, x, axis=0):
    """This rank's block."""
    return np.take(x, range(*block(x.shape[axis], comm.size, comm.rank)), axis)


def divided(comm, shape, axis=0, initializer=None):
    """A parameter of which each rank has a block."""
    first, last = block(shape[axis], comm.size, comm.rank)
    start = [0] * len(shape)
    stop = [*shape]
    start[axis], stop[axis] = first, last
    param = mnpar.Parameter(Normal(0.5) if initializer is None else initializer)
    initialize_part(param, shape, Box(tuple(start), tuple(stop)))
    return param


def replicated(*shape):
    return mnpar.Parameter(Normal(0.5), shape)


def loss(y, t=LABELS):
    return F.softmax_cross_entropy(F.reshape(y, (-1, y.shape[-1])), t.ravel())


def scores(mesh):
    """A model, and this rank's block of its scores."""
    m = mnpar.Chain(body=L.Linear(D, D))
    m.W = divided(mesh.model, (V, D))
    return m, lambda: F.linear(F.copy_to(mesh.model, F.reshape(m.body(X, 2), (N * T, D))), m.W)


# ---- vocabulary ----


def smoothed_labels(mesh, wrong):
    """Each rank smoothed over its own words (finding 1)."""
    m, part = scores(mesh)
    total = (lambda x: F.reduce_from(mesh.model, x)) if not wrong else lambda x: x

    def lossfun():
        x = part()
        log_sum = F.log(total(F.sum(F.exp(x), axis=1)))
        smooth = F.mean(log_sum - total(F.sum(x, axis=1)) / (V if not wrong else x.shape[1]))
        return (
            0.9 * F.vocabulary_parallel_softmax_cross_entropy(mesh.model, x, LABELS.ravel())
            + 0.1 * smooth
        )

    return m, lossfun


def squared_normalizer(mesh, wrong):
    """The z-loss, of each rank's own words."""
    m, part = scores(mesh)

    def lossfun():
        x = part()
        z = F.sum(F.exp(x), axis=1)
        z = F.log(z if wrong else F.reduce_from(mesh.model, z))
        return F.vocabulary_parallel_softmax_cross_entropy(
            mesh.model, x, LABELS.ravel()
        ) + 0.01 * F.mean(z * z)

    return m, lossfun


def gathered_scores(mesh, wrong):
    """All scores on each rank, taken for blocks of them: log P too much, and another gradient
    (finding 2).
    """
    m = mnpar.Chain(
        body=L.Linear(D, D),
        head=L.ColumnParallelLinear(mesh.model, D, V, gather_output=bool(wrong)),
    )
    x = lambda: F.reshape(m.head(m.body(X, 2), 2), (N * T, -1))
    return m, lambda: F.vocabulary_parallel_softmax_cross_entropy(mesh.model, x(), LABELS.ravel())


def tied_table(mesh, wrong):
    """One table, before and after: what enters its second use has to be copied."""
    m = mnpar.Chain(table=L.VocabularyParallelEmbedID(mesh.model, V, D), body=L.Linear(D, D))

    def lossfun():
        h = F.reshape(F.tanh(m.body(m.table(WORDS), 2)), (N * T, D))
        x = F.linear(h if wrong else F.copy_to(mesh.model, h), m.table.W)
        return F.vocabulary_parallel_softmax_cross_entropy(mesh.model, x, LABELS.ravel())

    return m, lossfun


# ---- means ----


def masked_tokens(mesh, wrong):
    """Means over each rank's own tokens, of which some are padding (findings 3 and 9)."""
    m = mnpar.Chain(body=L.Linear(D, D), next=L.Linear(D, V), after=L.Linear(D, V))
    both = mesh["data", "sequence"]
    x, t, u = (mine(mesh.sequence, mine(mesh.data, a), 1) for a in (X, MASKED, np.roll(MASKED, 1)))

    def mean(y, t):
        total = F.softmax_cross_entropy(F.reshape(y, (-1, V)), t.ravel(), reduce="no")
        return F.sum(total) / both.allreduce(np.array((t >= 0).sum()))

    def lossfun():
        h = F.tanh(m.body(x, 2))
        return mean(m.next(h, 2), t) + 0.3 * mean(m.after(h, 2), u)

    return m, lossfun


def masked_attention(mesh, wrong):
    """Attention over a divided sequence, and a mean over its tokens without padding, of which there
    are other numbers.
    """
    heads = L.MultiHeadAttention(
        3, D, mesh.model, True, sequence_comm=mesh.sequence, whole_gradients=False
    )
    m = mnpar.Chain(heads=heads, out=L.Linear(D, V))
    part = lambda a: mine(mesh.sequence, mine(mesh.data, a), 1)
    keys = np.arange(T)[None, None, None, :] < [[[[T]]], [[[1]]], [[[3]]], [[[2]]], [[[T]]]]
    x = part(X)
    t = part(MASKED)
    mask = mine(mesh.data, np.broadcast_to(keys, (N, 1, T, T)))
    mask = mine(mesh.sequence, mask, 2)

    def lossfun(x, t):
        return loss(m.out(m.heads(x, mask=mask), 2), t)

    return m, lossfun, x, t


# ---- replicated weights whose gradients are parts ----


def norm_of_heads(mesh, wrong):
    """One weight for all heads, of which each rank has some (finding 11)."""
    m = mnpar.Chain(out=L.RowParallelLinear(mesh.model, H * D, V, input_is_parallel=True))
    m.W = divided(mesh.model, (H, D, D))
    m.gamma = replicated(D)

    def lossfun():
        h = F.stack(
            [
                F.linear(F.copy_to(mesh.model, X), m.W[i], n_batch_axes=2)
                for i in range(len(m.W.array))
            ],
            axis=2,
        )
        gamma = m.gamma if wrong else F.copy_to(mesh.model, m.gamma)
        return loss(m.out(F.tanh(h) * gamma, 2))

    return m, lossfun


def shared_keys(mesh, wrong):
    """Queries of own heads with keys that all of them share."""
    m = mnpar.Chain(out=L.RowParallelLinear(mesh.model, H * T, V, input_is_parallel=True))
    m.queries = divided(mesh.model, (H, D, D))
    m.keys = replicated(D, D)

    def lossfun():
        x = F.copy_to(mesh.model, X)
        k = (
            F.linear(X, m.keys, n_batch_axes=2)
            if wrong == "before"
            else F.linear(x, m.keys, n_batch_axes=2)
        )
        if not wrong:
            k = F.copy_to(mesh.model, F.linear(X, m.keys, n_batch_axes=2))
        each = [
            F.matmul(F.linear(x, m.queries[i], n_batch_axes=2), k, transb=True)
            for i in range(len(m.queries.array))
        ]
        return loss(m.out(F.stack(each, axis=2), 2))

    return m, lossfun


def low_rank_update(mesh, wrong):
    """A layer's outputs are divided, and so is one of the two factors that are added to it; the
    other one is not.
    """
    m = mnpar.Chain(wide=L.ColumnParallelLinear(mesh.model, D, H * D, gather_output=False))
    m.out = L.RowParallelLinear(mesh.model, H * D, V, input_is_parallel=True)
    m.A = replicated(2, D)
    m.B = divided(mesh.model, (H * D, 2))

    def lossfun():
        a = F.linear(X, m.A, n_batch_axes=2)
        low = F.linear(a if wrong else F.copy_to(mesh.model, a), m.B, n_batch_axes=2)
        return loss(m.out(F.tanh(m.wide(X, 2) + low), 2))

    return m, lossfun


def norm_of_a_cut_sequence(mesh, wrong):
    """Norms and embeddings of places between layers with a divided sequence (Megatron-LM issue
    1446).
    """
    comm = mesh.model
    m = mnpar.Chain(
        norm=L.LayerNormalization(D),
        wide=L.ColumnParallelLinear(comm, D, 8, gather_output=False, sequence_axis=1),
    )
    m.out = L.RowParallelLinear(comm, 8, D, input_is_parallel=True, sequence_axis=1)
    m.places = replicated(T, D)
    m.last = L.Linear(D, V)
    for link in (m.norm, m.last):
        if wrong != link.name:
            link.add_hook(WholeGradients(comm))

    def lossfun():
        places = m.places if wrong == "places" else F.copy_to(comm, m.places)
        h = F.scatter_to(comm, X, axis=1) + places[slice(*block(T, comm.size, comm.rank))]
        h = h + m.out(F.tanh(m.wide(m.norm(F.reshape(h, (-1, D))).reshape(h.shape), 2)), 2)
        return loss(F.gather_from(comm, m.last(h, 2), axis=1))

    return m, lossfun


def row_parallel_bias(mesh, wrong):
    """A bias that each rank adds to its part of the sum."""
    m = mnpar.Chain(wide=L.ColumnParallelLinear(mesh.model, D, 8, gather_output=False))
    m.W = divided(mesh.model, (V, 8), 1)
    m.b = replicated(V)

    def lossfun():
        y = F.linear(F.tanh(m.wide(X, 2)), m.W, m.b if wrong else None, n_batch_axes=2)
        y = F.reduce_from(mesh.model, y)
        return loss(y if wrong else y + m.b)

    return m, lossfun


def adapter_of_a_whole_layer(mesh, wrong):
    """A layer that is whole, with two low-rank factors, on tokens of which each rank has others
    (finding 13).
    """
    comm = mesh.model
    m = mnpar.Chain(down=L.Linear(D, D), last=L.Linear(D, V))
    m.A, m.B = (
        (divided(comm, (2, D)), divided(comm, (D, 2), 1))
        if wrong == "divided"
        else (replicated(2, D), replicated(D, 2))
    )

    def lossfun():
        h = F.scatter_to(comm, X, axis=1)
        W = F.copy_to(comm, m.down.W)
        b = F.copy_to(comm, m.down.b)
        if wrong == "divided":
            low = F.reduce_from(
                comm,
                F.linear(F.linear(F.copy_to(comm, h), m.A, n_batch_axes=2), m.B, n_batch_axes=2),
            )
        else:
            A, B = (m.A, m.B) if wrong else (F.copy_to(comm, m.A), F.copy_to(comm, m.B))
            low = F.linear(F.linear(h, A, n_batch_axes=2), B, n_batch_axes=2)
        return loss(
            m.last(F.gather_from(comm, F.tanh(F.linear(h, W, b, n_batch_axes=2) + low), axis=1), 2)
        )

    return m, lossfun


# ---- other ranks than those of the layer ----


def embeddings_of_another_line(mesh, wrong):
    """What enters a layer is cut among the ranks of its axis, and not of another one with as many
    (findings 5 and 7).
    """
    m = mnpar.Chain(table=L.EmbedID(V, D), last=L.Linear(D, V))
    m.wide = L.ColumnParallelLinear(mesh.model, D, 8, gather_output=False, sequence_axis=1)
    m.out = L.RowParallelLinear(mesh.model, 8, D, input_is_parallel=True, sequence_axis=1)

    def lossfun(x, t):
        h = F.scatter_to(mesh.data if wrong else mesh.model, m.table(x), axis=1)
        h = h + m.out(F.tanh(m.wide(h, 2)), 2)
        return loss(m.last(F.gather_from(mesh.model, h, axis=1), 2), t)

    return m, lossfun, mine(mesh.data, WORDS), mine(mesh.data, LABELS)


def joined_on_another_line(mesh, wrong):
    """What is kept in parts is joined by the ranks that cut it (findings 4 and 6)."""
    m = mnpar.Chain(body=L.Linear(D, D), last=L.Linear(D, V))

    def lossfun(x, t):
        part = F.scatter_to(mesh.model, F.tanh(m.body(x, 2)), axis=2)
        return loss(m.last(F.gather_from(mesh.data if wrong else mesh.model, part, axis=2), 2), t)

    return m, lossfun, mine(mesh.data, X), mine(mesh.data, LABELS)


# ---- weights that are divided ----


def penalty_of_weights(mesh, wrong):
    """The square of a weight of which each rank has a part, beside one that all have."""
    m, part = scores(mesh)
    total = F.allreduce if wrong else F.reduce_from

    def lossfun():
        penalty = total(mesh.model, F.sum(m.W * m.W)) + F.sum(m.body.W * m.body.W)
        return (
            F.vocabulary_parallel_softmax_cross_entropy(mesh.model, part(), LABELS.ravel())
            + 0.1 * penalty
        )

    return m, lossfun


def attention_sinks(mesh, wrong):
    """A number for each head, that begins with 0: its part in the norm of all gradients (finding
    8).
    """
    m = mnpar.Chain(out=L.RowParallelLinear(mesh.model, H * D, V, input_is_parallel=True))
    m.W = divided(mesh.model, (H, D, D))
    m.sinks = divided(mesh.model, (H,), initializer=0)
    if wrong:
        m.sinks = mnpar.Parameter(0, m.sinks.shape)

    def lossfun():
        x = F.copy_to(mesh.model, X)
        h = [
            F.tanh(F.linear(x, m.W[i], n_batch_axes=2) + m.sinks[i]) for i in range(len(m.W.array))
        ]
        return loss(m.out(F.stack(h, axis=2), 2))

    return m, lossfun


def recomputed_block(mesh, wrong):
    """What is forgotten and computed again speaks to the ranks of its own axis (finding 4)."""
    m = mnpar.Chain(
        wide=L.ColumnParallelLinear(mesh.model, D, 8, gather_output=False), last=L.Linear(D, V)
    )
    m.out = L.RowParallelLinear(mesh.model, 8, D, input_is_parallel=True)
    run = lambda h: h + m.out(F.tanh(m.wide(h, 2)), 2)
    x = mnpar.Variable(X)
    return m, lambda: loss(m.last(F.forget(run, x, comm=mesh.model), 2))


def dropout(mesh, wrong):
    """What ranks hold alike has one mask, and each part its own."""
    m = mnpar.Chain(
        wide=L.ColumnParallelLinear(mesh.model, D, 8, gather_output=False), before=L.Linear(D, D)
    )
    m.out = L.RowParallelLinear(mesh.model, 8, V, input_is_parallel=True)
    masks = [np.random.default_rng(i).random((N, T, n)) < 0.5 for i, n in enumerate((D, 8))]

    def lossfun():
        h = F.dropout(m.before(X, 2), mask=masks[0] ^ bool(wrong and mesh.model.rank))
        return loss(m.out(F.dropout(F.tanh(m.wide(h, 2)), mask=mine(mesh.model, masks[1], 2)), 2))

    return m, lossfun


# ---- experts ----


def expert(i):
    return L.Linear(D, D)


def shared_expert(mesh, wrong):
    """Experts with a load balancing loss, and one that all tokens pass (findings 10; Megatron-LM
    issues 1652 and 5047).
    """
    m = mnpar.Chain(
        experts=L.MixtureOfExperts(mesh.model, expert, 3, D, data_comm=mesh.data),
        last=L.Linear(D, V),
    )
    m.wide = L.ColumnParallelLinear(mesh.model, D, 8, gather_output=False)
    m.out = L.RowParallelLinear(mesh.model, 8, D, input_is_parallel=True)

    def lossfun(x, t):
        y = m.experts(x) + m.out(F.tanh(m.wide(x, 2)), 2)
        return loss(m.last(y, 2), t) + 0.1 * m.experts.balance

    return m, lossfun, mine(mesh.data, X), mine(mesh.data, LABELS)


def router_of_a_cut_sequence(mesh, wrong):
    """Tokens of each rank's part of the sequence; the router is the same, and its gradient of a
    part of the tokens.
    """
    comm = mesh.model
    own = {"input_is_parallel": True, "whole_gradients": wrong != "share"}
    m = mnpar.Chain(experts=L.MixtureOfExperts(comm, expert, 3, D, **own), last=L.Linear(D, V))
    m.gate = replicated(2, D)
    total = F.allreduce if wrong == "penalty" else F.reduce_from

    def lossfun():
        h = F.scatter_to(comm, X, axis=1)
        gate = m.gate if wrong == "gate" else F.copy_to(comm, m.gate)
        z = F.logsumexp(F.linear(h, gate, n_batch_axes=2), axis=2)
        return loss(m.last(F.gather_from(comm, m.experts(h), axis=1), 2)) + 0.1 * total(
            comm, F.sum(z * z)
        ) / (N * T)

    return m, lossfun


def balance_of_own_tokens(mesh, wrong):
    """Ranks with other numbers of tokens: a balance is weighted as a loss is, and its shares are of
    all tokens.
    """
    own = {"input_is_parallel": True, "whole_gradients": False, "data_comm": mesh.data}
    m = mnpar.Chain(
        experts=L.MixtureOfExperts(mesh.expert, expert, 3, D, **own), last=L.Linear(D, V)
    )
    part = lambda a: mine(mesh["data", "expert"], a)

    def lossfun(x, t):
        return loss(m.last(m.experts(x), 2), t) + 0.1 * m.experts.balance

    return m, lossfun, part(X), part(LABELS)


def experts_without_padding(mesh, wrong):
    """Padding goes to no expert, and counts in no balance: ranks have other numbers of tokens, or
    none (finding 5).
    """
    own = {"input_is_parallel": True, "whole_gradients": False, "data_comm": mesh.data}
    m = mnpar.Chain(
        experts=L.MixtureOfExperts(mesh.expert, expert, 3, D, **own), last=L.Linear(D, V)
    )
    part = lambda a: mine(mesh["data", "expert"], a)

    def lossfun(x, t):
        there = t >= 0
        return loss(m.last(m.experts(x[there])), t[there]) + 0.1 * m.experts.balance

    return m, lossfun, part(X), part(MASKED)


# ---- stages ----


class Head(mnpar.Chain):
    """Scores of the next word, and of the one after it, by one table."""

    def __init__(self):
        super().__init__(body=L.Linear(D, D))
        self.W = replicated(V, D)
        self.after = replicated(V, D)

    def forward(self, h, t):
        x = [
            F.linear(h, self.W, n_batch_axes=2),
            F.linear(F.tanh(self.body(h, 2)), self.after, n_batch_axes=2),
        ]
        return loss(x[0], t) + 0.3 * loss(x[1][:, :-1], t[:, 1:])


def tied_heads_in_stages(mesh, wrong):
    """The embedding is in the first stage, its two other uses are in the last one."""
    tied = {"/head/W": "/embed/W", "/head/after": "/embed/W"}
    layers = {"embed": lambda: L.EmbedID(V, D), "tanh": lambda: F.tanh, "head": Head}
    m = mnpar.Pipeline.of(mesh.pipe, layers, "1f1b", 2, tied=tied)
    return m, m, mine(mesh.data, WORDS), mine(mesh.data, LABELS)


class ExpertsBetween(mnpar.Chain):
    """Hands on the balance with what it gives."""

    def __init__(self, mesh):
        super().__init__(experts=L.MixtureOfExperts(mesh.model, expert, 3, D, data_comm=mesh.data))

    def forward(self, h):
        return h + self.experts(h), self.experts.balance


class BalancedHead(mnpar.Chain):
    def __init__(self):
        super().__init__(last=L.Linear(D, V))

    def forward(self, h, balance, t):
        return loss(self.last(h, 2), t) + 0.1 * balance


def experts_in_a_stage(mesh, wrong):
    """A balance goes to the stage that has the loss."""
    layers = {
        "embed": lambda: L.EmbedID(V, D),
        "experts": lambda: ExpertsBetween(mesh),
        "head": BalancedHead,
    }
    m = mnpar.Pipeline.of(mesh.pipe, layers)
    return m, m, mine(mesh.data, WORDS), mine(mesh.data, LABELS)


class WeightedHead(mnpar.Chain):
    """The loss of each word is multiplied by a number; the mean over sequences of the sums of
    these.
    """

    def __init__(self):
        super().__init__(last=L.Linear(D, V))

    def forward(self, h, t, w):
        each = F.softmax_cross_entropy(F.reshape(self.last(h, 2), (-1, V)), t.ravel(), reduce="no")
        return F.sum(each * w.ravel()) / len(t)


def masked_micro_batches(mesh, wrong):
    """Micro-batches with other numbers of words without padding, each of which counts alike."""
    layers = {"embed": lambda: L.EmbedID(V, D), "tanh": lambda: F.tanh, "head": WeightedHead}
    m = mnpar.Pipeline.of(mesh.pipe, layers, "1f1b", 2, labels=2)
    there = MASKED >= 0
    return m, m, *[mine(mesh.data, a) for a in (WORDS, MASKED, there * (N / there.sum()))]


def tokens(x, t):
    """What a loss is the mean of."""
    return (t >= 0).sum()


def size(x, t):
    return t.size


# Meshes, options of the optimizer, and mistakes with what is told of them (of None, nothing:
# docs/mesh.md).
MODEL = ({"model": 2}, {"model": 3})
TOKENS = {"axes": ("data", "sequence"), "samples": tokens}
SEQUENCE = ({"sequence": 2}, {"data": 2, "sequence": 2})
BOTH = ({"data": 2, "model": 2}, {"data": 2, "model": 3})
OWN = "losses of their own"  # in debug mode, where it is a warning
COMPOSITIONS = {
    smoothed_labels: (MODEL, {}, {"local": OWN}),
    squared_normalizer: (MODEL, {}, {"local": OWN}),
    gathered_scores: (
        MODEL,
        {},
        {"gathered": "each of 2 ranks has the same scores, and not a block"},
    ),
    tied_table: (
        MODEL,
        {},
        {"not copied": "reduce_from at .*computed from what reduce_from at .*pass copy_to before"},
    ),
    masked_tokens: (SEQUENCE, {"axes": ("data", "sequence"), "reduce": "sum"}, {}),
    masked_attention: (({"sequence": 2, "model": 2}, {"data": 2, "sequence": 2}), TOKENS, {}),
    norm_of_heads: (MODEL, {}, {"not copied": "the gradients of /gamma are not the same"}),
    shared_keys: (
        MODEL,
        {},
        {
            "not copied": "the gradients of /keys are not",
            "before": "the gradients of /keys are not",
        },
    ),
    low_rank_update: (MODEL, {}, {"not copied": "the gradients of /A are not the same"}),
    norm_of_a_cut_sequence: (
        MODEL,
        {},
        {
            "norm": "the gradients of /norm/gamma are not the same",
            "last": "the gradients of /last/W are not the same",
            "places": "the gradients of /places are not the same",
        },
    ),
    row_parallel_bias: (MODEL, {}, {"each": "each of 2 ranks adds the same /b to its part"}),
    adapter_of_a_whole_layer: (
        MODEL,
        {},
        {
            "divided": "copy_to at .*: its input is",
            "not copied": "the gradients of /A are not the same",
        },
    ),
    embeddings_of_another_line: (
        BOTH,
        {"samples": size},
        {"cut": "scatter_to at .* has ranks with samples of their own"},
    ),
    joined_on_another_line: (
        BOTH,
        {"samples": size},
        {"joined": r"gather_from at .* shapes \[\(3, 4, 3\), \(2, 4, 3\)\]"},
    ),
    penalty_of_weights: (
        MODEL,
        {},
        {"summed": "allreduce at .*: each of 2 ranks has the same loss, of which it is a term"},
    ),
    attention_sinks: (MODEL, {}, {"whole": "the gradients of /sinks are not the same"}),
    recomputed_block: (MODEL, {}, {}),
    dropout: (MODEL, {}, {"others": "copy_to at .*: its input"}),
    shared_expert: (({"model": 3}, {"data": 2, "model": 2}), {"samples": size}, {}),
    router_of_a_cut_sequence: (
        MODEL,
        {},
        {
            "share": r"MixtureOfExperts: it is over ranks along \['model'\], where its gradients "
            r"are each rank's share",
            "gate": "the gradients of /gate are not the same",
            "penalty": "allreduce at .*: each of 2 ranks has the same loss",
        },
    ),
    balance_of_own_tokens: (
        ({"expert": 4}, {"data": 3, "expert": 2}),
        {"axes": ("data", "expert"), "samples": size},
        {},
    ),
    experts_without_padding: (
        ({"expert": 6}, {"data": 3, "expert": 2}),
        {"axes": ("data", "expert"), "samples": tokens},
        {},
    ),
    experts_in_a_stage: (({"pipe": 3}, {"data": 2, "pipe": 2, "model": 2}), {"samples": size}, {}),
    masked_micro_batches: (({"pipe": 2}, {"pipe": 2, "data": 2}), {}, {}),
    tied_heads_in_stages: (({"pipe": 2}, {"pipe": 2, "data": 2}), {"samples": size}, {}),
}


def train(comm, axes, program, options, wrong=None):
    """Two updates; first gradients, before they are clipped, and last weights."""
    with mnpar.using_config("dtype", np.dtype("f8")):
        mesh = mnpar.Mesh(comm, **axes)
        mnpar.random.seed(0)
        model, *call = program(mesh, wrong)
        initialize_by_path(model, 1)
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.MomentumSGD(0.3), mesh, **options
        ).setup(model)
        optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(0.05))
        optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(0.01))
        gradients = None
        for _ in range(2):
            optimizer.update(*call)
            gradients = gradients or pieces(model, "grad")
        return gradients, pieces(model, "array")


@functools.cache
def alone(program):
    """What one process learns."""
    options = {name: value for name, value in COMPOSITIONS[program][1].items() if name != "axes"}
    with mnpar.using_config("dtype", np.dtype("f8")):
        ((gradients, weights),) = mnpar.run(train, ranks=1, args=({}, program, options))
    return [{path: array for path, _, _, array in found} for found in (gradients, weights)]


def cases(of):
    return [pytest.param(*case, id="-".join([case[0].__name__, str(case[1])])) for case in of]


@pytest.mark.parametrize(
    ("program", "axes"),
    cases([(p, axes) for p, (meshes, _, _) in COMPOSITIONS.items() for axes in meshes]),
)
def test_what_is_composed_rightly_learns_as_one_process(program, axes):
    ranks = mnpar.run(
        train, ranks=int(np.prod([*axes.values()])), args=(axes, program, COMPOSITIONS[program][1])
    )
    for found, expected in zip(zip(*ranks, strict=True), alone(program), strict=True):
        check_pieces(found, expected, 1e-9)


@pytest.mark.parametrize(
    ("program", "wrong"),
    cases([(p, wrong) for p, (_, _, mistakes) in COMPOSITIONS.items() for wrong in mistakes]),
)
def test_what_is_composed_wrongly_is_told(program, wrong):
    (axes, *_), options, mistakes = COMPOSITIONS[program]
    warns = mistakes[wrong] is OWN
    with (
        mnpar.using_config("debug", warns),
        pytest.raises(UserWarning if warns else MismatchError, match=mistakes[wrong]),
    ):
        mnpar.run(train, ranks=int(np.prod([*axes.values()])), args=(axes, program, options, wrong))


def go_on(comm, axes, program, options, folder, begin):
    """The first update, which leaves a checkpoint, or the second one, which begins with it; the
    weights.
    """
    with mnpar.using_config("dtype", np.dtype("f8")):
        mesh = mnpar.Mesh(comm, **axes)
        mnpar.random.seed(begin)
        model, *call = program(mesh, None)
        initialize_by_path(model, 1 + begin)
        mnpar.random.seed(0)  # alike on all ranks, whatever they drew for their parts
        # (the gradient of a key's bias is 0 but for rounding)
        rule = mnpar.optimizers.Adam(0.05, eps=0.1)
        optimizer = mnpar.create_multi_node_optimizer(rule, mesh, **options).setup(model)
        optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(0.05))
        everything = {"model": model, "optimizer": optimizer}
        if begin:
            assert mnpar.checkpoint.load(folder, everything, comm) == begin
        optimizer.update(*call)
        mnpar.checkpoint.save(folder, everything, comm, begin + 1)
        return pieces(model, "array")


@pytest.mark.parametrize(
    "program", COMPOSITIONS, ids=[program.__name__ for program in COMPOSITIONS]
)
def test_what_is_composed_rightly_goes_on_on_another_mesh(program, tmp_path):
    meshes, options, _ = COMPOSITIONS[program]
    at = lambda axes: {name: value for name, value in options.items() if axes or name != "axes"}
    learn = lambda axes, folder, begin: mnpar.run(
        go_on,
        ranks=int(np.prod([*axes.values()])),
        args=(axes, program, at(axes), tmp_path / folder, begin),
    )
    for begin in (0, 1):
        (alone,) = learn({}, "alone", begin)
    learn(meshes[0], "first", 0)
    check_pieces(learn(meshes[1], "first", 1), {path: array for path, _, _, array in alone}, 1e-9)
