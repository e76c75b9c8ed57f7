# %% [markdown]
# # 3. A divided layer and its gradient
#
# A layer with 50,000 inputs and 50,000 outputs has ten gigabytes of weights: too many for your
# graphics card. You have four of them. **How do four ranks compute one layer, so that nobody can
# tell the difference from one rank?** Neither its output, nor its gradients.

# %%
import numpy as np
from classroom import grade, run

import mnpar
import mnpar.functions as F
import mnpar.links as L

# %% [markdown]
# ## One layer
#
# A linear layer is y = x Wᵀ + b. We take three examples, six inputs, four outputs, in float64, so
# that a difference is a mistake and not a rounding.

# %%
rng = np.random.default_rng(0)
x = rng.standard_normal((3, 6))
W = rng.standard_normal((4, 6))
b = rng.standard_normal(4)
whole = x @ W.T + b
print(whole.shape)


# %% [markdown]
# ## Two ways to cut
#
# * *By outputs*: each rank has some rows of W, all of x, and computes some of the outputs.
# * *By inputs*: each rank has some columns of W, the same columns of x, and computes a part of all
#   outputs. The output is the sum of the parts.
#
#         by outputs        by inputs
#         ┌─────────┐       ┌──┬──┬──┐
#         │ rank 0  │       │  │  │  │
#         ├─────────┤       │0 │1 │2 │
#         │ rank 1  │       │  │  │  │
#         └─────────┘       └──┴──┴──┘
#
# `mnpar.plans.block(n, size, rank)` is your `my_block` of lesson 1: which of n belong to a rank.


# %%
def mine(n, comm):
    """Return the slice of n things that belongs to this rank."""
    return slice(*mnpar.plans.block(n, comm.size, comm.rank))


def by_outputs(comm):
    rows = mine(4, comm)
    return x @ W[rows].T + b[rows]


print("by outputs:", [part.shape for part in run(by_outputs, ranks=2)])
print("the same: ", np.allclose(np.concatenate(run(by_outputs, ranks=2), axis=1), whole))


def by_inputs(comm):
    columns = mine(6, comm)
    return x[:, columns] @ W[:, columns].T


print("by inputs: ", [part.shape for part in run(by_inputs, ranks=2)])
print("the same: ", np.allclose(sum(run(by_inputs, ranks=2)) + b, whole))

# %% [markdown]
# ## One loss, held by all
#
# Now the gradient. All ranks compute the same loss from the same sum, and each calls `backward()`
# on it. Lesson 2 said what happens: the sum over ranks of their losses is differentiated, and the
# one loss counts P times.


# %%
def gradient_of_a_part(comm, add):
    columns = mine(6, comm)
    w = mnpar.Variable(W[:, columns])
    y = add(comm, F.linear(x[:, columns], w)) + b
    loss = F.sum(y * y)  # the same number on all ranks
    loss.backward()
    return w.grad


right = 2 * whole.T @ x  # the gradient of Σ y² with respect to W
for add in (F.allreduce, F.reduce_from):
    parts = run(gradient_of_a_part, ranks=2, args=(add,))
    print(add.__name__, "has", np.concatenate(parts, axis=1)[0] / right[0], "times the gradient")

# %% [markdown]
# With `F.allreduce` gradients are twice too large on two ranks. Nothing fails: it only learns as if
# the learning rate were another one, and on four ranks another one again.
#
# `F.reduce_from(comm, x)` is the sum of parts that *becomes one value of all*: it goes forward like
# allreduce, and its backward hands the gradient on as it is. Its mirror image is `F.copy_to(comm,
# x)`: a value that all hold alike *enters work that they divide*. It does nothing forward; backward
# adds up the ranks' gradients.
#
#     x ── copy_to ──▶ each rank's part of the work ──▶ reduce_from ── y
#
# Between the two stands what is divided.
#
# ### Exercise 3.1: a layer cut by inputs
#
# Each rank gets its columns of x and W, as Variables, and the whole b, which all ranks hold alike.
# Return the output of the whole layer, on every rank. How often is b added?


