"""Two models, two multi-node optimizers and an updater of its own, in the manner of ChainerMN's
dcgan example.
"""

import argparse
import os

import numpy as np

import mnpar as chainer
import mnpar as chainermn
import mnpar.functions as F
import mnpar.links as L
from mnpar import Variable, backends, training
from mnpar.training import extensions


def add_noise(h, sigma=0.2):
    xp = backends.cuda.get_array_module(h.data)
    if chainer.config.train:
        return h + sigma * xp.random.randn(*h.data.shape).astype("f")
    return h


class Generator(chainer.Chain):
    def __init__(self, n_hidden, bottom_width=2, ch=8, wscale=0.02):
        super().__init__()
        self.n_hidden = n_hidden
        self.ch = ch
        self.bottom_width = bottom_width
        with self.init_scope():
            w = chainer.initializers.Normal(wscale)
            self.l0 = L.Linear(self.n_hidden, bottom_width * bottom_width * ch, initialW=w)
            self.dc1 = L.Deconvolution2D(ch, ch // 2, 4, 2, 1, initialW=w)
            self.dc2 = L.Deconvolution2D(ch // 2, 3, 3, 1, 1, initialW=w)
            self.bn0 = L.BatchNormalization(bottom_width * bottom_width * ch)
            self.bn1 = L.BatchNormalization(ch // 2)

    def make_hidden(self, batchsize):
        return np.random.uniform(-1, 1, (batchsize, self.n_hidden, 1, 1)).astype(np.float32)

    def __call__(self, z):
        h = F.reshape(
            F.relu(self.bn0(self.l0(z))), (len(z), self.ch, self.bottom_width, self.bottom_width)
        )
        h = F.relu(self.bn1(self.dc1(h)))
        return F.sigmoid(self.dc2(h))


class Discriminator(chainer.Chain):
    def __init__(self, bottom_width=2, ch=8, wscale=0.02):
        w = chainer.initializers.Normal(wscale)
        super().__init__()
        with self.init_scope():
            self.c0_0 = L.Convolution2D(3, ch // 2, 3, 1, 1, initialW=w)
            self.c0_1 = L.Convolution2D(ch // 2, ch, 4, 2, 1, initialW=w)
            self.l4 = L.Linear(bottom_width * bottom_width * ch, 1, initialW=w)
            self.bn0_1 = L.BatchNormalization(ch, use_gamma=False)

    def __call__(self, x):
        h = add_noise(x)
        h = F.leaky_relu(add_noise(self.c0_0(h)))
        h = F.leaky_relu(add_noise(self.bn0_1(self.c0_1(h))))
        return self.l4(h)


class DCGANUpdater(chainer.training.StandardUpdater):
    def __init__(self, *args, **kwargs):
        self.gen, self.dis = kwargs.pop("models")
        super().__init__(*args, **kwargs)

    def loss_dis(self, dis, y_fake, y_real):
        batchsize = len(y_fake)
        L1 = F.sum(F.softplus(-y_real)) / batchsize
        L2 = F.sum(F.softplus(y_fake)) / batchsize
        loss = L1 + L2
        chainer.report({"loss": loss}, dis)
        return loss

    def loss_gen(self, gen, y_fake):
        batchsize = len(y_fake)
        loss = F.sum(F.softplus(-y_fake)) / batchsize
        chainer.report({"loss": loss}, gen)
        return loss

    def update_core(self):
        gen_optimizer = self.get_optimizer("gen")
        dis_optimizer = self.get_optimizer("dis")

        batch = self.get_iterator("main").next()
        x_real = Variable(self.converter(batch, self.device)) / 255.0
        xp = chainer.backend.get_array_module(x_real.data)
        gen, dis = self.gen, self.dis
        batchsize = len(batch)

        y_real = dis(x_real)
        z = Variable(xp.asarray(gen.make_hidden(batchsize)))
        x_fake = gen(z)
        y_fake = dis(x_fake)

        dis_optimizer.update(self.loss_dis, dis, y_fake, y_real)
        gen_optimizer.update(self.loss_gen, gen, y_fake)


def out_generated_image(gen, dis, rows, cols, seed, dst):
    @chainer.training.make_extension()
    def make_image(trainer):
        np.random.seed(seed)
        n_images = rows * cols
        xp = gen.xp
        z = Variable(xp.asarray(gen.make_hidden(n_images)))
        with chainer.using_config("train", False):
            x = gen(z)
        x = chainer.backends.cuda.to_cpu(x.data)
        np.random.seed()
        x = np.asarray(np.clip(x * 255, 0.0, 255.0), dtype=np.uint8)
        _, _, H, W = x.shape
        x = (
            x.reshape((rows, cols, 3, H, W))
            .transpose(0, 3, 1, 4, 2)
            .reshape((rows * H, cols * W, 3))
        )
        preview_dir = f"{dst}/preview"
        if not os.path.exists(preview_dir):
            os.makedirs(preview_dir)
        np.save(preview_dir + f"/image{trainer.updater.iteration:0>8}.npy", x)

    return make_image


def main(argv=None):
    parser = argparse.ArgumentParser(description="ChainerMN example: DCGAN")
    parser.add_argument("--batchsize", "-b", type=int, default=4)
    parser.add_argument("--communicator", type=str, default="naive")
    parser.add_argument("--epoch", "-e", type=int, default=2)
    parser.add_argument("--gpu", "-g", action="store_true")
    parser.add_argument("--out", "-o", default="result")
    parser.add_argument("--gen_model", "-r", default="")
    parser.add_argument("--n_hidden", "-n", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    comm = chainermn.create_communicator(args.communicator)
    device = comm.intra_rank if args.gpu else -1
    if device >= 0:
        chainer.cuda.get_device_from_id(device).use()

    gen = Generator(n_hidden=args.n_hidden)
    dis = Discriminator()
    if device >= 0:
        gen.to_gpu()
        dis.to_gpu()

    def make_optimizer(model, comm, alpha=0.0002, beta1=0.5):
        optimizer = chainermn.create_multi_node_optimizer(
            chainer.optimizers.Adam(alpha=alpha, beta1=beta1), comm
        )
        optimizer.setup(model)
        optimizer.add_hook(chainer.optimizer.WeightDecay(0.0001), "hook_dec")
        return optimizer

    opt_gen = make_optimizer(gen, comm)
    opt_dis = make_optimizer(dis, comm)

    train = (
        np.random.RandomState(0).randint(0, 255, (32, 3, 4, 4)).astype(np.float32)
        if comm.rank == 0
        else None
    )
    train = chainermn.scatter_dataset(train, comm)
    train_iter = chainer.iterators.SerialIterator(train, args.batchsize)

    updater = DCGANUpdater(
        models=(gen, dis),
        iterator=train_iter,
        optimizer={"gen": opt_gen, "dis": opt_dis},
        device=device,
    )
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    if comm.rank == 0:
        snapshot_interval = (1, "epoch")
        trainer.extend(
            extensions.snapshot(filename="snapshot_iter_{.updater.iteration}.npz"),
            trigger=snapshot_interval,
        )
        trainer.extend(
            extensions.snapshot_object(gen, "gen_iter_{.updater.iteration}.npz"),
            trigger=snapshot_interval,
        )
        trainer.extend(
            extensions.snapshot_object(dis, "dis_iter_{.updater.iteration}.npz"),
            trigger=snapshot_interval,
        )
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        trainer.extend(
            extensions.PrintReport(["epoch", "iteration", "gen/loss", "dis/loss", "elapsed_time"]),
            trigger=(1, "iteration"),
        )
        trainer.extend(extensions.ProgressBar(update_interval=10))
        trainer.extend(
            out_generated_image(gen, dis, 2, 2, args.seed, args.out), trigger=snapshot_interval
        )

    if args.gen_model:
        chainer.serializers.load_npz(args.gen_model, gen)
    trainer.run()
    return [{name: p.array.copy() for name, p in model.namedparams()} for model in (gen, dis)]


if __name__ == "__main__":
    main()
