"""What may know what: the order of the layers, who imports MPI and CuPy, and habits that a program
can check.
"""

import ast
import functools
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "mnpar"
FILES = sorted(ROOT.rglob("*.py"))

# The package map: a module or package of mnpar/ imports only from lines above its own, or from
# itself. Imports that only type checkers read count too. A new one gets a place here.
PACKAGES = """
    environment errors
    hints
    configuration lazy random serializer
    backend
    backends function_hook
    plans runtime
    autograd
    communicators kernels
    launch link_hook
    dataset doctor initializers meters serializers
    datasets
    iterators
    holders variable
    function_node parameter
    functions
    link
    checks
    chain
    reporter sequential
    links optimizers
    checkpoint
    parallel
    computational_graph gradient_check function_hooks profiling torch
    testing
    link_hooks
    training
    extensions
    compat
    __init__
    __main__
"""
LAYER = {
    name: number
    for number, line in enumerate(PACKAGES.strip().splitlines())
    for name in line.split()
}

# Imports inside functions: libraries that may be missing, or that cost more than all of mnpar to
# import.
LATE = {
    "backend.py": {"cupy", "cupyx", "scipy"},
    "kernels/blas.py": {"threadpoolctl"},
    "kernels/compiler.py": {"numba", "importlib"},
    "kernels/atomics.py": {"llvmlite"},
    "kernels/lanes.py": {"llvmlite"},
    "kernels/machine_code.py": {"llvmlite", "importlib"},
    "kernels/products.py": {"llvmlite"},
    "kernels/translation.py": {"llvmlite"},
    "communicators/mpi/library.py": {"mpi4py"},
    "communicators/create.py": {"mnpar", "threadpoolctl"},
    "runtime/blas_threads.py": {"threadpoolctl"},
    "runtime/callsite.py": {"tempfile"},
    "runtime/pmix.py": {"socket"},
    "functions/bridges/from_jax.py": {"jax"},
    "functions/bridges/from_numba.py": {"numba"},
    "functions/bridges/from_torch.py": {"torch"},
    "serializers/hdf5.py": {"h5py"},
    "datasets/digits.py": {"sklearn"},
    "datasets/download.py": {"urllib"},
    "datasets/image_dataset.py": {"PIL"},
    "doctor.py": {"importlib"},
    "testing/processes.py": {"threadpoolctl"},
    "testing/recording.py": {"threadpoolctl"},
    "training/extensions/plot_report.py": {"matplotlib"},
    "training/extensions/progress_bar.py": {"tqdm"},
    "training/extensions/tensorboard_report.py": {"tensorboardX"},
    "profiling/timeline.py": {"matplotlib"},
}
ONLY = {
    "cupy": ("backend.py",),
    "jax": ("functions/bridges/from_jax.py",),
    "mpi4py": ("communicators/mpi/",),
    "numba": ("kernels/compiler.py", "functions/bridges/from_numba.py"),
    "torch": ("torch/", "functions/bridges/from_torch.py"),
    # parts of Python that Windows lacks: imported by name there, and elsewhere not at all
    "fcntl": ("runtime/system.py",),
    "resource": ("runtime/process_manager.py",),  # a program of its own, without mnpar
    "termios": ("runtime/system.py",),
}

_BLOCKING = """
    Send Ssend Bsend Rsend Recv Sendrecv Sendrecv_replace Bcast Reduce Allreduce Allgather
    Allgatherv Gather Gatherv Scatter
    Scatterv Alltoall Alltoallv Alltoallw Reduce_scatter Reduce_scatter_block Scan Exscan Barrier
    Wait Waitall
    Waitany Waitsome Probe Mprobe Dup Spawn Connect Accept
"""


@functools.cache
def tree_of(path):
    """Parsed where the tests run, and not while they are collected: all wait for that."""
    return ast.parse(path.read_text(encoding="utf-8"))


def every_file(rule):
    """One test of all files, which says of each that breaks the rule how it does so."""

    def test():
        broken = []
        for path in FILES:
            try:
                rule(path)
            except AssertionError as error:
                broken.append(f"{relative(path)}: {error}")
        assert not broken, "\n".join(broken)

    test.__doc__ = rule.__doc__
    return test


def relative(path):
    return str(path.relative_to(ROOT))


