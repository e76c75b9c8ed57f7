"""parallelize: an ordinary model becomes one that the ranks of a mesh have together."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnpar.communicators.communicator import described
from mnpar.errors import MismatchError, refuse_class
from mnpar.link import Link
from mnpar.links.attention import MultiHeadAttention
from mnpar.links.divided import digest_of
from mnpar.links.linear import Linear
from mnpar.parallel.mesh import Mesh
from mnpar.parallel.pipeline.pipeline import Pipeline
from mnpar.parallel.plan.divisions import BATCH_STATISTICS, DIVISIONS, Division, Order
from mnpar.parallel.plan.layers import layers_of
from mnpar.parallel.plan.rules import MatchedLink, matches, read_rules
from mnpar.parallel.plan.table import PlanTable, plan_of
from mnpar.parameter import Parameter


@dataclass(frozen=True)
class ParallelPlan:
    """The record that :func:`parallelize` keeps with a model.

    Args:
        mesh: the ranks that have the model.
        skeleton: the whole model, without the arrays of its parameters.
    """

    mesh: Mesh
    skeleton: Link

    def table(self, model: Link) -> PlanTable:
        """Return the rows of the model that was divided, on this rank: what printing it shows."""
        return plan_of(model, self.mesh)


def parallelize(
    model: Any,
    mesh: Mesh,
    rules: Mapping[str, str] | None = None,
    *,
    layers: Sequence[str] | None = None,
    schedule: str = "1f1b",
    micro_batches: int | Sequence[int] = 1,
    inputs: int = 1,
    loss: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Divide an ordinary model among the ranks of a mesh, by rules.

    The links that a rule means become layers that the ranks of one axis of the mesh share; the
    program of the model stays as it is. Outputs, gradients and weights after any step are those
    of the model on one process. Where an axis has one rank, its rules are checked, and nothing is
    divided.

    Samples (the axis ``data``), images (``space``) and sequences are divided by cutting the batch:
    :meth:`mnpar.Mesh.cut`.

    Args:
        model: the whole model, with the same weights on every rank: made after
            :func:`mnpar.random.seed` with one seed, or loaded from one file. It is changed in
            place. Each link and each parameter stays the same object.
        mesh: all its ranks call this.
        rules: for patterns of paths, words that say how these links are divided. Patterns are
            those of ``pathlib``: ``"*/up"``, ``"attention"`` (at any depth), ``"/embed"``. Words
            are

            ============ ======================== ===================================== ==========
            word         links                    each rank has                         axis
            ============ ======================== ===================================== ==========
            `columns`    Linear                   some outputs                          model
            `rows`       Linear                   some inputs                           model
            `vocabulary` EmbedID                  some words                            model
            `filters`    Convolution2D            some output channels, or groups       model
            `channels`   Convolution2D            some input channels                   model
            `heads`      MultiHeadAttention       some heads                            model
            `expert`     MixtureOfExperts         some experts                          expert
            `sequence`   MultiHeadAttention       a part of the sequences               sequence
            `samples`    BatchNormalization       its samples; statistics are of all    data
            `local`      BatchNormalization       statistics of its own samples         data
            ============ ======================== ===================================== ==========

            and several of them are joined by commas. ``"columns over tensor"`` names another axis.
            Outputs of ``columns`` and ``filters`` stay where they were computed: they are divided
            Variables. Elementwise functions, ``rows``, ``channels``, a linear layer and a cross
            entropy take them as they are; what would need all of them is an error, and
            ``"columns, gathered"`` gives every rank all.
        layers: patterns of the links that a pipeline cuts into stages, on the axis ``pipe``. None:
            the layers of a Sequential, or the model's children. With ``layers``, or more than one
            rank on the axis, the result is a :class:`mnpar.Pipeline`, called as the model with its
            labels.
        schedule, micro_batches, options: as :meth:`mnpar.Pipeline.of` has them.
        inputs: how many of the model's arguments are for its first layer.
        loss: with a pipeline, what makes the loss of the model's result and the labels; None: the
            model itself returns the loss.

    Returns:
        The model; with a pipeline, the pipeline of its layers, of which each rank has some.

    Raises:
        ValueError: a rule fits nothing, a link that it cannot divide, or the same link as another
            rule; or the model does more than calling its layers one after another. Nothing is
            changed then. KeyError: the mesh has no such axis.
        MismatchError: ranks have other rules, other weights or another model; on all ranks.
        LayoutError: when the model is called, on all ranks: a function needs the whole of outputs
            or parameters that are divided. It names the function, the layer and the remedy.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> class MLP(mnpar.Chain):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.up, self.down = L.Linear(4, 10), L.Linear(10, 3)
        ...
        ...     def forward(self, x):
        ...         return self.down(F.relu(self.up(x)))
        >>> def program(comm):
        ...     mnpar.random.seed(0)
        ...     mesh = mnpar.Mesh(comm, model=comm.size)
        ...     model = mnpar.parallelize(MLP(), mesh, {"up": "columns", "down": "rows"})
        ...     return model.up.W.shape, model(np.ones((1, 4), "f4")).array.round(4).tolist()
        >>> one, two = mnpar.run(program, ranks=1), mnpar.run(program, ranks=2)
        >>> two[0][0], two[0][1] == two[1][1] == one[0][1]
        ((5, 4), True)
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"parallelize(model, mesh, rules): a Mesh is needed where {described(mesh)} was given"
        )
    if not isinstance(model, Link):
        refuse_class(model, "parallelize takes a link")
        raise TypeError(f"parallelize takes a link, not {type(model).__name__}")
    if "_plan" in vars(model):
        raise ValueError("the model is divided already: mnpar.gathered(model) is the whole one")
    found = matches(model, read_rules({} if rules is None else rules))
    orders = _orders(model, mesh, found)
    piped = layers is not None or mesh["pipe"].size > 1
    _check_unnamed(model, mesh, found, micro_batches if piped else 1)
    if not piped and (loss is not None or options):
        raise ValueError(
            f"{', '.join(['loss'] * (loss is not None) + [*options])}: for a pipeline, whose "
            "layers= are named, or which has several ranks on the mesh's axis pipe"
        )
    chain = layers_of(model, layers, inputs, loss) if piped else {}
    tied = _tied(model, chain) if piped else {}
    _check_alike(model, mesh, (rules, layers, schedule, micro_batches, inputs))
    plan = ParallelPlan(mesh, _skeleton(model))
    for link, division, order in orders:
        division.divide(link, order)
    if piped:
        makers = {name: (lambda layer=layer: layer) for name, layer in chain.items()}
        model = Pipeline.of(
            mesh["pipe"],
            makers,
            schedule,
            micro_batches,
            tied=tied,
            inputs=inputs,
            **options,
        )
    vars(model)["_plan"] = plan
    return model


def _orders(
    model: Link, mesh: Mesh, found: list[MatchedLink]
) -> list[tuple[Link, Division, Order]]:
    """Return what is to be done to which link, after all that can be wrong was looked for."""
    orders = []
    for match in found:
        for word in match.rule.words:
            division = DIVISIONS[type(match.link), word]
            axis = division.axis if match.rule.axis is None else match.rule.axis
            comm = mesh[axis]
            order = Order(
                match.path, word, match.rule.gathered, mesh, comm, _origin(match, division)
            )
            _check(match, division, order)
            if word == "sequence":
                mesh.sequence_axes[axis] = None
            sharing = mesh[(axis, *division.beside)] if division.beside else comm
            if sharing.size > 1:
                orders.append((match.link, division, order))
    _check_cuts(model, orders)
    return orders


def _check_unnamed(
    model: Link, mesh: Mesh, found: list[MatchedLink], micro_batches: int | Sequence[int]
) -> None:
    """Raise ValueError if a link would use other samples, or a shorter sequence, than on one
    process, and no rule says how.
    """
    named = {id(match.link): match.rule.words for match in found}
    pieces = micro_batches if isinstance(micro_batches, int) else len(micro_batches)
    for path, link in model.namedlinks():
        words = named.get(id(link), ())
        if isinstance(link, BATCH_STATISTICS) and "local" not in words:
            if pieces > 1:
                raise ValueError(
                    f"{path}, a {type(link).__name__}, would have the statistics of each of "
                    f"{pieces} micro-batches: micro_batches=1, or the rule 'local', which says "
                    f"that this is meant: {{{path.lstrip('/')!r}: 'local'}}"
                )
            if mesh["data"].size > 1 and "samples" not in words:
                raise ValueError(
                    f"{path}, a {type(link).__name__}, would have the statistics of each rank's "
                    f"own samples on {mesh!s}: the rule {{{path.lstrip('/')!r}: 'samples'}} gives "
                    "it those of all, and 'local' says that these are meant"
                )
        if (
            isinstance(link, MultiHeadAttention)
            and mesh["sequence"].size > 1
            and link.sequence_comm is None
            and "sequence" not in words
        ):
            raise ValueError(
                f"{path}, a {type(link).__name__}, would attend to this rank's part of the "
                f"sequences on {mesh!s}: the rule {{{path.lstrip('/')!r}: 'sequence'}} lets it "
                "attend to all of them (with heads: 'heads, sequence')"
            )


def _origin(match: MatchedLink, division: Division) -> str:
    rule = match.rule
    more = (
        f"; {rule.text + ', gathered'!r} gives every rank all of its outputs"
        if division.gathers and not rule.gathered
        else ""
    )
    return f". The {str(rule)[4:]} divides {match.path}{more}"


def _check(match: MatchedLink, division: Division, order: Order) -> None:
    """Raise ValueError if a link cannot be divided."""
    path, link = match.path, match.link
    why = division.refusal(link, order)
    if match.rule.gathered and not any(
        [DIVISIONS[type(link), word].gathers for word in match.rule.words]
    ):
        why = f"{' and '.join(match.rule.words)} leaves no outputs divided: leave out 'gathered'"
    for name in division.cuts:
        param = vars(link).get(name)
        if param is None:
            continue
        if not isinstance(param, Parameter):
            why = why or f"its {name} is computed by a hook, {type(param).__name__}"
        elif param.box is not None:
            why = why or f"its {name} is divided already"
        elif param.update_rule is not None:
            why = why or "an optimizer has it: call setup(model) after parallelize"
    if why:
        raise ValueError(f"{match.rule} fits {path}: this {type(link).__name__} is refused: {why}")


def _check_cuts(model: Link, orders: list[tuple[Link, Division, Order]]) -> None:
    """Raise ValueError if two links that share a parameter are to cut it in different ways."""
    cuts: dict[int, tuple[Any, str]] = {}
    for link, division, order in orders:
        for name, axis in division.cuts.items():
            param = vars(link).get(name)
            if param is None:
                continue
            how = axis, id(order.comm), division.units(link)
            before = cuts.setdefault(id(param), (how, f"{order.path}/{name}"))
            if before[0] != how:
                raise ValueError(
                    f"{order.path}/{name} is the same parameter as {before[1]}, but {order.word!r} "
                    f"cuts it along axis {axis}, and the other rule along axis {before[0][0]}, or "
                    "among other ranks: cut both alike, or give each layer its own"
                )
    divided = {id(link) for link, _, _ in orders}
    for path, link in model.namedlinks():
        if id(link) in divided:
            continue
        for name, param in link._named_own():
            known = cuts.get(id(param))
            # scores by a table of words are those of its parts
            scores = type(link) is Linear and link.b is None
            if known is not None and not (scores and name == "/W" and known[0][0] == 0):
                raise ValueError(
                    f"a rule divides {known[1]}, which {path}, a {type(link).__name__}, has too: "
                    "divide both alike, or give each its own parameter"
                )


def _tied(model: Link, chain: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of weights that several layers have, each with its first one."""
    names = {id(layer): name for name, layer in chain.items() if isinstance(layer, Link)}
    first: dict[int, tuple[str, str]] = {}
    tied = {}
    for name in chain:
        layer = chain[name]
        if id(layer) not in names or names[id(layer)] != name:
            continue
        for path, param in layer._every_path():
            own = f"/{name}{path}"
            there, where = first.setdefault(id(param), (own, name))
            if where != name:
                tied[own] = there
    return tied


