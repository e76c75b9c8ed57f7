"""Links made of links: Chain by names, ChainList by numbers; sequential.py calls them one after
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

from mnpar.errors import refuse_class
from mnpar.link import Link, check_name
from mnpar.parameter import structure

C = TypeVar("C", bound="Chain")
CL = TypeVar("CL", bound="ChainList")
# a link or, in a Sequential, anything that can be called
Layer: TypeAlias = Callable[..., Any]


class Chain(Link):
    """A link whose attributes that are links register themselves.

    A link under two names is one link: its parameters are listed once, under the first name.

    Args:
        links: children by name.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> class MLP(mnpar.Chain):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.l1 = L.Linear(4, 3)
        ...         self.l2 = L.Linear(3, 2)
        >>> [path for path, _ in MLP().namedparams()]
        ['/l1/W', '/l1/b', '/l2/W', '/l2/b']
    """

    def __init__(self, **links: Link) -> None:
        super().__init__()
        self._children: dict[str, None] = {}
        for name, link in links.items():
            self.add_link(name, link)

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Link):
            check_name(self, name)
            _check_acyclic(self, name, value)
            self._registry("_children")[name] = None
            if value.name is None:
                value.name = name
            structure.change()
        elif name in self.__dict__.get("_children", ()):
            del self._children[name]
            structure.change()
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._children.pop(name, None)

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str):
            raise TypeError(
                f"the links of a {type(self).__name__} have names, not numbers: children() "
                "gives one after another"
            )
        return getattr(self, name)

    def add_link(self, name: str, link: Link) -> None:
        """Add a child by name.

        Raises:
            AttributeError: there is such an attribute already; TypeError: it is not a link.
        """
        if name in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__} has an attribute {name!r} already: choose another name"
            )
        if not isinstance(link, Link):
            refuse_class(link, "a child is a link")
            raise TypeError(f"only links can be added as children, not {type(link).__name__}")
        setattr(self, name, link)

    def _named_children(self) -> Iterator[tuple[str, Link]]:
        return ((name, self.__dict__[name]) for name in self._children)

    def _child_links(self) -> list[Link]:
        return [self.__dict__[name] for name in self._children]

    def __repr__(self) -> str:
        return _shown(self, self._named_children())

    def _shared(self: C, memo: dict[int, Any]) -> C:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        other = super()._shared(memo)
        other.__dict__["_children"] = dict(self._children)
        for name in self._children:
            other.__dict__[name] = self.__dict__[name]._shared(memo)
        return other


class ChainList(Link):
    """A list of links.

    Args:
        links: the first children.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> layers = mnpar.ChainList(L.Linear(4, 3), L.Linear(3, 2))
        >>> len(layers), [path for path, _ in layers.namedparams()]
        (2, ['/0/W', '/0/b', '/1/W', '/1/b'])
    """

    def __init__(self, *links: Layer) -> None:
        super().__init__()
        self._list: list[Layer] = []
        self.extend(links)

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Link):
            raise TypeError(
                f"a ChainList holds its links by number: append {name!r}, or use a Chain"
            )
        super().__setattr__(name, value)

    def __getitem__(self, index: int | slice) -> Any:
        return self._list[index]

    def __setitem__(self, index: int, link: Layer) -> None:
        self._list[index] = self._checked(link)
        self._changed()

    def __delitem__(self, index: int | slice) -> None:
        del self._list[index]
        self._changed()

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list)

    def _changed(self) -> None:
        """Give names to the links that have none yet, or had another number."""
        for name, link in self._named_children():
            if link.name is None or link.name.isdigit():
                link.name = name
        structure.change()

    def _checked(self, link: Layer) -> Layer:
        if not isinstance(link, Link):
            refuse_class(link, "a child is a link")
            raise TypeError(
                f"only links can be added as children, not {type(link).__name__}{one_by_one(link)}"
            )
        _check_acyclic(self, str(len(self._list)), link)
        return link

    def insert(self, index: int, link: Layer) -> None:
        """Insert a link before a place.

        Raises:
            TypeError: it is not a link (in a Sequential: nothing that can be called).
        """
        self._list.insert(index, self._checked(link))
        self._changed()

    def append(self, link: Layer) -> None:
        """Add a link at the end."""
        self.insert(len(self._list), link)

    add_link = append

    def extend(self, values: Iterable[Layer]) -> None:
        """Add several links at the end; none of them if one is not a link."""
        self._list.extend([self._checked(link) for link in values])
        self._changed()

    def __iadd__(self: CL, links: Iterable[Layer]) -> CL:
        self.extend(links)
        return self

    def pop(self, index: int = -1) -> Any:
        """Remove the link at a place; returns it."""
        link = self._list.pop(index)
        self._changed()
        return link

    def remove(self, value: Layer) -> None:
        """Remove the first occurrence of a link."""
        self._list.remove(value)
        self._changed()

    def clear(self) -> None:
        """Remove all links."""
        self._list.clear()
        self._changed()

    def reverse(self) -> None:
        """Reverse the order."""
        self._list.reverse()
        self._changed()

    def index(self, value: Layer, start: int = 0, stop: int | None = None) -> int:
        """Return the first place of a link, from ``start`` on and before ``stop``."""
        return self._list.index(value, start, len(self._list) if stop is None else stop)

    def count(self, value: Layer) -> int:
        """Return how often a link is in the list."""
        return self._list.count(value)

    def __repr__(self) -> str:
        return _shown(self, enumerate(self._list))

    def _named_children(self) -> Iterator[tuple[str, Link]]:
        return ((str(i), link) for i, link in enumerate(self._child_links()))

    def _child_links(self) -> list[Link]:
        # functions have no number, as in Chainer
        return [link for link in self._list if isinstance(link, Link)]

    def _shared(self: CL, memo: dict[int, Any]) -> CL:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        other = super()._shared(memo)
        other.__dict__["_list"] = [
            x._shared(memo) if isinstance(x, Link) else x for x in self._list
        ]
        return other


def _check_acyclic(link: Link, name: str, child: Link) -> None:
    """Raise ValueError if a link would be in itself."""
    if child is link or any([one is link for one in child.links()]):
        parent = type(link).__name__
        raise ValueError(
            f"{parent} cannot have the {type(child).__name__} {name!r}, "
            f"{'itself' if child is link else f'in which the {parent} is'}, as a child: a link "
            "that only refers to another one keeps it in a tuple, self.other = (link,)"
        )


def _shown(link: Link, layers: Iterable[tuple[object, Layer]]) -> str:
    """Return a link's class, and its children on lines of their own."""
    rows = [
        f"({name}): {layer if isinstance(layer, Link) else layer_type(layer)},"
        for name, layer in layers
    ]
    lines = [f"\n  {line}" for row in rows for line in row.split("\n")]
    return f"{type(link).__name__}({''.join(lines)}{chr(10) if lines else ''})"


def one_by_one(given: object) -> str:
    """Return what an error adds where links were given in one list."""
    return (
        ": take it apart with a star, as in ChainList(*links)"
        if isinstance(given, list | tuple)
        else ""
    )


def layer_type(layer: Layer) -> str:
    """Return the name of a link's class, or of a function."""
    return (
        type(layer).__name__
        if isinstance(layer, Link)
        else getattr(layer, "__name__", type(layer).__name__)
    )
