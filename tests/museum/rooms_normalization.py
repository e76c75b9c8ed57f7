"""Statistics of one rank's samples."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.museum.room import Hall

hall = Hall("Batch normalization over ranks")

ROWS = np.array([[0.0], [1.0], [4.0], [9.0], [2.0]])


@hall.room(
    "Its gradient for uneven batches",
    "pytorch/pytorch#36382",
    "backward of SyncBatchNorm takes the ranks' batches for equal: a wrong gradient of the input",
)
def gradient_for_uneven_batches(comm):
    norm = L.MultiNodeBatchNormalization(1, comm)
    x = mnpar.Variable(ROWS[comm.rank :: comm.size])
    F.sum(norm(x) ** 3).backward()
    return float(comm.allreduce(np.array((np.cos(x.array) * x.grad).sum())))


@hall.room(
    "Its running variance for uneven batches",
    "pytorch/pytorch#22192, NVIDIA/apex#387",
    "ranks count with their own sizes, and have different running variances",
)
def running_variance_for_uneven_batches(comm):
    norm = L.MultiNodeBatchNormalization(1, comm)
    norm(ROWS[comm.rank :: comm.size])
    return norm.avg_var


@hall.room(
    "Scale and shift that are added up twice",
    "sony/nnabla#1120",
    "the layer adds the gradients of beta and gamma up over ranks, and the optimizer again",
)
def scale_and_shift(comm):
    model = mnpar.Sequential(L.MultiNodeBatchNormalization(1, comm))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    optimizer.update(
        lambda x: F.mean((model(x) - 1) ** 2), ROWS[comm.rank :: comm.size]
    )
    return np.concatenate([model[0].gamma.array, model[0].beta.array])


@hall.room(
    "Its second derivative",
    "pytorch/pytorch#61222",
    "SyncBatchNorm cannot be differentiated twice",
)
def second_derivative_of_the_norm(comm):
    norm = L.MultiNodeBatchNormalization(1, comm)
    x = mnpar.Variable(ROWS[comm.rank :: comm.size])
    (g,) = mnpar.grad([F.sum(norm(x) ** 3)], [x], enable_double_backprop=True)
    x.cleargrad()
    F.sum(g**2).backward()
    return float(comm.allreduce(np.array((np.cos(x.array) * x.grad).sum())))


@hall.room(
    "Statistics of one rank",
    "ChainerMN (create_mnbn_model is its remedy)",
    "each copy normalizes by its own samples: another function than on one process",
    checked="the result of BatchNormalization",
    impossible="Normalizing by the samples of a rank is a method of its own (ghost batch "
    "normalization), which the same lines of a program ask for.",
)
def statistics_of_one_rank(comm):
    mnpar.random.seed(1)
    norm, head = L.BatchNormalization(1), L.Linear(1, 2)
    model = mnpar.Chain(norm=norm, head=head)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    loss = lambda x: F.mean(head(F.tanh(norm(x))) ** 2)
    optimizer.update(loss, ROWS[comm.rank :: comm.size])
