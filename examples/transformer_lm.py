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

The model (models/language_model.py) is an ordinary one: ``RULES`` says how its layers are divided.
One rank alone (``--divide data=1``) learns alike. With ``--run DIR`` a checkpoint stays behind; the
next run, on the same mesh or another, goes on from there. The text is that of Python's own help.
"""

from pydoc_data.topics import topics

import numpy as np
from models.language_model import LanguageModel

import mnpar

TOPICS = " ".join("\n".join(topics[name] for name in sorted(topics)).split())  # without indents
LETTERS = sorted(set(TOPICS))
TEXT = np.array([LETTERS.index(letter) for letter in TOPICS], np.int32)

RULES = {"attention": "heads, sequence", "wide": "columns", "out": "rows", "letters": "vocabulary"}
LAYERS = ["embed", "blocks/*", "head"]  # of which stages have some


def batch(args, step):
    """Texts of a step, the places of their letters, and the letters that come next: (N, T) each."""
    rng = np.random.default_rng([args.seed, step])
    starts = rng.integers(len(TEXT) - args.length, size=(args.batchsize, 1))
    x = TEXT[starts + np.arange(args.length + 1)]
    return x[:, :-1], np.broadcast_to(np.arange(args.length), x[:, 1:].shape), x[:, 1:]


def main(comm, args):
    """Train, and write; returns the losses."""
    mnpar.config.dtype = np.dtype(args.dtype)
    mnpar.random.seed(args.seed)  # the same weights on every rank
    mesh = mnpar.Mesh(comm, **args.divide)
    pipeline = {"schedule": args.schedule, "micro_batches": args.micro_batches, "inputs": 2}
    whole = LanguageModel(len(LETTERS), args.length, args.unit, args.heads, args.blocks)
    model = mnpar.parallelize(whole, mesh, RULES, layers=LAYERS, **pipeline)
    adam, summed = mnpar.optimizers.Adam(args.lr), ("data", "sequence")
    optimizer = mnpar.create_multi_node_optimizer(adam, mesh, axes=summed).setup(model)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(1.0))
    everything = {"model": model, "optimizer": optimizer}
    begin = (mnpar.checkpoint.load(args.run, everything, comm) if args.run else None) or 0
    if comm.is_root:
        print(f"{mesh}: {comm.size} rank(s) on {comm.name}, {model.count_params()} weights on this")
    losses = []
    for step in range(begin, begin + args.steps):
        x, places, t = [mesh.cut(a, data=0, sequence=1) for a in batch(args, step)]
        optimizer.update(model, x, places, t)
        # ranks of the last stage have the loss, as a mean over their letters
        known = [model.loss * t.size, t.size] if model.loss is not None else [0.0, 0.0]
        total, letters = comm.allreduce(np.array(known))
        losses.append(total / letters)
        if comm.is_root and ((step + 1) % args.report == 0 or step + 1 == begin + args.steps):
            print(f"step {step + 1:5d}   loss {losses[-1]:.4f}")
    if args.run:
        mnpar.checkpoint.save(args.run, everything, comm, begin + args.steps)
    whole = mnpar.gathered(model)
    if comm.is_root:
        text = whole.write(TEXT[: args.length], args.letters, np.random.default_rng(args.seed))
        print(
            f"The loss went from {losses[0]:.4f} to {losses[-1]:.4f}; a letter guessed among "
            f"{len(LETTERS)} would have {np.log(len(LETTERS)):.2f}. Any other mesh must print the "
            f"same, up to rounding.\n\nIt goes on after {args.length} letters:\n"
            + "".join([LETTERS[i] for i in text])
        )
    return losses


def check(parser, args):
    """Refuse what does not go together."""
    if args.unit % args.heads:
        parser.error(f"--unit {args.unit} is not divided by --heads {args.heads}")
    plan = args.schedule, args.divide.get("pipe", 1), args.micro_batches
    stages = mnpar.parallel.make_schedule(*plan).stages
    if stages > args.blocks + 2:
        parser.error(
            f"--divide: {args.blocks + 2} layers cannot be cut into {stages} stages: "
            f"{mnpar.launch.command(args.ranks, args.threads)} --blocks {stages - 2}"
        )


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, ranks=4, exactly=True, check=check)
    parser.divide("--divide --mesh -m", "data=2,model=2", data=1, pipe=1, model=1, sequence=1)
    parser.flag("--steps -n", 200, "updates")
    parser.flag("--batchsize -b", 32, "texts per update, of all ranks")
    parser.flag("--length -l", 64, "letters of a text")
    parser.flag("--blocks", 2, "blocks; with the first and the last layer, as many stages at most")
    parser.flag("--unit -u", 64, "width")
    parser.flag("--heads", 8, "heads of attention, which divide the width")
    parser.flag("--lr", 0.006, "Adam's alpha")
    parser.flag("--micro-batches", 4, "pieces of a rank's batch in the pipeline")
    parser.flag("--schedule", "1f1b", "of the pipeline", choices=list(mnpar.parallel.SCHEDULES))
    parser.flag("--dtype", "f4", "f8 gives equal digits on all meshes", choices=["f4", "f8"])
    parser.flag("--letters", 200, "how many to write at the end", least=None)
    parser.flag("--report", 20, "updates between lines")
    parser.flag("--run", mnpar.launch.folder, "go on from the checkpoint there, and leave one")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and texts", default=0)
    mnpar.launch.script(main, parser)
