"""Ensembles over ranks against the one on one rank; tournaments; and what a member's end does to
the others.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import checkpoint
from mnpar.parallel import Answers, Ensemble
from mnpar.parallel.ensemble.tournament import decide

pytestmark = pytest.mark.usefixtures("float64")

X = np.random.default_rng(0).standard_normal((6, 4))
T = np.array([0, 1, 2, 0, 1, 2])


def perceptron(group, i):
    """A member that can be on any number of ranks."""
    return mnpar.Sequential(
        L.ColumnParallelLinear(group, 4, 5, gather_output=False),
        F.tanh,
        L.RowParallelLinear(group, 5, 3, input_is_parallel=True),
    )


class Relay(mnpar.Chain):
    """A member whose first rank hands on to its second one, which answers."""

    def __init__(self, group, i):
        super().__init__()
        self.group = group
        self.layer = L.Linear(4, 4) if group.rank == 0 else L.Linear(4, 3)

    def __call__(self, x):
        if self.group.rank == 0:
            F.send(self.layer(x), self.group, 1)
            return None
        return self.layer(F.recv(self.group, 0))


def whole(comm, ensemble):
    """All members' weights, whole, of whatever ranks have them."""
    mine = {
        path: L.gather_parameter(ensemble.group, param) for path, param in ensemble.namedparams()
    }
    return {path: array for some in comm.allgather_obj(mine) for path, array in some.items()}


def trained(comm, groups, steps=3):
    mnpar.random.seed(7 + comm.rank)
    ensemble = Ensemble(comm, perceptron, groups)
    optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(ensemble)
    losses = []
    for _ in range(steps):
        loss = F.softmax_cross_entropy(ensemble(X), T)
        ensemble.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    answers = ensemble.answers(X)
    return (
        losses,
        whole(comm, ensemble),
        [answers.mean().array, answers.spread().array, answers.vote()],
    )


@pytest.mark.parametrize(
    ("ranks", "groups"), [(2, 2), (3, 3), (4, 2), (4, 4), (2, 5), (3, 1), (4, 6)], ids=str
)
def test_joint_training_is_that_of_one_rank(ranks, groups):
    losses, weights, said = mnpar.run(trained, ranks=1, args=(groups,))[0]
    for other, some, answers in mnpar.run(trained, ranks=ranks, args=(groups,)):
        np.testing.assert_allclose(other, losses, rtol=1e-12)
        assert sorted(some) == sorted(weights)
        for path, array in some.items():
            np.testing.assert_allclose(array, weights[path], rtol=1e-11, atol=1e-14, err_msg=path)
        for a, b in zip(answers, said, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14)


@pytest.mark.ranks(2, 4)
def test_joint_training_under_mpi_is_that_of_one_rank(comm):
    losses, weights, _ = trained(mnpar.create_communicator("self"), 2)
    other, some, _ = trained(comm, 2)
    if comm.is_root:  # whose seed is the one rank's
        np.testing.assert_allclose(other, losses, rtol=1e-12)
        for path, array in some.items():
            np.testing.assert_allclose(array, weights[path], rtol=1e-11, atol=1e-14, err_msg=path)


def test_members_of_two_ranks_that_hand_on_answer_where_they_end():
    def program(comm):
        ensemble = Ensemble(comm, Relay, groups=2)
        y = ensemble(X)
        if y is None:
            mnpar.backward()
        else:
            F.sum(y * y).backward()
        return None if y is None else y.array, all(
            param.grad is not None for param in ensemble.params()
        )

    results = mnpar.run(program, ranks=4)
    assert [y is None for y, _ in results] == [True, False, True, False]
    assert all(there for _, there in results)
    np.testing.assert_array_equal(results[1][0], results[3][0])


