"""Iterators that read alike on all ranks, after one agreement."""

import pytest

import mnpar
from mnpar.datasets import create_empty_dataset
from mnpar.iterators import SerialIterator, ShuffleOrderSampler, create_synchronized_iterator

RANKS = [1, 2, 3, 4]


@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_read_the_same_shuffled_batches_for_epochs(ranks):
    def program(comm):
        mnpar.random.seed([1, comm.rank])
        iterator = create_synchronized_iterator(SerialIterator(range(17), 4), comm)
        return [
            (iterator.next(), iterator.epoch, iterator.is_new_epoch, iterator.epoch_detail)
            for _ in range(20)
        ]

    results = mnpar.run(program, ranks=ranks)
    assert all(result == results[0] for result in results)
    examples = [example for batch, *_ in results[0] for example in batch]
    assert examples[:17] != examples[17:34]


def test_the_order_follows_rank_zeros_generator():
    def program(comm, first):
        mnpar.random.seed(first + comm.rank * 100)
        return create_synchronized_iterator(SerialIterator(range(30), 30), comm).next()

    def orders(first):
        return mnpar.run(lambda comm: program(comm, first), ranks=2)

    assert orders(5) == orders(5)
    assert orders(5) != orders(6)


def test_an_iterator_that_was_used_starts_again():
    def program(comm):
        iterator = SerialIterator(range(10), 3)
        for _ in range(comm.rank + 1):
            iterator.next()
        create_synchronized_iterator(iterator, comm)
        return iterator.epoch, iterator.current_position, iterator.next()

    one, other = mnpar.run(program, ranks=2)
    assert one[:2] == other[:2] == (0, 0)
    assert one == other


def test_an_iterator_that_does_not_shuffle_keeps_its_order():
    def program(comm):
        iterator = create_synchronized_iterator(SerialIterator(range(5), 2, shuffle=False), comm)
        return iterator.order_sampler, iterator.next(), iterator.next()

    assert mnpar.run(program, ranks=2) == [(None, [0, 1], [2, 3])] * 2


def test_a_rank_without_data_keeps_step_with_an_empty_data_set():
    def program(comm):
        dataset = list(range(10))
        dataset = dataset if comm.rank == 0 else create_empty_dataset(dataset)
        iterator = create_synchronized_iterator(SerialIterator(dataset, 3), comm)
        return [(len(iterator.next()), iterator.epoch) for _ in range(8)]

    one, other = mnpar.run(program, ranks=2)
    assert one == other


def test_the_same_iterator_comes_back_with_a_new_order_sampler():
    def program(comm):
        sampler = ShuffleOrderSampler(comm.rank)
        iterator = SerialIterator(range(5), 2, order_sampler=sampler)
        return (
            create_synchronized_iterator(iterator, comm) is iterator
            and iterator.order_sampler is not sampler
        )

    assert mnpar.run(program, ranks=2) == [True, True]


class Bare:
    def __next__(self):
        return [1]


DIFFERENT = {
    "no order_sampler": (
        lambda rank: Bare() if rank == 1 else SerialIterator(range(5), 2),
        "rank 1: this iterator has no attribute",
    ),
    "no iterator": (lambda rank: None, "rank 0: this iterator has no attribute order_sampler"),
    "some shuffle": (
        lambda rank: SerialIterator(range(5), 2, shuffle=rank == 0),
        r"\(True, 5, 2, True\) on rank 0 and \(False, 5, 2, True\)",
    ),
    "lengths": (
        lambda rank: SerialIterator(range(5 + rank), 2),
        r"\(True, 5, 2, True\) on rank 0 and \(True, 6, 2, True\)",
    ),
    "batch sizes": (
        lambda rank: SerialIterator(range(5), 2 + rank),
        r"\(True, 5, 2, True\) on rank 0 and \(True, 5, 3, True\)",
    ),
    "some repeat": (
        lambda rank: SerialIterator(range(5), 2, repeat=rank == 0),
        r"\(True, 5, 2, True\) on rank 0 and \(True, 5, 2, False\)",
    ),
}


@pytest.mark.parametrize(("make", "message"), DIFFERENT.values(), ids=DIFFERENT)
def test_iterators_that_cannot_read_alike_are_refused_on_every_rank(make, message):
    def program(comm):
        with pytest.raises(ValueError, match=message):
            create_synchronized_iterator(make(comm.rank), comm)
        return comm.rank

    assert mnpar.run(program, ranks=3) == [0, 1, 2]
