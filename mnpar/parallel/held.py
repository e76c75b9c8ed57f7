"""What a rank says of the parameters that it has, for placement.py: it is sent to all ranks."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from mnpar import backend
from mnpar.parameter import Parameter
from mnpar.plans import Box


class Held(NamedTuple):
    """What a rank has of a parameter."""

    whole: tuple[int, ...]  # the shape of all of it
    box: Box
    dtype: str
    divided: bool  # whether the parameter says so
    tied: bool  # a pipeline sums its gradients over stages
    alone: tuple[str, ...]  # the axes along which one rank of each line has it, as experts are
    digest: bytes


class Table(NamedTuple):
    """What a rank has."""

    params: dict[str, Held]
    staged: tuple[str, ...]  # the axes along which its pipelines run
    wrong: str  # what it can tell alone


def look_at(param: Parameter, tied: bool, alone: tuple[str, ...]) -> Held:
    """What this rank has of a parameter; ``tied`` and ``alone`` as :class:`Held` has them."""
    digest = hashlib.blake2b(np.ascontiguousarray(backend.to_host(param.array)).reshape(-1).view(np.uint8).data, digest_size=16)
    whole, box = (param.shape, Box.whole(param.shape)) if param.box is None or param.whole is None else (param.whole, param.box)
    return Held(tuple(whole), box, param.dtype.name, param.box is not None, tied, alone, digest.digest())
