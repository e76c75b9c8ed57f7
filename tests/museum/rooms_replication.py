"""Values that all ranks hold alike, and use for parts of the work."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.museum.room import Hall

hall = Hall("What all ranks hold, used for parts of the work")

X = np.arange(8.0).reshape(4, 2) / 4


def step(mesh, model, x):
    """One step on a mesh, whose ranks have the model together."""
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), mesh)
    optimizer.setup(model).update(lambda x: F.sum(model(x) ** 2), x)


@hall.room(
    "A layer norm before divided work",
    "NVIDIA/Megatron-LM#1446, NVIDIA/TransformerEngine#435",
    "the norm's gradients differ between ranks, as each has the part of its own columns",
    error="F.copy_to",
)
def norm_before_divided_columns(comm):
    mesh = mnpar.Mesh(comm, model=comm.size)
    mnpar.random.seed(0)
    norm = L.LayerNormalization(2)
    W = np.array([[1.0 + comm.rank, 2.0]])
    model = mnpar.Chain(norm=norm)
    model.forward = lambda x: F.reduce_from(mesh.model, F.tanh(F.linear(norm(x), W)))
    step(mesh, model, X)


@hall.room(
    "The same, with the copy",
    "NVIDIA/Megatron-LM#443 (users ask what the additional all-reduce is for)",
    "a list of parameters whose gradients are to be reduced once more, kept by hand",
)
def norm_with_copy_to(comm):
    norm = L.LayerNormalization(2)
    columns = np.arange(1.0, 5.0).reshape(2, 2)[comm.rank * 2 // comm.size :][
        : 2 // comm.size
    ]
    h = F.matmul(F.copy_to(comm, norm(X)), columns.T)
    F.sum(F.reduce_from(comm, F.sum(F.tanh(h)))).backward()
    return norm.gamma.grad


@hall.room(
    "A scale that is shared by divided heads",
    "NVIDIA/Megatron-LM#7452 (finding 11)",
    "the weight of an output norm is the same on all ranks, its gradient a part on each, which is "
    "added up only with sequence parallelism",
)
def scale_of_divided_heads(comm):
    scale = mnpar.Variable(np.array([1.0, 2.0]))
    heads = X[comm.rank * 4 // comm.size :][: 4 // comm.size]
    F.sum(F.reduce_from(comm, F.sum(F.tanh(F.copy_to(comm, scale) * heads)))).backward()
    return scale.grad


@hall.room(
    "A part that is labelled as the whole",
    "pytorch/torchtitan#3412",
    "the gradient of a chunked loss is a part on each rank, and is taken for the whole one",
)
def loss_over_a_divided_vocabulary(comm):
    weight = np.arange(12.0).reshape(6, 2) / 10
    mine = weight[comm.rank * 6 // comm.size : (comm.rank + 1) * 6 // comm.size]
    h, t = mnpar.Variable(X), np.array([0, 5, 2, 3])
    scores = F.matmul(F.copy_to(comm, h), mine.T)
    loss = F.vocabulary_parallel_softmax_cross_entropy(comm, scores, t)
    loss.backward()
    return h.grad


@hall.room(
    "A log-softmax of divided classes",
    "pytorch/pytorch#190746",
    "inside `loss_parallel()` the gradient of any log-softmax is the identity",
)
def log_softmax_of_divided_classes(comm):
    scores = np.array([[0.1, 0.7, -0.2, 0.4]])
    x = mnpar.Variable(
        scores[:, comm.rank * 4 // comm.size : (comm.rank + 1) * 4 // comm.size]
    )
    whole = F.gather_from(comm, x, axis=1)
    F.sum(F.log_softmax(whole) * np.array([[1.0, 2.0, 3.0, 4.0]])).backward()
    return np.concatenate(comm.allgather(x.grad), axis=1)


@hall.room(
    "Keys that several heads share",
    "bigcode-project/Megatron-LM#35",
    "with multi-query attention and divided layers the loss explodes after some thousand steps",
)
def keys_that_heads_share(comm):
    W = mnpar.Variable(np.array([[0.5, -0.2], [0.1, 0.3]]))
    heads = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])
    mine = heads[comm.rank * 4 // comm.size : (comm.rank + 1) * 4 // comm.size]
    keys = F.copy_to(comm, F.matmul(X, W))
    F.sum(F.reduce_from(comm, F.sum(F.tanh(F.matmul(keys, mine.T))))).backward()
    return W.grad


@hall.room(
    "An embedding that two stages share",
    "NVIDIA/Megatron-LM#656",
    "the weights of the first and the last stage are no longer the same",
)
def embedding_that_stages_share(comm):
    layers = {
        "embed": lambda: L.EmbedID(5, 3, initialW=np.arange(15.0).reshape(5, 3) / 10),
        "tanh": lambda: F.tanh,
        "head": lambda: L.Classifier(L.Linear(3, 5, initialW=np.zeros((5, 3)))),
    }
    tied = {"/head/predictor/W": "/embed/W"}
    model = mnpar.Pipeline.of(comm, layers, micro_batches=2, tied=tied)
    optimizer = mnpar.optimizers.SGD(0.5).setup(model)
    for _ in range(2):
        optimizer.update(model, np.array([0, 1, 4, 2]), np.array([1, 2, 3, 0]))
    found = [p.array for path, p in model.namedparams() if p.shape == (5, 3)]
    return comm.allgather(found[0])[-1]


@hall.room(
    "A scatter over another group",
    "NVIDIA/Megatron-LM#7452 (finding 7)",
    "embeddings are scattered over one group and gathered over another: a sample has a part of "
    "another sample",
    checked="values part at",
    impossible="Both groups are groups that the program has made, and each communication is right "
    "in its own. Nothing in the program says that both should be the same group.",
)
def scatter_over_another_group(comm):
    comm.split(0, comm.rank)
    other = comm.split(0, -comm.rank)  # the same ranks in another order
    model = L.Linear(2, 1, nobias=True, initialW=np.array([[1.0, 2.0]]))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    model.cleargrads()
    mine = F.scatter_to(other, X * 1.0, axis=0)
    whole = F.gather_from(comm, F.tanh(mine), axis=0)
    F.sum(model(whole) * np.arange(4.0)[:, None]).backward()
    optimizer.update()


@hall.room(
    "A copy too many",
    "NVIDIA/Megatron-LM#443 (users ask where the additional all-reduce belongs)",
    "gradients that were added up are added up again: P times too large",
    error="copy_to would add up a second time",
)
def value_that_is_copied_twice(comm):
    scale, columns = mnpar.Variable(np.ones(2)), np.array([1.0, 2.0]) * (comm.rank + 1)
    h = F.copy_to(comm, F.tanh(F.copy_to(comm, scale)))
    F.sum(F.reduce_from(comm, h * columns)).backward()


@hall.room(
    "A copy that is forgotten, where nothing knows the ranks",
    "NVIDIA/Megatron-LM#443 (users ask what the additional all-reduce is for)",
    "each rank has the part of the gradient that its own work gives, and copies drift apart",
    checked="F.copy_to where what all ranks hold enters divided work",
    impossible="If W is each rank's own (a member of an ensemble whose losses add up), this same "
    "program is right, so graph, values and gradients are the same. On a mesh, or beside a layer "
    "that knows its ranks (L.RowParallelLinear), it is told.",
)
def copy_that_is_forgotten(comm):
    model = L.Linear(2, 2, nobias=True, initialW=np.array([[1.0, 2.0], [0.5, -1.0]]))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    mine = slice(comm.rank * 2 // comm.size, (comm.rank + 1) * 2 // comm.size)
    for _ in range(2):
        model.cleargrads()
        part = F.sum(F.tanh(model(X))[:, mine] ** 2)  # model(X) should pass copy_to
        F.reduce_from(comm, part).backward()
        optimizer.update()


@hall.room(
    "A sum that is forgotten",
    "a mistake of programs on any system",
    "each rank goes on with its part as if it were the whole",
    checked="values part at",
    impossible="Each rank may have a loss of its own, of its own columns, and these losses add up "
    "rightly: values, graph and gradients are the same then.",
)
def sum_that_is_forgotten(comm):
    model = L.Linear(2, 2, nobias=True, initialW=np.array([[1.0, 2.0], [0.5, -1.0]]))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    mine = slice(comm.rank * 2 // comm.size, (comm.rank + 1) * 2 // comm.size)
    for _ in range(2):
        model.cleargrads()
        part = F.sum(F.tanh(F.copy_to(comm, model(X)))[:, mine])
        (part**2).backward()  # part should pass reduce_from
        optimizer.update()


@hall.room(
    "A layer along the wrong axis",
    "mnpar, an earlier version",
    "a layer is divided along the axis of a mesh whose ranks have other samples",
    ranks=4,
    error="which have samples of their own",
)
def layer_along_the_wrong_axis(comm):
    mesh = mnpar.Mesh(comm, data=2, model=2)
    model = mnpar.Chain(
        wide=L.ColumnParallelLinear(mesh.model, 2, 4, gather_output=False),
        back=L.RowParallelLinear(mesh.data, 4, 2, input_is_parallel=True),
    )
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), mesh
    ).setup(model)
    optimizer.update(
        lambda x: F.sum(model.back(F.tanh(model.wide(x))) ** 2), np.ones((2, 2))
    )


@hall.room(
    "Attention over a sequence of which a rank has nothing",
    "mnpar, an earlier version",
    "second derivatives are NaN",
)
def attention_over_an_empty_piece(comm):
    whole = [np.random.default_rng(i).normal(size=(1, 1, 4, 2)) for i in range(3)]
    q, k, v = [mnpar.Variable(x[:, :, : 4 * (comm.rank == 0)]) for x in whole]
    y = F.ring_attention(comm, q, k, v)
    (gk,) = mnpar.grad([F.sum(y**2)], [k], enable_double_backprop=True)
    F.sum(gk**2).backward()
    square = 0.0 if q.grad is None else (q.grad**2).sum()
    return comm.allreduce(np.array(square))
