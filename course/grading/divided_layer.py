"""Graders of lesson 3."""

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

N, D, H, K = 3, 5, 7, 2  # divisible by no number of ranks: parts are uneven, and may be empty


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def cut(array, axis, comm):
    """Return this rank's block of an array along an axis."""
    start, stop = mnpar.plans.block(array.shape[axis], comm.size, comm.rank)
    return array.take(range(start, stop), axis)


def require_variable(y, who):
    require(y is not None, f"{who} got None: does every rank come to a `return`?")
    require(
        isinstance(y, mnpar.Variable),
        f"{who} got {type(y).__name__}, and no Variable: functions of F have gradients, numpy's "
        "and comm's have none",
    )


def require_gradient(got, expected, who, name, ranks, hint=""):
    """Raise WrongAnswerError unless a gradient is right; say what a multiple of it means."""
    require(
        got is not None,
        f"{who}: the output is right, but {name} has no gradient: did `.array` cut the graph?",
    )
    require(
        ranks == 1 or not np.any(expected) or not is_close(got, ranks * expected),
        f"{who}: the output is right, but the gradient of {name} is {ranks} times too large. All "
        "ranks hold one loss together: F.reduce_from adds up the parts of one value, F.allreduce "
        "makes a value of each rank's own",
    )
    if hint:
        require(got.shape == expected.shape and np.allclose(got, expected), f"{who}: {hint}")
    require_close(got, expected, f"{who}: the output is right; the gradient of {name}")


@exercise("3.1")
def layer_by_inputs(answer):
    xs, Ws, bs, gy = draw(0, N, D), draw(1, K, D), draw(2, K), draw(3, N, K)
    y0 = xs @ Ws.T + bs
    for ranks in RANKS:

        def program(comm):
            x, W = mnpar.Variable(cut(xs, 1, comm)), mnpar.Variable(cut(Ws, 1, comm))
            b = mnpar.Variable(bs.copy())
            y = answer(comm, x, W, b)
            who = f"{on_ranks(comm.size)}, rank {comm.rank}"
            require_variable(y, who)
            require(
                comm.size == 1 or not is_close(y, xs @ Ws.T + comm.size * bs),
                f"{who}: b is added {comm.size} times, once on each rank. Add it behind the sum",
            )
            require(
                comm.size == 1 or not is_close(y, x.array @ W.array.T + bs),
                f"{who} got its own part only: the output is the sum of all ranks' parts",
            )
            require_close(y, y0, who)
            F.sum(y * gy).backward()
            require_gradient(W.grad, cut(gy.T @ xs, 1, comm), who, "W", comm.size)
            require_gradient(x.grad, cut(gy @ Ws, 1, comm), who, "x", comm.size)
            hint = (
                "the output and the other gradients are right, but that of b is not: all ranks "
                "hold b alike, and it belongs behind the sum, where one value is left"
            )
            require_gradient(b.grad, gy.sum(axis=0), who, "b", comm.size, hint)

        mnpar.run(program, ranks)


@exercise("3.2")
def two_layers(answer):
    xs, W1s, W2s, gy = draw(0, N, D), draw(1, H, D), draw(2, K, H), draw(3, N, K)
    h0 = np.maximum(xs @ W1s.T, 0)
    gh = (gy @ W2s) * (h0 > 0)
    for ranks in RANKS:

        def program(comm):
            x = mnpar.Variable(xs.copy())
            W1, W2 = mnpar.Variable(cut(W1s, 0, comm)), mnpar.Variable(cut(W2s, 1, comm))
            y = answer(comm, x, W1, W2)
            who = f"{on_ranks(comm.size)}, rank {comm.rank}"
            require_variable(y, who)
            own = np.maximum(xs @ W1.array.T, 0) @ W2.array.T
            require(
                comm.size == 1 or not is_close(y, own),
                f"{who} got its own part only: the output is the sum of all ranks' parts",
            )
            require_close(y, h0 @ W2s.T, who)
            F.sum(y * gy).backward()
            require_gradient(W2.grad, cut(gy.T @ h0, 1, comm), who, "W2", comm.size)
            require_gradient(W1.grad, cut(gh.T @ xs, 0, comm), who, "W1", comm.size)
            hint = (
                "the output and the gradients of the weights are right, but that of x is only this "
                "rank's part. x is the same on all ranks, and enters work that they divide: by "
                "which function?"
            )
            require_gradient(x.grad, gh @ W1s, who, "x", comm.size, hint)

        mnpar.run(program, ranks)


@exercise("3.3")
def make_pair(answer):
    x, t = draw(0, 4, 6), draw(1, 4, 3)

    def train(comm, make):
        mnpar.random.seed(7)
        model = make(comm)
        optimizer = mnpar.optimizers.SGD(0.1).setup(model)
        for _ in range(2):
            optimizer.update(lambda: F.sum((model(x) - t) ** 2))

    def undivided(comm):
        return mnpar.Sequential(L.Linear(6, 8), F.relu, L.Linear(8, 3))

    def look(comm):
        model = answer(comm)
        require(isinstance(model, mnpar.Link), "return a link: mnpar.Sequential(…)")
        weights = [param.shape for param in model.params() if param.ndim == 2]
        before = comm.traffic.collectives
        y = model(x)
        require(y.shape == (4, 3), f"the output has the shape {y.shape}, and not (4, 3)")
        require(
            comm.size == 1 or not {(8, 6), (3, 8)} & set(weights),
            f"{on_ranks(comm.size)}, rank {comm.rank} has weights of the shapes {weights}: the "
            "whole layers have (8, 6) and (3, 8). Use layers that are divided",
        )
        require(
            comm.traffic.collectives - before <= 1,
            "forward takes more than one sum over ranks: gather_output=False leaves the hidden "
            "numbers where they are, and input_is_parallel=True takes them there",
        )

    for ranks in (1, 2, 3):
        mnpar.run(look, ranks)
    found = mnpar.check(
        train, (2, 3), args=(answer,), reference=lambda comm, _: train(comm, undivided)
    )
    require(
        found.ok, f"training it is not training the undivided layers. mnpar.check says:\n{found}"
    )
