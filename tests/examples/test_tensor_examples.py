"""The examples of tensor parallelism, in each of their ways: the weights of one process, and files
that do not tell.
"""

import re

import numpy as np
import pytest

from tests.examples.test_examples import run

SHORT = ["--epoch", "1", "--train", "60", "--filters", "5", "--unit", "7", "--batchsize", "20"]
WAYS = {
    "mpiexec": (3, [], 3),
    "python, which starts two": (0, [], 2),
    "threads": (0, ["--threads", "4"], 4),
    "one": (0, ["--threads", "1"], 1),
    "more ranks than filters": (0, ["--threads", "6"], 6),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_network_divided_by_filters_and_channels_learns_the_weights_of_one_process(way, tmp_path):
    launched, flags, ranks = WAYS[way]
    done = run(launched, "parallel_convolution.py", [*SHORT, *flags, "--out", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    found = re.search(
        r"trained on (\d) ranks and on one, the weights differ by (\S+) at most", done.stdout
    )
    assert int(found[1]) == ranks
    assert float(found[2]) < 1e-10
    with np.load(tmp_path / "model.npz") as file:
        assert file["filters/W"].shape == (5, 1, 3, 3)
        assert file["channels/W"].shape == (10, 5, 1, 1)
        assert file["l2/W"].shape == (10, 7)


def test_bad_flags_are_usage_errors():
    done = run(0, "parallel_convolution.py", ["--filters", "0"])
    assert done.returncode == 2
    assert "--filters is at least 1, not 0" in done.stderr
