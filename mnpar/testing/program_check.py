"""Is a parallel program right? Compare what it computes on several ranks with what it computes on
one, and with finite differences.

The program is run as it is, on thread ranks, in float64 and from the same random state each time.
What its ranks have after each backward and each step of an optimizer is compared with one rank's:
where that parts, the ranks' gradients say by arithmetic what has happened (they are parts of a sum,
or a multiple), and the values and gradients of all functions say on which line. Finite differences
say whether backward is right at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.communicator import described
from mnpar.testing.finite_differences import FiniteDifferences
from mnpar.testing.recording import (
    Held,
    Key,
    Leaf,
    Pass,
    Program,
    ProgramRun,
    line_of,
    ranks_in_words,
    record,
)
from mnpar.testing.relations import Relation, close, joined, relation, weights_of

_LINES = 25  # of a report, at most
_OTHER_DATA = "this cannot be decided, as the ranks have other data"
_HOOK = "backward's gradient agrees with one rank's; a hook of the optimizer changes it"


@dataclass
class CheckResult:
    """What :func:`mnpar.check` has found; it prints as a report.

    Attributes:
        ok: whether everything that was compared agrees.
        problems: what is wrong, one text for each number of ranks, of several lines.
        notes: what could not be decided, and what else is worth knowing.
        compared: what agrees, one line each.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    # whether the program could be checked at all
    checked: bool = True

    @property
    def ok(self) -> bool:
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def raise_on_error(self) -> None:
        """Raise AssertionError, with the report, unless everything agrees."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        lines = ["right:" if self.ok else "wrong:" if self.checked else "not checked:"]
        for text in self.problems:
            first, *more = text.splitlines()
            lines += [f"  {first}", *[f"    {line}" for line in more]]
        lines += [f"  {line}" for line in self.compared]
        lines += [f"  note: {note}" for note in dict.fromkeys(self.notes)]
        if len(lines) > _LINES:
            lines = [*lines[: _LINES - 1], f"  … {len(lines) - _LINES + 1} more lines"]
        return "\n".join(lines)

    __repr__ = __str__


def check(
    program: Program,
    ranks: int | Sequence[int] = (1, 2, 3),
    *,
    args: tuple[Any, ...] = (),
    reference: Program | None = None,
    rename: Callable[[str, int], str] | None = None,
    passes: int = 3,
    dtype: Any = np.float64,
    seed: int = 0,
    rtol: float | None = None,
    raise_on_error: bool = False,
) -> CheckResult:
    """Check a training program: run it on several numbers of thread ranks, and compare gradients
    and updated weights with those of one rank, and with finite differences.

    ``program(comm)`` makes its model, data and optimizer, and trains, as it always does; what it
    returns does not matter. The check observes each backward and each step of an optimizer. It runs
    the program about once for each number of ranks and four times more, up to a few steps.

    1 among ``ranks`` says that one rank computes the same as several do: with all of the data,
    which the program cuts itself (:func:`mnpar.scatter_dataset`, slices by ``comm.rank``). A
    parameter is found on other ranks by its path in its link; divided ones are joined, by their
    boxes or along an axis in the order of ranks. Leave 1 out where one rank is another program, as
    of an ensemble of P members; then finite differences alone decide: of the sum over ranks of the
    losses, where losses that ranks have in common count once.

    Args:
        program: called on each rank with its communicator, then ``args``. It must do the same each
            time it is called.
        ranks: numbers of ranks; one number n is ``(1, n)``.
        args: more arguments.
        reference: a program for one process to compare with, in place of ``program`` on one rank;
            it is called in the same way.
        rename: ``rename(path, rank)`` returns the path in ``reference`` of a parameter that has
            another one there.
        passes: how many backwards are compared; the program ends after them.
        dtype: ``mnpar.config.dtype`` during the check; a program that makes float32 arrays itself
            is compared with the digits of float32.
        seed: of numpy's, Python's and mnpar's random numbers, before each run.
        rtol: how far numbers may be apart, relative to the largest of an array; by default as their
            dtype allows.
        raise_on_error: raise the report if something is wrong: for tests.

    Returns:
        A result, true if all agrees: ``ok``, ``problems``, ``notes``; it prints as a report.

    Raises:
        TypeError: the program is no function; ValueError: a number of ranks is not positive;
        AssertionError: with ``raise_on_error``, something is wrong.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> def program(comm, average):
        ...     model = L.Linear(3, 1)
        ...     optimizer = mnpar.optimizers.SGD().setup(model)
        ...     if average:
        ...         optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
        ...     x = np.arange(18.0).reshape(6, 3)[comm.rank :: comm.size]
        ...     for _ in range(3):
        ...         optimizer.update(lambda: F.mean(model(x) ** 2))
        >>> bool(mnpar.check(program, args=(True,)))
        True
        >>> print(mnpar.check(program, ranks=2, args=(False,)))
        wrong:
        ...
    """
    counts = _counts(program, ranks, reference, passes)
    result = CheckResult()
    _Check(program, counts, args, reference, rename, passes, dtype, seed, rtol, result).run()
    if raise_on_error:
        result.raise_on_error()
    return result


def _counts(program: Any, ranks: Any, reference: Any, passes: int) -> tuple[int, ...]:
    for name, what in (("program", program), ("reference", reference)):
        if not callable(what) and not (what is None and name == "reference"):
            raise TypeError(
                f"check(program): the {name} is a function of the communicator, not "
                f"{described(what)}"
            )
    counts = tuple(ranks) if isinstance(ranks, Iterable) else tuple(sorted({1, ranks}))
    if not counts or any([not isinstance(n, int | np.integer) or n < 1 for n in counts]):
        raise ValueError(
            f"check(program, ranks): numbers of ranks from 1 on, like (1, 2, 3), not {ranks!r}"
        )
    if passes < 1:
        raise ValueError(f"check compares 1 pass or more, not {passes}")
    return counts


class _Check:
    """One check: the runs, and what is found."""

    def __init__(
        self,
        program: Program,
        counts: tuple[int, ...],
        args: tuple[Any, ...],
        reference: Program | None,
        rename: Callable[[str, int], str] | None,
        passes: int,
        dtype: Any,
        seed: int,
        rtol: float | None,
        result: CheckResult,
    ) -> None:
        self.program, self.counts, self.args = program, counts, args
        self.reference, self.rename = reference, rename
        self.passes, self.dtype, self.seed, self.given_rtol = passes, dtype, seed, rtol
        self.result = result
        self.rtol = rtol or 1e-7

    def record(self, program: Program, ranks: int, **options: Any) -> ProgramRun:
        return record(
            program,
            ranks,
            self.args,
            passes=self.passes,
            dtype=self.dtype,
            seed=self.seed,
            **options,
        )

    # ---- the course of a check ----

    def run(self) -> None:
        alone = self.reference or (self.program if 1 in self.counts else None)
        one = None
        if alone is not None:
            one = self.record(alone, 1)
            if not self._usable(alone, one):
                return
            if not self._differences(alone, one):
                return
        for number, size in enumerate([n for n in self.counts if n > 1 or self.reference]):
            many = self.record(self.program, size)
            if one is not None and alone is not None:
                if self._finished(many):
                    self._compare(alone, one, many)
            elif self._usable(self.program, many, again=not number):
                # copies may have drifted apart later
                right = self._differences(self.program, many, 0)
                if right and many.passes > 1:
                    self._differences(self.program, many)
            if not self.result.checked:
                return

    def _finished(self, run: ProgramRun) -> bool:
        """Note how a run ended; return whether there is something to compare."""
        for text in run.unreceived:
            self.result.notes.append(f"on {ranks_in_words(run.size)}: {text}")
        if run.error is not None:
            name = type(run.error).__name__
            lines = str(run.error).splitlines() or [""]
            more = ["  …"] if len(lines) > 9 else []
            first = f"on {ranks_in_words(run.size)} the program fails: {name}: {lines[0]}"
            self.result.problems.append("\n".join([first, *lines[1:9], *more]))
            if run.size == 1 and self.reference is None and len(self.counts) > 1:
                self.result.problems[-1] += (
                    "\nif it is made for several ranks only, leave 1 out: ranks=(2, 3), -n 2,3"
                )
            self.result.checked = bool(run.passes)
            return False
        if not run.passes:
            self.result.checked = False
            self.result.problems.append(
                f"on {ranks_in_words(run.size)} the program never calls backward (nor an optimizer's "
                "update with a loss function): there is nothing to compare"
            )
            return False
        return True

    def _usable(self, program: Program, run: ProgramRun, again: bool = True) -> bool:
        """Return whether a run ended well, and a second one does the same."""
        if not self._finished(run):
            return False
        dtypes = [leaf.value.dtype for rank in run.ranks for p in rank.passes for leaf in p.leaves]
        narrow = [d for d in dtypes if d.kind == "f" and np.finfo(d).eps > np.finfo("d").eps]
        if narrow:
            widest = max(narrow, key=lambda d: np.finfo(d).eps)
            self.rtol = self.given_rtol or 500 * float(np.finfo(widest).eps)
            self.result.notes.append(
                f"the program makes {widest} parameters itself: compared with {self.rtol:.0e}"
            )
        if not again:
            return True
        twice = self.record(program, run.size)
        if twice.error is None and all(map(_same_losses, run.ranks, twice.ranks)):
            return True
        self.result.checked = False
        drawn = next((f" ({rank.is_random})" for rank in run.ranks if rank.is_random), "")
        self.result.problems.append(
            f"two runs on {ranks_in_words(run.size)} differ, so nothing can be compared: random numbers "
            f"that no seed fixes{drawn}, such as np.random.default_rng() without a seed, or "
            "something that is kept outside of the program, such as a model"
        )
        return False

    # ---- finite differences ----

    def _differences(self, program: Program, run: ProgramRun, n: int = -1) -> bool:
        """Compare the gradients of a pass, by default the last one, with finite differences of the
        losses; return whether they agree, as far as that can be decided.
        """
        last = min([len(rank.passes) for rank in run.ranks]) - 1
        last = min(n, last) if n >= 0 else last
        if last < 0:
            self.result.notes.append(
                f"on {ranks_in_words(run.size)} some rank never calls backward: no finite differences"
            )
            return True
        again = partial(self.record, program, run.size)
        differences = FiniteDifferences(again, run, last, self.seed)
        verdict = differences.verdict()
        what = f"on {ranks_in_words(run.size)}: gradients of backward {last + 1}"
        if verdict.undecided:
            self.result.notes.append(f"{what} and finite differences: {verdict.undecided}")
        elif verdict.wrong:
            self.result.problems.append(differences.report(verdict))
            return False
        else:
            self.result.compared.append(f"{what} are the finite differences of {verdict.of}")
        return True

    # ---- one rank and several ----

    def _compare(self, alone: Program, one: ProgramRun, many: ProgramRun) -> None:
        title = f"{ranks_in_words(many.size)} and one"
        drawn = next((r.is_random for r in [*one.ranks, *many.ranks] if r.is_random), "")
        comparison = _Comparison(self, one, many)
        problem, n, stage = comparison.first_problem()
        if not problem:
            self.result.compared.append(f"{title}: {comparison.compared}")
            self.result.notes += comparison.notes
            return
        if drawn:
            comparison.notes.append(
                f"{drawn} draws other numbers on other ranks: no comparison can tell that from a "
                "mistake; check without it (ratio=0, or mnpar.config.train = False)"
            )
        if self.result.problems:  # the same mistake, most likely
            problem = problem.splitlines()[0]
        where = ""
        if stage != "step" and self.reference is None and not self.result.problems:
            where = comparison.where(
                self.record(alone, 1, traced=n),
                self.record(self.program, many.size, traced=n),
                n,
                stage == "start",
            )
        self.result.problems.append("\n".join([f"{title}: {problem}", *filter(None, [where])]))
        if _OTHER_DATA in where or drawn:
            self.result.checked = False
        self.result.notes += comparison.notes


def _same_losses(a: Any, b: Any) -> bool:
    return len(a.passes) == len(b.passes) and all(
        [
            np.allclose(x.loss, y.loss, rtol=1e-12, atol=0, equal_nan=True)
            for x, y in zip(a.passes, b.passes, strict=True)
        ]
    )


class _Comparison:
    """Compares a run on one rank with one on several."""

    def __init__(self, check: _Check, one: ProgramRun, many: ProgramRun) -> None:
        self.check, self.one, self.many = check, one, many
        self.rtol = check.rtol
        self.notes: list[str] = []
        self.compared = ""

    def path(self, path: str, rank: int) -> str:
        rename = self.check.rename
        return path if rename is None else rename(path, rank)

    def first_problem(self) -> tuple[str, int, str]:
        """Return the first thing that differs, in words; in which pass it is; and whether it is at
        the ``'start'``, in a ``'gradient'``, or in an optimizer's ``'step'``.
        """
        single = self.one.ranks[0]
        steps = min([len(single.steps), *[len(rank.steps) for rank in self.many.ranks]])
        passes = min(len(single.passes), self.many.passes)
        paths = 0
        for n in range(passes):
            mine = {leaf.path: leaf for leaf in single.passes[n].leaves}
            theirs = self._leaves(n)
            if not n:
                problem = self._starts(mine, theirs)
                if problem:
                    return problem, n, "start"
                paths = len([path for path in mine if path in theirs])
                if mine and not paths:
                    self.notes.append(
                        f"no parameter of one rank ({_some(mine)}) is on {ranks_in_words(self.many.size)} "
                        f"({_some(theirs)}): give rename=, or leave 1 out of the ranks"
                    )
            # a step that follows gradients says what they have become
            if not steps:
                problem = self._gradients(n, mine, theirs)
                if problem:
                    return problem, n, "gradient"
            elif n < steps:
                problem, stage = self._step(n, mine, theirs)
                if problem:
                    return problem, n, stage
        self.compared = f"{passes} backwards, gradients of {paths} parameters"
        if steps:
            self.compared += f", weights after {min(steps, passes)} steps"
        self.compared += " agree" + self._losses()
        return "", 0, ""

    def _leaves(self, n: int) -> dict[str, dict[int, Leaf]]:
        """Return the leaves of a pass on several ranks, by path and rank."""
        found: dict[str, dict[int, Leaf]] = {}
        for rank, run in enumerate(self.many.ranks):
            for leaf in run.passes[n].leaves if n < len(run.passes) else ():
                found.setdefault(self.path(leaf.path, rank), {})[rank] = leaf
        return found

    def _held(self, n: int) -> dict[str, dict[int, Held]]:
        """Return the parameters after a step on several ranks, by path and rank."""
        found: dict[str, dict[int, Held]] = {}
        for rank, run in enumerate(self.many.ranks):
            for path, held in run.steps[n].params.items():
                found.setdefault(self.path(path, rank), {})[rank] = held
        return found

    def _boxed(self, path: str, arrays: Mapping[int, Array | None]) -> list[Array | None]:
        """Return the ranks' arrays; those of a parameter that names its boxes, joined."""
        boxes = {
            rank: run.steps[0].params.get(path) if run.steps else None
            for rank, run in enumerate(self.many.ranks)
        }
        divided = {rank: held for rank, held in boxes.items() if held is not None and held.box}
        if not divided or len({held.box for held in divided.values()}) < 2:
            return list(arrays.values())
        pieces = []
        for rank, array in arrays.items():
            held = divided.get(rank)
            if held is None or held.box is None or array is None or held.whole is None:
                return list(arrays.values())
            pieces.append((held.box.start, held.box.stop, array))
        whole = next(iter(divided.values())).whole
        assert whole is not None
        return [joined(whole, pieces)]

    def _starts(self, mine: dict[str, Leaf], theirs: dict[str, dict[int, Leaf]]) -> str:
        """Compare the values that ranks begin with."""
        for path, leaf in mine.items():
            holders = theirs.get(path, {})
            values = self._boxed(path, {rank: one.value for rank, one in holders.items()})
            kind = relation(leaf.value, values, self.rtol)
            if not holders or kind.agrees:
                continue
            arrays = [one.value for one in holders.values()]
            ranks = [*holders]
            other = [
                rank
                for rank, x in holders.items()
                if x.value.shape != leaf.value.shape or not close(x.value, leaf.value, self.rtol)
            ]
            alike = all([close(x, arrays[0], self.rtol) for x in arrays])
            text = f"the ranks begin with other values of {path} than one rank does"
            if not alike:
                text += f": rank {ranks[0]} and rank {other[-1]} differ" * (other[-1] != ranks[0])
            return (
                f"{text}\nused by {line_of(leaf.used_by)}; copies must begin alike: the same seed, "
                "comm.bcast_data(model), or mnpar.create_multi_node_optimizer"
                "\n(if they are no copies, as members of an ensemble, leave 1 out of the ranks)"
            )
        return ""

    def _gradients(self, n: int, mine: dict[str, Leaf], theirs: dict[str, dict[int, Leaf]]) -> str:
        """Compare the gradients that backward leaves, where no optimizer uses them."""
        scale = _scale([leaf.gradient for leaf in mine.values()])
        for path, leaf in reversed(mine.items()):
            holders = theirs.get(path)
            if holders is None:
                continue
            found = {rank: one.gradient for rank, one in holders.items()}
            kind = relation(leaf.gradient, self._boxed(path, found), self.rtol, 0.01 * scale)
            if not kind.agrees:
                return self._gradient_text(n, path, leaf, found, found, "backward leaves")
        return ""

    def _step(
        self, n: int, mine: dict[str, Leaf], theirs: dict[str, dict[int, Leaf]]
    ) -> tuple[str, str]:
        """Compare gradients and weights after a step; return what differs, and where that is."""
        single, many = self.one.ranks[0].steps[n].params, self._held(n)
        scale = _scale([held.gradient for held in single.values()])
        order = [*mine, *[path for path in single if path not in mine]]
        for path in reversed(order):
            held, holders = single.get(path), many.get(path)
            if held is None or holders is None:
                continue
            found = {rank: other.gradient for rank, other in holders.items()}
            kind = relation(_zeros(held), self._boxed(path, found), self.rtol, 0.01 * scale)
            if not kind.agrees:
                raw = {rank: one.gradient for rank, one in theirs.get(path, {}).items()}
                leaf = mine.get(path)
                text = self._gradient_text(n, path, leaf, found, raw, "the step uses", held)
                return text, "step" if _HOOK in text else "gradient"
        for path in order:
            held, holders = single.get(path), many.get(path)
            if held is None or holders is None:
                continue
            values = {rank: other.value for rank, other in holders.items()}
            if not relation(held.value, self._boxed(path, values), 10 * self.rtol).agrees:
                wrong = [
                    rank
                    for rank, x in values.items()
                    if x.shape == held.value.shape and not close(x, held.value, 10 * self.rtol)
                ]
                text = (
                    f"{path} is another after step {n + 1} on {_those(wrong, values)}, though its "
                    "gradient agrees\n"
                )
                before = {rank: one.value for rank, one in theirs.get(path, {}).items()}
                still = [r for r in wrong if r in before and (before[r] == values[r]).all()]
                if still:
                    text += "it has not changed there: disable_update(), or no rule"
                else:
                    text += (
                        "a hyperparameter (the learning rate), a hook or a state of the optimizer "
                        f"is another one there{_hooks(self.many.ranks[0].steps[n].hooks)}"
                    )
                return text, "step"
        return "", ""

    def _gradient_text(
        self,
        n: int,
        path: str,
        leaf: Leaf | None,
        found: dict[int, Array | None],
        raw: dict[int, Array | None],
        which: str,
        held: Held | None = None,
    ) -> str:
        """Say how the ranks' gradients of a parameter are related to one rank's."""
        wanted = held.gradient if held is not None else leaf.gradient if leaf else None
        before = leaf.gradient if leaf is not None else wanted
        line = f", used by {line_of(leaf.used_by)}" if leaf is not None else ""
        text = f"the gradient of {path} that {which} in pass {n + 1} is wrong{line}"
        now = relation(wanted, [*found.values()], self.rtol)
        back = relation(before, [*raw.values()], self.rtol) if raw else now
        missing = [rank for rank, g in found.items() if g is None or not g.any()]
        lines = [text]
        if wanted is not None and wanted.any() and missing:
            lines.append(
                f"{_those(missing, found)} has no gradient of it, or zeros: it is frozen, or cut "
                "off (x.array, unchain), or its part of the loss is not differentiated there"
            )
        elif not (wanted is not None and wanted.any()) and len(missing) < len(found):
            lines.append("one rank has no gradient of it: there it is frozen or not used")
        elif back.agrees and which == "the step uses" and self.many.ranks[0].steps[n].hooks:
            lines.append(
                f"{_HOOK}"
                f"{_hooks(self.many.ranks[0].steps[n].hooks)}: one that looks at gradients of "
                "this rank alone (their norm) needs comm="
            )
        else:
            lines += self._arithmetic(now, back, found, n)
        return "\n".join(lines)

    def _arithmetic(
        self, now: Relation, back: Relation, found: dict[int, Array | None], n: int
    ) -> list[str]:
        P = self.many.size
        if now.kind == "multiple":
            lines = [f"all ranks have {_times(now.factor, P)} one rank's"]
            if np.isclose(now.factor, P):
                lines.append(
                    "a loss that all ranks hold counts P times: F.reduce_from in place of "
                    "F.allreduce (with F.copy_to), loss / comm.size, or sums of gradients / "
                    "comm.size"
                )
            return lines
        if back.kind == "parts":
            return [
                "each rank has a part of it, and the parts add up to one rank's: nothing adds them",
                "F.copy_to where what all ranks hold enters divided work; for copies of a model "
                "mnpar.create_multi_node_optimizer",
            ]
        weights = self._weights(n)
        if weights and np.allclose(weights, 1 / P, rtol=1e-4):
            return [
                "each rank has that of its own samples, and their mean is one rank's: nothing "
                "averages them",
                "mnpar.create_multi_node_optimizer(optimizer, comm), or "
                "comm.multi_node_mean_grad(model)",
            ]
        if weights:
            shown = ", ".join([f"{w:.4g}" for w in weights])
            return [
                f"one rank's is the sum of the ranks' own gradients times {shown}",
                "means of uneven shards are weighted by their samples: "
                "mnpar.create_multi_node_optimizer does that",
            ]
        there = {rank: g for rank, g in found.items() if g is not None}
        first = next(iter(there.values()), None)
        for rank, g in there.items():
            if first is not None and g.shape == first.shape and not close(g, first, self.rtol):
                return [f"ranks {next(iter(there))} and {rank} have other gradients of it"]
        return []

    def _weights(self, n: int) -> list[float]:
        """Return by how much the gradients that backward left on each rank count in one rank's; of
        all parameters that each rank has a copy of.
        """
        mine, theirs = self.one.ranks[0].passes[n].leaves, self._leaves(n)
        whole: list[Array] = []
        parts: list[list[Array]] = [[] for _ in range(self.many.size)]
        for leaf in mine:
            copies = theirs.get(leaf.path, {})
            like = [one.value.shape == leaf.value.shape for one in copies.values()]
            if leaf.gradient is None or len(copies) < self.many.size or not all(like):
                continue
            whole.append(leaf.gradient)
            for rank, one in copies.items():
                parts[rank].append(
                    np.zeros_like(leaf.value) if one.gradient is None else one.gradient
                )
        return weights_of(whole, parts, 10 * self.rtol)

    def _losses(self) -> str:
        """Say how the ranks' losses make one rank's."""
        single = self.one.ranks[0].passes[0].losses
        ranks = [run.passes[0].losses for run in self.many.ranks if run.passes]
        there = [losses for losses in ranks if losses]
        if not single or not there:
            return ""
        whole = sum([value for value, _ in single])
        values = np.array([sum([value for value, _ in losses]) for losses in there])
        weights = np.array([losses[0][1] for losses in there])
        tolerance = 100 * self.rtol * max(abs(whole), 1e-30)
        for total, text in (
            (values, "the losses are one rank's"),
            (values.sum(), "the losses add up to one rank's"),
            ((weights * values).sum() / weights.sum(), "the weighted mean of losses is one rank's"),
            (values.mean(), "the mean of the losses is one rank's"),
        ):
            if np.abs(total - whole).max() <= tolerance:
                return f"; {text}"
        shown = ", ".join([f"{value:.6g}" for value in values[:4]])
        self.notes.append(
            f"the losses of {ranks_in_words(self.many.size)} ({shown}) are not one rank's ({whole:.6g}), "
            "nor add up to it: what weighs them comes later"
        )
        return ""

    # ---- the line ----

    def where(self, one: ProgramRun, many: ProgramRun, n: int, forward: bool) -> str:
        """Say on which line values, or gradients, part for good; from traced runs."""
        if one.error is not None or many.error is not None:
            return ""
        single = one.ranks[0].passes[n]
        others = [run.passes[n] for run in many.ranks if n < len(run.passes)]
        shared = [key for key in single.keys if any([key in other.inputs for other in others])]
        if not shared:
            return "(one rank runs other lines: no line to name)"
        values = [
            (key, self._wrong(single.inputs, [o.inputs for o in others], key)) for key in shared
        ]
        key, which = _parts_for_good(values)
        if key is not None:
            made = single.producer(key, which)
            source = f": its input {which} is not one rank's" + (
                f", the result of {line_of(made)}" if made else ""
            )
            return f"values part at {line_of(key)}{source}{self._rows(single, others, shared[0])}"
        if forward:
            return ""
        gradients = [
            (key, self._wrong(single.gradients, [o.gradients for o in others], key, True))
            for key in reversed(shared)
            if key in single.gradients
        ]
        key, _ = _parts_for_good(gradients)
        if key is None:
            return "values and gradients of all functions agree: what reduces or uses them does not"
        number = [k for k, _ in gradients].index(key)
        before = f", and agree at that of {line_of(gradients[number - 1][0])}" if number else ""
        return f"values agree; gradients part at the result of {line_of(key)}{before}"

    def _wrong(
        self,
        single: dict[Key, list[Array | None]],
        others: list[dict[Key, list[Array | None]]],
        key: Key,
        scaled: bool = False,
    ) -> int | None:
        """Return which of the ranks' arrays at a call do not make one rank's; None if all do."""
        for which, whole in enumerate(single[key]):
            parts = [o[key][which] if key in o and which < len(o[key]) else None for o in others]
            if whole is None or whole.dtype.kind not in "fc":
                continue
            found = relation(whole, parts, 100 * self.rtol)
            if found.agrees:
                continue
            there = [part for part in parts if part is not None]
            if scaled and self._rows_times(whole, there):
                continue
            return which
        return None

    def _rows_times(self, whole: Array, parts: Sequence[Array]) -> bool:
        """Return whether the arrays are rows of the whole, each rank's times a number: samples
        whose weight comes later.
        """
        if not whole.ndim or any([part.shape[1:] != whole.shape[1:] for part in parts]):
            return False
        if sum([len(part) for part in parts]) != len(whole):
            return False
        N = len(whole)
        scaled = [part * (len(part) / N) for part in parts]
        return relation(whole, scaled, 100 * self.rtol).agrees

    def _rows(self, single: Pass, others: list[Pass], key: Key) -> str:
        """Say if the ranks have other data together than one rank has."""
        whole = next((x for x in single.inputs[key] if x is not None and x.ndim), None)
        parts = [
            next((x for x in o.inputs.get(key, ()) if x is not None and x.ndim), None)
            for o in others
        ]
        there = [part for part in parts if part is not None]
        if whole is None or not there:
            return ""
        rows = sum([len(part) for part in there])
        alike = relation(whole, there, self.rtol).agrees
        if whole.shape[1:] == there[0].shape[1:] and rows != len(whole) and not alike:
            return (
                f"\n{_OTHER_DATA}: one rank's first function has {len(whole)} rows, the "
                f"{len(there)} ranks' together {rows}; cut the same batch for any number of ranks, "
                "or leave 1 out"
            )
        return ""


