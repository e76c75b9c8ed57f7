"""Programs for mnpar.check: right ones, and each with one mistake in it."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import Pipeline

X = np.random.default_rng(3).normal(size=(7, 4))  # 7 rows: uneven over 2 and 3 ranks
T = np.array([0, 1, 2, 1, 0, 2, 2])


class MLP(mnpar.Chain):
    def __init__(self, norm=None):
        super().__init__()
        self.l1 = L.Linear(4, 5)
        self.norm = norm
        self.l2 = L.Linear(5, 3)

    def forward(self, x):
        h = self.l1(x)
        if self.norm is not None:
            h = self.norm(h)
        return self.l2(F.tanh(h))


def rows(comm, x):
    return x[comm.rank :: comm.size]


def average(comm, model):
    """The mean of the ranks' gradients, by hand."""
    for param in model.params():
        param.grad = comm.allreduce(param.grad) / comm.size


def data_parallel(comm, norm=None, hooks=(), method=mnpar.optimizers.MomentumSGD, lr=0.1):
    model = L.Classifier(MLP(norm))
    optimizer = mnpar.create_multi_node_optimizer(method(lr), comm).setup(model)
    for hook in hooks:
        optimizer.add_hook(hook)
    for _ in range(4):
        optimizer.update(model, rows(comm, X), rows(comm, T))


def by_hand(comm, even=True, average=average, seed=None, frozen=(), rate=lambda comm: 0.01):
    """Data parallelism by hand: all start alike, and average their gradients."""
    if seed is not None:
        mnpar.random.seed(seed(comm))
    model = MLP()
    if seed is None:
        comm.bcast_data(model)
    optimizer = mnpar.optimizers.Adam(rate(comm)).setup(model)
    for name in frozen:
        if comm.rank == 0 and comm.size > 1:
            model[name].disable_update()
            model[name].W = mnpar.Parameter(model[name].W.array)
    n = 6 if even else 7
    for _ in range(3):
        model.cleargrads()
        F.softmax_cross_entropy(model(rows(comm, X[:n])), rows(comm, T[:n])).backward()
        average(comm, model)
        optimizer.update()


