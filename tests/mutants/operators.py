"""Mutation operators on the syntax tree of a program: a deterministic list of mistakes, each on one
rank or on all.

A mutant changes one statement. On one rank it is ``if comm.rank == r:`` around the changed
statement, with the right one in ``else:``.
"""

import ast
import copy
import functools
import itertools
import re
from dataclasses import dataclass
from functools import partial

NARROW, SHORTER = "narrow", "shorter"  # what outcomes.py gives to the programs
WORDS = ("rank", "root", "tag", "axis", "dest", "source", "axes", "rank_in", "rank_out")
REDUCTIONS = ("sum", "mean", "max")
COMMUNICATING = ("F", "comm", "mesh", "mnpar", "grid", "L", "group")


@dataclass(frozen=True)
class Mutant:
    """A program with one mistake.

    Attributes:
        operator: its kind.
        rank: that makes it; None: all.
        line: of the statement in the program.
        what: the mistake in words.
        change: what stands where in place of what.
    """

    program: object
    operator: str
    rank: int | None
    line: int
    what: str
    change: tuple

    def __str__(self):
        who = "all ranks" if self.rank is None else f"rank {self.rank}"
        return f"{self.program.name}:{self.line}, {self.operator} on {who}: {self.what}"

    @functools.cached_property
    def source(self):
        """The text of the whole program."""
        tree = ast.parse(self.program.source)
        where, instead = self.change
        _replace(tree, where, instead(), self.rank)
        return ast.unparse(ast.fix_missing_locations(tree))


@functools.cache
def mutants(program):
    """Return all mutants of a program, in one order."""
    return [
        Mutant(program, operator, rank, line, what, (where, instead))
        for number, (operator, line, what, where, instead) in enumerate(_changes(program.source))
        # what is misspelt is one text on all ranks
        for rank in ((None,) if operator == "misspell" else (None, number % program.ranks))
    ]


def _bodies(tree):
    """Return the paths of all lists of statements: how to reach each from the tree."""
    found = []

    def walk(node, path):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                found.append((*path, name))
                for i, one in enumerate(value):
                    walk(one, (*path, name, i))
            elif name == "handlers":
                for i, one in enumerate(value):
                    walk(one, (*path, name, i))

    walk(tree.body[0], ("body", 0))
    return found


def _at(tree, path):
    for step in path:
        tree = tree[step] if isinstance(step, int) else getattr(tree, step)
    return tree


def _replace(tree, where, instead, rank):
    """Put statements in place of some of a body."""
    path, first, last = where
    body = _at(tree, path)
    right = body[first:last]
    wrong = copy.deepcopy(list(instead))
    if rank is not None:
        test = ast.parse(f"comm.rank == {rank}", mode="eval").body
        if right and wrong:
            wrong = [ast.If(test, wrong, right)]
        elif wrong:
            wrong = [ast.If(test, wrong, [])]
        else:
            test = ast.parse(f"comm.rank != {rank}", mode="eval").body
            wrong = [ast.If(test, right, [])]
    body[first:last] = wrong or ([ast.Pass()] if len(right) == len(body) else [])


def _changes(source):
    """Yield all changes: the operator, the line, in words, where, and what returns the statements
    instead.
    """
    tree = ast.parse(source)
    top = ("body", 0, "body")
    misspelt = set()
    for path in _bodies(tree):
        body = _at(tree, path)
        for i, one in enumerate(body):
            if isinstance(one, ast.Return) and path == top:
                continue  # what is compared
            text = _short(one)
            here = (path, i, i + 1)
            make = isinstance(one, ast.FunctionDef | ast.ClassDef)
            if not make and not isinstance(one, ast.Return):
                yield "drop", one.lineno, text, here, list
                yield "repeat", one.lineno, text, here, partial(list, (one, one))
                after = body[i + 1] if i + 1 < len(body) else None
                if after is not None and not isinstance(
                    after, ast.FunctionDef | ast.ClassDef | ast.Return
                ):
                    swapped = (path, i, i + 2)
                    both = f"{text} | {_short(after)}"
                    yield "swap", one.lineno, both, swapped, partial(list, (after, one))
            if not make and i % 3 == 1:
                early = "return result()" if _belongs_to_program(tree, path) else "return None"
                for how in (early, "raise OSError('no file')"):
                    instead = ast.parse(how, mode="exec").body
                    yield (
                        how.split()[0],
                        one.lineno,
                        f"before {text}",
                        (path, i, i),
                        partial(list, instead),
                    )
            if isinstance(one, ast.With):
                yield "no with", one.lineno, text, here, partial(list, one.body)
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name | ast.Tuple):
                for name in ast.walk(one.targets[0]):
                    if isinstance(name, ast.Name):
                        for how in (NARROW, SHORTER):
                            more = ast.parse(f"{name.id} = {how}({name.id})").body
                            yield how, one.lineno, name.id, here, partial(list, (one, *more))
            if not make:
                for operator, what, changed in _expressions(one, misspelt):
                    yield operator, one.lineno, what, here, changed


def _belongs_to_program(tree, path):
    """Whether a ``return`` in this body would end the program, and not a function in it."""
    inner = [_at(tree, path[:n]) for n in range(3, len(path) + 1)]
    return not any(isinstance(node, ast.FunctionDef) for node in inner)


def _short(node):
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) < 60 else text[:57] + "..."


