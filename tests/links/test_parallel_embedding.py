"""A table of words divided among ranks, against EmbedID; and tied to a language model's other
end.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import block
from mnpar.serializers import load_npz, save_npz

pytestmark = pytest.mark.usefixtures("float64")

WORDS = np.array([[4, 0, 4], [1, -1, 2]])


def derivatives(table, words):
    """The rows, the gradient by W, and the gradient of a function of that; of a table cut into
    parts these are parts.
    """
    y = table(words)
    (g,) = mnpar.grad([F.sum(F.sin(y) * y)], [table.W], enable_double_backprop=True)
    second = F.sum(F.sin(g) * g)
    (F.reduce_from(table.comm, second) if hasattr(table, "comm") else second).backward()
    return y.array, g.array, table.W.grad


@pytest.mark.parametrize("ignore_label", [-1, 4, None])
@pytest.mark.parametrize("V", [5, 6])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_rows_and_derivatives_are_those_of_one_table(ranks, V, ignore_label):
    words = WORDS if ignore_label == -1 else np.maximum(WORDS, 0)
    mnpar.random.seed(2)
    whole = L.EmbedID(V, 3, ignore_label=ignore_label)
    truth = derivatives(whole, words)

    def program(comm):
        mnpar.random.seed(2)
        table = L.VocabularyParallelEmbedID(comm, V, 3, ignore_label=ignore_label)
        np.testing.assert_array_equal(L.gather_parameter(comm, table.W), whole.W.array)
        rows = slice(*block(V, comm.size, comm.rank))
        for one, all_of, part in zip(
            derivatives(table, words), truth, (..., rows, rows), strict=True
        ):
            np.testing.assert_allclose(one, all_of[part], rtol=1e-12, atol=1e-13)

    mnpar.run(program, ranks=ranks)


def model_of(comm, V, D, cut):
    mnpar.random.seed(4)
    table = L.VocabularyParallelEmbedID(comm, V, D) if cut else L.EmbedID(V, D)
    return mnpar.ChainList(table, L.Linear(D, D))


def loss_of(comm, model, words, following, cut):
    """A language model whose table serves at both ends."""
    table, body = model
    h = F.tanh(body(table(words).reshape(-1, table.W.shape[1])))
    if not cut:
        return F.softmax_cross_entropy(F.linear(h, table.W), following)
    return F.vocabulary_parallel_softmax_cross_entropy(
        comm, F.linear(F.copy_to(comm, h), table.W), following
    )


@pytest.mark.ranks(1, 2, 3)
def test_a_table_tied_to_the_scores_learns_as_one_process_does(comm):
    rng = np.random.default_rng(0)
    words = rng.integers(0, 11, (4, 3))
    following = rng.integers(-1, 11, 12)

    def weights(cut):
        model = model_of(comm, 11, 4, cut)
        optimizer = mnpar.optimizers.Adam(0.05).setup(model)
        for _ in range(4):
            optimizer.update(lambda: loss_of(comm, model, words, following, cut))
        return [L.gather_parameter(comm, p) for p in model.params()]

    for w, w1 in zip(weights(True), weights(False), strict=True):
        np.testing.assert_allclose(w, w1, rtol=1e-9, atol=1e-12)


def test_a_file_is_that_of_the_whole_table(tmp_path):
    def program(comm):
        table = L.VocabularyParallelEmbedID(comm, 5, 2)
        whole = L.gather_parameter(comm, table.W)
        save_npz(tmp_path / f"of_{comm.rank}", table)
        other = L.VocabularyParallelEmbedID(comm, 5, 2)
        load_npz(tmp_path / f"of_{comm.rank}", other)
        np.testing.assert_array_equal(other.W.array, table.W.array)
        return whole

    whole = mnpar.run(program, ranks=3)[0]
    one = L.EmbedID(5, 2)
    load_npz(tmp_path / "of_1", one)
    np.testing.assert_array_equal(one.W.array, whole)


def test_numbers_of_any_integer_dtype_and_no_numbers():
    def program(comm):
        table = L.VocabularyParallelEmbedID(comm, 5, 2, ignore_label=-1)
        return table(np.array([3], "u1")).shape, table(np.zeros((0, 4), "i4")).shape

    assert mnpar.run(program, ranks=3) == [((1, 2), (0, 4, 2))] * 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([5], "numbers from 5 to 5 do not all name a row"),
        ([0.5], "rows by integers, not by float64"),
    ],
)
def test_a_word_that_is_not_in_the_table_is_named(words, message):
    with pytest.raises(ValueError, match=message):
        mnpar.run(lambda comm: L.VocabularyParallelEmbedID(comm, 5, 2)(np.array(words)), ranks=2)


def test_a_size_below_one_is_named():
    with pytest.raises(
        ValueError, match=r"VocabularyParallelEmbedID\(0, 2\): sizes must be 1 or more"
    ):
        L.VocabularyParallelEmbedID(mnpar.create_communicator("self"), 0, 2)
