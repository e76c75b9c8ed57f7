"""A hook that prints what goes into functions, forward and backward."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_hook import FunctionHook
from mnpar.function_node import FunctionNode


class PrintHook(FunctionHook):
    """Prints shape, dtype, mean and deviation of each function's inputs (forward) and output
    gradients (backward).

    Args:
        sep, end, file, flush: as of ``print``; ``file=None`` is standard output.

    Example:
        >>> import numpy as np, mnpar
        >>> with mnpar.function_hooks.PrintHook():
        ...     y = mnpar.Variable(np.array([1.0, 3.0])) * 2
        function MulConstant
        input data
        array of shape (2,), dtype float64, on @numpy: mean 2, standard deviation 1
    """

    name = "PrintHook"

    def __init__(
        self,
        sep: str | None = None,
        end: str = "\n",
        file: TextIO | None = None,
        flush: bool = True,
    ) -> None:
        self.sep = sep
        self.end = end
        self.file = file
        self.flush = flush

    def _print(self, *words: str) -> None:
        print(
            *words,
            sep=self.sep,
            end=self.end,
            file=sys.stdout if self.file is None else self.file,
            flush=self.flush,
        )

    def _show(self, arrays: tuple[Array | None, ...]) -> None:
        for x in arrays:
            self._print(_described(x))

    def forward_preprocess(self, function: FunctionNode, in_data: tuple[Array | None, ...]) -> None:
        self._print("function", function.label)
        self._print("input data")
        self._show(in_data)

    def backward_preprocess(
        self,
        function: FunctionNode,
        in_data: tuple[Array | None, ...],
        out_grad: tuple[Array | None, ...],
    ) -> None:
        self._print("function", function.label)
        self._print("kept input data")
        self._show(tuple([x for x in in_data if x is not None]))
        self._print("output gradient")
        self._show(out_grad)


def _described(x: Any) -> str:
    if x is None:
        return "none"
    text = f"array of shape {x.shape}, dtype {x.dtype}, on {backend.device_of(x)}"
    if x.size and x.dtype.kind in "biuf":
        x = backend.to_host(x).astype("d")
        text += f": mean {x.mean():g}, standard deviation {x.std():g}"
    return text
