"""Write docs/reference.md: every public name with the first line of its docstring. ``python docs/make_reference.py``"""

import inspect
from pathlib import Path

import mnpar
import mnpar.functions
import mnpar.testing

GROUPS = (
    ("mnpar", mnpar),
    ("mnpar.functions", mnpar.functions),
    ("mnpar.plans", mnpar.plans),
    ("mnpar.links", mnpar.links),
    ("mnpar.function_hooks", mnpar.function_hooks),
    ("mnpar.link_hooks", mnpar.link_hooks),
    ("mnpar.computational_graph", mnpar.computational_graph),
    ("mnpar.initializers", mnpar.initializers),
    ("mnpar.optimizers", mnpar.optimizers),
    ("mnpar.datasets", mnpar.datasets),
    ("mnpar.dataset", mnpar.dataset),
    ("mnpar.iterators", mnpar.iterators),
    ("mnpar.training", mnpar.training),
    ("mnpar.training.updaters", mnpar.training.updaters),
    ("mnpar.training.triggers", mnpar.training.triggers),
    ("mnpar.training.extensions", mnpar.training.extensions),
    ("mnpar.training.extensions.snapshot_writers", mnpar.training.extensions.snapshot_writers),
    ("mnpar.extensions", mnpar.extensions),
    ("mnpar.gradient_check", mnpar.gradient_check),
    ("mnpar.testing", mnpar.testing),
    ("mnpar.Variable", mnpar.Variable),
    ("mnpar.Communicator", mnpar.Communicator),
)


def entries(owner):
    """Public names of a module (its __all__) or class, with their first lines."""
    names = getattr(owner, "__all__", None) or [n for n in vars(owner) if not n.startswith("_")]
    for name in sorted(names):
        thing = inspect.getattr_static(owner, name)
        text = inspect.getdoc(thing)
        if text and (callable(thing) or isinstance(thing, property)):
            yield name, text.splitlines()[0]


def page():
    """The text of the page."""
    lines = ["# Reference", "", "Shapes, errors and an example of each stand in its docstring: `help(mnpar.functions.send)`."]
    for title, owner in GROUPS:
        lines += ["", f"## {title}", "", "| name | |", "|---|---|"]
        lines += [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in entries(owner)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("reference.md").write_text(page())
