"""mnpar.check lets right programs pass, and names what is wrong with the others."""

import re

import numpy as np
import pytest
from mnpar.optimizer_hooks import GradientClipping

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.testing import program_check
from tests.random_programs.programs import Ranked, draw
from tests.testing import check_programs as programs

BOTH = (1, 2, 3)
SEVERAL = (2, 3)


def summed(comm, model):
    for param in model.params():
        param.grad = comm.allreduce(param.grad)


def not_at_all(comm, model):
    pass


def weighted(comm, model):
    share = len(programs.rows(comm, programs.X)) / len(programs.X)
    for param in model.params():
        param.grad = comm.allreduce(share * param.grad)


def at_another_rate(comm):
    programs.by_hand(comm, rate=lambda comm: 0.01 * (1 + comm.rank))


def as_it_comes(comm, x):
    return x


RIGHT = {
    "data parallel": (programs.data_parallel, BOTH),
    "data parallel alone": (programs.data_parallel, SEVERAL),
    "by hand": (programs.by_hand, BOTH),
    "by hand, uneven": (lambda comm: programs.by_hand(comm, even=False, average=weighted), BOTH),
    "batch normalization": (
        lambda comm: programs.data_parallel(comm, L.MultiNodeBatchNormalization(5, comm)),
        BOTH,
    ),
    "tensor parallel": (programs.tensor_parallel, BOTH),
    "tensor parallel alone": (programs.tensor_parallel, SEVERAL),
    "parts of zeros, scaled": (programs.with_equal_parts, BOTH),
    "parts of zeros, scaled, alone": (programs.with_equal_parts, SEVERAL),
    "backward that averages": (programs.own_backward, BOTH),
    "backward that averages, alone": (programs.own_backward, SEVERAL),
    "pipeline": (programs.pipeline, BOTH),
    "pipeline with clipping": (
        lambda comm: programs.pipeline(comm, lambda comm: GradientClipping(0.01, comm)),
        BOTH,
    ),
    "ensemble": (programs.ensemble, BOTH),
    "halo": (programs.spatial, BOTH),
    "ring": (programs.ring, SEVERAL),
    "own function": (programs.own_function, BOTH),
}


@pytest.mark.parametrize(("program", "ranks"), RIGHT.values(), ids=RIGHT)
def test_right_programs_pass(program, ranks):
    result = mnpar.check(program, ranks, raise_on_error=True)
    assert result.ok
    assert result
    assert not [note for note in result.notes if "what weighs them comes later" not in note]
    assert len(result.compared) >= len(ranks)


@pytest.mark.parametrize("ranks", SEVERAL)
def test_weights_whose_gradients_are_rounding_errors_are_not_compared(ranks):
    result = mnpar.check(programs.shifted, (1, ranks))
    assert result.ok, str(result)
    assert "elements of /predictor/shift whose gradients are of the size of rounding" in str(result)
    another = lambda comm: programs.shifted(comm, lambda comm: 0.1 * comm.size)
    assert "is another after step 1" in str(mnpar.check(another, (1, ranks)))


