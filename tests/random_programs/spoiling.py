"""Random programs with one mistake in one rank's part of them, and what becomes of each.

A mistake changes the list of what one rank does. So the other ranks meet it in the wrong
communication, or not at all, and that has to be reported: never may a rank get wrong gradients, or
wait for ever. What becomes of a program is one of

    reported  before any wrong value reached anybody
    late      with an error, but after a wrong value had reached a rank: nobody could tell until
              then
    harmless  the gradients are right: a step at another time, which nobody minds, or one without
              gradients
    own       no other rank got anything else than in the right program, and every message was
              taken: the rank differentiates something of its own, as often as it likes
    silent    wrong gradients, and no error
    hung      it did not end in time
    nothing   there was nothing to spoil: the ranks have nothing to do with each other

Some mistakes make another right program for all that the ranks can see, as two sums of like vectors
in the other order on one rank. There are none of these (``seen``). Of others it can be seen only
later, when a rank has already got something wrong: a step that was left out, or done twice, if one
of the same form follows; a shift or an exchange which, done otherwise, needs nobody else; a receive
with any tag that comes too early.

Or a rank leaves a pass of backward out, runs it twice, or in another order. Two passes of one kind
in the other order are another right program: backward is of the sum of whatever the ranks called it
on (law 1). So there are none of these. And a pass that exchanges no message with another rank is
the rank's own: no other rank's values depend on it, so none could tell. So is a collective in which
one rank alone gives what has a gradient, if that rank says that it does not record.

``python -m tests.random_programs.spoiling SEED`` is one rank of such a program under mpiexec.
"""

import contextlib
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import mnpar
from mnpar.errors import MnparError, UnreceivedWarning
from mnpar.runtime.mpiexec import mpiexec_command
from tests.faults.job import FOREIGN, PYTHON, ROOT
from tests.harness.scripts import client_for
from tests.random_programs.programs import (
    COLLECTIVES,
    ROOTED,
    ROUND,
    SAME_FORM,
    TO_ALL,
    Ranked,
    Words,
    draw,
    equal,
    over_ranks,
    truth,
)

LIMIT = 60  # s for a program of milliseconds
JOB_LIMIT = 300  # s for a job, whose ranks may import libraries first, on a busy machine
MOVES = ("swap", "other time")
MAY_BE_HARMLESS = (*MOVES, "other mode")
PASSES = ("drop pass", "repeat pass", "swap passes")
# RuntimeError: of a rank that goes back through what it has gone through already
TOLD = (MnparError, UnreceivedWarning, ValueError, TypeError, RuntimeError)
# mistakes in one collective
AT_ONCE = (
    "other op",
    "other root",
    "other reduction",
    "other twin",
    "other mode",
    "reshape",
)


class HungError(Exception):
    """A program did not end in time."""


class _Interrupt(KeyboardInterrupt):
    """As Ctrl-C does, it ends the ranks."""


@contextlib.contextmanager
def limit(seconds=LIMIT):
    """What takes longer is interrupted."""

    def stop(*_):
        raise _Interrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    except _Interrupt as error:
        raise HungError(
            f"the program has not ended after {seconds} s"
        ) from error  # pytest goes on with other tests
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def seen(e, rank):
    """What the other ranks can see of a rank's part of a step: two steps of which they see the same
    cannot be told apart.
    """
    if e.kind == "p2p":
        return (
            ("any tag", e.comm, e.ranks)
            if e.anyone == "tag"
            else ("p2p", e.tag, e.ranks.index(rank))
        )
    if e.kind == "sendrecv":
        return "sendrecv", e.tag
    if e.kind == "shift":
        return "shift", e.comm, e.steps % len(e.ranks)
    if e.kind == "exchange":
        return "exchange", e.comm, e.have, e.want, e.dtype
    what = (e.kind, e.comm, rank in e.later, e.root if e.kind in ROOTED else 0)
    return (*what, e.op, e.length, e.dtype) if e.kind in SAME_FORM else what


