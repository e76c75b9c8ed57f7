"""Update rules beside PyTorch's: how far five steps are apart (float64), and the time of a step of
a million float32 numbers.

    python -m benchmarks.optimizers
"""

import time

from benchmarks.rows import record
from benchmarks.timing import in_turn, one_thread, torch_or_none

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.optimizers as O  # noqa: E402

TINY = 1e-30


def rows(T):
    """By name: an optimizer of mnpar, and one of PyTorch's ``torch.optim``."""
    return {
        "SGD": (lambda: O.SGD(0.1), lambda p: T.SGD(p, 0.1)),
        "MomentumSGD": (lambda: O.MomentumSGD(0.1), lambda p: T.SGD(p, 0.1, momentum=0.9)),
        "CorrectedMomentumSGD": (
            lambda: O.CorrectedMomentumSGD(0.1),
            lambda p: T.SGD(p, 0.1, momentum=0.9),
        ),
        "NesterovAG": (
            lambda: O.NesterovAG(0.1),
            lambda p: T.SGD(p, 0.1, momentum=0.9, nesterov=True),
        ),
        "AdaGrad": (lambda: O.AdaGrad(0.1), lambda p: T.Adagrad(p, 0.1, eps=1e-8)),
        "AdaDelta": (lambda: O.AdaDelta(0.9), lambda p: T.Adadelta(p, 1.0, rho=0.9, eps=1e-6)),
        "RMSprop": (lambda: O.RMSprop(0.1, 0.9), lambda p: T.RMSprop(p, 0.1, alpha=0.9)),
        "Adam": (lambda: O.Adam(0.1, eps=TINY), lambda p: T.Adam(p, 0.1, eps=TINY)),
        "AMSGrad": (
            lambda: O.AMSGrad(0.1, eps=TINY),
            lambda p: T.Adam(p, 0.1, eps=TINY, amsgrad=True),
        ),
        "AdamW": (
            lambda: O.AdamW(1.0, eps=TINY, eta=0.1, weight_decay_rate=0.01),
            lambda p: T.AdamW(p, 0.1, eps=TINY, weight_decay=0.01),
        ),
        "AdaMax": (lambda: O.AdaMax(0.1), lambda p: T.Adamax(p, 0.1)),
    }


def both(torch, make, theirs, start):
    """A link with its optimizer, a tensor with its own."""
    link = mnpar.Link()
    link.p = mnpar.Parameter(start.copy())
    tensor = torch.tensor(start, requires_grad=True)
    return link, make().setup(link), tensor, theirs([tensor])


def main():
    torch = torch_or_none()
    if torch is None:
        return
    rng = np.random.default_rng(0)
    for name, (make, theirs) in rows(torch.optim).items():
        link, optimizer, tensor, other = both(torch, make, theirs, rng.standard_normal(50))
        for g in rng.standard_normal((5, 50)):
            link.p.grad = g.copy()
            tensor.grad = torch.tensor(g)
            optimizer.update()
            other.step()
        apart = abs(link.p.array - tensor.detach().numpy()).max()
        link, optimizer, tensor, other = both(
            torch, make, theirs, rng.standard_normal(10**6, dtype=np.float32)
        )
        link.p.grad = np.full(10**6, 1e-3, "f4")
        tensor.grad = torch.full((10**6,), 1e-3)
        ways = {"mnpar": optimizer.update, "torch": other.step}
        found = in_turn(ways, 20, rounds=7, clock=time.process_time)
        print(f"after five steps in float64 {apart:.0e} apart:", flush=True)
        record(name, found)


if __name__ == "__main__":
    main()
