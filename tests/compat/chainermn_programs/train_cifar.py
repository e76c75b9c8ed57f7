"""Data parallel: a convolutional network with batch normalization, in the manner of train_cifar.py
and train_imagenet.py.
"""

import argparse
import multiprocessing
import random

import numpy as np

import mnpar as chainer
import mnpar as chainermn
import mnpar.functions as F
import mnpar.links as L
from mnpar import dataset, reporter, training
from mnpar.training import extensions, triggers


class Block(chainer.Chain):
    def __init__(self, out_channels, ksize, pad=1):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(
                None,
                out_channels,
                ksize,
                pad=pad,
                nobias=True,
                initialW=chainer.initializers.HeNormal(),
            )
            self.bn = L.BatchNormalization(out_channels)

    def __call__(self, x):
        return F.relu(self.bn(self.conv(x)))


class VGG(chainer.Chain):
    insize = 8

    def __init__(self, class_labels=10):
        super().__init__()
        with self.init_scope():
            self.block1_1 = Block(8, 3)
            self.block1_2 = Block(8, 3)
            self.fc1 = L.Linear(None, 16, nobias=True)
            self.bn_fc1 = L.BatchNormalization(16)
            self.fc2 = L.Linear(None, class_labels, nobias=True)

    def forward(self, x):
        h = self.block1_1(x)
        h = F.dropout(h, ratio=0.1)
        h = self.block1_2(h)
        h = F.max_pooling_2d(h, ksize=2, stride=2)
        h = F.local_response_normalization(h)
        h = F.relu(self.bn_fc1(self.fc1(h)))
        return self.fc2(F.dropout(h, ratio=0.1))


class PreprocessedDataset(chainer.dataset.DatasetMixin):
    def __init__(self, pairs, mean, crop_size, random_crop=True):
        self.base = pairs
        self.mean = mean.astype(chainer.get_dtype())
        self.crop_size = crop_size
        self.random = random_crop

    def __len__(self):
        return len(self.base)

    def get_example(self, i):
        crop_size = self.crop_size
        image, label = self.base[i]
        _, h, w = image.shape
        if self.random:
            top = random.randint(0, h - crop_size)
            left = random.randint(0, w - crop_size)
            if random.randint(0, 1):
                image = image[:, :, ::-1]
        else:
            top = (h - crop_size) // 2
            left = (w - crop_size) // 2
        image = image[:, top : top + crop_size, left : left + crop_size].copy()
        image -= self.mean
        return image, label


class TestModeEvaluator(extensions.Evaluator):
    __test__ = False

    def evaluate(self):
        model = self.get_target("main")
        model.predictor.in_evaluation = True
        ret = super().evaluate()
        model.predictor.in_evaluation = False
        return ret


def get_images(n=72, size=10):
    rng = np.random.RandomState(1)
    labels = rng.randint(0, 10, n).astype(np.int32)
    images = rng.rand(n, 3, size, size).astype(np.float32)
    images += labels[:, None, None, None] / 10
    return [(image, label) for image, label in zip(images, labels, strict=False)]


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batchsize", "-b", type=int, default=8)
    parser.add_argument("--learnrate", "-l", type=float, default=0.05)
    parser.add_argument("--epoch", "-e", type=int, default=3)
    parser.add_argument("--device", "-d", type=str, default="-1")
    parser.add_argument("--loader", choices=["serial", "thread", "process"], default="serial")
    parser.add_argument("--mnbn", action="store_true")
    parser.add_argument("--stop-together", action="store_true")
    parser.add_argument("--out", "-o", default="result")
    args = parser.parse_args(argv)

    if args.loader == "process":
        # We need to change the start method of multiprocessing if we are using InfiniBand and
        # MultiprocessIterator.
        multiprocessing.set_start_method("forkserver")
    comm = chainermn.create_communicator("naive")
    device = chainer.get_device(args.device)
    device.use()

    model = L.Classifier(VGG(10))
    if args.mnbn:
        model = chainermn.links.create_mnbn_model(model, comm)
    model.to_device(device)
    optimizer = chainermn.create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(lr=args.learnrate), comm
    )
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(5e-4))

    train, val = None, None
    if comm.rank == 0:
        images = get_images()
        mean = np.mean([x for x, _ in images], axis=(0, 2, 3), dtype=np.float32)[:, None, None]
        train = PreprocessedDataset(images[:50], mean, model.predictor.insize)
        val = PreprocessedDataset(images[50:], mean, model.predictor.insize, False)
    train = chainermn.scatter_dataset(train, comm, shuffle=True)
    val = chainermn.scatter_dataset(val, comm)

    if args.loader == "process":
        train_iter = chainer.iterators.MultiprocessIterator(train, args.batchsize, n_processes=1)
    elif args.loader == "thread":
        train_iter = chainer.iterators.MultithreadIterator(train, args.batchsize, n_threads=2)
    else:
        train = chainer.datasets.TransformDataset(train, lambda pair: (pair[0] * 2, pair[1]))
        train_iter = chainer.iterators.SerialIterator(train, args.batchsize)
    val_iter = chainer.iterators.SerialIterator(val, args.batchsize, repeat=False, shuffle=False)
    converter = dataset.concat_examples

    updater = training.updaters.StandardUpdater(
        train_iter, optimizer, converter=converter, device=device
    )
    stop_trigger = triggers.EarlyStoppingTrigger(
        monitor="main/loss", max_trigger=(args.epoch, "epoch")
    )
    if args.stop_together:
        stop_trigger = chainermn.extensions.MultiNodeEarlyStoppingTrigger(
            comm, monitor="main/loss", max_trigger=(args.epoch, "epoch")
        )
    trainer = training.Trainer(updater, stop_trigger, args.out)

    trainer.extend(chainermn.extensions.AllreducePersistent(model, comm))
    evaluator = TestModeEvaluator(val_iter, model, converter, device=device)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm), trigger=(1, "epoch"))
    trainer.extend(extensions.ExponentialShift("lr", 0.5), trigger=(2, "epoch"))
    if comm.rank == 0:
        trainer.extend(extensions.DumpGraph("main/loss"))
        trainer.extend(extensions.FailOnNonNumber())
        trainer.extend(extensions.snapshot(), trigger=(args.epoch, "epoch"))
        best = triggers.MaxValueTrigger("validation/main/accuracy", (1, "epoch"))
        trainer.extend(extensions.snapshot_object(model, "best_model"), trigger=best)
        trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
        trainer.extend(extensions.observe_lr(), trigger=(2, "iteration"))
        trainer.extend(
            extensions.PrintReport(
                ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy", "lr"]
            ),
            trigger=(1, "epoch"),
        )
    observed = []

    @training.make_extension(trigger=(1, "iteration"), priority=training.extension.PRIORITY_WRITER)
    def watch(trainer):
        reporter.report({"watched": float(model.count_params())})
        observed.append(float(trainer.observation["main/loss"].array))

    trainer.extend(watch)
    trainer.run()

    with chainer.using_config("train", False), chainer.no_backprop_mode():
        x, t = converter(list(val)[:4], device)
        assert model.predictor(x).shape == (len(x), 10)
        assert len(t) == len(x)
    statistics = model.predictor.bn_fc1.avg_mean
    weights = chainer.backends.cuda.to_cpu(model.predictor.block1_2.conv.W.array)
    return observed, weights, chainer.backends.cuda.to_cpu(statistics), optimizer.lr


if __name__ == "__main__":
    main()
