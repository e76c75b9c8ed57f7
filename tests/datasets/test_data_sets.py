"""Data sets of one rank: indexing, parts, splits, transforms."""

import numpy as np
import pytest

from mnpar.dataset import DatasetMixin
from mnpar.datasets import (
    ConcatenatedDataset,
    DictDataset,
    SubDataset,
    TransformDataset,
    TupleDataset,
    create_empty_dataset,
    get_cross_validation_datasets,
    get_cross_validation_datasets_random,
    split_dataset,
    split_dataset_n,
    split_dataset_n_random,
    split_dataset_random,
)


class Squares(DatasetMixin):
    def __len__(self):
        return 5

    def get_example(self, i):
        return i * i


DATASETS = {
    "mixin": (Squares(), [0, 1, 4, 9, 16]),
    "tuple": (TupleDataset([1, 2, 3], "abc"), [(1, "a"), (2, "b"), (3, "c")]),
    "sub": (SubDataset([7, 8, 9, 10], 1, 4), [8, 9, 10]),
    "sub with order": (SubDataset([7, 8, 9, 10], 1, 4, np.array([3, 0, 1, 2])), [7, 8, 9]),
    "transform": (TransformDataset([1, 2, 3], lambda x: -x), [-1, -2, -3]),
    "dict": (DictDataset(x=[1, 2], t="ab"), [{"x": 1, "t": "a"}, {"x": 2, "t": "b"}]),
    "concatenated": (
        ConcatenatedDataset("ab", [], [3], "", TupleDataset([4])),
        ["a", "b", 3, (4,)],
    ),
    "sub of sub": (SubDataset(SubDataset("abcdef", 1, 5), 1, 3), ["c", "d"]),
}


@pytest.mark.parametrize(("dataset", "examples"), DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(None),
        slice(1, None),
        slice(None, None, -1),
        slice(2, 1),
        [1, 0],
        [-1],
        [],
        np.array([0, 0]),
    ],
    ids=str,
)
def test_every_data_set_is_indexed_like_a_list(dataset, examples, index):
    if isinstance(index, (list, np.ndarray)):
        assert dataset[index] == [examples[i] for i in index]
    else:
        assert dataset[index] == examples[index]
    assert len(dataset) == len(examples)
    assert list(dataset) == examples


@pytest.mark.parametrize(("dataset", "examples"), DATASETS.values(), ids=DATASETS)
def test_an_index_out_of_range_is_an_index_error_with_the_numbers(dataset, examples):
    n = len(examples)
    for index in (n, -n - 1):
        with pytest.raises(IndexError, match=f"example {index} of a data set of {n}"):
            dataset[index]
    with pytest.raises(IndexError, match=f"of a data set of {n}"):
        dataset[[0, n]]
    with pytest.raises(IndexError, match="list of integers"):
        dataset[[0.5]]


@pytest.mark.parametrize(("dataset", "examples"), DATASETS.values(), ids=DATASETS)
def test_a_mask_chooses_examples(dataset, examples):
    mask = np.arange(len(examples)) % 2 == 0
    assert dataset[mask] == examples[::2]
    with pytest.raises(IndexError, match="a mask of shape"):
        dataset[np.ones(len(examples) + 1, bool)]


def test_a_tuple_data_set_gives_the_arrays_rows():
    x = np.arange(6.0).reshape(3, 2)
    t = np.array([5, 6, 7], np.int32)
    row, label = TupleDataset(x, t)[1]
    np.testing.assert_array_equal(row, [2, 3])
    assert label == 6
    assert label.dtype == np.int32


def test_a_tuple_data_set_of_unequal_lengths_is_refused():
    with pytest.raises(ValueError, match=r"one length; these have \[2, 3\]"):
        TupleDataset([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="at least one"):
        TupleDataset()


@pytest.mark.parametrize(("start", "finish"), [(-1, 2), (0, 6), (3, 2)])
def test_a_part_that_is_not_in_the_whole_is_refused(start, finish):
    with pytest.raises(
        ValueError, match=f"examples {start} … {finish} .* no part of a data set of 5"
    ):
        SubDataset(range(5), start, finish)


def test_an_order_of_another_length_is_refused():
    with pytest.raises(ValueError, match="order has 2 indices, the data set has 5"):
        SubDataset(range(5), 0, 1, order=[0, 1])


def test_a_transform_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="function of one example"):
        TransformDataset([1], "x")


def test_split_gives_the_first_and_the_others():
    first, others = split_dataset(list("abcde"), 2, order=[4, 3, 2, 1, 0])
    assert list(first) == ["e", "d"]
    assert list(others) == ["c", "b", "a"]


@pytest.mark.parametrize("split_at", [-1, 5])
def test_a_split_out_of_range_is_refused(split_at):
    with pytest.raises(ValueError, match=f"5 examples cannot be split at {split_at}"):
        split_dataset(range(5), split_at)


