"""The bubbles of schedules as they are: known waits stand for computing, so that ranks need no
cores of their own.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from mnpar.parallel import SCHEDULES, make_schedule, simulate

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "pipeline_bubble.py"
TRIES = 24  # of one step each: what else the machine does makes a step longer, never shorter


@pytest.fixture(scope="module")
def bubbles():
    spec = importlib.util.spec_from_file_location("pipeline_bubble", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.ranks(2, on="mpi")
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_takes_what_the_simulation_says_within_five_percent(comm, name, bubbles):
    """The simulation has the bubbles of the literature's formulas: test_schedules.py."""
    M = 4
    plan = make_schedule(name, comm.size, M)
    simulated = simulate(plan).bubble
    for _ in range(TRIES):
        _, bubble, graphs = bubbles.measured(comm, name, M, 0.06, 1)
        bubble = float(comm.allreduce(np.array(bubble), "max"))
        if (1 - simulated) / (1 - bubble) < 1.05:  # of the time, at equal work
            break
    assert (1 - simulated) / (1 - bubble) == pytest.approx(1, abs=0.05)
    assert graphs == simulate(plan).in_flight[comm.rank]