WRONG = {
    "forgotten division": (
        lambda comm: programs.by_hand(comm, average=summed),
        BOTH,
        ["the gradient of /l2/b that the step uses", "P = 2 times one rank's", "reduce_from"],
    ),
    "nothing reduces": (
        lambda comm: programs.by_hand(comm, average=not_at_all),
        BOTH,
        ["their mean is one rank's", "create_multi_node_optimizer"],
    ),
    "mean over uneven shards": (
        lambda comm: programs.by_hand(comm, even=False),
        BOTH,
        ["gradients times 0.5714, 0.4286", "uneven shards are weighted by their samples"],
    ),
    "other initial weights": (
        lambda comm: programs.by_hand(comm, seed=lambda comm: [1, comm.rank]),
        BOTH,
        ["begin with other values of /l1/W", "rank 0 and rank 1 differ", "check_programs.py"],
    ),
    "frozen on one rank": (
        lambda comm: programs.by_hand(comm, frozen=("l2",)),
        BOTH,
        ["/l2/b is another after step 1 on rank 0", "has not changed there: disable_update()"],
    ),
    "another learning rate": (
        at_another_rate,
        BOTH,
        ["is another after step 1 on rank 1, though its gradient agrees", "the learning rate"],
    ),
    "allreduce for reduce_from": (
        lambda comm: programs.tensor_parallel(comm, leave=F.allreduce),
        BOTH,
        [
            "the gradient of /predictor/back/W",
            "P = 2 times one rank's",
            "gradients part at the result of Linear at testing/check_programs.py:{back}, "
            "and agree at that of AllReduce",
        ],
    ),
    "forgotten copy_to": (
        lambda comm: programs.tensor_parallel(comm, enter=as_it_comes),
        BOTH,
        [
            "the gradient of /predictor/first/b",
            "the parts add up to one rank's",
            "F.copy_to",
            "gradients part at the result of Tanh",
        ],
    ),
    "forgotten copy_to, alone": (
        lambda comm: programs.tensor_parallel(comm, enter=as_it_comes),
        SEVERAL,
        ["not the finite differences of the losses", "/predictor/first/b", "F.copy_to"],
    ),
    "around the functions": (
        lambda comm: programs.tensor_parallel(comm, leave=programs.hidden),
        BOTH,
        ["not the finite differences", "/predictor/back/W", "a value goes around them (x.array"],
    ),
    "around the functions, alone": (
        lambda comm: programs.tensor_parallel(comm, leave=programs.hidden),
        SEVERAL,
        ["not the finite differences", "/predictor/back/W", "arrays that go around functions"],
    ),
    "local batch statistics": (
        lambda comm: programs.data_parallel(comm, L.BatchNormalization(5)),
        BOTH,
        ["values part at Tanh", "the result of BatchNormalization at testing/check_programs.py"],
    ),
    "a hook without comm": (
        lambda comm: programs.pipeline(comm, lambda comm: ByNormHere(0.01)),
        BOTH,
        ["a hook of the optimizer changes it (hooks: ByNormHere)", "needs comm="],
    ),
    "a wrong backward": (
        lambda comm: programs.own_function(comm, 2),
        BOTH,
        ["the backward of Cube at testing/check_programs.py:", "not the derivative"],
    ),
    "a swapped halo": (
        lambda comm: programs.spatial(comm, swapped=True),
        BOTH,
        ["values part at Concat at testing/check_programs.py"],
    ),
}


class ByNormHere:
    """Clips by the norm of this rank's gradients."""

    name = "ByNormHere"

    def __init__(self, threshold):
        self.threshold = threshold

    def __call__(self, optimizer):
        params = [p for p in optimizer.target.params() if p.grad is not None]
        norm = np.sqrt(sum(float((p.grad**2).sum()) for p in params))
        for param in params:
            param.grad *= min(1, self.threshold / norm)


@pytest.mark.parametrize(("program", "ranks", "said"), WRONG.values(), ids=WRONG)
def test_each_mistake_is_found_and_named(program, ranks, said):
    result = mnpar.check(program, ranks)
    text = str(result)
    lines = programs.__file__
    with open(lines, encoding="utf-8") as file:
        back = next(i for i, line in enumerate(file, 1) if "self.back(F.tanh" in line)
    assert not result.ok
    assert result.checked
    assert [part for part in said if part.format(back=back) not in text] == [], text
    assert len(text.splitlines()) <= 25
    with pytest.raises(AssertionError, match="wrong:"):
        result.raise_on_error()


# ---- what cannot be decided ----


def random_each_time(comm):
    model = L.Linear(3, 1)
    model.cleargrads()
    F.sum(model(np.random.default_rng().normal(size=(2, 3)))).backward()


OUTSIDE = L.Linear(3, 1)


def kept_outside(comm):
    optimizer = mnpar.optimizers.SGD(0.1).setup(OUTSIDE)
    optimizer.update(lambda: F.sum(OUTSIDE(np.ones((2, 3))) ** 2))


def with_dropout(comm):
    model = programs.MLP()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
    loss = lambda x: F.mean(F.dropout(model(x), 0.5) ** 2)
    for _ in range(2):
        optimizer.update(loss, programs.rows(comm, programs.X))


def a_batch_for_each_rank(comm):
    model = programs.MLP()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
    for _ in range(2):
        optimizer.update(lambda x: F.mean(model(x) ** 2), programs.X[2 * comm.rank :][:2])


def never(comm):
    comm.barrier()


def waits_for_ever(comm):
    comm.recv_obj((comm.rank + 1) % comm.size)


def fails(comm):
    raise ValueError("no data\nin the folder")


