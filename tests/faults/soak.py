"""Start and end jobs, in every way in which a job can end, and find what they leave: files in
shared memory and temporary folders, processes.

    python -m tests.faults.soak 200        the long version; test_faults.py looks at what its
    jobs leave
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.job import GROUP, Job

KINDS = ("fine", "error", "os._exit", "SIGSEGV", "kill -9 a rank", "kill -9 mpiexec", "Ctrl-C")
SHARED = ("mpich_", "ucx_", "sm_segment", "vader_segment", "osc_", "psm")
TEMPORARY = ("hydra_", "ompi.", "prte", "pmix", "openmpi-sessions")
PROGRAMS = {
    "fine": "fine",
    "error": "error_while_others_receive",
    "os._exit": "os_exit_0",
    "SIGSEGV": "segmentation_fault",
}


def traces(folder, prefixes):
    """What MPI and mnpar have there, for jobs of this process if these can be told from others."""
    return {
        str(path)
        for path in Path(folder).glob("*")
        if path.name.startswith(prefixes) and is_ours(path)
    }


def is_ours(path):
    """Whether a file may be of a job of this process."""
    try:
        return path.lstat().st_gid == GROUP or GROUP is None
    except OSError:  # it has gone
        return False


def used():
    """All files that are mapped somewhere, or open."""
    text = []
    for look, names in ((Path.read_text, "[0-9]*/maps"), (os.readlink, "[0-9]*/fd/*")):
        for name in Path("/proc").glob(names):
            try:
                text.append(look(name))
            except OSError:
                continue
    return "\n".join(text)


def cycle(kind, folder):
    """One job."""
    job = Job(PROGRAMS.get(kind, "waits"), 2 if kind in PROGRAMS else 3, TMPDIR=folder)
    if kind not in PROGRAMS:
        job.expect("ready", 3)
        if kind == "kill -9 a rank":
            os.kill(max(job.ranks()), signal.SIGKILL)
        elif kind == "kill -9 mpiexec":
            job.process.kill()
        else:
            os.killpg(job.process.pid, signal.SIGINT)
    code = job.end()[0]  # no process is left, or it raises
    assert (code == 0) == (kind == "fine"), f"{kind}: exit code {code}"


def all_traces():
    """What MPI and mnpar have where they put it."""
    return traces("/dev/shm", SHARED) | traces("/tmp", TEMPORARY)


def files_in(folder):
    """All files and folders in a folder, by their names from there."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


def left_behind(before):
    """What jobs have left where nothing was before; nothing, one hopes. (Jobs that run beside them
    have two seconds to tidy up.)
    """
    new = all_traces() - before
    deadline = time.monotonic() + 2
    while new and time.monotonic() < deadline:
        time.sleep(0.1)
        new &= all_traces()
    in_use = used()
    return sorted(path for path in new if path not in in_use)


def soak(cycles):
    """What so many jobs have left behind."""
    before = all_traces()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(cycles):
            cycle(KINDS[number % len(KINDS)], folder)
        return [*files_in(folder), *left_behind(before)]


if __name__ == "__main__":
    found = soak(int(sys.argv[1]))
    print(f"{sys.argv[1]} jobs left {len(found)} files", *found, sep="\n")
    sys.exit(bool(found))
