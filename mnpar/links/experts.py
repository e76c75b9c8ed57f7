"""A mixture of experts over ranks: a gate chooses k experts for each token, and tokens are sent to
the ranks of their experts.

    p = softmax(W x)
    w = the k largest of p, divided by their sum
    y = Σ w_e expert_e(x)

Experts are divided among ranks in blocks. The ranks first exchange how many tokens they have for
each expert; then one alltoall of uneven parts sends the tokens, and another one the results back.
Nothing is padded, and nothing is dropped unless a capacity is set, so outputs and gradients on P
ranks are those of one process. Each rank sends and receives the rows of other ranks' experts twice
forward and twice backward. (Shazeer et al. 2017, arXiv 1701.06538; Lepikhin et al. 2020, arXiv
2006.16668; Fedus et al. 2021, arXiv 2101.03961.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING

import numpy as np

from mnpar import backend, random
from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.communicators.communicator import require_communicator
from mnpar.configuration import config
from mnpar.functions import (
    alltoall,
    concat,
    copy_to,
    gather_from,
    linear,
    reduce_from,
    reshape,
    scatter_to,
    softmax,
    split_axis,
    sum,
)
from mnpar.functions.divided.routing import Routes, make_routes, permute_rows, pick_rows, sum_rows
from mnpar.initializers.initializer import InitialValue
from mnpar.link import GradientComms, Link
from mnpar.links.linear import Linear
from mnpar.plans import block
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.serializers import DictionarySerializer
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class MixtureOfExperts(Chain):
    """For each token, a weighted sum of k of E experts, which are divided among ranks; a token is a
    row of D features.

    Args:
        comm: its ranks share the layer; all of them make it and call it, those without tokens or
            experts too.
        make: called with the number of an expert, 0 … E - 1, on the rank that has it; returns a
            link that maps (n, in_size) to (n, out_size) for any n, 0 included. A rank has the
            experts of :func:`mnpar.plans.block`.
        n_experts: E; any number, also fewer than ranks.
        in_size: D, the features of a token.
        out_size: the features of a result; None: as many.
        k: how many experts compute each token.
        input_is_parallel: False: x is the same on each rank and so is the result, owned together,
            as other parallel layers have it; inside, each rank sends a block of the tokens. True: x
            is the rank's own tokens, of which it gets the results; the ranks' numbers of tokens may
            differ, and be 0.
        capacity_factor: c: an expert takes at most c k N / E of the N tokens of all ranks, rounded
            up; first choices come before second ones, then tokens in the order of ranks. A dropped
            choice adds nothing to its token's sum: give the layer a residual connection. None:
            nothing is dropped.
        noise: in training, normal noise of this standard deviation is added to the gate's scores.
        normalize: divide the k weights by their sum. None: if k is more than 1 (the only weight
            would be 1, and the gate would learn nothing).
        rng: of the noise; None: the rank's generator.
        initialW: initializer of the gate's W; None is LeCunNormal.
        whole_gradients: False, with ``input_is_parallel``: the gradient of the gate's W is each
            rank's share, for a multi-node optimizer over a mesh that adds up the rest of the model
            over these ranks too (below).
        data_comm: the ranks with copies of this layer and other tokens, such as ``mesh.data``: in
            training their choices count in ``balance`` too, as in one process. None: nobody's.

    Gradients: every gradient is whole, that of the sum of the losses on which the ranks call
    backward. An expert computes the tokens of all ranks, and its gradient on its rank is complete,
    zeros if no token came. The gate's W is the same on all ranks, and so is its gradient. The
    gradient of a row of x is on that row's rank. So neither the gradient of W nor those of the
    experts may be summed over ``comm`` again; a data-parallel optimizer over *other* ranks, which
    hold copies of the whole layer, sums both. If the ranks of ``comm`` are themselves data-parallel
    in the rest of the model, make them an axis of a mesh, and leave the gate's gradient to the
    optimizer, which adds up that of each parameter where there are copies of it::

        mesh = mnpar.Mesh(comm, data=2, expert=4)
        model.experts = L.MixtureOfExperts(
            mesh.expert, make, 8, 32, input_is_parallel=True, whole_gradients=False
        )
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.Adam(), mesh, axes=("data", "expert")
        ).setup(model)

    Without a mesh, one multi-node optimizer updates the rest of the model and another optimizer
    this layer (docs/experts_and_ensembles.md).

    Initial weights do not depend on the number of ranks: rank 0 draws a seed, and each expert is
    made, and sized by its first batch, with a generator of the seed and the expert's number. An
    expert's path has its number (``/experts/5/W``): any number of ranks loads a checkpoint of P
    ranks, and ``save_npz`` on all ranks together writes files that have all experts.

    Attributes:
        balance: the load balancing loss of the last call, E Σ_e f_e p_e, where f_e is the fraction
            of the choices of all ranks, and those of ``data_comm``, that went to expert e, and p_e
            its mean probability (Fedus et al., equation 4); its minimum, 1, is reached where all
            experts get equally many. Add a hundredth of it to the loss. With ``input_is_parallel``
            p_e is the mean over the rank's own tokens, and the balance is to be weighted as their
            loss is; else the ranks own it together, as the loss. None before the first call.
        load: (E,) how many tokens of all ranks each expert computed in the last call.
        dropped: how many choices of all ranks were dropped.

    Raises:
        ValueError: a size below 1, k not in 1 … E, or ``whole_gradients=False`` without
            ``input_is_parallel``.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.links as L
        >>> def program(comm):
        ...     mnpar.random.seed(0)
        ...     moe = L.MixtureOfExperts(
        ...         comm, lambda i: L.Linear(2, 2, initialW=i), 3, in_size=2, k=1
        ...     )
        ...     y = moe(np.array([[1, 2], [3, -4], [-5, 6]], "f4"))
        ...     return [path for path, _ in moe.namedparams()], moe.load.tolist(), y.shape
        >>> mnpar.run(program, ranks=2)[1]
        (['/gate/W', '/experts/2/W', '/experts/2/b'], [1, 1, 1], (3, 2))
    """

    def __init__(
        self,
        comm: Communicator,
        make: Callable[[int], Link],
        n_experts: int,
        in_size: int,
        out_size: int | None = None,
        k: int = 2,
        *,
        input_is_parallel: bool = False,
        capacity_factor: float | None = None,
        noise: float = 0.0,
        normalize: bool | None = None,
        rng: np.random.Generator | None = None,
        initialW: InitialValue = None,
        whole_gradients: bool = True,
        data_comm: Communicator | None = None,
    ) -> None:
        require_communicator(comm, "MixtureOfExperts(comm, make, n_experts, in_size)")
        super().__init__()
        if (
            n_experts < 1
            or in_size < 1
            or not 1 <= k <= n_experts
            or (capacity_factor is not None and capacity_factor <= 0)
        ):
            raise ValueError(
                f"a mixture of {n_experts} experts for {in_size} features with k = {k}, "
                f"capacity_factor = {capacity_factor}: "
                "sizes must be 1 or more, k from 1 to the number of experts, a capacity positive"
            )
        if not (whole_gradients or input_is_parallel):
            raise ValueError(
                "whole_gradients=False is for ranks with tokens of their own: "
                "input_is_parallel=True"
            )
        self.comm = comm
        self.in_size = in_size
        self.out_size = in_size if out_size is None else out_size
        self.n_experts = n_experts
        self.k = k
        self.capacity_factor = capacity_factor
        self.noise = noise
        self.rng = rng
        self.normalize = k > 1 if normalize is None else normalize
        self.input_is_parallel = input_is_parallel
        self.whole_gradients, self.data_comm = whole_gradients, data_comm
        seed = int(comm.bcast(random.generator().integers(2**63, size=1))[0])
        with random.using(np.random.default_rng([seed, n_experts])):
            self.gate = Linear(in_size, n_experts, nobias=True, initialW=initialW)
        if comm.size > 1:
            self.gate.W.array[...] = comm.bcast(self.gate.W.array)
        self.experts = Experts(comm, make, n_experts, seed, whole_gradients)
        self.balance: Variable | None = None
        self.load, self.dropped = np.zeros(n_experts, np.int64), 0

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        for name in (
            "in_size",
            "out_size",
            "n_experts",
            "k",
            "capacity_factor",
            "input_is_parallel",
        ):
            yield name, getattr(self, name)
        yield "ranks", self.comm.size

    @property
    def batch_comms(self) -> tuple[Communicator, ...]:
        """The ranks that have the other experts, or other tokens."""
        return (self.comm,) if self.data_comm is None else (self.comm, self.data_comm)

    def gradient_comms(self) -> GradientComms:
        """Add the ranks that have the other experts."""
        return super().gradient_comms().add(self.comm, self.whole_gradients)

    def forward(self, x: Variable | Array) -> Variable:
        """Return the experts' weighted sums.

        Args:
            x: (…, in_size): all axes but the last one count tokens.

        Returns:
            (…, out_size).

        Raises:
            ValueError: x has other features, or an expert gives other features than ``out_size``.
        """
        x = as_variable(x)
        if x.ndim < 1 or x.shape[-1] != self.in_size:
            raise ValueError(
                f"rank {self.comm.rank}: {self}: x of shape {x.shape} has not {self.in_size} "
                "features"
            )
        lead = x.shape[:-1]
        tokens = reshape(x, (int(np.prod(x.shape[:-1])), self.in_size))
        noise = self._draw(len(tokens))
        together = not self.input_is_parallel and self.comm.size > 1
        if together:
            noise = (
                None
                if noise is None
                else noise[slice(*block(len(tokens), self.comm.size, self.comm.rank))]
            )
            tokens = scatter_to(self.comm, tokens, axis=0)
        probabilities, choices, weights = self._gate(tokens, noise)
        routes = make_routes(self.comm, choices, self.n_experts, self.capacity_factor)
        self._report(probabilities, routes, together)
        results = self._through_experts(
            pick_rows(tokens, routes.tokens, routes.slots), routes.counts
        )
        weights = pick_rows(
            reshape(weights, (weights.size, 1)), routes.choices, routes.slots.reshape(-1, 1)
        )
        y = sum_rows(results * weights, routes.tokens, routes.slots)
        y = gather_from(self.comm, y, axis=0) if together else y
        return reshape(y, (*lead, self.out_size))

    def _draw(self, n: int) -> Array | None:
        """Return the noise of n tokens."""
        if not (self.noise and config.train):
            return None
        rng = random.generator() if self.rng is None else self.rng
        return rng.normal(0, self.noise, (n, self.n_experts))

    def _gate(self, x: Variable, noise: Array | None) -> tuple[Variable, Array, Variable]:
        """Probabilities (n, E), the k choices of each token (on the host), and their weights (n,
        k).
        """
        scores = linear(x, copy_to(self.comm, self.gate.W) if self.whole_gradients else self.gate.W)
        if noise is not None:
            scores = scores + scores.xp.asarray(noise, scores.dtype)
        probabilities = softmax(scores)
        choices = np.argsort(-backend.to_host(scores.array), axis=1, kind="stable")[:, : self.k]
        xp = scores.xp
        weights = probabilities[xp.arange(len(choices))[:, None], xp.asarray(choices)]
        return (
            probabilities,
            choices,
            weights / sum(weights, axis=1, keepdims=True) if self.normalize else weights,
        )

    def _report(self, probabilities: Variable, routes: Routes, together: bool) -> None:
        """Set ``load``, ``dropped`` and ``balance``."""
        self.load = routes.counts.sum(axis=0)
        self.dropped = int(routes.chosen.sum() - self.load.sum())
        # (an evaluation may have other batches on each rank)
        others = self.data_comm if config.train else None
        chosen = routes.chosen if others is None else others.allreduce(routes.chosen)
        shares = probabilities.xp.asarray(chosen / max(chosen.sum(), 1), probabilities.dtype)
        n = routes.chosen.sum() // self.k if together else len(probabilities)
        balance = sum(sum(probabilities, axis=0) * shares) * (self.n_experts / max(n, 1))
        self.balance = reduce_from(self.comm, balance) if together else balance

    def _through_experts(self, rows: Variable, counts: Array) -> Variable:
        """Send rows, which are in the order of their experts, to the experts' ranks; returns their
        results, in that order.
        """
        bounds = [block(self.n_experts, self.comm.size, rank) for rank in range(self.comm.size)]
        here = counts[:, slice(*bounds[self.comm.rank])]  # (P, experts of this rank)
        if self.comm.size == 1:
            alone: Variable = self.experts(rows, here[0], self.out_size)
            return alone
        sent = [counts[self.comm.rank, a:b].sum() for a, b in bounds]
        of_expert = np.tile(np.arange(here.shape[1]), self.comm.size).repeat(here.reshape(-1))
        order = np.argsort(of_expert, kind="stable")
        rows = permute_rows(self._trade(rows, sent), order)
        results = permute_rows(
            self.experts(rows, here.sum(axis=0), self.out_size), np.argsort(order)
        )
        return self._trade(results, here.sum(axis=1))

    def _trade(self, rows: Variable, lengths: Sequence[int]) -> Variable:
        """Send each rank the next ``lengths[rank]`` rows; returns the rows received, in the order
        of ranks.
        """
        return concat(alltoall(self.comm, cut(rows, lengths)), axis=0)


class Experts(Chain):
    """The experts of one rank; a child's name is the expert's number among all experts.

    Args:
        comm, make, n_experts: as :class:`MixtureOfExperts` has them.
        seed: of all initial weights, the same on all ranks.
        whole_gradients: as :class:`MixtureOfExperts` has it, for optimizers; the experts' gradients
            are whole either way.
    """

    def __init__(
        self,
        comm: Communicator,
        make: Callable[[int], Link],
        n_experts: int,
        seed: int,
        whole_gradients: bool = True,
    ) -> None:
        super().__init__()
        self.comm = comm
        self.n_experts = n_experts
        self.whole_gradients = whole_gradients
        self._generators = {}  # of experts that do not know their sizes yet
        for i in range(*block(n_experts, comm.size, comm.rank)):
            rng = np.random.default_rng([seed, i])
            with random.using(rng):
                self.add_link(str(i), make(i))
            if not all([param.is_initialized for param in self[str(i)].params()]):
                self._generators[str(i)] = rng

    def gradient_comms(self) -> GradientComms:
        """Add the ranks that have the other experts."""
        return super().gradient_comms().add(self.comm, self.whole_gradients, "parts")

    def forward(self, rows: Variable, lengths: Sequence[int], out_size: int) -> Variable:
        """Apply the experts one after another, each to the next ``lengths[i]`` rows; returns their
        results joined.
        """
        if not self._children:
            return Variable(rows.xp.zeros((0, out_size), rows.dtype))
        ys = [
            self._run(name, part)
            for name, part in zip(self._children, cut(rows, lengths), strict=True)
        ]
        for name, y, n in zip(self._children, ys, lengths, strict=True):
            if y.shape != (n, out_size):
                raise ValueError(
                    f"expert {name} gives {y.shape} for {n} tokens, not {(int(n), out_size)}: "
                    "say its out_size"
                )
        return concat(ys, axis=0)

    def _run(self, name: str, rows: Variable) -> Variable:
        rng = self._generators.pop(name, None)
        with random.using(rng):
            y: Variable = self[name](rows)
        return y

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save all experts to the file of each rank, for which all ranks call this; load this
        rank's experts.
        """
        if (
            isinstance(serializer, Deserializer)
            or getattr(serializer, "knows_places", False)
            or self.comm.size == 1
        ):
            super().serialize(serializer)
            return
        mine = DictionarySerializer()
        mine.of_chainer = getattr(serializer, "of_chainer", False)
        super().serialize(mine)
        for arrays in self.comm.allgather_obj(mine.target):
            for path, array in arrays.items():
                *names, key = path.split("/")
                reduce(getitem, names, serializer)(key, array)


def cut(rows: Variable, lengths: Sequence[int]) -> tuple[Variable, ...]:
    """Return the rows in pieces of these lengths."""
    parts = split_axis(rows, np.cumsum(lengths)[:-1].tolist(), axis=0)
    assert isinstance(parts, tuple)
    return parts
