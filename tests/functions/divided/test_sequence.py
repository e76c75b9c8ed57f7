"""Attention over a sequence that is cut among ranks, against that of one rank: values, gradients,
bytes, work and memory.
"""

import threading
import tracemalloc
from collections import Counter
from functools import partial

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar import backend
from mnpar.errors import MismatchError
from mnpar.kernels import attention_tiles, tuning
from mnpar.plans import in_order, positions, zigzag

n = 9
LENGTHS = {1: [9], 2: [7, 2], 3: [4, 0, 5], 4: [4, 0, 3, 2], 6: [2, 0, 3, 1, 0, 3]}
KINDS = {"ring": F.ring_attention, "all to all": F.all_to_all_attention}


def cut_of(kind, ranks, length=n):
    return zigzag(length, ranks) if kind == "zigzag" else in_order(LENGTHS[ranks])


def numbers(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def gradients(attention, arrays):
    """The means, and the gradients of a loss whose derivatives all differ."""
    xs = [mnpar.Variable(x) for x in arrays]
    y = attention(*xs)
    F.sum(F.sin(y) * y).backward()
    return [y.array, *[x.grad for x in xs]]


def mask_of(kind, heads):
    shown = np.random.default_rng(5).random((heads, n, n) if kind == "of heads" else (n, n)) > 0.4
    if kind == "blind":  # one query sees nothing; another only what causal attention hides
        shown[5], shown[2, :3] = False, False
    return {"none": None, "padding": shown[:1]}.get(kind, shown)


def rows(mask, mine):
    return mask if mask is None or mask.shape[-2] == 1 else mask[..., mine, :]


@pytest.mark.grid
@pytest.mark.parametrize("mask", ["none", "of heads", "blind", "padding"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("cut", ["in order", "zigzag"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_one_rank(kind, ranks, cut, causal, mask):
    heads = 3
    stretches = cut_of(cut, ranks)
    shown = mask_of(mask, 3)
    arrays = numbers((2, heads, n, 3), (2, heads, n, 3), (2, heads, n, 4))
    truth = gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, shown, causal), arrays
    )

    def program(comm):
        mine = positions(stretches[comm.rank])
        told = None if cut == "in order" else stretches  # blocks in order need not be told
        attention = lambda q, k, v: KINDS[kind](comm, q, k, v, rows(shown, mine), causal, cut=told)
        found = gradients(attention, [x[:, :, mine] for x in arrays])
        for x, y in zip(found, truth, strict=True):
            np.testing.assert_allclose(x, y[:, :, mine], rtol=1e-10, atol=1e-12)

    mnpar.run(program, ranks=ranks)


@pytest.mark.parametrize("mask", ["none", "of heads", "blind"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_one_rank_computes_in_blocks_of_any_size_with_weights_kept_or_made_again(
    causal, mask, monkeypatch
):
    shown = None if mask == "none" else np.random.default_rng(5).random((2, 300, 280)) > 0.4
    if mask == "blind":
        shown[:, 200], shown[:, 2, :3] = False, False
    arrays = numbers((2, 300, 3), (2, 280, 3), (2, 280, 4))
    found = []
    for room, kept in ((2**30, 2**30), (2**30, 0), (2**21, 2**30), (2**10, 0), (2**10, 2**30)):
        monkeypatch.setattr(backend, "block_bytes", lambda x, room=room: room)
        monkeypatch.setattr(tuning, "ATTENTION_WEIGHTS", kept)
        found.append(
            gradients(
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, shown, causal), arrays
            )
        )
    for results in found[1:]:
        for x, y in zip(results, found[0], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("heads", "of_keys"), [(1, 1), (2, 2), (5, 5), (4, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_heads_is_computed(kind, heads, of_keys):
    """Fewer than ranks, not divisible by them, and one of keys for all of the queries."""
    arrays = numbers((heads, n, 2), (of_keys, n, 2), (of_keys, n, 2))
    truth = gradients(F.scaled_dot_product_attention, arrays)

    def program(comm):
        mine = positions(in_order(LENGTHS[3])[comm.rank])
        for x, y in zip(
            gradients(lambda *xs: KINDS[kind](comm, *xs), [x[:, mine] for x in arrays]),
            truth,
            strict=True,
        ):
            np.testing.assert_allclose(x, y[:, mine], rtol=1e-10, atol=1e-12)

    mnpar.run(program, ranks=3)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    ("T", "S"), [([2, 1, 3], [4, 0, 5]), ([4, 5, 0], [2, 3, 1])], ids=["more keys", "more queries"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_keys_may_be_of_two_sequences(kind, T, S, causal):
    """Causal attention counts from the end, so that of more queries the first ones see nothing, and
    take the mean.
    """
    arrays = numbers((1, sum(T), 3), (1, sum(S), 3), (1, sum(S), 2))
    truth = gradients(lambda *xs: F.scaled_dot_product_attention(*xs, causal=causal), arrays)

    def program(comm):
        q, k = [positions(in_order(lengths)[comm.rank]) for lengths in (T, S)]
        parts = [x[:, mine] for x, mine in zip(arrays, (q, k, k), strict=True)]
        found = gradients(lambda *xs: KINDS[kind](comm, *xs, causal=causal), parts)
        for x, y, mine in zip(found, truth, (q, q, k, k), strict=True):
            np.testing.assert_allclose(x, y[:, mine], rtol=1e-10, atol=1e-12)

    mnpar.run(program, ranks=3)


def higher(attention, arrays):
    """Gradients of gradients, and theirs."""
    xs = [mnpar.Variable(x) for x in arrays]
    y = attention(*xs)
    gs = mnpar.grad([F.sum(F.sin(y) * y)], xs, enable_double_backprop=True)
    ggs = mnpar.grad([F.sum(F.sin(g)) for g in gs], xs, enable_double_backprop=True)
    mnpar.backward([F.sum(F.sin(g) * g) for g in ggs])
    return [*[g.array for g in ggs], *[x.grad for x in xs]]


@pytest.mark.parametrize("mask", ["none", "blind"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(("kind", "ranks"), [("ring", 2), ("ring", 3), ("all to all", 2)])
def test_it_is_differentiable_three_times(kind, ranks, causal, mask):
    stretches = zigzag(n, ranks)
    shown = mask_of(mask, 2)
    arrays = numbers(*[(2, n, 3)] * 3)
    truth = higher(lambda *xs: F.scaled_dot_product_attention(*xs, shown, causal), arrays)

    def program(comm):
        mine = positions(stretches[comm.rank])
        attention = lambda *xs: KINDS[kind](comm, *xs, rows(shown, mine), causal, cut=stretches)
        for x, y in zip(higher(attention, [x[:, mine] for x in arrays]), truth, strict=True):
            np.testing.assert_allclose(x, y[:, mine], rtol=1e-8, atol=1e-10)

    mnpar.run(program, ranks=ranks)


@pytest.mark.ranks(1, 2, 3)
def test_two_layers_between_recuts_are_those_of_one_rank(comm):
    """On thread ranks and on mpiexec ranks; a rank without a loss takes part in backward."""
    (x0,) = numbers((2, n, 4))

    def layers(x, attention):
        return attention(F.tanh(attention(x)))

    def last(y):
        return F.sum(F.sin(y[:, -2:]) * y[:, -2:])

    whole = mnpar.Variable(x0)
    y1 = layers(whole, lambda x: F.scaled_dot_product_attention(x, x, x, causal=True))
    last(y1).backward()
    blocks = in_order([n // comm.size + (r < n % comm.size) for r in range(comm.size)])
    zig = zigzag(n, comm.size)
    mine = positions(blocks[comm.rank])
    x = mnpar.Variable(x0[:, mine])
    y = F.recut(comm, x, blocks, zig)
    y = layers(y, lambda x: F.ring_attention(comm, x, x, x, causal=True, cut=zig))
    y = F.recut(comm, y, zig, blocks)
    np.testing.assert_allclose(y.array, y1.array[:, mine], rtol=1e-11)
    if comm.rank == comm.size - 1:
        last(y).backward()
    else:
        mnpar.backward()
    np.testing.assert_allclose(x.grad, whole.grad[:, mine], rtol=1e-10, atol=1e-12)


def traffic(attention, ranks, length, causal, cut):
    """Cells that all ranks sent, forward and backward."""
    arrays = numbers(*[(4, length, 8)] * 3)

    def program(comm):
        mine = positions(cut[comm.rank])
        xs = [mnpar.Variable(x[:, mine]) for x in arrays]
        counts = [comm.traffic.bytes]
        y = attention(comm, *xs, causal=causal, cut=cut)
        counts.append(comm.traffic.bytes)
        F.sum(F.sin(y)).backward()
        counts.append(comm.traffic.bytes)
        return np.diff(counts) / 8 / (4 * 8)  # rows

    return np.sum(mnpar.run(program, ranks=ranks), axis=0)


@pytest.mark.parametrize(("ranks", "length"), [(2, 64), (3, 61), (4, 64)])
@pytest.mark.parametrize("cut", ["in order", "zigzag"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_a_ring_carries_what_is_looked_at_once_forward_and_twice_backward(
    ranks, length, cut, causal
):
    stretches = (
        zigzag(length, ranks)
        if cut == "zigzag"
        else in_order([len(a) for a in np.array_split(np.arange(length), ranks)])
    )
    held, needed = [positions(s) for s in stretches], 0
    for mine in held:  # the keys of others that this rank's last query sees
        needed += sum(
            [
                int((theirs <= mine.max()).sum()) if causal else len(theirs)
                for theirs in held
                if theirs is not mine
            ]
        )
    forward, backward = traffic(F.ring_attention, ranks, length, causal, stretches)
    assert forward == 2 * needed  # a row of k, a row of v
    assert backward == 4 * needed


@pytest.mark.parametrize(("ranks", "length"), [(2, 64), (4, 64)])
def test_heads_are_exchanged_once_forward_and_once_backward(ranks, length):
    cut = in_order([length // ranks] * ranks)
    forward, backward = traffic(F.all_to_all_attention, ranks, length, True, cut)
    assert forward == backward == 4 * length * (ranks - 1) / ranks  # q, k, v, and o


def work(ranks, cut, monkeypatch):
    """Tiles and cells of scores that each rank computes, forward and backward."""
    counts, scores = Counter(), attention_tiles.scores

    def counted(q, k, hidden):
        counts[threading.get_ident(), "tiles"] += 1
        counts[threading.get_ident(), "cells"] += q.shape[-2] * k.shape[-2]
        return scores(q, k, hidden)

    monkeypatch.setattr(attention_tiles, "scores", counted)

    def program(comm):
        x = mnpar.Variable(np.ones((len(positions(cut[comm.rank])), 2)))
        F.sum(F.ring_attention(comm, x, x, x, causal=True, cut=cut)).backward()
        return [counts[threading.get_ident(), what] for what in ("tiles", "cells")]

    return np.array(mnpar.run(program, ranks=ranks)).T


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_zigzag_makes_equal_work(ranks, monkeypatch):
    computed, cells = work(ranks, zigzag(10 * 2 * ranks, ranks), monkeypatch)
    assert set(computed) == {2 * (2 * ranks + 1)}  # once forward, once backward
    assert len(set(cells)) == 1
    computed, cells = work(ranks, in_order([20] * ranks), monkeypatch)
    assert [*computed] == [2 * (rank + 1) for rank in range(ranks)]


def test_no_array_has_all_fits():
    """One rank, and four ranks in one process together: less than half of an array of all
    scores.
    """
    length, arrays = 1024, numbers(*[(1024, 4)] * 3)

    def peak(program):
        tracemalloc.start()
        program()
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    def cut(comm):
        mine = positions(in_order([length // 4] * 4)[comm.rank])
        gradients(lambda *xs: F.ring_attention(comm, *xs), [x[mine] for x in arrays])

    one = peak(lambda: gradients(F.scaled_dot_product_attention, arrays))
    four = peak(lambda: mnpar.run(cut, ranks=4))
    assert max(one, four) < length**2 * 8 / 2


@pytest.mark.parametrize(("dtype", "tolerance"), [("f2", 1e-2), ("f4", 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
def test_large_fits_of_any_dtype_do_not_overflow(kind, dtype, tolerance):
    arrays = [x.astype(dtype) for x in numbers(*[(1, n, 4)] * 3)]
    arrays[0] *= 100
    truth = gradients(F.scaled_dot_product_attention, [x.astype("f8") for x in arrays])

    def program(comm):
        mine = positions(in_order(LENGTHS[3])[comm.rank])
        found = gradients(lambda *xs: KINDS[kind](comm, *xs), [x[:, mine] for x in arrays])
        for x, y in zip(found, truth, strict=True):
            assert x.dtype == np.dtype(dtype)
            np.testing.assert_allclose(
                x, y[:, mine], rtol=tolerance, atol=tolerance * np.abs(y).max()
            )

    if kind == "ring" or dtype == "f4":  # the other computes in halves what halves are given
        mnpar.run(program, ranks=3)


def test_ranks_may_want_some_gradients_or_none():
    arrays = numbers(*[(n, 3)] * 3)
    q, k, v = [mnpar.Variable(x) for x in arrays]
    F.sum(F.sin(F.scaled_dot_product_attention(q.array, k.array, v))).backward()

    def program(comm):
        mine = positions(in_order(LENGTHS[4])[comm.rank])
        parts = [x[mine] for x in arrays]
        with mnpar.no_backprop_mode():
            assert F.ring_attention(comm, *parts).creator is None
        parts[2] = mnpar.Variable(parts[2])
        F.sum(F.sin(F.ring_attention(comm, *parts))).backward()
        np.testing.assert_allclose(parts[2].grad, v.grad[mine], rtol=1e-10)

    mnpar.run(program, ranks=4)


@pytest.mark.usefixtures("both_matches")
def test_ranks_that_differ_are_told():
    def differ(comm):
        F.ring_attention(comm, *numbers(*[(2, 3)] * 3), causal=comm.rank == 1)

    def wrong_length(comm):
        F.ring_attention(comm, *numbers(*[(2, 3)] * 3), cut=in_order([2, 3]))

    def wrong_mask(comm):
        F.ring_attention(comm, *numbers(*[(2, 3)] * 3), mask=np.ones((2, 3), bool))

    with pytest.raises(MismatchError, match=r"rank 1 has causal=True, .*, rank 0 causal=False, "):
        mnpar.run(differ, ranks=2)
    with pytest.raises(ValueError, match="rank 1 has 2 queries and 2 keys, but by the cut 3"):
        mnpar.run(wrong_length, ranks=2)
    with pytest.raises(
        ValueError, match=r"mask of shape \(2, 3\) does not show 4 keys to 2 queries"
    ):
        mnpar.run(wrong_mask, ranks=2)
    with pytest.raises(ValueError, match="a cut for 2 ranks does not suit a communicator of 3"):
        mnpar.run(wrong_length, ranks=3)


@pytest.mark.parametrize(
    "cut", [(((0, 2),), ((1, 3),)), (((0, 2),), ((3, 5),))], ids=["twice", "never"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_has_each_position_once_and_a_mask_is_boolean(kind, cut):
    def program(comm, **options):
        return KINDS[kind](comm, *numbers(*[(1, 2, 3)] * 3), **options)

    with pytest.raises(ValueError, match="each position of the sequence once"):
        mnpar.run(lambda comm: program(comm, cut=cut), ranks=2)
    with pytest.raises(TypeError, match="by booleans"):
        mnpar.run(lambda comm: program(comm, mask=np.zeros((2, 4))), ranks=2)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("fit", [-1000.0, -50.0, 0.0, 50.0, 1000.0])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_fits_of_any_size_are_weighed_alike(monkeypatch, kept, fit, dtype):
    """What is added to all scores of a query changes no weight, though exponentials of it overflow
    or vanish.
    """
    if not kept:
        monkeypatch.setattr(tuning, "ATTENTION_WEIGHTS", 0)
    q, k, v = [x.astype(dtype) for x in numbers(*[(2, 70, 4)] * 3)]
    truth = gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True, scale=1.0), (q, k, v)
    )
    q, k = [np.concatenate([x, np.full((2, 70, 1), y, dtype)], -1) for x, y in ((q, 1), (k, fit))]
    found = gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True, scale=1.0), (q, k, v)
    )
    for x, y in zip(found, truth, strict=True):
        np.testing.assert_allclose(
            x[..., :4], y, rtol=0, atol=(3e-3 if dtype == "f4" else 1e-11) * np.abs(y).max()
        )


def test_heads_lie_side_by_side_in_what_they_found():
    """So they are joined without a copy."""
    # (N, T, heads, 3, width)
    q, k, v = F.separate(np.ones((2, 5, 3, 3, 4)).transpose(3, 0, 2, 1, 4))
    y = F.scaled_dot_product_attention(q, k, v)
    assert np.shares_memory(y.array, F.reshape(F.transpose(y, (0, 2, 1, 3)), (2, 5, -1)).array)


# ---- nothing to attend to, in each dtype ----

PIECES = [(0, 0), (0, 3), (3, 0), (1, 0, 2), (0, 0, 3), (2, 3), (3, 0, 0), (0, 2, 0), (1, 1)]
HIDING = {
    "no mask": lambda n, last: None,
    "the keys of a rank": lambda n, last: np.arange(n) < n - last + np.zeros((n, 1)),
    "all keys": lambda n, last: np.zeros((n, n), bool),
    "all keys of some queries": lambda n, last: np.tile(np.arange(n)[:, None] % 2 == 1, n),
    "at random": lambda n, last: np.random.RandomState(1).rand(n, n) < 0.4,
}
CLOSE = {"f2": 0.1, "f4": 1e-3, "f8": 1e-10}


def twice_differentiated(attend, q, k, v):
    """The result, its gradients, and the gradients of the sum of their squares."""
    xs = [mnpar.Variable(x) for x in (q, k, v)]
    y = attend(*xs)
    gs = mnpar.grad([F.sum(y * y)], xs, enable_double_backprop=True)
    F.sum(sum([F.sum(g * g) for g in gs])).backward()
    second = [np.zeros_like(x.array) if x.grad is None else x.grad for x in xs]
    return [y.array, *[g.array for g in gs], *second]


@pytest.mark.parametrize("scale", [None, 0.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hiding", HIDING.values(), ids=HIDING)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_empty_pieces_and_hidden_keys_have_finite_derivatives_of_both_orders(
    pieces, dtype, hiding, causal, scale
):
    n = sum(pieces)
    draw = np.random.RandomState(0)
    whole = [draw.randn(2, n, 3).astype(dtype) for _ in range(3)]
    mask = hiding(n, pieces[-1])
    ends = np.cumsum([0, *pieces])

    def program(comm):
        mine = slice(ends[comm.rank], ends[comm.rank + 1])
        shown = None if mask is None else mask[mine]
        attend = partial(F.ring_attention, comm, mask=shown, causal=causal, scale=scale)
        return twice_differentiated(attend, *[x[:, mine] for x in whole])

    found = [
        np.concatenate(xs, axis=1) for xs in zip(*mnpar.run(program, len(pieces)), strict=True)
    ]
    assert all(np.isfinite(x).all() for x in found)
    if n:
        alone = partial(F.scaled_dot_product_attention, mask=mask, causal=causal, scale=scale)
        expected = twice_differentiated(alone, *whole)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.ranks(2, on="threads")
def test_a_query_of_a_sequence_without_keys_is_told(comm):
    q, k = np.ones((1, 2, 3)), np.ones((1, 0, 3))
    with pytest.raises(ValueError, match="no keys"):
        F.ring_attention(comm, q, k, k, mask=np.ones((2, 0), bool))
