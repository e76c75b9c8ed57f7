"""Whether gradients are reduced in buckets during backward, or after it: whichever a measurement
shows to be faster here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

BUCKET = (
    2**20
    # bytes: so many that latency matters little on any network, and so few that a bucket is soon
    # full
)


def choose_bucket_bytes(comm: Communicator) -> int | None:
    """The size of buckets that leave during backward; None if everything is to leave after it. All
    ranks call it, and agree.

    On one machine it is None: the cores that would move a message are computing. Between machines
    the network may transfer a message meanwhile. That is measured, with as much computing as the
    message takes: the message at the same time, or after it.
    """
    if comm.inter_size == 1:
        return None
    x = np.ones(BUCKET // 4, np.float32)
    a = np.ones((128, 128), np.float32)

    def compute(times: int, meanwhile: Callable[[], None]) -> None:
        for _ in range(times):
            a @ a
            meanwhile()

    def early(times: int) -> None:
        operation = comm.iallreduce(x)
        compute(times, operation.step)
        operation.wait()

    def late(times: int) -> None:
        compute(times, lambda: None)
        comm.allreduce(x)

    message = _slowest(comm, lambda: comm.allreduce(x))
    product = _slowest(comm, lambda: compute(10, lambda: None)) / 10
    times = max(1, round(message / product))
    return (
        BUCKET
        if _slowest(comm, lambda: early(times)) < 0.9 * _slowest(comm, lambda: late(times))
        else None
    )


def _slowest(comm: Communicator, work: Callable[[], Any]) -> float:
    """The median seconds of some work, on the rank where that is largest."""
    seconds = []
    for _ in range(5):
        comm.barrier()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return float(comm.allreduce(np.array(np.median(seconds)), "max"))