def meets(e, rank):
    """Whether other ranks have to do with this rank's part of a step."""
    if e.kind == "exchange":
        route = e.plan.route(e.ranks.index(rank))
        return bool(route.sends or route.receives)
    if e.kind in ("p2p", *ROUND):
        return any((source == rank) != (dest == rank) for source, dest in e.ends)
    return e.kind != "local" and len(e.ranks) > 1


def moved(part, at, rank, steps):
    """The rank's part of a program with what stands at this place ``steps`` communications later;
    None if it cannot be.
    """
    e = part[at]
    place = at
    passed = 0
    mine = set(e.outs.get(rank, []))
    made = set() if e.kind != "split" else {e.made.get(e.colors[rank])}
    while passed < steps:
        place += 1
        if place == len(part):
            return None
        other = part[place]
        uses = other.ins.get(rank, []) if other.kind != "split" else []
        if (
            mine & set(uses)
            or (other.kind != "local" and other.comm in made)
            or seen(other, rank) == seen(e, rank)
        ):
            return None
        passed += meets(other, rank)
    return [*part[:at], *part[at + 1 : place + 1], e, *part[place + 1 :]]


def changes(e, rank, members, rng):
    """The ways to do this rank's part of a step wrongly: how -> the changed event, which no other
    rank could take for right.
    """
    place = e.ranks.index(rank)
    others = [q for q in e.ranks if q != rank]
    hows = {"repeat": e}  # once more
    # or the rank would have no communicator to go on with
    if e.kind != "split" or e.colors[rank] is None:
        hows["drop"] = replace(e, kind="dropped")
    if e.kind in ("p2p", "sendrecv") and e.anyone != "tag":
        hows["retag"] = replace(e, tag=e.tag + 1000)
    if e.kind == "p2p" and len(members) > 2 and not (place == 1 and e.anyone == "source"):
        third = rng.choice([q for q in members if q not in e.ranks])
        hows["other peer"] = replace(e, ranks=(rank, third) if place == 0 else (third, rank))
    if e.kind == "exchange":
        hows["other plan"] = replace(e, want=tuple((a, b + 1) for a, b in e.want))
        hows["retype"] = replace(e, dtype="f4" if e.dtype == "f8" else "f8")
    if e.kind == "shift":
        hows["other steps"] = replace(e, steps=e.steps + rng.randint(1, len(e.ranks) - 1))
    if e.kind in ROOTED:
        hows["other root"] = replace(e, root=(e.root + rng.randint(1, len(others))) % len(e.ranks))
    if e.kind in (*COLLECTIVES, "barrier"):
        hows["other op"] = replace(
            e, kind=rng.choice([kind for kind in COLLECTIVES if kind != e.kind])
        )
        # its alone, as a send's
        if e.kind != "barrier" and not (e.kind in ("bcast", "scatter") and e.ranks[e.root] == rank):
            hows["other mode"] = replace(e, quiet=e.quiet ^ {rank})
        hows["other twin"] = replace(e, later=frozenset() if e.later else frozenset(e.ranks))
    if e.kind in SAME_FORM:
        ops = ("sum", "prod") if e.kind == "exscan" else ("sum", "mean", "max", "min", "prod")
        hows["other reduction"] = replace(e, op=rng.choice([op for op in ops if op != e.op]))
        hows["reshape"] = replace(e, length=e.length + 1)
        hows["retype"] = replace(e, dtype="f4" if e.dtype == "f8" else "f8")
    return hows


class Spoil(NamedTuple):
    """One mistake: which rank makes it, in which step or among which passes, how, and what the rank
    does instead.
    """

    rank: int
    where: Any
    how: str
    part: list  # its steps
    passes: tuple[str, ...]  # of backward