def two_ranks_only(comm):
    if comm.size != 2:
        raise ValueError("made for 2 ranks")
    programs.ring(comm)


UNDECIDED = {
    "random numbers": (random_each_time, BOTH, "two runs on 1 rank differ", "default_rng()"),
    "a model outside": (kept_outside, BOTH, "two runs on 1 rank differ", "kept outside"),
    "dropout": (with_dropout, BOTH, "Dropout at testing", "draws other numbers"),
    "other data": (a_batch_for_each_rank, BOTH, "as the ranks have other data", "together 4"),
    "another program on one rank": (
        programs.ring,
        BOTH,
        "begin with other values of variable 0",
        "leave 1 out of the ranks",
    ),
    "no backward": (never, BOTH, "never calls backward", "nothing to compare"),
    "a deadlock": (waits_for_ever, SEVERAL, "DeadlockError", "waits in recv_obj"),
    "an error": (fails, SEVERAL, "on 2 ranks the program fails: ValueError: no data", "folder"),
    "two ranks": (two_ranks_only, (1, 2), "made for 2 ranks", "leave 1 out: ranks=(2, 3)"),
}


@pytest.mark.parametrize(("program", "ranks", "said", "more"), UNDECIDED.values(), ids=UNDECIDED)
def test_what_cannot_be_decided_is_said(program, ranks, said, more):
    result = mnpar.check(program, ranks)
    assert not result.ok
    assert not result.checked
    assert said in str(result)
    assert more in str(result)
    assert str(result).startswith("not checked:")


def test_a_reference_for_one_process_and_other_names():
    def members(comm):
        """Each rank has a member of its own."""
        net = L.Linear(4, 3, initialW=np.full((3, 4), 0.1 * (comm.rank + 1)))
        optimizer = mnpar.optimizers.SGD(0.5).setup(net)
        for _ in range(2):
            net.cleargrads()
            mean = F.reduce_from(comm, net(programs.X)) / comm.size
            F.softmax_cross_entropy(mean, programs.T).backward()
            optimizer.update()

    def together(comm):
        nets = [L.Linear(4, 3, initialW=np.full((3, 4), 0.1 * (i + 1))) for i in range(3)]
        model = mnpar.ChainList(*nets)
        optimizer = mnpar.optimizers.SGD(0.5).setup(model)
        for _ in range(2):
            model.cleargrads()
            mean = sum([net(programs.X) for net in nets[1:]], nets[0](programs.X)) / 3
            F.softmax_cross_entropy(mean, programs.T).backward()
            optimizer.update()

    rename = lambda path, rank: f"/{rank}{path}"
    assert mnpar.check(members, (3,), reference=together, rename=rename).ok
    result = mnpar.check(members, (3,), reference=together)
    assert "no parameter of one rank (/1/W, /1/b, /2/W, …) is on 3 ranks" in str(result)
    assert not result.checked


def test_float32_programs_are_compared_with_their_digits():
    def program(comm, factor=1.0):
        model = L.Linear(4, 1, initialW=mnpar.initializers.Constant(np.float32(0.5)))
        model.W = mnpar.Parameter(np.full((1, 4), 0.5, "f4"))
        model.b = mnpar.Parameter(np.zeros(1, "f4"))
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
        scale = factor if comm.rank else 1.0
        for _ in range(2):
            x = programs.rows(comm, programs.X).astype("f4")
            optimizer.update(lambda x: F.mean(model(x) ** 2) * scale, x)

    result = mnpar.check(program)
    assert result.ok, result
    assert "float32" in result.notes[0]
    assert not mnpar.check(program, args=(1.01,)).ok


@pytest.mark.parametrize(
    ("error", "arguments", "said"),
    [
        (TypeError, ("train.py",), r"check\(program\): the program is a function"),
        (ValueError, (programs.ring, ()), "numbers of ranks from 1 on"),
        (ValueError, (programs.ring, (0, 2)), "numbers of ranks from 1 on"),
    ],
    ids=["no function", "no ranks", "rank 0"],
)
def test_arguments_are_checked(error, arguments, said):
    with pytest.raises(error, match=said):
        mnpar.check(*arguments)


def test_random_states_and_what_is_printed_stay_as_they_were(capsys):
    np.random.seed(7)
    mnpar.random.seed(7)
    expected = np.random.random(), mnpar.random.generator().random()
    np.random.seed(7)
    mnpar.random.seed(7)

    def program(comm):
        print("loud")
        programs.ring(comm)

    mnpar.check(program, SEVERAL)
    assert (np.random.random(), mnpar.random.generator().random()) == expected
    assert capsys.readouterr().out == ""