@pytest.mark.parametrize(("ranks", "groups"), [(3, None), (4, 2), (2, 4)], ids=str)
def test_an_evaluation_is_one_allgather(ranks, groups, monkeypatch):
    def program(comm):
        ensemble = Ensemble(comm, lambda group, i: L.Linear(4, 3), groups)
        calls, exchange = [], ensemble.peers.transport.exchange

        def count(block, lane, waiting, *more):
            calls.append(waiting.what)
            return exchange(block, lane, waiting, *more)

        for one in (comm, ensemble.peers, ensemble.group):
            monkeypatch.setattr(one.transport, "post", None)  # no message goes from rank to rank
        monkeypatch.setattr(ensemble.peers.transport, "exchange", count)
        with mnpar.no_backprop_mode():
            answers = ensemble.answers(X)
            answers.mean(), answers.vote(), answers.spread(), answers.members[0]
        return calls

    assert mnpar.run(program, ranks=ranks) == [["gather_from"]] * ranks


def test_mean_variance_and_spread_are_numpys():
    ys = np.random.default_rng(1).standard_normal((5, 6, 3))
    answers = Answers(mnpar.Variable(ys))
    np.testing.assert_allclose(answers.mean().array, ys.mean(axis=0))
    np.testing.assert_allclose(answers.variance().array, ys.var(axis=0))
    np.testing.assert_allclose(answers.spread().array, ys.std(axis=0))


def test_of_classes_with_as_many_votes_the_larger_mean_wins():
    ys = np.array(
        [
            [[5, 1, 0], [0, 1, 2]],
            [[0, 1, 0], [0, 9, 2]],
            [[0, 0, 1], [0, 1, 2.5]],
            [[0, 3, 2], [3, 1, 2]],
        ]
    )
    votes = Answers(mnpar.Variable(ys)).vote()  # 0 1 2 1; 2 1 2 0
    assert votes.tolist() == [1, 2]
    tie = Answers(mnpar.Variable(np.array([[[0.0, 5.0]], [[1.0, 0.0]]]))).vote()
    assert tie.tolist() == [1]


def test_a_link_is_this_ranks_member_as_it_is():
    def program(comm):
        layer = L.Linear(4, 3, initialW=comm.rank)
        ensemble = Ensemble(comm, layer)
        return (
            ensemble.member is layer,
            [path for path, _ in ensemble.namedparams()],
            ensemble(np.ones((1, 4))).array[0, 0],
        )

    assert mnpar.run(program, ranks=3) == [
        (True, [f"/members/{i}/W", f"/members/{i}/b"], 4.0) for i in range(3)
    ]


def test_a_checkpoint_is_loaded_by_other_ranks(tmp_path):
    def program(comm, way):
        mnpar.random.seed(0)
        ensemble = Ensemble(comm, perceptron, 4)
        if way == "save":
            checkpoint.save(tmp_path, ensemble, comm, 1)
        else:
            checkpoint.load(tmp_path, ensemble, comm)
        return ensemble(X).array

    truth = mnpar.run(program, ranks=4, args=("save",))[0]
    for ranks in (1, 2, 3, 4):
        for y in mnpar.run(program, ranks=ranks, args=("load",)):
            np.testing.assert_allclose(y, truth, rtol=1e-12)


WRONG = {
    "ranks that do not divide": (
        3,
        (lambda group, i: L.Linear(1, 1), 2),
        "3 ranks do not make 2 members",
    ),
    "no member": (2, (lambda group, i: L.Linear(1, 1), 0), "2 ranks do not make 0 members"),
    "a link for several": (
        1,
        (L.Linear(1, 1), 2),
        "a link is one member, and 1 ranks have 2: give a function",
    ),
}


