"""Ordinary models, for plans to divide, and how they are trained on any mesh."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L

WORDS, LENGTH, SIZE, HEADS, TEXTS = 11, 5, 6, 3, 5
IMAGES, CLASSES = 6, 4


class Embedding(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.words = L.EmbedID(WORDS, SIZE)
        self.places = L.EmbedID(LENGTH, SIZE)

    def forward(self, x, places):
        return self.words(x) + self.places(places)


class Block(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = L.LayerNormalization(SIZE), L.LayerNormalization(SIZE)
        self.attention = L.MultiHeadAttention(HEADS, SIZE, causal=True)
        self.up, self.down = L.Linear(SIZE, 10), L.Linear(10, SIZE)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        h = F.gelu(self.up(self.norm2(x), n_batch_axes=2))
        return x + self.down(h, n_batch_axes=2)


class Head(mnpar.Chain):
    """Scores by the table of words, which are tied to the embedding's."""

    def __init__(self, words):
        super().__init__()
        self.norm = L.LayerNormalization(SIZE)
        self.scores = L.Linear(SIZE, WORDS, nobias=True)
        self.scores.W = words.W

    def forward(self, x, t):
        y = self.scores(self.norm(x), n_batch_axes=2)
        return F.softmax_cross_entropy(y.reshape((-1, WORDS)), t.ravel())


class Transformer(mnpar.Chain):
    inputs = 2

    def __init__(self):
        super().__init__()
        self.embed = Embedding()
        self.blocks = mnpar.ChainList(*[Block() for _ in range(2)])
        self.head = Head(self.embed.words)

    def forward(self, x, places, t):
        h = self.embed(x, places)
        for block in self.blocks:
            h = block(h)
        return self.head(h, t)

    @staticmethod
    def batch(step):
        rng = np.random.default_rng(step)
        x, t = rng.integers(0, WORDS, (2, TEXTS, LENGTH))
        return x, np.arange(LENGTH) + np.zeros_like(x), t

    @staticmethod
    def cut(mesh, *arrays):
        return [mesh.cut(a, data=0, sequence=1) for a in arrays]


class ConvNet(mnpar.Chain):
    """Sizes that come from the first batch, batch normalization, a depthwise convolution."""

    inputs = 1

    def __init__(self):
        super().__init__()
        self.conv1 = L.Convolution2D(None, 6, 3, pad=1)
        self.bn1 = L.BatchNormalization(6)
        self.each = L.Convolution2D(6, 6, 3, pad=1, groups=3)
        self.conv2 = L.Convolution2D(6, 5, 3, stride=2)
        self.bn2 = L.BatchNormalization(5)
        self.fc1 = L.Linear(None, 7)
        self.fc2 = L.Linear(7, CLASSES)

    def forward(self, x, t):
        h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), 2)
        h = F.relu(self.each(h))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.softmax_cross_entropy(self.fc2(F.relu(self.fc1(h))), t)

    @staticmethod
    def batch(step):
        rng = np.random.default_rng(step)
        return rng.standard_normal((IMAGES, 3, 14, 13)), rng.integers(0, CLASSES, IMAGES)

    @staticmethod
    def cut(mesh, x, t):
        return mesh.cut(x, data=0, space=(2, 3)), mesh.cut(t, data=0)


class Experts(mnpar.Chain):
    """A mixture of experts between two layers."""

    inputs = 1

    def __init__(self):
        super().__init__()
        alone = mnpar.create_communicator("self")
        self.first = L.Linear(4, SIZE)
        self.mixture = L.MixtureOfExperts(alone, lambda i: L.Linear(SIZE, SIZE), 5, SIZE, k=2)
        self.last = L.Linear(SIZE, 3)

    def forward(self, x, t):
        h = F.tanh(self.first(x))
        return F.softmax_cross_entropy(self.last(h + self.mixture(h)), t)

    @staticmethod
    def batch(step):
        rng = np.random.default_rng(step)
        return rng.standard_normal((7, 4)), rng.integers(0, 3, 7)

    @staticmethod
    def cut(mesh, *arrays):
        return [mesh.cut(a, data=0) for a in arrays]


def learn(comm, kind, axes, rules, steps=3, **options):
    """Losses, the first gradients, and weights and persistent values after steps of Adam, of the
    whole model.
    """
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(0)
    mesh = mnpar.Mesh(comm, **axes)
    if mesh.pipe.size > 1:
        options = {"inputs": kind.inputs, **options}
    model = mnpar.parallelize(kind(), mesh, rules, **options)
    summed = ("data", "sequence") if mesh.sequence.size > 1 else "data"
    optimizer = mnpar.create_multi_node_optimizer(
        # gradients that are zero but for rounding do not become steps of any size
        mnpar.optimizers.Adam(0.01, eps=1e-4),
        mesh,
        axes=summed,
        check=1,
    ).setup(model)
    losses, found = [], {}

    def see(rule, param):
        found.setdefault(id(param), param.grad.copy())

    see.call_for_each_param = True
    optimizer.add_hook(see)
    for step in range(steps):
        batch = kind.cut(mesh, *kind.batch(step))
        seen = []

        def loss(*args, seen=seen):
            seen.append(model(*args))
            return seen[-1]

        optimizer.update(loss, *batch)
        piped = isinstance(model, mnpar.Pipeline)
        value = model.loss if piped else seen[0].item()
        owner = value is not None and _first_of_copies(mesh)
        share = np.array([float(value) * batch[-1].size, batch[-1].size] if owner else [0.0, 0.0])
        total, count = mesh.comm.allreduce(share)
        losses.append(total / count)
    whole = mnpar.gathered(model)
    values = {path: param.array for path, param in whole.namedparams()}
    values |= {path: np.asarray(value) for path, value in whole.namedpersistents()}
    parts = {
        path: (found[id(param)], param.box)
        for path, param in model.namedparams()
        if id(param) in found
    }
    return losses, parts, values


def _first_of_copies(mesh):
    """Whether no lower rank has the same samples and the same loss."""
    shared = mesh.span([axis for axis in mesh.axes if axis not in ("data", "sequence", "pipe")])
    return mesh[shared].rank == 0 if shared else True


ALONE = {}


def alone(kind, steps=3):
    """What one process computes."""
    if (kind, steps) not in ALONE:
        ALONE[kind, steps] = mnpar.run(learn, ranks=1, args=(kind, {}, {}, steps))[0]
    return ALONE[kind, steps]


def check_equal(found, kind, steps=3):
    """The results of all ranks are those of one process: losses, gradients, weights."""
    losses, gradients, values = alone(kind, steps)
    for mine, parts, own in found:
        np.testing.assert_allclose(mine, losses, rtol=1e-9)
        assert own.keys() == values.keys()
        for path in values:
            np.testing.assert_allclose(own[path], values[path], 1e-7, 1e-9, err_msg=path)
        for path, (gradient, box) in parts.items():
            whole = gradients[path][0]
            expected = whole if box is None else whole[box.index]
            np.testing.assert_allclose(gradient, expected, 1e-7, 1e-10, err_msg=path)
