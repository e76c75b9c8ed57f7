"""The base classes of differentiable communications (laws 1 to 4).

A communication is linear in the arrays that it moves, so its gradient is the adjoint communication,
in which receivers send. Each class names its adjoint in ``mirror``. The adjoint is itself such a
class, of the next order of differentiation, so gradients of gradients need nothing more. Each order
has its own messages (``Channel``). Messages carry whether their sender wants a gradient. If any
rank does, all of them put the communication on their tapes and visit it in backward; a rank without
a gradient then sends a short message that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from mnpar.autograd.graph import VariableNode
from mnpar.autograd.tape import current_tape
from mnpar.backend import check_finite
from mnpar.communicators.channel import AdjointChannel
from mnpar.communicators.communicator import Communicator, require_communicator
from mnpar.communicators.operation import Operation, complete
from mnpar.communicators.wire import (
    KEEPS_TAPE,
    NOTHING,
    PASS,
    POINT_TO_POINT,
    RECORDING,
    REFUSED,
    ROOTED,
    SCALED,
    TO_TARGETS,
    Call,
    Header,
    call_of,
    describe_pass,
    different_passes,
    encode_scale,
)
from mnpar.configuration import is_debugging, is_recording
from mnpar.errors import MismatchError
from mnpar.function_hook import function_hooks
from mnpar.functions.communication.future import Future, Once, when_used
from mnpar.functions.node import GenericFunction
from mnpar.runtime.callsite import call_site, encode_site
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.channel import Algorithm, Channel
    from mnpar.communicators.waiting import Steps


Self = TypeVar("Self", bound="Communication")


def peer(comm: Communicator, rank: int, call: str, wildcard: int | None = None) -> int:
    """The rank, checked, of what is checked to be a communicator: messages take it second,
    collectives first.
    """
    require_communicator(comm, call)
    return comm.peer(rank, wildcard)


def as_variables(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """None, which stands for a gradient that is missing, as a Variable without an array; others as
    they are.
    """
    return tuple([Variable(None, requires_grad=False) if x is None else x for x in inputs])


class CommunicationHook(Protocol):
    """A hook that checks what communications carry; mnpar/checks has one, which raises errors.

    Functions know no check: they call the hook, if there is one.
    """

    def check_inputs(self, function: Communication, xs: tuple[Any, ...]) -> None:
        """Check arrays that a communication is about to carry; None: a missing gradient."""

    def asks(self, comm: Communicator) -> bool:
        """Return whether collectives that are awaited later exchange questions; the same on all
        ranks.
        """

    def question(self, function: Communication, xs: tuple[Any, ...]) -> tuple[Any, Call] | None:
        """Return what to send to all ranks where such a collective starts, and the header of the
        message; None: nothing.
        """

    def judge(self, function: Communication, answers: tuple[Any, ...]) -> None:
        """Check what all ranks sent, where such a collective is awaited."""

    def check_arguments(self, comm: Communicator, who: str, given: Mapping[str, Any]) -> None:
        """Check arguments of ``who``, by names, that must be the same on all ranks."""

    def check_blocks(self, comm: Communicator, who: str, what: str, x: Variable) -> None:
        """Check a rank's block of an array that the ranks have together."""

    def check_terms(self, comm: Communicator, who: str, x: Any) -> None:
        """Check a rank's part of a sum."""

    def check_loss(self, comm: Communicator, loss: Any) -> None:
        """Check a loss that the ranks have in common, before it is differentiated."""

    def describe_copies(self, function: Communication, x: Any) -> Any:
        """Return what to compare in backward of an input that all ranks have alike; None, on all
        ranks, if nothing.
        """

    def compare_copies(self, function: Communication, adjoint: Communication, mine: Any) -> None:
        """Compare what ``describe_copies`` returned on each rank, before the adjoint runs."""


_hook: ContextVar[CommunicationHook | None] = ContextVar("mnpar.communication_hook", default=None)
_DEBUG_HOOKS: list[CommunicationHook] = []


