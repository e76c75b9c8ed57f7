"""The launcher's facts about this process: the number of ranks that it has started, and the number
of this one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_WORLD_SIZES = (
    "PMI_SIZE",
    "PMIX_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_NUM_TASKS",
    "FLUX_JOB_SIZE",
    "JSM_NAMESPACE_SIZE",
    "PALS_LOCAL_SIZE",  # on this machine: at least so many
)

_WORLD_RANKS = (
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PALS_RANKID",  # PALS, the mpiexec of HPE Cray's machines under PBS
    "JSM_NAMESPACE_RANK",  # jsrun, on IBM's machines under LSF
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
)
_LOCAL_SIZES = (
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
    "JSM_NAMESPACE_LOCAL_SIZE",
)

_RANK_AND_SIZE = (
    ("RANK", "WORLD_SIZE", "torchrun"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "Slurm"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "Flux"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "jsrun"),
)


def launched_ranks() -> int:
    """Return the number of ranks that the launcher says it has started; 0 where no launcher is
    seen.
    """
    return max(
        (int(os.environ[name]) for name in _WORLD_SIZES if os.environ.get(name, "").isdigit()),
        default=0,
    )


def launched_ranks_here() -> int:
    """Return the number of ranks on this machine; 0 where the launcher does not say, or another
    one, around it, says otherwise.
    """
    told = [int(os.environ[name]) for name in _LOCAL_SIZES if os.environ.get(name, "").isdigit()]
    return told[0] if told and min(told) == max(told) else 0


def launched_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the rank of a process with this environment; None if the environment does not say."""
    return next(
        (int(environment[name]) for name in _WORLD_RANKS if environment.get(name, "").isdigit()),
        None,
    )


def launched_after_first() -> bool:
    """Return whether the launcher says that this is not rank 0; known before MPI starts, and where
    it cannot start.
    """
    return any(os.environ.get(name, "0") != "0" for name in _WORLD_RANKS)


def under_launcher() -> bool:
    """Return whether an MPI launcher started this process, or the program has started MPI with
    several ranks.
    """
    loaded = sys.modules.get("mpi4py.MPI")
    if (
        loaded is not None
        and loaded.Is_initialized()
        and not loaded.Is_finalized()
        and loaded.COMM_WORLD.Get_size() > 1
    ):
        return True
    return launched_ranks() > 1


def told_by_environment() -> tuple[int, int, str] | None:
    """Return (rank, size, whose names) of this process by the variables that torchrun, Slurm,
    Flux and jsrun set; None where there are none.
    """
    for rank, size, whose in _RANK_AND_SIZE:
        values = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(value.isdigit() for value in values):
            return int(values[0]), int(values[1]), f"{whose}'s {rank} and {size}"
    return None


def under_open_mpi() -> bool:
    """Return whether Open MPI's launcher started this process, and nobody has told MPICH to speak
    with it.
    """
    return "OMPI_COMM_WORLD_SIZE" in os.environ and "MPIR_CVAR_PMI_VERSION" not in os.environ
