"""A language model with its own iterator and updater (truncated backpropagation), in the manner of
Chainer's ptb example.
"""

import argparse

import numpy as np

import mnpar as chainer
import mnpar as chainermn
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.training import extensions


class RNNForLM(chainer.Chain):
    def __init__(self, n_vocab, n_units, dropout):
        super().__init__()
        self.dropout = dropout
        with self.init_scope():
            self.embed = L.EmbedID(n_vocab, n_units)
            self.l1 = L.LSTM(n_units, n_units)
            self.l2 = L.LSTM(n_units, n_units)
            self.l3 = L.Linear(n_units, n_vocab)

        for param in self.params():
            param.array[...] = np.random.uniform(-0.1, 0.1, param.shape)

    def reset_state(self):
        self.l1.reset_state()
        self.l2.reset_state()

    def forward(self, x):
        h0 = self.embed(x)
        h1 = self.l1(F.dropout(h0, self.dropout))
        h2 = self.l2(F.dropout(h1, self.dropout))
        return self.l3(F.dropout(h2, self.dropout))


class ParallelSequentialIterator(chainer.dataset.Iterator):
    def __init__(self, dataset, batch_size, repeat=True):
        super().__init__()
        self.dataset = dataset
        self.batch_size = batch_size
        self.repeat = repeat
        length = len(dataset)
        self.offsets = [i * length // batch_size for i in range(batch_size)]
        self.reset()

    def reset(self):
        self.epoch = 0
        self.is_new_epoch = False
        self.iteration = 0
        self._previous_epoch_detail = None

    def __next__(self):
        length = len(self.dataset)
        if not self.repeat and self.iteration * self.batch_size >= length:
            raise StopIteration
        cur_words = self.get_words()
        self._previous_epoch_detail = self.epoch_detail
        self.iteration += 1
        next_words = self.get_words()
        epoch = self.iteration * self.batch_size // length
        self.is_new_epoch = self.epoch < epoch
        if self.is_new_epoch:
            self.epoch = epoch
        return list(zip(cur_words, next_words, strict=False))

    @property
    def epoch_detail(self):
        return self.iteration * self.batch_size / len(self.dataset)

    @property
    def previous_epoch_detail(self):
        return self._previous_epoch_detail

    def get_words(self):
        return [
            self.dataset[(offset + self.iteration) % len(self.dataset)] for offset in self.offsets
        ]

    def serialize(self, serializer):
        self.iteration = serializer("iteration", self.iteration)
        self.epoch = serializer("epoch", self.epoch)


class BPTTUpdater(training.updaters.StandardUpdater):
    def __init__(self, train_iter, optimizer, bprop_len, device):
        super().__init__(train_iter, optimizer, device=device)
        self.bprop_len = bprop_len

    def update_core(self):
        loss = 0
        train_iter = self.get_iterator("main")
        optimizer = self.get_optimizer("main")
        for _ in range(self.bprop_len):
            batch = train_iter.__next__()
            x, t = self.converter(batch, self.device)
            loss += optimizer.target(x, t)
        optimizer.target.cleargrads()
        loss.backward()
        loss.unchain_backward()
        self.comm.multi_node_mean_grad(optimizer.target) if getattr(self, "comm", None) else None
        optimizer.update()


def compute_perplexity(result):
    result["perplexity"] = np.exp(result["main/loss"])
    if "validation/main/loss" in result:
        result["val_perplexity"] = np.exp(result["validation/main/loss"])


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batchsize", "-b", type=int, default=4)
    parser.add_argument("--bproplen", "-l", type=int, default=5)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--epoch", "-e", type=int, default=2)
    parser.add_argument("--device", "-d", type=str, default="-1")
    parser.add_argument("--gradclip", "-c", type=float, default=5)
    parser.add_argument("--out", "-o", default="result")
    parser.add_argument("--unit", "-u", type=int, default=6)
    args = parser.parse_args(argv)

    comm = chainermn.create_communicator("naive")
    device = chainer.get_device("@numpy" if args.device == "-1" else "@cupy:" + args.device)
    device.use()
    words = np.random.RandomState(2).randint(0, 7, 120).astype(np.int32)
    begin, end = chainermn.datasets.scatter_index(len(words), comm)
    train = words[begin:end]
    val = words[:20]

    train_iter = ParallelSequentialIterator(train, args.batchsize)
    val_iter = ParallelSequentialIterator(val, 1, repeat=False)
    rnn = RNNForLM(7, args.unit, args.dropout)
    model = L.Classifier(rnn)
    model.compute_accuracy = False
    model.to_device(device)
    comm.bcast_data(model)

    optimizer = chainer.optimizers.SGD(lr=1.0)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(args.gradclip))

    updater = BPTTUpdater(train_iter, optimizer, args.bproplen, device)
    updater.comm = comm
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    eval_model = model.copy()
    eval_rnn = eval_model.predictor
    trainer.extend(
        extensions.Evaluator(
            val_iter, eval_model, device=device, eval_hook=lambda _: eval_rnn.reset_state()
        ),
        trigger=(1, "epoch"),
    )
    interval = 2
    if comm.rank == 0:
        trainer.extend(
            extensions.LogReport(postprocess=compute_perplexity, trigger=(interval, "iteration"))
        )
        trainer.extend(
            extensions.PrintReport(["epoch", "iteration", "perplexity", "val_perplexity"]),
            trigger=(interval, "iteration"),
        )
        trainer.extend(extensions.ProgressBar(update_interval=1))
        trainer.extend(extensions.snapshot())
        trainer.extend(extensions.snapshot_object(model, "model_iter_{.updater.iteration}"))
    trainer.run()

    eval_rnn.reset_state()
    evaluator = extensions.Evaluator(val_iter, eval_model, device=device)
    result = evaluator()
    assert np.isfinite(result["main/loss"])
    chainer.serializers.save_npz(args.out + f"/rnn{comm.rank}.npz", model)
    return {name: param.array for name, param in model.namedparams()}


if __name__ == "__main__":
    main()
