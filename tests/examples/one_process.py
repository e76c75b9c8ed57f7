"""Train an example's network on ranks, and once more in one process, and print how far the weights
are apart; in float64.

The environment variable EXAMPLE names the example; the flags are the example's. What one process
trains is written here without any communication.
"""

import argparse
import os
from functools import partial

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.examples.running import load


def largest(found, expected):
    """Return the largest difference of two lists of arrays."""
    return max(abs(a - b).max() for a, b in zip(found, expected, strict=True))


def weights(link):
    return [param.array for param in link.params()]


def on_root(comm, arrays):
    """Return the arrays of all ranks, in their order, on rank 0; elsewhere None."""
    every = comm.gather_obj(arrays)
    return [array for some in every for array in some] if comm.is_root else None


def mlp_model_parallel(example, comm, args):
    model = example.main(comm, args)
    found = on_root(comm, weights(model))
    if comm.is_root:
        l1 = example.linear(64, args.unit, seed=1)
        l2 = example.linear(args.unit, args.unit, seed=2)
        l3 = example.linear(args.unit, 10, seed=3)
        whole = mnpar.Sequential(l1, F.relu, l2, F.relu, l3)
        data, _ = mnpar.datasets.get_digits(dtype=np.float64)
        optimizer = mnpar.optimizers.MomentumSGD(lr=0.1).setup(whole)
        batches = mnpar.iterators.SerialIterator(data, args.batchsize, shuffle=False)
        for _ in range(args.steps):
            x, t = mnpar.dataset.concat_examples(next(batches))
            optimizer.update(lambda x=x, t=t: F.softmax_cross_entropy(whole(x), t))
        return largest(found, weights(whole))
    return None


def pipeline_mlp(example, comm, args):
    pipeline = example.main(comm, args)
    numbers = pipeline.schedule.stages_of(comm.rank)
    every = comm.gather_obj(dict(zip(numbers, map(weights, pipeline), strict=True)))
    if comm.is_root:
        stages = {number: arrays for some in every for number, arrays in some.items()}
        found = [array for number in sorted(stages) for array in stages[number]]
        model = mnpar.Sequential(*example.make_layers(args))
        digits, _ = mnpar.datasets.get_digits(dtype=np.float64)
        x, t = mnpar.dataset.concat_examples(digits[: args.batchsize * args.batches])
        optimizer = mnpar.optimizers.MomentumSGD(lr=0.05).setup(model)
        for _ in range(args.epoch):
            for i in range(0, len(x), args.batchsize):
                rows = slice(i, i + args.batchsize)
                optimizer.update(lambda rows=rows: F.softmax_cross_entropy(model(x[rows]), t[rows]))
        return largest(found, weights(model))
    return None


class Translator(mnpar.Chain):
    def __init__(self, example, unit):
        super().__init__()
        self.encoder = example.Encoder(unit)
        self.decoder = example.Decoder(unit)

    def __call__(self, lines, reversed_lines):
        return self.decoder(*self.encoder(lines), reversed_lines)


def pipeline_seq2seq(example, comm, args):
    pipeline = example.main(comm, args)
    found = on_root(comm, weights(pipeline))
    if comm.is_root:
        whole = Translator(example, args.unit)
        batches, targets = example.load(args)
        example.train(whole, list(zip(batches, targets, strict=True)), args.epoch, say=False)
        return largest(found, weights(whole))
    return None


class UNet(mnpar.ChainList):
    def __init__(self, example, width):
        super().__init__(*[example.part(number, width) for number in range(example.STAGES)])

    def __call__(self, x, clean):
        outer, h = self[0](x)
        inner, h = self[1](h)
        return F.mean_squared_error(self[3](self[2](h, inner), outer), clean)


def pipeline_unet(example, comm, args):
    pipeline = example.main(comm, args)
    found = on_root(comm, weights(pipeline))
    if comm.is_root:
        whole = UNet(example, args.width)
        noisy, clean = example.patches(example.photographs()[0], 10 * args.batchsize, args.noise)
        example.train(args, whole, mnpar.datasets.TupleDataset(noisy, clean), say=False)
        # as the ranks have them
        schedule = pipeline.schedule
        numbers = [n for rank in range(schedule.ranks) for n in schedule.stages_of(rank)]
        return largest(found, [array for n in numbers for array in weights(whole[n])])
    return None


def ensemble_tournament(example, comm, args):
    answers, result = example.main(comm, args)
    if comm.is_root:
        args = argparse.Namespace(**{**vars(args), "members": len(result.winners)})
        data = example.load()
        ensemble, other = example.tournaments(mnpar.create_communicator("self"), data, args)
        assert other.winners == result.winners
        return largest([answers.members.array], [ensemble.answers(data[2][0]).members.array])
    return None


