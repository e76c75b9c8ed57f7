"""The rank's source of randomness: one numpy Generator per context, so that ranks which are threads
do not share one.

Random functions take a generator as an argument (``rng=``), by default the rank's. It was started
by what was seeded last: by :func:`seed`, or, as in every Chainer program, by ``np.random.seed(n)``.
A program that seeds neither draws from the operating system's entropy. Nothing in mnpar draws from
numpy's global stream: after ``np.random.seed`` the rank's generator is started from its state.

numpy says itself whether its global stream was seeded: its bit generator then has no ``seed_seq``.
It is noticed once, and another one with the same state takes its place. Ranks that are threads take
turns, and each puts its own bit generator there when it goes on (:func:`put_aside`,
:func:`take_up`).
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

_global: Any = np.random  # numpy's type hints do not have its global bit generator
# what ``seed`` started; None: nobody has drawn yet
_generator: ContextVar[np.random.Generator | None] = ContextVar("mnpar.random", default=None)
# what ``using`` insists on, whatever is seeded
_insisted: ContextVar[np.random.Generator | None] = ContextVar(
    "mnpar.random.insisted", default=None
)
# names of bit generators, which numpy loads when they are asked for
_KINDS = (
    "PCG64",
    "PCG64DXSM",
    "MT19937",
    "Philox",
    "SFC64",
)


def generator() -> np.random.Generator:
    """Return the Generator of the calling rank: the one that was seeded last, by :func:`seed` or by
    ``np.random.seed``; else one of the operating system's entropy.

    Example:
        >>> import numpy as np, mnpar.random
        >>> mnpar.random.seed(0)
        >>> round(float(mnpar.random.generator().random()), 3)
        0.637
        >>> np.random.seed(0)
        >>> a = mnpar.random.generator().random()
        >>> np.random.seed(0)
        >>> a == mnpar.random.generator().random()
        True
    """
    rng = _insisted.get()
    if rng is not None:
        return rng
    numbers = _global.get_bit_generator()
    if numbers.seed_seq is None:
        key = numbers.state["state"]
        _start(np.random.default_rng([*key["key"].tolist(), key["pos"]]))
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
    _start(np.random.default_rng(value))


def _start(rng: np.random.Generator) -> None:
    """Draw from this Generator until something else is seeded."""
    if _insisted.get() is not None:
        _insisted.set(rng)
        return
    _generator.set(rng)
    if _global.get_bit_generator().seed_seq is None:
        state = np.random.get_state(legacy=False)
        _global.set_bit_generator(_Noticed(0))
        np.random.set_state(state)


class _Noticed(np.random.MT19937):
    """numpy's global stream as a user has seeded it, which started a rank's generator already."""


_Noticed.__name__ = "MT19937"  # by which numpy recognizes states


def spawn(n: int) -> list[np.random.Generator]:
    """Return new Generators, independent of the calling rank's and of each other, and reproducible
    where it is.

    The rank's own stream stays where it is. So the orders of examples, which some ranks draw and
    others do not, come from here: what a rank draws afterwards, such as initial weights of which
    each rank keeps a part, does not depend on them.

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
    """Let the calling rank draw from this Generator, until something else is seeded.

    Args:
        rng: nobody else should draw from it.

    Example:
        >>> import numpy as np, mnpar.random
        >>> mnpar.random.use(np.random.default_rng(0))
        >>> round(float(mnpar.random.generator().random()), 3)
        0.637
    """
    _start(rng)


@contextmanager
def using(rng: np.random.Generator | None) -> Iterator[None]:
    """Let the calling rank draw from this Generator inside a ``with`` block, whatever numpy's
    global stream is seeded with, and go on with its own after it.

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
    before = _insisted.get()
    _insisted.set(generator() if rng is None else rng)
    try:
        yield
    finally:
        _insisted.set(before)


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
    _start(np.random.Generator(bits))


class Numbers(NamedTuple):
    """numpy's global stream, and the number that its legacy functions have in store."""

    bits: Any  # the bit generator
    state: dict[str, Any] | None


def put_aside() -> Numbers:
    """Return numpy's global stream, for a rank to take up when it goes on."""
    bits = _global.get_bit_generator()
    seeded = bits.seed_seq is None or isinstance(bits, _Noticed)
    return Numbers(bits, np.random.get_state(legacy=False) if seeded else None)


def take_up(numbers: Numbers) -> None:
    """Let numpy's global functions draw from this stream."""
    bits = numbers.bits
    if numbers.state is None and bits.seed_seq is None:
        bits = np.random.MT19937()  # another rank has seeded it since
    _global.set_bit_generator(bits)
    if numbers.state is not None and numbers.state["has_gauss"]:
        np.random.set_state(numbers.state)


class RankRandomness:
    """The random numbers of the thread ranks of one run, drawn as processes draw theirs: after
    ``np.random.seed`` all start from numpy's stream as it is; otherwise each has a generator of its
    own.

    Args:
        n: the number of ranks.
    """

    def __init__(self, n: int) -> None:
        self._callers = put_aside()
        self._ranks: list[Numbers] = []
        if self._callers.state is not None:
            self._ranks = [
                self._callers._replace(bits=copy.deepcopy(self._callers.bits)) for _ in range(n)
            ]
        seeded = self._callers.bits.seed_seq is None and _insisted.get() is None
        self._streams = [] if seeded else spawn(n)

    def begin(self, rank: int) -> None:
        """Let this thread be the rank."""
        _insisted.set(None)
        _generator.set(self._streams[rank] if self._streams else None)
        take_up(self._ranks[rank] if self._ranks else Numbers(self._callers.bits, None))

    def end(self) -> None:
        """Give the caller its stream back."""
        take_up(self._callers)
