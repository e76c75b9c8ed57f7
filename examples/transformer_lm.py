"""A language model that writes characters, on any mesh of ranks: the losses are the same on all of
them.

    python examples/transformer_lm.py
        starts four ranks itself: data=2,model=2
    python examples/transformer_lm.py --divide data=2,pipe=2,model=2
        eight
    python examples/transformer_lm.py --divide pipe=2,sequence=2 --threads
        ranks that are threads: needs no MPI
    mpiexec -n 8 python examples/transformer_lm.py --divide pipe=4,data=-1

    data        ranks read different texts, and add up their gradients
    pipe        ranks have some of the blocks, and hand batches on in pieces
    model       ranks have some of the heads, the features between, and the letters of each layer
    sequence    ranks have a part of each text, and attend to each other's

The model is an ordinary one, and knows nothing of ranks: ``RULES`` says how its layers are divided.
Its first weights depend on the seed only, so every mesh, and one rank alone (``--divide data=1``),
starts alike and learns alike. With ``--run DIR`` a checkpoint stays behind; the next run, on the
same mesh or another, goes on from there. The text is that of Python's own help, which is on every
machine.
"""

import math
from pydoc_data.topics import topics

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import Normal

TEXT = " ".join("\n".join(topics[name] for name in sorted(topics)).split())  # without its indents
AXES = ("data", "pipe", "model", "sequence")
LETTERS = sorted(set(TEXT))
NUMBERS = {letter: i for i, letter in enumerate(LETTERS)}

RULES = {
    "attention": "heads, sequence",
    "wide": "columns",
    "out": "rows",
    "letters": "vocabulary",
}
LAYERS = ["embed", "blocks/*", "head"]  # of which stages have some


class Embedding(mnpar.Chain):
    """Letters and places as vectors."""

    def __init__(self, args):
        super().__init__()
        self.letters = L.EmbedID(len(LETTERS), args.unit, Normal(0.05))
        self.places = L.EmbedID(args.length, args.unit, Normal(0.05))

    def forward(self, x, places):
        return self.letters(x) + self.places(places)


class Block(mnpar.Chain):
    """Attention, and a network of one hidden layer; each adds to what comes."""

    def __init__(self, args):
        super().__init__()
        self.norm1 = L.LayerNormalization(args.unit)
        self.norm2 = L.LayerNormalization(args.unit)
        self.attention = L.MultiHeadAttention(args.heads, args.unit, causal=True)
        self.wide = L.Linear(args.unit, 4 * args.unit)
        self.out = L.Linear(4 * args.unit, args.unit)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.out(F.gelu(self.wide(self.norm2(x), 2)), 2)


class Head(mnpar.Chain):
    """How likely each letter is the next, by the table of the embedding; with the right ones, the
    loss.
    """

    def __init__(self, letters, args):
        super().__init__()
        self.norm = L.LayerNormalization(args.unit)
        self.scores = L.Linear(args.unit, len(LETTERS), nobias=True)
        self.scores.W = letters.W

    def forward(self, x, t=None):
        y = self.scores(self.norm(x), 2)
        return y if t is None else F.softmax_cross_entropy(y.reshape((-1, y.shape[-1])), t.ravel())


class LanguageModel(mnpar.Chain):
    """Letters, their places, and the letters that come next: the loss."""

    def __init__(self, args):
        super().__init__()
        self.embed = Embedding(args)
        self.blocks = mnpar.ChainList(*[Block(args) for _ in range(args.blocks)])
        self.head = Head(self.embed.letters, args)

    def forward(self, x, places, t=None):
        h = self.embed(x, places)
        for block in self.blocks:
            h = block(h)
        return self.head(h, t)


def batch(mesh, args, step):
    """This rank's part of the batch of a step: texts, places, and the letters that come next."""
    starts = np.random.default_rng([args.seed, step]).integers(
        len(TEXT) - args.length, size=args.batchsize
    )
    found = np.array(
        [[NUMBERS[letter] for letter in TEXT[a : a + args.length + 1]] for a in starts], np.int32
    )
    return cut(mesh, found[:, :-1], found[:, 1:])


def cut(mesh, x, *labels):
    """This rank's part of texts, with the places of their letters."""
    places = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    return [mesh.cut(a, data=0, sequence=1) for a in (x, places, *labels)]


def mean_loss(mesh, model, t):
    """Over the whole batch, on every rank."""
    there = model.loss is not None and mesh.model.rank == 0
    total, count = mesh.comm.allreduce(
        np.array([model.loss * t.size, t.size] if there else [0.0, 0.0])
    )
    return total / count


def write(mesh, model, args, text):
    """Go on with a text, letter by letter."""
    rng = np.random.default_rng(args.seed)
    for _ in range(args.letters):
        window = text[-args.length :]
        x = np.array([[NUMBERS[letter] for letter in window]], np.int32)
        with mnpar.using_config("train", False), mnpar.no_backprop_mode():
            y = model(*cut(mesh, x.repeat(mesh.data.size, axis=0)))
        if y is not None and y.layout is not None:
            y = y.gather()  # each rank has the scores of its letters
        threshold, letter = rng.random(), None
        if y is not None and mesh.sequence.rank == mesh.sequence.size - 1:
            p = F.softmax(y[0, -1].array.astype("f8")[None] / 0.7).array[0]
            letter = LETTERS[min(int((p.cumsum() < threshold).sum()), len(LETTERS) - 1)]
        text += next(one for one in mesh.comm.allgather_obj(letter) if one is not None)
    return text


