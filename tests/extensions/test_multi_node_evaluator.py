"""An evaluation over ranks is that of one process, however the examples are spread."""

import contextlib

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from mnpar.iterators import SerialIterator
from mnpar.training import extensions
from tests.harness.trainers import counting

SHARDS = {
    "even": [4, 4, 4, 4],
    "97 and 7": [97, 7, 0, 0],
    "9 and 77": [9, 77, 3, 0],
    "an empty one": [0, 5, 6, 0],
    "all empty": [0, 0, 0, 0],
    "one each": [1, 1, 1, 1],
}
shards = pytest.mark.parametrize("sizes", SHARDS.values(), ids=SHARDS)
ranks = pytest.mark.ranks(1, 2, 3, 4, on="threads")


def model():
    return L.Classifier(
        L.Linear(3, 4, initialW=np.arange(12.0).reshape(4, 3) / 10, initial_bias=np.zeros(4))
    )


def examples(n):
    rng = np.random.default_rng(5)
    return [(rng.standard_normal(3), int(rng.integers(4))) for _ in range(n)]


def evaluate(data, comm=None, batch=5, target=None, kind=extensions.Evaluator):
    evaluator = kind(SerialIterator(data, batch, repeat=False, shuffle=False), target or model())
    return (evaluator if comm is None else mnpar.create_multi_node_evaluator(evaluator, comm))()


def mine(sizes, comm):
    ends = np.cumsum(sizes[: comm.size])
    data = examples(int(ends[-1]))
    return data, data[int(ends[comm.rank]) - sizes[comm.rank] : int(ends[comm.rank])]


@pytest.mark.grid
@ranks
@shards
@pytest.mark.parametrize("batch", [1, 5])
def test_the_result_is_that_of_one_process_on_every_rank(comm, sizes, batch):
    data, part = mine(sizes, comm)
    found = evaluate(part, comm, batch)
    alone = evaluate(data, batch=3)
    assert list(found) == list(alone)
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12)
    assert comm.allgather_obj(found) == [found] * comm.size  # to the last bit


class Together(L.Classifier):
    """A model whose ranks communicate in each batch."""

    def forward(self, x, t):
        self.comm.barrier()
        return super().forward(x, t)


@pytest.mark.grid
@ranks
@pytest.mark.parametrize("n", [1, 2, 7, 10])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "iterator",
    [{"shuffle": False}, {}, {"n_threads": 2, "shuffle": False}, {"n_threads": 1}],
    ids=["in order", "drawn", "read ahead", "drawn and read ahead"],
)
def test_what_scatter_dataset_repeats_is_counted_once(comm, n, batch, iterator):
    data = examples(n)
    part = mnpar.datasets.TransformDataset(
        mnpar.scatter_dataset(data if comm.rank == 0 else None, comm), lambda example: example
    )
    target = model()
    if "shuffle" in iterator:
        target = Together(target.predictor)
        target.comm = comm
    kind = mnpar.iterators.MultithreadIterator if "n_threads" in iterator else SerialIterator
    batches = kind(part, batch, repeat=False, **iterator)
    next(batches)  # its threads have begun
    evaluator = mnpar.create_multi_node_evaluator(extensions.Evaluator(batches, target), comm)
    alone = evaluate(data)
    for _ in range(2):
        found = evaluator()
        assert list(found) == list(alone)
        for name, value in alone.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-12)
    evaluator.get_iterator("main").finalize()


class Wrapped(mnpar.dataset.Iterator):
    """A user's iterator around another."""

    repeat = False

    def __init__(self, inner):
        self.inner = inner

    def __next__(self):
        return next(self.inner)

    def reset(self):
        self.inner.reset()


class Means(mnpar.Chain):
    """Reports the mean of what it gets."""

    def forward(self, x):
        mnpar.report({"mean": float(np.mean(x))}, self)


