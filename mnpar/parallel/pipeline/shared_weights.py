"""Weights that layers of several stages share: one parameter on each rank, one path, one gradient.

The weight has the path of its owner, the first layer that uses it, also on a rank that has only
another layer. Its copies start from the owner's values, and each gets the sum of the gradients of
all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mnpar.chain import Chain
from mnpar.errors import listed
from mnpar.link import Link
from mnpar.parallel.pipeline.layers import Stage
from mnpar.parameter import Parameter

if TYPE_CHECKING:
    from mnpar.backend import Array
    from mnpar.communicators.communicator import Communicator

# a communicator of the ranks that have the parameter, its owner first; and the parameter
Shared = tuple["Communicator", Parameter]


def check_owners(names: Sequence[str], tied: Mapping[str, str]) -> None:
    """Check that each owner of a weight comes before the other layer.

    Raises:
        ValueError: the other layer comes first, or there is no such layer.
    """
    for pair in tied.items():
        later, sooner = (layer_of(path, names) for path in pair)
        for path, name in zip(pair, (later, sooner), strict=True):
            if name not in names:
                raise ValueError(
                    f"there is no layer {path.strip('/').split('/')[0]!r} to share weights: the "
                    f"model has {listed(names)}"
                )
        if names.index(sooner) > names.index(later):
            raise ValueError(
                f"the layer {sooner!r} comes after {later!r}: a weight is shared under the "
                "path of the first layer"
            )


def layer_of(path: str, names: Iterable[str]) -> str:
    """Return the name, which may be a path itself, of the layer that has a parameter of this path;
    empty if there is none.
    """
    return next((name for name in names if f"{path.strip('/')}/".startswith(f"{name}/")), "")


def tie(
    stages: list[Stage], tied: Mapping[str, str]
) -> tuple[Stage | None, dict[str, Parameter], dict[str, bool]]:
    """Let layers of this rank share weights.

    Args:
        stages: of this rank.
        tied: the path of each shared weight, with that of the weight itself, its owner's:
            ``{"/head/W": "/embed/W"}``.

    Returns:
        A link with the weights whose owners are on other ranks, under the owners' paths (or None);
        all shared weights of this rank, by the owner's path; and whether the rank has the owner.
    """
    elsewhere = Stage({})
    shared: dict[str, Parameter] = {}
    owned: dict[str, bool] = {}
    for path, owner in tied.items():
        mine, theirs = [_find(stages, one) for one in (path, owner)]
        there = theirs or mine
        if there is None:
            continue
        # several layers here may have it
        weight = getattr(*there) if theirs or owner not in shared else shared[owner]
        if mine is not None:
            setattr(*mine, weight)
        if theirs is None and owner not in shared:
            _graft(elsewhere, owner, weight)
        shared[owner], owned[owner] = weight, theirs is not None
    return (elsewhere if [*elsewhere.children()] else None), shared, owned


def _find(stages: list[Stage], path: str) -> tuple[Link, str] | None:
    """Return the link that has a parameter of this path, and the parameter's name there; None if
    the layer is on another rank.
    """
    for stage in stages:
        layer = layer_of(path, stage._children)
        if not layer:
            continue
        link: Any = stage[layer]
        inside = path.strip("/").removeprefix(layer).strip("/").split("/")
        try:
            for name in inside[:-1]:
                link = link[int(name) if name.isdecimal() else name]
            found = getattr(link, inside[-1])
        except (AttributeError, LookupError, TypeError):
            found = None
        if not isinstance(found, Parameter):
            raise ValueError(f"there is no parameter {path!r} in layer {layer!r} to be shared")
        return link, inside[-1]
    return None


def _graft(root: Stage, path: str, param: Parameter) -> None:
    """Add a parameter to a link under this path, with the chains that lead to it."""
    link: Any = root
    *links, name = path.strip("/").split("/")
    for part in links:
        if part not in link._children:
            link.add_link(part, Chain())
        link = link[part]
    setattr(link, name, param)


def share(
    comm: Communicator, shared: Mapping[str, Parameter], owned: Mapping[str, bool]
) -> list[Shared]:
    """Let ranks share parameters; all ranks call it.

    Args:
        comm: of the pipeline.
        shared: this rank's shared parameters, by names.
        owned: whether this rank owns each, by names; where no rank does, the first one owns it.

    Returns:
        For each name the ranks that have it, and the parameter, which has the owner's values now.

    Raises:
        ValueError: a parameter has no array yet, or another shape than its owner's.
    """
    names = sorted({name for some in comm.allgather_obj(sorted(shared)) for name in some})
    found = []
    for name in names:
        color = 0 if name in shared else None
        group = comm.split(color, comm.rank - comm.size * owned.get(name, False))
        if group is None or group.size == 1:
            continue
        parameter = shared[name]
        if parameter.array is None:
            raise ValueError(
                f"the shared parameter {name!r} has no array yet: give its link the size of "
                "its inputs"
            )
        values = group.bcast(parameter.array)
        if values.shape != parameter.shape:
            raise ValueError(
                f"rank {comm.rank}: the shared parameter {name!r} has shape {parameter.shape} "
                f"here and {values.shape} where it comes from"
            )
        parameter.array[...] = values
        found.append((group, parameter))
    return found


def copy_values(shared: Sequence[Shared]) -> None:
    """Give all copies of each shared parameter the owner's values; all ranks call it."""
    for comm, parameter in shared:
        parameter.array[...] = comm.bcast(parameter.array)


def set_aside(shared: Sequence[Shared]) -> list[Array | None]:
    """Clear the gradients of shared parameters, and return them: sums over stages, from earlier
    batches.
    """
    kept: list[Array | None] = []
    for _, parameter in shared:
        kept.append(None if parameter.grad is None else parameter.grad.copy())
        parameter.cleargrad()
    return kept


def sum_gradients(shared: Sequence[Shared], kept: Sequence[Array | None]) -> None:
    """Sum the gradients of each shared parameter over its copies, and add what was set aside."""
    for (comm, parameter), before in zip(shared, kept, strict=True):
        if parameter.grad is None:
            parameter.zerograd()
        comm.allreduce(parameter.grad, out=parameter.grad)
        if before is not None:
            parameter.grad[...] += before
