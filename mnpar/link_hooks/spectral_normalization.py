"""A link hook that divides a weight by its largest singular value, so that the layer is
1-Lipschitz.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.configuration import config
from mnpar.functions.util.recomputation import remembered
from mnpar.kernels.dtypes import upcast_halves
from mnpar.link import Link
from mnpar.link_hooks.substitution import WeightSubstitution
from mnpar.parameter import Parameter
from mnpar.random import generator
from mnpar.variable import Variable


class SpectralNormalization(WeightSubstitution):
    """Lets a link compute with W / σ, where σ is the largest singular value of W as a matrix
    (outputs, …).

    σ is found by power iteration, a step or more at each call, from a vector that is kept with the
    link as a persistent value (``W_u``) and changed while ``config.train`` is on. To be added to a
    link (``link.add_hook(hook)``), one hook for each link.

    Args:
        n_power_iteration: steps at each call.
        eps: added to lengths before dividing by them.
        use_gamma: multiply by a parameter ``gamma``, at first the largest singular value.
        factor: W / σ is multiplied by it; None: 1.
        weight_name: the link's attribute with the parameter.
        name: of the hook; None: ``'SpectralNormalization'``.

    Raises:
        ValueError: on being added: the link has no such parameter; when called: it is divided among
            ranks.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> layer = L.Linear(2, 2, initialW=np.diag([3.0, 1.0])).add_hook(
        ...     mnpar.link_hooks.SpectralNormalization(20)
        ... )
        >>> layer(np.array([[1.0, 1.0]])).array.round(3)
        array([[1.   , 0.333]])

    Source:
        Miyato et al., "Spectral normalization for generative adversarial networks", ICLR 2018.
    """

    name = "SpectralNormalization"

    def __init__(
        self,
        n_power_iteration: int = 1,
        eps: float = 1e-6,
        use_gamma: bool = False,
        factor: float | None = None,
        weight_name: str = "W",
        name: str | None = None,
    ) -> None:
        if n_power_iteration < 1:
            raise ValueError(
                f"SpectralNormalization: n_power_iteration = {n_power_iteration} is not 1 or more"
            )
        super().__init__(weight_name, name)
        self.n_power_iteration = n_power_iteration
        self.eps = eps
        self.use_gamma = use_gamma
        self.factor = factor
        self.vector_name = weight_name + "_u"

    def added(self, link: Link) -> None:
        super().added(link)
        self.sized(link)

    def sized(self, link: Link) -> None:
        if getattr(link, self.weight_name).is_initialized and not hasattr(link, self.vector_name):
            self._prepare(link)

    def deleted(self, link: Link) -> None:
        for name in [self.vector_name, "gamma"][: 1 + self.use_gamma]:
            if hasattr(link, name):
                delattr(link, name)

    def _prepare(self, link: Link) -> None:
        W = getattr(link, self.weight_name).array
        rows = W.shape[self.axis]
        link.add_persistent(
            self.vector_name,
            backend.to_device_of(generator().standard_normal(rows).astype(W.dtype), W),
        )
        if self.use_gamma:
            xp = backend.get_array_module(W)
            largest = xp.linalg.svd(upcast_halves(self.matrix(W)), compute_uv=False)[0]
            link.gamma = Parameter(xp.asarray(largest, W.dtype))

    def of(self, link: Any, W: Variable) -> Variable:
        if not hasattr(link, self.vector_name):
            self._prepare(link)
        matrix = self.matrix(W)
        # a recomputation takes the vectors of the first forward
        u, v = remembered(lambda: self._next_vectors(link, matrix.array))
        sigma = (matrix * u[:, None] * v).sum()
        if self.factor is not None:
            sigma = sigma / self.factor
        y: Variable = W / sigma
        return y * link.gamma if self.use_gamma else y

    def _next_vectors(self, link: Any, W: Any) -> tuple[Any, Any]:
        u, v = self._iterate(W, getattr(link, self.vector_name))
        if config.train:
            getattr(link, self.vector_name)[...] = u
        return u, v

    def _iterate(self, W: Any, u: Any) -> tuple[Any, Any]:
        for _ in range(self.n_power_iteration):
            v = self._unit(u @ W)
            u = self._unit(W @ v)
        return u, v

    def _unit(self, x: Any) -> Any:
        long = upcast_halves(x)
        return (long / (np.sqrt(float((long * long).sum())) + self.eps)).astype(x.dtype)
