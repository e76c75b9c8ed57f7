"""Random programs in which ranks do different things, written once and run twice: over ranks, and
by one process as the truth.

A program is a list of events drawn from a seed. Each event says which ranks take part, and
``Ranked`` (this rank's part of it, with communication) and ``Alone`` (everybody's, in one graph)
carry it out. How one is spoilt is in ``tests/random_programs/spoiling.py``.
"""

import contextlib
import random
from dataclasses import dataclass

import numpy as np

import mnpar
import mnpar.functions as F
from mnpar.plans import Box, Plan

ROOTED = ("bcast", "reduce", "gather", "scatter")
REDUCED = ("allreduce", "reduce", "reduce_scatter")
SAME_FORM = (*REDUCED, "scan", "exscan")
COLLECTIVES = (*ROOTED, "allgather", "allreduce", "reduce_scatter", "alltoall", "scan", "exscan")
ROUND = ("shift", "sendrecv")  # every rank of a communicator sends once and receives once
TO_ALL = ("scatter", "alltoall", "reduce_scatter")  # who gives has an array for each rank
FROM_ALL = ("gather", "allgather", "alltoall")  # who gets has one of each rank
SHAPES = ((1,), (2,), (), (2, 3))


@dataclass(frozen=True)
class Event:
    """One step. ``ins`` and ``outs`` name variables, by rank for a collective."""

    kind: str  # local, p2p, split, exchange, barrier, one of ROUND, or a collective
    # who takes part, as numbers in the world, in the order of the communicator
    ranks: tuple[int, ...]
    ins: dict  # rank -> names
    outs: dict  # rank -> names
    comm: int = 0
    root: int = 0
    tag: int = 0
    integers: int = 0  # not 0: [3, integers] travels in the same message, the last of its arrays
    anyone: str = ""  # a receive from any "source", or with any "tag"
    colors: dict | None = None  # rank -> color of a split
    made: dict | None = None  # color -> number of the communicator that a split makes
    length: int = 1  # of the vectors that have to be of one form
    dtype: str = "f8"  # in which arrays travel
    op: str = "sum"  # how they are reduced
    dests: tuple[int, ...] = ()  # to whom each place of the communicator sends in a round
    steps: int = 0  # of a shift
    have: tuple[
        tuple[int, int], ...
    ] = ()  # which cells each place of the communicator has in an exchange
    want: tuple[tuple[int, int], ...] = ()
    # the ranks that wait for their results where they are first used
    later: frozenset = frozenset()
    quiet: frozenset = frozenset()  # the ranks that do not record

    @property
    def plan(self):
        """Of an exchange."""
        return Plan(
            [Box((a,), (b,)) for a, b in self.have], [Box((a,), (b,)) for a, b in self.want]
        )

    @property
    def ends(self):
        """(source, dest) of each message, if the event is made of messages."""
        if self.kind == "p2p":
            return [self.ranks]
        return [(rank, self.ranks[dest]) for rank, dest in zip(self.ranks, self.dests, strict=True)]


@dataclass
class Program:
    size: int
    events: list[Event]
    members: dict  # number of a communicator -> its ranks, as numbers in the world
    losses: dict  # rank -> names, for the ranks that have a loss
    # of backward, the same on every rank: "grad" is recorded, "kept" keeps the tape, "last" ends it
    passes: tuple[str, ...]

    @property
    def coarse(self):
        """Whether some of it is in single precision."""
        return any(event.dtype == "f4" for event in self.events)


