"""ChainerMN's programs with only their import lines changed: they run and, where nothing is chosen
differently, to its weights.

``REFERENCES`` holds what Chainer 7.8.1 and ChainerMN arrived at with the same programs (their
import lines changed back) from the same first weights, on the same numbers of ranks under mpiexec:
for each rank Σ r·w over its parameters w, where r are fixed random numbers. The programs with a
multi-node optimizer are not among them: mnpar's steps at its first update already.
"""

import contextlib
import importlib
import json
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

import mnpar
from mnpar.runtime.mpiexec import mpiexec_command
from tests.harness.scripts import client_for

ROOT = Path(__file__).parents[2]

REFERENCES = {
    ("train_ptb", "--dropout", "0"): [-1.8311425973844655, -1.8311425973844655],
    ("train_ptb", "-d", "-1", "--dropout", "0"): [-1.7109728123879384] * 3,
    ("seq2seq", "--mp1", "--dropout", "0"): [-1.448093659274467, -6.509820158074199],
    ("model_parallel",): [15.172121638641658, -0.47120081003085823],
    ("model_parallel", "--explicit"): [-16.64739015040016, 0.29183454444947715],
    ("parallel_convolution",): [-2.4957315383241636, -1.70432889175696],
    ("parallel_convolution", "-b", "6"): [
        -1.2173135938606,
        -1.2435137633938522,
        -0.9559117807494755,
    ],
    ("own_loop", "--data-parallel"): [0.5198625617922037, 0.5198625617922037],
}


# each rank differentiates the loss that all have in common, P times too large, as in ChainerMN; a
# table has columns that stay empty
TOLD = {
    "parallel_convolution": r"allgather at .* counts \d times",
    "seq2seq": r"PrintReport: nothing has reported 'main/perp', 'main/words'",
}


def program(name):
    return importlib.import_module(f"tests.compat.chainermn_programs.{name}")


def on_threads(ranks, name, out, *flags):
    """What the program returns on each rank; its weights and batches are drawn alike in every
    run.
    """
    main = program(name).main

    def seeded(comm):
        mnpar.random.seed(comm.rank)
        return main(["-o", str(out), *flags])

    return mnpar.run(seeded, ranks=ranks)


def under_mpiexec(ranks, name, out, *flags):
    command, environment = mpiexec_command(ranks)
    module = f"tests.compat.chainermn_programs.{name}"
    return subprocess.run(
        [*command, *client_for("-m", module), "-o", str(out), *flags],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
        cwd=ROOT,
    )


def drawn(path, low, high, shape):
    return np.random.RandomState(zlib.crc32(path.encode())).uniform(low, high, shape)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize(("call", "expected"), REFERENCES.items(), ids=map(" ".join, REFERENCES))
def test_a_program_arrives_at_the_weights_of_chainermn(call, expected, tmp_path, monkeypatch):
    setup = mnpar.GradientMethod.setup

    def filled(self, link):
        for path, param in link.namedparams():
            param.array[...] = drawn(path, -0.3, 0.3, param.shape)
        return setup(self, link)

    monkeypatch.setattr(mnpar.GradientMethod, "setup", filled)
    told = TOLD.get(call[0])
    with contextlib.nullcontext() if told is None else pytest.warns(UserWarning, match=told):
        results = on_threads(len(expected), call[0], tmp_path, *call[1:])
    for rank, result in enumerate(results):
        params = result if isinstance(result, dict) else result[1]
        digest = sum((drawn(path[::-1], -1, 1, w.shape) * w).sum() for path, w in params.items())
        assert digest == pytest.approx(expected[rank], abs=2e-5)


@pytest.mark.parametrize("ranks", [1, 3])
def test_train_mnist_learns_the_same_on_all_ranks_and_goes_on_from_its_snapshot(
    ranks, tmp_path, capsys
):
    accuracies = on_threads(ranks, "train_mnist", tmp_path, "--aggregate", "-e", "8")
    assert accuracies == [accuracies[0]] * ranks
    assert f"Num process (COMM_WORLD): {ranks}" in capsys.readouterr().out
    log = json.loads((tmp_path / "log").read_text())
    assert len(log) == 8
    assert log[-1]["main/loss"] < log[0]["main/loss"]
    assert log[-1]["validation/main/accuracy"] == accuracies[0]
    assert {"main/loss", "main/loss_aggregated", "validation/main/accuracy"} <= set(log[0])
    assert (tmp_path / "cg.dot").exists()
    on_threads(ranks, "train_mnist", tmp_path, "-e", "9", "-r", str(tmp_path / "trainer.npz"))
    assert [entry["epoch"] for entry in json.loads((tmp_path / "log").read_text())] == list(
        range(1, 10)
    )


