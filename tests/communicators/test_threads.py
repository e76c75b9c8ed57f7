"""Thread ranks: one runs at a time, the same way each time, and a deadlock is an error at once."""

import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.autograd.tape import current_tape
from mnpar.communicators.threads import transport
from mnpar.errors import DeadlockError, MismatchError, RankFailedError, UnreceivedWarning

HERE = f"{Path(__file__).parent.name}/{Path(__file__).name}"


def line(text):
    """Where this file has this text, as errors show it."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, content in enumerate(lines, 1) if content.endswith(f"# {text}")]
    return f"{HERE}:{number}"


# ---- deadlocks ----


def ring(comm):
    comm.recv((comm.rank + 1) % comm.size)  # ring


def itself(comm):
    if comm.rank == 1:
        comm.recv(1, tag=4)  # itself
    comm.barrier()  # others


def early(comm):
    if comm.rank == 2:
        comm.allreduce(np.ones(2))  # early


def other_tag(comm):
    if comm.rank == 0:
        comm.send(np.ones(2), 1, tag=5)  # five
    elif comm.rank == 1:
        comm.recv(0, tag=6)  # other tag


def anybody(comm):
    comm.recv(mnpar.ANY_SOURCE, mnpar.ANY_TAG)  # anybody


def in_groups(comm):
    group = comm.split(comm.rank % 2, comm.rank)
    if comm.rank == 0:
        group.recv(1)  # a member
    elif comm.rank == 2:
        group.recv(mnpar.ANY_SOURCE)  # any member
    elif comm.rank == 3:
        comm.barrier()  # all
    else:
        group.bcast(None, root=1)  # the group


def in_another_order(comm):
    group = comm.split(0, -comm.rank)
    if comm.rank == 1:
        group.bcast(None, root=2)  # another order
    elif comm.rank == 2:
        group.allreduce(np.array(["a"]))  # strings


def no_backward(comm):
    y = F.allreduce(comm, mnpar.Variable(np.ones(2)))  # no backward
    if comm.rank:
        F.sum(y).backward()


def no_send(comm):
    if comm.rank == 0:
        F.send(mnpar.Variable(np.ones(2)), comm, 1)  # no send
        mnpar.backward()
    elif comm.rank == 1:
        F.recv(comm, 0)


DEADLOCKS = {
    "ring": (
        ring,
        4,
        lambda: [
            f"waits in recv from rank {(r + 1) % 4}, tag 0 at {line('ring')}" for r in range(4)
        ],
    ),
    "from itself": (
        itself,
        3,
        lambda: [
            f"waits in barrier at {line('others')}",
            f"waits in recv from rank 1, tag 4 at {line('itself')}",
            f"waits in barrier at {line('others')}",
        ],
    ),
    "early end": (
        early,
        3,
        lambda: [
            "has finished",
            "has finished",
            f"waits in allreduce (sum) of float64 (2,) at {line('early')}",
        ],
    ),
    "other tag": (
        other_tag,
        3,
        lambda: [
            "has finished",
            f"waits in recv from rank 0, tag 6 at {line('other tag')}; a message with tag 5 "
            "from rank 0 has come, "
            f"which nobody has received: send of float64 (2,) at {line('five')}",
            "has finished",
        ],
    ),
    "anybody": (
        anybody,
        3,
        lambda: [
            f"waits in recv from any rank at {line('anybody')}; it could come from {others}"
            for others in ("rank 1 or rank 2", "rank 0 or rank 2", "rank 0 or rank 1")
        ],
    ),
    "in groups": (
        in_groups,
        4,
        lambda: [
            f"waits in recv from rank 1, tag 0 at {line('a member')}; that is rank 2 of the job",
            f"waits in bcast, root 1 at {line('the group')}; its communicator has ranks 1, 3",
            f"waits in recv from any rank, tag 0 at {line('any member')}; it could come from "
            "rank 0",
            f"waits in barrier at {line('all')}",
        ],
    ),
    "in another order": (
        in_another_order,
        3,
        lambda: [
            "has finished",
            f"waits in bcast, root 2 at {line('another order')}; its communicator has ranks 2, "
            "1, 0",
            f"waits in allreduce (sum) of what it cannot take at {line('strings')}; its "
            "communicator has ranks 2, 1, 0",
        ],
    ),
    "alone": (ring, 1, lambda: [f"waits in recv from rank 0, tag 0 at {line('ring')}"]),
    "no backward": (
        no_backward,
        3,
        lambda: [
            "has finished",
            *[f"waits in gradient of allreduce (sum) of float64 (2,) at {line('no backward')}"] * 2,
        ],
    ),
}


@pytest.mark.parametrize(("program", "ranks", "rows"), DEADLOCKS.values(), ids=DEADLOCKS)
def test_a_deadlock_is_an_error_with_a_row_for_each_rank(program, ranks, rows):
    with pytest.raises(DeadlockError) as caught:
        mnpar.run(program, ranks)
    expected = [
        "no rank can go on, each waits for another:",
        *(f"  rank {rank}: {row}" for rank, row in enumerate(rows())),
    ]
    assert str(caught.value).splitlines()[: len(expected)] == expected


def test_a_missing_gradient_of_a_send_names_the_line_of_the_send():
    with pytest.raises(
        DeadlockError,
        match=rf"rank 0: waits in gradient of send to rank 1 at {line('no send')}\n  rank 1: has "
        r"finished",
    ):
        mnpar.run(no_send, 2)


def test_a_deadlock_of_some_ranks_is_found_when_the_others_have_finished():
    def program(comm):
        if comm.rank < 2:
            comm.recv(1 - comm.rank)

    with pytest.raises(DeadlockError, match=r"rank 2: has finished\n  rank 3: has finished"):
        mnpar.run(program, 4)


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        (early, "all ranks of a communicator call its collectives.*"),
        (ring, ".* send before you receive .*"),
        (other_tag, "a receive takes only messages of its own tag, .*"),
    ],
)
def test_a_deadlock_tells_what_to_do(program, advice):
    with pytest.raises(DeadlockError) as caught:
        mnpar.run(program, 3)
    assert re.fullmatch(advice, str(caught.value).splitlines()[-1])


def test_every_rank_of_a_deadlock_raises_it():
    raised = []

    def program(comm):
        try:
            comm.recv((comm.rank + 1) % comm.size)
        except DeadlockError:
            raised.append(comm.rank)
            raise

    with pytest.raises(DeadlockError):
        mnpar.run(program, 3)
    assert sorted(raised) == [0, 1, 2]


def test_a_lone_rank_can_go_on_after_a_deadlock():
    comm = mnpar.create_communicator("self")
    for _ in range(2):
        with pytest.raises(DeadlockError, match="rank 0: waits in recv from rank 0, tag 3"):
            comm.recv(0, tag=3)
    comm.send(np.ones(1), 0, tag=3)
    np.testing.assert_array_equal(comm.recv(0, tag=3), [1.0])


# ---- the same way each time ----


@pytest.mark.filterwarnings("ignore::mnpar.errors.UnreceivedWarning")
def test_ranks_take_turns_in_the_same_order_each_time():
    def program(comm, trace):
        rng = np.random.default_rng(comm.rank)
        for step in range(20):
            trace.append((comm.rank, step))
            for _ in range(rng.integers(3)):
                comm.send(np.array([step]), int(rng.integers(comm.size)), tag=step)
            comm.barrier()
        return comm.allreduce(rng.standard_normal(5))

    runs = []
    for _ in range(5):
        trace = []
        results = mnpar.run(program, 5, (trace,))
        runs.append((trace, [r.tobytes() for r in results]))
    assert all(other == runs[0] for other in runs)
    assert runs[0][0][:5] == [(rank, 0) for rank in range(5)]


def test_only_one_rank_runs_at_a_time():
    inside, most = [], []

    def program(comm):
        for _ in range(50):
            inside.append(comm.rank)
            most.append(len(inside))
            sum(range(500))
            inside.remove(comm.rank)
            comm.barrier()

    mnpar.run(program, 4)
    assert max(most) == 1


def test_any_source_is_decided_the_same_way_each_time():
    def program(comm):
        if comm.rank:
            comm.send(np.array([comm.rank]), 0)
            return None
        return [int(comm.recv(mnpar.ANY_SOURCE)[0]) for _ in range(comm.size - 1)]

    assert len({tuple(mnpar.run(program, 5)[0]) for _ in range(5)}) == 1


# ---- results and errors ----


def test_results_come_in_rank_order_and_arguments_go_to_all():
    assert mnpar.run(lambda comm, a, b: (comm.rank, a, b), 3, (1, "x")) == [
        (0, 1, "x"),
        (1, 1, "x"),
        (2, 1, "x"),
    ]
    assert mnpar.run(lambda comm: comm.size) == [2, 2]


@pytest.mark.parametrize("ranks", [0, -1], ids=str)
def test_a_program_needs_a_rank(ranks):
    with pytest.raises(ValueError, match=f"a program runs on 1 rank or more, not on {ranks}"):
        mnpar.run(lambda comm: None, ranks)


def test_the_first_error_is_raised_with_the_number_of_its_rank():
    def program(comm):
        comm.barrier()
        if comm.rank == 2:
            raise ValueError("boom")
        comm.barrier()

    with pytest.raises(ValueError, match="boom") as caught:
        mnpar.run(program, 4)
    assert caught.value.__notes__ == ["on rank 2 of 4"]
    assert "program" in [entry.name for entry in caught.traceback]


def test_the_others_learn_which_rank_failed_and_why():
    heard = []

    def program(comm):
        if comm.rank == 1:
            raise ValueError("boom")
        try:
            comm.recv(1)
        except RankFailedError as error:
            heard.append((comm.rank, str(error), type(error.__cause__)))
            raise

    with pytest.raises(ValueError, match="boom"):
        mnpar.run(program, 3)
    assert sorted(heard) == [
        (r, f"rank {r} stops because rank 1 failed: ValueError: boom", ValueError) for r in (0, 2)
    ]


def test_of_several_errors_the_first_is_raised():
    def program(comm):
        if comm.rank == 2:
            raise ValueError("first")
        try:
            comm.barrier()
        finally:
            raise KeyError("later")

    with pytest.raises(ValueError, match="first"):
        mnpar.run(program, 3)


def test_an_error_of_a_rank_that_nobody_waits_for_is_raised():
    with pytest.raises(ZeroDivisionError):
        mnpar.run(lambda comm: 1 // comm.rank, 3)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=lambda e: type(e).__name__
)
def test_an_exit_or_interrupt_in_a_rank_ends_all(error):
    def program(comm):
        if comm.rank == 1:
            raise error
        comm.barrier()

    with pytest.raises(type(error)) as caught:
        mnpar.run(program, 3)
    assert caught.value is error


def test_a_rank_that_exits_has_finished():
    def program(comm, waits):
        if comm.rank == 1:
            raise SystemExit
        if waits:
            comm.barrier()

    with pytest.raises(SystemExit):
        mnpar.run(program, 3, (False,))
    with pytest.raises(DeadlockError, match="rank 1: has finished"):
        mnpar.run(program, 3, (True,))


def test_no_thread_is_left_behind():
    before = threading.active_count()
    mnpar.run(lambda comm: comm.barrier(), 4)
    for program in (ring, lambda comm: 1 // comm.rank):
        with pytest.raises((DeadlockError, ZeroDivisionError)):
            mnpar.run(program, 3)
    assert threading.active_count() == before


# ---- what ranks share and what they do not ----


def test_ranks_start_from_the_settings_of_their_caller_and_change_their_own():
    def program(comm):
        seen = mnpar.config.train, mnpar.config.dtype
        if comm.rank == 0:
            mnpar.config.train = True
        comm.barrier()
        return (*seen, mnpar.config.train)

    half = np.dtype(np.float16)
    with mnpar.using_config("train", False), mnpar.using_config("dtype", half):
        assert mnpar.run(program, 3) == [
            (False, half, True),
            (False, half, False),
            (False, half, False),
        ]
        assert mnpar.config.train is False
    assert mnpar.config.train is True


def test_each_rank_has_a_tape_of_its_own_and_none_is_left_to_the_caller():
    def program(comm):
        F.allreduce(comm, mnpar.Variable(np.ones(1)))
        return len(current_tape().records)

    with mnpar.Tape() as tape:
        assert mnpar.run(program, 3) == [1, 1, 1]
        assert not tape.records


def test_a_program_may_run_a_program():
    def inner(comm, outer):
        return 10 * outer + comm.allreduce_obj(comm.rank)

    def program(comm):
        results = mnpar.run(inner, 3, (comm.rank,))
        comm.barrier()
        return results

    assert mnpar.run(program, 2) == [[3, 3, 3], [13, 13, 13]]


def test_create_communicator_inside_a_program_gives_its_ranks():
    def program(comm):
        found = [mnpar.create_communicator(name) for name in ("auto", "threads", "naive")]
        alone = mnpar.create_communicator("self")
        return [c.allreduce_obj(comm.rank) for c in found], alone.size

    assert mnpar.run(program, 3) == [([3, 3, 3], 1)] * 3


def test_sixteen_ranks():
    def program(comm):
        assert comm.allreduce(np.array([comm.rank]))[0] == 120
        quarter = comm.split(comm.rank % 4, comm.rank)
        assert quarter.allgather_obj(comm.rank) == list(range(comm.rank % 4, 16, 4))
        return int(comm.alltoall([np.array([comm.rank * 100 + to]) for to in range(16)])[3][0])

    assert mnpar.run(program, 16) == [300 + rank for rank in range(16)]


def test_a_rank_that_forgets_backward_is_told_what_to_call():
    def program(comm):
        x = mnpar.Variable(np.ones(2))
        if comm.rank == 0:
            F.send(x, comm, rank=1)
            return
        F.sum(F.recv(comm, rank=0)).backward()  # gives a gradient

    def other(comm):
        if comm.rank == 0:
            F.send(mnpar.Variable(np.ones(2)), comm, rank=1)
            mnpar.backward()
        else:
            F.recv(comm, rank=0)

    with pytest.warns(UnreceivedWarning) as told:
        mnpar.run(program, 2)
    assert [str(one.message) for one in told] == [
        "rank 0 never took a gradient from rank 1: gradient of send of float64 (2,) at "
        f"{line('gives a gradient')}; "
        "every rank that has communicated runs backward: mnpar.backward(), if it has no loss; "
        "mnpar.torch.backward(), with PyTorch's tensors"
    ]
    with pytest.raises(
        DeadlockError,
        match=r"\nevery rank that has communicated runs backward: mnpar\.backward\(\), if",
    ):
        mnpar.run(other, 2)


@pytest.mark.parametrize("ranks", [0, "2", 1.5], ids=str)
def test_run_takes_a_number_of_ranks(ranks):
    with pytest.raises(ValueError, match="runs on 1 rank or more, not on "):
        mnpar.run(lambda comm: None, ranks)


def test_run_is_given_the_program_and_not_its_result():
    with pytest.raises(
        TypeError,
        match=r"run\(program, ranks\): the program is a function of the communicator, not None",
    ):
        mnpar.run(print(end=""), 2)


@pytest.mark.parametrize("args", [3, "ab", np.ones((1, 2))], ids=lambda args: type(args).__name__)
def test_arguments_of_a_program_that_are_no_tuple_are_told(args):
    with pytest.raises(TypeError, match=r"args is a tuple, \(x,\) of one argument x, not "):
        mnpar.run(lambda comm, x: x, 2, args)


def test_messages_that_nobody_took_are_listed_at_the_end():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.ones(2, np.float32), 2, tag=7)  # not taken
        comm.barrier()
        found[comm.rank] = comm.transport.unreceived()
        group = comm.split(comm.rank // 2, -comm.rank)
        if comm.rank == 2:
            F.send(mnpar.Variable(np.ones((2, 1))), group, 0, tag=3)  # nor this

    found = {}
    with pytest.warns(UnreceivedWarning) as told:
        mnpar.run(program, 4)
    first = (
        "rank 2 never received a message from rank 0, tag 7: send of float32 (2,) at "
        f"{line('not taken')}; every send needs a recv on rank 2"
    )
    assert found == {0: [], 1: [], 2: [first], 3: []}
    assert [str(one.message) for one in told] == [
        first,
        "rank 3 never received a message from rank 2, tag 3: send of float64 (2, 1) at "
        f"{line('nor this')}; every send needs a recv on rank 3",
    ]
    assert Path(told[0].filename).name == Path(__file__).name


def test_the_table_of_a_deadlock_matches_what_the_documentation_says():
    with pytest.raises(DeadlockError) as caught:
        mnpar.run(ring, 2)
    assert re.fullmatch(
        r"no rank can go on, each waits for another:(\n  rank \d: [^\n]+){2}\nwhere all "
        r"receive [^\n]+",
        str(caught.value),
    )


def test_the_line_of_a_wait_is_where_a_with_block_was_entered():
    def program(comm):
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.Adam(), comm, sharded=True
        ).setup(L.Linear(2, 1))
        optimizer.update(lambda x: F.sum(optimizer.target(x)), np.ones((1, 2), "f4"))
        if comm.rank == 0:
            with optimizer.sync.saving():  # only here
                pass

    with pytest.raises(DeadlockError, match=rf"waits in allgather of .* at {line('only here')}"):
        mnpar.run(program, ranks=2)


COLLECTIVES = {
    "allreduce": lambda comm: comm.allreduce(np.ones(4)),
    "allreduce of much": lambda comm: comm.allreduce(np.ones(2000)),
    "bcast": lambda comm: comm.bcast(np.ones(4)),
    "barrier": lambda comm: comm.barrier(),
    "iallreduce": lambda comm: comm.iallreduce(np.ones(4)).wait(),
    "allreduce_if": lambda comm: comm.allreduce_if(x := np.ones(4), b"yes", lambda told: True, x),
}


def calls_of_a_rank(call, ranks):
    """How many functions a rank enters in one collective, on average over all ranks."""

    def program(comm):
        entered = [0]

        def count(frame, event, arg):
            entered[0] += event in ("call", "c_call")

        for _ in range(3):
            call(comm)
        sys.setprofile(count)
        call(comm)
        sys.setprofile(None)
        return entered[0]

    return sum(mnpar.run(program, ranks)) / ranks


@pytest.mark.parametrize("call", COLLECTIVES.values(), ids=COLLECTIVES)
def test_a_collective_costs_a_rank_the_same_however_many_there_are(call):
    """The first rank that goes on joins what all have brought, for all."""
    few, many = calls_of_a_rank(call, 9), calls_of_a_rank(call, 72)
    assert many < 1.5 * few


@pytest.mark.parametrize("ranks", [5, 9, 20])
def test_ranks_that_share_a_result_have_arrays_of_their_own(ranks):
    def program(comm):
        for n in (4, 2000, 20000):
            for reduce in (comm.allreduce, lambda x: comm.iallreduce(x).wait()):
                x = np.full(n, comm.rank + 1.0)
                y = reduce(x)
                x[:] = y[:] = comm.rank  # before the others have theirs
                comm.barrier()
                assert (y == comm.rank).all()
                np.testing.assert_array_equal(reduce(np.ones(n)), np.full(n, comm.size))

    mnpar.run(program, ranks)


MISTAKES = {
    "shapes": lambda comm: comm.allreduce(np.ones(comm.rank + 1)),
    "collectives": lambda comm: comm.barrier() if comm.rank == 1 else comm.allreduce(np.ones(2)),
    "an array that cannot be sent": lambda comm: comm.allreduce(
        np.array([None]) if comm.rank == 2 else np.ones(2)
    ),
    "roots": lambda comm: comm.bcast(np.ones(2), comm.rank),
}


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_an_error_is_the_same_where_ranks_share_the_blocks(mistake, monkeypatch):
    def program(comm):
        comm.allreduce(np.ones(2))
        with pytest.raises((MismatchError, TypeError)) as error:
            mistake(comm)
        return str(error.value)

    told = []
    for few in (0, 8):
        monkeypatch.setattr(transport, "_FEW", few)
        told.append(mnpar.run(program, 3))
    assert told[0] == told[1]


RING = Path(__file__).parents[2] / "examples" / "ring.py"


def pytest_generate_tests(metafunc):
    if "many" in metafunc.fixturenames:
        more = [1024] if metafunc.config.getoption("--sweep") else []
        metafunc.parametrize("many", [64, 256, *more])


def test_many_ranks_run_the_ring(many, capsys):
    ring = compile(RING.read_text(), RING, "exec")
    mnpar.run(lambda comm: exec(ring, {"__name__": "__main__"}), many)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == many
    for rank in (0, 1, many - 1):
        left, right = (rank - 1) % many + 1, (rank + 1) % many + 1
        around = f"gradient = {left + right:g}; left + right = {left} + {right}"
        assert sum(line.startswith(f"rank {rank} of {many}: ") for line in lines) == 1
        assert any(line.endswith(around) for line in lines)


def test_a_thousand_ranks_pass_a_message_round_the_ring():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.ones(1), 1)
            return float(comm.recv(comm.size - 1)[0])
        comm.send(comm.recv(comm.rank - 1) + 1, (comm.rank + 1) % comm.size)
        return None

    assert mnpar.run(program, 1000)[0] == 1000
