"""Data sets: digits and toys without a download, MNIST, images and text from files, parts of data
sets, how ranks share one.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.datasets.blob import FileBlobDataset, MemoryBlobDataset
    from mnpar.datasets.cifar import get_cifar10, get_cifar100
    from mnpar.datasets.combining import (
        BatchDataset,
        MergeDataset,
        PrefetchDataset,
        ResampleDataset,
        ShuffleDataset,
    )
    from mnpar.datasets.concatenated_dataset import ConcatenatedDataset
    from mnpar.datasets.dict_dataset import DictDataset
    from mnpar.datasets.digits import get_digits
    from mnpar.datasets.fashion_mnist import get_fashion_mnist, get_fashion_mnist_labels
    from mnpar.datasets.idx import read_idx
    from mnpar.datasets.image_blocks import scatter_image, shard_image
    from mnpar.datasets.image_dataset import ImageDataset, LabeledImageDataset
    from mnpar.datasets.kuzushiji_mnist import get_kuzushiji_mnist, get_kuzushiji_mnist_labels
    from mnpar.datasets.mnist import get_mnist
    from mnpar.datasets.partition import dynamic_partition_by_round_robin, partition_by_round_robin
    from mnpar.datasets.photographs import get_photograph_patches
    from mnpar.datasets.scatter import (
        DataSizeError,
        ScatteredDataset,
        create_empty_dataset,
        scatter_dataset,
        scatter_index,
    )
    from mnpar.datasets.sub_dataset import (
        SubDataset,
        get_cross_validation_datasets,
        get_cross_validation_datasets_random,
        split_dataset,
        split_dataset_n,
        split_dataset_n_random,
        split_dataset_random,
    )
    from mnpar.datasets.text_dataset import TextDataset
    from mnpar.datasets.toys import get_synthetic_images, get_toy_images
    from mnpar.datasets.transform_dataset import TransformDataset
    from mnpar.datasets.tuple_dataset import TupleDataset
    from mnpar.datasets.words import get_ptb_words, get_ptb_words_vocabulary, get_words
    from mnpar.datasets.zipped_image_dataset import (
        LabeledZippedImageDataset,
        MultiZippedImageDataset,
        ZippedImageDataset,
    )
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "BatchDataset",
    "ConcatenatedDataset",
    "DataSizeError",
    "DictDataset",
    "FileBlobDataset",
    "ImageDataset",
    "LabeledImageDataset",
    "LabeledZippedImageDataset",
    "MemoryBlobDataset",
    "MergeDataset",
    "MultiZippedImageDataset",
    "PrefetchDataset",
    "ResampleDataset",
    "ScatteredDataset",
    "ShuffleDataset",
    "SubDataset",
    "TextDataset",
    "TransformDataset",
    "TupleDataset",
    "ZippedImageDataset",
    "create_empty_dataset",
    "dynamic_partition_by_round_robin",
    "get_cifar10",
    "get_cifar100",
    "get_cross_validation_datasets",
    "get_cross_validation_datasets_random",
    "get_digits",
    "get_fashion_mnist",
    "get_fashion_mnist_labels",
    "get_kuzushiji_mnist",
    "get_kuzushiji_mnist_labels",
    "get_mnist",
    "get_photograph_patches",
    "get_ptb_words",
    "get_ptb_words_vocabulary",
    "get_synthetic_images",
    "get_toy_images",
    "get_words",
    "partition_by_round_robin",
    "read_idx",
    "scatter_dataset",
    "scatter_image",
    "scatter_index",
    "shard_image",
    "split_dataset",
    "split_dataset_n",
    "split_dataset_n_random",
    "split_dataset_random",
]
