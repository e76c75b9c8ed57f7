"""An MLP cut into stages on ranks, trained on micro-batches by any schedule; the schedule and what
really happened are drawn.

    mpiexec -n 4 python examples/pipeline_mlp.py --schedule 1f1b
    python examples/pipeline_mlp.py --schedule zbv        starts two ranks itself
    python examples/pipeline_mlp.py --threads 3           ranks that are threads: needs no MPI

``--schedule`` takes any name in mnpar.parallel.SCHEDULES, or a list of your own, the ranks' actions
with commas between them: ``--schedule "F0 F1 B1 B0, F0 F1 B1 B0"``. The layers are given to the
stages by what they cost, measured here. Rank 0 prints what the schedule promises; a timeline of one
step is left in ``--out``: timeline.png, and timeline.json for ui.perfetto.dev. The weights are
those of one rank, whatever the schedule.
"""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import (
    SCHEDULES,
    Pipeline,
    balance,
    make_schedule,
    measure,
    own_schedule,
    simulate,
)


class Layer(mnpar.Chain):
    """A linear layer, and relu unless it is the last; its first weights depend on its number
    alone.
    """

    def __init__(self, number, n_in, n_out, last):
        super().__init__()
        self.last = last
        self.linear = L.Linear(
            n_in, n_out, initialW=mnpar.initializers.HeNormal(rng=np.random.default_rng(number))
        )

    def __call__(self, x):
        y = self.linear(x)
        return y if self.last else F.relu(y)


def make_layers(args):
    sizes = [64, *[args.unit] * (args.layers - 1), 10]
    return [Layer(i, sizes[i], sizes[i + 1], i + 1 == args.layers) for i in range(args.layers)]


def make_stages(comm, schedule, args, x):
    """This rank's stages: consecutive layers, so that all stages cost about the same. Rank 0
    measures for all.
    """
    layers = make_layers(args)
    counts = comm.bcast_obj(balance(measure(layers, x), schedule.stages) if comm.is_root else None)
    ends = np.cumsum([0, *counts])
    stages = [
        mnpar.Sequential(*layers[ends[s] : ends[s + 1]]) for s in schedule.stages_of(comm.rank)
    ]
    if schedule.where[-1] == comm.rank:
        stages[-1] = L.Classifier(stages[-1])
    return stages, counts


def read(schedule, ranks, micro_batches):
    """A schedule by its name, or from a list of actions; ValueError: it is none, cannot end or is
    for others.
    """
    if schedule in SCHEDULES:
        return make_schedule(schedule, ranks, micro_batches)
    own = own_schedule([actions.strip() for actions in schedule.split(",")])
    if own.ranks != ranks:
        raise ValueError(
            f"actions of {own.ranks} ranks, with commas between them, are given for {ranks} ranks"
        )
    simulate(own)
    return own


def train(comm, pipeline, batches, epochs, out):
    """SGD, with a line for each epoch, whose losses it returns; the second step is profiled."""
    where = pipeline.schedule.where
    optimizer = mnpar.optimizers.MomentumSGD(lr=0.05).setup(pipeline)
    reporter = mnpar.Reporter()
    reporter.add_observer("main", pipeline)
    reporter.add_observers("main", pipeline.namedlinks(skipself=True))
    history = []
    for epoch in range(epochs):
        losses = []
        for x, t in batches:
            own = ((x,) if comm.rank == where[0] else ()) + ((t,) if comm.rank == where[-1] else ())
            if out and (epoch, len(losses)) == (0, 1):
                with mnpar.profile(out, comm) as timeline:
                    optimizer.update(pipeline, *own)
                if comm.is_root:
                    print(
                        f"one step: {timeline.text()}\n{out}/timeline.png, and "
                        f"{out}/timeline.json for ui.perfetto.dev"
                    )
            else:
                with reporter:
                    optimizer.update(pipeline, *own)
            losses.append(pipeline.loss)
        if comm.rank == where[-1]:
            history.append(np.mean(losses).item())
            accuracy = next(
                (v for name, v in reporter.observation.items() if name.endswith("accuracy")), np.nan
            )
            print(
                f"epoch {epoch + 1:2}  loss {history[-1]:.4f}  accuracy of the last batch "
                f"{float(accuracy):.3f}"
            )
    return comm.bcast_obj(history, root=where[-1])


def main(comm, args):
    """Train; returns the pipeline."""
    digits, _ = mnpar.datasets.get_digits(dtype=mnpar.get_dtype())
    x, t = mnpar.dataset.concat_examples(digits[: args.batchsize * args.batches])
    batches = [
        (x[i : i + args.batchsize], t[i : i + args.batchsize])
        for i in range(0, len(x), args.batchsize)
    ]
    schedule = read(args.schedule, comm.size, args.micro_batches)
    stages, counts = make_stages(
        comm, schedule, args, x[: args.batchsize // schedule.micro_batches]
    )
    pipeline = Pipeline(comm, stages, schedule, schedule.micro_batches)
    simulated = simulate(schedule)
    if comm.is_root:
        print(f"{args.layers} layers in {schedule.stages} stages: {counts}")
        print(simulated.text(width=4 if schedule.stages == comm.size else 5))
    history = train(comm, pipeline, batches, args.epoch, args.out)
    if comm.is_root:
        print(
            f"{comm.size} rank(s) have trained one network, whose loss was {history[0]:.4f} after "
            f"the first epoch and {history[-1]:.4f} after the last. By the schedule a rank waits "
            f"for {simulated.bubble:.0%} of a step; the timeline says how long each has waited."
        )
    return pipeline


def check(parser, args):
    """Refuse what does not go together."""
    read(args.schedule, mnpar.launch.started_ranks(args, args.ranks), args.micro_batches)


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, check=check)
    parser.flag("--schedule", "1f1b", f"{', '.join(SCHEDULES)}, or your own actions")
    parser.flag("--micro-batches -m", 4, "pieces of a batch")
    parser.flag("--batchsize -b", 100, "examples per step")
    parser.flag("--batches", 14, "steps per epoch")
    parser.flag("--epoch -e", 3, "sweeps over the data")
    parser.flag("--layers", 8, "layers of the network")
    parser.flag("--unit -u", 100, "width of the hidden layers")
    parser.flag("--out -o", mnpar.launch.folder, "of the timeline; '' for none", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
