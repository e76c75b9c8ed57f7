"""Chainer's ``optimizer`` module: what optimizers are made of, and their hooks under their older
place.
"""

from mnpar.optimizers import GradientMethod, Hyperparameter, Optimizer, UpdateRule
from mnpar.optimizers.hooks import (
    GradientClipping,
    GradientHardClipping,
    GradientLARS,
    GradientNoise,
    Lasso,
    WeightDecay,
)
from mnpar.optimizers.hyperparameter import HyperparameterProxy

__all__ = [
    "GradientClipping",
    "GradientHardClipping",
    "GradientLARS",
    "GradientMethod",
    "GradientNoise",
    "Hyperparameter",
    "HyperparameterProxy",
    "Lasso",
    "Optimizer",
    "UpdateRule",
    "WeightDecay",
]