def main(comm, args):
    """Train, and write; returns the losses."""
    mnpar.config.dtype = np.dtype(args.dtype)
    mesh = mnpar.Mesh(comm, **args.divide)
    mnpar.random.seed(args.seed)  # the same weights on every rank
    model = mnpar.parallelize(
        LanguageModel(args),
        mesh,
        RULES,
        layers=LAYERS,
        inputs=2,
        schedule=args.schedule,
        micro_batches=args.micro_batches,
    )
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.Adam(args.lr),
        mesh,
        axes=("data", "sequence"),
        samples=lambda *args: args[-1].size,
    ).setup(model)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(1.0))
    mnpar.random.seed(args.seed)
    everything = {"model": model, "optimizer": optimizer}
    begin = (mnpar.checkpoint.load(args.run, everything, comm) if args.run else None) or 0
    most = comm.allreduce(np.array(float(model.count_params())), "max")
    if comm.is_root:
        print(
            f"{mesh!s}: {comm.size} rank(s) on {comm.name}, {int(most)} weights on a rank at most"
        )

    losses = []
    for step in range(begin, begin + args.steps):
        mine = batch(mesh, args, step)
        optimizer.update(model, *mine)
        losses.append(float(mean_loss(mesh, model, mine[-1])))
        if comm.is_root and ((step + 1) % args.report == 0 or step + 1 == begin + args.steps):
            print(f"step {step + 1:5d}   loss {losses[-1]:.4f}")
    if args.run:
        mnpar.checkpoint.save(args.run, everything, comm, begin + args.steps)
    if comm.is_root:
        chance = math.log(len(LETTERS))
        print(
            f"The loss went from {losses[0]:.4f} to {losses[-1]:.4f}; a letter guessed among "
            f"{len(LETTERS)} would have {chance:.2f}.\nAny other mesh must print these losses, up "
            "to rounding: compare with --divide data=1, on one rank."
        )
    text = write(mesh, model, args, TEXT[: args.length])
    if comm.is_root and args.letters:
        print(f"\nIt goes on after {args.length} letters:\n{text}")
    return losses


def check(parser, args):
    """Refuse what does not go together."""
    if args.unit % args.heads:
        parser.error(f"--unit {args.unit} is not divided by --heads {args.heads}")
    if unknown := [name for name in args.divide or {} if name not in AXES]:
        parser.error(f"--divide: there is no axis {unknown[0]} here, only {', '.join(AXES)}")
    started = mnpar.launch.started_ranks(args, 0)
    if args.divide is None:
        args.divide = {"data": 2, "model": 2} if started in (0, 4) else {"data": -1}
    args.ranks = math.prod(int(n) for size in args.divide.values() for n in np.atleast_1d(size))
    if args.ranks < 1 and not started:
        parser.error(f"--divide: -1 needs ranks that are there already: {mnpar.launch.command(4)}")
    pipe = int(np.prod(args.divide.get("pipe", 1)))
    if args.ranks < 1:
        args.ranks, others = started, -args.ranks
        pipe = args.ranks // others if pipe == -1 else pipe
    try:
        stages = mnpar.parallel.make_schedule(args.schedule, pipe, args.micro_batches).stages
    except ValueError as error:
        parser.error(f"--schedule: {error}")
    if stages > args.blocks + 2:
        parser.error(
            f"--divide: {args.blocks + 2} layers cannot be cut into {stages} stages: "
            f"{mnpar.launch.command(args.ranks, args.threads)} --blocks {stages - 2}"
        )


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, ranks=4, exactly=True, check=check)
    parser.flag(
        "--divide --mesh -m",
        mnpar.Mesh.parse,
        "names and sizes of axes (data=2,model=2 on four ranks, else data=-1)",
    )
    parser.flag("--steps -n", 200, "updates")
    parser.flag("--batchsize -b", 32, "texts per update, of all ranks")
    parser.flag("--length -l", 64, "letters of a text")
    parser.flag("--blocks", 2, "blocks; with the first and the last layer, as many stages at most")
    parser.flag("--unit -u", 64, "width")
    parser.flag("--heads", 8, "heads of attention, which divide the width")
    parser.flag("--lr", 0.006, "Adam's alpha")
    parser.flag("--micro-batches", 4, "pieces of a rank's batch in the pipeline")
    parser.flag("--schedule", "1f1b", "of the pipeline", choices=list(mnpar.parallel.SCHEDULES))
    parser.flag(
        "--dtype", "f4", "of the weights; f8 gives equal digits on all meshes", choices=["f4", "f8"]
    )
    parser.flag("--letters", 200, "how many to write at the end", least=None)
    parser.flag("--report", 20, "updates between lines")
    parser.flag("--run", mnpar.launch.folder, "go on from the checkpoint there, and leave one")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and texts", default=0)
    mnpar.launch.script(main, parser)
