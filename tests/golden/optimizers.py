"""Optimizers and their hooks in the words that Chainer and mnpar share.

A row says how the optimizer is made, what its hyperparameters become halfway, and its hooks.
NesterovAG is not among them: :mod:`tests.golden.differences`.
"""

import numpy as np

from tests.golden.recording import numbered

STEPS = 8


def noise(xp, shape, dtype, hook, rule):
    """Noise that is no chance: it says when the hook is called."""
    return xp.full(shape, hook.eta / (1 + rule.t), dtype)


OPTIMIZERS = {
    "SGD": (lambda opt: opt.SGD(0.1), {"lr": 0.02}),
    "MomentumSGD": (lambda opt: opt.MomentumSGD(0.1, 0.8), {"lr": 0.02, "momentum": 0.5}),
    "CorrectedMomentumSGD": (
        lambda opt: opt.CorrectedMomentumSGD(0.1, 0.8),
        {"lr": 0.02, "momentum": 0.5},
    ),
    "AdaGrad": (lambda opt: opt.AdaGrad(0.1), {"lr": 0.02, "eps": 0.1}),
    "AdaDelta": (lambda opt: opt.AdaDelta(0.9, 1e-3), {"rho": 0.8, "eps": 0.1}),
    "RMSprop": (lambda opt: opt.RMSprop(0.1, 0.9, 1e-3), {"lr": 0.02, "alpha": 0.8, "eps": 0.1}),
    "RMSprop with ε inside the root": (
        lambda opt: opt.RMSprop(0.1, 0.9, 0.1, True),
        {"lr": 0.02, "alpha": 0.8, "eps": 1e-3},
    ),
    "RMSpropGraves": (
        lambda opt: opt.RMSpropGraves(0.1, 0.9, 0.8, 1e-3),
        {"lr": 0.02, "alpha": 0.8, "momentum": 0.5, "eps": 0.1},
    ),
    "SMORMS3": (lambda opt: opt.SMORMS3(0.1), {"lr": 0.02, "eps": 0.1}),
    "Adam": (lambda opt: opt.Adam(0.1), {"alpha": 0.02, "beta1": 0.8, "beta2": 0.99, "eps": 0.1}),
    "Adam with a large ε": (lambda opt: opt.Adam(0.1, 0.8, 0.9, 0.3), {"eps": 1e-3}),
    "Adam that decays weights": (
        lambda opt: opt.Adam(0.1, eta=0.5, weight_decay_rate=0.01),
        {"eta": 0.2, "weight_decay_rate": 0.1},
    ),
    "Adam of AMSGrad and AdaBound": (
        lambda opt: opt.Adam(
            0.1, beta2=0.9, weight_decay_rate=0.1, amsgrad=True, adabound=True, final_lr=0.3
        ),
        {"alpha": 0.05, "gamma": 0.2},
    ),
    "AdamW": (
        lambda opt: opt.AdamW(0.1, weight_decay_rate=0.05),
        {"alpha": 0.02, "weight_decay_rate": 0.2},
    ),
    "AMSGrad": (lambda opt: opt.AMSGrad(0.1, beta2=0.9), {"alpha": 0.02, "beta2": 0.5}),
    "AdaBound": (
        lambda opt: opt.AdaBound(0.1, final_lr=0.05, gamma=0.1),
        {"alpha": 0.02, "gamma": 0.5},
    ),
    "AMSBound": (
        lambda opt: opt.AMSBound(0.1, beta2=0.9, final_lr=0.05, gamma=0.1, eta=0.5),
        {"final_lr": 0.1, "eta": 0.9},
    ),
    "MSVAG": (
        lambda opt: opt.MSVAG(0.1, 0.8, 0.5, 0.01),
        {"lr": 0.3, "eta": 0.9, "weight_decay_rate": 0.1},
    ),
    "WeightDecay": (lambda opt: opt.SGD(0.1), {}, lambda hooks: hooks.WeightDecay(0.2)),
    "Lasso": (lambda opt: opt.MomentumSGD(0.1), {}, lambda hooks: hooks.Lasso(0.2)),
    "GradientClipping": (lambda opt: opt.SGD(0.1), {}, lambda hooks: hooks.GradientClipping(2.5)),
    "GradientHardClipping": (
        lambda opt: opt.AdaGrad(0.1),
        {},
        lambda hooks: hooks.GradientHardClipping(-0.5, 0.8),
    ),
    "GradientNoise": (lambda opt: opt.SGD(0.1), {}, lambda hooks: hooks.GradientNoise(0.3, noise)),
    "GradientLARS": (lambda opt: opt.SGD(0.1), {}, lambda hooks: hooks.GradientLARS()),
    "GradientLARS that decays weights": (
        lambda opt: opt.MomentumSGD(0.1),
        {},
        lambda hooks: hooks.GradientLARS(1.5, 0.1, 0.01),
    ),
    "hooks in the order in which they were added": (
        lambda opt: opt.Adam(0.1),
        {"alpha": 0.02},
        lambda hooks: hooks.Lasso(0.1),
        lambda hooks: hooks.GradientClipping(1.0),
        lambda hooks: hooks.WeightDecay(0.2),
        lambda hooks: hooks.GradientHardClipping(-0.4, 0.4),
    ),
}
INPUTS = (2, 3), (3,), (STEPS, 2, 3), (STEPS, 3)


def gradients(arrays):
    """Return the gradients of each step; some of the first parameter's are 0 at first."""
    gW, gb = arrays[2].copy(), arrays[3]
    gW[: STEPS // 2, 0] = 0
    return list(zip(gW, gb, strict=True))


def evaluate_optimizer(library, arrays, make, changes, *hooks):
    """Return both parameters after each step. ``arrays`` are the first values and gradients."""
    link = library.Link()
    with link.init_scope():
        link.W, link.b = [library.Parameter(start.copy()) for start in arrays[:2]]
    optimizer = make(library.optimizers).setup(link)
    for hook in hooks:
        optimizer.add_hook(hook(library.optimizer_hooks))
    after = []
    for t, (gW, gb) in enumerate(gradients(arrays)):
        if t == STEPS // 2:
            for name, value in changes.items():
                setattr(optimizer, name, value)
        link.W.grad, link.b.grad = gW.copy(), gb.copy()
        optimizer.update()
        after.append((link.W.array.copy(), link.b.array.copy()))
    return numbered("y", [np.stack(path) for path in zip(*after, strict=True)])
