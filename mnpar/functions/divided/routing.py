"""Routing for mixtures of experts: which tokens go to which expert, and the rows that are sent;
pick_rows ⇄ sum_rows.

A token is a row of x; each of its k choices is a *slot*. Slots stand in the order of experts, and
within one expert in that of tokens, on all ranks as on one: so the rows that an expert gets, and
their order, do not depend on how many ranks there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


@dataclass(frozen=True)
class Routes:
    """The ranks and places to which the choices of this rank's n tokens go.

    Attributes:
        choices: (S,) the choice that each slot stands for: token · k + number of the choice.
        tokens: (S,) its token.
        slots: (n, k) the slot of each choice; S for one that is dropped.
        counts: (P, E) how many slots each rank has for each expert.
        chosen: (E,) how many choices of all ranks each expert got, those that are dropped included.
    """

    choices: Array
    tokens: Array
    slots: Array
    counts: Array
    chosen: Array


def make_routes(
    comm: Communicator, choices: Array, n_experts: int, capacity_factor: float | None = None
) -> Routes:
    """The table of the choices that all ranks have made; each tells the others how many it has for
    each expert.

    Args:
        comm: all its ranks call this.
        choices: (n, k) numbers of experts, in the order of preference, on the host; n may differ
            between ranks.
        n_experts: E.
        capacity_factor: c: an expert takes c k N / E choices at most, rounded up, of the N tokens
            of all ranks: first choices before second ones, then tokens in order. None: all.

    Returns:
        The routes of this rank's tokens.
    """
    n, k = choices.shape
    # (k, E)
    by_choice = np.array(
        [np.bincount(choices[:, j], minlength=n_experts) for j in range(k)], np.int64
    )
    if capacity_factor is None:
        by_choice = by_choice.sum(axis=0, keepdims=True)
    asked = np.stack(comm.allgather(by_choice), axis=1)  # (k, P, E)
    given, kept = asked, np.ones((n, k), bool)
    if capacity_factor is not None:
        capacity = int(np.ceil(capacity_factor * asked.sum() / n_experts))
        order = asked.reshape(-1, n_experts)  # of (choice, rank): who comes first is first served
        before = np.cumsum(order, axis=0) - order
        given = np.clip(capacity - before, 0, order).reshape(asked.shape)
        kept = _places(choices) < given[np.arange(k), comm.rank, choices]
    flat = choices.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[kept.reshape(-1)[order]]
    slots = np.full(n * k, len(order))
    slots[order] = np.arange(len(order))
    return Routes(order, order // k, slots.reshape(n, k), given.sum(axis=0), asked.sum(axis=(0, 1)))


def _places(choices: Array) -> Array:
    """Count how many tokens of this rank before it have made the same j-th choice, (n, k)."""
    places = np.empty_like(choices)
    for j, column in enumerate(choices.T):
        order = np.argsort(column, kind="stable")
        sorted_column = column[order]
        places[order, j] = np.arange(len(order)) - np.searchsorted(sorted_column, sorted_column)
    return places


class PickRows(GenericFunction):
    """``y = x[rows]``; ``gx`` adds row ``i`` of ``gy`` to row ``rows[i]``: the transpose of
    SumRows.
    """

    def __init__(self, rows: Array, slots: Array) -> None:
        self.rows, self.slots = rows, slots

    def forward(self, x: Array) -> Array:
        return x.take(backend.get_array_module(x).asarray(self.rows), axis=0)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: SumRows(self.rows, self.slots)(gy)


class SumRows(GenericFunction):
    """Row t is the sum of the rows that stand in the slots of t: the transpose of PickRows, without
    adding one by one.
    """

    def __init__(self, rows: Array, slots: Array) -> None:
        self.rows, self.slots = rows, slots

    def forward(self, x: Array) -> Array:
        xp = backend.get_array_module(x)
        columns = list(self.slots.T)
        if len(self.rows) == self.slots.size and columns:  # nothing is dropped
            y = x.take(xp.asarray(columns[0]), axis=0)
            for column in columns[1:]:
                y += x.take(xp.asarray(column), axis=0)
            return y
        y = xp.zeros((len(self.slots), *x.shape[1:]), x.dtype)
        for column in columns:
            there = column < len(x)
            y[xp.asarray(np.flatnonzero(there))] += x.take(xp.asarray(column[there]), axis=0)
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: PickRows(self.rows, self.slots)(gy)


def pick_rows(x: Variable | Array, rows: Array, slots: Array) -> Any:
    """``x[rows]``.

    Args:
        x: (n, …).
        rows: (S,) numbers of rows.
        slots: (n, k) where in ``rows`` each row is, S for nowhere: what backward, the sum, goes by.

    Returns:
        (S, …).
    """
    return PickRows(rows, slots).apply((x,))[0]


def sum_rows(x: Variable | Array, rows: Array, slots: Array) -> Any:
    """The sums over k of ``x[slots[:, k]]``, of which those outside x are zeros.

    Args:
        x: (S, …).
        rows, slots: as in :func:`pick_rows`.

    Returns:
        (n, …).
    """
    return SumRows(rows, slots).apply((x,))[0]


def permute_rows(x: Variable | Array, order: Array) -> Any:
    """``x[order]``, where ``order`` names each row once."""
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.arange(len(order))
    return pick_rows(x, order, inverse.reshape(-1, 1))
