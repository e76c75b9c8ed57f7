"""What divided layers send, counted, against what has to be sent: not more than 2 % above it.

Of P ranks that hold parts of a sum of n bytes, each has to send 2 (P - 1) / P · n so that all get
the sum (and half of that for a part of the sum, or from parts to the whole): Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms", JPDC 2009.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.link_hooks import WholeGradients
from mnpar.plans import block

pytestmark = pytest.mark.usefixtures("float64", "debug_off")

# of 8 bytes: activations are larger than what is cheaper to gather than to reduce
N, T, D, HEADS = (
    4,
    24,
    48,
    12,
)
ACTIVATIONS = 8 * N * T * D


def mlp(comm, sequence_axis=None):
    one = L.ColumnParallelLinear(comm, D, 4 * D, gather_output=False, sequence_axis=sequence_axis)
    two = L.RowParallelLinear(comm, 4 * D, D, input_is_parallel=True, sequence_axis=sequence_axis)
    return mnpar.Chain(one=one, two=two), lambda x: two(F.gelu(one(x, 2)), 2)


def attention(comm, sequence_axis=None):
    """Each rank has some of the heads; the three products of the input are one layer."""
    first, last = block(HEADS, comm.size, comm.rank)
    heads = last - first
    width = D // HEADS
    one = L.ColumnParallelLinear(comm, D, 3 * D, gather_output=False, sequence_axis=sequence_axis)
    two = L.RowParallelLinear(comm, D, D, input_is_parallel=True, sequence_axis=sequence_axis)

    def forward(x):
        q, k, v = F.separate(
            one(x, 2).reshape(N, T, heads, 3, width).transpose(0, 2, 1, 3, 4), axis=3
        )
        h = F.scaled_dot_product_attention(q, k, v, causal=True)  # (N, heads, T, width)
        return two(h.transpose(0, 2, 1, 3).reshape(N, T, heads * width), 2)

    return mnpar.Chain(one=one, two=two), forward


def block_of_a_transformer(comm, sequence_axis=None):
    attend, attending = attention(comm, sequence_axis)
    widen, widening = mlp(comm, sequence_axis)
    before = L.LayerNormalization(D)
    after = L.LayerNormalization(D)
    if sequence_axis is not None:
        for norm in (before, after):
            norm.add_hook(WholeGradients(comm))

    def forward(x):
        x = x + attending(before(x))
        return x + widening(after(x))

    return mnpar.Chain(attend=attend, widen=widen, before=before, after=after), forward


def convolutions(comm):
    one = L.FilterParallelConvolution2D(comm, 6, 24, 3, pad=1, gather_output=False)
    two = L.ChannelParallelConvolution2D(comm, 24, 12, 3, pad=1, input_is_parallel=True)
    return mnpar.Chain(one=one, two=two), lambda x: two(F.relu(one(x)))


def sent(comm, made, x0):
    """Bytes that all ranks together have sent, forward and backward."""
    _, forward = made
    x = mnpar.Variable(x0)
    start = comm.traffic.collective_bytes
    y = forward(x)
    middle = comm.traffic.collective_bytes
    F.sum(y).backward()
    end = comm.traffic.collective_bytes
    return comm.allreduce(np.array([middle - start, end - middle]))


def least(P, n, collectives):
    """Bytes of so many allreduces of n bytes on P ranks."""
    return 2 * (P - 1) * n * collectives


# what is made; allreduces of activations forward and backward, where the sequence is whole
CASES = {
    "mlp": (mlp, 1),
    "attention": (attention, 1),
    "block of a transformer": (block_of_a_transformer, 2),
}


@pytest.mark.parametrize("sequence_axis", [None, 1], ids=["whole sequence", "cut sequence"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_layers_of_a_transformer_send_what_has_to_be_sent(ranks, name, sequence_axis):
    """With the sequence cut, an allreduce is a reduce-scatter and an allgather: as many bytes. What
    norms see is a part of the sequence then, so that their gradients have to be summed, too.
    """
    make, pairs = CASES[name]

    def program(comm):
        part = slice(None) if sequence_axis is None else slice(*block(T, comm.size, comm.rank))
        return sent(
            comm,
            make(comm, sequence_axis),
            np.random.default_rng(0).normal(size=(N, T, D))[:, part].copy(),
        )

    forward, backward = mnpar.run(program, ranks=ranks)[0]
    minimum = least(ranks, ACTIVATIONS, pairs)
    assert minimum <= forward <= 1.02 * minimum
    # gammas and betas
    vectors = 4 if sequence_axis is not None and name == "block of a transformer" else 0
    minimum = 2 * minimum + least(ranks, 8 * D * vectors, 1)
    assert minimum <= forward + backward <= 1.02 * minimum


ALONE = {  # layers of one rank, which have nobody to speak to
    **{name: lambda comm, make=make: make(comm, 1)[1] for name, (make, _) in CASES.items()},
    "heads": lambda comm: L.MultiHeadAttention(HEADS, D, comm, causal=True, sequence_comm=comm),
    "all to all": lambda comm: L.MultiHeadAttention(
        HEADS, D, comm, sequence_comm=comm, sequence="all_to_all"
    ),
    "table": lambda comm: (
        lambda x: L.VocabularyParallelEmbedID(comm, 9, D, sequence_axis=1)(
            x[:, :, 0].array.astype("i4")
        )
    ),
}


@pytest.mark.parametrize("name", ALONE)
def test_layers_of_one_rank_are_plain_and_leave_nothing_on_the_tape(name):
    comm = mnpar.create_communicator("self")
    with mnpar.Tape() as tape:
        y = ALONE[name](comm)(mnpar.Variable(np.ones((N, T, D))))
    assert y.shape == (N, T, D)
    assert tape.records == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_pair_of_convolutions_sends_what_has_to_be_sent(ranks):
    """Forward the sums of the outputs, backward those of the input's gradient."""
    images = np.ones((8, 6, 14, 14))
    forward, backward = mnpar.run(lambda comm: sent(comm, convolutions(comm), images), ranks=ranks)[
        0
    ]
    outputs = least(ranks, 8 * 8 * 12 * 14 * 14, 1)
    inputs = least(ranks, images.nbytes, 1)
    assert outputs <= forward <= 1.02 * outputs
    assert inputs <= backward <= 1.02 * inputs


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_scores_of_a_vocabulary_send_three_numbers_a_word(ranks):
    """Gathered scores would be V / 3 times as many."""
    words, V = 12_000, 13

    def program(comm):
        first, last = block(V, comm.size, comm.rank)
        loss = lambda x: F.vocabulary_parallel_softmax_cross_entropy(comm, x, np.arange(words) % V)
        return sent(comm, (None, loss), np.ones((words, last - first)))

    forward, backward = mnpar.run(program, ranks=ranks)[0]
    minimum = least(ranks, 8 * 3 * words, 1)
    assert minimum <= forward <= 1.02 * minimum
    assert backward == 0


@pytest.mark.parametrize("sequence_axis", [None, 1], ids=["whole", "cut"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_table_of_words_sends_its_rows_once(ranks, sequence_axis):
    words = np.arange(N * T).reshape(N, T) % 10

    def program(comm):
        table = L.VocabularyParallelEmbedID(comm, 10, D, sequence_axis=sequence_axis)
        start = comm.traffic.collective_bytes
        y = table(words)
        forward = comm.traffic.collective_bytes - start
        F.sum(y).backward()
        return comm.allreduce(np.array([forward, comm.traffic.collective_bytes - start - forward]))

    forward, backward = mnpar.run(program, ranks=ranks)[0]
    half = (ranks - 1) * ACTIVATIONS
    expected = [2 * half, 0] if sequence_axis is None else [half, half]
    np.testing.assert_allclose([forward, backward], expected, rtol=0.02)


@pytest.mark.ranks(2, 3)
def test_processes_send_as_many_bytes_as_threads_would(comm):
    forward, backward = sent(comm, block_of_a_transformer(comm), np.ones((N, T, D)))
    minimum = least(comm.size, ACTIVATIONS, 2)
    assert minimum <= forward <= 1.02 * minimum
    assert minimum <= backward <= 1.02 * minimum
