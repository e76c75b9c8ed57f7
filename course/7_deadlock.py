# %% [markdown]
# # 7. A deadlock to find
#
# Two polite people meet at a door. "After you." "No, after you." They are still there.
#
# Parallel programs can be as polite: each rank waits for another one, and none goes on. There is no
# error, no output, and a bill from the computing centre. **Who waits for whom, and on which line?**

# %%
import numpy as np
from classroom import grade, run, show_error

import mnpar
import mnpar.functions as F

# %% [markdown]
# ## After you
#
# Both ranks receive before they send. `show_error` runs a program on thread ranks, where mnpar sees
# at once that nobody can go on, and prints the error.


# %%
def after_you(comm):
    other = 1 - comm.rank
    theirs = comm.recv(other)
    comm.send(np.array([comm.rank]), other)
    return theirs


show_error(after_you)

# %% [markdown]
# Read such a table from top to bottom: a line for each rank, with what it waits for, from whom, and
# where in your program. Then look for a circle: 0 waits for 1, and 1 waits for 0.
#
# Under mpiexec the same error comes after ten seconds of waiting, from all ranks together. (Other
# libraries wait until somebody stops the job.) It is not an error to be slow: a rank that computes
# is named, and waited for.
#
# ### Exercise 7.1: correct it
#
# Ranks sit in a ring, and each needs the last number of its left neighbour. Here everybody is
# polite. Grade it first, and find the circle in the table. Then correct it: no line is wrong, but
# one comes too early.


# %%
def last_of_the_left(comm, piece):
    """Return the last number of the left neighbour's piece; left of rank 0 is the last rank."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    number = comm.recv(left)
    comm.send(piece[-1:], right)
    return number


# %%
grade(last_of_the_left)

# %% [markdown]
# ## Not everybody came
#
# A collective needs all ranks. Here the one that prints the mean is the only one that asks for it.


# %%
def who_prints(comm):
    loss = np.array(1.0 + comm.rank)
    if comm.rank == 0:
        print("mean loss:", comm.allreduce(loss) / comm.size)
    comm.barrier()


show_error(who_prints)

# %% [markdown]
# Ranks are in different collectives: one at `allreduce`, the other already at `barrier`. The error
# comes at once, before anybody gets a number, and has both lines. The remedy: compute on all ranks,
# print on one.
#
# ### Exercise 7.2: until it is good enough
#
# Each rank halves its error until it is small, and in each step the ranks add up their errors, to
# show them. They do not need equally many steps: what becomes of the rank that needs more? Mend the
# condition: whose error must be small before anybody stops? (Ranks must decide by a number that all
# of them have. `comm.allreduce(array, "max")` is the largest.)


# %%
def until_all_are_content(comm, error):
    """Halve the error, together, until no rank's error is above 0.1; return (error, steps)."""
    steps = 0
    while error > 0.1:
        error = error / 2
        steps = steps + 1
        comm.allreduce(np.array(error))
    return error, steps


# %%
grade(until_all_are_content)

# %% [markdown]
# ## And backward?
#
# Forward you have written yourself; backward is made by mnpar. Can it deadlock? No: it visits each
# rank's communications in exactly the reverse order, so if forward ended on all ranks, then
# backward ends, too. (`docs/backward_order.md` has the proof.) But every rank has to take part in
# it:


# %%
def no_loss_no_backward(comm):
    if comm.rank == 0:
        x = mnpar.Variable(np.ones(3))
        F.send(x, comm, rank=1)
        y = F.recv(comm, rank=1)  # a number for us to print
        return y.item()
    x = F.recv(comm, rank=0)
    y = F.sum(x * x)
    F.send(y, comm, rank=0)
    y.backward()
    return y.item()


show_error(no_loss_no_backward)

# %% [markdown]
# Rank 1 goes back to where it sent y, and waits for the gradient of y. Rank 0 has gone home.
#
# ### Exercise 7.3: everybody goes back
#
# A network on two ranks. Rank 0 has the first layer, rank 1 the second one and the loss, and sends
# the loss back so that rank 0 can print it. Mend it: w's gradient must be right on both ranks.


# %%
def two_halves(comm, w, x):
    """Return this rank's loss, the same number on both ranks; w, a Variable, has its gradient.

    Args:
        w: rank 0's weight, or rank 1's.
        x: the input, an array, on rank 0 (None on rank 1).
    """
    if comm.rank == 0:
        h = F.tanh(w * x)
        F.send(h, comm, rank=1)
        loss = F.recv(comm, rank=1)
        return loss.item()
    h = F.recv(comm, rank=0)
    loss = F.sum((w * h) ** 2)
    F.send(loss, comm, rank=0)
    loss.backward()
    return loss.item()


# %%
grade(two_halves)

# %% [markdown]
# ## What to do when a job hangs
#
# 1. Run it on two thread ranks: `mnpar.run(program, ranks=2)`. A deadlock is an error at once.
# 2. Read the table, and look for the circle, or for the rank that has finished.
# 3. Everybody receives? Send first. A collective behind `if comm.rank == …`? Call it on all ranks.
#    A loop that ends by a rank's own number? Decide by a number that all have. `gradient of …` and
#    a rank that has finished? It has not called `backward()`.
#
# This was the last lesson. `docs/index.md` goes on where it ends: with `docs/choosing.md`, which
# kind of parallelism is for what, or with the examples, which are short.


# %%
def goodbye(comm):
    return f"rank {comm.rank} says goodbye"


print(run(goodbye))
