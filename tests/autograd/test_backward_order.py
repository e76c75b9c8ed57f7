"""A model of docs/backward_order.md without mnpar: all interleavings of small programs, walked
backwards under several rules.

An event is a message ("m", source, dest), a collective ("c", ranks), the start of a collective that
is waited for later ("s", ranks), a rank's wait for it ("w", number of the start, rank), or the
begin and the end of one rank's part in a round ("b", ranks, rank), ("e", ranks, rank), in which
each gives to the next of the ranks and waits until that has begun to take.

A forward run is a list of events in time; each rank's program is its part of the list. The state of
a backward is how far each rank has come; it is stuck if nobody can go on.
"""

import itertools

import pytest

RANKS = 3
MESSAGES = [("m", a, b) for a in range(RANKS) for b in range(RANKS) if a != b]
COLLECTIVES = [
    ("c", ranks) for size in (2, 3) for ranks in itertools.combinations(range(RANKS), size)
]
EVENTS = MESSAGES + COLLECTIVES
PROGRAMS = [
    *itertools.product(EVENTS, repeat=2),
    *itertools.islice(itertools.product(EVENTS, repeat=4), 0, None, 7),
]


def later_programs():
    """A collective is started, then other things happen, while each rank waits for its result at a
    place of its own.
    """
    for ranks in ((0, 1), (0, 1, 2)):
        waits = [("w", 0, rank) for rank in ranks]
        for others in itertools.product(EVENTS, repeat=2):
            for rest in itertools.permutations((*waits, *others)):
                yield (("s", ranks), *rest)
    for others in itertools.product(EVENTS, repeat=1):  # two of them at a time
        waits = [("w", number, rank) for number in (0, 1) for rank in (0, 1)]
        for rest in itertools.permutations((*waits, *others)):
            yield (("s", (0, 1)), ("s", (0, 1)), *rest)


def rounds():
    """A round of all ranks and another event, in every order in time in which each end comes after
    what it waits for.
    """
    ranks = tuple(range(RANKS))
    ends = [(what, ranks, rank) for what in "be" for rank in ranks]
    for other in EVENTS:
        for run in itertools.permutations((*ends, other)):
            at = {event: number for number, event in enumerate(run)}
            if all(
                at["b", ranks, q] < at["e", ranks, rank] for rank in ranks for q in ranks
            ) and not any(
                at["b", ranks, rank] < at[other] < at["e", ranks, rank] for rank in who(other)
            ):
                yield run


def who(event):
    """The ranks of a message or a collective."""
    return event[1:] if event[0] == "m" else event[1]


LATER = list(itertools.islice(later_programs(), 0, None, 7))


def parts(program):
    """Each rank's events, as (number, role)."""
    mine = [[] for _ in range(RANKS)]
    for number, event in enumerate(program):
        if event[0] == "m":
            mine[event[1]].append((number, "sent"))
            mine[event[2]].append((number, "received"))
        elif event[0] in "wbe":
            mine[event[2]].append((number, {"w": "waited", "b": "begun", "e": "ended"}[event[0]]))
        else:
            for rank in event[1]:
                mine[rank].append((number, "met" if event[0] == "c" else "started"))
    return mine


def can_stick(program, order, sends_wait=False, adjoints_wait=False):
    """Whether some interleaving of the backward gets stuck.

    ``sends_wait``: a gradient is posted only when its receiver takes it. ``adjoints_wait``: the
    adjoint of a collective that was waited for later is waited for where it starts.
    """
    plans = [order(part) for part in parts(program)]
    seen = set()
    stack = [(0,) * RANKS]
    while stack:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        following = list(steps(program, plans, state, sends_wait, adjoints_wait))
        if not following and any(at < len(plan) for at, plan in zip(state, plans, strict=True)):
            return True
        stack += following
    return False


