"""Layers that normalize: over the batch, over features, over groups of channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import backend, initializers
from mnpar.config import config, get_dtype
from mnpar.functions import batch_normalization, fixed_batch_normalization, group_normalization, layer_normalization
from mnpar.functions.generic import plain
from mnpar.initializers import Constant
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class BatchNormalization(Link):
    """Normalize each channel over the batch, in training; by running statistics, in evaluation.

    Args:
        size: C (or a shape, with ``axis``); None takes it from the first batch.
        decay: how much of the running statistics is kept at each step.
        eps: ε, added to variances.
        dtype: of parameters and statistics; None is ``mnpar.config.dtype``.
        use_gamma, use_beta: whether it learns to scale and to shift.
        initial_gamma, initial_beta, initial_avg_mean, initial_avg_var: initializers; None is 1, 0, 0, 1.
        axis: over which means are taken; None: all but the second.

    ``avg_mean``, ``avg_var`` and ``N`` are saved with the parameters.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> layer = L.BatchNormalization(1)
        >>> layer(np.array([[1.0], [3.0]], "f4")).array.round(2)
        array([[-1.],
               [ 1.]], dtype=float32)
        >>> with mnpar.using_config("train", False):
        ...     layer(np.array([[0.2]], "f4")).array.round(2)
        array([[0.]], dtype=float32)
    """

    def __init__(
        self, size: Any = None, decay: float = 0.9, eps: float = 2e-5, dtype: Any = None, use_gamma: bool = True,
        use_beta: bool = True, initial_gamma: Any = None, initial_beta: Any = None, axis: Any = None,
        initial_avg_mean: Any = None, initial_avg_var: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.decay, self.eps, self.axis, self.N = decay, eps, axis, 0
        self._dtype = np.promote_types(get_dtype(dtype), np.float32)  # statistics of halves need 32 bits
        self.gamma = Parameter(self._filler(1 if initial_gamma is None else initial_gamma)) if use_gamma else None
        self.beta = Parameter(self._filler(0 if initial_beta is None else initial_beta)) if use_beta else None
        self._initial_mean = self._filler(0 if initial_avg_mean is None else initial_avg_mean)
        self._initial_var = self._filler(1 if initial_avg_var is None else initial_avg_var)
        self.avg_mean: Any = None
        self.avg_var: Any = None
        for name in ("avg_mean", "avg_var", "N"):
            self.register_persistent(name)
        if size is not None:
            self._initialize_params(tuple(size) if isinstance(size, tuple | list) else (int(size),))

    def _filler(self, initial: Any) -> Any:
        """An initializer that makes arrays of the link's dtype."""
        return initial if callable(initial) else Constant(initial, self._dtype)

    def _initialize_params(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        for param in (self.gamma, self.beta):
            if param is not None:
                param.initialize(shape)
        self.avg_mean = initializers.generate_array(self._initial_mean, shape, dtype=self._dtype)
        self.avg_var = initializers.generate_array(self._initial_var, shape, dtype=self._dtype)

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        """Names and values to show in ``repr``."""
        yield "size", None if self.avg_mean is None else self.avg_mean.shape
        for name in ("decay", "eps", "axis"):
            yield name, getattr(self, name)

    def _axes(self, x: Any) -> tuple[int, ...]:
        if self.axis is None:
            return (0, *range(2, x.ndim))
        return tuple([a % x.ndim for a in (self.axis if isinstance(self.axis, tuple) else (self.axis,))])

    def _ready(self, x: Any) -> tuple[Any, Any]:
        """γ and β, made if they are not there yet, or as constants where they are not learnt."""
        if self.avg_mean is None:
            axes = self._axes(x)
            self._initialize_params(tuple([n for i, n in enumerate(x.shape) if i not in axes]))
            self.avg_mean, self.avg_var = (backend.beside(array, plain(x)) for array in (self.avg_mean, self.avg_var))
        xp = backend.get_array_module(self.avg_mean)
        gamma = xp.ones_like(self.avg_mean) if self.gamma is None else self.gamma
        return gamma, xp.zeros_like(self.avg_mean) if self.beta is None else self.beta

    def forward(self, x: Any, finetune: bool = False) -> Variable:
        """(N, C, …) → the same shape.

        Args:
            x: in training mode its statistics are used, and added to the running ones.
            finetune: the running statistics become the plain mean over all batches since :meth:`start_finetuning`.
        """
        gamma, beta = self._ready(x)
        if not config.train:
            return fixed_batch_normalization(x, gamma, beta, self.avg_mean, self.avg_var, self.eps, self.axis)
        decay = self.decay
        if finetune:
            self.N += 1
            decay = 1 - 1 / self.N
        return batch_normalization(x, gamma, beta, self.eps, self.avg_mean, self.avg_var, decay, self.axis)

    def start_finetuning(self) -> None:
        """Begin the running statistics anew, for calls with ``finetune=True``."""
        self.N = 0


class LayerNormalization(Link):
    """Normalize each sample over its features.

    Args:
        size: D; None takes it from the first batch.
        eps: ε, added to variances.
        initial_gamma, initial_beta: initializers; None is 1 and 0.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.LayerNormalization(2)(np.array([[1.0, 3.0]], "f4")).array.round(2)
        array([[-1.,  1.]], dtype=float32)
    """

    def __init__(self, size: int | None = None, eps: float = 1e-6, initial_gamma: Any = None, initial_beta: Any = None) -> None:
        super().__init__()
        self.eps = eps
        self.gamma = Parameter(initializers._get_initializer(1 if initial_gamma is None else initial_gamma))
        self.beta = Parameter(initializers._get_initializer(0 if initial_beta is None else initial_beta))
        if size is not None:
            self._initialize_params(size)

    def _initialize_params(self, size: int) -> None:
        self.gamma.initialize((size,))
        self.beta.initialize((size,))

    def forward(self, x: Any) -> Variable:
        """(N, D) → the same shape, as :func:`mnpar.functions.layer_normalization`."""
        if not self.gamma.is_initialized:
            self._initialize_params(x.shape[-1])
        return layer_normalization(x, self.gamma, self.beta, self.eps)


class GroupNormalization(Link):
    """Normalize each sample over groups of its channels.

    Args:
        groups: into how many the channels are divided.
        size: C; None takes it from the first batch.
        eps: ε, added to variances.
        initial_gamma, initial_beta: initializers; None is 1 and 0.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.GroupNormalization(2)(np.array([[1.0, 3.0, 5.0, 9.0]], "f4")).array.round(2)
        array([[-1.,  1., -1.,  1.]], dtype=float32)
    """

    def __init__(
        self, groups: int, size: int | None = None, eps: float = 1e-5, initial_gamma: Any = None, initial_beta: Any = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.groups, self.eps = groups, eps
        self.gamma = Parameter(initializers._get_initializer(1 if initial_gamma is None else initial_gamma))
        self.beta = Parameter(initializers._get_initializer(0 if initial_beta is None else initial_beta))
        if size is not None:
            self._initialize_params(size)

    def _initialize_params(self, size: int) -> None:
        self.gamma.initialize((size,))
        self.beta.initialize((size,))

    def forward(self, x: Any) -> Variable:
        """(N, C, …) → the same shape, as :func:`mnpar.functions.group_normalization`."""
        if not self.gamma.is_initialized:
            self._initialize_params(x.shape[1])
        return group_normalization(x, self.groups, self.gamma, self.beta, self.eps)
