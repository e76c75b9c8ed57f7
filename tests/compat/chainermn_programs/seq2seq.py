"""Encoder and decoder of sentences: data parallel with vocabularies as objects, or the halves on
two ranks (``--mp1``).
"""

import argparse
import os

import numpy as np

import mnpar as chainer
import mnpar as chainermn
import mnpar.functions as F
import mnpar.links as L
from mnpar import cuda, training
from mnpar.training import extensions

UNK = 0
EOS = 1


def sequence_embed(embed, xs):
    x_len = [len(x) for x in xs]
    x_section = np.cumsum(x_len[:-1])
    ex = embed(F.concat(xs, axis=0))
    return F.split_axis(ex, x_section, 0)


class Seq2seq(chainer.Chain):
    def __init__(self, n_layers, n_source_vocab, n_target_vocab, n_units, dropout):
        super().__init__(
            embed_x=L.EmbedID(n_source_vocab, n_units),
            embed_y=L.EmbedID(n_target_vocab, n_units),
            encoder=L.NStepLSTM(n_layers, n_units, n_units, dropout),
            decoder=L.NStepLSTM(n_layers, n_units, n_units, dropout),
            W=L.Linear(n_units, n_target_vocab),
        )
        self.n_layers = n_layers
        self.n_units = n_units

    def __call__(self, *inputs):
        xs = inputs[: len(inputs) // 2]
        ys = inputs[len(inputs) // 2 :]
        xs = [x[::-1] for x in xs]

        eos = self.xp.array([EOS], "i")
        ys_in = [F.concat([eos, y], axis=0) for y in ys]
        ys_out = [F.concat([y, eos], axis=0) for y in ys]

        exs = sequence_embed(self.embed_x, xs)
        eys = sequence_embed(self.embed_y, ys_in)
        batch = len(xs)
        hx, cx, _ = self.encoder(None, None, exs)
        _, _, os = self.decoder(hx, cx, eys)

        concat_os = F.concat(os, axis=0)
        concat_ys_out = F.concat(ys_out, axis=0)
        loss = F.sum(F.softmax_cross_entropy(self.W(concat_os), concat_ys_out, reduce="no")) / batch

        chainer.report({"loss": loss.data}, self)
        n_words = concat_ys_out.shape[0]
        perp = self.xp.exp(loss.data * batch / n_words)
        chainer.report({"perp": perp}, self)
        return loss

    def translate(self, xs, max_length=10):
        batch = len(xs)
        with chainer.no_backprop_mode(), chainer.using_config("train", False):
            xs = [x[::-1] for x in xs]
            exs = sequence_embed(self.embed_x, xs)
            h, c, _ = self.encoder(None, None, exs)
            ys = self.xp.full(batch, EOS, "i")
            result = []
            for _ in range(max_length):
                eys = self.embed_y(ys)
                eys = F.split_axis(eys, batch, 0)
                h, c, ys = self.decoder(h, c, eys)
                cys = F.concat(ys, axis=0)
                wy = self.W(cys)
                ys = self.xp.argmax(wy.data, axis=1).astype("i")
                result.append(ys)
        result = cuda.to_cpu(self.xp.concatenate([self.xp.expand_dims(x, 0) for x in result]).T)
        outs = []
        for y in result:
            inds = np.argwhere(y == EOS)
            if len(inds) > 0:
                y = y[: inds[0, 0]]
            outs.append(y)
        return outs


class Encoder(chainer.Chain):
    def __init__(self, comm, n_layers, n_vocab, n_units, dropout):
        super().__init__(
            embed_x=L.EmbedID(n_vocab, n_units),
            # corresponding decoder LSTM will be invoked on process 1
            mn_encoder=chainermn.links.create_multi_node_n_step_rnn(
                L.NStepLSTM(n_layers, n_units, n_units, dropout), comm, rank_in=None, rank_out=1
            ),
        )
        self.comm = comm

    def __call__(self, *inputs):
        xs = inputs[: len(inputs) // 2]
        exs = sequence_embed(self.embed_x, [x[::-1] for x in xs])
        _, _, _, delegate_variable = self.mn_encoder(exs)
        # the last element represents the delegate variable
        return delegate_variable


class Decoder(chainer.Chain):
    def __init__(self, comm, n_layers, n_vocab, n_units, dropout):
        super().__init__(
            embed_y=L.EmbedID(n_vocab, n_units),
            mn_decoder=chainermn.links.create_multi_node_n_step_rnn(
                L.NStepLSTM(n_layers, n_units, n_units, dropout), comm, rank_in=0, rank_out=None
            ),
            W=L.Linear(n_units, n_vocab),
        )
        self.comm = comm

    def __call__(self, *inputs):
        ys = inputs[len(inputs) // 2 :]
        eos = self.xp.array([EOS], "i")
        eys = sequence_embed(self.embed_y, [F.concat([eos, y], axis=0) for y in ys])
        ys_out = F.concat([F.concat([y, eos], axis=0) for y in ys], axis=0)
        _, _, os, _ = self.mn_decoder(eys)
        loss = F.sum(
            F.softmax_cross_entropy(self.W(F.concat(os, axis=0)), ys_out, reduce="no")
        ) / len(ys)
        chainer.report({"loss": loss.data}, self)
        return loss


def convert(batch, device):
    def to_device_batch(batch):
        if device is None:
            return batch
        elif device < 0:
            return [chainer.dataset.to_device(device, x) for x in batch]
        else:
            xp = cuda.cupy.get_array_module(*batch)
            concat = xp.concatenate(batch, axis=0)
            sections = np.cumsum([len(x) for x in batch[:-1]], dtype="i")
            concat_dev = chainer.dataset.to_device(device, concat)
            return cuda.cupy.split(concat_dev, sections)

    return tuple(to_device_batch([x for x, _ in batch]) + to_device_batch([y for _, y in batch]))


class WordsRight(chainermn.extensions.GenericMultiNodeEvaluator):
    def __init__(self, comm, iterator, target, device):
        super().__init__(comm, iterator, target, device=device, converter=convert)
        self.model = target

    def calc_local(self, *inputs):
        xs = inputs[: len(inputs) // 2]
        ys = inputs[len(inputs) // 2 :]
        outs = self.model.translate(xs)
        return [(y.tolist(), out.tolist()) for y, out in zip(ys, outs, strict=False)]

    def aggregate(self, results):
        pairs = [pair for result in results for pair in result]
        right = np.mean([len(set(y) & set(out)) / len(set(y)) for y, out in pairs])
        chainer.report({"words": right, "sentences": float(len(pairs))}, self.model)
        return right


def get_sentences(n):
    rng = np.random.RandomState(3)
    source = ["a", "b", "c", "d", "e"]
    target = ["v", "w", "x", "y", "z"]
    sentences = [rng.randint(0, 5, rng.randint(2, 6)) for _ in range(n)]
    return [([source[i] for i in s], [target[i] for i in s]) for s in sentences], source, target


def main(argv=None):
    parser = argparse.ArgumentParser(description="Chainer example: seq2seq")
    parser.add_argument("--batchsize", "-b", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--layer", "-l", type=int, default=2)
    parser.add_argument("--mp1", action="store_true")
    parser.add_argument("--optimizer", default="adam()")
    parser.add_argument("--out", "-o", default="result")
    parser.add_argument("--stop", "-s", type=str, default="3e")
    parser.add_argument("--unit", "-u", type=int, default=8)
    args = parser.parse_args(argv)

    comm = chainermn.create_communicator("naive")
    dev = -1
    stop = (int(args.stop[:-1]), {"e": "epoch", "i": "iteration"}[args.stop[-1]])

    if comm.rank == 0:
        pairs, source, target = get_sentences(45)
        source_ids = {word: index for index, word in enumerate(["<UNK>", "<EOS>", *source])}
        target_ids = {word: index for index, word in enumerate(["<UNK>", "<EOS>", *target])}
        data = [
            (
                np.array([source_ids.get(w, UNK) for w in s], "i"),
                np.array([target_ids.get(w, UNK) for w in t], "i"),
            )
            for s, t in pairs
        ]
    else:
        data, source_ids, target_ids = None, None, None
    source_ids = comm.bcast_obj(source_ids, max_buf_len=1024, root=0)
    target_ids = comm.bcast_obj(target_ids)
    comm.mpi_comm.Barrier() if os.environ.get("PMI_SIZE") else None

    if args.mp1:
        data = comm.bcast_obj(data)
        half = Encoder if comm.rank == 0 else Decoder
        model = half(
            comm,
            args.layer,
            len(source_ids if comm.rank == 0 else target_ids),
            args.unit,
            args.dropout,
        )
        train, test = data, data
    else:
        train = chainermn.scatter_dataset(data, comm)
        test = chainermn.scatter_dataset(data, comm, force_equal_length=False)
        model = Seq2seq(args.layer, len(source_ids), len(target_ids), args.unit, args.dropout)

    optimizer = eval("chainer.optimizers." + args.optimizer.capitalize())
    if not args.mp1:
        optimizer = chainermn.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer.GradientClipping(5))

    train_iter = chainer.iterators.SerialIterator(train, args.batchsize, shuffle=False)
    updater = training.StandardUpdater(train_iter, optimizer, converter=convert, device=dev)
    trainer = training.Trainer(updater, stop, out=args.out)
    if not args.mp1:
        test_iter = chainer.iterators.SerialIterator(test, 5, repeat=False, shuffle=False)
        trainer.extend(WordsRight(comm, test_iter, model, dev), trigger=(1, "epoch"))
    if comm.rank == (1 if args.mp1 else 0):
        trainer.extend(extensions.LogReport(trigger=(1, "epoch")), trigger=(1, "epoch"))
        report = extensions.PrintReport(
            ["epoch", "iteration", "main/loss", "main/perp", "main/words", "elapsed_time"]
        )
        trainer.extend(report, trigger=(1, "epoch"))
        print("start training")
    losses = []

    @training.make_extension(trigger=(1, "iteration"))
    def watch(trainer):
        losses.append(trainer.observation.get("main/loss"))

    trainer.extend(watch)
    trainer.run()
    return losses, {name: param.array for name, param in model.namedparams()}


if __name__ == "__main__":
    main()