def _check_alike(model: Link, mesh: Mesh, settings: object) -> None:
    """Raise MismatchError on all ranks if their models or rules differ."""
    mine = {
        path: digest_of(param.array) + str(param.dtype).encode() if param.is_initialized else b""
        for path, param in model.namedparams()
    }
    mine[""] = hashlib.blake2b(repr(settings).encode(), digest_size=16).digest()
    everyone = mesh.comm.allgather_obj(hashlib.blake2b(repr(mine).encode()).digest())
    if all([one == everyone[0] for one in everyone]):
        return
    tables = mesh.comm.allgather_obj(mine)
    for rank, table in enumerate(tables):
        paths = [p for p in dict.fromkeys([*tables[0], *table]) if tables[0].get(p) != table.get(p)]
        if paths:
            what = paths[0] or "what parallelize was called with"
            raise MismatchError(
                f"parallelize: {what} is not the same on ranks [0, {rank}] of {mesh!s}: every rank "
                "gives the same rules, and the whole model with the same weights: make it after "
                "mnpar.random.seed with one seed, load it from one file, or call "
                "comm.bcast_data(model) before"
            )


def _skeleton(model: Link) -> Link:
    """Return a copy of a model without the arrays of its parameters."""
    memo: dict[int, Any] = {}
    for param in model.params():
        empty = Parameter()
        empty.initializer, empty.name = param.initializer, param.name
        memo[id(param)] = empty
    return copy.deepcopy(model, memo)
