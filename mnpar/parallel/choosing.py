"""What is faster here, tried when ranks set out: gradients that leave during backward, or after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

BUCKET = 2**20  # bytes: several messages' latency on any network, and soon full


def choose_bucket_bytes(comm: Communicator) -> int | None:
    """Whether gradients are to leave during backward: None if that hides nothing here. All ranks call it, and decide alike.

    On one machine it does not: what moves a message is a core, and the cores compute. Between machines the network may carry
    what was sent; that is tried, with as much computing as a message takes, once with the message before and once after it.
    """
    if comm.inter_size == 1:
        return None
    x, a = np.ones(BUCKET // 4, np.float32), np.ones((128, 128), np.float32)

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

    message, product = _slowest(comm, lambda: comm.allreduce(x)), _slowest(comm, lambda: compute(10, lambda: None)) / 10
    times = max(1, round(message / product))
    return BUCKET if _slowest(comm, lambda: early(times)) < 0.9 * _slowest(comm, lambda: late(times)) else None


def _slowest(comm: Communicator, work: Callable[[], Any]) -> float:
    """The median seconds of some work, on the rank where that is largest."""
    seconds = []
    for _ in range(5):
        comm.barrier()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return float(comm.allreduce(np.array(np.median(seconds)), "max"))
