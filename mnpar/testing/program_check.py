"""Is a parallel program right? Compare what it computes on several ranks with what it computes on
one, and with finite differences.

The program is run as it is, on thread ranks, in float64 and from the same random state each time.
What its ranks have after each backward and each step of an optimizer is compared with one rank's:
where that parts, the ranks' gradients say by arithmetic what has happened (they are parts of a sum,
or a multiple), and the values and gradients of all functions say on which line. Finite differences
say whether backward is right at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mnpar.communicators.communicator import described
from mnpar.testing.comparison import UNDECIDED, RunComparison
from mnpar.testing.finite_differences import FiniteDifferences
from mnpar.testing.recording import Program, ProgramRun, ranks_text, record

_LINES = 25  # of a report, at most


@dataclass
class CheckResult:
    """The findings of :func:`mnpar.check`, which print as a report.

    Attributes:
        ok: whether everything that was compared agrees.
        problems: what is wrong, one text for each number of ranks, of several lines.
        notes: what could not be decided, and what else is worth knowing.
        compared: what agrees, one line each.
        checked: False if the program could not be checked: it fails, does not call backward, does
            something else each time, or has other data on one rank; or nothing could be decided.

    Example:
        >>> import mnpar
        >>> result = mnpar.check(lambda comm: comm.barrier(), ranks=2)
        >>> result.ok, result.checked
        (False, False)
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
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
        lines = [("right:" if self.ok else "wrong:") if self.checked else "not checked:"]
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
    result.checked = result.checked and bool(result.compared or result.problems)
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
    given = ranks if isinstance(ranks, Iterable) else (1, ranks)
    counts = tuple(dict.fromkeys(given))
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
            self.result.notes.append(f"on {ranks_text(run.size)}: {text}")
        if run.error is not None:
            name = type(run.error).__name__
            lines = str(run.error).splitlines() or [""]
            more = ["  …"] if len(lines) > 9 else []
            first = f"on {ranks_text(run.size)} the program fails: {name}: {lines[0]}"
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
                f"on {ranks_text(run.size)} the program never calls backward (nor an optimizer's "
                "update with a loss function): there is nothing to compare"
            )
            return False
        return True

    def _usable(self, program: Program, run: ProgramRun, again: bool = True) -> bool:
        """Return whether a run ended well, and a second one does the same."""
        if not self._finished(run):
            return False
        dtypes = [leaf.value.dtype for rank in run.ranks for p in rank.passes for leaf in p.leaves]
        dtypes += [dtype for rank in run.ranks for dtype in rank.dtypes]
        narrow = [d for d in dtypes if d.kind == "f" and np.finfo(d).eps > np.finfo("d").eps]
        if narrow:
            widest = max(narrow, key=lambda d: np.finfo(d).eps)
            self.rtol = self.given_rtol or 500 * float(np.finfo(widest).eps)
            self.result.notes.append(
                f"the program itself computes in {widest}: compared with {self.rtol:.0e}"
            )
        if not again:
            return True
        twice = self.record(program, run.size)
        if twice.error is None and all(map(_same_losses, run.ranks, twice.ranks)):
            return True
        self.result.checked = False
        drawn = next((f" ({rank.is_random})" for rank in run.ranks if rank.is_random), "")
        self.result.problems.append(
            f"two runs on {ranks_text(run.size)} differ, so nothing can be compared: random "
            f"numbers that no seed fixes{drawn}, such as np.random.default_rng() without a seed, "
            "or something that is kept outside of the program, such as a model"
        )
        return False

    # ---- finite differences ----

    def _differences(self, program: Program, run: ProgramRun, n: int = -1) -> bool:
        """Compare the gradients of a pass, by default the last one, with finite differences of the
        losses; return whether they agree, as far as that can be decided.
        """
        # a rank may be left over, and do nothing
        last = min([len(rank.passes) for rank in run.ranks if rank.passes]) - 1
        last = min(n, last) if n >= 0 else last
        again = partial(self.record, program, run.size)
        differences = FiniteDifferences(again, run, last, self.seed)
        verdict = differences.verdict()
        what = f"on {ranks_text(run.size)}: gradients of backward {last + 1}"
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
        title = f"{ranks_text(many.size)} and one"
        drawn = next((r.is_random for r in [*one.ranks, *many.ranks] if r.is_random), "")
        comparison = RunComparison(one, many, self.rtol, self.rename)
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
        if stage in ("start", "gradient") and self.reference is None and not self.result.problems:
            where = comparison.where(
                self.record(alone, 1, traced=n),
                self.record(self.program, many.size, traced=n),
                n,
                stage == "start",
            )
        self.result.problems.append("\n".join([f"{title}: {problem}", *filter(None, [where])]))
        if UNDECIDED in problem + where or drawn:
            self.result.checked = False
        self.result.notes += comparison.notes


def _same_losses(a: Any, b: Any) -> bool:
    return len(a.passes) == len(b.passes) and all(
        [
            np.allclose(x.loss, y.loss, rtol=1e-12, atol=0, equal_nan=True)
            for x, y in zip(a.passes, b.passes, strict=True)
        ]
    )
