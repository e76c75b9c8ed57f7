"""Optimizers, under Chainer's names."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.optimizers.adam import AdaBound, Adam, AdamW, AMSBound, AMSGrad
    from mnpar.optimizers.adaptive import SMORMS3, AdaDelta, AdaGrad, RMSprop, RMSpropGraves
    from mnpar.optimizers.gradient_method import GradientMethod, Team
    from mnpar.optimizers.loss_scaling import LossScaling
    from mnpar.optimizers.moments import LAMB, MSVAG, AdaMax, Novograd
    from mnpar.optimizers.momentum import CorrectedMomentumSGD, NesterovAG, apply_momentum
    from mnpar.optimizers.optimizer import Optimizer
    from mnpar.optimizers.sgd import SGD, MomentumSGD
    from mnpar.optimizers.update_rule import Hyperparameter, UpdateRule
else:
    __getattr__, __dir__ = lazy.names(
        __name__, create_multi_node_optimizer="mnpar.parallel.data.multi_node_optimizer"
    )

__all__ = [
    "LAMB",
    "MSVAG",
    "SGD",
    "SMORMS3",
    "AMSBound",
    "AMSGrad",
    "AdaBound",
    "AdaDelta",
    "AdaGrad",
    "AdaMax",
    "Adam",
    "AdamW",
    "CorrectedMomentumSGD",
    "GradientMethod",
    "Hyperparameter",
    "LossScaling",
    "MomentumSGD",
    "NesterovAG",
    "Novograd",
    "Optimizer",
    "RMSprop",
    "RMSpropGraves",
    "Team",
    "UpdateRule",
    "apply_momentum",
]
