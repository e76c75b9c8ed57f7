"""Debug mode: arrays that backward needs and that were changed in place since they were kept.

Functions keep arrays of their inputs and outputs for backward, without copies. A program that
changes one of them in between (``x.array += 1``) gets the derivative at another point, and nobody
could tell from the numbers. So in debug mode each function remembers a checksum of what it keeps,
and compares before its backward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from mnpar import backend
from mnpar.backend import Array
from mnpar.runtime.callsite import call_site


class Kept(NamedTuple):
    """An array that a function keeps."""

    what: str  # "input", "output" or "array"
    place: int | str  # an array has a name
    array: Array
    checksum: int


class Retained(NamedTuple):
    """The arrays that a function keeps, as they were when it ran.

    Attributes:
        site: the source line at which the function ran.
        arrays: among its inputs and outputs; and labels, indices and masks.
    """

    site: str
    arrays: list[Kept]

    @classmethod
    def of(
        cls, held: Mapping[str, Any], inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Retained:
        """Return those of the inputs and outputs that are among the attributes of a function, or
        the items of tuples and lists there; and of other arrays those of integers and booleans
        (what else it has, it has computed).
        """
        named: dict[int, tuple[str, Any]] = {}
        for name, value in held.items():
            for one in value if isinstance(value, tuple | list) else (value,):
                named.setdefault(id(one), (name, one))
        kept = [
            Kept(what, i, x, checksum(x))
            for what, xs in (("input", inputs), ("output", outputs))
            for i, x in enumerate(xs)
            if id(x) in named and x is not None
        ]
        known = {id(x) for x in (*inputs, *outputs)}
        kept += [
            Kept("array", name, x, checksum(x))
            for name, x in named.values()
            if backend.is_array(x) and x.dtype.kind in "iub" and id(x) not in known
        ]
        return cls(call_site(1), kept)

    def check(self, label: str, needed: Collection[int]) -> None:
        """Check that the arrays have the values that they had; called before backward.

        Args:
            label: of the function.
            needed: the inputs on whose values gradients depend; they depend on all others.

        Raises:
            RuntimeError: one was changed.
        """
        for what, place, array, before in self.arrays:
            if (what != "input" or place in needed) and checksum(array) != before:
                where = label if self.site in label else f"{label} at {self.site}"
                raise RuntimeError(
                    f"{what} {place} of {where}, {array.dtype} {array.shape}, was changed in place "
                    f"after the function ran and before the backward at {call_site(1)}, which "
                    "needs the earlier values: make a new array (x.array = x.array + 1, and not "
                    "x.array += 1), or change it after backward"
                )


def checksum(array: Array) -> int:
    """Return a checksum of an array's bytes."""
    return crc32(backend.as_bytes(backend.to_host(array)).data)
