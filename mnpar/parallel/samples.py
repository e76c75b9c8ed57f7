"""How many samples a loss is the mean of, by the arguments of the function that computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnpar.link import Link


def samples_of(*args: Any, **kwds: Any) -> float:
    """How many samples the arguments of a loss function hold: the length of the first that has one;
    -1 if none has.
    """
    return samples_in(args, kwds)


def samples_in(args: Sequence[Any], kwds: Mapping[str, Any]) -> float:
    """The same, of arguments that are together."""
    if args and type(args[0]) is np.ndarray and args[0].ndim:
        return len(args[0])
    for arg in (*args, *kwds.values()):
        if (
            isinstance(arg, Link)
            or getattr(arg, "array", arg) is None
            or getattr(arg, "shape", None) == ()
        ):
            continue  # the length of a chain counts its links
        if isinstance(arg, dict | tuple):
            inside = samples_in((), arg) if isinstance(arg, dict) else samples_in(arg, {})
            if inside >= 0:
                return inside
        elif hasattr(arg, "__len__") and not isinstance(arg, str):
            return len(arg)
    return -1
