"""Data sets: real digits without a download, MNIST from its files, parts of data sets, and how ranks share one."""

from mnpar.datasets.digits import get_digits
from mnpar.datasets.idx import read_idx
from mnpar.datasets.mnist import get_mnist
from mnpar.datasets.scatter import (
    DataSizeError,
    ScatteredDataset,
    create_empty_dataset,
    scatter_dataset,
    scatter_index,
)
from mnpar.datasets.sub_dataset import SubDataset, split_dataset, split_dataset_random
from mnpar.datasets.transform_dataset import TransformDataset
from mnpar.datasets.tuple_dataset import TupleDataset

__all__ = [
    "DataSizeError",
    "ScatteredDataset",
    "SubDataset",
    "TransformDataset",
    "TupleDataset",
    "create_empty_dataset",
    "get_digits",
    "get_mnist",
    "read_idx",
    "scatter_dataset",
    "scatter_index",
    "split_dataset",
    "split_dataset_random",
]
