"""What this machine can do at best: products of float32 matrices by numpy's BLAS, and copies.

    python -m benchmarks.machine

The suite measures it before anything else: no step is faster than its products at this rate, and no
elementwise function than its memory traffic.
"""

import json
import os
import platform
import sys
import time

SIZE = 1024  # of square matrices
COPIED = 2**26  # bytes, more than caches hold


def products(np, rounds=5):
    """Additions and multiplications a second, of products of float32 matrices."""
    a = np.ones((SIZE, SIZE), np.float32)
    out = np.empty_like(a)
    return 2 * SIZE**3 / best(lambda: np.matmul(a, a, out=out), rounds)


def copies(np, rounds=5):
    """Bytes a second that are read, while as many are written."""
    a = np.ones(COPIED // 8)
    out = np.empty_like(a)
    return COPIED / best(lambda: np.copyto(out, a), rounds)


def best(step, rounds, clock=time.process_time):
    """The seconds of the best round; of the processor, because others may use it, too."""
    step()
    found = []
    for _ in range(rounds):
        begin = clock()
        step()
        found.append(clock() - begin)
    return min(found)


def facts():
    """What is worth to be known of the machine, and of what runs on it."""
    import numpy as np

    import mnpar
    from mnpar.kernels import blas, compiler

    library = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    kernels = "".join([f" ({kernels}'s kernels)" for _, kernels in filter(None, [blas.openblas()])])
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{library['name']} {library['version']}{kernels}",
        "mnpar": mnpar.__version__,
        "kernels": "numba" if compiler.is_installed() and compiler.mode() != "numpy" else "numpy",
        "products": products(np),
        "copies": copies(np),
    }


def processor():
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def told(found):
    """Two lines."""
    return (
        f"{found['processor']}, {found['cores']} cores; Python {found['python']}, numpy "
        f"{found['numpy']} with {found['blas']}, mnpar {found['mnpar']} with kernels by "
        f"{found.get('kernels', 'numpy')}\n"
        f"one thread: {found['products'] / 1e9:.0f} GFLOP/s in products of {SIZE} x {SIZE} float32,"
        f" {found['copies'] / 1e9:.1f} GB/s copied"
    )


def main():
    from benchmarks.timing import one_thread

    one_thread()
    found = facts()
    print(json.dumps(found) if "--json" in sys.argv else told(found))


if __name__ == "__main__":
    main()
