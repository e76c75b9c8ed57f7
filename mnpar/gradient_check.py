"""Checks a backward against finite differences along one random direction.

For a function f, a direction d and a gradient gy of the outputs, ``⟨gy, f(x + εd) - f(x - εd)⟩ /
2ε`` must be ``⟨gx, d⟩``: two evaluations of f check all elements of all gradients at once, because
an error in gx is orthogonal to no random direction. Use float64 (``dtype="d"``): in float32 the
difference itself has only three or four digits.

A function that communicates is checked on all its ranks together (``comm=``): backward computes the
gradient of the sum over ranks, so both sides of the identity are summed over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.autograd.tape import Tape
from mnpar.backend import Array
from mnpar.communicators.communicator import Communicator, require_communicator
from mnpar.configuration import using_config
from mnpar.variable import Variable, grad

__all__ = ["NondifferentiableError", "check_backward", "check_double_backward", "numerical_grad"]


class NondifferentiableError(Exception):
    """The function has a kink or a jump at the point of the check: choose another point."""


def numerical_grad(
    f: Callable[[], Any],
    inputs: Sequence[Array],
    grad_outputs: Sequence[Array | None],
    eps: float = 1e-3,
    detect_nondifferentiable: bool = False,
    diff_atol: float = 0,
    diff_rtol: float = 1e-2,
    *,
    comm: Communicator | None = None,
) -> tuple[Array, ...]:
    """Return the gradient by central differences, element by element: two evaluations for each.

    Args:
        f: no arguments; computes the outputs, an array or a tuple of them, from ``inputs`` as they
            stand.
        inputs: arrays that ``f`` reads; they change during the call and are as before after it.
        grad_outputs: the gradient of each output (an array or a number), None where it does not
            matter.
        eps: half the distance of the two evaluations.
        detect_nondifferentiable: look for kinks, at the cost of three more evaluations for each
            element.
        diff_atol, diff_rtol: the fourth difference that is no kink yet, the second relative to how
            much the output varies.
        comm: the ranks that ``f`` communicates with, all of which call this, each with inputs and
            outputs of its own: the gradient is that of the sum over ranks.

    Returns:
        An array for each input.

    Raises:
        NondifferentiableError: a kink was found.

    Example:
        >>> import numpy as np
        >>> from mnpar import gradient_check
        >>> x = np.array([1.0, 2.0])
        >>> (g,) = gradient_check.numerical_grad(lambda: x**2, [x], [np.ones(2)])
        >>> g.round(6)
        array([2., 4.])
    """
    if comm is not None:
        require_communicator(comm, "numerical_grad(f, inputs, grad_outputs, comm=comm)")
    mine = 0 if comm is None else comm.rank
    shapes = [x.shape for x in inputs]
    results = tuple([backend.get_array_module(x).zeros_like(x) for x in inputs])
    for rank, theirs in enumerate([shapes] if comm is None else comm.allgather_obj(shapes)):
        for number, shape in enumerate(theirs):
            for index in np.ndindex(shape):
                x = inputs[number] if rank == mine else None

                def moved(
                    delta: float, x: Array | None = x, index: tuple[int, ...] = index
                ) -> tuple[Array, ...]:
                    original: Any = None if x is None else x[index].copy()
                    if x is not None:
                        x[index] = original + delta
                    try:
                        ys = _outputs(f())
                        return tuple([backend.get_array_module(y).array(y) for y in ys])
                    finally:
                        if x is not None:
                            x[index] = original

                slope = _slope(
                    moved, grad_outputs, eps, detect_nondifferentiable, diff_atol, diff_rtol, comm
                )
                if rank == mine:
                    results[number][index] = slope
    return results


def check_backward(
    func: Callable[..., Any],
    x_data: Array | Sequence[Array],
    y_grad: Array | Sequence[Array | None] | None,
    params: Variable | Sequence[Variable] = (),
    eps: float = 1e-3,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    no_grads: Sequence[bool] | None = None,
    dtype: DTypeLike | None = None,
    detect_nondifferentiable: bool = False,
    *,
    rng: np.random.Generator | None = None,
    comm: Communicator | None = None,
    replicated: Sequence[bool] | None = None,
    replicated_outputs: Sequence[bool] | None = None,
) -> None:
    """Fail unless the gradients agree with finite differences along a random direction.

    Args:
        func: takes as many Variables as ``x_data`` has arrays; returns one or a tuple of them.
        x_data: an array or a tuple of them. Integers and booleans are given to ``func`` but not
            moved.
        y_grad: the gradient of each output, an array or a tuple of them; None for one output of
            size 1.
        params: a Variable or a tuple of them that ``func`` uses; their gradients are checked too.
        eps: half the distance between the two evaluations.
        atol, rtol: how far the two numbers may be apart.
        no_grads: True for each input (not parameter) whose gradient is not checked.
        dtype: floating dtype in which everything is computed; ``"d"`` is the right one for most
            checks.
        detect_nondifferentiable: look for a kink along the direction first.
        rng: draws the direction; None takes always the same one.
        comm: the ranks that ``func`` communicates with. All of them call this, each with its own
            inputs, outputs and gradients of outputs (an empty tuple where it has none); the
            gradients are those of the sum over ranks.
        replicated: True for each input, then for each parameter, that all ranks hold alike and own
            together, as the input of ``F.copy_to``: the copies move together and count once.
        replicated_outputs: True for each output that all ranks hold alike and own together, as the
            result of ``F.reduce_from``: it counts once.

    Raises:
        AssertionError: they do not agree; the message has both numbers; with ``comm``, on all
            ranks.
        NondifferentiableError: a kink was found.
        ValueError: ``func`` communicates with other ranks, and no ``comm`` is given; or what is
            replicated differs between ranks.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F
        >>> from mnpar import gradient_check
        >>> gradient_check.check_backward(F.tanh, np.array([0.1, 0.2]), np.array([1.0, -1.0]))
        >>> def program(comm):
        ...     x, gy = np.array([0.1, 0.2]) + comm.rank, np.array([1.0, -1.0])
        ...     square = lambda x: F.allreduce(comm, x) ** 2
        ...     gradient_check.check_backward(square, x, gy, comm=comm)
        >>> mnpar.run(program, ranks=3)
        [None, None, None]
    """
    if comm is not None:
        require_communicator(comm, "check_backward(func, x_data, y_grad, comm=comm)")
    rng = rng or np.random.default_rng(0 if comm is None else [0, comm.rank])
    arrays = [_cast(x, dtype) for x in _as_tuple(x_data)]
    params = _as_tuple(params)
    name = getattr(func, "__name__", str(func))
    with _holding(params, dtype):
        xs = [Variable(x.copy()) for x in arrays]
        flags = list(replicated or [False] * len([*xs, *params]))
        skip = [*(no_grads or [False] * len(xs)), *[False] * len(params)]
        moving, alike = [], []
        for x, no, flag in zip([*xs, *params], skip, flags, strict=True):
            if x.requires_grad and not no:
                moving.append(x)
                alike.append(flag)
        if not _any_rank(comm, moving):
            raise ValueError(
                "check_backward: no input and no parameter is differentiable, so there is "
                "nothing to check"
            )
        with Tape() as tape:
            ys = _outputs(func(*xs))
            if comm is None:
                _refuse_communication(tape, name)
            gys = _output_gradients(ys, y_grad, dtype, comm is not None)
            starts = [(y, Variable(gy)) for y, gy in zip(ys, gys, strict=True) if gy is not None]
            gxs = grad([y for y, _ in starts], moving, [gy for _, gy in starts])
        output_flags = list(replicated_outputs or [False] * len(ys))
        _check_equal(comm, "output", ys, output_flags)
        _check_equal(comm, "input or parameter", moving, alike)
        directions = _directions([x.array for x in moving], rng, comm, alike)
        origins = [x.array for x in moving]

        def moved(delta: float) -> tuple[Array, ...]:
            for x, origin, d in zip(moving, origins, directions, strict=True):
                x.array = x.xp.asarray(origin + delta * d, origin.dtype)
            try:
                with using_config("enable_backprop", False), Tape():
                    return tuple([y.array for y in _outputs(func(*xs))])
            finally:
                for x, origin in zip(moving, origins, strict=True):
                    x.array = origin

        counted = _counted_once(gys, output_flags, comm)
        expected = _slope(moved, counted, eps, detect_nondifferentiable, 0, 1e-2, comm)
        parts = [
            0.0 if g is None else _dot(g.array, d) for g, d in zip(gxs, directions, strict=True)
        ]
    given = _total(comm, sum(_counted_once(parts, alike, comm)))
    if not np.isclose(given, expected, rtol=rtol, atol=atol):
        shapes = ", ".join(
            f"{d.shape}: {'no gradient' if g is None else part}"
            for d, g, part in zip(directions, gxs, parts, strict=True)
        )
        where = "" if comm is None else f", summed over {comm.size} ranks"
        raise AssertionError(
            f"backward of {name} is wrong: along a random direction "
            f"it gives {given}{where}, finite "
            f"differences (eps={eps}) give {expected}, apart by "
            f"{abs(given - expected):.3g} (atol={atol}, rtol={rtol}); "
            f"its part for each differentiable array{'' if comm is None else ' here'}: {shapes}"
        )


def check_double_backward(
    func: Callable[..., Any],
    x_data: Array | Sequence[Array],
    y_grad: Array | Sequence[Array | None] | None,
    x_grad_grad: Array | Sequence[Array | None] | None,
    params: Variable | Sequence[Variable] = (),
    params_grad_grad: Array | Sequence[Array | None] | None = (),
    eps: float = 1e-3,
    atol: float = 1e-4,
    rtol: float = 1e-3,
    no_grads: Sequence[bool] | None = None,
    dtype: DTypeLike | None = None,
    detect_nondifferentiable: bool = False,
    *,
    rng: np.random.Generator | None = None,
    comm: Communicator | None = None,
) -> None:
    """Fail unless the gradients of the gradients agree with finite differences:
    :func:`check_backward` of a backward.

    Args:
        func, x_data, y_grad, params, eps, atol, rtol: as there.
        no_grads, dtype, detect_nondifferentiable, rng, comm: as there.
        x_grad_grad: the gradient of each input's gradient, an array or a tuple of them, None for
            inputs without one.
        params_grad_grad: the same for the parameters.

    Raises:
        AssertionError: they do not agree; the message has both numbers.
        NondifferentiableError: a kink was found.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> from mnpar import gradient_check
        >>> x, gy, ggx = np.array([0.1, 0.2]), np.array([1.0, -1.0]), np.array([0.5, 2.0])
        >>> gradient_check.check_double_backward(F.tanh, x, gy, ggx)
    """
    xs = _as_tuple(x_data)
    params = _as_tuple(params)
    skip = list(no_grads or [x.dtype.kind != "f" for x in xs])
    if comm is not None:
        require_communicator(comm, "check_double_backward(func, x_data, …, comm=comm)")
    gys = [
        backend.to_device_of(np.ones(()), xs[0]) if gy is None else gy for gy in _as_tuple(y_grad)
    ]
    ggs = [gg for gg, no in zip(_as_tuple(x_grad_grad), skip, strict=True) if not no] + list(
        _as_tuple(params_grad_grad)
    )

    def gradients(*inputs: Variable) -> tuple[Variable, ...]:
        with using_config("enable_backprop", True):
            points = [x if x.requires_grad else Variable(x.array) for x in inputs[: len(xs)]]
            ys = [y for y in _outputs(func(*points)) if comm is None or y.size]
            wanted = [x for x, no in zip(points, skip, strict=True) if not no] + list(params)
            given = [gy.reshape(y.shape) for gy, y in zip(inputs[len(xs) :], ys, strict=True)]
            found = grad(ys, wanted, given, enable_double_backprop=True)
        return tuple(
            [
                Variable(x.xp.zeros_like(x.array)) if g is None else g
                for g, x in zip(found, wanted, strict=True)
            ]
        )

    gradients.__name__ = f"the backward of {getattr(func, '__name__', func)}"
    check_backward(
        gradients,
        (*xs, *gys),
        tuple(ggs),
        params,
        eps,
        atol,
        rtol,
        [*skip, *[False] * len(gys)],
        dtype,
        detect_nondifferentiable,
        rng=rng,
        comm=comm,
    )


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _outputs(ys: Any) -> tuple[Any, ...]:
    """Return what a function returned as a tuple; None, on a rank without a result, as none."""
    return () if ys is None else _as_tuple(ys)


def _refuse_communication(tape: Tape, name: str) -> None:
    """Raise ValueError if a function that is checked on one rank communicates with others."""
    for record in tape.complete().records:
        if record.comm.size > 1:
            tape.clear()
            raise ValueError(
                f"{name} communicates ({record.label}), so its gradient is that of the sum over "
                "ranks: call the check on every rank, with comm=comm"
            )


def _total(comm: Communicator | None, x: float) -> float:
    """Return the sum over ranks."""
    return x if comm is None else float(comm.allreduce(np.array([x], "d"))[0])


def _any_rank(comm: Communicator | None, x: Any) -> bool:
    return bool(x) if comm is None else any(comm.allgather_obj(bool(x)))


def _counted_once(xs: Sequence[Any], flags: Sequence[bool], comm: Communicator | None) -> list[Any]:
    """Return numbers or arrays of which those that all ranks own together are divided by P."""
    size = 1 if comm is None else comm.size
    return [x / size if flag and x is not None else x for x, flag in zip(xs, flags, strict=True)]


def _check_equal(
    comm: Communicator | None, what: str, xs: Sequence[Variable], flags: Sequence[bool]
) -> None:
    """Raise ValueError, on all ranks, if something that is said to be replicated is not."""
    if comm is None:
        return
    mine = [backend.to_host(x.array) if flag else None for x, flag in zip(xs, flags, strict=True)]
    theirs = comm.allgather_obj(mine)
    for rank, others in enumerate(theirs[1:], 1):
        for number, (x, y) in enumerate(zip(theirs[0], others, strict=False)):
            if x is not None and (y is None or x.shape != y.shape or not np.allclose(x, y)):
                raise ValueError(
                    f"check_backward: {what} {number} is said to be replicated, and is another on "
                    f"rank {rank} than on rank 0"
                )


def _cast(x: Any, dtype: DTypeLike | None) -> Array:
    x = x if backend.is_array(x) else np.asarray(x)
    result: Array = x if dtype is None or x.dtype.kind != "f" else x.astype(dtype)
    return result


@contextmanager
def _holding(params: Sequence[Variable], dtype: DTypeLike | None) -> Iterator[None]:
    """The parameters in the dtype of the check; their own arrays come back after it."""
    arrays = [p.array for p in params]
    try:
        for p in params:
            _set(p, _cast(p.array, dtype))
        yield
    finally:
        for p, array in zip(params, arrays, strict=True):
            _set(p, array)


def _set(p: Variable, array: Array) -> None:
    p.node.dtype, p.array = array.dtype, array


def _output_gradients(
    ys: Sequence[Variable], y_grad: Any, dtype: DTypeLike | None, together: bool
) -> list[Array | None]:
    if together and not any([y.size for y in ys]):
        return [None] * len(ys)  # a rank without outputs, or with the delegate of a send
    if y_grad is None:
        if len(ys) != 1 or ys[0].size != 1:
            raise ValueError(
                f"y_grad is None, but the outputs have shapes {[y.shape for y in ys]}: give "
                "the gradient of each"
            )
        return [ys[0].xp.ones_like(ys[0].array)]
    gys = [None if gy is None else _cast(gy, dtype) for gy in _as_tuple(y_grad)]
    if len(gys) != len(ys) or any(
        gy is not None and gy.shape != y.shape for gy, y in zip(gys, ys, strict=False)
    ):
        raise ValueError(
            f"y_grad has shapes {[getattr(gy, 'shape', None) for gy in gys]}, the outputs have "
            f"{[y.shape for y in ys]}"
        )
    return gys


def _directions(
    xs: Sequence[Array],
    rng: np.random.Generator,
    comm: Communicator | None,
    alike: Sequence[bool],
) -> list[Array]:
    """Random arrays of these shapes; together (on all ranks) they have length 1, and no element is
    so small that it would hide an error. ``alike``: which of them are rank 0's on all ranks.
    """
    directions = [rng.choice([-1.0, 1.0], x.shape) * rng.uniform(0.5, 1.5, x.shape) for x in xs]
    if comm is not None:
        theirs = comm.allgather_obj([d for d, flag in zip(directions, alike, strict=True) if flag])
        first = iter(theirs[0])
        directions = [next(first) if flag else d for d, flag in zip(directions, alike, strict=True)]
    length = np.sqrt(_total(comm, sum(float((d * d).sum()) for d in directions)))
    return [
        backend.to_device_of(d / (length or 1.0), x) for d, x in zip(directions, xs, strict=True)
    ]


def _dot(x: Array, y: Array) -> float:
    return float((x.astype("d") * y.astype("d")).sum())


def _slope(
    moved: Callable[[float], tuple[Array, ...]],
    gys: Sequence[Array | None],
    eps: float,
    detect: bool,
    atol: float,
    rtol: float,
    comm: Communicator | None = None,
) -> float:
    """Return the derivative at 0 of the outputs' product with their gradients, summed over
    ranks.
    """
    steps = [-1.0, -0.5, 0.0, 0.5, 1.0] if detect else [-1.0, 1.0]
    values = [[backend.to_host(y) for y in moved(step * eps)] for step in steps]
    if detect:
        kinks = _kinks(values, atol, rtol)
        found = [kinks] if comm is None else comm.allgather_obj(kinks)
        for rank, text in enumerate(found):
            if text:
                where = "" if comm is None else f" (on rank {rank})"
                raise NondifferentiableError(f"{text}{where}")
    total = 0.0
    for low, high, gy in zip(values[0], values[-1], gys, strict=True):
        if gy is not None:
            total += float(
                ((high.astype("d") - low.astype("d")) * np.asarray(backend.to_host(gy), "d")).sum()
            )
    return _total(comm, total) / (2 * eps)


def _kinks(values: Sequence[Sequence[Array]], atol: float, rtol: float) -> str:
    """Return which output is not differentiable; empty if all are. The fourth difference of a
    smooth function over five near points is tiny, beside a kink it is of their size.
    """
    for i, (a, b, c, d, e) in enumerate(zip(*values, strict=True)):
        fourth = abs(a - 4 * b + 6 * c - 4 * d + e)
        range_ = np.maximum.reduce([a, b, c, d, e]) - np.minimum.reduce([a, b, c, d, e])
        rough = fourth > atol + rtol * range_ + 64 * np.finfo(a.dtype).eps * abs(c)
        if rough.any():
            return (
                f"output {i} is not differentiable here, at {int(rough.sum())} of {rough.size} "
                "elements"
            )
    return ""