ITERATORS = {
    "multi-node": lambda made, comm: mnpar.iterators.create_multi_node_iterator(made, comm),
    "multi-node, another master": lambda made, comm: mnpar.iterators.create_multi_node_iterator(
        made, comm, comm.size - 1
    ),
    "multi-node around the user's own": lambda made, comm: (
        mnpar.iterators.create_multi_node_iterator(Wrapped(made), comm)
    ),
    "synchronized": lambda made, comm: mnpar.iterators.create_synchronized_iterator(made, comm),
    "synchronized in a multi-node one": lambda made, comm: (
        mnpar.iterators.create_multi_node_iterator(
            mnpar.iterators.create_synchronized_iterator(made, comm), comm
        )
    ),
    "the user's own": lambda made, comm: Wrapped(made),
    "the user's own around a multi-node one": lambda made, comm: Wrapped(
        mnpar.iterators.create_multi_node_iterator(made, comm)
    ),
}
DATASETS = {
    "scattered": lambda part: part,
    "transformed": lambda part: mnpar.datasets.TransformDataset(part, float),
    "reordered": lambda part: mnpar.datasets.SubDataset(
        part, 0, len(part), np.arange(len(part))[::-1]
    ),
    "joined": lambda part: mnpar.datasets.TransformDataset(
        mnpar.datasets.TupleDataset(part, part), lambda pair: pair[0]
    ),
    "in a row": lambda part: mnpar.datasets.ConcatenatedDataset(part),
    "read ahead": lambda part: mnpar.datasets.PrefetchDataset(part, 0),
    "merged": lambda part: mnpar.datasets.TransformDataset(
        mnpar.datasets.MergeDataset(part, part), lambda pair: pair[0]
    ),
    "named": lambda part: mnpar.datasets.TransformDataset(
        mnpar.datasets.DictDataset(x=part), lambda one: one["x"]
    ),
}


