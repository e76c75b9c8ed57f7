# %% [markdown]
# # 6. Sharded states
#
# Four ranks train one network together: each has a copy of it, and a quarter of the images. This is
# *data parallelism*, the most common way to use several graphics cards. But the optimizer Adam
# remembers two numbers for each weight, and every rank remembers the same ones. **Why should
# everybody remember everything?**

# %%
import numpy as np
from classroom import grade, picture, run

import mnpar
import mnpar.functions as F
import mnpar.links as L

# %% [markdown]
# ## Copies that stay equal
#
# Each rank computes the gradient of its own examples. Before the step the gradients are averaged;
# so all copies take the same step, and stay equal. `create_multi_node_optimizer` does that around
# any optimizer, and weighs means by numbers of examples (lesson 1 has shown why).

# %%
rng = np.random.default_rng(0)
x = rng.standard_normal((10, 5))
t = (x[:, 0] * x[:, 1] > 0).astype(np.int32)


def make_model():
    mnpar.random.seed(0)  # the same first weights on every rank
    return mnpar.Sequential(L.Linear(5, 7), F.tanh, L.Linear(7, 2))


def block(n, comm):
    """Return the slice of n things that belongs to this rank."""
    return slice(*mnpar.plans.block(n, comm.size, comm.rank))


def train(comm, sharded):
    with mnpar.using_config("dtype", np.dtype("f8")):
        model = make_model()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(0.1), comm, sharded=sharded)
    optimizer.setup(model)
    mine = block(10, comm)
    for _ in range(20):
        optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x[mine], t[mine])
    with mnpar.no_backprop_mode():
        loss = F.softmax_cross_entropy(model(x), t).item()
    states = [state for p in model.params() for state in p.update_rule.state.values()]
    return round(loss, 9), sum([array.nbytes for array in states if isinstance(array, np.ndarray)])


for loss, nbytes in run(train, args=(False,)):
    print("loss", loss, " bytes that Adam remembers:", nbytes)

# %% [markdown]
# Equal losses on all ranks, and the same bytes in every memory. Now with `sharded=True`: each rank
# remembers the states of *its stretch* of the weights only, and steps with these. (This is ZeRO,
# stage 1, of 2020.)

# %%
for loss, nbytes in run(train, args=(True,)):
    print("loss", loss, " bytes that Adam remembers:", nbytes)

# %% [markdown]
# The same losses, to the last digit that we print, and a part of the memory. How is it done?
#
# ## Half of an allreduce
#
# An average of gradients is an allreduce, and lesson 4 has shown that it has two halves: *add up*,
# so that each rank has one complete piece, and *hand out*. The trick is to take the step in
# between:
#
# 1. `comm.reduce_scatter(pieces)`: each rank gets the sum of one piece of the gradient;
# 2. it steps with this piece, by the states that it keeps of it;
# 3. `comm.allgather(piece)`: everybody gets the new weights of all pieces.
#
# The same bytes travel as before.


# %%
def halves(comm):
    gradient = np.arange(6.0) + 100 * comm.rank
    pieces = np.array_split(gradient, comm.size)
    mine = comm.reduce_scatter(pieces)
    back = np.concatenate(comm.allgather(mine))
    return mine, back


for mine, back in run(halves, ranks=2):
    print("its piece of the sum:", mine, " all of it:", back)

# %% [markdown]
# ### Exercise 6.1: a step in shards
#
# SGD with momentum remembers one number for each weight, the velocity v:
#
#     v ← 0.9 v - lr · gradient
#     w ← w + v
#
# Here w and the gradient are vectors. All ranks have all of w; each has a gradient of its own, and
# the velocity of its piece only. Step with the mean of the gradients over ranks. Return the new w,
# all of it, and the new velocity of the rank's piece. (`np.array_split(w, comm.size)[comm.rank]` is
# the rank's piece of w.)


# %%
def sharded_step(comm, w, gradient, v, lr):
    """Return the new weights, all of them, and the new velocity of this rank's piece.

    Args:
        w: the weights, the same on all ranks.
        gradient: this rank's own, as long as w.
        v: the velocity of this rank's piece of w.
        lr: the learning rate.
    """
    raise NotImplementedError


# %%
grade(sharded_step)

# %% [markdown]
# ### Exercise 6.2: what fits?
#
# A network has n weights in float32: four bytes each. Training needs the weights, as many bytes for
# the gradients, and for Adam two more such numbers for each weight. With `sharded=True` each of P
# ranks has 1/P of Adam's numbers, and all of the rest. (Assume that P divides n.)


# %%
def bytes_on_a_rank(n, ranks, sharded):
    """Return how many bytes each rank needs."""
    raise NotImplementedError


# %%
grade(bytes_on_a_rank)

# %% [markdown]
# A picture for a network of a billion weights:


# %%
def bars(axes):
    ranks = [1, 2, 4, 8, 16]
    places = np.arange(len(ranks))
    below = np.zeros(len(ranks))
    for what, per_weight, divided in (("weights", 4, 0), ("gradients", 4, 0), ("Adam", 8, 1)):
        gigabytes = np.array([per_weight / (n if divided else 1) for n in ranks])
        axes.bar(places, gigabytes, bottom=below, label=what)
        below += gigabytes
    axes.set_xticks(places, ranks)
    axes.set_xlabel("ranks")
    axes.set_ylabel("GB on each rank")
    axes.legend(frameon=False)


picture("states.png", bars)

# %% [markdown]
# Gradients and weights can be divided as well (ZeRO's stages 2 and 3). Then more has to travel.
#
# ### Exercise 6.3: train
#
# Write a training of your own, for any number of ranks: five updates of `make_model()` by
# `MomentumSGD(0.1)`, in shards. Each rank takes its block of the examples. The grader runs
# `mnpar.check`: gradients and weights must be those of one rank with all examples.


# %%
def my_training(comm, x, t):
    """Train make_model() on x, (N, 5), and labels t, (N,), which are all examples; return it."""
    raise NotImplementedError


# %%
grade(my_training)

# %% [markdown]
# ## What you know now
#
# * In data parallelism ranks have equal copies and unequal data; gradients are averaged.
# * An allreduce is a reduce_scatter and an allgather. A step in between needs only 1/P of the
#   states.
# * `create_multi_node_optimizer(…, sharded=True)` does it for any optimizer.
#
# Next, and last: a program that never ends. `7_deadlock.py`
