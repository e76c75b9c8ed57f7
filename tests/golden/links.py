"""Links in the words that Chainer and mnpar share, and what is computed with them.

A row says how the link is made, what is computed with it (``lib`` is Chainer or mnpar), and the
inputs (:func:`recording.draw`). All parameters are drawn, in the order of their paths.
"""

import numpy as np

from tests.golden.recording import differentiate, numbered


def normalized(lib, link, x):
    """Two steps of training, one of prediction, and the running values."""
    return *predicted(lib, link, x), link.avg_mean.copy(), link.avg_var.copy()


def finetuned(lib, link, x):
    link(x)
    link.start_finetuning()
    ys = [link(scale * x, finetune=True) for scale in (1, 2, 3)]
    return *ys, link.avg_mean.copy(), link.avg_var.copy()


def predicted(lib, link, x):
    """Two steps of training, then one of prediction."""
    ys = [link(x), link(2 * x + 1)]
    with lib.using_config("train", False):
        return *ys, link(x)


def over_steps(lib, link, *xs):
    """A stateful link over steps of ever fewer sequences."""
    link.reset_state()
    return [link(x) for x in xs]


def over_three(lib, link, x):
    """A stateful link over three steps."""
    link.reset_state()
    return [link(x), link(x * 2), link(x - 1)]


STEPS = (3, 2), (3, 2), (2, 2), (1, 2)
# the longest need not be first
SEQUENCES = (2, 3), (4, 3), (1, 3)


def n_step(name, layers=2, states=1, **options):
    return (
        lambda lib: getattr(lib.links, name)(layers, 3, 2, 0.0, **options),
        lambda lib, link, *xs: link(*[None] * states, list(xs)),
        *SEQUENCES,
    )


def with_states(name, directions=1, states=1):
    shape = 2 * directions, 3, 2
    return (
        lambda lib: getattr(lib.links, name)(2, 3, 2, 0.0),
        lambda lib, link, *xs: link(*xs[:states], list(xs[states:])),
        *[shape] * states,
        *SEQUENCES,
    )


TREE = {0: 5, 1: 3, 2: 3, 3: 1, 4: 2, 5: 1}
CRF = (3, 3), (2, 3), (4, 3)
CRF_LABELS = [np.array(labels, "i4") for labels in ([0, 2, 1], [1, 1], [2, 0, 0, 2])]

