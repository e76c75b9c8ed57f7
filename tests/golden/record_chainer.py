"""Record golden values of Chainer: ``python -m tests.golden.record_chainer`` in the project's root.

It needs Chainer 7.8.1, scipy, and numpy below 1.24, which still has ``numpy.bool`` and its like.
"""

import warnings

import chainer

from tests.golden import functions
from tests.golden.recording import draw, evaluate_function, numbered, save

# Chainer's check asks for float32 here, though the computation is of any dtype.
UNCHECKED = ("bilinear", "resize_images", "roi_average_align_2d", "roi_max_align_2d")


def record_function(name, call, *descriptions):
    arrays = draw(name, descriptions)
    with chainer.using_config("type_check", not name.startswith(UNCHECKED)):
        return numbered("x", arrays) | evaluate_function(chainer, call, arrays)


def main():
    warnings.simplefilter("ignore")  # numpy says what it is about to remove
    for family, rows in functions.FAMILIES.items():
        cases = {name: record_function(name, *row) for name, row in rows.items()}
        save(f"chainer_{family}", cases, chainer=chainer.__version__)


if __name__ == "__main__":
    main()
