"""Wrong answers to the course's exercises, of the kinds that learners give, and what the grader
says to each.
"""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L

WRONG = []  # (exercise, answer, what the grader must say)


def wrong(exercise, says):
    """Register a wrong answer."""

    def register(answer):
        WRONG.append((exercise, answer, says))
        return answer

    return register


def neighbours(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


# ---- lesson 1 ----


@wrong("allreduce_by_hand", r"on 2 ranks, rank 1 got None: rank 0 has to send the sum back")
def only_rank_0_knows(comm, x):
    if comm.rank > 0:
        comm.send(x, 0)
        return None
    return x + sum([comm.recv(source) for source in range(1, comm.size)])


@wrong("allreduce_by_hand", "a collective has made it")
def by_the_collective(comm, x):
    return comm.allreduce(x)


@wrong("allreduce_by_hand", r"(?s)it never ends.*rank 0: waits in recv from rank 1")
def receives_first(comm, x):
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    total = x + sum([comm.recv(rank) for rank in others])
    for rank in others:
        comm.send(x, rank)
    return total


@wrong("allreduce_by_hand", "x itself was changed")
def into_x(comm, x):
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    for rank in others:
        comm.send(x, rank)
    for rank in others:
        x += comm.recv(rank)
    return x


@wrong("allreduce_by_hand", r"(?s)it stops on rank 0 of 2\n.*NameError.*at the line `return totl")
def misspelt(comm, x):
    return totl  # noqa: F821


@wrong("my_block", r"10 indices on 4 ranks: .*nobody has index 8")
def rest_is_lost(n, size, rank):
    return rank * (n // size), (rank + 1) * (n // size)


@wrong("my_block", r"they have \[2, 2, 2, 4\] indices")
def rest_to_the_last(n, size, rank):
    each = n // size
    return rank * each, n if rank == size - 1 else (rank + 1) * each


@wrong("my_block", r"return a pair of numbers")
def a_list(n, size, rank):
    return list(range(rank, n, size))


@wrong("mean_of_pieces", "the mean of the ranks' means")
def mean_of_means(comm, piece):
    mean = piece.mean() if len(piece) else 0.0
    return comm.allreduce(np.array(mean)) / comm.size


@wrong("mean_of_pieces", "0 / 0")
def mean_of_nothing(comm, piece):
    return comm.allreduce(np.array(piece.mean() * len(piece))) / comm.allreduce(
        np.array(len(piece))
    )


# ---- lesson 2 ----


@wrong("broadcast", "its gradient does not come back|only its own gradient")
def without_gradient(comm, x):
    if comm.rank > 0:
        return mnpar.Variable(comm.recv(0))
    for rank in range(1, comm.size):
        comm.send(x.array, rank)
    return x


@wrong("broadcast", "a collective has made it")
def by_bcast(comm, x):
    return F.bcast(comm, x)


@wrong("broadcast", "got None")
def for_others_only(comm, x):
    if comm.rank > 0:
        return F.recv(comm, rank=0)
    for rank in range(1, comm.size):
        F.send(x, comm, rank=rank)
    return None


@wrong("predict", "In how many ranks' losses")
def predict_one(size):
    return 1, 1


@wrong("predict", "return two numbers")
def predict_one_number(size):
    return size


class GradientTheSameWay(mnpar.FunctionNode):
    communicates = True

    def __init__(self, comm):
        self.comm = comm

    def forward(self, x):
        left, right = neighbours(self.comm)
        self.comm.send(x, left)
        return self.comm.recv(right)

    def backward(self, gy):
        return GradientTheSameWay(self.comm).apply((gy,))[0]


class WrongWay(GradientTheSameWay):
    def forward(self, x):
        left, right = neighbours(self.comm)
        self.comm.send(x, right)
        return self.comm.recv(left)


WRONG.append(("ToTheLeft", GradientTheSameWay, "the gradient went to the left as well"))
WRONG.append(("ToTheLeft", WrongWay, "got its left neighbour's x"))


# ---- lesson 3 ----


@wrong("layer_by_inputs", "b is added 2 times")
def bias_on_each(comm, x, W, b):
    return F.reduce_from(comm, F.linear(x, W, b))


@wrong("layer_by_inputs", "the gradient of W is 2 times too large")
def by_allreduce(comm, x, W, b):
    return F.allreduce(comm, F.linear(x, W)) + b


@wrong("layer_by_inputs", "its own part only")
def no_sum(comm, x, W, b):
    return F.linear(x, W) + b


@wrong("layer_by_inputs", "got ndarray, and no Variable")
def by_numpy(comm, x, W, b):
    return comm.allreduce(x.array @ W.array.T) + b.array


@wrong("layer_by_inputs", "that of b is not")
def bias_in_parts(comm, x, W, b):
    return F.reduce_from(comm, F.linear(x, W) + b / comm.size)


@wrong("two_layers", "that of x is only this rank's part")
def without_copy_to(comm, x, W1, W2):
    return F.reduce_from(comm, F.linear(F.relu(F.linear(x, W1)), W2))


@wrong("two_layers", "2 times too large")
def pair_by_allreduce(comm, x, W1, W2):
    return F.allreduce(comm, F.linear(F.relu(F.linear(F.copy_to(comm, x), W1)), W2))


@wrong("make_pair", "Use layers that are divided")
def undivided(comm):
    return mnpar.Sequential(L.Linear(6, 8), F.relu, L.Linear(8, 3))


@wrong("make_pair", "more than one sum")
def gathered(comm):
    one, two = L.ColumnParallelLinear(comm, 6, 8), L.RowParallelLinear(comm, 8, 3)
    return mnpar.Sequential(one, F.relu, two)


@wrong("make_pair", "(?s)mnpar.check says:\nwrong")
def without_relu(comm):
    return mnpar.Sequential(
        L.ColumnParallelLinear(comm, 6, 8, gather_output=False),
        F.tanh,
        L.RowParallelLinear(comm, 8, 3, input_is_parallel=True),
    )


# ---- lesson 4 ----


def pass_on(comm, x):
    left, right = neighbours(comm)
    comm.send(x, right)
    return comm.recv(left)


@wrong("ring_sum", "the sum of two numbers")
def once(comm, x):
    return x + (pass_on(comm, x) if comm.size > 1 else 0)


@wrong("ring_sum", "its left neighbour's number was added 2 times")
def always_its_own(comm, x):
    return x + sum([pass_on(comm, x) for _ in range(comm.size - 1)])


@wrong("ring_sum", "took 3 messages from this rank")
def once_too_often(comm, x):
    total = 0
    for _ in range(comm.size):
        x = pass_on(comm, x)
        total = total + x
    return total + 0 * pass_on(comm, x)


@wrong("ring_allreduce", "2 \\(P - 1\\) pieces are at most")
def whole_arrays(comm, x):
    total = passing = x
    for _ in range(comm.size - 1):
        passing = pass_on(comm, passing)
        total = total + passing
    return total


@wrong("ring_allreduce", r"numbers are wrong, those at")
def not_handed_out(comm, x):
    pieces = np.array_split(x, comm.size)
    for step in range(comm.size - 1):
        i, j = (comm.rank - 1 - step) % comm.size, (comm.rank - 2 - step) % comm.size
        pieces[j] = pieces[j] + pass_on(comm, pieces[i])
    return np.concatenate(pieces)


def pair_energy(a, b):
    apart = F.expand_dims(a, 1) - F.expand_dims(b, 0)
    return -F.sum(1 / F.sqrt(F.sum(apart * apart, axis=2) + 0.01))


@wrong("my_energy", "twice the right one")
def both_ends(comm, stars):
    energy, guests = pair_energy(stars, stars), stars
    for _ in range(comm.size - 1):
        F.send(guests, comm, rank=neighbours(comm)[1])
        guests = F.recv(comm, rank=neighbours(comm)[0])
        energy = energy + pair_energy(stars, guests)
    return energy


@wrong("my_energy", "Did they go round as Variables")
def arrays_go_round(comm, stars):
    energy, guests = pair_energy(stars, stars), stars.array
    for _ in range(comm.size - 1):
        guests = pass_on(comm, guests)
        energy = energy + pair_energy(stars, mnpar.Variable(guests))
    return energy / 2


# ---- lesson 5 ----


@wrong("bubble", "as textbooks have it")
def of_a_textbook(ranks, micro_batches):
    return (ranks - 1) / (micro_batches + ranks - 1)


@wrong("bubble", "return a share, from 0 to 1")
def per_cent(ranks, micro_batches):
    return 100 * 2 * (ranks - 1) / (3 * micro_batches + 2 * (ranks - 1))


@wrong("my_schedule", "keeps 4 graphs")
def all_forward_first():
    return ["F0 F1 F2 F3 B0 B1 B2 B3"] * 2


@wrong("my_schedule", "the bubble is 40.0%, and can be")
def one_at_a_time():
    return ["F0 B0 F1 B1 F2 B2 F3 B3"] * 2


@wrong("my_schedule", "(?s)this schedule is refused:\n")
def never_ends():
    return ["B0 F0 F1 B1 F2 B2 F3 B3"] * 2


@wrong("my_schedule", "has 1 micro-batches, and should have 4")
def one_micro_batch():
    return ["F0 B0", "F0 B0"]


@wrong("micro_batches_for", "are too few")
def too_few(ranks, share):
    return max(1, int(2 * (ranks - 1) * (1 - share) / (3 * share)) - 1)


@wrong("micro_batches_for", "are more than needed")
def too_many(ranks, share):
    return 1000


# ---- lesson 6 ----


@wrong("sharded_step", "with the sum of the gradients")
def with_the_sum(comm, w, gradient, v, lr):
    total = comm.reduce_scatter(np.array_split(gradient, comm.size))
    v = 0.9 * v - lr * total
    return np.concatenate(comm.allgather(np.array_split(w, comm.size)[comm.rank] + v)), v


@wrong("sharded_step", "the weights: got")
def own_gradient(comm, w, gradient, v, lr):
    v = 0.9 * v - lr * np.array_split(gradient, comm.size)[comm.rank]
    return np.concatenate(comm.allgather(np.array_split(w, comm.size)[comm.rank] + v)), v


@wrong("sharded_step", "return two things")
def weights_only(comm, w, gradient, v, lr):
    return None


@wrong("bytes_on_a_rank", "everything divided")
def all_divided(n, ranks, sharded):
    return 16 * n / ranks if sharded else 16 * n


@wrong("bytes_on_a_rank", "are Adam's numbers")
def adam_only(n, ranks, sharded):
    return 8 * n // ranks if sharded else 8 * n


def make_model():
    mnpar.random.seed(0)
    return mnpar.Sequential(L.Linear(5, 7), F.tanh, L.Linear(7, 2))


def train(optimizer, model, x, t):
    optimizer.setup(model)
    for _ in range(5):
        optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x, t)
    return model


@wrong("my_training", "no rank speaks to another one")
def each_for_itself(comm, x, t):
    return train(mnpar.optimizers.MomentumSGD(0.1), make_model(), x, t)


@wrong(
    "my_training", "(?s)on 2 ranks the weights are not those of 1 rank; mnpar.check says:\nwrong"
)
def plain_optimizer(comm, x, t):
    mine = slice(*mnpar.plans.block(len(x), comm.size, comm.rank))
    return train(mnpar.optimizers.MomentumSGD(0.1), make_model(), x[mine], t[mine])


@wrong("my_training", "remembers 58 numbers for 58 weights")
def not_in_shards(comm, x, t):
    mine = slice(*mnpar.plans.block(len(x), comm.size, comm.rank))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.MomentumSGD(0.1), comm)
    return train(optimizer, make_model(), x[mine], t[mine])


