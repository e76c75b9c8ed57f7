"""Data sets: digits and toys without a download, MNIST and its like from files, parts of data sets, how ranks share one."""

from mnpar.datasets.blob import FileBlobDataset, MemoryBlobDataset
from mnpar.datasets.cifar import get_cifar10, get_cifar100
from mnpar.datasets.combining import (
    BatchDataset,
    ConcatenatedDataset,
    MergeDataset,
    PrefetchDataset,
    ResampleDataset,
    ShuffleDataset,
)
from mnpar.datasets.digits import get_digits
from mnpar.datasets.fashion_mnist import get_fashion_mnist, get_fashion_mnist_labels
from mnpar.datasets.idx import read_idx
from mnpar.datasets.image_blocks import scatter_image, shard_image
from mnpar.datasets.mnist import get_mnist
from mnpar.datasets.partition import dynamic_partition_by_round_robin, partition_by_round_robin
from mnpar.datasets.scatter import (
    DataSizeError,
    ScatteredDataset,
    create_empty_dataset,
    scatter_dataset,
    scatter_index,
)
from mnpar.datasets.sub_dataset import SubDataset, split_dataset, split_dataset_random
from mnpar.datasets.toys import get_synthetic_images, get_toy_images
from mnpar.datasets.transform_dataset import TransformDataset
from mnpar.datasets.tuple_dataset import TupleDataset

__all__ = [
    "BatchDataset",
    "ConcatenatedDataset",
    "DataSizeError",
    "FileBlobDataset",
    "MemoryBlobDataset",
    "MergeDataset",
    "PrefetchDataset",
    "ResampleDataset",
    "ScatteredDataset",
    "ShuffleDataset",
    "SubDataset",
    "TransformDataset",
    "TupleDataset",
    "create_empty_dataset",
    "dynamic_partition_by_round_robin",
    "get_cifar10",
    "get_cifar100",
    "get_digits",
    "get_fashion_mnist",
    "get_fashion_mnist_labels",
    "get_mnist",
    "get_synthetic_images",
    "get_toy_images",
    "partition_by_round_robin",
    "read_idx",
    "scatter_dataset",
    "scatter_image",
    "scatter_index",
    "shard_image",
    "split_dataset",
    "split_dataset_random",
]
