"""Data sets: digits and toys without a download, MNIST, images and text from files, parts of data
sets, how ranks share one.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.datasets.blob import (
        FileBlobDataset as FileBlobDataset,
        MemoryBlobDataset as MemoryBlobDataset,
    )
    from mnpar.datasets.cifar import get_cifar10 as get_cifar10, get_cifar100 as get_cifar100
    from mnpar.datasets.combining import (
        BatchDataset as BatchDataset,
        MergeDataset as MergeDataset,
        PrefetchDataset as PrefetchDataset,
        ResampleDataset as ResampleDataset,
        ShuffleDataset as ShuffleDataset,
    )
    from mnpar.datasets.concatenated_dataset import ConcatenatedDataset as ConcatenatedDataset
    from mnpar.datasets.dict_dataset import DictDataset as DictDataset
    from mnpar.datasets.digits import get_digits as get_digits
    from mnpar.datasets.fashion_mnist import (
        get_fashion_mnist as get_fashion_mnist,
        get_fashion_mnist_labels as get_fashion_mnist_labels,
    )
    from mnpar.datasets.idx import read_idx as read_idx
    from mnpar.datasets.image_blocks import (
        scatter_image as scatter_image,
        shard_image as shard_image,
    )
    from mnpar.datasets.image_dataset import (
        ImageDataset as ImageDataset,
        LabeledImageDataset as LabeledImageDataset,
    )
    from mnpar.datasets.kuzushiji_mnist import (
        get_kuzushiji_mnist as get_kuzushiji_mnist,
        get_kuzushiji_mnist_labels as get_kuzushiji_mnist_labels,
    )
    from mnpar.datasets.mnist import get_mnist as get_mnist
    from mnpar.datasets.partition import (
        dynamic_partition_by_round_robin as dynamic_partition_by_round_robin,
        partition_by_round_robin as partition_by_round_robin,
    )
    from mnpar.datasets.photographs import get_photograph_patches as get_photograph_patches
    from mnpar.datasets.scatter import (
        DataSizeError as DataSizeError,
        ScatteredDataset as ScatteredDataset,
        create_empty_dataset as create_empty_dataset,
        scatter_dataset as scatter_dataset,
        scatter_index as scatter_index,
    )
    from mnpar.datasets.sub_dataset import (
        SubDataset as SubDataset,
        get_cross_validation_datasets as get_cross_validation_datasets,
        get_cross_validation_datasets_random as get_cross_validation_datasets_random,
        split_dataset as split_dataset,
        split_dataset_n as split_dataset_n,
        split_dataset_n_random as split_dataset_n_random,
        split_dataset_random as split_dataset_random,
    )
    from mnpar.datasets.text_dataset import TextDataset as TextDataset
    from mnpar.datasets.toys import (
        get_synthetic_images as get_synthetic_images,
        get_toy_images as get_toy_images,
    )
    from mnpar.datasets.transform_dataset import TransformDataset as TransformDataset
    from mnpar.datasets.tuple_dataset import TupleDataset as TupleDataset
    from mnpar.datasets.words import (
        get_ptb_words as get_ptb_words,
        get_ptb_words_vocabulary as get_ptb_words_vocabulary,
        get_words as get_words,
    )
    from mnpar.datasets.zipped_image_dataset import (
        LabeledZippedImageDataset as LabeledZippedImageDataset,
        MultiZippedImageDataset as MultiZippedImageDataset,
        ZippedImageDataset as ZippedImageDataset,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
