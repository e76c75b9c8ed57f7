"""An ensemble goes on without members that are lost: by errors on thread ranks, by death under Open
MPI's ULFM.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import initialize_by_path
from mnpar.runtime.mpiexec import mpiexec_command
from tests.harness.scripts import client_for

pytestmark = pytest.mark.usefixtures("float64")

X = np.random.default_rng(0).standard_normal((6, 4))
T = np.array([0, 1, 2, 0, 1, 2])


def perceptron(group, i):
    first = L.ColumnParallelLinear(group, 4, 5, gather_output=False)
    return mnpar.Sequential(first, F.tanh, L.RowParallelLinear(group, 5, 3, input_is_parallel=True))


def together(ensemble, optimizer):
    """A step of joint training."""
    optimizer.update(lambda: F.softmax_cross_entropy(ensemble(X), T))


def alone(ensemble, optimizer):
    """A step of each member by itself."""
    optimizer.update(lambda: F.softmax_cross_entropy(ensemble.member(X), T))


class Fails(mnpar.FunctionNode):
    """Its backward does."""

    def forward(self, x):
        return x.copy()

    def backward(self, gy):
        raise FloatingPointError("lost on the way back")


def fail_forward(ensemble):
    raise FloatingPointError("lost at once")


def fail_backward(ensemble):
    F.sum(Fails().apply((ensemble(X),))[0]).backward()


def fail_late(ensemble):
    ensemble(X)
    raise FloatingPointError("lost after an answer")


def fail_in_its_own_backward(ensemble):
    F.sum(Fails().apply((mnpar.Variable(np.ones(1)),))[0]).backward()


WAYS = {"at once": fail_forward, "after an answer": fail_late, "in backward": fail_backward}


def train(comm, groups, step, fail=None, culprit=None, when=2, rounds=4):
    """Rounds of two steps each; on the culprit one of them fails. The members' weights, and who is
    lost.
    """
    mnpar.random.seed(0)
    ensemble = mnpar.Ensemble(comm, perceptron, groups)
    optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(ensemble.member)
    number, tries = 0, 0

    def work():
        step(ensemble, optimizer)
        if fail is not None and comm.rank == culprit and number == when:
            fail(ensemble)
        step(ensemble, optimizer)

    while ensemble.alive and number < rounds:
        tries += 1
        number += ensemble.attempt(work, optimizer)
    if not ensemble.alive:
        return str(ensemble.error)
    weights = {
        path: L.gather_parameter(ensemble.group, param) for path, param in ensemble.namedparams()
    }
    return ensemble.lost, tries, weights, ensemble(X).shape, ensemble.comm.size


@pytest.mark.parametrize("fail", [fail_forward, fail_in_its_own_backward])
@pytest.mark.parametrize(
    ("ranks", "groups", "culprit"), [(3, 3, 1), (2, 2, 0), (4, 2, 3), (6, 3, 2)], ids=str
)
def test_members_that_learn_by_themselves_go_on_as_if_nothing_had_been(
    ranks, groups, culprit, fail
):
    each = ranks // groups
    dead = culprit // each
    truth = mnpar.run(train, ranks=ranks, args=(groups, alone))
    results = mnpar.run(train, ranks=ranks, args=(groups, alone, fail, culprit))
    for rank, (result, other) in enumerate(zip(results, truth, strict=True)):
        if rank // each == dead:
            assert "lost" in result
            continue
        lost, tries, weights, _, size = result
        assert (lost, tries, size) == ((dead,), 5, ranks - each)
        for path, array in weights.items():
            np.testing.assert_array_equal(array, other[2][path], err_msg=path)


@pytest.mark.parametrize("fail", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("ranks", "groups", "culprit"), [(3, 3, 2), (4, 2, 0)], ids=str)
def test_members_that_learn_together_go_on_together(ranks, groups, culprit, fail):
    each = ranks // groups
    dead = culprit // each
    # in the first round
    results = mnpar.run(train, ranks=ranks, args=(groups, together, fail, culprit, 0))
    left = [result for rank, result in enumerate(results) if rank // each != dead]

    def program(comm):
        mnpar.random.seed(0)
        ensemble = mnpar.Ensemble(comm, perceptron, groups)
        others = [ensemble.members[str(i)] for i in range(groups) if i != dead]
        optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(mnpar.ChainList(*others))
        for _ in range(8):
            optimizer.update(
                lambda: F.softmax_cross_entropy(
                    F.average(F.stack([link(X) for link in others]), axis=0), T
                )
            )
        return {path: param.array for path, param in ensemble.namedparams()}

    truth = mnpar.run(program, ranks=1)[0]
    for lost, tries, weights, shape, _ in left:
        assert (lost, tries, shape) == ((dead,), 5, (6, 3))
        for path, array in weights.items():
            np.testing.assert_allclose(array, truth[path], rtol=1e-11, err_msg=path)


def test_one_after_another_can_be_lost_and_tournaments_go_on():
    def program(comm):
        ensemble = mnpar.Ensemble(comm, lambda group, i: L.Linear(4, 3, initialW=i))
        found = []
        for number in range(4):

            def work(number=number):
                if comm.rank == number:
                    raise RuntimeError(f"lost in round {number}")

            while ensemble.alive and not ensemble.attempt(work):
                pass
            if not ensemble.alive:
                return number
            result = ensemble.tournament(float(comm.rank))
            found.append(
                (ensemble.lost, result.winners, result.best, ensemble.answers(X).members.shape[0])
            )
        return found

    results = mnpar.run(program, ranks=6)
    assert results[:4] == [0, 1, 2, 3]
    for found in results[4:]:
        assert [(lost, best, left) for lost, _, best, left in found] == [
            (tuple(range(n + 1)), 5, 5 - n) for n in range(4)
        ]
        for n, (_, winners, _, _) in enumerate(found):
            assert winners[: n + 1] == list(range(n + 1))
            assert all(winner > n for winner in winners[n + 1 :])


def test_an_attempt_that_succeeds_changes_nothing():
    def program(comm):
        ensemble = mnpar.Ensemble(comm, perceptron, 2)
        before, done = ensemble.comm, ensemble.attempt(lambda: ensemble(X))
        return done, ensemble.comm is before is comm, ensemble.lost

    assert mnpar.run(program, ranks=4) == [(True, True, ())] * 4


def test_if_all_are_lost_all_know_it():
    def program(comm):
        ensemble = mnpar.Ensemble(comm, lambda group, i: L.Linear(4, 3))
        done = ensemble.attempt(lambda: [][1])
        return done, ensemble.alive, type(ensemble.error)

    assert mnpar.run(program, ranks=3) == [(False, False, IndexError)] * 3


def test_outside_of_an_attempt_an_error_ends_all():
    def program(comm):
        ensemble = mnpar.Ensemble(comm, lambda group, i: L.Linear(4, 3))
        ensemble.attempt(lambda: ensemble(X))
        if comm.rank == 1:
            raise KeyError("outside")
        ensemble(X)

    with pytest.raises(KeyError, match="outside"):
        mnpar.run(program, ranks=3)


@pytest.mark.parametrize("dead", [0, 3, 6])
@pytest.mark.parametrize("at", [0, 2])
def test_a_mesh_inside_of_a_member_goes_on_with_it(at, dead):
    """Two members on meshes of 2 x 2; the ranks of both wait for each other."""

    def member(group, i):
        mesh = mnpar.Mesh(group, data=2, model=2)
        link = mnpar.Chain(net=initialize_by_path(perceptron(mesh.model, i), i))
        link.mesh = mesh
        return link

    def program(comm, dead):
        ensemble = mnpar.Ensemble(comm, member, 2)
        mesh = ensemble.member.mesh
        net = ensemble.member.net
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.5), mesh).setup(
            ensemble.member
        )
        mine = slice(mesh.data.rank, None, 2)

        def work():
            for step in range(3):
                if (comm.rank, step) == (dead, at) and not ensemble.lost:
                    raise MemoryError("no room")
                optimizer.update(lambda: F.softmax_cross_entropy(net(X[mine]), T[mine]))
                if not ensemble.lost:
                    ensemble.peers.barrier()

        while ensemble.alive and not ensemble.attempt(work, optimizer):
            pass
        return ensemble.lost, [param.array for param in net.params()], type(ensemble.error)

    truth = mnpar.run(program, ranks=8, args=(None,))
    found = mnpar.run(program, ranks=8, args=(dead,))
    for rank, ((lost, arrays, error), (_, expected, _)) in enumerate(
        zip(found, truth, strict=True)
    ):
        if rank // 4 == dead // 4:
            assert error is (MemoryError if rank == dead else mnpar.errors.RankFailedError)
            continue
        assert lost == (dead // 4,)
        for array, other in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array, other)


# ---- processes ----

PROGRAM = """
import os, signal, sys
import mpi4py, numpy as np
import mnpar, mnpar.functions as F, mnpar.links as L

