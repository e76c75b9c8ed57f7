"""Optimizers, under Chainer's names."""

from mnpar.optimizers.adam import Adam
from mnpar.optimizers.optimizer import GradientMethod, Optimizer
from mnpar.optimizers.sgd import SGD, MomentumSGD
from mnpar.optimizers.update_rule import Hyperparameter, UpdateRule

__all__ = ["SGD", "Adam", "GradientMethod", "Hyperparameter", "MomentumSGD", "Optimizer", "UpdateRule"]