def test_train_mnist_under_mpiexec_goes_on_from_its_checkpoint(tmp_path):
    first = under_mpiexec(2, "train_mnist", tmp_path, "--run-id", "run", "-e", "2")
    assert first.returncode == 0, first.stderr
    assert "(Epoch, iter) = (0, 0)" in first.stdout
    second = under_mpiexec(2, "train_mnist", tmp_path, "--run-id", "run", "-e", "3")
    assert second.returncode == 0, second.stderr
    assert second.stdout.count("(Epoch, iter) = (2, 15)") == 2


@pytest.mark.filterwarnings(
    "ignore:this update only made the parameters equal"
)  # layers without sizes that communicate
@pytest.mark.parametrize(
    "flags",
    [[], ["--mnbn"], ["--stop-together"], ["-d", "@numpy"], ["--loader", "thread"]],
    ids=lambda flags: " ".join(flags),
)
def test_train_cifar_has_the_same_weights_and_statistics_on_all_ranks(flags, tmp_path):
    (losses, w, mean, lr), (_, w1, mean1, lr1) = on_threads(2, "train_cifar", tmp_path, *flags)
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(w, w1)
    np.testing.assert_array_equal(mean, mean1)
    assert lr == lr1 == 0.05 / 2
    assert (tmp_path / "best_model").exists()
    assert json.loads((tmp_path / "log").read_text())[1]["watched"] > 0


def test_train_cifar_under_mpiexec_reads_its_images_in_other_processes(tmp_path):
    done = under_mpiexec(2, "train_cifar", tmp_path, "--loader", "process", "-e", "2")
    assert done.returncode == 0, done.stderr
    assert [entry["epoch"] for entry in json.loads((tmp_path / "log").read_text())] == [1, 2]


@pytest.mark.usefixtures("debug_off")
def test_train_dcgan_has_the_same_two_models_on_all_ranks(tmp_path):
    first, second = on_threads(2, "train_dcgan", tmp_path)
    for one, other in zip(first, second, strict=True):
        for path, w in one.items():
            np.testing.assert_array_equal(w, other[path], err_msg=path)
    written = {path.name for path in tmp_path.iterdir()}
    assert {"gen_iter_8.npz", "dis_iter_8.npz", "snapshot_iter_8.npz", "preview"} <= written
    on_threads(2, "train_dcgan", tmp_path, "-r", str(tmp_path / "gen_iter_8.npz"), "-e", "1")


def test_seq2seq_counts_the_sentences_of_all_ranks(tmp_path):
    (losses, w), (_, w1) = on_threads(2, "seq2seq", tmp_path)
    assert len(losses) == 9
    for path, array in w.items():
        np.testing.assert_array_equal(array, w1[path], err_msg=path)
    assert json.loads((tmp_path / "log").read_text())[-1]["main/sentences"] == 45


def test_seq2seq_on_two_processes_finds_mpi_behind_the_communicator(tmp_path):
    done = under_mpiexec(2, "seq2seq", tmp_path, "--mp1", "-s", "4i")
    assert done.returncode == 0, done.stderr
    assert "start training" in done.stdout


def test_dual_parallel_copies_of_a_pair_of_ranks_stay_copies(tmp_path):
    results = on_threads(4, "model_parallel", tmp_path, "--dual")
    for rank in (0, 1):
        for path, w in results[rank].items():
            np.testing.assert_array_equal(w, results[rank + 2][path], err_msg=path)


def test_model_parallel_refuses_three_ranks(tmp_path):
    with pytest.raises(ValueError, match="even number"):
        on_threads(3, "model_parallel", tmp_path)


def test_a_synchronized_iterator_gives_all_ranks_the_same_images(tmp_path):
    (first, _), (second, _) = on_threads(2, "parallel_convolution", tmp_path, "--synchronized")
    assert first == second  # an ensemble's accuracies, of the same images


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_model_on_which_chainermn_waits_for_ever_learns(ranks, tmp_path):
    losses = [result[0] for result in on_threads(ranks, "own_loop", tmp_path)]
    assert losses[0] == losses[-1]
    assert losses[0][-1] < losses[0][0]
