"""The format of messages: a 192-byte header that describes the message, and the bytes of its
arrays.

A receive call states neither shape nor dtype: these, the operation, the sequence number and the
sender's source line arrive in the header. So a message that does not match is an error that names
both sides, and never a wrong number. Arrays are sent as they are in memory; only objects
(``send_obj`` and its like) are pickled, and only between the ranks of one job.
"""

from __future__ import annotations

import json
import pickle
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import MismatchError
from mnpar.runtime.callsite import SITE_BYTES, decode_site

# First the fields that must be the same on all ranks of a collective, then the form of the value,
# then what is the rank's own.
_LAYOUT = struct.Struct("<HBBBBiQ" + "BB16sQ12q" + f"Bi{SITE_BYTES}s")
SIZE = _LAYOUT.size
IDENTITY = 18  # bytes: magic, op, reduction, order, later, root, seq
ORDER = 4  # the order in them
NUMBER = slice(10, 18)  # the seq in them
# the part of a collective's seq that is its own number; above it stands the number of the
# collective whose gradient it is, 0 in forward
OWN_NUMBER = 2**32 - 1
FORM = slice(18, 140)  # kind, ndim, dtype, nbytes, shape
NBYTES = slice(36, 44)  # the number of bytes in them
FLAGS = 140
_FOLLOWS = struct.Struct("<2xBxB5xQ18xQ")  # op, order, seq, nbytes
WANTS, RECORDING, ON_DEVICE = 1, 2, 4
WAITED_FOR = 8  # the sender waits until the message has been taken

# here is no gradient, and there never will be one: whoever wants it need not ask again
REFUSED = 16

# in messages of gradients: the pass of backward keeps the tape for another pass; the pass computes
# gradients of some variables only (mnpar.grad); the pass has a loss scale
KEEPS_TAPE, TO_TARGETS, SCALED = 32, 64, 128
# the identity of a pass: autograd/passes.py
PASS = RECORDING | KEEPS_TAPE | TO_TARGETS | SCALED

MAX_NDIM = 12
_MAGIC = 0x6D6E
_SMALL = 8192  # bytes: to join strings is faster up to here than to fill an array
_NO_SHAPE = (0,) * MAX_NDIM
NOTHING, ARRAY, OBJECT, TUPLE, DICT, FAULT = range(6)
KINDS = ("nothing", "an array", "an object", "a tuple", "a dict", "what it cannot take")
POINT_TO_POINT = ("send", "recv", "send_obj", "recv_obj")

# each is there for arrays and, with _obj after its name, for objects
_COLLECTIVES = (
    "bcast",
    "reduce",
    "gather",
    "scatter",
    "allgather",
    "reduce_scatter",
    "allreduce",
    "alltoall",
    "scan",
    "exscan",
)
# collectives with a root, which errors name
ROOTED = tuple(
    [name + obj for name in ("bcast", "reduce", "gather", "scatter") for obj in ("", "_obj")]
)

UPDATE = "optimizer.update"  # allreduce_if: errors name what the user has called

FORGET = "forget"  # the barrier with which it begins

_OTHERS = (
    "barrier",
    "split",
    "reduce_from",
    "exchange",
    "gather_from",
    "share",
    "ring_attention",
    UPDATE,
    "likeness",
    FORGET,
)

OPS = (
    *POINT_TO_POINT,
    *[name + obj for name in _COLLECTIVES for obj in ("", "_obj")],
    *_OTHERS,
)
_OP_CODES = {name: code for code, name in enumerate(OPS)}
REDUCTIONS = ("sum", "max", "min", "prod", "mean")
_WIDENED = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16")
# The mean of arrays of these dtypes is made of wider numbers, which travel; so the header must name
# the dtype that the ranks gave.
MEANS = ("mean", *[f"mean of {name}" for name in _WIDENED])
_TOLD = (*REDUCTIONS, *MEANS[1:])
_REDUCTION_CODES = {name: code for code, name in enumerate(_TOLD)}


CUT_ALIKE = (
    "All ranks of a grid call the same functions, in the same order, of arrays that are cut alike"
)
# arrays that ranks have parts of, in words, by the numbers that calls of functions of them tell
_WHOLES: dict[int, str] = {}


def number_of_whole(text: str) -> int:
    """Return the number, above 0, that calls tell of an array of which each rank has a part, so
    that those of arrays which are cut in other ways do not match; errors show the text.
    """
    number = zlib.crc32(text.encode()) >> 1 or 1
    if len(_WHOLES) > 10_000:
        _WHOLES.clear()
    _WHOLES[number] = text
    return number


