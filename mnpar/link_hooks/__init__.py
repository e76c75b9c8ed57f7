"""Link hooks, under Chainer's names: what runs before and after links."""

from mnpar.link_hooks.spectral_normalization import SpectralNormalization
from mnpar.link_hooks.timer import TimerHook
from mnpar.link_hooks.weight_standardization import WeightStandardization
from mnpar.link_hooks.whole_gradients import WholeGradients

__all__ = ["SpectralNormalization", "TimerHook", "WeightStandardization", "WholeGradients"]
