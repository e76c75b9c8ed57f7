"""Data parallelism: copies of one model, each with its own samples, that step as one model with all
samples would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mnpar.communicators.communicator import described, require_communicator
from mnpar.optimizers import GradientMethod
from mnpar.parallel.data.placement import Placement
from mnpar.parallel.data.reducer import Reducer, choose_bucket_bytes
from mnpar.parallel.data.samples import SampleCounter, positions_of, samples_of
from mnpar.parallel.data.sync import GradientSync
from mnpar.parallel.mesh import Mesh

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def _samples_along(mesh: Mesh, axes: tuple[str, ...]) -> Callable[..., float]:
    """Return what counts samples where gradients are summed along these axes of a mesh."""
    rows = SampleCounter()

    def count(*args: Any, **kwds: Any) -> float:
        # parts of sequences have different lengths; where they are cut may be known later than here
        if any([name in axes for name in mesh.sequence_axes]):
            return positions_of(*args, **kwds)
        return rows.count(args, kwds)

    return count


def create_multi_node_optimizer(
    actual_optimizer: GradientMethod,
    communicator: Communicator | Mesh,
    double_buffering: bool = False,
    zero_fill: bool = True,
    *,
    reduce: str = "weighted",
    bucket_bytes: int | str | None = "auto",
    wire_dtype: Any = None,
    samples: Callable[..., float] = samples_of,
    sharded: bool = False,
    axes: str | tuple[str, ...] = "data",
    check: int = 100,
) -> GradientMethod:
    """Let an optimizer step together with those of other ranks, which hold copies of its model;
    returns the same optimizer.

    Every rank of the communicator calls this, then ``setup`` and each ``update``. At the first
    update all get rank 0's parameters and persistent values; so do parameters that appear later.
    Ranks may have any number of samples, and none: with the default the result is that of one
    process that has all of them, if the loss is a mean over samples.

    Args:
        actual_optimizer: of any kind; hooks added to it see the reduced gradients.
        communicator: the ranks that hold copies of the model. Or a mesh: then its ranks have the
            model together, ranks along its axis ``data`` have copies of the same part, and
            gradients are added up along that axis. What optimizers and hooks compute of the whole
            (norms, clipping, whether all is finite) counts each parameter once.
        double_buffering: apply each gradient one update late: it travels meanwhile. The first
            update takes no step then.
        zero_fill: parameters without a gradient on any rank get zeros (momentum and decay go on);
            else they stay as they are.
        reduce: ``'weighted'``: the mean over samples; ``'mean'``: over ranks that have a loss;
            ``'sum'``: over ranks. The weight enters with the loss, so ranks of a model-parallel
            model that have none need nothing. ``update()`` without a loss function divides by the
            number of ranks, unless it is ``'sum'``.
        bucket_bytes: gradients leave during backward when so many are final; None: all leave after
            it, in one message; ``'auto'``: what is faster here, which all ranks measure now.
        wire_dtype: what wider floating-point gradients travel as: ``np.float16``, ml_dtypes'
            bfloat16, ``np.float32``.
        samples: called with the arguments of the loss function: how many samples its loss is the
            mean of. By default the length of the first argument that has one; of a list of arrays,
            the number of sequences, or of rows of all; a list that can be either is an error.
            Where ranks along ``axes`` have parts of the same samples (those of an axis
            ``sequence``, or along which ``mesh.cut`` cuts another axis than the first, or a plan's
            attentions have parts of sequences), it is the number of positions: rows times columns
            of the first array that has both.
        sharded: each rank keeps the optimizer's state of its share of the parameters only, and
            steps with that: the states take 1/P of the memory, and as much is sent. All ranks save
            and load together then.
        axes: of a mesh: those along which ranks have copies of the same parameters and samples of
            their own.
        check: after how many updates all ranks compare their values of the parameters that several
            of them have, and on a mesh their gradients, and what passes between them that they own
            together; before that already in the first update, and after 1, 2, 4, 8 and so on. In
            debug mode, after each.

    Raises:
        ValueError: an argument has none of these values. KeyError: the mesh has no such axis.
        MismatchError: copies have drifted apart, when it is checked. On a mesh, at the first
            update: parts do not make a whole, a layer is divided among ranks with samples of their
            own; or, when it is checked, gradients are parts that should be whole, or ranks that
            have a loss in common have other samples, or count something again.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     model = L.Linear(1, 1, initialW=comm.rank, nobias=True)  # rank 0's 0 is everyone's
        ...     optimizer = mnpar.create_multi_node_optimizer(
        ...         mnpar.optimizers.SGD(1.0), comm
        ...     ).setup(model)
        ...     x = np.full((1 + comm.rank, 1), 3.0, "f4")  # 1, 2, 3 samples
        ...     optimizer.update(lambda x: F.mean(model(x)), x)
        ...     return float(model.W.array[0, 0])
        >>> mnpar.run(program, ranks=3)
        [-3.0, -3.0, -3.0]
    """
    placement = None
    if isinstance(communicator, Mesh):
        axes = (axes,) if isinstance(axes, str) else axes
        if samples is samples_of and axes != ("data",):
            samples = _samples_along(communicator, axes)
        placement = Placement(communicator, axes)
        communicator = placement.data
    elif axes != "data":
        raise ValueError(
            f"axes = {axes!r} are of a mesh, but the second argument is "
            f"{described(communicator)}: give the mesh"
        )
    require_communicator(communicator, "create_multi_node_optimizer(optimizer, communicator)")
    if not isinstance(actual_optimizer, GradientMethod):
        given = (
            f"the class {actual_optimizer.__name__}"
            if isinstance(actual_optimizer, type)
            else described(actual_optimizer)
        )
        raise TypeError(
            "create_multi_node_optimizer(optimizer, communicator): an optimizer is needed "
            f"where {given} was given"
        )
    if check < 1:
        raise ValueError(f"gradients are compared every 1 or more updates, not every {check}")
    wire_dtype = (
        communicator.get_config("allreduce_grad_dtype") if wire_dtype is None else wire_dtype
    )
    if sharded and double_buffering:
        raise ValueError("sharded states and double_buffering do not go together: choose one")
    size = choose_bucket_bytes(communicator) if isinstance(bucket_bytes, str) else bucket_bytes
    among = None if placement is None else placement.among
    reducer = Reducer(communicator, size, wire_dtype, among)
    actual_optimizer.sync = GradientSync(
        actual_optimizer,
        reducer,
        reduce,
        zero_fill,
        double_buffering,
        samples,
        sharded,
        placement,
        check,
    )
    return actual_optimizer
