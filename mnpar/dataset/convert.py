"""From a list of examples to the arrays that a model takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule, Index


def to_device(device: int | str | None, x: Array) -> Array:
    """Return the array on a device; ``device=None`` leaves it where it is.

    Example:
        >>> import numpy as np
        >>> from mnpar.dataset import to_device
        >>> to_device(-1, np.arange(2))
        array([0, 1])
    """
    return x if device is None else backend.to_device(device, x)


def concat_examples(
    batch: Sequence[Any], device: int | str | None = None, padding: Any = None
) -> Any:
    """Join the examples of a batch along a new first axis, each part of an example into an array of
    its own.

    Args:
        batch: N examples, all of one kind: arrays or numbers; tuples of them; dicts of them; empty
            tuples (:func:`mnpar.datasets.create_empty_dataset`).
        device: where the arrays go: a GPU's number, -1 or ``'@numpy'`` for the host; None leaves
            them where they are.
        padding: with examples of different shapes, what fills the places that an example does not
            have; a tuple or a dict gives each part its own. None: different shapes are an error.

    Returns:
        An array (N, …); a tuple of arrays; a dict of arrays; ``()`` from empty tuples. dtypes are
        kept, Python numbers get numpy's (int64, float64). Local: every rank converts its own batch.

    Raises:
        ValueError: the batch is empty, its examples do not have the same parts, or their shapes
            differ with no ``padding``, or the padding is a fraction and the examples are integers.

    Example:
        >>> import numpy as np
        >>> from mnpar.dataset import concat_examples
        >>> x, t = concat_examples([(np.ones(2), 0), (np.zeros(2), 1)])
        >>> x.shape, t
        ((2, 2), array([0, 1]))
        >>> concat_examples([np.ones(2), np.ones(1)], padding=-1)
        array([[ 1.,  1.],
               [ 1., -1.]])
    """
    if len(batch) == 0:
        raise ValueError(
            "concat_examples got an empty batch; a rank without examples needs no conversion"
        )
    first = batch[0]
    if isinstance(first, tuple):
        keys: Sequence[Any] = range(len(first))
        _same_parts(batch, len)
    elif isinstance(first, dict):
        keys = list(first)
        _same_parts(batch, dict.keys)
    else:
        return _join(batch, "", device, padding)
    shared = not isinstance(padding, type(first))
    if not shared and (
        missing := list(keys)[len(padding) :]
        if isinstance(first, tuple)
        else [k for k in keys if k not in padding]
    ):
        raise ValueError(f"padding has nothing for the parts {missing} of the examples")
    parts = (
        _join(
            [example[key] for example in batch],
            f"part {key!r} of ",
            device,
            padding if shared else padding[key],
        )
        for key in keys
    )
    return dict(zip(keys, parts, strict=True)) if isinstance(first, dict) else tuple(parts)


class Converter:
    """The base of converters with a state: called with a list of examples and a device, returns the
    arrays of a batch.

    Example:
        >>> import mnpar
        >>> class Longest(mnpar.dataset.Converter):
        ...     def __call__(self, batch, device=None):
        ...         return max(batch, key=len)
        >>> Longest()(["a", "bc"])
        'bc'
    """

    def __call__(self, batch: Sequence[Any], device: int | str | None = None) -> Any:
        """Return the arrays of a batch, to be defined by each kind of converter."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define __call__(self, batch, device=None)"
        )


def converted(converter: Callable[..., Any], batch: Sequence[Any], device: int | str | None) -> Any:
    """Return what a converter makes of a batch: a Converter is given the device as an object, a
    function as its number, as in Chainer.

    Example:
        >>> from mnpar.dataset.convert import converted
        >>> converted(lambda batch, device: (len(batch), device), [1, 2], "@numpy")
        (2, -1)
    """
    if device is None:
        return converter(batch, None)
    known = backend.get_device(device)
    return converter(batch, known if isinstance(converter, Converter) else known.id)