def _parts_for_good(found: list[tuple[Key, int | None]]) -> tuple[Key | None, int]:
    """Return the first call from which on arrays of each call are wrong, and which; None if those
    of the last one are right.
    """
    first: tuple[Key | None, int] = (None, 0)
    for key, which in reversed(found):
        if which is None:
            break
        first = (key, which)
    return first


def _some(paths: Iterable[str]) -> str:
    names = [*paths]
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _those(ranks: Sequence[int], all_of_them: Iterable[int]) -> str:
    if len(ranks) == len([*all_of_them]):
        return "no rank" if not ranks else "each rank"
    return f"rank {', '.join(map(str, ranks))}"


def _hooks(hooks: list[str]) -> str:
    return f" (hooks: {', '.join(hooks)})" if hooks else ""


def _times(factor: float, P: int) -> str:
    if np.isclose(factor, P):
        return f"P = {P} times"
    if np.isclose(factor, 1 / P):
        return f"1/P = 1/{P} of"
    return f"{factor:.6g} times"


def _scale(arrays: Iterable[Array | None]) -> float:
    return max([float(np.abs(x).max(initial=0)) for x in arrays if x is not None], default=0.0)


def _zeros(held: Held) -> Array:
    return np.zeros_like(held.value) if held.gradient is None else held.gradient