LINKS = {
    "BatchNormalization": (
        lambda lib: lib.links.BatchNormalization(3, decay=0.7),
        normalized,
        (4, 3, 2),
    ),
    "BatchNormalization, finetuned": (
        lambda lib: lib.links.BatchNormalization(3, decay=0.7),
        finetuned,
        (4, 3),
    ),
    "BatchRenormalization": (
        lambda lib: lib.links.BatchRenormalization(3, 1.5, 0.5, 0.7),
        normalized,
        (4, 3, 2),
    ),
    "BatchRenormalization of batches alone": (
        lambda lib: lib.links.BatchRenormalization(3),
        normalized,
        (4, 3),
    ),
    "Bilinear": (
        lambda lib: lib.links.Bilinear(3, 4, 2),
        lambda lib, link, x, y: link(x, y),
        (2, 3),
        (2, 4),
    ),
    "BinaryHierarchicalSoftmax": (
        lambda lib: lib.links.BinaryHierarchicalSoftmax(
            3, lib.links.BinaryHierarchicalSoftmax.create_huffman_tree(TREE)
        ),
        lambda lib, link, x, t: link(x, t),
        (6, 3),
        [0, 1, 2, 3, 4, 5],
    ),
    "CRF1d": (
        lambda lib: lib.links.CRF1d(3),
        lambda lib, link, *xs: link(list(xs), CRF_LABELS, "no", transpose=True),
        *CRF,
    ),
    "CRF1d, argmax": (
        lambda lib: lib.links.CRF1d(3),
        lambda lib, link, *xs: link.argmax(list(xs), transpose=True),
        *CRF,
    ),
    "ChildSumTreeLSTM": (
        lambda lib: lib.links.ChildSumTreeLSTM(3, 2),
        lambda lib, link, *xs: link(*xs),
        *[(4, 2)] * 4,
        (4, 3),
    ),
    "Classifier": (
        lambda lib: lib.links.Classifier(lib.links.Linear(3, 4)),
        lambda lib, link, x, t: (link(x, t), link.accuracy),
        (5, 3),
        [0, 3, -1, 2, 1],
    ),
    "DecorrelatedBatchNormalization": (
        lambda lib: lib.links.DecorrelatedBatchNormalization(4, 2, 0.7, dtype="f8"),
        predicted,
        (3, 4, 2, 2),
    ),
    "DeformableConvolution2D": (
        lambda lib: lib.links.DeformableConvolution2D(2, 3, 3, 1, 1),
        lambda lib, link, x: link(x),
        (2, 2, 4, 5),
    ),
    "EmbedID": (
        lambda lib: lib.links.EmbedID(5, 2, ignore_label=-1),
        lambda lib, link, t: link(t),
        [[0, 4], [-1, 0]],
    ),
    "GRU": (lambda lib: lib.links.GRU(2, 3), over_three, (4, 2)),
    "GroupNormalization": (
        lambda lib: lib.links.GroupNormalization(2, 4),
        lambda lib, link, x: link(x),
        (3, 4, 2),
    ),
    "Highway": (
        lambda lib: lib.links.Highway(3, activate=lib.functions.tanh),
        lambda lib, link, x: link(x),
        (4, 3),
    ),
    "Inception": (
        lambda lib: lib.links.Inception(3, 2, 2, 3, 2, 2, 2),
        lambda lib, link, x: link(x),
        (2, 3, 5, 4),
    ),
    "InceptionBN": (
        lambda lib: lib.links.InceptionBN(3, 2, 2, 2, 2, 3, "max", 2),
        lambda lib, link, x: link(x),
        (2, 3, 5, 4),
    ),
    "InceptionBN of stride 2": (
        lambda lib: lib.links.InceptionBN(3, 0, 2, 2, 2, 3, "avg", stride=2),
        lambda lib, link, x: link(x),
        (2, 3, 5, 4),
    ),
    "LSTM": (lambda lib: lib.links.LSTM(2, 3), over_steps, *STEPS),
    "LayerNormalization": (
        lambda lib: lib.links.LayerNormalization(5),
        lambda lib, link, x: link(x),
        (3, 5),
    ),
    "LocalConvolution2D": (
        lambda lib: lib.links.LocalConvolution2D(2, 3, (4, 5), (3, 2)),
        lambda lib, link, x: link(x),
        (2, 2, 4, 5),
    ),
    "MLPConvolution2D": (
        lambda lib: lib.links.MLPConvolution2D(2, (3, 2), 3, 2, 1),
        lambda lib, link, x: link(x),
        (2, 2, 4, 5),
    ),
    "Maxout": (lambda lib: lib.links.Maxout(3, 2, 4), lambda lib, link, x: link(x), (4, 3)),
    "NStepBiGRU": with_states("NStepBiGRU", 2),
    "NStepBiLSTM": with_states("NStepBiLSTM", 2, 2),
    "NStepBiRNNReLU": with_states("NStepBiRNNReLU", 2),
    "NStepGRU": n_step("NStepGRU"),
    "NStepLSTM": n_step("NStepLSTM", states=2),
    "NStepRNNTanh": n_step("NStepRNNTanh", 3),
    "NaryTreeLSTM": (
        lambda lib: lib.links.NaryTreeLSTM(3, 2, 3),
        lambda lib, link, *xs: link(*xs),
        *[(4, 2)] * 6,
        (4, 3),
    ),
    "NaryTreeLSTM, leaves": (
        lambda lib: lib.links.NaryTreeLSTM(3, 2),
        lambda lib, link, x: link(None, None, None, None, x),
        (4, 3),
    ),
    "Scale": (
        lambda lib: lib.links.Scale(1, (3,), True),
        lambda lib, link, x: link(x),
        (2, 3, 2),
    ),
    "SpectralNormalization": (
        lambda lib: lib.links.Linear(3, 4).add_hook(lib.link_hooks.SpectralNormalization(2)),
        lambda lib, link, x: [project(link, x), link(2 * x), link.W_u.copy()],
        (2, 3),
    ),
    "SpectralNormalization with a factor": (
        lambda lib: lib.links.Convolution2D(2, 3, 2).add_hook(
            lib.link_hooks.SpectralNormalization(1, use_gamma=True, factor=1.5)
        ),
        lambda lib, link, x: [project(link, x), link(2 * x), link.W_u.copy()],
        (2, 2, 3, 3),
    ),
    "StatefulGRU": (lambda lib: lib.links.StatefulGRU(2, 3), over_three, (4, 2)),
    "StatefulMGU": (lambda lib: lib.links.StatefulMGU(2, 3), over_three, (4, 2)),
    "StatefulPeepholeLSTM": (
        lambda lib: lib.links.StatefulPeepholeLSTM(2, 3),
        over_three,
        (4, 2),
    ),
    "StatefulZoneoutLSTM without chance": (
        lambda lib: lib.links.StatefulZoneoutLSTM(2, 3, 0.0, 0.0),
        over_three,
        (4, 2),
    ),
    "StatelessGRU": (
        lambda lib: lib.links.StatelessGRU(2, 3),
        lambda lib, link, h, x: link(h, x),
        (4, 3),
        (4, 2),
    ),
    "StatelessLSTM": (
        lambda lib: lib.links.StatelessLSTM(2, 3),
        lambda lib, link, c, h, x: link(c, h, x),
        (4, 3),
        (4, 3),
        (4, 2),
    ),
    "StatelessMGU": (
        lambda lib: lib.links.StatelessMGU(2, 3),
        lambda lib, link, h, x: link(h, x),
        (4, 3),
        (4, 2),
    ),
    "WeightStandardization": (
        lambda lib: lib.links.Convolution2D(2, 3, 2).add_hook(
            lib.link_hooks.WeightStandardization()
        ),
        lambda lib, link, x: link(x),
        (2, 2, 3, 3),
    ),
}


def project(link, x):
    """The first call of a link whose ``W_u`` is no chance."""
    link.W_u[...] = np.linspace(0.5, 1, link.W_u.size).reshape(link.W_u.shape)
    return link(x)


def evaluate_link(library, make, call, arrays, draw_parameters):
    """Return outputs, gradients of inputs, and parameters with their gradients by their paths.

    ``draw_parameters`` makes the parameters, given the shapes by paths.
    """
    with library.using_config("dtype", np.dtype("f8")):
        link = make(library)
        params = dict(sorted(link.namedparams()))
        values = draw_parameters({path: param.shape for path, param in params.items()})
        for path, param in params.items():
            param.array[...] = values[path]
        link.cleargrads()
        xs = [library.Variable(x.copy()) if x.dtype.kind == "f" else x for x in arrays]
        ys = differentiate(library, call(library, link, *xs))
    return (
        numbered("y", ys)
        | numbered("gx", [getattr(x, "grad", None) for x in xs])
        | {f"p{path}": value for path, value in values.items()}
        | {f"gp{path}": param.grad for path, param in params.items() if param.grad is not None}
    )