mpi4py.rc.initialize = False
from mpi4py import MPI

finalize = MPI.Finalize
MPI.Finalize = lambda: (os.write(1, b"finalized\\n"), finalize())
how, each = sys.argv[1], int(sys.argv[2])
comm = mnpar.create_communicator()
make = lambda group, i: L.ColumnParallelLinear(group, 4, 4, initialW=i + 1)
ensemble = mnpar.Ensemble(comm, make, comm.size // each)
optimizer = mnpar.optimizers.SGD(0.001).setup(ensemble.member)
x, number = np.ones((2, 4), "f4"), 0

def work():
    optimizer.update(lambda: F.sum(ensemble(x)))
    if comm.rank == 1 and number == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError("no room")
    optimizer.update(lambda: F.sum(ensemble(x)))

while ensemble.alive and number < 3:
    number += ensemble.attempt(work, optimizer)
if ensemble.alive:
    y = ensemble(x).array[0, 0]
    of = f"of {ensemble.comm.size} ranks, y = {y:.3f}"
    sys.stdout.write(f"rank {comm.rank} goes on: lost {ensemble.lost}, {of}\\n")
else:
    sys.stdout.write(f"rank {comm.rank} is lost: {type(ensemble.error).__name__}\\n")
"""


@pytest.mark.ranks(1, on="mpi")
def test_another_ranks_end_that_open_mpi_gives_no_name_is_one(comm):
    MPI = comm.transport.MPI
    assert comm.transport.lost(MPI.Exception(MPI.ERR_OTHER))
    assert not comm.transport.lost(MPI.Exception(MPI.ERR_ARG))


@pytest.mark.parametrize(("ranks", "each"), [(3, 1), (4, 2)], ids=str)
@pytest.mark.parametrize("how", ["raises", "killed"])
def test_processes_go_on_where_the_mpi_lets_them_and_say_so_where_not(how, ranks, each, tmp_path):
    python = os.environ.get("MNPAR_TEST_PYTHON", sys.executable)
    (tmp_path / "program.py").write_text(PROGRAM)
    command, environment = mpiexec_command(ranks, python)
    version = subprocess.run(
        [command[0], "--version"], capture_output=True, text=True, check=False
    ).stdout
    ulfm = "Open MPI" in version
    command[1:1] = ["--with-ft", "ulfm"] if ulfm else []
    environment = {**environment, "PYTHONPATH": str(Path(__file__).parents[3])}
    program = [tmp_path / "program.py", how, each]
    done = subprocess.run(
        [
            *command,
            *(
                [python, *map(str, program)]
                if ulfm or python != sys.executable
                else client_for(*program)
            ),
        ],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        check=False,
    )
    if not ulfm:
        assert done.returncode != 0
        assert "under Open MPI started by 'mpiexec --with-ft ulfm'" in done.stderr
        return
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    dead = range(1 // each * each, 1 // each * each + each)
    left = [rank for rank in range(ranks) if rank not in dead]
    lost = [f"rank {rank} is lost: " for rank in dead if (how, rank) != ("killed", 1)]
    assert len(lines) == len(left) + len(lost), (done.stdout, done.stderr)
    for rank in left:
        assert f"rank {rank} goes on: lost ({1 // each},), of {len(left)} ranks" in "\n".join(lines)
    for start in lost:
        assert start in "\n".join(lines)
    finalized = done.stdout.count("finalized")
    # Open MPI may wait there for ever for a rank that was killed
    assert finalized == (ranks if how == "raises" else 0)
