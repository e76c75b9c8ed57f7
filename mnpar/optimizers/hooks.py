"""Hooks of optimizers, which change gradients between backward and the update:
``optimizer.add_hook(WeightDecay(1e-4))``.

Those that go parameter by parameter (``call_for_each_param``) may also be added to one parameter's
rule alone: ``param.update_rule.add_hook(…)``. They change ``param.grad`` in place, and leave
parameters without a gradient alone. Gradients arrive with the loss scale divided out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend, random
from mnpar.backend import Array, ArrayModule
from mnpar.optimizers.hyperparameter import Interval
from mnpar.optimizers.model_holders import square
from mnpar.optimizers.optimizer import Optimizer
from mnpar.optimizers.update_rule import UpdateRule
from mnpar.parameter import Parameter
from mnpar.serializer import AbstractSerializer, Deserializer

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


__all__ = [
    "GradientClipping",
    "GradientHardClipping",
    "GradientLARS",
    "GradientNoise",
    "Lasso",
    "WeightDecay",
    "exponential_decay_noise",
]


class WeightDecay:
    """g ← g + rate · p: the gradient of rate/2 · ‖p‖².

    With Adam this is not the same as its decoupled ``weight_decay_rate`` (Loshchilov and Hutter,
    arXiv:1711.05101).

    Args:
        rate: the coefficient.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.optimizers.hooks import WeightDecay
        >>> model = mnpar.Link(w=2)
        >>> model.w.array[...], model.w.grad = 10, np.zeros(2, "f4")
        >>> optimizer = mnpar.optimizers.SGD(lr=1.0).setup(model)
        >>> optimizer.add_hook(WeightDecay(0.1))
        >>> optimizer.update()
        >>> model.w.array
        array([9., 9.], dtype=float32)
    """

    name = "WeightDecay"
    call_for_each_param = True
    elementwise = True
    timing = "pre"

    def __init__(self, rate: float) -> None:
        Interval().check("WeightDecay", "rate", rate)
        self.rate = rate

    def __call__(self, rule: UpdateRule | None, param: Parameter) -> None:
        p, g = param.array, param.grad
        if p is not None and g is not None:
            g += self.rate * p


class Lasso:
    """g ← g + rate · sign(p): the gradient of rate · ‖p‖₁.

    Args:
        rate: the coefficient.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.optimizers.hooks import Lasso
        >>> p = mnpar.Parameter(np.array([3.0, 0.0, -2.0]))
        >>> p.grad = np.zeros(3)
        >>> Lasso(0.5)(None, p)
        >>> p.grad
        array([ 0.5,  0. , -0.5])
    """

    name = "Lasso"
    call_for_each_param = True
    elementwise = True
    timing = "pre"

    def __init__(self, rate: float) -> None:
        Interval().check("Lasso", "rate", rate)
        self.rate = rate

    def __call__(self, rule: UpdateRule | None, param: Parameter) -> None:
        p, g = param.array, param.grad
        if p is not None and g is not None:
            g += self.rate * backend.get_array_module(p).sign(p)


class GradientClipping:
    """g ← g · min(1, threshold / ‖g‖), with the L2 norm over the gradients of all parameters of the
    optimizer's target.

    It is the norm of the whole model: where ranks hold it together, as stages, parts, experts or
    members of an ensemble that is trained jointly, all of them add the hook, and compute it
    together. What several ranks have counts once (:meth:`mnpar.Optimizer.sum_over_model`).

    Args:
        threshold: the largest norm that is left as it is.
        comm: the ranks that hold the model together, where no link says so, as with ``send`` and
            ``recv`` written by hand: all update together, with or without gradients, and each has
            parameters of its own, except for what links or boxes say. None: those that links, the
            mesh and the multi-node optimizer know.

    Raises:
        ValueError: the threshold is negative; in an update, ``comm`` lacks ranks that hold the
            model, or is given where the optimizer has a mesh.
        RuntimeError: in an update, nobody knows which ranks hold the model. MismatchError: copies
            of a parameter have different gradients.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.optimizers.hooks import GradientClipping
        >>> model = mnpar.Link(w=2)
        >>> model.w.array[...], model.w.grad = 0, np.array([30.0, 40.0], "f4")
        >>> optimizer = mnpar.optimizers.SGD(lr=1.0).setup(model)
        >>> optimizer.add_hook(GradientClipping(5.0))
        >>> optimizer.update()
        >>> model.w.array
        array([-3., -4.], dtype=float32)
    """

    name = "GradientClipping"
    timing = "pre"
    elementwise = True  # but for one number, which all ranks have

    def __init__(self, threshold: float, comm: Communicator | None = None) -> None:
        if not threshold >= 0:
            raise ValueError(
                f"gradients cannot be clipped to a norm of {threshold}: a norm is 0 or more"
            )
        self.threshold, self.comm = threshold, comm

    def __call__(self, opt: Optimizer) -> None:
        squares = opt.sum_over_model(
            lambda param: square(param.grad), self.comm, self.name, (self.threshold,)
        )
        norm = math.sqrt(squares)
        if norm > self.threshold:
            for param in opt.target.params(include_uninit=False):
                if param.grad is not None:
                    param.grad *= self.threshold / norm


class GradientHardClipping:
    """g ← min(max(g, lower_bound), upper_bound), element by element.

    Args:
        lower_bound: the smallest value left.
        upper_bound: the largest.

    Raises:
        ValueError: the lower bound is above the upper one.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.optimizers.hooks import GradientHardClipping
        >>> p = mnpar.Parameter(np.zeros(3))
        >>> p.grad = np.array([-5.0, 0.5, 5.0])
        >>> GradientHardClipping(-1, 1)(None, p)
        >>> p.grad
        array([-1. ,  0.5,  1. ])
    """

    name = "GradientHardClipping"
    call_for_each_param = True
    elementwise = True
    timing = "pre"

    def __init__(self, lower_bound: float, upper_bound: float) -> None:
        if not lower_bound <= upper_bound:
            raise ValueError(
                f"gradients cannot be clipped to [{lower_bound}, {upper_bound}]: the bounds "
                "are the wrong way round"
            )
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def __call__(self, rule: UpdateRule | None, param: Parameter) -> None:
        g = param.grad
        if g is not None:
            backend.get_array_module(g).clip(g, self.lower_bound, self.upper_bound, out=g)


def exponential_decay_noise(
    xp: ArrayModule, shape: tuple[int, ...], dtype: DTypeLike, hook: GradientNoise, opt: Any
) -> Array:
    """Noise of variance η / (1 + t)^0.55, drawn from the rank's generator: Neelakantan et al.,
    arXiv:1511.06807.

    Args:
        xp: numpy or cupy, by the gradient.
        shape: of the gradient.
        dtype: of the gradient.
        hook: has η.
        opt: the rule (or optimizer) that counts the updates ``t``; None counts as t = 0.

    Returns:
        An array of that shape and dtype.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.optimizers.hooks import GradientNoise, exponential_decay_noise
        >>> mnpar.random.seed(0)
        >>> noise = exponential_decay_noise(np, (1000,), "f4", GradientNoise(0.01), None)
        >>> noise.dtype, round(float(noise.std()), 1)
        (dtype('float32'), 0.1)
    """
    sigma = math.sqrt(hook.eta / (1 + getattr(opt, "t", 0)) ** 0.55)
    return xp.asarray(np.asarray(random.generator().normal(0.0, sigma, shape), dtype))


class GradientNoise:
    """g ← g + noise, by default normal with a variance that falls with time:
    :func:`exponential_decay_noise`.

    Where ranks hold the model together, or have copies of it, all of them add the hook. Copies of
    a parameter get the same noise, and its parts their cells of the whole parameter's: by a seed
    that the ranks share from the first update on, and by the names of parameters (their paths), if
    ``noise_func`` draws from mnpar.random.generator(). So it is the same on any number of ranks.

    Args:
        eta: η, of the variance; the paper recommends 0.01, 0.3 or 1.
        noise_func: ``(xp, shape, dtype, hook, rule) -> array``; None:
            :func:`exponential_decay_noise`.
        comm: the ranks that have the model, as copies or in parts, where no link says so; all make
            this hook together, with a seed that rank 0 draws now. What has the same values and
            gradient gets the same noise, except for what links say.

    Raises:
        ValueError: η is negative; in an update, a parameter is divided among ranks that are not
            known, or has the hook alone (``param.update_rule.add_hook``) without ``comm``.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.optimizers.hooks import GradientNoise
        >>> p = mnpar.Parameter(np.zeros(3))
        >>> p.grad = np.zeros(3)
        >>> GradientNoise(
        ...     0.3, lambda xp, shape, dtype, hook, rule: xp.full(shape, hook.eta, dtype)
        ... )(None, p)
        >>> p.grad
        array([0.3, 0.3, 0.3])
    """

    name = "GradientNoise"
    call_for_each_param = True
    elementwise = True
    timing = "pre"

    def __init__(
        self,
        eta: float,
        noise_func: Callable[..., Array] | None = None,
        comm: Communicator | None = None,
    ) -> None:
        if not eta >= 0:
            raise ValueError(f"eta is a variance, not {eta}")
        self.eta = eta
        self.noise_func = exponential_decay_noise if noise_func is None else noise_func
        self.comm = comm
        self.seed = (
            None if comm is None else int(comm.bcast(np.array(random.generator().integers(2**63))))
        )
        self._names: dict[int, str] = {}  # of parameters, by ``id``

    def begin(self, opt: Optimizer) -> None:
        """Share a seed, and names of parameters, with the other ranks that hold the model."""
        holders = opt.holders
        if self.seed is None and holders.is_shared:
            holders.check_crossed(self.name)
            self.seed = holders.share_seed(int(random.generator().integers(2**63)))
        if self.seed is not None:
            self._names = holders.names(None if holders.on_mesh else self.comm)

    def __call__(self, rule: UpdateRule | None, param: Parameter) -> None:
        g = param.grad
        if g is None:
            return
        xp = backend.get_array_module(g)
        name = self._names.get(id(param))
        if self.seed is None or rule is None or not name:
            if self.seed is None:
                param.check_whole(
                    self.name,
                    "add the hook to the optimizer, or give it comm=, the ranks that have the "
                    "model, so that copies get the same noise",
                )
            with random.using(self._alike(param, g, getattr(rule, "t", 0))):
                g += self.noise_func(xp, g.shape, g.dtype, self, rule)
            return
        piece = rule.piece
        shape, inside = (g.shape, slice(None)) if piece is None else (piece.shape, piece.inside)
        whole = shape if param.box is None or param.whole is None else param.whole
        with random.using(random.of_path([self.seed, rule.t], name)):
            noise = xp.broadcast_to(self.noise_func(xp, whole, g.dtype, self, rule), whole)
        part = noise if param.box is None else noise[param.box.index]
        g += part.reshape(-1)[inside].reshape(g.shape)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the seed, if ranks have one."""
        if isinstance(serializer, Deserializer):
            with suppress(KeyError):  # saved without one
                seed = serializer("seed", self.seed)
                self.seed = self.seed if seed is None else int(seed)
        elif self.seed is not None:
            serializer("seed", self.seed)

    def _alike(self, param: Parameter, g: Array, t: int) -> np.random.Generator | None:
        """Return a generator that is the same wherever a parameter has this part, gradient and
        value; None: the rank's own.
        """
        if self.seed is None:
            return None
        digest = hashlib.blake2b(digest_size=16)
        # the values, too: unused parameters have the same gradient, zeros
        for x in (
            g,
            param.array,
        ):
            digest.update(backend.as_bytes(backend.to_host(x)).data)
        return random.of_path([self.seed, t], f"{param.box} {digest.hexdigest()}")