@pytest.mark.parametrize(("ranks", "args", "text"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_divided_is_named(ranks, args, text):
    with pytest.raises(ValueError, match=text):
        mnpar.run(lambda comm: Ensemble(comm, *args), ranks=ranks)


def test_of_several_members_on_a_rank_there_is_no_only_one():
    ensemble = Ensemble(mnpar.create_communicator("self"), lambda group, i: L.Linear(1, 1), 2)
    with pytest.raises(AttributeError, match="rank 0 has 2 members: take one of"):
        _ = ensemble.member


# ---- tournaments ----


def rng():
    return np.random.default_rng(5)


def test_in_pairs_the_worse_takes_from_the_better_and_each_member_is_in_one_pair():
    scores = [0.1, 0.9, float("nan"), 0.5, 0.5, 0.2, 0.7]
    winners = decide(scores, "pairs", 0.25, rng()).winners
    lots = rng().permutation(7)
    for a, b in zip(lots[0:6:2], lots[1:6:2], strict=True):
        best = max(a, b, key=lambda i: (-1 if np.isnan(scores[i]) else scores[i], -i))
        assert winners[a] == winners[b] == best
    assert winners[lots[6]] == lots[6]


@pytest.mark.parametrize(
    ("M", "share", "n"), [(1, 0.5, 0), (2, 0.1, 1), (5, 0.5, 2), (8, 0.25, 2)], ids=str
)
def test_by_truncation_the_worst_take_from_the_best(M, share, n):
    scores = np.random.default_rng(2).permutation(M).astype(float).tolist()
    winners = decide(scores, "truncation", share, rng()).winners
    order = np.argsort(scores)
    for i in range(M):
        if i in order[:n]:
            assert winners[i] in order[M - n :]
        else:
            assert winners[i] == i


def test_of_members_that_all_diverged_the_first_goes_on():
    nan = float("nan")
    result = decide([nan, nan], "pairs", 0.25, rng())
    assert (result.winners, result.best) == ([0, 0], 0)


def faster_or_slower(optimizer, rng):
    optimizer.alpha *= rng.uniform(0.5, 2)


def grown(comm, groups):
    """Members that learn at different rates, with two rounds of tournaments."""
    mnpar.random.seed(3)
    ensemble = Ensemble(comm, perceptron, groups)
    links = list(ensemble.members)
    optimizers = [
        mnpar.optimizers.Adam(10.0 ** -(i % 3) / 5).setup(link)
        for i, link in zip(ensemble.numbers, links, strict=True)
    ]
    found = []
    for _ in range(2):
        for _ in range(3):
            for link, optimizer in zip(links, optimizers, strict=True):
                optimizer.update(lambda x, link=link: F.softmax_cross_entropy(link(x), T), X)
        scores = [-F.softmax_cross_entropy(link(X), T).item() for link in links]
        result = ensemble.tournament(
            scores,
            optimizers,
            perturb=lambda one, rng: setattr(one, "alpha", one.alpha * rng.uniform(0.5, 2)),
        )
        found.append((result.winners, np.round(result.scores, 9).tolist()))
    rates = comm.allgather_obj(
        {i: (one.alpha, one.t) for i, one in zip(ensemble.numbers, optimizers, strict=True)}
    )
    return (
        found,
        whole(comm, ensemble),
        {i: rate for some in rates for i, rate in some.items()},
        ensemble.rounds,
    )


@pytest.mark.parametrize(
    ("ranks", "groups"), [(4, 4), (2, 4), (8, 4), (3, 3), (3, 5), (4, 2)], ids=str
)
def test_tournaments_decide_and_copy_as_on_one_rank(ranks, groups):
    found, weights, rates, rounds = mnpar.run(grown, ranks=1, args=(groups,))[0]
    assert rounds == 2
    assert any(winners != list(range(groups)) for winners, _ in found)
    for some, arrays, others, _ in mnpar.run(grown, ranks=ranks, args=(groups,)):
        assert some == found
        assert others == rates
        for path, array in arrays.items():
            np.testing.assert_allclose(array, weights[path], rtol=1e-9, atol=1e-12, err_msg=path)


def test_a_loser_goes_on_exactly_as_the_winner_does():
    def program(comm):
        mnpar.random.seed(comm.rank)
        ensemble = Ensemble(
            comm, lambda group, i: mnpar.Sequential(L.Linear(4, 3), L.BatchNormalization(3))
        )
        optimizer = mnpar.optimizers.Adam(0.1 if comm.rank else 0.01).setup(ensemble.member)
        for _ in range(2 + comm.rank):
            optimizer.update(lambda: F.sum(ensemble.member(X + comm.rank) ** 2))
        ensemble.tournament(comm.rank, optimizer)
        optimizer.update(lambda: F.sum(F.sin(ensemble.member(X))))
        with mnpar.using_config("train", False):
            return ensemble.member(X).array, optimizer.alpha, optimizer.t

    loser, winner = mnpar.run(program, ranks=2)
    np.testing.assert_array_equal(loser[0], winner[0])
    assert loser[1:] == winner[1:] == (0.1, 4)


def test_a_score_that_only_one_rank_of_a_member_knows_is_enough():
    def program(comm):
        ensemble = Ensemble(comm, perceptron, 2)
        return ensemble.tournament(float(comm.rank) if ensemble.group.rank == 1 else None).scores

    assert mnpar.run(program, ranks=4) == [[1.0, 3.0]] * 4


ERRORS = {
    "no score": (lambda ensemble: ensemble.tournament(None), "nobody knows the score of member 0"),
    "no such way": (
        lambda ensemble: ensemble.tournament(1, how="lots"),
        "by 'pairs', or by 'truncation'",
    ),
    "a share": (
        lambda ensemble: ensemble.tournament(1, how="truncation", share=0.6),
        "up to a half",
    ),
    "one optimizer": (
        lambda ensemble: ensemble.tournament([1, 2], mnpar.optimizers.SGD().setup(ensemble)),
        r"the optimizer of member [02] has 2 parameters of others: .*set up with "
        r"ensemble.members\[i\]",
    ),
}


@pytest.mark.parametrize(("call", "text"), ERRORS.values(), ids=ERRORS)
def test_a_tournament_that_cannot_be_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        mnpar.run(lambda comm: call(Ensemble(comm, lambda group, i: L.Linear(1, 1), 4)), ranks=2)


def plain(group, i):
    return L.Linear(4, 3)


def on_a_mesh(comm, axes, over, whole, member=perceptron):
    mesh = mnpar.Mesh(comm, **axes)
    mnpar.random.seed(0)
    ensemble = Ensemble(mesh[over], member, 2)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), mesh).setup(
        ensemble if whole else ensemble.member
    )
    mine = slice(*mnpar.plans.block(len(X), mesh.data.size, mesh.data.rank))
    for _ in range(2):
        optimizer.update(
            lambda x, t: sum([F.softmax_cross_entropy(link(x), t) for link in ensemble.members]),
            X[mine],
            T[mine],
        )
    return ensemble(X).array