def test_gradients_that_are_added_up_are_compared_pass_by_pass():
    def program(comm):
        model = L.Linear(4, 3, initialW=np.ones((3, 4)))
        for i in range(3):
            part = F.sum(model(programs.rows(comm, programs.X[i : i + 4])) ** 2)
            (part / 10).backward()
        # never cleared

    assert mnpar.check(program, SEVERAL).ok


@pytest.mark.parametrize("seed", [1, 4, 11, 13, 15, 17, 18, 20, 352])
def test_random_programs_are_right(seed):
    drawn = draw(seed, 4)
    # what a rank does not record has no gradient on purpose
    assert not any([event.quiet for event in drawn.events])

    def program(comm):
        run = Ranked(drawn, comm).run()
        mnpar.backward([F.sum(run.values[name]) for name in drawn.losses.get(comm.rank, [])])

    result = mnpar.check(program, (drawn.size,))
    assert result.ok, result
    assert result.checked or "whole numbers" in str(result)  # rounded, and sent


def test_a_loss_just_at_a_kink_is_not_called_wrong():
    def program(comm):
        model = L.Linear(2, 1, initialW=np.ones((1, 2)))
        model.cleargrads()
        F.sum(F.relu(model(np.zeros((3, 2)))) + model(np.ones((3, 2)))).backward()

    result = mnpar.check(program, (1,))
    assert result.ok, result
    assert "a kink or a jump" in result.notes[0]
    # nothing is left that agrees
    assert not result.checked
    assert str(result).startswith("not checked:")


def test_rounded_values_are_not_called_wrong():
    def program(comm):
        x = mnpar.Variable(np.linspace(-1, 1, 50, dtype="f"))
        rounded = F.cast(F.floor(1000 * x), np.int64)
        F.sum(F.cast(rounded, "f") + x).backward()

    result = mnpar.check(program, (1,))
    assert result.ok, result
    assert re.search(
        r"whole numbers that Cast at .*test_program_check.py:\d+ gets", result.notes[-1]
    )


def test_blas_has_one_thread_for_all_ranks():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    threads = []

    def program(comm):
        threads.extend([pool["num_threads"] for pool in threadpoolctl.threadpool_info()])
        programs.ring(comm)

    with threadpoolctl.threadpool_limits(2):
        assert mnpar.check(program, SEVERAL)
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {2}
    assert set(threads) == {1}


def test_the_wrong_gradient_among_many_is_found_by_halving(monkeypatch):
    class Wrong(mnpar.FunctionNode):
        def forward(self, x):
            return 2 * x

        def backward(self, gy):
            return 3 * gy

    def program(comm):
        links = mnpar.ChainList(*[L.Linear(2, 2, initialW=np.eye(2)) for _ in range(40)])
        x = mnpar.Variable(np.ones((1, 2)))
        for i, link in enumerate(links):
            x = link(Wrong().apply((x,))[0] if i == 3 else x)
        F.sum(x).backward()

    runs = []
    recorded = program_check.record
    monkeypatch.setattr(
        program_check, "record", lambda *args, **kw: runs.append(0) or recorded(*args, **kw)
    )
    result = mnpar.check(program, (1,))
    assert re.search(r"the gradient of 2:/b, used by Linear .*, is wrong", str(result))
    assert "the backward of Wrong at" in str(result)
    assert len(runs) < 40


def test_ranks_that_draw_from_their_own_shards_cannot_be_compared_with_one():
    def program(comm):
        rows = np.random.default_rng(comm.rank).permutation(len(programs.X) - 1)
        model = programs.MLP()
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
        share = rows[: len(rows) // comm.size]
        optimizer.update(lambda: F.mean(model(programs.X[share]) ** 2))

    result = mnpar.check(program, (1, 2))
    assert not result.checked
    assert "draws samples of its own" in str(result)


def test_a_rank_that_is_left_over_is_no_harm():
    def program(comm):
        if comm.rank < 2:
            programs.ring(comm.split(0, comm.rank))
        else:
            comm.split(None, 0)

    result = mnpar.check(program, (3,))
    assert result.ok, result
    assert len(result.compared) == 1
