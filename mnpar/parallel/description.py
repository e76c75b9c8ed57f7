"""The description of a rank's parameters that placement.py sends to all ranks."""

from __future__ import annotations

from typing import NamedTuple

from mnpar.links.divided import Part, digest_of
from mnpar.parameter import Parameter
from mnpar.plans import Box


class Description(NamedTuple):
    """What a rank has of a parameter."""

    whole: tuple[int, ...]  # the shape of the whole parameter
    box: Box  # the part of it that the rank has
    dtype: str
    divided: bool  # whether the parameter itself names a box
    tied: bool  # a pipeline sums its gradients over stages
    alone: tuple[str, ...]  # the axes along which one rank of each line has it, as experts are
    digest: bytes  # of its values
    drawn: (
        bytes  # of the values of the whole parameter, if the rank's are still those that were drawn
    )


class Table(NamedTuple):
    """All that a rank sends."""

    params: dict[str, Description]  # by path
    staged: tuple[str, ...]  # the axes along which its pipelines run
    wrong: str  # the error that it has found without the others; empty if there is none


def look_at(param: Parameter, tied: bool, alone: tuple[str, ...]) -> Description:
    """The description of this rank's part of a parameter; ``tied`` and ``alone`` as
    :class:`Description` has them.
    """
    digest, first = digest_of(param.array), param.initializer
    drawn = first.whole_of(digest) if isinstance(first, Part) else b""
    whole, box = (
        (param.shape, Box.whole(param.shape))
        if param.box is None or param.whole is None
        else (param.whole, param.box)
    )
    return Description(
        tuple(whole), box, param.dtype.name, param.box is not None, tied, alone, digest, drawn
    )