class TensorParallel(mnpar.Chain):
    """Two layers divided by columns and rows, by hand, between replicated ones."""

    def __init__(self, comm, enter=F.copy_to, leave=F.reduce_from):
        super().__init__()
        self.comm, self.enter, self.leave = comm, enter, leave
        rng = np.random.default_rng(1)
        wide, back = rng.normal(size=(6, 4)), rng.normal(size=(4, 6))
        part = slice(comm.rank * 6 // comm.size, (comm.rank + 1) * 6 // comm.size)
        self.first = L.Linear(4, 4, initialW=rng.normal(size=(4, 4)))
        self.wide = L.Linear(4, 6 // comm.size, nobias=True, initialW=wide[part])
        self.back = L.Linear(6 // comm.size, 4, nobias=True, initialW=back[:, part])
        self.last = L.Linear(4, 3, initialW=rng.normal(size=(3, 4)))

    def forward(self, x):
        h = self.enter(self.comm, F.tanh(self.first(x)))
        h = self.back(F.tanh(self.wide(h)))
        return self.last(self.leave(self.comm, h))


def tensor_parallel(comm, **kinds):
    model = L.Classifier(TensorParallel(comm, **kinds))
    optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
    for _ in range(3):
        optimizer.update(model, X, T)


def with_equal_parts(comm):
    """Layers divided with parts of zeros, which look like copies, and a loss that is scaled."""
    mnpar.random.seed(0)
    model = mnpar.Chain(
        wide=L.ColumnParallelLinear(comm, 4, 6, gather_output=False),
        back=L.RowParallelLinear(comm, 6, 3, input_is_parallel=True),
    )
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    optimizer.loss_scaling(scale=16.0)

    def loss(x, t):
        return F.softmax_cross_entropy(model.back(F.tanh(model.wide(x))), t)

    for _ in range(3):
        optimizer.update(loss, X, T)


def own_backward(comm):
    """A model whose ranks have uneven shards, and average gradients where backward ends."""
    mnpar.random.seed(0)
    model = mnpar.DistributedDataParallel(L.Linear(4, 3), comm)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    for _ in range(3):
        model.cleargrads()
        F.softmax_cross_entropy(model(rows(comm, X)), rows(comm, T)).backward()
        optimizer.update()


def hidden(comm, x):
    """What goes around the functions: nothing is differentiated."""
    return mnpar.Variable(comm.allreduce(x.array))


LAYERS = {
    "one": lambda: L.Linear(4, 5),
    "tanh": lambda: F.tanh,
    "two": lambda: L.Linear(5, 5),
    "three": lambda: L.Classifier(L.Linear(5, 3)),
}


def pipeline(comm, hook=None, method=mnpar.optimizers.Adam):
    model = Pipeline.of(comm, LAYERS, micro_batches=3)
    mnpar.initializers.initialize_by_path(model, 5)
    optimizer = method().setup(model)
    if hook is not None:
        optimizer.add_hook(hook(comm))
    for _ in range(3):
        optimizer.update(model, X, T)


def ensemble(comm):
    """Three members that are trained jointly, on any number of ranks."""

    def member(group, number):
        mnpar.random.seed([7, number])
        return L.Linear(4, 3)

    members = mnpar.Ensemble(comm, member, groups=3)
    optimizer = mnpar.optimizers.SGD(0.1).setup(members)
    for _ in range(3):
        members.cleargrads()
        answers = members.answers(X)
        F.softmax_cross_entropy(answers.mean(), T).backward()
        optimizer.update()


def spatial(comm, swapped=False):
    """A convolution over rows of an image that the ranks have in blocks, with halos by hand."""
    mnpar.random.seed(2)
    conv, head = L.Convolution2D(1, 2, 3, pad=(0, 1)), L.Linear(2, 1)
    model = mnpar.Chain(conv=conv, head=head)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    image = np.random.default_rng(0).normal(size=(1, 1, 12, 5))
    each = 12 // comm.size
    for _ in range(3):
        x = mnpar.Variable(image[:, :, comm.rank * each : (comm.rank + 1) * each])
        h = halo(comm, F.tanh(x), swapped)
        part = F.sum(
            head(F.sum(F.tanh(conv(h)) ** 2, axis=(2, 3))) * 0 + F.sum(F.tanh(conv(h)) ** 2)
        )
        model.cleargrads()
        (part / 100).backward()
        for param in model.params():
            if param.grad is not None:
                param.grad = comm.allreduce(param.grad)
        optimizer.update()


class Shifted(mnpar.Chain):
    """Adds one number to all scores of a sample: its gradient is 0, but for rounding errors."""

    def __init__(self):
        super().__init__()
        self.scores = L.Linear(4, 3)
        self.shift = mnpar.Parameter(np.zeros(1, "f4"))

    def forward(self, x):
        y = self.scores(x)
        return y + F.broadcast_to(self.shift, y.shape)


def shifted(comm, rate=lambda comm: 0.1):
    """Data parallelism in float32, whose rounding errors Adam enlarges."""
    mnpar.config.dtype = np.float32
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(rate(comm)), comm)
    optimizer.setup(L.Classifier(Shifted()))
    for _ in range(3):
        optimizer.update(optimizer.target, rows(comm, X.astype("f4")), rows(comm, T))


def halo(comm, x, swapped):
    """The block with a row of each neighbour; zeros at the ends."""
    edge = np.zeros_like(x.array[:, :, :1])
    top, bottom = x[:, :, :1], x[:, :, -1:]
    up, down = comm.rank - 1, comm.rank + 1
    if up >= 0:
        F.send(top, comm, rank=up)
    if down < comm.size:
        F.send(bottom, comm, rank=down)
    above = F.recv(comm, rank=up) if up >= 0 else mnpar.Variable(edge)
    below = F.recv(comm, rank=down) if down < comm.size else mnpar.Variable(edge)
    return F.concat((below, x, above) if swapped else (above, x, below), axis=2)


def ring(comm):
    """Each rank has its own number: on one rank that is another program."""
    x = mnpar.Variable(np.array([comm.rank + 1.0]))
    F.send(x, comm, rank=(comm.rank + 1) % comm.size)
    y = F.recv(comm, rank=(comm.rank - 1) % comm.size)
    F.sum(x * y).backward()


class Cube(mnpar.FunctionNode):
    """With a wrong factor in its backward."""

    def __init__(self, factor):
        self.factor = factor

    def forward(self, x):
        self.retain_inputs((0,))
        return x**3

    def backward(self, gy):
        (x,) = self.get_retained_inputs()
        return self.factor * x**2 * gy


def own_function(comm, factor=3):
    model = MLP()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
    loss = lambda x: F.mean(Cube(factor).apply((F.tanh(model(x)),))[0])
    for _ in range(3):
        optimizer.update(loss, rows(comm, X))
