"""Graders of lesson 1."""

import numpy as np

import mnpar
from grading.exercise import (
    RANKS,
    exercise,
    is_close,
    on_ranks,
    require,
    require_close,
    shown,
)


@exercise("1.1")
def allreduce_by_hand(answer):
    for ranks in RANKS:
        xs = [np.array([1.0, 10.0]) * (rank + 1) for rank in range(ranks)]
        total = sum(xs)

        def program(comm, xs=xs):
            mine = xs[comm.rank].copy()
            got = answer(comm, mine)
            return got, comm.traffic.collectives, np.array_equal(mine, xs[comm.rank])

        results = mnpar.run(program, ranks)
        for rank, (got, collectives, untouched) in enumerate(results):
            who = f"{on_ranks(ranks)}, rank {rank}"
            require(
                rank == 0 or got is not None,
                f"{who} got None: rank 0 has to send the sum back to it",
            )
            require(
                ranks == 1 or not is_close(got, xs[rank]),
                f"{who} got its own x, {shown(xs[rank])}: the sum is {shown(total)}",
            )
            require_close(got, total, who)
            require(
                untouched,
                f"{who}: the sum is right, but x itself was changed, and the caller still needs "
                "it. `total += …` writes into the array: write `total = total + …`",
            )
            require(
                not collectives,
                "the sum is right, but a collective has made it: use comm.send and comm.recv only",
            )


@exercise("1.2")
def my_block(answer):
    for n, size in ((10, 4), (8, 4), (7, 3), (2, 4), (0, 3), (5, 1), (11, 8)):
        blocks = [answer(n, size, rank) for rank in range(size)]
        case = f"{n} indices {on_ranks(size)}: your blocks are {blocks}"
        try:
            ends = [(int(start), int(stop)) for start, stop in blocks]
        except (TypeError, ValueError):
            require(False, f"{case}: return a pair of numbers, (start, stop)")
        at = 0
        for rank, (start, stop) in enumerate(ends):
            require(start <= stop, f"{case}: that of rank {rank} ends before it begins")
            if start == stop:
                continue
            require(start >= at, f"{case}: index {start} belongs to two ranks")
            require(start <= at, f"{case}: nobody has index {at}")
            at = stop
        require(at >= n, f"{case}: nobody has index {at}")
        require(at <= n, f"{case}: the last index is {n - 1}, and {at - 1} is taken")
        sizes = [stop - start for start, stop in ends]
        require(
            max(sizes) - min(sizes) <= 1,
            f"{case}: they have {sizes} indices, and may differ by one at most",
        )


@exercise("1.3")
def mean_of_pieces(answer):
    pieces = [[3.0, 5.0, 4.0], [8.0], [], [2.0, 2.0]]
    for ranks in RANKS:
        mine = [np.array(piece) for piece in pieces[:ranks]]
        every = np.concatenate(mine)

        def program(comm, mine=mine):
            with np.errstate(all="ignore"):
                return answer(comm, mine[comm.rank])

        lengths = ", ".join([str(len(piece)) for piece in mine])
        means = [piece.mean() if len(piece) else 0.0 for piece in mine]
        for rank, got in enumerate(mnpar.run(program, ranks)):
            who = f"{on_ranks(ranks)} with {lengths} numbers, rank {rank}"
            require(
                is_close(every.mean(), np.mean(means)) or not is_close(got, np.mean(means)),
                f"{who} got {shown(got)}, the mean of the ranks' means; the mean of all numbers is "
                f"{shown(every.mean())}. Add up sums and counts over ranks, and divide at the end",
            )
            require(
                got is None or not np.any(np.isnan(np.asarray(got, float))),
                f"{who} got nan: the mean of an empty piece is 0 / 0. Add up its sum, which is 0",
            )
            require_close(got, every.mean(), who)
