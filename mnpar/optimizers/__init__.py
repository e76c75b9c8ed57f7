"""Optimizers, under Chainer's names."""

from mnpar.optimizers.adam import Adam
from mnpar.optimizers.optimizer import GradientMethod, Hyperparameter, Optimizer, UpdateRule
from mnpar.optimizers.sgd import SGD, MomentumSGD

__all__ = ["SGD", "Adam", "GradientMethod", "Hyperparameter", "MomentumSGD", "Optimizer", "UpdateRule"]
