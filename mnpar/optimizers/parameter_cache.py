"""The parameters of a link, found by walking through it only when links or parameters have
changed.
"""

from __future__ import annotations

from mnpar.autograd.graph import VariableNode
from mnpar.chain import Chain, ChainList
from mnpar.link import Link
from mnpar.parameter import Parameter, structure
from mnpar.variable import Variable

_WALKS = (Link._child_links, Chain._child_links, ChainList._child_links)


class ParameterCache:
    """The parameters of a link, as a list that is another object whenever any of them may have
    become another one.

    Example:
        >>> import mnpar.links as L
        >>> from mnpar.optimizers.parameter_cache import ParameterCache
        >>> layer, cache = L.Linear(2, 1), ParameterCache()
        >>> found = cache.of(layer)
        >>> cache.of(layer) is found
        True
        >>> layer.b = None
        >>> len(cache.of(layer))
        1
    """

    def __init__(self) -> None:
        self._link: Link | None = None
        # ``structure.now`` when they were found; None if changes may not change that
        self.seen: object = None
        self._params: list[Parameter] = []
        self._nodes: list[VariableNode] = []
        self.nodes: frozenset[VariableNode] = frozenset()  # for membership tests

    def cleargrads(self, link: Link) -> None:
        """``link.cleargrads()``, without walking through the link where the result is the same."""
        self.of(link)
        if self.seen is None:
            link.cleargrads()
            return
        for node in self._nodes:
            node.gradient = None

    def of(self, link: Link) -> list[Parameter]:
        """Return all parameters, in the order of definition, in a list that nobody may change."""
        if self.seen is not structure.now or self._link is not link:
            now = structure.now
            self._params, self._link = list(link.params()), link
            self._nodes = [param.node for param in self._params]
            self.nodes = frozenset(self._nodes)
            self.seen = (
                now
                if _says_all(link)
                and all([type(p).cleargrad is Variable.cleargrad for p in self._params])
                else None
            )
        return self._params


def _says_all(link: Link) -> bool:
    """Return whether ``structure.now`` changes whenever the links' parameters do: not if users have
    overridden the methods below.
    """
    kinds = {type(one) for one in link.links()}
    return all(
        [
            kind.params is Link.params
            and kind.links is Link.links
            and kind._collect_links is Link._collect_links
            and kind._child_links in _WALKS
            and kind.cleargrads is Link.cleargrads
            for kind in kinds
        ]
    )