class Call(NamedTuple):
    """One call of a communication, as its messages describe it."""

    op: str
    site: str  # the user's source line, "model.py:42"
    wants: bool = False  # a gradient flows through this rank's part
    recording: bool = False  # this rank records for backward
    # a plan's fingerprint, of an exchange; a gradient has encode_scale(loss scale) added by ^, a
    # call of a function of a divided array number_of_whole(the array), unless it has a root
    root: int = 0
    reduction: str = "sum"
    order: int = 0  # 0 forward, 1 the gradient of it, 2 the gradient of the gradient …
    tag: int = 0  # the user's; of exchanges and collectives number_of_whole again, for errors
    later: bool = False  # True: a non-blocking collective
    pass_flags: int = 0  # KEEPS_TAPE, TO_TARGETS and SCALED, of a gradient

    @property
    def flags(self) -> int:
        """The flags of a header."""
        return self.wants * WANTS | self.recording * RECORDING | self.pass_flags

    @property
    def name(self) -> str:
        """The operation as errors call it."""
        return (
            "gradient of " * self.order + "i" * self.later + self.op
            if self.order or self.later
            else self.op
        )

    @property
    def whole(self) -> str:
        """The divided array of which a function is computed, in words: `` for an array (5,) cut
        (2,) along axes (0,)``; nothing of other calls.
        """
        return _of_whole(self)


def _of_whole(call: Call | Header) -> str:
    if call.order or not call.tag or call.op in POINT_TO_POINT:
        return ""
    return f" for an array {_WHOLES.get(call.tag, 'that is cut in another way')}"


def encode_scale(scale: float) -> int:
    """Return a loss scale as an integer of 31 bits, 0 for 1; scales that differ by less than
    float32 shows are the same.
    """
    bits: int = _SCALE_BITS.unpack(_SCALE.pack(min(scale, _LARGEST_SCALE)))[0]
    return bits ^ _ONE_BITS


def decode_scale(code: int) -> float:
    """Return the loss scale of an integer that :func:`encode_scale` made."""
    scale: float = _SCALE.unpack(_SCALE_BITS.pack(code ^ _ONE_BITS))[0]
    return scale


_SCALE, _SCALE_BITS = struct.Struct("<f"), struct.Struct("<i")
_ONE_BITS: int = _SCALE_BITS.unpack(_SCALE.pack(1.0))[0]
_LARGEST_SCALE = float(np.finfo(np.float32).max)


def describe_pass(flags: int, origin: int, scale: int = 0) -> str:
    """Return a pass of backward as errors name it: ``mnpar.backward(retain_tape=True) at
    train.py:12``.

    Args:
        flags: of a header.
        origin: where it was called.
        scale: its loss scale, by :func:`encode_scale`; 0: it has none, or the header does not tell.
    """
    shown = f"loss_scale={decode_scale(scale):.9g}" if scale else "loss_scale=…"
    call = _pass_call(flags, shown if flags & SCALED else "")
    return f"mnpar.{call} at {decode_site(origin)}"


def different_passes(*flags: int) -> tuple[str, str]:
    """Return the first line of an error where ranks are in passes of these flags, and its remedy:
    the call that joins the pass that a program most easily forgets.
    """
    what = "ranks are in different passes of backward"
    if len({one & PASS & ~SCALED for one in flags}) == 1:
        return "ranks multiply their losses by different scales", (
            "gradients that go from one rank to another must have one scale, by which each divides "
            "its parameters': call set_loss_scale() or loss_scaling() alike on all of them; "
            "mnpar.backward(loss_scale=…) on a rank without an optimizer"
        )
    if len({one & RECORDING for one in flags}) > 1:
        what = "some ranks record this backward and others do not (enable_double_backprop)"
    joining = _pass_call(max([one & PASS & ~SCALED for one in flags]), "[], []")
    return what, (
        "all ranks that communicated run the same passes, one by one: a rank without outputs joins "
        f"by mnpar.{joining}; a derivative that is one rank's own needs a tape of its own: with "
        "mnpar.Tape():"
    )


def _pass_call(flags: int, arguments: str) -> str:
    option = ""
    if flags & RECORDING:
        option = "enable_double_backprop=True"
    elif flags & KEEPS_TAPE:
        option = "retain_tape=True"
    if not flags & TO_TARGETS and arguments == "[], []":
        arguments = ""  # the outputs of a backward may be left out
    comma = ", " if arguments and option else ""
    return f"{'grad' if flags & TO_TARGETS else 'backward'}({arguments}{comma}{option})"


