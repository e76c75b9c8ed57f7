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
    from mnpar.datasets.combined import (
        ConcatenatedDataset as ConcatenatedDataset,
        DictDataset as DictDataset,
        MergeDataset as MergeDataset,
        TupleDataset as TupleDataset,
    )
    from mnpar.datasets.digits import get_digits as get_digits
    from mnpar.datasets.idx import read_idx as read_idx
    from mnpar.datasets.image_blocks import (
        scatter_image as scatter_image,
        shard_image as shard_image,
    )
    from mnpar.datasets.image_dataset import (
        ImageDataset as ImageDataset,
        LabeledImageDataset as LabeledImageDataset,
        LabeledZippedImageDataset as LabeledZippedImageDataset,
        MultiZippedImageDataset as MultiZippedImageDataset,
        ZippedImageDataset as ZippedImageDataset,
    )
    from mnpar.datasets.mnist import (
        get_fashion_mnist as get_fashion_mnist,
        get_fashion_mnist_labels as get_fashion_mnist_labels,
        get_kuzushiji_mnist as get_kuzushiji_mnist,
        get_kuzushiji_mnist_labels as get_kuzushiji_mnist_labels,
        get_mnist as get_mnist,
    )
    from mnpar.datasets.partition import (
        dynamic_partition_by_round_robin as dynamic_partition_by_round_robin,
        partition_by_round_robin as partition_by_round_robin,
    )
    from mnpar.datasets.photographs import get_photograph_patches as get_photograph_patches
    from mnpar.datasets.pickle_dataset import (
        PickleDataset as PickleDataset,
        PickleDatasetWriter as PickleDatasetWriter,
        open_pickle_dataset as open_pickle_dataset,
        open_pickle_dataset_writer as open_pickle_dataset_writer,
    )
    from mnpar.datasets.prefetch_dataset import PrefetchDataset as PrefetchDataset
    from mnpar.datasets.scatter import (
        DataSizeError as DataSizeError,
        ScatteredDataset as ScatteredDataset,
        create_empty_dataset as create_empty_dataset,
        scatter_dataset as scatter_dataset,
        scatter_index as scatter_index,
    )
    from mnpar.datasets.sub_dataset import (
        ResampleDataset as ResampleDataset,
        ShuffleDataset as ShuffleDataset,
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
        get_toy_segmentation as get_toy_segmentation,
    )
    from mnpar.datasets.transform_dataset import (
        BatchDataset as BatchDataset,
        TransformDataset as TransformDataset,
    )
    from mnpar.datasets.words import (
        get_ptb_words as get_ptb_words,
        get_ptb_words_vocabulary as get_ptb_words_vocabulary,
        get_words as get_words,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
