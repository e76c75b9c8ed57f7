"""A convolution that works while its halo is on its way, both forward and backward.

It is the second half of an exchange (communication/exchange.py: Give, Take) and what is computed of
the cells that came, in one function: so it decides what comes first. Forward, the outputs that need
no halo are computed before the others' cells are awaited. Backward, the gradient of the chunk comes
first; what of it belongs to others leaves; then the weights' gradient is computed, and only
afterwards Give, which stands before this function, waits for what the others send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.communication.exchange import Give, Take
from mnpar.functions.connection.convolution import Convolution, Deconvolution, weight_gradient
from mnpar.functions.divided.blocks import Block, slices_within, unpadded_windows
from mnpar.functions.divided.halo import brought
from mnpar.kernels.sums import sum_over
from mnpar.plans import Box, Plan, Window
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.communicators.waiting import Steps


class HaloConvolution(Take):
    """y = chunk ∗ W + b, where the chunk is x with what others gave; its outputs are y and the
    chunk. Adjoint: Give.

    Args:
        comm, plan: of the halo.
        window: what an output reads.
        groups: of channels.
        have, out: the blocks of x and y that this rank has.
        inner: the outputs that are computed before the halo has come.
    """

    def __init__(
        self,
        comm: Communicator,
        plan: Plan,
        window: Window,
        groups: int,
        have: Box,
        out: Box,
        inner: Box | None,
    ) -> None:
        super().__init__(comm, plan, own=True)
        self.window = window
        self.groups = groups
        self.have = have
        self.out = out
        self.inner = inner

    def _convolved(self, part: Any, W: Any, b: Any) -> Any:
        return Convolution(
            unpadded_windows(self.op, part.shape[2:], self.window), self.groups
        ).forward(part, W, b)

    def steps(self, x: Any, W: Any, b: Any = None) -> Steps[Any]:
        self.retain_inputs((1,))
        self.retain_outputs((1,))
        if self.inner is None:
            (chunk,) = yield from super().steps(x)
            return self._convolved(chunk, W, b), chunk
        y = backend.get_array_module(x).empty(
            (x.shape[0], W.shape[0], *self.out.shape), np.result_type(x, W)
        )
        reads = self.window.reads
        mine = x[(..., *slices_within(reads(self.inner), self.have))]
        y[(..., *slices_within(self.inner, self.out))] = self._convolved(mine, W, b)
        (chunk,) = yield from super().steps(x)
        for strip in self.out.minus(self.inner):
            part = chunk[(..., *slices_within(reads(strip), reads(self.out)))]
            y[(..., *slices_within(strip, self.out))] = self._convolved(part, W, b)
        return y, chunk

    def backward(self, gy: Any, g: Any) -> Any:
        (W,), (chunk,) = self.get_retained_inputs(), self.get_retained_outputs()
        windows = unpadded_windows(self.op, chunk.shape[2:], self.window)
        if gy is not None and (self.asked_by or self.inputs[0].requires_grad):
            gx = Deconvolution(windows, self.groups)(gy, W)
            g = gx if g is None else gx + g
        (gx,) = self.adjoint(Give(self.comm, self.plan.adjoint, True, of=self), g)
        if gy is None:
            return (gx, *[None] * (len(self.inputs) - 1))
        gW = lambda: weight_gradient(self, windows, self.groups, W, chunk, gy)
        return (gx, gW, lambda: sum_over(gy, (0, *range(2, gy.ndim))))[: len(self.inputs)]


def halo_convolution(
    block: Block,
    window: Window,
    W: Variable | Array,
    b: Variable | Array,
    groups: int,
    mode: Any,
    hide: bool,
) -> Variable:
    """This rank's outputs of a convolution; it has some.

    Args:
        block: of the image.
        window, mode: what an output reads, and how the image goes on beyond its edges.
        W, b, groups: of the convolution.
        hide: compute what needs no halo before it is awaited, if that is most of the block.
    """
    x, grid, plan = block.x, block.grid, block.halo(window, mode)
    have, out = block.have, block.outputs(window)
    if plan.idle(grid.comm.rank):
        chunk = brought(x, grid.comm, plan)
        node = Convolution(unpadded_windows("convolution_nd", chunk.shape[2:], window), groups)
        return node.apply((chunk, W) if b is None else (chunk, W, b))[0]
    inner = window.inside(have) & out
    hide = hide and bool(plan.route(grid.comm.rank).receives) and 2 * inner.volume > out.volume
    give = Give(grid.comm, plan, own=False)
    (x,) = give.apply((x,))
    waiting = HaloConvolution(grid.comm, plan, window, groups, have, out, inner if hide else None)
    waiting.after(give)
    return waiting.apply((x, W) if b is None else (x, W, b))[0]
