"""How each function works on divided arrays: a rule for each, in a table by FunctionNode."""

from __future__ import annotations

from mnpar.function_node import FunctionNode
from mnpar.functions.divided.layout import Rule
from mnpar.functions.divided.rules import (
    losses,
    normalization,
    products,
    reductions,
    shapes,
    windows,
)
from mnpar.functions.divided.rules.elementwise import elementwise
from mnpar.functions.divided.rules.table import RULES, WITH_HALOS

_ = (
    losses,
    normalization,
    products,
    reductions,
    shapes,
    windows,
)  # they enter their rules in the table


def rule_of(node: type[FunctionNode], halos: bool = False) -> Rule | None:
    """Return the rule of a kind of function; None: it has none, or with ``halos`` none that works
    on parts with halos.
    """
    rule = RULES.get(node) or (elementwise if node.elementwise else None)
    return None if halos and rule is not elementwise and node not in WITH_HALOS else rule
