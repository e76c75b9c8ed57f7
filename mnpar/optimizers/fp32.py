"""Updates in float32: during a step, a float16 parameter with ``use_fp32_update`` is replaced by
its float32 copy.

So the loss scale is divided out, hooks run and the rule computes in 32 bits: gradients that float16
can hold only scaled, and steps too small for a float16 parameter, are not lost. Outside of steps a
program sees the float16 array, the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from mnpar.backend import Array
from mnpar.parameter import Parameter

if TYPE_CHECKING:
    from mnpar.optimizers.update_rule import UpdateRule


def in_float32(params: Iterable[Parameter]) -> AbstractContextManager[None]:
    """Widen the parameters that are about to be updated by a rule with ``use_fp32_update``; narrow
    them again at the end.
    """
    asked = [p for p in params if p.update_rule is not None and p.update_rule.in_fp32]
    wide = [
        p
        for p in asked
        if wants_float32(p.update_rule, p) and p.update_rule.enabled and p.grad is not None
    ]
    return _widened(wide) if wide else _NOTHING


_NOTHING = nullcontext()


@contextmanager
def _widened(wide: list[Parameter]) -> Iterator[None]:
    narrow = [(p, p.array, p.grad) for p in wide]
    for param in wide:
        _put(param, _copy(param.update_rule, param), param.grad.astype(np.float32))
    try:
        yield
    finally:
        for param, array, grad in narrow:
            array[...] = param.array
            if param.grad is None:  # a hook has cleared it
                grad = None
            else:
                grad[...] = param.grad
            _put(param, array, grad)


def wants_float32(rule: UpdateRule | None, param: Parameter) -> bool:
    """Whether the parameter is of float16 now, and its rule updates it in float32."""
    return (
        rule is not None
        and rule.in_fp32
        and param.array is not None
        and param.array.dtype == np.float16
    )


def _copy(rule: UpdateRule, param: Parameter) -> Array:
    """The float32 values of the parameter: those that the rule keeps, unless somebody else has
    changed the parameter.
    """
    rule.prepare(param)
    copy: Array = rule.state["fp32"]
    if (copy.astype(np.float16) != param.array).any():
        copy[...] = param.array
    return copy


def _put(param: Parameter, array: Array, grad: Array | None) -> None:
    # the dtype first: it stays itself
    param.node.dtype, param.array, param.node.gradient = (
        array.dtype,
        array,
        grad,
    )
