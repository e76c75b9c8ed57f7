"""Instructions that numba does not know by itself: modules of instructions write these out in
LLVM's words, and compiled loops call them by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnpar.kernels.compiler import Formula


class Instruction(Formula):
    """An instruction that compiled loops call.

    Args:
        name: of the instruction.
        functions: returns numba's functions by their names, the same for all dtypes; called when a
            loop that has the instruction is compiled.
        variant: what else they depend on.
    """

    def __init__(
        self, name: str, functions: Callable[[], dict[str, Any]], variant: object = ""
    ) -> None:
        self.name, self._functions, self._variant = name, functions, variant

    def at(self, char: str) -> Any:
        """Return numba's function."""
        return self._functions()[self.name]

    def digest(self, char: str) -> bytes:
        """Return a fingerprint."""
        return f"{self.name} of {self._variant}".encode()
