"""Random training programs on copies of one model, and what becomes of them if one rank's copy goes
its own way.

Every rank has some samples, or none, in each update, and the weights have to be those that one
process has which trains on all of them. Then one rank makes a mistake (``spoil``): another learning
rate, a hook that the others have not, weights changed in between, an update left out. Copies that
drift apart have to be reported, at the latest where they are next compared: ``check`` of
:func:`mnpar.create_multi_node_optimizer` says after how many updates, and programs end after as
many.

A rank's gradient can be any: ranks have samples of their own. So a wrong gradient (a backward that
is run twice, another loss) makes another right program, and there is none of these here.
"""

import itertools
import random
import sys
from dataclasses import dataclass, replace

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.random_programs.spoiling import TOLD, HungError, limit, run_job

OPTIMIZERS = {
    "SGD": lambda lr: mnpar.optimizers.SGD(lr),
    "MomentumSGD": lambda lr: mnpar.optimizers.MomentumSGD(lr),
    "NesterovAG": lambda lr: mnpar.optimizers.NesterovAG(lr),
    "Adam": lambda lr: mnpar.optimizers.Adam(lr),
    "RMSprop": lambda lr: mnpar.optimizers.RMSprop(lr),
}
HOOKS = {
    "decay": lambda rate: mnpar.optimizer_hooks.WeightDecay(rate),
    "lasso": lambda rate: mnpar.optimizer_hooks.Lasso(rate),
    "clip": lambda rate: mnpar.optimizer_hooks.GradientClipping(rate),
    "hard clip": lambda rate: mnpar.optimizer_hooks.GradientHardClipping(-rate, rate),
}


@dataclass(frozen=True)
class Training:
    """What a rank does; the same on all of them, but for their samples."""

    size: int
    widths: tuple[int, ...]  # of the model's layers
    samples: tuple[tuple[int, ...], ...]  # by update and rank
    optimizer: str
    lr: float
    hooks: tuple[tuple[str, float], ...]
    explicit: bool  # backward and update() by itself, not update(loss)
    ddp: bool  # DistributedDataParallel, and not create_multi_node_optimizer
    check: int  # after how many updates copies are compared
    options: tuple[tuple[str, object], ...] = ()  # of either
    # ---- mistakes of one rank ----
    frozen: int | None = None  # the layer that it does not train
    changed: int | None = None  # the update before which it changes its weights
    skipped: int | None = None  # the update that it leaves out
    repeated: int | None = None  # the update that it makes twice
    reset: int | None = None  # the update before which it forgets its momentum
    other_lr: int | None = None  # the update before which it changes its learning rate


def draw(seed, most_ranks=4):
    """A right program."""
    rng = random.Random(seed)
    size = rng.randint(2, most_ranks)
    updates = 1 + rng.choice((2, 4, 8))  # copies are compared in the last one
    samples = []
    for _ in range(updates):
        counts = [rng.choice((0, 1, 1, 2, 3)) for _ in range(size)]
        counts[rng.randrange(size)] += not any(counts)
        samples.append(tuple(counts))
    options = {}
    if rng.random() < 0.3:
        options["bucket_bytes"] = rng.choice((None, 16, 2**20))
    ddp = rng.random() < 0.3
    if not ddp and rng.random() < 0.2:
        options["sharded"] = True
    return Training(
        size,
        tuple(rng.randint(1, 4) for _ in range(rng.randint(2, 4))),
        tuple(samples),
        rng.choice(list(OPTIMIZERS)),
        rng.choice((0.01, 0.1)),
        tuple(
            (name, rng.choice((0.01, 0.5))) for name in rng.sample(list(HOOKS), rng.randint(0, 2))
        ),
        rng.random() < 0.3,
        ddp,
        rng.choice((1, 2, 100)),
        tuple(options.items()),
    )


class Model(mnpar.ChainList):
    """Layers of these widths."""

    def __init__(self, widths):
        rng = np.random.default_rng(len(widths))
        super().__init__(
            *[
                L.Linear(a, b, initialW=rng.normal(size=(b, a)), initial_bias=rng.normal(size=b))
                for a, b in itertools.pairwise(widths)
            ]
        )

    def forward(self, x):
        for layer in self:
            x = F.tanh(layer(x))
        return x


def samples_of(training, update, rank):
    """A rank's samples in an update: inputs and targets."""
    rng = np.random.default_rng((update, rank))
    n = training.samples[update][rank]
    return rng.normal(size=(n, training.widths[0])), rng.normal(size=(n, training.widths[-1]))


