"""What the benchmarks share: two or more ways of doing the same work, timed in turn (A B A B …), as medians and ratios."""

import os
import statistics
import time

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread():
    """One BLAS thread for each process; to be called before numpy is imported."""
    for name in THREADS:
        os.environ.setdefault(name, "1")


def seconds(step, times):
    begin = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - begin) / times


def in_turn(ways, times, rounds=11, before=lambda: None):
    """The median seconds of each way, after a warm-up; ``before`` runs before each measurement (a barrier)."""
    measured = {name: [] for name in ways}
    for step in ways.values():
        before()
        seconds(step, max(3, times // 10))
    for _ in range(rounds):
        for name, step in ways.items():
            before()
            measured[name].append(seconds(step, times))
    return {name: statistics.median(values) for name, values in measured.items()}


def repetitions(size):
    """How often to communicate an array of so many bytes."""
    return max(3, min(100, 2**22 // size))


def torch_or_none():
    """PyTorch with one thread, if it is installed."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: its column is left out (pip install torch)")
        return None
    torch.set_num_threads(1)
    return torch
