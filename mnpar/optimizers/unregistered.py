"""A warning of what an optimizer leaves as it is, although a program meant otherwise: links that a
Chain does not find.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from mnpar.link import Link
from mnpar.parameter import Parameter


def warn_of_lists(link: Link) -> None:
    """Warn of links in a list, a tuple or a dict, which a Chain does not search, if backward has
    given them gradients.

    Those that another optimizer updates, and those that are children of the link too, are meant to
    be there.
    """
    known = {id(one) for one in (*link.links(), *link.params())}
    for path, owner in link.namedlinks():
        for name, value in vars(owner).items():
            missed = [one for one in _parts(value) if id(one) not in known]
            if not name.startswith("_") and any(map(_is_forgotten, missed)):
                where = (
                    f"{path.rstrip('/')}/{name}, a {type(value).__name__} of a "
                    f"{type(owner).__name__},"
                )
                warnings.warn(
                    f"the parameters in {where} have gradients, but no optimizer updates them: "
                    "a mnpar.Chain finds the links "
                    "that are its attributes, and a mnpar.ChainList(*links) those in a row",
                    stacklevel=5,
                )


def _parts(value: Any) -> Iterable[Any]:
    return (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else (value,)
    )


def _is_forgotten(one: Any) -> bool:
    params: Iterator[Any] = (
        one.params() if isinstance(one, Link) else iter([one] if isinstance(one, Parameter) else [])
    )
    return any(param.update_rule is None and param.node.gradient is not None for param in params)