def call_of(fields: tuple[Any, ...]) -> Call:
    """Return ``Call(*fields)`` of all its fields, but faster."""
    return tuple.__new__(Call, fields)


def mean_of(dtype: Any) -> str:
    """Return the name in a header of the mean of arrays that are made wider to be summed."""
    name = f"mean of {dtype.name}"
    return name if name in _REDUCTION_CODES else "mean"


class Header(NamedTuple):
    """A parsed header."""

    op: str
    reduction: str
    order: int
    later: bool
    root: int
    kind: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    flags: int
    tag: int
    site: str
    seq: int

    @property
    def scale(self) -> int:
        """Return the loss scale that a gradient tells, by :func:`encode_scale`; 0: none."""
        return self.root if self.flags & SCALED and self.op not in (*ROOTED, "exchange") else 0

    @property
    def wants(self) -> bool:
        """Return whether a gradient flows through the sender's part."""
        return bool(self.flags & WANTS)

    @property
    def name(self) -> str:
        """The operation as errors call it."""
        reduced = "reduce" in self.op or "scan" in self.op
        return (
            "gradient of " * self.order
            + "i" * self.later
            + self.op
            + (f" ({self.reduction})" if reduced else "")
        )

    @property
    def said(self) -> str:
        """The call as errors tell it: ``bcast, root 1 of float32 (3, 4)``."""
        root = f", root {self.root}" if self.op in ROOTED else ""
        form = f" of {self.form}" if self.kind != NOTHING else ""
        return f"{self.name}{root}{form}{self.whole}"

    @property
    def whole(self) -> str:
        """The words of :attr:`Call.whole`."""
        return _of_whole(self)

    @property
    def text(self) -> str:
        """The message in a warning that nobody received it: ``send of float32 (3, 4) at
        model.py:42``.
        """
        return f"{self.name} of {self.form} at {self.site}"

    @property
    def form(self) -> str:
        """The value as errors describe it: ``float32 (3, 4)``."""
        if self.kind in (TUPLE, DICT) and self.op in POINT_TO_POINT:
            # (a dict's keys are a part)
            return f"{KINDS[self.kind]} of {self.shape[0] - (self.kind == DICT)}"
        if self.kind != ARRAY:
            return KINDS[self.kind]
        if self.dtype[0] not in "<>|=":
            return f"{self.dtype} {self.shape}"
        dtype = np.dtype(self.dtype)
        order = "" if dtype.isnative else {">": "big-endian ", "<": "little-endian "}[self.dtype[0]]
        return f"{order}{dtype.name} {self.shape}"


# packed headers, before and after their number: a program sends the same ones again and again
_PACKED: dict[Any, tuple[bytes, bytes]] = {}


def pack_header(
    call: Call,
    seq: int,
    kind: int,
    nbytes: int = 0,
    shape: tuple[int, ...] = (),
    dtype: Any = None,
    flags: int = 0,
) -> bytes:
    """Return the header of a message.

    Args:
        call: what sends it.
        seq: the number of the message, collective or exchange.
        kind: of value, one of ``KINDS``.
        nbytes: how many bytes follow the header.
        shape: of an array; two numbers of any other value.
        dtype: of an array.
        flags: added to those of the call.

    Raises:
        TypeError: arrays of this dtype, or of so many axes, cannot be sent.
    """
    key = call, kind, nbytes, shape, dtype, flags
    known = _PACKED.get(key)
    if known is None:
        header = _LAYOUT.pack(
            _MAGIC,
            _OP_CODES[call.op],
            _REDUCTION_CODES[call.reduction],
            call.order,
            call.later,
            call.root,
            0,
            kind,
            len(shape),
            b"" if dtype is None else check_form(dtype, len(shape)).encode(),
            nbytes,
            *shape,
            *_NO_SHAPE[len(shape) :],
            call.flags | flags,
            call.tag,
            call.site.encode(),
        )
        if len(_PACKED) > 10_000:
            _PACKED.clear()
        known = _PACKED[key] = header[: NUMBER.start], header[NUMBER.stop :]
    return known[0] + seq.to_bytes(8, "little") + known[1]


def numbered(header: bytes, seq: int) -> bytes:
    """Return the header of the same message with another number."""
    return header[: IDENTITY - 8] + seq.to_bytes(8, "little") + header[IDENTITY:]


_READ: dict[bytes, Header] = {}  # parsed headers, by all but their number


