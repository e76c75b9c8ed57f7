"""What any mesh has saved goes on on any other: weights, the optimizer's state, the place in the
data; as in one process.
"""

import math

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar import optimizers
from mnpar.errors import CheckpointError
from tests.parallel.mesh_models import MODELS, check_pieces, make, pieces, reference, step

FIRST, LAST = 2, 4  # steps before and after the checkpoint


class Places:
    """The numbers of the batches, as an iterator gives them: its place is saved."""

    def __init__(self):
        self.iterator = mnpar.iterators.SerialIterator(list(range(LAST)), 1, shuffle=False)

    def __next__(self):
        return next(self.iterator)[0]

    def serialize(self, serializer):
        self.iterator.serialize(serializer)


def with_momentum():
    return optimizers.apply_momentum(optimizers.Adam(), nesterov=True)


def train(comm, axes, name, folder, steps, options, rule=optimizers.Adam):
    with mnpar.using_config("dtype", np.dtype("f8")):
        mesh = mnpar.Mesh(comm, **axes)
        model, optimizer = make(mesh, name, rule, **options)
        mnpar.random.seed(3)  # the same on all ranks, whatever they drew for their parts
        everything = {"model": model, "optimizer": optimizer, "places": Places()}
        checkpointer = mnpar.create_multi_node_checkpointer("run", comm, path=str(folder))
        begun = checkpointer.maybe_load(everything)
        losses = [
            step(mesh, name, model, optimizer, next(everything["places"])) for _ in range(steps)
        ]
        checkpointer.save(everything, (begun or 0) + steps)
        checkpointer.finalize()
        return begun, losses, pieces(model, "array")


def ranks(axes):
    return math.prod([math.prod(np.atleast_1d(size)) for size in axes.values()])


PAIRS = [
    ("transformer", {"data": 2, "pipe": 2, "model": 2}, {"model": 4, "data": 2}, {}, {}),
    ("transformer", {"model": 4, "data": 2}, {}, {"sharded": True}, {}),
    ("transformer", {}, {"pipe": 4, "model": 2}, {}, {}),
    ("transformer", {"pipe": 3, "model": 2}, {"data": 3}, {}, {"sharded": True}),
    ("transformer", {"pipe": 2, "data": 2}, {"data": 1, "pipe": 8}, {"sharded": True}, {}),
    (
        "transformer",
        {"pipe": 2},
        {"pipe": 2, "model": 2},
        {"schedule": "zbv"},
        {"schedule": "interleaved"},
    ),
    ("cnn", {"data": 2, "model": 2, "space": (2, 1)}, {"pipe": 2, "space": (1, 2)}, {}, {}),
    ("cnn", {"space": (2, 2), "pipe": 2}, {}, {}, {}),
    ("cnn", {}, {"space": (1, 3), "model": 2}, {}, {}),
]


RULES = [with_momentum if "sharded" in pair[3] else optimizers.Adam for pair in PAIRS]


@pytest.mark.parametrize(
    ("name", "written", "read", "before", "after", "rule"),
    [(*pair, rule) for pair, rule in zip(PAIRS, RULES, strict=True)],
    ids=[f"{p[0]}-{p[1]}-{p[2]}" for p in PAIRS],
)
def test_training_goes_on_on_another_mesh(name, written, read, before, after, rule, tmp_path):
    with mnpar.using_config("dtype", np.dtype("f8")):
        curve, _, weights = reference(name, rule, LAST)
    mnpar.run(train, ranks=ranks(written), args=(written, name, tmp_path, FIRST, before, rule))
    results = mnpar.run(
        train, ranks=ranks(read), args=(read, name, tmp_path, LAST - FIRST, after, rule)
    )
    assert {begun for begun, _, _ in results} == {FIRST}
    found = [losses for _, losses, _ in results if None not in losses]
    for losses in found:
        np.testing.assert_allclose(losses, curve[FIRST:], rtol=1e-10)
    assert found
    check_pieces([w for _, _, w in results], weights, 1e-9)


