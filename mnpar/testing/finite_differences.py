"""Compare the gradients of a whole program with finite differences of its ranks' losses; and each
function's backward with finite differences of its forward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnpar import random
from mnpar.backend import Array
from mnpar.gradient_check import NondifferentiableError, check_backward
from mnpar.testing.recording import (
    Leaf,
    Pass,
    Place,
    ProgramRun,
    RankRun,
    RecordedCall,
    line_of,
    ranks_text,
)


@dataclass
class Verdict:
    """The verdict of finite differences on gradients."""

    of: str = ""  # the loss that the gradients are of
    wrong: bool = False
    undecided: str = ""
    given: float = 0.0
    expected: float = 0.0


class FiniteDifferences:
    """Finite differences of a program's losses along a random direction of all its leaves: two
    runs.

    Copies (leaves of one path and one value) move alike. The gradients are those of the sum of
    losses (law 1), of a mean of the losses over copies, or of losses that ranks have in common,
    which count once.

    Args:
        again: runs the program again on as many ranks; ``moves`` and ``traced`` are as
            :func:`mnpar.testing.recording.record` has them.
        run: the run whose gradients are checked.
        n: in which pass.
        seed: of the direction.
    """

    def __init__(
        self, again: Callable[..., ProgramRun], run: ProgramRun, n: int, seed: int
    ) -> None:
        self.again, self.run, self.n, self.seed = again, run, n, seed
        self.passes = [self._pass_of(rank) for rank in run.ranks]
        dtypes = [leaf.value.dtype for done in self.passes for leaf in done.leaves]
        dtypes += [dtype for rank in run.ranks for dtype in rank.dtypes]
        self.single = any([dtype.kind == "f" and dtype.itemsize < 8 for dtype in dtypes])
        self.eps = 3e-3 if self.single else 1e-6
        self.rtol = 3e-2 if self.single else 2e-5
        self.directions = self._directions()
        self._jump = ""  # the line of a function that gets integers which a moved leaf changes

    def _pass_of(self, rank: RankRun) -> Pass:
        """Return the pass of a rank; an empty one if it never calls backward."""
        return rank.passes[self.n] if rank.passes else Pass([], [])

    def _directions(self) -> list[dict[Place, Array]]:
        found: list[dict[Place, Array]] = []
        known: dict[str, list[tuple[Array, Array]]] = {}
        places = [leaf.memory for done in self.passes for leaf in done.leaves]
        for rank, done in enumerate(self.passes):
            mine = {}
            for leaf in done.leaves:
                if leaf.value.dtype.kind != "f" or not leaf.value.size:
                    continue
                # to move an array in place must move nothing else
                if not leaf.in_link and (not leaf.memory or places.count(leaf.memory) > 1):
                    continue
                copies = known.setdefault(leaf.path, [])
                direction = next(
                    (
                        d
                        for x, d in copies
                        if x.shape == leaf.value.shape and (x == leaf.value).all()
                    ),
                    None,
                )
                if direction is None:
                    rng = random.of_path([self.seed, rank], leaf.path)
                    signs = rng.choice([-1.0, 1.0], leaf.value.shape)
                    direction = signs * rng.uniform(0.5, 1.5, leaf.value.shape)
                    copies.append((leaf.value, direction))
                mine[leaf.place] = direction
            found.append(mine)
        squares = [float((d * d).sum()) for mine in found for d in mine.values()]
        length = np.sqrt(sum(squares)) or 1.0
        return [{place: d / length for place, d in mine.items()} for mine in found]

    def verdict(self, only: Collection[str] | None = None) -> Verdict:
        """Compare along the direction; ``only`` leaves of some paths move if they are given."""
        if not any([done.losses for done in self.passes]):
            return Verdict(undecided="no rank has a loss")
        self._jump = ""
        sides = self._slopes(self.eps, only)
        if sides is None:
            return Verdict(undecided="the program fails where its parameters are a little others")
        slopes, given = sides.mean(axis=0), self._given(only)
        readings = self._readings(slopes, given)
        for of, expected, got in readings:
            if self._agree(expected, got, given):
                return Verdict(of)
        if self._jump:
            return Verdict(
                undecided=f"whole numbers that {self._jump} gets change where the parameters are a "
                "little others (rounded values, labels made of outputs): the loss jumps there"
            )
        _, expected, got = readings[0]
        # where a maximum or relu is just at its kink, backward takes one of the two slopes
        bend = float(np.abs(sides[1] - sides[0]).sum())
        finer = self._slopes(self.eps / 8, only)
        if (
            finer is None
            or abs(expected - got) <= 1.01 * bend
            or not np.allclose(
                finer.mean(axis=0), slopes, rtol=10 * self.rtol, atol=10 * self._noise()
            )
        ):
            return Verdict(undecided="the loss has a kink or a jump there, or is too inexact")
        return Verdict(wrong=True, given=got, expected=expected)

    def _slopes(self, eps: float, only: Collection[str] | None) -> Array | None:
        """Return the slopes (2, P) of each rank's loss along the direction, on its two sides."""
        losses = []
        for sign in (-1, 1):
            moves = [
                {
                    leaf.place: (sign * eps * mine[leaf.place]).astype(leaf.value.dtype)
                    for leaf in done.leaves
                    if leaf.place in mine and (only is None or leaf.path in only)
                }
                for done, mine in zip(self.passes, self.directions, strict=True)
            ]
            run = self.again(moves=moves)
            numbers = [len(rank.passes) for rank in run.ranks]
            if run.error is not None or any([0 < number <= self.n for number in numbers]):
                return None
            losses.append([self._pass_of(rank).loss for rank in run.ranks])
            self._jump = self._jump or self._changed_integers(run)
        low, high = np.array(losses)
        here = np.array([done.loss for done in self.passes])
        return np.stack([here - low, high - here]) / eps

    def _changed_integers(self, run: ProgramRun) -> str:
        """Return the first function that got other integers or booleans; empty if all are alike."""
        for done, rank in zip(self.passes, run.ranks, strict=True):
            now = self._pass_of(rank).integers
            if len(now) != len(done.integers):
                return "a function"
            for (key, before), (_, after) in zip(done.integers, now, strict=True):
                if before != after:
                    return line_of(key)
        return ""

    def _given(self, only: Collection[str] | None) -> list[list[tuple[str, float]]]:
        """Return, for each rank, the product of each leaf's gradient and direction."""
        return [
            [
                (leaf.path, float((leaf.gradient * mine[leaf.place]).sum()))
                for leaf in done.leaves
                if leaf.place in mine
                and leaf.gradient is not None
                and (only is None or leaf.path in only)
            ]
            for done, mine in zip(self.passes, self.directions, strict=True)
        ]

    def _readings(
        self, slopes: Array, given: list[list[tuple[str, float]]]
    ) -> list[tuple[str, float, float]]:
        """Return what the gradients may be of: a text, the finite difference, and the gradients'
        number.
        """
        total = sum([x for mine in given for _, x in mine])
        if len(given) == 1:
            return [("the loss", float(slopes[0]), total)]
        found = [("the sum over ranks of their losses", float(slopes.sum()), total)]
        values = [done.loss for done in self.passes]
        groups: list[list[int]] = []
        for rank, value in enumerate(values):
            place = next((g for g in groups if np.isclose(values[g[0]], value, 1e-10, 0)), None)
            if place is None or not self.passes[rank].losses:
                groups.append([rank])
            else:
                place.append(rank)
        if len(groups) < len(values):
            once, got = 0.0, 0.0
            for group in groups:
                once += float(slopes[group].mean())
                counts: dict[str, int] = {}
                for rank in group:
                    for path, _ in given[rank]:
                        counts[path] = counts.get(path, 0) + 1
                alike = self._alike(group)
                got += sum(
                    [x / (counts[p] if p in alike else 1) for r in group for p, x in given[r]]
                )
            found.append(("the loss that ranks have in common", once, got))
        P = len(given)
        found.append(("the mean of the ranks' losses", float(slopes.sum() / P), total / P))
        return found

    def _alike(self, group: list[int]) -> set[str]:
        """Return the paths of which the ranks of a group have copies."""
        leaves: dict[str, list[Leaf]] = {}
        for rank in group:
            for leaf in self.passes[rank].leaves:
                leaves.setdefault(leaf.path, []).append(leaf)
        return {
            path
            for path, ones in leaves.items()
            if all(
                [
                    one.box == ones[0].box
                    and one.value.shape == ones[0].value.shape
                    and (one.value == ones[0].value).all()
                    for one in ones
                ]
            )
        }

    def _agree(self, expected: float, got: float, given: list[list[tuple[str, float]]]) -> bool:
        size = sum([abs(x) for mine in given for _, x in mine]) / (len(given) or 1)
        return abs(expected - got) <= self.rtol * size + self._noise()

    def _noise(self) -> float:
        """The rounding error of a finite difference."""
        eps = 1.2e-7 if self.single else 2.2e-16
        losses = [abs(done.loss) for done in self.passes]
        return 200 * eps * max([*losses, 1e-30]) / self.eps

    # ---- what is wrong ----

    def report(self, verdict: Verdict) -> str:
        """Say which parameter's gradient is wrong, and whose backward."""
        P = ranks_text(self.run.size)
        lines = [
            f"on {P} the gradients of backward {self.n + 1} are not the finite differences of the "
            f"losses: along a random direction {verdict.given:.6g}, and {verdict.expected:.6g} is "
            "right"
        ]
        wrong = self._wrong_leaf()
        if wrong is not None:
            leaf, one = wrong
            lines.append(
                f"the gradient of {leaf.path}, used by {line_of(leaf.used_by)}, is wrong: "
                f"{one.given:.6g} for {one.expected:.6g}"
            )
        guilty = self._guilty()
        if guilty:
            lines.append(f"the backward of {guilty} is not the derivative of its forward")
        elif self.run.size > 1:
            lines.append(
                "the backward of each function on a rank is right: what ranks exchange is not "
                "(arrays that go around functions, a value that all hold without F.copy_to)"
            )
        else:
            lines.append(
                "the backward of each function is right: a value goes around them (x.array, an "
                "array changed in place)"
            )
        return "\n".join(lines)

    def _wrong_leaf(self) -> tuple[Leaf, Verdict] | None:
        """Return the leaf with a wrong gradient that is used last; None if none is, alone.

        The leaves that are used last are halved: with the first wrong one, they are wrong together.
        """
        leaves = {leaf.path: leaf for done in self.passes for leaf in done.leaves}
        paths = [*reversed(leaves)]
        right, wrong = 0, len(paths)  # how many of the last are right, and are not
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if self.verdict(paths[:middle]).wrong:
                wrong = middle
            else:
                right = middle
        path = paths[right]
        verdict = self.verdict([path])
        return (leaves[path], verdict) if verdict.wrong else None

    def _guilty(self) -> str:
        """Return the first function that does not communicate and whose backward is wrong."""
        traced = self.again(traced=self.n)
        if traced.error is not None:
            return ""
        for rank in traced.ranks:
            done = self._pass_of(rank)
            for call in reversed(done.calls):
                inputs = done.inputs[call.key]
                if not call.function.communicates and _is_wrong(call, inputs):
                    return line_of(call.key)
        return ""


