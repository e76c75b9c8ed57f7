"""Run a training program on thread ranks, and write down what each rank computed: losses, leaves,
gradients and steps of optimizers; also run it again with leaves moved a little.

A leaf is found again in another run by its place: the number of the function call that used it
first in a pass, and which input it was. So the program must do the same each time. A *pass* is a
rank's program up to the end of a backward.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import hashlib
import io
import random as python_random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mnpar import random
from mnpar.autograd.graph import VariableNode
from mnpar.autograd.observer import observing
from mnpar.backend import Array, to_host
from mnpar.communicators.communicator import Communicator
from mnpar.configuration import using_config
from mnpar.errors import DeadlockError, MnparError, UnreceivedWarning
from mnpar.function_hook import FunctionHook
from mnpar.launch import run
from mnpar.link import Link
from mnpar.link_hook import ForwardPostprocessCallbackArgs, ForwardPreprocessCallbackArgs, LinkHook
from mnpar.parallel.pipeline.pipeline import Pipeline
from mnpar.plans import Box
from mnpar.runtime.callsite import call_site

Program = Callable[..., Any]  # called with a communicator
Place = tuple[int, int]  # of a leaf: the number of a function call, and which input it is
Key = tuple[str, str, int]  # a function call: class, source line, how many such came before


class RecordedCall(NamedTuple):
    """A call of a function in a pass."""

    number: int
    key: Key
    function: Any  # the FunctionNode
    inputs: tuple[Array | None, ...]
    before: Any  # a copy of the node from before the call; None unless calls are traced


@dataclass
class Leaf:
    """A Variable or Parameter that a pass used, and that wants a gradient."""

    node: VariableNode
    place: Place
    used_by: Key
    value: Array
    gradient: Array | None
    memory: int  # where its array is; 0 for a view of another array
    path: str = ""  # its name, the same on ranks that hold copies
    box: Box | None = None  # of a parameter that is divided, the part
    in_link: bool = False


@dataclass
class Pass:
    """A rank's work until the end of a backward."""

    losses: list[tuple[float, float]]  # value and weight of each
    leaves: list[Leaf]
    keys: list[Key] = field(default_factory=list)
    # what functions got of integers and booleans: a digest of each
    integers: list[tuple[Key, bytes]] = field(default_factory=list)
    # of a traced pass, by function call: copies of its inputs, and of its outputs' gradients
    inputs: dict[Key, list[Array | None]] = field(default_factory=dict)
    gradients: dict[Key, list[Array | None]] = field(default_factory=dict)
    calls: list[RecordedCall] = field(default_factory=list)

    def producer(self, key: Key, which: int) -> Key | None:
        """Return the call in this traced pass that computed an input of another call."""
        keys = {id(call.function): call.key for call in self.calls}
        call = next((call for call in self.calls if call.key == key), None)
        if call is None or which >= len(call.function.inputs):
            return None
        return keys.get(id(call.function.inputs[which].creator))

    @property
    def loss(self) -> float:
        """The sum of what backward started from, each times its weight."""
        return sum([value * weight for value, weight in self.losses])


class Held(NamedTuple):
    """A parameter of an optimizer after a step."""

    node: VariableNode
    value: Array
    gradient: Array | None
    whole: tuple[int, ...] | None
    box: Box | None


@dataclass
class RecordedStep:
    """The hooks and parameters that one rank has after a step of an optimizer."""

    hooks: list[str]
    params: dict[str, Held]


@dataclass
class RankRun:
    """All that one rank did."""

    passes: list[Pass] = field(default_factory=list)
    steps: list[RecordedStep] = field(default_factory=list)
    is_random: str = ""  # the source line of a function that draws random numbers
    dtypes: dict[Any, None] = field(default_factory=dict)  # of what functions have computed


@dataclass
class ProgramRun:
    """A run of a program on so many ranks."""

    size: int
    ranks: list[RankRun]
    error: BaseException | None = None
    unreceived: list[str] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """The most passes that a rank made."""
        return max([len(rank.passes) for rank in self.ranks])


