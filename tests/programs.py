"""Random programs in which ranks do different things, written once and run twice: over ranks, and by one process as the truth.

A program is a list of events drawn from a seed. Each event says which ranks take part, and ``Ranked`` (this rank's part of
it, with communication) and ``Alone`` (everybody's, in one graph) carry it out. A mutation changes the part of one rank, so that
the program is wrong: it must be reported, whatever it is.
"""

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


@dataclass(frozen=True)
class Event:
    """One step. ``ins`` and ``outs`` name variables, by rank for a collective."""

    kind: str  # local, p2p, split, exchange, one of ROUND, or a collective
    ranks: tuple[int, ...]  # who takes part, as numbers in the world, in the order of the communicator
    ins: dict  # rank -> names
    outs: dict  # rank -> names
    comm: int = 0
    root: int = 0
    tag: int = 0
    with_integers: bool = False
    colors: dict | None = None  # rank -> color of a split
    made: dict | None = None  # color -> number of the communicator that a split makes
    length: int = 1  # of the vectors that have to be of one form
    op: str = "sum"  # how they are reduced
    dests: tuple[int, ...] = ()  # to whom each place of the communicator sends in a round
    steps: int = 0  # of a shift; whether an exchange is waited for later
    have: tuple[tuple[int, int], ...] = ()  # which cells each place of the communicator has in an exchange
    want: tuple[tuple[int, int], ...] = ()
    later: bool = False  # a collective: its results are waited for where they are first used

    def plan(self, more=0):
        """Of an exchange; ``more`` makes another one of it."""
        return Plan([Box((a,), (b,)) for a, b in self.have], [Box((a,), (b + more,)) for a, b in self.want])


@dataclass
class Program:
    size: int
    events: list[Event]
    members: dict  # number of a communicator -> its ranks, as numbers in the world
    losses: dict  # rank -> names, for the ranks that have a loss
    twice: bool  # differentiate the gradients too


def draw(seed: int, most_ranks: int = 8) -> Program:
    """A correct program."""
    rng = random.Random(seed)
    size = rng.randint(1, most_ranks)
    known = {rank: [f"x{rank}.{i}" for i in range(2)] for rank in range(size)}
    comms = {0: tuple(range(size))}
    events: list[Event] = []

    def fresh(rank):
        name = f"v{rank}.{len(known[rank])}"
        known[rank].append(name)
        return name

    for number in range(rng.randint(4, 24)):
        dice = rng.random()
        if dice < 0.35:
            rank = rng.randrange(size)
            ins = {rank: [rng.choice(known[rank]), rng.choice(known[rank])]}
            events.append(Event("local", (rank,), ins, {rank: [fresh(rank)]}))
        elif dice < 0.65:
            comm = rng.choice(list(comms))
            source, dest = rng.choice(comms[comm]), rng.choice(comms[comm])
            ins = {source: [rng.choice(known[source])]}
            events.append(
                Event("p2p", (source, dest), ins, {dest: [fresh(dest)]}, comm, tag=number, with_integers=rng.random() < 0.3)
            )
        elif dice < 0.72:
            parent = rng.choice(list(comms))
            colors = {rank: rng.choice((None, 0, 1)) for rank in comms[parent]}
            keys = {rank: rng.randrange(3) for rank in comms[parent]}
            made = {}
            for color in (0, 1):
                mine = [(keys[rank], i, rank) for i, rank in enumerate(comms[parent]) if colors[rank] == color]
                if mine:
                    made[color] = len(comms)
                    comms[len(comms)] = tuple(rank for _, _, rank in sorted(mine))
            events.append(Event("split", comms[parent], keys, {}, parent, colors=colors, made=made))
        elif dice < 0.80:
            comm, kind, steps = rng.choice(list(comms)), rng.choice(ROUND), rng.randint(-2, 3)
            members = comms[comm]
            dests = [(place + steps) % len(members) for place in range(len(members))]
            if kind == "sendrecv":
                rng.shuffle(dests)
            ins = {r: [rng.choice(known[r])] for r in members}
            outs = {r: [fresh(r)] for r in members}
            events.append(Event(kind, members, ins, outs, comm, tag=number, dests=tuple(dests), steps=steps))
        elif dice < 0.86:
            comm, cells = rng.choice(list(comms)), rng.choice((2, 9, 99))
            members = comms[comm]
            have, want = [tuple([tuple(sorted(rng.choices(range(cells), k=2))) for _ in members]) for _ in range(2)]
            ins, outs = {r: [rng.choice(known[r])] for r in members}, {r: [fresh(r)] for r in members}
            events.append(Event("exchange", members, ins, outs, comm, have=have, want=want, steps=rng.randrange(2)))
        else:
            comm, kind = rng.choice(list(comms)), rng.choice(COLLECTIVES)
            members = comms[comm]
            root = rng.randrange(len(members))
            has = [members[root]] if kind in ("bcast", "scatter") else members
            wants = [members[root]] if kind in ("reduce", "gather") else members
            pieces = len(members)
            ins = {
                r: [rng.choice(known[r]) for _ in range(pieces if kind in ("scatter", "alltoall", "reduce_scatter") else 1)]
                for r in has
            }
            outs = {r: [fresh(r) for _ in range(pieces if kind in ("gather", "allgather", "alltoall") else 1)] for r in wants}
            op = rng.choice(
                ("sum", "sum", "prod") if kind in ("scan", "exscan") else ("sum", "sum", "mean", "max", "min", "prod")
            )
            length, later = rng.choice((0, 1, 3, 60)), rng.random() < 0.5
            events.append(Event(kind, members, ins, outs, comm, root, length=length, op=op, later=later))
    losses = {r: rng.sample(known[r], rng.choice((1, 1, 2))) for r in range(size) if rng.random() < 0.7}
    return Program(size, events, comms, losses, twice=rng.random() < 0.3)


