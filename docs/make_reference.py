"""The pages of the reference, one for each module: ``python docs/make_reference.py`` writes them.

A page in the repository lists the names of a module, each with a link to its source. When Sphinx
builds the site, conf.py puts the docstrings in place of these lists (:func:`entries`): docstrings
are written once, in the source.
"""

import ast
import functools
import importlib
import inspect
from pathlib import Path

import mnpar

FOLDER = Path(__file__).parent / "reference"
# the groups of mnpar.functions, as Chainer's reference has them: (title, folders or files below it)
FUNCTIONS = (
    (
        "Point-to-point communication",
        "communication/point_to_point communication/delivery",
    ),
    ("Collective communication", "communication/collective"),
    ("Values that ranks own together", "communication/shared"),
    ("Plans and re-partitions", "communication"),
    (
        "Halo exchange",
        "divided/halo divided/halo_convolution divided/blocks",
    ),
    ("Sequences, vocabularies and experts over ranks", "divided"),
    ("Arithmetic functions", "math/arithmetic operators"),
    ("Activation functions", "activation"),
    ("Array manipulations", "array"),
    ("Neural network connections", "connection"),
    ("Recurrent networks", "rnn"),
    ("Evaluation functions", "evaluation"),
    ("Loss functions", "loss"),
    ("Mathematical functions", "math"),
    ("Noise injections", "noise"),
    ("Normalization functions", "normalization"),
    ("Spatial pooling", "pooling"),
    ("Functions of other libraries", "bridges"),
    ("Utility functions", "util"),
)

