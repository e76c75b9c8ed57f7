"""PyTorch's words for random programs: they compute on tensors, and mnpar.torch communicates."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mnpar.torch as mt  # noqa: E402
from tests.random_programs import programs  # noqa: E402


class Functions:
    """mnpar.torch's functions. It has no non-blocking ones: programs call the blocking ones."""

    @staticmethod
    def barrier(comm):
        comm.barrier()

    @staticmethod
    def irecv(comm, rank, tag):
        return mt.recv(comm, rank, tag=tag)

    def __getattr__(self, name):
        return getattr(mt, name if hasattr(mt, name) else name.removeprefix("i"))


def gradients(run, names, losses, passes):
    """:func:`tests.random_programs.programs.gradients` in PyTorch's words."""
    xs = [run.values[name] for name in names]
    # a loss to which no gradient leads is none
    losses = [y for y in [run.values[name].sum() for name in losses] if y.requires_grad]
    for kind in passes:
        if kind == "grad":
            found = mt.grad(losses, xs, create_graph=True)
            losses = [y for y in [(g * g).sum() for g in found if g is not None] if y.requires_grad]
        else:
            mt.backward(losses, retain_graph=kind == "kept")
    return {
        name: np.zeros(tuple(x.shape)) if x.grad is None else x.grad.numpy()
        for name, x in zip(names, xs, strict=True)
    }


class TorchWords:
    """See :class:`tests.random_programs.programs.Words`."""

    F = Functions()
    has_twins = False
    quiet = staticmethod(torch.no_grad)
    gradients = staticmethod(gradients)

    @staticmethod
    def given(array):
        y = torch.from_numpy(array.copy())
        return y.requires_grad_() if y.is_floating_point() or y.is_complex() else y

    @staticmethod
    def array(y):
        return y.detach().numpy() if isinstance(y, torch.Tensor) else y.array

    @staticmethod
    def has_come(y):
        return True

    @staticmethod
    def leaves(program, rank):
        return {
            name: torch.from_numpy(x.array).requires_grad_()
            for name, x in programs.leaves(program, rank).items()
        }

    @staticmethod
    def local(a, b):
        return torch.tanh(a * b.sum() * 0.5 + 0.1)

    @staticmethod
    def formed(x, length, op="sum"):
        y = x.sum() * torch.arange(1.0, length + 1, dtype=torch.float64)
        return 1 + 0.3 * torch.tanh(y / (length + 1)) if op == "prod" else y

    @staticmethod
    def dressed(x, dtype):
        if dtype == "i8":
            return torch.round(100 * torch.clip(x.detach(), -1e6, 1e6)).to(torch.int64)
        if dtype == "c16":
            return x * (1 + 1j)
        return x.to({"f8": torch.float64, "f4": torch.float32}[dtype])

    @staticmethod
    def undressed(y):
        if y.is_complex():
            return y.real - 0.5 * y.imag
        return y.to(torch.float64) / (100 if y.dtype == torch.int64 else 1)
