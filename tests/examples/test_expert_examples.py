"""The examples of experts and ensembles, run as a user runs them."""

import re

import pytest

from tests.examples.test_examples import run

WAYS = {
    "mpiexec -n 2": (2, []),
    "python, which starts three": (0, ["--ranks", "3"]),
    "threads, more ranks than experts": (0, ["--threads", "4", "--experts", "3", "--k", "2"]),
    "threads, with a capacity": (0, ["--threads", "3", "--capacity", "1"]),
}


@pytest.mark.parametrize(("ranks", "flags"), WAYS.values(), ids=WAYS)
def test_the_mixture_of_experts_learns_the_weights_of_one_rank(ranks, flags):
    done = run(ranks, "mixture_of_experts.py", ["--epoch", "2", "--batchsize", "400", *flags])
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"weights differ by (\S+) at most", done.stdout)[1]) < 1e-10
    lines = re.findall(
        r"^epoch +\d +accuracy [\d.]+ +experts see((?: +[\d.]+%)+)$", done.stdout, re.M
    )
    assert [len(line.split()) for line in lines] == [3 if "--experts" in flags else 6] * 2
    assert len(re.findall(r"^rank \d of \d has experts (?:[\d, ]+|none)$", done.stdout, re.M)) == (
        ranks or int(flags[1])
    )


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--k", "9"], "--k 9 is more than the 6 experts"),
        (["--capacity", "0"], "--capacity is more than 0, not 0"),
    ],
)
def test_a_mixture_that_cannot_be_is_a_usage_error(flags, text):
    done = run(0, "mixture_of_experts.py", flags)
    assert done.returncode == 2
    assert text in done.stderr


TOURNAMENTS = {
    "mpiexec -n 2": (2, [], 2),
    "python, which starts three": (0, ["--ranks", "3"], 3),
    "threads, two ranks for each member": (0, ["--threads", "4", "--members", "2"], 2),
    "threads, three members on a rank": (
        0,
        ["--threads", "2", "--members", "6", "--how", "truncation"],
        6,
    ),
}


@pytest.mark.parametrize(("ranks", "flags", "members"), TOURNAMENTS.values(), ids=TOURNAMENTS)
def test_tournaments_are_those_of_one_rank(ranks, flags, members):
    done = run(ranks, "ensemble_tournament.py", ["--rounds", "3", "--unit", "8", *flags])
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"answers differ by (\S+) at most", done.stdout)[1]) < 1e-10
    rounds = re.findall(r"^round +\d +losses (.+)$", done.stdout, re.M)
    assert [len(re.findall(r"\d+\.\d{4}", line)) for line in rounds] == [members] * 3
    assert "←" in rounds[0]
    assert re.search(
        rf"^accuracy +best member [\d.]+ +mean of {members} [\d.]+ +their vote [\d.]+$",
        done.stdout,
        re.M,
    )


def test_members_that_ranks_cannot_make_are_named():
    done = run(0, "ensemble_tournament.py", ["--threads", "3", "--members", "2"])
    assert done.returncode != 0
    assert "3 ranks do not make 2 members" in done.stderr
