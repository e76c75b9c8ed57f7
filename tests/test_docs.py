"""The documentation names what there is, and every public function has an example that runs."""

import doctest
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import mnpar
import mnpar.functions

DOCS = Path(__file__).parents[1] / "docs"


def reference():
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_page_is_up_to_date():
    assert (DOCS / "reference.md").read_text() == reference().page(), "run python docs/make_reference.py"


@pytest.mark.parametrize("owner", [mnpar, mnpar.functions], ids=["mnpar", "mnpar.functions"])
def test_every_public_function_has_an_example(owner):
    finder = doctest.DocTestParser()
    missing = []
    for name in owner.__all__:
        thing = getattr(owner, name)
        if not (inspect.isfunction(thing) or inspect.isclass(thing)) or name in ("as_variable", "get_current_reporter"):
            continue
        text = inspect.getdoc(thing) or ""
        if not finder.get_examples(text) and "See :func:" not in text and "Example:" not in text:
            missing.append(name)
    assert not missing


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md") if ">>> " in path.read_text()))
def test_the_programs_of_a_page_print_what_it_says(page):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=flags, encoding="utf-8")
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_a_page_names_what_there_is(page):
    """Functions as F.name, links as L.name, files of the examples."""
    text = (DOCS / page).read_text()
    for letter, module in (("F", mnpar.functions), ("L", mnpar.links)):
        names = set(re.findall(rf"\b{letter}\.(\w+)", text))
        assert sorted(name for name in names if not name.endswith("_") and not hasattr(module, name)) == []
    assert [path for path in re.findall(r"examples/\w+\.py", text) if not (DOCS.parent / path).exists()] == []
