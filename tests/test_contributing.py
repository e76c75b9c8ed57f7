"""The steps of CONTRIBUTING.md suffice: its files are there, and an activation, a collective, a
schedule and a file format need nothing that it does not name.
"""

import base64
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import serializers
from mnpar.communicators import wire
from mnpar.communicators.channel import Algorithm, owned, until_taken
from mnpar.communicators.communicator import twins
from mnpar.errors import CheckpointError
from mnpar.functions.communication.base import Collective
from mnpar.functions.communication.later import blocking, first, later
from mnpar.functions.math.trigonometric import cosh
from mnpar.functions.node import array_of, elementwise
from mnpar.parallel import SCHEDULES, Pipeline, make_schedule, own_schedule, simulate
from mnpar.plans import Plan
from mnpar.serializers.atomic import replacing
from mnpar.training.extensions import snapshot_object
from tests.functions.cases.case import Case
from tests.functions.communication import rows, test_derivatives, test_family, test_oracle
from tests.functions.test_cases import test_a_row_keeps_every_rule as keeps_every_rule
from tests.serializers import test_flipped_bits

ROOT = Path(__file__).parents[1]


def test_every_file_that_contributing_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"\b(?:benchmarks|docs|examples|mnpar|tests)/[\w/.]*\w/?", text))
    paths = {path for path in paths if not re.search(r"NAME|_build", path)}
    assert {"mnpar/checkpoint/", "tests/functions/test_cases.py"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@elementwise(gradient=lambda gy, x: gy / cosh.generic(x))
def gudermannian(xp, x):
    """Return the area under the hyperbolic secant."""
    return xp.arctan(xp.sinh(x))


def test_an_activation_is_a_formula_and_a_row():
    row = Case("gudermannian", (), gudermannian, lambda x: np.arctan(np.sinh(x)))
    assert row.answers_for() == (gudermannian.node,)
    keeps_every_rule(row)


@elementwise(gradient=lambda gy, y: gy * (array_of(y) != 0))
def softshrink(xp, x):
    """Return x moved by 0.5 towards 0, and 0 where x is nearer to 0 than that."""
    return x - xp.clip(x, -0.5, 0.5)


def test_an_activation_with_kinks_has_a_mask_and_inputs_beside_the_kinks():
    def truth(x):
        return np.sign(x) * np.maximum(abs(x) - 0.5, 0)

    keeps_every_rule(Case("softshrink", (), softshrink, truth, low=-1.7, high=1.8))


# ---- a collective: rank r gets the array of rank P - 1 - r ----


def _inline(match, x):
    return match.copy_of(match.size - 1 - match.me)


def _transfer(channel, match, x):
    other = match.size - 1 - match.me
    if other == match.me:
        return owned(x)
    given = channel.send_part(x, match, other)
    value = yield from channel.recv_part(match, other)
    yield from until_taken([given])
    return value


REVERSE = Algorithm(_inline, _transfer)


def _reverse(self, later, x) -> "Steps[Array]":  # noqa: F821 (as text, for the documentation)
    """Return the array of the rank as far from the last one as this is from the first."""
    return (yield from self.channel(0).steps(REVERSE, x, self._call("reverse", later=later)))[0]


def _reverse_obj(self, later, obj) -> "Steps[Any]":  # noqa: F821
    """Return the object of the rank as far from the last one as this is from the first."""
    call = self._call("reverse_obj", later=later)
    return (yield from self.channel(0).steps(REVERSE, obj, call))[0]


class Reverse(Collective):
    """Each rank gets the array of its opposite. Its own adjoint."""

    op, algorithm = "reverse", REVERSE

    def mirror(self):
        return Reverse(self.comm, of=self)


@blocking
def reverse(comm, x) -> "Prepared[Variable]":  # noqa: F821
    """Return the array of the rank as far from the last one as this is from the first."""
    return Reverse(comm), (x,), first


@pytest.fixture
def with_reverse(monkeypatch):
    """What a newcomer writes to the files of steps 1 to 3."""
    ops = (*wire.OPS, "reverse", "reverse_obj")
    monkeypatch.setattr(wire, "OPS", ops)
    monkeypatch.setattr(wire, "_OP_CODES", {name: code for code, name in enumerate(ops)})
    for method in (_reverse, _reverse_obj):
        now, start = twins(method)
        monkeypatch.setattr(mnpar.Communicator, now.__name__, now, raising=False)
        monkeypatch.setattr(mnpar.Communicator, start.__name__, start, raising=False)
    monkeypatch.setattr(F, "reverse", reverse, raising=False)
    monkeypatch.setattr(F, "ireverse", later(reverse), raising=False)


@pytest.fixture
def rows_of_reverse(monkeypatch):
    """Step 4."""
    stretches = rows.stretches
    row = rows.Row(lambda f, c, root, x: f("reverse")(c, x), rows.uneven, uneven=True)
    plan = rows.Planned(
        lambda f, c, root, x: f("reverse")(c, x),
        lambda p, root: Plan(stretches(rows.lengths(p)), stretches(rows.lengths(p))[::-1]),
    )
    monkeypatch.setitem(rows.ROWS, "reverse", row)
    monkeypatch.setitem(rows.PLANS, "reverse", plan)
    whole = lambda r, values, lists, reduced: values[-1 - r]
    monkeypatch.setitem(rows.WHOLE, "reverse", whole)


def test_what_a_new_collective_lacks_is_named(with_reverse):
    for form in ("", "i"):
        test_family.test_every_operation_is_there_as_a_method_and_as_a_function("reverse", form)
    tables = "ROWS.*PLANS.*WHOLE.*rows.py; to COLLECTIVES in tests/random_programs/programs.py"
    with pytest.raises(AssertionError, match=f"add 'reverse' to {tables}"):
        test_family.test_every_collective_is_in_all_tables_of_tests("reverse")


@pytest.mark.parametrize("when", rows.TWINS)
@pytest.mark.ranks(1, 2, 3, on="threads")
def test_a_collective_is_an_algorithm_its_mirror_and_its_rows(
    comm, when, with_reverse, rows_of_reverse
):
    for shape in ((2,), (40, 5)):
        test_derivatives.check(comm, rows.ROWS["reverse"], shape, when)
    for lead in ((), (40,), (0,)):
        test_oracle.check(comm, rows.PLANS["reverse"], lead, when)
    waits = when == "later"
    test_family.test_methods_move_every_dtype_and_shape(comm, "reverse", waits)
    test_family.test_methods_for_objects_do_the_same(comm, "reverse", waits)
    test_family.test_functions_and_their_gradients_are_those_of_one_process(
        comm, "reverse", None, waits
    )


# ---- a schedule ----


def one_at_a_time(ranks, micro_batches):
    """A schedule that waits for each micro-batch to come back."""
    actions = [f"F{i} B{i}" for i in range(micro_batches)]
    return own_schedule([" ".join(actions)] * ranks, "one at a time")


def test_a_schedule_is_a_function_and_a_name(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "one at a time", one_at_a_time)
    assert simulate(make_schedule("one at a time", 2, 3)).bubble > 0

    def program(comm):
        first, last = [
            L.Linear(*size, initialW=mnpar.initializers.Constant(0.1)) for size in ((4, 3), (3, 2))
        ]
        x = np.arange(24, dtype="f4").reshape(6, 4) / 24
        t = np.array([0, 1, 0, 1, 1, 0])
        F.softmax_cross_entropy(last(F.tanh(first(x))), t).backward()
        part = (first, last)[comm.rank]
        expected = [param.grad.copy() for param in part.params()]
        part.cleargrads()
        stage = (mnpar.Sequential(first, F.tanh), L.Classifier(last))[comm.rank]
        Pipeline(comm, stage, "one at a time", 3)((x, t)[comm.rank]).backward()
        for param, gradient in zip(part.params(), expected, strict=True):
            np.testing.assert_allclose(param.grad, gradient, rtol=1e-5, atol=1e-6)

    mnpar.run(program, ranks=2)


# ---- a file format: JSON, with the checksum of all of it in its first line ----


def save_json(path, obj):
    """Write an object as text."""
    arrays = obj if isinstance(obj, Mapping) else serializers.serialize(obj)
    text = json.dumps({key: _to_text(array) for key, array in arrays.items()}).encode()
    with replacing(path) as file:
        file.write(b"%08x\n" % zlib.crc32(text) + text)


def _to_text(array):
    if array.dtype.hasobject:
        return None
    return array.dtype.str, array.shape, base64.b64encode(array.tobytes()).decode()


def load_json(path, obj):
    """Read an object from what :func:`save_json` wrote."""
    found, _, text = Path(path).read_bytes().partition(b"\n")
    if found != b"%08x" % zlib.crc32(text):
        raise CheckpointError(f"{path} is damaged: its checksum is not that of its bytes")
    arrays = {key: _from_text(entry) for key, entry in json.loads(text).items()}
    serializers.NpzDeserializer(arrays).load(obj)


def _from_text(entry):
    if entry is None:
        return None
    dtype, shape, body = entry
    return np.frombuffer(base64.b64decode(body), dtype).reshape(shape)


def test_a_file_format_is_two_functions_and_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(serializers, "save_json", save_json, raising=False)
    monkeypatch.setattr(serializers, "__all__", [*serializers.__all__, "save_json"])
    with pytest.raises(AssertionError, match=r"add rows to FORMATS .* \['save_json'\]"):
        test_flipped_bits.test_every_format_has_a_row()
    monkeypatch.setitem(test_flipped_bits.FORMATS, "json", (save_json, load_json, 509))
    test_flipped_bits.test_every_format_has_a_row()
    test_flipped_bits.test_a_flipped_bit_never_loads_other_weights("json", tmp_path)


def test_snapshots_are_written_in_a_new_format(tmp_path):
    model = L.Linear(2, 1)
    optimizer = mnpar.optimizers.Adam().setup(model)
    updater = mnpar.training.StandardUpdater(
        mnpar.iterators.SerialIterator(np.ones((4, 2), "f4"), 2),
        optimizer,
        loss_func=lambda x: F.sum(model(x)),
    )
    trainer = mnpar.training.Trainer(updater, (2, "iteration"), str(tmp_path))
    trainer.extend(snapshot_object(model, "model.json", save_json), trigger=(2, "iteration"))
    trainer.run()
    other = L.Linear(2, 1)
    load_json(tmp_path / "model.json", other)
    np.testing.assert_array_equal(other.W.array, model.W.array)
