# %% [markdown]
# # 5. A pipeline and its bubble
#
# Washing takes half an hour, so does drying, so does folding: an hour and a half for a basket of
# laundry. Do three baskets take three times as long? No: while the first one is in the drier, the
# second one can be washed.
#
# A network whose layers are on different ranks is like that. **How much of their time do ranks
# wait, and what makes it less?**

# %%
import time

import numpy as np
from classroom import grade, on_processes, picture, run, start_processes

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import Pipeline, draw, make_schedule, own_schedule, simulate

# %% [markdown]
# ## One basket
#
# The network is cut into *stages*, one on each of three ranks. A batch goes forward through all of
# them (F), then its gradient goes back (B), which takes twice as long. `simulate` draws who works
# when; a dot is time in which a rank waits.

# %%
print(simulate(make_schedule("gpipe", ranks=3, micro_batches=1)).text())

# %% [markdown]
# A rank works for three of seven units, and waits for four. The share of time in which ranks wait
# is the *bubble*: 57 %. Nobody is lazy: rank 2 cannot begin before it has something to work on.
#
# ## Several baskets
#
# Cut the batch into *micro-batches*. The numbers say which one it is.

# %%
for m in (2, 4, 6):
    print(simulate(make_schedule("gpipe", ranks=3, micro_batches=m)).text())

# %% [markdown]
# The more micro-batches, the smaller the bubble: at the beginning and at the end ranks wait as long
# as ever, but there is more work in between.
#
# ### Exercise 5.1: how large is the bubble?
#
# Find a formula for P ranks and M micro-batches, with a forward of one unit and a backward of two.
# How long does a rank work? And how long does it wait? Look at rank 0 in the drawings: gradients
# come to it after they have gone through the others' backwards. (In mnpar a stage sends the
# gradient of its input on as soon as it has it, after half of its backward: after one unit.)
# Check your formula against the drawings.


# %%
def bubble(ranks, micro_batches):
    """Return the share of time, from 0 to 1, in which ranks wait under the schedule "gpipe"."""
    raise NotImplementedError


# %%
grade(bubble)

# %% [markdown]
# ## The real thing
#
# A `Pipeline` takes a rank's stage and a schedule. The first rank has the inputs, the last one the
# labels. Rank 0 keeps its weights to itself, and so do the others: only what flows between them
# travels.

# %%
rng = np.random.default_rng(0)
inputs = rng.standard_normal((24, 4))
labels = (inputs[:, 0] > inputs[:, 1]).astype(np.int32)


def linear(n_in, n_out, seed):
    weights = mnpar.initializers.LeCunNormal(rng=np.random.default_rng(seed))
    return L.Linear(n_in, n_out, initialW=weights)


def make_stages():
    return [
        mnpar.Sequential(linear(4, 8, seed=0), F.tanh),
        L.Classifier(linear(8, 2, seed=1)),  # the last stage returns the loss
    ]


def train(comm, schedule):
    pipeline = Pipeline(comm, make_stages()[comm.rank], schedule, micro_batches=4)
    optimizer = mnpar.optimizers.SGD(0.5).setup(pipeline)
    losses = []
    for _ in range(5):
        optimizer.update(pipeline, (inputs, labels)[comm.rank])
        losses.append(pipeline.loss)
    return losses  # on the last rank; the others know none


with mnpar.using_config("dtype", np.dtype("f8")):
    for schedule in ("gpipe", "1f1b", "zb1p"):
        losses = run(train, ranks=2, args=(schedule,))[1]
        print(f"{schedule:6}", np.array(losses))

# %% [markdown]
# The schedule changes who waits for whom, and no digit of the result: the losses are those of one
# rank.
#
# ## What memory costs
#
# Under "gpipe" rank 0 does all forwards first. Each of them keeps its results until its
# backward: look at the number of *graphs* behind the drawings. "1f1b" goes back as soon as it can:
# one forward, one backward.

# %%
for name in ("gpipe", "1f1b"):
    print(name)
    print(simulate(make_schedule(name, ranks=3, micro_batches=6)).text())

# %%
picture("1f1b.png", lambda axes: draw(simulate(make_schedule("1f1b", 4, 8)), axes), size=(9, 2.5))

# %% [markdown]
# ### Exercise 5.2: a schedule of your own
#
# A schedule is nothing but a list of actions for each rank. This one is allowed, and poor: each
# micro-batch goes forward and back before the next one begins.

# %%
print(simulate(own_schedule(["F0 B0 F1 B1 F2 B2 F3 B3", "F0 B0 F1 B1 F2 B2 F3 B3"])).text())

# %% [markdown]
# Write a better one, for two ranks and four micro-batches: at most two graphs on a rank, and the
# bubble no larger than that of "1f1b". (It may *be* 1f1b. Write it without looking it up.) An order
# that can never end is refused, with the reason: try "B0 F0".


# %%
def my_schedule():
    """Return two texts of actions, one for each rank."""
    raise NotImplementedError


# %%
grade(my_schedule)

# %% [markdown]
# ## The timeline
#
# So much for drawings; what do ranks really do? `mnpar.profile` writes down each function, message
# and wait. Threads take turns, so their timeline would show just that: for this cell we need
# processes. `start_processes` runs this very file once more, under mpiexec. To have the same
# picture on every computer, a stage only pretends to work: it sleeps 20 ms forward, and 40 ms back.


# %%
class Work(mnpar.FunctionNode):
    """The identity, which takes its time."""

    def forward(self, x):
        time.sleep(0.02)
        return x.copy()

    def backward(self, gy):
        time.sleep(0.04)
        return gy


def profiled(comm):
    def stage(x):
        return Work().apply((mnpar.as_variable(x),))[0]

    def last(x):
        return F.mean(stage(x))

    pipeline = Pipeline(comm, last if comm.rank == comm.size - 1 else stage, "1f1b", 4)
    batch = (mnpar.Variable(np.ones((8, 2))),) if comm.rank == 0 else ()
    comm.barrier()
    with mnpar.profile("result", comm) as timeline:
        pipeline(*batch).backward()
    if comm.rank == 0:
        print(timeline.text())


if on_processes():
    run(profiled)

# %%
start_processes("5_pipeline.py", ranks=3)
picture("timeline.png")

# %% [markdown]
# Blue is forward, green backward, red is waiting: the bubble. Lines are messages. Compare it with
# the drawing. (Our stages have no weights, so a gradient leaves after the whole backward:
# `early=False`.)

# %%
print(simulate(make_schedule("1f1b", ranks=3, micro_batches=4), early=False).text())

# %% [markdown]
# `python -m mnpar film result -o film.html` makes a film of it, to be opened in a browser.
#
# ### Exercise 5.3: how many?
#
# Many micro-batches have a price: small matrices are slow, and there are more messages. So take no
# more than you need.


# %%
def micro_batches_for(ranks, share):
    """Return the smallest number of micro-batches with a bubble of at most ``share``."""
    raise NotImplementedError


# %%
grade(micro_batches_for)

# %% [markdown]
# ## What you know now
#
# * Stages on ranks, micro-batches behind each other: a pipeline. The time in which ranks wait for
#   work is the bubble; more micro-batches make it smaller.
# * A schedule is an order of forwards and backwards. It decides how long ranks wait and how much
#   memory they need, and never what the result is.
# * `simulate` says before a run what a schedule will do, and `mnpar.profile` what it did.
#
# Next: memory that every rank wastes alike. `6_sharded_states.py`