@wrong("my_training", "on 1 rank the weights are not those of five updates")
def another_rate(comm, x, t):
    return train(mnpar.optimizers.MomentumSGD(0.5), make_model(), x, t)


# ---- lesson 7 ----


@wrong("last_of_the_left", "got \\[0.\\], where \\[22.\\] is right")
def first_number(comm, piece):
    left, right = neighbours(comm)
    comm.send(piece[:1] if comm.rank else piece[-1:], right)
    return 0 * comm.recv(left)


@wrong("until_all_are_content", "all go on together")
def stops_together_too_late(comm, error):
    steps = 0
    while comm.allreduce(np.array(error)) > 0.1:  # the sum
        error, steps = error / 2, steps + 1
    return error, steps


@wrong("two_halves", "takes no part in the backward|has no gradient of w")
def nobody_goes_back(comm, w, x):
    with mnpar.no_backprop_mode():
        if comm.rank == 0:
            F.send(F.tanh(w * x), comm, rank=1)
            return F.recv(comm, rank=1).item()
        loss = F.sum((w * F.recv(comm, rank=0)) ** 2)
        F.send(loss, comm, rank=0)
        return loss.item()


@wrong("two_halves", "twice too large")
def both_have_the_loss(comm, w, x):
    if comm.rank == 0:
        F.send(F.tanh(w * x), comm, rank=1)
        loss = F.recv(comm, rank=1)
    else:
        loss = F.sum((w * F.recv(comm, rank=0)) ** 2)
        F.send(loss, comm, rank=0)
    loss.backward()
    return loss.item()
