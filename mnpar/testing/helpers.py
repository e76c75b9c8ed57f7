"""Chainer's helpers of tests: comparison of arrays on any device, and tables of cases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.autograd.arraylike import as_array


def assert_allclose(
    x: Any, y: Any, atol: float = 1e-5, rtol: float = 1e-4, verbose: bool = True
) -> None:
    """Raise AssertionError unless two arrays or Variables, on any device, are of one shape and
    close; a number is compared with each element.

    Args:
        x, y: what to compare; y is the reference.
        atol, rtol: ``|x - y| <= atol + rtol |y|``.
        verbose: show the values.

    Example:
        >>> import numpy as np
        >>> from mnpar import testing
        >>> testing.assert_allclose(np.ones(2), np.ones(2) + 1e-6)
    """
    found, expected = (np.asarray(backend.to_host(as_array(one))) for one in (x, y))
    if found.shape and expected.shape:  # of two arrays, numpy would repeat one
        assert found.shape == expected.shape, f"shapes {found.shape} and {expected.shape} differ"
    np.testing.assert_allclose(found, expected, atol=atol, rtol=rtol, verbose=verbose)


def product(parameter: dict[str, Sequence[Any]] | Sequence[Sequence[Any]]) -> list[Any]:
    """Return all combinations: dicts of a dict of lists, tuples of a list of lists.

    Example:
        >>> from mnpar import testing
        >>> testing.product({"n": [1, 2], "m": [3]})
        [{'n': 1, 'm': 3}, {'n': 2, 'm': 3}]
    """
    if isinstance(parameter, dict):
        return [
            dict(zip(parameter, values, strict=True)) for values in cartesian(*parameter.values())
        ]
    return list(cartesian(*parameter))


def product_dict(*parameters: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all combinations of dicts, one of each list, joined.

    Example:
        >>> from mnpar import testing
        >>> testing.product_dict([{"n": 1}, {"n": 2}], [{"m": 3}])
        [{'n': 1, 'm': 3}, {'n': 2, 'm': 3}]
    """
    return [
        {key: value for one in choice for key, value in one.items()}
        for choice in cartesian(*parameters)
    ]


def get_device(device_id: int | None = None, use_chainerx: bool = False) -> backend.Device:
    """Return the GPU of a number, or the host for None.

    Raises:
        ValueError: ChainerX is asked for.

    Example:
        >>> from mnpar import testing
        >>> testing.get_device()
        '@numpy'
    """
    if use_chainerx:
        raise ValueError("mnpar knows numpy and CuPy, not ChainerX")
    return backend.get_device(-1 if device_id is None else device_id)