class GradientLARS:
    """g ← r (g + λ p) with r = ‖p‖ / (ε + ‖g‖ + λ ‖p‖) where ‖p‖ > threshold, else r = 1.

    The paper's coefficient η is left to the learning rate, as in Chainer.

    Args:
        threshold: parameters of at most this norm keep the length of their gradients.
        weight_decay: λ.
        eps: ε.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.optimizers.hooks import GradientLARS
        >>> p = mnpar.Parameter(np.array([6.0, 8.0]))
        >>> p.grad = np.array([0.03, 0.04])
        >>> GradientLARS()(None, p)
        >>> p.grad.round(3)
        array([6., 8.])

    Source:
        You, Gitman and Ginsburg 2017, "Large batch training of convolutional networks", arXiv
        1708.03888.
    """

    name = "GradientLARS"
    timing = "pre"
    call_for_each_param = True

    def __init__(
        self, threshold: float = 1e-2, weight_decay: float = 0.0, eps: float = 1e-9
    ) -> None:
        for name, value in (("threshold", threshold), ("weight_decay", weight_decay), ("eps", eps)):
            Interval().check("GradientLARS", name, value)
        self.threshold, self.weight_decay, self.eps = threshold, weight_decay, eps

    def __call__(self, rule: UpdateRule | None, param: Parameter) -> None:
        p, g = param.array, param.grad
        if p is None or g is None:
            return
        squares = np.array([float(square(p)), float(square(g))])
        p_norm, g_norm = np.sqrt(param.sum_over_parts(squares, self.name))
        if self.weight_decay:
            g += self.weight_decay * p
        if p_norm > self.threshold:
            g *= p_norm / (self.eps + g_norm + self.weight_decay * p_norm)
