"""The variables of the environment that mnpar reads; docs/installation.md says what they mean."""

from __future__ import annotations

import os

VARIABLES = (
    "MNPAR_STALL",
    "MNPAR_DATA",
    "MNPAR_DEBUG",
    "MNPAR_KEEP_MEMORY",
    "MNPAR_BLAS",
    "MNPAR_KERNELS",
)
# which mnpar sets for processes that it starts
OWN = (
    "MNPAR_ENDINGS",
    "MNPAR_RELAUNCHED",
    "MNPAR_WORKER",
)
_PATIENCE = 10.0  # s


def switch(name: str, otherwise: bool) -> bool:
    """Return whether a variable is 1, or ``otherwise`` if it is not set.

    Raises:
        ValueError: it is neither 0 nor 1.
    """
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name} is 0 or 1, not {value!r}")
    return value == "1" if value else otherwise


def seconds(stated: object = None) -> float:
    """Return a patience, which is that of MNPAR_STALL if nothing is stated.

    Raises:
        ValueError: it is no number above 0.
    """
    what = "patience" if stated is not None else "MNPAR_STALL"
    stated = (os.environ.get("MNPAR_STALL") or _PATIENCE) if stated is None else stated
    try:
        patience = float(stated)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        patience = 0.0
    if not patience > 0:
        raise ValueError(f"{what} is a number of seconds above 0, not {stated!r}")
    return patience
