"""gathered: the whole model again, on every rank."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mnpar.communicators.communicator import Communicator
from mnpar.link import Link
from mnpar.links.divided import gather_parameter
from mnpar.parallel.plan.parallelize import ParallelPlan
from mnpar.parameter import Parameter


def gathered(model: Any) -> Any:
    """Return a copy of a model that :func:`mnpar.parallelize` has divided, whole again: an ordinary
    model, for one process.

    All ranks of the mesh call this. Parameters and persistent values are those of the divided
    model, on every rank; gradients, optimizers and link hooks' states are not copied. A model that
    was not divided is copied as it is.

    Args:
        model: what parallelize returned; a pipeline becomes the model that it was made from.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> def program(comm):
        ...     mnpar.random.seed(0)
        ...     mesh = mnpar.Mesh(comm, model=2)
        ...     model = mnpar.parallelize(mnpar.Chain(fc=L.Linear(4, 3)), mesh, {"fc": "rows"})
        ...     return model.fc.W.shape, mnpar.gathered(model).fc.W.shape
        >>> mnpar.run(program, ranks=2)
        [((3, 2), (3, 4)), ((3, 2), (3, 4))]
    """
    plan: ParallelPlan | None = vars(model).get("_plan") if isinstance(model, Link) else None
    if plan is None:
        return copy.deepcopy(model)
    whole, comm = copy.deepcopy(plan.skeleton), plan.mesh.comm
    parts = _parts(model)
    arrays = {path: gather_parameter(c, p) if c else p.array for path, (p, c) in parts.items()}
    live = dict(model.namedpersistents())
    everyone = comm.allgather_obj(([*arrays], [*live]))
    for path, param in whole.namedparams():
        root = _owner([paths for paths, _ in everyone], path)
        if root is None:
            continue
        array: Any = arrays.get(path)
        if not all([path in paths for paths, _ in everyone]):
            array = comm.bcast(array, root=root)
        param._take(array)
    for path, link in whole.namedlinks():
        for name in link._persistent:
            own = f"{path.rstrip('/')}/{name}"
            root = _owner([paths for _, paths in everyone], own)
            if root is None:
                continue
            value = live.get(own)
            if not all([own in paths for _, paths in everyone]):
                value = comm.bcast_obj(value, root=root)
            setattr(link, name, copy.deepcopy(value))
    return whole


def _owner(everyone: list[list[str]], path: str) -> int | None:
    return next((rank for rank, paths in enumerate(everyone) if path in paths), None)


def _parts(model: Link) -> Mapping[str, tuple[Parameter, Communicator | None]]:
    """Return a rank's parameters that have arrays, with the ranks that have their other parts."""
    found: dict[int, tuple[str, Parameter, Communicator | None]] = {}
    for path, link in model.namedlinks():
        for name, param in link._named_own():
            if not param.is_initialized:
                continue
            comm = None if param.box is None else param.grid.comm  # type: ignore[attr-defined]
            found.setdefault(id(param), (path.rstrip("/") + name, param, comm))
    return {path: (param, comm) for path, param, comm in found.values()}