class Drawing:
    """A program that is being drawn."""

    def __init__(self, seed, most_ranks):
        self.rng = random.Random(seed)
        self.size = self.rng.randint(1, most_ranks)
        self.known = {
            rank: [f"x{rank}.{i}" for i in range(len(SHAPES))] for rank in range(self.size)
        }
        self.comms = {0: tuple(range(self.size))}
        self.events = []

    def fresh(self, rank):
        name = f"v{rank}.{len(self.known[rank])}"
        self.known[rank].append(name)
        return name

    def some(self, rank, number=1):
        return [self.rng.choice(self.known[rank]) for _ in range(number)]

    def chance(self, p):
        return self.rng.random() < p

    def any_of(self, ranks, p):
        return frozenset(rank for rank in ranks if self.chance(p))

    def all_or_none(self, ranks, p):
        return frozenset(ranks) if self.chance(p) else frozenset()

    def dtype(self):
        return self.rng.choice(("f8", "f8", "f8", "f8", "f4", "c16", "i8"))

    def local(self, number):
        rank = self.rng.randrange(self.size)
        return Event("local", (rank,), {rank: self.some(rank, 2)}, {rank: [self.fresh(rank)]})

    def p2p(self, number):
        comm = self.rng.choice(list(self.comms))
        source = self.rng.choice(self.comms[comm])
        dest = self.rng.choice(self.comms[comm])
        several = self.rng.choice((1, 1, 1, 2))
        integers = number + 1 if self.chance(0.3) else 0
        ins = {source: self.some(source, several)}
        outs = {dest: [self.fresh(dest) for _ in range(several)]}
        if integers:
            outs[dest].append(f"n{number}")  # no loss is made of it, and nothing computed
        later = self.any_of((source, dest) if several == 1 and not integers else (source,), 0.4)
        anyone = self.rng.choice(("", "", "", "source", "tag"))
        quiet = self.any_of({source, dest}, 0.1)
        return Event(
            "p2p",
            (source, dest),
            ins,
            outs,
            comm,
            tag=number + 1,
            integers=integers,
            anyone=anyone,
            dtype=self.dtype(),
            later=later,
            quiet=quiet,
        )

    def split(self, number):
        parent, rng = self.rng.choice(list(self.comms)), self.rng
        colors = {rank: rng.choice((None, 0, 1)) for rank in self.comms[parent]}
        keys = {rank: rng.randrange(3) for rank in self.comms[parent]}
        made = {}
        for color in (0, 1):
            mine = [
                (keys[rank], i, rank)
                for i, rank in enumerate(self.comms[parent])
                if colors[rank] == color
            ]
            if mine:
                made[color] = len(self.comms)
                self.comms[len(self.comms)] = tuple(rank for _, _, rank in sorted(mine))
        return Event("split", self.comms[parent], keys, {}, parent, colors=colors, made=made)

    def round(self, number):
        comm = self.rng.choice(list(self.comms))
        kind = self.rng.choice(ROUND)
        steps = self.rng.randint(-2, 3)
        members = self.comms[comm]
        several = self.rng.choice((1, 1, 2))
        dests = [(place + steps) % len(members) for place in range(len(members))]
        if kind == "sendrecv":
            self.rng.shuffle(dests)
        ins = {r: self.some(r, several) for r in members}
        outs = {r: [self.fresh(r) for _ in range(several)] for r in members}
        return Event(
            kind,
            members,
            ins,
            outs,
            comm,
            tag=(number + 1) * (kind == "sendrecv"),
            dests=tuple(dests),
            steps=steps,
            dtype=self.dtype(),
            later=self.any_of(members, 0.3 * (several == 1)),
            quiet=self.any_of(members, 0.05),
        )

    def exchange(self, number):
        comm = self.rng.choice(list(self.comms))
        cells = self.rng.choice((2, 9, 99))
        members = self.comms[comm]
        have, want = [
            tuple([tuple(sorted(self.rng.choices(range(cells), k=2))) for _ in members])
            for _ in range(2)
        ]
        ins = {r: self.some(r) for r in members}
        outs = {r: [self.fresh(r)] for r in members}
        return Event(
            "exchange",
            members,
            ins,
            outs,
            comm,
            have=have,
            want=want,
            dtype=self.dtype(),
            later=self.any_of(members, 0.5),
            quiet=self.any_of(members, 0.05),
        )

    def barrier(self, number):
        comm = self.rng.choice(list(self.comms))
        return Event(
            "barrier", self.comms[comm], {}, {}, comm, later=self.all_or_none(self.comms[comm], 0.3)
        )

    def collective(self, number):
        comm = self.rng.choice(list(self.comms))
        kind = self.rng.choice(COLLECTIVES)
        members = self.comms[comm]
        root = self.rng.randrange(len(members))
        pieces = len(members)
        has = [members[root]] if kind in ("bcast", "scatter") else members
        wants = [members[root]] if kind in ("reduce", "gather") else members
        ins = {r: self.some(r, pieces if kind in TO_ALL else 1) for r in has}
        outs = {r: [self.fresh(r) for _ in range(pieces if kind in FROM_ALL else 1)] for r in wants}
        op = self.rng.choice(
            ("sum", "sum", "prod")
            if kind == "exscan"
            else ("sum", "sum", "mean", "max", "min", "prod")
        )
        dtype = (
            self.rng.choice(("f8", "f8", "f8", "f4", "i8")) if kind in SAME_FORM else self.dtype()
        )
        return Event(
            kind,
            members,
            ins,
            outs,
            comm,
            root,
            length=self.rng.choice((0, 1, 3, 60)),
            dtype=dtype,
            op=op,
            later=self.all_or_none(members, 0.5),
            quiet=self.all_or_none(members, 0.05),
        )


