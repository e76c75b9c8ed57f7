"""Norms of gradients over ranks that hold different parts of a model."""

import numpy as np
from mnpar.optimizer_hooks import GradientClipping

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.museum.room import Hall

hall = Hall("Norms of a divided model")


def clipped(model, comm, x, threshold=0.1):
    """One step of SGD on a model that all ranks hold together, with clipping."""
    optimizer = mnpar.optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(GradientClipping(threshold, comm))
    optimizer.update(lambda: F.sum(model(x) ** 2))


@hall.room(
    "Heads that only one rank counts",
    "NVIDIA/Megatron-LM#7452 (finding 8), NVIDIA/Megatron-LM#7530",
    "attention sinks are divided by heads, and not marked so: the norm has those of one rank",
)
def norm_of_divided_heads(comm):
    mnpar.random.seed(0)
    layer = L.ColumnParallelLinear(comm, 2, 4, nobias=True, gather_output=True)
    clipped(layer, comm, np.array([[1.0, 2.0]]))
    norm = np.sqrt(float(comm.allreduce(np.array((layer.W.grad**2).sum()))))
    return round(norm, 6)


@hall.room(
    "Replicated weights that count P times",
    "ROCm/TransformerEngine#715",
    "weights that all ranks hold are marked as divided: the norm is 1.36 to 1.52 times too large",
)
def norm_beside_replicated_weights(comm):
    mnpar.random.seed(0)
    mesh = mnpar.Mesh(comm, model=comm.size)
    model = mnpar.Sequential(
        L.Linear(2, 2, nobias=True, initialW=np.eye(2)),
        L.ColumnParallelLinear(mesh.model, 2, 4, nobias=True, gather_output=True),
    )
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), mesh
    ).setup(model)
    optimizer.add_hook(GradientClipping(0.1))
    optimizer.update(lambda x: F.sum(model(x) ** 2), np.array([[1.0, 2.0]]))
    return model[0].W.array


@hall.room(
    "Experts whose norms are averaged",
    "deepspeedai/DeepSpeed#8475, deepspeedai/DeepSpeed#8478, hpcaitech/ColossalAI#2192, "
    "deepspeedai/DeepSpeed#5248 (of this family; its text was not found)",
    "the mean of the ranks' norms, each of other experts: 7.24 where 10.95 is right",
)
def norm_of_experts(comm):
    mnpar.random.seed(0)
    mesh = mnpar.Mesh(comm, expert=comm.size)
    make = lambda i: L.Linear(2, 2, nobias=True, initialW=np.eye(2) * (i + 1))
    moe = L.MixtureOfExperts(mesh.expert, make, 4, 2, k=2)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), mesh
    ).setup(moe)
    optimizer.add_hook(GradientClipping(0.1))
    x = np.array([[1.0, 2.0], [-3.0, 4.0], [5.0, -6.0], [-7.0, -8.0]])
    optimizer.update(lambda x: F.sum(moe(x) ** 2), x)
    return moe.gate.W.array


@hall.room(
    "Stages that clip by their own norm",
    "pytorch/torchtitan#596",
    "each stage of a pipeline has its own norm, and its own factor",
)
def norm_of_a_pipeline(comm):
    layers = {
        "one": lambda: L.Linear(2, 3, initialW=np.ones((3, 2))),
        "two": lambda: L.Classifier(
            L.Linear(3, 2, initialW=np.arange(6.0).reshape(2, 3))
        ),
    }
    model = mnpar.Pipeline.of(comm, layers, micro_batches=2)
    optimizer = mnpar.optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(GradientClipping(0.1, comm))
    optimizer.update(model, np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0, 1]))
    own = sum([float((p.grad**2).sum()) for p in model.params()])
    return round(np.sqrt(float(comm.allreduce(np.array(own)))), 6)