def steps(program, plans, state, sends_wait, adjoints_wait):
    """The states that can come next."""
    heads = [plan[at] if at < len(plan) else None for at, plan in zip(state, plans, strict=True)]
    passed = [set(plan[:at]) for at, plan in zip(state, plans, strict=True)]
    for rank, head in enumerate(heads):
        if head is None:
            continue
        number, role = head
        event = program[number]
        if role == "met":
            if rank == event[1][0] and all(heads[r] == head for r in event[1]):
                yield tuple(at + (r in event[1]) for r, at in enumerate(state))
        elif role == "waited":  # the adjoint is started …
            partners = [
                ((n, "waited"), e[2]) for n, e in enumerate(program) if e[:2] == ("w", event[1])
            ]
            if not adjoints_wait or all(
                wait == heads[other] or wait in passed[other] for wait, other in partners
            ):
                yield advance(state, rank)
        elif role == "started":  # … and here it has to be done: all ranks have started it
            partners = [
                ((n, "waited"), e[2]) for n, e in enumerate(program) if e[:2] == ("w", number)
            ]
            if all(wait in passed[other] for wait, other in partners):
                yield advance(state, rank)
        elif role == "ended":  # the adjoint round begins …
            yield advance(state, rank)
        elif role == "begun":  # … and ends: the neighbours have begun
            ends = [((n, "ended"), e[2]) for n, e in enumerate(program) if e[:2] == ("e", event[1])]
            if all(
                end in passed[other]
                for end, other in ends
                if (other - rank) % len(event[1]) in (1, len(event[1]) - 1)
            ):
                yield advance(state, rank)
        elif role == "received":
            # the gradient is posted; under the rule of waiting sends, handed over
            if not sends_wait:
                yield advance(state, rank)
            elif heads[event[1]] == (number, "sent"):
                yield advance(advance(state, rank), event[1])
        elif not sends_wait and (number, "received") in passed[event[2]]:
            yield advance(state, rank)


def advance(state, rank):
    return (*state[:rank], state[rank] + 1, *state[rank + 1 :])


def reversed_order(part):
    return part[::-1]


def forward_order(part):
    return part


def test_reversed_order_with_sends_that_do_not_wait_never_gets_stuck():
    assert len(PROGRAMS) > 900
    stuck = [
        program for program in PROGRAMS if can_stick(program, reversed_order, sends_wait=False)
    ]
    assert not stuck


def test_the_gradient_of_a_gradient_never_gets_stuck():
    """What is reversed is then the run of forward and backward together, in which messages of
    backward go the other way.
    """

    def back(event):
        return ("m", event[2], event[1]) if event[0] == "m" else event

    twice = [(*program, *map(back, program[::-1])) for program in PROGRAMS[::3]]
    assert not [program for program in twice if can_stick(program, reversed_order)]


def test_exchanges_that_wait_for_their_receivers_never_get_stuck():
    programs = list(rounds())
    assert len(programs) > 500
    assert not [program for program in programs if can_stick(program, reversed_order)]


def test_a_rank_that_leaves_out_what_its_loss_does_not_need_lets_another_one_wait_for_ever():
    """So communications are on a tape: depth-first from the loss, a receive that nobody uses is
    never visited.
    """

    def without_receives(part):
        return [item for item in part[::-1] if item[1] != "received"]

    assert can_stick((("m", 0, 1),), without_receives)


def test_another_order_does_get_stuck():
    """One rank that visits in the order of its program, the others reversed: what a depth-first
    visit amounts to.
    """

    def mixed(part):
        return part if part and part[0][1] == "sent" else part[::-1]

    assert any(can_stick(program, mixed, sends_wait=False) for program in PROGRAMS)


def test_sends_that_wait_get_stuck_on_programs_that_relied_on_buffers():
    head_on = (("m", 0, 1), ("m", 1, 0))
    assert not can_stick(head_on, reversed_order, sends_wait=True)  # one after the other in time …

    def both_received_last(
        part,
    ):  # … but a run in which both had sent before either received ends the same way
        return sorted(part, key=lambda item: item[1] == "sent")

    assert can_stick(head_on, both_received_last, sends_wait=True)
    assert not can_stick(head_on, both_received_last, sends_wait=False)


def test_collectives_in_two_halves_never_get_stuck_though_adjoints_start_in_different_orders():
    assert len(LATER) > 2000
    stuck = [program for program in LATER if can_stick(program, reversed_order)]
    assert not stuck


def test_adjoints_that_are_waited_for_where_they_start_do_get_stuck():
    # rank 0 waits before the collective, rank 1 after it
    program = (
        ("s", (0, 1)),
        ("w", 0, 0),
        ("c", (0, 1)),
        ("w", 0, 1),
    )
    assert not can_stick(program, reversed_order)
    assert can_stick(program, reversed_order, adjoints_wait=True)


@pytest.mark.parametrize("order", [reversed_order, forward_order])
def test_a_single_message_is_fine_in_any_order(order):
    assert not can_stick((("m", 0, 1),), order, sends_wait=False)