HOW_OFTEN = {
    "local": 33,
    "p2p": 28,
    "split": 7,
    "round": 8,
    "exchange": 6,
    "barrier": 2,
    "collective": 16,
}


def draw(seed: int, most_ranks: int = 8) -> Program:
    """A correct program."""
    d = Drawing(seed, most_ranks)
    for number in range(d.rng.randint(4, 24)):
        (what,) = d.rng.choices(list(HOW_OFTEN), HOW_OFTEN.values())
        d.events.append(getattr(d, what)(number))
    losses = {
        r: d.rng.sample(d.known[r], d.rng.choice((1, 1, 2))) for r in range(d.size) if d.chance(0.7)
    }
    first = ["grad"] * d.chance(0.3) + ["kept"] * (d.chance(0.3) + d.chance(0.1))
    d.rng.shuffle(first)
    return Program(d.size, d.events, d.comms, losses, (*first, "last"))


def local(a, b):
    return F.tanh(a * F.sum(b) * 0.5 + 0.1)


def formed(x, length, op="sum"):
    """A vector of the length that all ranks of a reduction agreed on; near 1 if they are
    multiplied.
    """
    y = F.sum(x) * np.arange(1.0, length + 1)
    return 1 + 0.3 * F.tanh(y / (length + 1)) if op == "prod" else y


def dressed(x, dtype):
    """As it travels."""
    if dtype == "i8":
        # and no gradient
        return mnpar.Variable(np.asarray(np.rint(100 * np.clip(x.array, -1e6, 1e6)), np.int64))
    return x if dtype == "f8" else x * np.array(1 + 1j) if dtype == "c16" else F.cast(x, dtype)


def undressed(y):
    """As it is computed with."""
    if y.dtype.kind == "c":
        return F.real(y) - 0.5 * F.imag(y)
    if y.dtype.kind == "i":
        return F.cast(y, np.float64) / 100
    return y if y.dtype != np.float32 else F.cast(y, np.float64)


def leaves(program, rank):
    rng = np.random.default_rng(rank)
    return {
        f"x{rank}.{i}": mnpar.Variable(rng.uniform(0.5, 1.5, size=shape))
        for i, shape in enumerate(SHAPES)
    }


def gradients(run, names, losses, passes):
    """The gradients of the leaves of these names, as a run of the program gives them: a ``grad``
    goes on with its squares, a backward that keeps the tape counts as often as any.
    """
    xs = [run.values[name] for name in names]
    losses = [F.sum(run.values[name]) for name in losses]
    for kind in passes:
        if kind == "grad":
            found = mnpar.grad(losses, xs, enable_double_backprop=True)
            losses = [F.sum(g * g) for g in found if g is not None]
        else:
            mnpar.backward(losses, retain_tape=kind == "kept")
    return {
        name: 0 * x.array if x.grad is None else x.grad for name, x in zip(names, xs, strict=True)
    }


class Words:
    """What programs are written in: the functions, those of this file, the block in which nothing
    is recorded, and arrays made from values and values from arrays. (tests/torch_bridge has
    PyTorch's.)
    """

    F = F
    has_twins = True  # a communication is also there as one that is waited for later
    leaves = staticmethod(leaves)
    local = staticmethod(local)
    formed = staticmethod(formed)
    dressed = staticmethod(dressed)
    undressed = staticmethod(undressed)
    quiet = staticmethod(mnpar.no_backprop_mode)
    gradients = staticmethod(gradients)
    given = staticmethod(mnpar.Variable)

    @staticmethod
    def array(y):
        return y.array

    @staticmethod
    def has_come(y):
        """Whether a value is there, and is not waited for."""
        return not isinstance(y, mnpar.Future) or y._results._finish is None


class Values:
    """The variables by name; those that came from others change their dress where they are first
    used.
    """

    def __init__(self, words=Words):
        self.words = words
        self.came, self.worn = {}, {}

    def __getitem__(self, name):
        if name not in self.worn:
            self.worn[name] = self.words.undressed(self.came[name])
        return self.worn[name]

    def given(self, e, names):
        """What an event takes, as it travels."""
        formed_ones = [
            self.words.formed(self[name], e.length, e.op) if e.kind in SAME_FORM else self[name]
            for name in names
        ]
        return [self.words.dressed(x, e.dtype) for x in formed_ones]


