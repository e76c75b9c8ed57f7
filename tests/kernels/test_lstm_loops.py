"""The compiled loop of an LSTM's cell says NaN where numpy's code says it, and nowhere else."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F

pytest.importorskip("numba", reason="numba is not installed")


def test_an_output_without_a_gradient_adds_nothing_to_that_of_the_memory():
    rng = np.random.default_rng(0)
    c = mnpar.Variable(rng.standard_normal((64, 256)).astype(np.float32))
    x = mnpar.Variable(rng.standard_normal((64, 1024)).astype(np.float32))
    c.array[3] = np.nan
    memory, _ = F.lstm(c, x)
    F.sum(memory).backward()
    assert np.isfinite(c.grad).all()
