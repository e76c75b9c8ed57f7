"""How ranks come together: by MPI, by environment variables that must agree with it, and what MPI
cannot join.
"""

import os
import subprocess
import sys

import pytest
import threadpoolctl

import mnpar
from mnpar.communicators.create import share_cores
from mnpar.errors import LauncherError
from mnpar.runtime import launcher
from mnpar.runtime.blas_threads import VARIABLES
from mnpar.runtime.mpiexec import mpiexec_command
from tests.harness.scripts import run_script


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No launcher."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", *launcher._WORLD_SIZES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["none", "self", "auto"])
def test_without_a_launcher_there_is_one_rank_and_its_collectives_are_the_identity(name):
    comm = mnpar.create_communicator(name)
    assert (comm.rank, comm.size, comm.allreduce_obj(7), comm.bcast_obj("x")) == (0, 1, 7, "x")


@pytest.mark.parametrize("name", ["auto", "env"])
def test_processes_that_torchrun_started_are_told_what_to_type_instead_of_training_alone(
    monkeypatch, name
):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(
        LauncherError,
        match=r"rank 1 of 4 by torchrun's RANK and WORLD_SIZE.*python -m mnpar run -n 4",
    ):
        mnpar.create_communicator(name)
    assert mnpar.create_communicator("self").size == 1
    assert mnpar.run(lambda comm: mnpar.create_communicator().size, ranks=2) == [2, 2]


def test_one_process_of_torchrun_is_one_rank(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert mnpar.create_communicator("env").size == mnpar.create_communicator().size == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "not set to numbers"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "not set to numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "say rank 2 of 2"),
        ({"SLURM_PROCID": "0"}, "not set to numbers"),
    ],
    ids=["none", "no number", "no such rank", "half"],
)
def test_environments_that_say_nothing_are_errors(monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LauncherError, match=message):
        mnpar.create_communicator("env")


SPAWNING = """
import sys, mnpar, mpi4py.MPI as MPI
parent = MPI.Comm.Get_parent()
first = parent == MPI.COMM_NULL
between = MPI.COMM_WORLD.Spawn(sys.executable, [__file__], maxprocs=1) if first else parent
joined = between.Merge(not first)
try:
    mnpar.create_communicator(mpi_comm=joined)
except mnpar.errors.LauncherError as error:
    sys.stdout.write(f"{error}\\n")
between.Disconnect()
"""


