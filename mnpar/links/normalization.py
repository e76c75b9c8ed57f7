"""Normalizing layers with their parameters and running statistics: over a batch (plain,
renormalized, decorrelated, over the batches of all ranks), and over the features or channels of
each sample.

:class:`MultiNodeBatchNormalization` composes two differentiable functions: mean and variance over
all ranks (functions/normalization/multi_node_moments.py), and the normalization by a given mean and
variance. So it is differentiable any number of times.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend, initializers
from mnpar.backend import Array, Axis
from mnpar.communicators.communicator import require_communicator
from mnpar.configuration import config, get_dtype
from mnpar.functions.divided.blocks import copy_all_to
from mnpar.functions.divided.layout import GridLayout
from mnpar.functions.node import own_array
from mnpar.functions.normalization.batch_normalization import (
    FixedBatchNormalization,
    batch_normalization,
    fixed_batch_normalization,
    from_channel_view,
    reduced_axes,
    to_channel_view,
    update_running,
)
from mnpar.functions.normalization.batch_renormalization import batch_renormalization
from mnpar.functions.normalization.decorrelated_batch_normalization import (
    decorrelated_batch_normalization,
    fixed_decorrelated_batch_normalization,
)
from mnpar.functions.normalization.layer_normalization import (
    group_normalization,
    layer_normalization,
)
from mnpar.functions.normalization.multi_node_moments import multi_node_moments
from mnpar.functions.util.recomputation import is_remembering, remembered
from mnpar.initializers.initializer import InitialValue
from mnpar.kernels.moments import channel_view
from mnpar.link import GradientComms, Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def _shape_of(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size,) if isinstance(size, int | np.integer) else tuple(size)


def _initialize(link: Link, size: tuple[int, ...], *params: Parameter | None) -> None:
    """Initialize those of a link's parameters that are there and are not initialized yet."""
    if any(n < 1 for n in size):
        raise ValueError(f"{type(link).__name__}: the sizes {size} are not 1 or more")
    for param in params:
        if param is not None and not param.is_initialized:
            param.initialize(size)


def _check_statistics(name: str, decay: float, eps: float) -> None:
    """Raise ValueError if running statistics could not be averages, or variances divided by."""
    if not 0 <= decay <= 1 or not eps >= 0:
        raise ValueError(
            f"{name}: decay = {decay} lies in [0, 1], what a batch leaves of the running "
            f"statistics, and eps = {eps}, which is added to variances, is 0 or more"
        )


class _RunningStatistics(Link):
    """The base of layers with running statistics: how much of them a batch leaves."""

    decay: float
    N: int

    def _decay(self, finetune: bool) -> float:
        """Return the decay of the running statistics by this batch, which is counted if it is one
        of a finetuning.
        """
        if finetune and not config.in_recomputing:
            self.N += 1
        return 1 - 1 / self.N if finetune else self.decay

    def start_finetuning(self) -> None:
        """Start the mean over batches anew, with the next batch that is called with
        ``finetune=True``.
        """
        self.N = 0