class Alone:
    """The whole program in one process, as one graph."""

    def __init__(self, program):
        self.values = Values()
        for rank in range(program.size):
            self.values.worn |= leaves(program, rank)
        for event in program.events:
            if event.kind == "local":
                (rank,) = event.ranks
                self.values.worn[event.outs[rank][0]] = local(
                    *[self.values[name] for name in event.ins[rank]]
                )
            elif event.kind not in ("split", "barrier"):
                self.step(event)

    def step(self, e):
        v, came = self.values, self.values.came
        root, outs = e.ranks[e.root] if e.kind in ROOTED else None, {}
        if e.kind == "exchange":
            ins = [
                dressed(formed(v[e.ins[r][0]], b - a), e.dtype)
                for r, (a, b) in zip(e.ranks, e.have, strict=True)
            ]
            rows = [
                x @ np.eye(99, dtype=e.dtype)[a:b] for x, (a, b) in zip(ins, e.have, strict=True)
            ]
            for r, (a, b) in zip(e.ranks, e.want, strict=True):
                cells = fold([self.heard(x, e, {q, r}) for q, x in zip(e.ranks, rows, strict=True)])
                outs[r] = [cells[a:b]]
        elif e.kind in ("p2p", *ROUND):
            ins = {rank: v.given(e, names) for rank, names in e.ins.items()}
            outs = {
                dest: [self.heard(x, e, {source, dest}) for x in ins[source]]
                for source, dest in e.ends
            }
            if e.integers:
                outs[e.ranks[1]].append(mnpar.Variable(np.array([3, e.integers])))
        else:
            ins = {rank: v.given(e, names) for rank, names in e.ins.items()}
            outs = {
                r: [self.heard(y, e, {r}) for y in ys]
                for r, ys in self.collective(e, ins, root).items()
            }
        for rank, names in e.outs.items():
            came.update(zip(names, outs[rank], strict=True))

    def heard(self, x, e, ranks):
        """What somebody who does not record has given or got has no gradient."""
        return mnpar.Variable(x.array) if ranks & e.quiet else x

    def collective(self, e, ins, root):
        """What each rank gets."""
        if e.kind in ("scan", "exscan"):
            xs = [ins[q][0] for q in e.ranks]
            own = e.kind == "scan"
            none = 0 * xs[0] + (e.op == "prod")
            return {
                r: [fold(xs[: i + own], e.op) if i + own else none] for i, r in enumerate(e.ranks)
            }
        if e.kind in ("allreduce", "reduce"):
            total = fold([ins[q][0] for q in e.ranks], e.op)
            return {rank: [total] for rank in e.outs}
        if e.kind == "reduce_scatter":
            return {r: [fold([ins[q][i] for q in e.ranks], e.op)] for i, r in enumerate(e.ranks)}
        if e.kind == "bcast":
            return dict.fromkeys(e.ranks, ins[root])
        if e.kind == "gather":
            return {root: [ins[rank][0] for rank in e.ranks]}
        if e.kind == "scatter":
            return {rank: [ins[root][i]] for i, rank in enumerate(e.ranks)}
        if e.kind == "allgather":
            return {rank: [ins[q][0] for q in e.ranks] for rank in e.ranks}
        if e.kind == "alltoall":
            return {rank: [ins[q][i] for q in e.ranks] for i, rank in enumerate(e.ranks)}
        raise NotImplementedError(f"tell Alone.collective what {e.kind} gives to each rank")


def fold(xs, op="sum"):
    """The reduction in one process; extrema are those of the first that has them."""
    total = xs[0]
    for x in xs[1:]:
        total = {"max": F.maximum, "min": F.minimum, "prod": lambda a, b: a * b}.get(
            op, lambda a, b: a + b
        )(total, x)
    return total / len(xs) if op == "mean" else total