def local(a, b):
    return F.tanh(a * F.sum(b) * 0.5 + 0.1)


def formed(x, length, op="sum", dtype=np.float64):
    """A vector of the length that all ranks of a reduction agreed on; near 1 if they are multiplied."""
    y = F.sum(x) * np.arange(1.0, length + 1)
    if op == "prod":
        y = 1 + 0.3 * F.tanh(y / (length + 1))
    return y if dtype == np.float64 else F.cast(y, dtype)


def leaves(program, rank):
    rng = np.random.default_rng(rank)
    return {f"x{rank}.{i}": mnpar.Variable(rng.uniform(0.5, 1.5, size=i + 1)) for i in range(2)}


class Alone:
    """The whole program in one process, as one graph."""

    def __init__(self, program):
        self.values = {}
        for rank in range(program.size):
            self.values |= leaves(program, rank)
        for event in program.events:
            if event.kind != "split":
                self.step(event)

    def step(self, e):
        v = self.values
        ins = {rank: [v[name] for name in names] for rank, names in e.ins.items()}
        root = e.ranks[e.root] if e.kind in ROOTED else None
        if e.kind == "local":
            outs = {e.ranks[0]: [local(*ins[e.ranks[0]])]}
        elif e.kind == "p2p":
            outs = {e.ranks[1]: ins[e.ranks[0]]}
        elif e.kind in ROUND:
            outs = {e.ranks[dest]: ins[rank] for rank, dest in zip(e.ranks, e.dests, strict=True)}
        elif e.kind == "exchange":
            cells = fold([formed(ins[r][0], b - a) @ np.eye(99)[a:b] for r, (a, b) in zip(e.ranks, e.have, strict=True)])
            outs = {r: [cells[a:b]] for r, (a, b) in zip(e.ranks, e.want, strict=True)}
        elif e.kind in ("scan", "exscan"):
            xs, own = [formed(ins[q][0], e.length, e.op) for q in e.ranks], e.kind == "scan"
            none = 0 * xs[0] + (e.op == "prod")
            outs = {r: [fold(xs[: i + own], e.op) if i + own else none] for i, r in enumerate(e.ranks)}
        elif e.kind in ("allreduce", "reduce"):
            total = fold([formed(ins[q][0], e.length, e.op) for q in e.ranks], e.op)
            outs = {rank: [total] for rank in e.outs}
        elif e.kind == "reduce_scatter":
            outs = {r: [fold([formed(ins[q][i], e.length, e.op) for q in e.ranks], e.op)] for i, r in enumerate(e.ranks)}
        elif e.kind == "bcast":
            outs = dict.fromkeys(e.ranks, ins[root])
        elif e.kind == "gather":
            outs = {root: [ins[rank][0] for rank in e.ranks]}
        elif e.kind == "scatter":
            outs = {rank: [ins[root][i]] for i, rank in enumerate(e.ranks)}
        elif e.kind == "allgather":
            outs = {rank: [ins[q][0] for q in e.ranks] for rank in e.ranks}
        else:
            outs = {rank: [ins[q][i] for q in e.ranks] for i, rank in enumerate(e.ranks)}
        for rank, names in e.outs.items():
            v.update(zip(names, outs[rank], strict=True))


