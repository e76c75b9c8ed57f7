"""Ways in which the same array may lie in memory: functions must not care."""

import numpy as np


def in_order(x, order):
    """The array, its axes in this order in memory."""
    return x.transpose(order).copy().transpose(np.argsort(order))


def backwards(x):
    """The array, its last element first in memory."""
    reverse = (..., *[slice(None, None, -1)] * x.ndim)
    return x[reverse].copy()[reverse]


def with_gaps(x):
    """The array, with something between its elements."""
    whole = np.full([2 * n + 1 for n in x.shape], np.nan, x.dtype)
    part = whole[(..., *[slice(1, None, 2)] * x.ndim)]
    part[...] = x
    return part


def unaligned(x):
    """The array, at an address that is no multiple of an element's size."""
    part = np.empty(x.nbytes + 1, "u1")[1:].view(x.dtype).reshape(x.shape)
    part[...] = x
    return part


def frozen(x):
    """The same array, which cannot be written any more."""
    x.flags.writeable = False
    return x


def anyhow(x, rng):
    """The array in a random order, perhaps backwards, with gaps or read-only."""
    x = in_order(x, rng.permutation(x.ndim))
    for change in (backwards, with_gaps, frozen):
        x = change(x) if rng.random() < 0.2 else x
    return x


def second_last(x):
    """The array, its second axis last in memory, as channels are."""
    axes = list(range(x.ndim))
    return in_order(x, [*axes[:1], *axes[2:], *axes[1:2]])


# each is called with an array and a generator of random numbers
LAYOUTS = {
    "Fortran's order": lambda x, rng: in_order(x, np.arange(x.ndim)[::-1]),
    "second axis last": lambda x, rng: second_last(x),
    "second axis last, read-only": lambda x, rng: frozen(second_last(x)),
    "backwards": lambda x, rng: backwards(x),
    "with gaps": lambda x, rng: with_gaps(x),
    "unaligned": lambda x, rng: unaligned(x),
    "read-only": lambda x, rng: frozen(x.copy()),
    "anyhow": anyhow,
}
