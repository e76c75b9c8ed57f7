"""Ensembles: models that differ, side by side on ranks, whose answers are combined.

Each member has a communicator of its own, for a model that is itself spread over ranks. The ranks
that have the same part of each member are *peers*: over their communicator one allgather carries
all answers, and tournaments carry the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import random
from mnpar.autograd.tape import current_tape
from mnpar.chain import Chain
from mnpar.communicators.communicator import require_communicator
from mnpar.errors import LauncherError, RankFailedError
from mnpar.functions import gather_from, stack
from mnpar.link import GradientComms, Link
from mnpar.parallel.ensemble.answers import Answers
from mnpar.parallel.ensemble.tournament import (
    Member,
    Optimizers,
    Round,
    Scores,
    copy_winners,
    decide,
    gather_scores,
    restore,
    snapshot,
)
from mnpar.parameter import structure
from mnpar.plans import block
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class EnsembleMembers(Chain):
    """The members of an ensemble that are on this rank: by number, or in order.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> def program(comm):
        ...     ensemble = mnpar.Ensemble(comm, lambda group, i: L.Linear(1, i + 1), groups=3)
        ...     return (
        ...         len(ensemble.members),
        ...         [link.W.shape for link in ensemble.members],
        ...         ensemble.members[2].b.shape,
        ...     )
        >>> mnpar.run(program, ranks=1)
        [(3, [(1, 1), (2, 1), (3, 1)], (3,))]
    """

    def __getitem__(self, number: int | str) -> Any:
        return super().__getitem__(str(number))

    def __iter__(self) -> Iterator[Link]:
        return self.children()

    def __len__(self) -> int:
        return len(self._children)


class Ensemble(Chain):
    """Members on ranks, each with ranks of its own; a call returns the mean of the members'
    answers.

    All ranks own the mean together (law 1: the loss counts once): each rank calls backward on the
    loss of the mean, nothing is divided by the number of ranks, and each member gets the gradient
    that it would get in an ensemble on one rank. To train each member by itself, call
    ``ensemble.member`` instead; nothing is sent then.

    Args:
        comm: all its ranks make the ensemble, and call it with the same batch.
        member: called as ``member(group, i)``, with the communicator of the ranks of member i, on
            each of them; returns a link whose answer is (N, …), the same on all of its ranks, or
            None on ranks without an answer. First weights are drawn from a generator of a seed,
            which rank 0 draws, and i: they do not depend on the number of ranks. Or this rank's
            link.
        groups: M, how many members; None: one on each rank. Of P ranks each member has P / M; where
            M is more, each rank has a block of the members.

    Attributes:
        size: M.
        numbers: which members are on this rank.
        group: the communicator of this rank's member.
        peers: the communicator of the ranks with the same part of each member.
        lost: the numbers of members that are lost (:meth:`attempt`).
        alive, error: False on ranks whose member is lost, and why.
        members: this rank's links, by number, and to iterate over. Their paths are
            ``/members/3/…``, so that checkpoints are loaded by any number of ranks.

    Raises:
        ValueError: M members cannot have as many of the ranks each; or a link is given where a rank
            has several members.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     ensemble = mnpar.Ensemble(comm, lambda group, i: L.Linear(1, 1, initialW=i))
        ...     y = ensemble(np.ones((2, 1), "f4"))
        ...     return y.array.tolist()
        >>> mnpar.run(program, ranks=3)[0]
        [[1.0], [1.0]]
    """

    lost: tuple[int, ...]
    alive = True
    error: Exception | None = None

    def __init__(
        self,
        comm: Communicator,
        member: Link | Callable[[Communicator, int], Link],
        groups: int | None = None,
    ) -> None:
        require_communicator(comm, "Ensemble(comm, member)")
        super().__init__()
        M, P = comm.size if groups is None else groups, comm.size
        if M < 1 or (P > M and P % M):
            raise ValueError(
                f"{P} ranks do not make {M} members of as many ranks each: choose a number "
                f"that divides {P}"
            )
        if isinstance(member, Link) and P < M:
            raise ValueError(
                f"a link is one member, and {P} ranks have {M}: give a function that makes them"
            )
        self.size, self.lost = M, ()
        each = max(1, P // M)  # ranks of a member
        self._place = comm.rank % each  # among those of its member
        self.numbers = range(*block(M, P // each, comm.rank // each))
        group = comm.split(comm.rank // each, comm.rank)
        assert group is not None
        group.follow()
        self.group = group
        self._join(comm)
        self.members = EnsembleMembers()
        seed = int(comm.bcast(random.generator().integers(2**63, size=1))[0])
        for i in self.numbers:
            with random.using(np.random.default_rng([seed, i])):
                self.members.add_link(
                    str(i), member if isinstance(member, Link) else member(group, i)
                )
        self.rounds = 0  # of tournaments
        self.register_persistent("rounds")

    def _join(self, comm: Communicator) -> None:
        """Make ``comm`` the communicator of the ensemble."""
        peers = comm.split(self._place, comm.rank)
        assert peers is not None
        self.comm, self.peers = comm, peers
        structure.change()  # other ranks hold the members
        self._where = {
            i: rank
            for rank, numbers in enumerate(peers.allgather_obj(list(self.numbers)))
            for i in numbers
        }

    def gradient_comms(self) -> GradientComms:
        """Add the ranks that have the other members."""
        return super().gradient_comms().hold(self.comm, "parts")

    @property
    def member(self) -> Any:
        """The link of this rank's member.

        Raises:
            AttributeError: this rank has several: they are in ``members``.
        """
        if len(self.numbers) != 1:
            raise AttributeError(
                f"rank {self.comm.rank} has {len(self.numbers)} members: take one of "
                "ensemble.members"
            )
        return self.members[self.numbers[0]]

    def forward(self, *args: Any, **kwargs: Any) -> Variable | None:
        """Return the mean of the members' answers, (N, …); None on ranks whose part of a member
        answers None.
        """
        answers = self.answers(*args, **kwargs)
        return None if answers is None else answers.mean()

    def answers(self, *args: Any, **kwargs: Any) -> Answers | None:
        """Return the answers of all members, by one allgather; all ranks call it.

        Args:
            args, kwargs: what each member is called with: the same on all ranks.

        Returns:
            The answers; None on ranks whose part of a member answers None.
        """
        mine = [link(*args, **kwargs) for link in self.members]
        if any([y is None for y in mine]):
            return None
        return Answers(gather_from(self.peers, stack(mine), axis=0))

    def tournament(
        self,
        score: Scores,
        optimizer: Optimizers = None,
        perturb: Callable[[Any, np.random.Generator], None] | None = None,
        *,
        how: str = "pairs",
        share: float = 0.25,
        seed: int = 0,
    ) -> Round:
        """Let losers continue from the winners' weights: a round of population-based training; all
        ranks call it.

        All ranks decide alike who wins, by the scores and a generator of ``seed`` and the number of
        the round. A loser gets the winner's parameters, persistent values, optimizer's state and
        hyperparameters, each rank from the rank with the same part. (Jaderberg et al. 2017, arXiv
        1711.09846; pairs: LTFB, Jacobs et al. 2017.)

        Args:
            score: of this rank's member, the higher the better; None on ranks that do not know it,
                NaN loses. A list, if this rank has several.
            optimizer: the member's own; None: only weights are copied. A list, if this rank has
                several.
            perturb: called as ``perturb(optimizer, rng)`` on the ranks of each loser, with equal
                generators, to change its hyperparameters.
            how: ``'pairs'``: of each random pair the worse is overwritten by the better.
                ``'truncation'``: each of the worst is overwritten by a random one of the best.
            share: how many are the best, and the worst, by truncation: one at least, half of them
                at most.
            seed: of the random choices.

        Returns:
            The round: all scores, and from whom each member continues.

        Raises:
            ValueError: no such ``how``, or no rank gives a member's score; on all ranks. An
                optimizer is not the member's.

        Example:
            >>> import mnpar, mnpar.links as L
            >>> def program(comm):
            ...     ensemble = mnpar.Ensemble(comm, lambda group, i: L.Linear(1, 1, initialW=i))
            ...     round = ensemble.tournament(score=-ensemble.numbers[0])  # the lower number wins
            ...     return round.winners, float(ensemble.member.W.array[0, 0])
            >>> mnpar.run(program, ranks=2)
            [([0, 0], 0.0), ([0, 0], 0.0)]
        """
        scores = gather_scores(self.comm, self.numbers, score, self.size, list(self._where))
        round = decide(
            scores, how, share, np.random.default_rng([seed, self.rounds]), list(self._where)
        )
        mine = self._with_optimizers(optimizer)
        for i, (link, its) in mine.items():
            others = (
                set()
                if its is None
                else set(map(id, its.target.params())) - set(map(id, link.params()))
            )
            if others:
                raise ValueError(
                    f"rank {self.comm.rank}: the optimizer of member {i} has {len(others)} "
                    "parameters of others: "
                    "a loser takes the winner's optimizer: give each member its own, set up "
                    "with ensemble.members[i]"
                )
        copy_winners(self.peers, round.winners, self._where, mine)
        for i, (_, its) in mine.items():
            if perturb is not None and round.winners[i] != i:
                perturb(its, np.random.default_rng([seed, self.rounds, i]))
        self.rounds += 1
        return round

    def _with_optimizers(self, optimizer: Optimizers) -> dict[int, Member]:
        """Return this rank's members by number, each with its optimizer."""
        optimizers = (
            list(optimizer) if isinstance(optimizer, Sequence) else [optimizer] * len(self.numbers)
        )
        return dict(zip(self.numbers, zip(self.members, optimizers, strict=True), strict=True))

    def attempt(
        self,
        work: Callable[[], Any],
        optimizer: Optimizers = None,
    ) -> bool:
        """Do work in which members may be lost; all ranks call it, and all get the same answer.

        If every rank ends ``work()`` without an error, the answer is True. Otherwise a member is
        lost if one of its ranks raised an error or is gone: killed, crashed, out of memory. The
        other members continue: the ensemble gets a new ``comm`` and new ``peers``, and each member
        has the state from before, so that the work can be tried again. A member's communicator
        ``group`` stays, with what was split from it, a mesh for example; other communicators of the
        program do not. On lost ranks that still run, ``alive`` is False and ``error`` says why:
        they must not use the ensemble any more.

        On thread ranks it finds errors; under Open MPI, started by ``mpiexec --with-ft ulfm``, also
        processes that are gone. Each call costs a copy of the members, and an agreement of all
        ranks: let it be some minutes of work.

        Args:
            work: called without arguments; what it sends goes by ``comm``, ``peers`` and ``group``
                of this ensemble.
            optimizer: as :meth:`tournament` has it; its state is restored, too.

        Returns:
            Whether the work is done.

        Raises:
            LauncherError: no rank survives the end of another here: another MPI, or started without
                the option.
            Exception: the work's, if it failed and no member is lost.

        Example:
            >>> import numpy as np, mnpar, mnpar.links as L
            >>> def program(comm):
            ...     ensemble = mnpar.Ensemble(comm, lambda group, i: L.Linear(1, 1, initialW=i))
            ...
            ...     def work():
            ...         if ensemble.numbers[0] == 1:
            ...             raise MemoryError("no room")
            ...
            ...     while ensemble.alive and not ensemble.attempt(work):
            ...         pass
            ...     return (
            ...         ensemble(np.ones((1, 1), "f4")).item() if ensemble.alive else ensemble.error
            ...     )
            >>> mnpar.run(program, ranks=3)
            [1.0, MemoryError('no room'), 1.0]
        """
        transport = self.comm.transport
        if not transport.survives:
            raise LauncherError(
                "members can be lost on thread ranks, and under Open MPI started by 'mpiexec "
                "--with-ft ulfm'; here the end of "
                "one rank is the end of all"
            )
        mine = self._with_optimizers(optimizer)
        before = {i: snapshot(*both) for i, both in mine.items()}
        error: Exception | None = None
        try:
            work()
        except Exception as caught:
            error = caught
            self._revoke()
        if transport.agree(error is None):
            return True
        self._shrink(error)
        if self.alive:
            for i, state in before.items():
                restore(*mine[i], *state)
        return False

    def _revoke(self) -> None:
        """Revoke the communicators, so that no rank waits for this one."""
        for comm in (self.comm, self.peers, self.group):
            comm.revoke()

    def _shrink(self, error: Exception | None) -> None:
        """Make the ensemble one of the members that are left, or say that this one is lost."""
        well = error is None or self.comm.transport.lost(error)
        tape = current_tape()
        tape.clear()
        tape.pending.clear()
        transport = self.comm.transport.survivors(well)
        whole = None
        if transport is not None:
            left = type(self.comm)(transport)
            here = [
                numbers for numbers in left.allgather_obj(self.numbers) if numbers == self.numbers
            ]
            whole = left.split(0 if len(here) == self.group.size else None, left.rank)
        if whole is None:
            gone = well and not isinstance(error, RankFailedError)
            self.alive = False
            self.error = (
                RankFailedError(f"another rank of its member is lost: {error}") if gone else error
            )
            return
        if whole.size == self.comm.size and error is not None:
            raise error
        group = whole.transport.split(self.numbers[0], self._place)
        assert group is not None
        self.group.renew(group)
        self._join(whole)
        self.lost = tuple([i for i in range(self.size) if i not in self._where])