def module(path):
    """'communicators.mpi', '__init__', 'communicators'."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module(path) for path in FILES}


@functools.cache
def imports(tree):
    """Return (what, whether inside a function) for each import; 'mnpar.configuration' for a name
    in it.
    """

    def visit(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, inside
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports are absolute"
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    known = whole.removeprefix("mnpar.") in MODULES
                    yield whole if known else child.module, inside
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            # an import is a statement, of which an expression holds none
            if not isinstance(child, ast.expr):
                yield from visit(child, inside or function)

    return list(visit(tree, False))


def own(path):
    """The modules of mnpar that a file imports, for types too."""
    return [
        what.removeprefix("mnpar.") if what != "mnpar" else "__init__"
        for what, _ in imports(tree_of(path))
        if what.split(".")[0] == "mnpar"
    ]


@every_file
def test_a_file_imports_only_from_the_packages_below(path):
    package = module(path).split(".")[0]
    assert package in LAYER, f"{relative(path)} has no place in LAYERS"
    for name in own(path):
        other = name.split(".")[0]
        assert other == package or LAYER[other] < LAYER[package], (
            f"{relative(path)} imports mnpar.{name}, which lies above it"
        )


def test_imports_make_no_circle():
    graph = {module(path): set(own(path)) - {module(path)} for path in FILES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@every_file
def test_imports_stand_at_the_top(path):
    late = {what.split(".")[0] for what, inside in imports(tree_of(path)) if inside}
    assert late <= LATE.get(relative(path), set())


@every_file
def test_only_a_few_files_know_libraries_that_may_be_missing(path):
    known = {what.split(".")[0] for what, _ in imports(tree_of(path))}
    assert all(
        relative(path).startswith(homes) for library, homes in ONLY.items() if library in known
    )


def test_all_of_mnpar_loads_nothing_but_numpy_and_the_standard_library():
    code = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.split('.')[0] for name in sys.modules}))
"""
    command = [
        sys.executable,
        "-c",
        code,
        "mnpar",
        *sorted(
            f"mnpar.{n}"
            for n in MODULES
            if n != "__init__" and not n.startswith(("testing.", "torch."))
        ),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    loaded = set(
        subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout.split()
    )
    assert "mnpar" in loaded
    assert not loaded & {
        "mpi4py",
        "cupy",
        "numba",
        "scipy",
        "sklearn",
        "matplotlib",
        "threadpoolctl",
        "pytest",
        "_pytest",
        "tqdm",
        "tensorboardX",
        "torch",
        "jax",
    }


def test_no_name_of_the_package_map_is_left_over():
    assert set(LAYER) <= {name.split(".")[0] for name in MODULES}


@every_file
def test_no_blocking_mpi_call(path):
    """mnpar polls: a rank in a blocking call hears neither Ctrl-C nor the errors of others."""
    calls = [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    found = [
        f"{node.func.attr} in line {node.lineno}"
        for node in calls
        if node.func.attr in _BLOCKING.split()
    ]
    assert not found


def is_set(node):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset") or (
            node.func.id in ("list", "tuple", "enumerate", "iter") and any(map(is_set, node.args))
        )
    return isinstance(node, ast.Set | ast.SetComp)


@every_file
def test_no_iteration_over_a_set(path):
    """Law 5: its order differs between ranks."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            assert not is_set(node.iter), ast.unparse(node.iter)
        elif isinstance(node, ast.Starred):
            assert not is_set(node.value), ast.unparse(node)


@every_file
def test_every_file_opens_with_what_it_is(path):
    text = ast.get_docstring(tree_of(path))
    assert text
    assert text.split("\n\n")[0].endswith((".", "?", ":", "!"))


# The checks themselves, on code that breaks each rule.


def test_every_file_that_breaks_a_rule_is_named():
    @every_file
    def rule(path):
        assert "plugin" not in path.name, "its name"

    with pytest.raises(AssertionError, match=r"^testing/plugin\.py: its name"):
        rule()


def test_the_checks_see_what_they_look_for():
    tree = ast.parse(
        "import a\nif TYPE_CHECKING:\n    from b import c\ndef f():\n    import d.e\n    g = "
        "lambda: __import__('x')\n"
    )
    assert imports(tree) == [("a", False), ("b", False), ("d.e", True)]
    assert "links.linear" in own(ROOT / "links" / "__init__.py")
    for text in ("{1}", "{x for x in y}", "set(x)", "list(set(x))", "enumerate(frozenset(x))"):
        assert is_set(ast.parse(text, mode="eval").body)
    for text in ("{1: 2}", "sorted(set(x))", "[1]", "x", "dict(x)"):
        assert not is_set(ast.parse(text, mode="eval").body)
