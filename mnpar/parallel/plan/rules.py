"""Rules of a plan: patterns of paths, with what is to be done to the links that they match.

A pattern is matched as Python's ``PurePath.match`` does it: component by component from the end of
the path, ``*`` within one of them; with a ``/`` in front from the beginning. So ``"mlp/up"`` is
every ``up`` in an ``mlp``, and ``"/embed"`` the ``embed`` of the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from mnpar.errors import closest, listed
from mnpar.link import Link
from mnpar.links.experts import Experts, MixtureOfExperts
from mnpar.parallel.plan.divisions import DIVISIONS, words_of

GATHERED = "gathered"


class Rule(NamedTuple):
    """One rule, read."""

    pattern: str
    text: str
    words: tuple[str, ...]
    axis: str | None  # of the mesh; None: each word's own
    gathered: bool

    def __str__(self) -> str:
        return f"the rule {self.pattern!r}: {self.text!r}"


class MatchedLink(NamedTuple):
    """A link that a rule means."""

    path: str
    link: Link
    rule: Rule


def read_rules(rules: Mapping[str, str]) -> list[Rule]:
    """Return rules, such as ``{"*/up": "columns", "fc": "rows over model"}``, read.

    Raises:
        TypeError: they are not texts by texts; ValueError: an unknown word.
    """
    if not isinstance(rules, Mapping):
        raise TypeError(
            'rules are a dict of patterns and words, such as {"*/up": "columns"}, not '
            f"{type(rules).__name__}"
        )
    known = [*dict.fromkeys([word for _, word in DIVISIONS]), GATHERED]
    found = []
    for pattern, text in rules.items():
        if not isinstance(pattern, str) or not isinstance(text, str) or not pattern.strip("/ "):
            raise TypeError(
                f"a rule is the pattern of a path and words, both texts, not {pattern!r}: {text!r}"
            )
        body, over, axis = text.partition(" over ")
        words = [word.strip() for word in body.split(",")]
        for word in words:
            if word not in known:
                near = closest(word, known)
                raise ValueError(
                    f"the rule {pattern!r}: {text!r}: there is no word {word!r}"
                    f"{f': did you mean {near!r}?' if near else ';'} There are {listed(known)}"
                )
        own = tuple([word for word in dict.fromkeys(words) if word != GATHERED])
        if not own or (over and not axis.strip()):
            raise ValueError(
                f"the rule {pattern!r}: {text!r} says not what is divided: 'columns, gathered' or "
                "'columns over model' for example"
            )
        found.append(Rule(pattern, text, own, axis.strip() if over else None, GATHERED in words))
    return found


def matches(model: Link, rules: list[Rule]) -> list[MatchedLink]:
    """Return the links that rules mean, each once, in the order of the model.

    Raises:
        ValueError: a rule fits no link, a link that it does not divide, or one that another rule
            divides too.
    """
    found: dict[int, MatchedLink] = {}
    named = list(model.namedlinks())
    mixtures = [(path, link) for path, link in named if isinstance(link, MixtureOfExperts)]
    for rule in rules:
        hits = [
            (path, link)
            for path, link in named
            if path != "/" and PurePosixPath(path).match(rule.pattern)
        ] or [(path, link) for path, link in named if path == "/" == rule.pattern]
        if not hits:
            raise ValueError(_fits_nothing(rule, [path for path, _ in named if path != "/"]))
        if rule.words == ("expert",):
            hits = _mixtures(rule, hits, mixtures)
        for path, link in hits:
            for word in rule.words:
                if (type(link), word) not in DIVISIONS:
                    raise ValueError(f"{rule} fits {path}: {_not_divided(path, link, word)}")
            before = found.get(id(link))
            if before is not None and before.rule != rule:
                other = f", also {before.path}" if before.path != path else ""
                raise ValueError(
                    f"two rules fit {path}{other}, a {type(link).__name__}: {before.rule}, and "
                    f"{rule}: make one of them narrower, or join their words with a comma"
                )
            found[id(link)] = before or MatchedLink(path, link, rule)
    order = [id(link) for link in model.links()]
    return sorted(found.values(), key=lambda match: order.index(id(match.link)))


def _fits_nothing(rule: Rule, paths: list[str]) -> str:
    whole = [path.lstrip("/") for path in paths]
    near = closest(rule.pattern.lstrip("/"), [*whole, *[path.split("/")[-1] for path in paths]])
    return (
        f"{rule} fits no link of the model"
        f"{f': did you mean {near!r}?' if near else '.'} Its links are {listed(paths)}"
    )


def _mixtures(
    rule: Rule, hits: list[tuple[str, Link]], mixtures: list[tuple[str, MixtureOfExperts]]
) -> list[tuple[str, Link]]:
    """Return the mixtures whose experts a rule means, in place of the experts.

    Raises:
        ValueError: it means some experts of a mixture only.
    """
    found: dict[int, tuple[str, Link]] = {}
    for path, link in hits:
        owner = next(
            ((p, m) for p, m in mixtures if m is not link and path.startswith(p + "/")), None
        )
        if owner is None:
            found[id(link)] = path, link
            continue
        mixture = owner[1]
        hit = [one for _, one in hits]
        experts = next(one for one in mixture.links() if isinstance(one, Experts))
        if not (experts in hit or all([one in hit for one in experts.children()])):
            raise ValueError(
                f"{rule} fits {path}, but not all experts of {owner[0]}, which are divided "
                f"together: {owner[0].lstrip('/')!r}: 'expert'"
            )
        found[id(mixture)] = owner
    return list(found.values())


def _not_divided(path: str, link: Link, word: str) -> str:
    """Return why a word does not divide a link."""
    name, own = type(link).__name__, words_of(type(link))
    if own:
        return f"a {name} is divided by {listed(own)}, not by {word!r}"
    whole = [kind.__name__ for kind, other in DIVISIONS if other == word]
    base = next(
        (kind for kind, other in DIVISIONS if other == word and isinstance(link, kind)), None
    )
    if base is not None:
        return (
            f"a {name} is a {base.__name__} with something of its own, which a division would "
            "leave out: mnpar.parallel.register_division says how it is divided"
        )
    inside = [
        f"{path}{p}" for p, one in link.namedlinks(skipself=True) if type(one).__name__ in whole
    ]
    more = f"; inside are {listed(inside)}" if inside else ""
    return f"{word!r} divides {listed(whole)}, not a {name}{more}"
