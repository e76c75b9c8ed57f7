"""A training step of two MLPs on one thread (softmax cross entropy, SGD), beside PyTorch's eager
mode.

    python -m benchmarks.mlp_step
"""

import itertools

from benchmarks.timing import in_turn, one_thread, torch_or_none

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402

NETWORKS = {
    "1024-256-256-256-32, batch 64": ((1024, 256, 256, 256, 32), 64),
    "784-1000-1000-10, batch 100": ((784, 1000, 1000, 10), 100),
}


def ours(sizes, x, t):
    model = mnpar.Sequential()
    for n_in, n_out in itertools.pairwise(sizes):
        model.extend([L.Linear(n_in, n_out), F.relu])
    model.pop()
    optimizer = mnpar.optimizers.SGD(lr=0.1).setup(model)
    return lambda: optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))


def theirs(torch, sizes, x, t):
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.from_numpy(x)
    t = torch.from_numpy(t)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), t).backward()
        optimizer.step()

    return step


def main():
    torch = torch_or_none()
    for name, (sizes, batch) in NETWORKS.items():
        rng = np.random.default_rng(0)
        x = rng.standard_normal((batch, sizes[0])).astype("f4")
        t = rng.integers(0, sizes[-1], batch)
        ways = {"mnpar": ours(sizes, x, t)}
        if torch:
            ways["torch"] = theirs(torch, sizes, x, t)
        found = in_turn(ways, 30, rounds=15)
        text = "   ".join(f"{way} {1e6 * s:6.0f} µs" for way, s in found.items())
        print(
            f"{name:32} {text}"
            + (f"   ratio {found['mnpar'] / found['torch']:.2f}" if torch else "")
        )


if __name__ == "__main__":
    main()