def converter() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator of a converter function: its ``device`` then is a
    :class:`mnpar.backend.Device`, or None.

    Example:
        >>> import numpy as np, mnpar
        >>> @mnpar.dataset.converter()
        ... def convert(batch, device):
        ...     return device.send(np.stack(batch))
        >>> convert([np.ones(2), np.zeros(2)], -1).shape
        (2, 2)
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def convert(
            batch: Sequence[Any], device: int | str | None = None, *args: Any, **kwargs: Any
        ) -> Any:
            return function(
                batch, None if device is None else backend.get_device(device), *args, **kwargs
            )

        return convert

    return decorate


class ConcatWithAsyncTransfer(Converter):
    """:func:`concat_examples`, Chainer's form of it that copies to a GPU meanwhile; here it does
    not.

    Args:
        stream, compute_stream: Chainer's; accepted and not needed.

    Example:
        >>> import mnpar
        >>> mnpar.dataset.ConcatWithAsyncTransfer()([1, 2])
        array([1, 2])
    """

    def __init__(self, stream: Any = None, compute_stream: Any = None) -> None:
        pass

    def __call__(
        self, batch: Sequence[Any], device: int | str | None = None, padding: Any = None
    ) -> Any:
        """Return what :func:`concat_examples` returns."""
        return concat_examples(batch, device, padding)


def _same_parts(batch: Sequence[Any], parts: Callable[[Any], Any]) -> None:
    """Check that all examples are of the first one's type, with its length or its keys."""
    first = batch[0]
    for number, example in enumerate(batch):
        if type(example) is not type(first) or parts(example) != parts(first):
            raise ValueError(
                "the examples of a batch must have the same parts: "
                f"example 0 is {_described(first)}, example {number} is {_described(example)}"
            )


def _described(example: Any) -> str:
    kind = type(example).__name__
    if isinstance(example, dict):
        return f"a {kind} with the keys {list(example)}"
    return f"a {kind} of length {len(example)}" if isinstance(example, tuple) else f"a {kind}"


def _join(examples: Any, where: str, device: int | str | None, padding: Any) -> Array:
    """(N, …) from N arrays or numbers."""
    if not backend.is_array(examples[0]):
        examples = (
            _numbers(examples, where)
            if padding is None
            else [np.asarray(example) for example in examples]
        )
    xp = backend.get_array_module(*examples)
    if padding is not None:
        joined = _pad(xp, examples, padding, where)
    else:
        try:
            joined = xp.stack(examples)
        except ValueError:
            raise ValueError(
                _several_shapes(where, [example.shape for example in examples])
            ) from None
    return to_device(device, joined)


def _numbers(examples: Sequence[Any], where: str) -> Array:
    """(N, …) from N numbers or N nested lists of them."""
    try:
        joined = np.asarray(examples)
    except ValueError:
        raise ValueError(
            _several_shapes(where, [np.shape(example) for example in examples])
        ) from None
    if joined.dtype == object:
        raise TypeError(
            f"{where}the examples are no arrays and no numbers but "
            f"{type(examples[0]).__name__}; give a converter"
        )
    return joined


def _several_shapes(where: str, shapes: list[tuple[int, ...]]) -> str:
    found = ", ".join(str(shape) for shape in sorted(set(shapes)))
    return (
        f"{where}the examples of this batch have different shapes: {found}; give "
        "concat_examples a padding, or a converter"
    )


def _pad(xp: ArrayModule, examples: Sequence[Array], padding: Any, where: str) -> Array:
    if len({example.ndim for example in examples}) > 1:
        raise ValueError(
            "padding joins arrays with one number of axes; these have "
            f"{[example.ndim for example in examples]}"
        )
    # the smallest that holds them all
    shape = np.max([example.shape for example in examples], axis=0).astype(int).tolist()
    dtype: Any = xp.result_type(
        *{example.dtype: None for example in examples}
    )  # as without padding
    if (
        dtype.kind in "biu"
        and np.ndim(padding) == 0
        and not isinstance(padding, str)
        and not float(padding).is_integer()
    ):
        raise ValueError(
            f"{where}the examples are {dtype}, and cannot be padded with {padding}: convert "
            "them to floats"
        )
    joined = xp.full((len(examples), *shape), padding, dtype=dtype)
    for i, example in enumerate(examples):
        index: Index = (i, *map(slice, example.shape))
        joined[index] = example
    return joined
