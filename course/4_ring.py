# %% [markdown]
# # 4. A ring
#
# In lesson 1 everybody wrote to rank 0. With a thousand ranks rank 0 reads 999 letters, one after
# the other, and 999 ranks wait. **Can everybody have the sum, and nobody more work than another?**
#
# Sit around a table. Speak with your neighbours only.

# %%
import numpy as np
from classroom import grade, picture, run

import mnpar
import mnpar.functions as F

# %% [markdown]
# ## Neighbours
#
#         ┌──▶ 0 ──▶ 1 ──┐
#         └─── 3 ◀── 2 ◀─┘
#
# The right neighbour of rank r is (r + 1) mod P. The remainder closes the ring: to the right of the
# last rank is rank 0. In Python (-1) % 4 is 3, so the left neighbour needs no special case.


# %%
def neighbours(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


print(run(neighbours))

# %% [markdown]
# ## Everybody sends first
#
# Each rank gives something to its right neighbour, and takes something from its left one. All send
# before they receive. (If all received first, nobody would ever send: see lesson 7.)


# %%
def pass_on(comm, x):
    left, right = neighbours(comm)
    comm.send(x, right)
    return comm.recv(left)


def names(comm):
    return pass_on(comm, np.array(comm.rank)).item()


print(run(names))

# %% [markdown]
# ### Exercise 4.1: a sum that goes round
#
# Pass on what you have just received, and add it to your total. How many times, until everybody has
# seen everybody's number? Each rank sends P - 1 messages, and nobody is special. (`pass_on` is
# yours to use.)


# %%
def ring_sum(comm, x):
    """Return the sum of all ranks' x, on every rank."""
    raise NotImplementedError


# %%
grade(ring_sum)

# %% [markdown]
# ## In pieces
#
# Each rank now sends P - 1 whole arrays. With a gigabyte of gradients on 8 ranks that is 7 GB for
# each rank. It can be done with less than two, whatever P is. Cut the array into P pieces.
#
# 1. *Add up*: pieces go round, and grow. In each step a rank passes on one piece, and adds its own
#    numbers to the one that it receives. After P - 1 steps each rank has one piece that is
#    complete.
# 2. *Hand out*: the complete pieces go round. After P - 1 more steps everybody has all of them.
#
# Each step sends 1/P of the array, so in all a rank sends 2 (P - 1) / P arrays.
# Follow one piece, say number 0, on three ranks. It begins at rank 1, and rank 0 has it in the end:
#
#     add up      rank 1:  x₁   ──▶   rank 2:  x₁ + x₂   ──▶   rank 0:  x₁ + x₂ + x₀  complete
#     hand out    rank 0 ──▶ rank 1 ──▶ rank 2
#
# So in step s of adding up, rank r passes on piece r - 1 - s, and receives piece r - 2 - s (all
# numbers mod P). Try it with a pencil for three ranks. In the end rank r has completed piece r.

# %%
size = 3
for s in range(size - 1):
    moves = [f"rank {r} sends piece {(r - 1 - s) % size}" for r in range(size)]
    print(f"step {s}:", ", ".join(moves))

# %% [markdown]
# ### Exercise 4.2: the ring allreduce
#
# `np.array_split(x, P)` cuts x into P pieces, also if P does not divide its length.
# `np.concatenate(pieces)` joins them. The grader counts the bytes that you send.


# %%
def ring_allreduce(comm, x):
    """Return the sum of all ranks' x, a vector, on every rank; send about 2 (P - 1) / P of it."""
    raise NotImplementedError


# %%
grade(ring_allreduce)

# %% [markdown]
# ## What it costs
#
# The busiest rank decides how long the others wait. Here is what it sends for an array of one
# megabyte: from a star, as in lesson 1, from the ring of exercise 4.1, and from the ring in pieces.

# %%
P = np.arange(2, 17)
star, ring, pieces = P - 1.0, P - 1.0, 2 * (P - 1) / P


def draw(axes):
    axes.plot(P, star, "o-", label="star (rank 0), and ring of whole arrays")
    axes.plot(P, pieces, "s-", label="ring in pieces")
    axes.set_xlabel("ranks")
    axes.set_ylabel("MB sent by the busiest rank")
    axes.legend(frameon=False)


picture("ring.png", draw)

# %% [markdown]
# This is how `comm.allreduce` adds up large arrays, and how gradients are averaged on a thousand
# graphics cards. Small arrays are another matter: a ring of P ranks takes 2 (P - 1) steps, and each
# takes its time, however short the message is.
#
# ## A ring that has a gradient
#
# Stars attract each other. The energy of a cloud of stars is a sum over all *pairs*, and the force
# on a star is minus the gradient of the energy. On one rank:

# %%
where = np.random.default_rng(0).standard_normal((6, 2))  # six stars in a plane


def pair_energy(a, b):
    """Return the energy between each of the stars a, (n, 2), and each of b, (m, 2): a sum."""
    apart = F.expand_dims(a, 1) - F.expand_dims(b, 0)  # (n, m, 2)
    return -F.sum(1 / F.sqrt(F.sum(apart * apart, axis=2) + 0.01))


stars = mnpar.Variable(where)
energy = pair_energy(stars, stars) / 2  # each pair was counted from both ends
energy.backward()
forces = -stars.grad
print("energy", round(energy.item(), 6), " forces add up to", forces.sum(axis=0).round(12) + 0.0)

# %% [markdown]
# (A star with itself adds the same number to every energy, and no force.)
#
# Now the stars are divided among ranks. Each rank needs to meet the stars of all others, without
# having them all at once: a guest's stars come round the ring. This is how *ring attention* reads a
# book that is too long for one graphics card.
#
# ### Exercise 4.3: guests
#
# Let copies of the stars go round, by `F.send` and `F.recv`. With each guest add the energy of your
# stars and the guest's. Return half of it: all ranks together then have the energy above. You
# write no backward: forces go back round the ring by themselves.


# %%
def my_energy(comm, stars):
    """Return half the energy of this rank's stars with all stars, a Variable.

    Args:
        stars: this rank's places, a Variable of shape (n, 2); n is another one on each rank.
    """
    raise NotImplementedError


# %%
grade(my_energy)

# %% [markdown]
# ## What you know now
#
# * In a ring nobody is special: the neighbours are (r ± 1) mod P, and all send before they receive.
# * An allreduce costs each rank less than two arrays, however many ranks there are.
# * A program that goes round forward goes round backward, too.
#
# Next: four ranks that do four different things. `5_pipeline.py`