def _is_wrong(call: RecordedCall, inputs: list[Array | None]) -> bool:
    """Return whether a function's backward, on its own, is not the derivative of its forward."""
    nodes = call.function.inputs
    arrays = [x for x in inputs if x is not None]
    if not call.function.number or len(arrays) != len(nodes) or len(arrays) != len(inputs):
        return False
    wanted = [x.requires_grad and a.dtype.kind == "f" for x, a in zip(nodes, arrays, strict=True)]
    if not any(wanted):
        return False

    def again(*xs: Any) -> Any:
        with random.using(np.random.default_rng(0)):
            twin = call.before.__class__.__new__(call.before.__class__)
            twin.__dict__.update(call.before.__dict__)
            return twin.apply(xs)

    try:
        ys = again(*[a.copy() for a in arrays])
        rng = np.random.default_rng(0)
        gys = tuple(
            [
                rng.uniform(0.5, 1.5, y.shape).astype(y.dtype) if y.dtype.kind == "f" else None
                for y in ys
            ]
        )
        floats = [a.dtype for a in (*arrays, *[y.array for y in ys]) if a.dtype.kind == "f"]
        exact = all([dtype == np.float64 for dtype in floats])
        eps, rtol = (1e-6, 1e-4) if exact else (1e-2, 5e-2)
        check_backward(
            again,
            tuple(arrays),
            gys,
            eps=eps,
            atol=1e-6 if exact else 1e-2,
            rtol=rtol,
            no_grads=[not want for want in wanted],
            detect_nondifferentiable=True,
        )
    except AssertionError:
        return True
    except (NondifferentiableError, ValueError, TypeError, AttributeError, RuntimeError):
        return False  # nor is a function that is part of a pass, as DistributedDataParallel's
    return False
