"""Every room shows what it says, and the page shows every room."""

import re

import numpy as np
import pytest

import mnpar
from tests.museum.page import PAGE, open_all, page

ROOMS = open_all()


def show(room):
    """Run the program of a room on thread ranks."""
    return mnpar.run(room.program, ranks=room.ranks)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("room", [r for r in ROOMS if r.kind == "right"], ids=str)
def test_a_room_that_is_right_has_the_right_number(room):
    alone = room.value is None
    expected = mnpar.run(room.program, ranks=1) * room.ranks if alone else room.value
    found = show(room)
    assert len(found) == len(expected) == room.ranks
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-6, atol=1e-12)
    numbers = np.concatenate([np.ravel(x) for x in expected])
    assert np.isfinite(numbers).all()
    assert numbers.any()


@pytest.mark.parametrize("room", [r for r in ROOMS if r.kind == "told"], ids=str)
def test_a_room_that_is_told_ends_with_its_error(room):
    with pytest.raises(Exception, match=re.escape(room.error)) as caught:
        show(room)
    assert len(str(caught.value).splitlines()) <= 25


@pytest.mark.parametrize("room", [r for r in ROOMS if r.kind == "checked"], ids=str)
def test_a_room_that_no_run_can_tell_is_found_by_the_check(room):
    show(room)  # without a word
    result = mnpar.check(room.program, (1, room.ranks))
    assert not result.ok
    assert room.checked in str(result)
    assert room.impossible


def test_there_are_many_rooms_and_each_is_small_and_has_a_source():
    assert len(ROOMS) >= 40
    assert len({room.title for room in ROOMS}) == len(ROOMS)
    assert [str(room) for room in ROOMS if len(room.text.splitlines()) > 25] == []
    assert [str(room) for room in ROOMS if not (room.source and room.there)] == []
    sources = " ".join([room.source for room in ROOMS])
    for known in (
        "NVIDIA/Megatron-LM#7452",
        "pytorch/pytorch#120386",
        "pytorch/pytorch#160285",
        "pytorch/pytorch#190007",
        "jax-ml/jax#3970",
        "deepspeedai/DeepSpeed#5248",
        "deepspeedai/DeepSpeed#5618",
        "ROCm/TransformerEngine#715",
        "mpi4jax/mpi4jax#77",
        "MLX",
    ):
        assert known in sources


def test_the_page_is_that_of_the_rooms():
    assert PAGE.read_text(encoding="utf-8") == page(ROOMS), "run python -m tests.museum"