class BatchNormalization(_RunningStatistics):
    """γ·(x - mean) / √(var + ε) + β: by this batch's mean and variance while ``config.train`` is
    on, else by running ones.

    Args:
        size: of gamma and beta, an int or a tuple; None takes it from the first batch.
        decay: of the running statistics: running ← decay · running + (1 - decay) · batch's.
        eps: added to the variance.
        dtype: of parameters and running statistics; None is ``mnpar.config.dtype``. ``mixed16``
            means float32: small steps and sums need more than 11 bits.
        use_gamma, use_beta: whether there are the parameters; else γ is 1 and β is 0.
        initial_gamma, initial_beta, initial_avg_mean, initial_avg_var: initializers, numbers or
            arrays; None is 1, 0, 0, 1.
        axis: what the mean is over; None: the first axis, and those after as many as ``size`` has.

    Attributes:
        avg_mean, avg_var, N: persistent: the running mean and (unbiased) variance, and how many
            batches went into them since :meth:`start_finetuning`. The first two are None until the
            size is known.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> layer = L.BatchNormalization(1)
        >>> layer(np.array([[1.0], [3.0]], "f4")).array.round(3).tolist()
        [[-1.0], [1.0]]
        >>> with mnpar.using_config("train", False):
        ...     layer(np.array([[0.2]], "f4")).array.round(3).tolist()
        [[0.0]]
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: DTypeLike | None = None,
        use_gamma: bool = True,
        use_beta: bool = True,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
        axis: Axis = None,
        initial_avg_mean: InitialValue = None,
        initial_avg_var: InitialValue = None,
    ) -> None:
        super().__init__()
        _check_statistics(type(self).__name__, decay, eps)
        self.decay, self.eps = decay, eps
        self.axis = (axis,) if isinstance(axis, int) else axis
        self.dtype = get_dtype(dtype, map_mixed16=np.float32)
        self.gamma = Parameter(self._initializer(initial_gamma, 1)) if use_gamma else None
        self.beta = Parameter(self._initializer(initial_beta, 0)) if use_beta else None
        self._initial_avg = (
            self._initializer(initial_avg_mean, 0),
            self._initializer(initial_avg_var, 1),
        )
        self.avg_mean: Any = None
        self.avg_var: Any = None
        self.N = 0
        for name in ("avg_mean", "avg_var", "N"):
            self.register_persistent(name)
        if size is not None:
            self._initialize_params(_shape_of(size))

    def _initializer(self, initial: Any, default: float) -> Callable[[Array], None]:
        made = initializers._get_initializer(initial, default)
        if isinstance(made, initializers.Initializer) and made.dtype is None:
            made = copy.copy(made)
            made.dtype = self.dtype
        return made

    def _initialize_params(self, size: tuple[int, ...], like: Any = None) -> None:
        _initialize(self, size, self.gamma, self.beta)
        if self.avg_mean is None:
            arrays = [initializers.generate_array(x, size) for x in self._initial_avg]
            self.avg_mean, self.avg_var = (
                arrays if like is None else [backend.to_device_of(a, like) for a in arrays]
            )

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        size = None if self.avg_mean is None else self.avg_mean.shape
        yield from (("size", size), ("decay", self.decay), ("eps", self.eps), ("dtype", self.dtype))
        yield from (("use_gamma", self.gamma is not None), ("use_beta", self.beta is not None))

    def forward(self, x: Variable | Array, finetune: bool = False) -> Variable:
        """Return the normalized batch.

        Args:
            x: (N, C, …).
            finetune: the running values become plain means over the batches since
                :meth:`start_finetuning`.

        Returns:
            x's shape and dtype.

        Raises:
            ValueError: x has another number of channels.
        """
        if self.avg_mean is None or not all(
            p is None or p.is_initialized for p in (self.gamma, self.beta)
        ):
            reduced = reduced_axes(x.ndim, 1, self.axis)
            self._initialize_params(
                tuple([n for axis, n in enumerate(x.shape) if axis not in reduced]), own_array(x)
            )
        gamma, beta = self._scale_and_shift()
        if not config.train:
            return fixed_batch_normalization(
                x, gamma, beta, self.avg_mean, self.avg_var, self.eps, self.axis
            )
        return self._by_batch(x, gamma, beta, self._decay(finetune))

    def _by_batch(
        self, x: Variable | Array, gamma: Variable | Array, beta: Variable | Array, decay: float
    ) -> Variable:
        """Return the normalization while training, which also changes the running values."""
        mean, var = (None, None) if config.in_recomputing else (self.avg_mean, self.avg_var)
        return batch_normalization(x, gamma, beta, self.eps, mean, var, decay, self.axis)

    def _scale_and_shift(self) -> tuple[Variable | Array, Variable | Array]:
        """gamma and beta as this batch uses them."""
        return self._or_constant(self.gamma, 1), self._or_constant(self.beta, 0)

    def _or_constant(self, param: Parameter | None, value: float) -> Parameter | Array:
        return (
            backend.get_array_module(self.avg_mean).full_like(self.avg_mean, value)
            if param is None
            else param
        )


class BatchRenormalization(BatchNormalization):
    """Batch normalization that is corrected towards the running statistics:
    :func:`mnpar.functions.batch_renormalization`.

    Args:
        size, decay, eps, dtype: as in :class:`BatchNormalization`, and so are the other arguments.
        rmax, dmax: bounds of the correction: r in [1 / rmax, rmax] scales, d in [-dmax, dmax]
            shifts (in running deviations).

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.BatchRenormalization(1, rmax=3, dmax=5)
        >>> layer(np.array([[1.0], [3.0]], "f4")).array.round(3).tolist()
        [[1.0], [3.0]]
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        rmax: float = 1,
        dmax: float = 0,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: DTypeLike | None = None,
        use_gamma: bool = True,
        use_beta: bool = True,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
        initial_avg_mean: InitialValue = None,
        initial_avg_var: InitialValue = None,
    ) -> None:
        super().__init__(
            size,
            decay,
            eps,
            dtype,
            use_gamma,
            use_beta,
            initial_gamma,
            initial_beta,
            None,
            initial_avg_mean,
            initial_avg_var,
        )
        self.rmax, self.dmax = rmax, dmax

    def _by_batch(
        self, x: Variable | Array, gamma: Variable | Array, beta: Variable | Array, decay: float
    ) -> Variable:
        mean, var, again = self.avg_mean, self.avg_var, config.in_recomputing
        if is_remembering():  # a recomputation takes the statistics before the batch
            before = remembered(lambda: (mean.copy(), var.copy()))
            mean, var = before if again else (mean, var)
        return batch_renormalization(
            x, gamma, beta, self.rmax, self.dmax, self.eps, mean, var, decay, not again
        )