class EnoughPasses(BaseException):
    """Ends a rank's program, which has made as many passes as are compared."""


class ProgramRecorder(FunctionHook):
    """The observer and function hook of one rank.

    Args:
        passes: how many to record.
        moves: what to add, in place, to inputs of function calls.
        traced: the pass of which to keep inputs and gradients of all functions; None: of no pass.
    """

    name = "mnpar.check"

    def __init__(
        self, passes: int, moves: Mapping[Place, Array] | None = None, traced: int | None = None
    ) -> None:
        self.run = RankRun()
        self.ended = False
        self.roots = Roots()
        self._limit, self._traced = passes, traced
        self._moves: dict[int, list[tuple[int, Array]]] = {}
        for (number, which), delta in (moves or {}).items():
            self._moves.setdefault(number, []).append((which, delta))
        self._number, self._depth = 0, 0
        self._factor = 1.0  # of the loss, in the mean with which this backward ends
        self._calls: list[RecordedCall] = []
        self._seen: dict[tuple[str, str], int] = {}
        self._inputs: dict[Key, list[Array | None]] = {}
        self._gradients: dict[Key, list[Array | None]] = {}
        self._keys: dict[int, Key] = {}  # by id of the function, which the calls keep alive
        self._integers: list[tuple[Key, bytes]] = []
        self._targets: list[Link] = []
        self._moved: list[tuple[Array, Array]] = []
        self._nodes: dict[VariableNode, None] = {}  # all leaves so far
        self._before: dict[VariableNode, Array | None] = {}  # their gradients before a backward

    # ---- functions ----

    def forward_preprocess(self, function: Any, in_data: tuple[Array | None, ...]) -> None:
        kind, site = type(function).__name__, call_site()
        occurrence = self._seen[kind, site] = self._seen.get((kind, site), -1) + 1
        key = (kind, site, occurrence)
        for which, delta in self._moves.get(self._number, ()):
            x = in_data[which]
            if x is not None:
                self._moved.append((x, x.copy()))
                x[...] += delta
        for x in in_data:
            if x is not None and x.dtype.kind in "iub":
                digest = hashlib.blake2b(to_host(x).tobytes(), digest_size=16).digest()
                self._integers.append((key, digest))
        traced = self._traced == len(self.run.passes)
        if traced:
            self._inputs[key] = [None if x is None else to_host(x).copy() for x in in_data]
        before = copy.copy(function) if traced else None
        self._calls.append(RecordedCall(self._number, key, function, in_data, before))
        self._keys[id(function)] = key
        self._number += 1
        if type(function).__module__ == "mnpar.functions.noise" and not self.run.is_random:
            self.run.is_random = f"{kind} at {site}"

    def backward_preprocess(
        self, function: Any, in_data: tuple[Array | None, ...], out_grad: tuple[Array | None, ...]
    ) -> None:
        if self._traced == len(self.run.passes) and id(function) in self._keys:
            self._gradients[self._keys[id(function)]] = [
                None if g is None else to_host(g).copy() for g in out_grad
            ]

    # ---- training ----

    def backward_begins(self) -> None:
        if not self._depth and len(self.run.passes) >= self._limit:
            self.ended = True
            raise EnoughPasses
        if not self._depth:
            self._before = {node: _array(node.gradient) for node in self._nodes}
        self._depth += 1

    def weighed(self, factor: float) -> None:
        self._factor = factor

    def backward_ends(self, losses: Any, loss_scale: float | None) -> None:
        self._depth -= 1
        if self._depth:
            return
        values = []
        for array, weight in losses:
            if array is not None and array.size:
                weight = to_host(weight) * self._factor / (loss_scale or 1.0)
                total = float((to_host(array) * weight).sum())
                one = array.size == 1
                # of several numbers, their sum as it was weighted
                values.append((float(array.sum()) if one else total, _number(weight, one)))
        self._factor = 1.0
        done = Pass(
            values,
            self._leaves(loss_scale or 1.0),
            [call.key for call in self._calls],
            self._integers,
        )
        if self._traced == len(self.run.passes):
            done.inputs, done.gradients, done.calls = self._inputs, self._gradients, self._calls
        self.run.passes.append(done)
        self._calls, self._seen, self._inputs, self._gradients = [], {}, {}, {}
        self._keys, self._integers = {}, []

    def _leaves(self, loss_scale: float) -> list[Leaf]:
        found: dict[VariableNode, Leaf] = {}
        for call in self._calls:
            if not call.function.number:
                continue
            for which, x in enumerate(call.function.inputs):
                array = call.inputs[which] if which < len(call.inputs) else None
                if array is not None and x.creator is not None:
                    self.run.dtypes[array.dtype] = None
                if x.creator is not None or not x.requires_grad or array is None:
                    continue
                host = to_host(array)
                if x in found:  # with the values that it was used with last
                    found[x].value = host.copy()
                    continue
                memory = 0 if host.base is not None else host.ctypes.data
                place = (call.number, which)
                gradient = self._added(x, loss_scale)
                found[x] = Leaf(x, place, call.key, host.copy(), gradient, memory)
        self._nodes.update(dict.fromkeys(found))
        return list(found.values())

    def _added(self, node: VariableNode, loss_scale: float) -> Array | None:
        """Return what a backward has added to a leaf's gradient, without the loss scale."""
        now, before = _array(node.gradient), self._before.get(node)
        if now is None:
            return None
        added = now if before is None else now - before
        return added if loss_scale == 1.0 else added / loss_scale

    def stepped(self, optimizer: Any) -> None:
        if not any([target is optimizer.target for target in self._targets]):
            self._targets.append(optimizer.target)
        number = [target is optimizer.target for target in self._targets].index(True)
        params = {}
        for path, param in paths_of(optimizer.target):
            if param.array is not None:
                gradient = None if param.grad is None else to_host(param.grad).copy()
                value = to_host(param.array).copy()
                held = Held(param.node, value, gradient, param.whole, param.box)
                params[path if not number else f"{number}:{path}"] = held
        hooks = [getattr(hook, "name", type(hook).__name__) for hook in optimizer.hooks]
        self.run.steps.append(RecordedStep(hooks, params))

    def restore(self) -> None:
        """Give arrays that were moved their values again: the program may have them for longer."""
        for array, original in reversed(self._moved):
            array[...] = original

    def name_leaves(self) -> None:
        """Give the leaves of all passes their paths: in optimizers' links, in links that were
        called, or by their order.
        """
        names: dict[VariableNode, str] = {}
        boxes: dict[VariableNode, Box | None] = {}
        taken: set[str] = set()
        for number, link in enumerate([*self._targets, *self.roots.links]):
            for path, param in paths_of(link):
                if param.node not in names:
                    boxes[param.node] = param.box
                    name = path if path not in taken else f"{number}:{path}"
                    names[param.node] = name
                    taken.add(name)
        for done in self.run.passes:
            nameless = [leaf for leaf in done.leaves if leaf.node not in names]
            for leaf in done.leaves:
                leaf.path = names.get(leaf.node, "")
                leaf.in_link = bool(leaf.path)
                leaf.box = boxes.get(leaf.node)
            for number, leaf in enumerate(nameless):
                leaf.path = leaf.node.name or f"variable {number}"


