"""The examples of pipelines, run as a user runs them: with and without mpiexec, by several
schedules, and with bad flags.
"""

import json
import re
import sys

import pytest

from tests.examples.test_examples import PNG, ROOT, run
from tests.harness.scripts import load_script

WAYS = {
    "mpiexec -n 3": (3, []),
    "python, which starts two": (0, []),
    "threads": (0, ["--threads", "4"]),
}
SMALL = ["--batches", "3", "--epoch", "1", "--unit", "20"]


def differ(done):
    assert done.returncode == 0, done.stderr
    return float(re.search(r"weights differ by (\S+) at most", done.stdout)[1])


@pytest.mark.parametrize(("ranks", "flags"), WAYS.values(), ids=WAYS)
def test_the_mlp_learns_the_weights_of_one_rank_and_draws_its_timeline(ranks, flags, tmp_path):
    done = run(ranks, "pipeline_mlp.py", [*SMALL, *flags, "--out", str(tmp_path)])
    assert differ(done) < 1e-10
    size = ranks or int(flags[1] if flags else 2)
    assert len(re.findall(r"^rank \d \|[FB\d.-]+ *", done.stdout, re.M)) == size
    assert len(re.findall(r"^rank \d: computes", done.stdout, re.M)) == size
    assert re.search(r"^epoch  1  loss [\d.]+", done.stdout, re.M)
    assert (tmp_path / "timeline.png").read_bytes().startswith(PNG)
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]


SCHEDULES = ["zbv", "F0 F1 B1 B0, F0 F1 B1 B0"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_mlp_takes_any_schedule(schedule):
    assert (
        differ(
            run(
                0,
                "pipeline_mlp.py",
                [*SMALL, "--threads", "2", "--out", "", "--schedule", schedule],
            )
        )
        < 1e-10
    )


REFUSED = {
    "would hang": ("F0 B0 F1 B1, F1 B1 F0 B0", "cannot end, its ranks wait for each other"),
    "no schedule": ("1f2b, 2f", "error: --schedule: '1f2b' is no action"),
    "of three ranks": (
        "F0 B0, F0 B0, F0 B0",
        "actions of 3 ranks, with commas between them, are given for 2 ranks",
    ),
}


@pytest.mark.parametrize(("schedule", "message"), REFUSED.values(), ids=REFUSED)
def test_the_mlp_refuses_a_schedule_that_it_cannot_follow(schedule, message):
    done = run(0, "pipeline_mlp.py", ["--threads", "2", "--schedule", schedule])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


UNETS = {
    "mpiexec -n 2, in a V": (2, []),
    "mpiexec -n 4": (4, []),
    "threads, recomputing": (0, ["--threads", "4", "--schedule", "zb1p", "--recompute"]),
}


@pytest.mark.parametrize(("ranks", "flags"), UNETS.values(), ids=UNETS)
def test_the_u_net_learns_the_weights_of_one_rank(ranks, flags, tmp_path):
    done = run(
        ranks,
        "applications/pipeline_unet.py",
        ["--steps", "2", "--batchsize", "6", "--width", "4", "--out", str(tmp_path), *flags],
    )
    assert differ(done) < 1e-8
    assert (tmp_path / "pipeline_unet.png").read_bytes().startswith(PNG)


def test_without_matplotlib_the_u_net_is_trained_all_the_same(tmp_path, monkeypatch):
    unet = load_script(ROOT / "examples" / "applications/pipeline_unet.py")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert (
        unet.draw(tmp_path / "a.png", {})
        == "no picture: matplotlib is missing (pip install 'mnpar[examples]')"
    )
    assert not list(tmp_path.iterdir())


UNSUITED = {
    "three threads": (0, ["--threads", "3"], "or two on each of 2, not for 3 ranks"),
    "mpiexec -n 3": (3, [], "or two on each of 2, not for 3 ranks"),
    "a schedule of eight stages": (
        0,
        ["--threads", "4", "--schedule", "zbv"],
        "--schedule: zbv on 4 ranks has 8 stages",
    ),
}


@pytest.mark.parametrize(("ranks", "flags", "message"), UNSUITED.values(), ids=UNSUITED)
def test_the_u_net_refuses_what_its_stages_do_not_suit(ranks, flags, message):
    done = run(ranks, "applications/pipeline_unet.py", flags)
    assert done.returncode == 2
    assert done.stderr.count(message) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [(2, []), (0, ["--schedule", "zb1p", "--threads"])],
    ids=["mpiexec", "threads"],
)
def test_the_encoder_and_the_decoder_learn_the_weights_of_one_rank(ranks, flags):
    done = run(
        ranks,
        "applications/pipeline_seq2seq.py",
        ["--lines", "53", "--epoch", "2", "--unit", "16", *flags],
    )
    assert differ(done) < 1e-8
    assert (
        len(
            re.findall(
                r"^epoch +\d  loss +[\d.]+ per line  digits right [\d.]+$", done.stdout, re.M
            )
        )
        == 2
    )
