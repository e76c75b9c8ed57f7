"""What recording costs: forward and backward of ``x * y + z``, two operations, on 8 floats, beside
PyTorch's eager mode.

    python -m benchmarks.overhead
"""

import time

from benchmarks.rows import record
from benchmarks.timing import in_turn, one_thread, torch_or_none

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402


def ours():
    x, y, z = (mnpar.Variable(np.ones(8, "f4")) for _ in range(3))
    g = np.ones(8, "f4")

    def step():
        w = x * y + z
        w.grad = g
        w.backward()
        for leaf in (x, y, z):
            leaf.cleargrad()

    return lambda: x * y + z, step


def theirs(torch):
    x, y, z = (torch.ones(8, requires_grad=True) for _ in range(3))
    g = torch.ones(8)

    def step():
        (x * y + z).backward(g)
        x.grad = y.grad = z.grad = None

    return lambda: x * y + z, step


def main():
    torch = torch_or_none()
    forward, both = {}, {}
    forward["mnpar"], both["mnpar"] = ours()
    if torch:
        forward["torch"], both["torch"] = theirs(torch)
    for what, ways in (("forward", forward), ("forward and backward", both)):
        record(what, in_turn(ways, 3000, clock=time.process_time))


if __name__ == "__main__":
    main()
