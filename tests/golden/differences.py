"""Calls whose results in mnpar differ from Chainer's on purpose (docs/coming_from.md lists them).

Rows are as in :mod:`tests.golden.functions`; ``test_differences.py`` says what differs.
"""

import numpy as np

NESTEROV = lambda opt: opt.NesterovAG(0.1, 0.8), {}
TARGETS = [[0.5, 0.3, 0.1], [0.2, 0.2, 0.9]]  # their sums are not 1
DIFFERENCES = {
    "arctan2 of two shapes": (lambda F, y, x: F.arctan2(y, x.array), (2, 3), (3,)),
    "connectionist_temporal_classification of labels that do not fit": (
        lambda F, x, t: F.connectionist_temporal_classification(
            F.separate(x, 0), t, 0, reduce="no"
        ),
        (2, 2, 3),
        [[1, 1], [1, 2]],
    ),
    "discriminative_margin_based_clustering_loss of L2": (
        lambda F, x, t: F.discriminative_margin_based_clustering_loss(
            x, t, 0.2, 2.5, 2, 2, 0.5, 2.0, 0.1
        ),
        (2, 2, 3, 4),
        [
            [[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]],
            [[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]],
        ],
    ),
    "max_pooling_2d of padding alone": (
        lambda F, x: F.max_pooling_2d(x, 2, 2, (1, 0)),
        (1, 1, 3, 2),
    ),
    "pad with edges": (lambda F, x: F.pad(x, ((2, 1),), "edge"), (3,)),
    "scores of a class of which there are none": (
        lambda F, y, t: (F.precision(y, t, 3), F.recall(y, t, 3), F.f1_score(y, t, 3)),
        np.eye(3)[[0, 1, 1]].tolist(),
        [0, 1, 0],
    ),
    "roi_max_pooling_2d outside": (
        lambda F, x, i: F.roi_max_pooling_2d(x, np.array([[5.0, 5.0, 7.0, 7.0]]), i, 2, 1.0),
        (1, 1, 4, 4),
        [0],
    ),
    "softmax_cross_entropy of soft targets": (
        lambda F, x, t: F.softmax_cross_entropy(x, t.array, reduce="no"),
        (2, 3),
        TARGETS,
    ),
    "softmax_cross_entropy of soft targets, weighed": (
        lambda F, x, t: F.softmax_cross_entropy(
            x, F.softmax(t).array, class_weight=np.array([0.5, 2.0, 1.5]), reduce="no"
        ),
        (2, 3),
        TARGETS,
    ),
    "softmax_cross_entropy of soft targets, Kullback and Leibler": (
        lambda F, x, t: F.softmax_cross_entropy(
            x, F.softmax(t).array, soft_target_loss="kl-divergence", reduce="no"
        ),
        (2, 3),
        TARGETS,
    ),
    "unpooling_2d with padding": (lambda F, x: F.unpooling_2d(x, 3, 3, 2), (1, 1, 3, 3)),
}
