"""Losses that are weighed by what one rank has."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.museum.room import Hall

hall = Hall("Losses that are weighed by what one rank has")


@hall.room(
    "A loss over local token counts",
    "NVIDIA/Megatron-LM#7452 (finding 3), NVIDIA/Megatron-LM#7498",
    "each rank divides by its own number of valid tokens: 14/3 where 4 is right",
)
def loss_over_valid_tokens(comm):
    tokens = np.array([1.0, 2.0, 3.0, 6.0])
    valid = np.array([True, False, True, True])
    mine = slice(comm.rank * 4 // comm.size, (comm.rank + 1) * 4 // comm.size)
    model = L.Linear(1, 1, nobias=True, initialW=np.zeros((1, 1)))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), comm, samples=lambda x: len(x)
    ).setup(model)
    optimizer.update(lambda x: F.mean(model(x)), tokens[mine][valid[mine]][:, None])
    return model.W.array  # minus the mean of 1, 3 and 6


@hall.room(
    "A masked loss over a divided sequence",
    "NVIDIA/Megatron-LM#7513 (finding 9 of #7452), NVIDIA/Megatron-LM#673",
    "each shard divides by its own count: with one valid token, two ranks halve the gradient",
)
def masked_loss_of_a_divided_sequence(comm):
    x, valid = np.arange(1.0, 5.0), np.array([0.0, 1.0, 0.0, 0.0])
    mine = slice(comm.rank * 4 // comm.size, (comm.rank + 1) * 4 // comm.size)
    w = mnpar.Variable(np.array(1.0))
    part = F.sum((F.copy_to(comm, w) * x[mine]) ** 2 * valid[mine])
    count = comm.allreduce(np.array(valid[mine].sum()))
    (F.reduce_from(comm, part) / float(count)).backward()
    return w.grad


@hall.room(
    "The mean over uneven shards",
    "pytorch/pytorch#162692, facebookresearch/fairseq#494, meta-pytorch/torchtune#2172",
    "a mean of the shards' means, which is another number if they are uneven",
    ranks=3,
)
def mean_over_uneven_shards(comm):
    x = np.arange(7.0)[comm.rank :: comm.size, None]
    model = L.Linear(1, 1, nobias=True, initialW=np.ones((1, 1)))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    for _ in range(3):
        optimizer.update(lambda x: F.mean(model(x) ** 2), x)
    return model.W.array


@hall.room(
    "More ranks than samples",
    "pytorch/pytorch#162692 (a shard without rows: NaN)",
    "the mean of an empty shard is NaN, and so are the weights",
    ranks=3,
)
def a_rank_without_samples(comm):
    x = np.arange(1.0, 3.0)[comm.rank :: comm.size, None]
    model = L.Linear(1, 1, nobias=True, initialW=np.ones((1, 1)))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    optimizer.update(lambda x: F.mean(model(x) ** 2), x)
    return model.W.array


@hall.room(
    "A mean with class weights",
    "pytorch/pytorch#185167",
    "the weighted mean divides by the weights of its own shard",
)
def mean_with_class_weights(comm):
    t, weight = np.array([0, 1, 1, 1]), np.array([1.0, 5.0])
    x = np.array([[1.0], [2.0], [3.0], [4.0]])
    mine = slice(comm.rank * 2 if comm.size == 2 else 0, comm.rank * 2 + 4 // comm.size)
    model = L.Linear(1, 2, nobias=True, initialW=np.array([[0.1], [0.2]]))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm, samples=lambda x, t: weight[t].sum()
    ).setup(model)

    def loss(x, t):
        each = F.softmax_cross_entropy(model(x), t, reduce="no")
        return F.sum(each * weight[t]) / weight[t].sum()

    optimizer.update(loss, x[mine], t[mine])
    return model.W.array


@hall.room(
    "Means of micro-batches",
    "huggingface/transformers#34191, meta-pytorch/torchtune#1875, ml-explore/mlx-lm#1413",
    "gradient accumulation averages means over micro-batches of different lengths",
)
def micro_batches_of_different_lengths(comm):
    x = np.arange(1.0, 9.0)[comm.rank :: comm.size, None]
    model = L.Linear(1, 1, nobias=True, initialW=np.ones((1, 1)))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    loss = lambda x: F.mean(model(x) ** 2)
    with optimizer.no_sync():
        optimizer.update(loss, x[:1])
    optimizer.update(loss, x[1:])
    return model.W.array


@hall.room(
    "Accumulation that reduces the wrong micro-batch",
    "modelscope/FunASR#3472, karpathy/build-nanogpt#30, speechbrain/speechbrain#2010",
    "one condition off, the first micro-batch is reduced and the last one not: ranks step with "
    "gradients of their own",
    ranks=3,
)
def accumulation_over_copies(comm):
    x = np.arange(1.0, 13.0)[comm.rank :: comm.size, None]
    model = mnpar.DistributedDataParallel(
        L.Linear(1, 1, initialW=np.ones((1, 1))), comm
    )
    optimizer = mnpar.optimizers.SGD(0.01).setup(model)
    for _ in range(2):
        model.cleargrads()
        with model.no_sync():
            (F.mean(model(x[: len(x) // 2]) ** 2) / 2).backward()
        (F.mean(model(x[len(x) // 2 :]) ** 2) / 2).backward()
        optimizer.update()
    return model.module.W.array


@hall.room(
    "A loss that cannot be weighed any more",
    "facebookresearch/fairseq#494",
    "gradients are averaged over ranks, whatever samples they have",
    error="Give all ranks as many samples, or train by mnpar.create_multi_node_optimizer",
)
def uneven_copies_with_a_common_loss(comm):
    x = np.ones((1 + comm.rank, 1))
    model = mnpar.DistributedDataParallel(L.Linear(1, 1), comm)
    F.sum(F.allreduce(comm, F.mean(model(x)))).backward()


@hall.room(
    "The load balancing loss of experts",
    "NVIDIA/Megatron-LM#5047, NVIDIA/Megatron-LM#3769, NVIDIA-NeMo/Automodel#1412",
    "its gradient depends on how many ranks divide the layer, or never flows",
)
def balance_of_experts(comm):
    mnpar.random.seed(0)
    moe = L.MixtureOfExperts(
        comm, lambda i: L.Linear(2, 2, initialW=np.eye(2) * i), 4, 2, k=2
    )
    moe.gate.W.array = np.arange(8.0).reshape(moe.gate.W.shape) / 10
    x = np.array([[1.0, 2.0], [3.0, -4.0], [-5.0, 6.0], [0.5, 0.1]])
    y = moe(x)
    (F.sum(y**2) * 0 + moe.balance).backward()
    return moe.gate.W.grad
