"""Make communicators: of the launcher's processes, thread ranks, or this process alone."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import Any

import numpy as np

from mnpar import environment
from mnpar.communicators.communicator import Communicator, described
from mnpar.communicators.mpi import library
from mnpar.communicators.mpi.transport import MpiTransport
from mnpar.communicators.threads.scheduler import World
from mnpar.communicators.threads.transport import ThreadTransport, current_transport
from mnpar.errors import LauncherError
from mnpar.runtime import blas_threads, launcher
from mnpar.runtime.malloc import keep_memory
from mnpar.runtime.output import write_lines_at_once
from mnpar.runtime.process import Process
from mnpar.runtime.system import usable_cores
from mnpar.runtime.tracebacks import show_own_lines

_NAMES = ("auto", "mpi", "threads", "self", "env", "none", "file")

_INSTEAD = (
    "start the ranks with mpiexec -n 4 python …, python -m mnpar run -n 4 …, or srun (with its "
    "MPI plugin); or let them meet "
    "by a file that all can see: create_communicator('file', path=…)"
)

_PATIENT = 300.0  # s for ranks to meet by a file

_CHAINERMN = (
    "naive",
    "flat",
    "hierarchical",
    "two_dimensional",
    "single_node",
    "non_cuda_aware",
    "pure_nccl",
    "dummy",
)


def create_communicator(
    communicator_name: str = "auto", mpi_comm: Any = None, **kwargs: Any
) -> Communicator:
    """Return the communicator of all ranks; every rank calls it.

    Args:
        communicator_name: ``'auto'`` takes thread ranks inside :func:`mnpar.run`, MPI under
            mpiexec, and one rank alone otherwise; ``'mpi'``, ``'threads'`` and ``'self'`` (or
            ``'none'``) insist. ``'env'``: as many ranks, in that order, as the variables of
            torchrun (RANK, WORLD_SIZE) or Slurm say; an MPI launcher must have started them all the
            same. ``'file'``: processes that were started one by one, by hand or by something else
            than an MPI launcher, meet by a file (needs MPICH). ChainerMN's names mean ``'auto'``.
        mpi_comm: an mpi4py communicator to work on (a private duplicate of it), instead of
            COMM_WORLD.
        patience: seconds (10, or ``MNPAR_STALL``) after which a rank that waits asks the others
            why.
        path: with ``'file'``, the same file for all ranks, on a file system that their machines
            share. It need not be there before, and is not there afterwards.
        rank, size: with ``'file'``, of this process; as the variables of torchrun or Slurm say, if
            they are not given.
        timeout: with ``'file'``, seconds for all ranks to come; 300 if not given.
        allreduce_grad_dtype, batched_copy: ChainerMN's; accepted and not needed.

    Raises:
        ValueError: an unknown name; TypeError: something else than a name.
        LauncherError: MPI is missing, or the launcher and the MPI library do not belong together;
            or something else has started several processes (torchrun does): it says what to type
            instead. With ``'file'``: ranks do not come in time, or two have one rank, or they were
            told different sizes, or have different libraries, or not MPICH.

    Example:
        >>> import mnpar
        >>> comm = mnpar.create_communicator("self")
        >>> comm.rank, comm.size
        (0, 1)
    """
    patience = environment.seconds(kwargs.pop("patience", None))
    meeting = {
        name: kwargs.pop(name) for name in ("path", "rank", "size", "timeout") if name in kwargs
    }
    if meeting and communicator_name != "file":
        raise TypeError(
            f"{', '.join(meeting)}: only create_communicator('file', path=…) takes these, not "
            f"{communicator_name!r}"
        )
    configs = {
        name: kwargs.pop(name)
        for name in ("allreduce_grad_dtype", "batched_copy")
        if name in kwargs
    }
    if kwargs:
        raise TypeError(
            "create_communicator takes patience, allreduce_grad_dtype and batched_copy, not "
            f"{', '.join(kwargs)}"
        )
    if not isinstance(communicator_name, str):
        raise TypeError(
            "create_communicator's first argument is a name, such as 'auto', not "
            f"{type(communicator_name).__name__}: "
            "one of mpi4py's communicators is given as mpi_comm=…"
        )
    name = "auto" if communicator_name in _CHAINERMN else communicator_name
    if name not in _NAMES:
        raise ValueError(
            f"unknown communicator {communicator_name!r}: {', '.join(_NAMES)} and ChainerMN's "
            "names are known"
        )
    if name == "file":
        name = _meet(mpi_comm, **meeting)
    communicator = _create(name, mpi_comm, patience)
    for setting, value in configs.items():
        communicator.set_config(setting, value)
    return communicator


def _create(name: str, mpi_comm: Any, patience: float) -> Communicator:
    show_own_lines()
    transport = current_transport.get()
    if name == "threads" or (name == "auto" and transport is not None and mpi_comm is None):
        if transport is None:
            raise ValueError(
                "thread ranks are made by mnpar.run(program, ranks=4), which hands each its "
                "communicator"
            )
        return Communicator(transport.duplicate())
    keep_memory()  # before MPI starts threads: a thread that has a heap of its own keeps it
    told = launcher.told_by_environment() if name in ("auto", "env") and mpi_comm is None else None
    if name == "env":
        _check_environment(told)
    elif name == "auto" and told is not None and told[1] > 1 and not launcher.under_launcher():
        raise LauncherError(
            f"this is rank {told[0]} of {told[1]} by {told[2]}, but no MPI launcher started "
            f"it: {_INSTEAD}"
        )
    if (
        name == "mpi"
        or mpi_comm is not None
        or (name in ("auto", "env") and launcher.under_launcher())
    ):
        process = Process.get(library.load(), patience)
        if mpi_comm is not None and not (mpi_comm and isinstance(mpi_comm, process.MPI.Intracomm)):
            what = (
                "COMM_NULL"
                if isinstance(mpi_comm, process.MPI.Comm) and not mpi_comm
                else described(mpi_comm)
            )
            raise TypeError(
                f"mpi_comm is one of mpi4py's Intracomm, of which this rank is a member, not {what}"
            )
        communicator = Communicator(MpiTransport(process, mpi_comm or process.MPI.COMM_WORLD))
        if name == "env" and told is not None:
            communicator = _in_told_order(communicator, told)
        share_cores(communicator)
        write_lines_at_once()
        return communicator
    blas_threads.use_one()
    return Communicator(ThreadTransport(World(1), 0, [0], 0))


def _meet(
    mpi_comm: Any,
    path: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    size: int | None = None,
    timeout: float = _PATIENT,
) -> str:
    """Make this process a rank of an MPI job by a file; return the name of its communicator."""
    if mpi_comm is not None or current_transport.get() is not None:
        given = "mpi_comm" if mpi_comm is not None else "a rank of mnpar.run"
        raise ValueError(
            "create_communicator('file') is for processes that are no ranks yet, and this one "
            f"has {given}"
        )
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise TypeError(
            "create_communicator('file', path=…, rank=…, size=…): path is that of a file, not "
            f"{described(path)}"
        )
    if rank is None or size is None:
        told = launcher.told_by_environment()
        if told is None:
            raise TypeError(
                "create_communicator('file', path=…, rank=…, size=…): each process says its "
                "rank and how many there are, or "
                "torchrun's variables RANK and WORLD_SIZE do, or Slurm's, Flux's or jsrun's"
            )
        rank = told[0] if rank is None else rank
        size = told[1] if size is None else size
    if not (
        isinstance(rank, int | np.integer)
        and isinstance(size, int | np.integer)
        and 0 <= rank < size
    ):
        raise ValueError(
            f"create_communicator('file'): rank {rank!r} of {size!r}: ranks count from 0 to "
            "size - 1"
        )
    if not timeout > 0:
        raise ValueError(
            f"create_communicator('file'): timeout is a number of seconds above 0, not {timeout!r}"
        )
    before = Process.session
    if before is not None and (before.rank, before.size) != (rank, size):
        raise LauncherError(
            f"this process is rank {before.rank} of {before.size} by {before.path}, and cannot "
            f"be rank {rank} of {size}"
        )
    if size == 1:
        return "self"
    if before is None:
        # with sockets and subprocesses: other programs need not import them
        from mnpar.runtime import rendezvous

        library.join(
            partial(rendezvous.join, os.fspath(path), int(rank), int(size), float(timeout))
        )
    return "mpi"


def _check_environment(told: tuple[int, int, str] | None) -> None:
    if told is None:
        raise LauncherError(
            "communicator 'env' reads RANK and WORLD_SIZE, or Slurm's variables: they are not "
            "set to numbers"
        )
    rank, size, names = told
    if not rank < size:
        raise LauncherError(f"{names} say rank {rank} of {size}: ranks count from 0 to {size - 1}")
    if size > 1 and not launcher.under_launcher():
        raise LauncherError(
            f"this is rank {rank} of {size} by {names}, but no MPI launcher started it: {_INSTEAD}"
        )


def _in_told_order(comm: Communicator, told: tuple[int, int, str]) -> Communicator:
    """Return the ranks of an MPI job, numbered as the environment says."""
    everyone = comm.allgather_obj(told[:2])
    if sorted(rank for rank, _ in everyone) != list(range(comm.size)) or {
        size for _, size in everyone
    } != {comm.size}:
        raise LauncherError(f"MPI has {comm.size} ranks; (rank, size) by {told[2]} are {everyone}")
    ordered = comm.split(0, told[0])
    assert ordered is not None
    return ordered


def current_rank() -> int:
    """Return the calling rank among all ranks of the job, for messages; 0 where there is one rank,
    or no communicator was made yet.

    Example:
        >>> import mnpar
        >>> from mnpar.communicators import current_rank
        >>> mnpar.run(lambda comm: current_rank(), ranks=2)
        [0, 1]
    """
    transport = current_transport.get()
    if transport is not None:
        return transport.rank
    process = Process.known()
    return 0 if process is None else process.rank


def current_size() -> int:
    """Return the number of ranks of the job, of which :func:`current_rank` is one."""
    transport = current_transport.get()
    if transport is not None:
        return transport.size
    process = Process.known()
    return 1 if process is None else process.size


def share_cores(comm: Communicator) -> int | None:
    """Set the threads of BLAS to cores / ranks on this machine (2 to 3.5 times faster than all
    using all), unless the user chose a number; all ranks call it. Return the number, None where
    nothing was changed.
    """
    if comm.size == 1:
        return None
    mine = usable_cores()
    # all ranks decide alike up to here; from here on each decides for itself
    told = comm.allgather_obj((comm.inter_rank, sorted(mine)))
    others = [set(cores) for machine, cores in told if machine == comm.inter_rank]
    sharing = sum(not mine.isdisjoint(cores) for cores in others)
    blas_threads.shared_cores.ranks = sharing
    if comm.intra_size == 1 or any(name in os.environ for name in blas_threads.VARIABLES):
        return None
    try:
        import threadpoolctl
    except ImportError:
        if comm.rank == 0:
            warnings.warn(
                "threadpoolctl is missing, so each rank uses all cores: pip install threadpoolctl",
                stacklevel=3,
            )
        return None
    threads = max(1, len(mine) // sharing)
    threadpoolctl.threadpool_limits(threads)
    blas_threads.large_products.share = threads
    return threads
