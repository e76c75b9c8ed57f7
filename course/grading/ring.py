"""Graders of lesson 4."""

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


def require_neighbours_only(collectives):
    require(not collectives, "the sum is right, but a collective has made it: use send and recv")


@exercise("4.1")
def ring_sum(answer):
    for ranks in RANKS:
        total = sum(range(1, ranks + 1)) * np.array([1.0, 10.0])

        def program(comm):
            got = answer(comm, np.array([1.0, 10.0]) * (comm.rank + 1))
            return got, comm.traffic.messages, comm.traffic.collectives

        results = mnpar.run(program, ranks)
        for rank, (got, messages, collectives) in enumerate(results):
            who = f"{on_ranks(ranks)}, rank {rank}"
            own = np.array([1.0, 10.0]) * (rank + 1)
            require(
                ranks == 1 or not is_close(got, ranks * own) or is_close(total, ranks * own),
                f"{who} has added its own number {ranks} times: pass on what has just come, and "
                "not the x that you began with",
            )
            left = np.array([1.0, 10.0]) * ((rank - 1) % ranks + 1)
            require(
                ranks < 3 or not is_close(got, own + (ranks - 1) * left),
                f"{who} got {shown(got)}: its left neighbour's number was added {ranks - 1} times. "
                "Pass on what has just come, and not your own x each time",
            )
            require(
                ranks < 3 or not is_close(got, own + left),
                f"{who} got the sum of two numbers, {shown(got)}: go on until all were here",
            )
            require_close(got, total, who)
            require_neighbours_only(collectives)
            require(
                messages == ranks - 1,
                f"{who}: the sum is right, and took {messages} messages from this rank. In a ring "
                f"each rank sends {ranks - 1}",
            )


@exercise("4.2")
def ring_allreduce(answer):
    for ranks in RANKS:
        for n in (12, 7, 2):
            xs = [np.random.default_rng([n, rank]).standard_normal(n) for rank in range(ranks)]

            def program(comm, xs=xs):
                got = answer(comm, xs[comm.rank].copy())
                return got, comm.traffic.bytes, comm.traffic.collectives

            for rank, (got, nbytes, collectives) in enumerate(mnpar.run(program, ranks)):
                who = f"{on_ranks(ranks)} with {n} numbers, rank {rank}"
                if got is not None and ranks > 1 and np.shape(got) == (n,):
                    wrong = ~np.isclose(got, sum(xs))
                    require(
                        not wrong.any() or wrong.all(),
                        f"{who}: {wrong.sum()} of {n} numbers are wrong, those at "
                        f"{np.flatnonzero(wrong).tolist()}. Which piece is it, and in which step "
                        "did it miss somebody's numbers?",
                    )
                require_close(got, sum(xs), who)
                require_neighbours_only(collectives)
                most = 2 * (ranks - 1) * -(-n // ranks) * 8
                require(
                    nbytes <= most,
                    f"{who}: the sum is right, and this rank has sent {nbytes} bytes, where "
                    f"2 (P - 1) pieces are at most {most}. Pass on one piece in each step",
                )


@exercise("4.3")
def my_energy(answer):
    where = np.random.default_rng(3).standard_normal((7, 2))
    stars = mnpar.Variable(where)
    apart = F.expand_dims(stars, 1) - F.expand_dims(stars, 0)
    whole = -F.sum(1 / F.sqrt(F.sum(apart * apart, axis=2) + 0.01)) / 2
    whole.backward()
    for ranks in RANKS:
        blocks = [slice(*mnpar.plans.block(7, ranks, rank)) for rank in range(ranks)]

        def program(comm, blocks=blocks):
            mine = mnpar.Variable(where[blocks[comm.rank]])
            energy = answer(comm, mine)
            require(
                isinstance(energy, mnpar.Variable),
                f"rank {comm.rank} got {type(energy).__name__}, and no Variable",
            )
            energy.backward()
            return energy.item(), mine.grad, comm.traffic.collectives

        results = mnpar.run(program, ranks)
        total = sum([energy for energy, _, _ in results])
        require(
            not is_close(total, 2 * whole.item()),
            f"{on_ranks(ranks)}: the energies of all ranks add up to twice the right one: each "
            "pair is counted from both ends, so return half",
        )
        require(
            is_close(total, whole.item()),
            f"{on_ranks(ranks)}: the energies of all ranks add up to {total:.6f}, and the right "
            f"one is {whole.item():.6f}. Did each rank meet its own stars once, and "
            "every guest once?",
        )
        require_neighbours_only(results[0][2])
        for rank, (_, gradient, _) in enumerate(results):
            require(
                ranks == 1 or is_close(gradient, stars.grad[blocks[rank]]),
                f"{on_ranks(ranks)}: the energy is right, but the gradient of rank {rank}'s stars "
                "is not. Did they go round as Variables, by F.send and F.recv? comm.send has no "
                "gradient",
            )
            require_close(
                gradient,
                stars.grad[blocks[rank]],
                f"{on_ranks(ranks)}: the energy is right; the gradient of its stars that rank "
                f"{rank}",
            )
