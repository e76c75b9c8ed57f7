"""Random rules on a transformer and two other networks, on random meshes of up to 8 ranks: what one
process computes, or an error that gives a reason.

``MNPAR_PLANS=1000`` runs more of them; ``MNPAR_PLANS_FIRST`` is the first seed.
"""

import os

import numpy as np
import pytest

import mnpar
from mnpar.errors import LayoutError, MismatchError
from tests.parallel.plan_models import ConvNet, Experts, Transformer, alone, check_equal, learn

COUNT = int(os.environ.get("MNPAR_PLANS", "20"))
FIRST = int(os.environ.get("MNPAR_PLANS_FIRST", "0"))
STEPS = 2

# for each model what rules may be made of, right ones and wrong ones, and the axes of its meshes
WORDS = {
    Transformer: {
        "attention": ["heads", "sequence", "heads, sequence", "heads", "rows"],
        "up": ["columns", "columns, gathered", "rows"],
        "down": ["rows", "columns, gathered", "columns"],
        "words": ["vocabulary"],
        "scores": ["columns", "columns, gathered", "rows"],
        "places": ["vocabulary"],
        "0/up": ["columns", "rows"],
        "blocks/1/*": ["columns"],
        "/embed/*": ["vocabulary", "vocabulary over data"],
        "norm?": ["samples"],
    },
    ConvNet: {
        "conv1": ["filters", "filters, gathered", "channels"],
        "each": ["filters", "filters, gathered", "channels"],
        "conv2": ["filters", "filters, gathered", "channels"],
        "conv*": ["filters, gathered", "channels"],
        "fc1": ["rows", "columns", "columns, gathered"],
        "fc2": ["rows", "columns", "columns, gathered"],
        "fc*": ["rows"],
        "bn*": ["samples", "samples", "local"],
    },
    Experts: {
        "mixture": ["expert", "expert over model", "columns"],
        "first": ["columns", "rows", "columns, gathered"],
        "last": ["rows", "columns"],
        "experts/*": ["expert over model"],
        "experts/1": ["expert"],
    },
}
OVERLAP = "conv*", "fc*", "0/up", "blocks/1/*", "/embed/*", "norm?", "experts/*", "experts/1"
AXES = {
    Transformer: ("data", "pipe", "model", "sequence"),
    ConvNet: ("data", "model", "space"),
    Experts: ("data", "model", "expert"),
}


def drawn(seed):
    """A model, a mesh and rules."""
    rng = np.random.default_rng([35, seed])
    kind = [Transformer, ConvNet, Transformer, ConvNet, Experts][seed % 5]
    axes, left = {}, 8
    for axis in rng.permutation(AXES[kind]):
        size = int(rng.integers(1, min(left, 4) + 1))
        if size > 1 and rng.random() < 0.7:
            axes[str(axis)] = size
            left //= size
    if "space" in axes:
        axes["space"] = {2: (1, 2), 3: (3, 1), 4: (2, 2)}[axes["space"]]
    bold = rng.random() < 0.3
    rules = {}
    for pattern, texts in WORDS[kind].items():
        if rng.random() < 0.5 and (bold or pattern not in OVERLAP):
            choice = texts if bold else texts[:2]
            rules[pattern] = choice[int(rng.integers(len(choice)))]
    if not bold:  # what the mesh needs
        if kind is ConvNet and axes.get("data", 1) > 1:
            rules["bn*"] = "samples"
        if kind is Transformer and axes.get("sequence", 1) > 1:
            rules["attention"] = "heads, sequence" if "attention" in rules else "sequence"
        if "scores" in rules:
            rules["words"] = "vocabulary"
    options = {}
    if axes.get("pipe", 1) > 1:
        options["micro_batches"] = int(rng.integers(1, 4))
    return kind, axes, rules, options


def outcome(seed):
    """Run a drawn plan: None if it is that of one process, or the error that refuses it."""
    kind, axes, rules, options = drawn(seed)
    ranks = int(np.prod([np.prod(size) for size in axes.values()]))

    def program(comm):
        return learn(comm, kind, axes, rules, STEPS, **options)

    try:
        found = mnpar.run(program, ranks=ranks)
    except (ValueError, LayoutError, MismatchError) as error:
        return error
    local = "local" in rules.values() and axes.get("data", 1) > 1
    if not local:  # statistics of each rank's samples are another model
        check_equal(found, kind, STEPS)
    return None


@pytest.fixture(scope="module", autouse=True)
def _whole():
    for kind in (Transformer, ConvNet, Experts):
        alone(kind, STEPS)


@pytest.mark.parametrize("block", range(0, COUNT, 10))
def test_a_random_plan_is_that_of_one_process_or_refused_with_a_reason(block):
    seeds = range(FIRST + block, FIRST + min(block + 10, COUNT))
    refused = {}
    for seed in seeds:
        try:
            error = outcome(seed)
        except BaseException as wrong:
            wrong.add_note(f"seed {seed}: {drawn(seed)}")
            raise
        if error is not None:
            refused[seed] = error
            assert "/" in str(error) or "axis" in str(error), error  # a path, or an axis
    print(f"{len(refused)} of {len(seeds)} refused")
    for seed, error in refused.items():
        print(f"  {seed} {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    assert len(seeds) < 10 or len(refused) < len(seeds)