def read_header(raw: bytes | memoryview | Array) -> Header:
    """Return the header at the beginning of a message.

    Raises:
        MismatchError: mnpar did not send this.
    """
    head = raw[:SIZE] if type(raw) is bytes else raw[:SIZE].tobytes()  # type: ignore[union-attr]
    key = head[: IDENTITY - 8] + head[IDENTITY:]
    known = _READ.get(key)
    if known is None:
        known = _read(head)
        if len(_READ) > 10_000:
            _READ.clear()
        _READ[key] = known
        return known
    return tuple.__new__(Header, (*known[:-1], int.from_bytes(head[NUMBER], "little")))


def _read(head: bytes) -> Header:
    f = _LAYOUT.unpack(head)
    if f[0] != _MAGIC:
        raise MismatchError(
            "a message arrived that mnpar did not send: use a communicator of your own for "
            "mpi4py's calls"
        )
    return Header(
        OPS[f[1]],
        _TOLD[f[2]],
        f[3],
        bool(f[4]),
        f[5],
        f[7],
        f[11 : 11 + (f[8] if f[7] == ARRAY else 2)],
        f[9].rstrip(b"\0").decode(),
        f[10],
        f[23],
        f[24],
        f[25].rstrip(b"\0").decode(),
        f[6],
    )