def test_a_random_split_with_a_seed_is_chainers():
    first, others = split_dataset_random(range(10), 4, seed=3)
    order = np.random.RandomState(3).permutation(10).tolist()
    assert [*first, *others] == order
    assert len(first) == 4


def test_a_random_split_without_a_seed_follows_the_ranks_generator():
    import mnpar.random

    mnpar.random.seed(5)
    one = [*split_dataset_random(range(50), 20)[0]]
    other = [*split_dataset_random(range(50), 20)[0]]
    mnpar.random.seed(5)
    assert [*split_dataset_random(range(50), 20)[0]] == one
    assert one != other


def test_an_empty_data_set_has_as_many_examples_with_nothing_in_them():
    empty = create_empty_dataset(np.zeros((7, 3)))
    assert len(empty) == 7
    assert all(example == () for example in empty)


def test_a_class_without_get_example_says_so():
    class Forgot(DatasetMixin):
        def __len__(self):
            return 1

    with pytest.raises(NotImplementedError, match="Forgot does not define get_example"):
        Forgot()[0]
    with pytest.raises(NotImplementedError, match="__len__"):
        len(DatasetMixin())


# ---- data sets of data sets, splits into n ----


def test_data_sets_of_no_data_sets():
    assert len(ConcatenatedDataset()) == len(ConcatenatedDataset([], "")) == 0
    assert ConcatenatedDataset([], "")[:] == []
    with pytest.raises(IndexError):
        ConcatenatedDataset()[0]
    with pytest.raises(ValueError, match="at least one"):
        DictDataset()
    with pytest.raises(ValueError, match="'a': 2, 'b': 1"):
        DictDataset(a=[1, 2], b=[1])


SPLITS = {
    "even": (6, 3),
    "uneven": (7, 3),
    "one": (5, 1),
    "each": (4, 4),
    "more parts than examples": (2, 3),
    "empty": (0, 2),
}


@pytest.mark.parametrize(("n", "parts"), SPLITS.values(), ids=SPLITS)
def test_n_parts_have_one_length_and_leave_out_the_remainder(n, parts):
    size = n // parts
    order = np.arange(n)[::-1]
    assert [list(part) for part in split_dataset_n(range(n), parts)] == [
        list(range(i * size, (i + 1) * size)) for i in range(parts)
    ]
    assert [list(part) for part in split_dataset_n(range(n), parts, order)] == [
        order[i * size : (i + 1) * size].tolist() for i in range(parts)
    ]
    drawn = np.random.RandomState(3).permutation(n).tolist()
    assert [i for part in split_dataset_n_random(range(n), parts, 3) for i in part] == drawn[
        : size * parts
    ]


def test_cross_validation_as_chainer_orders_it():
    table = [
        ([0, 1, 2, 3, 4], [5, 6, 7]),
        ([5, 6, 7, 0, 1], [2, 3, 4]),
        ([2, 3, 4, 5, 6, 7], [0, 1]),
    ]
    assert [(list(a), list(b)) for a, b in get_cross_validation_datasets(range(8), 3)] == table
    assert [
        (list(a), list(b)) for a, b in get_cross_validation_datasets(range(8), n_fold=3)
    ] == table
    letters = "hgfedcba"
    reordered = get_cross_validation_datasets(letters, 3, order=list(range(7, -1, -1)))
    assert [(list(a), list(b)) for a, b in reordered] == [
        (["abcdefgh"[i] for i in a], ["abcdefgh"[i] for i in b]) for a, b in table
    ]


@pytest.mark.parametrize(("n", "folds"), [(5, 1), (5, 5), (7, 3), (1, 1)])
def test_each_example_is_tested_once_and_never_trained_on_in_that_fold(n, folds):
    splits = get_cross_validation_datasets_random(range(n), folds, seed=1)
    assert sorted(i for _, test in splits for i in test) == list(range(n))
    assert all(sorted([*train, *test]) == list(range(n)) for train, test in splits)
    sizes = [len(test) for _, test in splits]
    assert max(sizes) - min(sizes) <= 1
    order = np.random.RandomState(1).permutation(n)
    assert [list(a) for a, _ in splits] == [
        list(a) for a, _ in get_cross_validation_datasets(range(n), folds, order)
    ]


@pytest.mark.parametrize("split", [split_dataset_n, split_dataset_n_random])
def test_no_parts_are_refused(split):
    with pytest.raises(ValueError, match="0 parts"):
        split([1], 0)


@pytest.mark.parametrize(("n", "folds"), [(3, 0), (3, 4), (0, 1)])
def test_folds_without_examples_are_refused(n, folds):
    with pytest.raises(ValueError, match=f"n_folds = {folds}: a data set of {n}"):
        get_cross_validation_datasets(range(n), folds)
