"""Random programs of values that ranks own together and values of their own, right and spoilt.

A program is a list of steps, each of which says how a value is made of earlier ones. ``over_ranks``
runs it with mnpar's communications; ``alone`` in one process, where a value that the ranks own
together is one Variable, and one of their own is a list of them, one for each rank.
"""

import numpy as np

import mnpar
import mnpar.functions as F

N = 12  # the length of whole values, a multiple of all numbers of ranks


class Step:
    """One step of a program.

    Args:
        name: the function; those of ``LOCAL`` are computed without communication.
        inputs: the numbers of the steps whose values it takes.
        together: whether the ranks own the result together.
        part: whether it is a part of a whole value, of N / P numbers.
    """

    def __init__(self, name, inputs, together, part=False):
        self.name, self.inputs, self.together, self.part = name, inputs, together, part

    def __repr__(self):
        return f"{self.name}{self.inputs}{' together' if self.together else ''}"


LOCAL = {
    "tanh": lambda x: F.tanh(2 * x),
    "square": lambda x: x * x / 4,
    "sum": lambda x: F.sum(x) / 8 + x,
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y / 4,
    "div": lambda x, y: x / (y * y + 1),
}
INTO = {"copy_to": F.copy_to, "scatter_to": F.scatter_to}
OUT_OF = {"reduce_from": F.reduce_from, "gather_from": F.gather_from}
OF_LAW_1 = ("allreduce", "allgather", "alltoall", "shift", "bcast", "reduce_scatter")


def draw(seed):
    """A program and its number of ranks."""
    rng = np.random.default_rng(seed)
    steps = [Step("weight", (), True), Step("weight", (), True), Step("own weight", (), False)]

    def some(together, part=False):
        found = [i for i, s in enumerate(steps) if (s.together, s.part) == (together, part)]
        return int(found[-1] if rng.random() < 0.5 else rng.choice(found)) if found else None

    for _ in range(int(rng.integers(6, 22))):
        kind = rng.choice(["local", "local", "local", "into", "out of", "out of", "law 1"])
        together = bool(rng.random() < 0.5)
        part = bool(not together and rng.random() < 0.4)
        if kind == "local":
            name = str(rng.choice([*LOCAL]))
            inputs = (some(together, part), some(together, part))
            inputs = inputs[: LOCAL[name].__code__.co_argcount]
            step = Step(name, inputs, together, part)
        elif kind == "into":
            name = str(rng.choice([*INTO]))
            step = Step(name, (some(True),), False, name == "scatter_to")
        elif kind == "out of":
            name = str(rng.choice([*OUT_OF]))
            step = Step(name, (some(False, name == "gather_from"),), True)
        elif together:
            step = Step("allreduce", (some(True),), True)
        else:
            name = str(rng.choice(OF_LAW_1))
            step = Step(name, (some(False, name == "allgather"),), False, name == "reduce_scatter")
        if None not in step.inputs:
            steps.append(step)
    return steps, int(rng.integers(2, 5))


def weights(step, rank):
    """A weight's values, which all ranks have alike if they own it together."""
    return np.random.default_rng([step, 0 if rank is None else rank + 1]).normal(size=N)


def over_ranks(comm, steps, how=None, spoilt=None):
    """This rank's gradients of its weights, by step. ``how`` changes the step ``spoilt``."""
    P, r = comm.size, comm.rank
    found, leaves = [], {}
    for i, step in enumerate(steps):
        xs = [found[j] for j in step.inputs]
        name = step.name
        times = 1
        if i == spoilt:
            name, times = {"left out": ("as it is", 1), "twice": (name, 2)}.get(how, (how, 1))
        for _ in range(times):
            match name:
                case "weight" | "own weight":
                    y = leaves[i] = mnpar.Variable(weights(i, None if step.together else r))
                case "as it is":
                    y = xs[0]
                case "copy_to" | "scatter_to" | "reduce_from" | "gather_from":
                    y = getattr(F, name)(comm, xs[0])
                case "allreduce":
                    y = F.allreduce(comm, xs[0]) / P
                case "allgather":
                    y = F.allgather(comm, xs[0], axis=0)
                case "alltoall":
                    y = sum(F.alltoall(comm, [xs[0] * (q + 1) / P for q in range(P)])) / P
                case "shift":
                    y = F.sendrecv(xs[0], comm, (r + 1) % P, (r - 1) % P)
                case "bcast":
                    y = F.bcast(comm, xs[0]) / P
                case "reduce_scatter":
                    y = F.reduce_scatter(comm, xs[0], axis=-1) / P
                case _:
                    y = LOCAL[name](*xs)
            xs = [y]
        found.append(y)
    loss = sum(F.sum(found[i]) * (0.1 if steps[i].together else 0.2) for i in _ends(steps))
    loss.backward()
    return {i: None if w.grad is None else w.grad.copy() for i, w in leaves.items()}


def alone(steps, P):
    """The gradients of all ranks' weights, by rank and step, of one process."""
    found, leaves = [], {}
    for i, step in enumerate(steps):
        xs = [found[j] for j in step.inputs]
        each = lambda function, xs=xs: [function(*some) for some in zip(*xs, strict=True)]
        match step.name:
            case "weight":
                y = leaves[i] = mnpar.Variable(weights(i, None))
            case "own weight":
                y = leaves[i] = [mnpar.Variable(weights(i, r)) for r in range(P)]
            case "copy_to":
                y = xs * P
            case "scatter_to":
                y = list(F.split_axis(xs[0], P, 0))
            case "reduce_from":
                y = sum(xs[0])
            case "gather_from":
                y = F.concat(xs[0], axis=0)
            case "allreduce":
                y = xs[0] if step.together else [sum(xs[0]) / P] * P
            case "allgather":
                y = [F.concat(xs[0], axis=0)] * P
            case "alltoall":
                y = [sum(x * (q + 1) / P for x in xs[0]) / P for q in range(P)]
            case "shift":
                y = xs[0][-1:] + xs[0][:-1]
            case "bcast":
                y = [xs[0][0] / P] * P
            case "reduce_scatter":
                parts = [F.split_axis(x, P, -1) for x in xs[0]]
                y = [sum(part[r] for part in parts) / P for r in range(P)]
            case name:
                y = LOCAL[name](*xs) if step.together else each(LOCAL[name])
        found.append(y)
    loss = sum(
        F.sum(found[i]) * 0.1 if steps[i].together else sum(F.sum(y) for y in found[i]) * 0.2
        for i in _ends(steps)
    )
    loss.backward()
    return [
        {i: (w if steps[i].together else w[r]).grad for i, w in leaves.items()} for r in range(P)
    ]


def _ends(steps):
    """The values that nothing was computed from: the terms of the loss."""
    used = {j for step in steps for j in step.inputs}
    return [i for i in range(len(steps)) if i not in used]


def places(steps):
    """The entrances and exits of divided work that can be left out or doubled, and reach a loss."""
    return [i for i, step in enumerate(steps) if step.name in {"copy_to", "reduce_from"}]


def differ(found, truth):
    """Whether a rank's gradients are not those of one process."""
    for i, g in truth.items():
        mine = found[i]
        if g is None or mine is None:
            if not (_is_nothing(g) and _is_nothing(mine)):
                return True
        elif not np.allclose(mine, g, 1e-6, 1e-9):
            return True
    return False


def _is_nothing(g):
    return g is None or not g.any()
