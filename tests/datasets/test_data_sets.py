"""Data sets of one rank: indexing, parts, splits, transforms."""

import numpy as np
import pytest

from mnpar.dataset import DatasetMixin
from mnpar.datasets import SubDataset, TransformDataset, TupleDataset, create_empty_dataset, split_dataset, split_dataset_random


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
    "sub of sub": (SubDataset(SubDataset("abcdef", 1, 5), 1, 3), ["c", "d"]),
}


@pytest.mark.parametrize(("dataset", "examples"), DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize(
    "index",
    [0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(2, 1), [1, 0], [-1], [], np.array([0, 0])],
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
    x, t = np.arange(6.0).reshape(3, 2), np.array([5, 6, 7], np.int32)
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
    with pytest.raises(ValueError, match=f"examples {start} … {finish} .* no part of a data set of 5"):
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
