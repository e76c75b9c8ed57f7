"""The rank's source of randomness: one numpy Generator per context, so that ranks which are threads
do not share one.

Nothing in mnpar draws from numpy's global state. Random functions take a generator as an argument
(``rng=``), by default the rank's: a program that calls :func:`seed` first is reproducible whatever
else runs in the process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

_generator: ContextVar[np.random.Generator | None] = ContextVar("mnpar.random", default=None)
# names of bit generators, which numpy loads when they are asked for
_KINDS = (
    "PCG64",
    "PCG64DXSM",
    "MT19937",
    "Philox",
    "SFC64",
)


def generator() -> np.random.Generator:
    """Return the Generator of the calling rank; seeded from the operating system's entropy unless
    :func:`seed` was called.

    Example:
        >>> import mnpar.random
        >>> mnpar.random.seed(0)
        >>> round(float(mnpar.random.generator().random()), 3)
        0.637
    """
    rng = _generator.get()
    if rng is None:
        rng = np.random.default_rng()
        _generator.set(rng)
    return rng


def seed(value: int | list[int] | None = None) -> None:
    """Start the calling rank's Generator anew.

    Args:
        value: the seed; ``[seed, rank]`` gives each rank numbers of its own, None takes the
            operating system's entropy.

    Example:
        >>> import mnpar.random
        >>> mnpar.random.seed(1)
        >>> a = mnpar.random.generator().random()
        >>> mnpar.random.seed(1)
        >>> a == mnpar.random.generator().random()
        True
    """
    _generator.set(np.random.default_rng(value))


def spawn(n: int) -> list[np.random.Generator]:
    """Return new Generators, independent of the calling rank's and of each other, and reproducible
    where it is.

    Args:
        n: how many.

    Example:
        >>> import mnpar.random
        >>> mnpar.random.seed(0)
        >>> a, b = mnpar.random.spawn(2)
        >>> a.random() != b.random()
        True
    """
    return generator().spawn(n)


def use(rng: np.random.Generator) -> None:
    """Let the calling rank draw from this Generator: ``mnpar.run`` gives one to each of its
    threads.

    Args:
        rng: nobody else should draw from it.

    Example:
        >>> import numpy as np, mnpar.random
        >>> mnpar.random.use(np.random.default_rng(0))
        >>> round(float(mnpar.random.generator().random()), 3)
        0.637
    """
    _generator.set(rng)


@contextmanager
def using(rng: np.random.Generator | None) -> Iterator[None]:
    """Let the calling rank draw from this Generator inside a ``with`` block, and go on with its own
    after it.

    Args:
        rng: None: the rank's own.

    Example:
        >>> import numpy as np, mnpar.random
        >>> mnpar.random.seed(0)
        >>> with mnpar.random.using(np.random.default_rng(1)):
        ...     a = mnpar.random.generator().random()
        >>> round(float(mnpar.random.generator().random()), 3)
        0.637
    """
    before = generator()
    _generator.set(before if rng is None else rng)
    try:
        yield
    finally:
        _generator.set(before)


def of_path(seed: int | list[int], path: str) -> np.random.Generator:
    """Return a Generator that depends on a seed and on a name, such as the path of a parameter, and
    on nothing else.

    Args:
        seed: a number, or several.
        path: any text.

    Example:
        >>> import mnpar.random
        >>> a, b, c = [
        ...     mnpar.random.of_path(0, path).random() for path in ("/l1/W", "/l2/W", "/l1/W")
        ... ]
        >>> a == c, a == b
        (True, False)
    """
    name = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=16).digest(), "big")
    return np.random.default_rng([*(seed if isinstance(seed, list) else [seed]), name])


def get_state() -> dict[str, Any]:
    """Return the calling rank's Generator, spawning included, as numbers and strings that JSON can
    hold.

    Example:
        >>> import mnpar.random
        >>> mnpar.random.seed(0)
        >>> state = mnpar.random.get_state()
        >>> a = mnpar.random.generator().random()
        >>> mnpar.random.set_state(state)
        >>> a == mnpar.random.generator().random()
        True
    """
    bits: Any = generator().bit_generator
    seeds = bits.seed_seq
    state: dict[str, Any] = {
        "generator": json.loads(json.dumps(bits.state, default=lambda numbers: numbers.tolist()))
    }
    if isinstance(seeds, np.random.SeedSequence):
        entropy = seeds.entropy
        state["seeds"] = {
            "entropy": entropy
            if entropy is None or isinstance(entropy, int)
            else [int(n) for n in np.ravel(entropy)],
            "spawn_key": list(seeds.spawn_key),
            "pool_size": seeds.pool_size,
            "n_children_spawned": seeds.n_children_spawned,
        }
    return state


def set_state(state: dict[str, Any]) -> None:
    """Let the calling rank go on from what :func:`get_state` returned.

    Args:
        state: as it was returned, on this machine or another.

    Raises:
        ValueError: it is the state of no generator of numpy's.
    """
    kinds: dict[str, Any] = {name: getattr(np.random, name) for name in _KINDS}
    try:
        seeds = np.random.SeedSequence(**state["seeds"]) if "seeds" in state else 0
        bits = kinds[state["generator"]["bit_generator"]](seeds)
        bits.state = state["generator"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no state of a random generator: {error!r}") from None
    _generator.set(np.random.Generator(bits))
