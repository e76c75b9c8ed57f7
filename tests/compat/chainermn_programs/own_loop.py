"""A training loop without a trainer, data parallel, or with communications in the model and
delegates as ChainerMN wants them.

With them in the model ChainerMN itself waits for ever, because its backward goes by the depth of
the graph.
"""

import argparse

import numpy as np

import mnpar as chainer
import mnpar as chainermn
import mnpar.functions as F
import mnpar.links as L
from mnpar import configuration, serializers
from mnpar.backends import cuda
from mnpar.dataset import concat_examples


class Scale(chainer.Link):
    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.g = chainer.Parameter(chainer.initializers.Constant(1.5), (n,), name="g")
        self.add_persistent("calls", np.zeros((), "i"))

    def forward(self, x):
        self.calls += 1
        return x * F.broadcast_to(self.g, x.shape)


class Around(chainer.Chain):
    """All ranks' features gathered, exchanged and scattered again."""

    def __init__(self, comm, n):
        super().__init__()
        self.comm = comm
        with self.init_scope():
            self.first = L.Linear(n, 4, initialW=chainer.initializers.LeCunNormal())
            self.scale = Scale(4)
            self.last = L.Linear(4, 2)
        self.activation = F.tanh

    def forward(self, x):
        comm = self.comm
        h = self.activation(self.first(x))
        hs = chainermn.functions.alltoall(comm, F.split_axis(h, comm.size, axis=0))
        h = self.scale(F.concat(hs, axis=0))
        # the root adds up, and all get it back
        if comm.rank == 0:
            parts = chainermn.functions.gather(comm, h)
            parts = [part * (i + 1) for i, part in enumerate(parts)]
            h = chainermn.functions.scatter(comm, parts)
        else:
            phi = chainermn.functions.gather(comm, h)
            h = chainermn.functions.scatter(comm, None)
            (h,) = chainermn.functions.pseudo_connect(phi, h)
        y = self.last(h)
        if comm.size > 1:
            to = (comm.rank + 1) % comm.size
            source = (comm.rank - 1) % comm.size
            if comm.rank == 0:
                phi = chainermn.functions.send(y, comm, to)
                y = chainermn.functions.recv(comm, source, delegate_variable=phi)
            else:
                z = chainermn.functions.recv(comm, source)
                phi = chainermn.functions.send(y, comm, to)
                (y,) = chainermn.functions.pseudo_connect(phi, z)
        return y


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", "-o", default="result")
    parser.add_argument("--data-parallel", action="store_true")
    args = parser.parse_args(argv)

    comm = chainermn.create_communicator("naive")
    assert comm.get_config("batched_copy") in (True, False)
    assert not chainer.is_debug()
    with chainer.using_config("debug", True):
        assert chainer.is_debug()
    rng = np.random.RandomState(7 + (comm.rank if args.data_parallel else 0))
    data = [(row, np.float32([row.sum(), 1])) for row in rng.rand(24, 3).astype("f")]
    batches = chainer.iterators.SerialIterator(data, 12, repeat=True, shuffle=False)
    model = (
        chainer.Sequential(L.Linear(3, 5), F.tanh, L.Linear(5, 2))
        if args.data_parallel
        else Around(comm, 3)
    )
    optimizer = chainer.optimizers.Adam(alpha=0.01).setup(model)
    comm.bcast_data(model)
    losses = []
    while batches.epoch < 2:
        batch = batches.next()
        x, t = concat_examples(batch, -1)
        x = chainer.Variable(x)
        t = chainer.as_variable(t)
        with configuration.using_config("train", True):
            y = model(x)
        loss = F.mean_squared_error(y, t)
        model.cleargrads()
        loss.backward()
        if args.data_parallel:
            comm.multi_node_mean_grad(model)
        optimizer.update()
        losses.append(comm.allreduce_obj(float(cuda.to_cpu(loss.array))) / comm.size)
        assert np.isclose(comm.allreduce(np.float32([losses[-1]]))[0], losses[-1] * comm.size)

    with chainer.no_backprop_mode(), cuda.get_device_from_id(-1):
        assert model(x).creator is None
    name = f"{args.out}/own_loop{comm.rank}.npz"
    serializers.save_npz(name, model)
    serializers.load_npz(name, model)
    return losses, {name: param.array for name, param in model.namedparams()}


if __name__ == "__main__":
    main()