class Roots(LinkHook):
    """Notes the links that are called, and not by another link."""

    name = "mnpar.check"

    def __init__(self) -> None:
        self.links: list[Link] = []
        self._depth = 0

    def forward_preprocess(self, args: ForwardPreprocessCallbackArgs) -> None:
        if not self._depth and not any([args.link is link for link in self.links]):
            self.links.append(args.link)
        self._depth += 1

    def forward_postprocess(self, args: ForwardPostprocessCallbackArgs) -> None:
        self._depth -= 1

    def forward_failed(self, args: ForwardPreprocessCallbackArgs) -> None:
        self._depth -= 1


def paths_of(link: Link) -> Iterator[tuple[str, Any]]:
    """Yield a link's parameters with paths that are the same on all ranks that hold a part: a
    pipeline's stages have their numbers in the whole pipeline.
    """
    stages: tuple[int, ...] = ()
    if isinstance(link, Pipeline):
        stages = tuple(link.schedule.stages_of(link.messages.comm.rank))
    for path, param in link.namedparams():
        first, _, rest = path[1:].partition("/")
        if stages and first.isdecimal():
            path = f"/{stages[int(first)]}/{rest}"
        yield path, param


def _array(gradient: Any) -> Array | None:
    gradient = getattr(gradient, "array", gradient)
    return None if gradient is None else to_host(gradient).copy()


