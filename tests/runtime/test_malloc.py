"""The C library keeps the memory of freed arrays, so that the system maps no page anew."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, threading
import numpy as np
import mnpar
from mnpar.runtime.malloc import keep_memory

mnpar.create_communicator()
if not keep_memory():
    sys.exit("the C library keeps no memory")


def work():
    for _ in range(3):
        np.empty({size}, "u1").fill(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.empty({size}, "u1").fill(1)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


if "{where}" == "another thread":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
"""


@pytest.mark.parametrize("where", ["the main thread", "another thread"])
@pytest.mark.parametrize("size", [10_000_000, 100_000_000])
def test_an_array_has_the_memory_of_one_that_was_freed(where, size):
    program = PROGRAM.format(where=where, size=size)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    if "keeps no memory" in ran.stderr:
        pytest.skip("this system's C library is not told to keep memory")
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 40  # 100 MB are 48 pages of 2 MiB, each time
