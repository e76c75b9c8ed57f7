"""Graders of lesson 6."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from grading.exercise import (
    RANKS,
    exercise,
    is_close,
    on_ranks,
    require,
    require_close,
)


@exercise("6.1")
def sharded_step(answer):
    for ranks in RANKS:
        for n in (8, 5, 2):
            rng = np.random.default_rng([ranks, n])
            first, gradients = rng.standard_normal(n), rng.standard_normal((3, ranks, n))

            def program(comm, first=first, gradients=gradients):
                w = first.copy()
                v = np.zeros_like(np.array_split(w, comm.size)[comm.rank])
                steps = []
                for step in gradients:
                    try:
                        w, v = answer(comm, w, step[comm.rank].copy(), v, 0.1)
                    except TypeError as error:
                        require("unpack" not in str(error), "return two things: the weights, and v")
                        raise
                    steps.append((w, v))
                return steps

            v0, w0 = np.zeros(n), first
            whole = []
            for step in gradients:
                v0 = 0.9 * v0 - 0.1 * step.mean(axis=0)
                w0 = w0 + v0
                whole.append((w0, v0))
            summed = first - 0.1 * gradients[0].sum(axis=0)
            for rank, steps in enumerate(mnpar.run(program, ranks)):
                for number, ((w, v), (w0, v0)) in enumerate(zip(steps, whole, strict=True)):
                    who = f"{on_ranks(ranks)} with {n} weights, step {number + 1}: rank {rank}"
                    require(
                        number > 0 or ranks == 1 or not is_close(w, summed),
                        f"{who} has stepped with the sum of the gradients: their mean counts",
                    )
                    require_close(w, w0, f"{who}, the weights:")
                    piece = np.array_split(v0, ranks)[rank]
                    require(
                        ranks == 1 or np.shape(v) != (n,) or len(piece) == n,
                        f"{who} keeps the velocity of all weights: it needs that of its piece only",
                    )
                    require_close(v, piece, f"{who}, the velocity:")


@exercise("6.2")
def bytes_on_a_rank(answer):
    for n, ranks, sharded in ((1000, 1, False), (1000, 4, False), (1000, 4, True), (1200, 6, True)):
        case = f"{n} weights {on_ranks(ranks)}, {'' if sharded else 'not '}sharded"
        got = answer(n, ranks, sharded)
        right = 8 * n + (8 * n // ranks if sharded else 8 * n)
        require(
            ranks == 1 or not is_close(got, 16 * n / ranks),
            f"{case}: {got:g} bytes would be everything divided. Weights and gradients are whole "
            "on every rank; only Adam's numbers can be divided",
        )
        require(
            got != (8 * n // ranks if sharded else 8 * n),
            f"{case}: {got} bytes are Adam's numbers. The weights and the gradients need room, too",
        )
        require(got == right, f"{case}: your answer is {got} bytes, and {right} is right")


@exercise("6.3")
def my_training(answer):
    rng = np.random.default_rng(1)
    x, t = rng.standard_normal((7, 5)), np.arange(7) % 2

    def alone(comm, x, t):
        mnpar.random.seed(0)
        model = mnpar.Sequential(L.Linear(5, 7), F.tanh, L.Linear(7, 2))
        optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
        for _ in range(5):
            optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        return model

    def look(comm):
        model = answer(comm, x, t)
        require(isinstance(model, mnpar.Link), "return the trained model")
        states = [state for p in model.params() for state in p.update_rule.state.values()]
        remembered = sum([state.size for state in states if isinstance(state, np.ndarray)])
        return [param.array for param in model.params()], remembered, comm.traffic.collectives

    with mnpar.using_config("dtype", np.dtype("f8")):
        (expected,) = mnpar.run(alone, 1, (x, t))
        right = [param.array for param in expected.params()]
        for ranks in (1, 2, 3):
            arrays, remembered, collectives = mnpar.run(look, ranks)[0]
            if len(arrays) != len(right) or not all(map(is_close, arrays, right)):
                require(ranks > 1, _ALONE)
                report = mnpar.check(answer, (1, ranks), args=(x, t))
                said = "" if report.ok else f"; mnpar.check says:\n{report}"
                require(False, f"{on_ranks(ranks)} the weights are not those of 1 rank{said}")
            require(
                ranks == 1 or collectives,
                f"{on_ranks(ranks)} no rank speaks to another one: each has trained on all of the "
                "examples. Take your block of them, and an optimizer over ranks",
            )
            size = sum([array.size for array in right])
            require(
                ranks == 1 or remembered < size,
                f"{on_ranks(ranks)} the weights are right, but the optimizer of rank 0 remembers "
                f"{remembered} numbers for {size} weights. Let it keep those of its stretch only",
            )


_ALONE = (
    "on 1 rank the weights are not those of five updates of make_model() by MomentumSGD(0.1) with "
    "the mean loss of all examples"
)
