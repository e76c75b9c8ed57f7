"""Record golden values of PyTorch: ``python -m tests.golden.record_pytorch`` in the project's root.

It needs torch and numpy.
"""

import numpy as np
import torch

from tests.golden.optimizers import INPUTS, STEPS, gradients
from tests.golden.pytorch import ATTENTION, FUNCTIONS, OPTIMIZERS
from tests.golden.recording import draw, flatten, numbered, save, weigh


def record_function(name, call, _, *descriptions):
    arrays = draw(f"PyTorch's {name}", descriptions)
    xs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]
    ys = flatten(call(torch, *xs))
    loss = sum(
        torch.sum(y * torch.tensor(weigh(y.detach().numpy()))) for y in ys if y.requires_grad
    )
    loss.backward()
    return (
        numbered("x", arrays)
        | numbered("y", [y.detach().numpy() for y in ys])
        | numbered("gx", [x.grad for x in xs])
    )


def record_optimizer(arrays, make, _, changes, *more):
    W, b = params = [torch.tensor(x, requires_grad=True) for x in arrays[:2]]
    optimizer = make(torch.optim, params)
    after = []
    for t, (gW, gb) in enumerate(gradients(arrays)):
        if t == STEPS // 2:
            optimizer.param_groups[0].update(changes)
        W.grad, b.grad = torch.tensor(gW), torch.tensor(gb)
        optimizer.step()
        after.append([param.detach().numpy().copy() for param in params])
    return numbered("y", [np.stack(path) for path in zip(*after, strict=True)])


def main():
    versions = {"torch": torch.__version__}
    rows = FUNCTIONS | {"multi_head_attention_forward": ATTENTION}
    cases = {name: record_function(name, *row) for name, row in rows.items()}
    save("pytorch_functions", cases, **versions)
    arrays = draw("optimizers", INPUTS)
    cases = {name: record_optimizer(arrays, *row) for name, row in OPTIMIZERS.items()}
    save("pytorch_optimizers", {"inputs": numbered("x", arrays)} | cases, **versions)


if __name__ == "__main__":
    main()
