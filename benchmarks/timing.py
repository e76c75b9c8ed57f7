"""What the benchmarks share: several ways of doing the same work are timed in turn (A B A B …), as
medians and ratios; tables; PyTorch and Chainer, where they are installed.

(pyperf times one way after the other, in processes of their own: its ratios drift with the machine,
and it cannot time ranks that step together.)

Chainer needs an older numpy, so it runs in a process of its own: the same script under another
Python, which imports ``chainer`` instead of ``mnpar``, and reports seconds. Memory that it frees
goes back to the system, the default, while mnpar's ranks keep theirs;
``MALLOC_TRIM_THRESHOLD_=536870912 MALLOC_MMAP_THRESHOLD_=268435456`` before the command makes all
keep it.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.stdout.reconfigure(errors="replace")  # its encoding may have no µ and no ×

# the flag with which a benchmark runs under another Python, beside Chainer
SERVE = "--serve"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def set_threads(number):
    """So many BLAS threads for each process; to be called before numpy is imported."""
    for name in THREADS:
        os.environ[name] = str(number)
    if number > 1:  # as in ranks that mnpar starts (mnpar/runtime/blas_threads.py)
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")


def one_thread():
    """One BLAS thread for each process, if the environment says nothing else; to be called before
    numpy is imported.
    """
    for name in THREADS:
        os.environ.setdefault(name, "1")


def threads_asked_for():
    """The number after ``--threads`` on the command line, which is read before numpy is imported;
    1 without it.
    """
    at = sys.argv.index("--threads") + 1 if "--threads" in sys.argv else 0
    return int(sys.argv[at]) if 0 < at < len(sys.argv) and sys.argv[at].isdecimal() else 1


def arguments(doc, threads=False):
    """The command line of a benchmark that can run beside Chainer; one that measures its memory in
    processes of its own, and can use several threads.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "part", nargs="*", help="rows whose names contain one of these; all, if none is given"
    )
    parser.add_argument(
        "--chainer",
        metavar="PYTHON",
        help="a Python that has Chainer: it runs the same beside this one",
    )
    parser.add_argument(SERVE, action="store_true", help=argparse.SUPPRESS)
    if threads:
        parser.add_argument("--threads", type=int, default=1, help="threads of a process (1)")
        parser.add_argument("--memory", help=argparse.SUPPRESS)
    return parser.parse_args()


def seconds(step, times, clock=time.perf_counter):
    """The mean seconds of a step; one that runs elsewhere is asked for them."""
    if isinstance(step, Elsewhere):
        return step.seconds(times)
    begin = clock()
    for _ in range(times):
        step()
    return (clock() - begin) / times


def in_turn(
    ways, times, rounds=11, before=lambda: None, clock=time.perf_counter, pick=statistics.median
):
    """The median seconds of each way, after a warm-up; ``before`` runs before each measurement (a
    barrier).

    ``clock=time.process_time`` counts what this process worked, not what it waited for a core: for
    one thread, beside others.
    """
    measured = {name: [] for name in ways}
    for step in ways.values():
        before()
        seconds(step, max(3, times // 10), clock)
    for _ in range(rounds):
        for name, step in ways.items():
            before()
            measured[name].append(seconds(step, times, clock))
    return {name: pick(values) for name, values in measured.items()}


def in_time(ways, agree, before, budget=0.15, rounds=5):
    """:func:`in_turn` for several ranks together; each way is measured as often as fits into
    ``budget`` seconds.

    It is measured three times at least, unless that takes twenty times the budget, and always once.
    ``agree(number)`` returns rank 0's number on all ranks.
    """
    times, measured = {}, {}
    for name, step in ways.items():
        before()
        seconds(step, 1)
        before()
        measured[name] = [agree(seconds(step, 1))]
        times[name] = max(1, min(100, int(budget / rounds / measured[name][0])))
    begin = time.perf_counter()
    for done in range(rounds):
        if agree(time.perf_counter() - begin > budget * len(ways) * (1 if done >= 3 else 20)):
            break
        measured = measured if done else {name: [] for name in ways}
        for name, step in ways.items():
            before()
            measured[name].append(seconds(step, times[name]))
    return {name: statistics.median(values) for name, values in measured.items()}


def sizes(most, least=0):
    """Bytes of arrays, from 8 on, each eight times the one before, and the largest; without those
    below the least.
    """
    found = [8**i for i in range(1, 20) if 8**i < most]
    return [size for size in (*found, most) if size >= least]


def resident(what):
    """A line of this process's memory, in bytes: ``VmRSS`` is what it has, ``VmHWM`` the peak."""
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))


def forget_peak():
    """Let ``VmHWM`` begin anew, without the peak of the imports; the bytes that are resident."""
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return resident("VmRSS")


class Elsewhere:
    """A step of the same script in another process."""

    def __init__(self, process, *key):
        self.process, self.key = process, key

    def seconds(self, times):
        self.process.stdin.write(json.dumps([*self.key, times]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def start(python):
    """Start the same benchmark under another Python, to be asked by :class:`Elsewhere`."""
    module = sys.modules["__main__"].__spec__.name
    command = [python, "-W", "ignore", "-m", module, SERVE]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve(make):
    """Answer :class:`Elsewhere`: ``make(*key)`` gives a step, or None if this toolkit has no such
    thing.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    last, step = None, None
    for line in sys.stdin:
        *key, times = json.loads(line)
        if key != last:
            try:
                last, step = key, make(*key)
                step()
            except AttributeError:
                last, step = key, None
        print(
            json.dumps(None if step is None else seconds(step, times, time.process_time)),
            file=answers,
            flush=True,
        )


def torch_or_none(threads=1):
    """PyTorch with so many threads, if it is installed."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: its column is left out (pip install torch)")
        return None
    torch.set_num_threads(threads)
    return torch


def gloo_or_none(comm):
    """PyTorch with one thread and torch.distributed over gloo, if it is installed."""
    torch = torch_or_none() if comm.is_root else None
    if not comm.bcast_obj(torch is not None):
        return None
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    folder = comm.bcast_obj(tempfile.mkdtemp() if comm.is_root else None)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size
    )
    return torch