@pytest.mark.parametrize(
    "axes",
    [{"member": 2, "model": 2}, {"data": 2, "member": 2}, {"member": 2, "model": 3}],
    ids=str,
)
def test_members_are_an_axis_of_a_mesh(axes):
    with mnpar.using_config("dtype", np.dtype("f8")):
        (expected,) = mnpar.run(on_a_mesh, ranks=1, args=({}, (), True))
        for answer in mnpar.run(
            on_a_mesh, ranks=int(np.prod([*axes.values()])), args=(axes, ("member", "model"), True)
        ):
            np.testing.assert_allclose(answer, expected, rtol=1e-10)


APART = {
    "no axis": ({"model": 4}, "model", True, r"ranks \[2, 3\] have no part", perceptron),
    "not before": (
        {"model": 3, "member": 2},
        ("member", "model"),
        True,
        r"ranks \[4\] have no part",
        perceptron,
    ),
    "one path": (
        {"member": 2, "model": 2},
        ("member", "model"),
        False,
        "have drawn their parts",
        perceptron,
    ),
    "one path, whole": ({"member": 2}, "member", False, "/W is not the same", plain),
}
REMEDY = (
    r".*Mesh\(comm, member=2, model=-1\), Ensemble\(mesh\['member', 'model'\], …, groups=2\), "
    r"optimizer.setup\(ensemble\)"
)


@pytest.mark.parametrize(("axes", "over", "whole", "text", "member"), APART.values(), ids=APART)
def test_members_that_are_no_axis_are_refused_and_the_remedy_is_named(
    axes, over, whole, text, member
):
    with pytest.raises(mnpar.errors.MismatchError, match=text + REMEDY):
        mnpar.run(on_a_mesh, ranks=int(np.prod([*axes.values()])), args=(axes, over, whole, member))
