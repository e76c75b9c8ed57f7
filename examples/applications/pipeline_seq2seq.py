"""Sequence to sequence on two ranks: the encoder is the first stage of a pipeline, the decoder the
last; lengths change.

    mpiexec -n 2 python examples/applications/pipeline_seq2seq.py
    python examples/applications/pipeline_seq2seq.py
        starts two ranks itself
    python examples/applications/pipeline_seq2seq.py --threads
        ranks that are threads: needs no MPI

The task is to write a line of digits backwards. Every line has its own length, so no two
micro-batches have the same shapes: the encoder's rank has the lines, as a list of arrays, the
decoder's rank has what is to be written, and only the encoder's last states go from one to the
other. The weights are those of one rank.
"""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import Pipeline

BEGIN, WORDS = 10, 11  # the digits, and what stands for "begin to write"


def weights(seed):
    return mnpar.initializers.LeCunNormal(rng=np.random.default_rng(seed))


def embed(layer, lines):
    """Arrays (T_i,) as Variables (T_i, D), in one look-up."""
    ends = np.cumsum([len(line) for line in lines])[:-1]
    return (
        F.split_axis(layer(np.concatenate(lines)), ends, axis=0)
        if len(lines) > 1
        else [layer(lines[0])]
    )


class Encoder(mnpar.Chain):
    """Reads lines; returns the final states h and c of an LSTM, (1, N, H) each, for the decoder."""

    def __init__(self, unit):
        super().__init__()
        self.embed = L.EmbedID(WORDS, unit, initialW=weights(0))
        self.rnn = L.NStepLSTM(1, unit, unit, 0.0, initialW=weights(1))

    def __call__(self, lines):
        h, c, _ = self.rnn(None, None, embed(self.embed, lines))
        return h, c


class Decoder(mnpar.Chain):
    """Writes lines: the mean loss over lines, with teacher forcing."""

    def __init__(self, unit):
        super().__init__()
        self.embed = L.EmbedID(WORDS, unit, initialW=weights(2))
        self.rnn = L.NStepLSTM(1, unit, unit, 0.0, initialW=weights(3))
        self.out = L.Linear(unit, WORDS, initialW=weights(4))

    def __call__(self, h, c, lines):
        told = [np.concatenate([[BEGIN], line[:-1]]) for line in lines]
        _, _, ys = self.rnn(h, c, embed(self.embed, told))
        y = self.out(F.concat(ys, axis=0))
        t = np.concatenate(lines)
        mnpar.report({"accuracy": F.accuracy(y, t)}, self)
        return F.sum(F.softmax_cross_entropy(y, t, reduce="no")) / len(lines)


def train(model, batches, epochs, say=True):
    """``batches``: what the model is called with."""
    optimizer = mnpar.optimizers.Adam(0.01).setup(model)
    reporter = mnpar.Reporter()
    reporter.add_observer("main", model)
    reporter.add_observers("main", model.namedlinks(skipself=True))
    for epoch in range(epochs):
        seen = []
        for batch in batches:
            with reporter:
                optimizer.update(model, *batch)
            seen.append(
                {name.rsplit("/", 1)[-1]: value for name, value in reporter.observation.items()}
            )
        if say and "loss" in seen[-1]:
            loss, accuracy = (
                np.mean([float(one[name]) for one in seen]) for name in ("loss", "accuracy")
            )
            print(f"epoch {epoch + 1:2}  loss {loss:7.4f} per line  digits right {accuracy:.3f}")


def load(args):
    """Batches of lines, and of the same lines backwards."""
    rng = np.random.default_rng(args.seed)
    lines = [rng.integers(0, 10, rng.integers(1, args.longest + 1)) for _ in range(args.lines)]
    batches = [lines[i : i + args.batchsize] for i in range(0, len(lines), args.batchsize)]
    return batches, [[line[::-1] for line in batch] for batch in batches]


def main(comm, args):
    """Train; returns the pipeline."""
    lines = load(args)[comm.rank]
    batches = [(batch,) for batch in lines]
    part = [Encoder, Decoder][comm.rank](args.unit)
    pipeline = Pipeline(comm, part, args.schedule, args.micro_batches)
    train(pipeline, batches, args.epoch)
    if comm.is_root:
        lengths = [len(line) for batch in lines for line in batch]
        print(
            f"{len(lengths)} lines of {min(lengths)} to {max(lengths)} digits went through one "
            "pipeline: a message says its own shape."
        )
    return pipeline


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, exactly=True)
    schedules = ("gpipe", "1f1b", "zb1p", "eager")
    parser.flag("--schedule", "1f1b", "who works when", choices=schedules)
    parser.flag("--micro-batches -m", 4, "pieces of a batch")
    parser.flag("--batchsize -b", 50, "lines per step")
    parser.flag("--lines", 1000, "lines to learn from")
    parser.flag("--longest", 6, "digits in the longest line")
    parser.flag("--epoch -e", 8, "sweeps over the lines")
    parser.flag("--unit -u", 64, "width of the states")
    parser.flag("--seed -s", mnpar.launch.seed, "of the lines", default=0)
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