def communication_hook() -> CommunicationHook | None:
    """Return the hook that checks this rank's communications now, or None."""
    hook = _hook.get()
    return _DEBUG_HOOKS[0] if hook is None and is_debugging() else hook


def occasional_hook() -> CommunicationHook | None:
    """Return the hook that compares copies now and then where none checks all communications."""
    return _DEBUG_HOOKS[0] if _DEBUG_HOOKS and communication_hook() is None else None


@contextmanager
def using_communication_hook(hook: CommunicationHook) -> Iterator[None]:
    """Let a hook check this rank's communications inside a ``with`` block."""
    token = _hook.set(hook)
    try:
        yield
    finally:
        _hook.reset(token)


def set_debug_hook(hook: CommunicationHook) -> None:
    """Let a hook check the communications of all ranks that are in debug mode."""
    _DEBUG_HOOKS[:] = [hook]


def header_fields() -> tuple[int, int, int]:
    """The fields by which headers of gradients name the pass of backward: the line from which it
    was called, flags, and its loss scale (as ``root``, where that is free).
    """
    here = current_tape().current_pass
    if here is None:
        return encode_site(call_site(1)), 0, 0
    fields = here.header_fields
    if fields is None:
        scale = encode_scale(here.loss_scale)
        flags = here.keeps_tape * KEEPS_TAPE | here.to_targets * TO_TARGETS | bool(scale) * SCALED
        fields = here.header_fields = encode_site(here.site), flags, scale
    return fields


# the communicator of the ranks that have parts of an array, and the number of that array, while a
# function of it is carried out: wire.number_of_whole
_whole: ContextVar[tuple[Communicator, int] | None] = ContextVar("mnpar.whole", default=None)


class InFunctionOf:
    """Let what this rank calls on a communicator, inside a ``with`` block, match only calls in
    functions of the same array, of which each rank has a part.

    (Each function of a divided array enters one: ``contextmanager`` would take an eighth of the
    time of a small one.)
    """

    __slots__ = ("_array", "_token")

    def __init__(self, comm: Communicator, whole: int) -> None:
        self._array = comm, whole

    def __enter__(self) -> None:
        self._token = _whole.set(self._array)

    def __exit__(self, *error: object) -> None:
        _whole.reset(self._token)


_CONTAINERS = (tuple, list, dict)
Keys = tuple[str, ...] | None  # of the arrays in a message, if they are a dict


def arrays_of(x: Any) -> tuple[tuple[Any, ...], bool, Keys]:
    """Return what a message is to hold: its arrays, whether these are several (in a tuple, list or
    dict), and their keys.
    """
    if isinstance(x, dict):
        return tuple(x.values()), True, tuple(x)
    return (tuple(x), True, None) if isinstance(x, tuple | list) else ((x,), False, None)


def by_keys(xs: tuple[Any, ...], keys: Keys) -> Any:
    """Several arrays as a dict, if they have keys; else as the tuple that they are."""
    return xs if keys is None else dict(zip(keys, xs, strict=True))