def spoil(program, seed, words=Words):
    """A mistake in one rank's part of the program, if there is anything to spoil.

    Where no communication is waited for later, the blocking one in its place is no mistake.
    """
    rng, choices = random.Random(seed), []
    parts = {rank: [e for e in program.events if rank in e.ranks] for rank in range(program.size)}
    for rank, part in parts.items():
        for at, e in enumerate(part):
            if meets(e, rank):
                choices += [
                    (rank, at, how)
                    for how in (*changes(e, rank, program.members[e.comm], rng), *MOVES)
                    if words.has_twins or how != "other twin"
                ]
    if choices and rng.random() < 0.25:
        rank = rng.choice(choices)[0]
        how, passes = rng.choice(list(changed_passes(program.passes, rng).items()))
        return Spoil(rank, program.passes, how, parts[rank], passes)
    rng.shuffle(choices)
    for rank, at, how in choices:
        part = parts[rank]
        if how in MOVES:
            instead = moved(part, at, rank, 1 if how == "swap" else rng.randint(2, 6))
        else:
            e = part[at]
            instead = [
                *part[:at],
                *[e] * (how == "repeat"),
                changes(e, rank, program.members[e.comm], rng)[how],
                *part[at + 1 :],
            ]
        if instead is not None:
            return Spoil(rank, part[at], how, instead, program.passes)
    return None


def changed_passes(passes, rng):
    """The ways to run passes of backward wrongly: how -> the passes that are run instead."""
    at = rng.randrange(len(passes))
    hows = {
        "drop pass": (*passes[:at], *passes[at + 1 :]),
        "repeat pass": (*passes[:at], passes[at], *passes[at:]),
    }
    swaps = [i for i in range(len(passes) - 1) if passes[i] != passes[i + 1]]
    if swaps:
        i = rng.choice(swaps)
        hows["swap passes"] = (*passes[:i], passes[i + 1], passes[i], *passes[i + 2 :])
    return hows


class Spoilt(Ranked):
    """A rank's part with a mistake. What it does not get, because it did not ask for it, it knows:
    what others see is only that it does something else.
    """

    def __init__(self, program, comm, part, known, words=Words):
        super().__init__(program, comm, words)
        self.part, self.known = part, known

    def run(self):
        for event in self.part:
            if event.kind == "dropped":
                self.get(event, ())
            else:
                self.step(event)
        return self

    def given(self, e):
        """As many arrays as what it does instead takes."""
        ins = super().given(e) if self.rank in e.ins else []
        if e.kind in COLLECTIVES:
            takes = len(e.ranks) if e.kind in TO_ALL else 1
            gives_nothing = e.kind in ("bcast", "scatter") and e.ranks[e.root] != self.rank
            one = [self.words.given(np.ones(1))]
            return [] if gives_nothing else ((ins or one) * takes)[:takes]
        return ins

    def get(self, e, ys):
        """Remember what came, as far as it came."""
        for i, name in enumerate(e.outs.get(self.rank, [])):
            self.values.came[name] = (
                ys[i] if i < len(ys) else self.words.given(self.known.came[name].array)
            )


def came_wrong(run, wanted, coarse):
    """Names of the values that this rank had got from others, and that are not those of the right
    program.
    """
    words = run.words
    here = {name: words.array(y) for name, y in run.values.came.items() if words.has_come(y)}
    return [name for name, y in here.items() if not equal(y, wanted.came[name].array, coarse)]


def same(found, wanted, program):
    """Whether these gradients are right."""
    return all(equal(g, wanted[name], program.coarse) for name, g in found.items())


def drawn(seed, words, most_ranks=8):
    """The program of this seed, as it can be said in these words."""
    program = draw(seed, most_ranks=most_ranks)
    if not words.has_twins:
        program.events = [replace(e, later=frozenset()) for e in program.events]
    return program


def outcome(seed, words=Words):
    """What became of the program on thread ranks, how it was spoilt, and what to say of it."""
    program = drawn(seed, words)
    mistake = spoil(program, seed, words)
    if mistake is None:
        return "nothing", "", ""
    rank, where, how, part, passes = mistake
    values, wanted = truth(program)
    runs, text = {}, f"program {seed}, {how} on rank {rank} of {where}"

    def run(comm):
        mine = runs[comm.rank] = (
            Spoilt(program, comm, part, values, words)
            if comm.rank == rank
            else Ranked(program, comm, words)
        )
        return over_ranks(program, mine.run(), passes if comm.rank == rank else None)[1]

    error, found = None, []
    try:
        with limit():
            found = mnpar.run(run, ranks=program.size)
    except HungError as hung:
        return "hung", how, f"{text}: {hung}"
    # of mnpar, or of arrays that do not fit together where they are used: then one came too late
    except Exception as told:
        error = told
    late = [name for one in runs.values() for name in came_wrong(one, values, program.coarse)]
    if error is not None:
        in_time = isinstance(error, TOLD) and not late
        return ("reported" if in_time else "late"), how, f"{text}: {late} had come before {error!r}"
    right = [not late and same(gradients, wanted, program) for gradients in found]
    return unreported(mistake, right, values), how, text