def train(training, samples, comm=None):
    """Train, on a rank of ``comm`` or alone; return the weights in the end, and those before the
    last update, in which copies are compared.
    """
    with mnpar.using_config("dtype", np.float64):
        model = Model(training.widths)
    optimizer = OPTIMIZERS[training.optimizer](training.lr)
    net = model
    if comm is not None and training.ddp:
        net = mnpar.parallel.DistributedDataParallel(
            model, comm, check=training.check, **dict(training.options)
        )
    elif comm is not None:
        optimizer = mnpar.create_multi_node_optimizer(
            optimizer, comm, check=training.check, **dict(training.options)
        )
    optimizer.setup(model)
    for i, (name, rate) in enumerate(training.hooks):
        optimizer.add_hook(HOOKS[name](rate), name=f"{name} {i}")
    if training.frozen is not None:
        model[training.frozen].disable_update()

    def loss(x, t):
        return F.mean_squared_error(net(x), t)

    for update in range(len(training.samples)):
        x, t = samples(update)
        compared = [param.array.copy() for param in model.params()]
        if training.changed == update:
            model[0].W.array[...] += 0.25
        if training.other_lr == update:
            name = "alpha" if training.optimizer == "Adam" else "lr"
            setattr(optimizer, name, 0.5 * getattr(optimizer, name))
        if training.reset == update:
            for param in model.params():
                for value in (param.update_rule.state or {}).values():
                    value[...] = 0
        times = 1 - (training.skipped == update) + (training.repeated == update)
        for _ in range(times):
            if training.ddp and comm is not None:
                model.cleargrads()
                y = net(x)
                (F.mean_squared_error(y, t) if len(x) else F.sum(y)).backward()
                optimizer.update()
            elif training.explicit:
                model.cleargrads()
                if len(x):
                    # update() by itself takes the mean over ranks
                    share = len(x) / sum(training.samples[update])
                    (loss(x, t) * (1 if comm is None else training.size * share)).backward()
                optimizer.update()
            else:
                optimizer.update(loss, x, t)
    return [param.array.copy() for param in model.params()], compared


def truth(training):
    """What ``train`` returns in one process that has the samples of all ranks."""

    def samples(update):
        parts = [samples_of(training, update, rank) for rank in range(training.size)]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    return train(training, samples)


def over_ranks(training, comm):
    """What ``train`` returns on a rank."""
    return train(training, lambda update: samples_of(training, update, comm.rank), comm)


def spoil(training, seed):
    """A mistake: the rank that makes it, how, and what that rank does instead."""
    rng = random.Random(seed)
    # at first all get rank 0's weights, and in the end they are compared
    later = rng.randrange(1, len(training.samples) - 1)
    hows = {
        "other lr": replace(training, lr=0.5 * training.lr),
        "other lr later": replace(training, other_lr=later),
        "other optimizer": replace(
            training, optimizer=rng.choice([o for o in OPTIMIZERS if o != training.optimizer])
        ),
        "another hook": replace(training, hooks=(*training.hooks, ("decay", 0.3))),
        "frozen layer": replace(training, frozen=rng.randrange(len(training.widths) - 1)),
        "changed weights": replace(training, changed=later),
        "drop update": replace(training, skipped=later),
        "repeat update": replace(training, repeated=later),
    }
    if training.hooks:
        (name, rate), *others = training.hooks
        hows["no hook"] = replace(training, hooks=tuple(others))
        hows["other hook"] = replace(training, hooks=((name, 0.3 * rate), *others))
    if len(training.hooks) > 1:
        hows["hooks in another order"] = replace(training, hooks=training.hooks[::-1])
    # a rank alone has the state of its share, and none could compare it
    if training.optimizer != "SGD" and "sharded" not in dict(training.options):
        hows["forgotten state"] = replace(training, reset=later)
    how = rng.choice(list(hows))
    return rng.randrange(training.size), how, hows[how]


def same(found, wanted):
    """Whether weights are the same, up to rounding."""
    return all(np.allclose(a, b, 1e-7, 1e-9) for a, b in zip(found, wanted, strict=True))


def outcome(seed):
    """What became of a spoilt program on thread ranks, how it was spoilt, and what to say of it:
    as :func:`tests.random_programs.spoiling.outcome`.
    """
    training = draw(seed)
    rank, how, instead = spoil(training, seed)
    text = f"training {seed}, {how} on rank {rank}: {training} but {instead}"
    try:
        with limit():
            found = mnpar.run(
                lambda comm: over_ranks(instead if comm.rank == rank else training, comm),
                ranks=training.size,
            )
    except HungError as hung:
        return "hung", how, f"{text}: {hung}"
    except TOLD as told:
        return "reported", how, f"{text}: {told!r}"
    wanted, compared = truth(training)
    if all(same(one, wanted) for one, _ in found):
        return "harmless", how, text
    # DistributedDataParallel knows no optimizer: it tells drift where values are compared
    unseen = training.ddp and all(same(one, compared) for _, one in found)
    return ("own" if unseen else "silent"), how, text


def job(seed):
    """As :func:`outcome`, as a job of mpiexec's."""
    training = draw(seed)
    rank, how, instead = spoil(training, seed)
    what, right, output = run_job("tests.random_programs.training", seed, training.size)
    text = f"training {seed}, {how} on rank {rank}: {training} but {instead}\n{output}"
    return what or ("harmless" if all(right) else "silent"), how, text


def main(seed):
    """One rank of a job."""
    training = draw(seed)
    rank, _, instead = spoil(training, seed)
    comm = mnpar.create_communicator()
    found = over_ranks(instead if comm.rank == rank else training, comm)
    final, compared = [same(*pair) for pair in zip(found, truth(training), strict=True)]
    # where a copy drifts after the last comparison, DistributedDataParallel cannot tell
    right = final or (training.ddp and compared)
    print(f"rank {comm.rank} is {'right' if right else 'wrong'}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
