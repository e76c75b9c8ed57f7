"""Packages whose names are imported when they are first asked for: ``import mnpar`` stays short
however much there is.

A package writes each public name once, in an import where type checkers, editors and the tests of
the layers read it, and lets :func:`names` carry the imports out one by one (PEP 562)::

    if TYPE_CHECKING:
        from mnpar.links.linear import Linear as Linear
    else:
        __getattr__, __dir__, __all__ = lazy.names(__name__)

``Linear as Linear`` says to type checkers that the name is public. What a type checker believes is
what a program gets. Only packages are lazy; files import what they need at their top. Threads that
ask at the same time meet in Python's own locks of modules, which order them as long as imports make
no circle, and tests/test_layers.py looks for circles in these imports as in all others. (From
Python 3.15 on this is ``lazy from mnpar.links.linear import Linear``, PEP 810.)
"""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from mnpar.hints import PACKAGES, explain_keywords, hint

# packages whose functions tell mnpar's words for the keywords of other libraries
EXPLAINED = (
    "mnpar",
    "mnpar.datasets",
    "mnpar.functions",
    "mnpar.iterators",
    "mnpar.links",
    "mnpar.optimizers",
    "mnpar.training.extensions",
)
_TOLD: dict[Any, Any] = {}  # those functions, and what packages hand out in their place
COMPAT = "mnpar.compat"  # its files are also found as mnpar's own: mnpar.cuda


def names(
    package: str, **above: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, ``__dir__`` and ``__all__``, from its imports.

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
    public, homes = _read(module)
    public += above
    homes |= {name: (home, name) for name, home in above.items()}

    def get(name: str) -> Any:
        if name not in homes:
            advice = hint(PACKAGES.get(package, {}), name)
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{advice}", name=name, obj=module
            )
        home, there = homes[name]
        try:
            value = importlib.import_module(home)
        except AttributeError as error:  # an AttributeError would say that there is no such name
            raise ImportError(f"{home} cannot be imported: {error}", name=home) from error
        found: Any = getattr(value, there) if there else value
        if isinstance(found, FunctionType) and package in EXPLAINED:
            found = _explained(found, package)
        # from now on Python finds it without asking here; threads that ask at once get the same
        return vars(module).setdefault(name, found)

    def listed() -> list[str]:
        """Return the names for ``dir`` and completion, without the package's files."""
        return sorted({*public, *(name for name in vars(module) if name.startswith("_"))})

    return get, listed, public


def _explained(function: Any, package: str) -> Any:
    """Return a function that tells words of other libraries, the same one in each package, under
    the name of the first, where pickle finds it; the function itself if it does that already.
    """
    if hasattr(function, "tells_keywords"):
        return function
    told = _TOLD.get(function)
    if told is None:
        told = _TOLD.setdefault(function, explain_keywords(function))
        if told is not function:
            told.__module__ = package
    return told


def names_above(module: str, **homes: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module: Chainer has some names there that mnpar defines in
    layers above, which the module may not import.

    Args:
        module: its ``__name__``.
        homes: for each name the module that defines it.

    Example:
        >>> import mnpar
        >>> mnpar.link.Chain is mnpar.Chain
        True
    """

    found: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name in found:
            return found[name]
        if name not in homes:
            raise AttributeError(
                f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module]
            )
        return found.setdefault(name, getattr(importlib.import_module(homes[name]), name))

    return get


def _read(package: ModuleType) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Return a package's public names, and the homes of those that are imported later: {name: (the
    module to import, the name that it has there)}, and (the module, "") of the package's own files.
    """
    lines = linecache.getlines(str(package.__file__), vars(package))
    if not lines:
        raise ImportError(
            f"{package.__name__} reads its imports from its source, and {package.__file__} is "
            "not there"
        )
    statements = ast.parse("".join(lines)).body
    blocks = [one for one in statements if isinstance(one, ast.If)]
    later = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    at_once = [line for line in statements if isinstance(line, ast.ImportFrom)]
    public = [alias.name for line in at_once + later for alias in line.names if alias.asname]
    homes = {}
    for statement in later:
        for alias in statement.names:
            module = str(statement.module)
            if module in (package.__name__, COMPAT):
                homes[alias.name] = (f"{package.__name__}.{alias.name}", "")
            else:
                homes[alias.name] = (module, alias.name)
    files = [home for home, _ in homes.values() if home.rpartition(".")[0] == package.__name__]
    return sorted(public), {file.rpartition(".")[2]: (file, "") for file in files} | homes