def test_a_rank_without_the_owner_of_a_shared_weight_stores_it_under_the_owners_path(tmp_path):
    mnpar.run(train, ranks=2, args=({"pipe": 2}, "transformer", tmp_path, 1, {}))
    shards = [
        mnpar.serializers.read_safetensors(file) for file in sorted(tmp_path.rglob("*.safetensors"))
    ]
    names = [name for shard in shards for name in shard if "words" in name or "table" in name]
    assert sorted(names) == [
        "model/embed/words/W",
        "model/head/table/W",
        "optimizer/embed/words/W/m",
        "optimizer/embed/words/W/v",
    ]
    assert set(MODELS) == {"transformer", "cnn"}


def own_count(comm, n, first=0):
    """A pipeline whose stages count their own layers, of n in all."""
    return mnpar.Pipeline(
        comm, mnpar.Sequential(*[L.Linear(2, 2, initialW=first + i) for i in range(n // comm.size)])
    )


def whole_paths(comm, n, tied=None):
    return mnpar.Pipeline.of(
        comm, {f"l{i}": lambda i=i: L.Linear(2, 2, initialW=i) for i in range(n)}, tied=tied
    )


def as_parts(comm, n):
    model = mnpar.MultiNodeChainList(comm)
    for i in range(n // comm.size):
        model.add_link(L.Linear(2, 2, initialW=i), rank_out=0)
    return model


def save(tmp_path, make, ranks):
    def program(comm):
        model = make(comm)
        mnpar.random.seed(0)  # the numbers of all ranks
        mnpar.checkpoint.save(tmp_path, model, comm, 1)

    mnpar.run(program, ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stages", [own_count, as_parts])
def test_stages_that_count_their_own_layers_do_not_all_load_the_first_ones(stages, ranks, tmp_path):
    def load(comm, wrapped, strict):
        class Updater:  # and whatever else has the pipeline somewhere in it
            def serialize(self, serializer):
                stages(comm, 4).serialize(serializer["model"])

        model = {"": Updater()} if wrapped else {"model": stages(comm, 4)}
        return mnpar.checkpoint.load(tmp_path, model, comm, strict=strict)

    save(tmp_path, lambda comm: {"model": stages(comm, 4)}, 1)
    missing = f"model/{'' if stages is as_parts else '0/'}{4 // ranks}/W"
    for wrapped in (False, True):
        with pytest.raises(
            CheckpointError, match=rf"has '{missing}' and \d more, which no rank takes.*Pipeline.of"
        ):
            mnpar.run(load, ranks=ranks, args=(wrapped, True))
    assert mnpar.run(load, ranks=ranks, args=(False, False)) == [1] * ranks


@pytest.mark.parametrize(
    ("written", "by", "read", "on"),
    [
        (lambda comm: own_count(comm, 4), 1, lambda comm: own_count(comm, 2), 1),
        (
            lambda comm: mnpar.Sequential(*map(L.Linear, [2] * 4, [2] * 4)),
            1,
            lambda comm: mnpar.Sequential(L.Linear(2, 2)),
            3,
        ),
        (lambda comm: whole_paths(comm, 4), 4, lambda comm: whole_paths(comm, 3), 2),
        (
            lambda comm: whole_paths(comm, 4, {"/l3/W": "/l0/W"}),
            1,
            lambda comm: whole_paths(comm, 3, {"/l2/W": "/l0/W"}),
            2,
        ),
        (lambda comm: own_count(comm, 6, comm.rank), 2, lambda comm: own_count(comm, 4), 2),
        (
            lambda comm: own_count(comm, 4),
            1,
            lambda comm: own_count(comm.split(comm.rank, 0), 2),
            2,
        ),
    ],
    ids=[
        "fewer layers",
        "a backbone on copies",
        "fewer stages",
        "tied",
        "the stages' own",
        "copies beside each other",
    ],
)
def test_a_part_of_what_was_saved_can_be_loaded_strictly(written, by, read, on, tmp_path):
    save(tmp_path, lambda comm: {"model": written(comm), "other": L.Linear(1, 1)}, by)
    seen = mnpar.run(
        lambda comm: mnpar.checkpoint.load(tmp_path, {"model": read(comm)}, comm), ranks=on
    )
    assert seen == [1] * on
