"""Questions about the whole graph that backward asks: which variables depend on others, and what
reads a leaf first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from mnpar.graph import Function, VariableNode


def leads_to(
    targets: Sequence[VariableNode], roots: Sequence[VariableNode], records: Sequence[Function]
) -> Callable[[VariableNode], bool]:
    """A predicate: does a variable depend on a target, or on a communication (only its peers know
    what that depends on)?

    A communication that is not to be visited (another tape's) counts only where targets do not hide
    it: it is an error then. It does not count if it took place before there was any target, or if
    it has heard of nobody.
    """
    first = min([x.index if x.creator is None else x.creator.number for x in targets], default=0)
    visited = {f.number: f for f in records}
    keys = {node.key for node in targets}
    functions = visited | _reached([*roots, *(x for f in records for x in f.inputs)])
    others = [
        n
        for n, f in functions.items()
        if f.communicates and n > first and n not in visited and not f.local
    ]
    heard = visited.keys() | (_reached(roots, keys).keys() & set(others) if others else set())
    for number, function in sorted(functions.items()):
        if number in heard or any(x.key in keys for x in function.inputs):
            keys.update((number, i) for i in range(len(function.outputs)))
    return lambda node: node.key in keys


def _reached(roots: Sequence[VariableNode], stops: Collection[Any] = ()) -> dict[int, Function]:
    """The functions that computed ``roots``, by number; the search does not go on behind nodes with
    a key in ``stops``.
    """
    functions: dict[int, Function] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        function = node.creator
        if function is not None and function.number not in functions and node.key not in stops:
            functions[function.number] = function
            stack += function.inputs
    return functions


def unchain(root: VariableNode) -> None:
    """Detach a variable and all that it was computed from; not communications on a tape, which
    backward has still to visit.
    """
    stack = [root.creator]
    while stack:
        function = stack.pop()
        if function is not None and not function.awaited:
            stack += [x.creator for x in (*function.inputs, *function.behind)]
            for output in filter(None, [reference() for reference in function.outputs]):
                output.creator = None


def earliest_readers(functions: dict[int, Function]) -> dict[VariableNode, tuple[int, int]]:
    """For each leaf with hooks, the number of the function that read it first, and which of its
    inputs the leaf is.
    """
    stack = list(functions.values())
    seen = set(functions)
    readers: dict[VariableNode, tuple[int, int]] = {}
    while stack:
        function = stack.pop()
        for i, x in enumerate(function.inputs):
            if x.creator is None:
                if x.hooks:
                    readers[x] = min(readers.get(x, (function.number, i)), (function.number, i))
            elif x.creator.number not in seen:
                seen.add(x.creator.number)
                stack.append(x.creator)
    return readers