def fold(xs, op="sum"):
    """The reduction in one process; extrema are those of the first that has them."""
    total = xs[0]
    for x in xs[1:]:
        total = {"max": F.maximum, "min": F.minimum, "prod": lambda a, b: a * b}.get(op, lambda a, b: a + b)(total, x)
    return total / len(xs) if op == "mean" else total


class Ranked:
    """One rank's part of the program, with communication."""

    def __init__(self, program, comm, mutation=None):
        self.rank, self.comms, self.members = comm.rank, {0: comm}, program.members
        self.values = leaves(program, comm.rank)
        for number, event in enumerate(program.events):
            if self.rank in event.ranks:
                self.step(event, mutation[1] if mutation and mutation[0] == (number, self.rank) else "")

    def step(self, e, wrong):
        if wrong == "drop":
            for name in e.outs.get(self.rank, []):
                self.values[name] = mnpar.Variable(np.ones(1))
            return
        v, me = self.values, self.rank
        ins = [] if e.kind == "split" else [v[name] for name in e.ins.get(me, [])]
        if e.kind == "local":
            v[e.outs[me][0]] = local(*ins)
            return
        comm = self.comms[e.comm]
        if e.kind == "split":
            self.split(e, comm)
        elif e.kind == "p2p":
            self.p2p(e, comm, ins, wrong)
        elif e.kind == "exchange":
            a, b = e.have[e.ranks.index(me)]
            exchange = F.iexchange if e.steps else F.exchange
            v[e.outs[me][0]] = exchange(comm, formed(ins[0], b - a), e.plan(more=wrong == "other plan"))
        elif e.kind in ROUND:
            self.values[e.outs[me][0]] = self.round(e, comm, ins[0], wrong)
        else:
            ys = self.collective(e, comm, ins, wrong)
            v.update(zip(e.outs.get(me, []), ys, strict=False))
            for name in e.outs.get(me, []) if wrong else ():  # told where a result is used: until then it may have too few
                v.setdefault(name, mnpar.Variable(np.ones(1)))

    def split(self, e, comm):
        color = e.colors[self.rank]
        sub = comm.split(color, e.ins[self.rank])
        if sub is not None:
            self.comms[e.made[color]] = sub

    def p2p(self, e, comm, ins, wrong):
        source, dest = e.ranks
        place = self.members[e.comm].index
        tag = e.tag + (1000 if wrong == "retag" else 0)
        if self.rank == source:
            F.send((ins[0], np.array([3, 1])) if e.with_integers else ins[0], comm, place(dest), tag)
        if self.rank == dest:
            y = F.recv(comm, place(source), tag=tag)
            if e.with_integers:
                y, numbers = y
                assert numbers.array.tolist() == [3, 1]
            self.values[e.outs[dest][0]] = y

    def round(self, e, comm, x, wrong):
        if e.kind == "shift":
            return F.shift(comm, x, e.steps + (wrong == "other steps"))
        place = e.ranks.index(self.rank)  # a spoilt split may have given it another rank
        dest, source = e.dests[place], e.dests.index(place)
        return F.sendrecv(x, comm, dest, source, e.tag + (1000 if wrong == "retag" else 0))

    def collective(self, e, comm, ins, wrong):
        kind, root, op = e.kind, e.root, e.op
        if wrong == "other reduction":
            op = "sum" if op == "prod" else "prod"
        if wrong == "other root":
            root = (root + 1) % comm.size
        if wrong == "other op":
            kind = "bcast" if kind == "allreduce" else "allreduce"
        later = e.later != (wrong == "other time")
        f = {name: getattr(F, "i" * later + name) for name in COLLECTIVES}
        length, dtype = e.length + (wrong == "reshape"), np.float32 if wrong == "retype" else np.float64
        if kind in SAME_FORM:
            ins = [formed(x, length, e.op, dtype) for x in ins] or [mnpar.Variable(np.ones(length))]
        x = ins[0] if ins else mnpar.Variable(np.ones(1))
        result = {
            "bcast": lambda: f["bcast"](comm, x, root),
            "reduce": lambda: f["reduce"](comm, x, root, op),
            "gather": lambda: f["gather"](comm, x, root),
            "scatter": lambda: f["scatter"](
                comm, ins if comm.rank == root and len(ins) == comm.size else [x] * comm.size, root
            ),
            "allgather": lambda: f["allgather"](comm, x),
            "allreduce": lambda: f["allreduce"](comm, x, op),
            "reduce_scatter": lambda: f["reduce_scatter"](comm, ins, op),
            "alltoall": lambda: f["alltoall"](comm, ins),
            "scan": lambda: f["scan"](comm, x, op),
            "exscan": lambda: f["exscan"](comm, x, op),
        }[kind]()
        return result if isinstance(result, tuple) else (result,)


