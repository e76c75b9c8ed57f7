"""Hooks of optimizers, which change gradients between backward and the update:
``optimizer.add_hook(WeightDecay(1e-4))``.

Those that go parameter by parameter (``call_for_each_param``) may also be added to one parameter's
rule alone: ``param.update_rule.add_hook(…)``. They change ``param.grad`` in place, and leave
parameters without a gradient alone. Gradients arrive with the loss scale divided out.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from mnpar import backend, random
from mnpar.backend import Array, ArrayModule
from mnpar.optimizers import Optimizer, UpdateRule
from mnpar.optimizers.update_rule import WITH_MESH
from mnpar.parameter import Parameter

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
    timing = "pre"

    def __init__(self, rate: float) -> None:
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
    timing = "pre"

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, rule: UpdateRule | None, param: Parameter) -> None:
        p, g = param.array, param.grad
        if p is not None and g is not None:
            g += self.rate * backend.get_array_module(p).sign(p)


class GradientClipping:
    """g ← g · min(1, threshold / ‖g‖), with the L2 norm over the gradients of all parameters of the
    optimizer's target.

    Without ``comm`` the norm is over this rank's parameters: right for ranks that hold copies of
    one model and have summed their gradients, as all of them compute the same norm. For a model
    that is divided over ranks, give ``comm``: the norm is then over all parts. An optimizer with a
    mesh always uses the norm of the whole model, and takes no ``comm``.

    Args:
        threshold: the largest norm that is left as it is.
        comm: the ranks that hold the parts of one model: all update together, with or without
            gradients. Each parameter is on one of them; but where layers are divided among them,
            what several ranks hold alike (a parameter of the same path, values and gradient) counts
            once. If losses are scaled, give ``loss_scaling`` the same ``comm``, so that no rank
            skips a step alone.

    Raises:
        ValueError: the threshold is negative; in an update, a parameter is divided, and there is
            neither ``comm`` nor a mesh.

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

    def __init__(self, threshold: float, comm: Communicator | None = None) -> None:
        if threshold < 0:
            raise ValueError(
                f"gradients cannot be clipped to a norm of {threshold}: a norm is 0 or more"
            )
        self.threshold, self.comm = threshold, comm

    def __call__(self, opt: Optimizer) -> None:
        if self.comm is not None and opt.spread:
            raise ValueError(
                "GradientClipping needs no comm where the optimizer has a mesh: its norm is "
                "the whole model's"
            )
        named = [
            (path, p)
            for path, p in opt.target.namedparams(include_uninit=False)
            if p.grad is not None
        ]
        norm = math.sqrt(
            self._own(opt, named) if self.comm is None else self._common(opt, named, self.comm)
        )
        if norm > self.threshold:
            for _, param in named:
                param.grad *= self.threshold / norm

    def _own(self, optimizer: Optimizer, named: list[tuple[str, Parameter]]) -> float:
        """Return the square of the norm of the gradients that this rank has, or on a mesh of
        all.
        """
        for _, param in [] if optimizer.spread else named:
            param.check_whole(self.name, WITH_MESH)
        squares = [
            _square(p.grad) * (1.0 if p.update_rule is None else p.update_rule.share)
            for _, p in named
        ]
        return float(optimizer.total(np.array(float(sum(squares)))))

    def _common(
        self, optimizer: Optimizer, named: list[tuple[str, Parameter]], comm: Communicator
    ) -> float:
        """Return the square of the norm over ranks; if layers are divided among them, what several
        ranks hold alike counts once.
        """
        squares = [[float(_square(p.grad)), float(_square(p.array))] for _, p in named]
        parts = [[crc32(f"{path} {p.box}".encode()), p.box is not None] for path, p in named]
        mine = np.hstack(
            [optimizer.total(np.reshape(squares, (-1, 2))), np.reshape(parts, (-1, 2))]
        )
        ranks = [rows.tolist() for rows in comm.allgather(mine)]
        if not any([divided for rows in ranks for *_, divided in rows]):
            return float(sum([square for rows in ranks for square, *_ in rows]))
        known: dict[
            float, list[list[float]]
        ] = {}  # by path and part: both squares, and how often a rank has these
        for rows in ranks:
            times = Counter[tuple[float, int]]()
            for square, values, part, _ in rows:
                same = known.setdefault(part, [])
                here = [_alike(one[0], square) and _alike(one[1], values) for one in same]
                i = here.index(True) if True in here else len(same)
                if i == len(same):
                    same.append([square, values, 0])
                times[part, i] += 1
                same[i][2] = max(same[i][2], times[part, i])
        return sum([square * often for same in known.values() for square, _, often in same])


