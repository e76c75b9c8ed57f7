"""Write ``names.py`` anew, with a Python that has CuPy (no GPU is needed): ``python make_names.py >
names.py``.
"""

import inspect
import re
from collections import defaultdict

import numpy as np

DOC = '''"""What CuPy {version} has: functions with their parameters, ufuncs with the types
they know, methods of arrays.

Made by ``make_names.py`` beside it from the wheel cupy-cuda13x, by inspection of what it exports;
not edited by hand.
"""

# ruff: noqa: E501
'''


def parameters(thing):
    """As Python writes them, without annotations; of compiled functions as the first line of their
    documentation says.
    """
    try:
        signature = inspect.signature(thing)
    except ValueError:
        said = re.search(r"\((.*)\)( ->.*)?$", (thing.__doc__ or "").strip().split("\n")[0])
        if not said:
            return None
        named = [
            re.sub(r"^(int|bool|str|tuple|Py_ssize_t|_ndarray_base|self,) ", "", part.strip())
            for part in said[1].split(",")
        ]
        return f"({', '.join([part for part in named if part != 'self'])})"
    plain = [
        p.replace(annotation=p.empty, default=literal(p.default))
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    said = re.match(r"\w+\((.*)\)", (thing.__doc__ or "").split("\n")[0])
    # a function that takes its keywords apart itself
    if said and any(p.kind is p.VAR_KEYWORD for p in plain):
        return f"({said[1].replace('operands, ', 'operands, ')})"
    return str(inspect.Signature(plain))


def literal(default):
    """What stands for a default in the table: classes have no literal."""
    known = default is inspect.Parameter.empty or isinstance(
        default, bool | int | float | str | tuple | None
    )
    return default if known else None


def functions(module):
    found = []
    for name in sorted(n for n in dir(module) if not n.startswith("_")):
        thing = getattr(module, name)
        if (
            not callable(thing)
            or isinstance(thing, type | cupy.ufunc)
            or getattr(np, name, None) is thing
        ):
            continue
        if (
            inspect.isfunction(thing)
            or inspect.isbuiltin(thing)
            or type(thing).__name__ == "_GUFunc"
        ):
            listed = parameters(thing)
            found += [f"{name}{listed}"] if listed else []
    return found


def ufuncs():
    groups = defaultdict(list)
    for name in sorted(dir(cupy)):
        thing = getattr(cupy, name)
        if isinstance(thing, cupy.ufunc):
            groups[" ".join(thing.types)].append(name)
    return [f"{' '.join(names)}: {types}" for types, names in groups.items()]


def methods(cls):
    found = []
    for name in sorted(n for n in dir(cls) if not n.startswith("_")):
        thing = getattr(cls, name)
        found.append(f"{name}{parameters(thing)}" if callable(thing) else name)
    return found


def block(name, lines):
    body = "\n".join(lines)
    print(f'{name} = """\n{body}\n"""\n')


if __name__ == "__main__":
    import cupy

    print(DOC.format(version=cupy.__version__))
    print(f'VERSION = "{cupy.__version__}"\n')
    block("FUNCTIONS", functions(cupy))
    block("LINALG", functions(cupy.linalg))
    block("FFT", functions(cupy.fft))
    block("STRIDE_TRICKS", functions(cupy.lib.stride_tricks))
    block("UFUNCS", ufuncs())
    block("METHODS", methods(cupy.ndarray))
    block("SPECIAL", [" ".join(n for n in dir(cupy.ndarray) if n.startswith("__"))])
    shared = [
        n
        for n in dir(cupy)
        if not n.startswith("_") and hasattr(np, n) and getattr(cupy, n) is getattr(np, n)
    ]
    block("SAME_AS_NUMPY", [" ".join(shared)])
