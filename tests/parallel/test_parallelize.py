"""parallelize: an ordinary model, divided by rules, is that of one process."""

import numpy as np
import pytest

import mnpar
from tests.parallel.plan_models import ConvNet, Experts, Transformer, check_equal, learn

TIED = {"words": "vocabulary"}
LANGUAGE = {"attention": "heads", "up": "columns", "down": "rows", **TIED}
NORMS = {"bn*": "samples"}
WAYS = {
    "heads": (Transformer, {"model": 2}, {"attention": "heads"}),
    "a head for each of 3 ranks, and one without": (
        Transformer,
        {"model": 4},
        {"attention": "heads"},
    ),
    "columns and rows": (Transformer, {"model": 3}, {"up": "columns", "down": "rows"}),
    "columns before an undivided layer": (Transformer, {"model": 2}, {"up": "columns"}),
    "columns, gathered": (Transformer, {"model": 4}, {"up": "columns, gathered"}),
    "rows alone": (Transformer, {"model": 3}, {"down": "rows"}),
    "vocabulary, and scores by the same table": (Transformer, {"model": 4}, TIED),
    "scores that say so themselves": (
        Transformer,
        {"model": 2},
        {**TIED, "scores": "columns"},
    ),
    "all, over another axis": (
        Transformer,
        {"tensor": 2},
        {pattern: f"{word} over tensor" for pattern, word in LANGUAGE.items()},
    ),
    "all, and samples": (Transformer, {"data": 2, "model": 2}, LANGUAGE),
    "sequences": (Transformer, {"sequence": 3}, {"attention": "sequence"}),
    "heads and sequences": (
        Transformer,
        {"sequence": 2, "model": 2},
        {**LANGUAGE, "attention": "heads, sequence"},
    ),
    "samples": (Transformer, {"data": 4}, {}),
    "filters and channels": (ConvNet, {"model": 3}, {"conv1": "filters, gathered"}),
    "filters of groups": (
        ConvNet,
        {"model": 3},
        {"conv1": "filters", "each": "filters", "conv2": "channels"},
    ),
    "groups, gathered": (ConvNet, {"model": 2}, {"each": "filters, gathered"}),
    "channels alone": (ConvNet, {"model": 4}, {"conv2": "channels", "conv1": "channels"}),
    "neon's large layers": (ConvNet, {"model": 2}, {"fc*": "rows"}),
    "classes": (ConvNet, {"model": 3}, {"fc1": "columns, gathered", "fc2": "columns"}),
    "blocks": (ConvNet, {"space": (2, 2)}, {}),
    "blocks and batches": (ConvNet, {"data": 2, "space": (1, 2)}, NORMS),
    "batches, more than samples": (ConvNet, {"data": 4}, NORMS),
    "blocks and filters": (
        ConvNet,
        {"space": (2, 1), "model": 2},
        {"conv1": "filters, gathered", "each": "filters, gathered", "conv2": "channels"},
    ),
    "experts": (Experts, {"expert": 3}, {"mixture": "expert"}),
    "experts by their paths": (Experts, {"model": 2}, {"experts/*": "expert over model"}),
    "experts and samples": (Experts, {"data": 2, "expert": 2}, {"mixture": "expert"}),
}


@pytest.mark.parametrize(("kind", "axes", "rules"), WAYS.values(), ids=WAYS)
def test_a_divided_model_learns_as_on_one_process(kind, axes, rules):
    ranks = int(np.prod([np.prod(size) for size in axes.values()]))
    check_equal(mnpar.run(learn, ranks=ranks, args=(kind, axes, rules)), kind)
