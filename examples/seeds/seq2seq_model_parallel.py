"""A translator on two ranks: the encoder reads a word on rank 0, the decoder writes it backwards on
rank 1.

    mpiexec -n 2 python examples/seeds/seq2seq_model_parallel.py
        (or plain python, or --threads)

The last states of the encoder's LSTM are the first states of the decoder's:
``create_multi_node_n_step_rnn`` sends them, and their gradients back. Both ranks draw the same
batches in the same order, by ``create_synchronized_iterator``. The words are those of Python's own
help texts, which are on every machine; rank 1 has the loss, and prints.
"""

import re
from pydoc_data.topics import topics

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.training import extensions

LETTERS = "abcdefghijklmnopqrstuvwxyz"
END = len(LETTERS)  # and beginning
N_TOKENS = END + 1


def words(longest):
    """All words of up to so many letters in Python's help texts, in alphabetical order."""
    found = re.findall(r"\b[a-z]{3,}\b", " ".join(topics[name] for name in sorted(topics)))
    return sorted({word for word in found if len(word) <= longest})


def numbers(word):
    return np.array([LETTERS.index(letter) for letter in word], np.int32)


def letters(tokens):
    return "".join(LETTERS[token] for token in tokens if token != END)


class Encoder(mnpar.Chain):
    """Rank 0: reads; its states go to rank 1."""

    def __init__(self, comm, n_layers, n_units):
        super().__init__()
        self.embed = L.EmbedID(N_TOKENS, n_units)
        self.rnn = L.create_multi_node_n_step_rnn(
            L.NStepLSTM(n_layers, n_units, n_units, 0.1), comm, rank_out=1
        )

    def forward(self, xs, ts):
        self.rnn([self.embed(x) for x in xs])


class Decoder(mnpar.Chain):
    """Rank 1: writes, starting from the encoder's states."""

    def __init__(self, comm, n_layers, n_units):
        super().__init__()
        self.embed = L.EmbedID(N_TOKENS, n_units)
        self.rnn = L.create_multi_node_n_step_rnn(
            L.NStepLSTM(n_layers, n_units, n_units, 0.1), comm, rank_in=0
        )
        self.out = L.Linear(n_units, N_TOKENS)

    def forward(self, xs, ts):
        """The loss of the right letters, each after the right letters before it."""
        before = [self.embed(np.append(np.int32(END), t)) for t in ts]
        _, _, hs, _ = self.rnn(before)
        y = self.out(F.concat(hs, axis=0))
        t = np.concatenate([np.append(t, np.int32(END)) for t in ts])
        loss = F.softmax_cross_entropy(y, t)
        mnpar.report({"loss": loss, "perp": np.exp(loss.array), "letters": F.accuracy(y, t)}, self)
        return loss

    def translate(self, n, longest=20):
        """The likeliest letters, one after the other, for the n words that the encoder has read."""
        starts = [self.embed(np.array([END], np.int32))] * n
        h, c, hs, _ = self.rnn(starts)
        results = []
        for _ in range(longest):
            tokens = self.out(F.concat(hs, axis=0)).array.argmax(axis=1).astype(np.int32)
            results.append(tokens)
            h, c, hs = self.rnn.actual_rnn(h, c, [self.embed(token[None]) for token in tokens])
        return [
            letters(row[: np.argmax(np.append(row, END) == END)])
            for row in np.stack(results, axis=1)
        ]


def convert(batch, device):
    """A list of words, and a list of the same words backwards."""
    xs = [numbers(word) for word in batch]
    return xs, [x[::-1] for x in xs]


def main(comm, args):
    """Train; rank 1 returns the last entry of the log."""
    mnpar.random.seed([args.seed, comm.rank])
    model = (Encoder, Decoder)[comm.rank](comm, args.layer, args.unit)
    optimizer = mnpar.optimizers.Adam(alpha=args.lr).setup(model)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(5))

    corpus = words(args.longest)
    test = corpus[::10]
    train = [word for i, word in enumerate(corpus) if i % 10]
    alone = mnpar.iterators.SerialIterator(train, min(args.batchsize, len(train)))
    train_iter = mnpar.iterators.create_synchronized_iterator(alone, comm)
    test_iter = mnpar.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = training.StandardUpdater(train_iter, optimizer, converter=convert)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(extensions.Evaluator(test_iter, model, converter=convert))  # on both
    if comm.rank == 1:
        print(
            f"{len(train)} words to train, {len(test)} to test, of {args.longest} letters at most"
        )
        trainer.extend(extensions.LogReport())
        trainer.extend(
            extensions.PrintReport(
                [
                    "epoch",
                    "iteration",
                    "main/loss",
                    "main/perp",
                    "validation/main/perp",
                    "validation/main/letters",
                    "elapsed_time",
                ]
            )
        )
    trainer.run()
    return show(model, comm, test, trainer)


def show(model, comm, test, trainer):
    """Translate the test words; rank 1 says how many are right."""
    with mnpar.using_config("train", False), mnpar.no_backprop_mode():
        if comm.rank == 0:
            model(*convert(test, None))
            return None
        results = model.translate(len(test))
    right = sum(result == word[::-1] for word, result in zip(test, results, strict=True))
    for word, result in list(zip(test, results, strict=True))[:: max(1, len(test) // 5)]:
        print(f"{word:>12} → {result}")
    print(f"{right} of {len(test)} words are written backwards without a mistake")
    return trainer.get_extension("LogReport").log[-1]


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, exactly=True)
    parser.flag("--batchsize -b", 64, "words per step")
    parser.flag("--epoch -e", 15, "epochs")
    parser.flag("--layer -l", 1, "layers of encoder and decoder")
    parser.flag("--unit -u", 128, "width of a layer")
    parser.flag("--lr", 0.005, "Adam's alpha")
    parser.flag("--longest", 7, "letters of the longest words; the shortest have 3", least=3)
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and orders", default=0)
    parser.flag("--out -o", mnpar.launch.folder, "for the log", default="result")
    mnpar.launch.script(main, parser)
