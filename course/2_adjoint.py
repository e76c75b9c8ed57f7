# %% [markdown]
# # 2. Send, receive, and the way back
#
# Two ranks share a network: the first half is on rank 0, the second half and the loss on rank 1.
# After the forward pass rank 1 knows how wrong the output is. Rank 0, which must change its
# weights, knows nothing. **What is the gradient of a letter?**

# %%
import numpy as np
from classroom import grade, run

import mnpar
import mnpar.functions as F

# %% [markdown]
# ## Gradients on one rank
#
# A `Variable` is an array that remembers how it was computed. `backward()` walks back through what
# it remembers, and leaves in `x.grad` how much the result changes when x does.

# %%
x = mnpar.Variable(np.array([1.0, 2.0, 3.0]))
loss = F.sum(x * x)
loss.backward()
print("loss:", loss.array, " gradient:", x.grad)  # 2 x

# %% [markdown]
# ## Gradients over two ranks
#
# `F.send` and `F.recv` are functions like `F.sum`: they go forward, and backward goes back through
# them. So the gradient of a letter is a letter: it goes the other way, and says how much the loss
# changes when the written number changes.
#
#     forward      rank 0:  x ── send ──▶ recv ── y ── y² ── loss    :rank 1
#     backward     rank 0:  x.grad ◀── recv ── send ◀── 2 y ── 1     :rank 1


# %%
def two_ranks(comm):
    if comm.rank == 0:
        x = mnpar.Variable(np.array([1.0, 2.0, 3.0]))
        F.send(x, comm, rank=1)
        mnpar.backward()  # no loss here: take part in the others' backward
        return x.grad
    y = F.recv(comm, rank=0)
    loss = F.sum(y * y)
    loss.backward()
    return loss.array


print(run(two_ranks, ranks=2))

# %% [markdown]
# Rank 0 has no loss, and calls `mnpar.backward()`. Without it rank 1's letter would never be read;
# mnpar would say so, with the line. (Try it.)
#
# ## A message is a matrix
#
# Write down what all ranks have in one long vector: x₀, x₁, x₂. A communication makes another such
# vector of it. It only copies and adds, so it is a matrix of zeros and ones. Here rank 0's value
# goes to all three ranks (a *broadcast*), and the gradient goes back through the same matrix,
# transposed:

# %%
bcast = np.array([[1, 0, 0], [1, 0, 0], [1, 0, 0]])  # each rank wants what rank 0 has
x = np.array([5, 6, 7])
print("forward: ", bcast @ x)
gradients = np.array([10, 20, 30])  # of each rank's copy
print("backward:", bcast.T @ gradients, " rank 0 gets the sum, the others nothing")

# %% [markdown]
# The transposed matrix is called the *adjoint*. The adjoint of a broadcast is a sum; that of `send`
# is `recv`. One identity says that a backward is right, whatever numbers you take:
#
#     ⟨A x, y⟩ = ⟨x, Aᵀ y⟩

# %%
rng = np.random.default_rng(0)
a, b = rng.standard_normal(3), rng.standard_normal(3)
print(np.dot(bcast @ a, b), "=", np.dot(a, bcast.T @ b))

# %% [markdown]
# ### Exercise 2.1: a broadcast by hand
#
# Send rank 0's x to all other ranks, with `F.send` and `F.recv`. You need not think about the
# gradient: it is the adjoint of what you write. The grader tries it: rank 0 must get the sum of all
# ranks' gradients.


# %%
def broadcast(comm, x):
    """Return rank 0's x, as a Variable, on every rank. On other ranks x is None."""
    raise NotImplementedError


# %%
grade(broadcast)

# %% [markdown]
# ## Whose loss?
#
# If each rank calls `backward()` on a loss of its own, which one is differentiated? The *sum* of
# all. This is mnpar's first law, and the reason is the picture above: gradients that arrive at one
# place add up.


# %%
def own_losses(comm):
    x = mnpar.Variable(np.array([1.0]))
    F.send(x, comm, rank=(comm.rank + 1) % comm.size)
    y = F.recv(comm, rank=(comm.rank - 1) % comm.size)
    loss = F.sum((comm.rank + 1) * y)  # of the left neighbour's x
    loss.backward()
    return x.grad.item()


print(run(own_losses))

# %% [markdown]
# Each rank's x is in its right neighbour's loss, so it gets that neighbour's factor.
#
# ### Exercise 2.2: predict
#
# Every rank runs this program. Before you run anything: which number is `x.grad`, on P ranks?
#
#     x = mnpar.Variable(np.array([1.0]))
#     total = F.allreduce(comm, x)        # the sum of all ranks' x, on every rank
#     F.sum(total).backward()             # each rank calls this number its loss
#
# And which one if only rank 0 calls `F.sum(total).backward()`, and all others `mnpar.backward()`?


# %%
def predict(size):
    """Return two numbers: x.grad on ``size`` ranks, in the first case and in the second."""
    raise NotImplementedError


# %%
grade(predict)

# %% [markdown]
# ## The tape
#
# How does rank 0 know that a gradient will come? It has written a list. Each rank keeps a *tape* of
# the communications it has made; backward visits every one, in exactly the reverse order, used or
# not. Here rank 1 receives two letters and never uses the second one:


# %%
def unused(comm):
    with mnpar.Tape() as tape:  # a tape of its own, to look at
        if comm.rank == 0:
            x = mnpar.Variable(np.array([1.0]))
            F.send(3 * x, comm, rank=1)
            F.send(5 * x, comm, rank=1)
            print("on rank 0's tape:", [function.label for function in tape.records])
            mnpar.backward()
            return x.grad.item()
        y = F.recv(comm, rank=0)
        F.recv(comm, rank=0)  # never used
        F.sum(y).backward()
        return y.item()


print(run(unused, ranks=2))

# %% [markdown]
# The second letter's gradient is a short message, "there is none". So nobody waits in vain.
#
# ## A function of your own
#
# A new differentiable function is a class with two methods: `forward` on arrays, and `backward` on
# gradients, which are Variables. `communicates = True` puts it on the tape. This one sends to the
# right neighbour; each rank gets what its left neighbour has. A class is used by `apply`, which
# takes a tuple of inputs and returns a tuple of outputs.


# %%
class ToTheRight(mnpar.FunctionNode):
    communicates = True

    def __init__(self, comm):
        self.comm = comm

    def forward(self, x):
        self.comm.send(x, (self.comm.rank + 1) % self.comm.size)
        return self.comm.recv((self.comm.rank - 1) % self.comm.size)

    def backward(self, gy):
        return ToTheLeft(self.comm).apply((gy,))[0]


# %% [markdown]
# ### Exercise 2.3: the adjoint
#
# The backward of `ToTheRight` is `ToTheLeft`, which does not exist yet. Write both of its methods.
# Which way does the gradient of `ToTheLeft` go? (You may use `ToTheRight`.)


# %%
class ToTheLeft(mnpar.FunctionNode):
    """The value of each rank's right neighbour."""

    communicates = True

    def __init__(self, comm):
        self.comm = comm

    def forward(self, x):
        raise NotImplementedError

    def backward(self, gy):
        raise NotImplementedError


# %%
grade(ToTheLeft)

# %% [markdown]
# Because each is made of the other, gradients of gradients work, too.
#
# ## What you know now
#
# * The backward of a communication is its adjoint: the same letters, sent back.
# * `backward()` differentiates the sum over ranks of what the ranks called it on.
# * Every rank takes part in every backward; one without a loss calls `mnpar.backward()`.
#
# Next: a layer that is too large for one rank. `3_divided_layer.py`