class Convolutions(mnpar.Chain):
    def __init__(self, filters, unit):
        super().__init__()
        self.filters = L.Convolution2D(1, filters, 3, pad=1)
        self.each = L.Convolution2D(filters, filters, 3, pad=1, groups=filters)
        self.channels = L.Convolution2D(filters, 2 * filters, 1)
        self.l1 = L.Linear(2 * filters * 4 * 4, unit)
        self.l2 = L.Linear(unit, 10)


def parallel_convolution(example, comm, args):
    found = example.main(comm, args)
    if comm.is_root:
        digits, _ = mnpar.datasets.get_digits(ndim=3, dtype=np.float64)
        data = mnpar.dataset.concat_examples(digits[: args.train])
        Convolutions.forward = example.Net.forward
        example.Net = lambda comm, filters, unit: Convolutions(filters, unit)
        whole = mnpar.serializers.serialize(example.train(None, data, args)[0])
        assert found.keys() == whole.keys()
        return largest(found.values(), whole.values())
    return None


def mixture_of_experts(example, comm, args):
    net = example.main(comm, args)
    every = comm.gather_obj({path: param.array for path, param in net.namedparams()})
    if comm.is_root:
        found = {path: array for some in every for path, array in some.items()}
        alone = mnpar.create_communicator("self")
        whole = example.mixture(alone, args)
        example.train(alone, whole, example.load(args.seed), args)
        assert dict(whole.namedparams()).keys() == found.keys()
        return largest([found[path] for path, _ in whole.namedparams()], weights(whole))
    return None


def ensemble_mnist(example, comm, args):
    model = example.main(comm, args)
    found = on_root(comm, weights(model))
    if comm.is_root:
        train, _ = example.load(args.data)
        streams = [np.random.default_rng([args.seed, rank]) for rank in range(comm.size)]
        members = mnpar.ChainList()
        for stream in streams:
            with mnpar.random.using(stream):
                layers = L.Linear(64, args.unit), F.relu, L.Linear(args.unit, 10)
                members.append(mnpar.Sequential(*layers))

        def loss(x, t):
            mean = F.average(F.stack([member(x) for member in members], axis=0), axis=0)
            return F.softmax_cross_entropy(mean, t)

        optimizer = mnpar.optimizers.Adam().setup(members)
        with mnpar.random.using(streams[0]):
            size = min(args.batchsize, len(train))
            iterator = mnpar.iterators.SerialIterator(train, size)
            while iterator.epoch < args.epoch:
                optimizer.update(loss, *mnpar.dataset.concat_examples(next(iterator)))
        return largest(found, weights(members))
    return None


def ensemble_bagging(example, comm, args):
    model = example.main(comm, args)
    found = on_root(comm, weights(model))
    if comm.is_root:
        train, _, _ = example.load(args)
        alone = mnpar.create_communicator("self")
        sizes = example.sizes(train, args)
        members = mnpar.ChainList(
            *[example.Stage(alone, sizes, (args.seed, i)) for i in range(comm.size // args.groups)]
        )

        def loss(x, t):
            mean = F.average(F.stack([member(x) for member in members], axis=0), axis=0)
            return F.softmax_cross_entropy(mean, t)

        optimizer = mnpar.optimizers.MomentumSGD(lr=0.1).setup(members)
        iterator = example.batches(train, args, 0, alone, alone)
        while iterator.epoch < args.epoch:
            optimizer.update(loss, *mnpar.dataset.concat_examples(next(iterator)))
        return largest(found, weights(members))
    return None


def main(program, example, comm, args):
    mnpar.config.dtype = np.dtype("f8")
    difference = program(example, comm, args)
    if comm.is_root:
        print(f"on {comm.size} ranks and on one: the weights differ by {difference:.1e} at most")


PROGRAMS = {
    "mlp_model_parallel": mlp_model_parallel,
    "pipeline_mlp": pipeline_mlp,
    "mixture_of_experts": mixture_of_experts,
    "ensemble_mnist": ensemble_mnist,
    "ensemble_bagging": ensemble_bagging,
    "parallel_convolution": parallel_convolution,
    "ensemble_tournament": ensemble_tournament,
    "applications/pipeline_seq2seq": pipeline_seq2seq,
    "applications/pipeline_unet": pipeline_unet,
}


if __name__ == "__main__":
    name = os.environ["EXAMPLE"]
    example = load(name)
    mnpar.launch.script(partial(main, PROGRAMS[name], example), example.flags())