def _own_nodes(statement):
    """Yield (parent, field, index) of the expressions of a statement, without those of statements
    in it.
    """

    def walk(node):
        for name, value in ast.iter_fields(node):
            values = value if isinstance(value, list) else [value]
            for i, one in enumerate(values):
                if isinstance(one, ast.AST) and not isinstance(one, ast.stmt):
                    yield node, name, i if isinstance(value, list) else None, one
                    yield from walk(one)

    yield from walk(statement)


def _expressions(statement, misspelt):
    """Yield the changes of a statement's expressions: the operator, in words, and what returns the
    statements instead.
    """
    text = _short(statement)
    for n, (_, _, _, original) in enumerate(_own_nodes(statement)):
        for operator, what, new in _instead(original, misspelt):
            yield operator, f"{what} in {text}", partial(_changed, statement, n, new)
    if isinstance(statement, ast.For) and _called(statement.iter) == "range":
        for step in (-1, 1):
            yield "loop", f"{step:+} step", partial(_longer, statement, step)


def _changed(statement, n, new):
    """Return the statement with another expression in place of its nth."""
    changed = copy.deepcopy(statement)
    parent, name, i, _ = next(itertools.islice(_own_nodes(changed), n, None))
    if i is None:
        setattr(parent, name, new)
    else:
        getattr(parent, name)[i] = new
    return [changed]


def _longer(loop, step):
    """Return a loop over a range with another end."""
    changed = copy.deepcopy(loop)
    last = changed.iter.args[-1]
    changed.iter.args[-1] = ast.BinOp(last, ast.Add(), ast.Constant(step))
    return [changed]


def _called(node):
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _is_communicator(node):
    text = ast.unparse(node)
    return re.fullmatch(r"(self\.)?(comm|group|grid)|(self\.)?mesh(\.\w+|\.grid\(.*\))?", text)


def _root_name(node):
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _instead(node, misspelt):
    """Yield what may stand in place of an expression: the operator, in words, the expression."""
    if isinstance(node, ast.Call):
        yield from _calls(node, misspelt)
    if isinstance(node, ast.Attribute):
        yield from _attributes(node, misspelt)
    if isinstance(node, ast.Constant):
        if node.value in REDUCTIONS:
            for other in REDUCTIONS:
                if other != node.value:
                    yield "reduction", f"{node.value} -> {other}", ast.Constant(other)
        if isinstance(node.value, bool):
            yield "flip", f"{node.value} -> {not node.value}", ast.Constant(not node.value)
    if isinstance(node, ast.Name) and node.id == "comm" and isinstance(node.ctx, ast.Load):
        half = ast.parse("comm.split(comm.rank % 2, comm.rank)", mode="eval").body
        yield "communicator", "comm -> a half", half
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        yield "factor", f"without {_short(node.right)}", node.left
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield "summand", f"without {_short(node.right)}", node.left


def _calls(node, misspelt):
    for i, word in enumerate(node.keywords):
        less = copy.deepcopy(node)
        del less.keywords[i]
        yield "no keyword", f"without {ast.unparse(word)}", less
        if word.arg and word.arg not in misspelt:
            misspelt.add(word.arg)
            other = copy.deepcopy(node)
            other.keywords[i].arg = _misspell(word.arg)
            yield "misspell", f"{other.keywords[i].arg}=", other
        if word.arg in WORDS:
            for step in (1, -1):
                other = copy.deepcopy(node)
                other.keywords[i].value = ast.BinOp(word.value, ast.Add(), ast.Constant(step))
                yield "number", f"{word.arg} {step:+}", other
    wrapped = [one for one in node.args if not _is_communicator(one)]
    if len(node.args) > 1 and len(wrapped) < len(node.args) and wrapped:
        yield "no wrapper", f"without {_short(node.func)}", wrapped[0]
    if _root_name(node.func) in COMMUNICATING:
        for i, one in enumerate(node.args):
            if isinstance(one, ast.Constant) and type(one.value) is int:
                for step in (1, -1):
                    other = copy.deepcopy(node)
                    other.args[i] = ast.Constant(one.value + step)
                    yield "number", f"{one.value} {step:+}", other
    if isinstance(node.func, ast.Attribute) and _root_name(node.func) in ("F", "comm"):
        pairs = (("sum", "mean"), ("mean", "sum"), ("allreduce", "reduce_from"))
        pairs += (("reduce_from", "allreduce"),)
        for name, instead in pairs:
            if node.func.attr == name and _root_name(node.func) != "comm":
                other = copy.deepcopy(node)
                other.func.attr = instead
                yield "reduction", f"{name} -> {instead}", other


def _attributes(node, misspelt):
    text = ast.unparse(node)
    if isinstance(node.ctx, ast.Load) and re.fullmatch(r"(self\.)?mesh\.\w+", text):
        for axis in ("data", "model", "comm"):
            if node.attr != axis and node.attr in ("data", "model"):
                yield "communicator", f"{text} -> {axis}", ast.Attribute(node.value, axis, node.ctx)
    if node.attr not in misspelt:
        misspelt.add(node.attr)
        wrong = _misspell(node.attr)
        yield "misspell", f".{wrong}", ast.Attribute(node.value, wrong, node.ctx)


def _misspell(word):
    swapped = word[:-2] + word[-2:][::-1]
    return swapped if swapped != word else word + "s"