def _alike(a: float, b: float) -> bool:
    """Return whether they are numbers of the same thing: what ranks compute alike may have other
    last digits on another processor.
    """
    return math.isclose(a, b, rel_tol=1e-4)


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
    timing = "pre"

    def __init__(self, lower_bound: float, upper_bound: float) -> None:
        if lower_bound > upper_bound:
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
    xp: ArrayModule, shape: tuple[int, ...], dtype: Any, hook: GradientNoise, opt: Any
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

    Without ``comm`` each rank draws from its own generator: ranks that hold copies of one model
    stay alike only if they were given the same seed (``mnpar.random.seed``) and draw alike.

    Args:
        eta: η, of the variance; the paper recommends 0.01, 0.3 or 1.
        noise_func: ``(xp, shape, dtype, hook, rule) -> array``; None:
            :func:`exponential_decay_noise`.
        comm: the ranks that have the model, as copies or in parts, which all make this hook,
            together: copies get the same noise, by a seed that rank 0 draws now, if ``noise_func``
            draws from mnpar.random.generator(). With a multi-node optimizer over a mesh each rank
            draws the noise of whole parameters by their paths, and keeps its part: on any mesh, one
            rank included, the noise is the same. Otherwise it goes by gradients and values.

    Raises:
        ValueError: η is negative; in an update, a parameter is divided, and there is no ``comm``:
            whole ones would drift apart.

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
    timing = "pre"

    def __init__(
        self,
        eta: float,
        noise_func: Callable[..., Array] | None = None,
        comm: Communicator | None = None,
    ) -> None:
        if eta < 0:
            raise ValueError(f"eta is a variance, not {eta}")
        self.eta = eta
        self.noise_func = exponential_decay_noise if noise_func is None else noise_func
        self.seed = (
            None if comm is None else int(comm.bcast(np.array(random.generator().integers(2**63))))
        )

    def __call__(self, rule: UpdateRule | None, param: Parameter) -> None:
        g = param.grad
        if g is None:
            return
        # on a mesh it is seen whether copies stay alike
        if self.seed is None and (rule is None or not rule.spread):
            param.check_whole(
                self.name,
                "give it comm=, the ranks that have the model, so that copies get the same noise",
            )
        xp = backend.get_array_module(g)
        path = getattr(rule, "path", "")
        if self.seed is None or rule is None or not path:
            with random.using(self._alike(param, g, getattr(rule, "t", 0))):
                g += self.noise_func(xp, g.shape, g.dtype, self, rule)
            return
        shape, inside = rule.piece or (g.shape, slice(None))
        whole = shape if param.box is None or param.whole is None else param.whole
        with random.using(random.of_path([self.seed, rule.t], path)):
            noise = xp.broadcast_to(self.noise_func(xp, whole, g.dtype, self, rule), whole)
        part = noise if param.box is None else noise[param.box.index]
        g += part.reshape(-1)[inside].reshape(g.shape)

    def serialize(self, serializer: Any) -> None:
        """Save or load the seed, if ranks have one."""
        if self.seed is not None:
            self.seed = int(serializer("seed", self.seed))

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
        self.threshold, self.weight_decay, self.eps = threshold, weight_decay, eps

    def __call__(self, rule: UpdateRule | None, param: Parameter) -> None:
        p, g = param.array, param.grad
        if p is None or g is None:
            return
        if rule is None or not rule.spread:
            param.check_whole(self.name, WITH_MESH)
        squares = np.array([float(_square(p)), float(_square(g))])
        p_norm, g_norm = np.sqrt(squares if rule is None else rule.total(squares))
        if self.weight_decay:
            g += self.weight_decay * p
        if p_norm > self.threshold:
            g *= p_norm / (self.eps + g_norm + self.weight_decay * p_norm)


def _square(g: Array) -> Any:
    """Σ|g|², on g's device, of at least 32 bits."""
    g = g.astype(np.promote_types(g.dtype, np.float32), copy=False).ravel()
    return backend.get_array_module(g).vdot(g, g).real
