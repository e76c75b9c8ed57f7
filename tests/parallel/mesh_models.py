"""A transformer language model and a CNN, each written once: for any mesh, and, without one, for
one process.
"""

import functools

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import initialize_by_path
from tests.harness.parts import on_blocks

# words, length, features, heads
V = 11
T = 5
D = 16
HEADS = 8
GRIDS = {1: (1, 1), 2: (1, 2), 4: (2, 2), 8: (4, 2)}
IMAGE, CLASSES = (8, 7), 5


def columns(mesh, n_in, n_out):
    return (
        L.Linear(n_in, n_out)
        if mesh is None
        else L.ColumnParallelLinear(mesh.model, n_in, n_out, gather_output=False)
    )


def rows(mesh, n_in, n_out):
    return (
        L.Linear(n_in, n_out)
        if mesh is None
        else L.RowParallelLinear(mesh.model, n_in, n_out, input_is_parallel=True)
    )


def table(mesh):
    return L.EmbedID(V, D) if mesh is None else L.VocabularyParallelEmbedID(mesh.model, V, D)


class Embedding(mnpar.Chain):
    def __init__(self, mesh):
        super().__init__()
        self.words = table(mesh)
        self.places = mnpar.Parameter(mnpar.initializers.Normal(), (T, D))
        self.mine = slice(None) if mesh is None else stretch(mesh)

    def forward(self, x):
        return self.words(x) + self.places[self.mine]


class Attention(mnpar.Chain):
    """Each rank has some of the heads, and of the sequence, as a rank has a part of the batch."""

    def __init__(self, mesh):
        super().__init__()
        self.norm = L.LayerNormalization(D)
        model, sequence = (None, None) if mesh is None else (mesh.model, mesh.sequence)
        self.heads = L.MultiHeadAttention(
            HEADS, D, model, True, sequence_comm=sequence, whole_gradients=False
        )

    def forward(self, x):
        return x + self.heads(self.norm(x))


class MLP(mnpar.Chain):
    def __init__(self, mesh):
        super().__init__()
        self.norm = L.LayerNormalization(D)
        self.wide = columns(mesh, D, 2 * D)
        self.out = rows(mesh, 2 * D, D)

    def forward(self, x):
        return x + self.out(F.tanh(self.wide(self.norm(x), 2)), 2)


class Head(mnpar.Chain):
    """The logits by the embedding's table, and the loss."""

    def __init__(self, mesh):
        super().__init__()
        self.norm = L.LayerNormalization(D)
        self.table = table(mesh)
        self.comm = None if mesh is None else mesh.model

    def forward(self, x, t):
        h = self.norm(x).reshape((-1, D))
        W = self.table.W
        t = t.ravel()
        if self.comm is None:
            return F.softmax_cross_entropy(F.linear(h, W), t)
        return F.vocabulary_parallel_softmax_cross_entropy(
            self.comm, F.linear(F.copy_to(self.comm, h), W), t
        )


def transformer(mesh):
    part = functools.partial
    blocks = [
        (f"{name}{i}", part(kind, mesh))
        for i in range(3)
        for name, kind in (("att", Attention), ("mlp", MLP))
    ]
    return {"embed": part(Embedding, mesh), **dict(blocks), "head": part(Head, mesh)}, {
        "/head/table/W": "/embed/words/W"
    }


class Blocks(mnpar.Chain):
    """A function of images of a known shape; between stages of a mesh, blocks of them travel."""

    def __init__(self, mesh, shape, function):
        super().__init__()
        if isinstance(function, mnpar.Link):
            self.link = function
        self.function = function if mesh is None else on_blocks(function, grid(mesh), shape)

    def forward(self, x):
        return self.function(mnpar.as_variable(x))


def grid(mesh):
    return mesh.grid("space", 2)


def convolution(mesh, shape, n_in, n_out):
    layers = mnpar.Sequential(L.Convolution2D(n_in, n_out, 3, pad=1), F.tanh)
    return Blocks(mesh, shape, layers)


def norm(mesh, shape):
    if mesh is None:
        return Blocks(mesh, shape, L.BatchNormalization(4))
    blocks = mesh["data", "space"]
    return Blocks(mesh, shape, L.MultiNodeBatchNormalization(4, mesh.data, blocks=blocks))


def pool(mesh):
    return Blocks(mesh, IMAGE, lambda x: F.average_pooling_2d(x, 2))


def average(mesh, shape):
    return Blocks(mesh, shape, lambda x: F.average(x, axis=(2, 3)))


class Classes(mnpar.Chain):
    def __init__(self, mesh):
        super().__init__()
        self.wide = columns(mesh, 4, 6)
        self.out = rows(mesh, 6, CLASSES)

    def forward(self, x, t):
        return F.softmax_cross_entropy(self.out(F.tanh(self.wide(x))), t)


