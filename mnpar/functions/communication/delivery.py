"""Copies cells from a rank's arrays into messages, and from messages into the arrays that a plan
says; sends nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.configuration import config
from mnpar.kernels.dtypes import upcast_halves
from mnpar.plans.layout import Layout
from mnpar.plans.plan import Layouts, Parcel, Route, several


class Form(NamedTuple):
    """The properties that all arrays of an exchange have in common: dtype, device and leading
    axes.
    """

    lead: tuple[int, ...]  # the axes before those of the plan
    dtype: Any
    xp: ArrayModule


def form_of(have: Layouts, xs: Sequence[Array | None], label: str) -> Form | None:
    """The form of a rank's arrays; None if it has none (no gradient).

    Raises:
        ValueError: they have not the shapes that the plan says.
    """
    form = None
    for layout, x in zip(several(have), xs, strict=len(xs) > 0):
        if x is None:
            continue
        lead = x.shape[: x.ndim - layout.ndim]
        mine = Form(lead, x.dtype, backend.get_array_module(x))
        if x.ndim < layout.ndim or x.shape[len(lead) :] != layout.shape or (form or mine) != mine:
            raise ValueError(
                f"{label}: an array of shape {x.shape} {x.dtype} came where the plan says that "
                "this rank has "
                f"(…, {', '.join(map(str, layout.shape))}); all its arrays have one dtype and "
                "the same axes before those"
            )
        form = mine
    return form


def gather_pieces(parcel: Parcel, xs: Sequence[Array | None], form: Form) -> list[Array]:
    """The cells of each move, in the shape in which they travel: views, where one element stands
    for a cell.
    """
    pieces = []
    for move in parcel.moves:
        x = xs[move.source]
        if x is None:  # of several arrays, this one has no gradient
            piece = form.xp.zeros((*form.lead, *move.shape), form.dtype)
        else:
            piece = x[move.give.slices]
            if move.give.spread:
                piece = (
                    upcast_halves(piece)
                    .sum(axis=move.give.spread, keepdims=True, dtype=upcast_halves(piece).dtype)
                    .astype(form.dtype, copy=False)
                )
        pieces.append(piece)
    return pieces


class Delivery:
    """The arrays that a rank wants, while they are put together.

    Args:
        want: their layouts.
        route: what comes to them.
        form: of the arrays that the rank has; if it has none, the first message tells.
        fill: what the elements are to which nothing comes.
        begun: the arrays in which the rank's own pieces are already, or Nones; they are changed.
        aligned: let arrays begin at a cache line, where loops are faster, and from which JAX reads
            without a copy. Not for gradients, which own their memory (autograd/accumulate.py).
    """

    def __init__(
        self,
        want: Layouts,
        route: Route,
        form: Form | None,
        fill: float = 0,
        begun: Sequence[Array | None] = (),
        aligned: bool = False,
    ) -> None:
        self.layouts = several(want)
        self.route = route
        self.form = form
        self.fill = fill
        self.aligned = aligned
        self._arrays: list[Array] = []
        if any([y is not None for y in begun]):
            self._arrays = [
                self._zeros(i, layout) if y is None else y if route.apart[i] else upcast_halves(y)
                for i, (layout, y) in enumerate(zip(self.layouts, begun, strict=True))
            ]
        self._missing: list[Parcel] = []  # of which nothing came

    def suits(self, parcel: Parcel, value: Any) -> bool:
        """Return whether a message has what is expected from its sender."""
        if value is None:
            return True
        if not backend.is_array(value) or value.ndim == 0 or value.shape[-1] != parcel.cells:
            return False
        return self.form is None or (value.shape[:-1], value.dtype) == (
            self.form.lead,
            self.form.dtype,
        )

    def expects(self, parcel: Parcel) -> str:
        """Describe what is expected from a sender."""
        form = self.form
        return (
            f"{parcel.cells} cells"
            if form is None
            else f"{form.dtype} {(*form.lead, parcel.cells)}"
        )

    def in_order(self) -> list[Parcel]:
        """Return the parcels that come here: by rank where it is added up; else the rank's own
        first, while that of others is on its way.
        """
        parcels = [self.route.own, *self.route.receives]
        return parcels if all(self.route.apart) else sorted(parcels, key=lambda parcel: parcel.rank)

    def unpack(self, parcel: Parcel, value: Array | None) -> None:
        """Put what came in a message where it belongs."""
        if value is None:
            return self.put(parcel, None)
        if self.form is None:
            self.form = Form(value.shape[:-1], value.dtype, backend.get_array_module(value))
        flat, pieces = value.reshape(-1), []
        for move in parcel.moves:
            shape = (*self.form.lead, *move.shape)
            size = math.prod(shape)
            pieces.append(flat[:size].reshape(shape))
            flat = flat[size:]
        return self.put(parcel, pieces)

    def put(self, parcel: Parcel, pieces: Sequence[Array] | None) -> None:
        """Put pieces where they belong; None if nothing came."""
        if pieces is None:
            self._missing.append(parcel)
            return
        arrays, apart = self._started(), self.route.apart
        for move, piece in zip(parcel.moves, pieces, strict=True):
            y = arrays[move.dest]
            if apart[move.dest]:
                y[move.take.slices] = backend.to_device_of(piece, y)
            else:
                y[move.take.slices] += backend.to_device_of(piece, y)

    def arrays(self, always: bool) -> tuple[Array | None, ...]:
        """Return the arrays that the rank wants; if nothing at all came, None for each array, or
        filled ones (``always``).
        """
        if not self._arrays and not always:
            return (None,) * len(self.layouts)
        if self.form is None:  # this rank had nothing and got nothing: nobody says of what
            self.form = Form((), config.dtype, backend.get_array_module())
        arrays = self._started()
        for parcel in self._missing:
            for move in parcel.moves:
                if self.route.apart[move.dest]:  # otherwise a sum of the others is there
                    arrays[move.dest][move.take.slices] = 0
        dtype = self.form.dtype
        return tuple([y if y.dtype == dtype else y.astype(dtype) for y in arrays])

    def _started(self) -> list[Array]:
        """The arrays, made when the first piece comes."""
        if not self._arrays and self.form is not None:
            self._arrays = [self._blank(i, layout) for i, layout in enumerate(self.layouts)]
        return self._arrays

    def _zeros(self, i: int, layout: Layout) -> Array:
        y = self._blank(i, layout)
        y[...] = 0
        return y

    def _blank(self, i: int, layout: Layout) -> Array:
        assert self.form is not None
        lead, dtype, xp = self.form
        shape = (*lead, *layout.shape)
        if self.route.full[i] and self.aligned:
            return backend.empty_aligned(shape, dtype, xp)
        if self.route.full[i]:
            return xp.empty(shape, dtype)
        if self.route.apart[i]:
            return xp.full(shape, self.fill, dtype)
        y = xp.full(shape, self.fill, upcast_halves(xp.empty(0, dtype)).dtype)
        for parcel in (self.route.own, *self.route.receives):
            for move in parcel.moves:
                if move.dest == i:
                    y[move.take.slices] = 0
        return y