# %%
def layer_by_inputs(comm, x, W, b):
    """Return x Wᵀ + b of the whole layer.

    Args:
        x: this rank's columns of the inputs, (N, D / P).
        W: this rank's columns of the weights, (K, D / P).
        b: all of it, (K,), the same on all ranks.
    """
    raise NotImplementedError


# %%
grade(layer_by_inputs)

# %% [markdown]
# ## Two layers, one sum
#
# Cut the first layer by outputs and the second by inputs. The first layer leaves on a rank just
# the inputs that the second needs there: between the two nothing travels, and `relu` works on each
# number alone.
#
#     x ── copy_to ──▶ W₁'s rows ── relu ── W₂'s columns ──▶ reduce_from ── y
#
# This pair is in every large language model. (It is from Megatron-LM, 2019.)
#
# ### Exercise 3.2: the pair
#
# Here x may come from a layer below, so its gradient counts, too. It must be the same, and whole,
# on all ranks.


# %%
def two_layers(comm, x, W1, W2):
    """Return relu(x W₁ᵀ) W₂ᵀ of the whole layers.

    Args:
        x: the inputs, (N, D), the same on all ranks.
        W1: this rank's rows of the first weights, (H / P, D).
        W2: this rank's columns of the second weights, (K, H / P).
    """
    raise NotImplementedError


# %%
grade(two_layers)

# %% [markdown]
# ## Is my parallel program right?
#
# You need not compare by hand. `mnpar.check` runs a training program on one rank, on two and on
# three, and compares gradients and weights. Here is one that has forgotten `copy_to`: `scale` is
# the same on all ranks, and each has only a part of its gradient.


# %%
def forgotten(comm):
    hidden = mine(8, comm)
    model = mnpar.Chain()
    model.scale = mnpar.Parameter(np.array([1.0]))
    model.W = mnpar.Parameter(np.linspace(-1, 1, 48).reshape(8, 6))  # all ranks have all of it
    optimizer = mnpar.optimizers.SGD(0.01).setup(model)
    for _ in range(2):
        parts = F.relu(F.linear(model.scale * x, model.W[hidden]))
        loss = F.sum(F.reduce_from(comm, F.sum(parts, axis=1)) ** 2)
        model.cleargrads()
        loss.backward()
        model.W.grad = comm.allreduce(model.W.grad)  # each rank has filled its rows
        optimizer.update()


print(mnpar.check(forgotten, ranks=(1, 2)))

# %% [markdown]
# It names the parameter, the line, and what has happened: the ranks have *parts* that nobody adds
# up.
#
# ### Exercise 3.3: with layers that exist
#
# `L.ColumnParallelLinear` is a layer cut by outputs (rows of W are columns of Wᵀ, and the field
# says column), `L.RowParallelLinear` is one cut by inputs. They draw the first weights as an
# undivided layer does, and know about `copy_to` and `reduce_from`. Make the pair of exercise 3.2 of
# them, with six inputs, eight hidden numbers and three outputs. `gather_output=False` leaves the
# first layer's outputs on their ranks, and `input_is_parallel=True` takes them there.

# %%
print(L.ColumnParallelLinear.__doc__.split("Example")[0])


# %%
def make_pair(comm):
    """Return mnpar.Sequential(…) of two divided layers, with F.relu between them."""
    raise NotImplementedError


# %%
grade(make_pair)

# %% [markdown]
# ## What you know now
#
# * A layer is cut by outputs, or by inputs; the second needs a sum.
# * A value that all ranks hold enters divided work by `copy_to`, and comes out by `reduce_from`.
# * A loss that all ranks hold counts P times where `allreduce` stands in place of `reduce_from`.
# * `mnpar.check(program)` says whether a program on several ranks computes what one rank does.
#
# Next: the sum itself, without a queue at rank 0. `4_ring.py`