_NAMES: dict[Any, str] = {}


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype in a header: numpy's short one; for the dtypes of ml_dtypes
    (bfloat16) the full one.

    Raises:
        TypeError: arrays of this dtype have no meaning in another process.
    """
    name = _NAMES.get(dtype)
    if name is None:
        if (
            dtype.kind not in "biufcmMV"
            or dtype.names
            or dtype.hasobject
            or (dtype.kind == "V" and dtype.name.startswith("void"))
        ):
            raise TypeError(
                f"arrays of dtype {dtype} cannot be sent: convert them to numbers, or use the "
                "_obj methods"
            )
        name = _NAMES[dtype] = dtype.name if dtype.kind == "V" else dtype.str
    return name


def check_form(dtype: Any, ndim: int) -> str:
    """Return the name of a dtype, if arrays of it, and of so many axes, can be sent.

    Raises:
        TypeError: they cannot be sent.
    """
    if ndim > MAX_NDIM:
        raise TypeError(
            f"arrays of at most {MAX_NDIM} axes can be sent, not {ndim}: reshape it first"
        )
    return dtype_name(dtype)


def check(x: Array) -> str:
    """Return the name of the dtype of an array that is to be sent.

    Raises:
        TypeError: it cannot be sent.
    """
    if type(x) is not np.ndarray:
        if not backend.is_array(x):
            instead = "use the _obj methods for objects"
            if np.isscalar(x):
                instead += ", numpy.asarray for a number"
            if hasattr(x, "node"):
                instead = "mnpar.functions has the same for Variables, with their gradients"
            if type(x).__module__.startswith("torch"):
                instead = "mnpar.torch has the same for tensors, with their gradients"
            elif getattr(x, "layout", None) is not None:
                instead = "x.part.array is this rank's part, x.gather().array the whole array"
            raise TypeError(
                f"a numpy or cupy array is sent here, not {type(x).__name__}: {instead}"
            )
        backend.as_plain_ndarray(x)  # refuses masked arrays
    return check_form(x.dtype, x.ndim)


def describe(x: Array) -> tuple[Array, int]:
    """Return the array on the host, and ``ON_DEVICE`` if it was on a GPU.

    Raises:
        TypeError: it cannot be sent.
    """
    check(x)
    host = backend.to_host(x)
    return host, (host is not x) * ON_DEVICE


def encode_refusal(call: Call, seq: int) -> Array:
    """Return a message to a rank that wants a gradient: the function that would give it was not
    recorded.
    """
    return np.frombuffer(pack_header(call, seq, NOTHING, flags=REFUSED), np.uint8)


def what_follows(head: bytes | Array) -> tuple[bool, int, int, int]:
    """Read a header that is sent by itself; return whether it is of a send, its order, its number,
    and the number of bytes that follow it.
    """
    # an array is a buffer, which type checkers know from Python 3.12 on
    op, order, seq, nbytes = _FOLLOWS.unpack_from(head)  # type: ignore[arg-type]
    return OPS[op] in POINT_TO_POINT, order, seq, nbytes


def encode(x: Any, call: Call, seq: int) -> Array:
    """Return a message, header and value, in memory of its own, uint8. ``x`` is an array, None, or
    a tuple, list or dict of such.
    """
    if type(x) is np.ndarray:
        header = pack_header(call, seq, ARRAY, x.nbytes, x.shape, x.dtype)
        return (
            np.frombuffer(bytearray(header + x.tobytes()), np.uint8)
            if x.nbytes <= _SMALL
            else _behind(header, x)
        )
    if x is None:
        return np.frombuffer(pack_header(call, seq, NOTHING), np.uint8)
    if isinstance(x, dict):
        keys = np.frombuffer(json.dumps([_text(key) for key in x]).encode(), np.uint8)
        return _encode_parts([keys, *x.values()], DICT, call, seq)
    if isinstance(x, tuple | list):
        return _encode_parts(list(x), TUPLE, call, seq)
    x, flags = describe(x)
    return _behind(pack_header(call, seq, ARRAY, x.nbytes, x.shape, x.dtype, flags), x)


def bytes_of(x: Any) -> int:
    """Return the bytes of the arrays in a value that :func:`encode` takes."""
    if isinstance(x, dict):
        return sum(map(bytes_of, x.values()))
    if isinstance(x, tuple | list):
        return sum(map(bytes_of, x))
    return 0 if x is None else int(x.nbytes)


def _behind(header: bytes, x: Array) -> Array:
    """Return the message of a header and an array on the host, which is copied once."""
    frame = np.empty(SIZE + x.nbytes, np.uint8)
    frame.data[:SIZE] = header
    np.ndarray(x.shape, x.dtype, frame, SIZE)[...] = x
    return frame


def encode_pieces(pieces: list[Array], shape: tuple[int, ...], call: Call, seq: int) -> Array:
    """Return one message of several pieces of arrays of one dtype, each copied once, to its place
    in the message.

    ``shape`` is the one in the header; it has as many elements as the pieces together.
    """
    dtype = pieces[0].dtype
    host = [backend.to_host(piece) for piece in pieces]
    nbytes = sum([piece.nbytes for piece in host])
    frame = np.empty(SIZE + nbytes, np.uint8)
    flags = (host[0] is not pieces[0]) * ON_DEVICE
    header = pack_header(call, seq, ARRAY, nbytes, shape, dtype, flags)
    frame[:SIZE] = np.frombuffer(header, np.uint8)
    body, start = frame[SIZE:].view(dtype), 0
    for piece in host:
        body[start : start + piece.size].reshape(piece.shape)[...] = piece
        start += piece.size
    return frame


def _encode_parts(parts: list[Any], kind: int, call: Call, seq: int) -> Array:
    """Return the message of a container: a header, and the messages of its parts, each on a 64-byte
    boundary.
    """
    frames = [encode(part, call, seq) for part in parts]
    room = sum(-(-len(frame) // 64) * 64 for frame in frames)
    whole = np.zeros(SIZE + room, np.uint8)
    whole[:SIZE] = np.frombuffer(pack_header(call, seq, kind, room, (len(parts),)), np.uint8)
    start = SIZE
    for frame in frames:
        whole[start : start + len(frame)] = frame
        start += -(-len(frame) // 64) * 64
    return whole


def _text(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a dict of arrays is sent with text as its keys, not {key!r}")
    return key


def encode_object(obj: Any, call: Call, seq: int) -> Array:
    """Return one message that holds a pickled object."""
    body = pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    return np.frombuffer(pack_header(call, seq, OBJECT, len(body)) + body, np.uint8)


def decode(frame: Array, header: Header | None = None) -> tuple[Any, Header]:
    """Return the value of a message, and its header. An array is a view of the message's own
    memory, to which it was written once.
    """
    header = header or read_header(frame)
    if header.kind == ARRAY and not header.flags & ON_DEVICE:  # the common case
        return np.ndarray(header.shape, header.dtype, frame, SIZE), header
    body = frame[SIZE : SIZE + header.nbytes]
    if header.kind == NOTHING:
        return None, header
    if header.kind == OBJECT:
        return pickle.loads(body.data), header
    if header.kind == ARRAY:
        return as_array(body, header), header
    parts, start = [], 0
    for _ in range(header.shape[0]):
        part, inner = decode(body[start:])
        parts.append(part)
        start += -(-(SIZE + inner.nbytes) // 64) * 64
    if header.kind == TUPLE:
        return tuple(parts), header
    return dict(zip(json.loads(parts[0].tobytes()), parts[1:], strict=True)), header


def as_array(body: Array, header: Header) -> Array:
    """Return bytes as the array that the header describes, on a GPU if it left one."""
    array = np.ndarray(header.shape, np.dtype(header.dtype), body)
    return backend.to_current_gpu(array) if header.flags & ON_DEVICE else array