@pytest.mark.grid
@pytest.mark.ranks(2, 4, on="threads")
@pytest.mark.parametrize("wrap", ITERATORS.values(), ids=ITERATORS)
@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_repeats_are_counted_once_behind_any_iterator_and_data_set(comm, wrap, dataset, shuffle):
    """Ranks 0, 2 and 1, 3 have copies of a model each, which is spread over 0, 1 and 2, 3."""
    data_comm, model_comm = comm.split(comm.rank % 2, 0), comm.split(comm.rank // 2, 0)
    values = [0.0, 0, 6, 0, 0] if data_comm.size == 2 else [3.0, 1]
    part = mnpar.scatter_dataset(values if data_comm.rank == 0 else None, data_comm)
    batches = wrap(SerialIterator(dataset(part), 2, repeat=False, shuffle=shuffle), model_comm)
    evaluator = mnpar.create_multi_node_evaluator(
        extensions.Evaluator(batches, Means()), [data_comm, comm][int(comm.size == 4)]
    )
    for _ in range(2):
        np.testing.assert_allclose(evaluator()["main/mean"], np.mean(values), rtol=1e-12)


def test_examples_that_no_rank_reads_are_told_of():
    def program(comm):
        part = mnpar.scatter_dataset(range(5) if comm.rank == 0 else None, comm)
        own = SerialIterator(part, 2, repeat=False, shuffle=False)
        with contextlib.ExitStack() as stack:
            if comm.rank:
                stack.enter_context(
                    pytest.raises(ValueError, match=r"nobody .* examples 2 … 4 of 5: .* rank 0's")
                )
            mnpar.iterators.create_multi_node_iterator(own, comm)
        batches = mnpar.iterators.create_multi_node_iterator(own if comm.rank == 0 else None, comm)
        evaluator = mnpar.create_multi_node_evaluator(extensions.Evaluator(batches, Means()), comm)
        with contextlib.ExitStack() as stack:
            if comm.rank == 0:
                stack.enter_context(pytest.warns(UserWarning, match="counts 3 of the 5 examples"))
            return evaluator()

    assert mnpar.run(program, ranks=2) == [{"main/mean": 1.0}] * 2


class Unknown(mnpar.dataset.DatasetMixin):
    """A user's data set whose examples are no longer those of the scattered one."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner) // 2

    def get_example(self, i):
        return self.inner[2 * i + 1]


class Guessed:
    """A user's iterator that reads a data set itself."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter([[one] for one in self.dataset])


@pytest.mark.parametrize(
    "make",
    [lambda part: SerialIterator(Unknown(part), 1, repeat=False), Guessed],
    ids=["data set", "iterator"],
)
def test_repeats_that_cannot_be_found_are_an_error_in_an_evaluation_and_not_in_training(make):
    def program(comm):
        part = mnpar.scatter_dataset(range(5) if comm.rank == 0 else None, comm)
        mnpar.iterators.create_multi_node_iterator(iter(make(part)), comm)
        mnpar.create_multi_node_evaluator(
            extensions.Evaluator(make(part.without_duplicates()), model()), comm
        )
        evaluator = extensions.Evaluator(make(part), model())
        with (
            contextlib.nullcontext()  # rank 0's examples are its own
            if comm.rank == 0
            else pytest.raises(ValueError, match=r"another rank has too, and counts.*force_equal")
        ):
            mnpar.create_multi_node_evaluator(evaluator, comm)

    mnpar.run(program, ranks=2)


@ranks
def test_an_evaluation_without_an_iterator_ends_a_trainers_run(comm, tmp_path):
    class Bleu(extensions.Evaluator):
        def __init__(self, target):
            super().__init__({"main": None}, target)

        def evaluate(self):
            observation = {}
            with mnpar.report_scope(observation):
                if comm.rank == comm.size - 1:
                    mnpar.report({"bleu": 0.5}, self.get_target("main"))
            return observation

    target = model()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(target)
    updater = mnpar.training.StandardUpdater(SerialIterator(examples(4), 2), optimizer)
    trainer = mnpar.training.Trainer(updater, (1, "epoch"), tmp_path)
    trainer.extend(mnpar.create_multi_node_evaluator(Bleu(target), comm))
    trainer.extend(extensions.Evaluator({"main": None}, target), name="never", trigger=(9, "epoch"))
    trainer.run()
    assert trainer.observation["validation/main/bleu"] == 0.5


def test_an_evaluation_that_needs_an_iterator_and_has_none_says_so():
    with pytest.raises(TypeError, match="this Evaluator has no iterator to evaluate"):
        extensions.Evaluator({"main": None}, model())()


@pytest.mark.ranks(2, on="mpi")
def test_the_result_is_that_of_one_process_over_mpi(comm):
    data, part = mine([7, 2], comm)
    found = evaluate(part, comm)
    alone = evaluate(data)
    np.testing.assert_allclose(list(found.values()), list(alone.values()), rtol=1e-12)


class Saying(mnpar.Chain):
    """Reports under names that depend on the rank."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def forward(self, x, t):
        for name in self.names:
            mnpar.report({name: float(t[0])}, self)


@ranks
def test_the_names_are_those_of_all_ranks(comm):
    names = [["loss"], ["accuracy", "loss"], [], ["time"]][comm.rank]
    found = evaluate(
        [(np.zeros(1), comm.rank)] * (comm.rank + 1), comm, batch=9, target=Saying(names)
    )
    expected = {"main/loss": 0.0}
    if comm.size > 1:
        expected = {"main/loss": 2 / 3, "main/accuracy": 1.0}
    if comm.size > 3:
        expected["main/time"] = 3.0
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()))


class Own(extensions.Evaluator):
    """Has an evaluation of its own, as translators do."""

    def evaluate(self):
        return {"score": float(len(self.get_iterator("main").dataset))}


@ranks
def test_an_evaluation_of_ones_own_counts_by_the_length_of_its_data(comm):
    sizes = [4, 1, 0, 3][: comm.size]
    found = evaluate(examples(sizes[comm.rank]), comm, kind=Own)
    assert found == {"score": np.average(sizes, weights=sizes)}


class More(extensions.Evaluator):
    """Adds to the usual evaluation."""

    def evaluate(self):
        return {
            **super().evaluate(),
            "score": mnpar.Variable(np.array(1.0 + len(self.get_iterator("main").dataset))),
        }


class Rare(mnpar.Chain):
    """Reports of some batches only, with weights of its own."""

    def forward(self, x, t):
        if t[0] % 2:
            mnpar.report({"rare": (float(t[0]), 10 + int(t[0]))}, self)


@ranks
@pytest.mark.parametrize("kind", [extensions.Evaluator, More], ids=["usual", "more"])
def test_weights_that_come_with_values_count_over_ranks_too(comm, kind):
    _, part = mine([3, 1, 4, 2], comm)
    labels = [t for each in comm.allgather_obj([t for _, t in part]) for t in each if t % 2]
    found = evaluate(part, comm, batch=1, target=Rare(), kind=kind)
    np.testing.assert_allclose(
        found["main/rare"], np.average(labels, weights=[10 + t for t in labels])
    )


@ranks
def test_what_an_evaluator_adds_to_the_usual_means_is_there_too(comm):
    data, part = mine([3, 1, 4, 2], comm)
    found = evaluate(part, comm, kind=More)
    alone = evaluate(data)
    sizes = [3, 1, 4, 2][: comm.size]
    assert list(found) == [*alone, "score"]
    np.testing.assert_allclose(found.pop("score"), 1 + np.average(sizes, weights=sizes))
    np.testing.assert_allclose(list(found.values()), list(alone.values()), rtol=1e-12)


@ranks
def test_every_rank_of_a_trainer_reports_the_result(comm, tmp_path):
    data, part = mine([6, 2, 3, 1], comm)
    target = model()
    evaluator = extensions.Evaluator(SerialIterator(part, 4, repeat=False, shuffle=False), target)
    trainer = counting(tmp_path, (2, "epoch"), length=2)
    trainer.extend(mnpar.create_multi_node_evaluator(evaluator, comm))
    trainer.run()
    alone = evaluate(data)
    np.testing.assert_allclose(
        trainer.observation["validation/main/loss"], alone["main/loss"], rtol=1e-12
    )


# Results that are no means.


class Labels(mnpar.extensions.GenericMultiNodeEvaluator):
    """Its result of a batch is the list of its examples."""

    def calc_local(self, *examples):
        assert (mnpar.config.train, mnpar.config.enable_backprop) == (False, False)
        return list(examples)


def generic(comm, data, batch=2, kind=Labels, shuffle=False, **kwargs):
    iterator = SerialIterator(data, batch, repeat=False, shuffle=shuffle)
    return kind(
        comm, iterator, lambda *args: args, converter=lambda batch, device: tuple(batch), **kwargs
    )


@ranks
@shards
@pytest.mark.parametrize("root", [0, -1])
def test_the_root_gets_all_results_in_turn(comm, sizes, root):
    root %= comm.size
    seen = []
    evaluator = generic(
        comm,
        [(comm.rank, i) for i in range(sizes[comm.rank])],
        root=root,
        progress_hook=seen.append,
    )
    found = [evaluator(None), evaluator(None)]
    batches = [
        [[(rank, j) for j in range(i, min(i + 2, n))] for i in range(0, n, 2)]
        for rank, n in enumerate(sizes[: comm.size])
    ]
    expected = [mine[i] for i in range(max(map(len, batches))) for mine in batches if i < len(mine)]
    assert found == [expected if comm.rank == root else None] * 2
    assert len(seen) == (2 * len(batches[root]) if comm.rank == root else 0)


def test_one_process_needs_no_communicator():
    assert generic(None, "abcde")(None) == [["a", "b"], ["c", "d"], ["e"]]


def test_the_target_computes_and_the_list_is_the_result_unless_told_otherwise():
    assert generic(None, "abc", kind=mnpar.extensions.GenericMultiNodeEvaluator)(None) == [
        ("a", "b"),
        ("c",),
    ]


@ranks
@pytest.mark.parametrize("shuffle", [False, True])
def test_results_have_once_what_scatter_dataset_repeats(comm, shuffle):
    for n, batch in ((1, 1), (2, 3), (7, 1), (10, 2)):
        part = mnpar.scatter_dataset(range(n) if comm.rank == 0 else None, comm)
        found = generic(comm, part, batch, shuffle=shuffle)(None)
        assert (
            found is None
            if comm.rank
            else sorted(i for result in found for i in result) == [*range(n)]
        )


def test_an_iterator_of_another_kind_gives_what_it_has():
    def program(comm):
        part = mnpar.scatter_dataset(range(3) if comm.rank == 0 else None, comm)
        own = SerialIterator(part, 1, repeat=False, shuffle=False) if comm.rank == 0 else None
        batches = mnpar.iterators.create_multi_node_iterator(own, comm)
        mnpar.create_multi_node_evaluator(extensions.Evaluator(batches, model()), comm)
        return [i for batch in batches for i in batch]

    assert mnpar.run(program, ranks=2) == [[0, 1]] * 2


def test_a_result_can_be_reported(tmp_path):
    class Counted(Labels):
        def aggregate(self, results):
            mnpar.report({"examples": sum(map(len, results))})

    trainer = counting(tmp_path, (1, "epoch"), length=2)
    trainer.extend(generic(None, "abcde", kind=Counted))
    trainer.run()
    assert trainer.observation == {"examples": 5}


def test_no_result_and_no_root_are_refused():
    class Nothing(Labels):
        def calc_local(self, *examples):
            return None

    with pytest.raises(TypeError, match=r"Nothing\.calc_local returned None"):
        generic(None, "ab", kind=Nothing)(None)
    with pytest.raises(ValueError, match="root = 3 is no rank"):
        generic(None, "ab", root=3)


@pytest.mark.ranks(2, on="threads")
@pytest.mark.parametrize(
    ("given", "name"), [(None, "None"), ([1], "a list")], ids=["None", "a list"]
)
def test_what_is_no_evaluator_is_told(comm, given, name):
    with pytest.raises(
        TypeError,
        match=f"rank {comm.rank}: create_multi_node_evaluator needs an Evaluator, not {name}",
    ):
        mnpar.create_multi_node_evaluator(given, comm)
