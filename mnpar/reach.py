"""Questions about the whole graph that backward asks: what leads to what, and who reads a leaf first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mnpar.graph import Function, VariableNode


def leads_to(
    targets: Sequence[VariableNode], roots: Sequence[VariableNode], records: Sequence[Function]
) -> Callable[[VariableNode], bool]:
    """Which variables depend on a target, or on what a communication gave (what that depends on, only its peers know)."""
    functions = {f.number: f for f in records}
    stack = [f for f in [*records, *(node.creator for node in roots)] if f is not None]
    while stack:
        function = stack.pop()
        functions[function.number] = function
        creators = (x.creator for x in function.inputs)
        stack += [f for f in creators if f is not None and f.number not in functions]
    keys = {node.key for node in targets}
    for _, function in sorted(functions.items()):
        if function.communicates or any(x.key in keys for x in function.inputs):
            keys.update((function.number, i) for i in range(len(function.outputs)))
    return lambda node: node.key in keys


def leaves_of(root: VariableNode) -> list[VariableNode]:
    """The leaves that a value depends on, each once."""
    stack, seen = [root], set()
    found: dict[VariableNode, None] = {}
    while stack:
        node = stack.pop()
        if node.creator is None:
            found[node] = None
        elif node.creator.number not in seen:
            seen.add(node.creator.number)
            stack += node.creator.inputs
    return list(found)


def earliest_readers(functions: dict[int, Function]) -> dict[VariableNode, tuple[int, int]]:
    """For each leaf with hooks, the number of the function that read it first, and which of its inputs the leaf is."""
    stack, seen = list(functions.values()), set(functions)
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
