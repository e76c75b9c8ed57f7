"""The freed memory of large arrays, which the C library keeps: a new request to the system takes
long.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

from mnpar import environment
from mnpar.runtime import system

_KEPT = 2**30  # bytes of freed memory that the C library does not give back


def keep_memory() -> bool:
    """Let the C library keep the memory of large arrays that are freed, up to 1 GiB, instead of
    giving it back to the system; of arrays that other threads make, too.

    A new request costs 2 µs for each 4 KiB, more than to receive a message of that size; in a
    virtual machine whose host has the memory back, 10 µs. The memory is in large pages where the
    system has them. Only GNU's C library is told so, and not if the user has set
    ``MALLOC_TRIM_THRESHOLD_`` or ``MNPAR_KEEP_MEMORY=0``, or where addresses are limited, by
    ``ulimit -v`` say: the kept memory would be missing elsewhere.

    All threads that begin later share one heap, that of the main thread. A heap of their own holds
    64 MiB, and what is larger would be mapped and given back each time: the arrays of JAX, which
    computes in threads, took twice as long for it. Two threads that only allocate are not slower.

    Returns:
        True if it was done.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or not environment.switch("MNPAR_KEEP_MEMORY", True):
        return False
    library = system.c_library()
    mallopt = getattr(library, "mallopt", None)
    if mallopt is None or _addresses_are_limited():
        return False
    # <malloc.h>: M_TRIM_THRESHOLD, M_TOP_PAD …
    trim_threshold, top_pad, mmap_threshold, mmap_max, arena_max = -1, -2, -3, -4, -8
    if not mallopt(trim_threshold, _KEPT):
        return False
    mallopt(top_pad, _KEPT)  # once it has more, it gives back what is above that, and not all
    # before version 2.35 the threshold is 32 MiB at most: then no array, however large, is mapped
    # for itself alone
    kept = bool(mallopt(mmap_threshold, _KEPT) or mallopt(mmap_max, 0))
    if kept:
        mallopt(arena_max, 1)
        _in_large_pages(library, _KEPT - 2**21)  # so much is not mapped for itself alone, either
    return kept


def _addresses_are_limited() -> bool:
    """Return whether this process may have only so many addresses, or all processes so many
    together, used or not.
    """
    resource = system.resource
    if any(
        resource.getrlimit(limit)[0] != resource.RLIM_INFINITY
        for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    ):
        return True
    with contextlib.suppress(OSError):
        return Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() == "2"
    return False


def _in_large_pages(library: Any, size: int) -> None:
    """Ask for pages of 2 MiB for the next ``size`` bytes that the C library hands out, as numpy
    does for each array of 4 MiB.

    In pages of 4 KiB a training step on arrays of some MiB takes 1 to 8 % longer: most of their
    addresses are looked up anew each time. The memory is only marked here: it is requested and
    freed untouched, and the library keeps its addresses.
    """
    malloc, free, madvise = (getattr(library, name, None) for name in ("malloc", "free", "madvise"))
    if malloc is None or free is None or madvise is None:
        return
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page, huge = 2**21, 14  # MADV_HUGEPAGE
    place = malloc(size)
    if place:
        madvise(place + -place % page, size - page, huge)  # a system without such pages refuses
        free(place)
