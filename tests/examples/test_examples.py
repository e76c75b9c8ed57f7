"""The examples, run as a user runs them: in each of their ways, and with bad flags."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mnpar.runtime.mpiexec import mpiexec_command
from tests.harness.mpi import TO_END, needs_mpich
from tests.harness.scripts import run_script, client_for

ROOT = Path(__file__).parents[2]
NOWHERE = f"{__file__}/nowhere"  # nobody can make a folder in a file
PNG = b"\x89PNG\r\n"


def run(ranks, example, flags=(), bare_mpiexec=False, fresh=False):
    """``mpiexec -n ranks python examples/…``; plain python for 0 ranks. What is fresh really starts
    Python.
    """
    command, environment = mpiexec_command(ranks or 1)
    command = [] if not ranks and not bare_mpiexec else command[:1] if bare_mpiexec else command
    # thread ranks take turns, and small products on all cores wait for each other
    if "--threads" in flags:
        environment["OMP_NUM_THREADS"] = "1"
    if fresh:
        command += [sys.executable, str(ROOT / "examples" / example), *flags]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
            cwd=ROOT,
        )
    return run_script(ROOT / "examples" / example, flags, environment, ROOT, command)


@pytest.mark.parametrize("ranks", [0, 3])
def test_the_ring_adds_the_left_and_the_right(ranks):
    done = run(ranks, "ring.py", fresh=True)
    assert done.returncode == 0, done.stderr
    size = ranks or 1
    for rank in range(size):
        x = rank + 1
        left = (rank - 1) % size + 1
        right = (rank + 1) % size + 1
        assert (
            f"rank {rank} of {size}: x = {x}, loss = {x * left}, left + right = {left + right}\n"
            in done.stdout
        )


@pytest.mark.parametrize(
    ("ranks", "flags"), [(2, []), (0, []), (0, ["--threads"])], ids=["mpiexec", "python", "threads"]
)
def test_a_network_on_two_ranks_learns_the_weights_of_one_process(ranks, flags):
    done = run(ranks, "mlp_model_parallel.py", ["--unit", "20", *flags])
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"differ by (\S+) at most", done.stdout)[1]) < 1e-10


OF_TWO = [
    "mlp_model_parallel",
    "mnist_model_parallel",
    "seeds/seq2seq_model_parallel",
    "applications/pipeline_seq2seq",
]


@pytest.mark.parametrize("example", OF_TWO)
def test_three_ranks_for_a_program_of_two_are_one_usage_error(example):
    done = run(3, f"{example}.py")
    assert done.returncode == 2
    assert done.stderr.count("made for 2 ranks, not 3\n") == done.stderr.count("usage:") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("example", [*OF_TWO, "applications/pipeline_unet"])
def test_a_program_of_two_ranks_that_cannot_start_them_is_a_usage_error(example, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    done = run(0, f"{example}.py")
    assert done.returncode == 2
    assert "srun -n 2 python" in done.stdout
    assert re.search(r"ranks, not (for )?1: --threads .*runs them as threads\n$", done.stderr)


@pytest.mark.parametrize(
    ("example", "flags", "line"),
    [
        ("ensemble_mnist.py", ["--threads", "2", "--epoch", "1"], r"^epoch   1 "),
        ("ensemble_tournament.py", ["--threads", "2", "--rounds", "1"], r"^round  1 "),
        ("mnist_data_parallel.py", ["--threads", "2", "--epoch", "1"], r"^1  "),
        ("checkpoint_resume.py", ["--epoch", "1"], r"^iteration 1,"),
    ],
)
def test_a_batch_larger_than_the_data_is_all_of_it_once(example, flags, line, tmp_path):
    out = [] if "tournament" in example else ["--out", str(tmp_path)]
    done = run(0, example, [*flags, "--batchsize", "5000", "--unit", "8", *out])
    assert done.returncode == 0, done.stderr
    assert re.search(line, done.stdout, re.M), done.stdout


SHORT = ["--epoch", "2", "--unit", "16", "--batchsize", "64"]
WAYS = {
    "python, which starts four": ({"ranks": 0}, [], 4),
    "mpiexec without a number": pytest.param(
        {"ranks": 0, "bare_mpiexec": True}, [], 4, marks=needs_mpich
    ),
    "mpiexec -n 2": ({"ranks": 2}, [], 2),
    "threads": ({"ranks": 0}, ["--threads", "3"], 3),
    "members of two ranks": ({"ranks": 0}, ["--groups", "2"], 2),
}


@pytest.mark.parametrize(("how", "flags", "members"), WAYS.values(), ids=WAYS)
def test_the_ensemble_reports_each_epoch_once_and_draws_a_plot(how, flags, members, tmp_path):
    done = run(example="ensemble_mnist.py", flags=[*SHORT, "--out", str(tmp_path), *flags], **how)
    assert done.returncode == 0, done.stderr
    lines = re.findall(
        r"^epoch +\d+ +loss [\d.]+ +members ((?:[\d.]+ )+) +ensemble [\d.]+$", done.stdout, re.M
    )
    assert [len(line.split()) for line in lines] == [members, members]
    assert done.stdout.count("data: scikit-learn's handwritten digits") == 1
    picture = (tmp_path / "ensemble_mnist.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 5000


@pytest.mark.parametrize(
    "flags",
    [["--threads", "3"], ["--threads", "4", "--groups", "2"]],
    ids=["members of a rank", "members of two ranks"],
)
def test_training_through_the_allgather_equals_training_on_one_rank(flags, tmp_path):
    done = run(0, "ensemble_mnist.py", [*SHORT, "--joint", "--out", str(tmp_path), *flags])
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"weights differ by (\S+) at most", done.stdout)[1]) < 1e-10


def last_line(done):
    assert done.returncode == 0, done.stderr
    return re.search(r"^weights and logs: ([0-9a-f]{16})$", done.stdout, re.M)[1]


def test_training_that_was_killed_goes_on_bit_for_bit_and_on_other_numbers_of_ranks(tmp_path):
    flags = ["--unit", "8", "--epoch", "2", "--out"]
    whole = last_line(run(2, "checkpoint_resume.py", [*flags, str(tmp_path / "whole")]))
    killed = run(2, "checkpoint_resume.py", [*flags, str(tmp_path / "killed"), "--kill", "25"])
    assert killed.returncode != 0
    assert "begins on 2 ranks" in killed.stdout
    resumed = run(2, "checkpoint_resume.py", [*flags, str(tmp_path / "killed")])
    assert "goes on at iteration 20 on 2 ranks" in resumed.stdout
    assert last_line(resumed) == whole
    more = run(3, "checkpoint_resume.py", [*flags, str(tmp_path / "killed"), "--epoch", "3"])
    assert "goes on at iteration 20 on 3 ranks" in more.stdout
    assert "iteration 43, test accuracy 0." in more.stdout


def test_training_that_is_told_to_end_saves_and_goes_on_from_there(tmp_path):
    command, environment = mpiexec_command(2)
    flags = ["--unit", "8", "--out", str(tmp_path)]
    told = [
        *command,
        *client_for(ROOT / "examples" / "checkpoint_resume.py"),
        *flags,
        "--epoch",
        "9999",
    ]
    with subprocess.Popen(
        told, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as job:
        assert job.stdout.readline() == "begins on 2 ranks\n"
        job.send_signal(TO_END)
        iteration = re.fullmatch(r"told to end: saved at iteration (\d+)\n", job.stdout.read())[1]
    assert job.returncode == 143
    more = run(2, "checkpoint_resume.py", [*flags, "--epoch", str(int(iteration) // 14 + 1)])
    assert f"goes on at iteration {iteration} on 2 ranks" in more.stdout, more.stderr


SMALL_PRINT = {
    "checkpoint_resume.py": (["--interval", "0"], "--interval is at least 1, not 0"),
    "ensemble_tournament.py": (
        ["--members", "3"],
        "4 ranks do not make 3 members of as many ranks: choose a divisor of 4",
    ),
    "seeds/synkhronos_mnist.py": (
        ["--threads", "3", "--ranks", "4"],
        "argument --ranks: not allowed with argument --threads",
    ),
    "mnist_dual_parallel.py": (
        ["--threads", "3"],
        "this network is made for an even number of ranks, not 3",
    ),
    "mlp_model_parallel.py": (["--steps", "-1"], "--steps is at least 1, not -1"),
    "mnist_data_parallel.py": (["--resume", "nothing"], "--resume: there is no file nothing"),
    "pipeline_mlp.py": (["--micro-batches", "0"], "--micro-batches is at least 1, not 0"),
    "applications/pipeline_seq2seq.py": (["--lines", "0"], "--lines is at least 1, not 0"),
    "applications/pipeline_unet.py": (["--steps", "0"], "--steps is at least 1, not 0"),
    "seeds/seq2seq_model_parallel.py": (["--longest", "2"], "--longest is at least 3, not 2"),
    "transformer_lm.py": (
        ["--run", "/dev/null/x"],
        "argument --run: nothing can be written to /dev/null/x: Not a directory",
    ),
}


@pytest.mark.grid
def test_the_ensemble_is_better_than_its_mean_member_and_97_percent_right(trained, tmp_path):
    seeds, flags, least = trained
    together = []
    for seed in seeds:
        done = run(
            0,
            "ensemble_mnist.py",
            ["--threads", "4", "--seed", str(seed), "--out", str(tmp_path), *flags],
        )
        assert done.returncode == 0, done.stderr
        *members, ensemble = [
            float(x)
            for x in re.findall(
                r" (0\.\d{4})(?= |$)", done.stdout.splitlines()[-2].partition("members")[2]
            )
        ]
        assert len(members) == 4
        assert ensemble > sum(members) / 4
        together.append(ensemble)
    assert sum(together) / len(together) >= least


@pytest.mark.parametrize("example", SMALL_PRINT)
def test_a_value_that_an_example_cannot_take_is_a_usage_error(example):
    flags, message = SMALL_PRINT[example]
    done = run(0, example, flags)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: {message}\n")


BAD = {
    "no epochs": (["--epoch", "0"], "--epoch is at least 1, not 0"),
    "no number": (["--epoch", "x"], "invalid int value"),
    "a flag that is not there": (["--gpus"], "unrecognized arguments"),
    "groups that do not divide": (["--groups", "3"], "ranks do not make members of 3 ranks each"),
    "a negative seed": (["--seed", "-1"], "a seed is a whole number from 0 to 4294967295, not -1"),
    "a seed that is too large": (
        ["--seed", "4294967296"],
        "a seed is a whole number from 0 to 4294967295, not 4294967296",
    ),
    "no folder to write to": (
        ["--out", "/dev/null/result"],
        "nothing can be written to /dev/null/result: Not a directory",
    ),
    "no such folder": (["--data", NOWHERE], f"--data: there is no folder {NOWHERE}"),
}


def pytest_generate_tests(metafunc):
    if "trained" in metafunc.fixturenames:  # the whole takes half a minute
        whole = (range(5), [], 0.97)
        metafunc.parametrize(
            "trained",
            [whole if metafunc.config.getoption("--sweep") else ([0], ["--epoch", "8"], 0.96)],
        )
    # who says it is much the same for all: a plain run looks at three on ranks
    if "bad" in metafunc.fixturenames:
        on_ranks = (
            BAD
            if metafunc.config.getoption("--sweep")
            else ("no number", "groups that do not divide", "no folder to write to")
        )
        cases = [(0, bad) for bad in BAD] + [(2, bad) for bad in on_ranks]
        metafunc.parametrize(
            ("ranks", "bad"), cases, ids=[f"{bad}-{ranks}" for ranks, bad in cases]
        )


READERS = {
    "mnist_data_parallel.py": ["--threads", "2"],
    "mnist_dual_parallel.py": ["--threads", "2"],
    "mnist_model_parallel.py": ["--threads"],
    "ensemble_mnist.py": ["--threads", "2"],
    "seeds/neon_cnn.py": ["--threads", "2", "--datapar"],
    "seeds/gb_autoencoder.py": ["--threads", "2", "--images", "mnist"],
    "seeds/resnet50.py": ["--threads", "2"],
}


@pytest.mark.parametrize("example", READERS)
def test_a_file_that_cannot_be_read_is_told_in_one_line(example, tmp_path):
    flag, file = (
        ("--images", tmp_path / "cat" / "1.npy")
        if "resnet" in example
        else ("--data", tmp_path / "train-images-idx3-ubyte")
    )
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\0")
    (tmp_path / "train-labels-idx1-ubyte").touch()
    done = run(0, example, [*READERS[example], flag, str(tmp_path)])
    assert done.returncode == 1
    assert done.stderr.startswith(f"{Path(example).name}: error: {file}")
    assert done.stderr.count("\n") == 1


def test_threads_and_ranks_of_a_launcher_exclude_each_other():
    done = run(2, "ensemble_mnist.py", ["--threads", "4"])
    assert done.returncode == 2
    assert (
        done.stderr.count(
            "error: --threads is for one process, and the launcher has started 2: choose one "
            "of them\n"
        )
        == 1
    )


@pytest.mark.grid
def test_bad_flags_are_one_usage_error(ranks, bad):
    flags, message = BAD[bad]
    done = run(ranks, "ensemble_mnist.py", flags)
    assert done.returncode == 2
    assert done.stderr.count(message) == 1
    assert done.stderr.count("usage:") == 1


@pytest.mark.parametrize(
    ("ranks", "flags"), [(2, []), (0, ["--threads", "2"])], ids=["mpiexec", "threads"]
)
def test_a_folder_without_mnist_is_named(ranks, flags, tmp_path):
    done = run(ranks, "ensemble_mnist.py", ["--data", str(tmp_path), *flags])
    assert done.returncode != 0
    assert str(tmp_path) in done.stderr
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
