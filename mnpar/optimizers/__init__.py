"""Optimizers, under Chainer's names."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.optimizers import hooks as hooks
    from mnpar.optimizers.adam import (
        AdaBound as AdaBound,
        Adam as Adam,
        AdamW as AdamW,
        AMSBound as AMSBound,
        AMSGrad as AMSGrad,
    )
    from mnpar.optimizers.adaptive import (
        SMORMS3 as SMORMS3,
        AdaDelta as AdaDelta,
        AdaGrad as AdaGrad,
        RMSprop as RMSprop,
        RMSpropGraves as RMSpropGraves,
    )
    from mnpar.optimizers.gradient_method import (
        GradientMethod as GradientMethod,
        Synchronizer as Synchronizer,
    )
    from mnpar.optimizers.hyperparameter import (
        Hyperparameter as Hyperparameter,
        Interval as Interval,
        hyper as hyper,
    )
    from mnpar.optimizers.loss_scaling import LossScaling as LossScaling
    from mnpar.optimizers.moments import (
        LAMB as LAMB,
        MSVAG as MSVAG,
        AdaMax as AdaMax,
        Novograd as Novograd,
    )
    from mnpar.optimizers.momentum import (
        CorrectedMomentumSGD as CorrectedMomentumSGD,
        NesterovAG as NesterovAG,
        apply_momentum as apply_momentum,
    )
    from mnpar.optimizers.optimizer import Optimizer as Optimizer
    from mnpar.optimizers.sgd import SGD as SGD, MomentumSGD as MomentumSGD
    from mnpar.optimizers.update_rule import UpdateRule as UpdateRule
else:
    __getattr__, __dir__, __all__ = lazy.names(
        __name__, create_multi_node_optimizer="mnpar.parallel.data.multi_node_optimizer"
    )
