"""Graders of lesson 7: its stubs are programs that go wrong."""

import numpy as np

import mnpar
from grading.exercise import RANKS, exercise, on_ranks, require, require_close


@exercise("7.1")
def last_of_the_left(answer):
    for ranks in (3, 2, 4, 1):
        pieces = [np.arange(3.0) + 10 * rank for rank in range(ranks)]

        def program(comm, pieces=pieces):
            return answer(comm, pieces[comm.rank])

        for rank, got in enumerate(mnpar.run(program, ranks)):
            expected = pieces[(rank - 1) % ranks][-1:]
            require_close(got, expected, f"{on_ranks(ranks)}, rank {rank}")


@exercise("7.2")
def until_all_are_content(answer):
    for ranks in RANKS:
        first = [1.0, 0.7, 4.0, 0.05][:ranks]

        def program(comm, first=first):
            return answer(comm, first[comm.rank])

        steps = 0
        while max(first) / 2**steps > 0.1:
            steps += 1
        for rank, got in enumerate(mnpar.run(program, ranks)):
            who = f"{on_ranks(ranks)}, rank {rank}"
            require(
                isinstance(got, tuple) and len(got) == 2, f"{who} got {got!r}: return error, steps"
            )
            require(
                got[1] == steps,
                f"{who} took {got[1]} steps: the rank with the largest error, {max(first)}, needs "
                f"{steps}, and all go on together",
            )
            require_close(got[0], first[rank] / 2**steps, f"{who}, its error:")


@exercise("7.3")
def two_halves(answer):
    x, w0, w1 = np.array([1.0, -2.0, 0.5]), np.array(0.7), np.array(-1.5)
    h = np.tanh(w0 * x)
    loss = ((w1 * h) ** 2).sum()
    gradients = [(2 * w1**2 * h * (1 - h**2) * x).sum(), (2 * w1 * h * h).sum()]

    def program(comm):
        w = mnpar.Variable((w0, w1)[comm.rank].copy())
        return answer(comm, w, x if comm.rank == 0 else None), w.grad

    for rank, (got, gradient) in enumerate(mnpar.run(program, 2)):
        require_close(got, loss, f"rank {rank}, the loss:")
        require(
            gradient is not None,
            f"rank {rank} has no gradient of w: it takes no part in the backward",
        )
        require(
            not np.allclose(gradient, 2 * gradients[rank]),
            f"rank {rank}: the gradient of w is twice too large. Both ranks have called the loss "
            "theirs, and there is only one",
        )
        require_close(gradient, gradients[rank], f"rank {rank}, the gradient of w:")