class Ranked:
    """One rank's part of the program, with communication."""

    def __init__(self, program, comm, words=Words):
        self.rank = comm.rank
        self.comms = {0: comm}
        self.members = program.members
        self.words, self.F = words, words.F
        self.program, self.values = program, Values(words)
        self.values.worn |= words.leaves(program, comm.rank)

    def run(self):
        for event in self.program.events:
            if self.rank in event.ranks:
                self.step(event)
        return self

    def step(self, e):
        me = self.rank
        if e.kind == "local":
            self.values.worn[e.outs[me][0]] = self.words.local(
                *[self.values[name] for name in e.ins[me]]
            )
            return
        comm = self.comms[e.comm]
        later = "i" * (me in e.later)
        if e.kind == "split":
            sub = comm.split(e.colors[me], e.ins[me])
            if sub is not None:
                self.comms[e.made[e.colors[me]]] = sub
            return
        if e.kind == "barrier":
            comm.ibarrier().wait() if later else self.F.barrier(comm)
            return
        ins = self.given(e)
        with self.words.quiet() if me in e.quiet else contextlib.nullcontext():
            if e.kind == "p2p":
                ys = self.p2p(e, comm, ins)
            elif e.kind == "exchange":
                ys = getattr(self.F, f"{later}exchange")(comm, ins[0], e.plan)
            elif e.kind in ROUND:
                ys = self.round(e, comm, later, in_one(e, ins))
            else:
                ys = self.collective(e, comm, later, ins)
        self.get(
            e,
            ys if isinstance(ys, tuple) else tuple(ys.values()) if isinstance(ys, dict) else (ys,),
        )

    def given(self, e):
        """What this rank gives."""
        names = e.ins.get(self.rank, [])
        if e.kind != "exchange":
            return self.values.given(e, names)
        a, b = e.have[e.ranks.index(self.rank)]
        return [self.words.dressed(self.words.formed(self.values[names[0]], b - a), e.dtype)]

    def get(self, e, ys):
        """Remember what came (who is not the root gets a delegate)."""
        names = e.outs.get(self.rank, [])
        if names and len(ys) != len(names):
            raise ValueError(f"{e.kind} gave {len(ys)} arrays, not {len(names)}")
        self.values.came.update(zip(names, ys, strict=False))

    def p2p(self, e, comm, ins):
        source, dest = e.ranks
        place, y = self.members[e.comm].index, ()
        if self.rank == source:
            ins += [np.array([3, e.integers])] * (e.integers > 0)
            (self.F.isend if source in e.later else self.F.send)(
                in_one(e, ins), comm, place(dest), e.tag
            )
        if self.rank == dest:
            rank = mnpar.ANY_SOURCE if e.anyone == "source" else place(source)
            tag = mnpar.ANY_TAG if e.anyone == "tag" else e.tag
            one = len(e.outs[dest]) == 1
            y = (
                self.F.irecv(comm, rank, tag)
                if dest in e.later and one
                else self.F.recv(comm, rank, tag=tag)
            )
        return y

    def round(self, e, comm, later, x):
        if e.kind == "shift":
            return getattr(self.F, f"{later}shift")(comm, x, e.steps)
        place = e.ranks.index(self.rank)  # a spoilt split may have given it another rank
        return getattr(self.F, f"{later}sendrecv")(
            x, comm, e.dests[place], e.dests.index(place), e.tag
        )

    def collective(self, e, comm, later, ins):
        f = getattr(self.F, later + e.kind)
        x = ins[0] if ins else None
        if e.kind == "scatter":
            return f(comm, ins or None, e.root)
        if e.kind in ("bcast", "gather"):
            return f(comm, x, e.root)
        if e.kind == "reduce":
            return f(comm, x, e.root, e.op)
        if e.kind in ("allgather", "alltoall"):
            return f(comm, x if e.kind == "allgather" else ins)
        if e.kind in SAME_FORM:
            return f(comm, ins if e.kind == "reduce_scatter" else x, e.op)
        raise NotImplementedError(f"tell Ranked.collective how {e.kind} is called")


def in_one(e, xs):
    """What is given in one message."""
    if len(xs) == 1:
        return xs[0]
    return {f"{i}": x for i, x in enumerate(xs)} if e.tag % 2 else xs


def truth(program):
    """What one process finds: the values of all ranks by name, and the gradients of all leaves."""
    run = Alone(program)
    names = [name for rank in range(program.size) for name in leaves(program, rank)]
    return run.values, gradients(
        run, names, [n for losses in program.losses.values() for n in losses], program.passes
    )


def over_ranks(program, run, passes=None):
    """What this rank finds: the values that it got from others, and the gradients of its leaves.
    (``passes``: other ones than the program's, by mistake.)
    """
    words = run.words
    found = words.gradients(
        run,
        list(leaves(program, run.rank)),
        program.losses.get(run.rank, []),
        program.passes if passes is None else passes,
    )
    values = {name: words.array(y) for name, y in run.values.came.items()}
    for sub in list(run.comms.values())[1:]:
        sub.finalize()  # an MPI library has room for a thousand or so
    return values, found


def equal(found, wanted, coarse):
    """Whether gradients, or values, are the same: up to rounding, which in single precision is of
    the largest.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    most = abs(wanted).max(initial=0)
    return np.allclose(found, wanted, *((1e-4, 1e-5 * most + 1e-9) if coarse else (1e-9, 1e-12)))
