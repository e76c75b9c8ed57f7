# %% [markdown]
# # 1. Ranks: one program, several memories
#
# Four friends have counted birds, each in a garden of their own. They want to know how many there
# are in all. Nobody can look into another one's notebook; they can only write letters.
#
# A parallel program is like that. **How do programs that see nothing of each other compute one
# number together?**
#
# Run the cells one after the other. Change them, and run them again: nothing can break.

# %%
import numpy as np
from classroom import grade, run

# %% [markdown]
# ## A rank
#
# We write one function, and let four *ranks* run it. Each rank has a communicator, `comm`, which
# knows two numbers: which rank this is, and how many there are.


# %%
def hello(comm):
    print(f"I am rank {comm.rank} of {comm.size}")
    return comm.rank**2


print(run(hello, ranks=2))

# %% [markdown]
# `run` calls the function once on each rank, and returns a list of what the ranks returned. Here
# ranks are threads of this process, which take turns. Started as
#
#     mpiexec -n 4 python course/1_ranks.py
#
# this very file runs on four processes, which may be on four machines. The functions need no
# change. `run(program)` without a number takes as many ranks as there are: four here.
#
# Variables belong to the rank that makes them: `birds` is another number on each rank.


# %%
def count(comm):
    birds = 10 * (comm.rank + 1)
    return f"rank {comm.rank} has counted {birds}"


print(run(count))

# %% [markdown]
# ## A message
#
# Rank 0 sends an array to rank 1. `send` returns at once: the letter is in the post. `recv` waits
# until the letter is there. It needs to know only from whom.


# %%
def letter(comm):
    if comm.rank == 0:
        comm.send(np.array([3.0, 4.0]), 1)  # to rank 1
        return "sent"
    birds = comm.recv(0)  # from rank 0
    return f"received {birds}"


print(run(letter, ranks=2))

# %% [markdown]
# ## The sum, on one rank
#
# Everybody writes to rank 0, which adds up. All ranks run the same function, and `comm.rank`
# decides who does what:
#
#         rank 1 ──┐
#         rank 2 ──┼──▶ rank 0
#         rank 3 ──┘


# %%
def sum_on_rank_0(comm, x):
    if comm.rank > 0:
        comm.send(x, 0)
        return None
    total = x
    for source in range(1, comm.size):
        total = total + comm.recv(source)
    return total


def garden(comm):
    birds = np.array([10.0 * (comm.rank + 1)])
    return sum_on_rank_0(comm, birds)


print(run(garden))

# %% [markdown]
# Rank 0 knows the sum, the others do not: they returned None.
#
# ### Exercise 1.1: everybody knows
#
# Write an *allreduce*: the sum, on every rank. Use `comm.send` and `comm.recv` only. Then run the
# cell below it. It says whether your function is right, and if not, what it does. (`pytest course`
# in a terminal grades the whole course.)


# %%
def allreduce_by_hand(comm, x):
    """Return the sum of all ranks' x, on every rank."""
    raise NotImplementedError


# %%
grade(allreduce_by_hand)

# %% [markdown]
# ## What a sum costs
#
# `comm.traffic` counts what a rank has sent. In the star above, rank 0 receives from everybody:
# the more ranks there are, the longer its queue. (Lesson 4 finds a better way.)


# %%
def counted(comm):
    sum_on_rank_0(comm, np.ones(1000))
    return comm.traffic.messages, comm.traffic.bytes


print(run(counted))

# %% [markdown]
# Sums over ranks are needed so often that the communicator has one. It is a *collective*: all
# ranks call it, in the same order, or nobody gets an answer.


# %%
def with_the_collective(comm):
    return comm.allreduce(np.array([10.0 * (comm.rank + 1)]))


print(run(with_the_collective))

# %% [markdown]
# ## Dividing work
#
# Ten images, four ranks: who takes which? Usual is a *block* for each rank: rank 0 the first ones,
# rank 1 the next ones, and so on. Where ten does not divide by four, some ranks have one more.
#
#         0 1 2 | 3 4 5 | 6 7 | 8 9          three, three, two and two
#
# ### Exercise 1.2: my block
#
# Each index from 0 to n - 1 belongs to one rank; blocks follow each other in the order of ranks;
# two blocks differ by at most one. If there are more ranks than indices, some have none.


# %%
def my_block(n, size, rank):
    """Return (start, stop) of the indices of one of ``size`` ranks."""
    raise NotImplementedError


# %%
grade(my_block)

# %% [markdown]
# ## A mean over ranks
#
# Now each friend measures the weight of some birds: one has three, another has one, and somebody
# has none at all. What is the mean weight of a bird?

# %%
weights = [[3.0, 5.0, 4.0], [8.0], [], [2.0, 2.0]]  # of the birds in each garden


def mean_of_means(comm):
    piece = np.array(weights[comm.rank])
    mean = piece.mean() if len(piece) else 0.0
    return comm.allreduce(np.array(mean)).item() / comm.size


print("the first two gardens, mean of means:", run(mean_of_means, ranks=2))
print("the mean of their four birds:        ", np.mean(weights[0] + weights[1]))

# %% [markdown]
# A mean of means is wrong where pieces have different lengths: it counts the single bird of the
# second garden as much as the three of the first together. This is a common mistake in
# distributed training: nothing fails, and the numbers are a little wrong.
#
# ### Exercise 1.3: the right mean
#
# Which two sums do you need? `comm.allreduce` takes an array of any shape; `np.array(3.0)` is one
# of a single number.


# %%
def mean_of_pieces(comm, piece):
    """Return the mean of the numbers in all ranks' pieces, on every rank; a piece may be empty."""
    raise NotImplementedError


# %%
grade(mean_of_pieces)

# %% [markdown]
# ## What you know now
#
# * Ranks run one program, with memories of their own; `comm.rank` and `comm.size` tell them apart.
# * `send` never waits for the receiver, `recv` waits for the message.
# * A collective is called by all ranks, in the same order.
# * Add up sums and counts, never means.
#
# Next: what is the gradient of a letter? `2_adjoint.py`