class Communication(GenericFunction):
    """A function that speaks to other ranks.

    Args:
        comm: the communicator.
        of: the communication whose gradient this one carries, None in forward.
    """

    communicates = True
    op: str
    reduction = "sum"
    later = False  # a collective that is waited for elsewhere than where it starts
    # what the ranks' inputs should be to each other, for checks: "copies" of one value, "parts" of
    # one value, or "terms", which are no copies if the sum is of gradients
    inputs_are: ClassVar[str] = ""
    # what its outputs are then: a value that they own "together", each rank's "own", such as one
    # that is "alike" on all ranks, or "parts" of one, or the "sum" of the inputs; empty: nobody
    # knows (checks/states.py)
    outputs_are: str = ""
    # looks at the gradients that the adjoint takes and gives (checks/states.py)
    compare: Callable[[tuple[Any, ...], tuple[Any, ...]], None] | None = None
    alike = False  # all ranks are known to have the same, or the same gradient
    # who got this has said that it does not record: it sends no gradient, however often backward
    # runs
    refused = False
    adjoint_of: int | None = None  # if this is the adjoint of such a collective: the number of that
    seq = 0  # the number of the message, collective or exchange

    def __init__(self, comm: Communicator, of: Communication | None = None) -> None:
        if not isinstance(comm, Communicator):
            require_communicator(comm, f"{self.op}(comm, …)")
        self.comm, self.of = comm, of
        self.order: int = 0 if of is None else of.order + 1
        self.site: str = call_site(1) if of is None else of.site
        here = _whole.get() if of is None else None
        # the number of the divided array of which a function is carried out; 0: there is none
        self.array_number: int = 0 if here is None or here[0] is not comm else here[1]
        # whether it belongs to one, over any ranks of the array's grid
        self.of_divided: bool = here is not None if of is None else of.of_divided

    @property
    def label(self) -> str:
        return (
            f"{'gradient of ' * self.order}{'i' * self.later}{self.op} at {self.site} (rank "
            f"{self.comm.rank})"
        )

    @property
    def channel(self) -> Channel:
        """The messages of this order."""
        channel = self.comm.channel(self.order)
        return channel if self.adjoint_of is None else AdjointChannel(channel, self.adjoint_of)

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[list[VariableNode], list[Any]]:
        nodes, arrays = super().prepare(self.all_there(inputs))
        self.check_finite(arrays)
        return nodes, arrays

    def check_finite(self, xs: Sequence[Any]) -> None:
        """Check, in debug mode, that this rank gives others no NaN or infinity: these have it next,
        and could not say where it came from.

        Raises:
            FloatingPointError: one of the arrays has it.
        """
        if is_debugging():
            check_finite(self.label, "input", tuple(xs), self.infinite)

    def all_there(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs, all there: only gradients may be missing. (None comes from a model that
        forgot to return something.)
        """
        if self.order:
            return as_variables(inputs)
        for i, x in enumerate(inputs):
            if isinstance(x, Variable):
                x = x.array if x.layout is None else x.layout.check(self)
            if x is None:
                raise ValueError(
                    f"{self.label} has nothing to give: its input {i} of {len(inputs)} has no "
                    "array, it is None"
                )
            if isinstance(x, _CONTAINERS):
                raise TypeError(
                    f"{self.label} takes arrays and Variables, and its input {i} of "
                    f"{len(inputs)} is a {type(x).__name__}: "
                    "send, sendrecv and shift take one tuple, list or dict of arrays, but none "
                    "inside another"
                )
        return inputs

    def steps(self, *xs: Any) -> Steps[Any]:
        """Do what ``forward`` does, in steps."""
        raise TypeError(f"{self.label} does not define steps(self, *xs)")

    def forward(self, *xs: Any) -> Any:
        return complete(self.comm.transport, self.steps(*xs))

    def start(self) -> Variable:
        """``apply`` of a receive that is waited for later: the Variable waits where it is first
        used.

        That is also the receive's place in the order of functions. So its gradient leaves as early
        as it can, and a rank that posts a receive and then sends does not wait, in backward, for an
        answer before it gives one.
        """
        return Future(self.begin())

    def begin(self, *inputs: Variable) -> Once:
        """:meth:`start` for any number of inputs and outputs: what it returns is called for the
        outputs, and then waits.
        """
        (nodes, given), hooks = self.prepare(inputs), function_hooks().values()
        arrays = tuple(given)
        for hook in hooks:
            hook.forward_preprocess(self, arrays)
        operation = Operation(self.comm.transport, self.steps(*arrays))

        def finish() -> tuple[Variable, ...]:
            ys = operation.wait()
            for hook in hooks:
                hook.forward_postprocess(self, arrays)
            return self.connect(nodes, given, ys)

        return when_used(finish)

    def part_of(self: Self, op: str, reduction: str) -> Self:
        """Say that this communication is a part of another operation, which all ranks then have to
        be in.
        """
        self.op, self.reduction = op, reduction
        return self

    def call(self, root: int = 0, tag: int = 0) -> Call:
        """Return what this rank's messages say of the communication."""
        self.recording = recording = is_recording()
        wants = self.differentiable and recording
        # A header tells, beside the call, in forward the user's tag, and for a gradient the line
        # and the flags of the pass of backward. (Each gradient has a tag of its own, by which no
        # header could be used again.)
        told, flags, scale = header_fields() if self.order else (tag or self.array_number, 0, 0)
        if (scale or self.array_number) and self.op not in ROOTED:
            root ^= scale or self.array_number  # of an exchange it is the plan's fingerprint
        return call_of(
            (
                self.op,
                self.site,
                wants,
                recording,
                root,
                self.reduction,
                self.order,
                told,
                self.later,
                flags,
            )
        )

    def check_pass(self, header: Header, source: int) -> None:
        """Check that a gradient was sent in the pass of backward in which it is received.

        Raises:
            MismatchError: it was not; on both ranks.
        """
        origin, flags, scale = header_fields()
        flags |= self.recording * RECORDING
        differ = (header.flags ^ flags) & PASS
        if scale != header.scale and header.op in POINT_TO_POINT:
            differ |= SCALED
        if header.kind == NOTHING:
            differ &= ~SCALED
        if differ and not header.flags & REFUSED:
            what, remedy = different_passes(flags, header.flags)
            here = describe_pass(flags, origin, scale)
            there = describe_pass(header.flags, header.tag, header.scale)
            text = (
                f"{what}:\n  rank {self.comm.rank}: waits for the {header.name} at {self.site}, in "
                f"{here}\n  rank {source}: has sent it at {header.site}, in {there}\n{remedy}"
            )
            self.comm.transport.complain(source, text)
            raise MismatchError(text)

    def agreed(self, y: Any, wants: bool) -> Any:
        """The outputs, after all ranks have said whether they want a gradient."""
        self.differentiable = wants and self.recording
        return y

    def refuse(self, number: int, source: int) -> None:
        """Tell the sender of a message, who will ask for a gradient, that there is none."""
        back = self.comm.channel(self.order + 1)
        order = self.order + 1
        back.refuse(Call("send", self.site, order=order), source, back.reply_tag(number))

    def check_inputs(self, *xs: Any) -> None:
        """Let the hook, if there is one, check the arrays that this is about to carry."""
        hook = communication_hook()
        if hook is not None:
            hook.check_inputs(self, xs)

    def mirror(self) -> Communication:
        """The adjoint communication, a new one."""
        raise TypeError(f"{self.label} does not define mirror(self)")

    def given(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the outputs' gradients that the adjoint takes as its inputs on this rank."""
        return gys

    def backward(self, *gys: Any) -> Any:
        return self.adjoint(self.mirror(), *self.given(gys))[: len(self.inputs)]

    def adjoint(self, function: Communication, *gys: Any) -> tuple[Any, ...]:
        """Run the adjoint: recorded if this backward is, else on the bare arrays."""
        if not is_recording():
            function.check_finite(gys)
            gxs = function.forward(*gys)
            gxs = gxs if isinstance(gxs, tuple) else (gxs,)
            if self.compare is not None:
                self.compare(gys, gxs)
            return gxs
        return function.apply(gys)


class Collective(Communication):
    """A communication of all ranks."""

    algorithm: Algorithm
    several = False  # inputs, one for each rank
    root = 0

    def forward(self, *xs: Any) -> Any:
        if _hook.get() is not None or is_debugging():
            self.check_inputs(*xs)
        x = xs if self.several else xs[0] if xs else None
        channel = self.comm.channel(self.order)
        self.seq = channel.next_number
        of = 0 if self.of is None else self.of.seq
        return self.agreed(*channel.now(self.algorithm, x, self.call(self.root), of))

    def steps(self, *xs: Any) -> Steps[Any]:
        x = xs if self.several else xs[0] if xs else None
        return self.agreed(
            *(yield from self.channel.steps(self.algorithm, x, self.call(self.root)))
        )
