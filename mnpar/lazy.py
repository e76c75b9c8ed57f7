"""Packages whose names are imported when they are first asked for: ``import mnpar`` stays short
however much there is.

A package writes its imports as usual, where type checkers, editors and the tests of the layers read
them, and lets :func:`names` carry them out one by one (PEP 562)::

    if TYPE_CHECKING:
        from mnpar.links.linear import Linear
    else:
        __getattr__, __dir__ = lazy.names(__name__)

The statements are the only table there is: what a type checker believes is what a program gets.
Only packages are lazy; files import what they need at their top. Threads that ask at the same time
meet in Python's own locks of modules, which order them as long as imports make no circle, and
tests/test_layers.py looks for circles in these imports as in all others. (From Python 3.15 on this
is ``lazy from mnpar.links.linear import Linear``, PEP 810.)
"""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mnpar.hints import PACKAGES, hint

__all__ = ["names"]


def names(package: str, **above: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``, from the imports that it has for type checkers.

    Args:
        package: its ``__name__``.
        above: names from layers above the package's, which it may not import: the module of each
            name.

    Raises:
        ImportError: where the name is asked for, as the import itself would.

    Example:
        >>> import mnpar.links as L
        >>> "Linear" in dir(L), L.Linear.__module__
        (True, 'mnpar.links.linear')
    """
    module = sys.modules[package]
    homes = _homes(module) | {name: (home, name) for name, home in above.items()}

    def get(name: str) -> Any:
        if name not in homes:
            there = hint(PACKAGES.get(package, {}), name)
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{there}", name=name, obj=module
            )
        home, there = homes[name]
        try:
            value = importlib.import_module(home)
        except (
            AttributeError
        ) as error:  # of the module's code: it would pass for one that says there is no such name
            raise ImportError(f"{home} cannot be imported: {error}", name=home) from error
        value = getattr(value, there) if there else value
        setattr(module, name, value)  # from now on Python finds it without asking here
        return value

    def public() -> list[str]:
        """The names for ``dir`` and completion: without the package's files, which would stand
        between the functions.
        """
        return sorted(
            {
                *vars(module).get("__all__", homes),
                *(name for name in vars(module) if name.startswith("_")),
            }
        )

    return get, public


def _homes(package: ModuleType) -> dict[str, tuple[str, str]]:
    """{name: (the module to import, the name that it has there)}, and (the module, "") of the
    package's own files.
    """
    lines = linecache.getlines(str(package.__file__), vars(package))
    if not lines:
        raise ImportError(
            f"{package.__name__} reads its imports from its source, and {package.__file__} is "
            "not there"
        )
    blocks = [one for one in ast.parse("".join(lines)).body if isinstance(one, ast.If)]
    homes = {}
    for statement in [
        line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)
    ]:
        for alias in statement.names:
            module = str(statement.module)
            own = module == package.__name__
            homes[alias.asname or alias.name] = (
                (f"{module}.{alias.name}", "") if own else (module, alias.name)
            )
    files = [home for home, _ in homes.values() if home.rpartition(".")[0] == package.__name__]
    return {file.rpartition(".")[2]: (file, "") for file in files} | homes