def test_ranks_of_another_job_are_told(tmp_path):
    (tmp_path / "script.py").write_text(SPAWNING)
    command, environment = mpiexec_command(1)
    done = subprocess.run(
        [*command, sys.executable, str(tmp_path / "script.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    for stranger in "01":  # what the one job says, and what the other
        assert (
            f"ranks [{stranger}] of the 2 of this mpi_comm belong to another MPI job" in done.stdout
        ), done.stderr


def test_a_program_from_the_standard_input_is_told_of_the_ranks_that_get_none(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import mnpar; mnpar.create_communicator()")
    command, environment = mpiexec_command(2)
    done = subprocess.run(
        # here all get it, so that the job ends
        [
            *command,
            "sh",
            "-c",
            f"{sys.executable} - < {script}",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert (
        done.stderr.count("comes from the standard input, which most launchers give to rank 0 only")
        == 1
    )


SCRIPT = """
import os, mnpar
os.environ["{rank}"] = str(2 - int(os.environ["PMI_RANK"])) if "{good}" else "0"
os.environ["{size}"] = "3"
comm = mnpar.create_communicator("env")
same = comm.rank == int(os.environ['{rank}'])
print(f"{comm.allgather_obj(os.environ['{rank}'])} {same};", end="", flush=True)
"""


@pytest.mark.parametrize(
    ("good", "rank", "size"),
    [
        ("yes", "RANK", "WORLD_SIZE"),
        ("", "RANK", "WORLD_SIZE"),
        ("yes", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ],
    ids=["torchrun", "not the same", "Slurm"],
)
def test_ranks_of_mpi_are_numbered_as_the_environment_says(tmp_path, good, rank, size):
    script = tmp_path / "script.py"
    text = SCRIPT.replace("{good}", good).replace("{rank}", rank).replace("{size}", size)
    script.write_text(text.replace("PMI_RANK", "MPI_RANK_HERE"))
    command, environment = mpiexec_command(3)
    text = (
        "import mpi4py.MPI as MPI, os; os.environ['MPI_RANK_HERE'] = str(MPI.COMM_WORLD.rank)\n"
        + script.read_text()
    )
    script.write_text(text)
    done = subprocess.run(
        [*command, sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if good:
        assert done.stdout.count("['0', '1', '2'] True;") == 3, done.stderr
    else:
        assert done.returncode != 0
        assert "MPI has 3 ranks" in done.stderr


class Uneven:
    """A communicator of three ranks on two machines."""

    def __init__(self, comm):
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.allgather_obj = comm.allgather_obj
        self.intra_size, self.inter_rank = (2, 0) if comm.rank < 2 else (1, 1)


def test_a_rank_alone_on_its_machine_takes_part_when_the_others_share_cores(monkeypatch):
    told = []
    monkeypatch.setattr(threadpoolctl, "threadpool_limits", told.append)
    monkeypatch.setattr("mnpar.communicators.create.usable_cores", lambda: {0, 1, 2, 3, 4, 5})
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert mnpar.run(lambda comm: share_cores(Uneven(comm)), ranks=3) == [3, 3, None]
    assert told == [3, 3]


KEPT = """
import ctypes, os, sys
import numpy as np
from mnpar.runtime import malloc

library = ctypes.CDLL(None)

class Old:  # GNU's before 2.35
    def mallopt(self, what, value):
        return 0 if what == -3 and value > 2**25 else library.mallopt(what, value)

if "old" in sys.argv:
    malloc.ctypes.CDLL = lambda name: Old()
if hasattr(library, "mallopt"):
    assert malloc.keep_memory()
    for mib in (1, 33, 256, 400):
        x = np.empty(mib << 20, np.uint8)
        # it was not mapped for itself alone
        assert not ctypes.c_size_t.from_address(x.ctypes.data - 8).value & 2, mib
"""
LARGE_PAGES = """
import os
import numpy as np
from mnpar.runtime import malloc

def marked(x):
    "Whether the system was asked for large pages at an address."
    inside = False
    for line in open("/proc/self/smaps"):
        first, *flags = line.split()
        if "-" in first:
            start, end = (int(place, 16) for place in first.split("-"))
            inside = start <= x.ctypes.data + x.nbytes // 2 < end
        elif inside and first == "VmFlags:":
            return "hg" in flags

malloc.keep_memory()
malloc.keep_memory()  # a second communicator
arrays = [np.empty(3 << 20, np.uint8) for _ in range(50)]  # smaller than those for which numpy asks
if os.path.exists("/sys/kernel/mm/transparent_hugepage"):
    assert all(map(marked, arrays[5:]))
"""
LIMITED = """
import ctypes, os, resource
import numpy as np
from mnpar.runtime import malloc

if hasattr(ctypes.CDLL(None), "mallopt"):
    addresses = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + 2**28, resource.RLIM_INFINITY))
    assert not malloc.keep_memory()
    [np.empty(2**14, np.uint8) for _ in range(2**12)]  # a quarter of what there is
"""


@pytest.mark.parametrize(
    ("script", "library"),
    [(KEPT, "new"), (KEPT, "old"), (LARGE_PAGES, "new"), (LIMITED, "new")],
    ids=["new", "old", "large pages", "limited addresses"],
)
def test_large_arrays_lie_in_memory_that_is_kept(tmp_path, script, library):
    (tmp_path / "script.py").write_text(script)
    usual = ("MALLOC_TRIM_THRESHOLD_", "MNPAR_KEEP_MEMORY")
    environment = {name: value for name, value in os.environ.items() if name not in usual}
    done = run_script(tmp_path / "script.py", [library], environment, tmp_path)
    assert done.returncode == 0, done.stderr
