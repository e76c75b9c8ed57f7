"""Graders of lesson 2."""

import numpy as np

import mnpar
import mnpar.functions as F
from grading.exercise import (
    RANKS,
    exercise,
    is_close,
    on_ranks,
    require,
    require_close,
    shown,
)


@exercise("2.1")
def broadcast(answer):
    x0 = np.array([5.0, -1.0])
    for ranks in RANKS:

        def program(comm):
            x = mnpar.Variable(x0) if comm.rank == 0 else None
            y = answer(comm, x)
            if not isinstance(y, mnpar.Variable):
                mnpar.backward()
                return y, None, comm.traffic.collectives
            before = comm.traffic.collectives
            F.sum(y * (comm.rank + 1.0)).backward()
            return y.array, None if x is None else x.grad, before

        results = mnpar.run(program, ranks)
        for rank, (y, _, collectives) in enumerate(results):
            who = f"{on_ranks(ranks)}, rank {rank}"
            require_close(y, x0, who)
            require(
                not collectives, "it is right, but a collective has made it: use F.send, F.recv"
            )
        gradient = results[0][1]
        expected = sum(range(1, ranks + 1)) * np.ones(2)
        require(
            gradient is not None,
            f"{on_ranks(ranks)}: all ranks have x, but its gradient does not come back to rank 0. "
            "Return Variables, and do not take `.array` out of them on the way: F.send and F.recv "
            "go back, comm.send and comm.recv do not",
        )
        own = gradient if gradient is not None else np.zeros(2)
        require(
            ranks == 1 or not is_close(own, np.ones(2)),
            f"{on_ranks(ranks)}: all ranks have x, but rank 0 gets only its own gradient, "
            f"{shown(own)}, and the sum of all is {shown(expected)}. comm.send and comm.recv "
            "have no gradient: F.send and F.recv have",
        )
        require_close(own, expected, f"{on_ranks(ranks)}, the gradient of x on rank 0")


@exercise("2.2")
def predict(answer):
    def program(comm, all_have_a_loss):
        x = mnpar.Variable(np.array([1.0]))
        total = F.allreduce(comm, x)
        if all_have_a_loss or comm.rank == 0:
            F.sum(total).backward()
        else:
            mnpar.backward()
        return x.grad.item()

    for ranks in RANKS:
        try:
            first, second = answer(ranks)
        except (TypeError, ValueError):
            require(False, "return two numbers: `return first, second`")
        every = mnpar.run(program, ranks, (True,))[0]
        one = mnpar.run(program, ranks, (False,))[0]
        require(
            is_close(first, every),
            f"{on_ranks(ranks)}, where each has the loss, x.grad is not {first}. In how many "
            "ranks' losses is this rank's x? Their sum is what backward differentiates",
        )
        require(
            is_close(second, one),
            f"{on_ranks(ranks)}, where only rank 0 has a loss, x.grad is not {second}. The loss is "
            "x₀ + x₁ + …, and counts once",
        )


@exercise("2.3")
def ToTheLeft(answer):
    for ranks in RANKS:

        def program(comm):
            x = mnpar.Variable(np.array([comm.rank + 1.0]))
            (y,) = answer(comm).apply((x,))
            F.sum((10.0 ** (comm.rank + 1)) * y).backward()
            return y.array, x.grad

        for rank, (y, gradient) in enumerate(mnpar.run(program, ranks)):
            who = f"{on_ranks(ranks)}, rank {rank}"
            left, right = (rank - 1) % ranks, (rank + 1) % ranks
            require(
                left == right or not is_close(y, [left + 1.0]),
                f"{who} got its left neighbour's x: it sends to the left, so it receives from the "
                "right",
            )
            require_close(y, [right + 1.0], f"{who}: forward")
            require(
                left == right or not is_close(gradient, [10.0 ** (right + 1)]),
                f"{who}: forward is right, but the gradient went to the left as well. A letter "
                "that was sent to the left comes back to the right",
            )
            # whoever has this rank's x is its left neighbour
            require_close(gradient, [10.0 ** (left + 1)], f"{who}: the gradient of x")