def gradients(program, comm, mutation=None):
    """The gradients of this rank's leaves by name; of all ranks' (comm None) in one process."""
    run = Alone(program) if comm is None else Ranked(program, comm, mutation)
    mine = [name for rank in range(program.size) if comm is None or rank == comm.rank for name in leaves(program, rank)]
    losses = [
        F.sum(run.values[name]) for r, names in program.losses.items() if comm is None or r == comm.rank for name in names
    ]
    if program.twice:
        xs = [run.values[name] for name in mine]
        found = mnpar.grad(losses, xs, enable_double_backprop=True)
        losses = [F.sum(g * g) for g in found if g is not None]
    mnpar.backward(losses)
    for sub in [] if comm is None else list(run.comms.values())[1:]:
        sub.finalize()  # an MPI library has room for a thousand or so
    return {name: 0 * run.values[name].array if run.values[name].grad is None else run.values[name].grad for name in mine}


def mutations(program, seed):
    """The ways to spoil one step on one rank: ((step, rank), how)."""
    rng = random.Random(seed)
    choices = []
    for number, e in enumerate(program.events):
        if e.kind == "local" or len(set(e.ranks)) < 2:
            continue
        for rank in e.ranks:
            if e.kind == "split" and e.colors[rank] is not None:
                continue  # the rank would have no communicator to go on with
            place = e.ranks.index(rank)
            alone = e.kind in ROUND and e.ranks[e.dests[place]] == rank  # it sends to itself
            if e.kind == "exchange":
                route = e.plan().route(place)
                alone = not (route.sends or route.receives)
            hows = [] if alone else ["drop"]
            if e.kind in ("p2p", "sendrecv"):
                hows.append("retag")
            if e.kind == "exchange" and not alone:
                hows.append("other plan")
            if e.kind in ROOTED:
                hows.append("other root")
            if e.kind in COLLECTIVES:
                hows += ["other op", "other time"]
            if e.kind == "shift":
                hows.append("other steps")
            if e.kind in SAME_FORM:
                hows.append("other reduction")
            if e.kind in SAME_FORM:
                hows += ["reshape", "retype"] if e.length else ["reshape"]
            choices += [((number, rank), how) for how in hows]
    return rng.choice(choices) if choices else None
