"""What users read of mistakes in large models and on ranks: a few lines with the cause and the
remedy, however many names there are.
"""

import io

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import serializers
from mnpar.errors import MismatchError

MANY = 3000


def model(*names):
    return mnpar.Chain(**{name: mnpar.Link(w=(1,)) for name in names})


def large(letter):
    return model(*[f"{letter}{i}" for i in range(MANY)])


def loaded(save, load):
    file = io.BytesIO()
    save(file, large("a"))
    file.seek(0)
    load(file, large("b"))


ALONE = {
    "copyparams": (
        lambda: large("a").copyparams(large("b")),
        r"no parameter /a0/w; it has /b0/w, /b1/w, .* /b7/w … and 2992 more",
    ),
    "addgrads": (lambda: large("a").addgrads(large("b")), r"no parameter /a0/w; .* 2992 more"),
    "load_npz": (
        lambda: loaded(serializers.save_npz, serializers.load_npz),
        r"the file has no 'b0/w'; it has a0/w, .* 2992 more",
    ),
    "load_safetensors": (
        lambda: loaded(serializers.save_safetensors, serializers.load_safetensors),
        r"the file has no 'b0/w'; it has a0/w, .* 2992 more",
    ),
    "hook": (
        lambda: L.Linear(2, 2).delete_hook("timer"),
        r"Linear has no hook 'timer'; it has none",
    ),
}


@pytest.mark.parametrize(("call", "told"), ALONE.values(), ids=ALONE)
def test_names_that_are_missing_are_told_with_the_first_that_there_are(call, told):
    with pytest.raises(KeyError, match=told) as caught:
        call()
    assert len(str(caught.value)) < 400


def attend(comm):
    x = np.ones((1, 2, 3, 4 + comm.rank), "f4")
    F.ring_attention(comm, x, x, x)


TOGETHER = {
    "models of other names": (
        lambda comm: comm.bcast_data(large("ab"[comm.rank])),
        r"the parameters of ranks 0 and 1 differ: only rank 1 has /b0/w, .* … and 2992 more, only "
        r"rank 0 has /a0/w, .* … and 2992 more\. All ranks make the same model",
    ),
    "models in another order": (
        lambda comm: comm.bcast_data(model("a", *"bc" if comm.rank else "cb")),
        r"the parameters of ranks 0 and 1 differ: number 1 is /b/w on rank 1, /c/w on rank 0\. All",
    ),
    "ring attention": (
        attend,
        r"rank 1 has causal=False, no cut, D=5, E=5, leading axes \(1, 2\) and float32, rank 0 "
        r"causal=False, no cut, D=4, E=4, .*: all ranks call it with the same",
    ),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("program", "told"), TOGETHER.values(), ids=TOGETHER)
def test_ranks_that_differ_are_told_how(comm, program, told):
    with pytest.raises(MismatchError, match=told) as caught:
        program(comm)
    assert len(str(caught.value)) < 600
    assert str(caught.value).count("\n") < 25
