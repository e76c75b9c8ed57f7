"""Names of packages are imported when they are first asked for, and are what imports at the top
would have given.
"""

import ast
import importlib
import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest

import mnpar
from mnpar import lazy
from tests.test_layers import FILES, MODULES, module

NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)
PACKAGES = [  # those that have names of their own
    pytest.param(name, marks=NEEDS_TORCH if name == "mnpar.torch" else ())
    for path in FILES
    if path.name == "__init__.py" and "__all__" in path.read_text(encoding="utf-8")
    for name in [f"mnpar.{module(path)}" if path.parent.name != "mnpar" else "mnpar"]
]


def fresh(code, *arguments):
    """What a Python of its own prints."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    ).stdout.split()


def test_import_mnpar_imports_the_core_and_communicators_only():
    loaded = set(fresh("import sys, mnpar; print(*sys.modules)"))
    assert {"mnpar.variable", "mnpar.communicators.mpi.library"} <= loaded
    heavy = {
        "argparse",
        "concurrent.futures",
        "importlib.metadata",
        "statistics",
        "subprocess",
        "tarfile",
        "tempfile",
        "zipfile",
    }
    later = {
        f"mnpar.{name}"
        for name in (
            "links",
            "datasets",
            "training",
            "extensions",
            "checkpoint",
            "iterators",
            "launch",
        )
    }
    assert not loaded & (heavy | later)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_all_names_that_it_says(name):
    package = importlib.import_module(name)
    listed = package.__all__
    assert sorted(set(listed)) == sorted(listed)
    assert set(listed) <= set(dir(package))
    if "__dir__" in vars(package):
        # no files come between them
        assert {one for one in dir(package) if not one.startswith("_")} <= set(listed)
    for one in listed:
        assert getattr(package, one) is vars(package)[one]


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_is_that_of_another_file(name):
    """``from package.name import …`` puts the file in its place: what the name is would depend on
    who has imported what.
    """
    names = lazy._read(importlib.import_module(name))[1]
    assert not [
        one
        for one, (_, there) in names.items()
        if there and f"{name}.{one}".removeprefix("mnpar.") in MODULES
    ]


@pytest.mark.parametrize("name", PACKAGES)
def test_what_a_package_imports_for_type_checkers_is_public(name):
    tree = ast.parse(Path(importlib.import_module(name).__file__).read_text(encoding="utf-8"))
    blocks = [one for one in tree.body if isinstance(one, ast.If) and one.orelse]
    imported = {
        alias.asname or alias.name
        for block in blocks
        for line in block.body
        for alias in line.names
    }
    assert imported <= set(importlib.import_module(name).__all__)


@pytest.mark.parametrize(
    "statement", ["from mnpar.functions import *", "from mnpar import functions; functions.relu"]
)
def test_a_name_is_the_same_however_it_is_asked_for(statement):
    code = (
        f"{statement}\nfrom mnpar.functions import relu as a\nfrom mnpar.functions.activation.relu "
        "import relu as b\nimport inspect, mnpar.functions as F, pickle\n"
        "print(a is F.relu, inspect.unwrap(a) is b, pickle.loads(pickle.dumps(a)) is a)"
    )
    assert fresh(code) == ["True", "True", "True"]


def test_threads_that_ask_at_once_get_the_same():
    code = """
import sys, threading
import mnpar
sys.setswitchinterval(1e-6)
start, found = threading.Barrier(8), [[] for _ in range(8)]
def ask(mine, order):
    start.wait()
    mine += [getattr(package, name) for package in (mnpar, mnpar.functions, mnpar.links)
             for name in package.__all__[::order] if not package.__all__[0].startswith("_")]
threads = [threading.Thread(target=ask, args=(mine, (-1) ** i)) for i, mine in enumerate(found)]
for thread in threads: thread.start()
for thread in threads: thread.join()
even, odd = all(a == found[0] for a in found[::2]), all(a == found[1] for a in found[1::2])
print(even, odd, len(found[0]) == len(found[1]) > 400)
"""
    assert fresh(code) == ["True", "True", "True"]


def test_files_of_a_package_are_there_as_if_all_had_been_imported():
    code = (
        "import mnpar; print(mnpar.links.linear.__name__, "
        "mnpar.training.trainer.Trainer.__name__, mnpar.reporter.__name__)"
    )
    assert fresh(code) == ["mnpar.links.linear", "Trainer", "mnpar.reporter"]


def test_what_no_package_has_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match=r"^module 'mnpar.links' has no attribute 'Lineal'"):
        mnpar.links.Lineal  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Lineal'"):
        exec("from mnpar.links import Lineal")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A lazy package of one file; it is given the text of that file."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text):
        (tmp_path / "tried").mkdir()
        (tmp_path / "tried" / "__init__.py").write_text(
            "from typing import TYPE_CHECKING\nfrom mnpar import lazy\nif TYPE_CHECKING:\n"
            "    from tried import file as file\n    from tried.file import thing as thing\n"
            "else:\n"
            "    __getattr__, __dir__, __all__ = lazy.names(__name__, parent='mnpar.links')\n"
        )
        (tmp_path / "tried" / "file.py").write_text(text)
        return importlib.import_module("tried")

    yield make
    for name in ("tried", "tried.file"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "how",
    [
        "import tried; tried.thing",
        "from tried import thing",
        "import tried; hasattr(tried, 'thing')",
    ],
)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nosuchlibrary", "No module named 'nosuchlibrary'"),
        ("None.nothing", "cannot be imported: 'NoneType' object has no"),
    ],
    ids=["missing", "wrong"],
)
def test_a_file_that_cannot_be_imported_is_no_missing_name(package, how, text, said):
    tried = package(text)  # noqa: F841 - of the statement
    with pytest.raises(ImportError, match=said):
        exec(how)


def test_a_file_is_imported_once_and_only_when_it_is_asked_for(package):
    tried = package(
        "import builtins\nbuiltins.count = getattr(builtins, 'count', 0) + 1\nthing = object()"
    )
    assert {"thing", "parent"} <= set(dir(tried))
    assert "tried.file" not in sys.modules
    assert tried.thing is tried.thing is tried.file.thing


def test_a_package_without_its_source_says_so(package, tmp_path):
    with pytest.raises(ImportError, match="reads its imports from its source"):
        lazy._read(types.SimpleNamespace(__name__="gone", __file__=str(tmp_path / "gone.pyc")))
