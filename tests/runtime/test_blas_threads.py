"""A process alone has one BLAS thread for small products, and all cores for large ones."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
import threadpoolctl
import mnpar
import mnpar.functions as F
from mnpar.kernels import blas
from mnpar.runtime.blas_threads import large_products


def threads():
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]


before = threads()
if sys.argv[1] == "run":
    mnpar.run(lambda comm: comm.barrier(), ranks=2)
else:
    mnpar.create_communicator()
print(max(before), max(threads()), end=" ")
large_products._set, old = lambda n: (print("set", n, end=" "), old(n)), large_products._set
for n in (64, 300):
    a = np.random.default_rng(n).normal(size=(n, n))
    assert np.allclose(blas.product(a, a), a @ a)
print(max(threads()))
"""


@pytest.mark.parametrize("way", ["run", "alone"])
@pytest.mark.parametrize("chosen", [None, "2"])
def test_large_products_alone_take_all_cores_unless_the_user_has_chosen(way, chosen):
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    if chosen:
        environment["OMP_NUM_THREADS"] = chosen
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after, *calls, last = done.stdout.split()
    if chosen or before == "1":
        assert after == last == before
        assert not calls
    else:
        assert after == last == "1"
        assert calls == ["set", before, "set", "1"]