def cnn(mesh):
    half = (IMAGE[0] // 2, IMAGE[1] // 2)
    part = functools.partial
    layers = {
        "conv1": part(convolution, mesh, IMAGE, 2, 4),
        "bn1": part(norm, mesh, IMAGE),
        "pool": part(pool, mesh),
        "conv2": part(convolution, mesh, half, 4, 4),
        "bn2": part(norm, mesh, half),
        "conv3": part(convolution, mesh, half, 4, 4),
        "average": part(average, mesh, half),
        "head": part(Classes, mesh),
    }
    return layers, {}


# with micro-batches; batch statistics are of whole batches
MODELS = {
    "transformer": (transformer, 2),
    "cnn": (cnn, 1),
}
N = 10  # samples of a batch, of which 4 or 8 ranks have unequal shares


def batch(name, step):
    rng = np.random.default_rng(step)
    if name == "transformer":
        return rng.integers(V, size=(N, T)), rng.integers(V, size=(N, T))
    return rng.normal(size=(N, 2, *IMAGE)), rng.integers(CLASSES, size=N)


def stretch(mesh):
    """This rank's part of the sequence."""
    return slice(*mnpar.plans.block(T, mesh.sequence.size, mesh.sequence.rank))


def share(mesh, name, x):
    """This rank's samples, and its block of images, or part of the sequence."""
    first, last = mnpar.plans.block(len(x), mesh.data.size, mesh.data.rank)
    x = x[first:last]
    if name == "cnn" and x.ndim > 2:
        box = grid(mesh).block(IMAGE)
        x = x[:, :, box.start[0] : box.stop[0], box.start[1] : box.stop[1]].copy()
    return x[:, stretch(mesh)] if name == "transformer" else x


def tokens(x, t):
    """What a loss is the mean of."""
    return t.size


def make(mesh, name, optimizer, schedule="1f1b", hooks=(), **options):
    """The model on a mesh, and its optimizer."""
    function, M = MODELS[name]
    layers, tied = function(mesh)
    model = initialize_by_path(mnpar.Pipeline.of(mesh.pipe, layers, schedule, M, tied=tied), seed=5)
    options = {"bucket_bytes": None, "axes": ("data", "sequence"), "samples": tokens, **options}
    optimizer = mnpar.create_multi_node_optimizer(optimizer(), mesh, **options).setup(model)
    for hook in hooks:
        optimizer.add_hook(hook())
    return model, optimizer


def step(mesh, name, model, optimizer, i):
    """One update; the loss over the whole batch, on the ranks of the last stage."""
    x, t = (share(mesh, name, a) for a in batch(name, i))
    optimizer.update(model, x, t)
    if mesh.pipe.rank != model.schedule.where[-1]:
        return None
    total = mesh["data", "sequence"].allreduce(
        np.array([model.loss * t.size if t.size else 0.0, t.size])
    )
    return float(total[0] / total[1])


def reference(name, optimizer, steps, hooks=()):
    """Losses, first gradients and last weights of one process, written without pipelines, meshes
    and parallel layers.
    """
    layers, tied = MODELS[name][0](None)
    made = {layer: make() for layer, make in layers.items()}
    if tied:
        made["head"].table.W = made["embed"].words.W
    model = initialize_by_path(
        mnpar.Chain(**{k: v for k, v in made.items() if isinstance(v, mnpar.Link)}), seed=5
    )

    def loss(x, t):
        *body, head = made.values()
        for layer in body:
            x = layer(x)
        losses.append(head(x, t))
        return losses[-1]

    optimizer = optimizer().setup(model)
    for hook in hooks:
        optimizer.add_hook(hook())
    losses, gradients = [], {}
    for i in range(steps):
        optimizer.update(loss, *batch(name, i))
        gradients = gradients or {path: param.grad.copy() for path, param in model.namedparams()}
    return (
        [loss.item() for loss in losses],
        gradients,
        {path: param.array for path, param in model.namedparams()},
    )


def pieces(model, what):
    """What this rank has, with where it lies."""
    return [
        (path, param.whole, param.box, getattr(param, what).copy())
        for path, param in model.namedparams()
    ]


def train(comm, axes, name, optimizer, steps, hooks=(), **options):
    with mnpar.using_config("dtype", np.dtype("f8")):
        mesh = mnpar.Mesh(comm, **axes)
        model, optimizer = make(mesh, name, optimizer, hooks=hooks, **options)
        losses, gradients = [], []
        for i in range(steps):
            losses.append(step(mesh, name, model, optimizer, i))
            gradients = gradients or pieces(model, "grad")
        return losses, gradients, pieces(model, "array")


def check_pieces(ranks, expected, tolerance):
    """All ranks' parts against the whole arrays, each of which some rank has."""
    found = {}
    for parts in ranks:
        for path, whole, box, array in parts:
            want = expected[path]
            assert whole in (None, want.shape)
            want = (
                want
                if box is None
                else want[tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))]
            )
            if (
                array.shape != want.shape
                or not (abs(array - want) <= tolerance * (1 + abs(want))).all()
            ):
                # which takes long
                np.testing.assert_allclose(
                    array, want, rtol=tolerance, atol=tolerance, err_msg=path
                )
            found.setdefault(path, set()).add(box)
    assert sorted(found) == sorted(expected)


def check(results, expected, tolerance=1e-10):
    losses, gradients, weights = expected
    curves = [curve for curve, _, _ in results if None not in curve]
    assert curves
    for curve in curves:
        np.testing.assert_allclose(curve, losses, rtol=tolerance)
    check_pieces([g for _, g, _ in results], gradients, tolerance)
    check_pieces([w for _, _, w in results], weights, tolerance)
