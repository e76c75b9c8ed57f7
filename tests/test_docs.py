"""The documentation names what there is, and every public function has an example that runs."""

import doctest
import importlib.util
import inspect
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