def unreported(mistake, right, values):
    """What became of a program that ended without an error; ``right``: whether each rank has what
    it has in the right program, whose values are given.
    """
    rank, e, how = mistake.rank, mistake.where, mistake.how
    if all(right) and how in MAY_BE_HARMLESS:
        return "harmless"
    others = all(right[:rank] + right[rank + 1 :])
    own = how in PASSES or (how == "other mode" and not wanted_by_others(e, rank, values))
    return "own" if others and own else "silent"


def wanted_by_others(e, rank, values):
    """Whether another rank gives something to a collective that has a gradient."""
    given = [name for other in e.ranks if other != rank for name in e.ins.get(other, ())]
    return any(values[name].requires_grad for name in given)


def expect_reports(outcomes, record_property):
    """Fail where a program was silent or hung, or late though its mistake can be told at once."""
    # counted where all tests' are: tests/conftest.py
    record_property("spoilt", [(what, how) for what, how, _ in outcomes])
    wrong = [
        text
        for what, how, text in outcomes
        if what in ("silent", "hung") or (what == "late" and how in AT_ONCE)
    ]
    assert not wrong, "\n".join(wrong)


def job(seed, words=Words, module="tests.random_programs.spoiling"):
    """As :func:`outcome` of the next such program that can be spoilt, as a job of mpiexec's:
    ``module`` runs :func:`main` of these words.
    """
    while spoil(drawn(seed, words, 4), seed, words) is None:
        seed += 1
    program = drawn(seed, words, 4)
    mistake = spoil(program, seed, words)
    what, right, output = run_job(module, seed, program.size)
    text = f"job {seed}, {mistake.how} on rank {mistake.rank} of {mistake.where}\n{output}"
    return what or unreported(mistake, right, truth(program)[0]), mistake.how, text


def run_job(module, seed, size):
    """Run a job of mpiexec's: what became of it, if that can be said; whether each rank has said
    that it is right; and what it wrote.
    """
    command, env = mpiexec_command(size, PYTHON)
    start = [PYTHON, "-m"] if FOREIGN else client_for("-m")
    try:
        done = subprocess.run(
            [*command, *start, module, str(seed)],
            capture_output=True,
            text=True,
            timeout=JOB_LIMIT,
            check=False,
            cwd=ROOT,
            env=env | {"MNPAR_STALL": "0.5", "PYTHONPATH": ROOT},
        )
    except subprocess.TimeoutExpired:
        return "hung", [], ""
    output = done.stdout + done.stderr
    right = [f"rank {i} is right" in done.stdout for i in range(size)]
    told = re.search(
        r"(Mismatch|Deadlock|RankFailed|Value|Type|Runtime)Error: .*\n|waits for ever"
        r"|never took a gradient",
        done.stderr,
    )
    if done.returncode:
        return ("reported" if told else "silent"), right, output
    untaken = re.search(r"mnpar: rank \d (never received|started .* could not end)", done.stderr)
    return ("reported" if untaken else ""), right, output


def main(seed, words=Words):
    """One rank of a job."""
    program = drawn(seed, words, 4)
    rank, _, _, part, passes = spoil(program, seed, words)
    values, wanted = truth(program)
    comm = mnpar.create_communicator()
    run = (
        Spoilt(program, comm, part, values, words)
        if comm.rank == rank
        else Ranked(program, comm, words)
    )
    found = over_ranks(program, run.run(), passes if comm.rank == rank else None)[1]
    right = same(found, wanted, program) and not came_wrong(run, values, program.coarse)
    print(f"rank {comm.rank} is {'right' if right else 'wrong'}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
