"""Platform and versions for bug reports, in a few lines; ``python -m mnpar doctor`` tells more."""

from __future__ import annotations

import importlib.util
import platform
from typing import Any

import numpy as np

from mnpar.backend import gpu_summary


def print_runtime_info(out: Any = None) -> None:
    """Print platform and versions.

    Args:
        out: a text file; None: the standard output.

    Example:
        >>> import io, mnpar
        >>> mnpar.print_runtime_info(text := io.StringIO())
        >>> [line.split(":")[0] for line in text.getvalue().splitlines()]
        ['Platform', 'Python', 'NumPy', 'GPU']
    """
    gpu = "CuPy is not installed" if importlib.util.find_spec("cupy") is None else gpu_summary()[1]
    lines = {
        "Platform": platform.platform(),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "GPU": gpu,
    }
    print("".join(f"{name}: {text}\n" for name, text in lines.items()), end="", file=out)
