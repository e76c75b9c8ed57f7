"""Record golden values of Chainer: ``python -m tests.golden.record_chainer`` in the project's root.

It needs Chainer 7.8.1, scipy, and numpy below 1.24, which still has ``numpy.bool`` and its like.
"""

import warnings

import chainer
import chainer.link_hooks

from tests.golden import training
from tests.golden.differences import DIFFERENCES, NESTEROV
from tests.golden.functions import FAMILIES
from tests.golden.links import LINKS, evaluate_link
from tests.golden.optimizers import INPUTS, OPTIMIZERS, evaluate_optimizer
from tests.golden.recording import draw, evaluate_function, numbered, save

# Chainer's check asks for float32 here, though the computation is of any dtype.
UNCHECKED = ("bilinear", "resize_images", "roi_average_align_2d", "roi_max_align_2d")


def record_function(name, call, *descriptions):
    arrays = draw(name, descriptions)
    with chainer.using_config("type_check", not name.lower().startswith(UNCHECKED)):
        return numbered("x", arrays) | evaluate_function(chainer, call, arrays)


def record_link(name, make, call, *descriptions):
    def draw_parameters(shapes):
        return dict(zip(shapes, draw(f"{name}, parameters", shapes.values()), strict=True))

    arrays = draw(name, descriptions)
    with chainer.using_config("type_check", not name.lower().startswith(UNCHECKED)):
        values = evaluate_link(chainer, make, call, arrays, draw_parameters)
    return numbered("x", arrays) | values


def main():
    warnings.simplefilter("ignore")  # numpy says what it is about to remove
    versions = {"chainer": chainer.__version__}
    for family, rows in (FAMILIES | {"differences": DIFFERENCES}).items():
        cases = {name: record_function(name, *row) for name, row in rows.items()}
        save(f"chainer_{family}", cases, **versions)
    cases = {name: record_link(name, *row) for name, row in LINKS.items()}
    save("chainer_links", cases, **versions)
    arrays = draw("optimizers", INPUTS)
    rows = OPTIMIZERS | {"NesterovAG": NESTEROV}
    cases = {name: evaluate_optimizer(chainer, arrays, *row) for name, row in rows.items()}
    save("chainer_optimizers", {"inputs": numbered("x", arrays)} | cases, **versions)
    cases = {
        name: evaluate(chainer, make)
        for evaluate, rows in (
            (training.evaluate_shift, training.SHIFTS),
            (training.evaluate_trigger, training.TRIGGERS),
            (training.evaluate_iterator, training.ITERATORS),
            (training.evaluate_split, training.SPLITS),
        )
        for name, make in rows.items()
    }
    save("chainer_training", cases, **versions)


if __name__ == "__main__":
    main()
