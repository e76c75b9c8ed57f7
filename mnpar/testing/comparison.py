"""Compare what one rank computed with what several did: starting values, gradients, weights; and
find the line where that parts.

The ranks' gradients say by arithmetic what has happened to them: they are parts of a sum, a
multiple, or means that were weighed otherwise. The inputs of all functions, and the gradients of
their results, say on which line: functions are compared by their source line and the order of
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from mnpar.backend import Array
from mnpar.testing.recording import Held, Key, Leaf, Pass, ProgramRun, line_of, ranks_text
from mnpar.testing.relations import Relation, close, joined, relation, weights_of

UNDECIDED = "this cannot be decided"
_ENLARGED = (
    "not compared: elements of {} whose gradients are of the size of rounding errors, which the "
    "optimizer enlarges; in float64 they are compared"
)
_HOOK = "backward's gradient agrees with one rank's; a hook of the optimizer changes it"


class RunComparison:
    """Compares a run on one rank with one on several.

    Args:
        one, many: the runs.
        rtol: how far numbers may be apart, relative to the largest of an array.
        rename: returns the path on one rank of a parameter that has another on some rank.

    Attributes:
        notes: what could not be decided.
        compared: what agrees, in words.
    """

    def __init__(
        self,
        one: ProgramRun,
        many: ProgramRun,
        rtol: float,
        rename: Callable[[str, int], str] | None,
    ) -> None:
        self.one, self.many, self.rtol, self.rename = one, many, rtol, rename
        self.notes: list[str] = []
        self.compared = ""
        # by path: the elements of which some step's gradient was of the size of rounding errors
        self._rounding: dict[str, Array] = {}

    def path(self, path: str, rank: int) -> str:
        """Return the path on one rank of a parameter of some rank."""
        return path if self.rename is None else self.rename(path, rank)

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
                count = ranks_text(self.many.size)
                if mine and not paths:
                    text = (
                        f"no parameter of one rank ({_some(mine)}) is on {count} ({_some(theirs)})"
                        f"\n{UNDECIDED}: give rename=, or leave 1 out of the ranks"
                    )
                    return text, n, "names"
                missing = [path for path in mine if mine[path].in_link and path not in theirs]
                if missing:
                    self.notes.append(f"not compared, as {count} do not use it: {_some(missing)}")
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
        change = _scale([single[p].value - mine[p].value for p in single if p in mine])
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
            self._note_rounding(path, held, [*found.values()], self.rtol * scale)
        for path in order:
            held, holders = single.get(path), many.get(path)
            if held is None or holders is None:
                continue
            values = {rank: other.value for rank, other in holders.items()}
            boxed = self._boxed(path, values)
            if not relation(held.value, boxed, 10 * self.rtol, 0.01 * change).agrees:
                if self._is_rounding(path, held.value, boxed, 0.1 * self.rtol * change):
                    self.notes.append(_ENLARGED.format(path))
                    continue
                like = {r: x for r, x in values.items() if x.shape == held.value.shape}
                wrong = [r for r, x in like.items() if not close(x, held.value, 10 * self.rtol)]
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

    def _note_rounding(
        self, path: str, held: Held, found: Sequence[Array | None], bound: float
    ) -> None:
        """Note the elements of a parameter whose gradients are rounding errors: no larger than
        ``bound``, and not the same on all ranks.
        """
        mine = _zeros(held)
        others = [np.zeros_like(mine) if g is None else g for g in found]
        if all([g.shape == mine.shape for g in others]):
            small = (np.abs(mine) <= bound) & np.any([g != mine for g in others], axis=0)
            self._rounding[path] = self._rounding.get(path, False) | small

    def _is_rounding(
        self, path: str, value: Array, found: Sequence[Array | None], bound: float
    ) -> bool:
        """Return whether weights differ only where gradients were of the size of rounding errors,
        which a step may enlarge: Adam divides a gradient by its size.
        """
        small = self._rounding.get(path)
        there = [x for x in found if x is not None]
        if small is None or not all([x.shape == value.shape for x in there]):
            return False
        bound = max(bound, 10 * self.rtol * float(np.abs(value).max(initial=0)))
        return all([bool((small | (np.abs(x - value) <= bound)).all()) for x in there])

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
            f"the losses of {ranks_text(self.many.size)} ({shown}) are not one rank's "
            f"({whole:.6g}), nor add up to it: what weighs them comes later"
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
        if whole.shape[1:] == there[0].shape[1:] and not alike:
            data = (
                f"{len(whole)} rows, the {len(there)} ranks' together {rows}"
                if rows != len(whole)
                else f"other rows than the {len(there)} ranks' together (an iterator on each rank "
                "draws samples of its own)"
            )
            return (
                f"\n{UNDECIDED}, as the ranks have other data: one rank's first function has "
                f"{data}; cut the same batch for any number of ranks, or leave 1 out"
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
