"""Collectives whose backward is not the adjoint of their forward."""

import numpy as np

import mnpar
import mnpar.functions as F
from tests.museum.room import Hall

hall = Hall("Collectives with another backward")


@hall.room(
    "A gather whose gradient is random",
    "pytorch/pytorch#120386",
    "backward of `all_gather` reduces into a buffer that is not the one that it returns, if the "
    "gradient is not contiguous: random numbers",
    ranks=3,
    value=[[[0.0, 3.0], [6.0, 9.0]]] * 3,
)
def gather_of_a_transposed_gradient(comm):
    x = mnpar.Variable(np.ones((2, 2)))
    whole = F.allgather(comm, x, axis=0)
    weights = np.tile(np.arange(4.0).reshape(2, 2).T, comm.size).T  # not contiguous
    F.sum(whole * weights).backward()
    return x.grad


@hall.room(
    "A gather, and another loss on each rank",
    "pytorch/pytorch#153016",
    "one of two ways to gather, that of DTensor, has a gradient that is wrong if the ranks have "
    "other losses",
    ranks=3,
    value=[[6.0, 6.0]] * 3,
)
def gather_with_another_loss_on_each_rank(comm):
    x = mnpar.Variable(np.ones(2))
    whole = F.allgather(comm, x, axis=0)
    F.sum(whole * (1 + comm.rank)).backward()
    return x.grad


@hall.room(
    "A gather along another axis",
    "pytorch/xla#5784, lightly-ai/lightly#1531",
    "backward cuts the own slice out of the own gradient, and adds nothing up",
    value=[[[3.0], [3.0]]] * 2,
)
def gather_along_the_second_axis(comm):
    x = mnpar.Variable(np.ones((2, 1)))
    whole = F.allgather(comm, x, axis=1)
    F.sum(whole * (1.0 + comm.rank)).backward()
    return x.grad


@hall.room(
    "A collective without a gradient",
    "pytorch/pytorch#152127, huggingface/accelerate#76",
    "collectives of tensors ignore backward: what came from other ranks has no gradient, and "
    "training goes on",
    error="mnpar.functions has the same for Variables, with their gradients",
)
def sum_of_a_variable_as_if_it_were_an_array(comm):
    x = mnpar.Variable(np.ones(2))
    total = comm.allreduce(x)
    F.sum(total).backward()


@hall.room(
    "A sum in place",
    "ai2cm/ace#995",
    "an `all_reduce` in place breaks the graph: the loss path has no gradient",
    value=[[2.0, 4.0]] * 2,
)
def sum_in_the_loss(comm):
    w = mnpar.Variable(np.array([1.0, 2.0]))
    total = F.reduce_from(comm, F.copy_to(comm, w) ** 2 / comm.size)
    F.sum(total).backward()
    return w.grad


@hall.room(
    "The mean over ranks",
    "pytorch/pytorch#190007",
    "`all_reduce` with `avg` works forward; its backward raises, as it knows sums only",
    ranks=3,
    value=[[2.0], [2.0], [2.0]],
)
def mean_over_ranks(comm):
    x = mnpar.Variable(np.array([comm.rank + 1.0]))
    mean = F.allreduce(comm, x, "mean")
    F.sum(mean * (comm.rank + 1)).backward()  # (1 + 2 + 3) / 3
    return x.grad


@hall.room(
    "The largest of all ranks",
    "torch.distributed.nn.functional (by reading: it applies the same operation to gradients), "
    "LBANN (the same), MLX (all_max is named in a list of such mistakes; no thread was found)",
    "the gradient is the maximum of the gradients, on every rank",
    ranks=3,
    value=[[0.0], [0.0], [6.0]],
)
def maximum_over_ranks(comm):
    x = mnpar.Variable(np.array([float(comm.rank)]))
    largest = F.allreduce(comm, x, "max")
    F.sum(largest * (comm.rank + 1)).backward()
    return np.zeros(1) if x.grad is None else x.grad


@hall.room(
    "The product of all ranks",
    "torch.distributed.nn.functional (by reading: it applies the same operation to gradients)",
    "the gradient is the product of the gradients",
    ranks=3,
    value=[[18.0], [9.0], [6.0]],
)
def product_over_ranks(comm):
    x = mnpar.Variable(np.array([comm.rank + 1.0]))
    F.sum(F.allreduce(comm, x, "prod")).backward()  # 6 / x, times 3 ranks
    return x.grad


@hall.room(
    "The gradient of a broadcast",
    "horovod/horovod#2654",
    "gradients of `allreduce`, `allgather` and `broadcast` are scaled wrongly",
    ranks=3,
    value=[[6.0], [0.0], [0.0]],
)
def broadcast_from_rank_0(comm):
    x = mnpar.Variable(np.array([1.0]))
    y = F.bcast(comm, x if comm.rank == 0 else None, root=0)
    F.sum(y * (comm.rank + 1)).backward()
    return np.zeros(1) if x.grad is None else x.grad


@hall.room(
    "A sum whose backward is the identity",
    "Dao-AILab/flash-attention#1244",
    "`all_reduce` has a backward without communication: right for Megatron's g, wrong for a sum "
    "that each rank uses in its own way",
    ranks=3,
    value=[[6.0]] * 3,
)
def sum_that_each_rank_uses_otherwise(comm):
    x = mnpar.Variable(np.array([1.0]))
    total = F.allreduce(comm, x)
    F.sum(total * (comm.rank + 1)).backward()
    return x.grad


@hall.room(
    "The loss of all, on every rank",
    "jax-ml/jax#3970, pytorch/pytorch#58005",
    "`grad(psum(loss))` is P times the gradient, or not, as one reads it",
    ranks=3,
    value=[[12.0]] * 3,
)
def loss_that_ranks_have_in_common(comm):
    w = mnpar.Variable(np.array([2.0]))
    part = F.copy_to(comm, w) ** 2 * (comm.rank + 0.0)
    F.sum(F.reduce_from(comm, part)).backward()  # of 3 w²
    return w.grad


@hall.room(
    "The same loss, summed by allreduce",
    "jax-ml/jax#3970, pytorch/pytorch#121587",
    "P times the gradient on every rank; documentation was mended thrice in one month",
    checked="P = 2 times one rank's",
    impossible="Each rank may have a loss of its own that happens to be a sum: then P of them add "
    "up, and this is right. Values, shapes and messages of both programs are the same in every "
    "run; what tells them apart is that one rank is to compute the same.",
)
def loss_by_allreduce(comm):
    mine = slice(comm.rank * 4 // comm.size, (comm.rank + 1) * 4 // comm.size)
    model = mnpar.Link()
    model.w = mnpar.Parameter(np.arange(4.0)[mine])  # a divided weight
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    for _ in range(2):
        model.cleargrads()
        part = F.sum(model.w * np.arange(1.0, 5.0)[mine])
        (F.allreduce(comm, part) ** 2).backward()
        optimizer.update()