MODULES = (
    ("mnpar", "Variables, links, communicators, data and training over ranks"),
    ("mnpar.functions", "differentiable functions, communications among them"),
    ("mnpar.links", "layers"),
    ("mnpar.parallel", "copies of models, pipelines, parameter servers"),
    ("mnpar.plans", "what each rank has and wants, as boxes of indices"),
    ("mnpar.optimizers", "optimizers"),
    ("mnpar.optimizers.hooks", "hooks of optimizers: weight decay, clipping, noise"),
    ("mnpar.initializers", "initial values of parameters"),
    ("mnpar.datasets", "datasets, and their parts for ranks"),
    ("mnpar.dataset", "examples made into batches"),
    ("mnpar.iterators", "iterators over batches"),
    ("mnpar.meters", "means of reported values, over ranks"),
    ("mnpar.training", "the training loop"),
    ("mnpar.training.updaters", "one step of training"),
    ("mnpar.training.triggers", "when an extension runs"),
    (
        "mnpar.training.extensions",
        "extensions of the trainer: evaluation, logs, plots, snapshots",
    ),
    ("mnpar.training.extensions.snapshot_writers", "ways to write snapshots"),
    ("mnpar.extensions", "extensions over ranks"),
    ("mnpar.checkpoint", "checkpoints of all ranks"),
    ("mnpar.serializers", "files of one rank"),
    ("mnpar.reporter", "values that links report"),
    ("mnpar.function_hooks", "hooks around functions"),
    ("mnpar.link_hooks", "hooks around links"),
    ("mnpar.computational_graph", "the graph as a drawing"),
    ("mnpar.gradient_check", "gradients against differences"),
    ("mnpar.testing", "tests over ranks"),
    ("mnpar.launch", "starting ranks"),
    ("mnpar.backends.cuda", "arrays on GPUs"),
    ("mnpar.utils", "small helpers"),
    ("mnpar.global_except_hook", "ChainerMN's hook, for programs that call it"),
    ("mnpar.random", "random numbers"),
    ("mnpar.errors", "exceptions and warnings"),
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
        here = [
            n
            for n, thing in vars(module).items()
            if any([is_it(thing) for is_it in defined])
        ]
        names = [
            n
            for n in here
            if getattr(module, n).__module__ == module.__name__
            and not n.startswith("_")
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


@functools.cache
def homes(name):
    """The module in which each public name of a package is defined."""
    package = find(name)
    source = ast.parse(inspect.getsource(package))
    found = {
        alias.asname: node.module
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and node.module and node.module.startswith("mnpar")
    }
    return {
        one: found.get(one, getattr(package, one).__module__) for one in public(package)
    }


def groups(name):
    """The names that have entries on a page, as (title, names); only functions have titles."""
    mine, _ = own(name)
    if name != "mnpar.functions":
        return [("", mine)]
    left = dict.fromkeys(mine)
    found = []
    for title, places in FUNCTIONS:
        paths = tuple(f"{name}.{place.replace('/', '.')}" for place in places.split())
        here = [one for one in left if homes(name)[one].startswith(paths)]
        for one in here:
            del left[one]
        found.append((title, here))
    assert not left, (
        f"give these functions a group in docs/make_reference.py: {[*left]}"
    )
    return found


def source_of(module):
    """The file of a module, as seen from a page of the reference."""
    path = Path(inspect.getsourcefile(importlib.import_module(module)))
    return f"../../{path.relative_to(FOLDER.parents[1])}"


def listing(name):
    """A page as the repository keeps it: the names, with links to their source."""
    about = dict(MODULES)[name]
    text = f"# {name}\n\n{about[0].upper()}{about[1:]}.\n"
    text += f"\n`help({name})` prints the docstrings, and the site shows them here.\n"
    for title, names in groups(name):
        text += f"\n## {title}\n" if title else ""
        links = [f"[`{one}`]({source_of(homes(name)[one])})" for one in names]
        text += "\n" + ",\n".join(links) + "\n" if links else ""
    elsewhere = own(name)[1]
    links = [f"`{one}` ([{home}]({home}.md))" for one, home in elsewhere.items()]
    return text + ("\nElsewhere: " + ",\n".join(links) + ".\n" if links else "")


def entries(name):
    """A page as the site has it: tables of names, and their docstrings."""
    text = f"# {name}\n"
    text += rst(
        f".. currentmodule:: {name}", f".. automodule:: {name}\n   :no-members:"
    )
    for title, names in groups(name):
        text += f"\n## {title}\n" if title else ""
        table = "".join(f"   {one}\n" for one in names)
        blocks = [f".. autosummary::\n   :nosignatures:\n\n{table}"] if names else []
        text += rst(
            f".. currentmodule:: {name}", *blocks, *[entry(name, one) for one in names]
        )
    elsewhere = own(name)[1]
    links = ", ".join(f":obj:`{home}.{one}`" for one, home in elsewhere.items())
    return text + (rst(f"Also here: {links}.") if links else "")


def rst(*blocks):
    """Blocks of reStructuredText, as docstrings are, in a page of Markdown."""
    return "\n```{eval-rst}\n" + "\n\n".join(blocks) + "\n```\n"


def entry(name, one):
    """The directive that shows a docstring, with those of a class's methods."""
    if not inspect.isclass(getattr(find(name), one)):
        return f".. autofunction:: {one}"
    inherited = ", ".join(ends(name))
    return f".. autoclass:: {one}\n   :members:\n   :inherited-members: {inherited}"


def index():
    """The page that leads to them."""
    rows = "".join(f"* [{name}]({name}.md): {text}\n" for name, text in MODULES)
    toctree = (
        "```{toctree}\n:hidden:\n"
        + "".join(f"{name}\n" for name, _ in MODULES)
        + "```\n"
    )
    intro = (
        "Each entry says what the name does not: shapes, dtypes, what is raised, and an example\n"
        "that runs. `help(mnpar.functions.send)` prints the same.\n"
    )
    return f"# Reference\n\n{intro}\n{rows}\n{toctree}"


def pages():
    """The pages of the repository, by their names."""
    return {"index": index()} | {name: listing(name) for name, _ in MODULES}


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text)
