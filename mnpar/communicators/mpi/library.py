"""The MPI library, found by mpi4py and started."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mnpar.communicators.shared_memory import LEAST_FOR_MPI, MORE_MEMORY, SHM, free_memory
from mnpar.errors import LauncherError
from mnpar.runtime import cleanup, startup
from mnpar.runtime.launcher import (
    launched_after_first,
    launched_ranks,
    launched_ranks_here,
    under_open_mpi,
)
from mnpar.runtime.output import speak
from mnpar.runtime.process import Process

if TYPE_CHECKING:
    from mnpar.runtime.rendezvous import Session


# the others have no program, and end: this one would wait for them in MPI_Init without a word
_FROM_STDIN = (
    "mnpar: this program comes from the standard input, which most launchers give to rank 0 "
    "only: if nothing follows, save it "
    "in a file, and start that\n"
)


def _imported() -> Any:
    """Return mpi4py's MPI, without starting it."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            # the end is ours: mpi4py's would wait for ever for a rank that failed
            mpi4py.rc.finalize = False
            # and so is the beginning: under another MPI's launcher some libraries abort there
            mpi4py.rc.initialize = False
        # the program has imported it first
        Process.finalizes_forks = mpi4py.rc.finalize is not False
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise LauncherError(
            "MPI ranks need mpi4py, which is missing: pip install 'mnpar[mpi]'"
        ) from error
    except ImportError as error:
        raise LauncherError(
            f"mpi4py cannot be imported ({error}): unset MPI4PY_MPIABI and MPI4PY_LIBMPI, or "
            "set them to the MPI that is here"
        ) from error
    except RuntimeError as error:
        raise LauncherError(
            "mpi4py finds no MPI library: pip install 'mnpar[mpi]', or load the machine's MPI "
            "and set MPI4PY_LIBMPI to its "
            f"libmpi.so ({str(error).splitlines()[0]})"
        ) from error
    return MPI


def join(meet: Callable[[str], Session]) -> None:
    """Let this process meet others that no MPI launcher has started; before MPI starts.

    Args:
        meet: called with the name of the MPI library; what it returns ends the job if a rank fails.

    Raises:
        LauncherError: MPI is missing, or has been started already.
    """
    MPI = _imported()
    if MPI.Is_initialized() or MPI.Is_finalized():
        raise LauncherError(
            "this process has started MPI before it met the others: make the communicator "
            "first, and import mpi4py.MPI after "
            "that, or with mpi4py.rc.initialize = False"
        )
    Process.session = meet(name(MPI))


def name(MPI: Any) -> str:
    """Return the MPI library's name and version."""
    first = MPI.Get_library_version().splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", "").strip("\0").split())


def load() -> Any:
    """Return mpi4py's MPI, started.

    Raises:
        LauncherError: mpi4py or the MPI library is missing, or the launcher belongs to another MPI.
    """
    MPI = _imported()
    told = launched_ranks()
    own = (
        "Use the mpiexec beside this Python: "
        f"{os.path.join(os.path.dirname(sys.executable), 'mpiexec')}"
    )
    library = name(MPI)
    if not MPI.Is_initialized():
        if told > 1 and under_open_mpi() and library.startswith("MPICH"):
            raise LauncherError(
                f"Open MPI's launcher started {told} ranks, but their MPI library is "
                f"{library}. {own}"
            )
        if told > 1 and sys.argv[:1] in ([""], ["-"]) and not launched_after_first():
            speak(_FROM_STDIN)
        _check_memory(library)
        with startup.watched(library, Process.session):
            _initialize(MPI)
    if MPI.COMM_WORLD.Get_size() == 1 and told > 1:
        cleanup.remove(cleanup.segments())
        atexit.register(_finalize, MPI)  # or other files would stay in shared memory
        raise LauncherError(
            f"the launcher started {told} ranks, but this one is alone: its MPI library "
            f"({library}) is not the launcher's. "
            f"{own}"
        )
    return MPI


def _check_memory(library: str) -> None:
    """Raise LauncherError if MPI would end by a bus error, as there is too little memory to
    share.
    """
    ranks, free = launched_ranks_here(), free_memory()
    least = LEAST_FOR_MPI * ranks
    if ranks > 1 and library.startswith("MPICH") and free is not None and free < least:
        raise LauncherError(
            f"{SHM} has {free / 2**20:.2f} MiB left, and {library} needs some {least / 2**20:.2f} "
            f"for {ranks} ranks on this machine: {MORE_MEMORY}"
        )


def _initialize(MPI: Any) -> None:
    """Call ``MPI_Init_thread`` without the GIL, so that other threads run while it waits for the
    other ranks.
    """
    # in the linker's order: a profiler's function, which is loaded first, comes first
    for library in (
        None,
        MPI.__file__,
    ):
        with contextlib.suppress(AttributeError, OSError):
            init = ctypes.CDLL(library).MPI_Init_thread
            break
    else:
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        return
    if code := init(None, None, ctypes.c_int(MPI.THREAD_MULTIPLE), ctypes.byref(ctypes.c_int())):
        raise MPI.Exception(code)
    if sys.modules["mpi4py"].rc.errors == "exception":  # mpi4py does the same after its own call
        for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
            comm.Set_errhandler(MPI.ERRORS_RETURN)


def _finalize(MPI: Any) -> None:
    if not MPI.Is_finalized():
        MPI.Finalize()