def _number(weight: Any, one: bool) -> float:
    return float(np.sum(weight)) if one else 1.0


def record(
    program: Program,
    ranks: int,
    args: tuple[Any, ...] = (),
    *,
    passes: int,
    dtype: Any,
    seed: int,
    moves: list[dict[Place, Array]] | None = None,
    traced: int | None = None,
) -> ProgramRun:
    """Run a program on thread ranks from the same random state each time; return what they did.

    Args:
        program: ``program(comm, *args)``; what it prints is dropped.
        passes: the program ends before the backward after so many.
        dtype: ``mnpar.config.dtype`` during the run.
        moves, traced: as :class:`ProgramRecorder` has them, ``moves`` for each rank.
    """
    recorders = [
        ProgramRecorder(passes, None if moves is None else moves[rank], traced)
        for rank in range(ranks)
    ]

    def body(comm: Communicator) -> None:
        one = recorders[comm.rank]
        try:
            with using_config("dtype", dtype), observing(one), one, one.roots:
                program(comm, *args)
        except EnoughPasses:
            pass
        except MnparError:  # of a rank that waits for one that has ended
            if not any([other.ended for other in recorders]):
                raise

    error: BaseException | None = None
    with _one_blas_thread(), _fresh_state(seed), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            # in a context of its own: the caller goes on with its generator
            contextvars.copy_context().run(_run_from, seed, body, ranks)
        except DeadlockError as deadlock:
            if not any([one.ended for one in recorders]):
                error = deadlock
        except SystemExit as end:
            error = end if end.code else None
        except Exception as failure:
            error = failure
    for one in recorders:
        one.restore()
        one.name_leaves()
    unreceived = []
    if not any([one.ended for one in recorders]):
        unreceived = [str(w.message) for w in caught if issubclass(w.category, UnreceivedWarning)]
    return ProgramRun(ranks, [one.run for one in recorders], error, unreceived)


def _run_from(seed: int, body: Callable[[Communicator], None], ranks: int) -> None:
    random.seed(seed)
    run(body, ranks)


def _one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """Give BLAS one thread: those of several ranks would wait for each other's cores."""
    try:
        import threadpoolctl
    except ImportError:
        return contextlib.nullcontext()
    return threadpoolctl.threadpool_limits(1)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _fresh_state(seed: int) -> Iterator[None]:
    """Start all generators of random numbers anew, and drop what is printed; both are as before
    after it.
    """
    numbers, state = random.put_aside(), python_random.getstate()
    random.take_up(random.Numbers(np.random.MT19937(seed), None))
    python_random.seed(seed)
    out = sys.stdout
    sys.stdout = io.StringIO()
    try:
        yield
    finally:
        sys.stdout = out
        random.take_up(numbers)
        python_random.setstate(state)


def line_of(key: Key) -> str:
    """Return a function call in words."""
    kind, site, _ = key
    return f"{kind} at {site}"


def ranks_text(size: int) -> str:
    """Return a number of ranks in words."""
    return "1 rank" if size == 1 else f"{size} ranks"
