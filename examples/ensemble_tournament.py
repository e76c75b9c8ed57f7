"""Population-based training: members have their own learning rates, and after each round losers
copy the winners.

    mpiexec -n 4 python examples/ensemble_tournament.py
    python examples/ensemble_tournament.py --threads 4 --members 2      two ranks for each member
    python examples/ensemble_tournament.py --threads 1 --members 8      eight members on one rank

Each member starts with random weights and a random learning rate. A round is a pass over the
training images; then members are paired, and the one that is worse on the validation images copies
weights, momentum and rate of the other, and perturbs the rate. All ranks agree on the winners,
which are those of one rank.

The images are scikit-learn's 1,797 handwritten digits.
"""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


def tournaments(comm, data, args, say=lambda number, result, rates: None):
    """Train for all rounds; returns the ensemble and the result of the last tournament."""
    mnpar.random.seed(args.seed)
    train, valid, _ = data
    ensemble = mnpar.Ensemble(comm, lambda group, i: perceptron(group, args.unit), args.members)
    rates = 10 ** np.random.default_rng(args.seed).uniform(-4, 0, ensemble.size)
    links = list(ensemble.members)
    optimizers = [mnpar.optimizers.MomentumSGD(rates[i]) for i in ensemble.numbers]
    for link, optimizer in zip(links, optimizers, strict=True):
        optimizer.setup(link)
    for number in range(args.rounds):
        for i, link, optimizer in zip(ensemble.numbers, links, optimizers, strict=True):
            learn(link, optimizer, train, np.random.default_rng([args.seed, number, i]), args)
        with mnpar.no_backprop_mode():
            scores = [-loss(link, *valid).item() for link in links]
        result = ensemble.tournament(scores, optimizers, perturb, how=args.how, seed=args.seed)
        say(
            number,
            result,
            comm.allgather_obj(
                dict(zip(ensemble.numbers, [one.lr for one in optimizers], strict=True))
            ),
        )
    return ensemble, result


def perturb(optimizer, rng):
    """Change the learning rate that a loser has copied from its winner."""
    optimizer.lr *= rng.choice([0.5, 2.0])


def perceptron(group, unit):
    """A member, on any number of ranks: each has some of the hidden units."""
    first = L.ColumnParallelLinear(group, 64, unit, gather_output=False)
    return mnpar.Sequential(
        first, F.relu, L.RowParallelLinear(group, unit, 10, input_is_parallel=True)
    )


def loss(link, x, t):
    return F.softmax_cross_entropy(link(x), t)


def learn(link, optimizer, data, rng, args):
    """One pass over the training images."""
    x, t = data
    for batch in np.array_split(rng.permutation(len(x)), max(len(x) // args.batchsize, 1)):
        optimizer.update(loss, link, x[batch], t[batch])


def load():
    """Images and labels: to train, to decide by, and to test."""
    (x, t), test = [
        mnpar.dataset.concat_examples(part)
        for part in mnpar.datasets.get_digits(dtype=mnpar.get_dtype())
    ]
    cut = len(x) * 4 // 5
    return (x[:cut], t[:cut]), (x[cut:], t[cut:]), test


def main(comm, args):
    """Hold the tournaments; returns the members' answers, and the result of the last one."""
    data = load()

    def say(number, result, rates):
        rates = {i: rate for some in rates for i, rate in some.items()}
        pairs = enumerate(zip(result.scores, result.winners, strict=True))
        fates = [
            f"{-score:7.4f}{'' if winner == i else f' ← {winner}'}" for i, (score, winner) in pairs
        ]
        if comm.is_root:
            losses = "  ".join([f"{fate:12}" for fate in fates]).rstrip()
            print(f"round {number + 1:2d}   losses {losses}")
            shown = "  ".join([f"{rates[i]:<12.2g}" for i in sorted(rates)]).rstrip()
            print(f"           rates {shown}")

    if comm.is_root:
        print(
            "losses on the validation images (← 2: lost to member 2, and goes on from its "
            "weights), then learning rates"
        )
    ensemble, result = tournaments(comm, data, args, say)
    x, t = data[2]
    with mnpar.using_config("train", False), mnpar.no_backprop_mode():
        answers = ensemble.answers(x)  # of all members, on every rank
    best, mean = (F.accuracy(y, t).item() for y in (answers.members[result.best], answers.mean()))
    vote = float((answers.vote() == t).mean())
    if comm.is_root:
        print(
            f"accuracy   best member {best:.4f}   mean of {ensemble.size} {mean:.4f}   their "
            f"vote {vote:.4f}"
        )
        print("In each round, members that lost went on from the weights of those that beat them.")
    return answers, result


def check(parser, args):
    """Refuse what does not go together."""
    ranks = mnpar.launch.started_ranks(args, args.ranks)
    if args.members and ranks > args.members and ranks % args.members:
        parser.error(
            f"{ranks} ranks do not make {args.members} members of as many ranks: "
            f"{mnpar.launch.command(args.members, args.threads)}"
        )


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=4, check=check)
    parser.flag("--members", int, "how many (one on each rank)", metavar="M")
    parser.flag("--rounds", 8, "how many")
    parser.flag("--how", "pairs", "who takes from whom", choices=["pairs", "truncation"])
    parser.flag("--batchsize -b", 50, "images per step")
    parser.flag("--unit -u", 32, "hidden units of a member")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights, rates and lots", default=0)
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
