"""The table of divisions: for a class of links and a word, the class that divides such a link among
ranks, and which parameters are cut.

A link becomes its divided twin in place: it gets another class, and its parameters keep their box
of the values that they have. So whoever refers to the link or to a parameter still does, as code
of the model that keeps a link in a list, or ties one weight to another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mnpar.functions.divided.features import DividedParameter, FeatureGrid
from mnpar.initializers import _get_initializer
from mnpar.link import Link
from mnpar.links.attention import MultiHeadAttention
from mnpar.links.convolution import Convolution2D
from mnpar.links.divided import BoxInitializer, digest_of
from mnpar.links.embedding import EmbedID, VocabularyParallelEmbedID
from mnpar.links.experts import MixtureOfExperts
from mnpar.links.linear import Linear
from mnpar.links.normalization import (
    BatchNormalization,
    BatchRenormalization,
    DecorrelatedBatchNormalization,
    MultiNodeBatchNormalization,
)
from mnpar.links.parallel import (
    ChannelParallelConvolution2D,
    ColumnParallelLinear,
    FilterParallelConvolution2D,
    RowParallelLinear,
)
from mnpar.parameter import Parameter
from mnpar.plans import Box, block

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.parallel.mesh import Mesh


@dataclass(frozen=True)
class Order:
    """The order that a rule gives for one link.

    Args:
        path: of the link.
        word: of the rule.
        gathered: whether every rank gets all of the outputs.
        mesh, comm: the mesh, and the ranks that share the link.
        origin: the end of errors, which names the rule.
    """

    path: str
    word: str
    gathered: bool
    mesh: Mesh
    comm: Communicator
    origin: str

    @property
    def grid(self) -> FeatureGrid:
        """The ranks, as what is divided among them knows them."""
        return FeatureGrid(self.comm, origin=self.origin)


Text = Callable[[Any], str]


@dataclass(frozen=True)
class Division:
    """A way to divide links of a class.

    Args:
        word: of rules.
        kind: the class of the divided link, a subclass of the whole link's or another one with the
            same parameters.
        axis: the mesh axis over which the link is divided if a rule names none.
        beside: other axes whose ranks share the link, too.
        cuts: the axis along which each parameter is cut, by name. A parameter that is not named is
            the same on each rank.
        settings: called with the whole link and the :class:`Order`; attributes of the divided link.
        units: called with the whole link: into how many equal pieces, none of which is cut, a
            parameter's axis falls; None: as many as it is long.
        refusal: called with the whole link and the order: why it cannot be divided so; empty where
            it can.
        forward, backward: called with the divided link: what each rank sends.
        gathers: whether outputs are divided if the rule does not say "gathered".
    """

    word: str
    kind: type[Link]
    axis: str = "model"
    beside: tuple[str, ...] = ()
    cuts: Mapping[str, int] = field(default_factory=dict)
    settings: Callable[[Any, Order], dict[str, Any]] = lambda link, order: {}
    units: Callable[[Any], int | None] = lambda link: None
    refusal: Callable[[Any, Order], str] = lambda link, order: ""
    forward: Text = lambda link: ""
    backward: Text = lambda link: ""
    gathers: bool = False

    def divide(self, link: Any, order: Order) -> None:
        """Let a link become its divided twin."""
        settings, units = self.settings(link, order), self.units(link)
        object.__setattr__(link, "__class__", self.kind)
        shares = {"comm": order.comm, "grid": order.grid} if self.cuts else {}
        vars(link).update(shares)
        vars(link).update(settings)
        for name, axis in self.cuts.items():
            param = vars(link).get(name)
            if isinstance(param, Parameter) and not isinstance(param, DividedParameter):
                DividedParameter.divide(param, order.grid, axis)
                if param.is_initialized:
                    cut_in_place(param, axis, order.comm, units)


def cut_in_place(param: Parameter, axis: int, comm: Communicator, units: int | None = None) -> None:
    """Let a parameter keep this rank's box of its array.

    Args:
        param: the whole one, initialized.
        axis: along which it is cut.
        comm: of the ranks that have the boxes.
        units: into how many pieces, none of which is cut, the axis falls; None: its length.
    """
    array, whole = param.array, param.shape
    n = whole[axis]
    each = n // (n if units is None else units) if n else 1
    first, last = [end * each for end in block(n // max(each, 1), comm.size, comm.rank)]
    start, stop = [0] * len(whole), list(whole)
    start[axis], stop[axis] = first, last
    box = Box(tuple(start), tuple(stop))
    initializer = BoxInitializer(_get_initializer(param.initializer), whole, box)
    part = array[box.index].copy()
    initializer.drawn = digest_of(array), digest_of(part)
    param.whole, param.box, param.initializer = whole, box, initializer
    param.array = part


DIVISIONS: dict[tuple[type[Link], str], Division] = {}


def register_division(link: type[Link], division: Division) -> None:
    """Enter a division in the table, for rules to find it.

    Args:
        link: the class of whole links; rules mean links of exactly this class.
        division: how they are divided.

    Raises:
        TypeError: the class is none of links; ValueError: it has a division of this word.
    """
    if not (isinstance(link, type) and issubclass(link, Link)):
        raise TypeError(f"register_division(link, division): a class of links, not {link!r}")
    if (link, division.word) in DIVISIONS:
        raise ValueError(f"{link.__name__} has a division {division.word!r} already")
    DIVISIONS[link, division.word] = division


def words_of(kind: type[Link]) -> list[str]:
    """Return the words that divide links of a class."""
    return [word for link, word in DIVISIONS if link is kind]


def division_of(link: Link) -> list[Division]:
    """Return the divisions whose result a link is."""
    found = [one for one in DIVISIONS.values() if type(link) is one.kind]
    return [one for one in found if one.forward(link) or one.backward(link)]


# ---- what there is ----


def _columns(link: Linear, order: Order) -> dict[str, Any]:
    return {"gather_output": order.gathered, "sequence_axis": None}


def _rows(link: Linear, order: Order) -> dict[str, Any]:
    return {"input_is_parallel": False, "sequence_axis": None}


register_division(
    Linear,
    Division(
        "columns",
        ColumnParallelLinear,
        cuts={"W": 0, "b": 0},
        settings=_columns,
        forward=lambda link: "its outputs to all" if link.gather_output else "",
        backward=lambda link: "the sum of the inputs' gradients",
        gathers=True,
    ),
)
register_division(
    Linear,
    Division(
        "rows",
        RowParallelLinear,
        cuts={"W": 1},
        settings=_rows,
        forward=lambda link: "the sum of the outputs",
        backward=lambda link: "inputs' gradients to all, unless inputs are in parts",
    ),
)


def _vocabulary(link: EmbedID, order: Order) -> dict[str, Any]:
    words, size = link.W.shape
    return {"in_size": words, "out_size": size, "sequence_axis": None}


register_division(
    EmbedID,
    Division(
        "vocabulary",
        VocabularyParallelEmbedID,
        cuts={"W": 0},
        settings=_vocabulary,
        forward=lambda link: "the sum of the outputs",
    ),
)


def _filters(link: Convolution2D, order: Order) -> dict[str, Any]:
    return {"gather_output": order.gathered, "input_is_parallel": False}


def _refuse_filters(link: Convolution2D, order: Order) -> str:
    P, K, G = order.comm.size, link.out_channels or 0, link.groups
    ends = [[end * (K // G) for end in block(G, P, rank)] for rank in range(P)]
    if G > 1 and not order.gathered and ends != [[*block(K, P, rank)] for rank in range(P)]:
        return (
            f"its {G} groups of {K // G} filters give {P} ranks other blocks of its {K} outputs "
            "than divided Variables have: 'filters, gathered' gives every rank all outputs"
        )
    return _refuse_cover_all(link, order)


def _refuse_cover_all(link: Convolution2D, order: Order) -> str:
    return "with cover_all=True it is not divided" if link.cover_all else ""


def _refuse_channels(link: Convolution2D, order: Order) -> str:
    if link.groups > 1:
        return f"its channels are in {link.groups} groups: 'filters' divides the groups"
    return _refuse_cover_all(link, order)


register_division(
    Convolution2D,
    Division(
        "filters",
        FilterParallelConvolution2D,
        cuts={"W": 0, "b": 0},
        settings=_filters,
        units=lambda link: None if link.groups == 1 else link.groups,
        refusal=_refuse_filters,
        forward=lambda link: "its outputs to all" if link.gather_output else "",
        backward=lambda link: (
            "the sum of the inputs' gradients" if link.groups == 1 else "inputs' gradients to all"
        ),
        gathers=True,
    ),
)
register_division(
    Convolution2D,
    Division(
        "channels",
        ChannelParallelConvolution2D,
        cuts={"W": 1},
        settings=lambda link, order: {"input_is_parallel": False},
        refusal=_refuse_channels,
        forward=lambda link: "the sum of the outputs",
        backward=lambda link: "inputs' gradients to all, unless inputs are in parts",
    ),
)


def _sequence(link: MultiHeadAttention, order: Order) -> dict[str, Any]:
    return {"sequence_comm": order.comm, "whole_gradients": False}


def _shares_heads(link: MultiHeadAttention) -> bool:
    return link.heads_comm is not None and link.heads_comm.size > 1


def _shares_sequence(link: MultiHeadAttention) -> bool:
    return link.sequence_comm is not None and link.sequence_comm.size > 1


register_division(
    MultiHeadAttention,
    Division(
        "heads",
        MultiHeadAttention,
        cuts={"W_qkv": 1, "W_out": 1, "b_qkv": 1},
        settings=lambda link, order: {"heads_comm": order.comm},
        refusal=lambda link, order: "its heads are divided already" if _shares_heads(link) else "",
        forward=lambda link: "the sum of the outputs" if _shares_heads(link) else "",
        backward=lambda link: "the sum of the inputs' gradients" if _shares_heads(link) else "",
    ),
)
register_division(
    MultiHeadAttention,
    Division(
        "sequence",
        MultiHeadAttention,
        axis="sequence",
        settings=_sequence,
        refusal=lambda link, order: (
            "its sequences are divided already" if _shares_sequence(link) else ""
        ),
        forward=lambda link: "keys and values" if _shares_sequence(link) else "",
        backward=lambda link: "their gradients" if _shares_sequence(link) else "",
    ),
)


class _Experts(Division):
    """Experts go to ranks whole, in blocks; the gate stays on each rank."""

    def divide(self, link: Any, order: Order) -> None:
        experts, comm = link.experts, order.comm
        mine = [str(i) for i in range(*block(link.n_experts, comm.size, comm.rank))]
        for name in list(experts._children):
            if name not in mine:
                delattr(experts, name)
                experts._generators.pop(name, None)
        link.comm = experts.comm = comm


register_division(
    MixtureOfExperts,
    _Experts(
        "expert",
        MixtureOfExperts,
        axis="expert",
        refusal=lambda link, order: (
            "its experts are divided already"
            if link.comm.size > 1
            else "its tokens are each rank's own"
            if link.input_is_parallel
            else ""
        ),
        forward=lambda link: "tokens to their experts, and results back" * (link.comm.size > 1),
        backward=lambda link: "their gradients" * (link.comm.size > 1),
    ),
)


def _samples(link: BatchNormalization, order: Order) -> dict[str, Any]:
    return {"comm": order.comm, "blocks": order.mesh["data", "space"]}


register_division(
    BatchNormalization,
    Division(
        "samples",
        MultiNodeBatchNormalization,
        axis="data",
        beside=("space",),
        settings=_samples,
        forward=lambda link: "sums of each channel",
        backward=lambda link: "sums of each channel",
    ),
)

# statistics of each rank's own samples, as one process does not have them: to be said
BATCH_STATISTICS = BatchNormalization, BatchRenormalization, DecorrelatedBatchNormalization
for kind in BATCH_STATISTICS:
    register_division(kind, Division("local", kind, axis="data"))