class DecorrelatedBatchNormalization(_RunningStatistics):
    """Whitens channels: by the batch's statistics while ``config.train`` is on, else by a running
    mean and projection.

    Args:
        size: C, how many channels.
        groups: into how many groups, each whitened by itself, the channels are divided.
        decay: as in :class:`BatchNormalization`.
        eps: added to the variances.
        dtype: of the running statistics.

    Attributes:
        avg_mean, avg_projection, N: persistent: ``(groups, C / groups)``, ``(groups, C / groups, C
            / groups)``, and how many batches went into them since :meth:`start_finetuning`.

    Raises:
        ValueError: the channels cannot be divided into so many groups.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.DecorrelatedBatchNormalization(2, groups=1)
        >>> y = layer(np.array([[1.0, 1.0], [2.0, 2.5], [3.0, 2.0]], "f4")).array
        >>> (y.T @ y / 3).round(2) + 0
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """

    def __init__(
        self,
        size: int,
        groups: int = 16,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        if groups < 1 or size < 1 or size % groups:
            raise ValueError(
                f"DecorrelatedBatchNormalization: {size} channels cannot be divided into "
                f"{groups} groups"
            )
        _check_statistics(type(self).__name__, decay, eps)
        self.groups, self.decay, self.eps = groups, decay, eps
        self.avg_mean = np.zeros((groups, size // groups), dtype)
        self.avg_projection = np.zeros((groups, size // groups, size // groups), dtype)
        self.avg_projection[:] = np.eye(size // groups)
        self.N = 0
        for name in ("avg_mean", "avg_projection", "N"):
            self.register_persistent(name)

    def forward(self, x: Variable | Array, *, finetune: bool = False) -> Variable:
        """Return the whitened batch, of x's shape (N, C, …); ``finetune`` as in
        :meth:`BatchNormalization.forward`.
        """
        if not config.train:
            return fixed_decorrelated_batch_normalization(
                x, self.avg_mean, self.avg_projection, self.groups
            )
        mean, projection = (
            (None, None) if config.in_recomputing else (self.avg_mean, self.avg_projection)
        )
        return decorrelated_batch_normalization(
            x,
            groups=self.groups,
            eps=self.eps,
            running_mean=mean,
            running_projection=projection,
            decay=self._decay(finetune),
        )


class _Normalization(Link):
    """The base of both layers: gamma and beta, initially 1 and 0, whose size may come from the
    first batch.
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        eps: float = 1e-6,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.gamma = Parameter(initializers._get_initializer(initial_gamma, 1))
        self.beta = Parameter(initializers._get_initializer(initial_beta, 0))
        if size is not None:
            self._initialize_params(_shape_of(size))

    def _initialize_params(self, size: tuple[int, ...]) -> None:
        _initialize(self, size, self.gamma, self.beta)

    def _infer_sizes(self, x: Variable | Array, axis: int) -> None:
        if not (self.gamma.is_initialized and self.beta.is_initialized):
            if x.ndim < 2:
                raise ValueError(f"{type(self).__name__}: x {x.shape} has no batch and channels")
            self._initialize_params((x.shape[axis],))


class LayerNormalization(_Normalization):
    """Normalizes the features of each sample to mean 0 and deviation 1, then γ·x + β:
    ``F.layer_normalization``.

    Args:
        size: of gamma and beta: the features D, or a tuple of the last axes of x; None takes D from
            the first batch.
        eps: added to the variance.
        initial_gamma, initial_beta: initializers, numbers or arrays; None is 1 and 0.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.LayerNormalization()(np.array([[1.0, 3.0]])).array.round(3)
        array([[-1.,  1.]])
    """

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from (
            ("size", self.gamma.shape if self.gamma.is_initialized else None),
            ("eps", self.eps),
        )

    def forward(self, x: Variable | Array) -> Variable:
        """Return the normalized samples.

        Args:
            x: (N, D), or more axes.

        Returns:
            x's shape and dtype.
        """
        self._infer_sizes(x, -1)
        return layer_normalization(x, self.gamma, self.beta, self.eps)


class GroupNormalization(_Normalization):
    """Normalizes each group of channels of each sample to mean 0 and deviation 1, then γ·x + β:
    ``F.group_normalization``.

    Args:
        groups: how many groups the channels are cut into.
        size: the number of channels C; None takes it from the first batch.
        eps: added to the variance.
        initial_gamma, initial_beta: initializers, numbers or arrays; None is 1 and 0.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.GroupNormalization(2)(np.array([[1.0, 3.0, 5.0, 15.0]])).array.round(3)
        array([[-1.,  1., -1.,  1.]])
    """

    def __init__(
        self,
        groups: int,
        size: int | None = None,
        eps: float = 1e-5,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
    ) -> None:
        super().__init__(size, eps, initial_gamma, initial_beta)
        self.groups = groups

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        size = self.gamma.size if self.gamma.is_initialized else None
        yield from (("groups", self.groups), ("size", size), ("eps", self.eps))

    def forward(self, x: Variable | Array) -> Variable:
        """Return the normalized samples.

        Args:
            x: (N, C, …).

        Returns:
            x's shape and dtype.
        """
        self._infer_sizes(x, 1)
        return group_normalization(x, self.groups, self.gamma, self.beta, self.eps)


L = TypeVar("L", bound=Link)


class MultiNodeBatchNormalization(BatchNormalization):
    """:class:`BatchNormalization` whose mean and variance are those of the batches of all ranks
    together.

    Batches may have different sizes, or be empty: the result is that of one process with all
    samples. While ``config.train`` is on, all ranks call it, in the same order; else each by
    itself. Running statistics are the same on every rank.

    As everywhere, backward is of the sum of the ranks' losses: x gets its whole gradient, through
    the statistics of all ranks; gamma and beta get this rank's share, and the shares of all ranks
    add up to what one process would have.

    Args:
        size, decay, eps, dtype, axis: as :class:`BatchNormalization` has them.
        use_gamma, use_beta, initial_gamma, initial_beta: the same.
        initial_avg_mean, initial_avg_var: the same.
        comm: the ranks that normalize together.
        communication_backend: ``'auto'``, ``'mpi'`` or ``'nccl'``; accepted for ChainerMN's
            programs, as the communicator decides; ``'nccl'`` needs a communicator of NCCL.
        blocks: (by name) where the ranks of ``comm`` have other samples, and these are divided: all
            ranks that have blocks of any sample. On a mesh, ``comm=mesh.data, blocks=mesh["data",
            "space"]``.

    Raises:
        ValueError: a size below 1, or no such backend.
        LayoutError: x is divided among other ranks than ``comm``, and there are no ``blocks``.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     x = np.full(
        ...         (comm.rank + 1, 1), 3.0 * comm.rank
        ...     )  # 0 on one rank, twice 3 on the other
        ...     return L.MultiNodeBatchNormalization(1, comm)(x).array.round(2).tolist()
        >>> mnpar.run(program, ranks=2)
        [[[-1.41]], [[0.71], [0.71]]]
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None,
        comm: Communicator,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: DTypeLike | None = None,
        use_gamma: bool = True,
        use_beta: bool = True,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
        communication_backend: str = "auto",
        axis: Axis = None,
        initial_avg_mean: InitialValue = None,
        initial_avg_var: InitialValue = None,
        *,
        blocks: Communicator | None = None,
    ) -> None:
        require_communicator(comm, "MultiNodeBatchNormalization(size, comm)")
        _check_backend(communication_backend, comm)
        super().__init__(
            size,
            decay,
            eps,
            dtype,
            use_gamma,
            use_beta,
            initial_gamma,
            initial_beta,
            axis,
            initial_avg_mean,
            initial_avg_var,
        )
        self.comm, self.blocks = comm, blocks

    # the ranks of ``comm`` and those that have the other blocks of an x that is divided
    blocks: Communicator | None = None

    @property
    def batch_comms(self) -> tuple[Communicator, ...]:
        """The ranks that normalize together."""
        return (self.comm,) if self.blocks is None else (self.comm, self.blocks)

    def gradient_comms(self) -> GradientComms:
        """Add the ranks, each of which gets its part of the gradients."""
        return super().gradient_comms().add(self.comm, False)

    def __deepcopy__(self, memo: dict[int, Any]) -> MultiNodeBatchNormalization:
        for comm in self.batch_comms:
            memo[id(comm)] = comm  # ranks are not copied
        other = memo[id(self)] = type(self).__new__(type(self))
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def _by_batch(
        self, x: Variable | Array, gamma: Variable | Array, beta: Variable | Array, decay: float
    ) -> Variable:
        layout = getattr(x, "layout", None)
        if layout is not None and self.comm.size > 1 and self.comm is not layout.grid.comm:
            return self._of_blocks(x, gamma, beta, decay)
        if self.comm.size == 1 or layout is not None:  # parts of an array belong together
            return super()._by_batch(x, gamma, beta, decay)
        x, order, shape = to_channel_view(type(self).__name__, x, self.axis, gamma=gamma, beta=beta)
        mean, var, count = multi_node_moments(self.comm, x, shape)
        y = FixedBatchNormalization(shape, self.eps).apply((x, gamma, beta, mean, var))[0]
        if not config.in_recomputing:
            update_running(self.avg_mean, mean.array, count, decay)
            update_running(self.avg_var, var.array, count, decay, unbiased=True)
        return from_channel_view(y, order)

    def _of_blocks(self, x: Any, gamma: Any, beta: Any, decay: float) -> Variable:
        """Return the normalization of x (N, C, …), of which other ranks have other samples and
        other blocks.
        """
        layout: GridLayout = x.layout
        who = type(self).__name__
        if self.axis is not None or x.ndim < 2 or [a for a in layout.cut_axes if a < 2]:
            layout.refuse(who, "its axes of samples and channels must be whole, and axis=None")
        if layout.window is not None:
            layout.refuse(who, "some cells are on several ranks, which would count them twice")
        grid = layout.grid.comm
        everyone = self.comm if self.blocks is None and grid.size == 1 else self.blocks
        if everyone is None or everyone.size != self.comm.size * grid.size:
            layout.refuse(
                who,
                f"it normalizes over the {self.comm.size} ranks of comm, and does not know all "
                f"that have blocks, {grid.size} of each sample",
                "Give the ranks with other samples and those with all blocks: comm=mesh.data, "
                'blocks=mesh["data", "space"]',
            )
        layout.check_same(gamma, beta)
        view = channel_view(x.part.shape, 1, 2)
        mean, var, count = multi_node_moments(everyone, x.part, view)
        gamma, beta = copy_all_to(grid, gamma, beta)
        y = FixedBatchNormalization(view, self.eps).apply((x.part, gamma, beta, mean, var))[0]
        if not config.in_recomputing:
            update_running(self.avg_mean, mean.array, count, decay)
            update_running(self.avg_var, var.array, count, decay, unbiased=True)
        return layout.divided(y)


def create_mnbn_model(link: L, comm: Communicator, communication_backend: str = "auto") -> L:
    """Return a copy of a model in which every BatchNormalization normalizes over the ranks of
    ``comm``.

    Args:
        link: a model of any structure; it is not changed. Links that it has in several places are
            shared in the copy, too.
        comm: the ranks that normalize together.
        communication_backend: as :class:`MultiNodeBatchNormalization` takes it.

    Returns:
        A deep copy, with the same parameters, running values and settings; a
        MultiNodeBatchNormalization if ``link`` is a BatchNormalization itself.

    Raises:
        ValueError: there is no such backend.

    Example:
        >>> import mnpar, mnpar.functions as F, mnpar.links as L
        >>> model = mnpar.Sequential(L.Linear(3, 4), L.BatchNormalization(4), F.relu)
        >>> [
        ...     type(layer).__name__
        ...     for layer in L.create_mnbn_model(model, mnpar.create_communicator("self"))
        ... ]
        ['Linear', 'MultiNodeBatchNormalization', 'function']
    """
    require_communicator(comm, "create_mnbn_model(link, comm)")
    _check_backend(communication_backend, comm)
    memo: dict[int, Any] = {id(comm): comm}
    for serial in link.links():
        multi_node = isinstance(serial, MultiNodeBatchNormalization)
        if isinstance(serial, BatchNormalization) and not multi_node and id(serial) not in memo:
            memo[id(serial)] = twin = MultiNodeBatchNormalization.__new__(
                MultiNodeBatchNormalization
            )
            twin.__dict__.update(copy.deepcopy(serial.__dict__, memo), comm=comm)
    other: L = copy.deepcopy(link, memo)
    other.name = None
    return other


def _check_backend(communication_backend: str, comm: Communicator) -> None:
    if communication_backend not in ("auto", "mpi", "nccl"):
        raise ValueError(
            f"communication_backend is 'auto', 'mpi' or 'nccl', not {communication_backend!r}"
        )
    if communication_backend == "nccl" and comm.name != "nccl":
        raise ValueError(
            "communication_backend 'nccl' needs a communicator of NCCL, but this one is of "
            f"{comm.name!r}: use 'auto'"
        )
