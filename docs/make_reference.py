"""The pages of the reference, one for each module: a table of its names, and their docstrings.
Sphinx's conf.py calls it.

Nothing that it writes is kept in the repository: the docstrings are the only place.
"""

import functools
import inspect
from pathlib import Path

import mnpar

MODULES = (
    ("mnpar", "Variables, links, communicators, data and training over ranks"),
    ("mnpar.functions", "differentiable functions, communications among them"),
    ("mnpar.links", "layers"),
    ("mnpar.parallel", "copies of models, pipelines, parameter servers"),
    ("mnpar.plans", "who has what and who wants what, as boxes"),
    ("mnpar.optimizers", "rules that change parameters"),
    ("mnpar.optimizers.hooks", "what they do besides"),
    ("mnpar.initializers", "first values of parameters"),
    ("mnpar.datasets", "data, and their parts for ranks"),
    ("mnpar.dataset", "examples made into batches"),
    ("mnpar.iterators", "batches, one after the other"),
    ("mnpar.meters", "running values of training, over ranks"),
    ("mnpar.training", "the trainer"),
    ("mnpar.training.updaters", "one step of training"),
    ("mnpar.training.triggers", "when something is to happen"),
    ("mnpar.training.extensions", "what is done besides training"),
    ("mnpar.training.extensions.snapshot_writers", "who writes snapshots"),
    ("mnpar.extensions", "extensions over ranks"),
    ("mnpar.checkpoint", "checkpoints of all ranks"),
    ("mnpar.serializers", "files of one rank"),
    ("mnpar.reporter", "values that links report"),
    ("mnpar.function_hooks", "what to do around functions"),
    ("mnpar.link_hooks", "what to do around links"),
    ("mnpar.computational_graph", "the graph as a drawing"),
    ("mnpar.gradient_check", "gradients against differences"),
    ("mnpar.testing", "tests over ranks"),
    ("mnpar.launch", "starting ranks"),
    ("mnpar.backends.cuda", "arrays on GPUs"),
    ("mnpar.utils", "small helpers"),
    ("mnpar.global_except_hook", "ChainerMN's hook, for programs that call it"),
    ("mnpar.random", "random numbers"),
    ("mnpar.errors", "what is raised"),
)


def find(name):
    """The module of this dotted name."""
    module = mnpar
    for part in name.split(".")[1:]:
        module = getattr(module, part)
    return module


def public(module):
    """The names of a module that have docstrings of their own: what __all__ says, or what is
    defined there.
    """
    names = getattr(module, "__all__", None)
    if names is None:
        defined = (inspect.isfunction, inspect.isclass)
        here = [n for n, thing in vars(module).items() if any([is_it(thing) for is_it in defined])]
        names = [
            n
            for n in here
            if getattr(module, n).__module__ == module.__name__ and not n.startswith("_")
        ]
    return [
        n
        for n in names
        if inspect.isroutine(getattr(module, n)) or inspect.isclass(getattr(module, n))
    ]


def own(name):
    """The names whose entries are on this page, and where those of its other names are: each is on
    the first that has it.
    """
    before = [one for one, _ in MODULES[: [one for one, _ in MODULES].index(name)]]
    mine, elsewhere = [], {}
    for one in sorted(public(find(name)), key=str.lower):
        thing = getattr(find(name), one)
        homes = [
            home
            for home in before
            if one in public(find(home)) and getattr(find(home), one) is thing
        ]
        if homes:
            elsewhere[one] = homes[0]
        else:
            mine.append(one)
    return mine, elsewhere


@functools.cache
def placed():
    """All that has an entry."""
    return {getattr(find(one), thing) for one, _ in MODULES for thing in own(one)[0]}


def ends(name):
    """Where the inherited members of a page's classes end: at bases that have entries of their own,
    and at Python's classes.
    """
    classes = [
        thing
        for thing in (getattr(find(name), one) for one in own(name)[0])
        if inspect.isclass(thing)
    ]
    bases = {base for thing in classes for base in thing.__mro__[1:]} | {object}
    return sorted(
        {
            base.__name__
            for base in bases
            if base in placed() or not base.__module__.startswith("mnpar")
        }
    )


def page(name):
    """The page of a module, in reStructuredText, as docstrings are."""
    mine, elsewhere = own(name)
    text = f"{name}\n{'=' * len(name)}\n\n.. currentmodule:: {name}\n\n"
    if mine:
        text += (
            ".. autosummary::\n   :nosignatures:\n\n"
            + "".join(f"   {one}\n" for one in mine)
            + "\n"
        )
    if elsewhere:
        links = ", ".join(f":obj:`{home}.{one}`" for one, home in elsewhere.items())
        text += f"Also here: {links}.\n\n"
    text += (
        f".. automodule:: {name}\n   :members:\n   :inherited-members: {', '.join(ends(name))}\n"
    )
    return text + (f"   :exclude-members: {', '.join(elsewhere)}\n" if elsewhere else "")


def index():
    """The page that leads to them."""
    rows = "".join(f"* :doc:`{name}`: {text}\n" for name, text in MODULES)
    toctree = ".. toctree::\n   :hidden:\n\n" + "".join(f"   {name}\n" for name, _ in MODULES)
    intro = (
        "Each entry says what the name does not; then shapes, dtypes, what is raised, and an "
        "example that runs.\n"
    )
    return (
        f"Reference\n=========\n\n{intro}``help(mnpar.functions.send)`` prints the "
        f"same.\n\n{rows}\n{toctree}"
    )


def write(folder):
    """Write the pages that have changed; Sphinx reads only these again."""
    Path(folder).mkdir(exist_ok=True)
    pages = {"index": index()} | {name: page(name) for name, _ in MODULES}
    for name, text in pages.items():
        path = Path(folder) / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
