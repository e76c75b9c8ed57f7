"""Experts that are divided among ranks."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.museum.room import Hall

hall = Hall("Experts on ranks")

X = np.array([[1.0, 2.0], [3.0, -4.0], [-5.0, 6.0], [0.5, 0.1]])


def mixture(comm, **more):
    """Four experts, on one rank or several."""
    mnpar.random.seed(0)
    make = lambda i: L.Linear(2, 2, nobias=True, initialW=np.eye(2) * (i + 1))
    return L.MixtureOfExperts(comm, make, 4, 2, k=2, **more)


@hall.room(
    "Experts' gradients that grow with the ranks",
    "pytorch/pytorch#160285, deepspeedai/DeepSpeed#5618, deepspeedai/DeepSpeed#6545",
    "the gradients of experts are as many times too large as there are ranks of experts",
)
def gradients_of_experts(comm):
    moe = mixture(comm)
    F.sum(moe(X) ** 2).backward()
    own = [
        float((p.grad**3).sum()) for path, p in moe.namedparams() if "experts" in path
    ]
    return round(float(comm.allreduce(np.array(sum(own)))), 6)


@hall.room(
    "The router's gradient",
    "NVIDIA/Megatron-LM#3768",
    "equivalent configurations have gradients of the router of different strength",
)
def gradient_of_the_router(comm):
    moe = mixture(comm, input_is_parallel=True)
    F.sum(moe(X[comm.rank :: comm.size]) ** 2).backward()
    return moe.gate.W.grad


@hall.room(
    "The rest of the model beside experts",
    "NVIDIA/Megatron-LM#5916 (parameters are reduced over the wrong group, and drift apart)",
    "gradients of other ranks' experts mix, or replicated layers get a part of theirs",
)
def layers_beside_experts(comm):
    mesh = mnpar.Mesh(comm, expert=comm.size)
    model = mnpar.Chain(
        first=L.Linear(2, 2, initialW=np.eye(2)),
        moe=mixture(mesh.expert, input_is_parallel=True, whole_gradients=False),
    )
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.01), mesh, axes="expert"
    ).setup(model)
    for _ in range(2):
        optimizer.update(
            lambda x: F.mean(model.moe(model.first(x)) ** 2), X[comm.rank :: comm.size]
        )
    return model.first.W.array


@hall.room(
    "A router that drifts",
    "mnpar, an earlier version",
    "with a plain optimizer the layers that all ranks have beside the experts go their own ways",
)
def router_with_a_plain_optimizer(comm):
    mnpar.random.seed(0)
    make = lambda i: L.Linear(2, 2, nobias=True, initialW=np.eye(2) * (i + 1))
    moe = L.MixtureOfExperts(comm, make, 4, 2, k=2)
    optimizer = mnpar.optimizers.SGD(0.001).setup(moe)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(0.1))
    x = np.array([[1.0, 2.0], [-3.0, 4.0], [5.0, -6.0], [-7.0, -8.0]])
    for _ in range(2):
        optimizer.update(lambda: F.sum(moe(x) ** 2))
    return moe.gate.W.array
