"""The layers of an ordinary model, one after the other, as a pipeline takes them.

Layers of a Sequential are known. Of another Chain, ``forward`` is called once with tokens in place
of arrays and with its links replaced by recorders. A token can only be handed on: so if forward
calls the layers one after another, and does nothing else, the record shows it, and if not it is an
error. A model that is cut by its record computes what its own forward does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from mnpar.chain import Chain, ChainList, layer_type
from mnpar.configuration import using_config
from mnpar.link import Link
from mnpar.sequential import Sequential


class Token:
    """A value that a recorded forward hands on; nothing can be computed from it."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return self.what

    def __bool__(self) -> bool:
        raise TypeError(f"{self.what} has no truth value here")

    def __eq__(self, other: object) -> bool:
        raise TypeError(f"{self.what} is compared")

    __hash__ = object.__hash__


def layers_of(
    model: Link, patterns: Sequence[str] | None, inputs: int, loss: Callable[..., Any] | None
) -> dict[str, Any]:
    """Return a model's layers by their paths.

    Args:
        model: a Sequential, or a Chain that calls its layers one after another.
        patterns: of the layers' paths; None: the model's children, and those of its ChainLists.
        inputs: how many arguments of the model go to the first layer; the others go to the last.
        loss: called with what the model returns, and the labels; None: the model returns the loss.

    Raises:
        ValueError: the model does something else.
    """
    if isinstance(model, Sequential) and patterns is None:
        layers = _of_sequential(model)
    else:
        layers = _recorded(model, _candidates(model, patterns), inputs)
    if loss is None:
        return layers
    wanted = loss
    if "loss" in layers:
        raise ValueError("the model has a layer 'loss' already: give no loss=")

    def end(*y_and_t: Any) -> Any:
        return wanted(*y_and_t) if len(y_and_t) > 1 else y_and_t[0]

    return {**layers, "loss": end}


def _of_sequential(model: Sequential) -> dict[str, Any]:
    numbers = iter(range(len(model)))
    return {
        str(next(numbers)) if isinstance(layer, Link) else f"{i} {layer_type(layer)}": layer
        for i, layer in enumerate(model)
    }


def _candidates(model: Link, patterns: Sequence[str] | None) -> dict[str, Link]:
    """Return the links that may be layers, by their paths without the first slash."""
    named = [(path.lstrip("/"), link) for path, link in model.namedlinks(skipself=True)]
    if patterns is None:
        found: list[tuple[str, Link]] = []
        for name, child in model._named_children():
            inside = type(child).forward is Link.forward and isinstance(child, ChainList)
            found += (
                [(f"{name}/{n}", one) for n, one in child._named_children()]
                if inside
                else [(name, child)]
            )
        return dict(found)
    layers: dict[str, Link] = {}
    for pattern in patterns:
        hits = [(path, link) for path, link in named if PurePosixPath("/", path).match(pattern)]
        if not hits:
            raise ValueError(
                f"layers: {pattern!r} fits no link of the model: it has "
                f"{', '.join([path for path, _ in named])}"
            )
        layers.update(hits)
    return layers


class _LayerRecorder:
    """The stand-in of a layer while forward is recorded."""

    def __init__(self, path: str, calls: list[tuple[str, tuple[Any, ...], Token]]) -> None:
        self.path, self.calls = path, calls

    def __call__(self, *args: Any, **named: Any) -> Token:
        if named:
            raise TypeError(f"{self.path} is called with {', '.join(named)} by name")
        self.calls.append((self.path, args, Token(f"the result of {self.path}")))
        return self.calls[-1][2]


def _recorded(model: Link, layers: dict[str, Link], inputs: int) -> dict[str, Any]:
    """Return the layers in the order in which forward calls them."""
    orders: dict[tuple[str, ...], None] = {}
    for train in (True, False):
        for labels in _numbers_of_labels(model, inputs):
            with using_config("train", train):
                orders[_order(model, layers, inputs, labels)] = None
    if len(orders) > 1:
        raise ValueError(
            f"{_NAMED.format(type(model).__name__)} calls other layers in training than in "
            f"evaluation, or without labels: {' and '.join(map(str, orders))}"
        )
    (order,) = orders
    return {path: layers[path] for path in order}


def _numbers_of_labels(model: Link, inputs: int) -> list[int]:
    """Return with how many arguments more than the inputs forward may be called."""
    params = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    needed = len([p for p in params if p.default is p.empty])
    return list(dict.fromkeys([max(len(params) - inputs, 0), max(needed - inputs, 0)]))


def _order(model: Link, layers: dict[str, Link], inputs: int, labels: int) -> tuple[str, ...]:
    """Return the paths of the layers as forward calls them with so many labels."""
    calls: list[tuple[str, tuple[Any, ...], Token]] = []
    own = [Token(f"argument {i} of the model") for i in range(inputs + labels)]
    replaced = list(_places(model, {id(link): path for path, link in layers.items()}))
    try:
        for keep, key, path, _ in replaced:
            keep[key] = _LayerRecorder(path, calls)
        result = model.forward(*own)
    except Exception as error:
        raise ValueError(
            f"{_NAMED.format(type(model).__name__)} does more than that: "
            f"{type(error).__name__}: {error}. Put what it does between two layers into a layer "
            f"of its own, or name larger layers: layers=(…). Called so far: "
            f"{', '.join([path for path, _, _ in calls]) or 'none'}"
        ) from error
    finally:
        for keep, key, _, link in replaced:
            keep[key] = link
    name = _NAMED.format(type(model).__name__)
    order = [path for path, _, _ in calls]
    never = [path for path in layers if path not in order]
    twice = [path for path in layers if order.count(path) > 1]
    if never or twice:
        raise ValueError(
            f"{name} calls {', '.join(twice) + ' twice' if twice else ''}"
            f"{' and ' if twice and never else ''}{', '.join(never) + ' never' if never else ''}"
        )
    for i, (path, args, _) in enumerate(calls):
        wanted = own[:inputs] if i == 0 else [calls[i - 1][2]]
        wanted = [*wanted, *own[inputs:]] if i + 1 == len(calls) else wanted
        args = _without_defaults(layers[path], args, len(wanted))
        if len(args) != len(wanted) or any([a is not b for a, b in zip(args, wanted, strict=True)]):
            raise ValueError(
                f"{name} calls {path} with {list(args)}, where {wanted} would be right: the first "
                "layer gets the inputs (inputs= says how many), each other one the result of the "
                "one before, the last one the labels too"
            )
    if not calls or result is not calls[-1][2]:
        raise ValueError(f"{name} returns {result!r}, not the result of the last layer")
    return tuple(order)


def _without_defaults(layer: Any, args: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    """Return the arguments of a layer without those after the first n that are its own defaults,
    such as None for labels.
    """
    params = list(inspect.signature(layer.forward).parameters.values())
    rest = zip(args[n:], params[n : len(args)], strict=False)
    own = len(params) >= len(args) and all([arg is param.default for arg, param in rest])
    return args[:n] if own else args


def _places(model: Link, paths: dict[int, str]) -> Iterator[tuple[Any, Any, str, Link]]:
    """Yield the places at which links refer to layers: what holds them, at which key."""
    for link in model.links():
        if isinstance(link, Chain):
            keys: list[tuple[Any, Any]] = [(vars(link), name) for name in link._children]
        elif isinstance(link, ChainList):
            keys = [(link._list, i) for i in range(len(link))]
        else:
            continue
        for keep, key in keys:
            if id(keep[key]) in paths:
                yield keep, key, paths[id(keep[key])], keep[key]


_NAMED = "a pipeline takes layers that are called one after another, but {}.forward"
